//! Launches: each block of a grid in turn, on the host's memory.

mod block;
mod space;
mod thread;
mod warp;

use std::ops::Range;

use self::block::Block;
use self::space::Memory;
use super::program::{Entry, Program};

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// The reason why a kernel was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An access outside of live memory.
    Address,
    /// An access at an address that is no multiple of its size.
    Misaligned,
    /// A `trap`, or a lane that is not among the members that its own instruction names.
    Trap,
    /// Threads that wait for one another for ever, or a thread that runs without end.
    Endless,
}

/// A forbidden action of a kernel.
#[derive(Debug)]
pub struct Fault {
    pub kind: Kind,
    /// The action and its place: line, block, thread.
    pub what: String,
}

/// A fault without the names of its line and block.
pub(in crate::ptx) struct Problem {
    kind: Kind,
    what: String,
    /// The index of the instruction.
    op: usize,
    thread: [u32; 3],
}

/// The state that all threads of a block share.
pub(in crate::ptx) struct Shared<'p> {
    program: &'p Program,
    memory: Memory,
    grid: Grid,
    block: [u32; 3],
}

impl Program {
    /// Runs a kernel. `arguments` is the block of its parameters; `live` are the addresses that it may touch.
    ///
    /// # Errors
    /// For the first access, barrier or loop that does not end well; what was written before it stays.
    ///
    /// # Safety
    /// The live addresses are of memory that may be read and written, by nobody else now.
    pub unsafe fn run(&self, entry: &Entry, grid: &Grid, arguments: &[u8], live: &[Range<usize>]) -> Result<(), Fault> {
        let memory = Memory::new(self, live, grid.shared_bytes as usize);
        let mut block = Block::new(Shared { program: self, memory, grid: *grid, block: [0; 3] }, entry, arguments);
        for z in 0..grid.blocks[2] {
            for y in 0..grid.blocks[1] {
                for x in 0..grid.blocks[0] {
                    block.run([x, y, z]).map_err(|problem| self.fault(&problem, [x, y, z]))?;
                }
            }
        }
        Ok(())
    }

    fn fault(&self, problem: &Problem, block: [u32; 3]) -> Fault {
        let Problem { kind, what, op, thread } = problem;
        let line = self.lines[*op];
        let function = self.functions.iter().filter(|function| function.start <= *op).max_by_key(|f| f.start);
        let name = function.map_or("", |function| &function.name);
        Fault { kind: *kind, what: format!("{what}, {name}, ptx line {line}, block {block:?}, thread {thread:?}") }
    }
}
