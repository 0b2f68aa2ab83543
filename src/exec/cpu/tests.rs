//! Compares the kernels for the baseline instruction set with those for AVX2. `tests/operations.rs` compares the
//! kernels for AVX2 with plain loops; here both get the same problems, so that the fallback is tested on a machine that
//! never takes it.

use super::add::Add;
use super::conv2d_depthwise::{Conv2dDepthwise, Taps};
use super::conv2d_fprop::{Conv2dFprop, Panels, scratch_of};
use super::global_avg_pool::GlobalAvgPool;
use super::linear::Linear;
use super::pool2d::Pool2d;
use super::simd::Isa;
use crate::model::{Conv2d, FoldedConv, Pad, Pool, Window};
use crate::tensor::{Activation, Shape};

/// Numbers from -1 to 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Runs with both instruction sets. Sums of up to `terms` products of numbers up to 1 may differ in their rounding:
/// by 2^-24 of a partial sum, which is at most `terms`, for each term and instruction set.
fn compare(what: &str, elems: usize, terms: usize, run: impl Fn(Isa, &mut [f32])) {
    let (mut baseline, mut best) = (vec![f32::NAN; elems], vec![f32::NAN; elems]);
    run(Isa::BASELINE, &mut baseline);
    run(Isa::detect(), &mut best);
    let limit = 2.0 * (terms * terms) as f32 * 2f32.powi(-24);
    for (i, (a, b)) in baseline.iter().zip(&best).enumerate() {
        assert!((a - b).abs() <= limit, "{what}, element {i}: baseline {a}, best {b}");
    }
}

fn windows() -> [(Shape, Window); 4] {
    let pad = Pad { top: 1, left: 0, bottom: 2, right: 1 };
    [
        (Shape::new(5, 7, 24), Window::square(1, 1, 0)),
        (Shape::new(9, 6, 21), Window::square(3, 1, 1)),
        (Shape::new(8, 11, 9), Window { pad, stride: [2, 1], dilation: [1, 2], ..Window::square(3, 1, 0) }),
        (Shape::new(14, 13, 40), Window::square(5, 2, 2)),
    ]
}

/// The shape of the result of `window` over `x`.
fn slid(x: Shape, window: &Window, channels: usize) -> Shape {
    let Window { size, stride, pad, dilation } = window;
    let along = |n: usize, pads: usize, i: usize| (n + pads - (size[i] - 1) * dilation[i] - 1) / stride[i] + 1;
    Shape::new(along(x.height, pad.top + pad.bottom, 0), along(x.width, pad.left + pad.right, 1), channels)
}

#[test]
fn dense_convolutions() {
    for (seed, (x, window)) in windows().into_iter().enumerate() {
        for k in [1, 16, 37] {
            let y = slid(x, &window, k);
            let conv = Conv2d { activation: Activation::Relu6, ..Conv2d::named("conv", k, window) };
            let terms = window.size[0] * window.size[1] * x.channels;
            let folded = FoldedConv { filter: numbers(k * terms, 1), bias: numbers(k, 2) };
            let (input, residual) = (numbers(x.elems(), seed as u64 + 3), numbers(y.elems(), 7));
            for residual in [None, Some(&residual[..])] {
                compare(&format!("{x} to {y}"), y.elems(), terms + 2, |isa, y_values| {
                    let scratch = &mut vec![f32::NAN; scratch_of(&conv, x, y)];
                    Conv2dFprop::new(isa, &conv, Panels::new(&conv, &folded, x.channels).into(), x, y).run(
                        0..y.pixels(),
                        &input,
                        residual,
                        y_values,
                        scratch,
                    );
                });
            }
        }
    }
}

/// Whole numbers from -8 to 8, whose sums floats add exactly.
fn whole_numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 11) % 17) as f32 - 8.0).collect()
}

/// One pixel of a 1x1 convolution without padding, by a plain loop.
fn pixel_of(folded: &FoldedConv, x: &[f32], residual: &[f32]) -> Vec<f32> {
    let filters = folded.filter.chunks_exact(x.len()).zip(&folded.bias).zip(residual);
    filters
        .map(|((filter, bias), residual)| filter.iter().zip(x).map(|(f, x)| f * x).sum::<f32>() + bias + residual)
        .collect()
}

