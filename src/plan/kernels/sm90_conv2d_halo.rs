//! The sm90 convolution with 3x3 windows of few channels: its tile, what it can compute, and the predicted times.

use super::conv_shape::{self, ConvShape};
use super::sm90_conv2d_fprop::{PRODUCTS_A_CLOCK, activation_of_value};
use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::plan::product::CUT_ROW;
use crate::plan::work::Work;
use crate::plan::{Limits, StepOp};
use crate::tensor::Activation;

/// The kernel in `kernels/sm90_conv2d_halo.cu`.
pub(super) struct Sm90Conv2dHalo;

impl KernelDef for Sm90Conv2dHalo {
    fn name(&self) -> &'static str {
        "sm90_conv2d_halo"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        conv(work).is_some()
    }

    fn applies(&self, activation: Activation) -> bool {
        activation != Activation::Gelu
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90Halo
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let of_value = activation_of_value(work);
        conv(work).and_then(|conv| kernel(&conv, of_value, limits)).map(Variant::modelled).into_iter().collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        let tile = conv(work).and_then(|conv| HaloTile::of(&conv, limits));
        tile.map(|_| ()).ok_or_else(|| not_a_choice(work.name, kernel))
    }

    fn cache_bytes(&self, work: &Work<'_>, limits: &Limits) -> u64 {
        let of = |conv: ConvShape| Some(HaloTile::of(&conv, limits)?.cache_bytes(&conv, limits) as u64);
        conv(work).and_then(of).unwrap_or(0)
    }
}

/// The dense convolution of a step that computes nothing else.
fn conv(work: &Work<'_>) -> Option<ConvShape> {
    let is_conv = matches!(work.op, StepOp::Conv(_));
    ConvShape::all(work).filter(|_| is_conv)?.pop()
}

/// The tile of a layer: the part of 64 output channels that one thread block computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HaloTile {
    /// The number of rows of outputs of each of the two warpgroups.
    pub(crate) rows: usize,
    /// The number of columns of outputs.
    pub(crate) columns: usize,
    /// Bytes of a pixel in shared memory, and of one tap of an output channel's filter: 16, 32 or 64 halves, or 64 or
    /// 128 bytes.
    pub(crate) row_bytes: usize,
    /// The number of pixels of a part: the columns of its product.
    pub(crate) pixels: usize,
}

/// The number of output channels of a tile, and the largest number of input channels in halves.
pub(crate) const CHANNELS: usize = 64;
/// The numbers of channels, in halves, for which the kernel is compiled. A pixel in shared memory has that many.
pub(crate) const STORED: [usize; 3] = [16, 32, CHANNELS];
/// The number of warpgroups that multiply. Each computes a part of a tile's rows.
pub(crate) const PARTS: usize = 2;
/// The number of pixels of a part of halves.
const HALVES_PIXELS: usize = 120;
/// The same of bytes, with the largest number of input channels. A pixel in shared memory has that many.
const BYTES_PIXELS: [(usize, usize); 2] = [(64, 240), (128, 208)];
/// The number of taps of the window along each axis.
const TAPS: usize = 3;
/// The bytes of a place for results.
const OUT_BYTES: usize = 128 * CHANNELS * 2;
/// The bytes of a barrier. There is one for the filters, and one for each place of results; each band has two.
const BARRIER_BYTES: usize = 8;

impl HaloTile {
    /// The tile of a layer of halves that divides it into the fewest tiles; `None` if the kernel does not compute the
    /// layer.
    pub(crate) fn of(conv: &ConvShape, limits: &Limits) -> Option<Self> {
        let stored = STORED.into_iter().find(|&stored| conv.input.channels <= stored)?;
        Self::of_rows(stored * 2, HALVES_PIXELS, conv, limits)
    }

    /// The tile of a layer of bytes that divides it into the fewest tiles; `None` if the kernel does not compute the
    /// layer.
    pub(crate) fn of_bytes(conv: &ConvShape, limits: &Limits) -> Option<Self> {
        let (stored, pixels) = BYTES_PIXELS.into_iter().find(|&(stored, _)| conv.input.channels <= stored)?;
        Self::of_rows(stored, pixels, conv, limits)
    }

    fn of_rows(row_bytes: usize, pixels: usize, conv: &ConvShape, limits: &Limits) -> Option<Self> {
        let ConvShape { output, window, .. } = conv;
        let computes = window.size == [TAPS; 2]
            && window.stride == [1; 2]
            && window.dilation == [1; 2]
            && limits.has_sm90_kernels()
            && conv_shape::check(conv).is_ok();
        let widths = (1..=output.width).map(|tiles| output.width.div_ceil(tiles));
        // If a row of a tile is wider, it does not fit into the columns of a product.
        let narrow = widths.filter(|&columns| columns <= pixels).take(MOST_WIDTHS);
        let with = |columns: usize| {
            let most = output.height.div_ceil(PARTS).min((pixels + TAPS - 1) / (columns + TAPS - 1));
            let mut tiles = (1..=most).rev().map(|rows| Self { rows, columns, row_bytes, pixels });
            tiles.find(|tile| tile.shared_bytes() <= limits.shared_bytes)
        };
        computes.then(|| narrow.filter_map(with).min_by_key(|tile| tile.count(conv)))?
    }

