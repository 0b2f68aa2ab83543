//! Arithmetic on singles and doubles. Functions that the hardware approximates are computed as exactly as a double
//! allows, then rounded.

use super::Compute;
use super::round::{Exact, Rounding};
use crate::ptx::opcode::Opcode;
use crate::ptx::program::Function4;
use crate::ptx::types::Type;

/// Flags in an instruction's constant, above its rounding: subnormal singles count as zero; the result is clamped to
/// 0..1; the result is NaN if one operand is NaN.
pub const FLUSH: u64 = 4;
pub const CLAMP: u64 = 8;
pub const NAN_WINS: u64 = 16;

/// The NaN that singles have as a result.
const NAN: u32 = 0x7fff_ffff;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    let Some(ty @ (Type::F32 | Type::F64)) = opcode.types.first().copied() else { return Ok(None) };
    if opcode.name == "testp" {
        return test(opcode, ty).map(Some);
    }
    let Some((single, double, operands, kind)) = named(opcode.name) else { return Ok(None) };
    let constant = modifiers(opcode, ty, kind)?;
    let function = if ty == Type::F32 { single } else { double };
    let function = function.ok_or("it is not defined for this type")?;
    opcode.finish(1)?;
    Ok(Some(Compute::new(function, ty, &vec![ty; operands]).with(constant)))
}

/// The modifiers that an instruction takes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A rounding is optional; the default is to nearest.
    Rounded,
    /// A rounding is required.
    MustBeRounded,
    /// A rounding or `.approx` is required; a division also takes `.full`.
    Either,
    /// `.approx` is required.
    Approximate,
    /// None of these modifiers.
    Exact,
}

/// The functions for singles and for doubles, the number of operands, and the modifiers of an instruction.
fn named(name: &str) -> Option<(Option<Function4>, Option<Function4>, usize, Kind)> {
    use Kind::{Approximate, Either, MustBeRounded, Rounded};
    Some(match name {
        "add" => (Some(add), Some(add_doubles), 2, Rounded),
        "sub" => (Some(sub), Some(sub_doubles), 2, Rounded),
        "mul" => (Some(mul), Some(mul_doubles), 2, Rounded),
        "fma" | "mad" => (Some(fma), Some(fma_doubles), 3, MustBeRounded),
        "div" => (Some(div), Some(div_doubles), 2, Either),
        "rcp" => (Some(rcp), Some(rcp_doubles), 1, Either),
        "sqrt" => (Some(sqrt), Some(sqrt_doubles), 1, Either),
        "rsqrt" => (Some(rsqrt), Some(rsqrt_doubles), 1, Approximate),
        "ex2" => (Some(ex2), None, 1, Approximate),
        "lg2" => (Some(lg2), None, 1, Approximate),
        "sin" => (Some(sin), None, 1, Approximate),
        "cos" => (Some(cos), None, 1, Approximate),
        "tanh" => (Some(tanh), None, 1, Approximate),
        "abs" => (Some(abs), Some(abs_doubles), 1, Kind::Exact),
        "neg" => (Some(neg), Some(neg_doubles), 1, Kind::Exact),
        "min" => (Some(min), Some(min_doubles), 2, Kind::Exact),
        "max" => (Some(max), Some(max_doubles), 2, Kind::Exact),
        "copysign" => (Some(copysign), Some(copysign_doubles), 2, Kind::Exact),
        _ => return None,
    })
}

