//! Batches that the program fills.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::callback;
use super::handles::{insert, look, object, shared, take_if, trefoil_batch, trefoil_engine, trefoil_ticket};
use super::pointers::{Out, tell_length};
use super::port::typed;
use super::status::{Answer, Failure, guard, trefoil_status};
use super::ticket::Flying;
use crate::engine::Engine;
use crate::error::Error;
use crate::ring::Batch;

/// A batch, and the address of its first row.
pub(super) struct Filling {
    pub batch: Batch,
    rows: Memory,
}
object!(Filling, Batch);

impl Filling {
    /// The address of a row.
    pub(super) fn row(&self, index: usize) -> Answer<*mut u8> {
        let capacity = self.batch.capacity();
        if index >= capacity {
            return Err(Failure::argument(format!("row {index}: expected one below {capacity}")));
        }
        // SAFETY: below the capacity, so within the buffer.
        Ok(unsafe { self.rows.0.add(index * self.batch.spec().row_pitch) })
    }
}

/// The beginning of page-locked memory that the caller writes while a batch or row is lent.
#[derive(Clone, Copy)]
pub(super) struct Memory(pub *mut u8);

// SAFETY: only passed on to the caller; whoever writes through it, on any thread, does so while the credit is held.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

/// Lends a batch to fill, waiting for a free one up to the engine's limit: then TIMEOUT, with the counts of what is
/// being filled, in flight, and finished but unread.
///
/// # Safety
/// `batch` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_acquire(engine: trefoil_engine, batch: *mut trefoil_batch) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(batch, "batch")? };
        let engine: Arc<Engine> = shared(engine)?;
        lend(&to, if callback::running() { engine.acquire_within(Duration::ZERO)? } else { engine.acquire()? })
    })
}

/// The same with a limit of its own.
///
/// # Safety
/// `batch` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_acquire_within(
    engine: trefoil_engine,
    limit_ns: u64,
    batch: *mut trefoil_batch,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(batch, "batch")? };
        lend(&to, shared::<Arc<Engine>>(engine)?.acquire_within(callback::limit(limit_ns))?)
    })
}

/// Lends a batch if one is free now, else answers NOT_READY.
///
/// # Safety
/// `batch` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_try_acquire(engine: trefoil_engine, batch: *mut trefoil_batch) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(batch, "batch")? };
        lend(&to, shared::<Arc<Engine>>(engine)?.try_acquire()?.ok_or_else(Failure::not_ready)?)
    })
}

pub(super) fn lend(to: &Out<trefoil_batch>, mut batch: Batch) -> Answer {
    let rows = Memory(batch.as_mut_ptr());
    to.set(insert(Filling { batch, rows })?);
    Ok(())
}

/// The address of row `index` of a batch, in page-locked memory: a multiple of 256. `bytes` is null, or gets the length
/// of the row, which is `row_bytes` of trefoil_batch_get_info(). The beginnings of neighbouring rows are `row_pitch`
/// bytes apart. Several threads may write the rows until the batch is submitted or released. The library cannot detect
/// a write after that, or beyond the end of the row; it may damage another batch.
///
/// # Safety
/// `row` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_row(
    batch: trefoil_batch,
    index: usize,
    row: *mut *mut c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(row, "row")? };
        let (at, length) = look(batch, |filling: &Filling| -> Answer<_> {
            Ok((filling.row(index)?, filling.batch.spec().row_bytes))
        })??;
        to.set(at.cast());
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// The address of a port of row `index` of a batch, by the port's number; the same rules hold as for
/// trefoil_batch_row(). The address is a multiple of 16. `dtype` is a trefoil_dtype, the type of the elements that the
/// program writes; if the port has elements of another type, the call fails. `bytes` is null, or gets the length of the
/// port.
///
/// # Safety
/// `elements` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_port(
    batch: trefoil_batch,
    index: usize,
    port: usize,
    dtype: u32,
    elements: *mut *mut c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(elements, "elements")? };
        let (at, length) = look(batch, |filling: &Filling| -> Answer<_> {
            let (row, port) = (filling.row(index)?, typed(filling.batch.spec(), port, dtype)?);
            // SAFETY: within the row.
            Ok((unsafe { row.add(port.offset) }, port.bytes()))
        })??;
        to.set(at.cast());
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// The reason why a batch stays its owner's: only wrong arguments, since submission meets any other failure again.
pub(super) fn stays(checked: Result<(), Error>) -> Answer {
    match checked {
        Err(error @ Error::Option { .. }) => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Submits the first `rows` rows: upload, compute, download. Returns at once, and never waits for the device; only
/// with a fleet's batch, after a fault, it may wait for another device, see trefoil_fleet_build(). Only those rows are
/// uploaded, and the smallest batch size that holds them runs.
///
/// The call consumes the batch's handle, and its rows must not be written any more. Only if the status is
/// INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or INVALID_ARGUMENT, the batch stays as it was.
///
/// # Safety
/// `ticket` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_submit(
    batch: trefoil_batch,
    rows: usize,
    ticket: *mut trefoil_ticket,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(ticket, "ticket")? };
        let mut taken = take_if(batch, |filling: &Filling| stays(filling.batch.may_submit(rows)))?;
        to.set(insert(Flying::Batch(taken.object().batch.submit(rows)?))?);
        Ok(())
    })
}
