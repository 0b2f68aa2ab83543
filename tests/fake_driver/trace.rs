//! The cost of recording, and that it changes no results: the driver's calls with a recorder and without.

use std::thread;

use trefoil::trace::TraceStage;
use trefoil::{Device, Engine, Error, Target};

use crate::engine::small_model;
use crate::harness::{ChildReport, Scenario, for_each_number, mark, wait_for_release};

fn build(device: &Device) -> Result<Engine, Error> {
    let model = small_model();
    Engine::builder(&model)
        .on(device)
        .batch_sizes(&[1, 4])
        .slots(3)
        .staging(2)
        .results(3)
        .check(true)
        .trace_batches(4)
        .build()
}

/// Runs six batches one after the other on an engine that keeps the records of four.
fn batches(device: &Device) -> Result<(), Error> {
    let engine = build(device)?;
    for round in 0..6 {
        mark(&format!("acquire {round}"));
        let batch = engine.acquire()?;
        mark(&format!("submit {round}"));
        let ticket = batch.submit(3)?;
        mark(&format!("wait {round}"));
        drop(ticket.wait()?);
        mark(&format!("done {round}"));
    }
    let trace = engine.trace().expect("it records");
    println!("{} computed, {} dropped", trace.stage(TraceStage::Compute).count(), trace.dropped());
    Ok(())
}

/// The names of a submission's calls, without their handles.
fn names(report: &ChildReport, round: usize) -> Vec<&str> {
    let calls = report.between(&format!("submit {round}"), &format!("wait {round}"));
    calls.into_iter().map(|call| call.split(' ').next().unwrap()).collect()
}

#[test]
fn a_batch_costs_six_records_more() {
    let scenario = Scenario::new("trace::a_batch_costs_six_records_more", || {
        batches(&Device::open(Target::Cuda(0)).unwrap()).unwrap();
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    assert!(report.stdout.contains("4 computed, 2 dropped"), "{report}");
    let expected = [
        "cuStreamWaitEvent",
        "cuEventRecord",
        "cuMemcpyHtoDAsync",
        "cuEventRecord",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventRecord",
        "cuGraphLaunch",
        "cuEventRecord",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventRecord",
        "cuMemcpyDtoHAsync",
        "cuEventRecord",
        "cuEventRecord",
    ];
    (0..6).for_each(|round| assert_eq!(names(&report, round), expected, "batch {round}"));
    let wait = report.between("wait 5", "done 5");
    let calls: Vec<&str> = wait.iter().map(|call| call.split(' ').next().unwrap()).collect();
    assert_eq!(calls, ["cuEventSynchronize"]);
    // The recorder creates and allocates nothing once the engine runs.
    let steady = report.between("acquire 0", "done 5");
    assert!(!steady.iter().any(|call| call.contains("Create") || call.contains("Alloc")), "{report}");
}

/// Work runs as late as possible, while threads submit, wait and drop, and another thread reads the trace.
#[test]
fn late_work_is_recorded_without_a_change_to_it() {
    let scenario = Scenario::new("trace::late_work_is_recorded_without_a_change_to_it", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device).unwrap();
        thread::scope(|scope| {
            for producer in 0..3 {
                let engine = &engine;
                scope.spawn(move || {
                    for round in 0..20 {
                        let ticket = engine.acquire().unwrap().submit(1 + (producer + round) % 4).unwrap();
                        if round % 3 != 0 {
                            drop(ticket.wait().unwrap());
                        }
                        drop(engine.trace().unwrap().to_chrome_json());
                    }
                });
            }
        });
        while engine.credits().unwrap().in_flight > 0 {
            thread::yield_now();
        }
        let trace = engine.trace().unwrap();
        assert_eq!((trace.stage(TraceStage::Compute).count(), trace.dropped()), (4, 56));
        drop((engine, device));
        wait_for_release();
    });
    for_each_number(4, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// If a call of the ring fails, the ring reports it; if a call of the recorder fails, the batch goes on.
#[test]
fn every_call_may_fail_once() {
    let scenario = Scenario::new("trace::every_call_may_fail_once", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        match batches(&device) {
            Ok(()) => println!("went on"),
            Err(error) => println!("{error}"),
        }
        if device.fault().is_some() {
            println!("faulted");
        }
    });
    let report = scenario.run(&[]);
    let calls: Vec<&String> = report.assert_clean().log.iter().filter(|line| line.starts_with("cu")).collect();
    let start = report.log.iter().take_while(|line| *line != "# submit 0").filter(|l| l.starts_with("cu")).count();
    // Calls of the first submission: those of the recorder only record events, for which the ring does not wait.
    let submission = names(&report, 0).len();
    for_each_number(submission, |nth| {
        let number = (start + nth).to_string();
        let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", &number)]);
        report.assert_sound();
        let own = [2, 4, 7, 9, 12, 14].contains(&nth);
        assert_eq!(report.stdout.contains("went on"), own, "{}: {report}", calls[start + nth - 1]);
        assert_eq!(report.stdout.contains("faulted"), !own, "{report}");
    });
}
