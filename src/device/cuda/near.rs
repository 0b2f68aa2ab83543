//! The CPUs next to a GPU: those of its NUMA node, as the kernel tells.

use std::fs;
use std::mem::{size_of, zeroed};

use super::Cuda;
use super::driver::cu;

impl Cuda {
    /// Keeps the calling thread on the CPUs next to the GPU, of those that it may run on; whether there was a choice.
    pub fn place_thread(&self) -> bool {
        let Some(near) = self.pci_address().and_then(|address| near_cpus(&address)) else { return false };
        // SAFETY: a set of CPUs is plain bits.
        let (mut allowed, mut wanted): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { (zeroed(), zeroed()) };
        let bytes = size_of::<libc::cpu_set_t>();
        // SAFETY: the pointer is to a live set of that many bytes; 0 is the calling thread.
        if unsafe { libc::sched_getaffinity(0, bytes, &mut allowed) } != 0 {
            return false;
        }
        // SAFETY: the numbers are below the sets' size, checked first.
        let of_both = near.into_iter().filter(|&cpu| cpu < 8 * bytes && unsafe { libc::CPU_ISSET(cpu, &allowed) });
        for cpu in of_both {
            // SAFETY: as above.
            unsafe { libc::CPU_SET(cpu, &mut wanted) };
        }
        // SAFETY: as above.
        let (some, all) = unsafe { (libc::CPU_COUNT(&wanted), libc::CPU_COUNT(&allowed)) };
        // SAFETY: as above.
        some > 0 && some < all && unsafe { libc::sched_setaffinity(0, bytes, &wanted) } == 0
    }

    /// As `/sys` has it: `0000:1b:00.0`.
    fn pci_address(&self) -> Option<String> {
        let mut text = [0_u8; 32];
        // SAFETY: the device came from cuDeviceGet; the length is given, and the driver ends the text with a NUL.
        let got = unsafe {
            cu!(self.call(), cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.context.device()))
        };
        got.inspect_err(|error| log::debug!("no PCI address: {error}")).ok()?;
        let end = text.iter().position(|&b| b == 0)?;
        Some(String::from_utf8_lossy(&text[..end]).to_lowercase())
    }
}

/// The CPUs of the NUMA node that a PCI device belongs to; nothing where it belongs to none.
fn near_cpus(address: &str) -> Option<Vec<usize>> {
    let node: usize =
        fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?.trim().parse().ok()?;
    parse_list(&fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok()?)
}

/// `0-3,8` as numbers.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list(""), None);
        assert_eq!(near_cpus("no such device"), None);
    }
}
