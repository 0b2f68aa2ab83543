//! The rows of a timeline.

use std::collections::BTreeMap;

use super::{Trace, TraceInterval};

/// The groups of rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Streams = 1,
    Slots = 2,
    Threads = 3,
}

/// A row of a timeline.
pub(super) struct Lane {
    pub group: Group,
    pub name: String,
    /// The indices of its intervals in the trace, ordered by beginning. The intervals are disjoint; those of a thread
    /// may also be nested.
    pub places: Vec<usize>,
}

/// The rows: one for each stream, each slot and each thread. Intervals of the device are in two rows.
pub(super) fn lanes(trace: &Trace) -> Vec<Lane> {
    let mut rows: BTreeMap<(Group, usize, String), Vec<usize>> = BTreeMap::new();
    let mut threads: Vec<&str> = trace.intervals.iter().filter_map(|interval| interval.thread.as_deref()).collect();
    threads.sort_unstable();
    threads.dedup();
    for (place, TraceInterval { stage, slot, thread, model, .. }) in trace.intervals.iter().enumerate() {
        if let Some(thread) = thread.as_deref() {
            let number = threads.binary_search(&thread).expect("every name is listed");
            rows.entry((Group::Threads, number, thread.to_owned())).or_default().push(place);
        } else if let Some(number) = trace.streams.iter().position(|on| (on.stage, &on.model) == (*stage, model)) {
            let names = &trace.streams[number].names;
            let name = &names[slot % names.len()];
            let name = model.as_ref().map_or_else(|| name.clone(), |model| format!("{name}: {model}"));
            rows.entry((Group::Streams, number, name)).or_default().push(place);
            rows.entry((Group::Slots, *slot, format!("slot {slot}"))).or_default().push(place);
        }
    }
    let numbered = |name: &str, number| if number == 0 { name.to_owned() } else { format!("{name} ({})", number + 1) };
    let split = |((group, _, name), places): ((Group, usize, String), _)| {
        let apart = uncrossed(&trace.intervals, places, group == Group::Threads).into_iter().enumerate();
        apart.map(move |(number, places)| Lane { group, name: numbered(&name, number), places })
    };
    rows.into_iter().flat_map(split).collect()
}

/// Splits intervals into rows of disjoint intervals, or, if `nests`, of disjoint or nested ones.
fn uncrossed(intervals: &[TraceInterval], mut places: Vec<usize>, nests: bool) -> Vec<Vec<usize>> {
    places.sort_by(|&a, &b| {
        let (a, b) = (&intervals[a], &intervals[b]);
        a.begin.total_cmp(&b.begin).then(b.end.total_cmp(&a.end))
    });
    let mut lanes: Vec<(Vec<f64>, Vec<usize>)> = Vec::new();
    for place in places {
        let interval = &intervals[place];
        let fits = lanes.iter_mut().find_map(|(open, lane)| {
            while open.last().is_some_and(|&end| end <= interval.begin) {
                open.pop();
            }
            open.last().is_none_or(|&end| nests && interval.end <= end).then_some((open, lane))
        });
        match fits {
            Some((open, lane)) => {
                open.push(interval.end);
                lane.push(place);
            }
            None => lanes.push((vec![interval.end], vec![place])),
        }
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}
