//! y[p][q][c] = act(sum over r, s of x[p·stride - pad + r·dilation][…][c] · filter[r][s][c] + bias[c]).
//!
//! x [H][W][C], y [P][Q][C], filter [R][S][C], f32 without gaps. Taps outside the image are zero. Sums run over r,
//! then s. Channels are innermost and taken [`LANES`] at a time, so that the sums stay in registers.

use crate::model::{Conv2d, FoldedConv, Window};
use crate::tensor::{Activation, Shape};

/// A depthwise convolution with packed weights.
pub(super) struct Depthwise {
    window: Window,
    x: Shape,
    y: Shape,
    /// [R][S][C]
    filter: Vec<f32>,
    /// [C]
    bias: Vec<f32>,
    activation: Activation,
    /// Whether the processor has AVX2.
    avx2: bool,
}

/// Channels summed at a time.
const LANES: usize = 32;

impl Depthwise {
    pub fn new(conv: &Conv2d, x: Shape, y: Shape, folded: &FoldedConv) -> Self {
        let taps = conv.window.size[0] * conv.window.size[1];
        let mut filter = vec![0.0; taps * x.channels];
        for (index, &value) in folded.filter.iter().enumerate() {
            filter[index % taps * x.channels + index / taps] = value;
        }
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2 = false;
        Self { window: conv.window, x, y, filter, bias: folded.bias.clone(), activation: conv.activation, avx2 }
    }

    /// One image; `y` is apart from `x`.
    pub fn run(&self, x: &[f32], y: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if self.avx2 {
            // SAFETY: the processor has AVX2, found when self was made.
            return unsafe { self.run_avx2(x, y) };
        }
        self.run_portable(x, y);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn run_avx2(&self, x: &[f32], y: &mut [f32]) {
        self.run_portable(x, y);
    }

    #[inline(always)]
    fn run_portable(&self, x: &[f32], y: &mut [f32]) {
        let channels = self.x.channels;
        for (p, row) in y.chunks_exact_mut(self.y.width * channels).enumerate() {
            for (q, pixel) in row.chunks_exact_mut(channels).enumerate() {
                for start in (0..channels).step_by(LANES) {
                    if let Some(target) = pixel.get_mut(start..start + LANES) {
                        let sums: [f32; LANES] = self.sums(x, p, q, start);
                        target.copy_from_slice(&sums);
                    } else {
                        for (lane, target) in pixel[start..].iter_mut().enumerate() {
                            let [sum] = self.sums::<1>(x, p, q, start + lane);
                            *target = sum;
                        }
                    }
                }
            }
        }
    }

    /// The results of `N` channels from `start` on at one pixel.
    #[inline(always)]
    fn sums<const N: usize>(&self, x: &[f32], p: usize, q: usize, start: usize) -> [f32; N] {
        let Shape { height, width, channels } = self.x;
        let Window { size: [taps_h, taps_w], stride, pad, dilation } = self.window;
        let mut sums: [f32; N] = self.bias[start..start + N].try_into().expect("N channels");
        for r in 0..taps_h {
            let h = (p * stride[0] + r * dilation[0]).wrapping_sub(pad.top);
            if h >= height {
                continue;
            }
            for s in 0..taps_w {
                let w = (q * stride[1] + s * dilation[1]).wrapping_sub(pad.left);
                if w >= width {
                    continue;
                }
                let x: &[f32; N] = x[(h * width + w) * channels + start..][..N].try_into().expect("N channels");
                let f: &[f32; N] =
                    self.filter[(r * taps_w + s) * channels + start..][..N].try_into().expect("N channels");
                for lane in 0..N {
                    sums[lane] += x[lane] * f[lane];
                }
            }
        }
        sums.map(|sum| self.activation.apply(sum))
    }
}
