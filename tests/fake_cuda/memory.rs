//! Device and page-locked memory: memory of the host, poisoned, with guard bytes behind each block.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

const GUARD: u8 = 0xFD;
const GUARD_BYTES: usize = 64;

pub struct Memory {
    kind: &'static str,
    align: usize,
    /// The value of each byte of a new block.
    poison: u8,
    blocks: Vec<Block>,
    /// The numbers of the live blocks by their start: after a long run most blocks are freed.
    live: BTreeMap<usize, usize>,
    /// Bytes of all live blocks.
    used: usize,
}

pub struct Block {
    start: usize,
    bytes: usize,
    alive: bool,
}

impl Memory {
    pub const fn new(kind: &'static str, align: usize, poison: u8) -> Self {
        Self { kind, align, poison, blocks: Vec::new(), live: BTreeMap::new(), used: 0 }
    }

    fn layout(&self, bytes: usize) -> Layout {
        Layout::from_size_align(bytes + GUARD_BYTES, self.align).expect("a block that the budget allows")
    }

    /// Allocates a block of `bytes`, more than 0; returns its start and name.
    pub fn allocate(&mut self, bytes: usize) -> (usize, String) {
        // SAFETY: the layout has a size above 0; the slice is what was just allocated, written before it is read.
        let start = unsafe {
            let start = alloc(self.layout(bytes));
            assert!(!start.is_null(), "the host is out of memory");
            start.write_bytes(self.poison, bytes);
            start.add(bytes).write_bytes(GUARD, GUARD_BYTES);
            start as usize
        };
        self.live.insert(start, self.blocks.len());
        self.used += bytes;
        self.blocks.push(Block { start, bytes, alive: true });
        (start, format!("{}{}", self.kind, self.blocks.len() - 1))
    }

    /// Frees the block at `start`; returns its name, or an error text.
    pub fn free(&mut self, start: usize) -> Result<String, String> {
        let kind = self.kind;
        let Some(index) = self.live.remove(&start) else {
            return Err(format!("{start:#x} is no live block of {kind} memory"));
        };
        let bytes = self.blocks[index].bytes;
        self.used -= bytes;
        self.blocks[index].alive = false;
        // SAFETY: the block is alive, so `allocate` gave it and nobody freed it.
        let intact = unsafe {
            let end = (start + bytes) as *mut u8;
            let intact = from_raw_parts_mut(end, GUARD_BYTES).iter().all(|&byte| byte == GUARD);
            dealloc(start as *mut u8, self.layout(bytes));
            intact
        };
        match intact {
            true => Ok(format!("{kind}{index}")),
            false => Err(format!("{kind}{index} was written past its end")),
        }
    }

    /// The name of the live block that holds all of `bytes` from `start`, with the offset if it is not 0.
    pub fn find(&self, start: usize, bytes: usize) -> Result<String, String> {
        match self.index_of(start) {
            Some(index) if start + bytes <= self.blocks[index].start + self.blocks[index].bytes => {
                Ok(match start - self.blocks[index].start {
                    0 => format!("{}{index}", self.kind),
                    offset => format!("{}{index}+{offset}", self.kind),
                })
            }
            Some(index) => Err(format!("{bytes} bytes from {start:#x} end outside of {}{index}", self.kind)),
            None => Err(format!("{start:#x} is in no live block of {} memory", self.kind)),
        }
    }

    /// The index of the live block that contains `address`.
    pub fn index_of(&self, address: usize) -> Option<usize> {
        let (&start, &index) = self.live.range(..=address).next_back()?;
        (address - start < self.blocks[index].bytes).then_some(index)
    }

    /// The address ranges of the live blocks.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.live.iter().map(|(&start, &index)| start..start + self.blocks[index].bytes)
    }

    pub fn is_live(&self, index: usize) -> bool {
        self.blocks[index].alive
    }

    pub const fn used(&self) -> usize {
        self.used
    }

    /// Names of the live blocks.
    pub fn live(&self) -> impl Iterator<Item = String> {
        let alive = self.blocks.iter().enumerate().filter(|(_, block)| block.alive);
        alive.map(|(index, _)| format!("{}{index}", self.kind))
    }
}
