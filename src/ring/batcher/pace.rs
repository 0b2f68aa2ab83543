//! When the device will be free, and how many rows are worth a batch: learnt from the batches that were sent, as plain
//! data.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The times of a batcher's own batches, by batch size.
///
/// Each compute stream is a queue, and batches take them in turn: a run begins when its rows are uploaded and the run before
/// it on its stream is over. Every run is measured, apart if another was beside it for most of its time, and the upload of
/// every [`SAMPLE`]th batch of a size.
pub(super) struct Pace {
    /// Ascending.
    sizes: Vec<Size>,
    /// Compute streams.
    streams: usize,
    /// Oldest first.
    flights: VecDeque<Flight>,
    /// When the batches before the oldest were done: as many as there are streams, the oldest first.
    done: VecDeque<Instant>,
    /// How long after its time the batching thread wakes.
    oversleeps: Estimate,
}

struct Size {
    rows: usize,
    /// Alone, and beside another for most of its time.
    runs: [Estimate; 2],
    /// Runs alone since the last one beside another.
    alone: u32,
    /// Of a row.
    upload: Estimate,
    /// Batches until an upload is measured again.
    unmeasured: u32,
    /// Batches of other sizes since the last of this one.
    unused: u32,
}

/// Places of [`Size::runs`].
const ALONE: usize = 0;
const BESIDE: usize = 1;

/// Batches of a size to one whose upload is measured.
const SAMPLE: u32 = 16;
/// Batches of other sizes after which a size's run is not known any more, and runs alone after which those beside others are
/// not.
const FORGET: u32 = 256;
/// A run that is heard of so soon after another, as a part of its time, may have been over before: answers are in order.
const TOGETHER: u32 = 16;

/// A mean in which the latest values count most, and how far values lie from it in the mean; nothing before the first.
#[derive(Clone, Copy, Default)]
struct Estimate(Option<(Duration, Duration)>);

/// A batch that was sent and is not done.
struct Flight {
    size: usize,
    rows: usize,
    /// Whether it is computed when the batch before it is.
    in_turn: bool,
    sent: Instant,
    /// When its rows are expected on the device.
    uploaded: Instant,
}

impl Pace {
    /// Of batch sizes, ascending, and compute streams.
    pub fn new(sizes: &[usize], streams: usize) -> Self {
        let size = |&rows: &usize| Size {
            rows,
            runs: Default::default(),
            alone: 0,
            upload: Estimate::default(),
            unmeasured: 0,
            unused: 0,
        };
        Self {
            sizes: sizes.iter().map(size).collect(),
            streams,
            flights: VecDeque::new(),
            done: VecDeque::with_capacity(streams + 1),
            oversleeps: Estimate::default(),
        }
    }

    /// Batches in flight behind which a batch that is not full does not queue: one is computed on each stream and one is
    /// uploaded. What queues longer can as well gather.
    pub fn ahead(&self) -> usize {
        self.streams + 1
    }

    /// The index of the smallest size that holds `rows`.
    pub fn size_of(&self, rows: usize) -> usize {
        self.sizes.partition_point(|size| size.rows < rows).min(self.sizes.len() - 1)
    }

    /// A batch of `rows` was sent; whether its upload is to be measured.
    pub fn sent(&mut self, rows: usize, now: Instant) -> bool {
        let size = self.size_of(rows);
        self.forget(size);
        let in_turn = self.is_in_turn(rows);
        self.flights.push_back(Flight {
            size,
            rows,
            in_turn,
            sent: now,
            uploaded: now + self.upload(rows, Estimate::mean),
        });
        let unmeasured = &mut self.sizes[size].unmeasured;
        *unmeasured = unmeasured.saturating_sub(1);
        *unmeasured == 0
    }

