//! A network's first layers as one step on compute capability 9.0: which graphs begin with them, and in which tile.

use std::fmt;

use half::f16;

use super::{Kernel, Limits, Request};
use crate::model::{Conv2d, Graph, NodeId, Op, Pad, Pool, Window};
use crate::tensor::{InputFormat, Shape};

/// A network's first layers: normalisation, a convolution and perhaps a maximum over windows of its result.
///
/// ```
/// # use trefoil::{Shape, plan::StepOp};
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture}};
/// # let graph = architecture("resnet50", 1000, None)?;
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
    /// Subtracted from each channel of bytes, in units of their full scale (0-1).
    pub mean: Vec<f32>,
    /// Divides each channel after that.
    pub std: Vec<f32>,
    /// The convolution, with bias and activation.
    pub conv: Conv2d,
    /// Shape of its result.
    pub conv_shape: Shape,
    /// The maximum, if there is one.
    pub pool: Option<Pool>,
}

/// The tile of the stem kernel: what one thread block computes.
///
/// ```
/// use trefoil::plan::{Kernel, StemTile};
/// let tile = StemTile { columns: 112, rows: 7 };
/// assert!(StemTile::COLUMNS.contains(&tile.columns));
/// assert_eq!(Kernel::Sm90Stem(tile).to_string(), "sm90 stem 112x7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StemTile {
    /// Columns of the convolution, one of [`StemTile::COLUMNS`].
    pub columns: usize,
    /// Rows of the result, any number.
    pub rows: usize,
}

impl StemTile {
    /// The columns that the kernel is compiled for.
    pub const COLUMNS: [usize; 2] = [112, 64];
}

impl fmt::Display for StemTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

/// What the kernel is compiled for, beyond its columns: what `kernels/sm90_stem.cu` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StemLayers {
    /// Taps of the filter along each axis.
    pub(crate) taps: usize,
    /// Whether the convolution's result is pooled.
    pub(crate) pools: bool,
}

impl StemLayers {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self { taps: 7, pools: true }, Self { taps: 3, pools: false }];

    /// Columns of the result that a block of so many columns of the convolution computes, and how far the next block's
    /// are from them: a pooled column needs the convolution's column to its left.
    pub(crate) const fn out_columns(self, columns: usize) -> [usize; 2] {
        if self.pools { [columns / 2, columns / 2 - 1] } else { [columns, columns] }
    }

    /// Blocks of so many columns that a multiprocessor holds: what the kernel's registers and shared memory leave room
    /// for.
    pub(crate) const fn resident(self, columns: usize) -> usize {
        match (self.pools, columns) {
            (false, 64) => 4,
            _ => 2,
        }
    }

    /// Blocks side by side for a result of this width.
    pub(crate) const fn column_tiles(self, columns: usize, out_width: usize) -> usize {
        let [of_block, next] = self.out_columns(columns);
        1 + out_width.saturating_sub(of_block).div_ceil(next)
    }
}

/// Output channels of a product.
pub(crate) const MOST_STEM_CHANNELS: usize = 64;

impl Stem {
    /// What the kernel for these layers is compiled for; `None` if there is no such kernel.
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

    /// Whether all normalised bytes are finite halves: the kernel multiplies some of them by zeros, which only that leaves
    /// zero.
    fn pixels_are_halves(&self) -> bool {
        let constants = self.mean.iter().zip(&self.std);
        let mut ends = constants.flat_map(|(mean, std)| [0.0, 1.0].map(|byte| (byte - mean) / std));
        ends.all(|end| f16::from_f32(end).is_finite())
    }
}

/// Whether a pooling window is 3x3, two pixels from the next, the first one pixel out of the image.
fn overlaps_its_neighbour(window: Window) -> bool {
    let Window { size, stride, dilation, pad: Pad { top, left, bottom, right } } = window;
    size == [3; 2] && stride == [2; 2] && dilation == [1; 2] && [top, left] == [1; 2] && bottom.max(right) <= 1
}

/// What the pixels along each axis of an image, of the convolution and of padding stay below.
const MOST_PIXELS: usize = 1 << 14;

