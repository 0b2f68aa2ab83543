//! What a submission gives: a claim on its result, to wait for, look at, or await.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::credits::{Lent, Wake};
use super::{Close, Core, Output};
use crate::device::{Access, Note};
use crate::error::Error;
use crate::sync::lock;

/// A submission in flight. It waits on its own event and on nothing else.
///
/// Dropping it abandons the result; the buffers come free when the device is done with them. A ticket is a future
/// too, for any executor; what wakes it is the ring's completion thread, never a driver callback.
#[must_use = "a dropped ticket abandons its result"]
pub struct Ticket {
    core: Arc<Core>,
    lent: Lent,
    /// Counts the ring's submissions.
    number: u64,
    rows: usize,
    /// Whether the result went to an output, or was quarantined.
    settled: bool,
}

impl Ticket {
    pub(super) fn new(core: Arc<Core>, lent: Lent, number: u64, rows: usize) -> Self {
        Self { core, lent, number, rows, settled: false }
    }

    /// Rows submitted.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks until the result is there; how, [`EngineBuilder::waiting`](crate::EngineBuilder::waiting) says.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device failed: then the result's memory is not used again. [`Error::Closed`] if the engine
    /// was closed by [`Close::Abort`].
    pub fn wait(mut self) -> Result<Output, Error> {
        let waited = self.core.await_done(self.lent.result, self.number, None);
        self.settle(waited.map(drop))
    }

    /// Whether the result is there; never blocks.
    ///
    /// # Errors
    /// As for [`Ticket::wait`].
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.core.is_done(self.lent.result, self.number)
    }

    /// Where it is from.
    #[cfg(feature = "ffi")]
    pub(crate) fn origin(&self) -> super::Origin {
        super::Origin::of_ring(&self.core)
    }

    /// Blocks until the result is there or `limit` has passed; then the ticket comes back.
    ///
    /// # Errors
    /// As for [`Ticket::wait`].
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<Output, Self>, Error> {
        match self.core.await_for(self.lent, self.number, limit) {
            Ok(false) => Ok(Err(self)),
            Ok(true) => self.settle(Ok(())).map(Ok),
            Err(error) => self.settle(Err(error)).map(Ok),
        }
    }

    /// Turns the finished result into an output, or quarantines it after a fault.
    fn settle(&mut self, waited: Result<(), Error>) -> Result<Output, Error> {
        self.settled = true;
        let checked = waited.and_then(|()| self.core.device.healthy());
        let mut state = lock(&self.core.state);
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
                Ok(Output::new(self.core.clone(), self.lent.result, self.rows))
            }
            Err(error) => {
                let unused = state.quarantine(self.lent.result);
                drop(state);
                drop(unused);
                self.core.changed.notify_all();
                Err(error)
            }
        }
    }
}

impl Future for Ticket {
    type Output = Result<Output, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.settled, "a ticket polled after it gave its result");
        match self.is_ready() {
            Ok(true) => return Poll::Ready(self.settle(Ok(()))),
            Err(error) => return Poll::Ready(self.settle(Err(error))),
            Ok(false) => {}
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
        f.debug_struct("Ticket").field("rows", &self.rows).finish_non_exhaustive()
    }
}
