//! Engines of several sizes: the requested size, and rows that are shorter than their size.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::batch::{Filling, lend};
use super::batcher::Writing;
use super::callback;
use super::growing;
use super::handles::{insert, look, shared, trefoil_batch, trefoil_engine, trefoil_model, trefoil_output, trefoil_row};
use super::layout::{trefoil_batch_info, trefoil_port, trefoil_size};
use super::output::Landed;
use super::pointers::{Out, slice, text};
use super::port::typed;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::engine::Engine;
use crate::model::Model;
use crate::tensor::{RowSpec, Size};

/// The size in a struct from outside.
///
/// # Safety
/// `from` is null, or has its `size` set and so many bytes, and its names and values are as many as it says.
pub(super) unsafe fn read(from: *const trefoil_size, name: &str) -> Answer<Size> {
    if from.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: by the caller.
    let trefoil_size { batch, names, values, count, .. } = unsafe { growing::read(from)? };
    // SAFETY: by the caller.
    let (names, values) = unsafe { (slice(names, count, "names")?, slice(values, count, "values")?) };
    names.iter().zip(values).try_fold(Size::new(batch), |size, (&name, &value)| {
        // SAFETY: by the caller.
        Ok(size.dim(unsafe { text(name, "a name of `names`")? }, value))
    })
}

/// The model at other sizes of its free dimensions. Its engines have these sizes unless their options name others. A
/// network of images from a folder has the dimensions `height` and `width`. The `batch` of `wanted` is ignored. Returns
/// INVALID_ARGUMENT for a dimension that the model does not have, and for sizes that it cannot have, with the reason.
///
/// # Safety
/// `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `sized`
/// can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_at(
    model: trefoil_model,
    wanted: *const trefoil_size,
    sized: *mut trefoil_model,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, wanted) = unsafe { (Out::new(sized, "sized")?, read(wanted, "wanted")?) };
        to.set(insert(shared::<Model>(model)?.at(&wanted)?)?);
        Ok(())
    })
}

/// The model with a declaration that rows may be shorter than an engine's size along the free dimension `dim`. `names`
/// has every input with this dimension, `count` of them, and `values` the numbers that fill up shorter values;
/// trefoil_batch_write_port() writes this padding. The caller guarantees that the model ignores padded elements, for
/// example by a mask.
///
/// # Safety
/// `dim` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values`
/// is null or has `count` numbers; `padded` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_padded(
    model: trefoil_model,
    dim: *const c_char,
    names: *const *const c_char,
    values: *const f64,
    count: usize,
    padded: *mut trefoil_model,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (dim, to) = unsafe { (text(dim, "dim")?, Out::new(padded, "padded")?) };
        // SAFETY: by the caller.
        let (names, values) = unsafe { (slice(names, count, "names")?, slice(values, count, "values")?) };
        let input = |(&name, &value): (&*const c_char, &f64)| -> Answer<(&str, f64)> {
            // SAFETY: by the caller.
            Ok((unsafe { text(name, "a name of `names`")? }, value))
        };
        let inputs = names.iter().zip(values).map(input).collect::<Answer<Vec<_>>>()?;
        to.set(insert(shared::<Model>(model)?.padded(dim, &inputs)?)?);
        Ok(())
    })
}

/// Lends a batch for rows of the dimensions in `wanted`, at the smallest size of the engine that holds such rows, and
/// `batch` of them. Waits up to `limit_ns`, whatever limit the engine was built with. trefoil_batch_get_info() and
/// trefoil_batch_describe_port() describe its rows. Returns INVALID_ARGUMENT, with a list of the sizes, if no size
/// holds them; otherwise as trefoil_acquire_within().
///
/// # Safety
/// `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `batch`
/// can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_acquire_for(
    engine: trefoil_engine,
    wanted: *const trefoil_size,
    limit_ns: u64,
    batch: *mut trefoil_batch,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, wanted) = unsafe { (Out::new(batch, "batch")?, read(wanted, "wanted")?) };
        lend(&to, shared::<Arc<Engine>>(engine)?.acquire_for_within(&wanted, callback::limit(limit_ns))?)
    })
}

