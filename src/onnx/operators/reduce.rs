//! Sums and other reductions along axes.

use super::Operator::{Many, One};
use super::{Outcome, Table};
use crate::graph::{ArgReduce, Cumulate, Expr, Op, ReduceOp, TopK, Unary, ValueId};
use crate::onnx::import::{Call, Context, axes_of, axis_of, number, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("ReduceSum", One(sum)),
    ("ReduceMean", One(mean)),
    ("ReduceMax", One(max)),
    ("ReduceMin", One(min)),
    ("ReduceProd", One(prod)),
    ("ReduceL1", One(l1)),
    ("ReduceL2", One(l2)),
    ("ReduceLogSum", One(log_sum)),
    ("ReduceLogSumExp", One(log_sum_exp)),
    ("ReduceSumSquare", One(sum_square)),
    ("ArgMax", One(arg_max)),
    ("ArgMin", One(arg_min)),
    ("CumSum", One(cum_sum)),
    ("CumProd", One(cum_prod)),
    ("TopK", Many(top_k)),
];

/// The axes, and whether the result keeps them. Axes are an attribute up to version 17 (of sums: 12), an input later;
/// without axes all are reduced.
fn along(c: &Call<'_, '_>) -> Outcome<(Vec<usize>, bool)> {
    let rank = c.rank(c.x(0)?);
    let attribute_before = if c.node.op_type == "ReduceSum" { 13 } else { 18 };
    let given = match c.version < attribute_before {
        true => c.ints_attr("axes").map(<[i64]>::to_vec),
        false => c.ints_at(1, "axes")?,
    };
    let given = given.filter(|axes| !axes.is_empty());
    let axes = match given {
        Some(axes) => axes_of(&axes, rank)?,
        None if c.flag("noop_with_empty_axes") => Vec::new(),
        None => (0..rank).collect(),
    };
    Ok((axes, c.int_or("keepdims", 1) != 0))
}

fn plain(c: &mut Call<'_, '_>, op: ReduceOp) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (axes, keep) = along(c)?;
    c.reduce(x, op, &axes, keep)
}

fn sum(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    plain(c, ReduceOp::Sum)
}

/// The mean; for integers it is their sum in 64 bits divided by the number of elements.
fn mean(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dtype = c.dtype(x);
    if dtype.is_float() {
        return plain(c, ReduceOp::Mean);
    }
    let (axes, keep) = along(c)?;
    let count: usize = axes.iter().map(|&axis| c.dims(x)[axis]).product();
    let wide = if dtype.is_signed() { Dtype::I64 } else { Dtype::U64 };
    let x = if dtype.is_integer() { c.cast(x, wide)? } else { x };
    let sum = c.reduce(x, ReduceOp::Sum, &axes, keep)?;
    let mean = c.map(Expr::arg(0) / number(wide, count as f64), &[sum])?;
    c.cast(mean, dtype)
}

fn max(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    plain(c, ReduceOp::Max)
}

fn min(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    plain(c, ReduceOp::Min)
}

fn prod(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    plain(c, ReduceOp::Prod)
}

/// A function of the sum of a function of the elements, computed in f32 or a wider type.
fn sum_of(c: &mut Call<'_, '_>, before: impl Fn(Expr) -> Expr, after: impl Fn(Expr) -> Expr) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (axes, keep) = along(c)?;
    let dtype = c.dtype(x);
    let wide = widened(c, x)?;
    let each = c.map(before(Expr::arg(0)), &[wide])?;
    let sum = c.reduce(each, ReduceOp::Sum, &axes, keep)?;
    let result = c.map(after(Expr::arg(0)), &[sum])?;
    c.cast(result, dtype)
}

/// Halves are converted to f32; other types stay.
pub(super) fn widened(c: &mut Context<'_>, x: ValueId) -> Outcome<ValueId> {
    match c.dtype(x) {
        Dtype::F16 | Dtype::Bf16 => c.cast(x, Dtype::F32),
        _ => Ok(x),
    }
}

fn l1(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    sum_of(c, |x| x.unary(Unary::Abs), |sum| sum)
}

fn l2(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    sum_of(c, |x| x.clone() * x, |sum| sum.unary(Unary::Sqrt))
}

fn log_sum(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    sum_of(c, |x| x, |sum| sum.unary(Unary::Log))
}

fn sum_square(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    sum_of(c, |x| x.clone() * x, |sum| sum)
}

/// log(sum(exp(x - m))) + m, where m is the maximum if that is finite.
fn log_sum_exp(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (axes, keep) = along(c)?;
    let dtype = c.dtype(x);
    let wide = widened(c, x)?;
    let max = c.reduce(wide, ReduceOp::Max, &axes, true)?;
    let zero = number(c.dtype(max), 0.0);
    let max = c.map(Expr::arg(0).unary(Unary::IsInf).select(zero, Expr::arg(0)), &[max])?;
    let each = c.map((Expr::arg(0) - Expr::arg(1)).unary(Unary::Exp), &[wide, max])?;
    let sum = c.reduce(each, ReduceOp::Sum, &axes, true)?;
    let result = c.map(Expr::arg(0).unary(Unary::Log) + Expr::arg(1), &[sum, max])?;
    let dims: Vec<usize> = c
        .dims(result)
        .iter()
        .enumerate()
        .filter(|(axis, _)| keep || !axes.contains(axis))
        .map(|(_, &dim)| dim)
        .collect();
    let result = c.reshape(result, &dims)?;
    c.cast(result, dtype)
}

fn arg(c: &mut Call<'_, '_>, largest: bool) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let of = ArgReduce { largest, axis, keep: c.int_or("keepdims", 1) != 0, last: c.flag("select_last_index") };
    c.op(Op::ArgReduce(of), &[x])
}

fn arg_max(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    arg(c, true)
}

fn arg_min(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    arg(c, false)
}

fn cumulate(c: &mut Call<'_, '_>, op: ReduceOp) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let axis = axis_of(c.int_at(1, "the axis")?.ok_or("expected an axis")?, c.rank(x))?;
    let of = Cumulate { op, axis, exclusive: c.flag("exclusive"), reverse: c.flag("reverse") };
    c.op(Op::Cumulate(of), &[x])
}

fn cum_sum(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    cumulate(c, ReduceOp::Sum)
}

fn cum_prod(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    cumulate(c, ReduceOp::Prod)
}

/// The number k is an attribute up to version 9, an input later.
fn top_k(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let axis = c.axis_attr("axis", -1, c.rank(x))?;
    let k = if c.version < 10 { c.int("k") } else { c.int_at(1, "k")? };
    let k = size_of_dim(k.ok_or("expected k")?, "k")?;
    let of = TopK { axis, k, largest: c.int_or("largest", 1) != 0 };
    c.emit(Op::TopK(of), &[Some(x)], 2)
}
