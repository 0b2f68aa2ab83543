//! Several engines, models and devices: shared buffers, weights that are uploaded once, and a fleet that loses a
//! device.

use trefoil::graph::GraphBuilder;
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Device, Engine, Error, OutputKind, Target};

use crate::engine::{POISON, build, small_model};
use crate::harness::{Scenario, for_each_number, mark};

/// A model that reads the features of `of`.
pub fn head(of: &Model) -> Model {
    let input = of.features().unwrap().output().unwrap();
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", input);
    let x = graph.linear("classifier", image, 7);
    let weights = Weights::from_tensors([
        ("classifier.weight", vec![7, 16], vec![0.5; 7 * 16]),
        ("classifier.bias", vec![7], vec![0.5; 7]),
    ]);
    graph.output("y", x);
    Model::new(graph.finish().unwrap(), weights.unwrap(), Preprocessing::new(input), Vec::new()).unwrap()
}

#[test]
fn engines_of_one_model_share_its_weights() {
    let scenario = Scenario::new("many::engines_of_one_model_share_its_weights", || {
        let (model, device) = (small_model(), Device::open(Target::Cuda(0)).unwrap());
        let held = || device.memory_use().device_bytes;
        mark("first");
        let first = build(&model, &device).unwrap();
        let (one, weights) = (held(), first.plans()[0].steps.iter().map(|step| step.weight_bytes).sum::<u64>());
        mark("second");
        let second = build(&model, &device).unwrap();
        let two = held() - one;
        assert!(two < one && one - two >= weights, "{one} bytes, then {two}, with {weights} of weights");
        let fewer = Engine::builder(&model).on(&device).batch_sizes(&[1]).check(true).build().unwrap();
        mark("others");
        // The engine of features needs fewer weights, and all of them are on the device already.
        let features = Engine::builder(&model).output(OutputKind::Features).on(&device).batch_sizes(&[4]).check(true);
        let features = features.build().unwrap();
        mark("unshared");
        let other = Engine::builder(&small_model()).on(&device).batch_sizes(&[1]).check(true).build().unwrap();
        let without_checker = Engine::builder(&model).on(&device).batch_sizes(&[1]).build().unwrap();
        mark("end");
        drop(first);
        for engine in [second, fewer, features, other, without_checker] {
            drop(engine.acquire().unwrap().submit(1).unwrap().wait().unwrap());
        }
        assert_eq!(held(), 0);
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let uploads =
        |start, end| report.between(start, end).iter().filter(|call| call.starts_with("cuMemcpyHtoDAsync")).count();
    let of = [("first", "second"), ("second", "others"), ("others", "unshared"), ("unshared", "end")];
    assert_eq!(of.map(|(start, end)| uploads(start, end)), [1, 0, 0, 2], "uploads of weights\n{report}");
}

#[test]
fn one_upload_serves_several_models() {
    let scenario = Scenario::new("many::one_upload_serves_several_models", || {
        let (model, device) = (small_model(), Device::open(Target::Cuda(0)).unwrap());
        let (features, head) = (model.features().unwrap(), head(&model));
        let builders =
            [Engine::builder(&features).then(&head).beside(&head), Engine::builder(&model).beside(&model).average()];
        for (builder, parts) in builders.into_iter().zip([2, 1]) {
            let engine = builder.on(&device).batch_sizes(&[1, 4]).slots(2).check(true).build().unwrap();
            mark(&format!("use {parts}"));
            let tickets: Vec<_> = (0..5).map(|_| engine.acquire().unwrap().submit(3).unwrap()).collect();
            for ticket in tickets {
                let output = ticket.wait().unwrap();
                assert_eq!(output.parts(), parts);
                for part in 0..parts {
                    let part = output.part(part);
                    assert!((0..3).all(|row| part.values(row).iter().all(|&value| value == POISON)), "not downloaded");
                }
            }
            mark(&format!("used {parts}"));
            assert!(device.fault().is_none(), "{:?}", device.fault());
        }
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let count = |parts: usize, call: &str| {
        let calls = report.between(&format!("use {parts}"), &format!("used {parts}"));
        calls.iter().filter(|line| line.starts_with(call)).count()
    };
    let calls = ["cuMemcpyHtoDAsync", "cuGraphLaunch", "cuLaunchKernelEx", "cuMemcpyDtoHAsync"];
    assert_eq!(calls.map(|call| count(2, call)), [5, 15, 0, 10], "a backbone and two heads\n{report}");
    assert_eq!(calls.map(|call| count(1, call)), [5, 10, 5, 5], "two models and their mean\n{report}");
    for_each_number(6, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// One of two devices fails at one call, whichever it is: every submission is answered.
#[test]
fn a_fleet_outlives_each_call_that_fails() {
    let scenario = Scenario::new("many::a_fleet_outlives_each_call_that_fails", || {
        let model = small_model();
        let devices = [0, 1].map(|ordinal| Device::open(Target::Cuda(ordinal)));
        let Ok(devices) = devices.into_iter().collect::<Result<Vec<_>, Error>>() else { return println!("not built") };
        let builder = Engine::builder(&model).batch_sizes(&[4]).slots(2).check(true);
        let Ok(fleet) = builder.build_on(&devices) else { return println!("not built") };
        mark("use");
        let tickets: Vec<_> = (0..8).map(|_| fleet.acquire().unwrap().submit(3).unwrap()).collect();
        for ticket in tickets {
            let output = ticket.wait().unwrap();
            assert!((0..3).all(|row| output.values(row).iter().all(|&value| value == POISON)), "not downloaded");
        }
        let stats = fleet.stats();
        let failed = stats.iter().filter(|device| device.fault.is_some()).count();
        println!("answered with {failed} failed: {stats:?}");
        mark("used");
    });
    let two = ("FAKE_CUDA_DEVICES", "2");
    let report = scenario.run(&[two]);
    report.assert_clean();
    let is_call = |line: &&String| line.starts_with("cu");
    let before = report.log.iter().take_while(|line| *line != "# use").filter(is_call).count();
    let steady = report.between("use", "used").len();
    assert!(steady > 80, "{steady} calls in use\n{report}");
    let failed = std::sync::atomic::AtomicUsize::new(0);
    let calls = for_each_number(steady, |call| {
        let number = (before + call).to_string();
        let report = scenario.run(&[two, ("FAKE_CUDA_FAIL_CALL", &number)]);
        report.assert_sound();
        assert!(report.stdout.contains("answered with"), "call {number}: {report}");
        if report.stdout.contains("answered with 1 failed") {
            failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(failed.into_inner() * 2 > calls, "most calls in use are a device's fault when they fail");
}

/// Prints log messages.
struct Printed;

impl log::Log for Printed {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("{}: {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

#[test]
fn a_fleet_says_once_why_threads_are_not_near_a_gpu() {
    let scenario = Scenario::new("many::a_fleet_says_once_why_threads_are_not_near_a_gpu", || {
        log::set_logger(&Printed).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let model = small_model();
        let devices = [0, 1].map(|ordinal| Device::open(Target::Cuda(ordinal)).unwrap());
        for _ in 0..2 {
            drop(Engine::builder(&model).batch_sizes(&[1]).build_on(&devices).unwrap());
        }
    });
    let report = scenario.run(&[("FAKE_CUDA_DEVICES", "2")]);
    report.assert_clean();
    for gpu in 0..2 {
        let why = "/sys/bus/pci/devices/ffff:ff:ff.f/numa_node: No such file";
        let said = format!("WARN: cuda:{gpu}: threads are not kept on the CPUs next to it: {why}");
        assert_eq!(report.stdout.matches(&said).count(), 1, "{report}");
    }
}
