//! The ways in which host threads learn that the device is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Core;
use super::credits::{Lent, Wake};
use crate::device::{Event, during};
use crate::error::Error;
use crate::sync::{after, lock, thread};

/// How host threads learn that the device is done. This applies to [`Ticket::wait`](crate::Ticket::wait) and
/// `wait_for`, to an [`Engine::acquire`](crate::Engine::acquire) that waits for an upload, to the ring's own threads,
/// which serve dropped tickets and tickets that are awaited as futures, and to a batcher's threads, which sometimes
/// wait for an upload to measure it. [`EngineBuilder::waiting`](crate::EngineBuilder::waiting) sets it.
///
/// In each of these ways a thread waits for the event of its own submission, and a fault of the device wakes all
/// threads.
///
/// ```
/// use trefoil::{Device, Engine, Target, Waiting, model::Model};
/// # fn f(model: &Model) -> Result<(), trefoil::Error> {
/// let cpu = Device::open(Target::Cpu)?;
/// let engine = Engine::builder(model).on(&cpu).waiting(Waiting::Callback).build()?;
/// # Ok(()) }
/// assert_eq!(Waiting::default(), Waiting::Block);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// A waiting thread polls its event, which keeps a core busy and has the lowest latency. The completion thread
    /// polls too while a ticket is awaited as a future.
    Spin,
    /// A waiting thread sleeps in the driver until its event is done (`cuEventSynchronize` on a blocking-sync event). The
    /// thread that waits for a batcher's batches polls for at most 0.1 ms about the time at which one is expected to be
    /// done, if that is within 5 ms.
    #[default]
    Block,
    /// The driver runs a callback after each download (`cuLaunchHostFunc`, one more call for each batch). The callback
    /// wakes the threads that sleep on that result, and they check the event. No user code and no waker runs in the
    /// callback. After a fault the driver runs no callbacks; a sleeping thread checks its event ten times a second, so
    /// it notices the fault within 0.1 s.
    ///
    /// This is for threads that may not sleep in the driver. A download waits for the callback of the previous
    /// download. Uploads have no callbacks, so that no upload waits for one: `trefoil-up-N` and `trefoil-batch-N` sleep
    /// in the driver to wait for uploads.
    Callback,
}

/// The interval at which a sleeper that only a fault may wake looks for one.
pub(super) const FAULT_CHECK: Duration = Duration::from_millis(100);

/// Pauses between two looks of [`Waiting::Spin`]; sometimes another thread gets the core.
pub(super) fn pause(looks: &mut u32) {
    *looks = looks.wrapping_add(1);
    if looks.is_multiple_of(64) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Core {
    /// Waits for a submission's own event, until `deadline` at the latest; returns whether it is done.
    pub(super) fn await_done(&self, result: usize, number: u64, deadline: Option<Instant>) -> Result<bool, Error> {
        let waited = during(number, || match (self.spec.waiting, deadline) {
            (Waiting::Spin, _) => self.spin(&self.results[result].done, deadline),
            (Waiting::Callback, _) => self.await_signal(result, deadline),
            (Waiting::Block, None) => self.results[result].done.wait().map(|()| true),
            (Waiting::Block, Some(deadline)) => self.results[result].done.wait_until(deadline),
        });
        waited.map_err(|error| self.device.fault().unwrap_or(error))
    }

    /// Waits for the last upload of a staging buffer.
    pub(super) fn await_upload(&self, staging: usize) -> Result<(), Error> {
        let uploaded = &self.staging[staging].uploaded;
        match self.spec.waiting {
            Waiting::Spin => self.spin(uploaded, None).map(drop),
            Waiting::Block | Waiting::Callback => uploaded.wait(), // there is no callback behind an upload
        }
    }

    /// Whether the last upload of a staging buffer is done; never blocks.
    pub(crate) fn is_uploaded(&self, staging: usize) -> Result<bool, Error> {
        self.staging[staging].uploaded.is_done()
    }

    /// Whether the next upload would wait for nothing: not for the upload from `last`, the staging buffer before it,
    /// not for a run that reads its slot, and not for another thread that submits. Never blocks. An error is latched,
    /// and reported by the thread that waits for a batch.
    pub(crate) fn would_upload_at_once(&self, last: Option<usize>) -> bool {
        let Some(slot) = self.order.try_take().map(|order| order.next_slot) else { return false };
        let mut readers = self.runners.iter().filter(|runner| runner.reads_upload());
        last.is_none_or(|last| matches!(self.is_uploaded(last), Ok(true)))
            && readers.all(|runner| matches!(runner.computed[slot].is_done(), Ok(true)))
    }

    fn spin(&self, event: &Event, deadline: Option<Instant>) -> Result<bool, Error> {
        let mut looks = 0;
        loop {
            self.device.healthy()?;
            if event.is_done()? {
                return Ok(true);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(false);
            }
            pause(&mut looks);
        }
    }

    fn await_signal(&self, result: usize, deadline: Option<Instant>) -> Result<bool, Error> {
        let signal = &self.results[result].signal;
        loop {
            let seen = signal.count(); // before the look: what is fired after it is not slept through
            self.device.healthy()?;
            if self.results[result].done.is_done()? {
                return Ok(true);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(false);
            }
            let check = now + FAULT_CHECK;
            signal.wait_past(seen, deadline.map_or(check, |deadline| deadline.min(check)));
        }
    }

    /// Waits for a submission for up to `limit`; returns whether it is done. If threads sleep in the driver, which
    /// knows no limit, the completion thread waits there and wakes this one.
    pub(super) fn await_for(self: &Arc<Self>, lent: Lent, number: u64, limit: Duration) -> Result<bool, Error> {
        let deadline = after(limit);
        if self.spec.waiting != Waiting::Block {
            return self.await_done(lent.result, number, Some(deadline));
        }
        loop {
            if self.is_done(lent.result, number)? {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.wake_when_done(lent.result, Wake::Thread(thread::current()));
            thread::park_timeout(left);
        }
    }

    /// Whether a submission is done; never blocks.
    pub(super) fn is_done(&self, result: usize, number: u64) -> Result<bool, Error> {
        let done = during(number, || self.device.healthy().and_then(|()| self.results[result].done.is_done()));
        done.map_err(|error| self.device.fault().unwrap_or(error))
    }

    /// Makes the completion thread wake a thread or task when a submission is done, or the device has failed.
    pub(super) fn wake_when_done(self: &Arc<Self>, result: usize, wake: Wake) {
        let (watch, old) = lock(&self.state).set_wake(result, wake);
        drop(old); // a waker's drop is user code, so without the lock
        if watch {
            self.completion.watch(self.clone(), result);
        }
    }
}
