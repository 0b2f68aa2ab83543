//! The timeline as one page that needs no network and no viewer.

use serde::Serialize;

use super::lanes::{Group, lanes};
use super::{Trace, TraceInterval, TraceReport, TraceStage, TracedModel};
use crate::error::printable;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/timeline.js");
/// The most characters of the title that are shown.
const MOST_OF_A_TITLE: usize = 300;

/// The data for the page's script.
#[derive(Serialize)]
struct Data<'a> {
    stages: [TraceStage; 7],
    /// The names of several models; the first one is empty.
    models: Vec<&'a str>,
    intervals: Columns,
    lanes: Vec<Row>,
    about: &'a TracedModel,
    report: TraceReport,
}

/// The intervals, with a column for each property, which takes a third of the bytes of a list of objects. Times are in
/// nanoseconds, counted from the first one.
#[derive(Default, Serialize)]
struct Columns {
    stage: Vec<usize>,
    model: Vec<usize>,
    batch: Vec<u64>,
    slot: Vec<usize>,
    size: Vec<usize>,
    rows: Vec<usize>,
    begin: Vec<u64>,
    took: Vec<u64>,
}

/// A row of the timeline.
#[derive(Serialize)]
struct Row {
    group: &'static str,
    name: String,
    /// The indices of its intervals in the columns.
    of: Vec<usize>,
}

pub(super) fn page(trace: &Trace) -> String {
    let model = &trace.model;
    let title = match model.name.as_str() {
        "" => trace.device.clone(),
        name => format!("{name} on {}", model.device_name),
    };
    let several = trace.streams.iter().filter_map(|stream| stream.model.as_deref());
    let models: Vec<&str> = std::iter::once("").chain(several).collect();
    let data = Data {
        stages: TraceStage::ALL,
        intervals: columns(&trace.intervals, &models),
        models,
        lanes: rows(trace),
        about: model,
        report: trace.report(),
    };
    let json = serde_json::to_string(&data).expect("numbers and names have no other form");
    let (before, after) = PAGE.split_once("{{data}}").expect("the page has a place for its data");
    let after = after.replace("{{script}}", SCRIPT);
    let before = before.replace("{{style}}", STYLE).replace("{{title}}", &escaped(&title));
    // In a script element `<` could begin its end or a comment; in JSON it only occurs in strings.
    format!("{before}{}{after}", json.replace('<', "\\u003c"))
}

fn columns(intervals: &[TraceInterval], models: &[&str]) -> Columns {
    let origin = intervals.iter().map(|interval| interval.begin).fold(f64::INFINITY, f64::min);
    let nanoseconds = |seconds: f64| (seconds * 1e9).round().max(0.0) as u64;
    let mut columns = Columns::default();
    for interval in intervals {
        let stage = TraceStage::ALL.iter().position(|stage| *stage == interval.stage).expect("one of all");
        let begin = nanoseconds(interval.begin - origin);
        columns.stage.push(stage);
        let model = interval.model.as_deref().unwrap_or_default();
        columns.model.push(models.iter().position(|name| *name == model).unwrap_or_default());
        columns.batch.push(interval.batch);
        columns.slot.push(interval.slot);
        columns.size.push(interval.size);
        columns.rows.push(interval.rows);
        columns.begin.push(begin);
        columns.took.push(nanoseconds(interval.end - origin).saturating_sub(begin));
    }
    columns
}

fn rows(trace: &Trace) -> Vec<Row> {
    let group = |group| match group {
        Group::Streams => "streams",
        Group::Slots => "slots",
        Group::Threads => "threads",
    };
    lanes(trace).into_iter().map(|lane| Row { group: group(lane.group), name: lane.name, of: lane.places }).collect()
}

fn escaped(text: &str) -> String {
    printable(text, MOST_OF_A_TITLE).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
