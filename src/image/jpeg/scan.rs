//! Checks that a JPEG's entropy-coded data is complete: every block of every scan, and nothing else.
//!
//! A decoder fills in pixels for missing data without an error; here the codes are followed without making a picture.
//! Two kinds of damage cannot be found: changed data that decodes to the same number of blocks, and whole scans that
//! are missing at the end of a progressive file, because a file may leave out the finest detail.

use super::huffman::{Bits, Fault, Huffman};
use super::marker;
use super::outline::{Outline, Scan, Segment};
use super::standard;

const NO_TABLE: Fault = "its Huffman table is missing";
const BAD_SIZE: Fault = "a coefficient has more bits than there can be";
const OUTSIDE: Fault = "a coefficient lies outside its block";
const BAD_BAND: Fault = "its band of coefficients is not one of a progressive file";
const TOO_FAR: Fault = "it ends in the middle of a run of empty blocks";

/// The most bits of a coefficient.
const MAX_SIZE: u8 = 15;

/// Checks all scans.
pub(super) fn check(outline: &Outline) -> Result<(), String> {
    let mut walk = Walk::new(outline);
    let count = outline.scans().count();
    let mut number = 0;
    for part in &outline.parts {
        match part {
            Segment::Table(marker, content) => walk.read_table(*marker, content)?,
            Segment::Scan(scan) => {
                number += 1;
                walk.scan(scan).map_err(|(mcu, all, fault)| {
                    format!("the file is cut off or damaged: scan {number} of {count}, block {mcu} of {all}: {fault}")
                })?;
            }
        }
    }
    match walk.is_begun.iter().position(|begun| !begun) {
        None => Ok(()),
        Some(component) => Err(format!("the file is cut off: no scan has its component {component}")),
    }
}

/// The state of the check on its way through a file.
struct Walk<'a> {
    outline: &'a Outline<'a>,
    /// The DC tables and the AC tables.
    tables: [[Option<Box<Huffman>>; 4]; 2],
    /// The number of MCUs between restart markers; 0 for none.
    interval: usize,
    /// For each component, whether a scan had the first bits of its coefficients.
    is_begun: Vec<bool>,
    /// For each component of a progressive file and each block, the set of coefficients that are not zero so far.
    nonzero: Vec<Vec<u64>>,
}

/// The number of sound MCUs, the number of all, and the fault of the next one.
type ScanFault = (usize, usize, Fault);

/// The coding of a scan's coefficients.
#[derive(Clone, Copy)]
enum Coding {
    /// All coefficients of a block.
    Sequential,
    DcFirst,
    DcRefine,
    AcFirst,
    AcRefine,
}

impl<'a> Walk<'a> {
    fn new(outline: &'a Outline<'a>) -> Self {
        let components = outline.frame.components.len();
        let [dc, ac] = standard::tables();
        let table = |(counts, symbols): standard::Table| Huffman::new(counts, symbols).map(Box::new);
        let four = |[a, b]: [standard::Table; 2]| [table(a), table(b), None, None];
        let tables = [four(dc), four(ac)];
        Self { outline, tables, interval: 0, is_begun: vec![false; components], nonzero: vec![Vec::new(); components] }
    }

    fn read_table(&mut self, marker: u8, content: &[u8]) -> Result<(), String> {
        match (marker, content) {
            (marker::DHT, content) => self.read_codes(content).ok_or("not a sound JPEG: a bad Huffman table".into()),
            (marker::DRI, &[high, low]) => {
                self.interval = usize::from(u16::from_be_bytes([high, low]));
                Ok(())
            }
            (marker::DRI, _) => Err("not a sound JPEG: a bad restart interval".into()),
            _ => Ok(()),
        }
    }

    fn read_codes(&mut self, mut content: &[u8]) -> Option<()> {
        while let Some((&place, rest)) = content.split_first() {
            let (counts, rest) = rest.split_first_chunk()?;
            let (symbols, rest) = rest.split_at_checked(counts.iter().map(|&count| usize::from(count)).sum())?;
            let table = self.tables.get_mut(usize::from(place >> 4))?.get_mut(usize::from(place & 15))?;
            *table = Some(Box::new(Huffman::new(counts, symbols)?));
            content = rest;
        }
        Some(())
    }

    fn scan(&mut self, scan: &Scan) -> Result<(), ScanFault> {
        let frame = &self.outline.frame;
        let [across, down] = match &scan.components[..] {
            [(only, _)] => frame.blocks(*only),
            _ => frame.mcus(),
        };
        let mcus = across * down;
        let coding = self.begin(scan, mcus).map_err(|fault| (0, mcus, fault))?;
        let mut blocks = Blocks { bits: Bits::new(scan.data), coding, band: scan.band, empty: 0 };
        for place in 0..mcus {
            self.mcu(scan, &mut blocks, place).map_err(|fault| (place, mcus, fault))?;
        }
        let restarts = (mcus - 1).checked_div(self.interval).unwrap_or(0);
        blocks.end(restarts).map_err(|fault| (mcus, mcus, fault))
    }

    /// Checks the blocks of the MCU at `place`, after the restart marker before it, if there is one.
    fn mcu(&mut self, scan: &Scan, blocks: &mut Blocks, place: usize) -> Result<(), Fault> {
        if self.interval > 0 && place > 0 && place.is_multiple_of(self.interval) {
            blocks.restart(place / self.interval - 1)?;
        }
        for &(component, tables) in &scan.components {
            let of = &self.outline.frame.components[component];
            let count = if scan.components.len() == 1 { 1 } else { of.across * of.down };
            let [dc, ac] = [tables >> 4, tables & 15].map(usize::from);
            let tables = [self.tables[0].get(dc), self.tables[1].get(ac)].map(|table| table?.as_deref());
            let mut none = 0;
            let nonzero = self.nonzero[component].get_mut(place).unwrap_or(&mut none);
            for _ in 0..count {
                blocks.block(tables, nonzero)?;
            }
        }
        Ok(())
    }

