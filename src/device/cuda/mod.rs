//! An NVIDIA GPU through the CUDA driver API. Nothing outside this folder names a CUDA symbol.

mod caller;
mod context;
mod driver;
mod graph;
mod library;
mod module;
pub(crate) mod near;
mod nvtx;
mod tensor_map;

use std::ffi::c_void;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Once};

use cudarc::driver::sys;

use super::{Backend, DEVICE_MEMORY, DeviceInfo, HOST_MEMORY, Note, Priority, RowCopy, Signal};
use crate::error::Error;
use crate::phases::Stopwatch;
use context::{Context, Entered};
use driver::{Call, cu, status};
use nvtx::{Nvtx, Range};

pub(crate) use graph::CudaGraph;
pub(crate) use module::{Function, Module};
pub(crate) use tensor_map::{Swizzle, TENSOR_MAP_BYTES, TensorMap, Windows};

/// A GPU: a context on it, and what its streams may ask for.
pub(crate) struct Cuda {
    context: Context,
    /// The lowest and the highest priority of a stream; the highest is the smallest number.
    priorities: [i32; 2],
    /// The profiler that names are given to, if there is one.
    nvtx: Option<&'static Nvtx>,
    /// Used to log once why threads are not kept next to the GPU.
    unplaced: Once,
}

/// The shape of a kernel launch.
pub(crate) struct LaunchShape {
    pub grid: [u32; 3],
    /// Blocks of a cluster, along the grid's first dimension; 1 means no cluster.
    pub cluster: u32,
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether the kernel waits for its predecessor in the stream itself, so that it may start before that has ended.
    pub waits_itself: bool,
}

impl Cuda {
    /// Opens the GPU `ordinal`. The driver's version is checked before any call that an older driver lacks. `watch`
    /// records the time of each step.
    pub fn open(ordinal: usize, watch: &mut Stopwatch) -> Result<(Self, DeviceInfo), Error> {
        let driver_version = driver::start(&format!("cuda:{ordinal}"))?;
        watch.lap("driver");
        let (context, _) = Context::retain(ordinal)?;
        Self::of(context, ordinal, driver_version, watch)
    }

    /// The number of GPUs that the driver has.
    pub fn count() -> Result<usize, Error> {
        driver::start("cuda")?;
        context::count(Call { device: "cuda" })
    }

    /// Opens the GPU of a context that the caller made.
    ///
    /// # Safety
    /// The context is null, or alive until the result and all that is made of it are dropped.
    pub unsafe fn open_context(raw: *mut c_void, watch: &mut Stopwatch) -> Result<(Self, DeviceInfo), Error> {
        let driver_version = driver::start("cuda")?;
        watch.lap("driver");
        // SAFETY: by the caller.
        let (context, ordinal) = unsafe { Context::of_caller(raw)? };
        Self::of(context, ordinal, driver_version, watch)
    }

    fn of(
        context: Context,
        ordinal: usize,
        driver_version: u32,
        watch: &mut Stopwatch,
    ) -> Result<(Self, DeviceInfo), Error> {
        watch.lap("context");
        let info = describe(context.call(), context.device(), ordinal, driver_version)?;
        let mut priorities = [0, 0];
        let [low, high] = &mut priorities;
        let entered = context.enter()?;
        // SAFETY: the context is current and both pointers are to live integers.
        unsafe { cu!(context.call(), cuCtxGetStreamPriorityRange(low, high))? };
        drop(entered);
        watch.lap("device attributes");
        Ok((Self { context, priorities, nvtx: nvtx::attached(), unplaced: Once::new() }, info))
    }

