//! The interpreter of PTX that the stand-in for the driver runs kernels with: each group of instructions on texts whose
//! results are known.

mod arithmetic;
mod bits;
mod control;
mod convert;
mod faults;
mod floats;
mod harness;
mod math;
mod memory;
mod texts;
mod warps;

#[path = "../fake_cuda/ptx/mod.rs"]
mod ptx;
