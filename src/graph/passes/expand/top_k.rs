//! The extremes along an axis, by how many elements come before each.

use super::Writer;
use crate::graph::expr::{Binary, Expr, Unary};
use crate::graph::op::{Op, ReduceOp, TopK};
use crate::graph::value::ValueId;
use crate::tensor::Dtype;

pub(super) fn expand(w: &mut Writer<'_, '_>, of: &TopK, x: ValueId) -> Vec<ValueId> {
    let (axis, rank) = (of.axis, w.of(x).rank());
    let [own, other] = [axis + 1, axis].map(|at| w.unsqueeze(x, at));
    let before = w.map(comes_before(of, w.of(x).dtype).cast(Dtype::I64), &[own, other]);
    let place = w.reduce(ReduceOp::Sum, before, axis + 1);
    let place = w.unsqueeze(place, axis);
    let places = w.counted(of.k, rank - axis);
    let has_it = Expr::arg(0).binary(Binary::Equal, Expr::arg(1));
    let index = w.map(has_it.select(Expr::Axis(axis + 1), Expr::int(Dtype::I64, 0)), &[place, places]);
    let indices = w.reduce(ReduceOp::Sum, index, axis + 1);
    vec![w.op(Op::GatherElements(axis), &[x, indices]), indices]
}

/// Whether the element along the second of the two axes, operand 1, comes before that along the first, operand 0.
fn comes_before(of: &TopK, dtype: Dtype) -> Expr {
    let (own, other) = (Expr::arg(0), Expr::arg(1));
    let (then, otherwise) = match of.largest {
        true => (less(dtype, other.clone(), own.clone()), less(dtype, own, other)),
        false => (less(dtype, own.clone(), other.clone()), less(dtype, other, own)),
    };
    let is_first = Expr::Axis(of.axis + 1).binary(Binary::Less, Expr::Axis(of.axis));
    is_first.select(then.unary(Unary::Not), otherwise)
}

/// Whether a is smaller; NaN is larger than every number.
fn less(dtype: Dtype, a: Expr, b: Expr) -> Expr {
    let smaller = a.clone().binary(Binary::Less, b.clone());
    if !dtype.is_float() {
        return smaller;
    }
    let is_number = a.unary(Unary::IsNan).unary(Unary::Not);
    smaller.binary(Binary::Or, is_number.binary(Binary::And, b.unary(Unary::IsNan)))
}
