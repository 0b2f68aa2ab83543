//! Depthwise convolution with bias and activation.
//!
//! y[p][q][c] = act(sum over r, s of x[h][w][c] * filter[c][r][s] + bias[c]), where
//! h = p * stride_h + r * dilation_h - pad_top, w likewise, and taps in the padding add nothing.
//!
//! - x: read, f32 [H][W][C] without gaps. y: written, f32 [P][Q][C], disjoint from x. Any alignment.
//! - filter: repacked once to [R * S][C].
//! - Channels are innermost, 16 at a time. Four neighbouring output pixels whose taps are all in the image share the
//!   filter's loads; a pixel at the left or right border is computed alone. No tap is tested against the border: each
//!   row and column knows its taps.
//! - Sums are f32 in the order of r, s after the bias, fused multiply-adds where the processor has them.
//! - Tails: channels beyond the last 16 go 8 at a time, then one at a time.

use std::ops::Range;
use std::sync::Arc;

use super::simd::{Clamp, Isa, LANES, mul_add, vectorized};
use super::window::{Span, Spans};
use crate::loops::Lines;
use crate::model::{Conv2d, FoldedConv};
use crate::tensor::Shape;

/// Pixels that share the filter's loads.
const TILE: usize = 4;

/// A depthwise convolution, ready to run.
#[derive(Debug)]
pub(super) struct Conv2dDepthwise {
    isa: Isa,
    x: Shape,
    y: Shape,
    spans: Spans,
    weights: Arc<Taps>,
    clamp: Clamp,
}

/// A depthwise convolution's weights, repacked.
#[derive(Debug)]
pub(super) struct Taps {
    filter: Vec<f32>, // [R * S][C]
    bias: Vec<f32>,   // [C]
}

impl Taps {
    /// Repacks the weights of a convolution of `channels` channels.
    pub fn new(folded: FoldedConv, channels: usize) -> Self {
        let FoldedConv { filter: given, bias } = folded;
        let taps = given.len() / channels;
        let mut filter = vec![0.0; given.len()];
        for c in 0..channels {
            for tap in 0..taps {
                filter[tap * channels + c] = given[c * taps + tap];
            }
        }
        Self { filter, bias }
    }
}

impl Conv2dDepthwise {
    /// The convolution `conv` with these weights, one group for each channel, from shape `x` to shape `y`.
    pub fn new(isa: Isa, conv: &Conv2d, weights: Arc<Taps>, x: Shape, y: Shape) -> Self {
        let spans = Spans::new(&conv.window, x, y);
        Self { isa, x, y, spans, weights, clamp: conv.activation.into() }
    }

    /// How the work is shared out: by the rows of y.
    pub fn lines(&self) -> Lines {
        let pitch = self.y.width * self.y.channels;
        let taps: usize = self.spans.size.iter().product();
        Lines { count: self.y.height, pitch, together: 1, least: 1, ops: pitch * taps }
    }

    /// Computes these rows of an image.
    pub fn run(&self, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), self.x.elems());
        depthwise(self.isa, self, &self.spans.rows[rows], x, y);
    }
}

vectorized! {
    fn depthwise(conv: &Conv2dDepthwise, rows: &[Span], x: &[f32], y: &mut [f32]) = depthwise_body
}

#[inline(always)]
fn depthwise_body<const FMA: bool>(conv: &Conv2dDepthwise, rows: &[Span], x: &[f32], y: &mut [f32]) {
    let channels = conv.x.channels;
    let cols = &conv.spans.cols;
    let inside = |q: usize| cols.get(q).is_some_and(|col| col.taps == (0..conv.spans.size[1]));
    assert_eq!(y.len(), rows.len() * conv.y.width * channels);
    for (row, y) in rows.iter().zip(y.chunks_exact_mut(conv.y.width * channels)) {
        let mut q = 0;
        while q < cols.len() {
            let y = &mut y[q * channels..];
            if inside(q) && inside(q + TILE - 1) {
                conv.pixels::<TILE, FMA>(row, &cols[q], x, y);
                q += TILE;
            } else {
                conv.pixels::<1, FMA>(row, &cols[q], x, y);
                q += 1;
            }
        }
    }
}

impl Conv2dDepthwise {
    /// Computes N neighbouring pixels with the same taps.
    #[inline(always)]
    fn pixels<const N: usize, const FMA: bool>(&self, row: &Span, col: &Span, x: &[f32], y: &mut [f32]) {
        let channels = self.x.channels;
        let mut c = 0;
        while c + LANES <= channels {
            self.channels::<N, LANES, FMA>(c, row, col, x, y);
            c += LANES;
        }
        if c + LANES / 2 <= channels {
            self.channels::<N, { LANES / 2 }, FMA>(c, row, col, x, y);
            c += LANES / 2;
        }
        for c in c..channels {
            self.channels::<N, 1, FMA>(c, row, col, x, y);
        }
    }

    /// Computes the W channels from `c` on of N pixels.
    #[inline(always)]
    fn channels<const N: usize, const W: usize, const FMA: bool>(
        &self,
        c: usize,
        row: &Span,
        col: &Span,
        x: &[f32],
        y: &mut [f32],
    ) {
        let (channels, dilation) = (self.x.channels, self.spans.dilation);
        let step = self.spans.stride[1] * channels; // from a pixel's tap to its neighbour's
        let mut bias = [0.0; W];
        bias.copy_from_slice(&self.weights.bias[c..][..W]);
        let mut sums = [bias; N];
        for r in row.taps.clone() {
            let h = row.first + (r - row.taps.start) * dilation[0];
            for s in col.taps.clone() {
                let w = col.first + (s - col.taps.start) * dilation[1];
                let filter = &self.weights.filter[(r * self.spans.size[1] + s) * channels + c..][..W];
                let x = &x[(h * self.x.width + w) * channels + c..][..(N - 1) * step + W];
                for n in 0..N {
                    let x = &x[n * step..][..W];
                    for lane in 0..W {
                        sums[n][lane] = mul_add::<FMA>(x[lane], filter[lane], sums[n][lane]);
                    }
                }
            }
        }
        for (n, sums) in sums.iter().enumerate() {
            let y = &mut y[n * channels + c..][..W];
            for lane in 0..W {
                y[lane] = self.clamp.apply(sums[lane]);
            }
        }
    }
}
