//! A network's first layers as one step on compute capability 9.0: the pattern in a graph, and the tile of the kernel.

use std::fmt;

use half::f16;

use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::{Conv2d, NodeId, Pool, Window, overlaps_its_neighbour};
use crate::plan::context::{ALWAYS, CHOSEN, Context, Match};
#[cfg(feature = "cuda")]
use crate::plan::packing::{FilterOrder, PackedSum, Packing};
use crate::plan::work::Work;
use crate::plan::{Limits, StepOp};
use crate::tensor::{Dtype, InputFormat, Shape};

/// The kernel in `kernels/sm90_stem.cu`.
pub(super) struct Sm90Stem;

impl KernelDef for Sm90Stem {
    fn name(&self) -> &'static str {
        "sm90_stem"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::Stem(_)) && work.is_in(Dtype::U8, Dtype::F16)
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Stem(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let StepOp::Stem(stem) = work.op else { return Vec::new() };
        kernels(stem, work.batch, work.outputs[0].shape, limits).into_iter().map(Variant::modelled).collect()
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(find(context, at).into_iter().collect())
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let StepOp::Stem(stem) = work.op else { return Vec::new() };
        let order = FilterOrder::Stem(stem.layers().expect("planned for what the kernel does"));
        let layers = work.sums().into_iter().flatten();
        let filters =
            layers.map(|layer| Packing { layer, order, dtype: Dtype::F16, bytes: None, norm: None }).collect();
        vec![PackedSum { filters, bias: None }]
    }
}

/// A network's first layers: normalisation, a convolution and perhaps a maximum over windows of its result.
///
/// ```
/// # use trefoil::{Shape, plan::StepOp};
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// let StepOp::Stem(stem) = &plan.steps[0].op else { panic!("{plan}") };
/// assert_eq!((stem.conv.window.size, stem.conv_shape), ([7; 2], Shape::new(112, 112, 64)));
/// assert!(stem.pool.is_some());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Stem {
    /// The mean that is subtracted from each channel of the bytes, in units of their full scale (0-1).
    pub mean: Vec<f32>,
    /// The standard deviation by which each channel is divided after the mean is subtracted.
    pub std: Vec<f32>,
    /// The convolution, with bias and activation.
    pub conv: Conv2d,
    /// The shape of the convolution's result.
    pub conv_shape: Shape,
    /// The maximum over windows, if there is one.
    pub pool: Option<Pool>,
}

/// The tile of the stem kernel: the part of the output that one thread block computes at a time.
///
/// ```
/// use trefoil::plan::{Kernel, StemTile};
/// let tile = StemTile { columns: 112, rows: 7 };
/// assert!(StemTile::COLUMNS.contains(&tile.columns));
/// assert_eq!(Kernel::Sm90Stem(tile).to_string(), "sm90 stem 112x7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StemTile {
    /// The number of columns of the convolution, one of [`StemTile::COLUMNS`].
    pub columns: usize,
    /// The number of rows of the result; any number is possible.
    pub rows: usize,
}

impl StemTile {
    /// The numbers of columns for which the kernel is compiled.
    pub const COLUMNS: [usize; 2] = [112, 64];

    /// The numbers of rows of a tile for a result of this height: the smallest one for each number of bands of tiles.
    pub(crate) fn rows_of(height: usize) -> impl Iterator<Item = usize> {
        (1..=height).filter(move |rows| *rows == height.div_ceil(height.div_ceil(*rows)))
    }
}

impl fmt::Display for StemTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

/// The layers for which the kernel is compiled, apart from its columns, as in `kernels/sm90_stem.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StemLayers {
    /// The number of taps of the filter along each axis.
    pub(crate) taps: usize,
    /// Whether the convolution's result is pooled.
    pub(crate) pools: bool,
}

impl StemLayers {
    /// All layers for which the kernel is compiled.
    pub(crate) const ALL: [Self; 2] = [Self { taps: 7, pools: true }, Self { taps: 3, pools: false }];

    /// The columns of the result that a block with `columns` columns of the convolution computes, and the distance to
    /// the first column of the next block: a pooled column also needs the convolution's column to its left.
    pub(crate) const fn out_columns(self, columns: usize) -> [usize; 2] {
        if self.pools { [columns / 2, columns / 2 - 1] } else { [columns, columns] }
    }

    /// The number of blocks with `columns` columns that fit on a multiprocessor, by the kernel's registers and shared
    /// memory.
    pub(crate) const fn resident(self, columns: usize) -> usize {
        match (self.pools, columns) {
            (false, 64) => 4,
            _ => 2,
        }
    }

    /// The number of blocks side by side for a result of this width.
    pub(crate) const fn column_tiles(self, columns: usize, out_width: usize) -> usize {
        let [of_block, next] = self.out_columns(columns);
        1 + out_width.saturating_sub(of_block).div_ceil(next)
    }
}