    /// Forgets the runs of sizes that were not used for long, all but `used`: what was slow once is tried again.
    fn forget(&mut self, used: usize) {
        for (index, size) in self.sizes.iter_mut().enumerate() {
            size.unused = if index == used { 0 } else { size.unused + 1 };
            if size.unused == FORGET {
                *size = Size { runs: Default::default(), unused: 0, ..*size };
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
        let (Some(begin), Some(flight)) = (self.begins(0), self.flights.pop_front()) else { return };
        let before = self.done.back().copied();
        if self.done.len() == self.streams {
            self.done.pop_front();
        }
        self.done.push_back(now);
        let took = now.saturating_duration_since(begin);
        // Alone once the run before it is over, and until the one after it begins.
        let from = before.map_or(begin, |before| before.max(begin));
        let alone = self.begins(0).map_or(now, |next| next.min(now)).saturating_duration_since(from);
        if before.is_none_or(|before| now.saturating_duration_since(before) >= took / TOGETHER) {
            self.sizes[flight.size].took(took, alone.min(took));
        }
    }

    /// The batching thread woke so long after the time that it was to wake at.
    pub fn overslept(&mut self, by: Duration) {
        self.oversleeps.add(by);
    }

    /// When the batching thread has to wake so that a batch of `rows` is on the device when the device is free, or, if that
    /// pays, when a compute stream is: `now` if that is past, or not known. The device may be free early, and upload and
    /// thread late, by as much as is usual.
    ///
    /// A thread that overslept by more than half a run is not trusted to do so again: a wait has to be left, or nothing
    /// would be learnt of the next.
    pub fn leaves_at(&self, rows: usize, now: Instant) -> Instant {
        let count = self.flights.len();
        let first = count.saturating_sub(self.streams);
        let awaited = match self.pays_beside(rows) {
            true if count < self.streams => return now,
            true => first..first + 1,
            false => first..count,
        };
        let ends = awaited.map(|index| self.ends(index)).reduce(|a, b| Some(a?.max(b?)));
        let leaves = ends.flatten().and_then(|(free, run)| {
            let oversleeps = self.oversleeps.high().unwrap_or_default().min(run / 2);
            free.checked_sub(self.upload(rows, Estimate::high) + oversleeps)
        });
        leaves.map_or(now, |leaves| leaves.max(now))
    }

    /// Whether a batch of `rows` is to be computed when the one before it is: a full one, which fills the device. Two of them
    /// side by side would be over at the same time, and their clients with the next rows back together, the device idle.
    pub fn is_in_turn(&self, rows: usize) -> bool {
        self.sizes.last().is_some_and(|largest| rows == largest.rows)
    }

    /// Whether a batch of `rows` pays beside others: if its size gains by it, and it is as large as each of them, and either
    /// fills its size or is twice as large. What is smaller slows those down, and is computed at a better rate
    /// together with what comes meanwhile.
    pub fn pays_beside(&self, rows: usize) -> bool {
        if self.streams == 1 {
            return false;
        }
        let rows = self.worth(rows);
        let size = &self.sizes[self.size_of(rows)];
        let others = self.flights.iter().rev().take(self.streams).map(|flight| flight.rows).max().unwrap_or(0);
        size.gains_beside() && rows >= others && (rows == size.rows || rows >= 2 * others)
    }

    /// Rows that a batch of `rows` may grow to without taking longer.
    pub fn room_of(&self, rows: usize) -> usize {
        self.sizes[self.size_of(rows)].rows
    }

    /// How many of `queued` rows, at most a full batch, are worth a batch now: as many as are answered at the highest
    /// rate. A batch that holds a row more than a size takes as long as the next size, so that leaving this row to the
    /// next batch may answer more rows a second.
    pub fn worth(&self, queued: usize) -> usize {
        let run = |rows| self.run(self.size_of(rows), BESIDE).mean();
        let rate = |rows| run(rows).map(|run| rows as f64 / run.as_secs_f64().max(1e-9));
        let Some(all) = rate(queued) else { return queued };
        let fewer = self.sizes.iter().map(|size| size.rows).take_while(|&rows| rows < queued);
        let best = fewer.filter_map(|rows| Some((rate(rows)?, rows))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|best| best.0 > all).map_or(queued, |best| best.1)
    }

    /// When a flight's run begins, at the earliest; nothing where a run before it is not known.
    fn begins(&self, index: usize) -> Option<Instant> {
        let &Flight { uploaded, in_turn, .. } = self.flights.get(index)?;
        let distance = if in_turn { 1 } else { self.streams };
        let free = match index.checked_sub(distance) {
            Some(before) => Some(self.ends(before)?.0),
            None => (index + self.done.len()).checked_sub(distance).map(|before| self.done[before]),
        };
        Some(free.map_or(uploaded, |free| free.max(uploaded)))
    }

    /// When it ends, at the earliest, and what it takes.
    fn ends(&self, index: usize) -> Option<(Instant, Duration)> {
        let flight = &self.flights[index];
        let is_alone = self.flights.len() == 1 || flight.in_turn;
        let run = self.run(flight.size, if is_alone { ALONE } else { BESIDE }).low()?;
        Some((self.begins(index)? + run, run))
    }

    /// What the run of a size takes alone, or beside another; the other of both where that was not seen.
    fn run(&self, size: usize, beside: usize) -> Estimate {
        let runs = &self.sizes[size].runs;
        if runs[beside].0.is_some() { runs[beside] } else { runs[1 - beside] }
    }

    /// What the upload of so many rows takes; nothing before it was measured.
    fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        of(&self.sizes[self.size_of(rows)].upload).map_or(Duration::ZERO, |row| row.mul_f64(rows as f64))
    }
}

impl Size {
    /// A run took so long, of it `alone` with nothing beside it. One that was neither mostly alone nor mostly beside another
    /// says nothing.
    fn took(&mut self, took: Duration, alone: Duration) {
        if 8 * alone >= 7 * took {
            self.runs[ALONE].add(took);
            self.alone = self.alone.saturating_add(1);
            if self.alone == FORGET {
                self.runs[BESIDE] = Estimate::default();
            }
        } else if 2 * alone <= took {
            self.runs[BESIDE].add(took);
            self.alone = 0;
        }
    }

