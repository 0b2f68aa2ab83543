//! The targets of `fuzz/` on the inputs kept there, and on many mutations of them: no panic, no hang.

#![cfg(feature = "image")]

#[path = "fake_cuda/ptx/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the driver's stand-in uses all of it")]
mod ptx;
#[path = "support/splitmix.rs"]
mod splitmix;
#[path = "../fuzz/src/all/mod.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use splitmix::Random;

/// The longest time for one input, on a busy machine and without optimisation.
const PATIENCE: Duration = Duration::from_secs(20);

/// Number of mutated inputs for each target.
const MUTATIONS: u64 = 1000;

impl Random {
    /// Changes, inserts or removes some bytes.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(4) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 if at < bytes.len() => bytes[at] = self.next() as u8,
                _ => bytes.insert(at, self.next() as u8),
            }
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() }; // no input of this target was kept
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    files.sort();
    files
}

/// Runs a target on the inputs in its folder, and on those that other tests keep.
fn replay(target: &str, more: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (_, run) = targets::TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let mut inputs = files(&root.join("fuzz/corpus").join(target));
    if !more.is_empty() {
        inputs.extend(files(&root.join(more)).into_iter().filter(|path| path.extension().is_some_and(|e| e != "gz")));
    }
    assert!(inputs.len() > 3, "{} inputs of {target}", inputs.len());
    let timed = |what: &str, bytes: &[u8]| {
        let begin = Instant::now();
        run(bytes);
        assert!(begin.elapsed() < PATIENCE, "{target}: {what} took {:?}", begin.elapsed());
    };
    let inputs: Vec<Vec<u8>> = inputs
        .into_iter()
        .map(|path| {
            let bytes = fs::read(&path).expect("it is readable");
            timed(&path.display().to_string(), &bytes);
            bytes
        })
        .collect();
    let mut random = Random(20_261_122);
    for number in 0..MUTATIONS {
        let mut bytes = inputs[random.below(inputs.len())].clone();
        random.mutate(&mut bytes);
        timed(&format!("mutation {number}"), &bytes);
    }
}

#[test]
fn onnx() {
    replay("onnx", "tests/data/onnx");
}

#[test]
fn operators() {
    replay("operators", "");
}

#[test]
fn loops() {
    replay("loops", "");
}

#[test]
fn safetensors() {
    replay("safetensors", "");
}

#[test]
fn config() {
    replay("config", "");
}

#[test]
fn photo() {
    replay("photo", "tests/data/images");
}

#[cfg(feature = "cuda")]
#[test]
fn tuning() {
    replay("tuning", "");
}
