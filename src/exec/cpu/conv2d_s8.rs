//! Dense convolution of bytes with bias, residual and activation, or the sum of two: the same bytes as on a GPU.
//!
//! y[p][q][k] = saturate(round((sum over r, s, c of x[h][w][c] * filter[k][c][r][s] + bias[k]) * scale[k] +
//! residual[p][q][k] * factor)), where h = p * stride_h + r * dilation_h - pad_top, w likewise, and taps in the padding add
//! nothing. Instead of a residual the sum may have another convolution's products, of an input of its own.
//!
//! - x: read, bytes [H][W][C] without gaps. residual: read if there is one, bytes [P][Q][K]. y: written, bytes [P][Q][K],
//!   disjoint from both. Each of them is unsigned or signed. Any alignment.
//! - The sum with its bias is exact, in 32 bits. It is rounded to f32, as is its product with the scale; the residual is
//!   added by one fused multiply-add; then it is rounded to the nearest integer, the even one of two. With a ReLU no result
//!   is below 0.
//! - filter: repacked once into panels of 16 output channels, [ceil(K / 16)][R * S * C][16], in f32: sums of [`DEPTH`]
//!   products of bytes stay below 2^24, so that floats add them exactly, in any order. Between passes sums are i32.
//! - Tails: fewer than 6 pixels get a narrower tile of their own; of the last panel only K's channels are stored.

use std::ops::Range;
use std::sync::Arc;

use super::conv2d_fprop::{BLOCK, DEPTH, TILE, accumulate, depth};
use super::simd::{Isa, LANES, Lanes, vectorized};
use super::taps::Taps;
use crate::loops::Lines;
use crate::model::{ByteFilter, Conv2d, Window};
use crate::plan::QuantizedConv;
use crate::tensor::{Activation, Shape};

// An f32 adds a pass of products exactly: sums stay below 2^24.
const _: () = assert!(DEPTH * 255 * 128 < 1 << 24);

/// A convolution of bytes, ready to run.
#[derive(Debug)]
pub(super) struct Conv2dS8 {
    isa: Isa,
    y: Shape,
    /// The convolutions whose products go into the sums: one or two.
    sources: Vec<Source>,
    weights: Arc<BytePanels>,
    /// The factor of the residual, and whether the residual is signed.
    residual: Option<(f32, bool)>,
    /// The least and the greatest result.
    range: [f32; 2],
}

/// One of the convolutions of a sum.
#[derive(Debug)]
struct Source {
    x: Image,
    taps: Taps,
    /// Terms of a sum: R * S * C.
    k_gemm: usize,
    /// Terms of one pass.
    depth: usize,
}

/// The weights of a sum's convolutions, repacked.
#[derive(Debug)]
pub(super) struct BytePanels {
    filters: Vec<Vec<Lanes>>, // of each [ceil(K / 16)][R * S * C]
    bias: Vec<i32>,           // [K, a multiple of 16]
    scale: Vec<f32>,          // [K]
}

/// Bytes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub shape: Shape,
    /// Whether the bytes are signed.
    pub signed: bool,
}

/// Floats of scratch that a run of `of` from inputs of these shapes to `y` needs, for the terms and sums of a block of
/// pixels.
pub(super) fn scratch_of(of: &QuantizedConv, inputs: &[Shape], y: Shape) -> usize {
    let terms = |((conv, _), x): ((&Conv2d, _), &Shape)| conv.window.size.iter().product::<usize>() * x.channels;
    let deepest = of.convs().zip(inputs).map(terms).map(depth).max();
    BLOCK.min(y.pixels()) * (deepest.expect("a convolution") + y.channels.next_multiple_of(LANES))
}

/// The least and the greatest result of a layer with this activation.
pub(super) fn range(y: Image, activation: Activation) -> [f32; 2] {
    let lowest = if y.signed && activation == Activation::None { -128.0 } else { 0.0 };
    [lowest, if y.signed { 127.0 } else { 255.0 }]
}

/// The byte of a result: the nearest integer, the even one of two, within a range.
#[inline(always)]
pub(super) fn byte(value: f32, [low, high]: [f32; 2]) -> u8 {
    value.clamp(low, high).round_ties_even() as i32 as u8
}

impl Source {
    fn new(window: &Window, x: Image, y: Shape) -> Self {
        let k_gemm = window.size.iter().product::<usize>() * x.shape.channels;
        Self { x, taps: Taps::new(window, x.shape, y), k_gemm, depth: depth(k_gemm) }
    }
}

impl BytePanels {
    /// Repacks the weights of a sum of convolutions. `channels` has the channels of each convolution's input.
    pub fn new(weights: ByteFilter, channels: &[usize]) -> Self {
        let ByteFilter { filters, mut bias, scale } = weights;
        let count = bias.len();
        let repacked = |(filter, &channels): (&Vec<i8>, &usize)| {
            let k_gemm = filter.len() / count;
            let taps = k_gemm / channels;
            let mut panels = vec![Lanes::ZERO; count.div_ceil(LANES) * k_gemm];
            for (at, &value) in filter.iter().enumerate() {
                let [k_out, c, tap] = [at / k_gemm, at / taps % channels, at % taps];
                panels[k_out / LANES * k_gemm + tap * channels + c].0[k_out % LANES] = f32::from(value);
            }
            panels
        };
        let filters = filters.iter().zip(channels).map(repacked).collect();
        bias.resize(count.next_multiple_of(LANES), 0);
        Self { filters, bias, scale }
    }
}

