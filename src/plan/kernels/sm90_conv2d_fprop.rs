//! The sm90 convolution, alone or with a second one whose result it adds: its tiles and their predicted times.

use std::fmt;

use super::conv_shape::{self, ConvShape};
#[cfg(feature = "cuda")]
use super::packed_channels;
use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::model::NodeId;
use crate::plan::context::{CHOSEN, Context, Match};
#[cfg(feature = "cuda")]
use crate::plan::packing::{FilterOrder, PackedSum, Packing, usual};
use crate::plan::work::Work;
use crate::plan::{Joined, Limits, StepOp};
use crate::tensor::Activation;

/// The kernel in `kernels/sm90_conv2d_fprop.cu`.
pub(super) struct Sm90Conv2dFprop;

impl KernelDef for Sm90Conv2dFprop {
    fn name(&self) -> &'static str {
        "sm90_conv2d_fprop"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::Conv(_) | StepOp::ConvSum { .. }) && ConvShape::all(work).is_some()
    }

    fn applies(&self, _activation: Activation) -> bool {
        true
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Conv { .. })
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let fits = |tile: Sm90Tile| tile.pipeline().is_some_and(|p| p.shared_bytes() <= limits.shared_bytes);
        let convs = ConvShape::all(work).filter(|convs| convs.iter().all(|conv| conv_shape::check(conv).is_ok()));
        let Some(convs) = convs else { return Vec::new() };
        let of_value = EPILOGUE_OF_VALUE + activation_of_value(work);
        let clocks = |kernel| match kernel {
            Kernel::Sm90Conv { tile, cluster } if fits(tile) => {
                Some((kernel, clocks(&convs, tile, cluster, of_value, limits)))
            }
            _ => None,
        };
        Sm90Tile::kernels().filter_map(clocks).map(Variant::modelled).collect()
    }

    fn check(&self, work: &Work<'_>, _kernel: Kernel, _limits: &Limits) -> Result<(), Error> {
        ConvShape::all(work).into_iter().flatten().try_for_each(|conv| conv_shape::check(&conv))
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(joined(context, at)?.into_iter().collect())
    }

    /// The order of filters by taps if the channels are no multiple of a step's; otherwise the usual order.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let by_steps = |filter: Packing<'a>| match filter.c_stored() {
            channels if packed_channels(channels) > channels => Packing { order: FilterOrder::Taps, ..filter },
            _ => filter,
        };
        let of_sum = |sum: PackedSum<'a>| PackedSum { filters: sum.filters.into_iter().map(by_steps).collect(), ..sum };
        usual(work).into_iter().map(of_sum).collect()
    }

    fn cache_bytes(&self, work: &Work<'_>, limits: &Limits) -> u64 {
        conv_shape::cache_bytes(&ConvShape::all(work).unwrap_or_default(), limits)
    }
}

/// A convolution in one step with a second convolution whose result it adds: the products of both go into one sum. The
/// second convolution has no activation and no residual. The match counts if the kernel takes less time for the sum
/// than the best kernels for each, or if it is chosen.
pub(super) fn joined(context: &Context<'_>, host: NodeId) -> Result<Option<Match>, Error> {
    let Some((conv, &[x, added])) = context.dense(host) else { return Ok(None) };
    let name = &context.graph.nodes[added.0].name;
    let chosen = context.chosen(added);
    let takes_it = context.limits().has_sm90_kernels()
        && context.readers(added).len() == 1
        && matches!(context.chosen(host), None | Some(Kernel::Sm90Conv { .. } | Kernel::Sm90Chain(_)));
    let found = context.dense(added).filter(|_| takes_it).and_then(|(other, inputs)| {
        let &[other_x] = inputs else { return None };
        let joined = Box::new(Joined { name: name.clone(), conv: other.clone() });
        let found = Match {
            name: context.graph.nodes[host.0].name.clone(),
            op: StepOp::ConvSum { conv: conv.clone(), joined },
            kernel: None,
            place: host,
            covers: vec![host, added],
            reads: vec![x, other_x],
            writes: vec![host],
            saved: 0.0,
        };
        let convs = ConvShape::all(&context.work(&found))?;
        let fits = other.activation == Activation::None && convs.iter().all(|conv| conv_shape::check(conv).is_ok());
        fits.then_some(found)
    });
    let saved = match (chosen, &found) {
        (Some(Kernel::Joined), None) => return Err(not_a_choice(name, Kernel::Joined)),
        (Some(Kernel::Joined), Some(_)) => Some(CHOSEN),
        (Some(_), _) | (None, None) => None,
        (None, Some(found)) => context.saved(found)?.map(|(_, saved)| saved),
    };
    Ok(found.zip(saved).map(|(found, saved)| Match { saved, ..found }))
}

