//! Engines: their builds, properties and states.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handles::{insert, shared, trefoil_device, trefoil_engine, trefoil_model};
use super::layout::{
    trefoil_engine_options, trefoil_health, trefoil_input, trefoil_precision, trefoil_result, trefoil_tensor,
    trefoil_waiting,
};
use super::pointers::{Out, slice};
use super::status::{Answer, Failure, guard, trefoil_fault_class, trefoil_status};
use super::{callback, growing, sizes};
use crate::device::Device;
use crate::engine::{Engine, EngineBuilder};
use crate::model::Model;
use crate::ring::{Close, Waiting};
use crate::tensor::{InputFormat, OutputKind, Precision};

/// Builds an engine: plans, uploads weights, allocates everything. `options` is null for the defaults. The model's
/// handle may be released afterwards.
///
/// # Safety
/// `options` is null, or has its `size` set and so many bytes, and its `batch_sizes` and `sizes` are as many as it
/// says, the latter each as trefoil_acquire_for() has it; `engine` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_build(
    model: trefoil_model,
    options: *const trefoil_engine_options,
    engine: *mut trefoil_engine,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(engine, "engine")?, growing::read(options)?) };
        let model: Model = shared(model)?;
        // SAFETY: by the caller.
        let builder = unsafe { builder(&model, &options)? };
        to.set(insert(Arc::new(builder.build()?))?);
        Ok(())
    })
}

/// # Safety
/// The batch sizes and sizes are as many as the options say.
pub(super) unsafe fn builder<'a>(model: &'a Model, options: &trefoil_engine_options) -> Answer<EngineBuilder<'a>> {
    let mut builder = Engine::builder(model).input(input(options.input)?).output(output(options)?);
    builder = builder.waiting(waiting(options.waiting)?).precision(precision(options.precision)?);
    unused(options.reserved)?;
    if options.device != 0 {
        builder = builder.on(&shared::<Device>(options.device)?);
    }
    if options.size_count > 0 {
        // SAFETY: so many by the caller.
        let sizes = unsafe { slice(options.sizes, options.size_count, "sizes")? };
        let size = |&size: &_| {
            // SAFETY: by the caller.
            unsafe { sizes::read(size, "a size of `sizes`") }
        };
        builder = builder.sizes(&sizes.iter().map(size).collect::<Answer<Vec<_>>>()?);
    } else if options.batch_size_count > 0 {
        // SAFETY: so many by the caller.
        let sizes = unsafe { slice(options.batch_sizes, options.batch_size_count, "batch_sizes")? };
        builder = builder.batch_sizes(sizes);
    } else if options.batch > 0 {
        builder = builder.batch(options.batch);
    }
    for (count, set) in [
        (options.slots, EngineBuilder::slots as fn(_, _) -> _),
        (options.staging, EngineBuilder::staging),
        (options.results, EngineBuilder::results),
        (options.trace_batches, EngineBuilder::trace_batches),
        (options.compute_streams, EngineBuilder::compute_streams),
    ] {
        if count > 0 {
            builder = set(builder, count);
        }
    }
    if options.acquire_limit_ns > 0 {
        builder = builder.acquire_limit(Duration::from_nanos(options.acquire_limit_ns));
    }
    if flag("high_priority", options.high_priority)? {
        builder = builder.high_priority();
    }
    builder = builder.device_results(flag("device_results", options.device_results)?);
    Ok(builder.check(flag("check", options.check)?))
}

fn input(format: u32) -> Answer<InputFormat> {
    let is = |wanted: trefoil_input| format == wanted as u32;
    Ok(match format {
        _ if is(trefoil_input::U8Nhwc) => InputFormat::U8Nhwc,
        _ if is(trefoil_input::F32Nchw) => InputFormat::F32Nchw,
        _ if is(trefoil_input::F16Nhwc) => InputFormat::F16Nhwc,
        _ if is(trefoil_input::F32Nhwc) => InputFormat::F32Nhwc,
        _ => return Err(Failure::argument(format!("input is {format}: expected a trefoil_input"))),
    })
}

fn output(options: &trefoil_engine_options) -> Answer<OutputKind> {
    let result = options.result;
    let is = |wanted: trefoil_result| result == wanted as u32;
    if options.top_k > 0 && !is(trefoil_result::TopK) {
        return Err(Failure::argument(format!("top_k is {}: expected 0 unless result is TOP_K", options.top_k)));
    }
    Ok(match result {
        _ if is(trefoil_result::Probabilities) => OutputKind::Probabilities,
        _ if is(trefoil_result::Logits) => OutputKind::Logits,
        _ if is(trefoil_result::TopK) => OutputKind::TopK(options.top_k),
        _ if is(trefoil_result::Features) => OutputKind::Features,
        _ => return Err(Failure::argument(format!("result is {result}: expected a trefoil_result"))),
    })
}

fn waiting(how: u32) -> Answer<Waiting> {
    let is = |wanted: trefoil_waiting| how == wanted as u32;
    Ok(match how {
        _ if is(trefoil_waiting::Block) => Waiting::Block,
        _ if is(trefoil_waiting::Spin) => Waiting::Spin,
        _ if is(trefoil_waiting::Callback) => Waiting::Callback,
        _ => return Err(Failure::argument(format!("waiting is {how}: expected a trefoil_waiting"))),
    })
}

