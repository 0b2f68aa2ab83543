//! Numbers in registers. Bytes and 16-bit integers are in 32-bit registers, extended with zeros or the sign by their
//! type.

use super::text::{Class, Reg, Text};
use crate::tensor::Dtype;

/// The name that instructions have for the type in which numbers of type `dtype` are computed.
pub(super) fn kind(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "pred",
        Dtype::F16 | Dtype::Bf16 => "b16",
        Dtype::U8 | Dtype::U16 | Dtype::U32 => "u32",
        Dtype::I8 | Dtype::I16 | Dtype::I32 => "s32",
        Dtype::U64 => "u64",
        Dtype::I64 => "s64",
        Dtype::F32 => "f32",
        Dtype::F64 => "f64",
    }
}

/// The value of a 32-bit register reduced to a shorter integer type.
pub(super) fn wrap(text: &mut Text, dtype: Dtype, x: Reg) -> Reg {
    match dtype {
        Dtype::U8 => text.op(Class::Word, "and.b32", &[&x, &0xff]),
        Dtype::U16 => text.op(Class::Word, "and.b32", &[&x, &0xffff]),
        Dtype::I8 => text.op(Class::Word, "cvt.s32.s8", &[&x]),
        Dtype::I16 => text.op(Class::Word, "cvt.s32.s16", &[&x]),
        _ => x,
    }
}

/// The conversion of a number as defined by [`Expr::Cast`](crate::graph::Expr::Cast).
pub(super) fn convert(text: &mut Text, [from, to]: [Dtype; 2], x: Reg) -> Reg {
    use Dtype::{Bf16, Bool, F16, F32, F64};
    match (from, to) {
        _ if from == to => x,
        (Bool, _) => of_bool(text, to, x),
        (F16, F32) => text.op(Class::Word, "cvt.f32.f16", &[&x]),
        (Bf16, F32) => {
            let low = text.number(Class::Half, 0);
            text.op(Class::Word, "mov.b32", &[&format!("{{{low}, {x}}}")])
        }
        (F16 | Bf16, _) => {
            let x = convert(text, [from, F32], x);
            convert(text, [F32, to], x)
        }
        (F32, Bool) => text.op(Class::Pred, "setp.neu.f32", &[&x, &"0f00000000"]),
        (F64, Bool) => text.op(Class::Pred, "setp.neu.f64", &[&x, &"0d0000000000000000"]),
        (_, Bool) => text.op(Class::Pred, &format!("setp.ne.{}", kind(from)), &[&x, &0]),
        (F32, F64) => text.op(Class::Long, "cvt.f64.f32", &[&x]),
        (F64, F32) => text.op(Class::Word, "cvt.rn.f32.f64", &[&x]),
        (F32 | F64, F16) => text.op(Class::Half, &format!("cvt.rn.f16.{}", kind(from)), &[&x]),
        (F32, Bf16) => text.op(Class::Half, "cvt.rn.bf16.f32", &[&x]),
        (F64, Bf16) => {
            let odd = to_odd(text, x);
            text.op(Class::Half, "cvt.rn.bf16.f32", &[&odd])
        }
        (F32 | F64, _) => truncated(text, [from, to], x),
        (_, F32 | F64) => text.op(Class::of(to), &format!("cvt.rn.{}.{}", kind(to), kind(from)), &[&x]),
        (_, F16 | Bf16) => {
            let exact = if from.bytes() <= 2 { F32 } else { F64 };
            let x = convert(text, [from, exact], x);
            convert(text, [exact, to], x)
        }
        _ => integer(text, [from, to], x),
    }
}

/// The conversion of a bool: 1 for true, else 0.
fn of_bool(text: &mut Text, to: Dtype, x: Reg) -> Reg {
    let class = Class::of(to);
    let one: u64 = match to {
        Dtype::F16 => 0x3c00,
        Dtype::Bf16 => 0x3f80,
        Dtype::F32 => u64::from(1_f32.to_bits()),
        Dtype::F64 => 1_f64.to_bits(),
        _ => 1,
    };
    let (one, zero) = (text.number(class, one), text.number(class, 0));
    text.op(class, &format!("selp.{}", class.bits()), &[&one, &zero, &x])
}

/// x as f32, rounded to odd: x itself if it is an f32, else the neighbouring f32 whose last bit is 1. Rounding this
/// again to a shorter type gives the same as rounding x at once.
fn to_odd(text: &mut Text, x: Reg) -> Reg {
    let near = text.op(Class::Word, "cvt.rz.f32.f64", &[&x]);
    let back = text.op(Class::Long, "cvt.f64.f32", &[&near]);
    let inexact = text.op(Class::Pred, "setp.ne.f64", &[&back, &x]);
    let odd = text.op(Class::Word, "or.b32", &[&near, &1]);
    text.op(Class::Word, "selp.b32", &[&odd, &near, &inexact])
}

/// A float converted to an integer: truncated and saturated; NaN becomes 0.
fn truncated(text: &mut Text, [from, to]: [Dtype; 2], x: Reg) -> Reg {
    let (class, kind, from) = (Class::of(to), kind(to), kind(from));
    let mut whole = text.op(class, &format!("cvt.rzi.{kind}.{from}"), &[&x]);
    if to.bytes() < 4 {
        let bits = 8 * to.bytes() as u32;
        let high = (1_i64 << (bits - u32::from(to.is_signed()))) - 1;
        whole = text.op(class, &format!("min.{kind}"), &[&whole, &high]);
        if to.is_signed() {
            whole = text.op(class, &format!("max.{kind}"), &[&whole, &(-high - 1)]);
        }
    }
    let is_number = text.op(Class::Pred, &format!("setp.num.{from}"), &[&x, &x]);
    text.op(class, &format!("selp.{}", class.bits()), &[&whole, &0, &is_number])
}

/// An integer converted to another integer type.
fn integer(text: &mut Text, [from, to]: [Dtype; 2], x: Reg) -> Reg {
    match [Class::of(from), Class::of(to)] {
        [Class::Word, Class::Long] if from.is_signed() => text.op(Class::Long, "cvt.s64.s32", &[&x]),
        [Class::Word, Class::Long] => text.op(Class::Long, "cvt.u64.u32", &[&x]),
        [Class::Long, Class::Word] => {
            let low = text.op(Class::Word, "cvt.u32.u64", &[&x]);
            wrap(text, to, low)
        }
        [Class::Word, Class::Word] => wrap(text, to, x),
        _ => x,
    }
}
