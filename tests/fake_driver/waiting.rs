//! The ways of waiting: how many driver calls a batch takes, and that callbacks from a thread of the driver's own, or
//! none after a fault, wake everybody.

use std::thread;
use std::time::{Duration, Instant};

use trefoil::{Device, Engine, Error, FaultClass, Target, Waiting};

use crate::engine::{POISON, small_model};
use crate::harness::{Scenario, mark};

const ALL: [Waiting; 3] = [Waiting::Spin, Waiting::Block, Waiting::Callback];

/// In a child: the way that the parent chose.
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

#[test]
fn a_batch_takes_at_most_twelve_calls_whichever_way() {
    let scenario = Scenario::new("waiting::a_batch_takes_at_most_twelve_calls_whichever_way", || {
        let (_device, engine) = build(chosen());
        let mut held = Vec::new();
        for round in 0..8 {
            mark(&format!("batch {round}"));
            let output = engine.acquire().unwrap().submit(3).unwrap().wait().unwrap();
            mark(&format!("done {round}"));
            if round % 4 == 0 {
                held = vec![output]; // the slot's next batch has to wait for it
            }
        }
        drop(held);
    });
    for waiting in ALL {
        let report = scenario.run(&[("WAITING", &format!("{waiting:?}"))]);
        report.assert_clean();
        for round in 0..8 {
            let calls = report.between(&format!("batch {round}"), &format!("done {round}"));
            let polls = calls.iter().filter(|call| call.starts_with("cuEventQuery")).count();
            assert!(calls.len() - polls <= 12, "{waiting:?}, batch {round}: {calls:#?}");
            let callbacks = calls.iter().filter(|call| call.starts_with("cuLaunchHostFunc")).count();
            assert_eq!(callbacks, usize::from(waiting == Waiting::Callback), "{calls:#?}");
            let sleeps = calls.iter().filter(|call| call.starts_with("cuEventSynchronize")).count();
            assert_eq!(sleeps, usize::from(waiting == Waiting::Block), "{calls:#?}");
        }
    }
}

/// Tickets waited for, waited for a while, and dropped, and blocked producers, while a thread of the driver's own works.
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

/// After a fault no callback comes.
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
        let breaks = [("FAKE_CUDA_FAIL_CALL", "cuMemGetInfo_v2"), ("FAKE_CUDA_FAIL_STICKY", "1")];
        scenario.run(&[&[("WAITING", &*name)], &memory[..], &breaks].concat()).assert_sound();
    }
}

/// Makes the call that breaks the device: an engine too large for it asks how much memory there is.
fn breaking_call(device: &Device) -> Error {
    Engine::builder(&small_model()).on(device).batch_sizes(&[8192]).build().unwrap_err()
}
