//! Dense convolution with bias, residual and activation.
//!
//! y[p][q][k] = act(sum over r, s, c of x[h][w][c] * filter[k][c][r][s] + bias[k] + residual[p][q][k]), where
//! h = p * stride_h + r * dilation_h - pad_top, w likewise, and taps in the padding add nothing.
//!
//! - x: read, f32 [H][W][C] without gaps. residual: read if there is one, f32 [P][Q][K]. y: written, f32 [P][Q][K] with
//!   a pitch of its pixels, disjoint from both. Any alignment.
//! - filter: repacked once into panels of 16 output channels, [ceil(K / 16)][R * S * C][16], zeros in the last panel
//!   beyond K, 64-byte aligned.
//! - The sums of 6 pixels x 16 channels stay in registers through up to [`DEPTH`] terms and are then kept in y; the
//!   last pass adds bias and residual and clamps, so that y is written once for most layers. A 1x1 convolution of
//!   stride 1 without padding reads x where it lies; any other first copies the taps of [`BLOCK`] pixels into scratch.
//! - Sums are f32 in the order of r, s, c, fused multiply-adds where the processor has them. A NaN stays one.
//! - Tails: the tiles of a block have 6 pixels or fewer, all nearly as many; of the last panel only K's channels are stored.

use std::ops::Range;
use std::sync::Arc;

use super::simd::{Clamp, Isa, LANES, Lanes, mul_add, vectorized};
use super::taps::Taps;
use super::target::OutputTarget;
use crate::loops::Lines;
use crate::model::{Conv2d, FoldedConv};
use crate::tensor::Shape;

/// Pixels of one tile: with 16 channels they fill 12 of AVX2's 16 registers.
pub(super) const TILE: usize = 6;
/// The number of pixels from which on it pays to read all panels.
const REUSED: usize = 4 * TILE;
/// Pixels that one pass over the panels serves; their taps stay in the second-level cache.
pub(super) const BLOCK: usize = 16 * TILE;
/// Terms of one pass: a panel's part stays in the first-level cache.
pub(super) const DEPTH: usize = 512;

/// A convolution, ready to run.
#[derive(Debug)]
pub(super) struct Conv2dFprop {
    isa: Isa,
    x: Shape,
    y: OutputTarget,
    taps: Taps,
    /// Terms of a sum: R * S * C.
    k_gemm: usize,
    /// Terms of one pass.
    depth: usize,
    /// Whether the taps of an output pixel are exactly one pixel of x.
    pointwise: bool,
    weights: Arc<Panels>,
    clamp: Clamp,
}

/// A convolution's weights, repacked.
#[derive(Debug)]
pub(super) struct Panels {
    filter: Vec<Lanes>, // [ceil(K / 16)][R * S * C]
    bias: Vec<Lanes>,   // [ceil(K / 16)]
}

/// Floats of scratch that a run of `conv` from `x` to `y` needs.
pub(super) fn scratch_of(conv: &Conv2d, x: Shape, y: Shape) -> usize {
    let [r_size, s_size] = conv.window.size;
    if is_pointwise(conv) { 0 } else { BLOCK.min(y.pixels()) * depth(r_size * s_size * x.channels) }
}

/// The number of terms that one pass adds, for sums of `k_gemm` terms.
pub(super) fn depth(k_gemm: usize) -> usize {
    k_gemm.div_ceil(k_gemm.div_ceil(DEPTH))
}

fn is_pointwise(conv: &Conv2d) -> bool {
    let (window, pad) = (&conv.window, conv.window.pad);
    window.size == [1, 1] && window.stride == [1, 1] && [pad.top, pad.left, pad.bottom, pad.right] == [0; 4]
}

