//! A small generator of pseudo-random numbers, so that every failure can be reproduced.

use half::f16;

/// The xorshift64* generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for a name: equal names give equal numbers.
    pub fn new(name: &str) -> Self {
        // The hash FNV-1a of the name, which is never 0.
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.bits() as usize % (high - low + 1)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() - 1)]
    }

    /// A number from -1 to 1.
    pub fn signed(&mut self) -> f64 {
        self.bits() as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// `count` numbers from -scale to scale, as f32.
    pub fn singles(&mut self, count: usize, scale: f64) -> Vec<f32> {
        (0..count).map(|_| (self.signed() * scale) as f32).collect()
    }

    /// `count` numbers from -scale to scale that f16 represents exactly.
    pub fn halves(&mut self, count: usize, scale: f64) -> Vec<f64> {
        (0..count).map(|_| f16::from_f64(self.signed() * scale).to_f64()).collect()
    }
}
