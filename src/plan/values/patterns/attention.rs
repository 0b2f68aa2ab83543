//! Attention in a graph of values: scores of queries and keys, scaled and masked, their softmax, and its product with
//! the values.

use super::e4m3::rounded;
use super::expr::{args, float, inlined, linear};
use super::strided::{Strided, dense};
use super::{Context, Found, Mask, Read, ends_in_eights, writer};
use crate::graph::{Binary, Contract, Expr, Graph, Node, NodeId, Op, Reduce, ReduceOp, Unary, ValueId};
use crate::plan::{AttentionOp, AttentionSizes, HeadsAt, StepOp};
use crate::tensor::Dtype;

/// The attention whose product with the values is node `at`, and its last node; `None` if the nodes are no attention. If only
/// codes of the result are needed, the step writes them.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let graph = context.graph;
    let mixed = Product::of(graph, &graph.nodes[at.0])?;
    let weights = graph.nodes[at.0].inputs[0]?;
    let softmax = softmax(graph, weights)?;
    let Scores { product, factor, mask } = scores(graph, softmax.inputs[0]?, 1.0, None)?;
    let scored = Product::of(graph, product)?;
    let keys = graph.value(softmax.outputs[0]);
    let axes = Axes::of(&mixed, &scored).filter(|axes| keys.dims.last() == Some(&axes.keys.size))?;
    let whole = (at, graph.nodes[at.0].outputs[0]);
    let written = [result(context, at), whole].into_iter();
    let (last, writes, axes) = written.filter_map(|(last, id)| Some((last, id, axes.written(graph, id)?))).next()?;
    let mask = match mask {
        Some(mask) => Some(mask.read(graph, &axes)?),
        None => None,
    };
    let [q, k, v] = [&scored.operands[0], &scored.operands[1], &mixed.operands[1]];
    let qkv = [q, k, v].map(|of| of.first);
    let op = AttentionOp {
        sizes: axes.sizes(),
        scale: (factor * q.factor * k.factor) as f32,
        qkv: [0, 1, 2].map(|part| HeadsAt { first: qkv[part], pitches: axes.pitches(part) }),
        out: HeadsAt { first: 0, pitches: axes.pitches(OUT) },
        mask: mask.as_ref().map(|(_, pitches)| *pitches),
        result: None,
    };
    let is_scaled = op.scale.is_finite() && op.scale > 0.0 && v.factor == 1.0 && mixed.is_whole(graph, keys.elems());
    let roots = [q, k, v].map(|of| of.root);
    let is_aligned = op.is_aligned() && roots.iter().chain([&writes]).all(|&id| ends_in_eights(graph, id));
    if !is_scaled || !is_aligned || op.sizes.kernels(context.limits).is_empty() {
        return None;
    }
    let reads = roots.map(Read::Half).into_iter().chain(mask.map(|(read, _)| read)).collect();
    let codes = rounded(context, writes);
    let codes = codes.map(|(last, codes, scale)| (last, codes, AttentionOp { result: Some(scale), ..op }));
    let (last, writes, op) = codes.filter(|(_, _, op)| op.is_aligned()).unwrap_or((last, writes, op));
    Some((last, Found { op: StepOp::Attention(op), named: at, reads, writes, beside: None }))
}

/// A product of two values, each of whose labels has a size and strides.
struct Product<'a> {
    of: &'a Contract,
    operands: [Strided; 2],
    /// The axes of the result.
    result: Vec<[usize; 2]>,
}

impl<'a> Product<'a> {
    fn of(graph: &Graph, node: &'a Node) -> Option<Self> {
        let Op::Contract(of) = &node.op else { return None };
        let [left, right] = [node.inputs[0]?, node.inputs[1]?];
        let is_f32 = [left, right, node.outputs[0]].iter().all(|&id| graph.value(id).dtype == Dtype::F32);
        let of_both = graph.constant(left).is_none() && graph.constant(right).is_none();
        let operands = [left, right].map(|id| Strided::of(graph, id));
        let result = dense(&graph.value(node.outputs[0]).dims);
        (is_f32 && of_both).then_some(Self { of, operands, result })
    }

