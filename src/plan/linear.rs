//! Linear layers: their kernels, and how long each takes. What takes the time is the way of both operands to the
//! multiprocessors.

use std::fmt;

use super::{ConvTile, Kernel, Limits, select};
use crate::error::Error;

/// The tile of the Hopper linear layer: what a cluster of thread blocks that share the channels computes, 80 outputs of
/// some images.
///
/// ```
/// use trefoil::plan::{Kernel, LinearTile};
/// let tile = LinearTile { images: 64, blocks: 4 };
/// assert!(LinearTile::ALL.contains(&tile));
/// assert_eq!(Kernel::Sm90Linear(tile).to_string(), "sm90 linear 64/4");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinearTile {
    /// Images.
    pub images: usize,
    /// Blocks of the cluster.
    pub blocks: usize,
}

impl LinearTile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 4] = [
        Self { images: 64, blocks: 4 },
        Self { images: 64, blocks: 8 },
        Self { images: 128, blocks: 4 },
        Self { images: 128, blocks: 8 },
    ];

    /// Dynamic shared memory of a block for `channels`: its share of them in boxes, and a barrier for each and for what
    /// it gets of the others' sums, which take the place of two boxes. As `kernels/sm90_linear.cu` has it.
    pub(crate) fn shared_bytes(self, channels: usize) -> usize {
        let boxes = channels.div_ceil(BOX_CHANNELS).div_ceil(self.blocks).max(SUM_BOXES);
        boxes * (self.images + LINEAR_OUTPUTS) * BOX_CHANNELS * 2 + (boxes + 1) * 8
    }
}

impl fmt::Display for LinearTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.images, self.blocks)
    }
}

/// Outputs of a tile.
pub(crate) const LINEAR_OUTPUTS: usize = 80;
/// Channels that are copied at once.
pub(crate) const BOX_CHANNELS: usize = 64;
/// Boxes whose place the blocks' sums take.
const SUM_BOXES: usize = 2;

/// What decides how long a linear layer takes; channels and outputs are the stored ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearShape {
    pub batch: usize,
    pub channels: usize,
    pub outputs: usize,
}

/// An error unless the kernel is compiled for the tile and the blocks' shares of the channels fit the shared memory.
pub(super) fn check(shape: &LinearShape, tile: LinearTile, limits: &Limits) -> Result<(), Error> {
    if !LinearTile::ALL.contains(&tile) {
        let instead = "use one of LinearTile::ALL".into();
        return Err(Error::Unsupported { what: format!("linear tile = {tile}"), instead });
    }
    if tile.shared_bytes(shape.channels) <= limits.shared_bytes {
        return Ok(());
    }
    let what = format!("channels = {} in tiles of {tile}", shape.channels);
    Err(Error::Unsupported {
        what,
        instead: "a block has no room for so many: use more blocks, or an sm80 kernel".into(),
    })
}

/// The kernel of a linear layer: the one that is done first.
pub(super) fn kernel(shape: &LinearShape, limits: &Limits) -> Kernel {
    select::best(kernels(shape, limits)).expect("there are sm80 kernels").0
}

/// Every kernel of such a layer, with the clocks of its busiest multiprocessor; of those that take as long the smallest
/// first, which has the fewest products.
pub(super) fn kernels(shape: &LinearShape, limits: &Limits) -> Vec<(Kernel, f64)> {
    let sm80 =
        ConvTile::LINEAR.into_iter().rev().map(|tile| (Kernel::Sm80Gemm(tile), sm80_clocks(shape, tile, limits)));
    let fits = |tile: &LinearTile| limits.has_sm90_kernels() && check(shape, *tile, limits).is_ok();
    let sm90 = LinearTile::ALL.into_iter().filter(fits);
    sm80.chain(sm90.map(|tile| (Kernel::Sm90Linear(tile), sm90_clocks(shape, tile, limits)))).collect()
}

fn sm80_clocks(shape: &LinearShape, tile: ConvTile, limits: &Limits) -> f64 {
    let &LinearShape { batch, channels, outputs } = shape;
    let blocks = batch.div_ceil(tile.m) * outputs.div_ceil(tile.n);
    let operand_bytes = (tile.m.min(batch) + tile.n.min(outputs)) * channels * 2;
    blocks.div_ceil(limits.units.max(1)) as f64 * (operand_bytes as f64 / BYTES_A_CLOCK + SM80_BLOCK)
}

/// With a block on each multiprocessor; of each eleven about one is in no whole cluster.
fn sm90_clocks(shape: &LinearShape, tile: LinearTile, limits: &Limits) -> f64 {
    let &LinearShape { batch, channels, outputs } = shape;
    let clusters = batch.div_ceil(tile.images) * outputs.div_ceil(LINEAR_OUTPUTS);
    let at_once = (limits.units * 10 / 11 / tile.blocks).max(1);
    let [images, outputs] = [tile.images.min(batch), LINEAR_OUTPUTS.min(outputs)];
    let operand_bytes = (images + outputs) * channels.div_ceil(tile.blocks) * 2;
    let sum_bytes = images.next_multiple_of(16) * LINEAR_OUTPUTS * 4 * (tile.blocks - 1) / tile.blocks;
    let clocks = operand_bytes as f64 / BYTES_A_CLOCK + sum_bytes as f64 / SUM_BYTES_A_CLOCK + SM90_BLOCK;
    clusters.div_ceil(at_once) as f64 * clocks
}

/// What a multiprocessor of an H200 gets from the L2 cache in a clock while all others do too: 7.8 TB/s of 132.
const BYTES_A_CLOCK: f64 = 30.0;
/// What it gets from other multiprocessors of its cluster.
const SUM_BYTES_A_CLOCK: f64 = 12.0;
/// The rest of a block, in clocks: latencies, and adding its warps' sums.
const SM80_BLOCK: f64 = 2000.0;
/// The same: latencies, the last products, and until it has the first of the others' sums.
const SM90_BLOCK: f64 = 2200.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(batch: usize, channels: usize, outputs: usize) -> LinearShape {
        LinearShape { batch, channels, outputs }
    }

    #[test]
    fn resnet50_has_the_tiles_of_the_note() {
        let chosen = |batch| kernel(&of(batch, 2048, 1000), &Limits::h200()).to_string();
        assert_eq!(chosen(1), "sm80 16x8");
        assert_eq!(
            [8, 32, 128, 256].map(chosen),
            ["sm90 linear 64/8", "sm90 linear 64/8", "sm90 linear 64/4", "sm90 linear 128/4"]
        );
        let on_a100 = kernel(&of(128, 2048, 1000), &Limits::a100());
        assert!(matches!(on_a100, Kernel::Sm80Gemm(_)), "{on_a100}");
    }

    #[test]
    fn what_there_is_no_room_for_has_the_kernels_of_any_gpu() {
        let most =
            |tile: LinearTile| (1..400).filter(|boxes| tile.shared_bytes(boxes * 64) <= 232_448).max().unwrap() * 64;
        assert_eq!(LinearTile::ALL.map(most), [3072, 6144, 2048, 4096]);
        let wide = of(128, 25_088, 4096);
        assert!(matches!(check(&wide, LinearTile::ALL[1], &Limits::h200()), Err(Error::Unsupported { .. })));
        let all = kernels(&wide, &Limits::h200());
        assert!(
            all.len() == ConvTile::LINEAR.len() && all.iter().all(|(kernel, _)| matches!(kernel, Kernel::Sm80Gemm(_)))
        );
    }
}
