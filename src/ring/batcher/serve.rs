//! Sends batches to the ring, and delivers their results.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::state::{BatcherState, Flight, Next, Queued, Wake};
use crate::device::Note;
use crate::error::Error;
use crate::ring::batch::Gathered;
use crate::ring::waiting::pause;
use crate::ring::{Batch, Ticket, Waiting};
use crate::sync::thread::Thread;
use crate::sync::{MutexGuard, be_punctual, lock, thread, wait, wait_until};

/// The longest wait for the ring's credits before the batching thread looks at the queue's deadlines again.
const CREDIT_LIMIT: Duration = Duration::from_millis(2);
/// The number of pauses between two looks at the queue.
const LOOKS: u32 = 32;

/// The thread `trefoil-batch-N`. It ends when the batcher is closed and its queue is empty, or after a fault.
pub(super) fn batch(shared: &Shared) {
    be_punctual();
    shared.or_fail("the batching thread panicked", || batch_until_closed(shared));
    // With the sender's lock held, a batch that another thread is sending is in the flights, and no other follows.
    let sending = lock(&shared.sender);
    lock(&shared.state).ended = true;
    drop(sending);
    shared.flown.notify_all();
}

/// The memory of threads that send batches.
#[derive(Default)]
pub(super) struct Sender {
    /// The runs of neighbours among the rows of a batch.
    runs: Vec<Range<usize>>,
    /// The staging of the previous batch, whose upload may still run.
    last_upload: Option<usize>,
}

/// Whether a sender waits for uploads that should be measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Uploads,
    Nothing,
}

fn batch_until_closed(shared: &Shared) {
    let (mut without_credit, mut wakes) = (None, Vec::new());
    while shared.wait_for_batch() {
        let sent = shared.send_next(&mut without_credit, &mut wakes);
        wake(&mut wakes);
        if let Err(error) = sent {
            shared.fail(&error);
        }
    }
}

/// The thread `trefoil-rows-N`. It ends after the batching thread, when all batches in flight are delivered.
pub(super) fn deliver(shared: &Shared) {
    be_punctual();
    shared.or_fail("the delivering thread panicked", || deliver_until_closed(shared));
    // A row is still waited for only if a thread panicked while it handled the row.
    shared.told(|state, wakes| {
        if let Some(error) = state.failure().cloned() {
            state.lose_all(&error, wakes);
        }
    });
}

fn deliver_until_closed(shared: &Shared) {
    let mut wakes = Vec::with_capacity(shared.bounds.full);
    while let Some(flight) = shared.next_flight() {
        shared.look_out(&flight.ticket);
        match flight.ticket.wait() {
            Ok(output) => {
                let output = Arc::new(output);
                flight.rows.iter().for_each(|row| shared.note_row(row.row, Note::Freed));
                shared.told_with(&mut wakes, |state, wakes| state.deliver(flight.rows, &output, Instant::now(), wakes));
                drop(output); // after the lock: all tickets may be gone
                shared.work.notify_one();
                shared.room.notify_all();
            }
            Err(Error::Closed) => {
                // The engine was closed: the device has finished the batch, but its result is not handed out.
                flight.rows.iter().for_each(|row| shared.note_row(row.row, Note::Freed));
                shared.told(|state, wakes| state.land(flight.rows, Instant::now(), wakes));
                shared.fail(&Error::Closed);
            }
            Err(error) => {
                shared.told(|state, wakes| state.lose(&flight.rows, &error, wakes));
                shared.fail(&error);
            }
        }
    }
}

