//! Rows that come from device memory, and results that stay there.

use std::ffi::c_void;
use std::sync::Arc;

use super::bucket::{Extent, RowBucket};
use super::credits::Lent;
use super::{Close, Core};
use crate::device::{CallerStream, Device, DeviceBuffer, DeviceRows, Event, Note, RowCopy, Span};
use crate::error::Error;
use crate::sync::lock;
use crate::tensor::RowSpec;

/// A result buffer in device memory. Copy-out writes it until the result's `done`; then callers' streams read it until
/// `read`.
pub(super) struct OnDevice {
    pub buffer: DeviceBuffer,
    pub read: Event,
}

impl OnDevice {
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        Ok(Self { buffer: DeviceBuffer::new(device, bytes)?, read: Event::new(device)? })
    }
}

/// A result in device memory, which may not be computed yet;
/// [`Batch::submit_to_device`](crate::Batch::submit_to_device) returns it. The result's memory belongs to this output
/// until the output is dropped. The drop waits for nothing.
///
/// Enqueue the work that reads the result on a stream between [`DeviceOutput::wait_on`] and [`DeviceOutput::read_on`];
/// then no thread ever waits.
///
/// ```
/// # use trefoil::{CallerStream, DeviceOutput, Error};
/// # fn enqueue_my_kernel(_: CallerStream, _: u64, _: usize) {}
/// fn consume(mut output: DeviceOutput, stream: CallerStream) -> Result<(), Error> {
///     output.wait_on(stream)?;
///     enqueue_my_kernel(stream, output.addr(), output.spec().row_pitch);
///     output.read_on(stream)
/// } // dropped here: used again when the kernel has run
/// ```
#[must_use = "a dropped output abandons its result"]
pub struct DeviceOutput {
    core: Arc<Core>,
    lent: Lent,
    /// The number of the submission.
    number: u64,
    extent: Extent,
    /// The last stream that was made to wait for the result.
    waits: Option<CallerStream>,
    /// Whether a stream was declared that reads it.
    is_read: bool,
}

impl DeviceOutput {
    pub(super) fn new(core: Arc<Core>, lent: Lent, number: u64, extent: Extent) -> Self {
        Self { core, lent, number, extent, waits: None, is_read: false }
    }

    fn there(&self) -> &OnDevice {
        self.core.results[self.lent.result].device.as_ref().expect("looked for before it was submitted")
    }

    /// The number of rows that were submitted.
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    fn rows_of(&self) -> &RowBucket {
        self.core.bucket(self.extent.bucket)
    }

    /// The ports of a row, and the pitch of rows; for an engine of several models, those of its first output.
    pub fn spec(&self) -> &RowSpec {
        &self.rows_of().outputs[0]
    }

    /// The address of the first row: a `CUdeviceptr`; on the CPU an address in host memory. The beginnings of
    /// neighbouring rows are the spec's `row_pitch` bytes apart.
    pub fn addr(&self) -> u64 {
        self.part(0).0
    }

    /// The number of outputs of a row, as [`Output::parts`](crate::Output::parts) counts them.
    pub fn parts(&self) -> usize {
        self.rows_of().outputs.len()
    }

    /// The address of the first row of one output of an engine of several models, and the ports of its rows.
    ///
    /// # Panics
    /// If `index` is not below [`DeviceOutput::parts`].
    pub fn part(&self, index: usize) -> (u64, &RowSpec) {
        let spec = &self.rows_of().outputs[index];
        (self.there().buffer.addr() + self.core.spec.buckets.output_at(index) as u64, spec)
    }

    /// Makes work that is enqueued on `stream` from now on wait until the result is there. On the CPU, where the
    /// default stream stands for the calling thread, the call blocks.
    ///
    /// # Errors
    /// [`Error::Option`] for a stream of another CUDA context or one that captures; then nothing has changed.
    /// [`Error::Fault`]; [`Error::Closed`] if the engine was closed by [`Close::Abort`].
    pub fn wait_on(&mut self, stream: CallerStream) -> Result<(), Error> {
        self.usable()?;
        stream.admit(&self.core.device)?;
        self.hold_up(stream)
    }

    fn hold_up(&mut self, stream: CallerStream) -> Result<(), Error> {
        let held = self.core.results[self.lent.result].done.hold_up(stream);
        held.map_err(|error| self.core.device.fault().unwrap_or(error))?;
        self.waits = Some(stream);
        Ok(())
    }

