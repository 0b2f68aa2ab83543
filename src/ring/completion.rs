//! One thread a ring that watches results nobody blocks on: awaited tickets and dropped ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;

use super::credits::Seen;
use super::{Core, ResultBuffer};
use crate::device::{Note, POLL};
use crate::error::Error;
use crate::sync::{lock, wait};

/// The ring's end of the thread. The thread ends when it is dropped.
pub(super) struct Completion(Arc<Shared>);

struct Shared {
    state: Mutex<Watches>,
    changed: Condvar,
}

struct Watches {
    /// Results to look at, each at most once. A watch keeps its ring alive until the result is done, so a ring is never
    /// dropped with work in flight.
    watched: Vec<(Arc<Core>, usize)>,
    closed: bool,
}

static RINGS: AtomicUsize = AtomicUsize::new(0);

impl Completion {
    /// Starts the thread `trefoil-done-N`, with room for watches on all `results`.
    pub fn start(results: usize) -> Result<Self, Error> {
        let watches = Watches { watched: Vec::with_capacity(results), closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(watches), changed: Condvar::new() });
        let served = shared.clone();
        let number = RINGS.fetch_add(1, Ordering::Relaxed);
        std::thread::Builder::new()
            .name(format!("trefoil-done-{number}"))
            .spawn(move || serve(&served, results))
            .map_err(|e| Error::Internal { what: format!("cannot start the completion thread: {e}") })?;
        Ok(Self(shared))
    }

    /// Has the thread settle `result` when the device is done with it.
    pub fn watch(&self, core: Arc<Core>, result: usize) {
        lock(&self.0.state).watched.push((core, result));
        self.0.changed.notify_one();
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_one();
    }
}

/// Sleeps while nothing is watched, else looks every [`POLL`].
fn serve(shared: &Shared, capacity: usize) {
    let mut watched: Vec<(Arc<Core>, usize)> = Vec::with_capacity(capacity);
    loop {
        {
            let mut state = lock(&shared.state);
            while watched.is_empty() && state.watched.is_empty() {
                if state.closed {
                    return;
                }
                state = wait(&shared.changed, state);
            }
            watched.append(&mut state.watched);
        }
        // Dropping a watch may drop the ring, and with it the other end of this thread; no lock is held here.
        watched.retain(|(core, result)| !core.look(*result));
        if !watched.is_empty() {
            std::thread::sleep(POLL);
        }
    }
}

impl Core {
    /// Settles `result` if the device is done with it, or gone; whether it needs no more looking.
    fn look(&self, result: usize) -> bool {
        let mut state = lock(&self.state);
        let ResultBuffer { buffer, done } = &self.results[result];
        let done = || {
            let done = self.device.healthy().and_then(|()| done.is_done())?;
            if done {
                self.device.note(Note::Freed(buffer.span()));
            }
            Ok(done)
        };
        let Seen::Settled(waker) = state.look(result, done) else { return false };
        // A staging that cannot be reclaimed now is a fault, which every acquirer sees for itself.
        let _ = self.reclaim_staging(&mut state);
        drop(state);
        self.changed.notify_all();
        let wake = AssertUnwindSafe(|| waker.map_or((), Waker::wake));
        if catch_unwind(wake).is_err() {
            log::error!("the waker of a ticket panicked");
        }
        true
    }
}
