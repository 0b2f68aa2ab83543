//! Logic, shifts, bit fields and selection.

use super::Compute;
use super::integer::{Int, typed};
use crate::ptx::opcode::Opcode;
use crate::ptx::program::Function4;
use crate::ptx::types::Type;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    let Some(&ty) = opcode.types.first() else { return Ok(None) };
    let compute = match ty {
        Type::Pred => of_predicates(opcode.name),
        _ => logic(opcode.name, ty).or_else(|| counts(opcode, ty)).or_else(|| fields(opcode, ty)),
    };
    let Some(compute) = compute.or_else(|| choice(opcode, ty)) else { return Ok(None) };
    opcode.finish(if opcode.name == "slct" { 2 } else { 1 })?;
    Ok(Some(compute))
}

fn of_predicates(name: &str) -> Option<Compute> {
    let function: Function4 = match name {
        "and" => |a, b, _, _| u64::from(a != 0 && b != 0),
        "or" => |a, b, _, _| u64::from(a != 0 || b != 0),
        "xor" => |a, b, _, _| u64::from((a != 0) != (b != 0)),
        "not" => |a, _, _, _| u64::from(a == 0),
        _ => return None,
    };
    let operands = if name == "not" { 1 } else { 2 };
    Some(Compute::new(function, Type::Pred, &vec![Type::Pred; operands]))
}

fn logic(name: &str, ty: Type) -> Option<Compute> {
    if !ty.is_bits() || ty == Type::B8 {
        return None;
    }
    let (function, operands): (Function4, usize) = match name {
        "and" => (|a, b, _, _| a & b, 2),
        "or" => (|a, b, _, _| a | b, 2),
        "xor" => (|a, b, _, _| a ^ b, 2),
        "not" => (typed!(not, ty)?, 1),
        "cnot" => (typed!(cnot, ty)?, 1),
        "lop3" if ty == Type::B32 => (lop3, 4),
        "prmt" if ty == Type::B32 => (permute, 3),
        _ => return None,
    };
    Some(Compute::new(function, ty, &vec![ty; operands]))
}

fn counts(opcode: &mut Opcode<'_>, ty: Type) -> Option<Compute> {
    let name = opcode.name;
    let function = match name {
        "popc" => typed!(popc, ty),
        "clz" => typed!(clz, ty),
        "bfind" if opcode.takes("shiftamt") => typed!(find_shift, ty),
        "bfind" => typed!(find, ty),
        "brev" => return Some(Compute::new(typed!(reverse, ty)?, ty, &[ty])),
        _ => None,
    };
    Some(Compute::new(function?, Type::U32, &[ty]))
}

fn fields(opcode: &mut Opcode<'_>, ty: Type) -> Option<Compute> {
    const AT: Type = Type::U32;
    let is_shf = opcode.name == "shf";
    let (is_left, is_right) = (is_shf && opcode.takes("l"), is_shf && opcode.takes("r"));
    Some(match opcode.name {
        "shl" => Compute::new(typed!(shl, ty)?, ty, &[ty, AT]),
        "shr" => Compute::new(typed!(shr, ty)?, ty, &[ty, AT]),
        "bfe" if ty.is_integer() => Compute::new(typed!(extract, ty)?, ty, &[ty, AT, AT]),
        "bfi" => Compute::new(typed!(insert, ty)?, ty, &[ty, ty, AT, AT]),
        "shf" if ty == Type::B32 && is_left != is_right => {
            let function = if is_left { funnel_left } else { funnel_right };
            let most = opcode.one_of(&[("wrap", 31), ("clamp", 32)])?;
            Compute::new(function, ty, &[ty, ty, AT]).with(most)
        }
        _ => return None,
    })
}

fn choice(opcode: &Opcode<'_>, ty: Type) -> Option<Compute> {
    match (opcode.name, &opcode.types[..]) {
        ("selp", _) if ty.bytes() > 1 => {
            let function: Function4 = |a, b, which, _| if which != 0 { a } else { b };
            Some(Compute::new(function, ty, &[ty, ty, Type::Pred]))
        }
        ("slct", [_, Type::S32]) => {
            let function: Function4 = |a, b, sign, _| if sign as i32 >= 0 { a } else { b };
            Some(Compute::new(function, ty, &[ty, ty, Type::S32]))
        }
        ("slct", [_, Type::F32]) => {
            let function: Function4 = |a, b, sign, _| if f32::from_bits(sign as u32) >= 0.0 { a } else { b };
            Some(Compute::new(function, ty, &[ty, ty, Type::F32]))
        }
        _ => None,
    }
}

