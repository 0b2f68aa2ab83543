//! A GPU that others disturb: somebody takes its memory during a build, another process fills it, faults on it, is stopped
//! or killed in the middle of its work. What is built goes on, what is refused is told, nothing is left. A binary of its own,
//! because cargo runs no other beside it.
#![cfg(all(feature = "cuda", unix))]

#[path = "support/cuda.rs"]
mod cuda;

use std::ffi::c_void;
use std::io::{BufRead, BufReader};
use std::mem::ManuallyDrop;
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda::{Memory, Primary, cuda};
use trefoil::model::Model;
use trefoil::{Device, Engine, Error, FaultClass, Target, Tuning};

/// Tells a child process what it is to do.
const CHILD: &str = "TREFOIL_DISTURBING_CHILD";
const ROWS: usize = 8;
/// How long the driver may take to give back what a process or a ring had.
const SETTLED: Duration = Duration::from_secs(5);
/// What of a GPU's memory may come and go by itself.
const SLACK_BYTES: usize = 4 << 20;
/// Moments of a build, at equal distances, at which all memory is taken.
const MOMENTS: u32 = 24;
/// The smallest piece that is taken.
const LEAST: usize = 1 << 20;
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;

/// Takes all free memory.
fn take_all(device: &Device) -> Vec<Memory> {
    let _current = Primary::of(device);
    let (mut taken, mut piece) = (Vec::new(), 1_usize << 36);
    while piece >= LEAST {
        match Memory::new(piece) {
            Ok(memory) => taken.push(memory),
            Err(_) => piece /= 2,
        }
    }
    taken
}

fn model() -> Model {
    Model::open("weights/efficientnet-lite0").unwrap()
}

fn build(model: &Model) -> Result<Engine, Error> {
    // A device of its own: no weights are there from another build.
    let device = Device::open(Target::Cuda(0))?;
    Engine::builder(model).on(&device).batch(ROWS).tuning(Tuning::Off).build()
}

/// What comes out of the same rows each time.
fn answer(engine: &Engine) -> Result<Vec<u8>, Error> {
    let mut batch = engine.acquire()?;
    batch.rows_mut().flatten().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
    let output = batch.submit(ROWS)?.wait()?;
    Ok((0..ROWS).flat_map(|row| output.row(row)).copied().collect())
}

fn built_answer(model: &Model) -> Result<Vec<u8>, Error> {
    answer(&build(model)?)
}

fn free_bytes(device: &Device) -> usize {
    let _current = Primary::of(device);
    let (mut free, mut total) = (0, 0);
    cuda!(cuMemGetInfo_v2(&mut free, &mut total)).unwrap();
    free
}

/// Waits until so much is free as was before.
fn assert_given_back(device: &Device, free: usize, what: &str) {
    let until = Instant::now() + SETTLED;
    while free_bytes(device) + SLACK_BYTES < free && Instant::now() < until {
        thread::sleep(Duration::from_millis(1)); // the ring's own threads end
    }
    assert!(free_bytes(device) + SLACK_BYTES >= free, "{} bytes are left of {free}, {what}", free_bytes(device));
}

/// Whether this is what a build may be answered with when memory runs out.
fn tells_it(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::Driver { code, .. } => *code == OUT_OF_MEMORY,
        Error::Fault { cause, .. } => tells_it(cause),
        _ => false,
    }
}

/// The GPU, and the right to disturb it; none where there is none.
fn alone() -> Option<(Device, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::open(Target::Cuda(0)) {
        Ok(device) => Some((device, guard)),
        Err(Error::NoDevice { why, .. }) if std::env::var_os("TREFOIL_REQUIRE_GPU").is_none() => {
            println!("skipped: no CUDA device: {why}");
            None
        }
        Err(error) => panic!("cuda:0 cannot be used: {error}"),
    }
}

/// Another process in one of these tests. Killed with its last use.
struct Beside(Child);

