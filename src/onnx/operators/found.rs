//! Values whose size depends on the data. They have room for the most elements that there can be. After the elements in
//! use, indices are -1 and other elements are 0.

use super::Operator::{Many, One};
use super::{Outcome, Table};
use crate::graph::{ArgReduce, Binary, Expr, Op, ReduceOp, Unary, ValueId};
use crate::onnx::import::{Call, Context, axis_of, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("NonZero", One(non_zero)), ("Compress", One(compress)), ("Unique", Many(unique))];

fn index(value: usize) -> Expr {
    Expr::int(Dtype::I64, value as i128)
}

/// The expression where operand 0 is an index, else -1 where operand 0 is -1.
pub(super) fn where_found(of: Expr) -> Expr {
    index(0).binary(Binary::LessEqual, Expr::arg(0)).select(of, Expr::int(Dtype::I64, -1))
}

/// The indices along each axis of elements that are not 0: `[rank, elements]`.
fn non_zero(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (dims, elems) = (c.dims(x), c.of(x).elems());
    let flat = c.reshape(x, &[elems])?;
    let is_one = c.cast(flat, Dtype::Bool)?;
    let places = c.places(is_one)?;
    let row = c.unsqueeze(places, 0)?;
    if dims.is_empty() {
        return c.slice(row, 0, 0, 0);
    }
    let mut rows = Vec::with_capacity(dims.len());
    for (axis, &dim) in dims.iter().enumerate() {
        let inner = dims[axis + 1..].iter().product();
        let along = (Expr::arg(0) / index(inner)).binary(Binary::Rem, index(dim));
        rows.push(c.map(where_found(along), &[row])?);
    }
    c.concat(&rows, 0)
}

/// The slices along an axis at which a condition holds.
fn compress(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, condition) = (c.x(0)?, c.x(1)?);
    let (x, axis) = along(c, x)?;
    let at = c.places(condition)?;
    gathered(c, x, axis, at)
}

/// The operand and its axis; without an axis, all elements in one dimension.
fn along(c: &mut Call<'_, '_>, x: ValueId) -> Outcome<(ValueId, usize)> {
    match c.int("axis") {
        Some(axis) => Ok((x, axis_of(axis, c.rank(x))?)),
        None => Ok((c.cx.reshape(x, &[c.of(x).elems()])?, 0)),
    }
}

/// The slices along an axis at these indices, with zeros for an index of -1.
fn gathered(c: &mut Context<'_>, x: ValueId, axis: usize, at: ValueId) -> Outcome<ValueId> {
    let slices = c.op(Op::Gather(axis), &[x, at])?;
    let mut dims = vec![1; c.rank(x)];
    dims[axis] = c.of(at).elems();
    let at = c.reshape(at, &dims)?;
    let nothing = number(c.dtype(x), 0.0);
    c.map(index(0).binary(Binary::LessEqual, Expr::arg(0)).select(Expr::arg(1), nothing), &[at, slices])
}

/// The distinct slices along an axis, the index at which each first occurs, the number of each slice, and how often
/// each occurs.
fn unique(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let (x, axis) = along(c, x)?;
    let size = c.dims(x)[axis];
    let [equal, less] = compared(c, x, axis)?;
    let first = c.map(Expr::arg(0).select(Expr::Axis(1), index(size)), &[equal])?;
    let first = c.reduce(first, ReduceOp::Min, &[1], false)?;
    let less = (c.int_or("sorted", 1) != 0).then_some(less);
    let which = numbered(c, first, less)?;
    let is_first = c.map(Expr::arg(0).binary(Binary::Equal, Expr::Axis(0)).cast(Dtype::I64), &[first])?;
    let count = c.reduce(is_first, ReduceOp::Sum, &[0], false)?;
    let at = found_at(c, which, is_first, count)?;
    let numbers = c.indices(&[size, 1], 0)?;
    let is_it = c.map(Expr::arg(0).binary(Binary::Equal, Expr::arg(1)).cast(Dtype::I64), &[numbers, which])?;
    let times = c.reduce(is_it, ReduceOp::Sum, &[1], false)?;
    let [at, times] = [c.count(at, 0, count)?, c.count(times, 0, count)?];
    Ok(vec![gathered(c, x, axis, at)?, at, which, times])
}

