//! Bytes as a file among the answers of tuning: it is counted or ignored.

use std::fs;

use trefoil::{DeviceInfo, TuningCache};

use super::scratch;

pub fn run(bytes: &[u8]) {
    let info = DeviceInfo {
        target: "cuda:0".into(),
        name: "NVIDIA H200".into(),
        compute_capability: [9, 0],
        units: 132,
        shared_bytes: 232_448,
        memory_bytes: 1 << 37,
        driver_version: 13_000,
    };
    let root = scratch("");
    let folder = root.join("tuning").join("0123456789abcdef");
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    fs::write(folder.join(file_name(bytes)), bytes).expect("the folder is writable");
    let TuningCache { answers, outdated, unreadable, .. } = TuningCache::in_folder(&info, &root);
    fs::remove_dir_all(&root).expect("it was written");
    // The file is in a folder of no driver.
    assert!(answers == 0 && outdated + unreadable.len() <= 1, "{outdated} and {unreadable:?}");
}

/// The file name of an answer, a hash of its shape. Bytes that are no answer count as one with an empty shape.
fn file_name(bytes: &[u8]) -> String {
    let entry = serde_json::from_slice::<serde_json::Value>(bytes).unwrap_or_default();
    let shape = entry["shape"].as_str().unwrap_or_default().as_bytes();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}.json", shape.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
}
