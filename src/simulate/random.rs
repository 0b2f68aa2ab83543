//! Random times, the same in each run.

use crate::device::sim::{Picos, picos};

/// A xorshift64* generator.
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Zero is the generator's fixed point.
        Self((seed ^ 0x9E37_79B9_7F4A_7C15).max(1))
    }

    /// A number in (0, 1].
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A time in seconds with an exponential distribution, as of an event that may come at any moment.
    pub fn seconds(&mut self, mean: f64) -> f64 {
        -self.uniform().ln() * mean
    }

    pub fn picos(&mut self, mean: Picos) -> Picos {
        picos(self.seconds(mean as f64 * 1e-12))
    }
}
