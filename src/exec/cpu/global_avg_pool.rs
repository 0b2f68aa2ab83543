//! Mean over all pixels.
//!
//! y[c] = sum over pixels of x[pixel][c] / pixels.
//!
//! - x: read, f32 [H][W][C] without gaps. y: written, f32 [C], disjoint from x. Any alignment.
//! - Sums are f32: first each row of pixels from left to right, then the rows from top to bottom. A NaN stays one.
//! - Tails: channels go 16 at a time, then one at a time.

use std::ops::Range;

use super::simd::{Isa, LANES, vectorized};
use crate::loops::Lines;
use crate::tensor::Shape;

/// A mean over all pixels, ready to run.
#[derive(Debug)]
pub(super) struct GlobalAvgPool {
    isa: Isa,
    x: Shape,
}

impl GlobalAvgPool {
    /// The mean over the pixels of `x`.
    pub fn new(isa: Isa, x: Shape) -> Self {
        Self { isa, x }
    }

    /// How the work is shared out: by channels.
    pub fn lines(&self) -> Lines {
        Lines { count: self.x.channels, pitch: 1, together: LANES, least: 1, ops: self.x.pixels() }
    }

    /// Computes these channels of an image.
    pub fn run(&self, channels: Range<usize>, x: &[f32], y: &mut [f32]) {
        assert_eq!((x.len(), y.len()), (self.x.elems(), channels.len()));
        mean(self.isa, self.x, channels.start, x, y);
    }
}

vectorized! {
    fn mean(shape: Shape, first: usize, x: &[f32], y: &mut [f32]) = mean_body
}

#[inline(always)]
fn mean_body<const FMA: bool>(shape: Shape, first: usize, x: &[f32], y: &mut [f32]) {
    let mut c = 0;
    while c + LANES <= y.len() {
        channels::<LANES>(first + c, shape, x, &mut y[c..]);
        c += LANES;
    }
    for c in c..y.len() {
        channels::<1>(first + c, shape, x, &mut y[c..]);
    }
}

/// Computes the W channels from `c` on.
#[inline(always)]
fn channels<const W: usize>(c: usize, shape: Shape, x: &[f32], y: &mut [f32]) {
    let mut sums = [0.0; W];
    for row in x.chunks_exact(shape.width * shape.channels) {
        let mut row_sums = [0.0; W];
        for pixel in row.chunks_exact(shape.channels) {
            let pixel = &pixel[c..][..W];
            for lane in 0..W {
                row_sums[lane] += pixel[lane];
            }
        }
        for lane in 0..W {
            sums[lane] += row_sums[lane];
        }
    }
    for (y, sum) in y[..W].iter_mut().zip(sums) {
        *y = sum / shape.pixels() as f32;
    }
}
