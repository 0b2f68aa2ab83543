//! Functions of numbers. Apart from the rounding of transcendental functions, results equal those of the CPU.

use super::number::{kind, wrap};
use super::text::{Class, Reg, Text};
use crate::graph::{Binary, Unary, e4m3};
use crate::tensor::Dtype;

/// Facts about the operands of a division.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Whether an operand is rounded to a few units in the last place, so that the quotient may be too.
    pub rounded: bool,
    /// Whether the divisor is at least 1, or NaN.
    pub from_one: bool,
    /// The divisor, if it is a constant.
    pub divisor: Option<i64>,
    /// Whether the dividend is at least 0.
    pub positive: bool,
}

/// A function of one number of type `dtype`.
pub(super) fn unary(text: &mut Text, op: Unary, dtype: Dtype, x: Reg) -> Reg {
    match dtype {
        Dtype::F32 if op == Unary::ToE4m3 => to_e4m3(text, x),
        Dtype::U8 if op == Unary::OfE4m3 => of_e4m3(text, x),
        Dtype::Bool => text.op(Class::Pred, "not.pred", &[&x]), // the only function of bools
        Dtype::F32 | Dtype::F64 => unary_float(text, op, dtype, x),
        _ => unary_int(text, op, dtype, x),
    }
}

/// A function of two numbers of type `dtype`.
pub(super) fn binary(text: &mut Text, op: Binary, dtype: Dtype, [a, b]: [Reg; 2], known: Known) -> Reg {
    let compared = match op {
        Binary::Equal => "eq",
        Binary::Less => "lt",
        Binary::LessEqual => "le",
        _ => "",
    };
    match dtype {
        Dtype::Bool => binary_bool(text, op, [a, b]),
        _ if !compared.is_empty() => text.op(Class::Pred, &format!("setp.{compared}.{}", kind(dtype)), &[&a, &b]),
        Dtype::F32 if op == Binary::Div && known.rounded => quotient(text, [a, b], known.from_one),
        Dtype::F32 | Dtype::F64 => binary_float(text, op, dtype, [a, b]),
        _ => binary_int(text, op, dtype, [a, b], known),
    }
}

/// a / b, to a few units in the last place.
///
/// The error of `div.full` is within 2 units. By a reciprocal it is within 3: the reciprocal is within 1 unit, which is
/// up to 2 units of the product, and rounding the product adds half a unit. Below 2^-124, a quarter of a is rounded
/// too, which adds 2 units, since b is at least 1.
fn quotient(text: &mut Text, [a, b]: [Reg; 2], from_one: bool) -> Reg {
    if !from_one {
        return text.op(Class::Word, "div.full.f32", &[&a, &b]);
    }
    // A quarter of any divisor of at least 1 has a normal reciprocal, so that none is flushed to 0.
    let [a, b] = [a, b].map(|x| text.op(Class::Word, "mul.rn.f32", &[&x, &"0f3E800000"]));
    let reciprocal = text.op(Class::Word, "rcp.approx.ftz.f32", &[&b]);
    text.op(Class::Word, "mul.rn.f32", &[&a, &reciprocal])
}

/// `a` if the condition holds, else `b`.
pub(super) fn select(text: &mut Text, [condition, a, b]: [Reg; 3]) -> Reg {
    match a.class {
        Class::Pred => {
            let both = text.op(Class::Pred, "and.pred", &[&condition, &a]);
            let not = text.op(Class::Pred, "not.pred", &[&condition]);
            let other = text.op(Class::Pred, "and.pred", &[&not, &b]);
            text.op(Class::Pred, "or.pred", &[&both, &other])
        }
        class => text.op(class, &format!("selp.{}", class.bits()), &[&a, &b, &condition]),
    }
}

/// A number of a floating-point type as an immediate operand.
fn float(dtype: Dtype, x: f64) -> String {
    match dtype {
        Dtype::F32 => format!("0f{:08X}", (x as f32).to_bits()),
        _ => format!("0d{:016X}", x.to_bits()),
    }
}