/// The order of weights as the kernel reads them.
#[cfg(feature = "cuda")]
impl StemLayers {
    /// The number of pairs of pixels in a window's row, without its last column.
    pub(crate) const fn pairs(self) -> usize {
        self.taps / 2
    }

    /// The number of blocks of eight terms of a window. A block has a pair of pixels, and some also two channels of a
    /// pixel in the last column; one block has the third channels of that column.
    const fn blocks(self) -> usize {
        self.taps * self.pairs() + 1
    }

    /// The number of halves of the filter as the kernel reads it: 8 terms of 64 channels for each block of terms.
    pub(crate) const fn filter_elems(self) -> usize {
        self.blocks() * MOST_STEM_CHANNELS * 8
    }

    /// The number of bytes of the filter and the bias.
    pub(crate) const fn weight_bytes(self) -> usize {
        2 * self.filter_elems() + 4 * MOST_STEM_CHANNELS
    }

    /// The index of a weight of an output channel in the filter. A block of terms is a pair of columns of a row, or the
    /// last column's third channel in all rows; the other two channels of that column are in the block of the row's
    /// first pair. The weights that a thread reads for a product of two blocks lie together: two terms each of two
    /// channels that are eight apart.
    pub(crate) const fn filter_index(self, [r, s]: [usize; 2], channel: usize, c: usize) -> usize {
        let (block, term) = match (s + 1 == self.taps, c) {
            (false, _) => (r * self.pairs() + s / 2, s % 2 * 3 + c),
            (true, 2) => (self.taps * self.pairs(), r),
            (true, _) => (r * self.pairs(), 6 + c),
        };
        let thread = channel / 16 * 32 + channel % 8 * 4 + term / 2;
        let register = block % 2 * 2 + channel / 8 % 2;
        ((block / 2 * GROUP_THREADS + thread) * 4 + register) * 2 + term % 2
    }
}

/// The number of threads of a block that multiply.
#[cfg(feature = "cuda")]
const GROUP_THREADS: usize = 128;
/// The largest number of output channels. The kernel always multiplies with this number of channels.
const MOST_STEM_CHANNELS: usize = 64;

impl Stem {
    /// The layers for which a kernel is compiled, if it computes these; else `None`.
    pub(crate) fn layers(&self) -> Option<StemLayers> {
        let Window { size: [r, s], stride, dilation, pad } = self.conv.window;
        let pools = match self.pool {
            None => false,
            Some(Pool { window, .. }) if overlaps_its_neighbour(window) => true,
            Some(_) => return None,
        };
        let layers = StemLayers { taps: r, pools };
        let most = [pad.top, pad.left, self.conv_shape.height, self.conv_shape.width].into_iter().max();
        let fits = r == s && stride == [2; 2] && dilation == [1; 2] && most < Some(MOST_PIXELS);
        let channels = self.conv.groups == 1 && self.conv.out_channels <= MOST_STEM_CHANNELS;
        (fits && channels && self.pixels_are_halves() && StemLayers::ALL.contains(&layers)).then_some(layers)
    }

    /// Whether the kernel computes these layers of photos of this shape.
    pub(crate) fn takes(&self, photo: Shape) -> bool {
        photo.channels == 3 && photo.height.max(photo.width) < MOST_PIXELS && self.layers().is_some()
    }

    /// Whether all normalised bytes are finite in f16. The kernel multiplies some of them by zeros, and only products
    /// of finite numbers with zero are zero.
    fn pixels_are_halves(&self) -> bool {
        let constants = self.mean.iter().zip(&self.std);
        let mut ends = constants.flat_map(|(mean, std)| [0.0, 1.0].map(|byte| (byte - mean) / std));
        ends.all(|end| f16::from_f32(end).is_finite())
    }
}

/// Images, results of the convolution and padding have fewer pixels than this along each axis.
const MOST_PIXELS: usize = 1 << 14;

/// The match of the first layers whose convolution is node `at`. `None` if the input is not bytes, if the kernel does
/// not compute the layers, or if the program chose another kernel for the convolution.
fn find(context: &Context<'_>, at: NodeId) -> Option<Match> {
    let (conv, &[image]) = context.dense(at)? else { return None };
    let (rows, format, preprocessing) = context.normalized(image)?;
    if format != InputFormat::U8Nhwc {
        return None;
    }
    let [mean, std] = [&preprocessing.mean, &preprocessing.std].map(Clone::clone);
    let with = |pool| Stem {
        mean: mean.clone(),
        std: std.clone(),
        conv: conv.clone(),
        conv_shape: context.shapes[at.0],
        pool,
    };
    let pooled = match context.readers(at) {
        &[reader] => context.max_pool(reader).map(|pool| (Some(*pool), reader)),
        _ => None,
    };
    // If the kernel cannot compute the maximum too, it may still compute the convolution without it.
    let ways = [pooled, Some((None, at))].into_iter().flatten().map(|(pool, last)| (with(pool), last));
    let (stem, last) = ways.into_iter().find(|(stem, _)| stem.takes(context.shapes[rows.0]))?;
    let layers = stem.layers()?;
    let mut covers = vec![image, at, last];
    covers.dedup();
    let (tile, saved) = match context.chosen(at) {
        None => (tile(layers, context.target.batch, context.shapes[last.0], context.limits()), ALWAYS),
        Some(Kernel::Sm90Stem(tile)) => (tile, CHOSEN),
        Some(_) => return None,
    };
    Some(Match {
        name: context.graph.nodes[at.0].name.clone(),
        op: StepOp::Stem(stem),
        kernel: Some(Kernel::Sm90Stem(tile)),
        place: last,
        covers,
        reads: vec![rows],
        writes: vec![last],
        saved,
    })
}

