//! Integers that stand for real numbers.

use super::Operator::{Items, Many, One};
use super::cast::{data_type, graph_type};
use super::conv::convolve;
use super::storage::{decode, encode, integer_range};
use super::{Item, Outcome, Table};
use crate::graph::{Binary, Expr, Op, ReduceOp, Unary, ValueId};
use crate::onnx::DataType;
use crate::onnx::import::{Call, Context, axis_of, is_storage, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("QuantizeLinear", Items(quantize)),
    ("DequantizeLinear", Items(dequantize)),
    ("DynamicQuantizeLinear", Many(dynamic)),
    ("MatMulInteger", One(matmul_integer)),
    ("ConvInteger", One(conv_integer)),
    ("QLinearMatMul", One(matmul)),
    ("QLinearConv", One(conv)),
];

/// How the scales are distributed over a value.
enum Along {
    /// One scale for all elements.
    All,
    /// One scale for each index of an axis.
    Axis(usize),
    /// One scale for each block of indices of an axis: the axis, and the indices of a block.
    Blocks(usize, usize),
}

fn along(c: &Call<'_, '_>, x: ValueId, scale: ValueId) -> Outcome<Along> {
    if c.of(scale).elems() == 1 && c.rank(scale) < 2 {
        return Ok(Along::All);
    }
    let axis = axis_of(c.int_or("axis", 1), c.rank(x))?;
    match c.size("block_size")?.unwrap_or(0) {
        0 => Ok(Along::Axis(axis)),
        block => Ok(Along::Blocks(axis, block)),
    }
}

/// Scales or zero points in a shape that is broadcast to a value of these dimensions.
fn spread(c: &mut Context<'_>, value: ValueId, dims: &[usize], along: &Along) -> Outcome<ValueId> {
    match along {
        Along::All => c.reshape(value, &[]),
        Along::Axis(axis) => {
            let shape: Vec<usize> = (0..dims.len()).map(|at| if at == *axis { dims[at] } else { 1 }).collect();
            c.reshape(value, &shape)
        }
        Along::Blocks(axis, block) => {
            c.step(dims[*axis])?;
            let at: Vec<i64> = (0..dims[*axis]).map(|index| (index / block) as i64).collect();
            let at = c.vector(&at);
            c.op(Op::Gather(*axis), &[value, at])
        }
    }
}

/// Scales, a vector or a scalar, in the shape that the operation needs.
fn flat(c: &mut Context<'_>, value: ValueId, along: &Along) -> Outcome<ValueId> {
    if let Along::All = along { c.reshape(value, &[]) } else { Ok(value) }
}

/// Whether all codes of a zero point are known to be 0.
fn is_zero(c: &Context<'_>, zero: ValueId) -> bool {
    matches!(c.known(zero), Ok(Some(known)) if known.bytes().iter().all(|&byte| byte == 0))
}

fn plain_axis(along: &Along) -> Option<Option<usize>> {
    match along {
        Along::All => Some(None),
        Along::Axis(axis) => Some(Some(*axis)),
        Along::Blocks(..) => None,
    }
}

pub(super) fn dequantize(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let (x, scale, zero) = (c.x(0)?, c.x(1)?, c.maybe(2));
    let along = along(c, x, scale)?;
    let from = data_type(c, x);
    let to = match c.int("output_dtype").filter(|&dtype| dtype != 0).and_then(DataType::from_number) {
        Some(dtype) => graph_type(dtype)?,
        None if is_storage(data_type(c, scale)) => Dtype::F32,
        None => c.dtype(scale),
    };
    let scale_type = data_type(c, scale);
    let scale = decode(c, scale, scale_type, to)?;
    let is_integer = !is_storage(from) || integer_range(from).is_some();
    if let (Some(axis), true) = (plain_axis(&along), is_integer) {
        let scale = flat(c, scale, &along)?;
        let zero = zero.map(|zero| flat(c, zero, &along)).transpose()?;
        let y = c.emit(Op::Dequantize { axis }, &[Some(x), Some(scale), zero], 1)?[0];
        return Ok(vec![y.into()]);
    }
    let dims = c.dims(x);
    let mut numbers = decode(c, x, from, Dtype::F32)?;
    if let Some(zero) = zero.filter(|&zero| is_integer || !is_zero(c, zero)) {
        let zero = decode(c, zero, from, Dtype::F32)?;
        let zero = spread(c, zero, &dims, &along)?;
        numbers = c.binary(Binary::Sub, numbers, zero)?;
    }
    let scale = c.cast(scale, Dtype::F32)?;
    let scale = spread(c, scale, &dims, &along)?;
    let y = c.mul(numbers, scale)?;
    Ok(vec![c.cast(y, to)?.into()])
}

