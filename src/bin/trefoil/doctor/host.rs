//! Checks of the host: processor, memory, driver.

use std::fs;
use std::path::{Path, PathBuf};

use trefoil::Error;

use super::Check;
use crate::setup;

const GIB: f64 = (1_u64 << 30) as f64;
/// GiB of free memory below which there is too little for weights, page-locked buffers and photos.
const LITTLE: f64 = 2.0;
const GET_DRIVER: &str = "install NVIDIA's driver 580 or newer (CUDA 13.0), or pass it into the container; until then everything runs on the CPU";

/// Checks the number of the processor's threads, and whether it has the instructions that the CPU's kernels use.
pub fn processor() -> Check {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let (name, cores) = (name.unwrap_or(std::env::consts::ARCH), setup::cores());
    #[cfg(target_arch = "x86_64")]
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        let advice = "nothing, if a GPU is used; on the CPU expect a fraction of the speed";
        return Check::warn("processor", format!("{name}, {cores} threads, without AVX2 and FMA"), advice);
    }
    let found = format!("{name}, {cores} threads{}", if cfg!(target_arch = "x86_64") { ", AVX2 and FMA" } else { "" });
    match cores {
        1 => Check::warn("processor", found, "give it more cores: one cannot decode and submit at the same time"),
        _ => Check::ok("processor", found),
    }
}

/// Checks the free memory, within the limit of the container if there is one.
pub fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let Some(free) = kib("MemAvailable:").map(|kib| kib * 1024.0 / GIB) else {
        return Check::ok("memory", "unknown on this system");
    };
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<f64>().ok());
    let limited = limit.map_or_else(String::new, |bytes| format!(", this container's limit is {:.1} GiB", bytes / GIB));
    let found = format!("{free:.1} GiB free{limited}");
    match free.min(limit.map_or(f64::INFINITY, |bytes| bytes / GIB)) {
        least if least < LITTLE => Check::warn("memory", found, "free some: batches are staged in page-locked memory"),
        _ => Check::ok("memory", found),
    }
}

/// Reports the limit on locked memory. It decides nothing: the driver locks pages on its own account.
pub fn locked_memory() -> Check {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let found = match line.and_then(|rest| rest.split_whitespace().next()) {
        None => "unknown on this system".into(),
        Some("unlimited") => "ulimit -l is unlimited".into(),
        Some(bytes) => {
            let mib =
                bytes.parse::<f64>().map_or_else(|_| bytes.into(), |bytes| format!("{:.1} MiB", bytes / 1048576.0));
            format!("ulimit -l is {mib}, which does not count for the driver's page-locking")
        }
    };
    Check::ok("locked memory", found)
}

/// Reports the driver's version and the path of its mapped library.
pub fn driver(version: u32) -> Check {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let library = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libcuda"));
    let kernel_side = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = kernel_side
        .split_whitespace()
        .find(|word| word.split('.').count() >= 2 && word.starts_with(|c: char| c.is_ascii_digit()));
    let number = number.map_or_else(String::new, |number| format!("{number}, "));
    let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
    Check::ok("driver", format!("{number}for CUDA {cuda}, {}", library.unwrap_or("libcuda")))
}

/// Reports why there is no GPU, and what is missing; bad where a GPU was asked for or seems to be there.
pub fn no_gpu(error: &Error, ordinal: usize, wanted: bool) -> Check {
    let (cards, libraries) = (nvidia_cards(), libraries());
    let hidden = std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() && !libraries.is_empty();
    let card = if cards.is_empty() { "no NVIDIA card is on the PCI bus" } else { "an NVIDIA card is in this machine" };
    let library = libraries.first().map_or_else(String::new, |path| format!(", and {}", path.display()));
    let found = format!("{error}{}; {card}{library}", setup::holders(error, ordinal));
    let advice = match error {
        Error::Unsupported { .. } => "update the driver to 580 or newer (CUDA 13.0)",
        Error::Io { .. } => "reinstall NVIDIA's driver, or remove the library: without one everything runs on the CPU",
        Error::NoDevice { .. } if hidden => {
            "look at CUDA_VISIBLE_DEVICES, which is set; without a GPU everything runs on the CPU"
        }
        Error::NoDevice { .. } if cards.is_empty() && wanted => "make a GPU available to this machine or container",
        Error::NoDevice { .. } if cards.is_empty() => {
            "nothing, if no GPU is wanted: everything runs on the CPU; otherwise make a GPU available to this machine or container"
        }
        Error::NoDevice { .. } if libraries.is_empty() => GET_DRIVER,
        Error::NoDevice { .. } if !Path::new("/dev/nvidiactl").exists() => {
            "load the driver's kernel modules (nvidia, nvidia_uvm); in a container pass the GPU in, as `--gpus all` does"
        }
        _ => "look at `nvidia-smi` and `dmesg`; restarting the process, or the machine, may be needed",
    };
    match error {
        Error::NoDevice { .. } if (hidden || cards.is_empty()) && !wanted => Check::warn("GPU", found, advice),
        _ => Check::bad("GPU", found, advice),
    }
}

/// NVIDIA's cards on the PCI bus, as folders in /sys: display and 3D controllers.
pub fn nvidia_cards() -> Vec<PathBuf> {
    let says = |path: &Path, file: &str, start: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.starts_with(start))
    };
    let entries = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| says(path, "vendor", "0x10de") && says(path, "class", "0x03")).collect()
}

/// Libraries of the driver in the folders where loaders look.
fn libraries() -> Vec<PathBuf> {
    const FOLDERS: [&str; 5] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/wsl/lib",
        "/usr/local/cuda/compat",
    ];
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = named.split(':').filter(|folder| !folder.is_empty()).chain(FOLDERS);
    let paths = folders.flat_map(|folder| ["libcuda.so.1", "libcuda.so"].map(|name| Path::new(folder).join(name)));
    paths.filter(|path| path.exists()).collect()
}
