//! A network's first layers in bytes: their sizes, the tiles and kernels that compute them, and the order of the filter
//! that these read.

use super::work::Work;
use super::{Kernel, Limits, StemTile, StepOp};
use crate::error::Error;
use crate::tensor::Shape;

/// A network's first layers in bytes: a convolution of photos with 7x7 windows and stride 2, and the maximum over 3x3
/// windows of its results with stride 2 and padding 1.
///
/// ```
/// use trefoil::{Shape, plan::{Kernel, Limits, S8Stem, StemTile}};
/// let [input, conv, output] = [Shape::new(224, 224, 3), Shape::new(112, 112, 64), Shape::new(56, 56, 64)];
/// let stem = S8Stem { batch: 8, input, pad: [3, 3], conv, output };
/// assert!(stem.tiles(&Limits::h200()).contains(&StemTile { columns: 112, rows: 14 }));
/// assert!(stem.kernels(&Limits::h200()).contains(&Kernel::Sm90StemS8Runs));
/// assert!(stem.tiles(&Limits::a100()).is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S8Stem {
    /// The number of images.
    pub batch: usize,
    /// The height, the width and three channels of an image.
    pub input: Shape,
    /// The padding above and to the left of the image, in pixels.
    pub pad: [usize; 2],
    /// The shape of the convolution's results; the number of channels is a multiple of 16, up to 64.
    pub conv: Shape,
    /// The shape of the maxima: half of the convolution's, rounded down or up for odd sizes.
    pub output: Shape,
}

impl S8Stem {
    /// The first layers of a step; `None` for any other step.
    pub(crate) fn of(work: &Work<'_>) -> Option<Self> {
        let StepOp::QuantizedStem(of) = work.op else { return None };
        let (pad, output) = (of.stem.conv.window.pad, work.outputs[0].stored());
        let conv = Shape { channels: output.channels, ..of.stem.conv_shape };
        Some(Self { batch: work.batch, input: work.inputs[0].shape, pad: [pad.top, pad.left], conv, output })
    }

    /// Every tile that divides the rows into different bands.
    pub fn tiles(&self, limits: &Limits) -> Vec<StemTile> {
        if !limits.has_sm90_kernels() || self.check().is_err() {
            return Vec::new();
        }
        StemTile::rows_of(self.output.height).map(|rows| StemTile { columns: COLUMNS, rows }).collect()
    }

    /// Every kernel that computes the layers, in every tile.
    pub fn kernels(&self, limits: &Limits) -> Vec<Kernel> {
        let tiles = self.tiles(limits);
        let runs = (!tiles.is_empty() && self.fits_runs()).then_some(Kernel::Sm90StemS8Runs);
        runs.into_iter().chain(tiles.into_iter().map(Kernel::Sm90StemS8)).collect()
    }

    /// Whether the kernel of runs computes the layers: those of usual photos.
    pub(crate) fn fits_runs(&self) -> bool {
        let Self { batch, input, pad, conv, output } = *self;
        // The copy engine takes rows of whole 16 bytes, and writes pairs of pixels; no pooling window lacks a row or a
        // column, and no window of the convolution begins where the image has ended.
        let photo =
            input.width.is_multiple_of(16) && (2 * conv.width..=2 * COLUMNS).contains(&input.width) && pad[1] == 3;
        let result = output.channels == 64 && output.width.is_multiple_of(2);
        let whole = [conv.height, conv.width] == [2 * output.height, 2 * output.width];
        photo && result && whole && batch.saturating_mul(output.pixels()) < 1 << 31
    }

    /// An error that names what the kernel cannot do, if there is anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { batch, input, pad, conv, output } = *self;
        let halves = |conv: usize, output: usize| output == conv / 2 || output == conv.div_ceil(2);
        let sizes = [input.height, input.width, conv.height, conv.width, output.height, output.width];
        let channels = output.channels;
        let takes = [
            ("images", batch, batch > 0, "at least one"),
            ("input channels", input.channels, input.channels == 3, "three"),
            ("channels", channels, channels.is_multiple_of(16) && (16..=64).contains(&channels), "16, 32, 48 or 64"),
            ("channels of the convolution", conv.channels, conv.channels == channels, "those of the result"),
            ("rows", output.height, halves(conv.height, output.height), "half of the convolution's"),
            ("columns", output.width, halves(conv.width, output.width), "half of the convolution's"),
            ("the smallest size", sizes.into_iter().min().unwrap_or(0), !sizes.contains(&0), "at least 1"),
            ("padding", pad[0].max(pad[1]), pad.iter().all(|pad| *pad < MOST_PIXELS), "less than 16384 pixels"),
            (
                "the largest size",
                sizes.into_iter().max().unwrap_or(0),
                sizes.iter().all(|size| *size < MOST_PIXELS),
                "less than 16384 pixels",
            ),
        ];
        match takes.into_iter().find(|(_, _, takes, _)| !takes) {
            Some((what, value, _, takes)) => Err(Error::Unsupported {
                what: format!("{what} = {value}"),
                instead: format!("the sm90 kernel of first layers of bytes takes {takes}"),
            }),
            None => Ok(()),
        }
    }
}

/// The number of columns of the convolution in a tile.
const COLUMNS: usize = 112;

/// The number of runs of rows on a multiprocessor.
pub(crate) const STEM_RUNS: usize = 3;

/// The limit below which all sizes stay.
const MOST_PIXELS: usize = 1 << 14;

/// Taps of the filter along each axis.
#[cfg(feature = "cuda")]
pub(crate) const STEM_TAPS: usize = 7;

/// Bytes of the filter as the kernel reads it.
#[cfg(feature = "cuda")]
pub(crate) const STEM_FILTER_BYTES: usize = PRODUCTS * GROUP_THREADS * 16;

