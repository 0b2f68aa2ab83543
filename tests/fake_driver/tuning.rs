//! The tuner and the timing of steps, on a driver whose kernels take times that the test chooses.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil::{Device, Engine, EngineBuilder, Error, Target, Tuning};

use crate::engine::small_model;
use crate::harness::{Scenario, mark};

/// A folder that only one test and its children use.
fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("trefoil-fake-tuning-{test}"))
}

/// The kernels of the plans, one line for each batch size.
fn kernels(builder: EngineBuilder<'_>) -> Result<Vec<String>, Error> {
    let of = |plan: &trefoil::plan::Plan| {
        plan.steps.iter().map(|step| format!("{} {}", step.name, step.kernel)).collect::<Vec<_>>().join(", ")
    };
    Ok(builder.plans()?.iter().map(of).collect())
}

/// Tunes an engine, with measurements kept in `folder`, and prints the kernels before and after.
fn tune(device: &Device, folder: PathBuf) -> Result<(), Error> {
    let model = small_model();
    let builder = Engine::builder(&model).on(device).batch_sizes(&[1, 5]).slots(2).check(true).tuning_folder(folder);
    println!("planned: {}", kernels(builder.clone().tuning(Tuning::Off))?.join(" | "));
    let told = |progress: &trefoil::TuningProgress| {
        println!("batch {}: {} of {} {}", progress.batch, progress.done, progress.of, progress.shape);
    };
    mark("tune");
    let engine = builder.clone().tuning(Tuning::Full).on_tuning(told).build()?;
    mark("tuned");
    println!("tuned: {}", kernels(builder.clone())?.join(" | "));
    drop(engine.acquire()?.submit(3)?.wait()?);
    drop(engine);
    mark("cached");
    let engine = builder.clone().build()?;
    mark("again");
    let again = builder.tuning(Tuning::Full).on_tuning(|_| panic!("everything is known")).build()?;
    mark("done");
    assert_eq!(engine.plans(), again.plans());
    Ok(())
}

fn line<'a>(stdout: &'a str, start: &str) -> &'a str {
    let found = stdout.lines().find_map(|line| Some(line.split_once(start)?.1));
    found.unwrap_or_else(|| panic!("no `{start}` in:\n{stdout}"))
}