    /// Whether two runs side by side take clearly less than one after the other, as far as is known.
    fn gains_beside(&self) -> bool {
        let [alone, beside] = self.runs.map(|run| run.mean());
        alone.zip(beside).is_none_or(|(alone, beside)| 4 * beside < 7 * alone)
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
        let mut pace = Pace::new(&[1, 2, 4], 1);
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
        let mut pace = Pace::new(&[4], 1);
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
        let mut pace = Pace::new(&[1], 1);
        let start = Instant::now();
        pace.sent(1, start);
        pace.sent(1, start);
        pace.done(start + US(50));
        pace.done(start + US(100));
        assert_eq!(pace.sizes[0].runs[ALONE].mean(), Some(US(50)));
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
        let mut pace = Pace::new(&[1, 8, 16], 1);
        assert_eq!(pace.worth(9), 9, "nothing is known");
        let mut at = Instant::now();
        for (rows, run) in [(1, US(160)), (8, US(333)), (16, US(450))] {
            at = alone(&mut pace, at, rows, Duration::ZERO, run);
        }
        assert_eq!([1, 7, 8, 9, 10, 11, 15, 16].map(|rows| pace.worth(rows)), [1, 7, 8, 8, 8, 11, 15, 16]);
    }

    #[test]
    fn a_size_that_was_slow_once_is_used_again() {
        let mut pace = Pace::new(&[8, 12], 1);
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
        let mut pace = Pace::new(&[1], 1);
        let mut at = Instant::now();
        for _ in 0..50 {
            at = alone(&mut pace, at, 1, US(20), US(300)) + US(500);
        }
        pace.overslept(US(50_000));
        pace.sent(1, at);
        let waits = pace.leaves_at(1, at).duration_since(at);
        assert!(waits > US(140), "{waits:?}: half of a run, less an upload, of 320 us");
    }

