//! Normalisation.

use super::Operator::{Many, One};
use super::reduce::widened;
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Norm, Number, Op, Pad, PadMode, Pool, PoolOp, ReduceOp, Unary, ValueId, Window};
use crate::onnx::import::{Call, Context, axes_of, number};

pub(super) const TABLE: Table = &[
    ("BatchNormalization", Many(batch)),
    ("InstanceNormalization", One(instance)),
    ("LayerNormalization", Many(layer)),
    ("GroupNormalization", One(group)),
    ("RMSNormalization", One(rms)),
    ("MeanVarianceNormalization", One(mean_variance)),
    ("LpNormalization", One(lp)),
    ("LRN", One(lrn)),
];

/// A vector with an element for each channel as `[C, 1, …]`, which is broadcast to `[N, C, …]`.
pub(super) fn per_channel(c: &mut Context<'_>, value: ValueId, rank: usize) -> Outcome<ValueId> {
    let elems = c.of(value).elems();
    let dims: Vec<usize> = [elems].into_iter().chain(std::iter::repeat_n(1, rank.saturating_sub(2))).collect();
    c.reshape(value, &dims)
}

/// (x - mean) / sqrt(variance + eps) x scale + bias; in training the statistics are those of the batch.
fn batch(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let all: Vec<ValueId> = (0..5).map(|index| c.x(index)).collect::<Outcome<_>>()?;
    let (rank, dtype, eps) = (c.rank(all[0]), c.dtype(all[0]), c.float_or("epsilon", 1e-5));
    let training = c.flag("training_mode") && c.version >= 14;
    let x = widened(c, all[0])?;
    let mut vectors = Vec::new();
    for &value in &all[1..] {
        let value = c.cx.cast(value, c.dtype(x))?;
        vectors.push(per_channel(c, value, rank)?);
    }
    let mut running = Vec::new();
    if training {
        let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
        let momentum = c.float_or("momentum", 0.9);
        let mean = c.reduce(x, ReduceOp::Mean, &axes, true)?;
        let spread = c.map((Expr::arg(0) - Expr::arg(1)) * (Expr::arg(0) - Expr::arg(1)), &[x, mean])?;
        let variance = c.reduce(spread, ReduceOp::Mean, &axes, true)?;
        for (index, now) in [(2, mean), (3, variance)] {
            let dims = c.dims(vectors[index]);
            let now = c.reshape(now, &dims)?;
            let of = c.dtype(now);
            let mix = Expr::arg(0) * number(of, momentum) + Expr::arg(1) * number(of, 1.0 - momentum);
            let kept = c.map(mix, &[vectors[index], now])?;
            let flat = c.reshape(kept, &[dims[0]])?;
            running.push(c.cx.cast(flat, c.dtype(all[index + 1]))?);
            vectors[index] = now;
        }
    }
    let eps = number(c.dtype(x), eps);
    let factor = c.map(Expr::arg(0) / (Expr::arg(1) + eps).unary(Unary::Sqrt), &[vectors[0], vectors[3]])?;
    let offset = c.map(Expr::arg(0) - Expr::arg(1) * Expr::arg(2), &[vectors[1], vectors[2], factor])?;
    let y = c.map(Expr::arg(0) * Expr::arg(1) + Expr::arg(2), &[x, factor, offset])?;
    let y = c.cast(y, dtype)?;
    Ok([&[y], &running[..]].concat())
}

fn instance(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, scale, bias) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let channels = *c.dims(x).get(1).ok_or("expected two axes or more")?;
    in_groups(c, x, channels, scale, bias, false)
}

/// Up to version 20 scale and bias have an element for each group, later for each channel.
fn group(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, scale, bias) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let groups = c.size("num_groups")?.filter(|&groups| groups > 0).ok_or("num_groups: expected 1 or more")?;
    let by_group = c.version < 21;
    in_groups(c, x, groups, scale, bias, by_group)
}

fn in_groups(
    c: &mut Call<'_, '_>,
    x: ValueId,
    groups: usize,
    scale: ValueId,
    bias: ValueId,
    by_group: bool,
) -> Outcome<ValueId> {
    let dims = c.dims(x);
    if dims.len() < 2 || !dims[1].is_multiple_of(groups.max(1)) {
        return Err(format!("{groups} groups of {}", c.of(x)));
    }
    let grouped = [&[dims[0], groups, dims[1] / groups.max(1)], &dims[2..]].concat();
    let apart = c.reshape(x, &grouped)?;
    let norm = Norm { axis: 2, eps: c.float_or("epsilon", 1e-5), centred: true };
    let y = c.op(Op::Norm(norm), &[apart])?;
    let (y, rank) = if by_group { (y, grouped.len()) } else { (c.reshape(y, &dims)?, dims.len()) };
    let scale = per_channel(c, scale, rank)?;
    let bias = per_channel(c, bias, rank)?;
    let y = c.map(Expr::arg(0) * Expr::arg(1) + Expr::arg(2), &[y, scale, bias])?;
    c.reshape(y, &dims)
}

