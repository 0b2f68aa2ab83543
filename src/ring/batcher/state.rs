//! The batcher's books as plain data: which page-locked row is whose, what is queued, and who waits for an answer.
//! Every change is one method, under one lock; what it leaves to be woken is woken after the lock is gone.

use crate::sync::thread::Thread;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::places::Places;
use super::stats::Counters;
use super::ticket::RowOutput;
use crate::error::Error;
use crate::ring::{Close, Output, Ticket};

/// Which queued rows go first.
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

/// Who is to be told of an answer. To clone, wake or drop a waker is user code, so never under the lock.
pub(super) enum Wake {
    Nobody,
    Thread(Thread),
    Task(Waker),
}

/// A ticket's end of the books.
enum Entry {
    Vacant,
    /// Queued or in flight.
    Waiting(Wake),
    Done(Result<RowOutput, Error>),
    /// The ticket was dropped before the answer.
    Abandoned,
}

/// A committed row.
#[derive(Clone, Copy)]
pub(super) struct Queued {
    /// The page-locked row.
    pub row: usize,
    /// The ticket's entry.
    pub entry: usize,
    /// When it was committed.
    pub since: Instant,
    pub deadline: Option<Instant>,
}

impl Queued {
    /// Until when it may wait for company: `max_delay`, or half the way to its deadline.
    fn due(&self, max_delay: Duration) -> Instant {
        let due = self.since + max_delay;
        self.deadline.map_or(due, |deadline| due.min(self.since + deadline.saturating_duration_since(self.since) / 2))
    }
}

/// A batch on its way through the ring.
pub(super) struct Flight {
    pub ticket: Ticket,
    /// In the order of the batch's rows.
    pub rows: Vec<Queued>,
}

pub(super) struct State {
    /// Free page-locked rows.
    free: Places,
    entries: Vec<Entry>,
    vacant: Vec<usize>,
    /// Committed rows, in order of commit: high priority, normal priority.
    queues: [VecDeque<Queued>; 2],
    /// Batches for the delivering thread, oldest first.
    pub flights: VecDeque<Flight>,
    /// Emptied row lists of earlier batches.
    spare: Vec<Vec<Queued>>,
    /// Batches taken from the queue and not delivered.
    pub in_flight: usize,
    /// Submitters of high priority that wait for a free row.
    pub waiting_high: usize,
    /// How the batcher was closed, or drained because it was dropped: nothing new is accepted.
    closed: Option<Close>,
    /// The batching thread is gone: no flight follows.
    pub ended: bool,
    /// The fault that everything is answered with.
    failed: Option<Error>,
    pub counters: Counters,
    /// Threads that sleep although their results are there. Each is in `RowTicket::wait`, so it comes here as soon as it
    /// is woken, and takes others along.
    asleep: VecDeque<Thread>,
}

impl State {
    pub fn new(rows: usize, capacity: usize) -> Self {
        Self {
            free: Places::new(rows),
            entries: (0..rows).map(|_| Entry::Vacant).collect(),
            vacant: (0..rows).rev().collect(),
            queues: [VecDeque::with_capacity(rows), VecDeque::with_capacity(rows)],
            flights: VecDeque::new(),
            spare: Vec::new(),
            in_flight: 0,
            waiting_high: 0,
            closed: None,
            ended: false,
            failed: None,
            counters: Counters::new(capacity),
            asleep: VecDeque::with_capacity(rows),
        }
    }

    /// Whether rows are still accepted.
    pub fn open(&self) -> Result<(), Error> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.is_closed() => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// What everything is answered with, if anything.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Accepts nothing more. An abort answers what is queued, and overrules an earlier drain.
    pub fn close(&mut self, how: Close, wakes: &mut Vec<Wake>) {
        if how == Close::Drain {
            self.closed.get_or_insert(how);
            return;
        }
        self.closed = Some(how);
        self.answer_queued(&Error::Closed, wakes);
    }

    /// Takes a free row, unless one of higher priority waits for it.
    pub fn claim(&mut self, priority: RowPriority) -> Option<usize> {
        if priority == RowPriority::Normal && self.waiting_high > 0 {
            return None;
        }
        self.free.take()
    }

    /// A row was given up before it was committed.
    pub fn unclaim(&mut self, row: usize) {
        self.free.unused(row);
    }

