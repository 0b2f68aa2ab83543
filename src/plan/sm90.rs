//! The Hopper convolution: its tiles, what it can compute, and how long a tile's layer takes.

use std::fmt;

use super::{Kernel, Limits, Request};
use crate::error::Error;
use crate::model::Window;
use crate::tensor::Shape;

/// The tile of the Hopper convolution: output channels x pixels of one thread block.
///
/// ```
/// use trefoil::plan::Sm90Tile;
/// let tile = Sm90Tile { channels: 64, pixels: 32 };
/// assert!(Sm90Tile::ALL.contains(&tile) && tile.to_string() == "64x32");
/// assert_eq!(tile.clusters(), [1, 2, 4, 8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sm90Tile {
    /// Output channels.
    pub channels: usize,
    /// Output pixels.
    pub pixels: usize,
}

impl Sm90Tile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 8] = [
        Self { channels: 128, pixels: 256 },
        Self { channels: 128, pixels: 192 },
        Self { channels: 128, pixels: 128 },
        Self { channels: 128, pixels: 64 },
        Self { channels: 64, pixels: 256 },
        Self { channels: 64, pixels: 128 },
        Self { channels: 64, pixels: 64 },
        Self { channels: 64, pixels: 32 },
    ];

    /// The sizes that a cluster of blocks may have. Of a tile of one warpgroup the blocks share each tile, a part of the
    /// sum for each; of one of 128 channels two blocks have neighbouring channels, and each copies half of the pixels
    /// for both.
    pub fn clusters(self) -> &'static [usize] {
        match self.pipeline() {
            Some(pipeline) if pipeline.splits() => &[1, 2, 4, 8],
            Some(pipeline) if pipeline.pairs() => &[1, 2],
            _ => &[1],
        }
    }

    /// The kernel in every tile and cluster.
    pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
        let of = |tile: Self| tile.clusters().iter().map(move |&cluster| Kernel::Sm90Conv { tile, cluster });
        Self::ALL.into_iter().flat_map(of)
    }

    /// How the kernel walks through this tile; `None` if it is not compiled for it.
    pub(crate) const fn pipeline(self) -> Option<Sm90Pipeline> {
        let (parts, stages, chunks, blocks) = match (self.channels, self.pixels) {
            (128, 256) => (1, 4, 2, 1),
            (128, 192) => (1, 4, 3, 1),
            (128, 128) => (1, 6, 2, 1),
            (128, 64) => (1, 4, 1, 2),
            (64, 256) => (2, 4, 2, 1),
            (64, 128) => (2, 4, 1, 2),
            (64, 64) => (1, 6, 1, 2),
            (64, 32) => (1, 8, 1, 2),
            _ => return None,
        };
        let (slabs, part_pixels) = (self.channels / 64, self.pixels / parts);
        let chunk_pixels = if part_pixels < 64 { part_pixels } else { 64 };
        Some(Sm90Pipeline { slabs, parts, part_pixels, stages, chunk_pixels, chunks, blocks })
    }
}

impl fmt::Display for Sm90Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.channels, self.pixels)
    }
}

/// The shape of the kernel beyond its tile: what `kernels/sm90_conv2d_fprop.cu` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sm90Pipeline {
    /// Groups of 64 output channels, a warpgroup for each.
    pub(crate) slabs: usize,
    /// Groups of pixels, a warpgroup for each.
    pub(crate) parts: usize,
    /// Pixels of a part.
    pub(crate) part_pixels: usize,
    /// Stages in flight, of 64 channels each.
    pub(crate) stages: usize,
    /// Pixels that are stored at once.
    pub(crate) chunk_pixels: usize,
    /// Chunks on their way out, for each warpgroup.
    pub(crate) chunks: usize,
    /// Blocks that a multiprocessor has room for.
    pub(crate) blocks: usize,
}

impl Sm90Pipeline {
    /// Threads of a block: a warpgroup that copies, and those that multiply.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing is launched"))]
    pub(crate) const fn threads(self) -> usize {
        128 * (1 + self.slabs * self.parts)
    }

    /// Whether the blocks of a cluster share a tile.
    pub(crate) const fn splits(self) -> bool {
        self.slabs * self.parts == 1
    }

    /// Whether the blocks of a cluster share their pixels.
    pub(crate) const fn pairs(self) -> bool {
        self.slabs == 2
    }

    /// Dynamic shared memory of a block: the stages with two barriers each, and the chunks or what it gets of a shared
    /// tile's sums, with a barrier.
    pub(crate) const fn shared_bytes(self) -> usize {
        let rows = self.slabs * 64 + self.parts * self.part_pixels;
        let chunks = self.slabs * self.parts * self.chunks * self.chunk_pixels * ROW_BYTES;
        let (sums, barrier) = if self.splits() { (self.part_pixels * 64 * 4, 8) } else { (0, 0) };
        self.stages * (rows * ROW_BYTES + 16) + if sums > chunks { sums } else { chunks } + barrier
    }
}