    fn call(&self) -> Call<'_> {
        self.context.call()
    }

    /// Whether the caller made the device's context.
    pub fn is_in_context_of_caller(&self) -> bool {
        !self.context.is_retained()
    }

    /// Makes the context current, see [`Context::enter`].
    fn enter(&self) -> Result<Entered<'_>, Error> {
        self.context.enter()
    }

    /// Prepares the calling thread for a call on a stream. A default stream is that of the current context, so for one
    /// the context is current until the result is dropped.
    fn reach(&self, stream: u64) -> Result<Option<Entered<'_>>, Error> {
        self.context.adopt_thread()?;
        caller::is_default(stream).then(|| self.enter()).transpose()
    }

    /// Shows profilers, if there are any, what this thread does until the result is dropped, under a name.
    pub fn range(&self, name: fmt::Arguments<'_>) -> Range {
        Range::new(self.nvtx, name)
    }

    /// Launches one kernel: `args` is its one by-value struct, 64-byte aligned.
    ///
    /// # Safety
    /// `args` has the size and layout of the function's parameter, the addresses in it are valid for what the kernel
    /// does with them until it has run, and the launch shape is one that the kernel is made for; one that waits itself
    /// does so in every block before it touches what another launch reads or writes.
    pub unsafe fn launch(
        &self,
        function: &Function,
        shape: &LaunchShape,
        args: &[u8],
        stream: u64,
    ) -> Result<(), Error> {
        let &LaunchShape { grid, cluster, block, shared_bytes, waits_itself } = shape;
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY,
        };
        let early = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let together = sys::CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 },
        };
        let wanted = [(waits_itself, EARLY, early), (cluster > 1, CLUSTER, together)];
        let mut attributes = [sys::CUlaunchAttribute { id: EARLY, pad: [0; 4], value: early }; 2];
        let mut count = 0;
        for (_, id, value) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
            attributes[count] = sys::CUlaunchAttribute { id, pad: [0; 4], value };
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared_bytes,
            hStream: stream as sys::CUstream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut parameters = [args.as_ptr() as *mut c_void];
        // SAFETY: config, attributes and parameters live over the call, which copies them; the rest by the caller.
        unsafe { cu!(self.call(), cuLaunchKernelEx(&config, function.raw(), parameters.as_mut_ptr(), null_mut())) }
    }

    /// Adds to the graph that `stream` captures a record of `event`, a timing event, behind all work so far.
    pub fn mark(&self, event: u64, stream: u64) -> Result<(), Error> {
        let (event, stream) = (event as sys::CUevent, stream as sys::CUstream);
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: the caller passes live handles of this context, and the event outlives the graph.
        unsafe { cu!(self.call(), cuEventRecordWithFlags(event, stream, external)) }
    }

    /// Bytes of device memory that are free.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; both pointers are to live integers.
        unsafe { cu!(self.call(), cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok(free as u64)
    }

    /// Turns an out-of-memory status into an error that names the kind of memory; the caller adds the free bytes.
    fn out_of_memory(&self, error: Error, what: &str, bytes: usize) -> Error {
        match error {
            Error::Driver { code, .. } if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32 => {
                Error::OutOfMemory {
                    device: self.call().device.to_owned(),
                    what: what.to_owned(),
                    needed_bytes: bytes as u64,
                    free_bytes: 0,
                    fitting_batch: None,
                }
            }
            other => other,
        }
    }
}

