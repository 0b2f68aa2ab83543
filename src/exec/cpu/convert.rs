//! Floats to bytes of a scale, and back.
//!
//! - Quantize: y[i] = saturate(round(x[i] * (1 / scale))), to the nearest integer, the even one of two; a NaN becomes 0.
//! - Dequantize: y[i] = x[i] * scale.
//! - x: read, pixels without gaps. y: written, disjoint from x; floats with a pitch of their pixels. Any alignment.

use std::ops::Range;

use super::simd::{Isa, vectorized};
use super::target::OutputTarget;
use crate::loops::Lines;

/// A conversion of floats to bytes, ready to run.
#[derive(Debug)]
pub(super) struct Quantize {
    isa: Isa,
    factor: f32,
    range: [f32; 2],
}

impl Quantize {
    /// A conversion to bytes of this scale, signed or not.
    pub fn new(isa: Isa, scale: f32, signed: bool) -> Self {
        Self { isa, factor: 1.0 / scale, range: if signed { [-128.0, 127.0] } else { [0.0, 255.0] } }
    }

    /// Converts some values of an image.
    pub fn run(&self, x: &[f32], y: &mut [u8]) {
        assert_eq!(x.len(), y.len());
        quantize(self.isa, self, x, y);
    }
}

vectorized! {
    fn quantize(of: &Quantize, x: &[f32], y: &mut [u8]) = quantize_body
}

#[inline(always)]
fn quantize_body<const FMA: bool>(of: &Quantize, x: &[f32], y: &mut [u8]) {
    let [low, high] = of.range;
    for (y, x) in y.iter_mut().zip(x) {
        *y = (x * of.factor).clamp(low, high).round_ties_even() as i32 as u8; // a NaN is 0 as an integer
    }
}

/// A conversion of bytes to floats, ready to run.
#[derive(Debug)]
pub(super) struct Dequantize {
    y: OutputTarget,
    /// The float that each byte stands for.
    table: [f32; 256],
}

impl Dequantize {
    /// A conversion from bytes of this scale, signed or not.
    pub fn new(scale: f32, signed: bool, y: impl Into<OutputTarget>) -> Self {
        let value = |byte: u8| if signed { f32::from(byte as i8) } else { f32::from(byte) };
        Self { y: y.into(), table: std::array::from_fn(|byte| value(byte as u8) * scale) }
    }

    /// How the work is shared out: by the pixels of y.
    pub fn lines(&self) -> Lines {
        let OutputTarget { shape, pitch } = self.y;
        Lines { count: shape.pixels(), pitch, together: 1, least: 1, ops: shape.channels }
    }

    /// Converts these pixels of an image.
    pub fn run(&self, pixels: Range<usize>, x: &[u8], y: &mut [f32]) {
        let channels = self.y.shape.channels;
        let x = &x[pixels.start * channels..pixels.end * channels];
        for (y, x) in y.chunks_mut(self.y.pitch).zip(x.chunks(channels)) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = self.table[usize::from(*x)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn halves_go_to_the_even_neighbour_and_what_is_outside_to_the_bound() {
        let x = [0.25, 0.75, 1.25, -0.25, -0.75, 1e30, f32::NEG_INFINITY, f32::NAN];
        let of = |signed| {
            let mut y = [7; 8];
            Quantize::new(Isa::detect(), 0.5, signed).run(&x, &mut y);
            let mut baseline = [9; 8];
            Quantize::new(Isa::BASELINE, 0.5, signed).run(&x, &mut baseline);
            assert_eq!(y, baseline);
            y
        };
        assert_eq!(of(false), [0, 2, 2, 0, 0, 255, 0, 0]);
        assert_eq!(of(true).map(|byte| byte as i8), [0, 2, 2, 0, -2, 127, -128, 0]);
    }

    #[test]
    fn bytes_are_multiples_of_the_scale_and_gaps_stay() {
        let y = OutputTarget { shape: Shape::new(1, 2, 2), pitch: 3 };
        let mut out = [9.0; 5];
        Dequantize::new(0.5, true, y).run(0..2, &[1, 255, 128, 2], &mut out);
        assert_eq!(out, [0.5, -0.5, 9.0, -64.0, 1.0]);
        Dequantize::new(0.5, false, y).run(0..2, &[1, 255, 128, 2], &mut out);
        assert_eq!(out, [0.5, 127.5, 9.0, 64.0, 1.0]);
    }
}
