//! Faults on GPUs, each in a process of its own: a kernel that writes to a bad address, after which the process can use
//! no GPU, and a call that the driver refuses, after which the other GPUs can still be used.
//!
//! Where there are too few GPUs, a test is skipped and prints this; `TREFOIL_REQUIRE_GPU=N` makes fewer than N a
//! failure.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::cuda::{Cuda, Function, LaunchShape, Module};
use crate::device::{Access, Backend, DeviceBuffer, Kind, Run, Span, Target};
use crate::ring::Peers;

/// The variable that tells a process that it is the child, and how it waits.
const CHILD: &str = "TREFOIL_FAULTING_CHILD";

/// The fault of a bad run.
#[derive(Clone, Copy)]
enum Bad {
    /// The run's kernel writes to address 0: class process.
    Address,
    /// The driver refuses the run's launch, of more threads than a block can have: class device.
    Launch,
}

/// Copies its input to its output, after a kernel that writes to the output; one run is bad.
struct Faulting {
    cuda: Arc<Cuda>,
    kernel: Function,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    runs: AtomicUsize,
    faults_at: usize,
    bad: Bad,
}

/// The kernel's only argument, aligned as `Cuda::launch` needs it.
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
        let bytes = run.rows * ROW_ALIGN;
        let (input, output) = (&self.inputs[run.slot], &self.outputs[run.slot]);
        vec![(input.span_of(bytes), Access::Read), (output.span_of(bytes), Access::Write)]
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let bad = (self.runs.fetch_add(1, Ordering::Relaxed) == self.faults_at).then_some(self.bad);
        let (input, output) = (self.inputs[run.slot].addr(), self.outputs[run.slot].addr());
        let address = Address(if let Some(Bad::Address) = bad { [0; 8] } else { output.to_ne_bytes() });
        let threads = if let Some(Bad::Launch) = bad { 2048 } else { 1 };
        let block = [threads, 1, 1];
        let shape = LaunchShape { grid: [1; 3], cluster: 1, block, shared_bytes: 0, waits_itself: false };
        // SAFETY: one thread writes four bytes to the slot's output, or, as these tests are about, to an address that is
        // nobody's. Both buffers hold ROWS rows, the program keeps them, and the ring orders all work on them.
        unsafe {
            self.cuda.launch(&self.kernel, &shape, &address.0, stream)?;
            self.cuda.copy_on_device(output, input, run.rows * ROW_ALIGN, stream)
        }
    }
}

impl Drop for Faulting {
    fn drop(&mut self) {
        println!("the program is dropped");
    }
}

/// A program whose run number `faults_at` is bad.
fn program(device: &Device, faults_at: usize, bad: Bad) -> Arc<dyn Program> {
    let Kind::Cuda(cuda) = device.kind() else { unreachable!("opened as one") };
    let image = concat!(include_str!("../../../tests/support/faulting.ptx"), "\0");
    let kernel = Module::load(cuda, "faulting", image.as_bytes()).unwrap().function("write_to", 0, 1, false).unwrap();
    let buffers = || (0..SLOTS).map(|_| DeviceBuffer::new(device, ROWS * ROW_ALIGN).unwrap()).collect::<Vec<_>>();
    let (inputs, outputs, runs) = (buffers(), buffers(), AtomicUsize::new(0));
    Arc::new(Faulting { cuda: cuda.clone(), kernel, inputs, outputs, runs, faults_at, bad })
}

/// Uses a ring with a bad run until every call is answered.
fn child(waiting: Waiting) {
    let device = Device::open(Target::Cuda(0)).unwrap().checked();
    let core = ring(&device, program(&device, 8, Bad::Address), waiting);

    for _ in 0..8 {
        core.acquire(LONG).unwrap().submit(1).unwrap().wait().unwrap(); // all is well
    }
    let start = Instant::now();
    let errors = use_up(&core, 6);
    assert!(start.elapsed() < Duration::from_secs(1), "answered after {:?}", start.elapsed());
    check_faulted(&core, &errors, "failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)", FaultClass::Process);
    let Some(Error::Fault { cause, .. }) = device.fault() else { panic!("no fault is latched") };
    assert!(matches!(&*cause, Error::Driver { operation, .. } if operation.starts_with("cu")), "{cause}");
    // A device that is opened again in this process cannot be used either, and its error says so.
    let anew = Device::open(Target::Cuda(0)).and_then(|device| DeviceBuffer::new(&device, 256).map(drop));
    println!("opened anew: {anew:?}");
    println!("{}\n{} answers", core.health(), errors.len());
    drop((core, device));
}

