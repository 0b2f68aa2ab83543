//! The device's primary context, shared with a host program's own CUDA.

use std::cell::Cell;
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::driver::{Call, at_exit, cu};
use crate::error::Error;

/// A retained primary context.
///
/// Handles know their context, but allocations, copies and launches also need it to be *current* on the calling
/// thread. [`Context::bind`] asks the driver and sets it where it is not: one cheap call, made when something is built
/// and once for each submission, so that a host program may switch devices on the same thread in between.
pub(super) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    target: String,
}

// SAFETY: a context handle may be used from any thread; the driver locks what needs it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

thread_local! {
    /// Whether this thread has had a context bound by trefoil; waiting on events asks no more than that.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

impl Context {
    /// Retains the primary context of GPU `ordinal`.
    pub fn retain(ordinal: usize) -> Result<(Self, sys::CUdevice), Error> {
        let target = format!("cuda:{ordinal}");
        let call = Call { device: &target };
        let mut count = 0;
        // SAFETY: the driver is started; the pointer is to a live integer.
        unsafe { cu!(call, cuDeviceGetCount(&mut count))? };
        let Some(index) = i32::try_from(ordinal).ok().filter(|&index| index < count) else {
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
            cu!(call, cuDevicePrimaryCtxRetain(&mut raw, device))?;
        }
        Ok((Self { raw, device, target }, device))
    }

    pub fn call(&self) -> Call<'_> {
        Call { device: &self.target }
    }

    /// Makes the context current on this thread, whatever was current before.
    pub fn bind(&self) -> Result<(), Error> {
        let mut current = null_mut();
        // SAFETY: the pointer is to a live handle.
        unsafe { cu!(self.call(), cuCtxGetCurrent(&mut current))? };
        if current != self.raw {
            // SAFETY: the context is retained until self is dropped.
            unsafe { cu!(self.call(), cuCtxSetCurrent(self.raw))? };
        }
        BOUND.set(true);
        Ok(())
    }

    /// Makes sure that this thread has a context at all: what calls on events need.
    pub fn bind_thread(&self) -> Result<(), Error> {
        if BOUND.get() { Ok(()) } else { self.bind() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`, released once; every handle in it held a reference to self.
        if let Err(error) = at_exit(unsafe { cu!(self.call(), cuDevicePrimaryCtxRelease_v2(self.device)) }) {
            log::error!("releasing the context: {error}");
        }
    }
}
