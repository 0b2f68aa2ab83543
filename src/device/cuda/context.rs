//! The CUDA context of a device: the primary context, shared with the program's own CUDA code, or a context that the
//! program made.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::driver::{Call, at_exit, cu};
use super::nvtx;
use crate::error::Error;

/// A context that is alive until self is dropped: the primary one, which is retained, or a caller's, which the caller
/// keeps.
///
/// Calls that make or load something use the context that is *current* on the calling thread: see [`Context::enter`].
/// Every other call names a stream, event, graph or address, and so its context: copies, launches, records, waits and
/// frees work whichever context is current, even if none is. So a submission needs no call for the context, any thread
/// may submit, wait or drop, and a host program's own current context stays as it is. Profilers do look at the current
/// context: a thread that has none gets this one, once, see [`Context::adopt_thread`].
pub(super) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    target: String,
    is_retained: bool,
}

// SAFETY: a context handle may be used from any thread; the driver locks what needs it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Completes the error of a GPU without memory for a context by the figures that need no context.
fn crowded(error: Error, call: Call<'_>, gpu: sys::CUdevice) -> Error {
    match error {
        Error::Driver { device, operation, status, code, class }
            if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32 =>
        {
            let mut bytes = 0;
            // SAFETY: the device came from cuDeviceGet; the pointer is to a live integer.
            let all = match unsafe { cu!(call, cuDeviceTotalMem_v2(&mut bytes, gpu)) } {
                Ok(()) => format!(" in its {:.1} GiB", bytes as f64 / f64::from(1 << 30)),
                Err(_) => String::new(),
            };
            let status = format!(
                "{status}: there is no memory for a context{all}; `nvidia-smi` shows the processes that use it"
            );
            Error::Driver { device, operation, status, code, class }
        }
        other => other,
    }
}

/// The number of the driver's GPUs. The driver has been started.
pub(super) fn count(call: Call<'_>) -> Result<usize, Error> {
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { cu!(call, cuDeviceGetCount(&mut count))? };
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Makes the context current on the thread while it lives; its drop makes the previous context current again.
#[must_use]
pub(super) struct Entered<'a> {
    context: &'a Context,
    /// Makes the type not `Send`: it belongs to the thread that entered.
    _not_send: PhantomData<*const ()>,
}

impl Context {
    /// Retains the primary context of GPU `ordinal`.
    pub fn retain(ordinal: usize) -> Result<(Self, sys::CUdevice), Error> {
        let target = format!("cuda:{ordinal}");
        let call = Call { device: &target };
        let count = count(call)?;
        let Some(index) = i32::try_from(ordinal).ok().filter(|_| ordinal < count) else {
            let why = match count {
                0 => "the NVIDIA driver finds no GPU".into(),
                1 => "there is one GPU, cuda:0".into(),
                _ => format!("there are {count} GPUs, cuda:0 to cuda:{}", count - 1),
            };
            return Err(Error::NoDevice { target, why });
        };
        let (mut device, mut raw) = (0, null_mut());
        // SAFETY: the index is in range; the pointers are to live handles.
        unsafe {
            cu!(call, cuDeviceGet(&mut device, index))?;
            cu!(call, cuDevicePrimaryCtxRetain(&mut raw, device)).map_err(|error| crowded(error, call, device))?;
        }
        Ok((Self { raw, device, target, is_retained: true }, device))
    }

    /// A context that the caller made, and the ordinal of its GPU.
    ///
    /// # Safety
    /// It is null, or alive until self is dropped.
    pub unsafe fn of_caller(raw: *mut c_void) -> Result<(Self, usize), Error> {
        if raw.is_null() {
            return Err(Error::option("context", "null", "a CUcontext"));
        }
        let mut this = Self { raw: raw.cast(), device: 0, target: "cuda".into(), is_retained: false };
        let mut device = 0;
        let entered = this.enter()?;
        // SAFETY: the context is current; the pointer is to a live integer.
        unsafe { cu!(this.call(), cuCtxGetDevice(&mut device))? };
        drop(entered);
        for ordinal in 0..count(this.call())? {
            let mut other = 0;
            // SAFETY: the index is in range; the pointer is to a live handle.
            unsafe { cu!(this.call(), cuDeviceGet(&mut other, ordinal as i32))? };
            if other == device {
                (this.device, this.target) = (device, format!("cuda:{ordinal}"));
                return Ok((this, ordinal));
            }
        }
        Err(Error::option("context", "one of a GPU that the driver does not list", "one of a GPU that is visible"))
    }

    /// Whether the context is the primary one.
    pub fn is_retained(&self) -> bool {
        self.is_retained
    }

    pub fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    pub fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub fn call(&self) -> Call<'_> {
        Call { device: &self.target }
    }

    /// Makes the context current on this thread if none is, and names the thread for a profiler; once for each thread.
    pub fn adopt_thread(&self) -> Result<(), Error> {
        thread_local! {
            static ADOPTED: Cell<bool> = const { Cell::new(false) };
        }
        if ADOPTED.get() {
            return Ok(());
        }
        let mut current = null_mut();
        // SAFETY: the pointer is to a live handle; the context is alive until self is dropped.
        unsafe {
            cu!(self.call(), cuCtxGetCurrent(&mut current))?;
            if current.is_null() {
                cu!(self.call(), cuCtxSetCurrent(self.raw))?;
            }
        }
        ADOPTED.set(true);
        if let Some(nvtx) = nvtx::attached() {
            nvtx.name_thread();
        }
        Ok(())
    }

    /// Makes the context current on this thread until the result is dropped.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        // SAFETY: the context is alive until self is dropped.
        unsafe { cu!(self.call(), cuCtxPushCurrent_v2(self.raw))? };
        Ok(Entered { context: self, _not_send: PhantomData })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut left = null_mut();
        // SAFETY: `enter` pushed the context on this thread; the pointer is to a live handle.
        if let Err(error) = at_exit(unsafe { cu!(self.context.call(), cuCtxPopCurrent_v2(&mut left)) }) {
            log::error!("leaving the context: {error}");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_retained {
            return;
        }
        // SAFETY: retained once by `retain`, released once; every handle in it held a reference to self.
        if let Err(error) = at_exit(unsafe { cu!(self.call(), cuDevicePrimaryCtxRelease_v2(self.device)) }) {
            log::error!("releasing the context: {error}");
        }
    }
}
