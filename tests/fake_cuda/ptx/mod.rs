//! An interpreter of PTX: a text is read once into instructions, and a launch of one of its kernels runs them for each
//! thread of each block on the host's memory.
//!
//! It supports the PTX that nvcc generates for arithmetic, loops and reductions: see `compute/`, `memory.rs`,
//! `control.rs` and `warp.rs`. A text with anything else is refused, and the error names the instruction; operands of
//! types that an instruction does not take are refused too. The threads of a block run one after the other, each up to
//! where it waits for others. Registers and a thread's own memory are poisoned before the thread writes them. A bad
//! access, a barrier that not all threads reach, and an endless loop are faults that say where.
//!
//! Differences from hardware: functions that the hardware approximates are rounded from a double; a product and a sum
//! are never contracted into one operation; divisions by zero and conversions of numbers out of range are as documented
//! or as GPUs do them.

mod body;
mod compute;
mod control;
mod declare;
mod lex;
mod memory;
mod module;
mod opcode;
mod operands;
mod program;
mod run;
mod types;
mod warp;

pub use program::Program;
pub use run::{Grid, Kind};

/// An error in a text, with its line.
#[derive(Debug)]
pub struct Failure {
    pub line: usize,
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.what)
    }
}