impl Panels {
    /// Repacks the weights of `conv`, which reads images of `channels` channels.
    pub fn new(conv: &Conv2d, folded: &FoldedConv, channels: usize) -> Self {
        let taps = conv.window.size.iter().product::<usize>();
        let (k_gemm, group) = (taps * channels, channels / conv.groups);
        let count = conv.out_channels.div_ceil(LANES);
        let mut filter = vec![Lanes::ZERO; count * k_gemm];
        let mut bias = vec![Lanes::ZERO; count];
        for k_out in 0..conv.out_channels {
            let (panel, lane) = (k_out / LANES, k_out % LANES);
            bias[panel].0[lane] = folded.bias[k_out];
            let first = conv.first_channel(k_out, channels);
            for c in 0..group {
                for tap in 0..taps {
                    let value = folded.filter[(k_out * group + c) * taps + tap];
                    filter[panel * k_gemm + tap * channels + first + c].0[lane] = value;
                }
            }
        }
        Self { filter, bias }
    }
}

impl Conv2dFprop {
    /// The convolution `conv` with these weights, from shape `x` to the target `y`.
    pub fn new(isa: Isa, conv: &Conv2d, weights: Arc<Panels>, x: Shape, y: impl Into<OutputTarget>) -> Self {
        let target = y.into();
        let k_gemm = conv.window.size.iter().product::<usize>() * x.channels;
        Self {
            isa,
            x,
            y: target,
            taps: Taps::new(&conv.window, x, target.shape),
            k_gemm,
            depth: depth(k_gemm),
            pointwise: is_pointwise(conv),
            weights,
            clamp: conv.activation.into(),
        }
    }

    /// How the work is shared out: by the pixels of y.
    pub fn lines(&self) -> Lines {
        let OutputTarget { shape, pitch } = self.y;
        Lines { count: shape.pixels(), pitch, together: 1, least: REUSED, ops: self.k_gemm * shape.channels }
    }

    /// Computes these pixels of an image.
    pub fn run(&self, pixels: Range<usize>, x: &[f32], residual: Option<&[f32]>, y: &mut [f32], scratch: &mut [f32]) {
        assert_eq!(x.len(), self.x.elems());
        assert!(residual.is_none_or(|residual| residual.len() == self.y.shape.elems()));
        fprop(self.isa, self, pixels, x, residual, y, scratch);
    }
}

vectorized! {
    fn fprop(
        conv: &Conv2dFprop,
        pixels: Range<usize>,
        x: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
        scratch: &mut [f32],
    ) = fprop_body
}

#[inline(always)]
fn fprop_body<const FMA: bool>(
    conv: &Conv2dFprop,
    pixels: Range<usize>,
    x: &[f32],
    residual: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (k_out, y_pitch) = (conv.y.shape.channels, conv.y.pitch);
    for first in pixels.clone().step_by(BLOCK) {
        let block = first..pixels.end.min(first + BLOCK);
        for start in (0..conv.k_gemm).step_by(conv.depth) {
            let depth = start..conv.k_gemm.min(start + conv.depth);
            let (terms, pitch) = if conv.pointwise {
                (&x[first * conv.k_gemm + start..], conv.k_gemm)
            } else {
                conv.taps.gather(x, block.clone(), &depth, scratch, |value| value);
                (&*scratch, depth.len())
            };
            for (index, bias) in conv.weights.bias.iter().enumerate() {
                let mut tile = Tile {
                    isa: conv.isa,
                    panel: &conv.weights.filter[index * conv.k_gemm..][depth.clone()],
                    bias,
                    residual: None,
                    clamp: conv.clamp,
                    pitch,
                    k_out,
                    y_pitch,
                    lanes: LANES.min(k_out - index * LANES),
                    resumes: start > 0,
                    ends: depth.end == conv.k_gemm,
                };
                let tiles = block.len().div_ceil(TILE);
                let start_of = |number: usize| first + block.len() * number / tiles;
                for pixels_of_tile in (0..tiles).map(|number| start_of(number)..start_of(number + 1)) {
                    let pixel = pixels_of_tile.start;
                    let terms = &terms[(pixel - first) * pitch..];
                    tile.residual = residual.map(|residual| &residual[pixel * k_out + index * LANES..]);
                    let y = &mut y[(pixel - pixels.start) * y_pitch + index * LANES..];
                    match pixels_of_tile.len() {
                        1 => tile.run::<1, FMA>(terms, y),
                        2 => tile.run::<2, FMA>(terms, y),
                        3 => tile.run::<3, FMA>(terms, y),
                        4 => tile.run::<4, FMA>(terms, y),
                        5 => tile.run::<5, FMA>(terms, y),
                        _ => tile.run::<TILE, FMA>(terms, y),
                    }
                }
            }
        }
    }
}

