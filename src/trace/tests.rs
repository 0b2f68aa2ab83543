//! Reports and files of schedules that are worked out by hand.

use serde_json::Value;

use super::*;

/// A batch: copy-in, compute and copy-out in milliseconds, submitted when its copy-in begins.
fn batch(number: u64, stages: [(f64, f64); 3]) -> Vec<TraceInterval> {
    let interval = |stage, (begin, end): (f64, f64), thread| TraceInterval {
        batch: number,
        slot: number as usize % 3,
        size: number as usize % 2,
        rows: 10,
        stage,
        model: None,
        thread,
        begin: begin * 1e-3,
        end: end * 1e-3,
    };
    let submitted = (stages[0].0, stages[0].0 + 0.5);
    let submit = interval(TraceStage::Submit, submitted, Some("producer".into()));
    let on_device = TraceStage::DEVICE.into_iter().zip(stages).map(|(stage, span)| interval(stage, span, None));
    std::iter::once(submit).chain(on_device).collect()
}

fn trace(batches: &[[(f64, f64); 3]]) -> Trace {
    let intervals = batches.iter().zip(0..).flat_map(|(stages, number)| batch(number, *stages)).collect();
    let stream = |(stage, name): (_, &str)| TracedStream { stage, model: None, names: vec![name.into()] };
    let streams = TraceStage::DEVICE.into_iter().zip(["in", "compute", "out"]).map(stream).collect();
    Trace::new(intervals, "sim".into(), streams, 0)
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-9, "got {got}, want {want}");
}

/// Four batches in 16 ms: compute from 2 to 14 with a gap of 1, copies of 2 and 1.
fn schedule() -> Trace {
    trace(&[
        [(0.0, 2.0), (2.0, 5.0), (5.0, 6.0)],
        [(2.0, 4.0), (5.0, 8.0), (8.0, 9.0)],
        [(4.0, 6.0), (9.0, 12.0), (12.0, 13.0)],
        [(6.0, 8.0), (12.0, 15.0), (15.0, 16.0)],
    ])
}

#[test]
fn the_figures_are_those_worked_out_by_hand() {
    let report = schedule().report();
    assert_eq!((report.batches, report.rows, report.dropped), (4, 40, 0));
    near(report.seconds, 16e-3);
    let of = |stage| report.stages.iter().find(|report| report.stage == stage).unwrap();
    let compute = of(TraceStage::Compute);
    near(compute.busy_seconds, 12e-3);
    near(compute.busy, 12.0 / 16.0);
    near(compute.busy_middle, 7.0 / 8.0); // 4 to 12, without 8 to 9
    near(compute.mean, 3e-3);
    near(compute.spread.p50, 3e-3);
    near(of(TraceStage::CopyIn).busy, 0.5);
    near(of(TraceStage::CopyIn).busy_middle, 0.5);
    // Copies run from 0 to 9, 12 to 13 and 15 to 16; under compute from 2 to 8 and 12 to 13.
    near(report.copy_under_compute, 7.0 / 11.0);
    // In the window from 4 to 12, copies run from 4 to 9, under compute from 4 to 8.
    near(report.copy_under_compute_middle, 4.0 / 5.0);
    assert_eq!(report.slowest, TraceStage::Compute);
    assert_eq!(report.gaps.count, 1);
    near(report.gaps.seconds, 1e-3);
    near(report.gaps.longest, 1e-3);
    // Batches end at 6 and 9 in the middle half: ten rows in 3 ms.
    near(report.images_per_second, 10.0 / 3e-3);
    // The latencies are 6, 7, 9 and 10 ms.
    near(report.latency.p50, 7e-3);
    near(report.latency.p90, 10e-3);
    near(report.latency.max, 10e-3);
}

