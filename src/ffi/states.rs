//! Models with states: values of one batch that the next batch reads.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::callback;
use super::handles::{insert, shared, trefoil_engine, trefoil_model};
use super::pointers::{Out, slice, text};
use super::port::of_dtype;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::engine::Engine;
use crate::model::Model;

/// The model with the input `input` as a state, which stays on the device: its value is the value of the output
/// `output` in the previous batch, and zeros at first. Rows have neither this input nor this output. Each row of a
/// batch continues with the state of the same row, so a batch must have as many rows as one of the engine's sizes. Such
/// a model cannot have a batcher or several compute streams.
///
/// # Safety
/// `input` and `output` are C strings or null; `with_state` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_with_state(
    model: trefoil_model,
    input: *const c_char,
    output: *const c_char,
    with_state: *mut trefoil_model,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (input, output) = unsafe { (text(input, "input")?, text(output, "output")?) };
        // SAFETY: by the caller.
        let to = unsafe { Out::new(with_state, "with_state")? };
        to.set(insert(shared::<Model>(model)?.with_state(input, output)?)?);
        Ok(())
    })
}

/// Sets all states of the engine to zeros for the next batch, or for the next call that reads or writes a state. Does
/// not wait.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_engine_reset_states(engine: trefoil_engine) -> trefoil_status {
    guard(|| {
        shared::<Arc<Engine>>(engine)?.reset_states();
        Ok(())
    })
}

/// Copies the state whose input has this name to `elements`, after all batches and resets so far: the rows of the
/// largest batch, one behind the other, in `bytes` bytes. `dtype` is a trefoil_dtype, the type of its elements. Waits
/// for these batches; in a callback it returns IN_CALLBACK.
///
/// # Safety
/// `name` is a C string or null; `bytes` bytes can be written at `elements`, or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_read_state(
    engine: trefoil_engine,
    name: *const c_char,
    dtype: u32,
    elements: *mut c_void,
    bytes: usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let name = unsafe { text(name, "name")? };
        if elements.is_null() {
            return Err(Failure::null("elements"));
        }
        let engine = with_state(engine, name, dtype)?;
        let read = engine.read_state_bytes(name, bytes)?;
        // SAFETY: as many bytes were read, which can be written by the caller; what was read is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(read.as_ptr(), elements.cast::<u8>(), read.len()) };
        Ok(())
    })
}

/// Writes all elements of a state for the batches that are submitted from now on; the arguments are as for
/// trefoil_engine_read_state(). Waits for the batches that were submitted before; in a callback it returns IN_CALLBACK.
///
/// # Safety
/// `name` is a C string or null; `elements` is null or has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_write_state(
    engine: trefoil_engine,
    name: *const c_char,
    dtype: u32,
    elements: *const c_void,
    bytes: usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let name = unsafe { text(name, "name")? };
        // SAFETY: by the caller.
        let elements = unsafe { slice(elements.cast::<u8>(), bytes, "elements")? };
        with_state(engine, name, dtype)?.write_state_bytes(name, elements)?;
        Ok(())
    })
}

/// The engine, if it has this state with elements of this type and the call may wait.
fn with_state(engine: trefoil_engine, name: &str, dtype: u32) -> Answer<Arc<Engine>> {
    let engine: Arc<Engine> = shared(engine)?;
    of_dtype(engine.state(name)?, dtype)?;
    match callback::running() {
        true => Err(Failure::new(trefoil_status::InCallback, "a callback does not wait for batches")),
        false => Ok(engine),
    }
}