pub(super) fn quantize(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let (x, scale, zero) = (c.x(0)?, c.x(1)?, c.maybe(2));
    let along = along(c, x, scale)?;
    let told = c.int("output_dtype").filter(|&dtype| dtype != 0).and_then(DataType::from_number);
    let to = zero.map(|zero| data_type(c, zero)).or(told).unwrap_or(DataType::Uint8);
    let scale_type = data_type(c, scale);
    let scale = decode(c, scale, scale_type, Dtype::F32)?;
    if let (Some(axis), false) = (plain_axis(&along), is_storage(to)) {
        let scale = flat(c, scale, &along)?;
        let zero = zero.map(|zero| flat(c, zero, &along)).transpose()?;
        let op = Op::Quantize { dtype: graph_type(to)?, axis };
        let x = if c.dtype(x).is_float() { x } else { c.cast(x, Dtype::F32)? };
        let y = c.emit(op, &[Some(x), Some(scale), zero], 1)?[0];
        return Ok(vec![y.into()]);
    }
    let dims = c.dims(x);
    let x = c.cast(x, Dtype::F32)?;
    let scale = spread(c, scale, &dims, &along)?;
    let mut scaled = c.binary(Binary::Div, x, scale)?;
    let integer = integer_range(to).is_some() || !is_storage(to);
    if integer {
        scaled = c.map(Expr::arg(0).unary(Unary::Round), &[scaled])?;
    }
    if let Some(zero) = zero.filter(|&zero| integer || !is_zero(c, zero)) {
        let zero = decode(c, zero, to, Dtype::F32)?;
        let zero = spread(c, zero, &dims, &along)?;
        scaled = c.add(scaled, zero)?;
    }
    if !is_storage(to) {
        return Ok(vec![c.cast(scaled, graph_type(to)?)?.into()]);
    }
    if let Some([low, high]) = integer_range(to).map(|range| range.map(|bound| number(Dtype::F32, bound as f64))) {
        scaled = c.map(Expr::arg(0).binary(Binary::Max, low).binary(Binary::Min, high), &[scaled])?;
    }
    let saturate = c.int_or("saturate", 1) != 0;
    let y = encode(c, scaled, to, saturate)?;
    c.store(y, to);
    Ok(vec![y.into()])
}

/// Quantises to bytes whose scale and zero point follow from the operand's range, extended to contain 0.
fn dynamic(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let axes: Vec<usize> = (0..c.rank(x)).collect();
    let k = |value| number(Dtype::F32, value);
    let low = c.reduce(x, ReduceOp::Min, &axes, false)?;
    let high = c.reduce(x, ReduceOp::Max, &axes, false)?;
    let low = c.map(Expr::arg(0).binary(Binary::Min, k(0.0)), &[low])?;
    let high = c.map(Expr::arg(0).binary(Binary::Max, k(0.0)), &[high])?;
    let scale = c.map((Expr::arg(1) - Expr::arg(0)) / k(255.0), &[low, high])?;
    let zero = (-Expr::arg(0) / Expr::arg(1)).binary(Binary::Max, k(0.0)).binary(Binary::Min, k(255.0));
    let zero = c.map(zero.unary(Unary::Round).cast(Dtype::U8), &[low, scale])?;
    let y = c.op(Op::Quantize { dtype: Dtype::U8, axis: None }, &[x, scale, zero])?;
    Ok(vec![y, scale, zero])
}