    /// Queues a claimed row and makes an entry for its ticket.
    pub fn commit(&mut self, row: usize, priority: RowPriority, deadline: Option<Instant>) -> usize {
        let entry = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Entry::Vacant);
            self.entries.len() - 1
        });
        self.entries[entry] = Entry::Waiting(Wake::Nobody);
        let queue = usize::from(priority == RowPriority::Normal);
        self.queues[queue].push_back(Queued { row, entry, since: Instant::now(), deadline });
        entry
    }

    pub fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// When the batching thread has to look again: a deadline or, if a batch may leave, the end of a wait for company.
    pub fn next_look(&self, may_leave: bool, max_delay: Duration) -> Option<Instant> {
        let due = self.queues.iter().flatten().map(|q| q.due(max_delay)).filter(|_| may_leave);
        due.chain(self.queues.iter().flatten().filter_map(|q| q.deadline)).min()
    }

    /// Whether the open batch closes now.
    pub fn closes(&self, full: usize, max_delay: Duration, now: Instant) -> bool {
        let queued = self.queued();
        queued >= full
            || (queued > 0 && self.is_closed())
            || self.queues.iter().flatten().any(|queued| queued.due(max_delay) <= now)
    }

    /// Answers queued rows that are past their deadline and forgets those whose ticket was dropped; whether there
    /// were any.
    pub fn expire(&mut self, now: Instant, wakes: &mut Vec<Wake>) -> bool {
        let before = self.queued();
        for queue in 0..self.queues.len() {
            let mut index = 0;
            while let Some(&queued) = self.queues[queue].get(index) {
                let late = queued.deadline.and_then(|deadline| now.checked_duration_since(deadline));
                if matches!(self.entries[queued.entry], Entry::Abandoned) {
                    self.vacate(queued.entry);
                } else if let Some(late) = late {
                    self.counters.expired += 1;
                    wakes.push(self.answer(queued.entry, Err(Error::Deadline { late })));
                } else {
                    index += 1;
                    continue;
                }
                self.queues[queue].remove(index);
                self.free.give(queued.row);
            }
        }
        self.queued() < before
    }

    /// Takes up to `capacity` rows for a batch, high priority first, then sorts them by place in memory.
    pub fn pick(&mut self, capacity: usize) -> Vec<Queued> {
        let mut rows = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(capacity));
        for queue in &mut self.queues {
            let count = queue.len().min(capacity - rows.len());
            rows.extend(queue.drain(..count));
        }
        rows.sort_unstable_by_key(|queued| queued.row);
        rows
    }

    /// The device is done with a batch: its rows are free, its tickets have their answers. Threads that wait for them
    /// are left to [`State::next_asleep`].
    pub fn deliver(&mut self, mut rows: Vec<Queued>, output: &Arc<Output>, wakes: &mut Vec<Wake>) {
        if self.closed == Some(Close::Abort) {
            return self.land(rows, &Error::Closed, wakes);
        }
        for (index, queued) in rows.iter().enumerate() {
            self.free.give(queued.row);
            match self.answer(queued.entry, Ok(RowOutput::new(output.clone(), index))) {
                Wake::Thread(thread) => self.asleep.push_back(thread),
                other => wakes.push(other),
            }
        }
        rows.clear();
        self.spare.push(rows);
        self.in_flight -= 1;
    }

    /// The device is done with a batch, or never had it, but its tickets get an error.
    pub fn land(&mut self, mut rows: Vec<Queued>, error: &Error, wakes: &mut Vec<Wake>) {
        self.refuse(&rows, error, wakes);
        rows.clear();
        self.spare.push(rows);
        self.in_flight -= 1;
    }

    /// Answers rows that never reached the device; their memory is free.
    pub fn refuse(&mut self, rows: &[Queued], error: &Error, wakes: &mut Vec<Wake>) {
        rows.iter().for_each(|queued| self.free.give(queued.row));
        self.lose(rows, error, wakes);
    }

    /// Answers rows of a failed batch; nothing proves that the device leaves their memory alone.
    pub fn lose(&mut self, rows: &[Queued], error: &Error, wakes: &mut Vec<Wake>) {
        wakes.extend(rows.iter().map(|queued| self.answer(queued.entry, Err(error.clone()))));
    }

    /// Latches `error` and answers everything queued with it.
    pub fn fail(&mut self, error: &Error, wakes: &mut Vec<Wake>) {
        self.failed.get_or_insert_with(|| error.clone());
        self.answer_queued(error, wakes);
    }

    fn answer_queued(&mut self, error: &Error, wakes: &mut Vec<Wake>) {
        while let Some(queued) = self.queues.iter_mut().find_map(VecDeque::pop_front) {
            self.refuse(&[queued], error, wakes);
        }
    }

    fn answer(&mut self, entry: usize, answer: Result<RowOutput, Error>) -> Wake {
        match std::mem::replace(&mut self.entries[entry], Entry::Done(answer)) {
            Entry::Waiting(wake) => wake,
            _ => {
                self.vacate(entry);
                Wake::Nobody
            }
        }
    }

    fn vacate(&mut self, entry: usize) {
        self.entries[entry] = Entry::Vacant;
        self.vacant.push(entry);
    }

    /// A thread that is to be woken, without the lock.
    pub fn next_asleep(&mut self) -> Option<Thread> {
        self.asleep.pop_front()
    }

    pub fn is_done(&self, entry: usize) -> bool {
        matches!(self.entries[entry], Entry::Done(_))
    }

    /// The answer, if it is there, and the entry's end; else sets who is told. The second part is to be dropped without
    /// the lock.
    pub fn take(&mut self, entry: usize, wake: Wake) -> (Option<Result<RowOutput, Error>>, Wake) {
        match std::mem::replace(&mut self.entries[entry], Entry::Vacant) {
            Entry::Done(answer) => {
                self.vacant.push(entry);
                (Some(answer), wake)
            }
            Entry::Waiting(before) => {
                self.entries[entry] = Entry::Waiting(wake);
                (None, before)
            }
            Entry::Vacant | Entry::Abandoned => unreachable!("the ticket owns its entry"),
        }
    }

    /// The ticket is gone. Gives what it leaves, to be dropped without the lock.
    pub fn abandon(&mut self, entry: usize) -> (Option<Result<RowOutput, Error>>, Wake) {
        match std::mem::replace(&mut self.entries[entry], Entry::Abandoned) {
            Entry::Done(answer) => {
                self.vacate(entry);
                (Some(answer), Wake::Nobody)
            }
            Entry::Waiting(wake) => (None, wake),
            Entry::Vacant | Entry::Abandoned => unreachable!("the ticket owns its entry"),
        }
    }
}
