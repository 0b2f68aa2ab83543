//! Locks and threads for devices and rings: those of `std`, or, under `cfg(shuttle)`, those of a model checker, which
//! then decides which thread runs when.

mod calling;
mod turns;

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

use calling::Calling;
#[cfg(feature = "cuda")]
pub(crate) use calling::{calling, unversioned};
pub(crate) use turns::{Turn, Turns};

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
    pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, current, park, yield_now};
    use std::time::Duration;

    pub(crate) fn sleep(_time: Duration) {
        yield_now();
    }

    pub(crate) fn park_timeout(_limit: Duration) {
        park();
    }
}

/// Makes the calling thread's timed waits end on time. Linux ends those of other threads up to 50 us later, so that a
/// core wakes for several at once.
pub(crate) fn be_punctual() {
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    {
        const LEAST_SLACK: libc::c_ulong = 1; // nanoseconds; 0 is the default
        // SAFETY: the call takes a number, and changes the calling thread alone.
        let _refused = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, LEAST_SLACK) }; // then waits end late, as others do
    }
}

/// Starts a thread. If the system refuses it, the error says what to do.
pub(crate) fn spawn(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, Error> {
    let name = name.into();
    let started = admit().and_then(|()| thread::Builder::new().name(name.clone()).spawn(run));
    started.map_err(|source| Error::Thread { name, source: Arc::new(source) })
}

/// Starts a thread by `spawn`, which gets the builder, for example to start it in a scope.
pub(crate) fn start<T>(name: String, spawn: impl FnOnce(std::thread::Builder) -> io::Result<T>) -> Result<T, Error> {
    let started = admit().and_then(|()| spawn(std::thread::Builder::new().name(name.clone())));
    started.map_err(|source| Error::Thread { name, source: Arc::new(source) })
}

/// With more threads than this, memory bounds the speed.
const MOST_THREADS: usize = 16;

/// Calls `work` with each of `items`, which are begun in order, on as many threads as there are cores, at most 16. The
/// calling thread is one of them; the share of a thread that cannot be started is left to the others. The results are
/// in no particular order.
///
/// # Errors
/// One of the errors of `work`; items that are not begun by then are left out.
pub(crate) fn share<I: Send, T: Send>(
    name: &str,
    items: Vec<I>,
    work: impl Fn(I) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(items.len());
    let items = std::sync::Mutex::new(items.into_iter());
    let rest = || items.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || rest().next();
    let run = || -> Result<Vec<T>, Error> {
        let done = std::iter::from_fn(next).map(&work).collect();
        rest().by_ref().for_each(drop); // there are any only after an error
        done
    };
    std::thread::scope(|scope| {
        let spawn = |number| start(format!("{name}-{number}"), |builder| builder.spawn_scoped(scope, run)).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = run();
        let join = |other: std::thread::ScopedJoinHandle<'_, _>| {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let all = std::iter::once(own).chain(others.into_iter().map(join)).collect::<Result<Vec<Vec<T>>, Error>>()?;
        Ok(all.into_iter().flatten().collect())
    })
}

/// Whether another thread may be started; the system decides.
#[cfg(not(test))]
fn admit() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use refused::admit;

/// The moment `limit` from now; for a limit beyond all clocks, decades from now.
pub(crate) fn after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

/// Locks `mutex`. No code here leaves a value half-changed when it panics, so that poison is ignored.
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

/// Refuses threads, as the system does when a limit is reached.
#[cfg(test)]
pub(crate) mod refused {
    use std::cell::Cell;
    use std::io;

    const AGAIN: i32 = 11; // EAGAIN

    thread_local! {
        /// The number of threads that this thread may still start before one is refused.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(super) fn admit() -> io::Result<()> {
        let left = LEFT.get();
        LEFT.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) { Err(io::Error::from_raw_os_error(AGAIN)) } else { Ok(()) }
    }

    /// Runs `f`, in which the calling thread may start `left` threads and is refused the next. Also returns whether one
    /// was refused.
    pub(crate) fn after<T>(left: usize, f: impl FnOnce() -> T) -> (T, bool) {
        LEFT.set(Some(left));
        let done = f();
        (done, LEFT.take().is_none())
    }
}
