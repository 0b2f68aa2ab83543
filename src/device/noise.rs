//! What measurements run on: numbers that are not zeros, the same in each run.

use crate::tensor::Dtype;

/// xorshift64.
pub(crate) struct Noise(u64);

impl Noise {
    pub fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills a row with any bytes, or with numbers in [-1, 1).
    pub fn fill(&mut self, row: &mut [u8], dtype: Dtype) {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match dtype {
            Dtype::U8 => row.iter_mut().for_each(|b| *b = self.next() as u8),
            Dtype::F16 => row
                .chunks_exact_mut(2)
                .for_each(|b| b.copy_from_slice(&half::f16::from_f32(unit(self.next())).to_le_bytes())),
            Dtype::F32 => row.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&unit(self.next()).to_le_bytes())),
        }
    }
}
