//! Pooling.

use super::Operator::{Many, One};
use super::activation::wide;
use super::conv::{Sliding, sliding, spatial};
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Number, Op, Pad, PadMode, Pool, PoolOp, ReduceOp, Unary, ValueId, Window};
use crate::onnx::import::{Call, Context, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("MaxPool", Many(max)),
    ("AveragePool", One(average)),
    ("LpPool", One(lp)),
    ("GlobalAveragePool", One(global_average)),
    ("GlobalMaxPool", One(global_max)),
    ("GlobalLpPool", One(global_lp)),
];

/// The windows over an operand.
struct Windows {
    /// The window, with padding at the end up to the last position, which rounding up adds. It has one position or more.
    window: Window,
    /// The spatial axes along which there is no position, so that the result is empty.
    empty: Vec<usize>,
}

/// Rounded up, there are ceil((size + padding - reach) / stride) + 1 positions, which are none if the window is longer
/// than the padded operand by less than two strides.
fn windows(c: &Call<'_, '_>, dims: &[usize]) -> Outcome<Windows> {
    let Sliding { mut window, ceil } = sliding(c, dims, None)?;
    let mut empty = Vec::new();
    for (axis, &size) in dims.iter().enumerate().filter(|_| ceil) {
        let (stride, [before, behind]) = (window.stride[axis], window.pad[axis]);
        let reach = reach(&window, axis);
        let padded = size + before + behind;
        let mut places = match padded.checked_sub(reach) {
            Some(room) => room.div_ceil(stride) + 1,
            None => 1_usize.checked_sub((reach - padded) / stride).ok_or_else(|| {
                format!("window along spatial axis {axis}: expected {padded} at most (with padding), found {reach}")
            })?,
        };
        if places > 0 && (places - 1) * stride >= size + before {
            places -= 1; // a window that would begin in the padding behind is left out
        }
        if places == 0 {
            empty.push(axis);
        }
        let needed = places.saturating_sub(1) * stride + reach;
        window.pad[axis][1] = needed.saturating_sub(size + before);
    }
    Ok(Windows { window, empty })
}

/// The number of elements from the first tap of a window to the last one.
fn reach(window: &Window, axis: usize) -> usize {
    (window.size[axis] - 1) * window.dilation[axis] + 1
}

/// A window at the same positions without the taps at both ends that are in the padding at every position.
fn trimmed(mut window: Window, dims: &[usize]) -> Window {
    for (axis, &size) in dims.iter().enumerate() {
        let (stride, dilation, [before, behind]) = (window.stride[axis], window.dilation[axis], window.pad[axis]);
        let Some(room) = (size + before + behind).checked_sub(reach(&window, axis)) else { continue };
        let last = room / stride * stride;
        let in_front = before.saturating_sub(last) / dilation;
        let in_back = window.size[axis].saturating_sub((before + size).div_ceil(dilation)).min(behind / dilation);
        if in_front + in_back < window.size[axis] {
            window.size[axis] -= in_front + in_back;
            window.pad[axis] = [before - in_front * dilation, behind - in_back * dilation];
        }
    }
    window
}

/// A result of pooling, `[N, spatial…, C]`, as `[N, C, spatial…]`, and empty along some of the spatial axes.
fn result(c: &mut Context<'_>, y: ValueId, empty: &[usize]) -> Outcome<ValueId> {
    let y = c.channels_first(y)?;
    empty.iter().try_fold(y, |y, axis| c.slice(y, axis + 2, 0, 0))
}

fn max(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let dims = spatial(c, x)?;
    let Windows { window, empty } = windows(c, &dims)?;
    let inner = c.channels_last(x)?;
    let pool = Op::Pool(Pool { op: PoolOp::Max, window: trimmed(window, &dims) });
    let outputs = c.cx.emit(pool, &[Some(inner)], if c.wants(1) { 2 } else { 1 })?;
    let y = result(c, outputs[0], &empty)?;
    let Some(&at) = outputs.get(1) else { return Ok(vec![y]) };
    let at = result(c, at, &empty)?;
    Ok(vec![y, indices(c, x, at, &dims)?])
}

