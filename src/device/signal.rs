//! The signal that a device's callback fires: it counts, and wakes a thread that sleeps until the count rises.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::sync::{Condvar, Mutex, lock, wait_until};

/// Counts how often it was fired. To fire it is all that a driver's callback ever does: two counters, and a lock and a
/// notification if a thread sleeps. It makes no driver call, allocates nothing and calls no code of the program.
#[derive(Default)]
pub(crate) struct Signal {
    fired: AtomicU64,
    /// The number of threads in [`Signal::wait_past`]. A sleeper counts itself before it looks at `fired`, and a firing
    /// thread counts in `fired` before it looks here. All these accesses are in one order, so that one of the two sees
    /// the other.
    sleeping: AtomicUsize,
    /// Locked by a sleeper from its look at `fired` until it sleeps, so that it misses no notification.
    gate: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// The number of times that it was fired.
    pub fn count(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }

    /// Counts, and wakes the threads that sleep.
    pub fn fire(&self) {
        self.fired.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.gate));
            self.changed.notify_all();
        }
    }

    /// Sleeps until the count is above `seen`, or `until` at the latest.
    pub fn wait_past(&self, seen: u64, until: Instant) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.gate);
        let mut late = false;
        while self.count() == seen && !late {
            (guard, late) = wait_until(&self.changed, guard, until);
        }
        drop(guard);
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_sleeper_is_woken_once_for_each_firing() {
        let (ping, pong) = (Signal::default(), Signal::default());
        let late = || Instant::now() + Duration::from_secs(20);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000 {
                    ping.wait_past(round, late());
                    pong.fire();
                }
            });
            for round in 0..2000 {
                ping.fire();
                pong.wait_past(round, late());
            }
        });
        assert_eq!((ping.count(), pong.count()), (2000, 2000));
        assert!(start.elapsed() < Duration::from_secs(20), "a firing was lost");
    }

    #[test]
    fn a_wait_ends_in_time() {
        let signal = Signal::default();
        let until = Instant::now() + Duration::from_millis(5);
        signal.wait_past(0, until);
        assert!(Instant::now() >= until);
        signal.fire();
        signal.wait_past(0, until + Duration::from_secs(100));
    }
}