/// Two batches with two models: one computes from 2 to 5 and from 5 to 8, the other from 2 to 4 and from 6 to 9.
fn two_models() -> Trace {
    let mut trace = trace(&[[(0.0, 2.0), (2.0, 5.0), (5.0, 6.0)], [(2.0, 4.0), (5.0, 8.0), (9.0, 10.0)]]);
    let names: [Arc<str>; 2] = ["first".into(), "second".into()];
    let mut of_second = Vec::new();
    for interval in trace.intervals.iter_mut().filter(|interval| interval.stage == TraceStage::Compute) {
        interval.model = Some(names[0].clone());
        let [begin, end] = [[2e-3, 4e-3], [6e-3, 9e-3]][interval.batch as usize];
        of_second.push(TraceInterval { model: Some(names[1].clone()), begin, end, ..interval.clone() });
    }
    trace.intervals.extend(of_second);
    trace.intervals.sort_by_key(|interval| (interval.batch, interval.stage));
    let [upload, compute, download] = <[TracedStream; 3]>::try_from(trace.streams).unwrap();
    let of = |name: &Arc<str>, on: &str| TracedStream {
        model: Some(name.clone()),
        names: vec![on.into()],
        ..compute.clone()
    };
    trace.streams = vec![upload, of(&names[0], "compute"), of(&names[1], "compute-1"), download];
    trace
}

#[test]
fn each_of_several_models_has_its_interval_row_and_figures() {
    let trace = two_models();
    let report = trace.report();
    let of = |name: Option<&str>| {
        let compute = report.stages.iter().filter(|of| of.stage == TraceStage::Compute);
        compute.clone().find(|of| of.model.as_deref() == name).unwrap()
    };
    // Compute as a whole lasts from 2 to 9; for a batch it lasts from the beginning of the first model to the end of
    // the last one.
    near(of(None).busy_seconds, 7e-3);
    near(of(None).spread.max, 4e-3);
    near(of(Some("first")).busy_seconds, 6e-3);
    near(of(Some("second")).spread.p50, 2e-3);
    near(of(Some("second")).spread.max, 3e-3);
    assert_eq!((report.batches, report.slowest), (2, TraceStage::Compute));
    assert!(report.to_string().contains("\n- second "), "{report}");
    let file: Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let rows = events.iter().filter(|event| event["name"] == "thread_name").map(|event| &event["args"]["name"]);
    let rows: Vec<&Value> = rows.collect();
    assert_eq!(rows[..4], ["in", "compute: first", "compute-1: second", "out"]);
    let drawn = events.iter().filter(|event| event["args"]["model"] == "second" && event["name"] == "second 1");
    assert_eq!(drawn.count(), 1, "in its slot");
    // The second model runs beside the first, in a row of its own for the slot, also where it ends earlier.
    assert_eq!(rows[4..8], ["slot 0", "slot 0 (2)", "slot 1", "slot 1 (2)"]);
    let page = trace.to_html();
    let data: Value = serde_json::from_str(between(&page, "id=\"data\">", "</script>")).unwrap();
    assert_eq!(data["models"], serde_json::json!(["", "first", "second"]));
    for (at, interval) in trace.intervals().iter().enumerate() {
        let name = &data["models"][data["intervals"]["model"][at].as_u64().unwrap() as usize];
        assert_eq!(name, interval.model.as_deref().unwrap_or_default());
    }
}

