//! Types that are only stored: floats of 8, 6 and 4 bits as codes in bytes, and integers of 4 and 2 bits.

use crate::graph::{Binary, Expr, Op, Tensor, Unary, ValueId};
use crate::onnx::DataType;
use crate::onnx::import::{Context, Outcome};
use crate::tensor::Dtype;

/// A floating-point type of few bits: a sign, if it has one, then exponent, then mantissa.
struct Format {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    signed: bool,
    specials: Specials,
}

/// The codes that are not numbers.
#[derive(Clone, Copy, PartialEq)]
enum Specials {
    None,
    /// The last code is NaN.
    Nan,
    /// Codes with the highest exponent are infinity and NaN.
    InfinityAndNan,
    /// The code of minus zero is NaN.
    MinusZero,
}

fn format(of: DataType) -> Option<Format> {
    use Specials::{InfinityAndNan, MinusZero, Nan, None as Numbers};
    let (exponent, mantissa, bias, signed, specials) = match of {
        DataType::Float8E4M3Fn => (4, 3, 7, true, Nan),
        DataType::Float8E4M3Fnuz => (4, 3, 8, true, MinusZero),
        DataType::Float8E5M2 => (5, 2, 15, true, InfinityAndNan),
        DataType::Float8E5M2Fnuz => (5, 2, 16, true, MinusZero),
        DataType::Float8E8M0 => (8, 0, 127, false, Nan),
        DataType::Float4E2M1 => (2, 1, 1, true, Numbers),
        DataType::Float6E2M3 => (2, 3, 1, true, Numbers),
        DataType::Float6E3M2 => (3, 2, 3, true, Numbers),
        _ => return None,
    };
    Some(Format { exponent, mantissa, bias, signed, specials })
}

/// The smallest and largest integer of a type of few bits.
pub(super) fn integer_range(of: DataType) -> Option<[i64; 2]> {
    Some(match of {
        DataType::Uint4 => [0, 15],
        DataType::Int4 => [-8, 7],
        DataType::Uint2 => [0, 3],
        DataType::Int2 => [-2, 1],
        _ => return None,
    })
}

impl Format {
    /// The number of codes without the sign.
    fn codes(&self) -> usize {
        1 << (self.exponent + self.mantissa)
    }

    /// The value of a code without the sign.
    fn value(&self, code: usize) -> f64 {
        let highest = code >> self.mantissa == (1 << self.exponent) - 1;
        let fraction = (code & ((1 << self.mantissa) - 1)) as f64 / f64::from(1 << self.mantissa);
        match self.specials {
            Specials::Nan if code == self.codes() - 1 => return f64::NAN,
            Specials::InfinityAndNan if highest => return if fraction == 0.0 { f64::INFINITY } else { f64::NAN },
            _ => {}
        }
        match (code >> self.mantissa) as i32 {
            0 if self.mantissa > 0 => fraction * 2_f64.powi(1 - self.bias),
            exponent => (1.0 + fraction) * 2_f64.powi(exponent - self.bias),
        }
    }

    /// The code of the largest number, without the sign.
    fn last(&self) -> usize {
        (0..self.codes()).rev().find(|&code| self.value(code).is_finite()).expect("0 is a number")
    }

    /// The code of NaN; that of minus zero if there is no NaN, as in ONNX's reference.
    fn nan(&self) -> usize {
        match self.specials {
            Specials::None | Specials::MinusZero => self.codes(),
            Specials::Nan => self.codes() - 1,
            // The quiet NaN: the highest bit of the mantissa is set.
            Specials::InfinityAndNan => self.codes() - (1 << (self.mantissa - 1)),
        }
    }

    /// The value of every code of a byte.
    fn table(&self) -> Vec<f32> {
        let of = |code: usize| match (code / self.codes(), code % self.codes()) {
            (1, 0) if self.specials == Specials::MinusZero => f32::NAN,
            (0, code) => self.value(code) as f32,
            (_, code) => -(self.value(code) as f32),
        };
        (0..self.codes() * if self.signed { 2 } else { 1 }).map(of).collect()
    }

    /// For each code except the first, the least number that is rounded to it or to a later code. Ties go to the even
    /// code. A type without a mantissa rounds up.
    fn steps(&self) -> Vec<f32> {
        let step = |code: usize| {
            let middle = ((self.value(code - 1) + self.value(code)) / 2.0) as f32;
            match (self.mantissa, code % 2) {
                (0, _) => (self.value(code - 1) as f32).next_up(),
                (_, 0) => middle,
                _ => middle.next_up(),
            }
        };
        (1..=self.last()).map(step).collect()
    }
}

