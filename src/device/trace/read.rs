//! From events to seconds: what is finished becomes a [`Trace`]. Never waits; batches go on meanwhile.

use super::Recorder;
use super::book::{Entry, MARKS, Moments};
use crate::error::Error;
use crate::sync::lock;
use crate::trace::{Trace, TraceInterval, TraceStage};

/// A finished batch with the times of its events.
struct Finished {
    entry: Entry,
    marks: [f64; MARKS],
}

impl Recorder {
    /// What is finished now.
    pub fn trace(&self) -> Trace {
        let (entries, _) = lock(&self.book).enqueued_batches();
        let mut finished = self.finished(entries);
        // A batch that lost its place meanwhile may have been read when its events were another's already. It is older
        // than all that have theirs, and nothing was computed from it.
        let (oldest, streams, threads) = {
            let book = lock(&self.book);
            (book.oldest(), book.stream_names(), book.thread_names())
        };
        finished.retain(|batch| batch.entry.sequence >= oldest);
        let shift = shift(&finished);
        let first = finished.first().map_or(oldest, |batch| batch.entry.sequence);
        let interval = |batch: &Finished, stage, thread: Option<usize>, begin, end| {
            let Entry { number, slot, rows, .. } = batch.entry;
            let thread = thread.map(|thread| threads[thread].clone());
            TraceInterval { batch: number, slot, rows, stage, thread, begin, end }
        };
        let mut intervals = Vec::with_capacity(finished.len() * TraceStage::ALL.len());
        for batch in &finished {
            let Entry { fill, submit, wait, read, .. } = batch.entry;
            let of_host = |stage, moments: Option<Moments>| {
                moments.map(|Moments { thread, begin, end }| interval(batch, stage, Some(thread), begin, end))
            };
            intervals.extend(of_host(TraceStage::Fill, fill));
            intervals.extend(of_host(TraceStage::Submit, submit));
            for (stage, span) in TraceStage::DEVICE.into_iter().zip(batch.marks.as_chunks::<2>().0) {
                intervals.push(interval(batch, stage, None, span[0] + shift, span[1] + shift));
            }
            intervals.extend(of_host(TraceStage::Wait, wait));
            intervals.extend(of_host(TraceStage::Read, read));
        }
        Trace::new(intervals, self.target.clone(), streams, first)
    }

    /// Those of `entries`, oldest first, that the device has finished, with their times.
    ///
    /// The driver gives the milliseconds between two events as an f32, which is coarse over minutes. So only the newest
    /// batch is placed by the base event, and every other one by the batch after it. What is overwritten meanwhile is
    /// the oldest, on which nothing else depends.
    fn finished(&self, mut entries: Vec<Entry>) -> Vec<Finished> {
        // SAFETY: the recorder's own event, which lives as long as self.
        let is_done = |entry: &Entry| matches!(unsafe { self.inner.event_query(entry.marks[MARKS - 1]) }, Ok(true));
        while entries.last().is_some_and(|entry| !is_done(entry)) {
            entries.pop();
        }
        let mut finished: Vec<Finished> = Vec::with_capacity(entries.len());
        for entry in entries.into_iter().rev() {
            match self.times(&entry, finished.last()) {
                Ok(marks) => finished.push(Finished { entry, marks }),
                Err(error) => {
                    log::debug!("{}: batch {} is not in the trace: {error}", self.target, entry.number);
                    break;
                }
            }
        }
        finished.reverse();
        finished
    }

    fn times(&self, entry: &Entry, after: Option<&Finished>) -> Result<[f64; MARKS], Error> {
        // SAFETY: the recorder's own events, made with timing, which live as long as self; where one is not done, the
        // device says so.
        let seconds = |from, to| unsafe { self.inner.elapsed_ms(from, to) }.map(|ms| f64::from(ms) * 1e-3);
        let [first, rest @ ..] = entry.marks;
        let begin = match after {
            None => self.base_at + seconds(self.base, first)?,
            Some(after) => after.marks[0] - seconds(first, after.entry.marks[0])?,
        };
        let mut marks = [begin; MARKS];
        for (mark, event) in marks[1..].iter_mut().zip(rest) {
            *mark += seconds(first, event)?;
        }
        Ok(marks)
    }
}

/// What device times are to be moved by, so that no batch begins before it is submitted and no wait is over before its
/// batch: 0 where that is so. The device's clock is not quite the host's, and the base event is known to a few
/// microseconds only.
fn shift(finished: &[Finished]) -> f64 {
    let earliest = finished.iter().filter_map(|batch| Some(batch.entry.submit?.begin - batch.marks[0]));
    let latest = finished.iter().filter_map(|batch| Some(batch.entry.wait?.end - batch.marks[MARKS - 1]));
    let (low, high) = (earliest.fold(f64::NEG_INFINITY, f64::max), latest.fold(f64::INFINITY, f64::min));
    0.0_f64.min(high).max(low)
}
