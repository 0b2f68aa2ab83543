//! Sending batches to the ring, and delivering their results.

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

/// How long the batching thread waits for the ring's credits before it looks at the queue's deadlines again.
const CREDIT_LIMIT: Duration = Duration::from_millis(2);
/// Pauses between two looks at the queue.
const LOOKS: u32 = 32;

/// The thread `trefoil-batch-N`. It ends when the batcher is closed and its queue empty, or at a fault.
pub(super) fn batch(shared: &Shared) {
    be_punctual();
    shared.or_fail("the batching thread panicked", || batch_until_closed(shared));
    // What a thread that commits is sending is among the flights then, and no other follows.
    let sending = lock(&shared.sender);
    lock(&shared.state).ended = true;
    drop(sending);
    shared.flown.notify_all();
}

/// What whoever sends batches has at hand.
#[derive(Default)]
pub(super) struct Sender {
    /// Runs of neighbours among the rows of a batch.
    runs: Vec<Range<usize>>,
    /// The staging of the batch before, whose upload may be under way.
    last_upload: Option<usize>,
}

/// Whether a sender waits for an upload that is to be measured.
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

/// The thread `trefoil-rows-N`. It ends after the other one, when everything in flight is delivered.
pub(super) fn deliver(shared: &Shared) {
    be_punctual();
    shared.or_fail("the delivering thread panicked", || deliver_until_closed(shared));
    // A row is still waited for only if a thread panicked while it held the row.
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
                // The engine was closed: the device has finished the batch, but nobody is to have it.
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
    /// Sleeps until a batch leaves, answering what expires meanwhile; false at the end.
    fn wait_for_batch(&self) -> bool {
        let mut wakes = Vec::new();
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            if state.expire(now, &mut wakes) {
                drop(state);
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

    /// Sends the batch that leaves, if no other thread has sent it. `without_credit` is since when the ring had no credit for
    /// it. An error is what all rows are to be answered with.
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

    /// Sends a batch for a commit with which it leaves at once; whether it was sent, and nothing is left for the batching
    /// thread to look at. If another thread sends, or the ring has no credits, that is the batching thread's to wait for; a
    /// submission of another thread that is under way is waited for, as by any submission.
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

    /// Whether a batch leaves now. Who has the sender and is told so has rows to send, unless they expire or are refused.
    fn leaves(&self) -> bool {
        lock(&self.state).next(&self.bounds, Instant::now()) == Next::Leave
    }

    /// Runs what panics only by a bug, and then answers everything queued with that.
    fn or_fail(&self, what: &str, run: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.fail(&Error::Internal { what: what.into() });
        }
    }

    /// Fills `batch` from the queue and submits it. What expired while the ring's credits were waited for stays out. Wakers
    /// are called when the sender is free again. An error is what all rows are to be answered with.
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

    /// Waits for the upload of the batch that was just submitted, and notes what it took. The next upload would queue
    /// behind it, so that nothing is delayed by the wait but what is decided meanwhile.
    fn measure_upload(&self, staging: usize, rows: usize, sent: Instant) {
        // A fault is latched, and told by who waits for the batch.
        if self.core.await_upload(staging).is_ok() {
            lock(&self.state).uploaded(rows, sent.elapsed());
        }
    }

    /// Answers one batch's rows with `error`: the ring had no credit for as long as anybody would wait.
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

    /// Sleeps until the oldest batch may be done, then looks a moment whether it is: a thread that sleeps in the driver
    /// wakes late. Where nothing is known of such a batch, or it is done much later, the driver is left to wait for it.
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

    /// Answers everything queued, and everything after it, with `error`.
    fn fail(&self, error: &Error) {
        self.told(|state, wakes| state.fail(error, wakes));
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Changes the books, then wakes the threads that this concerns, without the lock; `wakes` are the caller's to call.
    fn change<T>(
        &self,
        wakes: &mut Vec<Wake>,
        change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T,
    ) -> T {
        let changed = change(&mut lock(&self.state), wakes);
        while let Some(thread) = self.next_asleep() {
            thread.unpark();
        }
        changed
    }

    /// Changes the books, then wakes whom that concerns, without the lock.
    fn told_with<T>(
        &self,
        wakes: &mut Vec<Wake>,
        change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T,
    ) -> T {
        let changed = self.change(wakes, change);
        wake(wakes);
        changed
    }

    /// The same where nobody, or a few, are to be woken.
    pub(super) fn told<T>(&self, change: impl FnOnce(&mut MutexGuard<'_, BatcherState>, &mut Vec<Wake>) -> T) -> T {
        self.told_with(&mut Vec::new(), change)
    }
}

/// Waits a moment between two looks at the queue of [`Waiting::Spin`], so that those who commit get the lock.
fn spin() {
    let mut looks = 0;
    (0..LOOKS).for_each(|_| pause(&mut looks));
}

/// Runs of neighbours among rows sorted by place.
fn runs_of(rows: &[Queued], runs: &mut Vec<Range<usize>>) {
    runs.clear();
    for queued in rows {
        match runs.last_mut() {
            Some(run) if run.end == queued.row => run.end += 1,
            _ => runs.push(queued.row..queued.row + 1),
        }
    }
}

/// Wakers are user code: one that panics is reported and harms nobody else.
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
    use super::super::tests::{all_credits_return, answer, batcher, ring};
    use super::*;

    #[test]
    fn a_batch_whose_submission_times_out_is_neither_in_flight_nor_counted() {
        let (core, held) = ring(4);
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