/// Bytes of 64 halves.
const ROW_BYTES: usize = 128;

/// A convolution; the channels of both shapes are the stored ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) input: Shape,
    pub(crate) output: Shape,
    pub(crate) window: Window,
}

impl ConvShape {
    /// Of logical shapes.
    pub(super) fn stored(request: &Request<'_>, input: Shape, output: Shape, window: Window) -> Self {
        let align = request.limits.family.channel_align();
        let stored = |shape: Shape| Shape { channels: shape.channels.next_multiple_of(align), ..shape };
        Self { batch: request.batch, input: stored(input), output: stored(output), window }
    }

    /// Steps of the sum, of 64 channels each.
    pub(crate) fn steps(&self) -> usize {
        self.window.size.iter().product::<usize>() * self.input.channels.div_ceil(64)
    }

    /// Whether every output pixel sees just the input pixel of its own place.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "nothing is launched"))]
    pub(crate) fn is_matrix(&self) -> bool {
        let Self { input, output, window, .. } = self;
        window.size == [1; 2]
            && window.stride == [1; 2]
            && [window.pad.top, window.pad.left] == [0; 2]
            && [input.height, input.width] == [output.height, output.width]
    }
}

/// An error that names what the copy engine's window walk cannot do, if anything.
pub(crate) fn check(conv: &ConvShape) -> Result<(), Error> {
    let ConvShape { batch, input, output, window } = *conv;
    let refuse = |what: &str, value: String, takes: &str| {
        Err(Error::Unsupported { what: format!("{what} = {value}"), instead: format!("the sm90 kernel takes {takes}") })
    };
    for (what, channels) in [("input channels", input.channels), ("output channels", output.channels)] {
        if channels == 0 || !channels.is_multiple_of(8) || channels >= INDEX_LIMIT {
            return refuse(what, channels.to_string(), "a positive multiple of 8");
        }
    }
    let axes = [
        ("height", input.height, output.height, 0, window.pad.top, window.pad.bottom),
        ("width", input.width, output.width, 1, window.pad.left, window.pad.right),
    ];
    for (axis, size, out, index, before, after) in axes {
        let [taps, stride, dilation] = [window.size[index], window.stride[index], window.dilation[index]];
        if !(1..=8).contains(&stride) {
            return refuse(&format!("{axis}: stride"), stride.to_string(), "1 to 8");
        }
        let reach = taps.saturating_sub(1).saturating_mul(dilation);
        if taps == 0 || dilation == 0 || reach > 127 {
            return refuse(&format!("{axis}: window reach"), reach.to_string(), "up to 127 pixels");
        }
        if before > 127 || after > 127 {
            return refuse(&format!("{axis}: padding"), before.max(after).to_string(), "up to 127 pixels");
        }
        // The engine steps through what the windows' first pixels may be; it must come to the same count.
        let span = (size + before + after).checked_sub(reach + 1);
        if size == 0 || size >= INDEX_LIMIT || span.map(|span| span / stride + 1) != Some(out) {
            return refuse(&format!("{axis}: output size"), out.to_string(), "what follows from size and window");
        }
    }
    let below = |factors: &[usize]| {
        let product = factors.iter().try_fold(1_usize, |product, &factor| product.checked_mul(factor));
        product.is_some_and(|product| (1..INDEX_LIMIT - 1024).contains(&product))
    };
    let pixels = [batch, output.height, output.width];
    let tiles = [batch, output.height, output.width, output.channels.div_ceil(64)];
    if !below(&pixels) || !below(&tiles) || !below(&[batch, input.height, input.width]) {
        return refuse("pixels", format!("{batch} images"), "fewer than 2^31 pixels and tiles");
    }
    Ok(())
}

/// 2^31: what counts and indices stay below.
const INDEX_LIMIT: usize = 1 << 31;

