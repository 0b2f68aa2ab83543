//! Huffman codes, and the bits of entropy-coded data.

use super::marker::{self, after_marker, marker_in};

/// Codes of up to this many bits are found in one step.
const FAST_BITS: u32 = 9;
/// The length of the longest code in bits.
const MAX_BITS: usize = 16;

/// The reason why entropy-coded data is not sound.
pub(super) type Fault = &'static str;

const SHORT: Fault = "the data ends before";
const NO_CODE: Fault = "no code begins with the bits there";
const LONG: Fault = "there is more data than that";
const NO_RESTART: Fault = "the restart marker that follows is missing or out of order";

/// A Huffman code.
pub(super) struct Huffman {
    /// For each value of the first bits, the length and the symbol of the code; 0 if the code is longer.
    fast: [u16; 1 << FAST_BITS],
    /// For each length, the limit below which 16 bits begin with a code of this length or a shorter one.
    limits: [u32; MAX_BITS + 1],
    /// For each length, the first code, and the index of its symbol.
    first: [(u32, usize); MAX_BITS + 1],
    symbols: Vec<u8>,
}

impl Huffman {
    /// The code with these numbers of symbols of each length, from 1 bit on, and the symbols in that order; `None` if
    /// there is no such code.
    pub fn new(counts: &[u8; MAX_BITS], symbols: &[u8]) -> Option<Self> {
        let (fast, limits, first) = ([0; 1 << FAST_BITS], [0; MAX_BITS + 1], [(0, 0); MAX_BITS + 1]);
        let mut table = Self { fast, limits, first, symbols: symbols.to_vec() };
        let (mut code, mut place) = (0_u32, 0);
        for (length, &count) in (1..).zip(counts) {
            table.first[length as usize] = (code, place);
            for &symbol in symbols.get(place..place + usize::from(count))? {
                if code + 1 >= 1 << length {
                    return None; // no code is all ones
                }
                if length <= FAST_BITS {
                    let from = (code << (FAST_BITS - length)) as usize;
                    table.fast[from..from + (1 << (FAST_BITS - length))].fill((length << 8) as u16 | u16::from(symbol));
                }
                code += 1;
                place += 1;
            }
            table.limits[length as usize] = code << (MAX_BITS as u32 - length);
            code <<= 1;
        }
        (place == symbols.len()).then_some(table)
    }
}

