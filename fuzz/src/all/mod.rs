//! The fuzz targets: functions of any bytes, none of which may panic, hang, or take more memory than the bytes justify.
//!
//! Each target has inputs in `corpus/`, which the tests also run, with any compiler.

#[cfg(feature = "ffi")]
#[path = "../../../tests/support/calls.rs"]
pub mod calls;
pub mod config;
mod graphs;
pub mod loops;
pub mod onnx;
pub mod operators;
pub mod photo;
pub mod safetensors;
mod source;
mod support;
#[cfg(feature = "cuda")]
pub mod tuning;
#[path = "../../../tests/onnx/write.rs"]
#[allow(dead_code, reason = "the tests of the reader use all of it")]
mod write;

use std::path::PathBuf;

/// The name of a target, and its function of the bytes of a file.
pub type Target = (&'static str, fn(&[u8]));

/// Every target by its name.
pub const TARGETS: &[Target] = &[
    ("onnx", onnx::run),
    ("operators", operators::run),
    ("loops", loops::run),
    ("safetensors", safetensors::run),
    ("config", config::run),
    ("photo", photo::run),
    #[cfg(feature = "cuda")]
    ("tuning", tuning::run),
    #[cfg(feature = "ffi")]
    ("calls", |bytes| {
        calls::run(bytes);
    }),
];

/// The largest number of bytes of an error's text, whatever a file contains.
const MOST_OF_AN_ERROR: usize = 1 << 20;

/// Checks that an error can be shown: its text is not too long and contains no control characters.
fn check_error(error: &trefoil::Error) {
    let said = error.to_string();
    assert!(said.len() <= MOST_OF_AN_ERROR, "an error of {} bytes", said.len());
    assert!(said.chars().all(|character| !character.is_control()), "{said:?}");
}

/// The path of a file or folder of this thread with this end of its name. It is in memory if the system has a folder
/// for that.
fn scratch(end: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("trefoil-fuzz-{}-{:?}{end}", std::process::id(), std::thread::current().id()))
}
