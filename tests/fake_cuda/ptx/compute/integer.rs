//! Arithmetic on integers.

use super::Compute;
use crate::ptx::opcode::Opcode;
use crate::ptx::program::{CarryFunction, Function4};
use crate::ptx::types::Type;

/// An integer in the low bits of a slot.
pub trait Int: Copy + Ord {
    const BITS: u32;
    fn of(slot: u64) -> Self;
    fn slot(self) -> u64;
    fn wide(self) -> i128;
    /// The number in its low bits.
    fn low(wide: i128) -> Self;
}

macro_rules! ints {
    ($($int:ty as $unsigned:ty),*) => {$(
        impl Int for $int {
            const BITS: u32 = <$int>::BITS;
            fn of(slot: u64) -> Self {
                slot as $int
            }
            fn slot(self) -> u64 {
                self as $unsigned as u64
            }
            fn wide(self) -> i128 {
                self as i128
            }
            fn low(wide: i128) -> Self {
                wide as $int
            }
        }
    )*};
}

ints!(u16 as u16, u32 as u32, u64 as u64, i16 as u16, i32 as u32, i64 as u64);

/// The function for the host's integer type that corresponds to an instruction's type.
macro_rules! typed {
    ($function:ident, $ty:expr) => {
        match $ty {
            Type::B16 | Type::U16 => Some($function::<u16> as Function4),
            Type::B32 | Type::U32 => Some($function::<u32> as Function4),
            Type::B64 | Type::U64 => Some($function::<u64> as Function4),
            Type::S16 => Some($function::<i16> as Function4),
            Type::S32 => Some($function::<i32> as Function4),
            Type::S64 => Some($function::<i64> as Function4),
            _ => None,
        }
    };
}
pub(super) use typed;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    let Some(ty) = opcode.types.first().copied().filter(|ty| ty.is_integer()) else { return Ok(None) };
    if ["mul", "mad"].contains(&opcode.name) {
        return product(opcode, ty).map(Some);
    }
    if opcode.name == "dp4a" {
        return Ok(Some(dot(opcode)?));
    }
    let name = opcode.name;
    let (function, operands) = match name {
        "add" if ty == Type::S32 && opcode.takes("sat") => (Some(add_saturating as Function4), 2),
        "sub" if ty == Type::S32 && opcode.takes("sat") => (Some(sub_saturating as Function4), 2),
        "add" => (typed!(add, ty), 2),
        "sub" => (typed!(sub, ty), 2),
        "div" => (typed!(div, ty), 2),
        "rem" => (typed!(rem, ty), 2),
        "min" => (typed!(min, ty), 2),
        "max" => (typed!(max, ty), 2),
        "abs" => (typed!(abs, ty), 1),
        "neg" => (typed!(neg, ty), 1),
        "sad" => (typed!(sad, ty), 3),
        _ => return Ok(None),
    };
    let function = function.ok_or("it is not defined for this type")?;
    opcode.finish(1)?;
    Ok(Some(Compute::new(function, ty, &vec![ty; operands])))
}

/// Reads `mul` or `mad`: the low half, the high half, or all of a product.
fn product(opcode: &mut Opcode<'_>, ty: Type) -> Result<Compute, String> {
    let half = opcode.one_of(&[("lo", 0), ("hi", 1), ("wide", 2)]).ok_or("it has none of .lo, .hi and .wide")?;
    let function = match half {
        0 => typed!(mad_low, ty),
        1 => typed!(mad_high, ty),
        _ => typed!(mad_wide, ty),
    };
    let function = function.ok_or("it is not defined for this type")?;
    let to = match (half, ty) {
        (2, Type::U16) => Type::U32,
        (2, Type::S16) => Type::S32,
        (2, Type::U32) => Type::U64,
        (2, Type::S32) => Type::S64,
        (2, _) => return Err("it is not defined for this type".into()),
        _ => ty,
    };
    opcode.finish(1)?;
    Ok(match opcode.name {
        "mad" => Compute::new(function, to, &[ty, ty, to]),
        _ => Compute::new(function, to, &[ty, ty]).with(0),
    })
}

fn dot(opcode: &Opcode<'_>) -> Result<Compute, String> {
    opcode.finish(2)?;
    let to = if opcode.types.contains(&Type::S32) { Type::S32 } else { Type::U32 };
    let signs = opcode.types.iter().zip([1, 2]).filter(|(ty, _)| ty.is_signed()).map(|(_, bit)| bit).sum();
    Ok(Compute::new(dot_bytes, to, &[Type::B32, Type::B32, to]).with(signs))
}

fn add<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    T::of(a.wrapping_add(b)).slot()
}

fn sub<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    T::of(a.wrapping_sub(b)).slot()
}

fn add_saturating(a: u64, b: u64, _: u64, _: u64) -> u64 {
    i32::of(a).saturating_add(i32::of(b)).slot()
}

fn sub_saturating(a: u64, b: u64, _: u64, _: u64) -> u64 {
    i32::of(a).saturating_sub(i32::of(b)).slot()
}

