//! Devices.

use std::ffi::c_char;

use super::growing;
use super::handles::{insert, shared, trefoil_device};
use super::layout::{narrow, trefoil_device_info};
use super::pointers::{Out, array, text};
use super::status::{Failure, guard, trefoil_status};
use crate::device::{Device, Target};

/// Opens a device: `auto` (the first GPU, or the CPU where there is none), `cpu`, or `cuda:N`. Engines on the same
/// handle share it.
///
/// # Safety
/// `target` is a C string or null, `device` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_open(target: *const c_char, device: *mut trefoil_device) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (target, to) = unsafe { (text(target, "target")?, Out::new(device, "device")?) };
        to.set(insert(Device::open(target.parse::<Target>()?)?)?);
        Ok(())
    })
}

/// Opens the CPU with a number of compute threads, 1 to 1024.
///
/// # Safety
/// `device` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_open_cpu(threads: usize, device: *mut trefoil_device) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(device, "device")? };
        if !(1..=1024).contains(&threads) {
            return Err(Failure::argument(format!("threads is {threads}: expected 1 to 1024")));
        }
        to.set(insert(Device::cpu(threads))?);
        Ok(())
    })
}

/// Describes a device, and the memory that trefoil holds on it.
///
/// # Safety
/// `info` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_device_get_info(
    device: trefoil_device,
    info: *mut trefoil_device_info,
) -> trefoil_status {
    guard(|| {
        let device: Device = shared(device)?;
        let (said, used) = (device.info(), device.memory_use());
        let value = |size| {
            Ok(trefoil_device_info {
                size,
                target: array(&said.target),
                name: array(&said.name),
                capability_major: said.compute_capability[0],
                capability_minor: said.compute_capability[1],
                driver_version: said.driver_version,
                units: narrow(said.units),
                memory_bytes: said.memory_bytes,
                device_bytes_used: used.device_bytes,
                page_locked_bytes_used: used.page_locked_bytes,
            })
        };
        // SAFETY: by the caller.
        unsafe { growing::write(info, "info", value) }
    })
}

/// Whether the device works: OK, or FAULT with the first failure as the message. After a fault, every call that uses
/// the device returns it; open another device, or end the process.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_device_health(device: trefoil_device) -> trefoil_status {
    guard(|| match shared::<Device>(device)?.fault() {
        None => Ok(()),
        Some(fault) => Err(fault.into()),
    })
}
