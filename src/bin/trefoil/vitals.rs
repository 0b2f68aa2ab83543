//! What a process holds at a moment, of which nothing may grow.

use std::fs;

use serde::Serialize;
use trefoil::Device;

use crate::smi;

/// Memory, descriptors and threads; 0 where the system does not tell.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Memory of this process that is resident.
    pub resident_bytes: u64,
    /// Open files, sockets and devices.
    pub descriptors: u64,
    /// Threads of this process.
    pub threads: u64,
    /// What buffers of the handle hold on the device.
    pub device_bytes: u64,
    /// What they hold of page-locked host memory.
    pub page_locked_bytes: u64,
    /// What the GPU holds for all its processes, in MiB, where there is one.
    pub gpu_mib: Option<u64>,
}

impl Vitals {
    /// Those of this process and of a device.
    pub fn take(device: &Device) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let held = device.memory_use();
        Self {
            resident_bytes: number("VmRSS:") << 10,
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
            threads: number("Threads:"),
            device_bytes: held.device_bytes,
            page_locked_bytes: held.page_locked_bytes,
            gpu_mib: gpu_mib(device),
        }
    }
}

fn gpu_mib(device: &Device) -> Option<u64> {
    let ordinal = device.info().target.strip_prefix("cuda:")?;
    let used = smi::query(&smi::visible(ordinal), &["memory.used"])?;
    used.into_iter().next()??.parse().ok()
}
