//! A network's first layers from photos to bytes: convolution, maximum over windows; the same bytes as on a GPU.
//!
//! y[u][v][k] = max over the pixels p, q of window u, v of conv[p][q][k], where conv is the convolution of bytes of an image
//! with a border: `outside` for each pixel of the padding.
//!
//! - x: read, bytes [H][W][3]. y: written, bytes, unsigned or signed, disjoint from x. Any alignment.
//! - A scale that is not negative keeps the order of sums, so that the maximum of bytes is that of the sums, rounded.

use std::sync::Arc;

use super::conv2d_s8::{BytePanels, Conv2dS8, Image, scratch_of};
use super::simd::Isa;
use super::window::Spans;
use crate::model::Window;
use crate::plan::{QuantizedConv, QuantizedStem};
use crate::tensor::Shape;

/// The first layers, ready to run.
#[derive(Debug)]
pub(super) struct StemS8 {
    x: Shape,
    /// The shape of the image with its border, and the position of the image's first pixel in it.
    bordered: Shape,
    first: [usize; 2],
    outside: [u8; 3],
    conv: Conv2dS8,
    /// The shape of the convolution's results.
    between: Shape,
    windows: Spans,
    y: Image,
}

/// The shape of the image with its border, and the convolution of it without padding.
fn bordered(of: &QuantizedStem, x: Shape) -> (Shape, QuantizedConv) {
    let Window { pad, .. } = of.stem.conv.window;
    let shape =
        Shape { height: x.height + pad.top + pad.bottom, width: x.width + pad.left + pad.right, channels: x.channels };
    (shape, QuantizedConv::plain(&of.stem.conv.for_weights()))
}

/// The number of floats that `bytes` bytes take.
const fn floats(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<f32>())
}

/// Floats of scratch that a run from images of shape `x` needs: for the image with its border, for the convolution's
/// results, and for the convolution itself.
/// what that needs.
pub(super) fn scratch_of_stem(of: &QuantizedStem, x: Shape) -> usize {
    let (image, conv) = bordered(of, x);
    let between = of.stem.conv_shape;
    floats(image.elems()) + floats(between.elems()) + scratch_of(&conv, &[image], between)
}

impl StemS8 {
    /// The layers `of` with these weights, from photos of shape `x` to `y`.
    pub fn new(isa: Isa, of: &QuantizedStem, weights: Arc<BytePanels>, x: Shape, y: Image) -> Self {
        let (image, conv) = bordered(of, x);
        let (between, pad) = (of.stem.conv_shape, of.stem.conv.window.pad);
        let inputs = [Image { shape: image, signed: false }];
        let pool = of.stem.pool.expect("first layers of bytes have a maximum");
        Self {
            x,
            bordered: image,
            first: [pad.top, pad.left],
            outside: of.outside(),
            conv: Conv2dS8::new(isa, &conv, weights, &inputs, Image { shape: between, ..y }),
            between,
            windows: Spans::new(&pool.window, between, y.shape),
            y,
        }
    }

    /// Computes one image.
    pub fn run(&self, x: &[u8], y: &mut [u8], scratch: &mut [f32]) {
        assert_eq!((x.len(), y.len()), (self.x.elems(), self.y.shape.elems()));
        let (image, rest) = scratch.split_at_mut(floats(self.bordered.elems()));
        let (between, scratch) = rest.split_at_mut(floats(self.between.elems()));
        let image = &mut bytemuck::cast_slice_mut(image)[..self.bordered.elems()];
        let between = &mut bytemuck::cast_slice_mut(between)[..self.between.elems()];
        self.border(x, image);
        self.conv.run(0..self.between.pixels(), image, None, between, scratch);
        self.pool(between, y);
    }

    /// Copies the image into its border.
    fn border(&self, x: &[u8], image: &mut [u8]) {
        image.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&self.outside));
        let [top, left] = self.first;
        let row_bytes = self.x.width * 3;
        let rows = image.chunks_exact_mut(self.bordered.width * 3).skip(top);
        rows.zip(x.chunks_exact(row_bytes)).for_each(|(to, from)| to[3 * left..][..row_bytes].copy_from_slice(from));
    }

    /// Computes the maxima over windows.
    fn pool(&self, x: &[u8], y: &mut [u8]) {
        // With this bit flipped, signed bytes have the order of unsigned ones.
        let flip = if self.y.signed { 0x80 } else { 0 };
        let channels = self.between.channels;
        let windows = self.windows.rows.iter().flat_map(|row| self.windows.cols.iter().map(move |col| (row, col)));
        for ((row, col), y) in windows.zip(y.chunks_exact_mut(channels)) {
            y.fill(flip);
            for (h, w) in
                (0..row.taps.len()).flat_map(|r| (0..col.taps.len()).map(move |s| (row.first + r, col.first + s)))
            {
                let x = &x[(h * self.between.width + w) * channels..][..channels];
                y.iter_mut().zip(x).for_each(|(y, x)| *y = (*y ^ flip).max(*x ^ flip) ^ flip);
            }
        }
    }
}
