//! What a program with CUDA of its own brings along: a context, a stream, and rows that are in device memory already.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Device, Kind, target};
use crate::error::Error;

/// A stream of the caller's own: a `CUstream`, or, what is the same, a `cudaStream_t`.
///
/// The CPU has no streams that a caller could make. There [`CallerStream::DEFAULT`] is the thread that makes the call:
/// what it did before comes before, and to make it wait is to block.
///
/// ```
/// use trefoil::CallerStream;
/// # let stream: *mut std::ffi::c_void = std::ptr::null_mut();
/// // SAFETY: the stream is destroyed after the last call that gets it.
/// let stream = unsafe { CallerStream::from_raw(stream) };
/// assert_eq!(stream, CallerStream::DEFAULT); // it was null
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerStream(u64);

impl CallerStream {
    /// The default stream of the device's context; on the CPU the calling thread.
    pub const DEFAULT: Self = Self(0);

    /// A stream; null is [`CallerStream::DEFAULT`].
    ///
    /// # Safety
    /// It is null or `CU_STREAM_LEGACY`, which is the same, or a stream that is not destroyed before the last call that
    /// gets it has returned, and any batch that reads rows from it is submitted or dropped.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream as u64)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    /// A stream that a test made.
    #[cfg(test)]
    pub(crate) fn of(stream: &super::Stream) -> Self {
        Self(stream.raw())
    }

    /// Checks that trefoil can put work on it: a stream of another context, or one that captures, is refused.
    pub(crate) fn admit(self, device: &Device) -> Result<(), Error> {
        // SAFETY: the stream is alive by the contract of `from_raw`.
        unsafe { device.backend().admit_stream(self.0) }
    }
}

/// Rows in device memory, and the stream whose work so far writes them. [`Batch::read_from`](crate::Batch::read_from)
/// takes them.
///
/// ```
/// use trefoil::{CallerStream, DeviceRows};
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let pitch = engine.input().row_bytes;
/// let pixels = vec![127u8; 2 * pitch]; // on a GPU this would be device memory
/// let rows = DeviceRows { addr: pixels.as_ptr() as u64, pitch, stream: CallerStream::DEFAULT };
/// let mut batch = engine.acquire()?;
/// // SAFETY: there are two rows, and nothing writes them.
/// unsafe { batch.read_from(rows)? };
/// assert_eq!(batch.submit(2)?.wait()?.rows(), 2);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRows {
    /// Where the first row begins: a `CUdeviceptr`; on the CPU the address of host memory.
    pub addr: u64,
    /// From the beginning of one row to that of the next, in bytes: at least the input's `row_bytes`.
    pub pitch: usize,
    /// They are copied on this stream: after what it was given before, and before what it is given later.
    pub stream: CallerStream,
}

/// Rows of a caller's to be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowCopy {
    pub from: DeviceRows,
    pub row_bytes: usize,
    pub rows: usize,
}

impl RowCopy {
    /// From the first byte of the first row to the last of the last, the rows being `pitch` bytes apart.
    pub fn bytes(&self, pitch: usize) -> usize {
        (self.rows - 1) * pitch + self.row_bytes
    }
}

impl Device {
    /// The GPU of a CUDA context that the caller made, a `CUcontext`: trefoil makes its streams, memory and code there,
    /// in place of the device's primary context. For programs that call `cuCtxCreate`; torch, and all that is built on
    /// the CUDA runtime, live in the primary context, which [`Device::open`] shares.
    ///
    /// ```no_run
    /// # use trefoil::{Device, Engine, model::Model};
    /// # fn f(model: &Model, context: *mut std::ffi::c_void) -> Result<(), trefoil::Error> {
    /// // SAFETY: the context is kept until the engine and all of its batches are gone.
    /// let device = unsafe { Device::in_context(context)? };
    /// let engine = Engine::builder(model).on(&device).build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// The context is not destroyed before all that trefoil has in it is gone: [`Device::is_unused`].
    ///
    /// # Errors
    /// [`Error::Option`] for null; else as for [`Device::open`].
    pub unsafe fn in_context(context: *mut c_void) -> Result<Self, Error> {
        // SAFETY: by the caller.
        unsafe { target::open_context(context) }
    }

    /// Whether nothing is left of what was made on it, but this handle and its clones: no engine, batch, ticket or output,
    /// and nothing that the device still works on, which may outlast them a moment. Then whoever lent a
    /// [context](Device::in_context) may destroy it. After a fault it may never be so: what the device may still access is
    /// left to it.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let device = Device::open(Target::Cpu)?;
    /// let engine = Engine::builder(&model).on(&device).build()?;
    /// assert!(!device.is_unused());
    /// drop(engine);
    /// assert!(device.is_unused());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn is_unused(&self) -> bool {
        let holders = match &self.0.kind {
            Kind::Cpu(cpu) => Arc::strong_count(cpu),
            #[cfg(feature = "cuda")]
            Kind::Cuda(cuda) => Arc::strong_count(cuda),
            Kind::Sim(sim) => Arc::strong_count(sim),
        };
        // Graphs and modules hold the device itself, and let go of it behind their last call.
        fence(Ordering::Acquire);
        holders == 2 && self.0.held.has_no_handles() // `kind` and `backend` here
    }

    /// Whether what is enqueued on a caller's stream is done by the calling thread, at once.
    pub(crate) fn is_calling_thread(&self, stream: CallerStream) -> bool {
        matches!(self.0.kind, Kind::Cpu(_)) && stream == CallerStream::DEFAULT
    }
}
