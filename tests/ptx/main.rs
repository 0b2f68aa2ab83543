//! The interpreter of PTX in the stand-in driver: each group of instructions is run in texts with known results.

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
