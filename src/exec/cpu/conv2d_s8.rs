//! Dense convolution of bytes with bias, residual and activation: the same bytes as on a GPU.
//!
//! y[p][q][k] = saturate(round((sum over r, s, c of x[h][w][c] * filter[k][c][r][s] + bias[k]) * scale[k] +
//! residual[p][q][k] * factor)), where h = p * stride_h + r * dilation_h - pad_top, w likewise, and taps in the padding add
//! nothing.
//!
//! - x: read, bytes [H][W][C] without gaps. residual: read if there is one, bytes [P][Q][K]. y: written, bytes [P][Q][K],
//!   disjoint from both. Each of them is unsigned or signed. Any alignment.
//! - The sum with its bias is exact, in 32 bits. It is rounded to f32, as is its product with the scale; the residual is
//!   added by one fused multiply-add; then it is rounded to the nearest integer, the even one of two. With a ReLU no result
//!   is below 0.
//! - filter: repacked once into panels of 16 output channels, [ceil(K / 16)][R * S * C][16], in f32: sums of [`DEPTH`]
//!   products of bytes stay below 2^24, so that floats add them exactly, in any order. Between passes sums are i32.
//! - Tails: fewer than 6 pixels get a narrower tile of their own; of the last panel only K's channels are stored.

use super::conv2d_fprop::{BLOCK, DEPTH, TILE, accumulate, depth};
use super::simd::{Isa, LANES, Lanes, vectorized};
use super::taps::Taps;
use crate::model::{ByteFilter, Conv2d};
use crate::plan::QuantizedConv;
use crate::tensor::{Activation, Shape};

// What a float adds exactly.
const _: () = assert!(DEPTH * 255 * 128 < 1 << 24);

/// A convolution made ready.
#[derive(Debug)]
pub(super) struct Conv2dS8 {
    isa: Isa,
    x: Shape,
    y: Shape,
    taps: Taps,
    /// Terms of a sum: R * S * C.
    k_gemm: usize,
    /// Terms of one pass.
    depth: usize,
    panels: Vec<Lanes>, // [ceil(K / 16)][k_gemm]
    bias: Vec<i32>,     // [K, a multiple of 16]
    scale: Vec<f32>,    // [K]
    residual_factor: f32,
    signed: Signed,
    /// What a result may be.
    range: [f32; 2],
}

/// Which operands are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub x: bool,
    pub residual: bool,
    pub y: bool,
}

/// Floats of scratch that a run of `conv` from `x` to `y` needs: terms and sums of some pixels.
pub(super) fn scratch_of(conv: &Conv2d, x: Shape, y: Shape) -> usize {
    let [r_size, s_size] = conv.window.size;
    BLOCK.min(y.pixels()) * (depth(r_size * s_size * x.channels) + y.channels.next_multiple_of(LANES))
}

impl Conv2dS8 {
    /// Repacks the weights of `of`, which makes `y` of `x`.
    pub fn new(isa: Isa, of: &QuantizedConv, weights: ByteFilter, [x, y]: [Shape; 2], signed: Signed) -> Self {
        let ByteFilter { filter, mut bias, scale } = weights;
        let [r_size, s_size] = of.conv.window.size;
        let (taps, k_gemm) = (r_size * s_size, r_size * s_size * x.channels);
        let mut panels = vec![Lanes::ZERO; y.channels.div_ceil(LANES) * k_gemm];
        for (at, &value) in filter.iter().enumerate() {
            let [k_out, c, tap] = [at / k_gemm, at / taps % x.channels, at % taps];
            panels[k_out / LANES * k_gemm + tap * x.channels + c].0[k_out % LANES] = f32::from(value);
        }
        bias.resize(y.channels.next_multiple_of(LANES), 0);
        let lowest = if signed.y && of.conv.activation == Activation::None { -128.0 } else { 0.0 };
        Self {
            isa,
            x,
            y,
            taps: Taps::new(&of.conv.window, x, y),
            k_gemm,
            depth: depth(k_gemm),
            panels,
            bias,
            scale,
            residual_factor: of.residual_factor().unwrap_or(0.0),
            signed,
            range: [lowest, if signed.y { 127.0 } else { 255.0 }],
        }
    }

