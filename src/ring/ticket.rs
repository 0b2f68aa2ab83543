//! Tickets: handles by which a program waits for the result of a submission.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::bucket::Extent;
use super::credits::{Lent, Wake};
use super::peers::Again;
use super::{Close, Core, Output};
use crate::device::{Access, Note};
use crate::error::Error;
use crate::sync::{after, lock};

/// A submission in flight. A wait for a ticket is a wait for the event of this submission, and for nothing else.
///
/// Dropping a ticket abandons its result; the buffers are free again when the device is done with them. A ticket is
/// also a future, for any executor. The ring's completion thread wakes its task; a driver callback never does.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let first = engine.acquire()?.submit(1)?;
/// let second = engine.acquire()?.submit(2)?; // both are in flight now
/// assert_eq!(second.wait()?.rows(), 2); // in any order
/// assert_eq!(first.wait()?.rows(), 1);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[must_use = "a dropped ticket abandons its result"]
pub struct Ticket {
    core: Arc<Core>,
    lent: Lent,
    /// The number of the submission in its ring.
    number: u64,
    extent: Extent,
    /// Whether the result was handed to an output, or was quarantined.
    settled: bool,
    /// The staging that has its rows and the fleet that can run them again after a fault; `None` once the output is
    /// handed out.
    again: Option<Again>,
}

impl Ticket {
    pub(super) fn new(core: Arc<Core>, lent: Lent, number: u64, extent: Extent) -> Self {
        Self { core, lent, number, extent, settled: false, again: None }
    }

    /// The ticket, with rows that run again from their staging if the device fails.
    pub(super) fn or_again(mut self, again: Again) -> Self {
        self.again = Some(again);
        self
    }

    /// The rows to run again after a fault, if there are any.
    pub(super) fn again(&self) -> Option<&Again> {
        self.again.as_ref()
    }

    /// The number of rows that were submitted.
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    /// Blocks until the result is there; [`EngineBuilder::waiting`](crate::EngineBuilder::waiting) says how.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device failed: then the result's memory is not used again. [`Error::Closed`] if the engine
    /// was closed by [`Close::Abort`].
    pub fn wait(mut self) -> Result<Output, Error> {
        loop {
            let waited = self.core.await_done(self.lent.result, self.number, None);
            if let Some(output) = self.settle_or_move(waited.map(drop), Duration::MAX)? {
                return Ok(output);
            }
        }
    }

    /// Whether the result is there; never blocks. Also true if the device has failed and [`Ticket::wait`] will make
    /// another device run the rows again.
    ///
    /// # Errors
    /// As for [`Ticket::wait`].
    pub fn is_ready(&self) -> Result<bool, Error> {
        match self.core.is_done(self.lent.result, self.number) {
            Err(Error::Fault { .. }) if self.again.is_some() => Ok(true),
            done => done,
        }
    }

    /// The ring that the ticket belongs to.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn origin(&self) -> super::Origin {
        super::Origin::of_ring(&self.core)
    }

    /// Blocks until the result is there or `limit` has passed; after the limit it returns the ticket.
    ///
    /// # Errors
    /// As for [`Ticket::wait`].
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<Output, Self>, Error> {
        let deadline = after(limit);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.core.await_for(self.lent, self.number, left);
            if matches!(waited, Ok(false)) {
                return Ok(Err(self));
            }
            match self.settle_or_move(waited.map(drop), left) {
                Err(Error::Timeout { .. }) if left < self.core.spec.acquire_limit => return Ok(Err(self)),
                settled => {
                    if let Some(output) = settled? {
                        return Ok(Ok(output));
                    }
                }
            }
        }
    }

    /// The output; `None` if the device failed and another device runs the rows now. The new submission waits for a
    /// batch until `limit` has passed, and no longer than any acquire.
    fn settle_or_move(&mut self, waited: Result<(), Error>, limit: Duration) -> Result<Option<Output>, Error> {
        let settled = self.settle(waited);
        let (Err(Error::Fault { .. }), Some(again)) = (&settled, self.again.take()) else { return settled.map(Some) };
        match again.submit(&self.core, self.extent, after(limit.min(self.core.spec.acquire_limit))) {
            Ok(moved) => {
                *self = moved;
                Ok(None)
            }
            Err(error) => {
                self.again = Some(again);
                Err(error)
            }
        }
    }

    /// Turns the finished result into an output, or quarantines it after a fault.
    fn settle(&mut self, waited: Result<(), Error>) -> Result<Output, Error> {
        if self.settled {
            self.core.device.healthy()?; // it failed before, and no other had room for the rows in time
        }
        self.settled = true;
        let checked = waited.and_then(|()| self.core.device.healthy());
        let mut state = lock(&self.core.state);
        // Where rows can run again, their staging is kept until the host knows the submission to be done; a submission
        // known to be done was done before the fault.
        let was_done = self.again.is_some() && self.number < state.done;
        let checked = if was_done { Ok(()) } else { checked };
        if checked.is_ok() {
            self.core.done_through(&mut state, self.number);
        }
        let span = self.core.results[self.lent.result].buffer.span();
        match checked {
            Ok(()) if state.closed == Some(Close::Abort) => {
                self.core.device.note(Note::Freed(span));
                let unused = state.free(self.lent.result);
                drop(state);
                drop(unused);
                Err(Error::Closed)
            }
            Ok(()) => {
                let unused = state.read(self.lent.result);
                drop(state);
                drop(unused);
                self.core.device.note(Note::Begin(span, Access::Read));
                Ok(Output::new(self.core.clone(), self.lent.result, self.extent))
            }
            Err(error) => {
                if let Some(again) = &self.again {
                    state.keep_staging(again.staging);
                }
                let unused = state.quarantine(self.lent.result);
                drop(state);
                drop(unused);
                self.core.tell_all();
                Err(error)
            }
        }
    }
}

impl Future for Ticket {
    type Output = Result<Output, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.settled || self.again.is_some(), "a ticket polled after it gave its result");
        loop {
            let waited = match self.core.is_done(self.lent.result, self.number) {
                Ok(false) => break,
                done => done.map(drop),
            };
            if let Some(answer) = self.settle_or_move(waited, Duration::MAX).transpose() {
                if answer.is_err() {
                    self.again = None; // this is the answer
                }
                return Poll::Ready(answer);
            }
        }
        self.core.wake_when_done(self.lent.result, Wake::Task(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.settled {
            let (watch, _unused) = lock(&self.core.state).abandon(self.lent.result);
            if watch {
                self.core.completion.watch(self.core.clone(), self.lent.result);
            }
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("rows", &self.extent.rows).finish_non_exhaustive()
    }
}
