//! What is fuzzed: functions of any bytes, none of which may panic, hang, or take memory that the bytes do not pay for.
//!
//! Each target has inputs in `corpus/`, which the tests run too, on any compiler.

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

/// Its name, and what is done with a file.
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

/// Most characters of an error, whatever a file says.
const MOST_OF_AN_ERROR: usize = 1 << 20;

/// An error can be shown: it is no longer than that, and steers no terminal.
fn check_error(error: &trefoil::Error) {
    let said = error.to_string();
    assert!(said.len() <= MOST_OF_AN_ERROR, "an error of {} bytes", said.len());
    assert!(said.chars().all(|character| !character.is_control()), "{said:?}");
}

/// The path of a file or folder of this thread, with such an end; in memory where there is a folder for that.
fn scratch(end: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("trefoil-fuzz-{}-{:?}{end}", std::process::id(), std::thread::current().id()))
}