    /// Computes one image.
    pub fn run(&self, x: &[u8], residual: Option<&[u8]>, y: &mut [u8], scratch: &mut [f32]) {
        assert_eq!((x.len(), y.len()), (self.x.elems(), self.y.elems()));
        assert!(residual.is_none_or(|residual| residual.len() == y.len()));
        conv(self.isa, self, x, residual, y, scratch);
    }

    /// The results of a pixel's sums.
    #[inline(always)]
    fn requantise(&self, sums: &[i32], residual: Option<&[u8]>, y: &mut [u8]) {
        let [low, high] = self.range;
        let byte = |value: f32| value.clamp(low, high).round_ties_even() as i32 as u8;
        let scaled = sums.iter().zip(&self.scale).map(|(sum, scale)| *sum as f32 * scale);
        match residual {
            None => y.iter_mut().zip(scaled).for_each(|(y, value)| *y = byte(value)),
            Some(residual) => {
                for ((y, value), &added) in y.iter_mut().zip(scaled).zip(residual) {
                    let added = if self.signed.residual { f32::from(added as i8) } else { f32::from(added) };
                    *y = byte(added.mul_add(self.residual_factor, value));
                }
            }
        }
    }
}

vectorized! {
    fn conv(conv: &Conv2dS8, x: &[u8], residual: Option<&[u8]>, y: &mut [u8], scratch: &mut [f32]) = conv_body
}

#[inline(always)]
fn conv_body<const FMA: bool>(conv: &Conv2dS8, x: &[u8], residual: Option<&[u8]>, y: &mut [u8], scratch: &mut [f32]) {
    let (pixels, k_out, channels) = (conv.y.pixels(), conv.y.channels, conv.bias.len());
    let (terms, sums) = scratch.split_at_mut(BLOCK.min(pixels) * conv.depth);
    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums); // [BLOCK][channels]
    for first in (0..pixels).step_by(BLOCK) {
        let block = first..pixels.min(first + BLOCK);
        sums.chunks_exact_mut(channels).for_each(|sums| sums.copy_from_slice(&conv.bias));
        for start in (0..conv.k_gemm).step_by(conv.depth) {
            let depth = start..conv.k_gemm.min(start + conv.depth);
            if conv.signed.x {
                conv.taps.gather(x, block.clone(), &depth, terms, |byte| f32::from(byte as i8));
            } else {
                conv.taps.gather(x, block.clone(), &depth, terms, f32::from);
            }
            for (index, panel) in conv.panels.chunks_exact(conv.k_gemm).enumerate() {
                let sums = &mut sums[index * LANES..];
                add_panel::<FMA>(&panel[depth.clone()], block.len(), terms, sums, channels);
            }
        }
        for (pixel, sums) in block.zip(sums.chunks_exact(channels)) {
            let at = pixel * k_out..(pixel + 1) * k_out;
            conv.requantise(&sums[..k_out], residual.map(|residual| &residual[at.clone()]), &mut y[at.clone()]);
        }
    }
}

/// Adds a panel's products with the terms of so many pixels to their sums.
#[inline(always)]
fn add_panel<const FMA: bool>(panel: &[Lanes], pixels: usize, terms: &[f32], sums: &mut [i32], channels: usize) {
    for pixel in (0..pixels).step_by(TILE) {
        let (terms, sums) = (&terms[pixel * panel.len()..], &mut sums[pixel * channels..]);
        match pixels - pixel {
            1 => add_tile::<1, FMA>(panel, terms, sums, channels),
            2 => add_tile::<2, FMA>(panel, terms, sums, channels),
            3 => add_tile::<3, FMA>(panel, terms, sums, channels),
            4 => add_tile::<4, FMA>(panel, terms, sums, channels),
            5 => add_tile::<5, FMA>(panel, terms, sums, channels),
            _ => add_tile::<TILE, FMA>(panel, terms, sums, channels),
        }
    }
}

#[inline(always)]
fn add_tile<const M: usize, const FMA: bool>(panel: &[Lanes], terms: &[f32], sums: &mut [i32], channels: usize) {
    let rows: [&[f32]; M] = std::array::from_fn(|m| &terms[m * panel.len()..][..panel.len()]);
    let products = accumulate::<M, FMA>(rows, panel, [[0.0; LANES]; M]);
    for (m, products) in products.iter().enumerate() {
        for (sum, product) in sums[m * channels..][..LANES].iter_mut().zip(products) {
            *sum += *product as i32;
        }
    }
}
