//! The sm90 depthwise convolutions of halves and of bytes: their tiles, what they can compute, and the predicted times.

use std::fmt;

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::model::Window;
#[cfg(feature = "cuda")]
use crate::plan::packing::{self, FilterOrder, PackedSum};
use crate::plan::work::Work;
use crate::plan::{Limits, QuantizedDepthwise, S8Conv, StepOp};
use crate::tensor::{Activation, Dtype, Shape};

/// The kernel in `kernels/sm90_conv2d_depthwise.cu`, for a depthwise convolution by itself.
pub(super) struct Sm90Conv2dDepthwise;

impl KernelDef for Sm90Conv2dDepthwise {
    fn name(&self) -> &'static str {
        "sm90_conv2d_depthwise"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::Depthwise(_)) && DepthwiseShape::of(work).is_some()
    }

    fn applies(&self, activation: Activation) -> bool {
        activation != Activation::Gelu
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Depthwise(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        variants(work, limits, Kernel::Sm90Depthwise)
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        let grid = match (kernel, DepthwiseShape::of(work)) {
            (Kernel::Sm90Depthwise(tile), Some(shape)) => shape.grid(tile, limits),
            _ => None,
        };
        grid.map(|_| ()).ok_or_else(|| not_a_choice(work.name, kernel))
    }
}

/// The kernel in `kernels/sm90_conv2d_depthwise_s8.cu`.
pub(super) struct Sm90Conv2dDepthwiseS8;

impl KernelDef for Sm90Conv2dDepthwiseS8 {
    fn name(&self) -> &'static str {
        "sm90_conv2d_depthwise_s8"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::QuantizedDepthwise(_)) && DepthwiseShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90DepthwiseS8(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        variants(work, limits, Kernel::Sm90DepthwiseS8)
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        let grid = match (kernel, DepthwiseShape::of(work)) {
            (Kernel::Sm90DepthwiseS8(tile), Some(shape)) => shape.grid(tile, limits),
            _ => None,
        };
        grid.map(|_| ()).ok_or_else(|| not_a_choice(work.name, kernel))
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        packing::in_bytes(work, FilterOrder::DepthwiseBytes)
    }
}

/// The kernel in every tile in which it computes a step.
pub(super) fn variants(work: &Work<'_>, limits: &Limits, kernel: fn(DepthwiseTile) -> Kernel) -> Vec<Variant> {
    let Some(shape) = DepthwiseShape::of(work) else { return Vec::new() };
    tiles(&shape, limits).map(|(tile, clocks)| Variant::modelled((kernel(tile), clocks))).collect()
}

/// The tile of an sm90 depthwise convolution: the part of some channels of the output that one thread block computes at
/// a time.
///
/// ```
/// use trefoil::plan::DepthwiseTile;
/// let tile = DepthwiseTile { rows: 4, columns: 8, unit: [1, 4] };
/// assert!(DepthwiseTile::UNITS.contains(&tile.unit) && tile.to_string() == "4x8/1x4");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DepthwiseTile {
    /// Rows of outputs, a multiple of the unit's rows.
    pub rows: usize,
    /// Columns of outputs, a multiple of the unit's columns.
    pub columns: usize,
    /// Rows and columns of outputs that a thread computes at a time, one of [`DepthwiseTile::UNITS`].
    pub unit: [usize; 2],
}

impl DepthwiseTile {
    /// The units that the kernels are compiled for: the first for outputs that fill the device, the second for small
    /// outputs, which it divides among more threads.
    pub const UNITS: [[usize; 2]; 2] = [[2, 7], [1, 4]];

    /// Every tile in which a kernel computes a depthwise convolution of these sizes, of bytes or of halves, the one with
    /// the shortest predicted time first.
    ///
    /// ```
    /// use trefoil::{Shape, model::images::Window, plan::{DepthwiseTile, Limits, S8Conv}};
    /// let shape = Shape::new(28, 28, 240);
    /// let conv = S8Conv { batch: 8, input: shape, output: shape, window: Window::square(5, 1, 2) };
    /// assert!(!DepthwiseTile::of(&conv, true, &Limits::h200()).is_empty());
    /// let conv = S8Conv { window: Window::square(7, 1, 3), ..conv };
    /// assert!(DepthwiseTile::of(&conv, true, &Limits::h200()).is_empty());
    /// ```
    pub fn of(conv: &S8Conv, in_bytes: bool, limits: &Limits) -> Vec<Self> {
        let S8Conv { batch, input, output, window } = *conv;
        let shape = DepthwiseShape { batch, input, output, window, expands: false, silu: false, in_bytes };
        let mut all: Vec<(Self, f64)> = tiles(&shape, limits).filter(|_| limits.has_sm90_kernels()).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all.into_iter().map(|(tile, _)| tile).collect()
    }

