//! Arithmetic, comparisons and logic: functions of the operands' elements at the same place.

use super::Operator::{Binary as Two, One, Unary as Of};
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Unary, ValueId};
use crate::onnx::import::{Call, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Abs", Of(Unary::Abs)),
    ("Neg", Of(Unary::Neg)),
    ("Sign", Of(Unary::Sign)),
    ("Floor", Of(Unary::Floor)),
    ("Ceil", Of(Unary::Ceil)),
    ("Round", Of(Unary::Round)),
    ("Sqrt", Of(Unary::Sqrt)),
    ("Exp", Of(Unary::Exp)),
    ("Log", Of(Unary::Log)),
    ("Sin", Of(Unary::Sin)),
    ("Cos", Of(Unary::Cos)),
    ("Tan", Of(Unary::Tan)),
    ("Asin", Of(Unary::Asin)),
    ("Acos", Of(Unary::Acos)),
    ("Atan", Of(Unary::Atan)),
    ("Sinh", Of(Unary::Sinh)),
    ("Cosh", Of(Unary::Cosh)),
    ("Tanh", Of(Unary::Tanh)),
    ("Asinh", Of(Unary::Asinh)),
    ("Acosh", Of(Unary::Acosh)),
    ("Atanh", Of(Unary::Atanh)),
    ("Erf", Of(Unary::Erf)),
    ("Not", Of(Unary::Not)),
    ("BitwiseNot", Of(Unary::Not)),
    ("IsNaN", Of(Unary::IsNan)),
    ("IsInf", One(is_inf)),
    ("Reciprocal", One(reciprocal)),
    ("Add", Two(Binary::Add)),
    ("Sub", Two(Binary::Sub)),
    ("Mul", Two(Binary::Mul)),
    ("Div", Two(Binary::Div)),
    ("Pow", One(pow)),
    ("Mod", One(modulo)),
    ("Equal", Two(Binary::Equal)),
    ("Less", Two(Binary::Less)),
    ("LessOrEqual", Two(Binary::LessEqual)),
    ("Greater", One(greater)),
    ("GreaterOrEqual", One(greater_or_equal)),
    ("And", Two(Binary::And)),
    ("Or", Two(Binary::Or)),
    ("Xor", Two(Binary::Xor)),
    ("BitwiseAnd", Two(Binary::And)),
    ("BitwiseOr", Two(Binary::Or)),
    ("BitwiseXor", Two(Binary::Xor)),
    ("BitShift", One(bit_shift)),
    ("Max", One(max)),
    ("Min", One(min)),
    ("Sum", One(sum)),
    ("Mean", One(mean)),
    ("Where", One(choose)),
];

pub(super) fn unary(c: &mut Call<'_, '_>, op: Unary) -> Outcome<ValueId> {
    let x = c.x(0)?;
    c.map(Expr::arg(0).unary(op), &[x])
}

pub(super) fn binary(c: &mut Call<'_, '_>, op: Binary) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    c.cx.binary(op, a, b)
}

fn is_inf(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let zero = || number(c.dtype(x), 0.0);
    let [negative, positive] = ["detect_negative", "detect_positive"].map(|name| c.int_or(name, 1) != 0);
    let infinite = Expr::arg(0).unary(Unary::IsInf);
    let side = match (negative, positive) {
        (true, true) => infinite,
        (true, false) => infinite.binary(Binary::And, Expr::arg(0).binary(Binary::Less, zero())),
        (false, true) => infinite.binary(Binary::And, zero().binary(Binary::Less, Expr::arg(0))),
        (false, false) => infinite.binary(Binary::And, Expr::int(Dtype::Bool, 0)),
    };
    c.map(side, &[x])
}

fn reciprocal(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    c.cx.map(number(c.dtype(x), 1.0) / Expr::arg(0), &[x])
}

