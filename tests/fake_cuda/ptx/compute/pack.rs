//! Words that are joined from parts, and split into parts.

use crate::ptx::program::Function4;

/// The function that joins parts of this many bits into a word, the lowest first.
pub fn pack(bits: u32) -> Option<Function4> {
    match bits {
        8 => Some(join::<8>),
        16 => Some(join::<16>),
        32 => Some(join::<32>),
        _ => None,
    }
}

/// The function that extracts a part of this many bits, from a given bit on.
pub fn unpack(bits: u32) -> Option<Function4> {
    match bits {
        8 => Some(part::<8>),
        16 => Some(part::<16>),
        32 => Some(part::<32>),
        _ => None,
    }
}

/// Joins four parts; parts above the word's end are dropped.
fn join<const BITS: u32>(a: u64, b: u64, c: u64, d: u64) -> u64 {
    let place = |part: u64, index: u32| (part & ((1 << BITS) - 1)).checked_shl(BITS * index).unwrap_or(0);
    place(a, 0) | place(b, 1) | place(c, 2) | place(d, 3)
}

fn part<const BITS: u32>(word: u64, start: u64, _: u64, _: u64) -> u64 {
    word >> start & ((1 << BITS) - 1)
}