/// The number of distinct slices that come before each slice: smaller ones, or, without an order, those that occur
/// earlier.
fn numbered(c: &mut Context<'_>, first: ValueId, less: Option<ValueId>) -> Outcome<ValueId> {
    let size = c.of(first).elems();
    let [own, other] = [c.reshape(first, &[size, 1])?, c.reshape(first, &[1, size])?];
    let is_first = Expr::arg(1).binary(Binary::Equal, Expr::Axis(1));
    let earlier = Expr::arg(1).binary(Binary::Less, Expr::arg(0));
    let before = match less {
        None => c.map(is_first.binary(Binary::And, earlier).cast(Dtype::I64), &[own, other])?,
        Some(less) => {
            let smaller = c.transpose(less, &[1, 0])?;
            let tie = Expr::arg(2).unary(Unary::Not).binary(Binary::And, earlier);
            let is_before = Expr::arg(3).binary(Binary::Or, tie);
            c.map(is_first.binary(Binary::And, is_before).cast(Dtype::I64), &[own, other, less, smaller])?
        }
    };
    c.reduce(before, ReduceOp::Sum, &[1], false)
}

/// For each number the index of the first element that has it, followed by -1 from `count` on.
fn found_at(c: &mut Context<'_>, which: ValueId, is_first: ValueId, count: ValueId) -> Outcome<ValueId> {
    let size = c.of(which).elems();
    let numbers = c.indices(&[size, 1], 0)?;
    let is_it = Expr::arg(0).binary(Binary::Equal, Expr::arg(1));
    let at = c.map(is_it.select(Expr::arg(2) * Expr::Axis(1), index(0)), &[numbers, which, is_first])?;
    let at = c.reduce(at, ReduceOp::Sum, &[1], false)?;
    let is_there = Expr::Axis(0).binary(Binary::Less, Expr::arg(1));
    c.map(is_there.select(Expr::arg(0), Expr::int(Dtype::I64, -1)), &[at, count])
}

/// Which slices along an axis are equal, and which are smaller than which, `[size, size]`. They are compared by their
/// first elements that differ. NaN is larger than every number, and equal only to itself in the same slice.
fn compared(c: &mut Context<'_>, x: ValueId, axis: usize) -> Outcome<[ValueId; 2]> {
    let (dims, rank) = (c.dims(x), c.rank(x));
    let x = if c.dtype(x) == Dtype::Bool { c.cast(x, Dtype::U8)? } else { x };
    let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&other| other != axis)).collect();
    let rows = c.transpose(x, &order)?;
    let inner = dims.iter().enumerate().filter(|(other, _)| *other != axis).map(|(_, &dim)| dim).product();
    let rows = c.reshape(rows, &[dims[axis], inner])?;
    let [a, b] = [c.unsqueeze(rows, 1)?, c.unsqueeze(rows, 0)?];
    let differ = c.map(Expr::arg(0).binary(Binary::Equal, Expr::arg(1)).unary(Unary::Not), &[a, b])?;
    let first = c.op(Op::ArgReduce(ArgReduce { largest: true, axis: 2, keep: false, last: false }), &[differ])?;
    let own = c.op(Op::GatherElements(1), &[rows, first])?;
    let other = c.transpose(own, &[1, 0])?;
    let (a, b) = (Expr::arg(0), Expr::arg(1));
    let same = a.clone().binary(Binary::Equal, b.clone());
    let equal = same.binary(Binary::Or, Expr::Axis(0).binary(Binary::Equal, Expr::Axis(1)));
    let smaller = a.clone().binary(Binary::Less, b.clone());
    let smaller = match c.dtype(x).is_float() {
        true => {
            let is_number = a.unary(Unary::IsNan).unary(Unary::Not);
            smaller.binary(Binary::Or, is_number.binary(Binary::And, b.unary(Unary::IsNan)))
        }
        false => smaller,
    };
    Ok([c.map(equal, &[own, other])?, c.map(smaller, &[own, other])?])
}