    /// Whether the pixels are bytes.
    pub(crate) fn is_of_bytes(self) -> bool {
        self.pixels != HALVES_PIXELS
    }

    /// The number of input channels that a pixel has in shared memory.
    pub(crate) fn stored(self) -> usize {
        if self.is_of_bytes() { self.row_bytes } else { self.row_bytes / 2 }
    }

    /// The number of places for results of each part. Beside filters of 128 bytes and their bands there is room for
    /// one.
    fn places(self) -> usize {
        if self.is_of_bytes() && self.row_bytes == 128 { 1 } else { 2 }
    }

    /// The number of tiles for each 64 output channels.
    pub(crate) fn count(self, conv: &ConvShape) -> usize {
        conv.batch * self.tiles(conv).iter().product::<usize>()
    }

    /// The number of tiles down and across an image.
    pub(crate) fn tiles(self, conv: &ConvShape) -> [usize; 2] {
        [conv.output.height.div_ceil(PARTS * self.rows), conv.output.width.div_ceil(self.columns)]
    }

    /// The number of pixels of a band's row.
    pub(crate) fn line(self) -> usize {
        self.columns + TAPS - 1
    }

    /// The number of rows of a band: all that the windows of a tile read.
    pub(crate) fn band_rows(self) -> usize {
        PARTS * self.rows + TAPS - 1
    }

    /// Bytes from one band to the other in shared memory. They cover the band's pixels, and those that the last
    /// products read for sums that are not stored.
    pub(crate) fn band_bytes(self) -> usize {
        let read = (self.rows + TAPS - 1) * self.line() + self.pixels + TAPS - 1;
        ((self.band_rows() * self.line()).max(read) * self.row_bytes).next_multiple_of(SWIZZLED_BYTES)
    }

    /// Bytes of dynamic shared memory of a block: filters, results, two bands and barriers.
    pub(crate) fn shared_bytes(self) -> usize {
        let filters = TAPS * TAPS * CHANNELS * self.row_bytes + BARRIER_BYTES;
        let results = PARTS * self.places() * (OUT_BYTES + BARRIER_BYTES);
        filters + results + 2 * (self.band_bytes() + 2 * BARRIER_BYTES)
    }

    /// Bytes that the blocks of a layer read from the L2 cache: the bands, and the filters once for each block.
    pub(crate) fn cache_bytes(self, conv: &ConvShape, limits: &Limits) -> usize {
        let channel_tiles = conv.output.channels.div_ceil(CHANNELS);
        let pixel_bytes = conv.input.channels * if self.is_of_bytes() { 1 } else { 2 };
        let bands = channel_tiles * self.count(conv) * self.band_rows() * self.line() * pixel_bytes;
        let filters = TAPS * TAPS * pixel_bytes * CHANNELS.min(conv.output.channels);
        bands + filters * limits.units.min(channel_tiles * self.count(conv))
    }
}

/// The bytes after which the swizzle repeats. It depends on addresses.
const SWIZZLED_BYTES: usize = 1024;

/// The largest number of tile widths that are tried: narrower tiles have more halo.
const MOST_WIDTHS: usize = 8;

/// The kernel with its predicted clocks; `None` if it does not compute the layer. Shared memory holds two bands, so
/// that the band of the next tile is loaded during the products of a tile. Copies take longer if a pixel's channels end
/// within the part that is copied. Activations take `of_value` clocks for each result, during the products of the other
/// part.
fn kernel(conv: &ConvShape, of_value: f64, limits: &Limits) -> Option<(Kernel, f64)> {
    let tile = HaloTile::of(conv, limits)?;
    let channel_tiles = conv.output.channels.div_ceil(CHANNELS);
    let blocks = (limits.units / channel_tiles).max(1);
    let products = (PARTS * TAPS * TAPS * CHANNELS * tile.stored() * tile.pixels) as f64 / PRODUCTS_A_CLOCK;
    let row = if conv.input.channels == tile.stored() { 0.0 } else { CUT_ROW };
    let copies = (tile.band_rows() * tile.line()) as f64 * row;
    let activations = (PARTS * CHANNELS * tile.pixels) as f64 * of_value;
    let waves = tile.count(conv).div_ceil(blocks) as f64;
    Some((Kernel::Sm90Halo, STARTUP + waves * (products.max(copies).max(activations) + OF_TILE)))
}

