//! y[p][q][k] = act(sum over r, s, c of x[p·stride - pad + r·dilation][…][c] · filter[k][r][s][c] + bias[k] + residual[p][q][k]).
//!
//! x [H][W][C], y and residual [P][Q][K], f32 without gaps. Taps outside the image are zero. As a matrix product,
//! M = P·Q pixels, N = K, K = R·S·C, on blocks of pixels whose columns and sums stay in the cache; a 1x1 convolution
//! of stride 1 without padding reads x itself as columns. Sums are in an order that the `gemm` crate chooses.

use std::ops::Range;

use gemm::Parallelism;

use crate::model::{Conv2d, FoldedConv, Window};
use crate::tensor::{Activation, Shape};

/// A convolution with packed weights.
pub(super) struct Conv {
    window: Window,
    x: Shape,
    y: Shape,
    /// [R·S·C][K]
    filter: Vec<f32>,
    /// [K]
    bias: Vec<f32>,
    activation: Activation,
    /// Output pixels computed at a time.
    block_pixels: usize,
}

/// Bytes of sums that one block should not exceed.
const BLOCK_BYTES: usize = 256 << 10;

impl Conv {
    pub fn new(conv: &Conv2d, x: Shape, y: Shape, folded: &FoldedConv) -> Self {
        let [r, s] = conv.window.size;
        let (taps, c, k) = (r * s, x.channels, y.channels);
        let mut filter = vec![0.0; taps * c * k];
        for (index, &value) in folded.filter.iter().enumerate() {
            let (out, channel, tap) = (index / (c * taps), index / taps % c, index % taps);
            filter[(tap * c + channel) * k + out] = value;
        }
        let widest = k.max(if is_plain(&conv.window) { 0 } else { taps * c });
        let block_pixels = (BLOCK_BYTES / (4 * widest)).clamp(64, 4096).min(y.pixels());
        let (window, activation, bias) = (conv.window, conv.activation, folded.bias.clone());
        Self { window, x, y, filter, bias, activation, block_pixels }
    }

    /// Elements of column scratch that a run needs.
    pub fn columns_elems(&self) -> usize {
        if is_plain(&self.window) { 0 } else { self.block_pixels * self.k_gemm() }
    }

    fn k_gemm(&self) -> usize {
        self.window.size[0] * self.window.size[1] * self.x.channels
    }

    /// One image; `y` is apart from `x` and `residual`.
    pub fn run(&self, x: &[f32], residual: Option<&[f32]>, y: &mut [f32], columns: &mut [f32]) {
        let (k_gemm, k) = (self.k_gemm(), self.y.channels);
        for start in (0..self.y.pixels()).step_by(self.block_pixels) {
            let pixels = start..(start + self.block_pixels).min(self.y.pixels());
            let y = &mut y[pixels.start * k..pixels.end * k];
            let lhs = if is_plain(&self.window) {
                &x[pixels.start * k_gemm..pixels.end * k_gemm]
            } else {
                self.gather(x, pixels.clone(), columns);
                &columns[..pixels.len() * k_gemm]
            };
            product(pixels.len(), k, k_gemm, lhs, &self.filter, y);
            let residual = residual.map(|r| &r[pixels.start * k..pixels.end * k]);
            self.finish(residual, y);
        }
    }

    /// Writes the columns of `pixels`: for each, its taps' channels, zeros outside the image.
    fn gather(&self, x: &[f32], pixels: Range<usize>, columns: &mut [f32]) {
        let Shape { height, width, channels } = self.x;
        let Window { size: [taps_h, taps_w], stride, pad, dilation } = self.window;
        for (pixel, column) in pixels.zip(columns.chunks_exact_mut(self.k_gemm())) {
            let (p, q) = (pixel / self.y.width, pixel % self.y.width);
            for r in 0..taps_h {
                let h = (p * stride[0] + r * dilation[0]).wrapping_sub(pad.top);
                for s in 0..taps_w {
                    let w = (q * stride[1] + s * dilation[1]).wrapping_sub(pad.left);
                    let target = &mut column[(r * taps_w + s) * channels..][..channels];
                    if h < height && w < width {
                        target.copy_from_slice(&x[(h * width + w) * channels..][..channels]);
                    } else {
                        target.fill(0.0);
                    }
                }
            }
        }
    }

    /// Adds bias and residual and applies the activation.
    fn finish(&self, residual: Option<&[f32]>, y: &mut [f32]) {
        let k = self.y.channels;
        let activation = self.activation;
        match residual {
            Some(residual) => {
                for (y, residual) in y.chunks_exact_mut(k).zip(residual.chunks_exact(k)) {
                    for ((y, bias), residual) in y.iter_mut().zip(&self.bias).zip(residual) {
                        *y = activation.apply(*y + bias + residual);
                    }
                }
            }
            None => {
                for y in y.chunks_exact_mut(k) {
                    for (y, bias) in y.iter_mut().zip(&self.bias) {
                        *y = activation.apply(*y + bias);
                    }
                }
            }
        }
    }
}

/// Whether the pixels themselves are the columns.
fn is_plain(window: &Window) -> bool {
    window.size == [1, 1] && window.stride == [1, 1] && window.pad == Default::default()
}

/// y[m][n] = sum over k of a[m][k] · b[k][n], rows contiguous.
pub(super) fn product(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], y: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && y.len() == m * n, "operands of a {m}x{n}x{k} product");
    let row = |elems: usize| elems as isize;
    // SAFETY: the lengths are asserted above; y is a unique borrow, so apart from a and b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            row(n),
            false,
            a.as_ptr(),
            1,
            row(k),
            b.as_ptr(),
            1,
            row(n),
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