/// The index in the filter of the weight of an output channel at row `r` and column `s` of the window and input channel
/// `c`.
#[cfg(feature = "cuda")]
pub(crate) const fn stem_filter_index([r, s, c]: [usize; 3], channel: usize) -> usize {
    let at = 3 * s + c;
    // The line, of the ten that the products have, and the term in it.
    let (line, term) = match (at < 16, r) {
        (true, 0) => (6, at),
        (true, _) => (r - 1, at),
        (false, 0..=2) => (7, left(r, at)),
        (false, 3) => (8, left(1, at)),
        (false, _) => (9, left(r - 4, at)),
    };
    let thread = channel / 16 * 32 + channel % 16 / 2 * 4 + term / 4;
    let register = line % 2 * 2 + channel % 2;
    ((line / 2 * GROUP_THREADS + thread) * 4 + register) * 4 + term % 4
}

/// The term of a weight in a line that collects the last weights of three rows: four of each row, then the last of
/// each.
#[cfg(feature = "cuda")]
const fn left(row: usize, at: usize) -> usize {
    if at < 20 { 4 * row + at - 16 } else { 12 + row }
}

/// The number of products of a row of the convolution. Each has two lines of the filter.
#[cfg(feature = "cuda")]
const PRODUCTS: usize = 5;
/// The number of threads of a block that multiply.
#[cfg(feature = "cuda")]
const GROUP_THREADS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn stem() -> S8Stem {
        let [input, conv, output] = [Shape::new(30, 47, 3), Shape::new(15, 24, 48), Shape::new(8, 12, 48)];
        S8Stem { batch: 2, input, pad: [3, 2], conv, output }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn every_weight_has_a_place_of_its_own() {
        let taps = (0..7).flat_map(|r| (0..7).flat_map(move |s| (0..3).map(move |c| [r, s, c])));
        let places: std::collections::BTreeSet<usize> =
            taps.flat_map(|tap| (0..64).map(move |channel| stem_filter_index(tap, channel))).collect();
        assert_eq!(places.len(), 147 * 64);
        assert!(places.last() < Some(&STEM_FILTER_BYTES));
        // Channel 19 is the second of its pair, in the second warp; tap row 5 begins the third product's first line.
        assert_eq!(stem_filter_index([5, 1, 2], 19), ((2 * 128 + 32 + 4 + 1) * 4 + 1) * 4 + 1);
        assert_eq!(stem_filter_index([3, 6, 2], 0), ((4 * 128 + 3) * 4) * 4 + 1);
    }

    #[test]
    fn bands_are_those_that_differ() {
        let tiles = stem().tiles(&Limits::h200());
        assert_eq!(tiles, [1, 2, 3, 4, 8].map(|rows| StemTile { columns: 112, rows }));
    }

    #[test]
    fn runs_are_of_usual_photos() {
        let [input, conv, output] = [Shape::new(224, 224, 3), Shape::new(112, 112, 64), Shape::new(56, 56, 64)];
        let good = S8Stem { batch: 8, input, pad: [3, 3], conv, output };
        let has_runs = |stem: S8Stem| stem.kernels(&Limits::h200()).contains(&Kernel::Sm90StemS8Runs);
        assert!(has_runs(good) && good.kernels(&Limits::a100()).is_empty());
        let with = |shape: Shape, width| Shape { width, ..shape };
        assert!(has_runs(S8Stem { input: with(input, 96), conv: with(conv, 48), output: with(output, 24), ..good }));
        assert!(!has_runs(S8Stem { input: with(input, 240), conv: with(conv, 120), output: with(output, 60), ..good }));
        assert!(!has_runs(S8Stem { input: with(input, 216), conv: with(conv, 108), output: with(output, 54), ..good }));
        assert!(!has_runs(S8Stem { input: with(input, 208), conv: with(conv, 108), output: with(output, 54), ..good }));
        assert!(!has_runs(S8Stem { pad: [3, 2], ..good }));
        let [conv, output] = [conv, output].map(|shape| Shape { channels: 48, ..shape });
        assert!(!has_runs(S8Stem { conv, output, ..good }));
        let odd = Shape { height: 111, ..good.conv };
        assert!(!has_runs(S8Stem { conv: odd, ..good }) && !has_runs(stem()));
    }

    #[test]
    fn what_the_kernel_does_not_do_is_refused() {
        let refused = |stem: S8Stem| stem.check().is_err() && stem.tiles(&Limits::h200()).is_empty();
        let good = stem();
        let with = |shape: Shape, channels| Shape { channels, ..shape };
        assert!(good.check().is_ok());
        assert!(S8Stem { output: Shape::new(7, 12, 48), ..good }.check().is_ok());
        assert!(refused(S8Stem { batch: 0, ..good }) && refused(S8Stem { input: with(good.input, 4), ..good }));
        assert!(refused(S8Stem { conv: with(good.conv, 64), ..good }) && refused(S8Stem { pad: [3, 1 << 14], ..good }));
        for channels in [0, 24, 80] {
            let [conv, output] = [good.conv, good.output].map(|shape| with(shape, channels));
            assert!(refused(S8Stem { conv, output, ..good }), "{channels}");
        }
        for output in [Shape::new(9, 12, 48), Shape::new(8, 11, 48), Shape::new(6, 12, 48)] {
            assert!(refused(S8Stem { output, ..good }), "{output}");
        }
        let one = Shape::new(1, 1, 48);
        assert!(refused(S8Stem { conv: one, output: Shape::new(0, 1, 48), ..good }));
        assert!(S8Stem { conv: one, output: one, ..good }.check().is_ok());
        assert!(refused(S8Stem { input: Shape::new(1 << 14, 47, 3), ..good }));
    }
}
