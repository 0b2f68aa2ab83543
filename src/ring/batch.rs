//! The writer that `acquire` lends: rows of page-locked memory, until they are submitted.

use std::ops::Range;
use std::sync::Arc;

use super::credits::Lent;
use super::peers::Member;
use super::{Core, Ticket};
use crate::device::{DeviceBuffer, HostBuffer, Note, Stream};
use crate::error::Error;
use crate::sync::lock;
use crate::tensor::TensorSpec;

/// A batch being filled: exclusive access to rows of page-locked memory. Dropped without [`Batch::submit`], it gives
/// its credits back and nothing is computed.
///
/// Pixels can be written only through a `&mut` borrowed from it, and submitting takes it by value, so nothing can be
/// written while the device reads:
/// ```compile_fail
/// # fn f(engine: trefoil::Engine) -> Result<(), trefoil::Error> {
/// let mut batch = engine.acquire()?;
/// let row = batch.row_mut(0);
/// let ticket = batch.submit(1)?; // moves the batch while `row` borrows it
/// row.fill(0);
/// # Ok(()) }
/// ```
/// It is `Send`, so it can be filled by another thread than the one that acquired it.
pub struct Batch {
    core: Arc<Core>,
    /// The credits; nothing once submitted.
    held: Option<(usize, Lent)>,
    /// The rings that its ring is one of.
    member: Option<Member>,
}

impl Batch {
    pub(super) fn new(core: Arc<Core>, staging: usize, lent: Lent) -> Self {
        Self { core, held: Some((staging, lent)), member: None }
    }

    /// The same as one of several rings'.
    pub(super) fn of(self, member: Member) -> Self {
        let mut this = self;
        this.member = Some(member);
        this
    }

    /// Rows that fit.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }

    /// Shape, type and size of a row.
    pub fn spec(&self) -> TensorSpec {
        self.core.spec.input
    }

    /// The bytes of row `index`. They hold what an earlier batch left there, zeros at first.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let TensorSpec { row_bytes, row_pitch, .. } = self.spec();
        assert!(index < self.capacity(), "row {index} of a batch of {}", self.capacity());
        &mut self.bytes_mut()[index * row_pitch..][..row_bytes]
    }

    /// All rows, in order; disjoint, so they can be filled by several threads.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let TensorSpec { row_bytes, row_pitch, .. } = self.spec();
        self.bytes_mut().chunks_exact_mut(row_pitch).map(move |row| &mut row[..row_bytes])
    }

    /// Where row 0 is, for callers that cannot borrow; the other rows follow at the spec's pitch. Written through only
    /// while the batch is neither submitted nor dropped, nor another borrow of its rows used.
    #[cfg(feature = "ffi")]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes_mut().as_mut_ptr()
    }

    /// Indices of the staging and the result buffer that it holds.
    pub(super) fn buffers(&self) -> (usize, usize) {
        let (staging, lent) = self.held.expect("held until submitted or dropped");
        (staging, lent.result)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (staging, _) = self.buffers();
        let bytes = self.capacity() * self.spec().row_pitch;
        // SAFETY: self holds the staging's credit, so no other Batch and no enqueued copy refers to the buffer; the
        // borrow of self makes the slice unique.
        unsafe { &mut self.core.staging[staging].buffer.bytes_mut()[..bytes] }
    }

    /// Enqueues the first `rows` rows: upload, forward, download. Returns at once; it never waits for the device.
    ///
    /// Only those rows are uploaded. The smallest batch size that holds them runs.
    ///
    /// # Errors
    /// [`Error::Option`] if `rows` is 0 or above the capacity: the batch's credits are free again.
    /// [`Error::Fault`] if the device failed; it is out of use then, and a [`Fleet`](crate::Fleet) submits to another.
    /// [`Error::Closed`] if the engine was closed.
    pub fn submit(mut self, rows: usize) -> Result<Ticket, Error> {
        if !(1..=self.capacity()).contains(&rows) {
            return Err(Error::option("rows", rows, format!("1 to {}, the batch's capacity", self.capacity())));
        }
        let (staging, lent) = self.held.take().expect("held until submitted or dropped");
        let submitted = self.core.submit(staging, lent, rows, None);
        match self.member.take() {
            None => submitted,
            Some(member) => member.submitted(staging, rows, submitted),
        }
    }

    /// Like [`Batch::submit`], with the rows uploaded from elsewhere; the staging buffer stays as it is, its credit
    /// bounds the uploads.
    ///
    /// # Safety
    /// Until the ticket's result is there, `from.buffer` lives and nobody writes the rows of its runs; for ever if
    /// the device faults.
    pub(super) unsafe fn submit_gathered(mut self, from: &Gathered<'_>) -> Result<Ticket, Error> {
        let rows = from.runs.iter().map(ExactSizeIterator::len).sum();
        assert!((1..=self.capacity()).contains(&rows), "{rows} rows gathered for a batch of {}", self.capacity());
        let (staging, lent) = self.held.take().expect("held until submitted or dropped");
        self.core.submit(staging, lent, rows, Some(from))
    }
}

/// Rows somewhere in page-locked memory, to be uploaded as one batch.
pub(super) struct Gathered<'a> {
    /// Rows of the input spec's pitch.
    pub buffer: &'a HostBuffer,
    /// Runs of neighbouring rows, in the order that they have in the batch.
    pub runs: &'a [Range<usize>],
}

impl Gathered<'_> {
    /// Enqueues one copy for each run.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`], for the rows of the runs and for `input`.
    pub unsafe fn upload(&self, stream: &Stream, input: &DeviceBuffer, row_pitch: usize) -> Result<(), Error> {
        let mut at = 0;
        for run in self.runs {
            let bytes = run.len() * row_pitch;
            // SAFETY: by the caller.
            unsafe { stream.copy_in_at(input, at, self.buffer, run.start * row_pitch, bytes)? };
            at += bytes;
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some((staging, lent)) = self.held.take() {
            self.core.device.note(Note::End(self.core.staging[staging].buffer.span()));
            let mut state = lock(&self.core.state);
            state.returned(staging, lent);
            self.core.tell_one(&state);
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("capacity", &self.capacity()).field("spec", &self.spec()).finish()
    }
}
