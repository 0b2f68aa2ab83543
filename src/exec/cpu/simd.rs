//! What the kernels share: sixteen floats that a cache line holds, and one source compiled for two instruction sets.
//!
//! A kernel is one `#[inline(always)]` body, generic over whether a multiply-add is fused. [`vectorized!`] makes a
//! function of it that runs the body as compiled for AVX2 and FMA where the processor has them, else as compiled for
//! the target's baseline. Bodies have no intrinsics: the compiler vectorises loops over [`LANES`] elements.

use bytemuck::{Pod, Zeroable};

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

/// The instruction set that kernels run with. A value that says AVX2 is made by [`Isa::detect`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa {
    avx2: bool,
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2 = false;
        Self { avx2 }
    }

    /// The target's baseline, for tests.
    #[cfg(test)]
    pub const BASELINE: Self = Self { avx2: false };

    /// Whether the processor was seen to have AVX2 and FMA.
    pub fn has_avx2(self) -> bool {
        self.avx2
    }
}

/// Whether the target's baseline has a fused multiply-add.
pub(super) const BASELINE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// a * b + c, with one rounding if `FMA`, else with two.
#[inline(always)]
pub(super) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Defines `$name(isa, arguments...)`, which runs `$body::<FMA>(arguments...)` compiled for `isa`.
macro_rules! vectorized {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        fn $name(isa: $crate::exec::cpu::simd::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if isa.has_avx2() {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) {
                    $body::<true>($($arg),*)
                }
                // SAFETY: `Isa::detect` found both features on this processor.
                return unsafe { avx2($($arg),*) };
            }
            let _ = isa;
            $body::<{ $crate::exec::cpu::simd::BASELINE_FMA }>($($arg),*)
        }
    };
}
pub(super) use vectorized;

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
        }
    }
}

impl Clamp {
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
