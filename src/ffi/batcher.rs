//! Batchers: they form batches of single rows from many threads.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::Memory;
use super::engine::{flag, how, unused};
use super::handles::{
    insert, look, object, shared, take, trefoil_batcher, trefoil_engine, trefoil_row, trefoil_ticket,
};
use super::layout::{trefoil_batcher_options, trefoil_batcher_stats, trefoil_row_options, trefoil_when_full};
use super::pointers::{Out, slice, tell_length};
use super::port::typed;
use super::rows::Rows;
use super::status::{Answer, Failure, guard, trefoil_status};
use super::ticket::Flying;
use super::{callback, growing, sizes};
use crate::engine::Engine;
use crate::ring::{Batcher, Request, Row, RowPriority, WhenFull};
use crate::tensor::RowSpec;

/// A row, and its address.
pub(super) struct Writing {
    pub(super) row: Row,
    pub(super) memory: Memory,
}
object!(Writing, Row);

/// Builds a batcher on an engine: single rows from many threads become its batches. `options` is null for the
/// defaults. The engine's handle may be released afterwards.
///
/// # Safety
/// `options` is null, or has its `size` set and so many bytes; `batcher` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batcher_build(
    engine: trefoil_engine,
    options: *const trefoil_batcher_options,
    batcher: *mut trefoil_batcher,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(batcher, "batcher")?, growing::read(options)?) };
        let mut builder = shared::<Arc<Engine>>(engine)?.batcher().when_full(when_full(&options)?);
        if options.max_delay_ns > 0 {
            builder = builder.max_delay(Duration::from_nanos(options.max_delay_ns));
        }
        if options.rows > 0 {
            builder = builder.rows(options.rows);
        }
        if options.in_flight > 0 {
            builder = builder.in_flight(options.in_flight);
        }
        to.set(insert(Arc::new(builder.build()?))?);
        Ok(())
    })
}

fn when_full(options: &trefoil_batcher_options) -> Answer<WhenFull> {
    unused(options.reserved)?;
    let is = |wanted: trefoil_when_full| options.when_full == wanted as u32;
    Ok(match options.when_full {
        _ if is(trefoil_when_full::Wait) => WhenFull::Wait,
        _ if is(trefoil_when_full::WaitFor) => WhenFull::WaitFor(Duration::from_nanos(options.full_limit_ns)),
        _ if is(trefoil_when_full::Reject) => WhenFull::Reject,
        other => return Err(Failure::argument(format!("when_full is {other}: expected a trefoil_when_full"))),
    })
}

/// # Safety
/// The size of the options is as trefoil_acquire_for() has it, or null.
unsafe fn request<'a>(batcher: &'a Batcher, options: &trefoil_row_options) -> Answer<Request<'a>> {
    unused(options.reserved)?;
    let mut request = batcher.request();
    if !options.at.is_null() {
        // SAFETY: by the caller.
        request = request.size(&unsafe { sizes::read(options.at, "at")? })?;
    }
    if callback::running() {
        request = request.at_once();
    }
    if options.deadline_ns > 0 {
        request = request.deadline(Duration::from_nanos(options.deadline_ns));
    }
    if flag("high_priority", options.high_priority)? {
        request = request.priority(RowPriority::High);
    }
    Ok(request)
}

/// Submits one row: copies `bytes` bytes at `row` into page-locked memory, and commits the row. `bytes` is one row:
/// `row_bytes` of trefoil_engine_input(), or of a row of the size in `at`. The ticket is used as one of
/// trefoil_submit(); its output has one row.
///
/// If no row of page-locked memory is free, the call waits as `when_full` of the batcher says: past its limit it
/// returns TIMEOUT, with TREFOIL_WHEN_FULL_REJECT at once FULL, and past the row's deadline DEADLINE. A call that waits
/// returns CLOSED if the batcher is closed or released. In a callback the call does not wait: it returns FULL or
/// TIMEOUT.
///
/// # Safety
/// `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `row`
/// is null or can be read; `ticket` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batcher_submit(
    batcher: trefoil_batcher,
    options: *const trefoil_row_options,
    row: *const c_void,
    bytes: usize,
    ticket: *mut trefoil_ticket,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(ticket, "ticket")?, growing::read(options)?) };
        let batcher: Arc<Batcher> = shared(batcher)?;
        // SAFETY: by the caller.
        let request = unsafe { request(&batcher, &options)? };
        // SAFETY: by the caller.
        let row = unsafe { one_row(request.input(), row, bytes)? };
        to.set(insert(Flying::Row(request.submit(row)?))?);
        Ok(())
    })
}

/// Submits `count` rows in one call: copies `bytes` bytes, which is one row, from each of `rows`. One ticket and one
/// output are for all rows, in order. The output is there when every row has its answer. If a row has no result,
/// because of a deadline or because no row was free, trefoil_output_row() and other calls for this row return its
/// failure; if no row has a result, trefoil_wait() returns the failure of the first row.
///
/// If no row of page-locked memory is free, the call waits for each row as trefoil_batcher_submit() does, and the
/// status is that row's failure; the limit of `when_full` is for each row, the deadline for all together. A call that
/// waits holds the results of its earlier rows. If such calls together hold all result buffers of the engine, rows fail
/// with TIMEOUT: do not submit more rows at once than the batcher has.
///
/// # Safety
/// `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `rows`
/// is null or has `count` pointers, of which each is null or can be read; `ticket` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batcher_submit_rows(
    batcher: trefoil_batcher,
    options: *const trefoil_row_options,
    rows: *const *const c_void,
    count: usize,
    bytes: usize,
    ticket: *mut trefoil_ticket,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(ticket, "ticket")?, growing::read(options)?) };
        let batcher: Arc<Batcher> = shared(batcher)?;
        if count == 0 {
            return Err(Failure::argument("count is 0: expected at least one row"));
        }
        // SAFETY: by the caller.
        let (rows, request) = unsafe { (slice(rows, count, "rows")?, request(&batcher, &options)?) };
        let of_one = |&pixels: &*const c_void| {
            // SAFETY: by the caller.
            unsafe { one_row(request.input(), pixels, bytes) }
        };
        let rows = rows.iter().map(of_one).collect::<Answer<Vec<&[u8]>>>()?;
        let tickets = request.submit_rows(&rows);
        to.set(insert(Flying::Rows(Rows::new(batcher.origin(), tickets)))?);
        Ok(())
    })
}