/// What the tiles of one panel have in common.
struct Tile<'a> {
    isa: Isa,
    panel: &'a [Lanes],
    bias: &'a Lanes,
    /// The residual, from the tile's first output on.
    residual: Option<&'a [f32]>,
    clamp: Clamp,
    /// Distance from one pixel's terms to the next pixel's.
    pitch: usize,
    /// Distance from one pixel of the residual to the next.
    k_out: usize,
    /// Distance from one pixel of y to the next.
    y_pitch: usize,
    /// The number of the panel's channels that y has.
    lanes: usize,
    /// Whether y already holds the sums of earlier terms.
    resumes: bool,
    /// Whether this pass adds the last terms.
    ends: bool,
}

impl Tile<'_> {
    /// Adds the panel's terms of M pixels to y.
    #[inline(always)]
    fn run<const M: usize, const FMA: bool>(&self, terms: &[f32], y: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if self.isa.has_avx2() {
            // SAFETY: `Isa::detect` found the features on this processor.
            return unsafe { avx2::run::<M>(self, terms, y) };
        }
        let rows: [&[f32]; M] = std::array::from_fn(|m| &terms[m * self.pitch..][..self.panel.len()]);
        let mut sums = [[0.0; LANES]; M];
        if self.resumes {
            for (m, sums) in sums.iter_mut().enumerate() {
                sums[..self.lanes].copy_from_slice(&y[m * self.y_pitch..][..self.lanes]);
            }
        }
        let mut sums = accumulate::<M, FMA>(rows, self.panel, sums);
        for (m, sums) in sums.iter_mut().enumerate() {
            if self.ends {
                self.finish(sums, self.residual.map(|residual| &residual[m * self.k_out..]));
            }
            let at = m * self.y_pitch;
            if self.lanes == LANES {
                y[at..][..LANES].copy_from_slice(sums);
            } else {
                y[at..][..self.lanes].copy_from_slice(&sums[..self.lanes]);
            }
        }
    }

    /// Adds bias and residual, then clamps.
    #[inline(always)]
    fn finish(&self, sums: &mut [f32; LANES], residual: Option<&[f32]>) {
        for (sum, bias) in sums.iter_mut().zip(&self.bias.0) {
            *sum += bias;
        }
        match residual {
            Some(residual) if self.lanes == LANES => {
                for (sum, residual) in sums.iter_mut().zip(&residual[..LANES]) {
                    *sum += residual;
                }
            }
            Some(residual) => {
                for (sum, residual) in sums.iter_mut().zip(&residual[..self.lanes]) {
                    *sum += residual;
                }
            }
            None => {}
        }
        for sum in sums {
            *sum = self.clamp.apply(*sum);
        }
    }
}