/// Computes each range of pixels for each count of channels, so that tiles of fewer pixels and panels of fewer channels
/// occur. The values beside the range must stay as they were.
/// beside stays as it was.
#[test]
fn every_range_of_pixels_of_a_dense_convolution() {
    let x = Shape::new(1, 15, 5);
    let input = whole_numbers(x.elems(), 1);
    for (k, isa) in (1..=33).flat_map(|k| [(k, Isa::BASELINE), (k, Isa::detect())]) {
        let (y, conv) = (Shape::new(1, 15, k), Conv2d::named("conv", k, Window::square(1, 1, 0)));
        let folded = FoldedConv { filter: whole_numbers(k * 5, 2), bias: whole_numbers(k, 3) };
        let residual = whole_numbers(y.elems(), 4);
        let of = Conv2dFprop::new(isa, &conv, Panels::new(&conv, &folded, x.channels).into(), x, y);
        let pixel = |at: usize| pixel_of(&folded, &input[at * 5..][..5], &residual[at * k..][..k]);
        let wanted: Vec<f32> = (0..y.pixels()).flat_map(pixel).collect();
        for (start, end) in [0, 2].into_iter().flat_map(|start| (start + 1..=15).map(move |end| (start, end))) {
            let elems = (end - start) * k;
            let mut found = vec![f32::NAN; elems + 1];
            of.run(start..end, &input, Some(&residual), &mut found[..elems], &mut []);
            assert_eq!(found[..elems], wanted[start * k..end * k], "{k} channels of {start}..{end}");
            assert!(found[elems].is_nan(), "{k} channels of {start}..{end}");
        }
    }
}

#[test]
fn depthwise_convolutions() {
    for (seed, (x, window)) in windows().into_iter().enumerate() {
        let (y, taps) = (slid(x, &window, x.channels), window.size[0] * window.size[1]);
        let conv = Conv2d { groups: x.channels, ..Conv2d::named("conv", x.channels, window) };
        let folded = FoldedConv { filter: numbers(x.channels * taps, 1), bias: numbers(x.channels, 2) };
        let input = numbers(x.elems(), seed as u64 + 3);
        compare(&format!("{x} to {y}"), y.elems(), taps + 1, |isa, y_values| {
            Conv2dDepthwise::new(isa, &conv, Taps::new(folded.clone(), x.channels).into(), x, y).run(
                0..y.height,
                &input,
                y_values,
            );
        });
    }
}

#[test]
fn pools() {
    for (x, window) in windows() {
        let (y, taps) = (slid(x, &window, x.channels), window.size[0] * window.size[1]);
        let input = numbers(x.elems(), 5);
        for count_pad in [false, true] {
            let pool = Pool { window, count_pad };
            compare("mean", y.elems(), taps, |isa, out| Pool2d::mean(isa, &pool, x, y).run(0..y.height, &input, out));
            compare("max", y.elems(), 0, |isa, out| Pool2d::max(isa, &pool, x, y).run(0..y.height, &input, out));
        }
        compare("global mean", x.channels, x.pixels(), |isa, out| {
            GlobalAvgPool::new(isa, x).run(0..x.channels, &input, out)
        });
    }
}

#[test]
fn a_nan_in_a_window_is_its_maximum() {
    let (x, window) = (Shape::new(3, 3, 17), Window::square(3, 1, 1));
    let pool = Pool { window, count_pad: false };
    for isa in [Isa::BASELINE, Isa::detect()] {
        for at in [0, 4, 8] {
            let mut input = numbers(x.elems(), 5);
            input[at * 17 + 16] = f32::NAN;
            let mut out = vec![0.0; x.elems()];
            Pool2d::max(isa, &pool, x, x).run(0..x.height, &input, &mut out);
            assert!(out[4 * 17 + 16].is_nan() && !out[4 * 17 + 15].is_nan());
        }
    }
}

#[test]
fn linear_layers_and_additions() {
    for (c, n) in [(1, 1), (16, 4), (100, 33), (77, 6)] {
        let (weight, bias, x) = (numbers(c * n, 1), numbers(n, 2), numbers(c, 3));
        compare("linear", n, c + 1, |isa, y| {
            Linear::new(isa, (weight.clone(), bias.clone()).into()).run(0..n, &x, y);
        });
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            let b = numbers(c, 4);
            compare("add", c, 0, |isa, y| Add::new(isa, activation, Shape::vector(c)).run(0..1, &x, Some(&b), y));
            compare("activation", c, 0, |isa, y| Add::new(isa, activation, Shape::vector(c)).run(0..1, &x, None, y));
        }
    }
}
