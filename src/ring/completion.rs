//! One thread a ring that watches results nobody blocks on: awaited tickets and dropped ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::Core;
use super::credits::Lent;
use crate::device::POLL;
use crate::error::Error;
use crate::sync::{lock, wait};

/// The ring's end of the thread. The thread ends when it is dropped.
pub(super) struct Completion(Arc<Shared>);

struct Shared {
    state: Mutex<Watches>,
    changed: Condvar,
}

struct Watches {
    /// A watch keeps its ring alive until the result is done, so a ring is never dropped with work in flight.
    watched: Vec<(Arc<Core>, Lent)>,
    closed: bool,
}

static RINGS: AtomicUsize = AtomicUsize::new(0);

impl Completion {
    /// Starts the thread `trefoil-done-N`, with room for watches on all `results`.
    pub fn start(results: usize) -> Result<Self, Error> {
        let watches = Watches { watched: Vec::with_capacity(2 * results), closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(watches), changed: Condvar::new() });
        let served = shared.clone();
        let number = RINGS.fetch_add(1, Ordering::Relaxed);
        std::thread::Builder::new()
            .name(format!("trefoil-done-{number}"))
            .spawn(move || serve(&served, 2 * results))
            .map_err(|e| Error::Internal { what: format!("cannot start the completion thread: {e}") })?;
        Ok(Self(shared))
    }

    /// Has the thread settle `lent` when the device is done with it.
    pub fn watch(&self, core: Arc<Core>, lent: Lent) {
        lock(&self.0.state).watched.push((core, lent));
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
    let mut watched: Vec<(Arc<Core>, Lent)> = Vec::with_capacity(capacity);
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
        watched.retain(|(core, lent)| !core.look(*lent));
        if !watched.is_empty() {
            std::thread::sleep(POLL);
        }
    }
}

impl Core {
    /// Settles `lent` if the device is done with it, or gone; whether that is so.
    fn look(&self, lent: Lent) -> bool {
        let done = self.device.healthy().and_then(|()| self.results[lent.result].done.is_done());
        let mut state = lock(&self.state);
        let waker = match done {
            Ok(false) => return false,
            Ok(true) => {
                // A staging that cannot be reclaimed now is a fault, which every acquirer sees for itself.
                let _ = self.reclaim_staging(&mut state);
                state.finished(lent)
            }
            Err(_) => state.lost(lent),
        };
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}
