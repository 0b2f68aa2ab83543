//! Recurrent layers with the cells that a kernel has.

use super::epilogue::gate;
use super::{Context, Found, Read};
use crate::graph::{Binary, Expr, Graph, Node, NodeId, Number, Op, Recurrent, RecurrentCell, Unary, ValueId};
use crate::model::{Conv2d, Window, filter_of, name_of};
use crate::plan::{Gate, Kernel, RecurrentKind, RecurrentOp, StepOp};
use crate::tensor::Dtype;

/// The recurrent layer that is node `at`, and the node, if one kernel computes it in less time than a launch or two for each
/// step, or if the program chose the kernel.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Context { graph, dtype, limits, batch, choices, .. } = *context;
    let node = &graph.nodes[at.0];
    let Op::Recurrent(of) = &node.op else { return None };
    let operand = |number: usize| node.inputs.get(number).copied().flatten();
    let (x, weights) = (operand(0)?, operand(1)?);
    let &[steps, rows, _] = &graph.value(x).dims[..] else { return None };
    let is_plain = operand(5).is_none() && operand(6).is_none();
    let are_f32 = node.inputs.iter().flatten().all(|&id| graph.value(id).dtype == Dtype::F32);
    if !is_plain || !are_f32 || !matches!(dtype, Dtype::F16 | Dtype::Bf16) || !rows.is_multiple_of(batch) {
        return None;
    }
    let [bias, h, c] = [2, 3, 4].map(operand);
    let op = RecurrentOp {
        cell: kind(of)?,
        backwards: of.backwards.clone(),
        steps,
        rows: rows / batch,
        hidden: graph.value(weights).dims[1],
        weights: as_layer(graph, node, weights)?,
        first: [h, c].map(|first| first.is_some()),
    };
    // The kernel reads a bias like weights: nothing may write it.
    if bias.is_some_and(|bias| graph.constant(bias).is_none()) {
        return None;
    }
    let is_sooner = op.best_clocks(batch, limits).is_some_and(|clocks| clocks <= op.clocks_of_steps(limits));
    let reads = [Read::Half(x)].into_iter().chain([bias, h, c].into_iter().flatten().map(Read::Own)).collect();
    let writes = node.outputs[0];
    let is_chosen = matches!(choices.get(&node.name), Some(Kernel::Sm90Recurrent(_)));
    (is_sooner || is_chosen)
        .then_some((at, Found { op: StepOp::Recurrent(op), named: at, reads, writes, beside: None }))
}

/// The recurrent weights, which must be constant, as a convolution with one tap.
fn as_layer(graph: &Graph, node: &Node, weights: ValueId) -> Option<Conv2d> {
    let of = graph.value(weights);
    let filter = filter_of(&name_of(graph.constant(weights)?, of), false);
    Some(Conv2d { filter, ..Conv2d::named(&node.name, of.dims[0], Window::square(1, 1, 0)) })
}

/// The cell of a layer, if its activations are those that the kernel has.
fn kind(of: &Recurrent) -> Option<RecurrentKind> {
    let first = of.activations.first()?;
    let is_gate = |expr: &Expr| gate(expr) == Some(Gate::Sigmoid);
    let is_tanh = |expr: &Expr| *expr == Expr::arg(0).unary(Unary::Tanh);
    let zero = Expr::Const(Dtype::F32, Number::Float(0.0));
    let is_relu = |expr: &Expr| *expr == Expr::arg(0).binary(Binary::Max, zero.clone());
    if of.activations.iter().any(|other| other != first) {
        return None;
    }
    match (of.cell, &first[..]) {
        (RecurrentCell::Lstm { coupled: false }, [f, g, h]) if is_gate(f) && is_tanh(g) && is_tanh(h) => {
            Some(RecurrentKind::Lstm)
        }
        (RecurrentCell::Gru { reset_after: true }, [f, g]) if is_gate(f) && is_tanh(g) => Some(RecurrentKind::Gru),
        (RecurrentCell::Rnn, [f]) if is_tanh(f) => Some(RecurrentKind::RnnTanh),
        (RecurrentCell::Rnn, [f]) if is_relu(f) => Some(RecurrentKind::RnnRelu),
        _ => None,
    }
}