/// The bytes of one row from outside; an error for null or another length.
///
/// # Safety
/// `pixels` is null or can be read.
unsafe fn one_row<'a>(spec: &RowSpec, pixels: *const c_void, bytes: usize) -> Answer<&'a [u8]> {
    if pixels.is_null() {
        return Err(Failure::null("row"));
    }
    let expected = spec.row_bytes;
    if bytes != expected {
        return Err(Failure::argument(format!("bytes is {bytes}: expected {expected}, one row")));
    }
    // SAFETY: not null, so it can be read by the caller; a row is no longer than the largest slice.
    Ok(unsafe { std::slice::from_raw_parts(pixels.cast(), bytes) })
}

/// Lends a row to be written in place. It delays no other row, however long it is held. If no row is free, the call
/// waits, with the statuses of trefoil_batcher_submit().
///
/// # Safety
/// `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `row`
/// can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batcher_row(
    batcher: trefoil_batcher,
    options: *const trefoil_row_options,
    row: *mut trefoil_row,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(row, "row")?, growing::read(options)?) };
        let batcher: Arc<Batcher> = shared(batcher)?;
        // SAFETY: by the caller.
        let mut row = unsafe { request(&batcher, &options)? }.row()?;
        let memory = Memory(row.bytes_mut().as_mut_ptr());
        to.set(insert(Writing { row, memory })?);
        Ok(())
    })
}

/// The address of a row, in page-locked memory: a multiple of 256. The program may write the row until it is submitted
/// or released. The library cannot detect a write after that; it may damage another row. `bytes` is null, or gets the
/// length of the row.
///
/// # Safety
/// `memory` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_row_memory(
    row: trefoil_row,
    memory: *mut *mut c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(memory, "memory")? };
        let (at, length) = look(row, |writing: &Writing| (writing.memory, writing.row.spec().row_bytes))?;
        to.set(at.0.cast());
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// The address of a port of a row, by the port's number, as trefoil_batch_port() gives it.
///
/// # Safety
/// `elements` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_row_port(
    row: trefoil_row,
    port: usize,
    dtype: u32,
    elements: *mut *mut c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(elements, "elements")? };
        let (at, length) = look(row, |writing: &Writing| -> Answer<_> {
            let port = typed(writing.row.spec(), port, dtype)?;
            // SAFETY: within the row.
            Ok((unsafe { writing.memory.0.add(port.offset) }, port.bytes()))
        })??;
        to.set(at.cast());
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// Commits a row to the queue. Never waits. The call consumes the row's handle, and its memory must not be written any
/// more, unless the status is INVALID_HANDLE, WRONG_KIND, BUSY or NULL_POINTER.
///
/// # Safety
/// `ticket` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_row_submit(row: trefoil_row, ticket: *mut trefoil_ticket) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(ticket, "ticket")? };
        let mut taken = take::<Writing>(row)?;
        to.set(insert(Flying::Row(taken.object().row.submit()?))?);
        Ok(())
    })
}

/// Closes a batcher to new rows and waits, up to `limit_ns`, until committed rows have their answers. With `abort`,
/// rows still in the queue are answered with CLOSED and not computed, and so are those in flight once the device has
/// finished them. Then the call waits, up to the same limit, until the callbacks of the batcher's tickets have
/// returned; a call from within a callback does not wait. The handle stays valid; submissions return CLOSED, also of
/// rows that were lent before. The engine stays open.
///
/// Past the limit the call returns TIMEOUT, and after a fault FAULT. Then the batcher is closed to new rows all the
/// same, and callbacks may still run. A second call waits again; one with `abort` overrules an earlier one without.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_batcher_close(batcher: trefoil_batcher, abort: u32, limit_ns: u64) -> trefoil_status {
    guard(|| {
        let (batcher, start): (Arc<Batcher>, _) = (shared(batcher)?, Instant::now());
        let limit = callback::limit(limit_ns);
        batcher.close(how(abort)?, limit)?;
        callback::drained(limit.saturating_sub(start.elapsed()), |origin| *origin == batcher.origin())
    })
}

/// Counts of a batcher's work so far. The call allocates, so do not make it for every row.
///
/// # Safety
/// `stats` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batcher_get_stats(
    batcher: trefoil_batcher,
    stats: *mut trefoil_batcher_stats,
) -> trefoil_status {
    guard(|| {
        let batcher: Arc<Batcher> = shared(batcher)?;
        let value = |size| {
            let now = batcher.stats();
            let nanos = |fraction| u64::try_from(now.queue_time(fraction).as_nanos()).unwrap_or(u64::MAX);
            Ok(trefoil_batcher_stats {
                size,
                batches: now.batches(),
                rows: now.rows(),
                rejected: now.rejected,
                expired: now.expired,
                runs: now.runs,
                queued: batcher.queued() as u64,
                queue_p50_ns: nanos(0.5),
                queue_p99_ns: nanos(0.99),
            })
        };
        // SAFETY: by the caller.
        unsafe { growing::write(stats, "stats", value) }
    })
}
