//! Sums that a norm of rows makes itself: positions, and rows in front of those of each image. Encoders begin so.

use std::collections::{HashMap, HashSet};

use super::expr::inlined;
use super::{Beside, Context, Found, Read, covered, writer};
use crate::graph::{Binary, Expr, Node, NodeId, Op, ValueId};
use crate::plan::{JoinedNorm, RowNormOp, RowNormResult, RowSum, StepOp};
use crate::tensor::Dtype;

/// A norm of rows, which was found and ends at node `last`, together with the sum that it reads, if that is one. The step
/// writes the sum too. Of two norms of which one reads the other's result, the second makes both. `halves` are values that
/// steps write in the type of kernels, and `all` has the steps of the nodes before.
pub(super) fn joined(
    context: &Context<'_>,
    (last, found): (NodeId, &Found),
    halves: &HashSet<ValueId>,
    all: &HashMap<NodeId, Found>,
) -> Option<Found> {
    let is_written = |id| halves.contains(&id) || all.values().any(|found| found.is_image() && found.writes == id);
    let joined = of_norm(context, found, all).or_else(|| of_rows(context, found, &is_written))?;
    let sum = joined.beside?.value();
    is_read_behind(context, &joined, sum, last).then_some(joined)
}

/// The norm of rows whose sum the step makes.
fn of_rows(context: &Context<'_>, found: &Found, is_written: &dyn Fn(ValueId) -> bool) -> Option<Found> {
    let (&op, read) = norm_of(found)?;
    let Sum { x, operands, of } = Sum::of(context, read, is_written)?;
    let reads = [Read::Half(x)].into_iter().chain(operands.into_iter().map(Read::Own));
    with_sum(RowNormOp { sum: Some(of), ..op }, reads.chain(found.reads[1..].iter().cloned()), read, found)
}

/// The norm that reads the result of a norm of a sum, if nothing else reads that sum.
fn of_norm(context: &Context<'_>, found: &Found, all: &HashMap<NodeId, Found>) -> Option<Found> {
    let (&op, read) = norm_of(found)?;
    let before = all.values().find(|before| before.writes == read)?;
    let StepOp::RowNorm(first) = before.op else { return None };
    let sum = first.sum.filter(|sum| sum.first.is_none())?;
    let Some(Beside::Half(of_sum)) = before.beside else { return None };
    let nodes = covered(context.graph, before);
    if context.shown.contains(&of_sum) || !context.readers[of_sum.0].iter().all(|reader| nodes.contains(reader)) {
        return None;
    }
    let operands = 1 + usize::from(sum.prefix > 0) + usize::from(sum.positions.is_some());
    let bias = before.reads.len() > operands + 1;
    let of = RowSum { first: Some(JoinedNorm { centred: first.centred, epsilon: first.epsilon, bias }), ..sum };
    let reads = before.reads.iter().chain(&found.reads[1..]).cloned();
    with_sum(RowNormOp { sum: Some(of), ..op }, reads, read, found)
}

/// The norm of a step that writes rows, and the value that it reads.
fn norm_of(found: &Found) -> Option<(&RowNormOp, ValueId)> {
    match (&found.op, &found.reads[..]) {
        (StepOp::RowNorm(op), [Read::Half(read), ..]) if op.result == RowNormResult::Rows => Some((op, *read)),
        _ => None,
    }
}

fn with_sum(op: RowNormOp, reads: impl Iterator<Item = Read>, sum: ValueId, found: &Found) -> Option<Found> {
    let beside = Some(Beside::Half(sum));
    op.has_kernel().then(|| Found { op: StepOp::RowNorm(op), reads: reads.collect(), beside, ..found.clone() })
}

/// Whether nodes that read the sum and are no part of the step come behind it.
fn is_read_behind(context: &Context<'_>, found: &Found, sum: ValueId, last: NodeId) -> bool {
    let nodes = covered(context.graph, found);
    context.readers[sum.0].iter().all(|reader| *reader > last || nodes.contains(reader))
}

/// A sum of the rows of images.
struct Sum {
    /// The images' own rows.
    x: ValueId,
    /// The constants that are read: the rows in front, and the positions.
    operands: Vec<ValueId>,
    of: RowSum,
}