    /// The coding of a scan; also records which coefficients it begins.
    fn begin(&mut self, scan: &Scan, blocks: usize) -> Result<Coding, Fault> {
        let is_first = scan.approximation >> 4 == 0;
        let coding = match (self.outline.frame.is_progressive, scan.band, is_first) {
            (false, ..) => Coding::Sequential,
            (true, [0, 0], true) => Coding::DcFirst,
            (true, [0, 0], false) => Coding::DcRefine,
            (true, [1..=63, last], _) if scan.band[0] <= last && scan.components.len() == 1 => {
                let nonzero = &mut self.nonzero[scan.components[0].0];
                nonzero.try_reserve_exact(blocks.saturating_sub(nonzero.len())).map_err(|_| "no memory to check it")?;
                nonzero.resize(blocks, 0);
                if is_first { Coding::AcFirst } else { Coding::AcRefine }
            }
            _ => return Err(BAD_BAND),
        };
        if matches!(coding, Coding::Sequential | Coding::DcFirst) {
            scan.components.iter().for_each(|&(component, _)| self.is_begun[component] = true);
        }
        Ok(coding)
    }
}

/// Reads the blocks of a scan, one after the other.
struct Blocks<'a> {
    bits: Bits<'a>,
    coding: Coding,
    band: [u8; 2],
    /// The number of coming blocks without new coefficients.
    empty: u32,
}

impl Blocks<'_> {
    fn restart(&mut self, number: usize) -> Result<(), Fault> {
        match self.empty {
            0 => self.bits.restart(number),
            _ => Err(TOO_FAR),
        }
    }

    fn end(&mut self, restarts: usize) -> Result<(), Fault> {
        match self.empty {
            0 => self.bits.end(restarts),
            _ => Err(TOO_FAR),
        }
    }

    fn block(&mut self, [dc, ac]: [Option<&Huffman>; 2], nonzero: &mut u64) -> Result<(), Fault> {
        match self.coding {
            Coding::Sequential => {
                self.dc(dc)?;
                self.ac_first(ac, 1, 63, &mut 0)
            }
            Coding::DcFirst => self.dc(dc),
            Coding::DcRefine => self.bits.take(1).map(drop),
            Coding::AcFirst if self.empty > 0 => {
                self.empty -= 1;
                Ok(())
            }
            Coding::AcFirst => self.ac_first(ac, self.band[0], self.band[1], nonzero),
            Coding::AcRefine => self.ac_refine(ac, nonzero),
        }
    }

    fn dc(&mut self, table: Option<&Huffman>) -> Result<(), Fault> {
        match self.bits.symbol(table.ok_or(NO_TABLE)?)? {
            size @ 0..=MAX_SIZE => self.bits.take(size.into()).map(drop),
            _ => Err(BAD_SIZE),
        }
    }

    /// Reads new coefficients from `first` to `last`.
    fn ac_first(&mut self, table: Option<&Huffman>, first: u8, last: u8, nonzero: &mut u64) -> Result<(), Fault> {
        let table = table.ok_or(NO_TABLE)?;
        let mut at = first;
        while at <= last {
            let symbol = self.bits.symbol(table)?;
            match (symbol >> 4, symbol & 15) {
                (15, 0) => at += 16,
                (run, 0) => {
                    self.empty = self.run(run)? - 1;
                    return Ok(());
                }
                (run, size) => {
                    at += run;
                    if at > last {
                        return Err(OUTSIDE);
                    }
                    *nonzero |= 1 << at;
                    self.bits.take(size.into())?;
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// The number of blocks that end here; in a sequential file this is always one.
    fn run(&mut self, bits: u8) -> Result<u32, Fault> {
        match self.coding {
            Coding::Sequential => Ok(1),
            _ => Ok((1 << bits) + self.bits.take(bits.into())?),
        }
    }

    /// Reads one more bit for every coefficient that is not zero, and new coefficients between them.
    fn ac_refine(&mut self, table: Option<&Huffman>, nonzero: &mut u64) -> Result<(), Fault> {
        let table = table.ok_or(NO_TABLE)?;
        let [mut at, last] = self.band;
        while self.empty == 0 && at <= last {
            let symbol = self.bits.symbol(table)?;
            let (run, size) = (symbol >> 4, symbol & 15);
            if size == 0 && run < 15 {
                self.empty = self.run(run)?;
                break;
            }
            self.bits.take(u32::from(size > 0))?;
            at = self.refine(at, run, *nonzero)?;
            if size > 0 {
                if at > last {
                    return Err(OUTSIDE);
                }
                *nonzero |= 1 << at;
            }
            at += 1;
        }
        if self.empty > 0 {
            self.refine(at, u8::MAX, *nonzero)?;
            self.empty -= 1;
        }
        Ok(())
    }

    /// Passes over `zeros` coefficients that are zero and over all that are not, which take one bit each; returns the
    /// index of the zero after them.
    fn refine(&mut self, mut at: u8, mut zeros: u8, nonzero: u64) -> Result<u8, Fault> {
        while at <= self.band[1] {
            if nonzero >> at & 1 == 1 {
                self.bits.take(1)?;
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            at += 1;
        }
        Ok(at)
    }
}
