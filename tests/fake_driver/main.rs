//! The CUDA device on a stand-in for the driver library: no GPU is needed. See `tests/fake_cuda/lib.rs`.

#![cfg(feature = "cuda")]

mod classify;
#[path = "../support/cuda.rs"]
mod cuda;
mod doctor;
mod engine;
mod faults;
mod harness;
mod interop;
mod interpreter;
mod logs;
mod many;
mod matrix;
mod nvtx;
mod open;
mod rebuild;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod threads;
mod trace;
mod tuning;
mod values;
mod waiting;
mod what;