/// The axis, and the dimensions with 1 from this axis on.
fn from_axis(c: &Call<'_, '_>, x: ValueId) -> Outcome<(usize, Vec<usize>)> {
    let rank = c.rank(x);
    let axis = c.axis_attr("axis", -1, rank)?;
    Ok((axis, (axis..rank).collect()))
}

/// The mean and 1 / deviation are optional further outputs.
fn layer(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let (x, scale, bias) = (c.x(0)?, c.x(1)?, c.maybe(2));
    let (axis, axes) = from_axis(c, x)?;
    let eps = c.float_or("epsilon", 1e-5);
    let y = c.emit(Op::Norm(Norm { axis, eps, centred: true }), &[Some(x), Some(scale), bias], 1)?[0];
    if !c.wants(1) && !c.wants(2) {
        return Ok(vec![y]);
    }
    let wide = widened(c, x)?;
    let mean = c.reduce(wide, ReduceOp::Mean, &axes, true)?;
    let spread = c.map((Expr::arg(0) - Expr::arg(1)) * (Expr::arg(0) - Expr::arg(1)), &[wide, mean])?;
    let variance = c.reduce(spread, ReduceOp::Mean, &axes, true)?;
    let k = |value| number(c.dtype(variance), value);
    let inverse = k(1.0) / (Expr::arg(0) + k(eps)).unary(Unary::Sqrt);
    let inverse = c.map(inverse, &[variance])?;
    Ok(vec![y, mean, inverse])
}

fn rms(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let (axis, _) = from_axis(c, x)?;
    c.cx.op(Op::Norm(Norm { axis, eps: c.float_or("epsilon", 1e-5), centred: false }), &[x, scale])
}

fn mean_variance(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let axes = axes_of(c.ints_attr("axes").unwrap_or(&[0, 2, 3]), c.rank(x))?;
    let dtype = c.dtype(x);
    let wide = widened(c, x)?;
    let mean = c.reduce(wide, ReduceOp::Mean, &axes, true)?;
    let centred = c.binary(Binary::Sub, wide, mean)?;
    let square = c.map(Expr::arg(0) * Expr::arg(0), &[centred])?;
    let variance = c.reduce(square, ReduceOp::Mean, &axes, true)?;
    let small = number(c.dtype(wide), 1e-9);
    let y = c.map(Expr::arg(0) / (Expr::arg(1).unary(Unary::Sqrt) + small), &[centred, variance])?;
    c.cast(y, dtype)
}

/// x / |x|, and 0 where the norm is 0.
fn lp(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (dtype, axis) = (c.dtype(x), c.axis_attr("axis", -1, c.rank(x))?);
    let wide = widened(c, x)?;
    let (each, whole) = match c.int_or("p", 2) {
        1 => (Expr::arg(0).unary(Unary::Abs), Expr::arg(0)),
        2 => (Expr::arg(0) * Expr::arg(0), Expr::arg(0).unary(Unary::Sqrt)),
        other => return Err(format!("p: expected 1 or 2, found {other}")),
    };
    let each = c.map(each, &[wide])?;
    let sum = c.reduce(each, ReduceOp::Sum, &[axis], true)?;
    let norm = c.map(whole, &[sum])?;
    let zero = || number(c.dtype(wide), 0.0);
    let y = Expr::arg(1).binary(Binary::Equal, zero()).select(zero(), Expr::arg(0) / Expr::arg(1));
    let y = c.map(y, &[wide, norm])?;
    c.cast(y, dtype)
}

/// x / (bias + alpha / size x the sum of squares of the channels around)^beta.
fn lrn(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let size = c.size("size")?.filter(|&size| size > 0).ok_or("size: expected 1 or more")?;
    let [alpha, beta, bias] = [("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)].map(|(name, or)| c.float_or(name, or));
    if dims.len() < 2 {
        return Err(format!("expected [N, C, …], found {}", c.of(x)));
    }
    let dtype = c.dtype(x);
    let wide = widened(c, x)?;
    let square = c.map(Expr::arg(0) * Expr::arg(0), &[wide])?;
    let rest: usize = dims[2..].iter().product();
    // A pooling computes the sums: channels are its only spatial axis, and all positions are its channels.
    let flat = c.reshape(square, &[dims[0], dims[1], rest])?;
    let (before, after) = ((size - 1) / 2, size - 1 - (size - 1) / 2);
    let pad = |n: usize| vec![0, n as isize, 0];
    let mode = PadMode::Constant(Number::Float(0.0));
    let flat = c.op(Op::Pad(Pad { before: pad(before), after: pad(after), mode }), &[flat])?;
    let sum = c.op(Op::Pool(Pool { op: PoolOp::Sum, window: Window::all(1, size, 1, 0) }), &[flat])?;
    let sum = c.reshape(sum, &dims)?;
    let k = |value| number(c.dtype(wide), value);
    let power = (k(bias) + k(alpha / size as f64) * Expr::arg(1)).binary(Binary::Pow, k(beta));
    let y = c.map(Expr::arg(0) / power, &[wide, sum])?;
    c.cast(y, dtype)
}
