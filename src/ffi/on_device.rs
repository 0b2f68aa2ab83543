//! Functions for programs with CUDA code of their own: their contexts and streams, rows in device memory, and results
//! that stay there.

use std::ffi::c_void;

use super::batch::{Filling, stays};
use super::callback;
use super::growing;
use super::handles::{insert, look, take_if, trefoil_batch, trefoil_device, trefoil_device_output, with};
use super::layout::{trefoil_device_output_info, trefoil_device_rows};
use super::pointers::Out;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::device::{CallerStream, Device, DeviceRows};
use crate::error::Error;
use crate::ring::DeviceOutput;

/// Opens the GPU of a CUDA context that the program made, a CUcontext: engines are in this context, in place of the
/// device's primary context. This is for programs that call cuCtxCreate(); programs that are built on the CUDA runtime,
/// such as torch, use the primary context, which trefoil_device_open() shares.
///
/// Do not destroy the context while trefoil has anything in it: release everything except the device, and wait until
/// trefoil_device_is_unused() returns OK.
///
/// # Safety
/// `context` is a live CUcontext or null, `device` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_open_context(
    context: *mut c_void,
    device: *mut trefoil_device,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(device, "device")? };
        if context.is_null() {
            return Err(Failure::null("context"));
        }
        // SAFETY: by the caller.
        to.set(insert(unsafe { Device::in_context(context)? })?);
        Ok(())
    })
}

/// OK if nothing is left on a device except this handle, otherwise NOT_READY. Work of the GPU, and threads of the
/// library, may end a moment after the last handle of an engine is released. After a fault it may stay NOT_READY for
/// ever.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_device_is_unused(device: trefoil_device) -> trefoil_status {
    guard(|| match look(device, Device::is_unused)? {
        true => Ok(()),
        false => Err(Failure::not_ready()),
    })
}

/// Makes a batch take its rows from device memory; rows that were written into the batch itself are ignored. The
/// submission enqueues a copy of the rows, from device memory to device memory, on the stream of `rows`: after all work
/// that is already on this stream, and before its later work, which may overwrite the rows. No thread waits for the
/// stream.
///
/// The copy, and so the stream, waits until an earlier batch has been read. On the CPU, where the calling thread takes
/// the place of the stream, the submission copies the rows before it returns. Returns INVALID_ARGUMENT for a stream of
/// another context, a stream that captures a graph, memory that is not the device's, and a fleet's batch.
///
/// # Safety
/// `rows` is null, or has its `size` set and so many bytes; its stream lives until the batch is submitted or released;
/// while the stream runs the copy, the memory has as many rows as are submitted, and nothing writes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_read_from(
    batch: trefoil_batch,
    rows: *const trefoil_device_rows,
) -> trefoil_status {
    guard(|| {
        if rows.is_null() {
            return Err(Failure::null("rows"));
        }
        // SAFETY: by the caller.
        let rows = unsafe { growing::read(rows)? };
        with(batch, |filling: &mut Filling| {
            let batch = &mut filling.batch;
            let pitch = if rows.row_pitch == 0 { batch.spec().row_bytes } else { rows.row_pitch };
            // SAFETY: by the caller.
            unsafe {
                let stream = CallerStream::from_raw(rows.stream);
                batch.read_from(DeviceRows { addr: rows.address as u64, pitch, stream })
            }
        })??;
        Ok(())
    })
}

/// Submits the first `rows` rows as trefoil_submit() does, but the result stays on the device. There is no ticket:
/// `output` has at once the address at which the result will be. The engine must be built with `device_results`, and
/// the batch must not be a fleet's; otherwise the call returns INVALID_ARGUMENT.
///
/// The call consumes the batch's handle. Only if the status is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or
/// INVALID_ARGUMENT, the batch stays as it was.
///
/// # Safety
/// `output` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_submit_to_device(
    batch: trefoil_batch,
    rows: usize,
    output: *mut trefoil_device_output,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(output, "output")? };
        let mut taken = take_if(batch, |filling: &Filling| {
            stays(filling.batch.may_submit(rows))?;
            stays(filling.batch.may_stay_on_device())
        })?;
        to.set(insert(taken.object().batch.submit_to_device(rows)?)?);
        Ok(())
    })
}

/// Gives the address of the result, and its event. BUSY while another thread waits for the output.
///
/// # Safety
/// `info` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_output_get_info(
    output: trefoil_device_output,
    info: *mut trefoil_device_output_info,
) -> trefoil_status {
    guard(|| {
        look(output, |output: &DeviceOutput| {
            let spec = output.spec();
            let value = |size| {
                Ok(trefoil_device_output_info {
                    size,
                    address: output.addr() as *mut c_void,
                    rows: output.rows(),
                    row_bytes: spec.row_bytes,
                    row_pitch: spec.row_pitch,
                    event: output.event(),
                })
            };
            // SAFETY: by the caller.
            unsafe { growing::write(info, "info", value) }
        })?
    })
}

/// Makes a call of an output that puts work on a stream. On the CPU, where the calling thread takes the place of the
/// stream, the call may wait.
fn on_stream(
    output: trefoil_device_output,
    stream: CallerStream,
    call: impl FnOnce(&mut DeviceOutput, CallerStream) -> Result<(), Error>,
) -> Answer {
    with(output, |output: &mut DeviceOutput| {
        if output.event().is_null() {
            may_wait(output)?;
        }
        call(output, stream).map_err(Failure::from)
    })?
}

/// Makes work that is enqueued on `stream` from now on wait until the result is there; null is the default stream. On
/// the CPU, where the calling thread takes the place of the stream, the call blocks; in a callback it returns
/// IN_CALLBACK if the result is not there.
///
/// # Safety
/// `stream` is a live stream or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_output_wait_on(
    output: trefoil_device_output,
    stream: *mut c_void,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        on_stream(output, unsafe { CallerStream::from_raw(stream) }, DeviceOutput::wait_on)
    })
}

/// Declares that work that is enqueued on `stream` so far reads the result. After trefoil_release() of the output, its
/// memory is overwritten only when this work is done, on every stream that was declared. If `stream` was not made to
/// wait for the result, it is made to wait now.
///
/// # Safety
/// `stream` is a live stream or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_output_read_on(
    output: trefoil_device_output,
    stream: *mut c_void,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        on_stream(output, unsafe { CallerStream::from_raw(stream) }, DeviceOutput::read_on)
    })
}

/// Blocks until the result is there. In a callback it returns IN_CALLBACK if the result is not there.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_device_output_wait(output: trefoil_device_output) -> trefoil_status {
    guard(|| {
        with(output, |output: &mut DeviceOutput| {
            may_wait(output)?;
            output.wait().map_err(Failure::from)
        })?
    })
}

/// OK if trefoil_device_output_wait() would return at once, with the result or with a failure; otherwise NOT_READY.
/// BUSY while another thread waits for the output. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_device_output_is_ready(output: trefoil_device_output) -> trefoil_status {
    guard(|| match look(output, is_ready)? {
        true => Ok(()),
        false => Err(Failure::not_ready()),
    })
}

fn is_ready(output: &DeviceOutput) -> bool {
    output.is_ready().unwrap_or(true)
}

/// In a callback, an error if the result is not there, because no call may wait there.
fn may_wait(output: &DeviceOutput) -> Answer {
    if callback::running() && !is_ready(output) {
        return Err(Failure::new(trefoil_status::InCallback, "the result is not there, and a callback does not wait"));
    }
    Ok(())
}
