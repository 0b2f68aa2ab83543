//! A row being written, and what can be said of a row before it is submitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::RowPriority;
use super::{RowTicket, Shared};
use crate::device::{Access, Note};
use crate::error::Error;
use crate::sync::lock;
use crate::tensor::TensorSpec;

/// A row of page-locked memory being written. Dropped without [`Row::submit`], it gives its memory back and nothing is
/// computed; until then it delays nobody, however long it is held.
///
/// Submitting takes it by value, so nothing can be written while the device reads:
/// ```compile_fail
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let pixels = row.bytes_mut();
/// let ticket = row.submit()?; // moves the row while `pixels` borrows it
/// pixels.fill(0);
/// # Ok(()) }
/// ```
/// ```compile_fail
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let ticket = row.submit()?;
/// row.bytes_mut().fill(0); // moved
/// # Ok(()) }
/// ```
/// In this order it is right:
/// ```no_run
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let pixels = row.bytes_mut();
/// pixels.fill(0);
/// row.bytes_mut().fill(0);
/// let ticket = row.submit()?;
/// # Ok(()) }
/// ```
/// Nor is it `Clone`: nobody else can write it. It can be given away.
/// ```compile_fail
/// # fn f(row: trefoil::Row) {
/// let other = row.clone();
/// # }
/// ```
/// ```no_run
/// # fn f(row: trefoil::Row) {
/// let other = row;
/// # }
/// ```
/// It is `Send`, so another thread than the one that claimed it can write it.
pub struct Row {
    shared: Arc<Shared>,
    /// Its page-locked row; nothing once committed.
    row: Option<usize>,
    priority: RowPriority,
    deadline: Deadline,
}

#[derive(Clone, Copy)]
enum Deadline {
    None,
    At(Instant),
    AfterSubmit(Duration),
}

impl Row {
    /// The bytes, to be written. They hold what an earlier row left there, zeros at first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let row = self.row.expect("held until submitted or dropped");
        let TensorSpec { row_bytes, row_pitch, .. } = self.spec();
        // SAFETY: self holds the claim of this row, which no other Row and no batch has; the borrow of self makes the
        // slice unique.
        unsafe { self.shared.rows.range_mut(row * row_pitch, row_bytes) }
    }

    /// Shape, type and size of the row.
    pub fn spec(&self) -> TensorSpec {
        self.shared.core.spec.input
    }

    /// Sets how long after [`Row::submit`] the row may be in the queue; past that it is answered with
    /// [`Error::Deadline`] and not uploaded.
    pub fn deadline(mut self, after_submit: Duration) -> Self {
        self.deadline = Deadline::AfterSubmit(after_submit);
        self
    }

    /// Sets which queued rows it goes before.
    pub fn priority(mut self, priority: RowPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Commits the row to the queue. Never waits.
    ///
    /// # Errors
    /// [`Error::Closed`] if the batcher was dropped; [`Error::Fault`] if the device is out of use.
    pub fn submit(mut self) -> Result<RowTicket, Error> {
        self.shared.core.device.healthy()?;
        let deadline = match self.deadline {
            Deadline::None => None,
            Deadline::At(instant) => Some(instant),
            Deadline::AfterSubmit(time) => Instant::now().checked_add(time),
        };
        let row = self.row.expect("held until submitted or dropped");
        self.shared.note_row(row, Note::End);
        let mut state = lock(&self.shared.state);
        if let Err(error) = state.open() {
            drop(state); // the row gives itself back
            return Err(error);
        }
        self.row = None;
        let entry = state.commit(row, self.priority, deadline);
        let queued = state.queued();
        drop(state);
        // At other lengths the batching thread has already set its time to look again.
        if queued == 1 || queued == self.shared.full() || deadline.is_some() {
            self.shared.work.notify_one();
        }
        Ok(RowTicket::new(self.shared.clone(), entry))
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if let Some(row) = self.row {
            self.shared.note_row(row, Note::End);
            lock(&self.shared.state).unclaim(row);
            self.shared.room.notify_all();
        }
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("spec", &self.spec()).field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// A submission with a deadline or a priority, which count from the start: also while it waits for a free row.
///
/// ```no_run
/// # fn f(batcher: trefoil::Batcher, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
/// use std::time::Duration;
/// use trefoil::RowPriority;
/// let ticket = batcher.request().deadline(Duration::from_millis(15)).priority(RowPriority::High).submit(&pixels)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
#[must_use = "a request does nothing before `submit` or `row`"]
pub struct Request<'a> {
    shared: &'a Arc<Shared>,
    priority: RowPriority,
    deadline: Option<Duration>,
    at_once: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, priority: RowPriority::Normal, deadline: None, at_once: false }
    }

    /// Sets how long after [`Request::submit`] or [`Request::row`] the row may wait to be uploaded; past that it is
    /// answered with [`Error::Deadline`].
    pub fn deadline(mut self, after_start: Duration) -> Self {
        self.deadline = Some(after_start);
        self
    }

    /// Sets which waiting and queued rows it goes before.
    pub fn priority(mut self, priority: RowPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Waits for no free row, whatever the batcher does else: [`Error::Timeout`].
    #[cfg(feature = "ffi")]
    pub(crate) fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// See [`Batcher::submit`](super::Batcher::submit).
    ///
    /// # Errors
    /// As there, and [`Error::Deadline`].
    pub fn submit(self, pixels: &[u8]) -> Result<RowTicket, Error> {
        let expected = self.shared.core.spec.input.row_bytes;
        if pixels.len() != expected {
            let found = format!("{} bytes long", pixels.len());
            return Err(Error::option("pixels", found, format!("{expected} bytes, one row")));
        }
        let mut row = self.row()?;
        row.bytes_mut().copy_from_slice(pixels);
        row.submit()
    }

    /// See [`Batcher::row`](super::Batcher::row).
    ///
    /// # Errors
    /// As there, and [`Error::Deadline`].
    pub fn row(self) -> Result<Row, Error> {
        let deadline = self.deadline.and_then(|time| Instant::now().checked_add(time));
        let row = self.shared.claim(self.priority, deadline, self.at_once)?;
        let deadline = deadline.map_or(Deadline::None, Deadline::At);
        self.shared.note_row(row, Note::Taken);
        self.shared.note_row(row, |span| Note::Begin(span, Access::Write));
        Ok(Row { shared: self.shared.clone(), row: Some(row), priority: self.priority, deadline })
    }
}