/// The tile with the least predicted time of the busiest multiprocessor.
fn tile(layers: StemLayers, batch: usize, output: Shape, limits: &Limits) -> StemTile {
    let tiles = tiles(layers, batch, output, limits);
    tiles.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a result has rows").0
}

/// Every tile that divides the rows in a different way, with its predicted clocks.
fn tiles(layers: StemLayers, batch: usize, output: Shape, limits: &Limits) -> impl Iterator<Item = (StemTile, f64)> {
    let rows = move |columns| StemTile::rows_of(output.height).map(move |rows| StemTile { columns, rows });
    let tiles = StemTile::COLUMNS.into_iter().flat_map(rows);
    tiles.map(move |tile| (tile, clocks(layers, batch, output, tile, limits)))
}

/// The kernel of a network's first layers in every tile, with its predicted clocks.
fn kernels(stem: &Stem, batch: usize, output: Shape, limits: &Limits) -> Vec<(Kernel, f64)> {
    let Some(layers) = stem.layers() else { return Vec::new() };
    tiles(layers, batch, output, limits).map(|(tile, clocks)| (Kernel::Sm90Stem(tile), clocks)).collect()
}

/// Predicted clocks of the busiest multiprocessor.
fn clocks(layers: StemLayers, batch: usize, output: Shape, tile: StemTile, limits: &Limits) -> f64 {
    clocks_of(layers, if layers.pools { POOLED } else { APART }, batch, output, tile, limits)
}

/// Predicted clocks if a row of the convolution takes `fixed + column * columns`. Blocks run in rounds of as many as
/// fit on a multiprocessor.
pub(super) fn clocks_of(
    layers: StemLayers,
    RowClocks { fixed, column }: RowClocks,
    batch: usize,
    output: Shape,
    tile: StemTile,
    limits: &Limits,
) -> f64 {
    let blocks = batch * output.height.div_ceil(tile.rows) * layers.column_tiles(tile.columns, output.width);
    let of_busiest = blocks.div_ceil(limits.units.max(1));
    let conv_rows = if layers.pools { 2 * tile.rows + 1 } else { tile.rows } as f64;
    let alone = conv_rows * (fixed + column * tile.columns as f64);
    let round = |blocks: usize| OF_ROUND + alone * (1.0 + (blocks - 1) as f64 * BESIDE_ANOTHER);
    let resident = layers.resident(tile.columns);
    let (full, last) = (of_busiest / resident, of_busiest % resident);
    STARTUP + full as f64 * round(resident) + if last > 0 { round(last) } else { 0.0 }
}

// These constants are fitted to times on an H200 at batch 1 to 256.

/// Clocks of the launch and the last stores.
const STARTUP: f64 = 4000.0;
/// Clocks of each round: the loads of the first image rows.
const OF_ROUND: f64 = 2000.0;
/// The fraction of a block's own time by which each further block on a multiprocessor makes a round longer.
const BESIDE_ANOTHER: f64 = 0.75;

/// Clocks of a row of the convolution in a block that runs alone on its multiprocessor.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowClocks {
    /// Clocks for a row of any width.
    pub(super) fixed: f64,
    /// Additional clocks for each column.
    pub(super) column: f64,
}

/// Clocks of a row if there is a maximum over windows: every other row and column is stored.
const POOLED: RowClocks = RowClocks { fixed: 540.0, column: 5.8 };
/// Clocks of a row if there is no maximum over windows: all rows and columns are stored.
const APART: RowClocks = RowClocks { fixed: 390.0, column: 4.2 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_those_that_were_fastest() {
        let pooled = StemLayers { taps: 7, pools: true };
        let tile = |batch| tile(pooled, batch, Shape::new(56, 56, 64), &Limits::h200());
        let fastest = [(1, 64, 1), (8, 112, 2), (32, 112, 7), (128, 112, 28)];
        for (batch, columns, rows) in fastest {
            assert_eq!(tile(batch), StemTile { columns, rows }, "batch {batch}");
        }
    }
}
