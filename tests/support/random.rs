//! A small random number generator, so that every failure can be seen again.

use half::f16;

/// Xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Equal names give equal numbers.
    pub fn new(name: &str) -> Self {
        // FNV-1a, never 0.
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.bits() as usize % (high - low + 1)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() - 1)]
    }

    /// From -1 to 1.
    pub fn signed(&mut self) -> f64 {
        self.bits() as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// `count` numbers from -scale to scale, as f32.
    pub fn singles(&mut self, count: usize, scale: f64) -> Vec<f32> {
        (0..count).map(|_| (self.signed() * scale) as f32).collect()
    }

    /// `count` numbers from -scale to scale that an f16 holds.
    pub fn halves(&mut self, count: usize, scale: f64) -> Vec<f64> {
        (0..count).map(|_| f16::from_f64(self.signed() * scale).to_f64()).collect()
    }
}
