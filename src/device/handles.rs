//! Owning handles: each is made once, freed once, and names its device in every error. The last field, `_alive`, is
//! dropped after the device has freed the handle: see [`Device::is_unused`].

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CallerStream, DEVICE_MEMORY, Device, Priority, Program, RowCopy, Run, Signal, Span};
use crate::error::Error;

/// A queue of work on a device. Its operations run in order; only events order them with those of other streams.
pub(crate) struct Stream {
    raw: u64,
    device: Device,
    _alive: Arc<()>,
}

/// A point in a stream. Recording it again moves it.
pub(crate) struct Event {
    raw: u64,
    device: Device,
    _alive: Arc<()>,
}

/// Page-locked host memory, zeroed when made.
pub(crate) struct HostBuffer {
    ptr: NonNull<u8>,
    bytes: usize,
    device: Device,
    _alive: Arc<()>,
}

/// Device memory.
pub(crate) struct DeviceBuffer {
    addr: u64,
    bytes: usize,
    device: Device,
    _alive: Arc<()>,
}

// SAFETY: a HostBuffer is a unique owner of plain bytes; access through it is by `unsafe fn` whose callers order it.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; shared access to the bytes only goes through `unsafe fn`s.
unsafe impl Sync for HostBuffer {}

impl Stream {
    /// Makes a stream; `name` is what profilers show.
    pub fn new(device: &Device, priority: Priority, name: &str) -> Result<Self, Error> {
        let raw = device.backend().stream_create(priority, name)?;
        Ok(Self { raw, device: device.clone(), _alive: device.0.held.handle() })
    }

    /// The backend's handle.
    #[cfg(any(feature = "cuda", test))]
    pub fn raw(&self) -> u64 {
        self.raw
    }

    /// Makes work that is enqueued from now on wait for the last record of `event`.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both handles are owned by live values.
        self.device.latch(unsafe { self.device.backend().stream_wait(self.raw, event.raw) })
    }

    /// Fires `signal` when the work enqueued so far is done; never, if the device faults before.
    pub fn notify(&self, signal: &Arc<Signal>) -> Result<(), Error> {
        // SAFETY: the stream is owned by self.
        self.device.latch(unsafe { self.device.backend().notify(self.raw, signal) })
    }

    /// Enqueues one run of `program`.
    pub fn launch(&self, program: &Arc<dyn Program>, run: Run) -> Result<(), Error> {
        // SAFETY: the stream is owned by self; a ring orders the runs on a slot with the copies by its events.
        self.device.latch(unsafe { self.device.backend().launch(program, run, self.raw) })
    }

    /// Copies the first `bytes` of `src` to `dst`.
    ///
    /// # Safety
    /// Until an event recorded behind this call is done: both buffers live, nobody writes `src`, and nobody else
    /// accesses the first `bytes` of `dst` but by work ordered with this stream.
    pub unsafe fn copy_in(&self, dst: &DeviceBuffer, src: &HostBuffer, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.copy_in_at(dst, 0, src, 0, bytes) }
    }

    /// Copies `bytes` from `src_at` in `src` to `dst_at` in `dst`.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`], for these ranges.
    pub unsafe fn copy_in_at(
        &self,
        dst: &DeviceBuffer,
        dst_at: usize,
        src: &HostBuffer,
        src_at: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        let fits = |at: usize, all: usize| at <= all && bytes <= all - at;
        assert!(fits(dst_at, dst.bytes) && fits(src_at, src.bytes), "copy of {bytes} bytes out of bounds");
        // SAFETY: in bounds by the assertion, the rest by the caller.
        let enqueued = unsafe {
            let src = src.ptr.as_ptr().add(src_at);
            self.device.backend().copy_in(dst.addr + dst_at as u64, src, bytes, self.raw)
        };
        self.device.latch(enqueued)
    }

    /// Copies the first `bytes` of `src` to `dst`.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`]; the host neither reads nor writes `dst`, and the device does not write `src`, until
    /// then.
    pub unsafe fn copy_out(&self, dst: &HostBuffer, src: &DeviceBuffer, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.copy_out_to(dst, 0, src, bytes) }
    }

    /// Copies the first `bytes` of `src` to `dst_at` in `dst`, another buffer.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`], for these ranges.
    pub unsafe fn copy_on_device(
        &self,
        dst: &DeviceBuffer,
        dst_at: usize,
        src: &DeviceBuffer,
        bytes: usize,
    ) -> Result<(), Error> {
        let fits = dst_at <= dst.bytes && bytes <= dst.bytes - dst_at && bytes <= src.bytes;
        assert!(fits && dst.addr != src.addr, "copy of {bytes} bytes out of bounds");
        // SAFETY: in bounds by the assertion, the rest by the caller.
        self.device
            .latch(unsafe { self.device.backend().copy_on_device(dst.addr + dst_at as u64, src.addr, bytes, self.raw) })
    }

    /// Copies the first `bytes` of `src` to `dst_at` in `dst`.
    ///
    /// # Safety
    /// As for [`Stream::copy_out`], for these ranges.
    pub unsafe fn copy_out_to(
        &self,
        dst: &HostBuffer,
        dst_at: usize,
        src: &DeviceBuffer,
        bytes: usize,
    ) -> Result<(), Error> {
        let fits = dst_at <= dst.bytes && bytes <= dst.bytes - dst_at && bytes <= src.bytes;
        assert!(fits, "copy of {bytes} bytes out of bounds");
        // SAFETY: in bounds by the assertion, the rest by the caller.
        let enqueued = unsafe {
            let dst = dst.ptr.as_ptr().add(dst_at);
            self.device.backend().copy_out(dst, src.addr, bytes, self.raw)
        };
        self.device.latch(enqueued)
    }
}