fn unary_float(text: &mut Text, op: Unary, dtype: Dtype, x: Reg) -> Reg {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let simple = match op {
        Unary::Neg => format!("neg.{kind}"),
        Unary::Abs => format!("abs.{kind}"),
        Unary::Floor => format!("cvt.rmi.{kind}.{kind}"),
        Unary::Ceil => format!("cvt.rpi.{kind}.{kind}"),
        Unary::Round => format!("cvt.rni.{kind}.{kind}"),
        Unary::Sqrt => format!("sqrt.rn.{kind}"),
        Unary::Sign => return sign(text, dtype, x),
        Unary::IsNan => return text.op(Class::Pred, &format!("setp.nan.{kind}"), &[&x, &x]),
        Unary::IsInf => {
            let size = text.op(class, &format!("abs.{kind}"), &[&x]);
            return text.op(Class::Pred, &format!("setp.eq.{kind}"), &[&size, &float(dtype, f64::INFINITY)]);
        }
        _ => return text.function(&format!("trefoil_{}_{kind}", name(op)), class, &[x]),
    };
    text.op(class, &simple, &[&x])
}

/// The code of the nearest number of e4m3, as [`e4m3::encode`] computes it.
fn to_e4m3(text: &mut Text, x: Reg) -> Reg {
    let mut word = |name: &str, args: &[&dyn std::fmt::Display]| text.op(Class::Word, name, args);
    let size = word("abs.f32", &[&x]);
    let least = word("add.rn.f32", &[&size, &float(Dtype::F32, e4m3::TO_UNITS.into())]);
    let least = word("sub.s32", &[&least, &e4m3::TO_UNITS.to_bits()]);
    let bits = word("min.f32", &[&size, &float(Dtype::F32, e4m3::MOST_E4M3.into())]);
    let last = word("shr.u32", &[&bits, &e4m3::DROPPED]);
    let odd = word("and.b32", &[&last, &1]);
    let bits = word("add.s32", &[&bits, &((1 << (e4m3::DROPPED - 1)) - 1)]);
    let bits = word("add.s32", &[&bits, &odd]);
    let code = word("shr.u32", &[&bits, &e4m3::DROPPED]);
    let code = word("sub.s32", &[&code, &(e4m3::BIAS << 3)]);
    let sign = word("shr.u32", &[&x, &24]);
    let sign = word("and.b32", &[&sign, &0x80]);
    let is_least = text.op(Class::Pred, "setp.lt.f32", &[&size, &float(Dtype::F32, e4m3::LEAST_NORMAL.into())]);
    let code = text.op(Class::Word, "selp.b32", &[&least, &code, &is_least]);
    let code = text.op(Class::Word, "or.b32", &[&code, &sign]);
    let is_number = text.op(Class::Pred, "setp.num.f32", &[&x, &x]);
    text.op(Class::Word, "selp.b32", &[&code, &e4m3::NAN, &is_number])
}

/// The number of a code of e4m3, as [`e4m3::decode`] computes it.
fn of_e4m3(text: &mut Text, code: Reg) -> Reg {
    let mut word = |name: &str, args: &[&dyn std::fmt::Display]| text.op(Class::Word, name, args);
    let size = word("and.b32", &[&code, &e4m3::NAN]);
    let bits = word("shl.b32", &[&size, &e4m3::DROPPED]);
    let number = word("mul.rn.f32", &[&bits, &float(Dtype::F32, e4m3::UNBIASED.into())]);
    let sign = word("and.b32", &[&code, &0x80]);
    let sign = word("shl.b32", &[&sign, &24]);
    let is_nan = text.op(Class::Pred, "setp.eq.s32", &[&size, &e4m3::NAN]);
    let number = text.op(Class::Word, "selp.b32", &[&f32::NAN.to_bits(), &number, &is_nan]);
    text.op(Class::Word, "or.b32", &[&number, &sign])
}