/// Clocks of the launch, the barriers, the filters, the first band and the last tile's results.
const STARTUP: f64 = 5000.0;
/// Clocks of a tile besides its products.
const OF_TILE: f64 = 300.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pad, Window};
    use crate::tensor::Shape;

    fn conv(side: [usize; 2], channels: usize, outputs: usize) -> ConvShape {
        let (input, output) = (Shape::new(side[0], side[1], channels), Shape::new(side[0], side[1], outputs));
        ConvShape { batch: 3, input, output, window: Window::square(3, 1, 1) }
    }

    #[test]
    fn tiles_waste_little_of_the_products_and_fit_the_device() {
        let limits = Limits::h200();
        let of = |height, width| HaloTile::of(&conv([height, width], 64, 64), &limits).unwrap();
        let of_bytes = |height, width| HaloTile::of_bytes(&conv([height, width], 64, 64), &limits).unwrap();
        let wide = |height, width| HaloTile::of_bytes(&conv([height, width], 128, 128), &limits).unwrap();
        assert_eq!(wide(28, 28), HaloTile { rows: 7, columns: 28, row_bytes: 128, pixels: 208 });
        assert_eq!(wide(56, 56), HaloTile { rows: 7, columns: 28, row_bytes: 128, pixels: 208 });
        assert_eq!([of(28, 28), of_bytes(28, 28), wide(28, 28)].map(HaloTile::stored), [64, 64, 128]);
        assert_eq!(of_bytes(56, 56), HaloTile { rows: 4, columns: 56, row_bytes: 64, pixels: 240 });
        assert_eq!(of_bytes(14, 14), HaloTile { rows: 7, columns: 14, row_bytes: 64, pixels: 240 });
        assert_eq!(of(56, 56), HaloTile { rows: 2, columns: 56, row_bytes: 128, pixels: 120 });
        assert_eq!(of(28, 28), HaloTile { rows: 4, columns: 28, row_bytes: 128, pixels: 120 });
        assert_eq!(of(14, 14), HaloTile { rows: 7, columns: 14, row_bytes: 128, pixels: 120 });
        assert_eq!(of(112, 112), HaloTile { rows: 2, columns: 56, row_bytes: 128, pixels: 120 });
        for side in 1..200 {
            for other in [1, 7, 56, 130] {
                for [height, width] in [[side, other], [other, side]] {
                    for tile in [of(height, width), of_bytes(height, width), wide(height, width)] {
                        let fits = tile.shared_bytes() <= limits.shared_bytes && tile.line() <= 256;
                        assert!(fits && tile.rows * tile.line() <= tile.pixels + 2);
                        assert!(tile.rows > 0 && tile.columns > 0 && tile.band_rows() <= 256);
                    }
                }
            }
        }
    }

    #[test]
    fn what_the_kernel_does_not_do_has_no_tile() {
        let good = conv([20, 30], 24, 200);
        let refused = |change: fn(&mut ConvShape)| {
            let mut conv = good;
            change(&mut conv);
            HaloTile::of(&conv, &Limits::h200()).is_none()
        };
        assert!(HaloTile::of(&good, &Limits::h200()).is_some() && HaloTile::of(&good, &Limits::a100()).is_none());
        assert!(refused(|c| c.input.channels = 72));
        let of_bytes = |channels| HaloTile::of_bytes(&conv([20, 30], channels, 64), &Limits::h200());
        assert_eq!([48, 64, 80, 128].map(|c| of_bytes(c).unwrap().row_bytes), [64, 64, 128, 128]);
        assert!(of_bytes(144).is_none());
        assert!(refused(|c| c.window = Window::square(1, 1, 0)));
        assert!(refused(|c| c.output.width = 29));
        assert!(refused(|c| {
            c.window = Window { stride: [2, 1], ..c.window };
            c.output.height = 10;
        }));
        // Any padding is possible.
        assert!(!refused(|c| {
            c.window.pad = Pad { top: 0, left: 2, bottom: 3, right: 1 };
            (c.output.height, c.output.width) = (21, 31);
        }));
    }

    /// A layer of a ResNet's first stage: the copies of a tile take less time than its products.
    #[test]
    fn a_layer_of_64_channels_is_bound_by_its_products() {
        let limits = Limits::h200();
        let layer = ConvShape { batch: 128, ..conv([56, 56], 64, 64) };
        let (_, clocks) = kernel(&layer, 0.0, &limits).unwrap();
        let least = (128_usize * 56 * 56 * 9 * 64 * 64) as f64 / 2048.0 / limits.units as f64;
        assert!(clocks > least && clocks < 1.4 * least, "{clocks} of {least}");
        let tile = HaloTile::of(&layer, &limits).unwrap();
        let pixels = 128 * 56 * 56;
        assert_eq!(tile.cache_bytes(&layer, &limits), pixels * 128 * 6 * 58 / (4 * 56) + 132 * 9 * 64 * 128);
    }
}
