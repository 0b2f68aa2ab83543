//! Fully connected layer.
//!
//! y[n] = sum over c of x[c] * weight[n][c] + bias[n].
//!
//! - x: read, f32 [C]. y: written, f32 [N], disjoint from x. Any alignment.
//! - weight: f32 [N][C], as it is in the file; each is read once a run, so memory's speed is the limit.
//! - Sums are f32: 16 partial sums of the terms c, c + 16, …, then those from first to last, fused multiply-adds where
//!   the processor has them. A NaN stays one.
//! - Tails: outputs go 4 at a time, then one at a time; terms beyond the last 16 are added one by one.

use std::ops::Range;
use std::sync::Arc;

use super::simd::{Isa, LANES, mul_add, vectorized};
use crate::loops::Lines;

/// Outputs that share the loads of x.
const TILE: usize = 4;

/// A linear layer, ready to run.
#[derive(Debug)]
pub(super) struct Linear {
    isa: Isa,
    weights: Arc<(Vec<f32>, Vec<f32>)>, // [N][C], [N]
}

impl Linear {
    /// A layer of this weight and bias.
    pub fn new(isa: Isa, weights: Arc<(Vec<f32>, Vec<f32>)>) -> Self {
        Self { isa, weights }
    }

    /// How the work is shared out: by outputs.
    pub fn lines(&self) -> Lines {
        let (weight, bias) = &*self.weights;
        Lines { count: bias.len(), pitch: 1, together: TILE, least: 1, ops: weight.len() / bias.len().max(1) }
    }

    /// Computes these outputs of an image.
    pub fn run(&self, outputs: Range<usize>, x: &[f32], y: &mut [f32]) {
        let (weight, bias) = &*self.weights;
        assert_eq!((x.len() * bias.len(), y.len()), (weight.len(), outputs.len()));
        linear(self.isa, self, outputs.start, x, y);
    }
}

vectorized! {
    fn linear(layer: &Linear, first: usize, x: &[f32], y: &mut [f32]) = linear_body
}

#[inline(always)]
fn linear_body<const FMA: bool>(layer: &Linear, first: usize, x: &[f32], y: &mut [f32]) {
    let mut n = 0;
    while n + TILE <= y.len() {
        layer.outputs::<TILE, FMA>(first + n, x, &mut y[n..]);
        n += TILE;
    }
    for n in n..y.len() {
        layer.outputs::<1, FMA>(first + n, x, &mut y[n..]);
    }
}

impl Linear {
    /// Computes the N outputs from `first` on.
    #[inline(always)]
    fn outputs<const N: usize, const FMA: bool>(&self, first: usize, x: &[f32], y: &mut [f32]) {
        let (weight, bias) = &*self.weights;
        let rows: [&[f32]; N] = std::array::from_fn(|n| &weight[(first + n) * x.len()..][..x.len()]);
        let mut sums = [[0.0; LANES]; N];
        let whole = x.len() / LANES * LANES;
        for c in (0..whole).step_by(LANES) {
            let x = &x[c..][..LANES];
            for n in 0..N {
                let row = &rows[n][c..][..LANES];
                for lane in 0..LANES {
                    sums[n][lane] = mul_add::<FMA>(x[lane], row[lane], sums[n][lane]);
                }
            }
        }
        for n in 0..N {
            let mut sum = bias[first + n];
            for partial in sums[n] {
                sum += partial;
            }
            for c in whole..x.len() {
                sum = mul_add::<FMA>(x[c], rows[n][c], sum);
            }
            y[n] = sum;
        }
    }
}
