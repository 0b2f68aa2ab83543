//! `cvt`: between all types of numbers, with each rounding.

use half::{bf16, f16};

use super::Compute;
use super::float::{CLAMP, FLUSH, single, slot};
use super::round::{Exact, Half, Rounding};
use crate::ptx::opcode::Opcode;
use crate::ptx::types::Type;

/// Places in the constant of a conversion: the types, the rounding, and flags.
const FROM: u32 = 8;
const ROUNDING: u32 = 16;
const FLAGS: u32 = 24;
/// The flag for a result that is a whole number, in whatever format.
const WHOLE: u64 = 1;
const SATURATE: u64 = 2;
const FLUSHES: u64 = 4;
const RELU: u64 = 8;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    if opcode.name != "cvt" {
        return Ok(None);
    }
    let &[to, from] = &opcode.types[..] else { return Err("it does not have two types".into()) };
    let (whole, rounding) = rounding(opcode, to, from)?;
    let mut flags = u64::from(whole);
    flags |= if opcode.takes("sat") { SATURATE } else { 0 };
    flags |= if opcode.takes("ftz") { FLUSHES } else { 0 };
    flags |= if opcode.takes("relu") { RELU } else { 0 };
    opcode.finish(2)?;
    let constant = to.number() | from.number() << FROM | (rounding as u64) << ROUNDING | flags << FLAGS;
    if matches!(to, Type::F16x2 | Type::Bf16x2) && from == Type::F32 {
        return Ok(Some(Compute::new(pair, to, &[from, from]).with(constant)));
    }
    let known = |ty: Type| ty.is_integer() || matches!(ty, Type::F16 | Type::Bf16 | Type::F32 | Type::F64);
    if !known(to) || !known(from) || flags & RELU != 0 && to.bytes() != 2 {
        return Err("the conversion is not known here".into());
    }
    Ok(Some(Compute { wider: true, ..Compute::new(convert, to, &[from]).with(constant) }))
}

/// Whether the result is rounded to a whole number, and the rounding, which is required where digits may be lost.
fn rounding(opcode: &mut Opcode<'_>, to: Type, from: Type) -> Result<(bool, Rounding), String> {
    const WHOLE: [(&str, Rounding); 4] =
        [("rni", Rounding::Nearest), ("rzi", Rounding::Zero), ("rmi", Rounding::Down), ("rpi", Rounding::Up)];
    if let Some(rounding) = opcode.one_of(&WHOLE) {
        return match from.is_float() && (to.is_integer() || to == from) {
            true => Ok((true, rounding)),
            false => Err("a whole result is rounded from a float of the same size".into()),
        };
    }
    let told = Rounding::of(opcode);
    let must_tell =
        to.is_float() && (!from.is_float() || to.bytes() < from.bytes()) || to.is_integer() && from.is_float();
    match told {
        None if must_tell => Err("it does not say how it rounds".into()),
        Some(_) if to.is_integer() => Err("an integer is rounded by .rni, .rzi, .rmi or .rpi".into()),
        _ => Ok((false, told.unwrap_or(Rounding::Nearest))),
    }
}

/// Two singles converted into one word, the first in the high half.
fn pair(high: u64, low: u64, how: u64, _: u64) -> u64 {
    let half = if how & 0xff == Type::F16x2.number() { Type::F16 } else { Type::Bf16 };
    let how = how & !0xff | half.number();
    convert(high, how, 0, 0) << 16 | convert(low, how, 0, 0)
}

fn convert(a: u64, how: u64, _: u64, _: u64) -> u64 {
    let (to, from) = (Type::numbered(how & 0xff), Type::numbered(how >> FROM & 0xff));
    let (rounding, flags) = (Rounding::numbered(how >> ROUNDING), how >> FLAGS);
    match (from.is_integer(), to.is_integer()) {
        (true, true) => integer_of(integer(a, from), to, flags & SATURATE != 0),
        (true, false) => float_of(Exact::integer(integer(a, from)), to, rounding, flags),
        (false, true) => whole_of(rounded(float(a, from, flags), rounding), to),
        (false, false) => {
            let x = float(a, from, flags);
            let x = if flags & WHOLE != 0 { rounded(x, rounding) } else { x };
            float_of(Exact::of(x, 0.0), to, rounding, flags)
        }
    }
}

fn integer(a: u64, ty: Type) -> i128 {
    let above = 128 - 8 * ty.bytes() as u32;
    let high = i128::from(a) << above;
    if ty.is_signed() { high >> above } else { (high as u128 >> above) as i128 }
}

fn float(a: u64, ty: Type, flags: u64) -> f64 {
    match ty {
        Type::F16 => f16::widen(a as u16),
        Type::Bf16 => bf16::widen(a as u16),
        Type::F32 => single(a, if flags & FLUSHES != 0 { FLUSH } else { 0 }).into(),
        _ => f64::from_bits(a),
    }
}

fn rounded(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

fn limits(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.bytes() as u32;
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The bits of an integer of the type, sign-extended, since the register may be wider.
fn integer_of(x: i128, ty: Type, saturates: bool) -> u64 {
    let (least, most) = limits(ty);
    let x = if saturates { x.clamp(least, most) } else { x };
    integer(x as u64, ty) as u64
}

/// Converts to an integer: numbers out of range become the nearest one in range, and NaN becomes 0.
fn whole_of(x: f64, ty: Type) -> u64 {
    integer_of(x as i128, ty, true)
}

fn float_of(x: Exact, ty: Type, rounding: Rounding, flags: u64) -> u64 {
    let clamps = if flags & SATURATE != 0 { CLAMP } else { 0 };
    match ty {
        Type::F16 => half_of::<f16>(x, rounding, flags),
        Type::Bf16 => half_of::<bf16>(x, rounding, flags),
        Type::F32 => slot(x.to_f32(rounding), clamps | if flags & FLUSHES != 0 { FLUSH } else { 0 }),
        _ => match x.to_f64(rounding) {
            x if clamps == 0 => x.to_bits(),
            x if x.is_nan() => 0,
            x => (x.clamp(0.0, 1.0) + 0.0).to_bits(),
        },
    }
}

fn half_of<H: Half>(x: Exact, rounding: Rounding, flags: u64) -> u64 {
    let bits = x.to_half::<H>(rounding);
    let value = H::widen(bits);
    u64::from(match () {
        _ if flags & SATURATE != 0 && (value.is_nan() || value <= 0.0) => 0,
        _ if flags & SATURATE != 0 && value > 1.0 => H::nearest(1.0),
        _ if flags & RELU != 0 && value <= 0.0 => 0,
        _ => bits,
    })
}
