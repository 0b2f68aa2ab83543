//! Closing a batcher.

use std::time::{Duration, Instant};

use super::{Batcher, Shared};
use crate::error::Error;
use crate::ring::Close;
use crate::sync::{after, lock, wait_until};

impl Batcher {
    /// Closes the batcher to new rows, and waits, up to `limit`, until every committed row has its answer.
    ///
    /// With [`Close::Drain`] the queued rows leave at once, in as few batches as possible, and are computed. With
    /// [`Close::Abort`] queued rows are answered with [`Error::Closed`] at once and not uploaded; the device finishes
    /// the batches in flight, and then their rows get the same answer. Rows that are lent and not yet committed delay
    /// nothing: committing them returns [`Error::Closed`], like every later call. The engine stays open.
    ///
    /// A second call waits again; an abort overrules an earlier drain.
    ///
    /// ```
    /// # fn f(engine: trefoil::Engine, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
    /// use std::time::Duration;
    /// use trefoil::{Close, Error};
    /// let batcher = engine.batcher().build()?;
    /// let ticket = batcher.submit(&pixels)?;
    /// batcher.close(Close::Drain, Duration::from_secs(5))?;
    /// assert!(ticket.is_ready());
    /// assert!(matches!(batcher.submit(&pixels), Err(Error::Closed)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] past the limit, with the ring's credits; [`Error::Fault`] if the device is out of use: then
    /// everything is answered with that.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        self.shared.iter().for_each(|shared| shared.stop(how));
        self.shared.iter().try_for_each(|shared| shared.drained(start, limit))
    }
}

impl Shared {
    /// Stops accepting rows, and wakes all threads.
    pub(super) fn stop(&self, how: Close) {
        self.told(|state, wakes| state.close(how, wakes));
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Waits until no row is queued or in flight, until `limit` has passed since `start`.
    fn drained(&self, start: Instant, limit: Duration) -> Result<(), Error> {
        let submits = self.core.order.underway();
        let mut state = lock(&self.state);
        loop {
            // If the engine was closed first, it has ended the batcher too: there is nothing left to wait for.
            match state.failure() {
                Some(Error::Closed) if state.in_flight() == 0 => return Ok(()),
                Some(Error::Closed) | None => {}
                Some(error) => return Err(error.clone()),
            }
            if state.queued() == 0 && state.in_flight() == 0 {
                return Ok(());
            }
            let (waited_for, late) = wait_until(&self.room, state, after(limit.saturating_sub(start.elapsed())));
            state = waited_for;
            if late && (state.queued() > 0 || state.in_flight() > 0) {
                drop(state);
                return Err(self.core.late("close", start.elapsed(), self.core.order.call_of(submits)));
            }
        }
    }
}