/// The name of a transcendental function in `math.cu`.
fn name(op: Unary) -> &'static str {
    match op {
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Asin => "asin",
        Unary::Acos => "acos",
        Unary::Atan => "atan",
        Unary::Sinh => "sinh",
        Unary::Cosh => "cosh",
        Unary::Tanh => "tanh",
        Unary::Asinh => "asinh",
        Unary::Acosh => "acosh",
        Unary::Atanh => "atanh",
        Unary::Erf => "erf",
        other => unreachable!("{other:?} is an instruction"),
    }
}

/// -1, 0 or 1 by the sign of x; NaN stays NaN.
fn sign(text: &mut Text, dtype: Dtype, x: Reg) -> Reg {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let zero = float(dtype, 0.0);
    let [above, below, nan] = [("gt", &zero), ("lt", &zero), ("nan", &zero)]
        .map(|(test, zero)| text.op(Class::Pred, &format!("setp.{test}.{kind}"), &[&x, zero]));
    let selp = format!("selp.{kind}");
    let below = text.op(class, &selp, &[&float(dtype, -1.0), &zero, &below]);
    let either = text.op(class, &selp, &[&float(dtype, 1.0), &below, &above]);
    text.op(class, &selp, &[&x, &either, &nan])
}

fn binary_float(text: &mut Text, op: Binary, dtype: Dtype, [a, b]: [Reg; 2]) -> Reg {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let simple = match (op, dtype) {
        (Binary::Add, _) => format!("add.rn.{kind}"),
        (Binary::Sub, _) => format!("sub.rn.{kind}"),
        (Binary::Mul, _) => format!("mul.rn.{kind}"),
        (Binary::Div, _) => format!("div.rn.{kind}"),
        (Binary::Min, Dtype::F32) => "min.NaN.f32".into(),
        (Binary::Max, Dtype::F32) => "max.NaN.f32".into(),
        (Binary::Min, _) => return extreme(text, "lt", [a, b]),
        (Binary::Max, _) => return extreme(text, "gt", [a, b]),
        (Binary::Rem, _) => return text.function(&format!("trefoil_rem_{kind}"), class, &[a, b]),
        (Binary::Pow, _) => return text.function(&format!("trefoil_pow_{kind}"), class, &[a, b]),
        (Binary::Mod, _) => return modulo_float(text, dtype, [a, b]),
        (other, _) => unreachable!("{other:?} of floats"),
    };
    text.op(class, &simple, &[&a, &b])
}

/// The more extreme of two f64; NaN if one of them is NaN.
fn extreme(text: &mut Text, test: &str, [a, b]: [Reg; 2]) -> Reg {
    let more = text.op(Class::Pred, &format!("setp.{test}.f64"), &[&a, &b]);
    let nan = text.op(Class::Pred, "setp.nan.f64", &[&a, &a]);
    let first = text.op(Class::Pred, "or.pred", &[&more, &nan]);
    text.op(Class::Long, "selp.f64", &[&a, &b, &first])
}

/// The remainder of a / b rounded down; a remainder of 0 has the sign of b.
fn modulo_float(text: &mut Text, dtype: Dtype, [a, b]: [Reg; 2]) -> Reg {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let zero = float(dtype, 0.0);
    let rest = text.function(&format!("trefoil_rem_{kind}"), class, &[a, b]);
    let setp = |text: &mut Text, x: Reg, test: &str| text.op(Class::Pred, &format!("setp.{test}.{kind}"), &[&x, &zero]);
    let [none, below, divisor] = [(rest, "eq"), (rest, "lt"), (b, "lt")].map(|(x, test)| setp(text, x, test));
    let differ = text.op(Class::Pred, "xor.pred", &[&below, &divisor]);
    let sum = text.op(class, &format!("add.rn.{kind}"), &[&rest, &b]);
    let moved = text.op(class, &format!("selp.{kind}"), &[&sum, &rest, &differ]);
    let signed = text.op(class, &format!("copysign.{kind}"), &[&b, &zero]);
    text.op(class, &format!("selp.{kind}"), &[&signed, &moved, &none])
}

