//! Rewrites sorting, cumulative sums, scattering and attention within rows as comparisons of all pairs, which are
//! loops; splits long concatenations.

mod cumulate;
mod packed_attention;
mod recurrent;
mod scatter;
mod top_k;

use std::borrow::Cow;
use std::collections::HashSet;

use super::rebuild::{Draft, Rebuild, needed};
use crate::graph::expr::{Expr, Number};
use crate::graph::op::{Op, Pad, PadMode, Reduce, ReduceOp};
use crate::graph::tensor::Tensor;
use crate::graph::value::{Graph, ValueId, ValueType};
use crate::tensor::Dtype;

/// The graph in which other operations, which all [lower](crate::loops::lower) to loops, replace [`Op::TopK`],
/// [`Op::Cumulate`], [`Op::ScatterElements`], [`Op::ScatterNd`], [`Op::PackedAttention`] and [`Op::Recurrent`]; and
/// several concatenations replace one of many operands. The values are the same, except that sums and products of floats
/// may be in another order, and a sum of 0 may have another sign.
///
/// A comparison of all pairs is a map that one reduction reads, so it needs no memory if both are one loop. For n
/// elements along the axis, the number of pairs is
///
/// | operation | pairs along the axis |
/// |---|---|
/// | top-k | n max(256, 4 k), and a third of that, where that is less than n²; and n k |
/// | cumulate | 33 n |
/// | scatter-elements | n m, of m updates along the axis |
/// | scatter-nd | n m, of m rows of indices to n places; with a reduction times the elements of a slice |
/// | scatter with constant indices, few of them equal | none: the updates are gathered |
/// | packed-attention | n l, of a longest row of l tokens; and n m, of m starts of rows |
/// | recurrent | none: a few operations for each step |
///
/// ```
/// use trefoil::{Dtype, graph::{GraphBuilder, Op, Tensor, TopK, expand}, loops};
/// let mut g = GraphBuilder::new();
/// let x = g.input("x", Dtype::F32, &[4]);
/// let top = g.node_with("top", Op::TopK(TopK { axis: 0, k: 2, largest: true }), &[Some(x)], 2);
/// g.output("indices", top[1]);
/// let graph = expand(&g.finish()?);
/// assert!(graph.nodes.iter().all(|node| !matches!(node.op, Op::TopK(_))));
/// let x = Tensor::of(&[4], &[2.0_f32, 5.0, f32::NAN, 5.0]);
/// let indices = loops::evaluate(&graph, &mut |_, _| unreachable!(), &[x])?;
/// assert_eq!(indices[0].elems::<i64>(), [2, 1]);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn expand(graph: &Graph) -> Graph {
    expand_but(graph, &HashSet::new())
}

/// The graph of `expand`, in which nodes of these names stay unchanged.
pub(crate) fn expand_but(graph: &Graph, kept: &HashSet<String>) -> Graph {
    let graph = &unrolled(graph, kept);
    let rewritten = Rebuild::new(graph).with(|rebuild, node| match kept.contains(&node.name) {
        true => rebuild.add(node),
        false => expanded(rebuild, &node).unwrap_or_else(|| rebuild.add(node)),
    });
    needed(&rewritten, &rewritten.inputs, &rewritten.outputs)
}

/// The graph in which operations of single steps replace each [`Op::Recurrent`], except in nodes of these names, and in which
/// no concatenation has many operands. The name of such an operation begins with the name of its node and a dot.
pub(crate) fn unrolled<'g>(graph: &'g Graph, kept: &HashSet<String>) -> Cow<'g, Graph> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Recurrent(_)) || is_wide(&node.op, node.inputs.len())) {
        return Cow::Borrowed(graph);
    }
    let rewritten = Rebuild::new(graph).with(|rebuild, node| match &node.op {
        Op::Recurrent(of) if !kept.contains(&node.name) => {
            recurrent::unroll(&mut Writer { rebuild, name: &node.name }, of, &node.inputs)
        }
        op if is_wide(op, node.inputs.len()) => expanded(rebuild, &node).expect("a concatenation of many operands"),
        _ => rebuild.add(node),
    });
    Cow::Owned(needed(&rewritten, &rewritten.inputs, &rewritten.outputs))
}

/// Whether an operation is a concatenation of so many operands that it becomes concatenations of concatenations: the loop
/// of one is as deep as it has operands.
fn is_wide(op: &Op, operands: usize) -> bool {
    matches!(op, Op::Concat(_)) && operands > MOST_OPERANDS
}

