//! Fleets: the same engine on several devices, which is built again if a device fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::lend;
use super::engine::{builder, how};
use super::handles::{insert, shared, trefoil_batch, trefoil_device, trefoil_engine, trefoil_fleet, trefoil_model};
use super::layout::{trefoil_engine_options, trefoil_fleet_stats, trefoil_size};
use super::pointers::{Out, slice};
use super::status::{Answer, Failure, guard, trefoil_fault_class, trefoil_status};
use super::{callback, growing, sizes};
use crate::device::Device;
use crate::engine::Fleet;
use crate::model::Model;

/// Builds the same engine on each of `count` devices, as trefoil_engine_build() builds one; `device` of the options has
/// to be 0. A batch goes to the device that has the fewest. If a device fails, the others run its unanswered batches
/// again, and their tickets get results as if nothing had happened.
///
/// With `rebuilds`, a device that fails is opened again and its engine built again, up to so many times for each
/// device, so that even a fleet of one device survives a fault. The devices then must not be in contexts of the
/// program's own. A fault of class PROCESS is not survived.
///
/// Batches, tickets, callbacks and outputs are used as those of an engine, with one exception:
/// trefoil_batch_read_from() and trefoil_submit_to_device() refuse a fleet's batch with INVALID_ARGUMENT, because it
/// may run on any device. Tickets of several devices may become ready in any order. After a fault a call that hands
/// over a ticket or a batch of the failed device (trefoil_submit(), trefoil_on_ready(), the waits) also waits until
/// another device has room for its rows, at most the acquire limit of the options. In a callback only trefoil_submit()
/// and trefoil_on_ready() wait so.
///
/// # Safety
/// As for trefoil_engine_build(), and `devices` has `count` handles; `fleet` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_build(
    model: trefoil_model,
    options: *const trefoil_engine_options,
    devices: *const trefoil_device,
    count: usize,
    rebuilds: usize,
    fleet: *mut trefoil_fleet,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, options) = unsafe { (Out::new(fleet, "fleet")?, growing::read(options)?) };
        // SAFETY: by the caller.
        let devices = unsafe { slice(devices, count, "devices")? };
        if options.device != 0 {
            return Err(Failure::argument("device is set: expected 0 and the devices of a fleet in `devices`"));
        }
        let devices = devices.iter().map(|&device| shared::<Device>(device)).collect::<Answer<Vec<_>>>()?;
        let model: Model = shared(model)?;
        // SAFETY: by the caller.
        let builder = unsafe { builder(&model, &options)? };
        to.set(insert(Arc::new(builder.rebuild_on_fault(rebuilds).build_on(&devices)?))?);
        Ok(())
    })
}

/// Lends a batch of the least loaded device, as trefoil_acquire() does of an engine.
///
/// # Safety
/// `batch` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_acquire(fleet: trefoil_fleet, batch: *mut trefoil_batch) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(batch, "batch")? };
        let fleet: Arc<Fleet> = shared(fleet)?;
        lend(&to, if callback::running() { fleet.acquire_within(Duration::ZERO)? } else { fleet.acquire()? })
    })
}

/// The same with a limit of its own.
///
/// # Safety
/// `batch` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_acquire_within(
    fleet: trefoil_fleet,
    limit_ns: u64,
    batch: *mut trefoil_batch,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(batch, "batch")? };
        lend(&to, shared::<Arc<Fleet>>(fleet)?.acquire_within(callback::limit(limit_ns))?)
    })
}

/// The same for rows of the dimensions in `wanted`, as trefoil_acquire_for() does of an engine.
///
/// # Safety
/// As for trefoil_acquire_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_acquire_for(
    fleet: trefoil_fleet,
    wanted: *const trefoil_size,
    limit_ns: u64,
    batch: *mut trefoil_batch,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (to, wanted) = unsafe { (Out::new(batch, "batch")?, sizes::read(wanted, "wanted")?) };
        lend(&to, shared::<Arc<Fleet>>(fleet)?.acquire_for_within(&wanted, callback::limit(limit_ns))?)
    })
}

/// The number of devices.
///
/// # Safety
/// `count` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_devices(fleet: trefoil_fleet, count: *mut usize) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(count, "count")? };
        to.set(shared::<Arc<Fleet>>(fleet)?.engines().len());
        Ok(())
    })
}

/// The engine that device `index` has now, under a handle of its own: for its ports, health, trace, or a batcher. When
/// it is built again, a new engine takes its place, and the handle stays that of the failed one. Close the fleet, not
/// this engine: a closed engine makes the fleet refuse new batches.
///
/// # Safety
/// `engine` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_engine(
    fleet: trefoil_fleet,
    index: usize,
    engine: *mut trefoil_engine,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(engine, "engine")? };
        let mut engines = shared::<Arc<Fleet>>(fleet)?.engines();
        below(index, engines.len())?;
        to.set(insert(engines.swap_remove(index))?);
        Ok(())
    })
}

/// What device `index` has done and how it is. Never waits for a device, and does not fail after a fault.
///
/// # Safety
/// `stats` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_fleet_get_stats(
    fleet: trefoil_fleet,
    index: usize,
    stats: *mut trefoil_fleet_stats,
) -> trefoil_status {
    guard(|| {
        let mut all = shared::<Arc<Fleet>>(fleet)?.stats();
        below(index, all.len())?;
        let now = all.swap_remove(index);
        let fault = now.fault.as_ref().or(now.last_fault.as_ref());
        let value = |size| {
            Ok(trefoil_fleet_stats {
                size,
                batches: now.batches,
                rows: now.rows,
                run_again: now.run_again,
                rebuilt: now.rebuilt,
                load: now.load,
                faulted: now.fault.is_some().into(),
                rebuilding: now.is_rebuilding.into(),
                fault_class: fault.map_or(trefoil_fault_class::Request, |fault| fault.class().into()) as u32,
                reserved: 0,
            })
        };
        // SAFETY: by the caller.
        unsafe { growing::write(stats, "stats", value) }
    })
}

/// Closes all engines, as trefoil_engine_close() closes one; `limit_ns` is for all together. No engine is built again
/// any more. If the call returns OK, the callbacks of the fleet's tickets have returned, also of engines that failed.
/// Past the limit the call returns TIMEOUT, and if all devices have failed FAULT; then all engines are closed to new
/// work all the same. A second call waits again.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_fleet_close(fleet: trefoil_fleet, abort: u32, limit_ns: u64) -> trefoil_status {
    guard(|| {
        let (fleet, start): (Arc<Fleet>, _) = (shared(fleet)?, Instant::now());
        let limit = callback::limit(limit_ns);
        fleet.close(how(abort)?, limit)?;
        callback::drained(limit.saturating_sub(start.elapsed()), |origin| origin.shares_fleet(fleet.origin()))
    })
}

fn below(index: usize, count: usize) -> Answer {
    match index < count {
        true => Ok(()),
        false => Err(Failure::argument(format!("index is {index}: expected a device of {count}"))),
    }
}
