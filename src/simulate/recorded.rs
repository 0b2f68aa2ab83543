//! The ring on the simulated device with a recorder: its traces must match the known schedule.

use super::*;
use crate::device::trace::{Recorder, install};
use crate::ring::Ticket;
use crate::trace::{Trace, TraceStage};

fn recorded(spec: &SimSpec) -> (Arc<Sim>, Arc<Core>, Arc<Recorder>) {
    let injections = spec.injections.iter().map(Injection::on_device).collect();
    let (sim, info) =
        Sim::new(SimOptions { link: spec.link(), side_by_side: spec.side_by_side(), injections, polls_advance: false });
    let sim = Arc::new(sim);
    let (device, recorder) = install(&Device::new(Kind::Sim(sim.clone()), info).checked(), 64, Vec::new()).unwrap();
    let sizes: Vec<(usize, Picos)> = spec.compute_us.iter().map(|&(size, us)| (size, picos(us * 1e-6))).collect();
    let program = SimProgram::new(&device, &sim, &sizes, ROW_BYTES, spec.slots).unwrap();
    let program = Arc::new(program.on_streams(&device, spec.compute_streams).unwrap());
    let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_BYTES])]);
    let ring = RingSpec {
        staging: spec.staging,
        results: spec.results,
        priority: Priority::Normal,
        acquire_limit: Duration::from_secs(10),
        waiting: Waiting::default(),
        output_kind: OutputKind::Features,
        buckets: Buckets::one(program.batch_sizes(), row.clone(), vec![row]),
        classes: vec![0],
        device_results: false,
        freed: None,
    };
    (sim, Core::build(&device, program, ring).unwrap(), recorder)
}

/// A spec with copies of 1 ms in and 0.5 ms out, and compute of 4 ms.
fn spec() -> SimSpec {
    let bytes = 1 << 20;
    let rate = bytes as f64 / 1e-3 * 1e-9;
    SimSpec {
        h2d_gbps: rate,
        d2h_gbps: rate,
        duplex_gbps: rate,
        copy_overhead_us: 0.0,
        input_bytes_per_row: bytes,
        output_bytes_per_row: bytes / 2,
        staging: 8,
        results: 32,
        ..SimSpec::new(vec![(1, 4_000.0)])
    }
}

/// Submits `count` batches as fast as the ring takes them, and waits for all.
fn run(core: &Arc<Core>, recorder: &Recorder, count: usize) -> Trace {
    let tickets: Vec<Ticket> = (0..count).map(|_| core.acquire(Duration::ZERO).unwrap().submit(1).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    recorder.trace()
}

#[test]
fn intervals_are_those_of_the_schedule() {
    let (_sim, core, recorder) = recorded(&spec());
    let trace = run(&core, &recorder, 5);
    let ms = |stage| -> Vec<(f64, f64)> {
        let round = |seconds: f64| (seconds * 1e9).round() / 1e6;
        trace.stage(stage).map(|interval| (round(interval.begin), round(interval.end))).collect()
    };
    // With three slots, the fourth upload waits until the first slot has been computed.
    assert_eq!(ms(TraceStage::CopyIn), [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (5.0, 6.0), (9.0, 10.0)]);
    assert_eq!(ms(TraceStage::Compute), [(1.0, 5.0), (5.0, 9.0), (9.0, 13.0), (13.0, 17.0), (17.0, 21.0)]);
    assert_eq!(ms(TraceStage::CopyOut), [(5.0, 5.5), (9.0, 9.5), (13.0, 13.5), (17.0, 17.5), (21.0, 21.5)]);
    assert_eq!(ms(TraceStage::Submit), [(0.0, 0.0); 5]);
    let slots: Vec<usize> = trace.stage(TraceStage::Compute).map(|interval| interval.slot).collect();
    assert_eq!(slots, [0, 1, 2, 0, 1]);
    let waits: Vec<f64> = ms(TraceStage::Wait).iter().map(|wait| wait.1).collect();
    assert_eq!(waits, [5.5, 9.5, 13.5, 17.5, 21.5]);
}

/// Two streams compute, each with its own row in the timeline; neither batch fills the device.
#[test]
fn batches_side_by_side_are_in_two_rows() {
    let compute_us = vec![(1, 4_000.0), (2, 4_000.0)];
    let spec = SimSpec { slots: 4, compute_streams: 2, side_by_side: 2.0, compute_us, ..spec() };
    let (_sim, core, recorder) = recorded(&spec);
    let trace = run(&core, &recorder, 5);
    let ms = |seconds: f64| (seconds * 1e9).round() / 1e6;
    let computed = trace.stage(TraceStage::Compute).map(|interval| (ms(interval.begin), ms(interval.end)));
    let computed: Vec<(f64, f64)> = computed.collect();
    assert_eq!(computed, [(1.0, 5.0), (2.0, 6.0), (5.0, 9.0), (6.0, 10.0), (9.0, 13.0)]);
    let timeline = trace.to_chrome_json();
    assert!(timeline.contains(r#""trefoil-compute""#) && timeline.contains(r#""trefoil-compute.1""#), "{timeline}");
    assert!(!timeline.contains("trefoil-compute (2)"), "no two intervals of a stream overlap");
    assert_eq!(trace.report().slowest, TraceStage::Compute);
}

#[test]
fn the_report_agrees_with_the_simulations_own() {
    let (sim, core, recorder) = recorded(&spec());
    let report = run(&core, &recorder, 8).report();
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "got {got}, want {want}");
    for (stage, unit) in TraceStage::DEVICE.into_iter().zip([Unit::CopyIn, Unit::Compute, Unit::CopyOut]) {
        let of_stage = report.stages.iter().find(|of| of.stage == stage).unwrap();
        near(of_stage.busy_seconds, sim.busy(unit) as f64 * 1e-12);
    }
    // Uploads take 8 ms. Five of the downloads run beside an upload, and three of these take 0.5 ms more. The first
    // upload and the last download run beside no compute; compute has no gap.
    near(report.seconds, 33.5e-3);
    near(report.copy_under_compute, 8.0 / 9.5);
    near(report.copy_under_compute_middle, 1.0);
    assert_eq!((report.slowest, report.gaps.count), (TraceStage::Compute, 0));
    near(report.images_per_second, 250.0);
    near(report.latency.max, 33.5e-3);
}

#[test]
fn one_slot_overlaps_nothing() {
    let (_sim, core, recorder) = recorded(&SimSpec { slots: 1, ..spec() });
    let report = run(&core, &recorder, 4).report();
    // The next upload may begin when compute is over, beside the download.
    assert_eq!(report.copy_under_compute, 0.0);
    assert_eq!(report.slowest, TraceStage::Compute);
}

#[test]
fn a_fault_leaves_what_was_finished() {
    let injections = vec![Injection { stage: Stage::Compute, nth: 3, effect: Effect::FailRun }];
    let (_sim, core, recorder) = recorded(&SimSpec { injections, ..spec() });
    let tickets: Vec<Ticket> = (0..4).map(|_| core.acquire(Duration::ZERO).unwrap().submit(1).unwrap()).collect();
    let answers: Vec<bool> = tickets.into_iter().map(|ticket| ticket.wait().is_ok()).collect();
    assert_eq!(answers, [true, true, false, false]);
    assert!(recorder.trace().stage(TraceStage::Compute).count() <= 2);
}
