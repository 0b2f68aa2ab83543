//! Predicts when the device will be free, and how many rows a batch should have. It learns from the batches that were
//! sent, and is plain data.

mod estimate;
mod returns;
mod size;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use estimate::Estimate;
use returns::Returns;
use size::Size;

/// The times of a batcher's own batches, by batch size.
///
/// Each compute stream is a queue, and batches take the streams in turn: a run begins when its rows are uploaded and
/// the previous run on its stream is over. Every run is measured; runs with another one beside them for most of their
/// time are counted separately. The upload of only one in some batches of a size is measured.
///
/// The rows of a round are the rows that are queued, in flight, or expected from clients that were just answered. They
/// go in batches of at most a share of the round, so that one is computed while the clients of another come back. A
/// batch leaves for a free stream unless expected rows shorten the round by more than the wait for them costs.
pub(super) struct Pace {
    /// The sizes, ascending.
    sizes: Vec<Size>,
    /// The number of compute streams.
    streams: usize,
    /// The batches in flight, oldest first.
    flights: VecDeque<Flight>,
    /// The times at which the batches before the oldest flight were done, with their sizes: one for each compute
    /// stream, oldest first.
    done: VecDeque<(Instant, usize)>,
    returns: Returns,
    /// The time that clients take between an answer and their next row, and the time of the runs that answered them.
    away: [Estimate; 2],
    /// How late the batching thread wakes.
    oversleeps: Estimate,
}

/// If the end of a run is seen less than this part of its time after the end of the previous one, the run may have
/// ended earlier, because answers come in order.
const TOGETHER: u32 = 16;

/// How long before a batch may be done the polling for it begins, and how long it lasts: more than the lateness of
/// timers and the spread of runs.
const EARLY: Duration = Duration::from_micros(40);
const LOOK_OUT: Duration = Duration::from_micros(100);
/// If a batch will be done later than this, it is not polled for: the time to wake a thread matters little then.
const LONG: Duration = Duration::from_millis(5);

/// A batch that was sent and is not done.
struct Flight {
    size: usize,
    rows: usize,
    /// Whether its run waits for the previous run, even on another stream.
    in_turn: bool,
    sent: Instant,
    /// The time at which its rows are expected on the device.
    uploaded: Instant,
    /// The earliest times at which its run begins and ends; `None` if it is not known how long this run or an earlier
    /// one takes.
    begins: Option<Instant>,
    ends: Option<Instant>,
    /// Whether it was done before the polling for it began, so that the time of its end is not known.
    was_early: bool,
}

/// Decisions on a batch that is sent.
pub(crate) struct Sent {
    /// Whether its upload should be measured.
    pub is_measured: bool,
    /// Whether its run should wait for the previous run.
    pub in_turn: bool,
}

impl Pace {
    /// A pace for these batch sizes, ascending, and this number of compute streams.
    pub fn new(sizes: &[usize], streams: usize) -> Self {
        Self {
            sizes: sizes.iter().map(|&rows| Size::new(rows)).collect(),
            streams,
            flights: VecDeque::new(),
            done: VecDeque::with_capacity(streams + 1),
            returns: Returns::new(sizes.len(), streams + 1),
            away: Default::default(),
            oversleeps: Estimate::default(),
        }
    }

    /// The number of batches in flight behind which a batch that is not full does not queue: one is computed on each
    /// stream, and one is uploaded. A batch that would queue longer can gather more rows instead.
    pub fn ahead(&self) -> usize {
        self.streams + 1
    }

    /// The index of the smallest size that holds `rows`.
    pub fn size_of(&self, rows: usize) -> usize {
        self.sizes.partition_point(|size| size.rows < rows).min(self.sizes.len() - 1)
    }

    /// The number of rows that a batch of `rows` may grow to without taking longer.
    pub fn room_of(&self, rows: usize) -> usize {
        self.sizes[self.size_of(rows)].rows
    }

    /// Records that a row was committed.
    pub fn came(&mut self, now: Instant) {
        let Some((size, took)) = self.returns.came(now) else { return };
        if let Some(run) = self.sizes[size].alone.mean() {
            [took, run].into_iter().zip(&mut self.away).for_each(|(value, estimate)| estimate.add(value));
        }
    }