#[test]
fn a_report_prints_its_figures() {
    let text = schedule().report().to_string();
    for part in ["sim: 4 batches, 40 rows in 16.000 ms", "copy-in", "75.0 %", "87.5 %", "3.000 ms", "80.0 %"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    for part in ["slowest stage: compute; 1 gap in", "3333.3 rows/s", "median 7.000 ms", "max 10.000 ms"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn nothing_recorded_is_no_figure_and_no_panic() {
    let report = trace(&[]).report();
    assert_eq!((report.batches, report.images_per_second, report.copy_under_compute), (0, 0.0, 0.0));
    assert!(report.to_string().contains("nothing has finished"));
    let one = trace(&[[(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)]]).report();
    near(one.images_per_second, 10.0 / 4e-3);
    near(one.copy_under_compute, 0.0);
}

#[test]
fn the_file_has_named_rows_and_each_stage_once_on_its_stream() {
    let file: Value = serde_json::from_str(&schedule().to_chrome_json()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let named = |what: &str| -> Vec<&str> {
        let names = events.iter().filter(|event| event["name"] == what);
        names.map(|event| event["args"]["name"].as_str().unwrap()).collect()
    };
    assert_eq!(named("process_name"), ["sim: streams", "sim: slots", "host threads"]);
    // Batch 3 is copied into slot 0 when no stage of batch 0 uses it any more: one row for each slot.
    assert_eq!(named("thread_name"), ["in", "compute", "out", "slot 0", "slot 1", "slot 2", "producer"]);
    let drawn = events.iter().filter(|event| event["ph"] == "X");
    assert_eq!(drawn.clone().count(), 4 * 3 * 2 + 4);
    let second = drawn.clone().find(|event| event["cat"] == "compute" && event["name"] == "batch 1").unwrap();
    near(second["ts"].as_f64().unwrap(), 5_000.0);
    near(second["dur"].as_f64().unwrap(), 3_000.0);
    assert_eq!(second["args"]["slot"], 1);
}

#[test]
fn intervals_that_cross_get_rows_of_their_own() {
    let mut crossing = schedule();
    // The next batch is copied into slot 0 while the last one is copied out of it.
    crossing.intervals.extend(batch(6, [(5.5, 7.0), (15.0, 16.0), (16.0, 17.0)]));
    let file: Value = serde_json::from_str(&crossing.to_chrome_json()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["name"] == "slot 0 (2)"), "{file}");
    let mut rows: std::collections::BTreeMap<u64, Vec<(f64, f64)>> = std::collections::BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let (begin, took) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        rows.entry(event["tid"].as_u64().unwrap()).or_default().push((begin, begin + took));
    }
    for row in rows.values() {
        for (a, b) in row.iter().flat_map(|a| row.iter().map(move |b| (a, b))) {
            let crosses = a.0 < b.0 - 1e-6 && b.0 < a.1 - 1e-6 && a.1 < b.1 - 1e-6;
            assert!(!crosses, "{a:?} crosses {b:?}");
        }
    }
}

/// The text between the first occurrences of two marks of a page.
fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    page.split_once(from).unwrap().1.split_once(to).unwrap().0
}

#[test]
fn the_page_has_every_interval_once_in_a_stream_or_thread() {
    let trace = schedule();
    let page = trace.to_html();
    let data: Value = serde_json::from_str(between(&page, "id=\"data\">", "</script>")).unwrap();
    let columns = &data["intervals"];
    for (at, interval) in trace.intervals().iter().enumerate() {
        assert_eq!(data["stages"][columns["stage"][at].as_u64().unwrap() as usize], interval.stage.to_string());
        assert_eq!((&columns["batch"][at], &columns["slot"][at]), (&interval.batch.into(), &interval.slot.into()));
        assert_eq!(columns["size"][at], interval.size);
        near(columns["begin"][at].as_f64().unwrap() * 1e-9, interval.begin);
        near(columns["took"][at].as_f64().unwrap() * 1e-9, interval.seconds());
    }
    let lanes = data["lanes"].as_array().unwrap();
    let drawn = lanes.iter().filter(|lane| lane["group"] != "slots").flat_map(|lane| lane["of"].as_array().unwrap());
    let mut places: Vec<u64> = drawn.map(|place| place.as_u64().unwrap()).collect();
    places.sort_unstable();
    assert_eq!(places, (0..trace.intervals().len() as u64).collect::<Vec<_>>());
    assert_eq!(data["report"]["batches"], 4);
}

#[test]
fn the_page_asks_nothing_of_a_network_and_takes_any_name() {
    let name = "</script><script>alert(1)</script><!-- & {{data}} {{script}} {{title}}";
    let mut named = schedule();
    named.intervals[0].thread = Some(name.into());
    let named = named.of(TracedModel { name: name.into(), ..TracedModel::default() });
    let page = named.to_html();
    for asks in ["http:", "https:", "//cdn", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!page.contains(asks), "{asks}");
    }
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page.matches("<script").count(), 2, "the data and the script");
    let data: Value = serde_json::from_str(between(&page, "id=\"data\">", "</script>")).unwrap();
    assert_eq!(data["about"]["model"], name);
    assert!(data["lanes"].as_array().unwrap().iter().any(|lane| lane["name"] == name));
    assert!(between(&page, "<title>", "</title>").starts_with("&lt;/script&gt;"));
    assert!(trace(&[]).to_html().contains("\"batches\":0"));
}
