//! Functions of numbers, over blocks of numbers.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::column::{Block, Column};
use crate::graph::{Binary, Element, Unary, e4m3};
use crate::loops::scalar::{Convert, integers, typed};
use crate::loops::{Isa, vectorized};
use crate::tensor::Dtype;

#[inline(always)]
fn map<T: Copy, U>(from: &[T], to: &mut [U], of: impl Fn(T) -> U) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = of(x));
}

#[inline(always)]
fn zip<T: Copy, U>([a, b]: [&[T]; 2], to: &mut [U], of: impl Fn(T, T) -> U) {
    to.iter_mut().zip(a).zip(b).for_each(|((to, &a), &b)| *to = of(a, b));
}

/// An operand of a function: a value for each lane, or one for all.
#[derive(Clone, Copy)]
enum Values<'v, T> {
    Each(&'v [T]),
    Same(T),
}

#[inline(always)]
fn zip_values<T: Copy, U>(of: [Values<'_, T>; 2], to: &mut [U], function: impl Fn(T, T) -> U) {
    match of {
        [Values::Each(a), Values::Each(b)] => zip([a, b], to, function),
        [Values::Each(a), Values::Same(b)] => map(a, to, |a| function(a, b)),
        [Values::Same(a), Values::Each(b)] => map(b, to, |b| function(a, b)),
        [Values::Same(a), Values::Same(b)] => to[0] = function(a, b),
    }
}

/// Converts the first `n` elements from the first type to the second.
pub(super) fn cast([from, to]: [Dtype; 2], x: Block<'_>, y: &mut Column, n: usize) {
    match [from, to] {
        [Dtype::F16, Dtype::F32] => x.elems::<f16>()[..n].convert_to_f32_slice(&mut y.elems_mut()[..n]),
        [Dtype::F32, Dtype::F16] => y.elems_mut::<f16>()[..n].convert_from_f32_slice(&x.elems()[..n]),
        [_, Dtype::Bool] => typed!(from, T => {
            map(&x.elems::<T>()[..n], y.elems_mut(), |x| u8::from(Convert::<f64>::convert(x) != 0.0))
        }),
        _ => typed!(from, T => typed!(to, U => {
            map(&x.elems::<T>()[..n], y.elems_mut::<U>(), |x| x.convert())
        })),
    }
}

macro_rules! float_functions {
    ([$unary:ident, $unary_body:ident], [$binary:ident, $binary_body:ident], $T:ident, $erf:path) => {
        vectorized! { fn $unary(op: Unary, x: &[$T], y: &mut Column) = $unary_body }
        vectorized! { fn $binary(op: Binary, of: [Values<'_, $T>; 2], y: &mut Column) = $binary_body }

        #[inline(always)]
        fn $unary_body<const FMA: bool>(op: Unary, x: &[$T], y: &mut Column) {
            let test = |of: fn($T) -> bool, y: &mut Column| map(x, y.elems_mut(), |x| u8::from(of(x)));
            match op {
                Unary::IsNan => return test($T::is_nan, y),
                Unary::IsInf => return test($T::is_infinite, y),
                _ => {}
            }
            let y = y.elems_mut();
            match op {
                Unary::Neg => map(x, y, |x| -x),
                Unary::Abs => map(x, y, $T::abs),
                Unary::Sign => map(x, y, |x| if x.is_nan() { x } else { ((x > 0.0) as i8 - (x < 0.0) as i8).into() }),
                Unary::Floor => map(x, y, $T::floor),
                Unary::Ceil => map(x, y, $T::ceil),
                Unary::Round => map(x, y, $T::round_ties_even),
                Unary::Sqrt => map(x, y, $T::sqrt),
                Unary::Exp => map(x, y, $T::exp),
                Unary::Log => map(x, y, $T::ln),
                Unary::Sin => map(x, y, $T::sin),
                Unary::Cos => map(x, y, $T::cos),
                Unary::Tan => map(x, y, $T::tan),
                Unary::Asin => map(x, y, $T::asin),
                Unary::Acos => map(x, y, $T::acos),
                Unary::Atan => map(x, y, $T::atan),
                Unary::Sinh => map(x, y, $T::sinh),
                Unary::Cosh => map(x, y, $T::cosh),
                Unary::Tanh => map(x, y, $T::tanh),
                Unary::Asinh => map(x, y, |x| libm::asinh(x.into()) as $T),
                Unary::Acosh => map(x, y, |x| if x < 1.0 { $T::NAN } else { libm::acosh(x.into()) as $T }),
                Unary::Atanh => map(x, y, |x| libm::atanh(x.into()) as $T),
                Unary::Erf => map(x, y, $erf),
                Unary::Not | Unary::IsNan | Unary::IsInf | Unary::ToE4m3 | Unary::OfE4m3 => {
                    unreachable!("{op:?} of floats")
                }
            }
        }

        #[inline(always)]
        fn $binary_body<const FMA: bool>(op: Binary, of: [Values<'_, $T>; 2], y: &mut Column) {
            let test = |test: fn(&$T, &$T) -> bool, y: &mut Column| {
                zip_values(of, y.elems_mut(), |a, b| u8::from(test(&a, &b)));
            };
            match op {
                Binary::Equal => return test($T::eq, y),
                Binary::Less => return test($T::lt, y),
                Binary::LessEqual => return test($T::le, y),
                _ => {}
            }
            let y = y.elems_mut();
            match op {
                Binary::Add => zip_values(of, y, |a, b| a + b),
                Binary::Sub => zip_values(of, y, |a, b| a - b),
                Binary::Mul => zip_values(of, y, |a, b| a * b),
                Binary::Div => zip_values(of, y, |a, b| a / b),
                Binary::Rem => zip_values(of, y, |a, b| a % b),
                Binary::Mod => zip_values(of, y, |a, b| {
                    let rest = a % b;
                    if rest == 0.0 {
                        (0.0 as $T).copysign(b)
                    } else if (rest < 0.0) == (b < 0.0) {
                        rest
                    } else {
                        rest + b
                    }
                }),
                Binary::Pow => zip_values(of, y, $T::powf),
                Binary::Min => zip_values(of, y, |a, b| if a < b || a.is_nan() { a } else { b }),
                Binary::Max => zip_values(of, y, |a, b| if a > b || a.is_nan() { a } else { b }),
                other => unreachable!("{other:?} of floats"),
            }
        }
    };
}

float_functions!([unary_f32, unary_f32_body], [binary_f32, binary_f32_body], f32, libm::erff);
float_functions!([unary_f64, unary_f64_body], [binary_f64, binary_f64_body], f64, libm::erf);

/// The functions of an integer type that unary and binary operations need.
trait Int: Copy + Ord + Eq + Sized {
    const ZERO: Self;
    const ONE: Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn is_odd(self) -> bool;
    fn half(self) -> Self;
    fn shift_left(self, by: Self) -> Self;
    fn shift_right(self, by: Self) -> Self;
}

macro_rules! ints {
    ($($T:ident: $abs:expr),*) => {$(
        impl Int for $T {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn neg(self) -> Self { self.wrapping_neg() }
            fn abs(self) -> Self { $abs(self) }
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn div(self, other: Self) -> Self { if other == 0 { 0 } else { self.wrapping_div(other) } }
            fn rem(self, other: Self) -> Self { if other == 0 { 0 } else { self.wrapping_rem(other) } }
            fn is_odd(self) -> bool { self & 1 == 1 }
            fn half(self) -> Self { self >> 1 }
            fn shift_left(self, by: Self) -> Self { u32::try_from(by).ok().and_then(|by| self.checked_shl(by)).unwrap_or(0) }
            fn shift_right(self, by: Self) -> Self { u32::try_from(by).ok().and_then(|by| self.checked_shr(by)).unwrap_or(0) }
        }
    )*};
}

ints! {
    u8: |x| x, u16: |x| x, u32: |x| x, u64: |x| x,
    i8: i8::wrapping_abs, i16: i16::wrapping_abs, i32: i32::wrapping_abs, i64: i64::wrapping_abs
}

/// The remainder of a / b rounded down.
fn modulo<T: Int>(a: T, b: T) -> T {
    let rest = a.rem(b);
    if rest == T::ZERO || (rest < T::ZERO) == (b < T::ZERO) { rest } else { rest.add(b) }
}

/// a to the power of b. For negative b it is 1 / a^-b, truncated.
fn power<T: Int>(a: T, b: T) -> T {
    if b < T::ZERO {
        return if a == T::ONE {
            a
        } else if a == T::ONE.neg() {
            if b.is_odd() { a } else { T::ONE }
        } else {
            T::ZERO
        };
    }
    let (mut result, mut square, mut left) = (T::ONE, a, b);
    while left > T::ZERO {
        if left.is_odd() {
            result = result.mul(square);
        }
        (square, left) = (square.mul(square), left.half());
    }
    result
}

fn unary_int<T: Int + std::ops::Not<Output = T>>(op: Unary, x: &[T], y: &mut [T]) {
    let sign = |x: T| {
        if x > T::ZERO {
            T::ONE
        } else if x < T::ZERO {
            T::ONE.neg()
        } else {
            T::ZERO
        }
    };
    match op {
        Unary::Neg => map(x, y, T::neg),
        Unary::Abs => map(x, y, T::abs),
        Unary::Sign => map(x, y, sign),
        Unary::Not => map(x, y, |x| !x),
        other => unreachable!("{other:?} of integers"),
    }
}

trait Bits:
    Copy + std::ops::BitAnd<Output = Self> + std::ops::BitOr<Output = Self> + std::ops::BitXor<Output = Self>
{
}
impl<T: Copy + std::ops::BitAnd<Output = T> + std::ops::BitOr<Output = T> + std::ops::BitXor<Output = T>> Bits for T {}

fn bitwise<T: Bits>(op: Binary, of: [&[T]; 2], y: &mut [T]) {
    match op {
        Binary::And => zip(of, y, |a, b| a & b),
        Binary::Or => zip(of, y, |a, b| a | b),
        Binary::Xor => zip(of, y, |a, b| a ^ b),
        other => unreachable!("{other:?} of bits"),
    }
}

fn binary_int<T: Int + Bits>(op: Binary, of: [&[T]; 2], y: &mut [T]) {
    match op {
        Binary::Add => zip(of, y, T::add),
        Binary::Sub => zip(of, y, T::sub),
        Binary::Mul => zip(of, y, T::mul),
        Binary::Div => zip(of, y, T::div),
        Binary::Rem => zip(of, y, T::rem),
        Binary::Mod => zip(of, y, modulo),
        Binary::Pow => zip(of, y, power),
        Binary::Min => zip(of, y, T::min),
        Binary::Max => zip(of, y, T::max),
        Binary::ShiftLeft => zip(of, y, T::shift_left),
        Binary::ShiftRight => zip(of, y, T::shift_right),
        bits => bitwise(bits, of, y),
    }
}

fn compare<T: Copy + PartialOrd>(op: Binary, of: [&[T]; 2], y: &mut [u8]) {
    match op {
        Binary::Equal => zip(of, y, |a, b| u8::from(a == b)),
        Binary::Less => zip(of, y, |a, b| u8::from(a < b)),
        Binary::LessEqual => zip(of, y, |a, b| u8::from(a <= b)),
        other => unreachable!("{other:?} as a comparison"),
    }
}

/// Computes a function of the first `n` elements, which have type `dtype`.
pub(super) fn unary(op: Unary, dtype: Dtype, x: Block<'_>, y: &mut Column, n: usize) {
    match dtype {
        Dtype::F32 if op == Unary::ToE4m3 => map(&x.elems::<f32>()[..n], y.elems_mut(), e4m3::encode),
        Dtype::U8 if op == Unary::OfE4m3 => map(&x.elems::<u8>()[..n], y.elems_mut(), e4m3::decode),
        Dtype::F32 => unary_f32(Isa::detect(), op, &x.elems()[..n], y),
        Dtype::F64 => unary_f64(Isa::detect(), op, &x.elems()[..n], y),
        Dtype::Bool => map(&x.elems::<u8>()[..n], y.elems_mut(), |x| x ^ 1), // the only function of bools
        _ => integers!(dtype, T => unary_int::<T>(op, &x.elems()[..n], y.elems_mut())),
    }
}

/// Computes a function of the first `n` elements of two blocks, which have type `dtype`. A block that does not vary has
/// its first element in all of them.
pub(super) fn binary(op: Binary, dtype: Dtype, [a, b]: [Block<'_>; 2], varies: [bool; 2], y: &mut Column, n: usize) {
    fn both<T: Element>([a, b]: [Block<'_>; 2], n: usize) -> [&[T]; 2] {
        [&a.elems()[..n], &b.elems()[..n]]
    }
    fn values<'v, T: Element>(of: [Block<'v>; 2], varies: [bool; 2], n: usize) -> [Values<'v, T>; 2] {
        let value = |(block, varies): (Block<'v>, bool)| match varies {
            true => Values::Each(&block.elems()[..n]),
            false => Values::Same(block.elems()[0]),
        };
        [(of[0], varies[0]), (of[1], varies[1])].map(value)
    }
    match (dtype, op) {
        (Dtype::F32, _) => binary_f32(Isa::detect(), op, values([a, b], varies, n), y),
        (Dtype::F64, _) => binary_f64(Isa::detect(), op, values([a, b], varies, n), y),
        (Dtype::Bool, Binary::Equal) => compare::<u8>(op, both([a, b], n), y.elems_mut()),
        (Dtype::Bool, _) => bitwise::<u8>(op, both([a, b], n), y.elems_mut()),
        (_, Binary::Equal | Binary::Less | Binary::LessEqual) => {
            integers!(dtype, T => compare::<T>(op, both([a, b], n), y.elems_mut()))
        }
        _ => integers!(dtype, T => binary_int::<T>(op, both([a, b], n), y.elems_mut())),
    }
}

/// For the first `n` elements: that of the first block where the condition holds, else that of the second. An element
/// has `bytes` bytes.
pub(super) fn select(bytes: usize, condition: Block<'_>, [a, b]: [Block<'_>; 2], y: &mut Column, n: usize) {
    fn of<T: Element>(condition: &[u8], [a, b]: [Block<'_>; 2], y: &mut Column) {
        choose::<T>(Isa::detect(), condition, [a.elems(), b.elems()], y.elems_mut());
    }
    let condition = &condition.elems()[..n];
    match bytes {
        1 => of::<u8>(condition, [a, b], y),
        2 => of::<u16>(condition, [a, b], y),
        4 => of::<u32>(condition, [a, b], y),
        _ => of::<u64>(condition, [a, b], y),
    }
}

vectorized! { fn choose<T: Element>(condition: &[u8], of: [&[T]; 2], to: &mut [T]) = choose_body }

#[inline(always)]
fn choose_body<T: Element, const FMA: bool>(condition: &[u8], [a, b]: [&[T]; 2], to: &mut [T]) {
    let both = a.iter().zip(b).zip(condition);
    to.iter_mut().zip(both).for_each(|(to, ((&a, &b), &c))| *to = if c != 0 { a } else { b });
}