fn unary_int(text: &mut Text, op: Unary, dtype: Dtype, x: Reg) -> Reg {
    let class = Class::of(dtype);
    let signed = if class == Class::Long { "s64" } else { "s32" };
    let negated = |text: &mut Text| text.op(class, &format!("neg.{signed}"), &[&x]);
    let result = match op {
        Unary::Abs | Unary::Sign if !dtype.is_signed() => match op {
            Unary::Abs => x,
            _ => text.op(class, &format!("min.{}", kind(dtype)), &[&x, &1]),
        },
        Unary::Neg => negated(text),
        Unary::Abs => {
            let negated = negated(text);
            text.op(class, &format!("max.{signed}"), &[&x, &negated])
        }
        Unary::Sign => {
            let least = text.op(class, &format!("max.{signed}"), &[&x, &-1]);
            text.op(class, &format!("min.{signed}"), &[&least, &1])
        }
        Unary::Not => text.op(class, &format!("not.{}", class.bits()), &[&x]),
        other => unreachable!("{other:?} of integers"),
    };
    wrap(text, dtype, result)
}

fn binary_bool(text: &mut Text, op: Binary, [a, b]: [Reg; 2]) -> Reg {
    let both = |text: &mut Text, name: &str| text.op(Class::Pred, name, &[&a, &b]);
    match op {
        Binary::And => both(text, "and.pred"),
        Binary::Or => both(text, "or.pred"),
        Binary::Xor => both(text, "xor.pred"),
        Binary::Equal => {
            let differ = both(text, "xor.pred");
            text.op(Class::Pred, "not.pred", &[&differ])
        }
        other => unreachable!("{other:?} of bools"),
    }
}

fn binary_int(text: &mut Text, op: Binary, dtype: Dtype, [a, b]: [Reg; 2], known: Known) -> Reg {
    let (class, kind, bits) = (Class::of(dtype), kind(dtype), Class::of(dtype).bits());
    let simple = match op {
        Binary::Add => format!("add.{kind}"),
        Binary::Sub => format!("sub.{kind}"),
        Binary::Mul => format!("mul.lo.{kind}"),
        Binary::Min => format!("min.{kind}"),
        Binary::Max => format!("max.{kind}"),
        Binary::And => format!("and.{bits}"),
        Binary::Or => format!("or.{bits}"),
        Binary::Xor => format!("xor.{bits}"),
        Binary::Div => return divided(text, dtype, [a, b], known)[0],
        Binary::Rem => return divided(text, dtype, [a, b], known)[1],
        Binary::Mod => return modulo(text, dtype, [a, b], known),
        Binary::Pow => return power(text, dtype, [a, b]),
        Binary::ShiftLeft | Binary::ShiftRight => return shifted(text, op, dtype, [a, b]),
        other => unreachable!("{other:?} of integers"),
    };
    let result = text.op(class, &simple, &[&a, &b]);
    wrap(text, dtype, result)
}

/// The quotient a / b, truncated, and the remainder; both are 0 if b is 0.
fn divided(text: &mut Text, dtype: Dtype, [a, b]: [Reg; 2], known: Known) -> [Reg; 2] {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let by = known.divisor.filter(|&by| by > 0);
    let is_below = known.positive || (dtype.bytes() < 4 && !dtype.is_signed());
    if let Some(by) = by.filter(|_| class == Class::Word && is_below) {
        return divided_by(text, a, by);
    }
    let quotient = text.op(class, &format!("div.{kind}"), &[&a, &b]);
    let rest = text.op(class, &format!("rem.{kind}"), &[&a, &b]);
    if by.is_some() {
        return [quotient, rest];
    }
    let (test, select) = (format!("setp.eq.{kind}"), format!("selp.{}", class.bits()));
    let mut result = [quotient, rest];
    if dtype.is_signed() {
        let minus = text.op(Class::Pred, &test, &[&b, &-1]); // the quotient may wrap around
        let negated = text.op(class, &format!("neg.{kind}"), &[&a]);
        result[0] = text.op(class, &select, &[&negated, &result[0], &minus]);
        result[1] = text.op(class, &select, &[&0, &result[1], &minus]);
    }
    let zero = text.op(Class::Pred, &test, &[&b, &0]);
    result.map(|part| {
        let part = text.op(class, &select, &[&0, &part, &zero]);
        wrap(text, dtype, part)
    })
}