/// The layers that `graph` begins with if one kernel computes them: how many nodes, in which tile. Their values must be
/// read by nobody else, no other kernel be chosen for the convolution, and the input be bytes.
pub(super) fn find(graph: &Graph, shapes: &[Shape], request: &Request<'_>) -> Option<(usize, Stem, StemTile)> {
    let input = shapes[0];
    let fits =
        request.input == InputFormat::U8Nhwc && input.channels == 3 && input.height.max(input.width) < MOST_PIXELS;
    if !request.limits.has_sm90_kernels() || !fits {
        return None;
    }
    let node = graph.nodes.get(1)?;
    let Op::Conv2d(conv) = &node.op else { return None };
    let uses = graph.use_counts();
    if node.inputs != [NodeId(0)] || uses[0] != 1 {
        return None;
    }
    let pool = match graph.nodes.get(2).map(|next| (&next.op, next.inputs.as_slice())) {
        Some((Op::MaxPool(pool), [NodeId(1)])) if uses[1] == 1 => Some(*pool),
        _ => None,
    };
    let [mean, std] = [&request.preprocessing.mean, &request.preprocessing.std].map(Clone::clone);
    let with = |pool| Stem { mean: mean.clone(), std: std.clone(), conv: conv.clone(), conv_shape: shapes[1], pool };
    // Where a maximum cannot be in it, the convolution may be alone.
    let (nodes, stem, layers) = [pool, None].into_iter().find_map(|pool| {
        let stem = with(pool);
        stem.layers().map(|layers| (2 + usize::from(pool.is_some()), stem, layers))
    })?;
    let tile = match request.choices.get(&node.name) {
        None => tile(layers, request.batch, shapes[nodes - 1], request.limits),
        Some(&Kernel::Sm90Stem(tile)) => tile,
        Some(_) => return None,
    };
    Some((nodes, stem, tile))
}

/// The tile with which the busiest multiprocessor is done first.
fn tile(layers: StemLayers, batch: usize, output: Shape, limits: &Limits) -> StemTile {
    let tiles = tiles(layers, batch, output, limits);
    tiles.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a result has rows").0
}

/// Every tile, with its clocks.
fn tiles(layers: StemLayers, batch: usize, output: Shape, limits: &Limits) -> impl Iterator<Item = (StemTile, f64)> {
    let rows = move |columns| (1..=output.height).map(move |rows| StemTile { columns, rows });
    let tiles = StemTile::COLUMNS.into_iter().flat_map(rows);
    tiles.map(move |tile| (tile, clocks(layers, batch, output, tile, limits)))
}

/// Every kernel of a network's first layers, with its clocks.
pub(super) fn kernels(stem: &Stem, batch: usize, output: Shape, limits: &Limits) -> Vec<(Kernel, f64)> {
    let Some(layers) = stem.layers() else { return Vec::new() };
    // Of tiles that make as many bands the lowest.
    let is_lowest = |tile: StemTile| tile.rows == output.height.div_ceil(output.height.div_ceil(tile.rows));
    let tiles = tiles(layers, batch, output, limits).filter(|(tile, _)| is_lowest(*tile));
    tiles.map(|(tile, clocks)| (Kernel::Sm90Stem(tile), clocks)).collect()
}

/// Clocks of the busiest multiprocessor, whose blocks come in rounds of as many as it holds.
fn clocks(layers: StemLayers, batch: usize, output: Shape, tile: StemTile, limits: &Limits) -> f64 {
    let blocks = batch * output.height.div_ceil(tile.rows) * layers.column_tiles(tile.columns, output.width);
    let of_busiest = blocks.div_ceil(limits.units.max(1));
    let conv_rows = if layers.pools { 2 * tile.rows + 1 } else { tile.rows } as f64;
    let RowClocks { whole, column } = if layers.pools { POOLED } else { APART };
    let alone = conv_rows * (whole + column * tile.columns as f64);
    let round = |blocks: usize| OF_ROUND + alone * (1.0 + (blocks - 1) as f64 * BESIDE_ANOTHER);
    let resident = layers.resident(tile.columns);
    let (full, last) = (of_busiest / resident, of_busiest % resident);
    STARTUP + full as f64 * round(resident) + if last > 0 { round(last) } else { 0.0 }
}

// From times on an H200 at batch 1 to 256.

/// Launch, and the last stores.
const STARTUP: f64 = 4000.0;
/// Of each round: the first image rows.
const OF_ROUND: f64 = 2000.0;
/// What a block beside another takes longer for both, of what one takes alone.
const BESIDE_ANOTHER: f64 = 0.75;

/// Clocks of a row of the convolution, of a block that is alone.
struct RowClocks {
    /// However wide it is.
    whole: f64,
    /// More for each column.
    column: f64,
}

/// Every other row and column goes out.
const POOLED: RowClocks = RowClocks { whole: 540.0, column: 5.8 };
/// All do.
const APART: RowClocks = RowClocks { whole: 390.0, column: 4.2 };

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