#[test]
fn a_bad_address_answers_everybody_and_the_process_ends_well() {
    let name = "ring::faults::gpu::a_bad_address_answers_everybody_and_the_process_ends_well";
    in_children(name, 1, &["faulted (process)", "CUDA_ERROR_ILLEGAL_ADDRESS"], child);
}

/// Runs `child` in a process of its own for each way of waiting, if there are `gpus` GPUs. Each process must end, and
/// print each of `says`.
fn in_children(name: &str, gpus: usize, says: &[&str], child: fn(Waiting)) {
    if let Ok(index) = std::env::var(CHILD) {
        let waiting = WAYS[index.parse::<usize>().unwrap()];
        in_time("a process of its own", move || child(waiting));
        return println!("over");
    }
    if !are_there(gpus) {
        return;
    }
    for (index, waiting) in WAYS.iter().enumerate() {
        let text = run_child(name, &index.to_string());
        for part in ["over"].iter().chain(says) {
            assert!(text.contains(part), "{waiting:?}: no `{part}` in\n{text}");
        }
    }
}

/// Runs this test in a process of its own, which gets `what` and must succeed; returns what it printed.
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

/// Whether there are `gpus` GPUs. If there are fewer, prints this, or fails if they are required.
fn are_there(gpus: usize) -> bool {
    let required = std::env::var("TREFOIL_REQUIRE_GPU").ok().and_then(|value| value.parse().ok()).unwrap_or(0);
    match Device::open(Target::Cuda(gpus - 1)) {
        Ok(_) => true,
        Err(Error::NoDevice { target, why }) if gpus > required => {
            println!("skipped: no {target}: {why}");
            false
        }
        Err(error) => panic!("cuda:{} cannot be used: {error}", gpus - 1),
    }
}

/// A fleet of two GPUs, of which the first has a bad run.
fn two(bad: Bad, waiting: Waiting) -> Arc<Peers> {
    let of = |ordinal, faults_at| {
        let device = Device::open(Target::Cuda(ordinal)).unwrap().checked();
        let program = program(&device, faults_at, bad);
        (device, program)
    };
    super::peers::peers(vec![of(0, 4), of(1, usize::MAX)], waiting)
}

/// The other GPU answers every batch with the batch's own rows.
#[test]
fn another_gpu_answers_what_a_failed_one_has_not() {
    in_children("ring::faults::gpu::another_gpu_answers_what_a_failed_one_has_not", 2, &[], |waiting| {
        let peers = two(Bad::Launch, waiting);
        let errors = super::peers::use_peers(&peers);
        super::peers::check_all_answered(&peers, &errors, 1);
        let stats = peers.stats();
        println!("{stats:?}");
        let [bad, good] = &stats[..] else { panic!("two devices") };
        let fault = bad.fault.as_ref().expect("it had a bad run");
        assert!(fault.class() == FaultClass::Device && good.run_again > 0, "{stats:?}");
    });
}

/// CUDA makes the process's other GPU unusable too: every batch without a right answer gets this fault.
#[test]
fn a_bad_address_on_one_gpu_answers_everybody_of_both() {
    in_children("ring::faults::gpu::a_bad_address_on_one_gpu_answers_everybody_of_both", 2, &[], |waiting| {
        let peers = two(Bad::Address, waiting);
        let errors = super::peers::use_peers(&peers);
        assert!(errors.iter().all(|error| error.class() == FaultClass::Process), "{errors:?}");
        let stats = peers.stats();
        println!("{} errors, {stats:?}", errors.len());
        assert!(stats[0].fault.is_some(), "{stats:?}");
    });
}