fn precision(of: u32) -> Answer<Precision> {
    let is = |wanted: trefoil_precision| of == wanted as u32;
    Ok(match of {
        _ if is(trefoil_precision::Auto) => Precision::Auto,
        _ if is(trefoil_precision::F16) => Precision::F16,
        _ if is(trefoil_precision::Bf16) => Precision::Bf16,
        _ if is(trefoil_precision::F32) => Precision::F32,
        _ if is(trefoil_precision::Checkpoint) => Precision::Checkpoint,
        _ => return Err(Failure::argument(format!("precision is {of}: expected a trefoil_precision"))),
    })
}

/// Checks that a reserved member is zero, so that a later version can give it a meaning.
pub(super) fn unused(reserved: u32) -> Answer {
    if reserved != 0 {
        return Err(Failure::argument(format!("reserved is {reserved}: expected 0")));
    }
    Ok(())
}

/// The way to close that `abort` stands for.
pub(super) fn how(abort: u32) -> Answer<Close> {
    Ok(if flag("abort", abort)? { Close::Abort } else { Close::Drain })
}

/// A boolean member or argument, which must be 0 or 1.
pub(super) fn flag(name: &str, value: u32) -> Answer<bool> {
    match value {
        0 | 1 => Ok(value == 1),
        _ => Err(Failure::argument(format!("{name} is {value}: expected 0 or 1"))),
    }
}

/// The device that an engine runs on, under a handle of its own.
///
/// # Safety
/// `device` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_device(engine: trefoil_engine, device: *mut trefoil_device) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(device, "device")? };
        to.set(insert(shared::<Arc<Engine>>(engine)?.device().clone())?);
        Ok(())
    })
}

/// The rows that producers write; if there are several sizes, at the dimensions of the first one.
///
/// # Safety
/// `tensor` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_input(engine: trefoil_engine, tensor: *mut trefoil_tensor) -> trefoil_status {
    guard(|| {
        let engine = shared::<Arc<Engine>>(engine)?;
        // SAFETY: by the caller.
        unsafe { growing::write(tensor, "tensor", |size| Ok(trefoil_tensor::new(size, engine.input()))) }
    })
}

/// The rows that consumers read; if there are several sizes, at the dimensions of the first one.
///
/// # Safety
/// `tensor` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_output(engine: trefoil_engine, tensor: *mut trefoil_tensor) -> trefoil_status {
    guard(|| {
        let engine = shared::<Arc<Engine>>(engine)?;
        // SAFETY: by the caller.
        unsafe { growing::write(tensor, "tensor", |size| Ok(trefoil_tensor::new(size, engine.output()))) }
    })
}

/// The batch sizes that an engine was built for, at the dimensions of its first size, ascending. The call writes as
/// many as fit to `sizes`, and the number of all to `count`. The last one is the largest batch.
///
/// # Safety
/// `sizes` has room for `capacity`, or is null where that is 0; `count` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_batch_sizes(
    engine: trefoil_engine,
    sizes: *mut usize,
    capacity: usize,
    count: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let count = unsafe { Out::new(count, "count")? };
        let engine: Arc<Engine> = shared(engine)?;
        if sizes.is_null() && capacity > 0 {
            return Err(Failure::null("sizes"));
        }
        for (at, &size) in engine.batch_sizes().iter().take(capacity).enumerate() {
            // SAFETY: not null, and below its capacity, by the caller.
            unsafe { sizes.add(at).write(size) };
        }
        count.set(engine.batch_sizes().len());
        Ok(())
    })
}

/// The number of rows in the largest batch, at the dimensions of the first size.
///
/// # Safety
/// `rows` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_capacity(engine: trefoil_engine, rows: *mut usize) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(rows, "rows")? };
        to.set(shared::<Arc<Engine>>(engine)?.capacity());
        Ok(())
    })
}

/// The state of an engine: whether it is faulted or closed, and the state of its batches. Does not fail after a fault,
/// and never waits for the device.
///
/// # Safety
/// `health` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_health(engine: trefoil_engine, health: *mut trefoil_health) -> trefoil_status {
    guard(|| {
        let now = shared::<Arc<Engine>>(engine)?.health();
        let value = |size| {
            Ok(trefoil_health {
                size,
                faulted: now.fault.is_some().into(),
                fault_class: now.class().map_or(trefoil_fault_class::Request, trefoil_fault_class::from) as u32,
                closed: now.closed.is_some().into(),
                reserved: 0,
                filling: now.credits.filling,
                in_flight: now.credits.in_flight,
                unread: now.credits.unread,
                quarantined: now.quarantined,
                staging: now.credits.staging,
                results: now.credits.results,
            })
        };
        // SAFETY: by the caller.
        unsafe { growing::write(health, "health", value) }
    })
}

/// Closes an engine to new work and waits, up to `limit_ns`, until the device has finished the work in flight. With
/// `abort`, tickets are answered with CLOSED instead of their results. Then the call waits, up to the same limit, until
/// the callbacks of the engine's tickets have returned, including those of its batchers' rows; a call from within a
/// callback does not wait. The handle stays valid; trefoil_acquire() and trefoil_submit() return CLOSED.
///
/// Past the limit the call returns TIMEOUT, and after a fault FAULT. Then the engine is closed to new work all the
/// same, and callbacks may still run. A second call waits again; one with `abort` overrules an earlier one without.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_engine_close(engine: trefoil_engine, abort: u32, limit_ns: u64) -> trefoil_status {
    guard(|| {
        let (engine, start): (Arc<Engine>, _) = (shared(engine)?, Instant::now());
        let limit = callback::limit(limit_ns);
        engine.close(how(abort)?, limit)?;
        callback::drained(limit.saturating_sub(start.elapsed()), |origin| origin.shares_ring(engine.origin()))
    })
}
