//! When the device will be free, and how many rows are worth a batch: learnt from the batches that were sent, as plain
//! data.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The times of a batcher's own batches, by batch size.
///
/// The device is a queue: a run begins when its rows are uploaded and the run before it is over. Every run is measured,
/// and the upload of every [`SAMPLE`]th batch of a size.
pub(super) struct Pace {
    /// Ascending.
    sizes: Vec<Size>,
    /// Oldest first.
    flights: VecDeque<Flight>,
    /// When the batch before the oldest was done.
    last_done: Option<Instant>,
    /// How long after its time the batching thread wakes.
    oversleeps: Estimate,
}

struct Size {
    rows: usize,
    run: Estimate,
    /// Of a row.
    upload: Estimate,
    /// Batches until an upload is measured again.
    unmeasured: u32,
    /// Batches of other sizes since the last of this one.
    unused: u32,
}

/// Batches of a size to one whose upload is measured.
const SAMPLE: u32 = 16;
/// Batches of other sizes after which a size's run is not known any more.
const FORGET: u32 = 256;

/// A mean in which the latest values count most, and how far values lie from it in the mean; nothing before the first.
#[derive(Clone, Copy, Default)]
struct Estimate(Option<(Duration, Duration)>);

/// A batch that was sent and is not done.
struct Flight {
    size: usize,
    sent: Instant,
    /// When its rows are expected on the device.
    uploaded: Instant,
}

impl Pace {
    /// Of batch sizes, ascending.
    pub fn new(sizes: &[usize]) -> Self {
        let size = |&rows: &usize| Size {
            rows,
            run: Estimate::default(),
            upload: Estimate::default(),
            unmeasured: 0,
            unused: 0,
        };
        Self {
            sizes: sizes.iter().map(size).collect(),
            flights: VecDeque::new(),
            last_done: None,
            oversleeps: Estimate::default(),
        }
    }

    /// The index of the smallest size that holds `rows`.
    pub fn size_of(&self, rows: usize) -> usize {
        self.sizes.partition_point(|size| size.rows < rows).min(self.sizes.len() - 1)
    }

    /// A batch of `rows` was sent; whether its upload is to be measured.
    pub fn sent(&mut self, rows: usize, now: Instant) -> bool {
        let size = self.size_of(rows);
        self.forget(size);
        self.flights.push_back(Flight { size, sent: now, uploaded: now + self.upload(rows, Estimate::mean) });
        let unmeasured = &mut self.sizes[size].unmeasured;
        *unmeasured = unmeasured.saturating_sub(1);
        *unmeasured == 0
    }

    /// Forgets the runs of sizes that were not used for long, all but `used`: what was slow once is tried again.
    fn forget(&mut self, used: usize) {
        for (index, size) in self.sizes.iter_mut().enumerate() {
            size.unused = if index == used { 0 } else { size.unused + 1 };
            if size.unused == FORGET {
                *size = Size { run: Estimate::default(), unused: 0, ..*size };
            }
        }
    }