    /// The number of units along each axis; `None` unless the tile consists of whole units that the kernel is compiled
    /// for.
    pub(crate) fn units(self) -> Option<[usize; 2]> {
        let Self { rows, columns, unit: [unit_rows, unit_columns] } = self;
        let whole = Self::UNITS.contains(&self.unit)
            && rows > 0
            && columns > 0
            && rows.is_multiple_of(unit_rows)
            && columns.is_multiple_of(unit_columns);
        whole.then(|| [rows / unit_rows, columns / unit_columns])
    }
}

impl fmt::Display for DepthwiseTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns] = self.unit;
        write!(f, "{}x{}/{rows}x{columns}", self.rows, self.columns)
    }
}

/// A depthwise convolution as the kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseShape {
    /// The number of images.
    pub(crate) batch: usize,
    /// The shape of the input with its stored channels. They equal those of the output unless a 1x1 convolution comes
    /// first.
    pub(crate) input: Shape,
    /// Height, width and stored channels of the output.
    pub(crate) output: Shape,
    /// The window.
    pub(crate) window: Window,
    /// Whether a 1x1 convolution of the input comes first.
    pub(crate) expands: bool,
    /// Whether SiLU is applied to the result of each convolution.
    pub(crate) silu: bool,
    /// Whether input and output are bytes; then no 1x1 convolution comes first, and SiLU is not applied.
    pub(crate) in_bytes: bool,
}

/// The division of work in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DepthwiseGrid {
    /// The number of units of a tile along each axis.
    pub(crate) units: [usize; 2],
    /// The number of threads of a block.
    pub(crate) threads: usize,
    /// Height and width of the box of input pixels that the windows of a tile read.
    pub(crate) box_size: [usize; 2],
    /// Bytes from one box to the next in shared memory.
    pub(crate) stage_bytes: usize,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared_bytes: usize,
    /// The number of tiles of an image from top to bottom, and from left to right.
    pub(crate) bands: usize,
    pub(crate) column_tiles: usize,
    /// The number of groups of channels.
    pub(crate) channel_tiles: usize,
    /// The number of blocks for each group of channels.
    pub(crate) blocks: usize,
}

/// Sizes and strides of the windows that the kernels are compiled for; the last one is for halves alone.
const WINDOWS: [(usize, usize); 5] = [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)];
const WINDOWS_OF_BYTES: usize = 4;
/// The number of channels of a tile of halves.
pub(crate) const TILE_CHANNELS: usize = 32;
/// Boxes in shared memory: one is computed while the other is loaded.
const STAGES: usize = 2;
/// Bytes of the channels of a thread: two halves, or four bytes.
const THREAD_BYTES: usize = 4;
/// The largest number of threads of a block.
pub(crate) const MOST_THREADS: usize = 128;
/// The largest number of pixels along an axis that the copy engine takes at once.
const MOST_BOX: usize = 256;

impl DepthwiseShape {
    /// The depthwise convolution of a step, with a 1x1 convolution in front or not; `None` for any other step, if
    /// not in f16 or bytes, and if only one of two convolutions applies SiLU.
    pub(super) fn of(work: &Work<'_>) -> Option<Self> {
        let (conv, first, in_bytes) = match work.op {
            StepOp::Depthwise(conv) => (conv, None, false),
            StepOp::QuantizedDepthwise(QuantizedDepthwise { conv, .. }) => (conv, None, true),
            StepOp::ExpandDepthwise { expand, conv } => (conv, Some(&expand.conv), false),
            _ => return None,
        };
        let has_type = |dtype| if in_bytes { matches!(dtype, Dtype::U8 | Dtype::I8) } else { dtype == Dtype::F16 };
        let is_taken = work.inputs.iter().chain(&work.outputs).all(|operand| has_type(operand.dtype));
        let [silu, silu_first] = [conv, first.unwrap_or(conv)].map(|conv| conv.activation == Activation::Silu);
        let expands = first.is_some();
        let [input, output] = [work.inputs[0], work.outputs[0]].map(|operand| operand.stored());
        let shape = Self { batch: work.batch, input, output, window: conv.window, expands, silu, in_bytes };
        (is_taken && silu == silu_first).then_some(shape)
    }

