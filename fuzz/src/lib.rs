//! The crate that cargo-fuzz builds: the targets and their support code.

pub mod all;

#[path = "../../tests/fake_cuda/ptx/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the driver's stand-in uses all of it")]
mod ptx;
