//! The CUDA device on a stand-in for the driver library: no GPU is needed. See `tests/fake_cuda/lib.rs`.

mod engine;
mod harness;
mod open;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the problems, without running their references")]
mod support;
