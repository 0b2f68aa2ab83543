//! y[p][q][c] = max or mean over the window of x[p·stride - pad + r·dilation][…][c].
//!
//! x [H][W][C], y [P][Q][C], f32 without gaps. Padding never wins a maximum; a NaN in the window wins it. A mean
//! divides by the taps inside the image, or by all taps within image and padding if `count_pad`.

use crate::model::{Pool, Window};
use crate::tensor::Shape;

/// A pooling step.
pub(super) struct Pool2d {
    pool: Pool,
    is_max: bool,
    x: Shape,
    y: Shape,
}

impl Pool2d {
    pub fn max(pool: Pool, x: Shape, y: Shape) -> Self {
        Self { pool, is_max: true, x, y }
    }

    pub fn average(pool: Pool, x: Shape, y: Shape) -> Self {
        Self { pool, is_max: false, x, y }
    }

    /// One image; `y` is apart from `x`.
    pub fn run(&self, x: &[f32], y: &mut [f32]) {
        let Shape { height, width, channels } = self.x;
        let Window { size: [taps_h, taps_w], stride, pad, dilation } = self.pool.window;
        for (index, pixel) in y.chunks_exact_mut(channels).enumerate() {
            let (p, q) = (index / self.y.width, index % self.y.width);
            pixel.fill(if self.is_max { f32::NEG_INFINITY } else { 0.0 });
            let mut inside = 0;
            for r in 0..taps_h {
                let h = (p * stride[0] + r * dilation[0]).wrapping_sub(pad.top);
                for s in 0..taps_w {
                    let w = (q * stride[1] + s * dilation[1]).wrapping_sub(pad.left);
                    if h >= height || w >= width {
                        continue;
                    }
                    inside += 1;
                    let source = &x[(h * width + w) * channels..][..channels];
                    if self.is_max {
                        pixel.iter_mut().zip(source).for_each(|(y, x)| *y = max_or_nan(*y, *x));
                    } else {
                        pixel.iter_mut().zip(source).for_each(|(y, x)| *y += x);
                    }
                }
            }
            if !self.is_max {
                let divisor = if self.pool.count_pad { taps_h * taps_w } else { inside };
                pixel.iter_mut().for_each(|y| *y /= divisor as f32);
            }
        }
    }
}

fn max_or_nan(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}