/// The quotient and the remainder of a number below 2^31 by a constant, computed by multiplication.
pub(super) fn divided_by(text: &mut Text, a: Reg, by: i64) -> [Reg; 2] {
    debug_assert!(a.class == Class::Word && (1..=i64::from(u32::MAX)).contains(&by));
    if by.count_ones() == 1 {
        let quotient = text.op(Class::Word, "shr.u32", &[&a, &by.trailing_zeros()]);
        return [quotient, text.op(Class::Word, "and.b32", &[&a, &(by - 1)])];
    }
    if by >= 1 << 31 {
        let quotient = text.op(Class::Word, "div.u32", &[&a, &by]);
        return [quotient, text.op(Class::Word, "rem.u32", &[&a, &by])];
    }
    let shift = (by - 1).ilog2();
    let multiplier = (1_u64 << (32 + shift)).div_ceil(by as u64);
    let high = text.op(Class::Word, "mul.hi.u32", &[&a, &multiplier]);
    let quotient = text.op(Class::Word, "shr.u32", &[&high, &shift]);
    let product = text.op(Class::Word, "mul.lo.u32", &[&quotient, &by]);
    [quotient, text.op(Class::Word, "sub.u32", &[&a, &product])]
}

/// The remainder of a / b rounded down.
fn modulo(text: &mut Text, dtype: Dtype, of: [Reg; 2], known: Known) -> Reg {
    let (class, kind) = (Class::of(dtype), kind(dtype));
    let rest = divided(text, dtype, of, known)[1];
    if !dtype.is_signed() || (known.positive && known.divisor.is_some_and(|by| by > 0)) {
        return rest;
    }
    let test = |text: &mut Text, x: Reg, name: &str| text.op(Class::Pred, &format!("setp.{name}.{kind}"), &[&x, &0]);
    let [some, below, divisor] = [(rest, "ne"), (rest, "lt"), (of[1], "lt")].map(|(x, name)| test(text, x, name));
    let differ = text.op(Class::Pred, "xor.pred", &[&below, &divisor]);
    let moves = text.op(Class::Pred, "and.pred", &[&some, &differ]);
    let sum = text.op(class, &format!("add.{kind}"), &[&rest, &of[1]]);
    let result = text.op(class, &format!("selp.{}", class.bits()), &[&sum, &rest, &moves]);
    wrap(text, dtype, result)
}

/// a to the power of b, in 64 bits: the low bits of a product depend only on the low bits of its factors.
fn power(text: &mut Text, dtype: Dtype, of: [Reg; 2]) -> Reg {
    let (wide, name) = match dtype.is_signed() {
        true => (Dtype::I64, "trefoil_pow_s64"),
        false => (Dtype::U64, "trefoil_pow_u64"),
    };
    let of = of.map(|x| super::number::convert(text, [dtype, wide], x));
    let result = text.function(name, Class::Long, &of);
    super::number::convert(text, [wide, dtype], result)
}

/// A shift of unsigned integers. Shift instructions treat distances above the width as the width.
fn shifted(text: &mut Text, op: Binary, dtype: Dtype, [a, by]: [Reg; 2]) -> Reg {
    let class = Class::of(dtype);
    let by = match class {
        Class::Long => {
            let by = text.op(Class::Long, "min.u64", &[&by, &64]);
            text.op(Class::Word, "cvt.u32.u64", &[&by])
        }
        _ => by,
    };
    let name = if op == Binary::ShiftLeft { format!("shl.{}", class.bits()) } else { format!("shr.{}", kind(dtype)) };
    let result = text.op(class, &name, &[&a, &by]);
    wrap(text, dtype, result)
}