    /// Two streams, and runs alone that are known: 300 us for 8 rows, 400 for 16.
    fn two_streams() -> (Pace, Instant) {
        let mut pace = Pace::new(&[1, 8, 16], 2);
        let mut at = Instant::now();
        for (rows, run) in [(8, 300), (16, 400)] {
            at = alone(&mut pace, at, rows, Duration::ZERO, US(run)) + US(500);
        }
        (pace, at)
    }

    #[test]
    fn what_pays_leaves_for_a_free_stream_and_other_rows_gather() {
        let (mut pace, at) = two_streams();
        let leaves = |pace: &Pace, rows| pace.leaves_at(rows, at).duration_since(at);
        assert_eq!(leaves(&pace, 1), Duration::ZERO, "the device is idle");
        pace.sent(8, at);
        let pays = [1, 5, 7, 8, 9, 12].map(|rows| leaves(&pace, rows).is_zero());
        assert_eq!(pays, [false, false, false, true, true, false], "as many rows as run, and a full size");
        assert_eq!(leaves(&pace, 1), US(300), "when the device is idle");
        pace.sent(8, at + US(100));
        assert_eq!(
            (leaves(&pace, 8), leaves(&pace, 1)),
            (US(300), US(400)),
            "when a stream is free, and when both are"
        );
    }

    #[test]
    fn a_small_run_holds_no_large_batch_back() {
        let (mut pace, at) = two_streams();
        pace.sent(2, at);
        let pays = [2, 3, 4, 5].map(|rows| pace.pays_beside(rows));
        assert_eq!(pays, [false, false, true, true], "twice as large pays");
    }

    #[test]
    fn runs_beside_another_are_measured_apart() {
        let (mut pace, at) = two_streams();
        pace.sent(8, at);
        pace.sent(8, at + US(10));
        pace.done(at + US(500));
        pace.done(at + US(560));
        let runs = pace.sizes[1].runs.map(|run| run.mean().unwrap());
        assert_eq!(runs[ALONE], US(300));
        assert_eq!(runs[BESIDE], (US(500) * 7 + US(550)) / 8);
        // The second may have been over long before the first, behind which it was heard of.
        pace.sent(8, at + US(1_000));
        pace.sent(8, at + US(1_010));
        pace.done(at + US(1_500));
        let before = pace.sizes[1].runs[BESIDE].mean();
        pace.done(at + US(1_501));
        assert_eq!(pace.sizes[1].runs[BESIDE].mean(), before);
    }

    /// Two runs of 8 rows take 500 us side by side, 600 one after the other; then they take 550, and stay alone until that is
    /// forgotten.
    #[test]
    fn a_size_that_gains_nothing_beside_others_is_computed_alone() {
        let (mut pace, mut at) = two_streams();
        for (took, pays) in [(500, true), (550, false)] {
            for _ in 0..40 {
                pace.sent(8, at);
                pace.sent(8, at);
                pace.done(at + US(took));
                pace.done(at + US(took));
                at += US(2_000);
            }
            assert_eq!(pace.pays_beside(8), pays);
        }
        for _ in 0..FORGET {
            assert!(!pace.pays_beside(8));
            at = alone(&mut pace, at, 8, Duration::ZERO, US(300)) + US(500);
        }
        assert!(pace.pays_beside(8));
    }

    #[test]
    fn full_batches_are_computed_in_turn() {
        let (mut pace, at) = two_streams();
        assert_eq!([8, 15, 16].map(|rows| pace.is_in_turn(rows)), [false, false, true]);
        pace.sent(16, at);
        pace.sent(16, at);
        assert_eq!(pace.leaves_at(1, at), at + US(800));
        pace.done(at + US(400));
        pace.done(at + US(800));
        let [of_alone, of_beside] = pace.sizes[2].runs;
        assert_eq!((of_alone.mean(), of_beside.mean()), (Some(US(400)), None));
    }
}
