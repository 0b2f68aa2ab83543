//! Cumulative sums along an axis, as sums of each element and all before it.

use super::{Writer, inner, neutral};
use crate::graph::expr::{Binary, Expr};
use crate::graph::op::{Cumulate, Op, ReduceOp, Slice};
use crate::graph::value::ValueId;

/// The elements of a block. Each is summed with all elements before it in the block; the sums of blocks are accumulated
/// in turn.
const BLOCK: usize = 32;

pub(super) fn expand(w: &mut Writer<'_, '_>, of: &Cumulate, x: ValueId) -> ValueId {
    let dtype = w.of(x).dtype;
    let x = w.cast(x, inner(dtype));
    let sums = so_far(w, of, x);
    w.cast(sums, dtype)
}

fn so_far(w: &mut Writer<'_, '_>, of: &Cumulate, x: ValueId) -> ValueId {
    let (dims, axis) = (w.dims(x), of.axis);
    if dims[axis] <= BLOCK {
        return within(w, of, x);
    }
    let blocks = dims[axis].div_ceil(BLOCK);
    let [padded, split] =
        [&[blocks * BLOCK][..], &[blocks, BLOCK]].map(|along| [&dims[..axis], along, &dims[axis + 1..]].concat());
    let x = w.pad(x, axis, padded[axis] - dims[axis], neutral(of.op, w.of(x).dtype));
    let x = w.reshape(x, &split);
    let own = within(w, &Cumulate { axis: axis + 1, ..*of }, x);
    let sums = w.reduce(of.op, x, axis + 1);
    let before = so_far(w, &Cumulate { exclusive: true, ..*of }, sums);
    let before = w.unsqueeze(before, axis + 1);
    let all = w.map(Expr::arg(0).binary(combine(of.op), Expr::arg(1)), &[own, before]);
    let all = w.reshape(all, &padded);
    w.op(Op::Slice(Slice { start: vec![0; dims.len()], step: vec![1; dims.len()], dims }), &[all])
}

const fn combine(op: ReduceOp) -> Binary {
    if matches!(op, ReduceOp::Prod) { Binary::Mul } else { Binary::Add }
}

/// For each element, the sum of itself and all elements before it.
fn within(w: &mut Writer<'_, '_>, of: &Cumulate, x: ValueId) -> ValueId {
    let (axis, size, rank, dtype) = (of.axis, w.of(x).dims[of.axis], w.of(x).rank(), w.of(x).dtype);
    let others = w.unsqueeze(x, axis);
    let own = w.counted(size, rank - axis);
    let (own_index, index) = (Expr::arg(1), Expr::Axis(axis + 1));
    let (first, second) = if of.reverse { (own_index, index) } else { (index, own_index) };
    let counts = first.binary(if of.exclusive { Binary::Less } else { Binary::LessEqual }, second);
    let part = counts.select(Expr::arg(0), Expr::Const(dtype, neutral(of.op, dtype)));
    let parts = w.map(part, &[others, own]);
    w.reduce(of.op, parts, axis + 1)
}
