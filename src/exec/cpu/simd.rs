//! What the kernels share: the sixteen floats of a cache line, and activations as ranges. Kernels are [`vectorized!`]:
//! the compiler vectorises loops over [`LANES`] elements. Only the tiles of `conv2d_fprop` have intrinsics.

use bytemuck::{Pod, Zeroable};

pub(super) use crate::loops::{Isa, vectorized};
use crate::tensor::Activation;

/// Floats that a kernel handles at once.
pub(super) const LANES: usize = 16;

/// Sixteen floats on a cache line of their own.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; LANES]);

impl Lanes {
    pub const ZERO: Self = Self([0.0; LANES]);
}

/// a * b + c, with one rounding if `FMA`, else with two.
#[inline(always)]
pub(super) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// An activation as the range that it clamps to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clamp {
    low: f32,
    high: f32,
}

impl From<Activation> for Clamp {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::None => Self { low: f32::NEG_INFINITY, high: f32::INFINITY },
            Activation::Relu => Self { low: 0.0, high: f32::INFINITY },
            Activation::Relu6 => Self { low: 0.0, high: 6.0 },
            Activation::Silu | Activation::Gelu => unreachable!("the planner has no kernel of a CPU for it"),
        }
    }
}

impl Clamp {
    /// The least and the greatest number of the range.
    pub const fn range(self) -> [f32; 2] {
        [self.low, self.high]
    }

    /// `x` within the range; a NaN stays one.
    #[inline(always)]
    pub fn apply(self, x: f32) -> f32 {
        let x = if x < self.low { self.low } else { x };
        if x > self.high { self.high } else { x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamping_is_the_activation_and_keeps_nan() {
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            let clamp = Clamp::from(activation);
            for x in [-f32::INFINITY, -7.5, -0.0, 0.0, 3.25, 6.0, 6.5, f32::INFINITY] {
                assert_eq!(clamp.apply(x), activation.apply(x), "{activation} of {x}");
            }
            assert!(clamp.apply(f32::NAN).is_nan());
        }
    }
}
