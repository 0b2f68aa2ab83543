//! Recording on the CPU device: the content of a trace, and that the ring is not affected.

#[path = "support/echo.rs"]
mod echo;

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use echo::{builder_on_cpu, echo, read, submit};
use serde_json::Value;
use trefoil::trace::{TraceInterval, TraceStage};
use trefoil::{Close, Engine, Ticket, Trace};

fn of(trace: &Trace, stage: TraceStage) -> HashMap<u64, &TraceInterval> {
    trace.stage(stage).map(|interval| (interval.batch, interval)).collect()
}

/// Runs threads that fill batches, submit them and wait, each with one batch ahead.
fn produce(engine: &Engine, producers: usize, each: usize) {
    thread::scope(|scope| {
        for producer in 0..producers {
            let body = move || {
                let mut last: Option<(u32, Ticket)> = None;
                for index in 0..each {
                    let number = (producer * each + index) as u32;
                    let ticket = submit(engine, 1 + number as usize % engine.capacity(), number).unwrap();
                    if let Some((number, ticket)) = last.replace((number, ticket)) {
                        assert_eq!(read(&ticket.wait().unwrap()), number);
                    }
                }
                let (number, ticket) = last.unwrap();
                assert_eq!(read(&ticket.wait().unwrap()), number);
            };
            thread::Builder::new().name(format!("producer-{producer}")).spawn_scoped(scope, body).unwrap();
        }
    });
}

#[test]
fn every_batch_has_its_stages_in_order_and_none_before_its_submission() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1, 4]).trace(true).build().unwrap();
    produce(&engine, 3, 50);
    let trace = engine.trace().unwrap();
    assert_eq!(trace.dropped(), 0);
    let [fill, submit, copied_in, computed, copied_out, wait, read] = TraceStage::ALL.map(|stage| of(&trace, stage));
    for number in 0..150 {
        let (submit, into, run, out) = (submit[&number], copied_in[&number], computed[&number], copied_out[&number]);
        assert!(fill[&number].end <= submit.begin && submit.begin <= submit.end);
        assert!(submit.begin <= into.begin, "{submit:?} {into:?}");
        assert!(into.begin <= into.end && into.end <= run.begin && run.begin <= run.end, "{into:?} {run:?}");
        assert!(run.end <= out.begin && out.begin <= out.end, "{run:?} {out:?}");
        assert!(out.end <= wait[&number].end && wait[&number].end <= read[&number].begin, "{out:?}");
        assert!([into, run, out].iter().all(|interval| interval.rows == submit.rows && interval.slot == submit.slot));
        assert!(submit.thread.as_deref().is_some_and(|thread| thread.starts_with("producer-")));
    }
    // Each stage works on one batch after the other.
    for stage in TraceStage::DEVICE {
        let all: Vec<&TraceInterval> = trace.stage(stage).collect();
        assert!(all.windows(2).all(|pair| pair[0].batch < pair[1].batch && pair[0].end <= pair[1].begin + 1e-9));
    }
}

/// In an engine of several models each model has an interval in each batch, and the download follows the last of them.
#[test]
fn several_models_have_an_interval_each() {
    let model = echo();
    let builder = builder_on_cpu(&model).beside(&model).average();
    let engine = builder.batch_sizes(&[1, 4]).trace(true).build().unwrap();
    produce(&engine, 2, 20);
    let trace = engine.trace().unwrap();
    let [copied_in, copied_out] = [TraceStage::CopyIn, TraceStage::CopyOut].map(|stage| of(&trace, stage));
    for number in 0..40 {
        let computed: Vec<&TraceInterval> = trace.stage(TraceStage::Compute).filter(|of| of.batch == number).collect();
        let names: Vec<&str> = computed.iter().filter_map(|interval| interval.model.as_deref()).collect();
        assert_eq!(names, ["model", "model #2", "mean"]);
        let [first, second, mean] = computed[..] else { panic!("{computed:?}") };
        for run in [first, second] {
            assert!(copied_in[&number].end <= run.begin && run.begin <= run.end && run.end <= mean.begin, "{run:?}");
        }
        assert!(mean.begin <= mean.end && mean.end <= copied_out[&number].begin, "{mean:?}");
    }
    let compute = trace.report().stages.into_iter().filter(|of| of.stage == TraceStage::Compute);
    let names: Vec<Option<String>> = compute.map(|of| of.model).collect();
    assert_eq!(names, [None, Some("model".into()), Some("model #2".into()), Some("mean".into())]);
}

