//! What a text is read into: a list of instructions whose operands are numbers of slots.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::types::Space;

/// A function of up to four operands. What an instruction's modifiers say is a constant among them.
pub type Function4 = fn(u64, u64, u64, u64) -> u64;

/// A function of three operands and the carry flag: its result and the carry.
pub type CarryFunction = fn(u64, u64, u64, u64) -> (u64, u64);

/// The number of a slot of a function: a register or a constant.
pub type Slot = u32;

/// What registers hold before they are written, so that a program which reads them does not work by chance.
pub const POISON: u64 = 0xCDCD_CDCD_CDCD_CDCD;

/// Where dynamic shared memory begins: behind all that static shared memory may be, so that no access to the one ends
/// in the other.
pub const DYNAMIC_SHARED: u64 = 1 << 20;

pub enum Op {
    /// A function of registers.
    Compute {
        function: Function4,
        to: Slot,
        of: [Slot; 4],
    },
    /// A sum or product with the carry flag: see [`Carry`].
    Carry(Box<Carry>),
    Load {
        place: Place,
        bytes: u8,
        signed: bool,
        count: u8,
        to: [Slot; 4],
    },
    Store {
        place: Place,
        bytes: u8,
        count: u8,
        of: [Slot; 4],
    },
    /// Replaces what is at a place by a function of it and two operands, and gives what was there.
    Atomic(Box<Atomic>),
    /// A special register.
    Special {
        which: Special,
        to: Slot,
    },
    /// The address in local memory of a variable of the function that runs.
    LocalAddress {
        offset: u64,
        to: Slot,
    },
    Jump(usize),
    /// Jumps if the predicate is not what `unless` says.
    Branch {
        predicate: Slot,
        unless: bool,
        target: usize,
    },
    /// Jumps to one of a list.
    Table {
        index: Slot,
        targets: Box<[usize]>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    /// What the lanes of a warp do together.
    Warp(Box<Warp>),
}

/// An address: a slot and what is added to it.
#[derive(Clone, Copy)]
pub struct Place {
    pub space: Space,
    pub base: Slot,
    pub offset: i32,
}

/// A sum or product that reads or writes the carry flag.
pub struct Carry {
    pub function: CarryFunction,
    pub to: Slot,
    pub of: [Slot; 3],
    pub reads: bool,
    pub writes: bool,
}

pub struct Atomic {
    pub function: Function4,
    pub place: Place,
    pub bytes: u8,
    pub to: Slot,
    pub of: [Slot; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Thread(usize),
    Block(usize),
    Threads(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    /// The lanes whose number is in this relation to the thread's.
    LaneMask(LaneMask),
    Clock,
    DynamicShared,
    /// What is the same in every thread.
    Always(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Arguments and results are copied between the parameters of caller and callee, or their registers.
pub struct Call {
    pub function: usize,
    pub arguments: Vec<Pass>,
    pub results: Vec<Pass>,
}

/// Where one value of a call is, with the caller and with the function that is called.
pub struct Pass {
    pub caller: Holder,
    pub callee: Holder,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Slot(Slot),
    /// An offset among the function's parameters.
    Param(usize),
}

pub struct Barrier {
    pub number: Slot,
    /// How many threads it is for, if not for all.
    pub threads: Option<Slot>,
    /// What is reduced over them.
    pub reduce: Option<Reduce>,
}

/// The result of `function` over the predicates of all threads: how many of them hold, and how many there are.
pub struct Reduce {
    pub function: fn(u64, u64) -> u64,
    pub predicate: Slot,
    pub to: Slot,
}

pub struct Warp {
    pub kind: WarpKind,
    /// Which lanes take part.
    pub members: Slot,
}

pub enum WarpKind {
    /// They wait for one another.
    Sync,
    /// Each gets the value of another one.
    Shuffle(Shuffle),
    /// A function of the members and those of them whose predicate holds.
    Vote { function: fn(u32, u32) -> u64, to: Slot, predicate: Slot },
    /// Their values combined.
    Reduce { function: Function4, to: Slot, value: Slot },
}

/// Of which lane a lane gets the value: a function of itself, an operand and limits; and whether it is within them.
pub struct Shuffle {
    pub from: fn(u32, u32, u32) -> (u32, bool),
    pub to: Slot,
    pub within: Option<Slot>,
    pub value: Slot,
    pub by: Slot,
    pub limits: Slot,
}

/// A function or an entry point.
pub struct Function {
    pub name: String,
    /// Its first instruction.
    pub start: usize,
    /// What its slots are when it begins: constants, and poison in registers.
    pub slots: Vec<u64>,
    pub param_bytes: usize,
    pub local_bytes: usize,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where each parameter is in the block of all of them.
    pub parameters: Vec<Range<usize>>,
    /// Threads that a block may have.
    pub most_threads: u32,
    /// Threads that a block must have along each axis, if the text says so.
    pub threads: Option<[u32; 3]>,
    pub(super) function: usize,
}

/// A text that was read.
pub struct Program {
    pub entries: BTreeMap<String, Entry>,
    pub(super) code: Vec<Op>,
    /// The line that each of them was read from.
    pub(super) lines: Vec<usize>,
    pub(super) functions: Vec<Function>,
    pub(super) static_shared: usize,
    pub(super) variables: Vec<Variable>,
}

/// A variable in global or constant memory.
pub struct Variable {
    words: Box<[UnsafeCell<u128>]>,
    bytes: usize,
}

// SAFETY: only kernels touch the words, and one runs at a time: the driver's lock is held while it does.
unsafe impl Sync for Variable {}

impl Variable {
    pub fn new(content: &[u8]) -> Self {
        let word = |bytes: &[u8]| {
            let mut padded = [0; 16];
            padded[..bytes.len()].copy_from_slice(bytes);
            UnsafeCell::new(u128::from_ne_bytes(padded))
        };
        Self { words: content.chunks(16).map(word).collect(), bytes: content.len() }
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        let start = self.words.as_ptr() as u64;
        start..start + self.bytes as u64
    }
}
