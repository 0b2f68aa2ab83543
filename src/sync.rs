//! Locks and threads, shared by devices and rings: those of `std`, or of a model checker under `cfg(shuttle)`, which then
//! decides who runs when.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

/// Under the model checker no wait times out by itself, so that a wake-up that is lost is a deadlock.
#[cfg(shuttle)]
pub(crate) mod thread {
    pub(crate) use shuttle::thread::{Builder, Thread, current, park, yield_now};
    use std::time::Duration;

    pub(crate) fn sleep(_time: Duration) {
        yield_now();
    }

    pub(crate) fn park_timeout(_limit: Duration) {
        park();
    }
}
/// The moment `limit` from now; for a limit beyond all clocks, decades from now.
pub(crate) fn after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

/// Locks `mutex`. No code here leaves a value half-changed when it panics, so a poisoned lock is as good as another.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar` until `deadline` at the latest; the flag says whether the deadline has passed.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> (MutexGuard<'a, T>, bool) {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (guard, true);
    }
    let (guard, _) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, Instant::now() >= deadline)
}
