//! Attention within rows that lie end to end. Its queries, keys and values are views of the results of products.

use super::strided::Strided;
use super::{Context, Found, Read, ends_in_eights};
use crate::graph::{NodeId, Op};
use crate::plan::values::blocks::Blocks;
use crate::plan::{HeadsAt, PackedAttentionOp, PackedSizes, StepOp};
use crate::tensor::Dtype;

/// The packed attention that is node `at`, if it has no bias and a kernel computes it, and the node.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let (graph, node) = (context.graph, &context.graph.nodes[at.0]);
    let Op::PackedAttention(of) = &node.op else { return None };
    if !matches!(context.dtype, Dtype::F16 | Dtype::Bf16) {
        return None;
    }
    let [Some(q), Some(k), Some(v), Some(starts), None] =
        [0, 1, 2, 3, 4].map(|i| node.inputs.get(i).copied().flatten())
    else {
        return None;
    };
    let writes = node.outputs[0];
    let [tokens, heads, dims] = graph.value(v).dims[..] else { return None };
    if graph.value(q).dims[2] != dims {
        return None;
    }
    let rows = graph.value(starts).elems().saturating_sub(1);
    let sizes = PackedSizes { tokens, rows, longest: of.longest, heads, dims };
    let kernel = sizes.kernel(context.limits).ok()?;
    let parts = [q, k, v].map(|id| Strided::of(graph, id));
    let [q, k, v] = &parts;
    let op = PackedAttentionOp {
        sizes,
        block_tiles: kernel.block_tiles,
        scale: (of.scale * q.factor * k.factor) as f32,
        qkv: [heads_at(q), heads_at(k), heads_at(v)],
        out: heads_at(&Strided::identity(graph, writes)),
    };
    let is_dense = parts.iter().all(|part| part.axes[2] == [dims, 1]);
    let is_scaled = op.scale.is_finite() && op.scale > 0.0 && v.factor == 1.0;
    let roots = [q.root, k.root, v.root];
    let is_aligned = op.is_aligned() && roots.iter().all(|&id| ends_in_eights(graph, id));
    if !is_dense || !is_scaled || !is_aligned || tokens == 0 || heads == 0 {
        return None;
    }
    let blocks = Read::Blocks(Blocks::of(&op, starts));
    let reads = roots.map(Read::Half).into_iter().chain([blocks]).collect();
    Some((at, Found { op: StepOp::PackedAttention(op), named: at, reads, writes, beside: None }))
}

/// The places of heads in an operand. An axis of one index gets an arbitrary distance.
fn heads_at(of: &Strided) -> HeadsAt {
    let [tokens, heads, [dims, _]] = of.axes[..] else { unreachable!("of three axes") };
    let pitch = |[size, stride]: [usize; 2]| if size == 1 { dims } else { stride };
    let [of_head, of_token] = [pitch(heads), pitch(tokens)];
    HeadsAt { first: of.first, pitches: [of_head, of_token, tokens[0] * of_token] }
}
