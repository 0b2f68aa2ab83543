//! The timeline in the trace event format: rows of named intervals for Perfetto.

use serde::Serialize;

use super::lanes::{Group, lanes};
use super::{Trace, TraceInterval, TraceStage};

/// An interval, or, with `ph` M, the name of a row or of a group of rows.
#[derive(Serialize)]
struct Event {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<TraceStage>,
    ph: &'static str,
    /// The beginning in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: usize,
    tid: usize,
    args: Arguments,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments {
    Batch {
        batch: u64,
        slot: usize,
        size: usize,
        rows: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    Name {
        name: String,
    },
    Order {
        sort_index: usize,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Other<'a>,
}

#[derive(Serialize)]
struct Other<'a> {
    device: &'a str,
    dropped_batches: u64,
}

pub(super) fn json(trace: &Trace) -> String {
    let mut events = vec![
        name_of("process_name", Group::Streams, 0, format!("{}: streams", trace.device)),
        name_of("process_name", Group::Slots, 0, format!("{}: slots", trace.device)),
        name_of("process_name", Group::Threads, 0, "host threads".into()),
    ];
    for (lane, tid) in lanes(trace).into_iter().zip(1..) {
        events.push(name_of("thread_name", lane.group, tid, lane.name));
        let order = Arguments::Order { sort_index: tid };
        events.push(Event { args: order, ..name_of("thread_sort_index", lane.group, tid, String::new()) });
        events.extend(lane.places.into_iter().map(|place| event(&trace.intervals[place], lane.group, tid)));
    }
    let other_data = Other { device: &trace.device, dropped_batches: trace.dropped };
    let file = File { trace_events: events, display_time_unit: "ns", other_data };
    serde_json::to_string(&file).expect("numbers and names have no other form")
}

fn name_of(what: &str, group: Group, tid: usize, name: String) -> Event {
    let args = Arguments::Name { name };
    Event { name: what.into(), cat: None, ph: "M", ts: None, dur: None, pid: group as usize, tid, args }
}

fn event(interval: &TraceInterval, group: Group, tid: usize) -> Event {
    let &TraceInterval { batch, slot, size, rows, stage, begin, end, .. } = interval;
    let name = match (group, &interval.model) {
        (Group::Streams, _) => format!("batch {batch}"),
        (_, Some(model)) => format!("{model} {batch}"),
        (_, None) => format!("{stage} {batch}"),
    };
    let args = Arguments::Batch { batch, slot, size, rows, model: interval.model.as_deref().map(String::from) };
    let (ts, dur) = (Some(begin * 1e6), Some((end - begin) * 1e6));
    Event { name, cat: Some(stage), ph: "X", ts, dur, pid: group as usize, tid, args }
}
