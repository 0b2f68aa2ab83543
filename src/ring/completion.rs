//! The ring's own threads. One watches the results of dropped tickets and of tickets that are awaited as futures; the
//! other watches uploads while producers are blocked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::credits::{Look, Seen, Wake};
use super::waiting::FAULT_CHECK;
use super::{Core, ResultBuffer, Waiting};
use crate::device::Note;
use crate::error::Error;
use crate::sync::{Condvar, Mutex, lock, spawn, wait};

/// A ring and the index of one of its results.
type Watch = (Arc<Core>, usize);

/// The ring's side of its threads, which end when this is dropped.
pub(super) struct Completion {
    results: Arc<Shared<Vec<Watch>>>,
    uploads: Arc<Shared<Option<Arc<Core>>>>,
}

/// The work of a thread. It holds the ring during the work: a ring is never dropped with work in flight.
struct Shared<T> {
    state: Mutex<Watched<T>>,
    changed: Condvar,
}

struct Watched<T> {
    /// The results to watch, each at most once; or the ring whose uploads to watch.
    work: T,
    closed: bool,
}

static RINGS: AtomicUsize = AtomicUsize::new(0);

impl Completion {
    /// Starts the threads `trefoil-done-N`, with room for watches on all `results`, and, unless blocked producers spin,
    /// `trefoil-up-N`.
    pub fn start(results: usize, waiting: Waiting) -> Result<Self, Error> {
        let this = Self { results: Shared::new(Vec::with_capacity(results)), uploads: Shared::new(None) };
        let number = RINGS.fetch_add(1, Ordering::Relaxed);
        let served = this.results.clone();
        spawn(format!("trefoil-done-{number}"), move || serve_results(&served, results))?;
        if waiting != Waiting::Spin {
            let served = this.uploads.clone();
            spawn(format!("trefoil-up-{number}"), move || serve_uploads(&served))?;
        }
        Ok(this)
    }

    /// Starts no thread: the test that drives the ring calls [`Core::serve_by_hand`].
    #[cfg(test)]
    pub(super) fn by_hand() -> Self {
        Self { results: Shared::new(Vec::new()), uploads: Shared::new(None) }
    }

    /// Makes `trefoil-done-N` settle `result` when the device is done with it.
    pub fn watch(&self, core: Arc<Core>, result: usize) {
        lock(&self.results.state).work.push((core, result));
        self.results.changed.notify_one();
    }

    /// Makes `trefoil-up-N` free the staging of uploads while producers are blocked.
    pub fn watch_uploads(&self, core: Arc<Core>) {
        lock(&self.uploads.state).work = Some(core);
        self.uploads.changed.notify_one();
    }
}

impl<T> Shared<T> {
    fn new(work: T) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Watched { work, closed: false }), changed: Condvar::new() })
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_one();
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.results.close();
        self.uploads.close();
    }
}

/// The loop of `trefoil-done-N`: sleeps while no result is watched, else waits for one submission after the other.
fn serve_results(shared: &Shared<Vec<Watch>>, capacity: usize) {
    let mut watched: Vec<Watch> = Vec::with_capacity(capacity);
    loop {
        {
            let mut order = lock(&shared.state);
            while watched.is_empty() && order.work.is_empty() {
                if order.closed {
                    return;
                }
                order = wait(&shared.changed, order);
            }
            watched.append(&mut order.work);
        }
        // A watch that is dropped may drop the ring, and with it the other side of this thread; no lock is held here.
        watched.retain(|(core, result)| !core.look(*result));
        if let Some((core, result)) = watched.first() {
            core.await_oldest(*result);
        }
    }
}

/// The loop of `trefoil-up-N`: sleeps until producers are blocked on uploads.
fn serve_uploads(shared: &Shared<Option<Arc<Core>>>) {
    loop {
        let core = {
            let mut order = lock(&shared.state);
            loop {
                if let Some(core) = order.work.take() {
                    break core;
                }
                if order.closed {
                    return;
                }
                order = wait(&shared.changed, order);
            }
        };
        core.serve_uploads();
    }
}

impl Core {
    /// Does the work of `trefoil-done-N` once, without waiting.
    #[cfg(test)]
    pub(super) fn serve_by_hand(&self) {
        let mut watched = std::mem::take(&mut lock(&self.completion.results.state).work);
        let oldest = || lock(&self.state).oldest_in_flight();
        while let Some((result, number)) = oldest().filter(|_| !watched.is_empty()) {
            let Ok(true) = self.results[result].done.is_done() else { break };
            self.done_through(&mut lock(&self.state), number);
        }
        watched.retain(|(core, result)| !core.look(*result));
        lock(&self.completion.results.state).work.append(&mut watched);
    }

    /// Waits for the oldest submission that is not known to be done. Submissions finish in order, so no watched result,
    /// also one that is watched later, is ready before it. If all are done, waits for callers to read the `watched`
    /// result on the device.
    fn await_oldest(&self, watched: usize) {
        let oldest = lock(&self.state).oldest_in_flight();
        let Some((result, number)) = oldest else {
            // Waits only for a while, because new watches may come. An error is latched, and the next look finds it.
            let limit = Instant::now() + FAULT_CHECK;
            let _ = self.results[watched].device.as_ref().map_or(Ok(true), |there| there.read.wait_until(limit));
            return;
        };
        // If a ticket has taken this result meanwhile and the buffer is in use again, this waits for the later use. All
        // watched results are done then too.
        if let Ok(true) = self.await_done(result, number, None) {
            let mut state = lock(&self.state);
            self.done_through(&mut state, number);
        }
    }

    /// Settles `result` if the device is done with it or has failed; returns whether it needs no more looks.
    fn look(&self, result: usize) -> bool {
        let (Seen { wake, is_settled }, state) = loop {
            let look = lock(&self.state).look(result);
            let (done, read) = (self.is_done_with(result, look), self.is_read(result, look));
            let mut state = lock(&self.state);
            if let Some(seen) = state.seen(result, look, done, read) {
                break (seen, state);
            }
        };
        if !is_settled && wake.is_none() {
            return false;
        }
        // A dropped ticket's result is free again; after a fault all waiting threads have to be woken.
        if self.device.fault().is_some() {
            self.tell_all();
        } else {
            self.tell_one(&state);
        }
        drop(state);
        if catch_unwind(AssertUnwindSafe(|| wake.map_or((), Wake::wake))).is_err() {
            log::error!("the waker of a ticket panicked");
        }
        is_settled
    }

    /// Whether the device has finished writing a result.
    fn is_done_with(&self, result: usize, look: Look) -> Result<bool, Error> {
        if !look.is_written {
            return Ok(true);
        }
        self.device.healthy()?;
        let ResultBuffer { buffer, done, .. } = &self.results[result];
        let is_done = look.is_known && done.is_done()?;
        if is_done {
            self.device.note(Note::Freed(buffer.span()));
        }
        Ok(is_done)
    }

    /// Whether callers have read a result on the device; true if that need not be known.
    fn is_read(&self, result: usize, look: Look) -> Result<bool, Error> {
        let there = self.results[result].device.as_ref().filter(|_| look.is_unseen);
        self.device.healthy()?;
        there.map_or(Ok(true), |there| there.read.is_done())
    }
}
