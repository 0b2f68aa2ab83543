//! The batcher's books as plain data: the owner of each page-locked row, the queue, and who waits for an answer. Every
//! change is one method, under one lock; what it returns to be woken is woken without the lock.

use crate::sync::thread::Thread;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::line::Line;
use super::pace::{Pace, Sent};
use super::places::Places;
use super::stats::Counters;
use super::ticket::RowOutput;
use crate::error::Error;
use crate::ring::{Close, Output, Ticket};

/// The order of queued rows: rows of high priority go first.
///
/// ```
/// use trefoil::RowPriority;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let batcher = engine.batcher().build()?;
/// let urgent = batcher.row()?.priority(RowPriority::High).submit()?; // goes before what is queued already
/// assert_eq!(urgent.wait()?.top_k(1)?.len(), 1);
/// assert_eq!(RowPriority::default(), RowPriority::Normal);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RowPriority {
    /// After the rows of high priority.
    #[default]
    Normal,
    /// Before every queued row of normal priority, and first when room comes free.
    High,
}

/// The thread or task to wake for an answer. Cloning, waking or dropping a waker is user code, so none of it happens
/// under the lock.
pub(crate) enum Wake {
    Nobody,
    Thread(Thread),
    Task(Waker),
}

/// The state of a ticket in the books.
enum TicketEntry {
    Vacant,
    /// The row is queued or in flight.
    Waiting(Wake),
    Done(Result<RowOutput, Error>),
    /// The ticket was dropped before the answer.
    Abandoned,
}

/// A committed row.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    /// The index of its page-locked row.
    pub row: usize,
    /// The index of its ticket's entry.
    pub entry: usize,
    /// The time at which it was committed.
    pub since: Instant,
    pub deadline: Option<Instant>,
}

impl Queued {
    /// The latest time at which it leaves, even in a batch that is not full: after `max_delay`, or half the time to its
    /// deadline.
    fn due(&self, max_delay: Duration) -> Instant {
        let due = self.since + max_delay;
        self.deadline.map_or(due, |deadline| due.min(self.since + deadline.saturating_duration_since(self.since) / 2))
    }
}

/// The limits of a batcher's batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The number of rows of a full batch.
    pub full: usize,
    /// The most batches in flight.
    pub in_flight: usize,
    /// The longest wait of a batch that is not full while the device is busy.
    pub max_delay: Duration,
}

/// What to do with the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A batch leaves now.
    Leave,
    /// No batch leaves before this time unless something changes.
    LookAt(Instant),
    /// No batch leaves unless something changes.
    Sleep,
}

/// The effect of a commit on the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// No batch leaves earlier than before.
    Nothing,
    /// The batching thread has to look at the queue.
    Look,
    /// A batch leaves now, its upload need not be measured, and no client could come back before it: the committing
    /// thread sends it.
    Leave,
}

/// A batch on its way through the ring.
pub(crate) struct Flight {
    pub ticket: Ticket,
    /// The rows, in the order of the batch.
    pub rows: Vec<Queued>,
}

pub(crate) struct BatcherState {
    /// The free page-locked rows.
    free: Places,
    entries: Vec<TicketEntry>,
    vacant: Vec<usize>,
    /// The committed rows, in order of commit: high priority, normal priority.
    queues: [VecDeque<Queued>; 2],
    /// The batches for the delivering thread, oldest first.
    pub flights: VecDeque<Flight>,
    /// The emptied lists of rows of earlier batches.
    spare: Vec<Vec<Queued>>,
    /// The batches in flight, and predictions of when they are done.
    pace: Pace,
    /// The submitters that wait for a free row.
    line: Line,
    /// How the batcher was closed; `Drain` after a drop. Then no row is accepted.
    closed: Option<Close>,
    /// Whether the batching thread has ended: no flight follows.
    pub ended: bool,
    /// The error that every row is answered with after a fault.
    failed: Option<Error>,
    pub(super) counters: Counters,
    /// Threads that sleep although what they wait for is there. Those in `RowTicket::wait` come here as soon as they are
    /// woken, and wake others in turn; the others wait for a free row.
    asleep: VecDeque<Thread>,
}

impl BatcherState {
    /// Bytes of the books for each row.
    pub const ROW_BYTES: usize =
        size_of::<TicketEntry>() + size_of::<usize>() + 2 * size_of::<Queued>() + size_of::<Thread>() + 1; // of the free places

