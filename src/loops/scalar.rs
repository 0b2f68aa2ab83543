//! Numbers in the types of elements.

use half::{bf16, f16};

use crate::graph::{Element, Number};
use crate::tensor::Dtype;

/// Runs `$body` with `$T` as the host's type of integers of `$dtype`.
macro_rules! integers {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::Dtype::U8 => {
                type $T = u8;
                $body
            }
            $crate::tensor::Dtype::U16 => {
                type $T = u16;
                $body
            }
            $crate::tensor::Dtype::U32 => {
                type $T = u32;
                $body
            }
            $crate::tensor::Dtype::U64 => {
                type $T = u64;
                $body
            }
            $crate::tensor::Dtype::I8 => {
                type $T = i8;
                $body
            }
            $crate::tensor::Dtype::I16 => {
                type $T = i16;
                $body
            }
            $crate::tensor::Dtype::I32 => {
                type $T = i32;
                $body
            }
            $crate::tensor::Dtype::I64 => {
                type $T = i64;
                $body
            }
            other => unreachable!("{other} is no type of integers"),
        }
    };
}
pub(super) use integers;

/// Runs `$body` with `$T` as the host's type of elements of `$dtype`; bools are `u8`.
macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::Dtype::Bool => {
                type $T = u8;
                $body
            }
            integer @ ($crate::tensor::Dtype::U8
            | $crate::tensor::Dtype::U16
            | $crate::tensor::Dtype::U32
            | $crate::tensor::Dtype::U64
            | $crate::tensor::Dtype::I8
            | $crate::tensor::Dtype::I16
            | $crate::tensor::Dtype::I32
            | $crate::tensor::Dtype::I64) => $crate::loops::scalar::integers!(integer, $T => $body),
            $crate::tensor::Dtype::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::tensor::Dtype::Bf16 => {
                type $T = half::bf16;
                $body
            }
            $crate::tensor::Dtype::F32 => {
                type $T = f32;
                $body
            }
            $crate::tensor::Dtype::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}
pub(super) use typed;

/// The conversion of a number as defined by [`Expr::Cast`](crate::graph::Expr::Cast).
pub(super) trait Convert<T> {
    fn convert(self) -> T;
}

macro_rules! conversions {
    ($($from:ty),*) => {$(
        conversions!(@ $from => u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
        impl Convert<f16> for $from {
            fn convert(self) -> f16 {
                f16::from_f32(to_odd(self as f64))
            }
        }
        impl Convert<bf16> for $from {
            fn convert(self) -> bf16 {
                bf16::from_f32(to_odd(self as f64))
            }
        }
        impl Convert<$from> for f16 {
            fn convert(self) -> $from {
                self.to_f32() as $from
            }
        }
        impl Convert<$from> for bf16 {
            fn convert(self) -> $from {
                self.to_f32() as $from
            }
        }
    )*};
    (@ $from:ty => $($to:ty),*) => {$(
        impl Convert<$to> for $from {
            fn convert(self) -> $to {
                self as $to
            }
        }
    )*};
}

conversions!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

macro_rules! halves {
    ($($from:ty => $to:ty),*) => {$(
        impl Convert<$to> for $from {
            fn convert(self) -> $to {
                <$to>::from_f32(self.to_f32())
            }
        }
    )*};
}

halves!(f16 => f16, f16 => bf16, bf16 => f16, bf16 => bf16);

/// x rounded to odd: x itself if it is an f32, else the neighbouring f32 whose last bit is 1. Rounding this again to a
/// shorter type gives the same as rounding x at once.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let exact = f64::from(near);
    if exact == x || !near.is_finite() || near.to_bits() & 1 == 1 {
        return near;
    }
    match (exact < x) == (x > 0.0) {
        true => f32::from_bits(near.to_bits() + 1),
        false => f32::from_bits(near.to_bits().wrapping_sub(1)),
    }
}

/// The bits of a number as an element of this type, the lowest first.
pub(crate) fn bits(dtype: Dtype, number: Number) -> u64 {
    fn of<T: Element>(elem: T) -> u64 {
        let mut word = [0; 8];
        word[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&elem));
        u64::from_le_bytes(word)
    }
    match (dtype, number) {
        (Dtype::Bool, Number::Int(x)) => u64::from(x != 0),
        (Dtype::Bool, Number::Float(x)) => u64::from(x != 0.0),
        (Dtype::U64, Number::Int(x)) => x as u64,
        (_, Number::Int(x)) => typed!(dtype, T => of::<T>((x as i64).convert())),
        (_, Number::Float(x)) => typed!(dtype, T => of::<T>(x.convert())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_is_rounded_to_a_half_once() {
        let tie = 1.0 + 2_f64.powi(-11); // between 1 and the next half
        let above = tie + 2_f64.powi(-40); // an f32 cannot hold it
        let convert = |x: f64| -> f16 { x.convert() };
        assert_eq!(
            [tie, above, -above].map(convert).map(f64::from),
            [1.0, 1.0 + 2_f64.powi(-10), -1.0 - 2_f64.powi(-10)]
        );
        assert_eq!(
            [65519.0, 65520.0, f64::INFINITY].map(convert).map(f64::from),
            [65504.0, f64::INFINITY, f64::INFINITY]
        );
        assert!(convert(f64::NAN).is_nan() && convert(1e-300).to_f64() == 0.0);
        let tie = 1.0 + 2_f64.powi(-8);
        let brain: bf16 = (tie + 2_f64.powi(-50)).convert();
        assert_eq!(brain.to_f64(), 1.0 + 2_f64.powi(-7));
    }

    #[test]
    fn constants_have_the_bits_of_their_type() {
        assert_eq!(bits(Dtype::I8, Number::Int(-1)), 0xff);
        assert_eq!(bits(Dtype::U64, Number::Int((1 << 64) - 1)), u64::MAX);
        assert_eq!(bits(Dtype::F16, Number::Float(1.0)), 0x3c00);
        assert_eq!(bits(Dtype::F32, Number::Float(-0.0)), 0x8000_0000);
        assert_eq!(bits(Dtype::F64, Number::Float(1.0)), 1_f64.to_bits());
    }
}