/// Integers as i32, minus their zero point: one for all, or one for each row (of the last axis but one) or column.
pub(super) fn centred(c: &mut Context<'_>, x: ValueId, zero: Option<ValueId>, rows: bool) -> Outcome<ValueId> {
    let wide = c.cast(x, Dtype::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = c.cast(zero, Dtype::I32)?;
    let zero = by_rows(c, zero, rows)?;
    c.binary(Binary::Sub, wide, zero)
}

/// A vector with an element for each row as a column; one element for all rows as a scalar.
fn by_rows(c: &mut Context<'_>, value: ValueId, rows: bool) -> Outcome<ValueId> {
    match (c.of(value).elems(), c.rank(value)) {
        (1, _) => c.reshape(value, &[]),
        (_, 1) if rows => c.unsqueeze(value, 1),
        _ => Ok(value),
    }
}

fn matmul_integer(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b, [a_zero, b_zero]) = (c.x(0)?, c.x(1)?, [2, 3].map(|index| c.maybe(index)));
    let a = centred(c, a, a_zero, true)?;
    let b = centred(c, b, b_zero, false)?;
    super::product::matrices(c, a, b)
}

/// The integers of a filter as i32, minus their zero point: one for all, or one for each output channel.
fn centred_filter(c: &mut Context<'_>, filter: ValueId, zero: Option<ValueId>) -> Outcome<ValueId> {
    let wide = c.cast(filter, Dtype::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = c.cast(zero, Dtype::I32)?;
    let zero = match c.of(zero).elems() {
        1 => c.reshape(zero, &[])?,
        channels => {
            let ones = vec![1; c.rank(filter).saturating_sub(1)];
            c.reshape(zero, &[&[channels], &ones[..]].concat())?
        }
    };
    c.binary(Binary::Sub, wide, zero)
}

fn conv_integer(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, filter, [x_zero, w_zero]) = (c.x(0)?, c.x(1)?, [2, 3].map(|index| c.maybe(index)));
    let x = centred(c, x, x_zero, false)?;
    let filter = centred_filter(c, filter, w_zero)?;
    convolve(c, x, filter, None)
}

/// An exact sum of integers, multiplied by its scale and quantised.
pub(super) fn requantised(
    c: &mut Context<'_>,
    sum: ValueId,
    scale: ValueId,
    y_scale: ValueId,
    y_zero: ValueId,
) -> Outcome<ValueId> {
    let real = c.cast(sum, Dtype::F32)?;
    let scale = c.cast(scale, Dtype::F32)?;
    let real = c.mul(real, scale)?;
    let [y_scale, y_zero] = [c.reshape(y_scale, &[])?, c.reshape(y_zero, &[])?];
    let y_scale = c.cast(y_scale, Dtype::F32)?;
    let dtype = c.dtype(y_zero);
    c.op(Op::Quantize { dtype, axis: None }, &[real, y_scale, y_zero])
}

fn matmul(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let all: Vec<ValueId> = (0..8).map(|index| c.x(index)).collect::<Outcome<_>>()?;
    let a = centred(c, all[0], Some(all[2]), true)?;
    let b = centred(c, all[3], Some(all[5]), false)?;
    let sum = super::product::matrices(c, a, b)?;
    let a_scale = by_rows(c, all[1], true)?;
    let b_scale = by_rows(c, all[4], false)?;
    let scale = c.mul(a_scale, b_scale)?;
    requantised(c, sum, scale, all[6], all[7])
}

fn conv(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let all: Vec<ValueId> = (0..8).map(|index| c.x(index)).collect::<Outcome<_>>()?;
    let x = centred(c, all[0], Some(all[2]), false)?;
    let filter = centred_filter(c, all[3], Some(all[5]))?;
    let bias = c.maybe(8);
    let sum = convolve(c, x, filter, bias)?;
    let x_scale = c.reshape(all[1], &[])?;
    let w_scale = match c.of(all[4]).elems() {
        1 => c.reshape(all[4], &[])?,
        _ => {
            let rank = c.rank(sum);
            super::norm::per_channel(c, all[4], rank)?
        }
    };
    let scale = c.mul(x_scale, w_scale)?;
    requantised(c, sum, scale, all[6], all[7])
}