/// The result has the type of the base, whatever the type of the exponent.
fn pow(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (base, exponent) = (c.x(0)?, c.x(1)?);
    let (of, by) = (c.dtype(base), c.dtype(exponent));
    let at = match (of.is_float(), by.is_float()) {
        (true, true) => of,
        (true, false) if is_small(c, exponent)? => of,
        (false, false) if of == by => of,
        (false, false) => Dtype::I64,
        _ => Dtype::F64,
    };
    let cast = |arg: Expr, from: Dtype, to: Dtype| if from == to { arg } else { arg.cast(to) };
    let power = cast(Expr::arg(0), of, at).binary(Binary::Pow, cast(Expr::arg(1), by, at));
    c.map(cast(power, at, of), &[base, exponent])
}

/// Whether a value is one known integer that every type of floats has.
fn is_small(c: &Call<'_, '_>, value: ValueId) -> Outcome<bool> {
    let known = if c.of(value).elems() == 1 { c.known(value)? } else { None };
    Ok(known.and_then(|known| known.to_i64s()).is_some_and(|elems| elems[0].unsigned_abs() <= 256))
}

fn modulo(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let op = if c.flag("fmod") { Binary::Rem } else { Binary::Mod };
    binary(c, op)
}

fn greater(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    c.cx.binary(Binary::Less, b, a)
}

fn greater_or_equal(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    c.cx.binary(Binary::LessEqual, b, a)
}

/// Signed integers keep their sign in a right shift.
fn bit_shift(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let dtype = c.dtype(a);
    let bits = unsigned(dtype);
    let shift = |op, of: Expr| of.cast(bits).binary(op, Expr::arg(1).cast(bits)).cast(dtype);
    let shifted = match (c.text_or("direction", ""), dtype.is_signed()) {
        ("LEFT", _) => shift(Binary::ShiftLeft, Expr::arg(0)),
        ("RIGHT", false) => shift(Binary::ShiftRight, Expr::arg(0)),
        ("RIGHT", true) => {
            let negative = Expr::arg(0).binary(Binary::Less, number(dtype, 0.0));
            let below = shift(Binary::ShiftRight, Expr::arg(0).unary(Unary::Not)).unary(Unary::Not);
            negative.select(below, shift(Binary::ShiftRight, Expr::arg(0)))
        }
        (other, _) => return Err(format!("direction: expected LEFT or RIGHT, found `{other}`")),
    };
    c.map(shifted, &[a, b])
}

/// The unsigned type with the same number of bits.
fn unsigned(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::I8 => Dtype::U8,
        Dtype::I16 => Dtype::U16,
        Dtype::I32 => Dtype::U32,
        Dtype::I64 => Dtype::U64,
        other => other,
    }
}

/// The most operands that one expression combines: an expression is as deep as it has operands.
const MOST_COMBINED: usize = 64;

/// All operands combined, from the first to the last.
fn variadic(c: &mut Call<'_, '_>, op: Binary) -> Outcome<ValueId> {
    let all = c.all()?;
    let (first, rest) = all.split_first().ok_or("expected operands, found none")?;
    rest.chunks(MOST_COMBINED - 1).try_fold(*first, |so_far, more| {
        let expr = (1..=more.len()).fold(Expr::arg(0), |expr, index| expr.binary(op, Expr::arg(index)));
        c.map(expr, &[&[so_far], more].concat())
    })
}

fn max(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    variadic(c, Binary::Max)
}

fn min(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    variadic(c, Binary::Min)
}

fn sum(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    variadic(c, Binary::Add)
}

fn mean(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let sum = variadic(c, Binary::Add)?;
    let (dtype, count) = (c.dtype(sum), c.inputs.len() as f64);
    c.map(Expr::arg(0) / number(dtype, count), &[sum])
}

fn choose(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let all = [c.x(0)?, c.x(1)?, c.x(2)?];
    c.map(Expr::arg(0).select(Expr::arg(1), Expr::arg(2)), &all)
}
