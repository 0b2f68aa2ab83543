//! The sm90 linear layer: its tiles, and their predicted times.

use std::fmt;

use super::linear::{BYTES_A_CLOCK, LinearShape};
use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::plan::Limits;
use crate::plan::work::Work;

/// The kernel in `kernels/sm90_linear.cu`.
pub(super) struct Sm90Linear;

impl KernelDef for Sm90Linear {
    fn name(&self) -> &'static str {
        "sm90_linear"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        LinearShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Linear(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(shape) = LinearShape::of(work) else { return Vec::new() };
        let fits = LinearTile::ALL.into_iter().filter(|tile| check(&shape, *tile, limits).is_ok());
        fits.map(|tile| Variant::modelled((Kernel::Sm90Linear(tile), clocks(&shape, tile, limits)))).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        match (kernel, LinearShape::of(work)) {
            (Kernel::Sm90Linear(tile), Some(shape)) => check(&shape, tile, limits),
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }
}

/// The tile of the sm90 linear layer: 80 outputs of some images, computed by a cluster of thread blocks that divide the
/// input channels among them.
///
/// ```
/// use trefoil::plan::{Kernel, LinearTile};
/// let tile = LinearTile { images: 64, blocks: 4 };
/// assert!(LinearTile::ALL.contains(&tile));
/// assert_eq!(Kernel::Sm90Linear(tile).to_string(), "sm90 linear 64/4");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinearTile {
    /// The number of images.
    pub images: usize,
    /// The number of blocks of the cluster.
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

    /// Bytes of dynamic shared memory of a block for `channels` input channels: its share of them in boxes, a barrier
    /// for each box, and one for the sums from the other blocks, which take the place of two boxes. It agrees with
    /// `kernels/sm90_linear.cu`.
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

/// The number of outputs of a tile.
pub(crate) const LINEAR_OUTPUTS: usize = 80;
/// The number of channels that are copied at once.
pub(crate) const BOX_CHANNELS: usize = 64;
/// The number of boxes whose place the sums of other blocks take.
const SUM_BOXES: usize = 2;

/// An error unless the kernel is compiled for the tile and a block's share of the channels fits into shared memory.
fn check(shape: &LinearShape, tile: LinearTile, limits: &Limits) -> Result<(), Error> {
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

/// Predicted clocks with one block on each multiprocessor. About one of eleven multiprocessors is in no whole cluster.
fn clocks(shape: &LinearShape, tile: LinearTile, limits: &Limits) -> f64 {
    let &LinearShape { batch, channels, outputs } = shape;
    let clusters = batch.div_ceil(tile.images) * outputs.div_ceil(LINEAR_OUTPUTS);
    let at_once = (limits.units * 10 / 11 / tile.blocks).max(1);
    let [images, outputs] = [tile.images.min(batch), LINEAR_OUTPUTS.min(outputs)];
    let operand_bytes = (images + outputs) * channels.div_ceil(tile.blocks) * 2;
    let sum_bytes = images.next_multiple_of(16) * LINEAR_OUTPUTS * 4 * (tile.blocks - 1) / tile.blocks;
    let clocks = operand_bytes as f64 / BYTES_A_CLOCK + sum_bytes as f64 / SUM_BYTES_A_CLOCK + OF_BLOCK;
    clusters.div_ceil(at_once) as f64 * clocks
}

/// Bytes that a multiprocessor gets from the others of its cluster in a clock.
const SUM_BYTES_A_CLOCK: f64 = 12.0;
/// The rest of a block's time, in clocks: latencies, the last products, and the wait for the first sums of other
/// blocks.
const OF_BLOCK: f64 = 2200.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;
    use crate::plan::StepOp;
    use crate::plan::kernels::{ConvTile, variants};
    use crate::plan::work::Operand;
    use crate::tensor::{Dtype, Shape};

    /// The kernels of a linear layer, the fastest first.
    fn kernels(batch: usize, channels: usize, outputs: usize, limits: &Limits) -> Vec<Kernel> {
        let op = StepOp::Linear(model::Linear::named("fc", outputs));
        let inputs = vec![Operand::rows(Shape::vector(channels), Dtype::F16)];
        let outputs = vec![Operand::rows(Shape::vector(outputs), Dtype::F32)];
        let mut all = variants(&Work { name: "fc", op: &op, batch, inputs, outputs }, limits);
        all.sort_by(|a, b| a.clocks.partial_cmp(&b.clocks).unwrap());
        all.into_iter().map(|variant| variant.kernel).collect()
    }

    #[test]
    fn resnet50_has_the_tiles_of_the_note() {
        let chosen = |batch| kernels(batch, 2048, 1000, &Limits::h200())[0].to_string();
        assert_eq!(chosen(1), "sm80 16x8");
        assert_eq!(
            [8, 32, 128, 256].map(chosen),
            ["sm90 linear 64/8", "sm90 linear 64/8", "sm90 linear 64/4", "sm90 linear 128/4"]
        );
        let on_a100 = kernels(128, 2048, 1000, &Limits::a100())[0];
        assert!(matches!(on_a100, Kernel::Sm80Gemm(_)), "{on_a100}");
    }

    #[test]
    fn what_there_is_no_room_for_has_the_kernels_of_any_gpu() {
        let most =
            |tile: LinearTile| (1..400).filter(|boxes| tile.shared_bytes(boxes * 64) <= 232_448).max().unwrap() * 64;
        assert_eq!(LinearTile::ALL.map(most), [3072, 6144, 2048, 4096]);
        let wide = LinearShape { batch: 128, channels: 25_088, outputs: 4096 };
        assert!(matches!(check(&wide, LinearTile::ALL[1], &Limits::h200()), Err(Error::Unsupported { .. })));
        let all = kernels(128, 25_088, 4096, &Limits::h200());
        assert!(all.len() == ConvTile::LINEAR.len() && all.iter().all(|kernel| matches!(kernel, Kernel::Sm80Gemm(_))));
    }
}
