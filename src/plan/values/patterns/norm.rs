//! Norms of rows.

use super::{Context, Found, Read};
use crate::graph::{NodeId, Op, ValueId};
use crate::plan::{RowNormOp, StepOp};
use crate::tensor::Dtype;

/// The norm that a node is, and the node.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let node = &context.graph.nodes[at.0];
    let Op::Norm(norm) = &node.op else { return None };
    let of = |number: usize| node.inputs.get(number).copied().flatten();
    let (x, y) = (of(0)?, node.outputs[0]);
    let [value, result] = [x, y].map(|id| context.graph.value(id));
    let columns = *value.dims.last()?;
    let is_vector = |id: ValueId| {
        let vector = context.graph.value(id);
        vector.dims == [columns] && vector.dtype == Dtype::F32 && context.graph.constant(id).is_some()
    };
    let vectors: Vec<ValueId> = [Some(of(1)?), of(2)].into_iter().flatten().collect();
    let op = RowNormOp {
        rows: value.elems().checked_div(columns)?,
        columns,
        centred: norm.centred,
        epsilon: norm.eps as f32,
    };
    let is_one = norm.axis + 1 == value.rank() && [value.dtype, result.dtype] == [Dtype::F32; 2];
    if !is_one || !op.has_kernel() || !vectors.iter().all(|&id| is_vector(id)) {
        return None;
    }
    let reads = [Read::Half(x)].into_iter().chain(vectors.into_iter().map(Read::Constant)).collect();
    Some((at, Found { op: StepOp::RowNorm(op), named: at, reads, writes: y }))
}
