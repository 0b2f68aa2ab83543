//! Maximum and mean over windows.
//!
//! y[p][q][c] = max, or sum divided by count, over r, s of x[h][w][c], where h = p * stride_h + r * dilation_h -
//! pad_top, w likewise, over the taps that lie in the image. The count is of those taps, or of all R * S where padding
//! counts.
//!
//! - x: read, f32 [H][W][C] without gaps. y: written, f32 [P][Q][C] with a pitch of its pixels, disjoint from x. Any
//!   alignment.
//! - Every window has a tap in the image (shape inference refuses others).
//! - Means are f32 sums in the order of r, s, times the rounded reciprocal of the count. A NaN in a window makes its
//!   result NaN; padding never wins a maximum.
//! - Tails: channels go 16 at a time, then one at a time.

use std::ops::Range;

use super::simd::{Isa, LANES, vectorized};
use super::target::OutputTarget;
use super::window::{Span, Spans};
use crate::loops::Lines;
use crate::model::Pool;
use crate::tensor::Shape;

/// A pool, ready to run.
#[derive(Debug)]
pub(super) struct Pool2d {
    isa: Isa,
    x: Shape,
    y: OutputTarget,
    spans: Spans,
    reduce: Reduce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduce {
    Max,
    Mean { count_pad: bool },
}

impl Pool2d {
    /// The maximum over windows.
    pub fn max(isa: Isa, pool: &Pool, x: Shape, y: impl Into<OutputTarget>) -> Self {
        Self::new(isa, pool, x, y.into(), Reduce::Max)
    }

    /// The mean over windows.
    pub fn mean(isa: Isa, pool: &Pool, x: Shape, y: impl Into<OutputTarget>) -> Self {
        Self::new(isa, pool, x, y.into(), Reduce::Mean { count_pad: pool.count_pad })
    }

    fn new(isa: Isa, pool: &Pool, x: Shape, y: OutputTarget, reduce: Reduce) -> Self {
        Self { isa, x, y, spans: Spans::new(&pool.window, x, y.shape), reduce }
    }

    /// How the work is shared out: by the rows of y.
    pub fn lines(&self) -> Lines {
        let OutputTarget { shape, pitch } = self.y;
        let taps: usize = self.spans.size.iter().product();
        Lines {
            count: shape.height,
            pitch: shape.width * pitch,
            together: 1,
            least: 1,
            ops: shape.width * shape.channels * taps,
        }
    }

    /// Computes these rows of an image.
    pub fn run(&self, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), self.x.elems());
        pool(self.isa, self, &self.spans.rows[rows], x, y);
    }
}

vectorized! {
    fn pool(pool: &Pool2d, rows: &[Span], x: &[f32], y: &mut [f32]) = pool_body
}

#[inline(always)]
fn pool_body<const FMA: bool>(pool: &Pool2d, rows: &[Span], x: &[f32], y: &mut [f32]) {
    let channels = pool.x.channels;
    let cols = &pool.spans.cols;
    let positions = rows.iter().flat_map(|row| cols.iter().map(move |col| (row, col)));
    for ((row, col), y) in positions.zip(y.chunks_mut(pool.y.pitch)) {
        let mut c = 0;
        while c + LANES <= channels {
            pool.channels::<LANES>(c, row, col, x, &mut y[c..]);
            c += LANES;
        }
        for c in c..channels {
            pool.channels::<1>(c, row, col, x, &mut y[c..]);
        }
    }
}

impl Pool2d {
    /// Computes the W channels from `c` on of one pixel.
    #[inline(always)]
    fn channels<const W: usize>(&self, c: usize, row: &Span, col: &Span, x: &[f32], y: &mut [f32]) {
        let dilation = self.spans.dilation;
        let mut best = [f32::NEG_INFINITY; W];
        let mut sums = [0.0; W];
        for r in 0..row.taps.len() {
            for s in 0..col.taps.len() {
                let (h, w) = (row.first + r * dilation[0], col.first + s * dilation[1]);
                let x = &x[(h * self.x.width + w) * self.x.channels + c..][..W];
                match self.reduce {
                    Reduce::Max => {
                        for lane in 0..W {
                            best[lane] = larger(best[lane], x[lane]);
                        }
                    }
                    Reduce::Mean { .. } => {
                        for lane in 0..W {
                            sums[lane] += x[lane];
                        }
                    }
                }
            }
        }
        match self.reduce {
            Reduce::Max => y[..W].copy_from_slice(&best),
            Reduce::Mean { count_pad } => {
                let inside = row.taps.len() * col.taps.len();
                let count = if count_pad { self.spans.size[0] * self.spans.size[1] } else { inside };
                let factor = 1.0 / count as f32;
                for lane in 0..W {
                    y[lane] = sums[lane] * factor;
                }
            }
        }
    }
}

/// The larger number; NaN if either is.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}
