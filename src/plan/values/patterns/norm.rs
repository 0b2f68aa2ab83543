//! Norms of rows, as one node or in pieces.

use super::e4m3::{rounded, rounded_beside};
use super::pieces::Pieces;
use super::{Beside, Context, Found, Read};
use crate::graph::{NodeId, Op, ValueId};
use crate::plan::{RowNormOp, RowNormResult, StepOp};
use crate::tensor::Dtype;

/// The norm that is node `at`, or whose mean of squares node `at` computes, and its last node. If codes of its result
/// are needed, the step writes them, and nothing else if nothing else is needed. A result that is an output and that nothing
/// else reads is written in f32.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Pieces { x, weight, bias, centred, epsilon, last } =
        norm_node(context, at).or_else(|| Pieces::of(context, at))?;
    let writes = context.graph.nodes[last.0].outputs[0];
    let [value, result] = [x, writes].map(|id| context.graph.value(id));
    let columns = *value.dims.last()?;
    let is_vector = |id: ValueId| {
        let vector = context.graph.value(id);
        vector.dims == [columns] && vector.dtype == Dtype::F32 && context.graph.constant(id).is_some()
    };
    let vectors: Vec<ValueId> = [Some(weight), bias].into_iter().flatten().collect();
    let rows = value.elems().checked_div(columns)?;
    let op = RowNormOp { rows, columns, centred, epsilon: epsilon as f32, result: RowNormResult::Rows, sum: None };
    let is_f32 = [value.dtype, result.dtype] == [Dtype::F32; 2] && value.dims == result.dims;
    if !is_f32 || !op.has_kernel() || !vectors.iter().all(|&id| is_vector(id)) {
        return None;
    }
    let reads = [Read::Half(x)].into_iter().chain(vectors.into_iter().map(Read::Own)).collect();
    let of = |result| StepOp::RowNorm(RowNormOp { result, ..op });
    if let Some((end, codes, scale)) = rounded(context, writes) {
        let op = of(RowNormResult::Codes(scale));
        return Some((end, Found { op, named: last, reads, writes: codes, beside: None }));
    }
    if context.shown.contains(&writes) && context.readers[writes.0].is_empty() {
        return Some((last, Found { op: of(RowNormResult::F32), named: last, reads, writes, beside: None }));
    }
    let beside = rounded_beside(context, writes);
    let op = of(beside.map_or(RowNormResult::Rows, |(_, scale)| RowNormResult::Both(scale)));
    Some((last, Found { op, named: last, reads, writes, beside: beside.map(|(codes, _)| Beside::Codes(codes)) }))
}

/// The norm that is a single node.
fn norm_node(context: &Context<'_>, at: NodeId) -> Option<Pieces> {
    let node = &context.graph.nodes[at.0];
    let Op::Norm(norm) = &node.op else { return None };
    let of = |number: usize| node.inputs.get(number).copied().flatten();
    let x = of(0)?;
    let is_of_rows = norm.axis + 1 == context.graph.value(x).rank();
    let pieces = Pieces { x, weight: of(1)?, bias: of(2), centred: norm.centred, epsilon: norm.eps, last: at };
    is_of_rows.then_some(pieces)
}
