//! The ways of waiting: the number of driver calls of a batch, and that all sleepers are woken, by callbacks from the
//! driver's own thread or after a fault without callbacks.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use trefoil::graph::{GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Device, Engine, Error, FaultClass, OutputKind, Shape, Target, Waiting};

use crate::engine::{POISON, small_model};
use crate::harness::{Scenario, mark};

const ALL: [Waiting; 3] = [Waiting::Spin, Waiting::Block, Waiting::Callback];

/// In a child process: the way of waiting that the parent chose.
fn chosen() -> Waiting {
    let name = std::env::var("WAITING").unwrap();
    ALL.into_iter().find(|waiting| format!("{waiting:?}") == name).unwrap()
}

fn build(waiting: Waiting) -> (Device, Engine) {
    let device = Device::open(Target::Cuda(0)).unwrap();
    let model = small_model();
    let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).staging(2).results(3);
    let engine = builder.waiting(waiting).check(true).build().unwrap();
    (device, engine)
}

/// A model with rows of 360 bytes in and 1440 out.
fn large_outputs() -> Model {
    let input = Shape::new(12, 10, 3);
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", input);
    let x = graph.conv2d("same", image, 3, Window::square(1, 1, 0));
    let weights = Weights::from_tensors([("same.weight", vec![3, 3, 1, 1], vec![0.5; 9])]).unwrap();
    graph.output("y", x);
    Model::new(graph.finish().unwrap(), weights, Preprocessing::new(input), Vec::new()).unwrap()
}

/// The number of calls is largest with large outputs, where uploads keep step with downloads, and with held results,
/// for which the next batch of a slot has to wait.
#[test]
fn a_batch_takes_at_most_twelve_calls_whichever_way() {
    const SLOTS: usize = 3;
    const KEPT: usize = 2 * SLOTS - 1;
    let scenario = Scenario::new("waiting::a_batch_takes_at_most_twelve_calls_whichever_way", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let (small, large) = (small_model(), large_outputs());
        let builder = match std::env::var("OUTPUTS").unwrap().as_str() {
            "large" => Engine::builder(&large).output(OutputKind::Features),
            _ => Engine::builder(&small),
        };
        let builder = builder.on(&device).batch_sizes(&[1, 4]).slots(SLOTS).staging(2).results(KEPT + 1);
        let engine = builder.waiting(chosen()).check(true).build().unwrap();
        let is_large = 2 * engine.output().row_pitch >= engine.input().row_pitch;
        println!("outputs of at least half the inputs: {is_large}");
        let mut held = VecDeque::new();
        for round in 0..12 {
            mark(&format!("batch {round}"));
            let output = engine.acquire().unwrap().submit(3).unwrap().wait().unwrap();
            mark(&format!("done {round}"));
            held.push_back(output);
            if held.len() > KEPT {
                held.pop_front();
            }
        }
    });
    for (waiting, outputs) in ALL.into_iter().flat_map(|waiting| [(waiting, "small"), (waiting, "large")]) {
        let report = scenario.run(&[("WAITING", &format!("{waiting:?}")), ("OUTPUTS", outputs)]);
        report.assert_clean();
        let is_large = report.stdout.contains("inputs: true");
        assert!(is_large || outputs == "small", "{report}");
        for round in 0..12 {
            let calls = report.between(&format!("batch {round}"), &format!("done {round}"));
            let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
            assert!(calls.len() - count("cuEventQuery") <= 12, "{waiting:?}, {outputs}, batch {round}: {calls:#?}");
            assert_eq!(count("cuLaunchHostFunc"), usize::from(waiting == Waiting::Callback), "{calls:#?}");
            assert_eq!(count("cuEventSynchronize"), usize::from(waiting == Waiting::Block), "{calls:#?}");
            // Waits for the slot's input, for the upload and for the compute; for the slot's last output, if there was
            // one; and for the download that the upload keeps step with.
            let waits = 3 + usize::from(round >= SLOTS) + usize::from(is_large && round >= KEPT);
            assert_eq!(count("cuStreamWaitEvent"), waits, "{waiting:?}, {outputs}, batch {round}: {calls:#?}");
        }
    }
}

/// Tickets are waited for, waited for with a limit, and dropped, and producers block, while the driver's own thread
/// works.
#[test]
fn a_driver_with_threads_of_its_own_wakes_everybody() {
    let scenario = Scenario::new("waiting::a_driver_with_threads_of_its_own_wakes_everybody", || {
        let (device, engine) = build(chosen());
        let start = Instant::now();
        thread::scope(|scope| {
            for producer in 0..4 {
                let engine = &engine;
                scope.spawn(move || {
                    for round in 0..25 {
                        let mut ticket = engine.acquire().unwrap().submit(1 + (producer + round) % 4).unwrap();
                        let output = match round % 3 {
                            0 => continue,
                            1 => ticket.wait().unwrap(),
                            _ => loop {
                                match ticket.wait_for(Duration::from_millis(1)).unwrap() {
                                    Ok(output) => break output,
                                    Err(again) => ticket = again,
                                }
                            },
                        };
                        assert_eq!(output.values(0)[0], POISON);
                    }
                });
            }
        });
        println!("{:?} after {:?}", engine.health(), start.elapsed());
        engine.close(trefoil::Close::Drain, Duration::from_secs(10)).unwrap();
        drop((engine, device));
        crate::harness::wait_for_release();
    });
    for waiting in ALL {
        scenario.run(&[("WAITING", &format!("{waiting:?}")), ("FAKE_CUDA_EVENTS", "own")]).assert_clean();
    }
}

/// After a fault there are no callbacks.
#[test]
fn a_fault_wakes_sleepers() {
    let scenario = Scenario::new("waiting::a_fault_wakes_sleepers", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = small_model();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).slots(1).staging(2);
        let engine = builder.waiting(chosen()).check(true).build().unwrap();
        let tickets = [1, 2, 3].map(|rows| engine.acquire().unwrap().submit(rows).unwrap());
        thread::scope(|scope| {
            let blocked = scope.spawn(|| engine.acquire().map(drop));
            let waiting = tickets.map(|ticket| scope.spawn(move || ticket.wait().map(drop)));
            thread::sleep(Duration::from_millis(30));
            let broken = Instant::now();
            let error = breaking_call(&device);
            for sleeper in waiting.into_iter().chain([blocked]) {
                let answer = sleeper.join().unwrap().unwrap_err();
                assert_eq!(answer.class(), FaultClass::Process, "{answer}");
                assert!(matches!(answer, Error::Fault { .. }), "{answer}");
            }
            assert!(broken.elapsed() < Duration::from_secs(1), "{:?}", broken.elapsed());
            println!("{error}");
        });
    });
    for waiting in ALL {
        let name = format!("{waiting:?}");
        let memory = [("FAKE_CUDA_EVENTS", "stuck"), ("FAKE_CUDA_MEMORY", "4194304")];
        let breaks = [("FAKE_CUDA_FAIL_CALL", "cuMemGetInfo_v2#2"), ("FAKE_CUDA_FAIL_STICKY", "1")];
        scenario.run(&[&[("WAITING", &*name)], &memory[..], &breaks].concat()).assert_sound();
    }
}

/// Makes the call that breaks the device: another build asks for the free memory, as the first one did.
fn breaking_call(device: &Device) -> Error {
    Engine::builder(&small_model()).on(device).batch_sizes(&[8192]).build().unwrap_err()
}