    /// Declares that work that is enqueued on `stream` so far reads the result. After the output is dropped, its memory
    /// is overwritten only when this work is done, on every stream that was declared. If the last call of
    /// [`DeviceOutput::wait_on`] was for another stream, `stream` is made to wait for the result now.
    ///
    /// # Errors
    /// As for [`DeviceOutput::wait_on`].
    pub fn read_on(&mut self, stream: CallerStream) -> Result<(), Error> {
        self.usable()?;
        stream.admit(&self.core.device)?;
        if self.waits != Some(stream) {
            self.hold_up(stream)?;
        }
        let OnDevice { buffer, read } = self.there();
        // `read` is recorded after all earlier readers: the new stream waits for them first.
        let others = if self.is_read { read.hold_up(stream) } else { Ok(()) };
        self.core.device.note(Note::ReadOn(Span { addr: buffer.addr(), bytes: buffer.len() }, stream));
        let recorded = others.and_then(|()| read.record_on(stream));
        recorded.map_err(|error| self.core.device.fault().unwrap_or(error))?;
        self.is_read = true;
        Ok(())
    }

    /// Blocks until the result is there; [`EngineBuilder::waiting`](crate::EngineBuilder::waiting) says how.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device failed; [`Error::Closed`] if the engine was closed by [`Close::Abort`].
    pub fn wait(&self) -> Result<(), Error> {
        self.core.await_done(self.lent.result, self.number, None)?;
        self.usable()?;
        self.core.done_through(&mut lock(&self.core.state), self.number);
        Ok(())
    }

    /// Whether the result is there; never blocks.
    ///
    /// # Errors
    /// As for [`DeviceOutput::wait`].
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.usable()?;
        self.core.is_done(self.lent.result, self.number)
    }

    /// The `CUevent` behind the result, for streams of other CUDA contexts and for libraries that take events. The
    /// caller may wait for it and query it until the output is dropped, and must not record or destroy it. Null on the
    /// CPU.
    pub fn event(&self) -> *mut c_void {
        if self.core.device.info().compute_capability == [0, 0] {
            return std::ptr::null_mut();
        }
        self.core.results[self.lent.result].done.raw() as *mut c_void
    }

    /// An error after a fault, or after the engine was closed by aborting.
    fn usable(&self) -> Result<(), Error> {
        self.core.device.healthy()?;
        match lock(&self.core.state).closed {
            Some(Close::Abort) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl Drop for DeviceOutput {
    fn drop(&mut self) {
        let result = self.lent.result;
        let mut state = lock(&self.core.state);
        let watch = match self.core.device.fault() {
            None => state.hand_back(result),
            Some(_) => {
                let unused = state.quarantine(result);
                debug_assert!(unused.is_none(), "nobody awaits it");
                false
            }
        };
        self.core.tell_one(&state);
        drop(state);
        if watch {
            self.core.completion.watch(self.core.clone(), result);
        }
    }
}

impl std::fmt::Debug for DeviceOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceOutput")
            .field("rows", &self.extent.rows)
            .field("spec", &self.spec())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Enqueues the copy of rows that are on the device.
    pub(super) fn copy_from_device(
        &self,
        from: DeviceRows,
        Extent { bucket, rows }: Extent,
        slot: usize,
        uploaded: &Event,
    ) -> Result<(), Error> {
        for runner in self.runners.iter().filter(|runner| runner.reads_upload()) {
            runner.computed[slot].hold_up(from.stream)?;
        }
        let RowSpec { row_bytes, row_pitch, .. } = self.bucket(bucket).input;
        // SAFETY: the slot input lives as long as self, which whoever has the result holds until `done`; its last reader is
        // ordered before by `computed`. What is read is there by the contract of `Batch::read_from`.
        unsafe {
            let input = self.runners[0].program.input(slot);
            self.device.copy_rows(input, row_pitch, &RowCopy { from, row_bytes, rows })?;
        }
        uploaded.record_on(from.stream)
    }

    /// Called when the engine is dropped. Results that were handed back on the device keep the ring until the device is
    /// done with them. After a fault this cannot be known, and the memory is left to the device anyway.
    pub fn leave(self: &Arc<Self>) {
        if self.device.fault().is_some() {
            return;
        }
        let watched = lock(&self.state).leave();
        for result in watched {
            self.completion.watch(self.clone(), result);
        }
    }
}