/// The code of `Tile::run` in AVX2 instructions. From plain loops the compiler makes code that handles the ends of
/// tiles one by one.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes, Tile};

    /// The sums or weights of a panel's 16 channels: eight floats, twice.
    type Pair = [__m256; 2];

    #[target_feature(enable = "avx2,fma")]
    pub fn run<const M: usize>(tile: &Tile<'_>, terms: &[f32], y: &mut [f32]) {
        let (mut rows, mut sums) = ([terms; M], [[_mm256_setzero_ps(); 2]; M]);
        for m in 0..M {
            rows[m] = &terms[m * tile.pitch..][..tile.panel.len()];
            if tile.resumes {
                sums[m] = load(&y[m * tile.y_pitch..], tile.lanes);
            }
        }
        let sums = accumulate(rows, tile.panel, sums);
        for m in 0..M {
            let sum = if tile.ends { finish(tile, m, sums[m]) } else { sums[m] };
            store(sum, &mut y[m * tile.y_pitch..][..tile.lanes]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn accumulate<const M: usize>(rows: [&[f32]; M], panel: &[Lanes], mut sums: [Pair; M]) -> [Pair; M] {
        assert!(rows.iter().all(|row| row.len() >= panel.len()));
        for (i, filter) in panel.iter().enumerate() {
            let filter = load(&filter.0, LANES);
            for m in 0..M {
                // SAFETY: `i` is less than the length of the panel, and no row is shorter than that (asserted).
                let value = _mm256_set1_ps(unsafe { *rows[m].get_unchecked(i) });
                sums[m] =
                    [_mm256_fmadd_ps(value, filter[0], sums[m][0]), _mm256_fmadd_ps(value, filter[1], sums[m][1])];
            }
        }
        sums
    }

    /// Adds bias and residual to the sums of a pixel, then clamps. A NaN stays a NaN because it is the second operand.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn finish(tile: &Tile<'_>, m: usize, sums: Pair) -> Pair {
        let bias = load(&tile.bias.0, LANES);
        let residual = tile.residual.map(|residual| load(&residual[m * tile.k_out..], tile.lanes));
        let [low, high] = tile.clamp.range().map(|bound| _mm256_set1_ps(bound));
        let mut all = sums;
        for half in 0..2 {
            let sum = _mm256_add_ps(sums[half], bias[half]);
            let sum = residual.map_or(sum, |residual| _mm256_add_ps(sum, residual[half]));
            all[half] = _mm256_min_ps(high, _mm256_max_ps(low, sum));
        }
        all
    }

    /// Loads 16 floats of which the first `lanes` count; the others are arbitrary.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn load(from: &[f32], lanes: usize) -> Pair {
        let mut some = [0.0; LANES];
        let from = match from.first_chunk::<LANES>() {
            Some(all) => all,
            None => {
                some[..lanes].copy_from_slice(&from[..lanes]);
                &some
            }
        };
        // SAFETY: the pointers are to eight floats each, which are borrowed.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[LANES / 2..].as_ptr())] }
    }

    /// Writes as many of the 16 floats as `to` has room for.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn store(sums: Pair, to: &mut [f32]) {
        let mut some = [0.0; LANES];
        let is_whole = to.len() >= LANES;
        let whole = to.first_chunk_mut::<LANES>().unwrap_or(&mut some);
        // SAFETY: the pointers are to eight floats each, which are borrowed mutably.
        unsafe {
            _mm256_storeu_ps(whole.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(whole[LANES / 2..].as_mut_ptr(), sums[1]);
        }
        if !is_whole {
            to.copy_from_slice(&some[..to.len()]);
        }
    }
}

/// Adds the products of M rows and a panel to `sums`, which stay in registers: no other code may take their address.
#[inline(always)]
pub(super) fn accumulate<const M: usize, const FMA: bool>(
    rows: [&[f32]; M],
    panel: &[Lanes],
    mut sums: [[f32; LANES]; M],
) -> [[f32; LANES]; M] {
    let rows = rows.map(|row| &row[..panel.len()]);
    for (i, &Lanes(filter)) in panel.iter().enumerate() {
        for (row, sums) in rows.iter().zip(&mut sums) {
            let value = row[i];
            for (sum, filter) in sums.iter_mut().zip(filter) {
                *sum = mul_add::<FMA>(value, filter, *sum);
            }
        }
    }
    sums
}
