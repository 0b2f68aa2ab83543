//! Mean over all pixels.
//!
//! y[c] = sum over pixels of x[pixel][c] / pixels.
//!
//! - x: read, f32 [H][W][C] without gaps. y: written, f32 [C], disjoint from x. Any alignment.
//! - Sums are f32: first each row of pixels from left to right, then the rows from top to bottom. A NaN stays one.
//! - Tails: channels go 16 at a time, then one at a time.

use super::simd::{Isa, LANES, vectorized};
use crate::tensor::Shape;

/// A global mean made ready.
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

    /// Computes one image.
    pub fn run(&self, x: &[f32], y: &mut [f32]) {
        assert_eq!((x.len(), y.len()), (self.x.elems(), self.x.channels));
        mean(self.isa, self.x, x, y);
    }
}

vectorized! {
    fn mean(shape: Shape, x: &[f32], y: &mut [f32]) = mean_body
}

#[inline(always)]
fn mean_body<const FMA: bool>(shape: Shape, x: &[f32], y: &mut [f32]) {
    let mut c = 0;
    while c + LANES <= shape.channels {
        channels::<LANES>(c, shape, x, y);
        c += LANES;
    }
    for c in c..shape.channels {
        channels::<1>(c, shape, x, y);
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
    for (y, sum) in y[c..][..W].iter_mut().zip(sums) {
        *y = sum / shape.pixels() as f32;
    }
}
