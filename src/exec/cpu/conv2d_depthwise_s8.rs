//! Depthwise convolution of bytes with bias and activation: the same bytes as on a GPU.
//!
//! y[p][q][c] = saturate(round((sum over r, s of x[h][w][c] * filter[c][r][s] + bias[c]) * scale[c])), where
//! h = p * stride_h + r * dilation_h - pad_top, w likewise, and taps in the padding add nothing.
//!
//! - x: read, bytes [H][W][C] without gaps. y: written, bytes [P][Q][C], disjoint from x. Each of them is unsigned or
//!   signed. Any alignment.
//! - The sum with its bias is exact, in 32 bits. It is rounded to f32, as is its product with the scale; then it is
//!   rounded to the nearest integer, the even one of two. With an activation no result is below 0.
//! - filter: repacked once to [R * S][C], in 32 bits.
//! - Channels are innermost, 16 at a time; channels beyond the last 16 go one at a time.

use std::ops::Range;
use std::sync::Arc;

use super::conv2d_s8::{Image, byte, range};
use super::simd::{Isa, LANES, vectorized};
use super::window::{Span, Spans};
use crate::loops::Lines;
use crate::model::{ByteFilter, Conv2d};

/// A depthwise convolution of bytes, ready to run.
#[derive(Debug)]
pub(super) struct Conv2dDepthwiseS8 {
    isa: Isa,
    x: Image,
    y: Image,
    spans: Spans,
    weights: Arc<ByteTaps>,
    /// The least and the greatest result.
    range: [f32; 2],
}

/// A depthwise convolution's weights, repacked.
#[derive(Debug)]
pub(super) struct ByteTaps {
    filter: Vec<i32>, // [R * S][C]
    bias: Vec<i32>,   // [C]
    scale: Vec<f32>,  // [C]
}

impl ByteTaps {
    /// Repacks the weights of a convolution.
    pub fn new(weights: ByteFilter) -> Self {
        let ByteFilter { filters, bias, scale } = weights;
        let (given, channels) = (&filters[0], bias.len());
        let taps = given.len() / channels;
        let filter = (0..given.len()).map(|at| i32::from(given[at % channels * taps + at / channels])).collect();
        Self { filter, bias, scale }
    }
}

impl Conv2dDepthwiseS8 {
    /// The convolution `conv` with these weights, one group for each channel.
    pub fn new(isa: Isa, conv: &Conv2d, weights: Arc<ByteTaps>, x: Image, y: Image) -> Self {
        let spans = Spans::new(&conv.window, x.shape, y.shape);
        Self { isa, x, y, spans, weights, range: range(y, conv.activation) }
    }

    /// How the work is shared out: by the rows of y.
    pub fn lines(&self) -> Lines {
        let pitch = self.y.shape.width * self.y.shape.channels;
        let taps: usize = self.spans.size.iter().product();
        Lines { count: self.y.shape.height, pitch, together: 1, least: 1, ops: pitch * taps }
    }

    /// Computes these rows of an image.
    pub fn run(&self, rows: Range<usize>, x: &[u8], y: &mut [u8]) {
        assert_eq!(x.len(), self.x.shape.elems());
        depthwise(self.isa, self, &self.spans.rows[rows], x, y);
    }
}

vectorized! {
    fn depthwise(conv: &Conv2dDepthwiseS8, rows: &[Span], x: &[u8], y: &mut [u8]) = depthwise_body
}

#[inline(always)]
fn depthwise_body<const FMA: bool>(conv: &Conv2dDepthwiseS8, rows: &[Span], x: &[u8], y: &mut [u8]) {
    if conv.x.signed {
        conv.rows(rows, x, y, |byte| i32::from(byte as i8));
    } else {
        conv.rows(rows, x, y, i32::from);
    }
}

impl Conv2dDepthwiseS8 {
    #[inline(always)]
    fn rows(&self, rows: &[Span], x: &[u8], y: &mut [u8], value: impl Fn(u8) -> i32 + Copy) {
        let channels = self.x.shape.channels;
        assert_eq!(y.len(), rows.len() * self.spans.cols.len() * channels);
        let places = rows.iter().flat_map(|row| self.spans.cols.iter().map(move |col| (row, col)));
        for ((row, col), y) in places.zip(y.chunks_exact_mut(channels)) {
            let whole = channels / LANES * LANES;
            for c in (0..whole).step_by(LANES) {
                self.channels::<LANES>(c, row, col, x, y, value);
            }
            for c in whole..channels {
                self.channels::<1>(c, row, col, x, y, value);
            }
        }
    }

    /// Computes the W channels from `c` on of a pixel.
    #[inline(always)]
    fn channels<const W: usize>(
        &self,
        c: usize,
        row: &Span,
        col: &Span,
        x: &[u8],
        y: &mut [u8],
        value: impl Fn(u8) -> i32,
    ) {
        let (channels, width, [down, right]) = (self.x.shape.channels, self.x.shape.width, self.spans.dilation);
        let ByteTaps { filter, bias, scale } = &*self.weights;
        let mut sums = [0; W];
        sums.copy_from_slice(&bias[c..][..W]);
        for (at, r) in row.taps.clone().enumerate() {
            for (over, s) in col.taps.clone().enumerate() {
                let pixel = (row.first + at * down) * width + col.first + over * right;
                let x = &x[pixel * channels + c..][..W];
                let filter = &filter[(r * self.spans.size[1] + s) * channels + c..][..W];
                for ((sum, x), filter) in sums.iter_mut().zip(x).zip(filter) {
                    *sum += value(*x) * filter;
                }
            }
        }
        for ((y, sum), scale) in y[c..][..W].iter_mut().zip(sums).zip(&scale[c..][..W]) {
            *y = byte(sum as f32 * scale, self.range);
        }
    }
}