fn not<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    T::of(!a).slot()
}

fn cnot<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::from(T::of(a).slot() == 0)
}

/// Each bit of the result is the bit of `table` whose number the bits of a, b and c form.
fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let bit = |word: u64, index: u64| word >> index & 1;
    (0..32).map(|i| bit(table, bit(a, i) << 2 | bit(b, i) << 1 | bit(c, i)) << i).sum()
}

/// Each byte of the result is one of the eight bytes of a and b, or filled with that byte's sign, by four bits of
/// `which`.
fn permute(a: u64, b: u64, which: u64, _: u64) -> u64 {
    let bytes = (b << 32 | a & 0xffff_ffff).to_le_bytes();
    let byte = |index: u64| {
        let selector = (which >> (4 * index)) as usize & 15;
        let byte = bytes[selector & 7];
        if selector & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    (0..4).map(|index| u64::from(byte(index)) << (8 * index)).sum()
}

fn popc<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::from(T::of(a).slot().count_ones())
}

fn clz<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    u64::from(T::of(a).slot().leading_zeros() - (64 - T::BITS))
}

/// The position of the highest bit that differs from the sign, or all bits set if there is none.
fn find<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    let value = T::of(a).wide();
    let bits = if value < 0 { !value } else { value };
    u64::from(127_u32.wrapping_sub(bits.leading_zeros()))
}

/// The shift that would make the bit of `find` the highest bit of the type, or all bits set if there is none.
fn find_shift<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    match find::<T>(a, 0, 0, 0) as u32 {
        u32::MAX => u64::from(u32::MAX),
        place => u64::from(T::BITS - 1 - place),
    }
}

fn reverse<T: Int>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    T::of(a).slot().reverse_bits() >> (64 - T::BITS)
}

fn shl<T: Int>(a: u64, by: u64, _: u64, _: u64) -> u64 {
    let by = by as u32;
    if by < T::BITS { T::of(a << by).slot() } else { 0 }
}

fn shr<T: Int>(a: u64, by: u64, _: u64, _: u64) -> u64 {
    T::low(T::of(a).wide() >> (by as u32).min(T::BITS)).slot()
}

/// The field of `len` bits from `start`; for a signed type it is sign-extended, also past the end of the number.
fn extract<T: Int>(a: u64, start: u64, len: u64, _: u64) -> u64 {
    let (start, len) = (start as u32 & 0xff, len as u32 & 0xff);
    let is_signed = T::low(-1).wide() < 0;
    if len == 0 {
        return 0;
    }
    let shifted = T::of(a).wide() >> start.min(T::BITS);
    let len = len.min(128);
    let field = shifted << (128 - len);
    let filled = if is_signed { field >> (128 - len) } else { (field as u128 >> (128 - len)) as i128 };
    T::low(filled).slot()
}

/// b with a field of `len` bits from `start` replaced by the low bits of a.
fn insert<T: Int>(a: u64, b: u64, start: u64, len: u64) -> u64 {
    let (start, len) = (start as u32 & 0xff, len as u32 & 0xff);
    let mask = if len < 64 { (1_u64 << len) - 1 } else { u64::MAX };
    let shift = |word: u64| word.checked_shl(start).unwrap_or(0);
    T::of(b & !shift(mask) | shift(a & mask)).slot()
}

/// The high word of `high:low` after a shift to the left.
fn funnel_left(low: u64, high: u64, by: u64, most: u64) -> u64 {
    let both = u128::from(high & 0xffff_ffff) << 32 | u128::from(low & 0xffff_ffff);
    (both << shift_of(by, most) >> 32) as u64 & 0xffff_ffff
}

fn funnel_right(low: u64, high: u64, by: u64, most: u64) -> u64 {
    let both = high << 32 | low & 0xffff_ffff;
    (both >> shift_of(by, most)) & 0xffff_ffff
}

/// The distance of a shift: at most 32, or modulo 32.
fn shift_of(by: u64, most: u64) -> u64 {
    let by = by & 0xffff_ffff;
    if most == 32 { by.min(32) } else { by & 31 }
}