    /// Whether the kernel is compiled for the window, and the sizes are within its limits.
    pub(crate) fn fits(&self) -> bool {
        let Window { size: [r, s], stride: [down, right], dilation, pad } = self.window;
        let pads = [pad.top, pad.left].into_iter().max() < Some(1 << 14);
        let extents = [self.output.height, self.output.width].into_iter().max() < Some(1 << 14);
        let windows = if self.in_bytes { &WINDOWS[..WINDOWS_OF_BYTES] } else { &WINDOWS };
        let stored = !self.in_bytes || self.output.channels.is_multiple_of(16);
        r == s && down == right && windows.contains(&(r, down)) && dilation == [1; 2] && pads && extents && stored
    }

    /// The number of channels of a tile. Of bytes 64, or 32 if fewer channels of the last tile are in vain then.
    pub(crate) fn tile_channels(&self) -> usize {
        match self.output.channels % (2 * TILE_CHANNELS) {
            _ if !self.in_bytes => TILE_CHANNELS,
            1..=TILE_CHANNELS => TILE_CHANNELS,
            _ => 2 * TILE_CHANNELS,
        }
    }

    /// Bytes of a tile's channels of a pixel.
    fn pixel_bytes(&self) -> usize {
        self.tile_channels() * if self.in_bytes { 1 } else { 2 }
    }

    /// The division of work in this tile; `None` if the kernel cannot compute the window or the tile.
    pub(crate) fn grid(&self, tile: DepthwiseTile, limits: &Limits) -> Option<DepthwiseGrid> {
        let units = tile.units().filter(|_| self.fits())?;
        let Self { batch, output, window, .. } = *self;
        let ([size, _], [stride, _]) = (window.size, window.stride);
        let box_size = [tile.rows, tile.columns].map(|outputs| (outputs - 1) * stride + size);
        let pixels = box_size.iter().product::<usize>();
        let stage_bytes = (pixels * self.pixel_bytes()).next_multiple_of(512);
        let shared_bytes = if self.expands {
            let boxes = self.input.channels.div_ceil(TILE_CHANNELS);
            let filter_row = (self.input.channels.next_multiple_of(16) + 8) * 2;
            boxes * stage_bytes + pixels * EXPANDED_BYTES + TILE_CHANNELS * (filter_row + 4)
        } else {
            STAGES * stage_bytes
        };
        if box_size.into_iter().max() > Some(MOST_BOX) || shared_bytes + STATIC_BYTES > limits.shared_bytes {
            return None;
        }
        let count = units[0] * units[1];
        let side_by_side = self.pixel_bytes() / THREAD_BYTES;
        let rounds = (count * side_by_side).div_ceil(MOST_THREADS);
        let threads = (count.div_ceil(rounds) * side_by_side).next_multiple_of(32);
        let [bands, column_tiles] = [output.height.div_ceil(tile.rows), output.width.div_ceil(tile.columns)];
        let channel_tiles = output.channels.div_ceil(self.tile_channels());
        let tiles = batch * bands * column_tiles;
        let resident = limits.units * self.resident(threads, shared_bytes, limits);
        let blocks = (resident / channel_tiles).clamp(1, tiles.max(1));
        Some(DepthwiseGrid {
            units,
            threads,
            box_size,
            stage_bytes,
            shared_bytes,
            bands,
            column_tiles,
            channel_tiles,
            blocks,
        })
    }

    /// The number of blocks that fit on a multiprocessor.
    fn resident(&self, threads: usize, shared_bytes: usize, limits: &Limits) -> usize {
        // The number of blocks with the most threads, as in the launch bounds of the kernels.
        let largest = match (self.window.size[0], self.in_bytes) {
            (3, false) => 5,
            (5, false) | (3, true) => 4,
            _ => 3,
        };
        let by_memory = (limits.shared_bytes + 1024) / (shared_bytes + STATIC_BYTES + 1024);
        (largest * MOST_THREADS / threads).min(by_memory).max(1)
    }
}