    /// The size and the stride of a label in the left operand, the right operand and the result; `None` where it does
    /// not occur.
    fn label(&self, label: usize) -> [Option<[usize; 2]>; 3] {
        let place = |labels: &[usize], axes: &[[usize; 2]]| {
            labels.iter().position(|&of| of == label).map(|axis| axes[axis]).filter(|[size, _]| *size != 1)
        };
        let Contract { left, right, result } = self.of;
        [place(left, &self.operands[0].axes), place(right, &self.operands[1].axes), place(result, &self.result)]
    }

    /// Whether the left operand is a whole value of `elems` elements, in its own order and without a factor.
    fn is_whole(&self, graph: &Graph, elems: usize) -> bool {
        let of = &self.operands[0];
        of.first == 0 && of.factor == 1.0 && graph.value(of.root).elems() == elems
    }

    /// The sizes and strides of all labels that have more than one index, as `label` gives them.
    fn labels(&self) -> Vec<[Option<[usize; 2]>; 3]> {
        let mut all: Vec<usize> = [&self.of.left[..], &self.of.right].concat();
        all.sort_unstable();
        all.dedup();
        let places = all.into_iter().map(|label| self.label(label));
        places.filter(|places| places.iter().any(Option::is_some)).collect()
    }
}

/// The softmax that computes the weights. A map between may set the weights of rows that see no key to zero.
fn softmax(graph: &Graph, weights: ValueId) -> Option<&Node> {
    let node = writer(graph, weights)?;
    match &node.op {
        Op::Softmax { axis, log: false } => {
            let of = graph.value(weights);
            (*axis + 1 == of.rank()).then_some(node)
        }
        Op::Reshape(_) => softmax(graph, node.inputs[0]?),
        Op::Map(_) => {
            let expr = inlined(graph, node)?;
            let kept = args(&expr).into_iter().find(|&number| is_kept(graph, node, &expr, number))?;
            softmax(graph, node.inputs[kept]?)
        }
        _ => None,
    }
}

/// Whether a map returns its operand's elements, except zeros for rows that see no key: where elements are NaN, or
/// where the largest score is minus infinity.
fn is_kept(graph: &Graph, node: &Node, expr: &Expr, number: usize) -> bool {
    let Expr::Select(of) = expr else { return false };
    let [condition, then, otherwise] = &**of;
    let is_largest = |other: usize| {
        let writer = node.inputs[other].and_then(|id| writer(graph, id));
        writer.is_some_and(|node| matches!(&node.op, Op::Reduce(Reduce { op: ReduceOp::Max, .. })))
    };
    let is_empty = match condition {
        Expr::Unary(Unary::IsNan, of) => **of == Expr::Arg(number),
        Expr::Binary(Binary::Equal, of) => match &**of {
            [Expr::Arg(other), lowest] => float(lowest) == Some(f64::NEG_INFINITY) && is_largest(*other),
            _ => false,
        },
        _ => false,
    };
    is_empty && float(then) == Some(0.0) && *otherwise == Expr::Arg(number)
}

/// The operand of a softmax: a product times a number, plus a mask.
struct Scores<'a> {
    product: &'a Node,
    factor: f64,
    mask: Option<Added>,
}

/// The mask that is added to scores: an expression of values.
#[derive(Clone)]
struct Added {
    expr: Expr,
    values: Vec<ValueId>,
    /// The dimensions of the scores to which it is added.
    scores: Vec<usize>,
}