impl Beside {
    fn start(test: &str, task: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, task);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Reads what it says up to a word.
    fn wait_for(&mut self, word: &str) {
        let mut said = String::new();
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap());
        while lines.read_line(&mut said).unwrap() > 0 {
            if said.trim_end().ends_with(word) {
                return;
            }
        }
        panic!("it ended before it said `{word}`: {said}");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a number of a process that was not waited for, so that nobody else has it.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for its end, which is a good one.
    fn end(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process is a child, which has then done what it is there for.
fn was_child() -> bool {
    let Ok(task) = std::env::var(CHILD) else { return false };
    match &*task {
        "fill" => fill(),
        "come" => come(),
        "fault" => fault(),
        "live" => live(),
        _ => panic!("nobody does `{task}`"),
    }
    true
}

/// Answers while `disturb` runs, all of the same bits; how many there were.
fn served_meanwhile(engine: &Engine, expected: &[u8], disturb: impl FnOnce() + Send) -> usize {
    let (is_over, mut answers) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let disturbing = scope.spawn(|| {
            disturb();
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) && !disturbing.is_finished() {
            assert!(answer(engine).unwrap() == expected, "other bits after {answers} answers");
            answers += 1;
        }
    });
    answers
}

#[test]
fn memory_that_is_taken_during_a_build_is_told_and_nothing_is_left() {
    let Some((device, _alone)) = alone() else { return };
    let model = model();
    drop(build(&model).unwrap()); // what the driver keeps from a first build
    let start = Instant::now();
    let expected = built_answer(&model).unwrap();
    let takes = start.elapsed();
    let (free, mut refused, mut failed) = (free_bytes(&device), 0, 0);
    for moment in 0..MOMENTS {
        let taken_at = (takes * moment / MOMENTS).saturating_sub(Duration::from_millis(2));
        let built = thread::scope(|scope| {
            let taken = scope.spawn(|| {
                thread::sleep(taken_at);
                take_all(&device)
            });
            let built = built_answer(&model);
            let _current = Primary::of(&device);
            drop(taken.join().unwrap());
            built
        });
        match built {
            Ok(found) => assert!(found == expected, "other bits, memory was taken after {taken_at:?}"),
            Err(Error::OutOfMemory { .. }) => refused += 1,
            Err(error) if tells_it(&error) => {
                println!("after {taken_at:?}: {error}");
                failed += 1;
            }
            Err(error) => panic!("memory was taken after {taken_at:?}: {error}"),
        }
        assert!(built_answer(&model).unwrap() == expected, "other bits in the next build, after {taken_at:?}");
        assert_given_back(&device, free, &format!("after {taken_at:?}"));
    }
    println!("{MOMENTS} builds: {refused} refused, {failed} failed in the middle");
    assert!(refused + failed > 0, "memory was never short");
}

/// An engine that is built needs no more memory; another one is refused, also to a process that comes new; and when the
/// process that has it all is killed, all is as before.
#[test]
fn a_process_that_fills_the_gpu_stops_nothing_that_is_built() {
    const NAME: &str = "a_process_that_fills_the_gpu_stops_nothing_that_is_built";
    if was_child() {
        return;
    }
    let Some((device, _alone)) = alone() else { return };
    let model = model();
    let engine = build(&model).unwrap();
    let (expected, free) = (answer(&engine).unwrap(), free_bytes(&device));
    for _ in 0..3 {
        let mut beside = Beside::start(NAME, "fill");
        beside.wait_for("taken");
        println!("{} bytes are free", free_bytes(&device));
        for _ in 0..100 {
            assert!(answer(&engine).unwrap() == expected, "other bits on a full GPU");
        }
        match build(&model).map(drop) {
            Err(error @ Error::OutOfMemory { .. }) => println!("{error}"),
            other => panic!("{other:?}"),
        }
        Beside::start(NAME, "come").end();
        drop(beside);
        assert_given_back(&device, free, "a process that had all memory was killed");
        assert!(built_answer(&model).unwrap() == expected, "other bits after the GPU was full");
    }
}

/// Takes all memory, and keeps it until it is killed.
fn fill() {
    let device = Device::open(Target::Cuda(0)).unwrap();
    let taken = take_all(&device);
    println!("taken");
    let _ended = std::io::stdin().read_line(&mut String::new());
    drop(taken);
}

/// Comes to a GPU that is full.
fn come() {
    match Device::open(Target::Cuda(0)).and_then(|_| build(&model())).map(drop) {
        Err(error) if tells_it(&error) => eprintln!("told: {error}"),
        other => panic!("{other:?}"),
    }
}

/// A kernel writes to an address that is nobody's: its own process hears of it, another one on the same GPU does not.
#[test]
fn a_process_that_faults_disturbs_no_other() {
    const NAME: &str = "a_process_that_faults_disturbs_no_other";
    if was_child() {
        return;
    }
    let Some((_device, _alone)) = alone() else { return };
    let model = model();
    let engine = build(&model).unwrap();
    let expected = answer(&engine).unwrap();
    let answers = served_meanwhile(&engine, &expected, || (0..4).for_each(|_| Beside::start(NAME, "fault").end()));
    assert!(built_answer(&model).unwrap() == expected, "other bits after others faulted");
    println!("{answers} answers beside four processes that faulted");
}

/// Uses an engine, runs a kernel with a bad address beside it, and hears of the fault.
fn fault() {
    let device = Device::open(Target::Cuda(0)).unwrap();
    let engine = Engine::builder(&model()).on(&device).batch(ROWS).tuning(Tuning::Off).build().unwrap();
    answer(&engine).unwrap();
    let image = concat!(include_str!("support/faulting.ptx"), "\0");
    let _current = ManuallyDrop::new(Primary::of(&device)); // no call succeeds after the fault
    let (mut module, mut function, mut address) = (null_mut(), null_mut(), 0_u64);
    cuda!(cuModuleLoadData(&mut module, image.as_ptr().cast())).unwrap();
    cuda!(cuModuleGetFunction(&mut function, module, c"write_to".as_ptr())).unwrap();
    let mut arguments = [(&raw mut address).cast::<c_void>()];
    let arguments = arguments.as_mut_ptr();
    cuda!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), arguments, null_mut())).unwrap();
    let until = Instant::now() + SETTLED;
    let heard = loop {
        match answer(&engine) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < until, "nobody hears of the fault"),
        }
    };
    assert!(heard.class() == FaultClass::Process, "{heard}");
    eprintln!("told: {heard}");
}

