//! Callbacks: a ticket whose waker is a handle.
//!
//! The ring's completion thread, or a batcher's, wakes the waker with no lock held. Its data is the handle of the
//! [`Pending`] ticket and nothing else, so that it is copied freely, never dangles, and allocates nothing; a wake that
//! comes too late finds that the handle was given up.
//!
//! What would be called within a call of the program's own goes to a thread for that, `trefoil-callback`: the program
//! may hold a lock there that the callback wants. While a callback runs, nothing waits: no limit is longer than zero.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{OnceLock, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::Duration;

use super::handles::{insert, object, resolve, trefoil_output};
use super::output::Landed;
use super::status::{Answer, Failure, in_call, trefoil_status};
use super::ticket::Flying;
use crate::error::Error;
use crate::sync::{Mutex, lock};

/// What trefoil_on_ready() calls: with an output to be released if `status` is TREFOIL_STATUS_OK, else with 0;
/// trefoil_last_error() has the message.
pub type trefoil_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, status: trefoil_status, output: trefoil_output)>;

/// The same, and there.
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
}

// SAFETY: `user` is only passed to the callback, which may be called from any thread by trefoil_on_ready's contract.
unsafe impl Send for Call {}
// SAFETY: the same.
unsafe impl Sync for Call {}

type Result = std::result::Result<Landed, Error>;

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a callback.
pub(super) fn running() -> bool {
    RUNNING.get()
}

/// How long a call may wait: in a callback not at all, for its own thread may be the one that would end the wait.
pub(super) fn limit(nanoseconds: u64) -> Duration {
    if running() { Duration::ZERO } else { Duration::from_nanos(nanoseconds) }
}

/// Starts the thread for callbacks, unless it runs.
pub(super) fn start() -> Answer {
    hand_over_to().map(drop)
}

/// Has `function` called when the result is there; from another thread if it is there already.
pub(super) fn register(flying: Flying, function: Callback, user: *mut c_void) -> Answer {
    let pending = insert(Pending { flying, call: Call { function, user } })?;
    attempt(pending).map_or(Ok(()), hand_over)
}

/// Looks for the result of a pending ticket, once: what to call, and with what.
fn attempt(pending: u64) -> Option<(Call, Result)> {
    let waker = waker(pending);
    // Polled with its place locked, so that a wake meanwhile waits until the ticket is back there. Nobody who has the
    // ring's lock waits for a place: wakers are woken without it, and cloning or dropping one here touches nothing.
    let resolved =
        resolve(pending, |pending: &mut Pending| match pending.flying.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        });
    let (mut taken, result) = resolved.ok()??; // resolved before: woken twice
    Some((taken.object().call, result))
}

fn run((Call { function, user }, result): (Call, Result)) {
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

type Sender = Mutex<mpsc::Sender<(Call, Result)>>;

/// Leaves a callback to `trefoil-callback`.
fn hand_over(ready: (Call, Result)) -> Answer {
    lock(hand_over_to()?).send(ready).map_err(|_| internal("the thread for callbacks is gone"))
}

/// The way to `trefoil-callback`, which is started by the first call.
fn hand_over_to() -> Answer<&'static Sender> {
    static SENDER: OnceLock<Option<Sender>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = mpsc::channel();
        let serve = move || receiver.into_iter().for_each(run);
        thread::Builder::new().name("trefoil-callback".into()).spawn(serve).ok()?;
        Some(Mutex::new(sender))
    };
    SENDER.get_or_init(start).as_ref().ok_or_else(|| internal("cannot start the thread for callbacks"))
}

fn internal(what: &'static str) -> Failure {
    Error::Internal { what: what.into() }.into()
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
    match attempt(data.addr() as u64) {
        // To abort a batcher answers its queued rows in the thread that asks for it.
        Some(ready) if in_call() => {
            if let Err(failure) = hand_over(ready) {
                log::error!("a callback is lost: {}", failure.message);
            }
        }
        Some(ready) => run(ready),
        None => {}
    }
}

unsafe fn ignore(_: *const ()) {}
