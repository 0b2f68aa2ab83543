//! Memory that all threads of a block see.

use std::ops::Range;

use super::Kind;
use crate::ptx::program::{DYNAMIC_SHARED, POISON, Program};

pub struct Memory {
    /// The live address ranges, in ascending order.
    live: Vec<Range<u64>>,
    /// The index of the range of the last access.
    last: usize,
    shared: Vec<u8>,
    dynamic: Vec<u8>,
}

impl Memory {
    pub fn new(program: &Program, live: &[Range<usize>], dynamic_bytes: usize) -> Self {
        let live = live.iter().map(|range| range.start as u64..range.end as u64);
        let mut live: Vec<_> = live.chain(program.variables.iter().map(|variable| variable.range())).collect();
        live.sort_unstable_by_key(|range| range.start);
        Self { live, last: 0, shared: vec![0; program.static_shared], dynamic: vec![0; dynamic_bytes] }
    }

    /// Poisons shared memory again, for the next block.
    pub fn forget(&mut self) {
        self.shared.fill(POISON as u8);
        self.dynamic.fill(POISON as u8);
    }

    /// A pointer to `bytes` bytes of global memory.
    pub fn global(&mut self, address: u64, bytes: u64) -> Result<*mut u8, Kind> {
        let holds = |range: &Range<u64>| range.start <= address && address < range.end && bytes <= range.end - address;
        if !self.live.get(self.last).is_some_and(holds) {
            self.last = self.live.partition_point(|range| range.start <= address).saturating_sub(1);
        }
        match self.live.get(self.last).is_some_and(holds) {
            true => Ok(address as *mut u8),
            false => Err(Kind::Address),
        }
    }

    /// A pointer to `bytes` bytes of shared memory.
    pub fn shared(&mut self, address: u64, bytes: u64) -> Result<*mut u8, Kind> {
        match address.checked_sub(DYNAMIC_SHARED) {
            None => within(&mut self.shared, address, bytes),
            Some(offset) => within(&mut self.dynamic, offset, bytes),
        }
    }
}

/// A pointer to `bytes` bytes of a memory, from an offset on.
pub fn within(memory: &mut [u8], offset: u64, bytes: u64) -> Result<*mut u8, Kind> {
    let end = offset.checked_add(bytes).filter(|end| *end <= memory.len() as u64).ok_or(Kind::Address)?;
    Ok(memory[offset as usize..end as usize].as_mut_ptr())
}