/// Clocks that the sum of `convs`, which have one output shape, takes in this tile and clusters of so many blocks: the
/// busiest block's copies or products, whichever is longer, and its epilogues. Infinity for a tile that is not compiled.
pub(super) fn clocks(convs: &[ConvShape], tile: Sm90Tile, cluster: usize, limits: &Limits) -> f64 {
    let ConvShape { batch, output, .. } = convs[0];
    let Some(pipeline) = tile.pipeline() else { return f64::INFINITY };
    let split = if pipeline.splits() { cluster } else { 1 };
    let pair = if pipeline.pairs() { cluster } else { 1 };
    let channel_tiles = output.channels.div_ceil(tile.channels).next_multiple_of(pair);
    let blocks = (batch * output.pixels()).div_ceil(tile.pixels) * channel_tiles * split;
    let waves = blocks.div_ceil(limits.units.max(1));
    let steps = convs.iter().map(ConvShape::steps).sum::<usize>().div_ceil(split);
    let area = (tile.channels * tile.pixels) as f64;
    let bytes = (tile.channels + tile.pixels / pair) as f64 * 128.0;
    let step = (area * 64.0 / PRODUCTS_A_CLOCK).max(bytes / BYTES_A_CLOCK);
    let exchange = if split > 1 { EXCHANGE + area * EXCHANGE_OF_VALUE } else { 0.0 };
    let startup = if pair > 1 { STARTUP + PAIR } else { STARTUP };
    startup + waves as f64 * (steps as f64 * step + EPILOGUE + area * EPILOGUE_OF_VALUE + exchange)
}

/// Multiply-adds of halves that a multiprocessor does in a clock.
pub(super) const PRODUCTS_A_CLOCK: f64 = 2048.0 / 1.06;
/// Bytes that a multiprocessor gets from the L2 cache in a clock.
const BYTES_A_CLOCK: f64 = 36.0;
/// Launch, barriers and the first load.
const STARTUP: f64 = 1500.0;
/// Until the blocks of a pair have begun and ended together.
const PAIR: f64 = 500.0;
/// Of each tile, whatever its size.
const EPILOGUE: f64 = 600.0;
/// Of each output value of a tile.
const EPILOGUE_OF_VALUE: f64 = 0.035;
/// Of a tile that blocks share: until a block has what the others send.
const EXCHANGE: f64 = 1500.0;
/// Of each value of such a tile.
const EXCHANGE_OF_VALUE: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pad;

    #[test]
    fn every_tile_has_a_pipeline_that_fits_the_device() {
        for tile in Sm90Tile::ALL {
            let pipeline = tile.pipeline().unwrap();
            assert_eq!(pipeline.slabs * 64, tile.channels);
            assert_eq!(pipeline.parts * pipeline.part_pixels, tile.pixels);
            // A block takes 1 KiB more than it asks for.
            let granted = Limits::h200().shared_bytes + 1024;
            assert!(pipeline.blocks * (pipeline.shared_bytes() + 1024) <= granted, "{tile}");
        }
    }

    #[test]
    fn only_single_pixels_in_their_places_are_a_matrix() {
        let of = |input: [usize; 2], window| {
            let shape = |[height, width]: [usize; 2]| Shape::new(height, width, 8);
            let conv = ConvShape { batch: 1, input: shape(input), output: shape([6, 8]), window };
            check(&conv).unwrap();
            conv.is_matrix()
        };
        let single = Window::square(1, 1, 0);
        let padded = |top, left, bottom, right| Window { pad: Pad { top, left, bottom, right }, ..single };
        assert!(of([6, 8], single));
        assert!(!of([6, 8], Window::square(3, 1, 1)));
        assert!(!of([6, 15], Window { stride: [1, 2], ..single }));
        assert!(!of([11, 8], Window { stride: [2, 1], ..single }));
        assert!(!of([4, 6], padded(1, 1, 1, 1)));
        assert!(!of([5, 7], padded(1, 1, 0, 0)));
        assert!(!of([6, 7], padded(0, 0, 0, 1)));
        assert!(!of([5, 8], padded(0, 0, 1, 0)));
    }

    #[test]
    fn what_the_walk_cannot_do_is_refused() {
        let good = ConvShape {
            batch: 3,
            input: Shape::new(30, 40, 24),
            output: Shape::new(11, 19, 72),
            window: Window {
                size: [5, 7],
                stride: [3, 2],
                pad: Pad { top: 2, left: 1, bottom: 16, right: 32 },
                dilation: [4, 6],
            },
        };
        check(&good).unwrap();
        let refused = |change: fn(&mut ConvShape)| {
            let mut conv = good;
            change(&mut conv);
            matches!(check(&conv), Err(Error::Unsupported { .. }))
        };
        assert!(refused(|c| c.batch = 0));
        assert!(refused(|c| c.batch = 100_000_000));
        assert!(refused(|c| c.input.channels = 20));
        assert!(refused(|c| c.output.channels = 0));
        assert!(refused(|c| c.output.width = 18));
        assert!(refused(|c| c.window.stride = [9, 2]));
        assert!(refused(|c| c.window.stride = [0, 2]));
        assert!(refused(|c| c.window.dilation = [32, 6]));
        assert!(refused(|c| c.window.pad.left = 128));
        assert!(refused(|c| c.input.height = 1));
    }
}