    /// Books for `rows` page-locked rows, these batch sizes, ascending, and this number of compute streams.
    pub fn new(rows: usize, sizes: &[usize], streams: usize) -> Self {
        let capacity = *sizes.last().expect("a program has a batch size");
        Self {
            free: Places::new(rows),
            entries: (0..rows).map(|_| TicketEntry::Vacant).collect(),
            vacant: (0..rows).rev().collect(),
            queues: [VecDeque::with_capacity(rows), VecDeque::with_capacity(rows)],
            flights: VecDeque::new(),
            spare: Vec::new(),
            pace: Pace::new(sizes, streams),
            line: Line::default(),
            closed: None,
            ended: false,
            failed: None,
            counters: Counters::new(capacity),
            asleep: VecDeque::with_capacity(rows),
        }
    }

    /// An error if rows are no longer accepted.
    pub fn open(&self) -> Result<(), Error> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.is_closed() => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// The error that every row is answered with, if there is one.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Stops accepting rows. An abort answers the queued rows, and overrules an earlier drain.
    pub fn close(&mut self, how: Close, wakes: &mut Vec<Wake>) {
        self.asleep.extend(self.line.dismiss());
        if how == Close::Drain {
            self.closed.get_or_insert(how);
            return;
        }
        self.closed = Some(how);
        self.answer_queued(&Error::Closed, wakes);
    }

    /// Takes a free row that is kept for nobody.
    pub fn claim(&mut self) -> Option<usize> {
        if self.free.free() <= self.line.kept() {
            return None;
        }
        self.free.take()
    }

    /// Lets a thread wait for a free row; returns its number in the line.
    pub fn wait_in_line(&mut self, priority: RowPriority, thread: Thread) -> u64 {
        self.line.join(priority, thread)
    }

    /// Takes the row that is kept for a number in the line.
    pub fn claim_kept(&mut self, number: u64) -> Option<usize> {
        if self.line.take(number) { self.free.take() } else { None }
    }

    /// Removes a number from the line. No row is kept for it, unless nobody gets rows any more.
    pub fn leave_line(&mut self, number: u64) {
        self.line.leave(number);
    }

    /// Frees a row that was given up before it was committed.
    pub fn unclaim(&mut self, row: usize) {
        self.free.unused(row);
        self.keep_free();
    }

    /// Frees a row.
    fn give(&mut self, row: usize) {
        self.free.give(row);
        self.keep_free();
    }

    /// Keeps free rows for those who wait, who are then to be woken.
    fn keep_free(&mut self) {
        while self.free.free() > self.line.kept()
            && let Some(thread) = self.line.keep()
        {
            self.asleep.push_back(thread);
        }
    }

