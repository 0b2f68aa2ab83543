//! The trace event format: rows of named intervals for Perfetto.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Trace, TraceInterval, TraceStage};

/// Groups of rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Streams = 1,
    Slots = 2,
    Threads = 3,
}

/// An interval, or with `ph` M the name of a row or a group.
#[derive(Serialize)]
struct Event {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<TraceStage>,
    ph: &'static str,
    /// Microseconds.
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
    Batch { batch: u64, slot: usize, rows: usize },
    Name { name: String },
    Order { sort_index: usize },
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
    let mut rows: BTreeMap<(Group, usize, String), Vec<&TraceInterval>> = BTreeMap::new();
    let mut threads: Vec<&str> = trace.intervals.iter().filter_map(|interval| interval.thread.as_deref()).collect();
    threads.sort_unstable();
    threads.dedup();
    for interval in &trace.intervals {
        let TraceInterval { stage, slot, thread, .. } = interval;
        if let Some(thread) = thread.as_deref() {
            let place = threads.binary_search(&thread).expect("every name is listed");
            rows.entry((Group::Threads, place, thread.to_owned())).or_default().push(interval);
        } else if let Some(place) = TraceStage::DEVICE.iter().position(|device| device == stage) {
            rows.entry((Group::Streams, place, trace.streams[place].clone())).or_default().push(interval);
            rows.entry((Group::Slots, *slot, format!("slot {slot}"))).or_default().push(interval);
        }
    }
    let mut events = vec![
        name_of("process_name", Group::Streams, 0, format!("{}: streams", trace.device)),
        name_of("process_name", Group::Slots, 0, format!("{}: slots", trace.device)),
        name_of("process_name", Group::Threads, 0, "host threads".into()),
    ];
    let mut tid = 0;
    for ((group, _, name), intervals) in rows {
        for (number, lane) in lanes(intervals).into_iter().enumerate() {
            tid += 1;
            let name = if number == 0 { name.clone() } else { format!("{name} ({})", number + 1) };
            events.push(name_of("thread_name", group, tid, name));
            let order = Arguments::Order { sort_index: tid };
            events.push(Event { args: order, ..name_of("thread_sort_index", group, tid, String::new()) });
            events.extend(lane.into_iter().map(|interval| event(interval, group, tid)));
        }
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
    let &TraceInterval { batch, slot, rows, stage, begin, end, .. } = interval;
    let name = match group {
        Group::Streams => format!("batch {batch}"),
        _ => format!("{stage} {batch}"),
    };
    let args = Arguments::Batch { batch, slot, rows };
    let (ts, dur) = (Some(begin * 1e6), Some((end - begin) * 1e6));
    Event { name, cat: Some(stage), ph: "X", ts, dur, pid: group as usize, tid, args }
}

/// A row shows intervals that are disjoint or lie within each other; those that cross one get a row of their own.
fn lanes(mut intervals: Vec<&TraceInterval>) -> Vec<Vec<&TraceInterval>> {
    intervals.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(b.end.total_cmp(&a.end)));
    let mut lanes: Vec<(Vec<f64>, Vec<&TraceInterval>)> = Vec::new();
    for interval in intervals {
        let fits = lanes.iter_mut().find_map(|(open, lane)| {
            while open.last().is_some_and(|&end| end <= interval.begin) {
                open.pop();
            }
            open.last().is_none_or(|&end| interval.end <= end).then_some((open, lane))
        });
        match fits {
            Some((open, lane)) => {
                open.push(interval.end);
                lane.push(interval);
            }
            None => lanes.push((vec![interval.end], vec![interval])),
        }
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}
