//! Kernel choice: which tile a convolution or linear layer gets.

use std::collections::BTreeMap;
use std::fmt;

use super::Limits;

/// The tile of the implicit-GEMM kernels: pixels x output channels of one thread block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConvTile {
    /// Output pixels (GEMM M).
    pub m: usize,
    /// Output channels (GEMM N).
    pub n: usize,
}

impl ConvTile {
    /// Every tile that the kernels are compiled for, largest first.
    pub const ALL: [Self; 6] = [
        Self { m: 256, n: 64 },
        Self { m: 128, n: 128 },
        Self { m: 128, n: 64 },
        Self { m: 128, n: 32 },
        Self { m: 64, n: 64 },
        Self { m: 32, n: 64 },
    ];
}

impl fmt::Display for ConvTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.m, self.n)
    }
}

/// Tiles that overrule the planner's, by step name.
pub type Choices = BTreeMap<String, ConvTile>;

/// The tile for a GEMM of `m` pixels, `n` channels and `k` taps on `limits`.
pub(super) fn conv_tile(limits: &Limits, m: usize, n: usize, k: usize) -> ConvTile {
    let _ = (limits, m, n, k);
    ConvTile { m: 128, n: 64 }
}
