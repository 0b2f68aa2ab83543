//! The types of 16 bits that kernels read and write, as tests make and compare them.

use std::fmt;

use half::{bf16, f16};
use trefoil::{Dtype, Element};

use super::tolerance::{BF16, F16, Rounding};

/// A type of 16 bits: f16 or bf16.
pub trait Half: Element + fmt::Debug {
    /// The rounding of the type.
    const ROUNDING: Rounding;
    /// The value that fills results before they are written.
    const POISON: Self;

    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn is_poison(self) -> bool;

    /// Values of the type.
    fn all(values: impl Iterator<Item = f64>) -> Vec<Self> {
        values.map(Self::of).collect()
    }
}

macro_rules! halves {
    ($($of:ty, $rounding:ident);*) => {$(
        impl Half for $of {
            const ROUNDING: Rounding = $rounding;
            const POISON: Self = Self::NAN;

            fn of(value: f64) -> Self {
                Self::from_f32(value as f32) // from_f64 may look at 20 bits of the mantissa alone
            }

            fn value(self) -> f64 {
                self.to_f64()
            }

            fn is_poison(self) -> bool {
                self.to_bits() == Self::POISON.to_bits()
            }
        }
    )*};
}

halves!(f16, F16; bf16, BF16);

/// Both types of 16 bits.
pub const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];