    /// The upload of a batch of `rows`, which waited for no other, took so long.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        let size = self.size_of(rows);
        self.sizes[size].upload.add(took.div_f64(rows as f64));
        self.sizes[size].unmeasured = SAMPLE;
        if let Some(last) = self.flights.back_mut() {
            last.uploaded = last.sent + took;
        }
    }

    /// The oldest batch is done.
    pub fn done(&mut self, now: Instant) {
        let Some(Flight { size, uploaded, .. }) = self.flights.pop_front() else { return };
        let took = now.saturating_duration_since(self.begins(uploaded));
        self.sizes[size].run.add(took);
        self.last_done = Some(now);
    }

    /// The batching thread woke so long after the time that it was to wake at.
    pub fn overslept(&mut self, by: Duration) {
        self.oversleeps.add(by);
    }

    /// When the batching thread has to wake so that a batch of `rows` is on the device when the device is free: `now` if
    /// that is past, or not known. The device may be free early, and upload and thread late, by as much as is usual.
    ///
    /// A thread that overslept by more than half a run is not trusted to do so again: a wait has to be left, or nothing
    /// would be learnt of the next.
    pub fn leaves_at(&self, rows: usize, now: Instant) -> Instant {
        let free = self.flights.iter().try_fold(None, |free, flight| {
            let begins = free.map_or(self.begins(flight.uploaded), |(free, _)| flight.uploaded.max(free));
            self.sizes[flight.size].run.low().map(|run| Some((begins + run, run)))
        });
        let leaves = free.flatten().and_then(|(free, run)| {
            let oversleeps = self.oversleeps.high().unwrap_or_default().min(run / 2);
            free.checked_sub(self.upload(rows, Estimate::high) + oversleeps)
        });
        leaves.map_or(now, |leaves| leaves.max(now))
    }

    /// Rows that a batch of `rows` may grow to without taking longer.
    pub fn room_of(&self, rows: usize) -> usize {
        self.sizes[self.size_of(rows)].rows
    }

    /// How many of `queued` rows, at most a full batch, are worth a batch now: as many as are answered at the highest
    /// rate. A batch that holds a row more than a size takes as long as the next size, so that leaving this row to the
    /// next batch may answer more rows a second.
    pub fn worth(&self, queued: usize) -> usize {
        let run = |rows| self.sizes[self.size_of(rows)].run.mean();
        let rate = |rows| run(rows).map(|run| rows as f64 / run.as_secs_f64().max(1e-9));
        let Some(all) = rate(queued) else { return queued };
        let fewer = self.sizes.iter().map(|size| size.rows).take_while(|&rows| rows < queued);
        let best = fewer.filter_map(|rows| Some((rate(rows)?, rows))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|best| best.0 > all).map_or(queued, |best| best.1)
    }

    /// When a run begins whose predecessors are done.
    fn begins(&self, uploaded: Instant) -> Instant {
        self.last_done.map_or(uploaded, |last| last.max(uploaded))
    }

    /// What the upload of so many rows takes; nothing before it was measured.
    fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        of(&self.sizes[self.size_of(rows)].upload).map_or(Duration::ZERO, |row| row.mul_f64(rows as f64))
    }
}

