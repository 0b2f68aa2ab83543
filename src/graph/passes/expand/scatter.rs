//! Scatters: elements are replaced or combined at places, and each place looks for its updates.

use super::{Writer, inner, neutral};
use crate::graph::expr::{Binary, Expr, Number};
use crate::graph::op::{Op, Pad, PadMode, Reduce, ReduceOp, Scatter, place};
use crate::graph::tensor::Tensor;
use crate::graph::value::ValueId;
use crate::tensor::Dtype;

/// The most elements of a constant that lists the updates of each place.
const MOST_KNOWN: usize = 1 << 20;

/// Updates along an axis of `x`, and the places along this axis that they go to. The other axes are those of `x`; in
/// `places` they may have size 1. A place of -1 stands for no place.
struct Updates {
    axis: usize,
    x: ValueId,
    places: ValueId,
    updates: ValueId,
    /// The places, if they are known.
    known: Option<Vec<i64>>,
}

pub(super) fn elements(w: &mut Writer<'_, '_>, axis: usize, how: Scatter, operands: [ValueId; 3]) -> ValueId {
    let [x, at, updates] = operands;
    if w.of(updates).elems() == 0 {
        return x;
    }
    let (dims, part) = (w.dims(x), w.dims(at));
    let size = Expr::int(Dtype::I64, dims[axis] as i128);
    let places = w.map(place_of(Expr::arg(0), size), &[at]);
    let mut all = dims.clone();
    all[axis] = part[axis];
    let grow = |w: &mut Writer<'_, '_>, of: ValueId, with: Number| {
        let after = all.iter().zip(&part).map(|(all, part)| (all - part) as isize).collect();
        w.op(Op::Pad(Pad { before: vec![0; all.len()], after, mode: PadMode::Constant(with) }), &[of])
    };
    let places = grow(w, places, Number::Int(-1));
    let updates = grow(w, updates, neutral(ReduceOp::Sum, w.of(x).dtype));
    let known = w.rebuild.known(at).and_then(|at| at.to_i64s()).map(|at| {
        let number = |place: usize| number_within(place, &all, &part);
        (0..all.iter().product()).map(|to| number(to).map_or(-1, |from| place(at[from], dims[axis]) as i64)).collect()
    });
    scatter(w, how, Updates { axis, x, places, updates, known })
}

pub(super) fn slices(w: &mut Writer<'_, '_>, how: Scatter, [x, at, updates]: [ValueId; 3]) -> ValueId {
    if w.of(updates).elems() == 0 {
        return x;
    }
    let (dims, rows) = (w.dims(x), w.dims(at));
    let (outer, len) = (&rows[..rows.len() - 1], rows[rows.len() - 1]);
    let [count, places, run] = [outer, &dims[..len], &dims[len..]].map(|dims| dims.iter().product::<usize>());
    let sizes: Vec<i64> = dims[..len].iter().map(|&size| size as i64).collect();
    let strides: Vec<i64> = (0..len).map(|axis| sizes[axis + 1..].iter().product()).collect();
    let known = w.rebuild.known(at).and_then(|at| at.to_i64s()).map(|at| {
        let along = |row: usize, axis: usize| place(at[row * len + axis], dims[axis]) as i64 * strides[axis];
        (0..count).map(|row| (0..len).map(|axis| along(row, axis)).sum()).collect()
    });
    let at = w.reshape(at, &[count, len]);
    let [sizes, strides] = [&sizes, &strides].map(|all| w.rebuild.constant(&Tensor::of(&[len], all)));
    let parts = w.map(place_of(Expr::arg(0), Expr::arg(1)) * Expr::arg(2), &[at, sizes, strides]);
    let at = w.op(Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: true }), &[parts]);
    let [x, updates] = [(x, places), (updates, count)].map(|(of, outer)| w.reshape(of, &[outer, run]));
    let result = scatter(w, how, Updates { axis: 0, x, places: at, updates, known });
    w.reshape(result, &dims)
}

/// The position that an index along an axis of this size stands for: [`place`] as an expression.
fn place_of(index: Expr, size: Expr) -> Expr {
    let zero = || Expr::int(Dtype::I64, 0);
    let index = index.cast(Dtype::I64);
    let from_end = index.clone() + size.clone();
    let index = index.clone().binary(Binary::Less, zero()).select(from_end, index);
    index.binary(Binary::Max, zero()).binary(Binary::Min, size - Expr::int(Dtype::I64, 1))
}

/// The number that an element of a value with dimensions `all` has in a value with the smaller dimensions `part`;
/// `None` if it lies outside.
fn number_within(number: usize, all: &[usize], part: &[usize]) -> Option<usize> {
    let mut left = number;
    let (mut found, mut stride) = (0, 1);
    for (&all, &part) in all.iter().zip(part).rev() {
        let index = left % all;
        (left, found, stride) = (left / all, found + index * stride, stride * part);
        if index >= part {
            return None;
        }
    }
    Some(found)
}

