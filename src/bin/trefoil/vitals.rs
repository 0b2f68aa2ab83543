//! Resources that a process holds at a moment: none of them may grow over time.

use std::fs;

use serde::Serialize;
use trefoil::Device;

use crate::smi;

/// Memory, descriptors and threads; 0 where the system does not report a value.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Resident memory of this process.
    pub resident_bytes: u64,
    /// Number of open files, sockets and devices.
    pub descriptors: u64,
    /// Number of threads of this process.
    pub threads: u64,
    /// Bytes on the device that are held by buffers of the device handle.
    pub device_bytes: u64,
    /// Bytes of page-locked host memory that are held by buffers of the device handle.
    pub page_locked_bytes: u64,
    /// Memory of the GPU that is in use by all processes, in MiB; `None` without a GPU.
    pub gpu_mib: Option<u64>,
}

impl Vitals {
    /// The vitals of this process and of a device.
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