#[test]
fn a_slow_first_choice_gives_way_and_later_builds_know() {
    let folder = || folder("slow");
    let scenario = Scenario::new("tuning::a_slow_first_choice_gives_way_and_later_builds_know", || {
        tune(&Device::open(Target::Cuda(0)).unwrap(), folder()).unwrap();
    });
    let _ = fs::remove_dir_all(folder());
    let report = scenario.run(&[("FAKE_CUDA_SLOW", "sm80_linear_16x8")]);
    report.assert_clean();
    let (planned, tuned) = (line(&report.stdout, "planned: "), line(&report.stdout, "tuned: "));
    // At batch 1 mean and classifier are one step.
    assert_eq!(planned.matches("classifier sm80 16x8").count(), 1, "{planned}");
    assert_eq!(tuned.matches("classifier sm80 16x8").count(), 0, "{tuned}");
    // No other kernel has changed: all others take the same time.
    let others = |text: &str| -> Vec<String> {
        text.split(['|', ','])
            .map(str::trim)
            .filter(|step| !step.starts_with("classifier"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(others(planned), others(tuned));
    let told: Vec<&str> = report.stdout.lines().filter(|line| line.starts_with("batch 5: ")).collect();
    let of = told.len() - 1;
    assert!(of >= 2 && told[of].starts_with(&format!("batch 5: {of} of {of}")), "{told:?}");
    // Kept measurements are looked up, not repeated.
    let is_timing = |call: &&&str| call.starts_with("cuEventElapsedTime");
    assert!(report.between("tune", "tuned").iter().any(|call| is_timing(&call)));
    assert!(!report.between("cached", "again").iter().any(|call| is_timing(&call)));
    assert!(!report.between("again", "done").iter().any(|call| is_timing(&call)));

    // Another process finds them, also one with times of other kernels; one with a corrupt file measures that shape
    // again.
    let again = scenario.run(&[]);
    assert!(!again.between("tune", "tuned").iter().any(|call| is_timing(&call)));
    assert_eq!(line(&again.assert_clean().stdout, "tuned: "), tuned);
    let key = fs::read_dir(folder().join("tuning")).unwrap().next().unwrap().unwrap().path();
    let files: Vec<PathBuf> = fs::read_dir(key).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), files.iter().collect::<BTreeSet<_>>().len());
    fs::write(&files[0], "{ half of").unwrap();
    let mended = scenario.run(&[("FAKE_CUDA_SLOW", "sm80_linear_16x8")]);
    assert_eq!(line(&mended.assert_clean().stdout, "tuned: "), tuned);
    assert!(mended.between("tune", "tuned").iter().any(|call| is_timing(&call)));
    assert!(fs::read_to_string(&files[0]).unwrap().contains("\"kernel\""));
    fs::remove_dir_all(folder()).unwrap();
}

#[test]
fn a_measurement_that_is_ended_keeps_what_it_found() {
    let folder = || folder("ended");
    let answers = || {
        let key = fs::read_dir(folder().join("tuning")).unwrap().next().unwrap().unwrap().path();
        fs::read_dir(key).unwrap().count()
    };
    let scenario = Scenario::new("tuning::a_measurement_that_is_ended_keeps_what_it_found", || {
        let (model, device) = (small_model(), Device::open(Target::Cuda(0)).unwrap());
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).tuning_folder(folder());
        let builder = builder.tuning(Tuning::Full).on_tuning(|progress| {
            println!("batch {}: {} of {} {}", progress.batch, progress.done, progress.of, progress.shape);
        });
        // The function is called before the batch size and before each shape: one shape is measured.
        let asked = AtomicUsize::new(0);
        let engine = builder.clone().tune_while(move || asked.fetch_add(1, Ordering::Relaxed) < 2).build().unwrap();
        drop(engine.acquire().unwrap().submit(3).unwrap().wait().unwrap());
        println!("kept: {}", answers());
        drop(builder.build().unwrap());
        println!("in the end: {}", answers());
    });
    let _ = fs::remove_dir_all(folder());
    let report = scenario.run(&[]);
    let lines = report.assert_clean().stdout.lines().filter_map(|line| line.split_once("batch "));
    let told: Vec<&str> = lines.map(|(_, progress)| progress).collect();
    assert!(told[0].starts_with("1: 0 of ") && told[1].starts_with("1: 1 of "), "{told:?}");
    assert!(told[1].ends_with(' ') && told[2].starts_with("1: 0 of "), "one shape, then all others: {told:?}");
    assert_eq!(line(&report.stdout, "kept: "), "1");
    assert!(line(&report.stdout, "in the end: ").parse::<usize>().unwrap() > 2, "{}", report.stdout);
    fs::remove_dir_all(folder()).unwrap();
}

/// In a child process: sets a mask of modes and, if a user is named, becomes that user for good.
fn as_told() {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u32>().unwrap());
    // SAFETY: calls that take a number; the child has one thread of its own that reads files.
    unsafe {
        libc::umask(number("UNDER_UMASK").unwrap());
        if let Some(user) = number("AS_USER") {
            assert_eq!((libc::setgid(user), libc::setuid(user)), (0, 0));
        }
    }
}

/// Processes use one folder one after the other: as one user under several masks and, as root, as another user too.
#[test]
fn users_share_a_folder_and_take_no_answer_from_another() {
    const NOBODY: Option<u32> = Some(65534);
    let scenario = Scenario::new("tuning::users_share_a_folder_and_take_no_answer_from_another", || {
        let (model, device, measured) = (small_model(), Device::open(Target::Cuda(0)).unwrap(), AtomicUsize::new(0));
        as_told();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[4]).tuning(Tuning::Full);
        let told =
            move |_: &trefoil::TuningProgress| println!("measured: {}", measured.fetch_add(1, Ordering::Relaxed));
        drop(builder.on_tuning(told).build().unwrap());
    });
    let cache = folder("users");
    let _ = fs::remove_dir_all(&cache);
    fs::create_dir_all(&cache).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o1777)).unwrap();
    // SAFETY: the call reads nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let others = [(NOBODY, 0o000, true), (NOBODY, 0o077, false), (None, 0o022, true), (NOBODY, 0o022, true)];
    let own = [(None, 0o000, true), (None, 0o077, false)];
    for (user, mask, measures) in if is_root { [&others[..], &own].concat() } else { own.to_vec() } {
        let user_text = user.map(|user| user.to_string());
        let variables = [("TREFOIL_CACHE", cache.to_str().unwrap()), ("UNDER_UMASK", &mask.to_string())];
        let user_variable = user_text.iter().map(|user| ("AS_USER", user.as_str()));
        let report = scenario.run(&variables.into_iter().chain(user_variable).collect::<Vec<_>>());
        report.assert_clean();
        assert_eq!(report.stdout.contains("measured: "), measures, "user {user:?}, mask {mask:o}\n{report}");
        let key = fs::read_dir(cache.join("tuning")).unwrap().next().unwrap().unwrap().path();
        let files: Vec<PathBuf> = fs::read_dir(&key).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() > 2 && files.iter().all(|file| mode(file) == 0o600), "{files:?}");
        assert_eq!([mode(&key), mode(&cache.join("tuning"))], [0o700; 2]);
    }
    fs::remove_dir_all(&cache).unwrap();
}

