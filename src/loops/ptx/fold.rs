//! The start values of reductions, and the code that combines values.

use super::function::{self, Known};
use super::number::kind;
use super::text::{Class, Reg, Text};
use crate::graph::{Binary, Number};
use crate::loops::ir::Monoid;
use crate::loops::scalar::bits;
use crate::tensor::Dtype;

/// A reduction: of one number, or of an extreme value with the index beside it and its place among all points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    pub op: Monoid,
    /// The type of the values that are combined.
    pub dtype: Dtype,
    /// The types of the index beside an extreme value, and of its place.
    pub index: Dtype,
    pub place: Dtype,
}

impl Fold {
    /// The types of the parts that are combined.
    pub fn parts(&self) -> Vec<Dtype> {
        match self.op {
            Monoid::Arg { .. } => vec![self.dtype, self.index, self.place],
            _ => vec![self.dtype],
        }
    }

    /// New registers with the result of a reduction of no values.
    pub fn start(&self, text: &mut Text) -> Vec<Reg> {
        let of_parts = |neutral: u64| match self.op {
            Monoid::Arg { last, .. } => vec![neutral, 0, if last { u64::MAX } else { i64::MAX as u64 >> self.spare() }],
            _ => vec![neutral],
        };
        let parts = of_parts(self.neutral());
        self.parts().iter().zip(parts).map(|(&dtype, bits)| text.number(Class::of(dtype), bits)).collect()
    }

    /// The number of bits of an i64 that places do not have.
    fn spare(&self) -> usize {
        64 - 8 * self.place.bytes()
    }

    fn neutral(&self) -> u64 {
        let (lowest, highest) = extremes(self.dtype);
        match self.op {
            Monoid::Sum => bits(self.dtype, zero(self.dtype, 0)),
            Monoid::Prod => bits(self.dtype, zero(self.dtype, 1)),
            Monoid::Min | Monoid::Arg { largest: false, .. } => highest,
            Monoid::Max | Monoid::Arg { largest: true, .. } => lowest,
        }
    }

    /// Combines new values into the registers `so_far`.
    pub fn combine(&self, text: &mut Text, so_far: &[Reg], new: &[Reg]) {
        let with = match self.op {
            Monoid::Sum => Binary::Add,
            Monoid::Prod => Binary::Mul,
            Monoid::Min if self.dtype == Dtype::Bool => Binary::And,
            Monoid::Max if self.dtype == Dtype::Bool => Binary::Or,
            Monoid::Min => Binary::Min,
            Monoid::Max => Binary::Max,
            Monoid::Arg { largest, last } => return self.take(text, [largest, last], so_far, new),
        };
        let sum = function::binary(text, with, self.dtype, [so_far[0], new[0]], Known::default());
        text.set(so_far[0], &format!("mov.{}", sum.class.bits()), &[&sum]);
    }

    /// Takes new values if they are more extreme, or equally extreme and at the better place.
    fn take(&self, text: &mut Text, [largest, last]: [bool; 2], so_far: &[Reg], new: &[Reg]) {
        let less = |text: &mut Text, dtype: Dtype, of: [Reg; 2]| {
            function::binary(text, Binary::Less, dtype, of, Known::default())
        };
        let ordered = |first: bool, a: Reg, b: Reg| if first { [a, b] } else { [b, a] };
        let more = match self.dtype {
            Dtype::Bool => {
                let [low, high] = ordered(largest, so_far[0], new[0]);
                let not = text.op(Class::Pred, "not.pred", &[&low]);
                text.op(Class::Pred, "and.pred", &[&not, &high])
            }
            dtype => less(text, dtype, ordered(largest, so_far[0], new[0])),
        };
        let better = less(text, self.place, ordered(last, so_far[2], new[2]));
        let equal = function::binary(text, Binary::Equal, self.dtype, [so_far[0], new[0]], Known::default());
        let (mut more, mut equal) = (more, equal);
        if self.dtype.is_float() {
            let [old, new] =
                [so_far[0], new[0]].map(|x| text.op(Class::Pred, &format!("setp.nan.{}", kind(self.dtype)), &[&x, &x]));
            let both = text.op(Class::Pred, "and.pred", &[&old, &new]);
            let differ = text.op(Class::Pred, "xor.pred", &[&old, &new]);
            let first = text.op(Class::Pred, "and.pred", &[&differ, &new]);
            more = text.op(Class::Pred, "or.pred", &[&more, &first]);
            equal = text.op(Class::Pred, "or.pred", &[&equal, &both]);
        }
        let tie = text.op(Class::Pred, "and.pred", &[&equal, &better]);
        let taken = text.op(Class::Pred, "or.pred", &[&more, &tie]);
        for (&so_far, &new) in so_far.iter().zip(new) {
            let chosen = function::select(text, [taken, new, so_far]);
            text.set(so_far, &format!("mov.{}", so_far.class.bits()), &[&chosen]);
        }
    }
}

/// 0 or 1 in a type.
fn zero(dtype: Dtype, number: i64) -> Number {
    if dtype.is_float() { Number::Float(number as f64) } else { Number::Int(number.into()) }
}

/// The bits of the lowest and the highest number of a type in a register.
fn extremes(dtype: Dtype) -> (u64, u64) {
    let of = |number: i128| number as u64;
    match dtype {
        Dtype::Bool => (0, 1),
        _ if dtype.is_float() => {
            let [low, high] = [f64::NEG_INFINITY, f64::INFINITY].map(|x| bits(dtype, Number::Float(x)));
            (low, high)
        }
        _ => {
            let width = 8 * dtype.bytes();
            match dtype.is_signed() {
                true => (of(-1 << (width - 1)), of((1 << (width - 1)) - 1)),
                false => (0, of((1 << width) - 1)),
            }
        }
    }
}
