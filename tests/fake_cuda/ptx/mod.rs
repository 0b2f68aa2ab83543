//! An interpreter of PTX: a text is read once into instructions, and a launch of one of its kernels runs them for each
//! thread of each block on the host's memory.
//!
//! What it knows is what nvcc makes of arithmetic, loops and reductions: see `compute/`, `memory.rs`, `control.rs` and
//! `warp.rs`. A text with anything else in it is refused, and the instruction is named; so are operands whose types an
//! instruction does not take. Threads of a block run one after the other up to where they wait for one another.
//! Registers and memory of its own are poisoned before a thread writes them. A bad access, a barrier that not all
//! threads reach, and a loop without end are faults that say where.
//!
//! Not as on hardware: what that approximates is rounded from a double; a product and a sum are never contracted into
//! one operation; divisions by zero and conversions of what does not fit are as documented or as GPUs do it.

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

/// What is wrong with a text, and in which line.
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