/// Without a home folder the program works, and keeps no measurements.
#[cfg(feature = "cli")]
#[test]
fn the_program_needs_no_home_folder() {
    use std::process::Command;

    use crate::harness::library_folder;

    for home in [None, Some("/dev/null"), Some("/proc/nope")] {
        for tune in ["cached", "full"] {
            let mut inspect = Command::new(env!("CARGO_BIN_EXE_trefoil"));
            inspect.args(["inspect", "weights/convnet28", "--batch", "1", "--runs", "1", "--tune", tune]);
            for name in ["HOME", "XDG_CACHE_HOME", "TREFOIL_CACHE", "RUST_LOG"] {
                inspect.env_remove(name);
            }
            let output =
                inspect.env("LD_LIBRARY_PATH", library_folder()).envs(home.map(|home| ("HOME", home))).output();
            let output = output.unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(0), "{home:?}, {tune}: {said}");
            match (home, tune) {
                (Some(_), "full") => assert!(said.lines().all(|line| line.contains("is not kept")), "{home:?}: {said}"),
                _ => assert_eq!(said, "", "{home:?}, {tune}"),
            }
        }
    }
}

/// Ctrl-C interrupts the program while the first shape is being measured.
#[cfg(all(unix, feature = "cli"))]
#[test]
fn an_interrupted_inspect_keeps_what_it_found() {
    use std::process::{Command, Stdio};

    use crate::harness::library_folder;

    let cache = folder("inspect");
    let _ = fs::remove_dir_all(&cache);
    fs::create_dir_all(&cache).unwrap();
    let calls = cache.join("calls");
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    inspect.args(["inspect", "weights/efficientnet-lite0", "--batch", "4", "--runs", "1", "--tune", "full", "--json"]);
    inspect.env("LD_LIBRARY_PATH", library_folder()).env("TREFOIL_CACHE", &cache).env("FAKE_CUDA_LOG", &calls);
    let mut child = inspect.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !fs::read_to_string(&calls).is_ok_and(|calls| calls.contains("cuEventElapsedTime")) {
        assert!(child.try_wait().unwrap().is_none(), "nothing was timed");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // SAFETY: a number of a process that was not waited for, so that nobody else has it.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(plan["graph_us"].is_null() && plan["sum_of_times_us"].is_null(), "steps were timed: {plan}");

    let said = String::from_utf8(output.stderr).unwrap();
    let shapes = line(&said, "interrupted: ").strip_suffix(" shapes of batch 4 were measured and are kept");
    let (done, of) = shapes.and_then(|shapes| shapes.split_once(" of ")).unwrap_or_else(|| panic!("{said}"));
    let [done, of] = [done, of].map(|count| count.parse::<usize>().unwrap());
    assert!((1..of).contains(&done), "{said}");
    let key = fs::read_dir(cache.join("tuning")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(key).unwrap().count(), done);
    fs::remove_dir_all(&cache).unwrap();
}

#[test]
fn where_all_kernels_are_alike_the_planner_has_its_way() {
    let folder = || folder("alike");
    let scenario = Scenario::new("tuning::where_all_kernels_are_alike_the_planner_has_its_way", || {
        tune(&Device::open(Target::Cuda(0)).unwrap(), folder()).unwrap();
    });
    for capability in ["80", "90"] {
        let _ = fs::remove_dir_all(folder());
        let report = scenario.run(&[("FAKE_CUDA_CAPABILITY", capability), ("FAKE_CUDA_EVENTS", "held")]);
        report.assert_clean();
        assert_eq!(line(&report.stdout, "planned: "), line(&report.stdout, "tuned: "));
    }
    fs::remove_dir_all(folder()).unwrap();
}

#[test]
fn branches_are_side_by_side_where_that_pays_and_later_builds_know() {
    let scenario = Scenario::new("tuning::branches_are_side_by_side_where_that_pays_and_later_builds_know", || {
        let (device, model) = (Device::open(Target::Cuda(0)).unwrap(), small_model());
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[4]).slots(1).check(true);
        let lanes = |builder: EngineBuilder<'_>| builder.build().unwrap().plans()[0].lanes();
        assert_eq!(lanes(builder.clone().tuning(Tuning::Off)), 2);
        mark("tune");
        let tuned = lanes(builder.clone().tuning(Tuning::Full));
        mark("cached");
        println!("lanes: {tuned}, then {}", lanes(builder));
        mark("done");
    });
    let folder = folder("lanes");
    // The cost of joining another branch, in us: nothing, or more than the time of a kernel.
    for (join, otherwise, lanes) in [("0", "50", 2), ("50", "0", 1)] {
        let _ = fs::remove_dir_all(&folder);
        // A second process uses the measurements of the first, whatever its own would be.
        for (join, measures) in [(join, true), (otherwise, false)] {
            let variables = [("FAKE_CUDA_JOIN_US", join), ("TREFOIL_CACHE", folder.to_str().unwrap())];
            let report = scenario.run(&variables);
            report.assert_clean();
            assert_eq!(line(&report.stdout, "lanes: "), format!("{lanes}, then {lanes}"), "{join} us\n{report}");
            let is_timing = |call: &&str| call.starts_with("cuEventElapsedTime");
            assert_eq!(report.between("tune", "cached").iter().any(is_timing), measures, "{report}");
            assert!(!report.between("cached", "done").iter().any(is_timing));
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn steps_are_timed_in_the_graph() {
    let scenario = Scenario::new("tuning::steps_are_timed_in_the_graph", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = small_model();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).tuning(Tuning::Off);
        let times = builder.clone().measure_steps(8).unwrap();
        assert_eq!((times.plan.batch, times.steps.len()), (4, times.plan.steps.len()));
        for (step, seconds) in times.plan.steps.iter().zip(&times.steps) {
            let expected = if step.name == "classifier" { 0.1e-3 } else { 0.01e-3 };
            assert!((seconds - expected).abs() < 0.002e-3, "{}: {seconds} s", step.name);
        }
        let sum: f64 = times.steps.iter().sum();
        assert!((times.graph / sum - 1.0).abs() < 0.1 && times.mark < 0.002e-3, "{times:?}");
        assert!(matches!(builder.measure_steps(0), Err(Error::Option { .. })));
        let cpu = Device::open(Target::Cpu).unwrap();
        let refused = Engine::builder(&model).on(&cpu).measure_steps(8);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    });
    scenario.run(&[("FAKE_CUDA_SLOW", "linear")]).assert_clean();
}

#[test]
fn a_call_that_fails_while_tuning_is_an_error_and_nothing_is_used_after_its_end() {
    let folder = || folder("failing");
    let scenario =
        Scenario::new("tuning::a_call_that_fails_while_tuning_is_an_error_and_nothing_is_used_after_its_end", || {
            match Device::open(Target::Cuda(0)).and_then(|device| tune(&device, folder())) {
                Err(Error::Driver { operation, .. }) => println!("failed: {operation}"),
                Err(Error::Fault { cause, .. }) => println!("failed: {cause}"),
                other => panic!("{other:?}"),
            }
        });
    let calls = [
        "cuGraphLaunch",
        "cuEventElapsedTime_v2",
        "cuGraphInstantiateWithFlags",
        "cuMemAlloc_v2",
        "cuEventSynchronize",
    ];
    for call in calls {
        for sticky in ["0", "1"] {
            let _ = fs::remove_dir_all(folder());
            let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", call), ("FAKE_CUDA_FAIL_STICKY", sticky)]);
            report.assert_sound();
            assert!(line(&report.stdout, "failed: ").contains(call.trim_end_matches("_v2")), "{report}");
        }
    }
    let _ = fs::remove_dir_all(folder());
}