/// The description of an opened device; refuses a device that the kernels do not run on.
fn describe(call: Call<'_>, device: i32, ordinal: usize, driver_version: u32) -> Result<DeviceInfo, Error> {
    use sys::CUdevice_attribute as A;
    let attribute = |which: A| -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: the device handle came from cuDeviceGet; the pointer is to a live integer.
        unsafe { cu!(call, cuDeviceGetAttribute(&mut value, which, device))? };
        Ok(value)
    };
    let mut name = [0_u8; 256];
    let mut memory_bytes = 0_usize;
    // SAFETY: as above; the name's length is given, and the driver ends it with a NUL.
    unsafe {
        cu!(call, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        cu!(call, cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
    }
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let name = String::from_utf8_lossy(&name[..end]).into_owned();
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
    if major < 8 {
        return Err(Error::Unsupported {
            what: format!("cuda:{ordinal} ({name}), a GPU of compute capability {major}.{minor},"),
            instead: "the kernels need 8.0 (Ampere) or newer; `--device cpu` runs without a GPU".into(),
        });
    }
    Ok(DeviceInfo {
        target: format!("cuda:{ordinal}"),
        name,
        compute_capability: [major, minor],
        units: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        memory_bytes: memory_bytes as u64,
        driver_version,
    })
}

impl Backend for Cuda {
    fn stream_create(&self, priority: Priority, name: &str) -> Result<u64, Error> {
        let _entered = self.enter()?;
        let [low, high] = self.priorities;
        let priority = match priority {
            Priority::Normal => low,
            Priority::High => high,
        };
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is to a live handle.
        unsafe { cu!(self.call(), cuStreamCreateWithPriority(&mut stream, flags, priority))? };
        if let Some(nvtx) = self.nvtx {
            nvtx.name_stream(stream as u64, name);
        }
        Ok(stream as u64)
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: the caller passes a live stream of this context, for the last time.
        driver::at_exit(unsafe { cu!(self.call(), cuStreamDestroy_v2(stream as sys::CUstream)) })
    }

    fn event_create(&self, timing: bool) -> Result<u64, Error> {
        use sys::CUevent_flags as F;
        let _entered = self.enter()?;
        let no_timing = if timing { 0 } else { F::CU_EVENT_DISABLE_TIMING as u32 };
        let mut event = null_mut();
        // SAFETY: the context is current; the pointer is to a live handle.
        unsafe { cu!(self.call(), cuEventCreate(&mut event, F::CU_EVENT_BLOCKING_SYNC as u32 | no_timing))? };
        Ok(event as u64)
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        // SAFETY: the caller passes a live event of this context, for the last time.
        driver::at_exit(unsafe { cu!(self.call(), cuEventDestroy_v2(event as sys::CUevent)) })
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        let _entered = self.reach(stream)?;
        // SAFETY: the caller passes live handles of this context.
        unsafe { cu!(self.call(), cuEventRecord(event as sys::CUevent, stream as sys::CUstream)) }
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        let _entered = self.reach(stream)?;
        // SAFETY: the caller passes live handles of this context.
        unsafe { cu!(self.call(), cuStreamWaitEvent(stream as sys::CUstream, event as sys::CUevent, 0)) }
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        self.context.adopt_thread()?;
        // SAFETY: the caller passes a live event of this context.
        match unsafe { status!(cuEventQuery(event as sys::CUevent)) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => self.call().check("cuEventQuery", status).map(|()| true),
        }
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        self.context.adopt_thread()?;
        // SAFETY: the caller passes a live event of this context.
        unsafe { cu!(self.call(), cuEventSynchronize(event as sys::CUevent)) }
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        let mut ms = 0.0;
        // SAFETY: the caller passes live events of this context; the pointer is to a live float.
        unsafe { cu!(self.call(), cuEventElapsedTime_v2(&mut ms, start as sys::CUevent, end as sys::CUevent))? };
        Ok(ms)
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        self.context.adopt_thread()?;
        let data = Arc::into_raw(signal.clone()).cast_mut().cast();
        // SAFETY: the caller passes a live stream of this context; `data` keeps the signal alive until `fire` has run,
        // for ever if it never does: after an error nothing proves that it is not enqueued.
        unsafe { cu!(self.call(), cuLaunchHostFunc(stream as sys::CUstream, Some(fire), data)) }
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let _entered = self.enter()?;
        let mut ptr = null_mut();
        // SAFETY: the context is current; the pointer is to a live pointer.
        unsafe { cu!(self.call(), cuMemHostAlloc(&mut ptr, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)) }
            .map_err(|e| self.out_of_memory(e, HOST_MEMORY, bytes))?;
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or_else(|| Error::Internal { what: "a null buffer".into() })?;
        // SAFETY: the driver gave `bytes` writable bytes, and nobody else has them yet.
        unsafe { ptr.write_bytes(0, bytes) };
        Ok(ptr)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, _bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller passes what `host_alloc` returned, once, with no work referring to it.
        driver::at_exit(unsafe { cu!(self.call(), cuMemFreeHost(ptr.as_ptr().cast())) })
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        let _entered = self.enter()?;
        let mut addr = 0;
        // SAFETY: the context is current; the pointer is to a live integer.
        unsafe { cu!(self.call(), cuMemAlloc_v2(&mut addr, bytes)) }
            .map_err(|e| self.out_of_memory(e, DEVICE_MEMORY, bytes))?;
        Ok(addr)
    }

    unsafe fn device_free(&self, addr: u64, _bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller passes what `device_alloc` returned, once, with no work referring to it.
        driver::at_exit(unsafe { cu!(self.call(), cuMemFree_v2(addr)) })
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        self.context.adopt_thread()?;
        // SAFETY: by the caller, see the trait.
        unsafe { cu!(self.call(), cuMemcpyHtoDAsync_v2(dst, src.cast(), bytes, stream as sys::CUstream)) }
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.context.adopt_thread()?;
        // SAFETY: by the caller, see the trait.
        unsafe { cu!(self.call(), cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, stream as sys::CUstream)) }
    }

    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        let _entered = self.reach(rows.from.stream.raw())?;
        // SAFETY: by the caller, see the trait.
        unsafe { caller::copy_rows(self.call(), dst, dst_pitch, rows) }
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.context.adopt_thread()?;
        // SAFETY: by the caller, see the trait.
        unsafe { cu!(self.call(), cuMemcpyDtoDAsync_v2(dst, src, bytes, stream as sys::CUstream)) }
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        let _entered = self.reach(stream)?;
        // SAFETY: by the caller.
        unsafe { caller::admit_stream(&self.context, stream) }
    }

    fn admit_memory(&self, addr: u64) -> Result<(), Error> {
        self.context.adopt_thread()?;
        caller::admit_memory(&self.context, addr)
    }

    /// Shows profilers the enqueueing of a batch as a range.
    fn note(&self, note: Note) -> Result<(), Error> {
        if let Some(nvtx) = self.nvtx {
            match note {
                Note::Batch { number, slot, rows, .. } => {
                    nvtx.push(format_args!("batch {number} (slot {slot}, {rows} rows)"));
                }
                Note::Enqueued => nvtx.pop(),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The only callback. The driver runs it on a thread of its own, where no driver call is allowed.
unsafe extern "C" fn fire(data: *mut c_void) {
    // SAFETY: `notify` made the pointer of an `Arc`, for this one run.
    unsafe { Arc::from_raw(data.cast_const().cast::<Signal>()) }.fire();
}