/// The tile of the sm90 convolution: output channels x output pixels of one thread block.
///
/// ```
/// use trefoil::plan::Sm90Tile;
/// let tile = Sm90Tile { channels: 64, pixels: 32 };
/// assert!(Sm90Tile::ALL.contains(&tile) && tile.to_string() == "64x32");
/// assert_eq!(tile.clusters(), [1, 2, 4, 8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sm90Tile {
    /// The number of output channels.
    pub channels: usize,
    /// The number of output pixels.
    pub pixels: usize,
}

impl Sm90Tile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 9] = [
        Self { channels: 128, pixels: 256 },
        Self { channels: 128, pixels: 192 },
        Self { channels: 128, pixels: 144 },
        Self { channels: 128, pixels: 128 },
        Self { channels: 128, pixels: 64 },
        Self { channels: 64, pixels: 256 },
        Self { channels: 64, pixels: 128 },
        Self { channels: 64, pixels: 64 },
        Self { channels: 64, pixels: 32 },
    ];

    /// The numbers of thread blocks that a cluster may have. With a tile of one warpgroup, the blocks of a cluster
    /// share each tile, and each computes a part of the sum. With a tile of 128 channels, two blocks are a pair: they
    /// have neighbouring channels, and each copies half of the pixels for both. In a cluster of four, two pairs share
    /// their tiles, and each computes one half of the sum. The tiles of 64 and 256 pixels have no such clusters.
    pub fn clusters(self) -> &'static [usize] {
        match self.pipeline().map(|pipeline| (pipeline.splits(), pipeline.pairs())) {
            Some((true, false)) => &[1, 2, 4, 8],
            Some((true, true)) => &[1, 2, 4],
            Some((false, true)) => &[1, 2],
            _ => &[1],
        }
    }

    /// The kernel in every tile, with every size of clusters.
    pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
        let of = |tile: Self| tile.clusters().iter().map(move |&cluster| Kernel::Sm90Conv { tile, cluster });
        Self::ALL.into_iter().flat_map(of)
    }

    /// The division of work for this tile; `None` if the kernel is not compiled for the tile.
    pub(crate) const fn pipeline(self) -> Option<Sm90Pipeline> {
        let (parts, stages, chunk_pixels, chunks, blocks) = match (self.channels, self.pixels) {
            (128, 256) => (1, 4, 64, 2, 1),
            (128, 192) => (1, 4, 64, 3, 1),
            (128, 144) => (1, 5, 48, 3, 1),
            (128, 128) => (1, 6, 64, 2, 1),
            (128, 64) => (1, 4, 64, 1, 2),
            (64, 256) => (2, 4, 64, 2, 1),
            (64, 128) => (2, 4, 64, 1, 2),
            (64, 64) => (1, 6, 64, 1, 2),
            (64, 32) => (1, 8, 32, 1, 2),
            _ => return None,
        };
        let (slabs, part_pixels) = (self.channels / 64, self.pixels / parts);
        Some(Sm90Pipeline { slabs, parts, part_pixels, stages, chunk_pixels, chunks, blocks })
    }
}

impl fmt::Display for Sm90Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.channels, self.pixels)
    }
}

/// The division of a tile's work within a block, as in `kernels/sm90_conv2d_fprop.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sm90Pipeline {
    /// The number of groups of 64 output channels. Each group has its own warpgroups.
    pub(crate) slabs: usize,
    /// The number of groups of pixels. Each group has its own warpgroups.
    pub(crate) parts: usize,
    /// The number of pixels of a part.
    pub(crate) part_pixels: usize,
    /// The number of stages in flight, of 64 channels each.
    pub(crate) stages: usize,
    /// The number of pixels that are stored at once.
    pub(crate) chunk_pixels: usize,
    /// The number of chunks on their way out, for each warpgroup.
    pub(crate) chunks: usize,
    /// The number of blocks that fit on a multiprocessor.
    pub(crate) blocks: usize,
}

impl Sm90Pipeline {
    /// The number of threads of a block: a warpgroup that copies, and those that multiply.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing is launched"))]
    pub(crate) const fn threads(self) -> usize {
        128 * (1 + self.slabs * self.parts)
    }

    /// Whether the blocks of a cluster may share a tile: one of one warpgroup, or one of pairs that fills a
    /// multiprocessor, if a warpgroup's sums have room in place of the chunks.
    pub(crate) const fn splits(self) -> bool {
        let fits = self.blocks == 1 && self.chunks * self.chunk_pixels == self.part_pixels;
        self.slabs * self.parts == 1 || self.pairs() && fits
    }

    /// Whether two blocks may have the same pixels, so that each copies a half of them for both.
    pub(crate) const fn pairs(self) -> bool {
        self.slabs == 2
    }

    /// The number of blocks in a cluster of `cluster` blocks that copy pixels for each other.
    pub(crate) const fn pair(self, cluster: usize) -> usize {
        if self.pairs() && cluster > 1 { 2 } else { 1 }
    }

    /// The number of blocks in a cluster of `cluster` blocks that share a tile.
    pub(crate) const fn summands(self, cluster: usize) -> usize {
        if self.splits() { cluster / self.pair(cluster) } else { 1 }
    }

