//! Streams and memory of the caller: checks that the device can work with them, and copies of rows.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use cudarc::driver::sys;

use super::context::Context;
use super::driver::{Call, cu};
use crate::device::RowCopy;
use crate::error::Error;

/// `CU_STREAM_PER_THREAD`. It means another stream on each thread, and a batch may move between threads.
const PER_THREAD: u64 = 2;

/// Whether the handle names the default stream of the current context: null or `CU_STREAM_LEGACY`.
pub(super) fn is_default(stream: u64) -> bool {
    stream < PER_THREAD
}

/// Refuses a stream of another context, and one that captures. A default stream is checked in the current context.
///
/// # Safety
/// `stream` is alive.
pub(super) unsafe fn admit_stream(context: &Context, stream: u64) -> Result<(), Error> {
    let refuse = |what: &str, expected: &str| Err(Error::option("stream", what, expected));
    if stream == PER_THREAD {
        return refuse("the default stream of each thread", "one that was made, or the legacy default stream");
    }
    let raw = stream as sys::CUstream;
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive by the caller; the pointer is to a live value.
    unsafe { cu!(context.call(), cuStreamIsCapturing(raw, &mut status))? };
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return refuse("one that captures a graph", "one whose work runs");
    }
    let mut of = null_mut();
    // SAFETY: as above.
    unsafe { cu!(context.call(), cuStreamGetCtx(raw, &mut of))? };
    if of != context.raw() {
        return refuse("one of another CUDA context", "one of the device's: see Device::in_context");
    }
    Ok(())
}

/// Refuses an address that the driver does not know, and an address of the host or of another GPU.
pub(super) fn admit_memory(context: &Context, addr: u64) -> Result<(), Error> {
    let (mut kind, mut ordinal) = (0_u32, -1_i32);
    let mut which = [
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ];
    let mut into: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    // SAFETY: two attributes, each with a place of its size; the driver looks the address up and reads nothing there.
    unsafe { cu!(context.call(), cuPointerGetAttributes(2, which.as_mut_ptr(), into.as_mut_ptr(), addr))? };
    let is_here = kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 && ordinal == context.device();
    if !is_here {
        let what = format!("{addr:#x}, which is not memory of {}", context.call().device);
        return Err(Error::option("rows", what, "the address of memory of the engine's device"));
    }
    Ok(())
}

/// Copies a caller's rows to `dst` on the caller's stream.
///
/// # Safety
/// See [`Backend::copy_rows`](crate::device::Backend::copy_rows). If the stream is a default one, its context is
/// current.
pub(super) unsafe fn copy_rows(call: Call<'_>, dst: u64, dst_pitch: usize, copy: &RowCopy) -> Result<(), Error> {
    let RowCopy { from, row_bytes, rows } = *copy;
    let stream = from.stream.raw() as sys::CUstream;
    if from.pitch == dst_pitch || rows == 1 {
        // SAFETY: by the caller.
        return unsafe { cu!(call, cuMemcpyDtoDAsync_v2(dst, from.addr, copy.bytes(dst_pitch), stream)) };
    }
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: from.addr,
        srcArray: null_mut(),
        srcPitch: from.pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: dst,
        dstArray: null_mut(),
        dstPitch: dst_pitch,
        WidthInBytes: row_bytes,
        Height: rows,
    };
    // SAFETY: the struct lives over the call, which copies it; the rest by the caller.
    unsafe { cu!(call, cuMemcpy2DAsync_v2(&copy, stream)) }
}
