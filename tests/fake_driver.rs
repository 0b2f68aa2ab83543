//! The real CUDA device, program and ring on a driver library without a GPU (`tests/fake_cuda`).
//!
//! Each test starts this binary again as a child whose `libcuda.so` is the fake, to run one of [`scenarios`], and
//! looks at what the child printed and at the log of its driver calls.

#[path = "support/echo.rs"]
mod echo;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use trefoil::{Device, Engine, Error, OutputKind, Target};

const SCENARIO: &str = "TREFOIL_FAKE_SCENARIO";

fn main() {
    if let Ok(scenario) = env::var(SCENARIO) {
        return match scenarios::run(&scenario) {
            Ok(()) => println!("done"),
            Err(error) => println!("error {error}"),
        };
    }
    let test = |name: &str, run: fn() -> Result<(), Failed>| Trial::test(name, run);
    let tests = vec![
        test("no_library_means_the_cpu", no_library_means_the_cpu),
        test("no_gpu_means_the_cpu", no_gpu_means_the_cpu),
        test("a_driver_too_old_is_an_error", a_driver_too_old_is_an_error),
        test("a_driver_that_fails_is_an_error", a_driver_that_fails_is_an_error),
        test("a_gpu_too_old_is_an_error", a_gpu_too_old_is_an_error),
        test("an_ordinal_out_of_range_says_what_is_there", an_ordinal_out_of_range_says_what_is_there),
        test("one_batch_makes_the_calls_of_the_table", one_batch_makes_the_calls_of_the_table),
        test("a_batch_costs_twelve_calls", a_batch_costs_twelve_calls),
        test("held_work_comes_out_in_order", held_work_comes_out_in_order),
        test("what_is_made_is_destroyed", what_is_made_is_destroyed),
        test("every_call_may_fail", every_call_may_fail),
        test("every_allocation_may_run_out_of_memory", every_allocation_may_run_out_of_memory),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

/// What runs in the child.
mod scenarios {
    use super::*;

    pub fn run(scenario: &str) -> Result<(), Error> {
        match scenario {
            "open" => open(Target::Cuda(0)),
            "open-second" => open(Target::Cuda(1)),
            "auto" => open(Target::Auto),
            "batch" => batches(1),
            "batches" => batches(50),
            "threads" => threads(),
            "life" => life(),
            other => panic!("no scenario {other}"),
        }
    }

    fn open(target: Target) -> Result<(), Error> {
        let device = Device::open(target)?;
        println!("opened {}", device.info().target);
        Ok(())
    }

    fn build(device: &Device) -> Result<Engine, Error> {
        Engine::builder(&echo::echo()).on(device).output(OutputKind::Features).batch_sizes(&[1, 4]).build()
    }

    /// Marks a place in the log of driver calls.
    fn mark(text: &str) {
        use std::io::Write;
        let log = env::var("FAKE_CUDA_LOG").unwrap();
        writeln!(fs::OpenOptions::new().append(true).create(true).open(log).unwrap(), "-- {text}").unwrap();
    }

    fn batches(count: u32) -> Result<(), Error> {
        let engine = build(&Device::open(Target::Cuda(0))?)?;
        mark("batches");
        for number in 0..count {
            let mut batch = engine.acquire()?;
            if number == 0 {
                assert!(batch.rows_mut().all(|row| row.iter().all(|&byte| byte == 0)), "page-locked memory not zeroed");
                assert!(batch.rows_mut().all(|row| (row.as_ptr() as usize).is_multiple_of(256)), "rows not aligned");
            }
            echo::fill(&mut batch, 2, number);
            batch.submit(2)?.wait()?;
        }
        mark("end");
        Ok(())
    }

    fn threads() -> Result<(), Error> {
        let device = Device::open(Target::Cuda(0))?;
        let engine = build(&device)?;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let engine = &engine;
                scope.spawn(move || {
                    for number in 0..100 {
                        let ticket = echo::submit(engine, 1 + number % 4, number as u32).unwrap();
                        if (number + thread) % 3 > 0 {
                            ticket.wait().unwrap();
                        }
                    }
                });
            }
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while engine.credits()?.in_flight > 0 {
            assert!(Instant::now() < deadline, "credits lost: {:?}", engine.credits()?);
        }
        let last = echo::submit(&engine, 4, 1)?;
        drop(engine);
        drop(last.wait()?);
        drop(device);
        // The completion thread holds the ring until it has seen the dropped tickets done; then all of it goes.
        while !fs::read_to_string(env::var("FAKE_CUDA_LOG").unwrap()).unwrap().contains("\nLIVE") {
            assert!(Instant::now() < deadline, "the ring was never dropped");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Opens, builds, runs and drops everything, and after an error checks that the device stays out of use.
    fn life() -> Result<(), Error> {
        let device = Device::open(Target::Cuda(0))?;
        println!("opened");
        let engine = build(&device)?;
        println!("built");
        let run = || -> Result<(), Error> {
            for number in 0..3 {
                drop(echo::submit(&engine, 3, number)?.wait()?);
            }
            Ok(())
        };
        let outcome = run();
        if outcome.is_err() {
            assert!(device.fault().is_some(), "no fault latched");
            assert!(matches!(engine.acquire(), Err(Error::Fault { .. })), "a faulted engine lends a batch");
            assert!(build(&device).is_err(), "a faulted device takes another engine");
        }
        outcome
    }
}

/// What a child did.
struct Report {
    stdout: String,
    log: Vec<String>,
}

impl Report {
    fn violations(&self) -> Vec<&String> {
        self.log.iter().filter(|line| line.starts_with("VIOLATION")).collect()
    }

    /// What was alive when the context was released; nothing if it never was.
    fn alive(&self) -> Option<Vec<&str>> {
        let last = self.log.iter().rev().find_map(|line| line.strip_prefix("LIVE"))?;
        Some(last.split_whitespace().collect())
    }

    /// The calls between the marks, polls left out.
    fn marked(&self) -> Vec<&str> {
        let lines = self.log.iter().map(String::as_str);
        let inside = lines.skip_while(|l| *l != "-- batches").skip(1).take_while(|l| *l != "-- end");
        inside.filter(|line| !line.starts_with("cuEventQuery")).collect()
    }

    fn check(&self, holds: bool, what: &str) -> Result<(), Failed> {
        if holds {
            return Ok(());
        }
        let log = self.log.join("\n");
        Err(format!("{what}\n-- the child printed:\n{}\n-- and called:\n{log}", self.stdout).into())
    }
}

/// A folder in which the fake is the driver library, made once.
fn fake_folder() -> &'static Path {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    FOLDER.get_or_init(|| {
        let profile = env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let library = profile.join("examples/libfake_cuda.so");
        // A run of this test alone does not build examples: the library may be missing, or an old one.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "fake_cuda", "--target-dir"]).arg(profile.parent().unwrap());
        build.args(profile.ends_with("release").then_some("--release"));
        assert!(build.status().is_ok_and(|status| status.success()), "cannot build {}", library.display());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-cuda-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            fs::copy(&library, folder.join(name)).unwrap();
        }
        folder
    })
}

