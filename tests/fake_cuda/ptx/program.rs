//! The form of a text that can be run: a list of instructions whose operands are numbers of slots.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::types::Space;

/// A function of up to four operands. A constant among them encodes the instruction's modifiers.
pub type Function4 = fn(u64, u64, u64, u64) -> u64;

/// A function of three operands and the carry flag: its result and the carry.
pub type CarryFunction = fn(u64, u64, u64, u64) -> (u64, u64);

/// The number of a slot of a function: a register or a constant.
pub type Slot = u32;

/// The content of registers before they are written, so that a program which reads them does not work by chance.
pub const POISON: u64 = 0xCDCD_CDCD_CDCD_CDCD;

/// The address where dynamic shared memory begins: behind the largest possible static shared memory, so that no access
/// to one reaches the other.
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
    /// Replaces the value at an address by a function of it and two operands; the result is the old value.
    Atomic(Box<Atomic>),
    /// A special register.
    Special {
        which: Special,
        to: Slot,
    },
    /// The address of a variable in local memory of the running function.
    LocalAddress {
        offset: u64,
        to: Slot,
    },
    Jump(usize),
    /// Jumps if the predicate differs from `unless`.
    Branch {
        predicate: Slot,
        unless: bool,
        target: usize,
    },
    /// Jumps to one of a list of targets.
    Table {
        index: Slot,
        targets: Box<[usize]>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    /// An operation of all lanes of a warp together.
    Warp(Box<Warp>),
}

/// An address: a slot plus an offset.
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
    /// The mask of lanes whose number is in this relation to the thread's lane.
    LaneMask(LaneMask),
    Clock,
    DynamicShared,
    /// A value that is the same in every thread.
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

/// A call. Arguments and results are copied between the parameters or registers of caller and callee.
pub struct Call {
    pub function: usize,
    pub arguments: Vec<Pass>,
    pub results: Vec<Pass>,
}

/// One value that is passed: its place in the caller and in the callee, and its bytes.
pub struct Pass {
    pub caller: Holder,
    pub callee: Holder,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Slot(Slot),
    /// An offset in the function's parameter memory.
    Param(usize),
}

pub struct Barrier {
    pub number: Slot,
    /// The number of threads that take part; `None` for all.
    pub threads: Option<Slot>,
    /// The reduction over the threads, if there is one.
    pub reduce: Option<Reduce>,
}

/// A reduction over predicates: `function` of the number of those that hold and the number of threads.
pub struct Reduce {
    pub function: fn(u64, u64) -> u64,
    pub predicate: Slot,
    pub to: Slot,
}

pub struct Warp {
    pub kind: WarpKind,
    /// The mask of lanes that take part.
    pub members: Slot,
}

pub enum WarpKind {
    /// The lanes wait for one another.
    Sync,
    /// Each lane gets the value of another lane.
    Shuffle(Shuffle),
    /// The result is a function of the members and of those members whose predicate holds.
    Vote { function: fn(u32, u32) -> u64, to: Slot, predicate: Slot },
    /// The result combines the values of all members.
    Reduce { function: Function4, to: Slot, value: Slot },
}

/// A shuffle: `from` maps lane, operand and limits to the source lane, and says whether it is within the limits.
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
    /// The index of the function's first instruction.
    pub start: usize,
    /// The initial content of the function's slots: constants, and poison in registers.
    pub slots: Vec<u64>,
    pub param_bytes: usize,
    pub local_bytes: usize,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The range of each parameter in the block of all parameters.
    pub parameters: Vec<Range<usize>>,
    /// The most threads of a block.
    pub most_threads: u32,
    /// The required number of threads of a block along each axis, if the text has one.
    pub threads: Option<[u32; 3]>,
    pub(super) function: usize,
}

/// A text in a form that can be run.
pub struct Program {
    pub entries: BTreeMap<String, Entry>,
    pub(super) code: Vec<Op>,
    /// The line of the text for each instruction.
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

    /// The range of the variable's addresses.
    pub fn range(&self) -> Range<u64> {
        let start = self.words.as_ptr() as u64;
        start..start + self.bytes as u64
    }
}
