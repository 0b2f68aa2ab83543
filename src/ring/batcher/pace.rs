//! When the device will be free, and how many rows are worth a batch: learnt from the batches that were sent, as plain
//! data.

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
/// Each compute stream is a queue, and batches take them in turn: a run begins when its rows are uploaded and the run before
/// it on its stream is over. Every run is measured, apart if another was beside it for most of its time, and the upload of
/// one batch in some of a size.
///
/// With rows that are queued, in flight, or expected back from clients that were just answered, the batcher has so many rows
/// to do in a round. They go in batches of at most a share, so that one is computed while the clients of another come back.
/// A batch leaves for a free stream unless rows that are expected make the round shorter by more than it costs to wait for
/// them.
pub(super) struct Pace {
    /// Ascending.
    sizes: Vec<Size>,
    /// Compute streams.
    streams: usize,
    /// Oldest first.
    flights: VecDeque<Flight>,
    /// When the batches before the oldest were done, and their sizes: as many as there are streams, the oldest first.
    done: VecDeque<(Instant, usize)>,
    returns: Returns,
    /// How long clients are away between their rows, and how long the runs take that answered them.
    away: [Estimate; 2],
    /// How long after its time the batching thread wakes.
    oversleeps: Estimate,
}

/// A run that is heard of so soon after another, as a part of its time, may have been over before: answers are in order.
const TOGETHER: u32 = 16;

/// How long before a batch may be done it is looked for, and how long at most: longer than timers are late and runs differ.
const EARLY: Duration = Duration::from_micros(40);
const LOOK_OUT: Duration = Duration::from_micros(100);
/// A batch that may be done later than this is not looked for: an answer that is late by a thread's waking is not late then.
const LONG: Duration = Duration::from_millis(5);

/// A batch that was sent and is not done.
struct Flight {
    size: usize,
    rows: usize,
    /// Whether it is computed when the batches before it are.
    in_turn: bool,
    sent: Instant,
    /// When its rows are expected on the device.
    uploaded: Instant,
    /// When its run begins and ends, at the earliest; nothing where a run before it is not known, or its own.
    begins: Option<Instant>,
    ends: Option<Instant>,
    /// Whether it was done before it was looked for, so that nobody knows when.
    was_early: bool,
}

/// What is to be done with a batch.
pub(crate) struct Sent {
    /// Whether its upload is to be measured.
    pub is_measured: bool,
    /// Whether it is to be computed when the batches before it are.
    pub in_turn: bool,
}

impl Pace {
    /// Of batch sizes, ascending, and compute streams.
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

    /// Batches in flight behind which a batch that is not full does not queue: one is computed on each stream and one is
    /// uploaded. What queues longer can as well gather.
    pub fn ahead(&self) -> usize {
        self.streams + 1
    }

    /// The index of the smallest size that holds `rows`.
    pub fn size_of(&self, rows: usize) -> usize {
        self.sizes.partition_point(|size| size.rows < rows).min(self.sizes.len() - 1)
    }

    /// Rows that a batch of `rows` may grow to without taking longer.
    pub fn room_of(&self, rows: usize) -> usize {
        self.sizes[self.size_of(rows)].rows
    }

    /// A row was committed.
    pub fn came(&mut self, now: Instant) {
        let Some((size, took)) = self.returns.came(now) else { return };
        if let Some(run) = self.sizes[size].alone.mean() {
            [took, run].into_iter().zip(&mut self.away).for_each(|(value, estimate)| estimate.add(value));
        }
    }

    /// A batch of `rows` was sent.
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

    /// Whether the upload of the next batch of so many rows is to be measured.
    pub fn measures(&self, rows: usize) -> bool {
        self.sizes[self.size_of(rows)].measures()
    }