impl Shared {
    /// Sleeps until a batch should leave, and answers rows that expire meanwhile; returns false at the end.
    fn wait_for_batch(&self) -> bool {
        let mut wakes = Vec::new();
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            if state.expire(now, &mut wakes) {
                drop(state);
                self.rouse();
                wake(&mut wakes);
                self.room.notify_all();
                state = lock(&self.state);
                continue;
            }
            if state.failure().is_some() || (state.is_closed() && state.queued() == 0) {
                return false;
            }
            state = match state.next(&self.bounds, now) {
                Next::Leave => return true,
                _ if self.core.spec.waiting == Waiting::Spin && state.in_flight() > 0 => {
                    drop(state);
                    spin();
                    lock(&self.state)
                }
                Next::LookAt(at) => {
                    let (mut state, is_late) = wait_until(&self.work, state, at);
                    if is_late {
                        state.overslept(at.elapsed());
                    }
                    state
                }
                Next::Sleep => wait(&self.work, state),
            };
        }
    }

    /// Sends the next batch, unless another thread has sent it. `without_credit` is the time since which the ring has
    /// had no credit for it. An error is the answer for all rows.
    fn send_next(&self, without_credit: &mut Option<Instant>, wakes: &mut Vec<Wake>) -> Result<(), Error> {
        let mut sender = lock(&self.sender);
        if !self.leaves() {
            *without_credit = None;
            return Ok(());
        }
        match self.core.acquire(CREDIT_LIMIT) {
            Ok(batch) => {
                *without_credit = None;
                self.send(batch, &mut sender, Measure::Uploads, wakes)
            }
            Err(error @ Error::Timeout { .. }) => {
                let since = *without_credit.get_or_insert_with(Instant::now);
                let since = lock(&self.state).oldest().map_or(since, |oldest| oldest.max(since));
                if since.elapsed() >= self.core.spec.acquire_limit {
                    *without_credit = None;
                    self.refuse_batch(&error, wakes);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a batch that leaves at once with a commit. Returns whether it was sent and no row is left for the batching
    /// thread. If another thread sends, or the ring has no credits, the batching thread waits instead. The call waits
    /// for a submission of another thread, as any submission does.
    pub(super) fn send_at_once(&self) -> bool {
        let Ok(mut sender) = self.sender.try_lock() else { return false };
        if !self.leaves() {
            return false; // another thread has sent it
        }
        let Ok(Some(batch)) = self.core.try_acquire() else { return false };
        let (mut sent, mut wakes) = (Ok(()), Vec::new());
        self.or_fail("sending a batch panicked", || {
            sent = self.send(batch, &mut sender, Measure::Nothing, &mut wakes);
        });
        drop(sender);
        wake(&mut wakes);
        if let Err(error) = sent {
            self.fail(&error);
        }
        lock(&self.state).queued() == 0
    }

    /// Whether a batch leaves now. The thread that holds the sender then has rows to send, unless they expire or are
    /// refused.
    fn leaves(&self) -> bool {
        lock(&self.state).next(&self.bounds, Instant::now()) == Next::Leave
    }

    /// Runs code that panics only because of a bug; after a panic all queued rows are answered with that error.
    fn or_fail(&self, what: &str, run: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.fail(&Error::Internal { what: what.into() });
        }
    }

    /// Fills `batch` from the queue and submits it. Rows that expired during the wait for credits are left out. The
    /// caller calls the wakers when the sender is free again. An error is the answer for all rows.
    fn send(&self, batch: Batch, sender: &mut Sender, measure: Measure, wakes: &mut Vec<Wake>) -> Result<(), Error> {
        let mut batch = batch.in_bucket(self.bucket);
        let Sender { runs, last_upload } = sender;
        let (rows, told, sent) = self.change(wakes, |state, wakes| {
            let now = Instant::now();
            state.expire(now, wakes);
            let rows = state.pick(&self.bounds, now);
            runs_of(&rows, runs);
            let told = (!rows.is_empty()).then(|| state.sent(&rows, now));
            (rows, told, now)
        });
        let Some(told) = told else {
            self.room.notify_all();
            return Ok(()); // all expired or abandoned; the batch gives its credits back
        };
        rows.iter().for_each(|row| self.note_row(row.row, Note::Taken));
        let (count, staging) = (rows.len(), batch.staging());
        let is_measured =
            measure == Measure::Uploads && told.is_measured && self.core.would_upload_at_once(*last_upload);
        let from = Gathered { buffer: &self.rows, runs };
        batch.compute_in_turn(told.in_turn);
        // SAFETY: the rows are committed, so their Rows are gone, and nobody claims them before the delivering thread
        // has seen the result; after a fault they are never free again. The buffer lives as long as self, which that
        // thread holds until then; Shared's drop leaves it to the device where no result came.
        match unsafe { batch.submit_gathered(&from) } {
            Ok(ticket) => {
                *last_upload = Some(staging);
                lock(&self.state).taken(Flight { ticket, rows }, runs.len(), sent);
                self.flown.notify_one();
                if is_measured {
                    self.measure_upload(staging, count, sent);
                }
            }
            Err(error @ Error::Timeout { .. }) => {
                self.change(wakes, |state, wakes| state.take_back(rows, &error, wakes));
                self.room.notify_all();
            }
            Err(Error::Closed) => {
                self.change(wakes, |state, wakes| state.take_back(rows, &Error::Closed, wakes));
                return Err(Error::Closed);
            }
            Err(error) => {
                self.change(wakes, |state, wakes| state.lose(&rows, &error, wakes));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for the upload of the batch that was just submitted, and records its time. The next upload would queue
    /// behind it, so that the wait only delays decisions.
    fn measure_upload(&self, staging: usize, rows: usize, sent: Instant) {
        // A fault is latched, and the thread that waits for the batch reports it.
        if self.core.await_upload(staging).is_ok() {
            lock(&self.state).uploaded(rows, sent.elapsed());
        }
    }

    /// Answers the rows of one batch with `error`, because the ring had no credit within the engine's limit.
    fn refuse_batch(&self, error: &Error, wakes: &mut Vec<Wake>) {
        self.change(wakes, |state, wakes| {
            let count = state.queued().min(self.bounds.full);
            let rows = state.take_rows(count);
            state.refuse(&rows, error, wakes);
        });
        self.room.notify_all();
    }

    fn next_flight(&self) -> Option<Flight> {
        let mut state = lock(&self.state);
        loop {
            if let Some(flight) = state.flights.pop_front() {
                return Some(flight);
            }
            if state.ended {
                return None;
            }
            state = wait(&self.flown, state);
        }
    }

    /// Sleeps until the oldest batch may be done, then polls for it for a moment: a thread that sleeps in the driver
    /// wakes late. If nothing is known of such a batch, or it is done much later, the caller waits in the driver
    /// instead.
    fn look_out(&self, ticket: &Ticket) {
        let is_under_way = || matches!(ticket.is_ready(), Ok(false));
        if cfg!(shuttle) || self.core.spec.waiting != Waiting::Block {
            return; // a model checker knows no time
        }
        let mut looks = 0;
        while is_under_way() {
            let now = Instant::now();
            let looks_out = lock(&self.state).looks_out(now);
            match looks_out {
                Some([from, _]) if now < from => {
                    thread::sleep(from - now);
                    if !is_under_way() {
                        lock(&self.state).was_early();
                    }
                }
                Some([_, until]) if now < until => {
                    while is_under_way() && Instant::now() < until {
                        pause(&mut looks);
                    }
                }
                _ => return,
            }
        }
    }

    fn next_asleep(&self) -> Option<Thread> {
        lock(&self.state).next_asleep()
    }

    /// Answers all queued rows, and all later ones, with `error`.
    fn fail(&self, error: &Error) {
        self.told(|state, wakes| state.fail(error, wakes));
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Changes the books, then wakes the threads that the change concerns, without the lock. The caller calls `wakes`.
    fn change<T>(
        &self,
        wakes: &mut Vec<Wake>,
        change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T,
    ) -> T {
        let changed = change(&mut lock(&self.state), wakes);
        self.rouse();
        changed
    }

    /// Wakes the threads that sleep although what they wait for is there.
    fn rouse(&self) {
        while let Some(thread) = self.next_asleep() {
            thread.unpark();
        }
    }

    /// Changes the books, then wakes all threads and tasks that the change concerns, without the lock.
    fn told_with<T>(
        &self,
        wakes: &mut Vec<Wake>,
        change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T,
    ) -> T {
        let changed = self.change(wakes, change);
        wake(wakes);
        changed
    }

    /// Changes the books like `told_with`, for changes that wake few or none.
    pub(super) fn told<T>(&self, change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T) -> T {
        self.told_with(&mut Vec::new(), change)
    }
}

/// Pauses between two looks at the queue with [`Waiting::Spin`], so that threads that commit get the lock.
fn spin() {
    let mut looks = 0;
    (0..LOOKS).for_each(|_| pause(&mut looks));
}

/// Finds the runs of neighbours among rows sorted by place.
fn runs_of(rows: &[Queued], runs: &mut Vec<Range<usize>>) {
    runs.clear();
    for queued in rows {
        match runs.last_mut() {
            Some(run) if run.end == queued.row => run.end += 1,
            _ => runs.push(queued.row..queued.row + 1),
        }
    }
}

/// Calls wakers, which are user code: a panic is logged and affects no other waker.
fn wake(wakes: &mut Vec<Wake>) {
    for wake in wakes.drain(..) {
        let woken = catch_unwind(AssertUnwindSafe(|| match wake {
            Wake::Nobody => {}
            Wake::Thread(thread) => thread.unpark(),
            Wake::Task(waker) => waker.wake(),
        }));
        if woken.is_err() {
            log::error!("the waker of a row's ticket panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SHORT, all_credits_return, answer, batcher, ring_within};
    use super::*;

    #[test]
    fn a_batch_whose_submission_times_out_is_neither_in_flight_nor_counted() {
        let (core, held) = ring_within(4, SHORT);
        let batcher = batcher(&core, Duration::from_secs(3600)).build().unwrap();
        let answer_to = |number| batcher.submit(&[number; 8]).and_then(answer);
        held.permit(2);
        answer_to(1).unwrap(); // what a run takes is known now
        let turn = core.order.take();
        let late = answer_to(2);
        assert!(matches!(late, Err(Error::Timeout { operation: "submit", .. })), "{late:?}");
        drop(turn);
        assert_eq!(lock(&batcher.shared[0].state).looks_out(Instant::now()), None, "there is no batch to look for");
        assert_eq!(answer_to(3).unwrap().bytes(), [3; 8]);
        let stats = batcher.stats();
        assert_eq!((stats.batches(), stats.rows(), stats.runs), (2, 2, 2), "without the batch that timed out");
        drop(batcher);
        all_credits_return(&core);
    }
}