impl Device {
    /// Copies a caller's rows to the beginning of `dst`, `pitch` bytes apart, on the caller's stream.
    ///
    /// # Safety
    /// The caller's rows can be read in stream order. For `dst`, as for [`Stream::copy_in`].
    pub(crate) unsafe fn copy_rows(&self, dst: &DeviceBuffer, pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        assert!(rows.row_bytes <= pitch && rows.bytes(pitch) <= dst.bytes, "{} rows out of bounds", rows.rows);
        // SAFETY: in bounds by the assertion, the rest by the caller.
        self.latch(unsafe { self.backend().copy_rows(dst.addr, pitch, rows) })
    }
}

impl Event {
    /// Makes an event without timing.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(Self { raw: device.backend().event_create(false)?, device: device.clone(), _alive: device.0.held.handle() })
    }

    /// Makes an event with timing.
    pub fn with_timing(device: &Device) -> Result<Self, Error> {
        Ok(Self { raw: device.backend().event_create(true)?, device: device.clone(), _alive: device.0.held.handle() })
    }

    /// The backend's handle.
    pub fn raw(&self) -> u64 {
        self.raw
    }

    /// Records the event behind the work enqueued on `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both handles are owned by live values.
        self.device.latch(unsafe { self.device.backend().event_record(self.raw, stream.raw) })
    }

    /// Records the event behind the work enqueued on a caller's stream so far.
    pub fn record_on(&self, stream: CallerStream) -> Result<(), Error> {
        // SAFETY: the handle is owned by self, the stream alive by the contract of `CallerStream`.
        self.device.latch(unsafe { self.device.backend().event_record(self.raw, stream.raw()) })
    }

    /// Makes work that is enqueued on a caller's stream from now on wait for the event's last record.
    pub fn hold_up(&self, stream: CallerStream) -> Result<(), Error> {
        // SAFETY: the handle is owned by self, the stream alive by the contract of `CallerStream`.
        self.device.latch(unsafe { self.device.backend().stream_wait(stream.raw(), self.raw) })
    }

    /// Whether the recorded work is done.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the handle is owned by self.
        self.device.latch(unsafe { self.device.backend().event_query(self.raw) })
    }

    /// Blocks until the recorded work is done.
    pub fn wait(&self) -> Result<(), Error> {
        // SAFETY: the handle is owned by self.
        self.device.latch(unsafe { self.device.backend().event_wait(self.raw) })
    }

    /// Blocks until the recorded work is done or `deadline` has passed; returns whether it is done.
    pub fn wait_until(&self, deadline: Instant) -> Result<bool, Error> {
        loop {
            if self.is_done()? {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Milliseconds from `start` to this event, both with timing and done.
    pub fn ms_since(&self, start: &Event) -> Result<f32, Error> {
        // SAFETY: both handles are owned by live values; the backend reports events without timing as an error.
        self.device.latch(unsafe { self.device.backend().elapsed_ms(start.raw, self.raw) })
    }
}

/// The pause between two polls of an event.
pub(crate) const POLL: Duration = Duration::from_micros(50);

impl HostBuffer {
    /// Allocates and zeroes `bytes` (at least one row of alignment).
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.max(crate::tensor::ROW_ALIGN);
        let ptr = device.backend().host_alloc(bytes).map_err(|error| device.with_free(error))?;
        device.0.held.take_page_locked(bytes);
        Ok(Self { ptr, bytes, device: device.clone(), _alive: device.0.held.handle() })
    }

    /// The address range of the buffer.
    pub fn span(&self) -> Span {
        Span { addr: self.ptr.as_ptr() as u64, bytes: self.bytes }
    }

    /// The address range of `bytes` bytes from offset `at`.
    pub fn span_of(&self, at: usize, bytes: usize) -> Span {
        Span { addr: self.ptr.as_ptr() as u64 + at as u64, bytes }
    }

    /// The bytes, to read.
    ///
    /// # Safety
    /// While the slice lives, neither the device nor any thread writes them.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this length, initialised to zero; no writers by the caller.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// While the slice lives, neither the device nor any thread accesses them otherwise.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's contract, held by the ring's credits")]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: allocated with this length, initialised to zero; exclusive by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }

    /// Some of the bytes, to write.
    ///
    /// # Safety
    /// While the slice lives, neither the device nor any thread accesses them otherwise.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's contract, held by a claim of the range")]
    pub unsafe fn range_mut(&self, at: usize, bytes: usize) -> &mut [u8] {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "{bytes} bytes at {at} out of bounds");
        // SAFETY: in bounds by the assertion, initialised to zero; exclusive by the caller. No reference to other bytes
        // of the buffer is made.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(at), bytes) }
    }
}