    /// The upload of the batch of `rows` sent last, which waited for no other, took so long.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        let size = self.size_of(rows);
        self.sizes[size].uploaded(rows, took);
        if let Some(last) = self.flights.back_mut() {
            last.uploaded = last.sent + took;
        }
        self.foresee();
    }

    /// The batch that was sent last never reached the device: nothing is learnt of it.
    pub fn taken_back(&mut self) {
        self.flights.pop_back();
        self.foresee();
    }

    /// Batches that were sent, and are neither done nor taken back.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The oldest batch is done.
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

    /// Learns from a run, which is over `now`, what it takes. It was alone once the run before it was over, and until the one
    /// after it began.
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

    /// The batching thread woke so long after the time that it was to wake at.
    pub fn overslept(&mut self, by: Duration) {
        self.oversleeps.add(by);
    }

    /// When the batching thread has to wake so that a batch of `rows` is on the device when the device is free, or, if that
    /// pays, when a compute stream is: `now` if that is past, or not known.
    pub fn leaves_at(&self, rows: usize, now: Instant) -> Instant {
        let idle = self.idle_at(rows, now);
        match self.pays_beside(rows, now) {
            true => self.awaits(rows, now).map_or(now, |until| until.min(idle)),
            false => idle,
        }
    }

    /// When to send `rows` so that they are on the device when it is free. The device may be free early, and upload and
    /// thread late, by as much as is usual.
    ///
    /// A thread that overslept by more than half a run is not trusted to do so again: a wait has to be left, or nothing
    /// would be learnt of the next.
    fn idle_at(&self, rows: usize, now: Instant) -> Instant {
        let leaves = self.flights.back().and_then(|last| {
            let free = self.flights.iter().map(|flight| flight.ends).reduce(|a, b| Some(a?.max(b?)))??;
            let oversleeps = self.oversleeps.high().unwrap_or_default().min(self.sizes[last.size].alone.low()? / 2);
            free.checked_sub(self.upload(rows, Estimate::high) + oversleeps)
        });
        leaves.map_or(now, |leaves| leaves.max(now))
    }

    /// Whether a batch of `rows` pays beside those in flight on a free stream.
    ///
    /// Of clients that do not come back soon, nothing is known of the next rows. Then it has to be as large as the others,
    /// which it slows down, and either fill its size or be twice as large; what is smaller is computed at a better rate
    /// together with what comes meanwhile.
    fn pays_beside(&self, rows: usize, now: Instant) -> bool {
        let rows = self.worth(rows, now);
        let others = self.flights.iter().map(|flight| flight.rows).max().unwrap_or(0);
        let is_large = rows >= others && (rows == self.room_of(rows) || rows >= 2 * others);
        self.flights.len() < self.streams
            && self.gains_side_by_side(self.size_of(rows))
            && (self.comes_back() || is_large)
    }

    /// Whether a compute stream is free for a batch that leaves now, and no client is expected who could be back with a row
    /// for it before a thread has woken to send it.
    pub fn waits_for_nobody(&self, now: Instant) -> bool {
        self.flights.len() < self.streams && self.returns.due(now).next().is_none()
    }

    /// Whether batches of a size gain beside those that are in flight.
    fn gains_side_by_side(&self, size: usize) -> bool {
        let mut all = self.flights.iter().map(|flight| flight.size).chain([size]);
        self.streams > 1 && all.all(|size| self.sizes[size].gains_side_by_side())
    }

    /// Whether clients come back with their next rows before another run like the one that answered them would be over.
    fn comes_back(&self) -> bool {
        let [away, run] = self.away.map(|estimate| estimate.mean());
        away.zip(run).is_some_and(|(away, run)| away < run)
    }

    /// Until when `rows` wait for others that are expected: nothing if what they shorten the round by is not more than what
    /// is usually lost meanwhile, while a stream is free that would gain beside those in flight. Clients that are later than
    /// usual may be back at any moment, and are waited for as long as few are later.
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

    /// How many of `queued` rows, at most a full batch, are worth a batch now: those of a share that are answered at the
    /// highest rate.
    pub fn worth(&self, queued: usize, now: Instant) -> usize {
        self.fastest(self.round(queued, now).map_or(queued, |round| round.share.min(queued)))
    }

    /// How many of so many rows are answered at the highest rate. A batch that holds a row more than a size takes as long as
    /// the next size, so that leaving this row to the next batch may answer more rows a second.
    fn fastest(&self, most: usize) -> usize {
        let rate = |rows| Some(rows as f64 / self.takes(rows)?.as_secs_f64().max(1e-9));
        let counts = self.sizes.iter().map(|size| size.rows).take_while(|&rows| rows < most).chain([most]);
        let best = counts.filter_map(|rows| Some((rate(rows)?, rows))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(most, |best| best.1)
    }

    /// What a round takes, one batch after the other, if of `queued` rows a batch leaves now.
    fn round_takes(&self, queued: usize, round: &Round) -> Option<Duration> {
        let rows = self.fastest(queued.min(round.share));
        Some(self.takes(rows)? + self.takes_in_shares(round.rows - rows, round.share)?)
    }

    /// The rows that there are to do, `queued` among them, if clients come back.
    fn round(&self, queued: usize, now: Instant) -> Option<Round> {
        if self.flights.is_empty() || !self.comes_back() {
            return None;
        }
        let in_flight: usize = self.flights.iter().map(|flight| flight.rows).sum();
        let rows = queued + in_flight + self.returns.due(now).map(|(rows, _)| rows).sum::<usize>();
        Some(Round { rows, share: self.room_of(rows.div_ceil(self.streams.max(2))) })
    }

    /// What so many rows take alone in batches of a share each.
    fn takes_in_shares(&self, rows: usize, share: usize) -> Option<Duration> {
        let rest = if rows.is_multiple_of(share) { Duration::ZERO } else { self.takes(rows % share)? };
        Some(self.takes(share)? * (rows / share) as u32 + rest)
    }

    /// What a batch of so many rows takes alone; of a size that was not seen, what lies between its neighbours.
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

    /// Says of all flights when they begin and end, at the earliest.
    fn foresee(&mut self) {
        for index in 0..self.flights.len() {
            let begins = self.begins(index);
            self.flights[index].begins = begins;
            let run = self.sizes[self.flights[index].size].alone.low();
            self.flights[index].ends = begins.zip(run).map(|(begins, run)| self.ends(index, begins, run));
        }
    }

    /// When a run begins, if that of those before it is known.
    fn begins(&self, index: usize) -> Option<Instant> {
        let flight = &self.flights[index];
        let distance = if flight.in_turn { 1 } else { self.streams };
        let free = match index.checked_sub(distance) {
            Some(before) => Some(self.flights[before].ends?),
            None => (index + self.done.len()).checked_sub(distance).map(|before| self.done[before].0),
        };
        Some(free.map_or(flight.uploaded, |free| free.max(flight.uploaded)))
    }

    /// When a run ends that begins then and takes so long alone: it is slower while another is beside it.
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

    /// Between which moments the oldest batch is looked for: from a little before it is done, if not earlier than any of its
    /// size lately; nothing where that is not known, or long after `now`.
    pub fn looks_out(&self, now: Instant) -> Option<[Instant; 2]> {
        let first = self.flights.front()?;
        let soonest = self.ends(0, first.begins?, self.sizes[first.size].soonest?);
        let from = soonest.checked_sub(EARLY)?;
        (from <= now + LONG).then_some([from, from + LOOK_OUT])
    }

    /// The oldest batch was done before it was looked for. The next one of its size is not looked for, so that it is known
    /// again what one takes.
    pub fn was_early(&mut self) {
        if let Some(first) = self.flights.front_mut() {
            first.was_early = true;
        }
    }

    /// What the upload of so many rows takes.
    fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        self.sizes[self.size_of(rows)].upload(rows, of)
    }
}

/// Rows that there are to do.
struct Round {
    rows: usize,
    /// The most in a batch.
    share: usize,
}
