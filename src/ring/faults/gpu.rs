//! On a GPU: a kernel that writes to a bad address, in a process of its own, for nothing works in it after that.
//!
//! Without a GPU it is skipped, and says so; with `TREFOIL_REQUIRE_GPU=1` that is a failure.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::cuda::{Cuda, Function, LaunchShape, Module};
use crate::device::{Access, DeviceBuffer, Kind, Run, Span, Target};

/// Tells the child process that it is the child, and how to wait.
const CHILD: &str = "TREFOIL_FAULTING_CHILD";

/// Leaves its output as it is; one run writes to address 0.
struct Faulting {
    cuda: Arc<Cuda>,
    kernel: Function,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    runs: AtomicUsize,
    faults_at: usize,
}

/// The kernel's one argument, aligned as `Cuda::launch` wants it.
#[repr(C, align(64))]
struct Address([u8; 8]);

impl Program for Faulting {
    fn slots(&self) -> usize {
        self.inputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        &[ROWS]
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        &self.inputs[slot]
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        vec![(self.outputs[run.slot].span_of(ROWS * ROW_ALIGN), Access::Write)]
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let is_bad = self.runs.fetch_add(1, Ordering::Relaxed) == self.faults_at;
        let address = Address(if is_bad { [0; 8] } else { self.outputs[run.slot].addr().to_ne_bytes() });
        let shape = LaunchShape { grid: [1; 3], cluster: 1, block: [1; 3], shared_bytes: 0, waits_itself: false };
        // SAFETY: one thread writes four bytes to the slot's output, which the ring orders; or, as this test is about,
        // to an address that is nobody's.
        unsafe { self.cuda.launch(&self.kernel, &shape, &address.0, stream) }
    }
}

impl Drop for Faulting {
    fn drop(&mut self) {
        println!("the program is dropped");
    }
}

/// A program whose run `faults_at` is bad.
fn program(device: &Device, faults_at: usize) -> Arc<dyn Program> {
    let Kind::Cuda(cuda) = device.kind() else { unreachable!("opened as one") };
    let image = concat!(include_str!("../../../tests/support/faulting.ptx"), "\0");
    let kernel = Module::load(cuda, "faulting", image.as_bytes()).unwrap().function("write_to", 0, 1).unwrap();
    let buffers = || (0..SLOTS).map(|_| DeviceBuffer::new(device, ROWS * ROW_ALIGN).unwrap()).collect::<Vec<_>>();
    let (inputs, outputs, runs) = (buffers(), buffers(), AtomicUsize::new(0));
    Arc::new(Faulting { cuda: cuda.clone(), kernel, inputs, outputs, runs, faults_at })
}

/// A ring with a bad run, used until everybody is answered.
fn child(waiting: Waiting) {
    let device = Device::open(Target::Cuda(0)).unwrap().checked();
    let core = ring(&device, program(&device, 8), waiting);

    for _ in 0..8 {
        core.acquire(LONG).unwrap().submit(1).unwrap().wait().unwrap(); // all is well
    }
    let start = Instant::now();
    let errors = use_up(&core, 6);
    assert!(start.elapsed() < Duration::from_secs(1), "answered after {:?}", start.elapsed());
    check_faulted(&core, &errors, "failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)", FaultClass::Process);
    let Some(Error::Fault { cause, .. }) = device.fault() else { panic!("no fault is latched") };
    assert!(matches!(&*cause, Error::Driver { operation, .. } if operation.starts_with("cu")), "{cause}");
    // A device opened anew in this process is of no use either, and says so.
    let anew = Device::open(Target::Cuda(0)).and_then(|device| DeviceBuffer::new(&device, 256).map(drop));
    println!("opened anew: {anew:?}");
    println!("{}\n{} answers", core.health(), errors.len());
    drop((core, device));
}

#[test]
fn a_bad_address_answers_everybody_and_the_process_ends_well() {
    let name = "ring::faults::gpu::a_bad_address_answers_everybody_and_the_process_ends_well";
    if let Ok(index) = std::env::var(CHILD) {
        child(WAYS[index.parse::<usize>().unwrap()]);
        println!("over");
        return;
    }
    let required = std::env::var("TREFOIL_REQUIRE_GPU").is_ok_and(|value| value == "1");
    match Device::open(Target::Cuda(0)) {
        Ok(_) => {}
        Err(Error::NoDevice { why, .. }) if !required => return println!("skipped: no CUDA device: {why}"),
        Err(error) => panic!("cuda:0 cannot be used: {error}"),
    }
    for (index, waiting) in WAYS.iter().enumerate() {
        let text = run_child(name, &index.to_string());
        for part in ["over", "faulted (process)", "CUDA_ERROR_ILLEGAL_ADDRESS"] {
            assert!(text.contains(part), "{waiting:?}: no `{part}` in\n{text}");
        }
    }
}

/// Runs this test in a process of its own, which is told `what`, and ends well; what it said.
fn run_child(name: &str, what: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, what)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{what}:\n{text}");
    assert_eq!(output.status.code(), Some(0), "{what}: {}\n{text}", output.status);
    text
}

/// One GPU of two meets a bad address; the other answers everything.
fn child_of_two() {
    let devices = [0, 1].map(|ordinal| Device::open(Target::Cuda(ordinal)).unwrap().checked());
    let [first, second] = [(&devices[0], 8), (&devices[1], usize::MAX)].map(|(device, at)| program(device, at));
    let [bad, good] = devices;
    let peers = super::peers::peers(vec![(bad, first), (good, second)], Waiting::Block);
    let mut tickets = std::collections::VecDeque::new();
    for number in 0..100 {
        tickets.push_back(peers.acquire(LONG).unwrap().submit(1 + number % ROWS).unwrap());
        if tickets.len() > 4 {
            drop(tickets.pop_front().expect("just counted").wait().unwrap());
        }
    }
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    let stats = peers.stats();
    println!("{stats:?}");
    let [bad, good] = &stats[..] else { panic!("two devices") };
    assert!(bad.fault.is_some() && good.fault.is_none(), "{stats:?}");
    assert!(good.run_again > 0 && good.batches >= 100 - 8, "{stats:?}");
}

#[test]
fn another_gpu_answers_what_a_failed_one_has_not() {
    let name = "ring::faults::gpu::another_gpu_answers_what_a_failed_one_has_not";
    if std::env::var(CHILD).is_ok() {
        child_of_two();
        return println!("over");
    }
    match Device::open(Target::Cuda(1)) {
        Ok(_) => assert!(run_child(name, "two").contains("over")),
        Err(error) => println!("skipped: no second GPU: {error}"),
    }
}
