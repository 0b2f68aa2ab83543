//! Arithmetic on halves and on pairs of them.

use half::{bf16, f16};

use super::Compute;
use super::float::{NAN_WINS, smaller};
use super::round::{Exact, Half, Rounding};
use crate::ptx::opcode::Opcode;
use crate::ptx::program::Function4;
use crate::ptx::types::Type;

/// Operations by their number in the constant, below the flags.
const NAMES: [&str; 10] = ["add", "sub", "mul", "fma", "neg", "abs", "min", "max", "ex2", "tanh"];
const FLAGS: u32 = 8;
const FLUSH: u64 = 1 << FLAGS;
const CLAMP: u64 = 2 << FLAGS;
const RELU: u64 = 4 << FLAGS;
const NAN: u64 = 8 << FLAGS;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    let Some(&ty) = opcode.types.first() else { return Ok(None) };
    let (Some(number), true) = (NAMES.iter().position(|name| *name == opcode.name), is_half(ty)) else {
        return Ok(None);
    };
    let constant = number as u64 | flags(opcode, ty)?;
    opcode.finish(1)?;
    let of_pairs = matches!(ty, Type::F16x2 | Type::Bf16x2);
    let brain = matches!(ty, Type::Bf16 | Type::Bf16x2);
    let operands = match opcode.name {
        "fma" => 3,
        "neg" | "abs" | "ex2" | "tanh" => 1,
        _ => 2,
    };
    let function: Function4 = match (operands, of_pairs, brain) {
        (1, false, false) => |a, c, _, _| operate::<f16>(a, 0, 0, c),
        (1, false, true) => |a, c, _, _| operate::<bf16>(a, 0, 0, c),
        (1, true, false) => |a, c, _, _| pairs(operate::<f16>, a, 0, 0, c),
        (1, true, true) => |a, c, _, _| pairs(operate::<bf16>, a, 0, 0, c),
        (2, false, false) => |a, b, c, _| operate::<f16>(a, b, 0, c),
        (2, false, true) => |a, b, c, _| operate::<bf16>(a, b, 0, c),
        (2, true, false) => |a, b, c, _| pairs(operate::<f16>, a, b, 0, c),
        (2, true, true) => |a, b, c, _| pairs(operate::<bf16>, a, b, 0, c),
        (_, false, false) => operate::<f16>,
        (_, false, true) => operate::<bf16>,
        (_, true, false) => |a, b, c, d| pairs(operate::<f16>, a, b, c, d),
        (_, true, true) => |a, b, c, d| pairs(operate::<bf16>, a, b, c, d),
    };
    Ok(Some(Compute::new(function, ty, &vec![ty; operands]).with(constant)))
}

pub fn is_half(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2)
}

fn flags(opcode: &mut Opcode<'_>, ty: Type) -> Result<u64, String> {
    let of_f16 = matches!(ty, Type::F16 | Type::F16x2);
    let name = opcode.name;
    let approximate = ["ex2", "tanh"].contains(&name);
    if approximate && !opcode.takes("approx") || name == "fma" && !opcode.takes("rn") {
        return Err("it does not say how it rounds".into());
    }
    if ["add", "sub", "mul"].contains(&name) {
        opcode.takes("rn");
    }
    // Brain floats have the exponents of singles: of their operations only ex2 takes `.ftz`.
    let flushes = (of_f16 || name == "ex2") && opcode.takes("ftz");
    let clamps = of_f16 && ["add", "sub", "mul", "fma"].contains(&name) && opcode.takes("sat");
    let relu = name == "fma" && opcode.takes("relu");
    let nan = ["min", "max"].contains(&name) && opcode.takes("NaN");
    let all = [(flushes, FLUSH), (clamps, CLAMP), (relu, RELU), (nan, NAN)];
    Ok(all.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum())
}

/// Applies a function to both halves of words.
fn pairs(function: Function4, a: u64, b: u64, c: u64, constant: u64) -> u64 {
    let high = function(a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff, constant);
    high << 16 | function(a & 0xffff, b & 0xffff, c & 0xffff, constant)
}

fn operate<H: Half>(a: u64, b: u64, c: u64, constant: u64) -> u64 {
    let sign = 1 << 15;
    match NAMES[constant as usize & 0xff] {
        "neg" => return (a ^ sign) & 0xffff,
        "abs" => return a & 0x7fff,
        _ => {}
    }
    let [a, b, c] = [a, b, c].map(|bits| flushed::<H>(bits as u16, constant)).map(H::widen);
    let exact = |x| Exact::of(x, 0.0);
    let nan = if constant & NAN != 0 { NAN_WINS } else { 0 };
    let result = match NAMES[constant as usize & 0xff] {
        "add" => Exact::sum(a, b),
        "sub" => Exact::sum(a, -b),
        "mul" => exact(a * b),
        "fma" => Exact::sum(a * b, c),
        "min" => exact(smaller(a, b, nan)),
        "max" => exact(-smaller(-a, -b, nan)),
        "ex2" => exact(a.exp2()),
        _ => exact(a.tanh()),
    };
    u64::from(finished::<H>(result, constant))
}

fn flushed<H: Half>(bits: u16, constant: u64) -> u16 {
    let is_subnormal = H::widen(bits & 0x7fff) < H::SMALLEST_NORMAL;
    if constant & FLUSH != 0 && is_subnormal { bits & 0x8000 } else { bits }
}

fn finished<H: Half>(result: Exact, constant: u64) -> u16 {
    let bits = flushed::<H>(result.to_half::<H>(Rounding::Nearest), constant);
    let x = H::widen(bits);
    match () {
        _ if constant & CLAMP != 0 && (x.is_nan() || x <= 0.0) => 0,
        _ if constant & CLAMP != 0 && x > 1.0 => H::nearest(1.0),
        _ if constant & RELU != 0 && x <= 0.0 => 0,
        _ => bits,
    }
}