fn scatter(w: &mut Writer<'_, '_>, how: Scatter, mut of: Updates) -> ValueId {
    let reduction = match how {
        Scatter::Replace => {
            let last = candidates(w, &of, true).unwrap_or_else(|| last(w, &of));
            return replaced(w, &of, last);
        }
        Scatter::Add => (ReduceOp::Sum, Binary::Add),
        Scatter::Mul => (ReduceOp::Prod, Binary::Mul),
        Scatter::Min => (ReduceOp::Min, Binary::Min),
        Scatter::Max => (ReduceOp::Max, Binary::Max),
    };
    let dtype = w.of(of.x).dtype;
    [of.x, of.updates] = [of.x, of.updates].map(|value| w.cast(value, inner(dtype)));
    let combined = combined(w, &of, reduction.0);
    let result = w.map(Expr::arg(0).binary(reduction.1, Expr::arg(1)), &[of.x, combined]);
    w.cast(result, dtype)
}

/// For each place the number of its last update, or -1, with an axis of size 1 after the axis.
fn last(w: &mut Writer<'_, '_>, of: &Updates) -> ValueId {
    let number = is_there(of.axis).select(Expr::Axis(of.axis + 1), Expr::int(Dtype::I64, -1));
    let pairs = pairs(w, of);
    let numbers = w.map(number, &pairs);
    w.op(Op::Reduce(Reduce { op: ReduceOp::Max, axes: vec![of.axis + 1], keep: true }), &[numbers])
}

/// Whether the update along the second of the two axes goes to the place along the first.
fn is_there(axis: usize) -> Expr {
    Expr::arg(0).binary(Binary::Equal, Expr::Axis(axis))
}

/// The places of the updates, and the numbers of all places, to be compared.
fn pairs(w: &mut Writer<'_, '_>, of: &Updates) -> [ValueId; 2] {
    let (size, rank) = (w.of(of.x).dims[of.axis], w.of(of.x).rank());
    [w.unsqueeze(of.places, of.axis), w.counted(size, rank - of.axis)]
}

/// For each place, all its updates combined.
fn combined(w: &mut Writer<'_, '_>, of: &Updates, op: ReduceOp) -> ValueId {
    let dtype = w.of(of.x).dtype;
    let nothing = Expr::Const(dtype, neutral(op, dtype));
    let parts = match candidates(w, of, false) {
        Some(numbers) => {
            let updates = picked(w, of, numbers);
            w.map(is_any().select(Expr::arg(1), nothing), &[numbers, updates])
        }
        None => {
            let ([places, each], updates) = (pairs(w, of), w.unsqueeze(of.updates, of.axis));
            w.map(is_there(of.axis).select(Expr::arg(2), nothing), &[places, each, updates])
        }
    };
    w.reduce(op, parts, of.axis + 1)
}

/// The elements of x, replaced by the update of this number where there is one.
fn replaced(w: &mut Writer<'_, '_>, of: &Updates, last: ValueId) -> ValueId {
    let updates = picked(w, of, last);
    let x = w.unsqueeze(of.x, of.axis + 1);
    let result = w.map(is_any().select(Expr::arg(1), Expr::arg(2)), &[last, updates, x]);
    let dims = w.dims(of.x);
    w.reshape(result, &dims)
}

/// Whether operand 0 is the number of an update.
fn is_any() -> Expr {
    Expr::int(Dtype::I64, 0).binary(Binary::LessEqual, Expr::arg(0))
}

/// The updates of these numbers, `[…, places, several, …]`; arbitrary for -1.
fn picked(w: &mut Writer<'_, '_>, of: &Updates, numbers: ValueId) -> ValueId {
    let mut dims = w.dims(of.x);
    let several = w.of(numbers).dims[of.axis + 1];
    let split = [&dims[..=of.axis], &[several], &dims[of.axis + 1..]].concat();
    dims[of.axis] *= several;
    let mut flat = w.dims(numbers);
    flat.remove(of.axis + 1);
    flat[of.axis] = dims[of.axis];
    let numbers = w.reshape(numbers, &flat);
    let numbers = w.op(Op::Broadcast(dims), &[numbers]);
    let updates = w.op(Op::GatherElements(of.axis), &[of.updates, numbers]);
    w.reshape(updates, &split)
}

/// For each place the numbers of its updates, or of the last one only, `[…, places, several, …]`, filled up with -1.
/// `None` if the places are not known, or the constant would be too large.
fn candidates(w: &mut Writer<'_, '_>, of: &Updates, last: bool) -> Option<ValueId> {
    let known = of.known.as_ref()?;
    let (mut dims, axis) = (w.dims(of.places), of.axis);
    let (count, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    dims[axis] = w.of(of.x).dims[axis];
    let mut all: Vec<Vec<i64>> = vec![Vec::new(); Some(dims.iter().product()).filter(|&elems| elems <= MOST_KNOWN)?];
    for (number, &place) in known.iter().enumerate().filter(|(_, place)| **place >= 0) {
        let (outer, update, inner_index) = (number / (count * inner), number / inner % count, number % inner);
        let there = &mut all[(outer * dims[axis] + place as usize) * inner + inner_index];
        if last {
            there.clear();
        }
        there.push(update as i64);
    }
    let several = all.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let total = Some(several * all.len()).filter(|&elems| elems <= MOST_KNOWN)?;
    dims.insert(axis + 1, several);
    let number = |at: usize| {
        let (rest, inner_index) = (at / inner, at % inner);
        all[rest / several * inner + inner_index].get(rest % several).copied().unwrap_or(-1)
    };
    let numbers: Vec<i64> = (0..total).map(number).collect();
    Some(w.rebuild.constant(&Tensor::of(&dims, &numbers)))
}
