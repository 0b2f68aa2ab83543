//! Makes a [`Trace`] of the batches that are finished. It never waits, and batches continue meanwhile.

use std::ops::Range;
use std::sync::Arc;

use super::Recorder;
use super::book::{BookEntry, Moments};
use crate::error::Error;
use crate::sync::lock;
use crate::trace::{Trace, TraceInterval, TraceStage, TracedStream};

/// A finished batch with the times of its events.
struct Finished {
    entry: BookEntry,
    /// The times of the begin and the end of each part.
    marks: Vec<f64>,
    /// The event at the batch's beginning.
    first: u64,
}

impl Recorder {
    /// The trace of the batches that are finished now.
    pub fn trace(&self) -> Trace {
        let enqueued = lock(&self.book).enqueued_batches();
        let mut finished = self.finished(enqueued);
        // The events of a batch that was replaced meanwhile may have been read after their reuse. Such a batch is older
        // than all others, and no other batch's times depend on it.
        let (oldest, streams, threads) = {
            let book = lock(&self.book);
            (book.oldest(), book.stream_names(), book.thread_names())
        };
        finished.retain(|batch| batch.entry.sequence >= oldest);
        let shift = shift(&finished);
        let first = finished.first().map_or(oldest, |batch| batch.entry.sequence);
        let interval = |batch: &Finished, stage, begin, end| {
            let BookEntry { number, slot, size, rows, .. } = batch.entry;
            TraceInterval { batch: number, slot, size, rows, stage, model: None, thread: None, begin, end }
        };
        let streams: Vec<TracedStream> = streams
            .into_iter()
            .zip(self.parts())
            .map(|(names, (stage, model))| TracedStream { stage, model, names })
            .collect();
        let mut intervals = Vec::with_capacity(finished.len() * (TraceStage::ALL.len() + self.programs.len()));
        for batch in &finished {
            let BookEntry { fill, submit, wait, read, .. } = batch.entry;
            let of_host = |stage, moments: Option<Moments>| {
                let of = |Moments { thread, begin, end }| {
                    let thread = Some(threads[thread].clone());
                    TraceInterval { thread, ..interval(batch, stage, begin, end) }
                };
                moments.map(of)
            };
            intervals.extend(of_host(TraceStage::Fill, fill));
            intervals.extend(of_host(TraceStage::Submit, submit));
            for ((stage, model), span) in self.parts().zip(batch.marks.as_chunks::<2>().0) {
                intervals.push(TraceInterval { model, ..interval(batch, stage, span[0] + shift, span[1] + shift) });
            }
            intervals.extend(of_host(TraceStage::Wait, wait));
            intervals.extend(of_host(TraceStage::Read, read));
        }
        Trace::new(intervals, self.target.clone(), streams, first)
    }

    /// The parts of a batch on the device, in order: the stage, and the model's name if there are several models.
    fn parts(&self) -> impl Iterator<Item = (TraceStage, Option<Arc<str>>)> {
        let only = self.programs.is_empty().then_some((TraceStage::Compute, None));
        let several = self.programs.iter().map(|name| (TraceStage::Compute, Some(name.clone())));
        [(TraceStage::CopyIn, None)].into_iter().chain(only).chain(several).chain([(TraceStage::CopyOut, None)])
    }

    /// The batches of `enqueued`, oldest first, that the device has finished, with their times.
    ///
    /// The driver returns the milliseconds between two events as an f32, which is coarse over minutes. So only the
    /// newest batch is placed by the base event, and every other one by the batch after it. A batch that is replaced
    /// meanwhile is the oldest, on which no other depends.
    fn finished(&self, mut enqueued: Vec<(BookEntry, Range<usize>)>) -> Vec<Finished> {
        // SAFETY: the recorder's own event, which lives as long as self.
        let is_done = |at: &Range<usize>| matches!(unsafe { self.inner.event_query(self.marks[at.end - 1]) }, Ok(true));
        while enqueued.last().is_some_and(|(_, at)| !is_done(at)) {
            enqueued.pop();
        }
        let mut finished: Vec<Finished> = Vec::with_capacity(enqueued.len());
        for (entry, at) in enqueued.into_iter().rev() {
            let first = self.marks[at.start];
            match self.times(at, finished.last()) {
                Ok(marks) => finished.push(Finished { entry, marks, first }),
                Err(error) => {
                    log::debug!("{}: batch {} is not in the trace: {error}", self.target, entry.number);
                    break;
                }
            }
        }
        finished.reverse();
        finished
    }

    /// The times of consecutive events of the recorder. The first event is placed by the base event, or by `after`, a
    /// later batch.
    fn times(&self, marks: Range<usize>, after: Option<&Finished>) -> Result<Vec<f64>, Error> {
        // SAFETY: the recorder's own events, made with timing, which live as long as self; where one is not done, the
        // device says so.
        let seconds = |from, to| unsafe { self.inner.elapsed_ms(from, to) }.map(|ms| f64::from(ms) * 1e-3);
        let first = self.marks[marks.start];
        let begin = match after {
            None => self.base_at + seconds(self.base, first)?,
            Some(after) => after.marks[0] - seconds(first, after.first)?,
        };
        let since = self.marks[marks].iter().skip(1).map(|&event| Ok(begin + seconds(first, event)?));
        std::iter::once(Ok(begin)).chain(since).collect()
    }
}

/// The shift that is added to device times, so that no batch begins before it is submitted and no wait ends before its
/// batch; 0 if that already holds. It is needed because the device's clock differs slightly from the host's, and the
/// time of the base event is known only to a few microseconds.
fn shift(finished: &[Finished]) -> f64 {
    let earliest = finished.iter().filter_map(|batch| Some(batch.entry.submit?.begin - batch.marks[0]));
    let latest = finished.iter().filter_map(|batch| Some(batch.entry.wait?.end - batch.marks.last()?));
    let (low, high) = (earliest.fold(f64::NEG_INFINITY, f64::max), latest.fold(f64::INFINITY, f64::min));
    0.0_f64.min(high).max(low)
}