fn child(scenario: &str, libraries: &Path, variables: &[(&str, String)]) -> Result<Report, Failed> {
    static CHILDREN: AtomicUsize = AtomicUsize::new(0);
    let number = CHILDREN.fetch_add(1, Ordering::Relaxed);
    let log = fake_folder().join(format!("{number}.log"));
    let mut child = Command::new(env::current_exe()?)
        .env(SCENARIO, scenario)
        .env("LD_LIBRARY_PATH", libraries)
        .env("FAKE_CUDA_LOG", &log)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            return Err(format!("{scenario} {variables:?} hangs").into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output()?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let stdout = String::from_utf8(output.stdout)?;
    let report = Report { stdout, log: text.lines().map(str::to_owned).collect() };
    let stderr = String::from_utf8_lossy(&output.stderr);
    report.check(output.status.success(), &format!("{scenario} {variables:?}: {}\n{stderr}", output.status))?;
    report.check(report.violations().is_empty(), &format!("{scenario} {variables:?}: {:?}", report.violations()))?;
    Ok(report)
}

fn fake(scenario: &str, variables: &[(&str, u64)]) -> Result<Report, Failed> {
    let variables: Vec<_> = variables.iter().map(|&(name, value)| (name, value.to_string())).collect();
    child(scenario, fake_folder(), &variables)
}

fn no_library_means_the_cpu() -> Result<(), Failed> {
    // A real driver on this machine would be found all the same: then there is nothing to see here.
    let empty = fake_folder().join("empty");
    fs::create_dir_all(&empty)?;
    let auto = child("auto", &empty, &[])?;
    let open = child("open", &empty, &[])?;
    if auto.stdout.contains("opened cuda") {
        return Ok(());
    }
    auto.check(auto.stdout == "opened cpu\ndone\n", "auto did not fall back")?;
    open.check(open.stdout.starts_with("error no device for `cuda:0`"), "no clear error")
}

fn no_gpu_means_the_cpu() -> Result<(), Failed> {
    for variables in [("FAKE_CUDA_DEVICES", 0), ("FAKE_CUDA_INIT", 100)] {
        let auto = fake("auto", &[variables])?;
        auto.check(auto.stdout == "opened cpu\ndone\n", "auto did not fall back")?;
    }
    Ok(())
}

fn a_driver_too_old_is_an_error() -> Result<(), Failed> {
    for scenario in ["open", "auto"] {
        let report = fake(scenario, &[("FAKE_CUDA_VERSION", 12040)])?;
        let names_both = report.stdout.contains("12.4") && report.stdout.contains("13.0");
        report.check(report.stdout.starts_with("error") && names_both, "no clear error")?;
        report.check(report.log == ["cuDriverGetVersion"], "called more than an old driver may have")?;
    }
    Ok(())
}

fn a_driver_that_fails_is_an_error() -> Result<(), Failed> {
    for scenario in ["open", "auto"] {
        let report = fake(scenario, &[("FAKE_CUDA_INIT", 803)])?;
        let named = report.stdout.contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") && report.stdout.contains("cuInit");
        report.check(report.stdout.starts_with("error") && named, "no clear error")?;
    }
    Ok(())
}

fn a_gpu_too_old_is_an_error() -> Result<(), Failed> {
    let report = fake("open", &[("FAKE_CUDA_MAJOR", 7)])?;
    report.check(report.stdout.contains("compute capability 7.0"), "no clear error")?;
    report.check(report.alive().is_some_and(|alive| alive.is_empty()), "something was left")
}

fn an_ordinal_out_of_range_says_what_is_there() -> Result<(), Failed> {
    let report = fake("open-second", &[])?;
    report.check(report.stdout.contains("`cuda:1`: there is one GPU, cuda:0"), "no clear error")
}

/// The log of one batch is kept; `TREFOIL_BLESS=1` writes it anew, for a look at the difference.
fn one_batch_makes_the_calls_of_the_table() -> Result<(), Failed> {
    let report = fake("batch", &[])?;
    let calls = report.marked().join("\n") + "\n";
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/one-batch.txt");
    if env::var("TREFOIL_BLESS").is_ok_and(|v| v == "1") {
        fs::write(&kept, &calls)?;
    }
    let expected = fs::read_to_string(&kept).unwrap_or_default();
    report.check(calls == expected, &format!("not as kept in {}:\n{calls}", kept.display()))
}

fn a_batch_costs_twelve_calls() -> Result<(), Failed> {
    let report = fake("batches", &[])?;
    let calls = report.marked().len();
    report.check(calls > 0 && calls <= 12 * 50, &format!("{calls} calls for 50 batches"))
}

fn held_work_comes_out_in_order() -> Result<(), Failed> {
    for held in [0, 1] {
        let report = fake("threads", &[("FAKE_CUDA_HELD", held)])?;
        report.check(report.stdout.ends_with("done\n"), "not all answered")?;
        report.check(report.alive().is_some_and(|alive| alive.is_empty()), "something was left")?;
    }
    Ok(())
}

fn what_is_made_is_destroyed() -> Result<(), Failed> {
    for scenario in ["open", "life"] {
        let report = fake(scenario, &[])?;
        report.check(report.alive().is_some_and(|alive| alive.is_empty()), "something was left")?;
    }
    Ok(())
}

/// Calls that only give something back: their failure is logged, and what they would have freed stays.
fn frees(call: &str) -> bool {
    ["Destroy", "Free", "Unload", "Release"].iter().any(|word| call.contains(word))
}

/// Calls that enqueue work or wait for it: after a failure nothing proves that the device leaves the memory alone, so
/// it is not freed.
fn is_work(call: &str) -> bool {
    ["Memcpy", "EventRecord", "EventSynchronize", "EventQuery", "StreamWaitEvent", "GraphLaunch"]
        .iter()
        .any(|word| call.contains(word))
}

fn every_call_may_fail() -> Result<(), Failed> {
    let calls = fake("life", &[])?.log.iter().filter(|line| line.starts_with("cu")).count();
    let mut reported = 0;
    for call in 1..=calls {
        let report = fake("life", &[("FAKE_CUDA_FAIL_CALL", call as u64)])?;
        let failed = report.log.iter().find_map(|line| line.strip_suffix(" FAILED"));
        let failed = failed.and_then(|line| line.split_whitespace().next());
        report.check(failed.is_some(), &format!("call {call} of {calls} never came"))?;
        let failed = failed.unwrap_or_default();
        let built = report.stdout.contains("built");
        let error = report.stdout.lines().find(|line| line.starts_with("error"));
        let context_query = failed.starts_with("cuCtx");
        match error {
            Some(error) => {
                report.check(error.contains(failed), &format!("call {call}, {failed}: {error}"))?;
                reported += 1;
            }
            None => report.check(frees(failed) || context_query, &format!("{failed} failed, nobody was told"))?,
        }
        if error.is_some() && !built && !is_work(failed) {
            // The context itself cannot be released if retaining it, or what comes before, failed.
            let left = report.alive().unwrap_or_default();
            report.check(left.is_empty(), &format!("call {call}, {failed}: left {left:?}"))?;
        }
    }
    if reported < 60 {
        return Err(format!("only {reported} of {calls} failures reached the caller").into());
    }
    println!("{calls} calls failed in turn, {reported} were reported as errors");
    Ok(())
}

fn every_allocation_may_run_out_of_memory() -> Result<(), Failed> {
    let is_allocation = |line: &&String| line.starts_with("cuMemAlloc") || line.starts_with("cuMemHostAlloc");
    let allocations = fake("life", &[])?.log.iter().filter(is_allocation).count();
    for allocation in 1..=allocations {
        let report = fake("life", &[("FAKE_CUDA_FAIL_ALLOC", allocation as u64)])?;
        let clear = report.stdout.contains("out of memory") && report.stdout.contains("a batch of");
        report.check(clear, &format!("allocation {allocation} of {allocations}: no clear error"))?;
        report.check(report.alive().is_some_and(|alive| alive.is_empty()), "something was left allocated")?;
    }
    println!("{allocations} allocations ran out of memory in turn");
    Ok(())
}