impl Estimate {
    fn add(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or((value, Duration::ZERO), |(mean, deviation)| {
            ((mean * 7 + value) / 8, (deviation * 7 + value.abs_diff(mean)) / 8)
        }));
    }

    fn mean(&self) -> Option<Duration> {
        self.0.map(|(mean, _)| mean)
    }

    /// What few values are below.
    fn low(&self) -> Option<Duration> {
        self.0.map(|(mean, deviation)| mean.saturating_sub(deviation))
    }

    /// What few values are above.
    fn high(&self) -> Option<Duration> {
        self.0.map(|(mean, deviation)| mean + deviation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// A batch of `rows` that was alone: uploaded after `upload`, done after `run` more.
    fn alone(pace: &mut Pace, at: Instant, rows: usize, upload: Duration, run: Duration) -> Instant {
        pace.sent(rows, at);
        pace.uploaded(rows, upload);
        let done = at + pace.upload(rows, Estimate::mean) + run;
        pace.done(done);
        done
    }

    #[test]
    fn a_batch_leaves_when_its_upload_ends_with_the_run_before_it() {
        let mut pace = Pace::new(&[1, 2, 4]);
        let start = Instant::now();
        assert_eq!(pace.leaves_at(1, start), start, "the device is idle");
        pace.sent(1, start);
        assert_eq!(pace.leaves_at(1, start), start, "nothing is known of the run");
        pace.done(start + US(100));
        let mut at = start + US(1_000);
        for _ in 0..50 {
            at = alone(&mut pace, at, 1, US(20), US(100)) + US(500);
        }
        pace.sent(1, at);
        let leaves = |pace: &Pace, rows| pace.leaves_at(rows, at).duration_since(at);
        let near = |found: Duration, wanted: Duration| found.abs_diff(wanted) < US(1);
        assert!(near(leaves(&pace, 1), US(100)), "{:?}: 20 up and 100 of run, less 20 up", leaves(&pace, 1));
        assert_eq!(
            leaves(&pace, 2),
            leaves(&pace, 1) + pace.upload(1, Estimate::mean),
            "an upload that was never measured takes nothing"
        );
        pace.overslept(US(40));
        assert!(near(leaves(&pace, 1), US(60)), "{:?}: 40 us earlier, as it oversleeps by them", leaves(&pace, 1));
        let late = at + US(400);
        assert_eq!(pace.leaves_at(1, late), late, "a run that is late is over at any moment");
    }

    #[test]
    fn one_upload_in_some_is_measured() {
        let mut pace = Pace::new(&[4]);
        let start = Instant::now();
        assert!(pace.sent(2, start));
        assert!(pace.sent(2, start), "the first one's upload may have waited for another");
        pace.uploaded(2, US(20));
        let measured: Vec<bool> = (0..SAMPLE + 1).map(|_| pace.sent(2, start)).collect();
        assert_eq!(measured.iter().position(|&measured| measured), Some(SAMPLE as usize - 1));
        assert_eq!(pace.upload(4, Estimate::mean), US(40));
    }

    #[test]
    fn runs_are_measured_from_the_end_of_the_one_before() {
        let mut pace = Pace::new(&[1]);
        let start = Instant::now();
        pace.sent(1, start);
        pace.sent(1, start);
        pace.done(start + US(50));
        pace.done(start + US(100));
        assert_eq!(pace.sizes[0].run.mean(), Some(US(50)));
    }

    #[test]
    fn an_estimate_follows_and_tells_the_usual_spread() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean(), None);
        (0..200).for_each(|number| estimate.add(US(if number % 2 == 0 { 90 } else { 110 })));
        let near = |found: Option<Duration>, wanted| found.unwrap().abs_diff(US(wanted)) < US(3);
        assert!(near(estimate.mean(), 100) && near(estimate.low(), 90) && near(estimate.high(), 110));
        (0..30).for_each(|_| estimate.add(US(400)));
        assert!(estimate.mean() > Some(US(390)) && estimate.low() > Some(US(370)));
    }

    #[test]
    fn rows_that_do_not_pay_wait() {
        let mut pace = Pace::new(&[1, 8, 16]);
        assert_eq!(pace.worth(9), 9, "nothing is known");
        let mut at = Instant::now();
        for (rows, run) in [(1, US(160)), (8, US(333)), (16, US(450))] {
            at = alone(&mut pace, at, rows, Duration::ZERO, run);
        }
        assert_eq!([1, 7, 8, 9, 10, 11, 15, 16].map(|rows| pace.worth(rows)), [1, 7, 8, 8, 8, 11, 15, 16]);
    }

    #[test]
    fn a_size_that_was_slow_once_is_used_again() {
        let mut pace = Pace::new(&[8, 12]);
        let mut at = Instant::now();
        at = alone(&mut pace, at, 8, Duration::ZERO, US(300));
        at = alone(&mut pace, at, 12, Duration::ZERO, US(90_000));
        assert_eq!(pace.worth(12), 8);
        for _ in 0..FORGET {
            at = alone(&mut pace, at, 8, Duration::ZERO, US(300));
        }
        assert_eq!(pace.worth(12), 12);
    }

    #[test]
    fn a_thread_that_overslept_once_waits_again() {
        let mut pace = Pace::new(&[1]);
        let mut at = Instant::now();
        for _ in 0..50 {
            at = alone(&mut pace, at, 1, US(20), US(300)) + US(500);
        }
        pace.overslept(US(50_000));
        pace.sent(1, at);
        let waits = pace.leaves_at(1, at).duration_since(at);
        assert!(waits > US(140), "{waits:?}: half of a run, less an upload, of 320 us");
    }
}