/// The scores that a softmax reads, found from `factor` times value `id` plus `mask`, which is the softmax's operand.
fn scores(graph: &Graph, id: ValueId, factor: f64, mask: Option<Added>) -> Option<Scores<'_>> {
    let node = writer(graph, id)?;
    match &node.op {
        Op::Contract(_) => Some(Scores { product: node, factor, mask }),
        Op::Reshape(_) => scores(graph, node.inputs[0]?, factor, mask),
        Op::Map(_) => {
            let (of, expr) = (graph.value(id), inlined(graph, node)?);
            let through = |number: usize| {
                let from = node.inputs[number].filter(|&from| graph.value(from) == of)?;
                let (own, term) = linear(&expr, number)?;
                let mask = match (term, &mask) {
                    (None, mask) => mask.clone(),
                    (Some(term), None) => Some(Added::new(node, &times(term, factor), &of.dims)?),
                    (Some(_), Some(_)) => return None,
                };
                scores(graph, from, factor * own, mask)
            };
            args(&expr).into_iter().find_map(through)
        }
        _ => None,
    }
}

fn times(term: Expr, factor: f64) -> Expr {
    if factor == 1.0 { term } else { term * Expr::float(Dtype::F32, factor) }
}

impl Added {
    fn new(node: &Node, expr: &Expr, scores: &[usize]) -> Option<Self> {
        let numbers = args(expr);
        let values = numbers.iter().map(|&number| node.inputs[number]).collect::<Option<Vec<_>>>()?;
        let mut places = vec![Expr::arg(0); node.inputs.len()];
        numbers.iter().enumerate().for_each(|(place, &number)| places[number] = Expr::arg(place));
        let expr = expr.clone().with_args(&places);
        (expr.axes() == 0 && !values.is_empty()).then(|| Self { expr, values, scores: scores.to_vec() })
    }

    /// The mask as a step reads it, and the distances from one head, row and image to the next in it, in values.
    fn read(self, graph: &Graph, axes: &Axes) -> Option<(Read, [usize; 3])> {
        let rank = self.scores.len();
        let mut dims = vec![1; rank];
        for &id in &self.values {
            let of = &graph.value(id).dims;
            dims[rank - of.len()..].iter_mut().zip(of).for_each(|(dim, of)| *dim = (*dim).max(*of));
        }
        let keys = *dims.last()?;
        if keys != axes.keys.size {
            return None;
        }
        let stored = [&dims[..rank - 1], &[keys.next_multiple_of(2)]].concat();
        let (scores, stored_axes) = (dense(&self.scores), dense(&stored));
        // The distance in the mask for an axis, which is found among the scores by its stride.
        let pitch = |of: Axis| match of.size {
            1 => Some(0),
            _ => {
                let axis = scores.iter().position(|axis| *axis == [of.size, of.score])?;
                Some(if dims[axis] == 1 { 0 } else { stored_axes[axis][1] })
            }
        };
        let pitches = [pitch(axes.heads)?, pitch(axes.rows)?, pitch(axes.images)?];
        Some((Read::Mask(Mask { expr: self.expr, values: self.values, dims, is_odd: keys % 2 == 1 }), pitches))
    }
}

/// The node and the value at which the attention ends: behind the product, its kernel also applies transposes and
/// reshapes that put heads together, as long as heads are separate axes.
fn result(context: &Context<'_>, at: NodeId) -> (NodeId, ValueId) {
    let graph = context.graph;
    let (mut last, mut id) = ((at, graph.nodes[at.0].outputs[0]), graph.nodes[at.0].outputs[0]);
    while let Some(next) = context.reader(id) {
        let node = &graph.nodes[next.0];
        id = node.outputs[0];
        match node.op {
            Op::Transpose(_) => last = (next, id),
            Op::Reshape(_) => {}
            _ => break,
        }
    }
    last
}

/// The index of the result in `Axis::at`, after queries, keys and values.
const OUT: usize = 3;

/// An axis of attention.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    /// The stride in the scores.
    score: usize,
    /// The strides in queries, keys, values and the result.
    at: [usize; 4],
}