    /// Records that a batch of `rows` is sent.
    pub fn sent(&mut self, rows: usize, now: Instant) -> Sent {
        let size = self.size_of(rows);
        let in_turn = !self.gains_side_by_side(size);
        self.sizes.iter_mut().enumerate().filter(|&(index, _)| index != size).for_each(|(_, other)| other.passed());
        let uploaded = now + self.upload(rows, Estimate::mean);
        self.flights.push_back(Flight {
            size,
            rows,
            in_turn,
            sent: now,
            uploaded,
            begins: None,
            ends: None,
            was_early: false,
        });
        self.foresee();
        Sent { is_measured: self.sizes[size].sent(), in_turn }
    }

    /// Whether the upload of the next batch of `rows` should be measured.
    pub fn measures(&self, rows: usize) -> bool {
        self.sizes[self.size_of(rows)].measures()
    }

    /// Records the time of the upload of the last batch sent, of `rows` rows, which waited for no other upload.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        let size = self.size_of(rows);
        self.sizes[size].uploaded(rows, took);
        if let Some(last) = self.flights.back_mut() {
            last.uploaded = last.sent + took;
        }
        self.foresee();
    }

    /// Removes the batch that was sent last, because it never reached the device; nothing is learnt from it.
    pub fn taken_back(&mut self) {
        self.flights.pop_back();
        self.foresee();
    }

    /// The number of batches that were sent, and are neither done nor taken back.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Records that the oldest batch is done.
    pub fn done(&mut self, now: Instant) {
        let Some(flight) = self.flights.pop_front() else { return };
        let before = self.done.back().copied();
        if self.done.len() == self.streams {
            self.done.pop_front();
        }
        self.done.push_back((now, flight.size));
        self.returns.answered(flight.size, flight.rows, now);
        self.foresee();
        match flight.was_early {
            true => self.sizes[flight.size].soonest = None,
            false => self.measure(&flight, before, now),
        }
    }

    /// Learns the time of a run, which is over `now`. It was alone after the end of the run before it and until the
    /// beginning of the run after it.
    fn measure(&mut self, flight: &Flight, before: Option<(Instant, usize)>, now: Instant) {
        let Some(begin) = flight.begins else { return };
        if flight.uploaded > now {
            return self.sizes[flight.size].forget_upload();
        }
        let took = now.saturating_duration_since(begin);
        if took.is_zero() {
            return; // those before it were expected to end later
        }
        if before.is_some_and(|(before, _)| now.saturating_duration_since(before) < took / TOGETHER) {
            return;
        }
        let before = before.filter(|&(before, _)| before > begin);
        let next = self.flights.front().and_then(|next| Some((next.begins?, next.size)));
        let next = next.filter(|&(next, _)| next < now);
        let [from, until] = [before.map_or(begin, |before| before.0), next.map_or(now, |next| next.0)];
        let alone = until.saturating_duration_since(from);
        let is_alike = |other: Option<(Instant, usize)>| other.map_or(flight.size, |(_, size)| size) == flight.size;
        self.sizes[flight.size].took(took, alone.min(took), is_alike(before) && is_alike(next));
    }

    /// Records how late the batching thread woke.
    pub fn overslept(&mut self, by: Duration) {
        self.oversleeps.add(by);
    }

    /// The time at which the batching thread has to wake so that a batch of `rows` is on the device when the device is
    /// free, or, if that pays, when a compute stream is free. It is `now` if the time is past or not known.
    pub fn leaves_at(&self, rows: usize, now: Instant) -> Instant {
        let idle = self.idle_at(rows, now);
        match self.pays_beside(rows, now) {
            true => self.awaits(rows, now).map_or(now, |until| until.min(idle)),
            false => idle,
        }
    }

    /// The time at which to send `rows` so that they are on the device when it is free. It allows for a device that is
    /// free early, and for an upload and a thread that are late, by as much as is usual.
    ///
    /// If the thread usually oversleeps by more than half a run, half a run is assumed: some wait must remain, or
    /// nothing would be learnt from the next one.
    fn idle_at(&self, rows: usize, now: Instant) -> Instant {
        let leaves = self.flights.back().and_then(|last| {
            let free = self.flights.iter().map(|flight| flight.ends).reduce(|a, b| Some(a?.max(b?)))??;
            let oversleeps = self.oversleeps.high().unwrap_or_default().min(self.sizes[last.size].alone.low()? / 2);
            free.checked_sub(self.upload(rows, Estimate::high) + oversleeps)
        });
        leaves.map_or(now, |leaves| leaves.max(now))
    }

    /// Whether it pays to compute a batch of `rows` on a free stream beside those in flight.
    ///
    /// If clients do not come back soon, the next rows are not known. Then the batch must be as large as the others,
    /// which it slows down, and either fill its size or be twice as large. A smaller batch is computed at a better rate
    /// together with the rows that come meanwhile.
    fn pays_beside(&self, rows: usize, now: Instant) -> bool {
        let rows = self.worth(rows, now);
        let others = self.flights.iter().map(|flight| flight.rows).max().unwrap_or(0);
        let is_large = rows >= others && (rows == self.room_of(rows) || rows >= 2 * others);
        self.flights.len() < self.streams
            && self.gains_side_by_side(self.size_of(rows))
            && (self.comes_back() || is_large)
    }

    /// Whether a compute stream is free for a batch that leaves now, and no expected client could come back with a row
    /// for it before a woken thread could send it.
    pub fn waits_for_nobody(&self, now: Instant) -> bool {
        self.flights.len() < self.streams && self.returns.due(now).next().is_none()
    }

    /// Whether batches of a size gain by running beside those in flight.
    fn gains_side_by_side(&self, size: usize) -> bool {
        let mut all = self.flights.iter().map(|flight| flight.size).chain([size]);
        self.streams > 1 && all.all(|size| self.sizes[size].gains_side_by_side())
    }

    /// Whether clients usually come back with their next rows in less time than the run that answered them takes.
    fn comes_back(&self) -> bool {
        let [away, run] = self.away.map(|estimate| estimate.mean());
        away.zip(run).is_some_and(|(away, run)| away < run)
    }

    /// The time until which `rows` wait for other expected rows. `None` if these shorten the round by no more than is
    /// usually lost while a stream is free that would gain beside those in flight. Clients that are later than usual
    /// may come back at any moment, and are waited for until few are later.
    fn awaits(&self, rows: usize, now: Instant) -> Option<Instant> {
        let round = self.round(rows, now)?;
        let takes = self.round_takes(rows, &round)?;
        let lost = 2.0 * self.sizes[self.size_of(rows)].speed_beside() - 1.0;
        let mut together = rows;
        let mut waits = self.returns.due(now).filter_map(|(more, expected)| {
            together += more;
            let gained = takes.saturating_sub(self.round_takes(together, &round)?);
            let usually = expected.usually.saturating_duration_since(now);
            (gained > usually.mul_f64(lost)).then_some(expected.latest)
        });
        waits.next()
    }

    /// The number of `queued` rows, at most a full batch, that a batch should have now: as many of a share as are
    /// answered at the highest rate.
    pub fn worth(&self, queued: usize, now: Instant) -> usize {
        self.fastest(self.round(queued, now).map_or(queued, |round| round.share.min(queued)))
    }

    /// The number of rows, at most `most`, that are answered at the highest rate. A batch with one row more than a size
    /// takes as long as the next size, so that leaving this row to the next batch may answer more rows per second.
    fn fastest(&self, most: usize) -> usize {
        let rate = |rows| Some(rows as f64 / self.takes(rows)?.as_secs_f64().max(1e-9));
        let counts = self.sizes.iter().map(|size| size.rows).take_while(|&rows| rows < most).chain([most]);
        let best = counts.filter_map(|rows| Some((rate(rows)?, rows))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(most, |best| best.1)
    }

    /// The time of a round, one batch after the other, if a batch of the `queued` rows leaves now.
    fn round_takes(&self, queued: usize, round: &Round) -> Option<Duration> {
        let rows = self.fastest(queued.min(round.share));
        Some(self.takes(rows)? + self.takes_in_shares(round.rows - rows, round.share)?)
    }

    /// The round: all rows to compute, with the `queued` ones; `None` if clients do not come back soon.
    fn round(&self, queued: usize, now: Instant) -> Option<Round> {
        if self.flights.is_empty() || !self.comes_back() {
            return None;
        }
        let in_flight: usize = self.flights.iter().map(|flight| flight.rows).sum();
        let rows = queued + in_flight + self.returns.due(now).map(|(rows, _)| rows).sum::<usize>();
        Some(Round { rows, share: self.room_of(rows.div_ceil(self.streams.max(2))) })
    }

    /// The time of `rows` rows, alone, in batches of `share` each.
    fn takes_in_shares(&self, rows: usize, share: usize) -> Option<Duration> {
        let rest = if rows.is_multiple_of(share) { Duration::ZERO } else { self.takes(rows % share)? };
        Some(self.takes(share)? * (rows / share) as u32 + rest)
    }

    /// The time of a batch of `rows`, alone; for a size without measurements, it is interpolated between its
    /// neighbours.
    fn takes(&self, rows: usize) -> Option<Duration> {
        let index = self.size_of(rows);
        let seen = |size: &Size| Some((size.rows as f64, size.alone.mean()?));
        let below = self.sizes[..=index].iter().rev().find_map(seen);
        let above = self.sizes[index..].iter().find_map(seen);
        let rows = self.sizes[index].rows as f64;
        match (below, above) {
            (Some((fewer, short)), Some((more, long))) if more > fewer => {
                Some(short + long.saturating_sub(short).mul_f64((rows - fewer) / (more - fewer)))
            }
            (Some((fewer, run)), None) => Some(run.mul_f64(rows / fewer)),
            (_, above) => above.map(|(_, run)| run),
        }
    }

    /// Computes for all flights the earliest times at which they begin and end.
    fn foresee(&mut self) {
        for index in 0..self.flights.len() {
            let begins = self.begins(index);
            self.flights[index].begins = begins;
            let run = self.sizes[self.flights[index].size].alone.low();
            self.flights[index].ends = begins.zip(run).map(|(begins, run)| self.ends(index, begins, run));
        }
    }

    /// The time at which a run begins, if the ends of the runs before it are known.
    fn begins(&self, index: usize) -> Option<Instant> {
        let flight = &self.flights[index];
        let distance = if flight.in_turn { 1 } else { self.streams };
        let free = match index.checked_sub(distance) {
            Some(before) => Some(self.flights[before].ends?),
            None => (index + self.done.len()).checked_sub(distance).map(|before| self.done[before].0),
        };
        Some(free.map_or(flight.uploaded, |free| free.max(flight.uploaded)))
    }

    /// The time at which a run ends that begins at `begins` and takes `run` alone: it is slower while another run is
    /// beside it.
    fn ends(&self, index: usize, begins: Instant, run: Duration) -> Instant {
        let speed = self.sizes[self.flights[index].size].speed_beside();
        let before = match index.checked_sub(1) {
            Some(before) => self.flights[before].ends,
            None => self.done.back().map(|before| before.0),
        };
        let from = before.map_or(begins, |before| before.max(begins));
        let left = run.saturating_sub((from - begins).mul_f64(speed));
        let follows = self.flights.get(index + 1).is_some_and(|next| !next.in_turn);
        let next = follows.then(|| self.begins(index + 1)).flatten().map(|next| next.max(from));
        match next.filter(|&next| next < from + left) {
            Some(next) => next + (left - (next - from)).div_f64(speed),
            None => from + left,
        }
    }

    /// The times between which the oldest batch is polled for. They begin a little before it is done, if no recent
    /// batch of its size was faster. `None` if this is not known, or long after `now`.
    pub fn looks_out(&self, now: Instant) -> Option<[Instant; 2]> {
        let first = self.flights.front()?;
        let soonest = self.ends(0, first.begins?, self.sizes[first.size].soonest?);
        let from = soonest.checked_sub(EARLY)?;
        (from <= now + LONG).then_some([from, from + LOOK_OUT])
    }

    /// Records that the oldest batch was done before the polling for it began. The next batch of its size is not polled
    /// for, so that the time of this size is measured again.
    pub fn was_early(&mut self) {
        if let Some(first) = self.flights.front_mut() {
            first.was_early = true;
        }
    }

    /// The time of the upload of `rows` rows.
    fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        self.sizes[self.size_of(rows)].upload(rows, of)
    }
}

/// All rows to compute in a round.
struct Round {
    rows: usize,
    /// The most rows of one batch.
    share: usize,
}