    /// Bytes of dynamic shared memory of a block: the stages with two barriers each, and the chunks of results. If
    /// blocks may share a tile, the sums from other blocks take the place of the chunks, and have a barrier.
    pub(crate) const fn shared_bytes(self) -> usize {
        let rows = self.slabs * 64 + self.parts * self.part_pixels;
        let chunks = self.slabs * self.parts * self.chunks * self.chunk_pixels * ROW_BYTES;
        let (sums, barrier) = if self.splits() { (self.part_pixels * 64 * 4, 8) } else { (0, 0) };
        self.stages * (rows * ROW_BYTES + 16) + if sums > chunks { sums } else { chunks } + barrier
    }
}

/// The bytes of 64 halves.
const ROW_BYTES: usize = 128;

/// Predicted clocks of the sum of `convs`, which have one output shape, in this tile and clusters of `cluster` blocks:
/// the copies or the products of the busiest block, whichever take longer, and its epilogues, of which the activation
/// takes `of_value` clocks for each value. Infinity for a tile for which the kernel is not compiled.
fn clocks(convs: &[ConvShape], tile: Sm90Tile, cluster: usize, of_value: f64, limits: &Limits) -> f64 {
    let ConvShape { batch, output, .. } = convs[0];
    let Some(pipeline) = tile.pipeline() else { return f64::INFINITY };
    let (pair, summands) = (pipeline.pair(cluster), pipeline.summands(cluster));
    let channel_tiles = output.channels.div_ceil(tile.channels).next_multiple_of(pair);
    let blocks = (batch * output.pixels()).div_ceil(tile.pixels) * channel_tiles * summands;
    // About one of eleven multiprocessors is in no whole cluster of four.
    let units = if pair > 1 && summands > 1 { limits.units * 10 / 11 } else { limits.units };
    let waves = blocks.div_ceil(units.max(1));
    let steps = convs.iter().map(ConvShape::steps).sum::<usize>().div_ceil(summands);
    let area = (tile.channels * tile.pixels) as f64;
    let bytes = (tile.channels + tile.pixels / pair) as f64 * 128.0;
    let step = (area * 64.0 / PRODUCTS_A_CLOCK).max(bytes / BYTES_A_CLOCK);
    let exchange = match (summands, pair) {
        (1, _) => 0.0,
        (_, 1) => EXCHANGE + area * EXCHANGE_OF_VALUE,
        _ => EXCHANGE_OF_PAIRS + area / 2.0 * 4.0 / EXCHANGED_A_CLOCK,
    };
    let startup = if pair > 1 { STARTUP + PAIR } else { STARTUP };
    startup + waves as f64 * (steps as f64 * step + EPILOGUE + area * of_value + exchange)
}

/// Clocks of the activation of one value. SiLU takes two special functions, of which a multiprocessor computes 16 in a
/// clock; GELU takes 13 instructions, of which it issues 128.
pub(super) fn activation_of_value(work: &Work<'_>) -> f64 {
    let of = |activation| match activation {
        Activation::None | Activation::Relu | Activation::Relu6 => 0.0,
        Activation::Silu => 2.0 / 16.0,
        Activation::Gelu => 13.0 / 128.0,
    };
    work.activations().map(of).fold(0.0, f64::max)
}

/// Multiply-adds of halves that a multiprocessor does in a clock.
pub(super) const PRODUCTS_A_CLOCK: f64 = 2048.0 / 1.06;
/// Bytes that a multiprocessor gets from the L2 cache in a clock.
const BYTES_A_CLOCK: f64 = 36.0;
/// Clocks of the launch, the barriers and the first load.
const STARTUP: f64 = 1500.0;
/// Clocks that the blocks of a pair wait for each other at their beginning and end.
const PAIR: f64 = 500.0;
/// Clocks of each tile's epilogue, whatever its size.
const EPILOGUE: f64 = 600.0;
/// Clocks of the epilogue for each output value of a tile.
const EPILOGUE_OF_VALUE: f64 = 0.035;
/// Clocks until a block has the sums that the others send, for each tile that blocks share.
const EXCHANGE: f64 = 1500.0;
/// Clocks of this exchange for each value of a tile of one warpgroup.
const EXCHANGE_OF_VALUE: f64 = 0.5;
/// The same for a tile that pairs share, whose four blocks wait for each other.
const EXCHANGE_OF_PAIRS: f64 = 4000.0;
/// Bytes that a block of a pair sends in a clock: one half of the sums of its tile.
const EXCHANGED_A_CLOCK: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_has_a_pipeline_that_fits_the_device() {
        for tile in Sm90Tile::ALL {
            let pipeline = tile.pipeline().unwrap();
            assert_eq!(pipeline.slabs * 64, tile.channels);
            assert_eq!(pipeline.parts * pipeline.part_pixels, tile.pixels);
            // The device reserves 1 KiB for each block beyond what the block asks for.
            let granted = Limits::h200().shared_bytes + 1024;
            assert!(pipeline.blocks * (pipeline.shared_bytes() + 1024) <= granted, "{tile}");
        }
    }
}