/// The numbers that codes stand for, in a type that graphs have.
pub(super) fn decode(c: &mut Context<'_>, x: ValueId, from: DataType, to: Dtype) -> Outcome<ValueId> {
    if from == DataType::Float8E4M3Fn {
        let value = c.map(Expr::arg(0).unary(Unary::OfE4m3), &[x])?;
        return c.cast(value, to);
    }
    let Some(format) = format(from) else { return c.cast(x, to) };
    let table = format.table();
    let table = c.constant(&Tensor::of(&[table.len()], &table));
    let at = c.cast(x, Dtype::I32)?;
    let value = c.op(Op::Gather(0), &[table, at])?;
    c.cast(value, to)
}

/// The codes of the nearest numbers. A number that is too large becomes the largest one if `saturate`, else infinity or
/// NaN.
pub(super) fn encode(c: &mut Context<'_>, x: ValueId, to: DataType, saturate: bool) -> Outcome<ValueId> {
    if let Some([low, high]) = integer_range(to) {
        return integers(c, x, [low, high]);
    }
    let format = format(to).ok_or_else(|| format!("to {to}: no graph has this type"))?;
    let x = c.cast(x, Dtype::F32)?;
    if to == DataType::Float8E4M3Fn && saturate {
        return c.map(Expr::arg(0).unary(Unary::ToE4m3), &[x]);
    }
    let size = c.map(Expr::arg(0).unary(Unary::Abs), &[x])?;
    let steps = format.steps();
    // The code of a number is found bit by bit.
    let codes = (steps.len() + 1).next_power_of_two();
    let padded: Vec<f32> = steps.iter().copied().chain(std::iter::repeat(f32::INFINITY)).take(codes).collect();
    let table = c.constant(&Tensor::of(&[codes], &padded));
    let mut code = c.map(Expr::arg(0).cast(Dtype::I32) * Expr::int(Dtype::I32, 0), &[size])?;
    let mut bit = codes / 2;
    while bit > 0 {
        let next = c.map(Expr::arg(0) + Expr::int(Dtype::I32, bit as i128 - 1), &[code])?;
        let step = c.op(Op::Gather(0), &[table, next])?;
        let passes = Expr::arg(2).binary(Binary::LessEqual, Expr::arg(1));
        let taken = passes.select(Expr::arg(0) + Expr::int(Dtype::I32, bit as i128), Expr::arg(0));
        code = c.map(taken, &[code, size, step])?;
        bit /= 2;
    }
    c.map(finished(&format, saturate), &[x, code])
}

/// Adds the sign, and replaces the codes of numbers that are infinite, NaN or too large.
fn finished(format: &Format, saturate: bool) -> Expr {
    let int = |code: usize| Expr::int(Dtype::I32, code as i128);
    let (x, k) = (|| Expr::arg(0), |value: f64| Expr::float(Dtype::F32, value));
    let last = format.last();
    let above = format.value(last) + (format.value(last) - format.value(last - 1)) / 2.0;
    let too_large = match format.specials {
        Specials::None => int(last),
        _ if saturate => int(last),
        Specials::InfinityAndNan => int(last + 1),
        Specials::Nan | Specials::MinusZero => int(format.nan()),
    };
    let even = last.is_multiple_of(2);
    let size = || x().unary(Unary::Abs);
    let beyond = if even { k(above).binary(Binary::Less, size()) } else { k(above).binary(Binary::LessEqual, size()) };
    let code = beyond.select(too_large.clone(), Expr::arg(1));
    let infinite = match (format.specials, saturate) {
        (Specials::InfinityAndNan, false) => int(last + 1),
        _ => too_large,
    };
    let code = x().unary(Unary::IsInf).select(infinite, code);
    let negative = x().binary(Binary::Less, k(0.0)).binary(
        Binary::Or,
        x().binary(Binary::Equal, k(0.0)).binary(Binary::And, (k(1.0) / x()).binary(Binary::Less, k(0.0))),
    );
    let code = match (format.signed, format.specials) {
        (false, _) => code,
        (true, Specials::MinusZero) => {
            let some = int(0)
                .binary(Binary::Less, code.clone())
                .binary(Binary::And, code.clone().binary(Binary::Less, int(format.codes())));
            negative.binary(Binary::And, some).select(code.clone() + int(format.codes()), code)
        }
        (true, _) => negative.select(code.clone() + int(format.codes()), code),
    };
    x().unary(Unary::IsNan).select(int(format.nan()), code).cast(Dtype::U8)
}

/// The lowest bits of whole numbers; floats are truncated first.
fn integers(c: &mut Context<'_>, x: ValueId, [low, high]: [i64; 2]) -> Outcome<ValueId> {
    let to = if low < 0 { Dtype::I8 } else { Dtype::U8 };
    let int = |value: i64| Expr::int(Dtype::I64, value.into());
    let wrapped = (Expr::arg(0).cast(Dtype::I64) - int(low)).binary(Binary::Mod, int(high - low + 1)) + int(low);
    c.map(wrapped.cast(to), &[x])
}
