//! The objects of a program with CUDA code of its own: a context, a stream, and rows that are already in device memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Device, Kind, target};
use crate::error::Error;

/// A CUDA stream that belongs to the caller: a `CUstream` or a `cudaStream_t`, which are the same.
///
/// On the CPU a caller cannot make streams. There [`CallerStream::DEFAULT`] stands for the thread that makes the call:
/// its work before the call comes first, and a wait of the stream blocks the thread.
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
    /// The default stream of the device's context; on the CPU it stands for the calling thread.
    pub const DEFAULT: Self = Self(0);

    /// Wraps a stream; null is [`CallerStream::DEFAULT`].
    ///
    /// # Safety
    /// `stream` is null or `CU_STREAM_LEGACY`, which are the same stream, or the caller does not destroy it before the
    /// last call that takes it has returned and every batch that reads rows on it has been submitted or dropped.
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

/// Rows in device memory, and the stream whose earlier work writes these rows.
/// [`Batch::read_from`](crate::Batch::read_from) takes them.
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
    /// The address of the first row: a `CUdeviceptr`; on the CPU an address in host memory.
    pub addr: u64,
    /// The distance between the beginnings of two neighbouring rows, in bytes: at least the input's `row_bytes`.
    pub pitch: usize,
    /// The stream on which the rows are copied: after its earlier work, and before its later work.
    pub stream: CallerStream,
}

/// The copy of a caller's rows to a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowCopy {
    pub from: DeviceRows,
    pub row_bytes: usize,
    pub rows: usize,
}

impl RowCopy {
    /// The number of bytes from the first byte of the first row to the last byte of the last, with rows `pitch` bytes
    /// apart.
    pub fn bytes(&self, pitch: usize) -> usize {
        (self.rows - 1) * pitch + self.row_bytes
    }
}

impl Device {
    /// Opens the GPU of a CUDA context that the caller made, a `CUcontext`: trefoil makes its streams, memory and code
    /// in this context, in place of the device's primary context. This is for programs that call `cuCtxCreate`. torch,
    /// and every program that is built on the CUDA runtime, uses the primary context, which [`Device::open`] shares.
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
    /// The caller does not destroy the context while trefoil has anything in it, that is, before [`Device::is_unused`]
    /// is true.
    ///
    /// # Errors
    /// [`Error::Option`] for null; else as for [`Device::open`].
    pub unsafe fn in_context(context: *mut c_void) -> Result<Self, Error> {
        // SAFETY: by the caller.
        unsafe { target::open_context(context) }
    }

    /// Whether nothing is left on the device except this handle and its clones: no engine, batch, ticket or output, and
    /// no work of the device, which may end a moment after these are dropped. Then the owner of a
    /// [context](Device::in_context) may destroy it. After a fault this may never become true, because memory that the
    /// device may still access is never freed.
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
        // Graphs and modules hold the device itself, and release it after their last call.
        fence(Ordering::Acquire);
        holders == 2 && self.0.held.has_no_handles() // `kind` and `backend` here
    }

    /// Whether the calling thread itself does the work that is enqueued on this stream, at once.
    pub(crate) fn is_calling_thread(&self, stream: CallerStream) -> bool {
        matches!(self.0.kind, Kind::Cpu(_)) && stream == CallerStream::DEFAULT
    }
}
