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
    pub const ALL: [Self; 7] = [
        Self { m: 256, n: 128 },
        Self { m: 128, n: 128 },
        Self { m: 256, n: 64 },
        Self { m: 128, n: 64 },
        Self { m: 128, n: 32 },
        Self { m: 64, n: 64 },
        Self { m: 32, n: 64 },
    ];

    /// Those that the linear layer is compiled for, largest first.
    pub const LINEAR: [Self; 3] = [Self { m: 128, n: 64 }, Self { m: 64, n: 64 }, Self { m: 32, n: 64 }];

    /// How the kernels walk through this tile; `None` if they are not compiled for it.
    pub(crate) const fn pipeline(self) -> Option<Pipeline> {
        let (k, stages, threads) = match (self.m, self.n) {
            (256, 128) => (64, 3, 256),
            (256, 64) => (32, 4, 128),
            (128, 128 | 64 | 32) | (64, 64) => (64, 3, 128),
            (32, 64) => (64, 4, 128),
            _ => return None,
        };
        // Halves of both operands in every stage, then a float of bias for each channel.
        let shared_bytes = stages * (self.m + self.n) * k * 2 + self.n * 4;
        Some(Pipeline { k, stages, threads, shared_bytes })
    }
}

/// The shape of an implicit-GEMM kernel beyond its tile: what `kernels/gemm_tiles.cuh` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pipeline {
    /// Depth of one stage, in channels times taps.
    pub(crate) k: usize,
    /// Stages in flight.
    pub(crate) stages: usize,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Dynamic shared memory of a block; a device must grant that much.
    pub(crate) shared_bytes: usize,
}

impl fmt::Display for ConvTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.m, self.n)
    }
}

/// Tiles that overrule the planner's, by step name.
pub type Choices = BTreeMap<String, ConvTile>;

/// The tile among `tiles` for a GEMM of `m` pixels, `n` channels and `k` taps on `limits`: the one whose busiest
/// multiprocessor has the least work, work weighed by how well the tile uses the tensor cores. Tiles that need more
/// shared memory than a block may have are left out.
pub(super) fn best_tile(tiles: &[ConvTile], limits: &Limits, [m, n, k]: [usize; 3]) -> ConvTile {
    let cost = |tile: &ConvTile| {
        let blocks = m.div_ceil(tile.m) * n.div_ceil(tile.n);
        let rounds = blocks.div_ceil(limits.units.max(1));
        rounds as f64 * ((tile.m * tile.n) as f64 * k as f64 / rate(*tile) + FIXED_COST)
    };
    let fits = |tile: &&ConvTile| tile.pipeline().is_some_and(|p| p.shared_bytes <= limits.shared_bytes);
    let best = tiles.iter().filter(fits).min_by(|a, b| cost(a).total_cmp(&cost(b)));
    *best.unwrap_or(tiles.last().expect("there are tiles"))
}

/// Prologue and epilogue of one block, in multiply-adds of the best tile.
const FIXED_COST: f64 = 1.0e6;

/// Throughput of a tile against the best one when the GPU is full, from a sweep over the layers of ResNet-50 on an
/// H200 (`examples/tile_sweep.rs`). The smaller a tile, the more bytes it loads for each operation; the largest has
/// one block on a multiprocessor, so nothing hides its prologue and epilogue.
fn rate(tile: ConvTile) -> f64 {
    match (tile.m, tile.n) {
        (128, 128) => 1.0,
        (256, 128) => 0.92,
        (128, 64) => 0.9,
        (256, 64) => 0.86,
        (64, 64) => 0.75,
        (128, 32) => 0.5,
        _ => 0.45,
    }
}