/// The quotient; division by zero is not defined, and gives the result of GPUs.
fn div<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    match T::of(b).wide() {
        0 => T::low(-1).slot(),
        by => T::low(T::of(a).wide() / by).slot(),
    }
}

fn rem<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    match T::of(b).wide() {
        0 => T::of(a).slot(),
        by => T::low(T::of(a).wide() % by).slot(),
    }
}

fn min<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    T::of(a).min(T::of(b)).slot()
}

fn max<T: Int>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    T::of(a).max(T::of(b)).slot()
}

fn abs<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    T::low(T::of(a).wide().abs()).slot()
}

fn neg<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    T::of(a.wrapping_neg()).slot()
}

fn sad<T: Int>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    T::low((T::of(a).wide() - T::of(b).wide()).abs() + T::of(c).wide()).slot()
}

fn mad_low<T: Int>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    T::of(a.wrapping_mul(b).wrapping_add(c)).slot()
}

fn mad_high<T: Int>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    let high = high::<T>(a, b);
    T::of(high.wrapping_add(c)).slot()
}

fn mad_wide<T: Int>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    let sum = ((T::of(a).wide() * T::of(b).wide()) as u64).wrapping_add(c);
    sum & (u64::MAX >> (64 - (2 * T::BITS).min(64)))
}

/// The high half of a product. That of two u64 does not fit in an i128, but its bits do.
fn high<T: Int>(a: u64, b: u64) -> u64 {
    T::low(T::of(a).wide().wrapping_mul(T::of(b).wide()) >> T::BITS).slot()
}

/// The sum of four products of bytes; bits 0 and 1 of `signs` say whether the bytes of `a` and of `b` are signed.
fn dot_bytes(a: u64, b: u64, c: u64, signs: u64) -> u64 {
    let byte = |word: u64, index: u32, signed: bool| {
        let byte = (word >> (8 * index)) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    let products = (0..4).map(|i| byte(a, i, signs & 1 != 0) * byte(b, i, signs & 2 != 0));
    u64::from((products.sum::<i64>() as u32).wrapping_add(c as u32))
}

/// The function by which `red`, `atom` and `redux` combine two integers.
pub fn combine(name: &str, ty: Type) -> Option<Function4> {
    match name {
        "add" => typed!(add, ty),
        "min" => typed!(min, ty),
        "max" => typed!(max, ty),
        _ => None,
    }
}

/// A function with the carry flag, and its number of operands.
pub type WithCarry = (CarryFunction, usize);

/// The function of an instruction that reads or writes the carry flag.
pub fn carry(opcode: &mut Opcode<'_>, ty: Type) -> Option<WithCarry> {
    let is_wide = match ty {
        Type::B32 | Type::U32 | Type::S32 => false,
        Type::B64 | Type::U64 | Type::S64 => true,
        _ => return None,
    };
    Some(match (opcode.name, is_wide) {
        ("add" | "addc", false) => (add_carry::<u32>, 2),
        ("add" | "addc", true) => (add_carry::<u64>, 2),
        ("sub" | "subc", false) => (sub_borrow::<u32>, 2),
        ("sub" | "subc", true) => (sub_borrow::<u64>, 2),
        ("mad" | "madc", _) => (mad_carry(opcode, ty)?, 3),
        _ => return None,
    })
}

fn mad_carry(opcode: &mut Opcode<'_>, ty: Type) -> Option<CarryFunction> {
    match (opcode.one_of(&[("lo", false), ("hi", true)])?, ty) {
        (false, Type::U32 | Type::S32) => Some(mad_low_carry::<u32>),
        (false, _) => Some(mad_low_carry::<u64>),
        (true, Type::U32) => Some(mad_high_carry::<u32>),
        (true, Type::S32) => Some(mad_high_carry::<i32>),
        (true, Type::U64) => Some(mad_high_carry::<u64>),
        (true, _) => Some(mad_high_carry::<i64>),
    }
}

fn add_carry<T: Int>(a: u64, b: u64, _: u64, carry: u64) -> (u64, u64) {
    let sum = T::of(a).wide() + T::of(b).wide() + i128::from(carry);
    (T::low(sum).slot(), (sum >> T::BITS) as u64 & 1)
}

fn sub_borrow<T: Int>(a: u64, b: u64, _: u64, borrow: u64) -> (u64, u64) {
    let difference = T::of(a).wide() - T::of(b).wide() - i128::from(borrow);
    (T::low(difference).slot(), u64::from(difference < 0))
}

fn mad_low_carry<T: Int>(a: u64, b: u64, c: u64, carry: u64) -> (u64, u64) {
    add_carry::<T>(T::of(a.wrapping_mul(b)).slot(), c, 0, carry)
}

fn mad_high_carry<T: Int>(a: u64, b: u64, c: u64, carry: u64) -> (u64, u64) {
    let high = high::<T>(a, b);
    if T::BITS == 32 { add_carry::<u32>(high, c, 0, carry) } else { add_carry::<u64>(high, c, 0, carry) }
}
