//! A GPU that others disturb: its memory is taken during a build; another process fills it, faults on it, or is stopped
//! or killed while it works; it is taken from another process for a while. Engines that are built go on, refusals are
//! reported, and nothing is left behind. The tests are a binary of their own, because cargo runs no other one beside it.
#![cfg(all(feature = "cuda", unix))]

#[path = "support/cuda.rs"]
mod cuda;

use std::ffi::{CStr, c_void};
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

/// The environment variable that tells a child process its task.
const CHILD: &str = "TREFOIL_DISTURBING_CHILD";
const ROWS: usize = 8;
/// How long the driver may take to free the memory of a process or a ring.
const SETTLED: Duration = Duration::from_secs(5);
/// Bytes of a GPU's memory that may change without a cause in the test.
const SLACK_BYTES: usize = 4 << 20;
/// Number of moments of a build, at equal distances, at which all memory is taken.
const MOMENTS: u32 = 24;
/// Size of the smallest allocation that is tried.
const LEAST: usize = 1 << 20;
/// The driver's status CUDA_ERROR_OUT_OF_MEMORY.
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
    // The device is opened anew: no weights of another build are on it.
    let device = Device::open(Target::Cuda(0))?;
    Engine::builder(model).on(&device).batch(ROWS).tuning(Tuning::Off).build()
}

/// The results of the same rows each time.
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

/// Waits until as much memory is free as before.
fn assert_given_back(device: &Device, free: usize, what: &str) {
    let until = Instant::now() + SETTLED;
    while free_bytes(device) + SLACK_BYTES < free && Instant::now() < until {
        thread::sleep(Duration::from_millis(1)); // the ring's own threads end
    }
    assert!(free_bytes(device) + SLACK_BYTES >= free, "{} bytes are left of {free}, {what}", free_bytes(device));
}

/// Whether a build may fail with this error when memory runs out.
fn tells_it(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::Driver { code, .. } => *code == OUT_OF_MEMORY,
        Error::Fault { cause, .. } => tells_it(cause),
        _ => false,
    }
}

/// The GPU, with the lock that allows to disturb it; `None` without a GPU.
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

/// Another process that runs a task of these tests. It is killed when the value is dropped.
struct Beside(Child);

impl Beside {
    fn start(test: &str, task: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, task);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Reads the process's output up to a word.
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

    /// Waits for the process to end, and checks that it succeeded.
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

/// Whether this process is a child; if so, its task has been done.
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

/// Answers rows while `disturb` runs, and checks that all results have the same bits; returns the number of answers.
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

/// A built engine needs no more memory; another engine is refused, also in a new process; when the process that holds
/// all memory is killed, everything is as before.
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

/// The child's task: takes all memory, and keeps it until it is killed.
fn fill() {
    let device = Device::open(Target::Cuda(0)).unwrap();
    let taken = take_all(&device);
    println!("taken");
    let _ended = std::io::stdin().read_line(&mut String::new());
    drop(taken);
}

/// The child's task: opens a GPU that is full, and builds.
fn come() {
    match Device::open(Target::Cuda(0)).and_then(|_| build(&model())).map(drop) {
        Err(error) if tells_it(&error) => eprintln!("told: {error}"),
        other => panic!("{other:?}"),
    }
}

/// A kernel writes to an invalid address: its own process gets the fault, another one on the same GPU does not.
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

/// The child's task: uses an engine, runs a kernel with a bad address beside it, and gets the fault.
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

/// The child's task: opens, builds and answers until its input ends, always with the same results.
fn live() {
    let (model, mut builds, is_over) = (model(), 0, AtomicBool::new(false));
    let expected = built_answer(&model).unwrap();
    println!("live");
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ended = std::io::stdin().read_line(&mut String::new());
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let engine = build(&model).unwrap();
            (0..20).for_each(|_| assert!(answer(&engine).unwrap() == expected, "other bits in build {builds}"));
            builds += 1;
        }
    });
    eprintln!("{builds} builds and {} answers", 20 * builds);
}

/// A process is stopped and continued, as by a shell or a scheduler, during builds and batches: it is late, but its
/// results are right and complete; other users of the GPU are not held up.
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

/// A process is killed at any moment of opening, building or answering.
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

/// The driver's functions that take the GPU from a process and give it back, if it has them (since CUDA 12.8).
struct Checkpoint {
    lock: OfProcess,
    checkpoint: OfProcess,
    restore: OfProcess,
    unlock: OfProcess,
}

/// Such a function: a process, and arguments, which may be null.
type OfProcess = unsafe extern "C" fn(i32, *mut c_void) -> i32;

impl Checkpoint {
    fn load() -> Option<Self> {
        // SAFETY: opens a library that this process has open already, and looks up a name in it.
        let named = |name: &CStr| unsafe {
            let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            let found = if driver.is_null() { null_mut() } else { libc::dlsym(driver, name.as_ptr()) };
            // A function of this name has this type in cuda.h.
            (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, OfProcess>(found))
        };
        Some(Self {
            lock: named(c"cuCheckpointProcessLock")?,
            checkpoint: named(c"cuCheckpointProcessCheckpoint")?,
            restore: named(c"cuCheckpointProcessRestore")?,
            unlock: named(c"cuCheckpointProcessUnlock")?,
        })
    }
}

/// Calls such a function for a child; the error is the driver's status.
fn of_child(function: OfProcess, child: &Beside) -> Result<(), i32> {
    // SAFETY: the child is not waited for, so that nobody else has its number; no arguments are the usual ones.
    match unsafe { function(child.0.id() as i32, null_mut()) } {
        0 => Ok(()),
        status => Err(status),
    }
}

/// The driver takes the GPU from a process: all that it has on it goes to host memory. The process gets it back later,
/// and its results are right and complete; meanwhile its memory on the GPU is free, and others go on.
#[test]
fn a_gpu_that_is_taken_from_a_process_and_given_back_changes_no_answer() {
    const NAME: &str = "a_gpu_that_is_taken_from_a_process_and_given_back_changes_no_answer";
    if was_child() {
        return;
    }
    let Some((device, _alone)) = alone() else { return };
    let Some(driver) = Checkpoint::load() else {
        println!("skipped: this driver has no checkpoints of processes");
        return;
    };
    let engine = build(&model()).unwrap();
    let (expected, free) = (answer(&engine).unwrap(), free_bytes(&device));
    let mut meanwhile = Vec::new();
    let mut beside = Beside::start(NAME, "live");
    beside.wait_for("live");
    for moment in 0..4 {
        thread::sleep(Duration::from_millis(100 + 137 * moment));
        of_child(driver.lock, &beside).unwrap();
        of_child(driver.checkpoint, &beside).unwrap();
        assert_given_back(&device, free, "the GPU was taken from the other process");
        meanwhile.push(served_meanwhile(&engine, &expected, || thread::sleep(Duration::from_millis(100))));
        of_child(driver.restore, &beside).unwrap();
        of_child(driver.unlock, &beside).unwrap();
    }
    beside.end();
    println!("answers while the other process had no GPU: {meanwhile:?}");
    assert!(meanwhile.iter().all(|&answers| answers > 0));
}