/// Opens, builds and answers for some seconds, always the same.
fn live() {
    let (model, start, mut builds) = (model(), Instant::now(), 0);
    let expected = built_answer(&model).unwrap();
    while start.elapsed() < Duration::from_secs(4) {
        let engine = build(&model).unwrap();
        (0..20).for_each(|_| assert!(answer(&engine).unwrap() == expected, "other bits in build {builds}"));
        builds += 1;
    }
    eprintln!("{builds} builds and {} answers", 20 * builds);
}

/// Stopped and continued, as by a shell or a scheduler, in the middle of builds and of batches: late, but right and to the
/// end; and who else is on the GPU goes on meanwhile.
#[test]
fn a_process_that_is_stopped_goes_on_and_stops_no_other() {
    const NAME: &str = "a_process_that_is_stopped_goes_on_and_stops_no_other";
    if was_child() {
        return;
    }
    let Some((_device, _alone)) = alone() else { return };
    let engine = build(&model()).unwrap();
    let expected = answer(&engine).unwrap();
    let mut meanwhile = Vec::new();
    let beside = Beside::start(NAME, "live");
    for moment in 0..12 {
        thread::sleep(Duration::from_millis(170 + 13 * moment));
        beside.signal(libc::SIGSTOP);
        meanwhile.push(served_meanwhile(&engine, &expected, || thread::sleep(Duration::from_millis(100))));
        beside.signal(libc::SIGCONT);
    }
    beside.end();
    println!("answers while the other process was stopped: {meanwhile:?}");
    assert!(meanwhile.iter().all(|&answers| answers > 0));
}

/// Killed at any moment of opening, building or answering.
#[test]
fn a_process_that_is_killed_leaves_nothing() {
    const NAME: &str = "a_process_that_is_killed_leaves_nothing";
    if was_child() {
        return;
    }
    let Some((device, _alone)) = alone() else { return };
    let engine = build(&model()).unwrap();
    let (expected, free) = (answer(&engine).unwrap(), free_bytes(&device));
    for moment in 0..12 {
        let beside = Beside::start(NAME, "live");
        let disturb = || {
            thread::sleep(Duration::from_millis(100 + 120 * moment));
            drop(beside);
        };
        let answers = served_meanwhile(&engine, &expected, disturb);
        assert_given_back(&device, free, &format!("a process was killed, {answers} answers were given meanwhile"));
    }
}