impl Sum {
    /// The sum that is a value, if it is one of rows that a step writes and of constants.
    fn of(context: &Context<'_>, value: ValueId, is_written: &dyn Fn(ValueId) -> bool) -> Option<Self> {
        let &[.., rows, _] = &context.graph.value(value).dims[..] else { return None };
        let of = |x| is_of_step(context, x, is_written);
        let (mut x, mut positions, mut front) = (value, None, None);
        if let Some((of_rows, added)) = placed(context, x).filter(|_| !of(x)) {
            (x, positions) = (of_rows, Some((added, 0)));
        }
        if let Some((of_rows, constant, prefix)) = behind(context, x).filter(|_| !of(x)) {
            (x, front) = (of_rows, Some((constant, prefix)));
            if let Some((of_rows, added)) = placed(context, x).filter(|_| positions.is_none() && !of(x)) {
                (x, positions) = (of_rows, Some((added, prefix)));
            }
        }
        if x == value || !of(x) {
            return None;
        }
        let operands = [front.map(|(constant, _)| constant), positions.map(|(added, _)| added)];
        let of = RowSum {
            rows,
            prefix: front.map_or(0, |(_, prefix)| prefix),
            positions: positions.map(|(_, from)| from),
            first: None,
        };
        Some(Self { x, operands: operands.into_iter().flatten().collect(), of })
    }
}

/// Whether a step writes a value in the type of kernels, perhaps with other dimensions.
fn is_of_step(context: &Context<'_>, mut x: ValueId, is_written: &dyn Fn(ValueId) -> bool) -> bool {
    let last = |id: ValueId| context.graph.value(id).dims.last();
    while !is_written(x) {
        let Some(Node { op: Op::Reshape(_), inputs, .. }) = writer(context.graph, x) else { return false };
        match inputs[0].filter(|&from| last(from) == last(x)) {
            Some(from) => x = from,
            None => return false,
        }
    }
    true
}

/// The rows to which a value adds positions, and the positions.
fn placed(context: &Context<'_>, value: ValueId) -> Option<(ValueId, ValueId)> {
    let graph = context.graph;
    let node = writer(graph, value)?;
    let Expr::Binary(Binary::Add, of) = inlined(graph, node)? else { return None };
    let (Expr::Arg(a), Expr::Arg(b)) = (&of[0], &of[1]) else { return None };
    let [a, b] = [node.inputs[*a]?, node.inputs[*b]?];
    let &[.., rows, columns] = &graph.value(value).dims[..] else { return None };
    let is_sum = |x: ValueId, added: ValueId| {
        graph.value(x) == graph.value(value) && is_constant(context, added, [rows, columns])
    };
    [(a, b), (b, a)].into_iter().find(|&(x, added)| is_sum(x, added))
}

/// The rows that a value has behind constant ones, those, and their number.
fn behind(context: &Context<'_>, value: ValueId) -> Option<(ValueId, ValueId, usize)> {
    let graph = context.graph;
    let node = writer(graph, value)?;
    let (Op::Concat(axis), &[Some(front), Some(x)]) = (&node.op, &node.inputs[..]) else { return None };
    let &[.., prefix, columns] = &graph.value(front).dims[..] else { return None };
    if axis + 2 != graph.value(value).rank() {
        return None;
    }
    let constant = match writer(graph, front) {
        Some(Node { op: Op::Broadcast(_), inputs, .. }) => inputs[0]?,
        _ => front,
    };
    is_constant(context, constant, [prefix, columns]).then_some((x, constant, prefix))
}

/// Whether a value is a constant in f32 of these dimensions, behind some of 1.
fn is_constant(context: &Context<'_>, id: ValueId, dims: [usize; 2]) -> bool {
    let of = context.graph.value(id);
    let essential = |dims: &[usize]| dims.iter().copied().skip_while(|&dim| dim == 1).collect::<Vec<_>>();
    let fits = of.dtype == Dtype::F32 && essential(&of.dims) == essential(&dims);
    fits && context.graph.constant(id).is_some()
}