/// Describes a batch and its rows.
///
/// # Safety
/// `info` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_get_info(batch: trefoil_batch, info: *mut trefoil_batch_info) -> trefoil_status {
    guard(|| {
        let (capacity, spec) =
            look(batch, |filling: &Filling| (filling.batch.capacity(), filling.batch.spec().clone()))?;
        let RowSpec { row_bytes, row_pitch, .. } = spec;
        let value = |size| Ok(trefoil_batch_info { size, capacity, row_bytes, row_pitch, ports: spec.ports().len() });
        // SAFETY: by the caller.
        unsafe { growing::write(info, "info", value) }
    })
}

/// A port of the rows of a batch, by its number from 0 on.
///
/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_describe_port(
    batch: trefoil_batch,
    index: usize,
    port: *mut trefoil_port,
) -> trefoil_status {
    guard(|| {
        let spec = look(batch, |filling: &Filling| filling.batch.spec().clone())?;
        // SAFETY: by the caller.
        unsafe { describe(&spec, index, port) }
    })
}

/// A port of a batcher's row, by its number from 0 on.
///
/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_row_describe_port(
    row: trefoil_row,
    index: usize,
    port: *mut trefoil_port,
) -> trefoil_status {
    guard(|| {
        let spec = look(row, |writing: &Writing| writing.row.spec().clone())?;
        // SAFETY: by the caller.
        unsafe { describe(&spec, index, port) }
    })
}

/// A port of the rows of an output, by its number from 0 on.
///
/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_describe_port(
    output: trefoil_output,
    index: usize,
    port: *mut trefoil_port,
) -> trefoil_status {
    guard(|| {
        let spec = look(output, |landed: &Landed| landed.spec().clone())?;
        // SAFETY: by the caller.
        unsafe { describe(&spec, index, port) }
    })
}

/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
unsafe fn describe(spec: &RowSpec, index: usize, port: *mut trefoil_port) -> Answer {
    let found = spec.port(index)?;
    // SAFETY: by the caller.
    unsafe { growing::write(port, "port", |size| Ok(trefoil_port::new(size, found))) }
}

/// Copies `bytes` bytes of elements to a port of row `index` of a batch. `dtype` is a trefoil_dtype, the type of the
/// elements. If there are fewer elements than the port has, they are a value that is shorter along the dimension that
/// trefoil_model_padded() has named, and the call adds the padding.
///
/// # Safety
/// `elements` is null or has `bytes` bytes; nobody else writes the row meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_batch_write_port(
    batch: trefoil_batch,
    index: usize,
    port: usize,
    dtype: u32,
    elements: *const c_void,
    bytes: usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let elements = unsafe { slice(elements.cast::<u8>(), bytes, "elements")? };
        look(batch, |filling: &Filling| -> Answer {
            let (row, spec) = (filling.row(index)?, filling.batch.spec());
            // SAFETY: the row lies within the batch, whose handle is in use meanwhile; it is nobody else's by the caller.
            unsafe { write(spec, row, port, dtype, elements) }
        })?
    })
}

/// As trefoil_batch_write_port(), for a batcher's row.
///
/// # Safety
/// `elements` is null or has `bytes` bytes; nobody else writes the row meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_row_write_port(
    row: trefoil_row,
    port: usize,
    dtype: u32,
    elements: *const c_void,
    bytes: usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let elements = unsafe { slice(elements.cast::<u8>(), bytes, "elements")? };
        look(row, |writing: &Writing| -> Answer {
            // SAFETY: it is the row's memory, whose handle is in use meanwhile, and nobody else's by the caller.
            unsafe { write(writing.row.spec(), writing.memory.0, port, dtype, elements) }
        })?
    })
}

/// # Safety
/// A row of the spec lies at `row`, and nobody else accesses it meanwhile.
unsafe fn write(spec: &RowSpec, row: *mut u8, port: usize, dtype: u32, elements: &[u8]) -> Answer {
    let port = typed(spec, port, dtype)?;
    // SAFETY: so many bytes by the caller.
    let row = unsafe { std::slice::from_raw_parts_mut(row, spec.row_bytes) };
    Ok(port.write_bytes(row, elements)?)
}