    /// Queues a claimed row at `now` and makes an entry for its ticket.
    pub fn commit(&mut self, row: usize, priority: RowPriority, deadline: Option<Instant>, now: Instant) -> usize {
        let entry = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(TicketEntry::Vacant);
            self.entries.len() - 1
        });
        self.entries[entry] = TicketEntry::Waiting(Wake::Nobody);
        let queue = usize::from(priority == RowPriority::Normal);
        self.queues[queue].push_back(Queued { row, entry, since: now, deadline });
        self.pace.came(now);
        entry
    }

    /// The effect of the queue's growth from `before` rows, one of which may have a deadline.
    pub fn news(&self, before: usize, has_deadline: bool, bounds: &Bounds, now: Instant) -> News {
        let queued = self.queued();
        if queued == before {
            return News::Nothing;
        }
        if self.next(bounds, now) == Next::Leave {
            let is_alone = self.in_flight() == 0 || self.pace.waits_for_nobody(now);
            let at_once = is_alone && !self.pace.measures(queued.min(bounds.full));
            return if at_once { News::Leave } else { News::Look };
        }
        let grown = before < bounds.full && self.pace.size_of(queued) > self.pace.size_of(before);
        if before == 0 || grown || has_deadline { News::Look } else { News::Nothing }
    }

    pub fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// The number of batches that were sent, and neither delivered, nor landed, nor taken back.
    pub fn in_flight(&self) -> usize {
        self.pace.in_flight()
    }

    /// What to do with the queue. A batch leaves when it is full, when the device is or soon will be idle, `max_delay`
    /// after its first commit, or when half of the time to a row's deadline has passed.
    pub fn next(&self, bounds: &Bounds, now: Instant) -> Next {
        let queued = self.queued();
        let is_full = queued >= bounds.full || self.is_closed();
        let may_leave =
            self.in_flight() < if is_full { bounds.in_flight } else { bounds.in_flight.min(self.pace.ahead()) };
        if queued > 0 && is_full && may_leave {
            return Next::Leave;
        }
        let rows = || self.queues.iter().flatten();
        let paced = (queued > 0).then(|| self.pace.leaves_at(queued, now));
        let leaves = rows().map(|row| row.due(bounds.max_delay)).chain(paced).filter(|_| may_leave).min();
        if leaves.is_some_and(|leaves| leaves <= now) {
            return Next::Leave;
        }
        // The queue may grow meanwhile, and would then have to leave earlier.
        let grown = paced.map(|_| self.pace.leaves_at(self.pace.room_of(queued).min(bounds.full), now));
        let looks = grown.filter(|&grown| may_leave && grown > now).into_iter().chain(leaves);
        rows().filter_map(|row| row.deadline).chain(looks).min().map_or(Next::Sleep, Next::LookAt)
    }

    /// Answers queued rows that are past their deadline, and removes those whose ticket was dropped; returns whether
    /// there were any.
    pub fn expire(&mut self, now: Instant, wakes: &mut Vec<Wake>) -> bool {
        let before = self.queued();
        for queue in 0..self.queues.len() {
            let mut index = 0;
            while let Some(&queued) = self.queues[queue].get(index) {
                let late = queued.deadline.and_then(|deadline| now.checked_duration_since(deadline));
                if matches!(self.entries[queued.entry], TicketEntry::Abandoned) {
                    self.vacate(queued.entry);
                } else if let Some(late) = late {
                    self.counters.expired += 1;
                    wakes.push(self.answer(queued.entry, Err(Error::Deadline { late })));
                } else {
                    index += 1;
                    continue;
                }
                self.queues[queue].remove(index);
                self.give(queued.row);
            }
        }
        self.queued() < before
    }

    /// Takes the rows of a batch that leaves at `now`: as many as pay, or all that fit if one of them may not wait for
    /// the next batch.
    pub fn pick(&mut self, bounds: &Bounds, now: Instant) -> Vec<Queued> {
        let queued = self.queued().min(bounds.full);
        let worth = if self.is_closed() || queued == bounds.full { queued } else { self.pace.worth(queued, now) };
        let mut left = self.queues.iter().flatten().take(queued).skip(worth);
        let all = left.any(|row| row.due(bounds.max_delay) <= now);
        self.take_rows(if all { queued } else { worth })
    }

    /// Takes `count` rows, high priority first, and sorts them by their place in memory.
    pub fn take_rows(&mut self, count: usize) -> Vec<Queued> {
        let mut rows = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(count));
        for queue in &mut self.queues {
            let part = queue.len().min(count - rows.len());
            rows.extend(queue.drain(..part));
        }
        rows.sort_unstable_by_key(|queued| queued.row);
        rows
    }

    /// The time at which the row that waits longest was committed.
    pub fn oldest(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|row| row.since).min()
    }

    /// Records that the picked rows are sent as a batch.
    pub fn sent(&mut self, rows: &[Queued], now: Instant) -> Sent {
        self.pace.sent(rows.len(), now)
    }

    /// Records that the ring has taken the batch that was sent at `sent`.
    pub fn taken(&mut self, flight: Flight, runs: usize, sent: Instant) {
        self.counters.left(flight.rows.iter().map(|row| sent.saturating_duration_since(row.since)), runs);
        self.flights.push_back(flight);
    }

    /// The times between which the delivering thread polls for the oldest batch instead of sleeping in the driver, if
    /// it should.
    pub fn looks_out(&self, now: Instant) -> Option<[Instant; 2]> {
        self.pace.looks_out(now)
    }

    /// Records that the oldest batch was done before the polling for it began.
    pub fn was_early(&mut self) {
        self.pace.was_early();
    }

    /// Records how late after the time of [`Next::LookAt`] the batching thread woke.
    pub fn overslept(&mut self, by: Duration) {
        self.pace.overslept(by);
    }

    /// Records the time of a batch's upload, which waited for no other upload.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        self.pace.uploaded(rows, took);
    }

    /// Frees the rows of the oldest batch, which the device has finished, and answers its tickets. Threads that wait
    /// for the answers are left to [`BatcherState::next_asleep`].
    pub fn deliver(&mut self, rows: Vec<Queued>, output: &Arc<Output>, now: Instant, wakes: &mut Vec<Wake>) {
        if self.closed == Some(Close::Abort) {
            return self.land(rows, now, wakes);
        }
        self.pace.done(now);
        for (index, queued) in rows.iter().enumerate() {
            self.give(queued.row);
            match self.answer(queued.entry, Ok(RowOutput::new(output.clone(), index))) {
                Wake::Thread(thread) => self.asleep.push_back(thread),
                other => wakes.push(other),
            }
        }
        self.keep(rows);
    }

    /// Frees the rows of the oldest batch, which the device has finished, without handing out the result.
    pub fn land(&mut self, rows: Vec<Queued>, now: Instant, wakes: &mut Vec<Wake>) {
        self.pace.done(now);
        self.refuse(&rows, &Error::Closed, wakes);
        self.keep(rows);
    }

    /// Takes back the batch that was sent last and never reached the device.
    pub fn take_back(&mut self, rows: Vec<Queued>, error: &Error, wakes: &mut Vec<Wake>) {
        self.pace.taken_back();
        self.refuse(&rows, error, wakes);
        self.keep(rows);
    }

    /// Keeps the list of a batch's rows for a later batch.
    fn keep(&mut self, mut rows: Vec<Queued>) {
        rows.clear();
        self.spare.push(rows);
    }

    /// Answers rows that never reached the device; their memory is free again.
    pub fn refuse(&mut self, rows: &[Queued], error: &Error, wakes: &mut Vec<Wake>) {
        rows.iter().for_each(|queued| self.give(queued.row));
        self.lose(rows, error, wakes);
    }

    /// Answers rows of a failed batch; their memory is not freed, because the device may still access it.
    pub fn lose(&mut self, rows: &[Queued], error: &Error, wakes: &mut Vec<Wake>) {
        wakes.extend(rows.iter().map(|queued| self.answer(queued.entry, Err(error.clone()))));
    }

    /// Answers every row that is still waited for; its memory is not freed, because the device may still access it.
    pub fn lose_all(&mut self, error: &Error, wakes: &mut Vec<Wake>) {
        for entry in 0..self.entries.len() {
            if matches!(self.entries[entry], TicketEntry::Waiting(_)) {
                wakes.push(self.answer(entry, Err(error.clone())));
            }
        }
    }

    /// Latches `error` and answers all queued rows with it. The first error is kept, except that a fault replaces the
    /// error of a closed engine: batches in flight then never land.
    pub fn fail(&mut self, error: &Error, wakes: &mut Vec<Wake>) {
        if matches!(self.failed, None | Some(Error::Closed)) {
            self.failed = Some(error.clone());
        }
        self.asleep.extend(self.line.dismiss());
        self.answer_queued(error, wakes);
    }

    fn answer_queued(&mut self, error: &Error, wakes: &mut Vec<Wake>) {
        while let Some(queued) = self.queues.iter_mut().find_map(VecDeque::pop_front) {
            self.refuse(&[queued], error, wakes);
        }
    }

    fn answer(&mut self, entry: usize, answer: Result<RowOutput, Error>) -> Wake {
        match std::mem::replace(&mut self.entries[entry], TicketEntry::Done(answer)) {
            TicketEntry::Waiting(wake) => wake,
            _ => {
                self.vacate(entry);
                Wake::Nobody
            }
        }
    }

    fn vacate(&mut self, entry: usize) {
        self.entries[entry] = TicketEntry::Vacant;
        self.vacant.push(entry);
    }

    /// The next thread to wake, without the lock.
    pub fn next_asleep(&mut self) -> Option<Thread> {
        self.asleep.pop_front()
    }

    pub fn is_done(&self, entry: usize) -> bool {
        matches!(self.entries[entry], TicketEntry::Done(_))
    }

    /// The answer, if it is there; then the entry is freed. Otherwise stores `wake` for it. The second value has to be
    /// dropped without the lock.
    pub fn take(&mut self, entry: usize, wake: Wake) -> (Option<Result<RowOutput, Error>>, Wake) {
        match std::mem::replace(&mut self.entries[entry], TicketEntry::Vacant) {
            TicketEntry::Done(answer) => {
                self.vacant.push(entry);
                (Some(answer), wake)
            }
            TicketEntry::Waiting(before) => {
                self.entries[entry] = TicketEntry::Waiting(wake);
                (None, before)
            }
            TicketEntry::Vacant | TicketEntry::Abandoned => unreachable!("the ticket owns its entry"),
        }
    }

    /// Records that the ticket was dropped. Returns what the entry held, to be dropped without the lock.
    pub fn abandon(&mut self, entry: usize) -> (Option<Result<RowOutput, Error>>, Wake) {
        match std::mem::replace(&mut self.entries[entry], TicketEntry::Abandoned) {
            TicketEntry::Done(answer) => {
                self.vacate(entry);
                (Some(answer), Wake::Nobody)
            }
            TicketEntry::Waiting(wake) => (None, wake),
            TicketEntry::Vacant | TicketEntry::Abandoned => unreachable!("the ticket owns its entry"),
        }
    }
}

#[cfg(test)]
mod tests;