fn modifiers(opcode: &mut Opcode<'_>, ty: Type, kind: Kind) -> Result<u64, String> {
    let approximate = matches!(kind, Kind::Either | Kind::Approximate)
        && (opcode.takes("approx") || opcode.name == "div" && opcode.takes("full"));
    let rounding = match kind {
        Kind::Exact | Kind::Approximate => None,
        _ if approximate => None,
        _ => Rounding::of(opcode),
    };
    let must_tell = matches!(kind, Kind::Either | Kind::Approximate | Kind::MustBeRounded);
    if must_tell && !approximate && rounding.is_none() {
        return Err("it does not say how it rounds".into());
    }
    if ty == Type::F64 && ["fma", "mad"].contains(&opcode.name) && rounding != Some(Rounding::Nearest) {
        return Err("doubles are only rounded to the nearest here".into());
    }
    let (name, is_single) = (opcode.name, ty == Type::F32);
    if approximate && !is_single {
        opcode.takes("ftz"); // what a single's exponent does not hold is kept here
    }
    let flags = [
        (FLUSH, is_single && opcode.takes("ftz")),
        (CLAMP, is_single && ["add", "sub", "mul", "fma", "mad"].contains(&name) && opcode.takes("sat")),
        (NAN_WINS, ["min", "max"].contains(&name) && opcode.takes("NaN")),
    ];
    let rounding = rounding.map_or(0, |rounding| rounding as u64);
    Ok(flags.into_iter().filter(|(_, is_told)| *is_told).fold(rounding, |all, (flag, _)| all | flag))
}

/// The single in a slot.
pub fn single(slot: u64, flags: u64) -> f32 {
    flush(f32::from_bits(slot as u32), flags)
}

/// The slot that holds a single.
pub fn slot(x: f32, flags: u64) -> u64 {
    let x = flush(x, flags);
    let x = match flags & CLAMP != 0 {
        true if x.is_nan() => 0.0,
        true => x.clamp(0.0, 1.0) + 0.0,
        false => x,
    };
    u64::from(if x.is_nan() { NAN } else { x.to_bits() })
}

fn flush(x: f32, flags: u64) -> f32 {
    if flags & FLUSH != 0 && x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

/// The result in the rounding of the flags: to nearest as the host rounds, otherwise through the exact result.
fn rounded(flags: u64, nearest: impl Fn() -> f32, exact: impl Fn() -> Exact) -> u64 {
    match Rounding::numbered(flags) {
        Rounding::Nearest => slot(nearest(), flags),
        rounding => slot(exact().to_f32(rounding), flags),
    }
}

fn add(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    rounded(flags, || a + b, || Exact::sum(a.into(), b.into()))
}

fn sub(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    rounded(flags, || a - b, || Exact::sum(a.into(), (-b).into()))
}

fn mul(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    rounded(flags, || a * b, || Exact::of(f64::from(a) * f64::from(b), 0.0))
}

fn fma(a: u64, b: u64, c: u64, flags: u64) -> u64 {
    let (a, b, c) = (single(a, flags), single(b, flags), single(c, flags));
    rounded(flags, || a.mul_add(b, c), || Exact::sum(f64::from(a) * f64::from(b), c.into()))
}

fn div(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    rounded(flags, || a / b, || Exact::quotient(a.into(), b.into()))
}

fn rcp(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    div(u64::from(1_f32.to_bits()), a, flags, 0)
}

fn sqrt(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    let a = single(a, flags);
    rounded(flags, || a.sqrt(), || Exact::root(a.into()))
}

fn rsqrt(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot((1.0 / f64::from(single(a, flags)).sqrt()) as f32, flags)
}

fn ex2(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot(f64::from(single(a, flags)).exp2() as f32, flags)
}

fn lg2(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot(f64::from(single(a, flags)).log2() as f32, flags)
}

fn sin(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot(f64::from(single(a, flags)).sin() as f32, flags)
}

fn cos(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot(f64::from(single(a, flags)).cos() as f32, flags)
}

fn tanh(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    slot(f64::from(single(a, flags)).tanh() as f32, flags)
}

fn abs(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    u64::from(single(a, flags).abs().to_bits())
}

fn neg(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    u64::from((-single(a, flags)).to_bits())
}

fn min(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    slot(smaller(a.into(), b.into(), flags) as f32, flags)
}

fn max(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    let (a, b) = (single(a, flags), single(b, flags));
    slot(-smaller(-f64::from(a), -f64::from(b), flags) as f32, flags)
}

/// The magnitude of b with the sign of a.
fn copysign(a: u64, b: u64, _: u64, _: u64) -> u64 {
    u64::from(f32::from_bits(b as u32).copysign(f32::from_bits(a as u32)).to_bits())
}

/// The smaller of two numbers, where -0 is below +0; of NaN and a number the number, unless NaN wins.
pub fn smaller(a: f64, b: f64, flags: u64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => a,
        (true, false) => {
            if flags & NAN_WINS != 0 {
                a
            } else {
                b
            }
        }
        (false, true) => {
            if flags & NAN_WINS != 0 {
                b
            } else {
                a
            }
        }
        (false, false) if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        (false, false) => a.min(b),
    }
}

