//! The CPUs next to a GPU: those of its NUMA node, as the operating system lists them.

use std::fs;
use std::io;
use std::mem::{size_of, zeroed};
use std::path::Path;

use super::Cuda;
use super::driver::cu;
use crate::error::Error;

impl Cuda {
    /// Keeps the calling thread on the CPUs next to the GPU, of those that it may run on. Returns whether that left out
    /// any CPU. The reason of a failure is logged once.
    pub fn place_thread(&self) -> bool {
        let address = self.pci_address().map_err(|error| error.to_string());
        let placed = address.and_then(|address| place_near(Path::new("/sys"), &address));
        placed.unwrap_or_else(|why| {
            let target = self.call().device;
            self.unplaced.call_once(|| log::warn!("{target}: threads are not kept on the CPUs next to it: {why}"));
            false
        })
    }

    /// The GPU's PCI address as `/sys` has it: `0000:1b:00.0`.
    fn pci_address(&self) -> Result<String, Error> {
        let mut text = [0_u8; 32];
        // SAFETY: the device came from cuDeviceGet; the length is given, and the driver ends the text with a NUL.
        unsafe {
            cu!(self.call(), cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.context.device()))?;
        }
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).to_lowercase())
    }
}

/// Keeps the calling thread on the CPUs next to a PCI device that `sys` lists, of those that it may run on. Returns
/// whether that left out any CPU, or why it failed.
pub(crate) fn place_near(sys: &Path, address: &str) -> Result<bool, String> {
    let Some(near) = near_cpus(sys, address)? else { return Ok(false) };
    // SAFETY: a set of CPUs is plain bits.
    let (mut allowed, mut wanted): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { (zeroed(), zeroed()) };
    let bytes = size_of::<libc::cpu_set_t>();
    let failed = |call| format!("{call}: {}", io::Error::last_os_error());
    // SAFETY: the pointer is to a live set of that many bytes; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, bytes, &mut allowed) } != 0 {
        return Err(failed("sched_getaffinity"));
    }
    // SAFETY: the numbers are below the sets' size, checked first.
    let is_allowed = |cpu: usize| cpu < 8 * bytes && unsafe { libc::CPU_ISSET(cpu, &allowed) };
    for &cpu in near.iter().filter(|&&cpu| is_allowed(cpu)) {
        // SAFETY: as above.
        unsafe { libc::CPU_SET(cpu, &mut wanted) };
    }
    // SAFETY: as above.
    let (some, all) = unsafe { (libc::CPU_COUNT(&wanted), libc::CPU_COUNT(&allowed)) };
    if some == 0 {
        return Err(format!("this process may run on none of CPUs {near:?}"));
    }
    // SAFETY: as above.
    if some < all && unsafe { libc::sched_setaffinity(0, bytes, &wanted) } != 0 {
        return Err(failed("sched_setaffinity"));
    }
    Ok(some < all)
}

/// The CPUs of the NUMA node that a PCI device belongs to; `None` if it belongs to no node.
fn near_cpus(sys: &Path, address: &str) -> Result<Option<Vec<usize>>, String> {
    let read = |path: String| {
        let path = sys.join(path);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let node = read(format!("bus/pci/devices/{address}/numa_node"))?;
    let Ok(node) = node.trim().parse::<usize>() else { return Ok(None) }; // -1
    let list = read(format!("devices/system/node/node{node}/cpulist"))?;
    parse_list(&list).map(Some).ok_or_else(|| format!("node {node} has CPUs `{}`", list.trim()))
}

/// Parses a list of CPUs such as `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    /// A `/sys` in which GPU 0000:1b:00.0 is on a node with these CPUs; `None`: on no node.
    pub fn sys(name: &str, cpus: Option<&str>) -> PathBuf {
        let root = std::env::temp_dir().join(format!("trefoil-sys-{name}-{}", std::process::id()));
        let (device, node) = (root.join("bus/pci/devices/0000:1b:00.0"), root.join("devices/system/node/node3"));
        [&device, &node].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::write(device.join("numa_node"), if cpus.is_some() { "3\n" } else { "-1\n" }).unwrap();
        fs::write(node.join("cpulist"), cpus.unwrap_or("0-1023")).unwrap();
        root
    }

    /// The CPUs that the calling thread may run on.
    pub fn allowed() -> Vec<usize> {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        parse_list(status.split("Cpus_allowed_list:").nth(1).unwrap().lines().next().unwrap()).unwrap()
    }

    /// Places a new thread next to the GPU. Returns the result, and the CPUs of this thread and of a thread that it
    /// starts.
    fn place(root: PathBuf) -> (Result<bool, String>, Vec<usize>, Vec<usize>) {
        let run = move || {
            let placed = place_near(&root, "0000:1b:00.0");
            fs::remove_dir_all(root).unwrap();
            (placed, allowed(), thread::spawn(allowed).join().unwrap())
        };
        thread::spawn(run).join().unwrap()
    }

    #[test]
    fn a_thread_and_those_that_it_starts_are_kept_next_to_the_gpu() {
        let all = allowed();
        let last = *all.last().unwrap();
        let here = vec![last];
        let some = place(sys("some", Some(&format!("{last},100000"))));
        assert_eq!(some, (Ok(all.len() > 1), here.clone(), here), "of {all:?}");
        // A node with all CPUs leaves no choice, nor does a GPU that is on no node.
        for (name, cpus) in [("all", Some("0-1023")), ("none", None)] {
            assert_eq!(place(sys(name, cpus)), (Ok(false), all.clone(), all.clone()));
        }
    }

    #[test]
    fn why_a_thread_is_not_placed_is_said() {
        let all = allowed();
        let why = |name, cpus| {
            let (placed, here, started) = place(sys(name, Some(cpus)));
            assert_eq!((&here, &started), (&all, &all));
            placed.unwrap_err()
        };
        assert_eq!(why("far", "1022-1023"), "this process may run on none of CPUs [1022, 1023]");
        assert_eq!(why("no_list", "many"), "node 3 has CPUs `many`");
        let missing = near_cpus(Path::new("/sys"), "no such device").unwrap_err();
        assert!(missing.starts_with("/sys/bus/pci/devices/no such device/numa_node: "), "{missing}");
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list(""), None);
    }
}