#[test]
fn the_timeline_has_a_row_for_each_stream_slot_and_thread() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[2]).slots(2).trace(true).build().unwrap();
    produce(&engine, 2, 20);
    let trace = engine.trace().unwrap();
    let file: Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let rows: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    for row in ["trefoil-copy-in", "trefoil-compute", "trefoil-copy-out", "slot 0", "slot 1", "producer-0"] {
        assert!(rows.contains(&row), "no row {row}: {rows:?}");
    }
    for (batch, stage) in (0..40).flat_map(|batch| TraceStage::DEVICE.map(|stage| (batch, stage.to_string()))) {
        let fits = |event: &&Value| event["args"]["batch"] == batch && event["cat"] == stage.as_str();
        assert_eq!(events.iter().filter(fits).count(), 2, "batch {batch}, {stage}: on its stream and in its slot");
    }
    let report = trace.report();
    assert_eq!((report.batches, report.rows), (40, trace.stage(TraceStage::Compute).map(|i| i.rows).sum()));
    assert!((0.0..=1.0).contains(&report.copy_under_compute) && report.images_per_second > 0.0);
}

#[test]
fn an_engine_records_when_it_is_told_to() {
    let model = echo();
    assert!(builder_on_cpu(&model).build().unwrap().trace().is_none());
    assert!(builder_on_cpu(&model).trace(true).trace(false).build().unwrap().trace().is_none());
    let engine = builder_on_cpu(&model).trace_batches(10).results(8).build().unwrap();
    assert_eq!(engine.trace().unwrap().intervals(), []);
    produce(&engine, 2, 20);
    let trace = engine.trace().unwrap();
    assert_eq!((trace.stage(TraceStage::Compute).count(), trace.dropped()), (10, 30));
    assert!(builder_on_cpu(&model).trace_batches(0).build().is_err());
}

#[test]
fn a_batcher_is_recorded_too() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[4]).trace(true).build().unwrap();
    let batcher = engine.batcher().max_delay(Duration::from_millis(1)).build().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let client = thread::Builder::new().name("client".into());
            let rows = || {
                for _ in 0..20 {
                    batcher.submit(&vec![7; engine.input().row_bytes]).unwrap().wait().unwrap();
                }
            };
            client.spawn_scoped(scope, rows).unwrap();
        }
    });
    drop(batcher);
    let trace = engine.trace().unwrap();
    assert_eq!(trace.stage(TraceStage::CopyIn).map(|interval| interval.rows).sum::<usize>(), 80);
    // The batching thread submits, and so do clients that find nothing in flight; threads with equal names are
    // numbered.
    let threads: Vec<&str> = trace.stage(TraceStage::Submit).filter_map(|i| i.thread.as_deref()).collect();
    assert_eq!(threads.len(), trace.stage(TraceStage::Submit).count());
    let submits = |thread: &str| thread.starts_with("trefoil-batch-") || thread.starts_with("client");
    assert!(threads.iter().all(|thread| submits(thread)), "{threads:?}");
}

#[test]
fn a_ring_that_records_keeps_its_promises() {
    let model = echo();
    let build = || builder_on_cpu(&model).batch_sizes(&[1, 2]).staging(2).results(2).trace(true).build().unwrap();
    let engine = build();
    drop(engine.acquire().unwrap()); // never submitted
    drop(submit(&engine, 1, 1).unwrap()); // abandoned
    let mut ticket = submit(&engine, 2, 2).unwrap();
    let output = loop {
        match ticket.wait_for(Duration::from_micros(1)).unwrap() {
            Ok(output) => break output,
            Err(again) => ticket = again,
        }
    };
    assert_eq!(read(&output), 2);
    drop(output);
    let held = (engine.acquire().unwrap(), engine.acquire().unwrap());
    assert!(engine.try_acquire().unwrap().is_none());
    drop(held);
    engine.measure(trefoil::Stage::Compute, 2, 3).unwrap();
    engine.close(Close::Drain, Duration::from_secs(5)).unwrap();
    let trace = engine.trace().unwrap();
    let numbers: Vec<u64> = trace.stage(TraceStage::Compute).map(|interval| interval.batch).collect();
    assert_eq!(numbers, [0, 1], "what was submitted, and no measurement");
    assert!(of(&trace, TraceStage::Read).contains_key(&1) && !of(&trace, TraceStage::Read).contains_key(&0));

    // Two engines on one device record separately.
    let (first, second) = (build(), build());
    drop((submit(&first, 1, 1).unwrap().wait().unwrap(), submit(&second, 1, 1).unwrap().wait().unwrap()));
    for engine in [first, second] {
        assert_eq!(engine.trace().unwrap().stage(TraceStage::Compute).count(), 1);
    }
}
