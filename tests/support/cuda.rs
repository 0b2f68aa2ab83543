//! The CUDA objects of a program: a context, streams, memory. They use the same driver library as trefoil.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys;
use trefoil::{CallerStream, Device, Error};

/// Turns a status into a result; the error of a failed call is trefoil's own.
pub fn checked(name: &'static str, status: sys::CUresult) -> Result<(), Error> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(Error::Internal { what: format!("{name} failed with {status:?}") }),
    }
}

/// Calls a driver function for the program: `cuda!(cuStreamSynchronize(stream))`.
macro_rules! cuda {
    ($function:ident($($argument:expr),*)) => {{
        // SAFETY: each use passes live handles, memory and places for results, as the driver's documentation asks.
        let status = unsafe { cudarc::driver::sys::$function($($argument),*) };
        $crate::cuda::checked(stringify!($function).trim_end_matches("_v2"), status)
    }};
}
pub(crate) use cuda;

/// A context of the program, current on the thread that made it.
pub struct Context(pub sys::CUcontext);

impl Context {
    pub fn new() -> Result<Self, Error> {
        let mut context = null_mut();
        cuda!(cuInit(0))?;
        cuda!(cuCtxCreate_v4(&mut context, null_mut(), 0, 0))?;
        Ok(Self(context))
    }

    pub fn device(&self) -> Result<Device, Error> {
        // SAFETY: the tests destroy the context when the engines in it are gone.
        unsafe { Device::in_context(self.0.cast()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = cuda!(cuCtxDestroy_v2(self.0));
    }
}

/// A device's primary context, made current on this thread; the open device keeps it alive.
pub struct Primary;

impl Primary {
    pub fn of(_open: &Device) -> Self {
        let mut context = null_mut();
        cuda!(cuDevicePrimaryCtxRetain(&mut context, 0)).unwrap();
        cuda!(cuCtxPushCurrent_v2(context)).unwrap();
        Self
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        let mut context = null_mut();
        cuda!(cuCtxPopCurrent_v2(&mut context)).unwrap();
        cuda!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    }
}

/// A stream of the program in the current context, which does not wait for the default stream.
pub struct Stream(pub sys::CUstream);

impl Stream {
    pub fn new() -> Result<Self, Error> {
        let mut stream = null_mut();
        cuda!(cuStreamCreate(&mut stream, 1))?;
        Ok(Self(stream))
    }

    pub fn caller(&self) -> CallerStream {
        // SAFETY: the tests destroy the stream after the last call that gets it.
        unsafe { CallerStream::from_raw(self.0.cast::<c_void>()) }
    }

    pub fn synchronize(&self) -> Result<(), Error> {
        cuda!(cuStreamSynchronize(self.0))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = cuda!(cuStreamDestroy_v2(self.0));
    }
}

/// Device memory of the program, in the current context.
pub struct Memory(pub u64);

impl Memory {
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let mut addr = 0;
        cuda!(cuMemAlloc_v2(&mut addr, bytes))?;
        Ok(Self(addr))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = cuda!(cuMemFree_v2(self.0));
    }
}