/// The values that replace those of a node, if its operation is one that is expanded.
fn expanded(rebuild: &mut Rebuild<'_>, node: &Draft) -> Option<Vec<ValueId>> {
    let input = |number: usize| node.inputs[number].expect("an operand that was checked to be there");
    let mut writer = Writer { rebuild, name: &node.name };
    Some(match &node.op {
        Op::TopK(of) => top_k::expand(&mut writer, of, input(0)),
        Op::Cumulate(of) => vec![cumulate::expand(&mut writer, of, input(0))],
        Op::PackedAttention(of) => {
            let bias = node.inputs.get(4).copied().flatten();
            vec![packed_attention::expand(&mut writer, of, [0, 1, 2, 3].map(input), bias)]
        }
        Op::ScatterElements(axis, how) => {
            vec![scatter::elements(&mut writer, *axis, *how, [input(0), input(1), input(2)])]
        }
        Op::ScatterNd(how) => vec![scatter::slices(&mut writer, *how, [input(0), input(1), input(2)])],
        Op::Concat(axis) if is_wide(&node.op, node.inputs.len()) => {
            let all: Vec<ValueId> = (0..node.inputs.len()).map(input).collect();
            vec![writer.concat(*axis, &all)]
        }
        _ => return None,
    })
}

/// The most operands of one concatenation.
const MOST_OPERANDS: usize = 64;

/// Writes the operations that stand for a node.
struct Writer<'w, 'g> {
    rebuild: &'w mut Rebuild<'g>,
    name: &'w str,
}

impl Writer<'_, '_> {
    fn of(&self, x: ValueId) -> &ValueType {
        self.rebuild.of(x)
    }

    fn dims(&self, x: ValueId) -> Vec<usize> {
        self.of(x).dims.clone()
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.rebuild.part(self.name, op, inputs)
    }

    fn map(&mut self, expr: Expr, inputs: &[ValueId]) -> ValueId {
        self.op(Op::Map(expr), inputs)
    }

    fn cast(&mut self, x: ValueId, dtype: Dtype) -> ValueId {
        self.map(Expr::arg(0).cast(dtype), &[x])
    }

    fn reshape(&mut self, x: ValueId, dims: &[usize]) -> ValueId {
        self.op(Op::Reshape(dims.to_vec()), &[x])
    }

    /// Adds the concatenation of values along an axis.
    fn concat(&mut self, axis: usize, all: &[ValueId]) -> ValueId {
        if all.len() <= MOST_OPERANDS {
            return self.op(Op::Concat(axis), all);
        }
        let parts: Vec<ValueId> = all.chunks(MOST_OPERANDS).map(|part| self.concat(axis, part)).collect();
        self.concat(axis, &parts)
    }

    /// Adds the value with a new axis of size 1.
    fn unsqueeze(&mut self, x: ValueId, axis: usize) -> ValueId {
        let mut dims = self.dims(x);
        dims.insert(axis, 1);
        self.reshape(x, &dims)
    }

    /// Adds a reduction along an axis, which is removed.
    fn reduce(&mut self, op: ReduceOp, x: ValueId, axis: usize) -> ValueId {
        self.op(Op::Reduce(Reduce { op, axes: vec![axis], keep: false }), &[x])
    }

    /// Adds the value with `elems` more elements at the end of an axis.
    fn pad(&mut self, x: ValueId, axis: usize, elems: usize, with: Number) -> ValueId {
        let mut after = vec![0; self.of(x).rank()];
        after[axis] = elems as isize;
        self.op(Op::Pad(Pad { before: vec![0; after.len()], after, mode: PadMode::Constant(with) }), &[x])
    }

    /// Adds the constant 0, 1, 2, … along an axis, followed by `behind` axes of size 1.
    fn counted(&mut self, elems: usize, behind: usize) -> ValueId {
        let all: Vec<i64> = (0..elems as i64).collect();
        self.rebuild.constant(&Tensor::of(&[&[elems][..], &vec![1; behind]].concat(), &all))
    }
}

/// The type in which elements of this type are combined.
fn inner(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::Bf16 => Dtype::F32,
        Dtype::Bool => Dtype::U8,
        other => other,
    }
}

/// The number that leaves every number unchanged that it is combined with.
fn neutral(op: ReduceOp, dtype: Dtype) -> Number {
    let bits = 8 * dtype.bytes();
    let [low, high] = match dtype.is_signed() {
        true => [-1 << (bits - 1), (1 << (bits - 1)) - 1],
        false => [0, (1_i128 << bits) - 1],
    };
    let (float, int) = match op {
        ReduceOp::Sum | ReduceOp::Mean => (0.0, 0),
        ReduceOp::Prod => (1.0, 1),
        ReduceOp::Min => (f64::INFINITY, high),
        ReduceOp::Max => (f64::NEG_INFINITY, low),
    };
    if dtype.is_float() { Number::Float(float) } else { Number::Int(int) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphBuilder;

    #[test]
    fn concatenations_of_many_operands_are_no_deep_loop() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[1]);
        let wide = g.node("wide", Op::Concat(0), &[x; 5000]);
        g.output("y", wide);
        let graph = g.finish().expect("a graph");
        let narrow = unrolled(&graph, &HashSet::new());
        assert!(narrow.nodes.iter().all(|node| node.inputs.len() <= MOST_OPERANDS), "{narrow:?}");
        assert_eq!(narrow.value(narrow.outputs[0].value), graph.value(graph.outputs[0].value));
    }
}