/// The bits of a scan's data, without stuffed bytes, up to the next marker.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The bits that were read and not taken, from the highest bit on, with zeros below them.
    buffer: u64,
    count: u32,
    /// Whether the next byte begins a marker, or the data has ended.
    is_at_marker: bool,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, buffer: 0, count: 0, is_at_marker: false }
    }

    /// The symbol of the next code.
    pub fn symbol(&mut self, table: &Huffman) -> Result<u8, Fault> {
        self.refill();
        let entry = table.fast[(self.buffer >> (u64::BITS - FAST_BITS)) as usize];
        if entry != 0 {
            self.skip(u32::from(entry >> 8))?;
            return Ok(entry as u8);
        }
        let next = (self.buffer >> (u64::BITS - MAX_BITS as u32)) as u32;
        let length = (FAST_BITS as usize + 1..=MAX_BITS).find(|&length| next < table.limits[length]);
        let Some(length) = length else {
            return Err(if self.count < MAX_BITS as u32 { SHORT } else { NO_CODE });
        };
        self.skip(length as u32)?;
        let (code, place) = table.first[length];
        let found = ((next >> (MAX_BITS - length)) - code) as usize;
        table.symbols.get(place + found).copied().ok_or(NO_CODE)
    }

    /// The next `count` bits, at most 16, as a number.
    pub fn take(&mut self, count: u32) -> Result<u32, Fault> {
        self.refill();
        let bits = if count == 0 { 0 } else { (self.buffer >> (u64::BITS - count)) as u32 };
        self.skip(count).map(|()| bits)
    }

    /// Skips a restart marker, which must have this number.
    pub fn restart(&mut self, number: usize) -> Result<(), Fault> {
        self.end_interval()?;
        match marker_in(self.data, self.at) {
            Some((at, found)) if usize::from(found) == usize::from(marker::RST0) + number % 8 => {
                *self = Self { at: after_marker(self.data, at), ..Self::new(self.data) };
                Ok(())
            }
            _ => Err(NO_RESTART),
        }
    }

    /// Checks that only fill bits are left; the next restart marker may end the data.
    pub fn end(&mut self, next_restart: usize) -> Result<(), Fault> {
        self.end_interval()?;
        if self.at < self.data.len() {
            self.restart(next_restart).map_err(|_| LONG)?;
            self.end_interval()?;
        }
        if self.at < self.data.len() { Err(LONG) } else { Ok(()) }
    }

    /// Skips the rest of the last byte and fill bytes, up to the marker.
    fn end_interval(&mut self) -> Result<(), Fault> {
        self.skip(self.count % 8)?;
        loop {
            self.refill();
            if self.count == 0 {
                return Ok(());
            }
            if !matches!(self.take(8)?, 0 | 0xFF) {
                return Err(LONG);
            }
        }
    }

    fn skip(&mut self, count: u32) -> Result<(), Fault> {
        self.count = self.count.checked_sub(count).ok_or(SHORT)?;
        self.buffer <<= count;
        Ok(())
    }

    /// Reads until there are 32 bits or more, or the data has ended.
    fn refill(&mut self) {
        if self.count >= 32 || self.is_at_marker {
            return;
        }
        if let Some(&[a, b, c, d]) = self.data.get(self.at..self.at + 4)
            && ![a, b, c, d].contains(&0xFF)
        {
            self.buffer |= u64::from(u32::from_be_bytes([a, b, c, d])) << (32 - self.count);
            self.count += 32;
            self.at += 4;
            return;
        }
        while self.count < 32 && !self.is_at_marker {
            self.refill_byte();
        }
    }

    fn refill_byte(&mut self) {
        let Some(&byte) = self.data.get(self.at) else {
            self.is_at_marker = true;
            return;
        };
        if byte == 0xFF && marker_in(self.data, self.at).is_none_or(|(_, marker)| marker != 0) {
            self.is_at_marker = true;
            return;
        }
        self.at = if byte == 0xFF { after_marker(self.data, self.at) } else { self.at + 1 };
        self.buffer |= u64::from(byte) << (u64::BITS - 8 - self.count);
        self.count += 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes 00 -> 5, 01 -> 6, 100 -> 7, and one of 12 bits: 1010 0000 0000 -> 8.
    fn code() -> Huffman {
        let mut counts = [0; 16];
        (counts[1], counts[2], counts[11]) = (2, 1, 1);
        Huffman::new(&counts, &[5, 6, 7, 8]).unwrap()
    }

    #[test]
    fn symbols_and_bits_are_found_up_to_the_last_bit() {
        let table = code();
        // The codes 00 01 100 101000000000 1101; then three bits are missing for the long code.
        let mut bits = Bits::new(&[0b0001_1001, 0b0100_0000, 0b0001_1011, 0b0100_0000]);
        let symbols: Vec<u8> = (0..4).map(|_| bits.symbol(&table).unwrap()).collect();
        assert_eq!((symbols, bits.take(4)), (vec![5, 6, 7, 8], Ok(0b1101)));
        assert_eq!((bits.symbol(&table), bits.take(9), bits.take(1)), (Err(SHORT), Ok(0b1_0100_0000), Err(SHORT)));
    }

    #[test]
    fn bits_that_begin_no_code_are_told_from_missing_ones() {
        let table = code();
        assert_eq!(Bits::new(&[0xFE, 0xFE]).symbol(&table), Err(NO_CODE));
        assert_eq!(Bits::new(&[0xFE]).symbol(&table), Err(SHORT));
        assert_eq!(Bits::new(&[0b1010_0000]).symbol(&table), Err(SHORT));
        assert_eq!(Bits::new(&[]).symbol(&table), Err(SHORT));
    }

    #[test]
    fn stuffed_bytes_are_data_and_restarts_have_an_order() {
        let data = [0xFF, 0, 0x12, 0xFF, 0xFF, 0xD0, 0x34, 0, 0xFF, 0xD1];
        let mut bits = Bits::new(&data);
        assert_eq!((bits.take(16), bits.take(1)), (Ok(0xFF12), Err(SHORT)));
        assert_eq!((bits.restart(8), bits.take(4), bits.end(9)), (Ok(()), Ok(3), Ok(())));
        for (taken, number, expected) in [(9, 1, NO_RESTART), (8, 0, LONG), (16, 3, NO_RESTART)] {
            let mut bits = Bits::new(&data);
            bits.take(taken).unwrap();
            assert_eq!(bits.restart(number), Err(expected));
        }
    }

    #[test]
    fn what_is_no_prefix_code_is_refused() {
        let counts = |of: &[(usize, u8)]| {
            of.iter().fold([0; 16], |mut all, &(bits, n)| {
                all[bits - 1] = n;
                all
            })
        };
        assert!(Huffman::new(&counts(&[(1, 1)]), &[0]).is_some());
        assert!(Huffman::new(&counts(&[(1, 2)]), &[0, 1]).is_none(), "all ones");
        assert!(Huffman::new(&counts(&[(1, 1), (2, 2)]), &[0, 1, 2]).is_none());
        assert!(Huffman::new(&counts(&[(2, 2)]), &[0]).is_none(), "too few symbols");
        assert!(Huffman::new(&counts(&[(2, 1)]), &[0, 1]).is_none(), "too many");
        assert!(Huffman::new(&counts(&[]), &[]).is_some());
    }
}