/// The axes of attention: sizes, and strides in queries, keys, values and the result.
#[derive(Clone, Copy)]
struct Axes {
    heads: Axis,
    rows: Axis,
    images: Axis,
    keys: Axis,
    /// The number of values of a head.
    dims: usize,
}

impl Axis {
    /// An axis with one index.
    const ONE: Self = Self { size: 1, score: 0, at: [0; 4] };
}

impl Axes {
    /// The axes of a product with the values and of the product of queries and keys whose softmax it reads.
    fn of(mixed: &Product<'_>, scored: &Product<'_>) -> Option<Self> {
        let one = Axis::ONE;
        let mut axes = Self { heads: one, rows: one, images: one, keys: one, dims: 1 };
        let mut outer = Vec::new();
        let scored = scored.labels();
        let score = |wanted: [usize; 2]| scored.iter().find(|places| places[2] == Some(wanted));
        for places in mixed.labels() {
            match places {
                [Some(keys), Some([size, v]), None] if axes.keys.size == 1 && keys[1] == 1 => {
                    let [None, Some([_, k]), _] = *score(keys)? else { return None };
                    axes.keys = Axis { size, score: 1, at: [0, k, v, 0] };
                }
                [Some(rows), None, Some([size, out])] if axes.rows.size == 1 => {
                    let [Some([_, q]), None, _] = *score(rows)? else { return None };
                    axes.rows = Axis { size, score: rows[1], at: [q, 0, 0, out] };
                }
                [Some(batch), Some([size, v]), Some([_, out])] => {
                    let [Some([_, q]), Some([_, k]), _] = *score(batch)? else { return None };
                    outer.push(Axis { size, score: batch[1], at: [q, k, v, out] });
                }
                [None, Some([size, 1]), Some([_, 1])] if axes.dims == 1 => axes.dims = size,
                _ => return None,
            }
        }
        outer.sort_by_key(|axis| axis.score);
        (axes.heads, axes.images) = match outer[..] {
            [] => (one, one),
            [heads] => (heads, one),
            [heads, images] => (heads, images),
            _ => return None,
        };
        let summed: Vec<_> = scored.iter().filter(|places| places[2].is_none()).collect();
        let is_summed = matches!(summed[..], [[Some([size, 1]), Some([_, 1]), None]] if *size == axes.dims);
        (is_summed && scored.len() == axes.count() + 1).then_some(axes)
    }

    /// The number of axes of the scores that have more than one index.
    fn count(&self) -> usize {
        [self.heads, self.rows, self.images, self.keys].iter().filter(|axis| axis.size > 1).count()
    }

    /// The axes with the strides of the result in the value `writes`, a view of it, if each axis of the result is one
    /// of the view.
    fn written(mut self, graph: &Graph, writes: ValueId) -> Option<Self> {
        let view = Strided::of(graph, writes);
        let to = dense(&graph.value(writes).dims);
        let place = |wanted: [usize; 2]| view.axes.iter().position(|axis| *axis == wanted).map(|axis| to[axis][1]);
        for axis in [&mut self.heads, &mut self.rows, &mut self.images].into_iter().filter(|axis| axis.size > 1) {
            axis.at[OUT] = place([axis.size, axis.at[OUT]])?;
        }
        (place([self.dims, 1]) == Some(1)).then_some(self)
    }

    fn sizes(&self) -> AttentionSizes {
        let Self { heads, rows, images, keys, dims } = *self;
        AttentionSizes { images: images.size, heads: heads.size, rows: rows.size, keys: keys.size, dims }
    }

    /// The distances in an operand from one head, row (or key) and image to the next. An axis of one index has an
    /// arbitrary one.
    fn pitches(&self, part: usize) -> [usize; 3] {
        let rows = if [0, OUT].contains(&part) { self.rows } else { self.keys };
        [self.heads, rows, self.images].map(|axis| if axis.size == 1 { self.dims } else { axis.at[part] })
    }
}