/// Bytes of static shared memory of a block.
pub(crate) const STATIC_BYTES: usize = 512;
/// Bytes of a pixel of the 1x1 convolution's result in shared memory.
const EXPANDED_BYTES: usize = TILE_CHANNELS * 2 + 16;

/// The tile with the fewest clocks, and its clocks; `None` if the kernel cannot compute the window.
#[cfg(test)]
fn tile(shape: &DepthwiseShape, limits: &Limits) -> Option<(DepthwiseTile, f64)> {
    tiles(shape, limits).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Every tile that the kernel can compute, with its clocks; empty if it cannot compute the window.
fn tiles(shape: &DepthwiseShape, limits: &Limits) -> impl Iterator<Item = (DepthwiseTile, f64)> {
    let along =
        |outputs: usize, unit: usize| (1..=outputs.div_ceil(unit).min(MOST_UNITS)).map(move |count| count * unit);
    let units = DepthwiseTile::UNITS.into_iter().filter(|_| shape.fits());
    let tiles = units.flat_map(move |unit| {
        let [rows, columns] = [along(shape.output.height, unit[0]), along(shape.output.width, unit[1])];
        rows.flat_map(move |rows| columns.clone().map(move |columns| DepthwiseTile { rows, columns, unit }))
    });
    tiles.filter_map(move |tile: DepthwiseTile| Some((tile, clocks(shape, tile, limits)?)))
}

/// The largest number of units of a tile along an axis.
const MOST_UNITS: usize = 16;

/// Clocks of the busiest multiprocessor: the time of its instructions or of its bytes, whichever is longer, but at
/// least the time that one block alone takes for its tiles.
fn clocks(shape: &DepthwiseShape, tile: DepthwiseTile, limits: &Limits) -> Option<f64> {
    let grid = shape.grid(tile, limits)?;
    let ([size, _], [stride, _]) = (shape.window.size, shape.window.stride);
    let [unit_rows, unit_columns] = tile.unit;
    let loads = ((unit_rows - 1) * stride + size) * ((unit_columns - 1) * stride + size);
    let outputs = unit_rows * unit_columns;
    let units = grid.units[0] * grid.units[1];
    let pixels = grid.box_size.iter().product::<usize>();
    // Instructions of a warp: it computes a unit at a time for each group of threads with a tile's channels, and 32 pixels
    // of the 1x1 convolution at a time.
    let of_unit = if shape.in_bytes {
        of_unit_of_bytes(tile.unit, size, stride)
    } else {
        loads * 3 + outputs * (2 * size * size + 4)
    };
    let at_once = 32 * THREAD_BYTES / shape.pixel_bytes();
    let mut of_tile = units.div_ceil(at_once) * (of_unit + 40);
    let mut x_bytes = pixels * shape.pixel_bytes();
    if shape.expands {
        of_tile += pixels.div_ceil(32) * (OF_EXPANDED + shape.input.channels.div_ceil(16) * OF_STEP);
        x_bytes = pixels * shape.input.channels * 2;
    }
    if shape.silu {
        of_tile += units.div_ceil(2) * outputs * OF_SILU;
        if shape.expands {
            of_tile += pixels.div_ceil(32) * TILE_CHANNELS / 2 * OF_SILU;
        }
    }
    let tiles = shape.batch * grid.bands * grid.column_tiles;
    let of_block = tiles.div_ceil(grid.blocks) as f64;
    let blocks = (grid.blocks * grid.channel_tiles).div_ceil(limits.units.max(1)) as f64;
    let warps = grid.threads as f64 / 32.0;
    let issued = ISSUED_A_CLOCK * (blocks * warps / MOST_WARPS).min(1.0);
    let bytes = (x_bytes + tile.rows * tile.columns * shape.pixel_bytes()) as f64 / BYTES_A_CLOCK;
    let alone = of_block * of_tile as f64 / warps * CLOCKS_ALONE;
    let shared = blocks * of_block * ((of_tile as f64 / issued).max(bytes) + OF_TILE);
    Some(STARTUP + alone.max(shared))
}

/// Warp instructions for a unit of four channels in bytes: loads and turns of the input's words, products of up to four
/// taps, and roundings.
fn of_unit_of_bytes([rows, columns]: [usize; 2], size: usize, stride: usize) -> usize {
    let [in_rows, in_columns] = [rows, columns].map(|outputs| (outputs - 1) * stride + size);
    let turns = in_rows / 4 * 8 + [0, 0, 2, 6][in_rows % 4];
    // The groups of four input rows that the windows of a row of outputs reach into.
    let groups: usize = (0..rows).map(|row| (row * stride + size).div_ceil(4) - row * stride / 4).sum();
    in_columns * (2 * in_rows + turns) + columns * (groups * size * 4 * OF_DOT + rows * 20)
}

/// Warp instructions that a product of four bytes takes the time of.
const OF_DOT: usize = 2;

/// Warp instructions that a multiprocessor issues in a clock.
const ISSUED_A_CLOCK: f64 = 3.0;
/// The number of warps with which a multiprocessor reaches this rate.
const MOST_WARPS: f64 = 12.0;
/// Warp instructions for 32 pixels of a 1x1 convolution, and for each 16 channels that it reads.
const OF_EXPANDED: usize = 150;
const OF_STEP: usize = 20;
/// Warp instructions for SiLU of two channels: four special functions, which take twice as long as others, and six others.
const OF_SILU: usize = 14;
/// Clocks for each instruction of a warp that runs alone.
const CLOCKS_ALONE: f64 = 1.6;
/// Bytes that a multiprocessor reads and writes in a clock.
const BYTES_A_CLOCK: f64 = 20.0;
/// Clocks of the launch, the barriers, the filters and the first box.
const STARTUP: f64 = 2700.0;
/// Clocks of each tile, whatever its size.
const OF_TILE: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: usize, side: usize, channels: usize, window: Window) -> DepthwiseShape {
        let output = Shape::new(side, side, channels);
        let stride = window.stride[0];
        let input = Shape::new(side * stride, side * stride, channels);
        DepthwiseShape { batch, input, output, window, expands: false, silu: false, in_bytes: false }
    }

    #[test]
    fn windows_that_are_not_compiled_have_no_tile() {
        let tile = |window| tile(&shape(1, 14, 96, window), &Limits::h200());
        assert!(tile(Window::square(3, 1, 1)).is_some() && tile(Window::square(5, 2, 2)).is_some());
        assert!(tile(Window::square(7, 1, 3)).is_some());
        assert_eq!(tile(Window::square(7, 2, 3)), None);
        assert_eq!(tile(Window::square(3, 3, 1)), None);
        assert_eq!(tile(Window { stride: [1, 2], ..Window::square(3, 1, 1) }), None);
        assert_eq!(tile(Window { dilation: [2, 2], ..Window::square(3, 1, 1) }), None);
    }

    #[test]
    fn a_grid_covers_the_outputs_and_fits_the_device() {
        let limits = Limits::h200();
        for (batch, side, channels, window) in [
            (1, 112, 32, Window::square(3, 1, 1)),
            (256, 56, 96, Window::square(3, 2, 1)),
            (32, 28, 240, Window::square(5, 1, 2)),
            (1, 7, 1152, Window::square(5, 1, 2)),
            (32, 56, 40, Window::square(7, 1, 3)),
            (3, 1, 8, Window::square(5, 2, 2)),
        ] {
            let shape = shape(batch, side, channels, window);
            let (tile, _) = tile(&shape, &limits).unwrap();
            let grid = shape.grid(tile, &limits).unwrap();
            assert!(grid.bands * tile.rows >= side && grid.column_tiles * tile.columns >= side);
            assert!(grid.threads.is_multiple_of(32) && grid.threads <= MOST_THREADS);
            assert!(grid.shared_bytes <= limits.shared_bytes);
            assert!((1..=batch * grid.bands * grid.column_tiles).contains(&grid.blocks));
        }
    }

    #[test]
    fn tiles_are_of_whole_units() {
        let tile = |rows, columns, unit| DepthwiseTile { rows, columns, unit }.units();
        assert_eq!(tile(4, 21, [2, 7]), Some([2, 3]));
        assert_eq!(tile(3, 21, [2, 7]), None);
        assert_eq!(tile(4, 0, [2, 7]), None);
        assert_eq!(tile(4, 4, [2, 2]), None);
    }
}