/// Converts indices within a plane to indices within the whole operand, whose planes are row by row or column by
/// column.
fn indices(c: &mut Call<'_, '_>, x: ValueId, mut at: ValueId, dims: &[usize]) -> Outcome<ValueId> {
    let int = |value: usize| Expr::int(Dtype::I64, value as i128);
    if let (1, [h, w]) = (c.int_or("storage_order", 0), dims) {
        let row = Expr::arg(0) / int(*w);
        let column = Expr::arg(0).binary(Binary::Rem, int(*w));
        at = c.map(column * int(*h) + row, &[at])?;
    }
    let (channels, plane) = (c.dim(x, 1)?, dims.iter().product());
    c.map(Expr::arg(0) + (Expr::Axis(0) * int(channels) + Expr::Axis(1)) * int(plane), &[at])
}

/// The mean of each window, over its taps in the operand, or also over those in the node's padding.
fn average(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = spatial(c, x)?;
    let Windows { mut window, empty } = windows(c, &dims)?;
    let inner = c.channels_last(x)?;
    if !c.flag("count_include_pad") {
        let y = c.op(Op::Pool(Pool { op: PoolOp::Mean, window: trimmed(window, &dims) }), &[inner])?;
        return result(c, y, &empty);
    }
    // Padding that counts is added as zeros; padding that rounding up adds does not count.
    let told = sliding(c, &dims, None)?.window.pad;
    let (mut before, mut after) = (vec![0], vec![0]);
    for (pad, told) in window.pad.iter_mut().zip(&told) {
        let counted = pad[1].min(told[1]);
        before.push(pad[0] as isize);
        after.push(counted as isize);
        *pad = [0, pad[1] - counted];
    }
    before.push(0);
    after.push(0);
    let mode = PadMode::Constant(Number::Float(0.0));
    let padded = c.op(Op::Pad(Pad { before, after, mode }), &[inner])?;
    let window = trimmed(window, &c.dims(padded)[1..=dims.len()]);
    let y = c.op(Op::Pool(Pool { op: PoolOp::Mean, window }), &[padded])?;
    result(c, y, &empty)
}

/// (sum |x|^p)^(1/p) over windows.
fn lp(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = spatial(c, x)?;
    let (Windows { window, empty }, p) = (windows(c, &dims)?, c.int_or("p", 2) as f64);
    let power = wide(c, x, |x, k| x().unary(Unary::Abs).binary(Binary::Pow, k(p)))?;
    let inner = c.channels_last(power)?;
    let sum = c.op(Op::Pool(Pool { op: PoolOp::Sum, window: trimmed(window, &dims) }), &[inner])?;
    let root = wide(c, sum, |x, k| x().binary(Binary::Pow, k(1.0 / p)))?;
    result(c, root, &empty)
}

fn global(c: &mut Call<'_, '_>, op: ReduceOp) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let axes: Vec<usize> = (2..c.rank(x)).collect();
    c.reduce(x, op, &axes, true)
}

fn global_average(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    global(c, ReduceOp::Mean)
}

fn global_max(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    global(c, ReduceOp::Max)
}

fn global_lp(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, p) = (c.x(0)?, c.int_or("p", 2) as f64);
    let axes: Vec<usize> = (2..c.rank(x)).collect();
    let dtype = c.dtype(x);
    let power = c.map(Expr::arg(0).unary(Unary::Abs).binary(Binary::Pow, number(dtype, p)), &[x])?;
    let sum = c.reduce(power, ReduceOp::Sum, &axes, true)?;
    c.map(Expr::arg(0).binary(Binary::Pow, number(dtype, 1.0 / p)), &[sum])
}
