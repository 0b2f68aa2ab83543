//! Losses: how far predictions are from their targets.

use super::Operator::{Many, One};
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Op, ReduceOp, ValueId};
use crate::onnx::import::{Call, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table =
    &[("NegativeLogLikelihoodLoss", One(log_likelihood)), ("SoftmaxCrossEntropyLoss", Many(cross_entropy))];

fn log_likelihood(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    loss(c, x)
}

/// The loss, and the logarithms of the probabilities.
fn cross_entropy(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let log = c.op(Op::Softmax { axis: 1, log: true }, &[x])?;
    Ok(vec![loss(c, log)?, log])
}

/// The negated, weighted logarithms of the probabilities, `[N, C, …]`, at the classes in operand 1, `[N, …]`.
fn loss(c: &mut Call<'_, '_>, log: ValueId) -> Outcome<ValueId> {
    let class = c.x(1)?;
    let class = c.cast(class, Dtype::I64)?;
    let (dims, dtype) = (c.dims(class), c.dtype(log));
    let at = c.unsqueeze(class, 1)?;
    let log = c.op(Op::GatherElements(1), &[log, at])?;
    let log = c.squeeze(log, 1)?;
    let weight = match c.maybe(2) {
        Some(weights) => c.op(Op::Gather(0), &[weights, class])?,
        None => c.filled(dtype, &dims, 1.0)?,
    };
    let (zero, mut product) = (|| number(dtype, 0.0), -(Expr::arg(0) * Expr::arg(1)));
    let mut weight_of = Expr::arg(0);
    if let Some(ignored) = c.int("ignore_index") {
        let is_ignored = |class: usize| Expr::arg(class).binary(Binary::Equal, Expr::int(Dtype::I64, ignored.into()));
        product = is_ignored(2).select(zero(), product);
        weight_of = is_ignored(1).select(zero(), weight_of);
    }
    let losses = c.map(product, &[log, weight, class])?;
    let axes: Vec<usize> = (0..dims.len()).collect();
    match c.text_or("reduction", "mean") {
        "none" => Ok(losses),
        "sum" => c.reduce(losses, ReduceOp::Sum, &axes, false),
        "mean" => {
            let weights = c.map(weight_of, &[weight, class])?;
            let sums =
                [c.reduce(losses, ReduceOp::Sum, &axes, false)?, c.reduce(weights, ReduceOp::Sum, &axes, false)?];
            c.map(Expr::arg(0) / Expr::arg(1), &sums)
        }
        other => Err(format!("reduction: expected none, sum or mean, found `{other}`")),
    }
}