fn double(slot: u64) -> f64 {
    f64::from_bits(slot)
}

fn add_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    Exact::sum(double(a), double(b)).to_f64(Rounding::numbered(flags)).to_bits()
}

fn sub_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    Exact::sum(double(a), -double(b)).to_f64(Rounding::numbered(flags)).to_bits()
}

fn mul_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    Exact::product(double(a), double(b)).to_f64(Rounding::numbered(flags)).to_bits()
}

fn fma_doubles(a: u64, b: u64, c: u64, _: u64) -> u64 {
    double(a).mul_add(double(b), double(c)).to_bits()
}

fn div_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    Exact::quotient(double(a), double(b)).to_f64(Rounding::numbered(flags)).to_bits()
}

fn rcp_doubles(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    div_doubles(1_f64.to_bits(), a, flags, 0)
}

fn sqrt_doubles(a: u64, flags: u64, _: u64, _: u64) -> u64 {
    Exact::root(double(a)).to_f64(Rounding::numbered(flags)).to_bits()
}

fn rsqrt_doubles(a: u64, _: u64, _: u64, _: u64) -> u64 {
    (1.0 / double(a).sqrt()).to_bits()
}

fn abs_doubles(a: u64, _: u64, _: u64, _: u64) -> u64 {
    double(a).abs().to_bits()
}

fn neg_doubles(a: u64, _: u64, _: u64, _: u64) -> u64 {
    (-double(a)).to_bits()
}

fn min_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    smaller(double(a), double(b), flags).to_bits()
}

fn max_doubles(a: u64, b: u64, flags: u64, _: u64) -> u64 {
    (-smaller(-double(a), -double(b), flags)).to_bits()
}

fn copysign_doubles(a: u64, b: u64, _: u64, _: u64) -> u64 {
    double(b).copysign(double(a)).to_bits()
}

/// Reads `testp`, which tests whether a number belongs to a class.
fn test(opcode: &mut Opcode<'_>, ty: Type) -> Result<Compute, String> {
    const CLASSES: [(&str, u64); 6] =
        [("finite", 0), ("infinite", 1), ("number", 2), ("notanumber", 3), ("normal", 4), ("subnormal", 5)];
    let class = opcode.one_of(&CLASSES).ok_or("it names no class of numbers")?;
    opcode.finish(1)?;
    let function: Function4 = match ty {
        Type::F32 => |a, class, _, _| {
            let x = f32::from_bits(a as u32);
            u64::from(is_of(class, x.into(), x.is_normal(), x.is_subnormal()))
        },
        _ => |a, class, _, _| {
            let x = f64::from_bits(a);
            u64::from(is_of(class, x, x.is_normal(), x.is_subnormal()))
        },
    };
    Ok(Compute::new(function, Type::Pred, &[ty]).with(class))
}

fn is_of(class: u64, x: f64, is_normal: bool, is_subnormal: bool) -> bool {
    [x.is_finite(), x.is_infinite(), !x.is_nan(), x.is_nan(), is_normal, is_subnormal][class as usize]
}

/// The function by which `red` and `atom` add numbers.
pub fn adds(ty: Type) -> Option<Function4> {
    match ty {
        Type::F32 => Some(|a, b, _, _| add(a, b, 0, 0)),
        Type::F64 => Some(|a, b, _, _| add_doubles(a, b, 0, 0)),
        _ => None,
    }
}