impl DeviceBuffer {
    /// Allocates `bytes` (at least one row of alignment), contents undefined, within the device's limit.
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.max(crate::tensor::ROW_ALIGN);
        #[cfg(test)]
        super::shortage::allocation_begins();
        let held = &device.0.held;
        held.take_device(bytes).map_err(|free_bytes| Error::OutOfMemory {
            device: device.info().target.clone(),
            what: DEVICE_MEMORY.into(),
            needed_bytes: bytes as u64,
            free_bytes,
            fitting_batch: None,
        })?;
        let allocated = device.backend().device_alloc(bytes).inspect_err(|_| held.give_device(bytes));
        let addr = allocated.map_err(|error| device.with_free(error))?;
        Ok(Self { addr, bytes, device: device.clone(), _alive: device.0.held.handle() })
    }

    /// Address on the device.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The address range of the first `bytes` bytes.
    pub fn span_of(&self, bytes: usize) -> Span {
        Span { addr: self.addr, bytes }
    }
}

/// Logs a handle that could not be freed. After a fault this is expected.
fn report(device: &Device, what: &str, result: Result<(), Error>) {
    if let Err(error) = result {
        if matches!(error, Error::Hazard { .. }) {
            let _latched = device.latch(Err::<(), _>(error));
        } else if device.fault().is_none() {
            log::error!("dropping {what}: {error}");
        } else {
            log::debug!("dropping {what} after a fault: {error}");
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: owned by self, dropped once.
        report(&self.device, "a stream", unsafe { self.device.backend().stream_destroy(self.raw) });
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned by self, dropped once.
        report(&self.device, "an event", unsafe { self.device.backend().event_destroy(self.raw) });
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.device.fault().is_some() {
            // After a fault nothing proves that the device's copy engines have stopped using the buffer.
            log::warn!("{} bytes of page-locked memory left to the faulted device", self.bytes);
            return;
        }
        self.device.0.held.give_page_locked(self.bytes);
        // SAFETY: owned by self, dropped once; owners drop it only when no enqueued work refers to it.
        report(&self.device, "a page-locked buffer", unsafe { self.device.backend().host_free(self.ptr, self.bytes) });
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.device.fault().is_some() {
            log::warn!("{} bytes of device memory left to the faulted device", self.bytes);
            return;
        }
        self.device.0.held.give_device(self.bytes);
        // SAFETY: owned by self, dropped once; owners drop it only when no enqueued work refers to it.
        report(&self.device, "a device buffer", unsafe { self.device.backend().device_free(self.addr, self.bytes) });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.raw)
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.addr, self.bytes)
    }
}