impl Conv2dS8 {
    /// The convolution `of` with these weights. `inputs` has the input of each convolution, then the residual.
    pub fn new(isa: Isa, of: &QuantizedConv, weights: Arc<BytePanels>, inputs: &[Image], y: Image) -> Self {
        let source = |((conv, _), &x): ((&Conv2d, _), &Image)| Source::new(&conv.window, x, y.shape);
        let sources: Vec<Source> = of.convs().zip(inputs).map(source).collect();
        Self {
            isa,
            y: y.shape,
            residual: of.residual_factor().zip(inputs.get(sources.len()).map(|residual| residual.signed)),
            sources,
            weights,
            range: range(y, of.conv.activation),
        }
    }

    /// How the work is shared out: by the pixels of y.
    pub fn lines(&self) -> Lines {
        let terms: usize = self.sources.iter().map(|source| source.k_gemm).sum();
        let channels = self.y.channels;
        Lines { count: self.y.pixels(), pitch: channels, together: TILE, least: 1, ops: terms * channels }
    }

    /// Computes these pixels of an image; `second` is the residual, or what the second convolution reads.
    pub fn run(&self, pixels: Range<usize>, x: &[u8], second: Option<&[u8]>, y: &mut [u8], scratch: &mut [f32]) {
        assert_eq!(y.len(), pixels.len() * self.y.channels);
        let (of_sources, residual) = match self.residual {
            Some(_) => ([Some(x), None], second),
            None => ([Some(x), second], None),
        };
        assert!(residual.is_none_or(|residual| residual.len() == self.y.elems()));
        for (source, x) in self.sources.iter().zip(of_sources) {
            assert_eq!(x.map(<[u8]>::len), Some(source.x.shape.elems()));
        }
        conv(self.isa, self, pixels, of_sources, residual, y, scratch);
    }

    /// Computes the results of a pixel from its sums.
    #[inline(always)]
    fn requantise(&self, sums: &[i32], residual: Option<&[u8]>, y: &mut [u8]) {
        let scaled = sums.iter().zip(&self.weights.scale).map(|(sum, scale)| *sum as f32 * scale);
        match residual.zip(self.residual) {
            None => y.iter_mut().zip(scaled).for_each(|(y, value)| *y = byte(value, self.range)),
            Some((residual, (factor, signed))) => {
                for ((y, value), &added) in y.iter_mut().zip(scaled).zip(residual) {
                    let added = if signed { f32::from(added as i8) } else { f32::from(added) };
                    *y = byte(added.mul_add(factor, value), self.range);
                }
            }
        }
    }
}

vectorized! {
    fn conv(
        conv: &Conv2dS8,
        pixels: Range<usize>,
        xs: [Option<&[u8]>; 2],
        residual: Option<&[u8]>,
        y: &mut [u8],
        scratch: &mut [f32],
    ) = conv_body
}

#[inline(always)]
fn conv_body<const FMA: bool>(
    conv: &Conv2dS8,
    pixels: Range<usize>,
    xs: [Option<&[u8]>; 2],
    residual: Option<&[u8]>,
    y: &mut [u8],
    scratch: &mut [f32],
) {
    let (k_out, channels) = (conv.y.channels, conv.weights.bias.len());
    let deepest = conv.sources.iter().map(|source| source.depth).max().expect("a sum has a source");
    let (terms, sums) = scratch.split_at_mut(BLOCK.min(conv.y.pixels()) * deepest);
    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums); // [BLOCK][channels]
    for first in pixels.clone().step_by(BLOCK) {
        let block = first..pixels.end.min(first + BLOCK);
        sums.chunks_exact_mut(channels).take(block.len()).for_each(|sums| sums.copy_from_slice(&conv.weights.bias));
        for ((source, panels), x) in conv.sources.iter().zip(&conv.weights.filters).zip(xs.into_iter().flatten()) {
            add_source::<FMA>((source, panels), x, &block, terms, sums, channels);
        }
        for (pixel, sums) in block.zip(sums.chunks_exact(channels)) {
            let residual = residual.map(|residual| &residual[pixel * k_out..][..k_out]);
            conv.requantise(&sums[..k_out], residual, &mut y[(pixel - pixels.start) * k_out..][..k_out]);
        }
    }
}

/// Adds a convolution's products of a block of pixels to their sums.
#[inline(always)]
fn add_source<const FMA: bool>(
    (source, panels): (&Source, &[Lanes]),
    x: &[u8],
    block: &Range<usize>,
    terms: &mut [f32],
    sums: &mut [i32],
    channels: usize,
) {
    for start in (0..source.k_gemm).step_by(source.depth) {
        let depth = start..source.k_gemm.min(start + source.depth);
        if source.x.signed {
            source.taps.gather(x, block.clone(), &depth, terms, |byte| f32::from(byte as i8));
        } else {
            source.taps.gather(x, block.clone(), &depth, terms, f32::from);
        }
        for (index, panel) in panels.chunks_exact(source.k_gemm).enumerate() {
            let sums = &mut sums[index * LANES..];
            add_panel::<FMA>(&panel[depth.clone()], block.len(), terms, sums, channels);
        }
    }
}

/// Adds the products of a panel and the terms of `pixels` pixels to their sums.
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
