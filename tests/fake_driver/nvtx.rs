//! Ranges and names for a profiler: the injection library is that of `tests/fake_nvtx/`.

use trefoil::{Device, Target};

use crate::engine::{build, one_batch, small_model};
use crate::harness::{ChildReport, Scenario, library, wait_for_release};

fn run(name: &'static str, body: impl FnOnce(), variables: &[(&str, &str)]) -> ChildReport {
    let library = library("fake_nvtx");
    let injection = [("NVTX_INJECTION64_PATH", library.to_str().unwrap())];
    Scenario::new(name, body).run(&[&injection, variables].concat())
}

fn one_traced_batch() {
    one_batch(&Device::open(Target::Cuda(0)).unwrap()).unwrap();
}

/// The innermost ranges whose names fit, each with the lines within it.
fn inside(report: &ChildReport, fits: impl Fn(&str) -> bool) -> Vec<(&str, Vec<&str>)> {
    let mut open: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut closed = Vec::new();
    for line in &report.log {
        if let Some(name) = line.strip_prefix("nvtx push ") {
            open.push((name, Vec::new()));
        } else if line == "nvtx pop" {
            closed.push(open.pop().expect("the library counts"));
        } else if let Some(range) = open.last_mut() {
            range.1.push(line);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    closed.into_iter().filter(|range| fits(range.0)).collect()
}

#[test]
fn a_profiler_hears_the_names_of_streams_and_threads() {
    let report = run(
        "nvtx::a_profiler_hears_the_names_of_streams_and_threads",
        || {
            let device = Device::open(Target::Cuda(0)).unwrap();
            let engine = build(&small_model(), &device).unwrap();
            let producer = std::thread::Builder::new().name("producer-7".into());
            let submit = || drop(engine.acquire().unwrap().submit(1).unwrap()); // for the ring's thread to look at
            std::thread::scope(|scope| producer.spawn_scoped(scope, submit).unwrap().join().unwrap());
            while engine.credits().unwrap().in_flight > 0 {
                std::thread::yield_now();
            }
            drop((engine, device));
            wait_for_release();
        },
        &[],
    );
    report.assert_clean();
    let named = |line: &str| report.log.iter().filter(|l| l.as_str() == line).count();
    assert_eq!(named("nvtx domain trefoil"), 1, "{report}");
    for stream in ["trefoil-build", "trefoil-copy-in", "trefoil-compute", "trefoil-copy-out"] {
        assert_eq!(named(&format!("nvtx stream {stream}")), 1, "{stream}: {report}");
    }
    for thread in ["producer-7", "trefoil-done-0"] {
        assert_eq!(named(&format!("nvtx thread {thread}")), 1, "{thread}: {report}");
    }
}

#[test]
fn a_batch_is_a_range_around_its_calls() {
    let report = run("nvtx::a_batch_is_a_range_around_its_calls", one_traced_batch, &[]);
    report.assert_clean();
    let batches = inside(&report, |name| name.starts_with("batch "));
    let names: Vec<&str> = batches.iter().map(|batch| batch.0).collect();
    let slots = [0, 1, 2, 0];
    let expected: Vec<String> =
        slots.iter().enumerate().map(|(number, slot)| format!("batch {number} (slot {slot}, 3 rows)")).collect();
    assert_eq!(names, expected);
    for (name, calls) in batches {
        let count = |call: &str| calls.iter().filter(|line| line.starts_with(call)).count();
        assert_eq!([count("cuMemcpyHtoD"), count("cuGraphLaunch"), count("cuMemcpyDtoH")], [1; 3], "{name}: {calls:?}");
    }
}

#[test]
fn every_launch_that_is_captured_lies_in_its_layers_range() {
    let report = run("nvtx::every_launch_that_is_captured_lies_in_its_layers_range", one_traced_batch, &[]);
    report.assert_clean();
    let layers = inside(&report, |name| name.contains(" \u{b7} "));
    let launches = report.log.iter().filter(|line| line.starts_with("cuLaunchKernelEx")).count();
    assert!(launches >= 6 * 6 && layers.len() == launches, "{} ranges, {launches} launches", layers.len());
    for (name, calls) in &layers {
        let (_, entry) = name.split_once(" \u{b7} ").unwrap();
        assert!(matches!(calls[..], [call] if call.contains(&format!(" {entry} "))), "{name}: {calls:?}");
    }
    for layer in ["stem", "depthwise", "pool", "classifier"] {
        assert!(layers.iter().any(|(name, _)| name.starts_with(layer)), "no layer {layer}: {layers:?}");
    }
    let graphs: Vec<&str> = inside(&report, |name| name.starts_with("graph ")).iter().map(|graph| graph.0).collect();
    let expected: Vec<String> =
        (0..3).flat_map(|slot| [1, 4].map(|batch| format!("graph (slot {slot}, batch {batch})"))).collect();
    assert_eq!(graphs, expected);
}

#[test]
fn a_profiler_that_is_not_there_or_refuses_is_done_without() {
    let name = "nvtx::a_profiler_that_is_not_there_or_refuses_is_done_without";
    let refused = run(name, one_traced_batch, &[("FAKE_NVTX", "refuse")]);
    let missing = run(name, one_traced_batch, &[("NVTX_INJECTION64_PATH", "/nonexistent.so")]);
    let without = run(name, one_traced_batch, &[("NVTX_INJECTION64_PATH", "")]);
    for report in [&refused, &missing, &without] {
        report.assert_clean();
        assert!(!report.log.iter().any(|line| line.starts_with("nvtx")), "{report}");
        assert_eq!(report.calls(), without.calls());
    }
}
