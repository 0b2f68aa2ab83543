//! Callbacks: a ticket with a callback has a waker that is a handle.
//!
//! The ring's completion thread, or a batcher's, wakes the waker with no lock held. The waker's data is only the handle
//! of the [`Pending`] ticket, so that it is copied freely, never dangles, and allocates nothing. A wake that comes too
//! late finds that the handle was given up.
//!
//! A wake only puts the result into a queue. One thread, `trefoil-callback`, calls all callbacks, so that a callback
//! that waits for a lock of its program delays no ring and no batcher. No call waits while a callback runs: every limit
//! is zero, because the event that the call would wait for may need later callbacks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use super::handles::{insert, object, place, resolve, trefoil_output};
use super::output::Landed;
use super::status::{Answer, Failure, trefoil_status};
use super::ticket::Flying;
use crate::error::Error;
use crate::ring::Origin;
use crate::sync::{Condvar, Mutex, after, lock, spawn, wait, wait_until};

/// The callback of trefoil_on_ready(). If `status` is TREFOIL_STATUS_OK, it gets an output, which it must release;
/// otherwise it gets 0, and trefoil_last_error() has the message.
pub type trefoil_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, status: trefoil_status, output: trefoil_output)>;

/// The callback, which is not null.
type Callback = unsafe extern "C" fn(*mut c_void, trefoil_status, trefoil_output);

/// A ticket with a callback.
struct Pending {
    flying: Flying,
    call: Call,
}
object!(Pending, Pending);

#[derive(Clone, Copy)]
struct Call {
    function: Callback,
    user: *mut c_void,
    /// The ring and batcher of the result.
    origin: Origin,
}

// SAFETY: `user` is only passed to the callback, which may be called from any thread by trefoil_on_ready's contract.
unsafe impl Send for Call {}
// SAFETY: the same.
unsafe impl Sync for Call {}

type Result = std::result::Result<Landed, Error>;

/// The results whose callbacks are to be called, in order, and the counts of all callbacks.
struct Queue {
    ready: VecDeque<(Call, Result)>,
    /// For each ring and batcher, the number of callbacks that have not returned.
    outstanding: Vec<(Origin, usize)>,
    /// Whether `trefoil-callback` was started.
    served: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { ready: VecDeque::new(), outstanding: Vec::new(), served: false });
/// Notifies `trefoil-callback` of results.
static READY: Condvar = Condvar::new();
/// Notifies [`drained`] of callbacks that have returned.
static RETURNED: Condvar = Condvar::new();

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a callback.
pub(super) fn running() -> bool {
    RUNNING.get()
}

/// The longest wait of a call: zero in a callback.
pub(super) fn limit(nanoseconds: u64) -> Duration {
    if running() { Duration::ZERO } else { Duration::from_nanos(nanoseconds) }
}

/// Registers `function` to be called by `trefoil-callback` when the result is there. Starts this thread if it does not
/// run yet. An error gives the ticket back.
pub(super) fn register(
    flying: Flying,
    function: Callback,
    user: *mut c_void,
) -> std::result::Result<(), (Flying, Failure)> {
    let origin = flying.origin();
    {
        let mut queue = lock(&QUEUE);
        if let Err(failure) = queue.serve() {
            return Err((flying, failure));
        }
        queue.registered(origin);
    }
    match place(Pending { flying, call: Call { function, user, origin } }) {
        Ok(pending) => attempt(pending),
        Err((pending, failure)) => {
            lock(&QUEUE).returned(origin);
            return Err((pending.flying, failure));
        }
    }
    Ok(())
}

/// Waits, up to `limit`, until no callback is outstanding whose origin `concerns` the caller; does not wait in a
/// callback.
pub(super) fn drained(limit: Duration, concerns: impl Fn(&Origin) -> bool) -> Answer {
    if running() {
        return Ok(());
    }
    let (start, mut late) = (Instant::now(), false);
    let mut queue = lock(&QUEUE);
    loop {
        let concerning = queue.outstanding.iter().filter(|(origin, _)| concerns(origin));
        match concerning.map(|(_, count)| count).sum::<usize>() {
            0 => return Ok(()),
            count if late => {
                let what = format!("close: {count} callbacks have not returned after {:.1?}", start.elapsed());
                return Err(Failure::new(trefoil_status::Timeout, what));
            }
            _ => (queue, late) = wait_until(&RETURNED, queue, after(limit.saturating_sub(start.elapsed()))),
        }
    }
}

