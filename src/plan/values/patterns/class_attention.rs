//! Attention of one row of each image together with the norm and the product that make queries, keys and values: a network
//! that classifies by its first token ends so.

use std::collections::HashMap;

use super::{Context, Found, Read, covered};
use crate::graph::{NodeId, Origin, ValueId};
use crate::plan::{
    AttentionOp, AttentionSizes, ClassAttentionOp, HeadsAt, Joined, JoinedNorm, Kernel, ProductActivation, ProductOp,
    RowNormOp, RowNormResult, RowsAt, StepOp,
};

/// The attention that was found, with the product in one step, if its kernel takes less time than a step for each. `all` has
/// the steps of the nodes before.
pub(super) fn joined(context: &Context<'_>, found: &Found, all: &HashMap<NodeId, Found>) -> Option<Found> {
    let StepOp::Attention(attention) = &found.op else { return None };
    let &AttentionOp { sizes, scale, qkv, out, mask: None, result: None } = attention else { return None };
    let [Read::Half(root), Read::Half(k), Read::Half(v)] = found.reads[..] else { return None };
    let AttentionSizes { images, heads, rows: 1, keys, dims } = sizes else { return None };
    let made = step_of(context, all, root).filter(|_| [k, v] == [root; 2])?;
    let StepOp::Product(product) = &made.op else { return None };
    let columns = heads * dims;
    let width = product.weights.out_channels;
    let is_plain = *product
        == ProductOp {
            weights: product.weights.clone(),
            rows: keys,
            terms: columns,
            x: RowsAt { first: 0, pitch: columns },
            activation: ProductActivation::None,
            bias: product.bias,
            scale: false,
            residual: None,
            norm: None,
            statistics: false,
        };
    // An axis of one index may have any distance.
    let has = |at: HeadsAt, rows: usize, pitches: [usize; 3]| {
        let sizes = [heads, rows, images];
        sizes.into_iter().zip(at.pitches).zip(pitches).all(|((size, found), asked)| size == 1 || found == asked)
    };
    let is_out_dense = out.first == 0 && has(out, 1, [dims, columns, columns]);
    let are_side_by_side =
        qkv.into_iter().zip([1, keys, keys]).all(|(at, rows)| has(at, rows, [dims, width, keys * width]));
    let is_matrix = product.weights.window.size == [1, 1];
    if !(is_matrix && is_plain && is_out_dense && are_side_by_side && images == context.batch) {
        return None;
    }
    if !is_read_here_alone(context, found, root) {
        return None;
    }
    let [q, k, v] = qkv.map(|at| at.first);
    let op = ClassAttentionOp {
        sizes,
        query: q / width,
        scale,
        product: Joined { name: context.graph.nodes[made.named.0].name.clone(), conv: product.weights.clone() },
        parts: [q % width, k, v],
        bias: product.bias,
        norm: None,
    };
    let name = |node: NodeId| &context.graph.nodes[node.0].name;
    let [chosen, of_product] = [found.named, made.named].map(|node| context.choices.get(name(node)));
    let is_taken = match chosen {
        Some(kernel) => *kernel == Kernel::Sm90ClassAttention,
        None => of_product.is_none() && is_sooner(context, &op, product),
    };
    (is_taken && op.layout(context.limits).is_some()).then(|| Found {
        op: StepOp::ClassAttention(op),
        reads: made.reads.clone(),
        ..found.clone()
    })
}

/// A step of attention and product together with the norm of the rows that it reads, if nothing else reads these. `all` has
/// the steps of the nodes before.
pub(super) fn with_norm(context: &Context<'_>, found: &Found, all: &HashMap<NodeId, Found>) -> Option<Found> {
    let StepOp::ClassAttention(op) = &found.op else { return None };
    let [Read::Half(rows), biases @ ..] = &found.reads[..] else { return None };
    let made = step_of(context, all, *rows).filter(|made| made.beside.is_none())?;
    let StepOp::RowNorm(norm) = made.op else { return None };
    let [x @ Read::Half(_), vectors @ ..] = &made.reads[..] else { return None };
    let RowNormOp { centred, epsilon, .. } = norm;
    let (rows_of_all, columns) = (op.sizes.images * op.sizes.keys, op.columns());
    let of_all = RowNormOp { rows: rows_of_all, columns, centred, epsilon, result: RowNormResult::Rows, sum: None };
    let is_chosen = context.choices.contains_key(&context.graph.nodes[made.named.0].name);
    if norm != of_all || is_chosen || !is_read_here_alone(context, found, *rows) {
        return None;
    }
    let norm = Some(JoinedNorm { centred, epsilon, bias: vectors.len() > 1 });
    let op = ClassAttentionOp { norm, ..op.clone() };
    let reads = [x].into_iter().chain(biases).chain(vectors).cloned().collect();
    op.layout(context.limits).is_some().then(|| Found { op: StepOp::ClassAttention(op), reads, ..found.clone() })
}

/// The step that ends at the node that makes a value, if it writes this value.
fn step_of<'a>(context: &Context<'_>, all: &'a HashMap<NodeId, Found>, value: ValueId) -> Option<&'a Found> {
    let Origin::Node(last, 0) = context.graph.values[value.0].origin else { return None };
    all.get(&last).filter(|made| made.writes == value)
}

/// Whether nothing but the step reads a value, or one between that and the step's result.
fn is_read_here_alone(context: &Context<'_>, found: &Found, root: ValueId) -> bool {
    let nodes = covered(context.graph, found);
    let between = nodes.iter().flat_map(|node| &context.graph.nodes[node.0].outputs).filter(|id| **id != found.writes);
    let is_apart =
        |id: &ValueId| context.shown.contains(id) || !context.readers[id.0].iter().all(|reader| nodes.contains(reader));
    !between.chain([&root]).any(is_apart)
}

/// Whether the kernel takes less time than the product and the attention by themselves. A launch is counted for it alone: in a
/// network its weights come from device memory, which predicted clocks leave out.
fn is_sooner(context: &Context<'_>, op: &ClassAttentionOp, product: &ProductOp) -> bool {
    let limits = context.limits;
    let apart = [product.sizes(context.batch).least_clocks(limits), op.sizes.least_clocks(limits)];
    let apart = apart.into_iter().sum::<Option<f64>>();
    op.clocks(limits).zip(apart).is_some_and(|(together, apart)| together < apart)
}
