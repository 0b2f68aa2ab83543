//! The largest or smallest elements along an axis, found by counting the elements that come before each.

use super::{Writer, neutral};
use crate::graph::expr::{Binary, Expr, Number, Unary};
use crate::graph::op::{Op, ReduceOp, TopK};
use crate::graph::value::ValueId;
use crate::tensor::Dtype;

/// The least size of a block whose elements are all compared with one another, also as a multiple of the number of
/// elements that are wanted. Longer axes are split into blocks: the wanted elements are among those of the blocks.
const BLOCK: usize = 256;
const TIMES: usize = 4;

pub(super) fn expand(w: &mut Writer<'_, '_>, of: &TopK, x: ValueId) -> Vec<ValueId> {
    let indices = indices(w, of, x);
    vec![w.op(Op::GatherElements(of.axis), &[x, indices]), indices]
}

fn indices(w: &mut Writer<'_, '_>, of: &TopK, x: ValueId) -> ValueId {
    let (dims, axis, block) = (w.dims(x), of.axis, BLOCK.max(TIMES * of.k));
    if dims[axis] <= block {
        return ranked(w, of, x);
    }
    let blocks = dims[axis].div_ceil(block);
    let x = w.pad(x, axis, blocks * block - dims[axis], last(of, w.of(x).dtype));
    let along = |along: &[usize]| [&dims[..axis], along, &dims[axis + 1..]].concat();
    let x = w.reshape(x, &along(&[blocks, block]));
    let best = ranked(w, &TopK { axis: axis + 1, ..*of }, x);
    let values = w.op(Op::GatherElements(axis + 1), &[x, best]);
    let [values, best] = [values, best].map(|each| w.reshape(each, &along(&[blocks * of.k])));
    let chosen = indices(w, of, values);
    let within = w.op(Op::GatherElements(axis), &[best, chosen]);
    let size = |elems: usize| Expr::int(Dtype::I64, elems as i128);
    w.map(Expr::arg(0) / size(of.k) * size(block) + Expr::arg(1), &[chosen, within])
}

/// The number that comes last, after all others.
fn last(of: &TopK, dtype: Dtype) -> Number {
    match (of.largest, dtype.is_float()) {
        (true, _) => neutral(ReduceOp::Max, dtype),
        (false, true) => Number::Float(f64::NAN),
        (false, false) => neutral(ReduceOp::Min, dtype),
    }
}

/// The indices of the wanted elements, found by counting the elements that come before each.
fn ranked(w: &mut Writer<'_, '_>, of: &TopK, x: ValueId) -> ValueId {
    let (axis, rank) = (of.axis, w.of(x).rank());
    let [own, other] = [axis + 1, axis].map(|at| w.unsqueeze(x, at));
    let before = w.map(comes_before(of, w.of(x).dtype).cast(Dtype::I64), &[own, other]);
    let place = w.reduce(ReduceOp::Sum, before, axis + 1);
    let place = w.unsqueeze(place, axis);
    let places = w.counted(of.k, rank - axis);
    let has_it = Expr::arg(0).binary(Binary::Equal, Expr::arg(1));
    let index = w.map(has_it.select(Expr::Axis(axis + 1), Expr::int(Dtype::I64, 0)), &[place, places]);
    w.reduce(ReduceOp::Sum, index, axis + 1)
}

/// Whether operand 1, the element along the second of the two axes, comes before operand 0, the element along the
/// first.
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