/// Looks once for the result of a pending ticket; if it is there, queues its callback.
fn attempt(pending: u64) {
    let waker = waker(pending);
    // The ticket is polled with its place locked, so that a wake meanwhile waits until the ticket is back in its place.
    // No thread that has the ring's lock waits for a place: wakers are woken without it, and cloning or dropping one
    // touches nothing here.
    let resolved = resolve(pending, |pending: &mut Pending| {
        let poll = || pending.flying.poll(&mut Context::from_waker(&waker));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(result)) => Some(result),
            Ok(Poll::Pending) => None,
            Err(_) => Some(Err(Error::Internal { what: "looking for a result panicked".into() })),
        }
    });
    let Ok(Some((mut taken, result))) = resolved else { return }; // not there, or resolved before: woken twice
    let call = taken.object().call;
    lock(&QUEUE).ready.push_back((call, result));
    READY.notify_one();
}

impl Queue {
    /// Starts the thread for callbacks, unless it was started.
    fn serve(&mut self) -> Answer {
        if !self.served {
            spawn("trefoil-callback", serve).map_err(Failure::from)?;
            self.served = true;
        }
        Ok(())
    }

    /// Counts a callback that was registered.
    fn registered(&mut self, origin: Origin) {
        match self.outstanding.iter_mut().find(|(other, _)| *other == origin) {
            Some((_, count)) => *count += 1,
            None => self.outstanding.push((origin, 1)),
        }
    }

    /// Counts off a callback that has returned.
    fn returned(&mut self, origin: Origin) {
        let at = self.outstanding.iter().position(|(other, _)| *other == origin).expect("it was registered");
        self.outstanding[at].1 -= 1;
        if self.outstanding[at].1 == 0 {
            self.outstanding.swap_remove(at);
            RETURNED.notify_all();
        }
    }
}

/// The loop of the thread `trefoil-callback`, which never ends.
fn serve() {
    let mut queue = lock(&QUEUE);
    loop {
        match queue.ready.pop_front() {
            Some((call, result)) => {
                drop(queue);
                run(call, result);
                queue = lock(&QUEUE);
                queue.returned(call.origin);
            }
            None => queue = wait(&READY, queue),
        }
    }
}

fn run(Call { function, user, .. }: Call, result: Result) {
    let answer = result.map_err(Failure::from).and_then(insert);
    let (status, output) = match answer {
        Ok(output) => (trefoil_status::Ok, output),
        Err(failure) => (failure.tell(), 0),
    };
    RUNNING.set(true);
    // SAFETY: by trefoil_on_ready's contract.
    unsafe { function(user, status, output) };
    RUNNING.set(false);
}

const _: () = assert!(size_of::<*const ()>() >= size_of::<u64>(), "a waker's data holds a handle");

static WAKER: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, ignore);

fn waker(pending: u64) -> Waker {
    // SAFETY: the functions keep the contract of a waker: the data is a number, so that copies need no counting, and
    // waking is safe from any thread, whatever the number names by then.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::without_provenance(pending as usize), &WAKER)) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &WAKER)
}

unsafe fn wake(data: *const ()) {
    attempt(data.addr() as u64);
}

unsafe fn ignore(_: *const ()) {}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::device::{Device, Target};
    use crate::engine::Engine;
    use crate::ffi::ticket::{trefoil_on_ready, trefoil_wait};
    use crate::model::Model;
    use crate::sync::refused;

    static CALLED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn called(_: *mut c_void, status: trefoil_status, _: trefoil_output) {
        assert_eq!(status, trefoil_status::Ok);
        CALLED.fetch_add(1, Ordering::Relaxed);
    }

    /// The test runs in a process of its own, in which no other test has started the thread.
    #[test]
    fn without_its_thread_a_callback_is_refused_and_the_ticket_stays() {
        const CHILD: &str = "TREFOIL_WITHOUT_CALLBACK_THREAD";
        if std::env::var_os(CHILD).is_none() {
            let name = "ffi::callback::tests::without_its_thread_a_callback_is_refused_and_the_ticket_stays";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        let (model, cpu) = (Model::open("weights/convnet28").unwrap(), Device::open(Target::Cpu).unwrap());
        let engine = Engine::builder(&model).on(&cpu).build().unwrap();
        let submit = || insert(Flying::Batch(engine.acquire().unwrap().submit(1).unwrap())).unwrap();
        let [first, second] = [submit(), submit()];
        // SAFETY: the callback uses nothing of its user's.
        let register = |ticket| unsafe { trefoil_on_ready(ticket, Some(called), std::ptr::null_mut()) };
        let without_thread = |ticket| refused::after(0, || register(ticket));
        assert_eq!(without_thread(first), (trefoil_status::OutOfMemory, true));
        let mut output = 0;
        // SAFETY: there is room for an output.
        assert_eq!(unsafe { trefoil_wait(first, &raw mut output) }, trefoil_status::Ok, "the ticket was lost");
        assert!(drained(Duration::ZERO, |_| true).is_ok(), "a refused callback is outstanding");
        assert_eq!(without_thread(second), (trefoil_status::OutOfMemory, true));
        assert_eq!(register(second), trefoil_status::Ok);
        assert!(drained(Duration::from_secs(20), |_| true).is_ok());
        assert_eq!(CALLED.load(Ordering::Relaxed), 1);
    }
}
