//! One source that is compiled for two instruction sets.
//!
//! A kernel is one `#[inline(always)]` body, generic over whether a multiply-add is fused. [`vectorized!`] makes a
//! function of it. The function runs the body as compiled for AVX2 and FMA if the processor has them, and otherwise as
//! compiled for the target's baseline.

/// The instruction set that kernels use. Only [`Isa::detect`] makes a value with AVX2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa {
    avx2: bool,
}

impl Isa {
    /// The best instruction set of this processor.
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

    /// Whether the processor has AVX2 and FMA.
    pub fn has_avx2(self) -> bool {
        self.avx2
    }
}

/// Whether the target's baseline has a fused multiply-add.
pub(crate) const BASELINE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Defines `$name(isa, arguments...)`. It runs `$body::<FMA>(arguments...)`, or `$body::<T, FMA>(arguments...)` for a
/// function that is generic over a type, compiled for `isa`.
macro_rules! vectorized {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident$(<$T:ident: $Bound:ident>)?($($arg:ident: $ty:ty),* $(,)?) = $body:ident
    ) => {
        $(#[$meta])*
        $vis fn $name$(<$T: $Bound>)?(isa: $crate::loops::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if isa.has_avx2() {
                #[target_feature(enable = "avx2,fma")]
                fn avx2$(<$T: $Bound>)?($($arg: $ty),*) {
                    $body::<$($T,)? true>($($arg),*)
                }
                // SAFETY: `Isa::detect` found both features on this processor.
                return unsafe { avx2($($arg),*) };
            }
            let _ = isa;
            $body::<$($T,)? { $crate::loops::BASELINE_FMA }>($($arg),*)
        }
    };
}
pub(crate) use vectorized;
