//! The signal that a device's callback fires: it counts, and wakes a thread that sleeps until the count rises.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::sync::{Condvar, Mutex, lock, wait_until};

/// Counts how often it was fired. Firing it is all that ever runs in a driver's callback: two counters, and a lock and
/// a notification if somebody sleeps. It makes no driver call, allocates nothing and runs nobody's code.
#[derive(Default)]
pub(crate) struct Signal {
    fired: AtomicU64,
    /// Threads in [`Signal::wait_past`]. Whoever sleeps has counted itself before it looked at `fired`, whoever fires
    /// has counted that before it looks here, both in the one order of all such accesses: one of them sees the other.
    sleeping: AtomicUsize,
    /// Held by a sleeper from its look at `fired` until it sleeps, so that no notification falls between.
    gate: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// How often it was fired.
    pub fn count(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }

    /// Counts, and wakes whoever sleeps.
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
