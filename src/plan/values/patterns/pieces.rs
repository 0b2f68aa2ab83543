//! Norms of rows in pieces: means, squares and roots. Exporters without an operation for norms write them so.

use super::epilogue::has_steps;
use super::expr::{args, float, inlined};
use super::{Context, writer};
use crate::graph::{Binary, Expr, Graph, Node, NodeId, Op, Reduce, ReduceOp, Tensor, ValueId, ValueType};
use crate::loops;
use crate::tensor::Dtype;

/// A norm that several nodes compute.
pub(super) struct Pieces {
    pub x: ValueId,
    pub weight: ValueId,
    pub bias: Option<ValueId>,
    pub centred: bool,
    pub epsilon: f64,
    /// The last of the nodes.
    pub last: NodeId,
}

impl Pieces {
    /// The norm whose mean of squares node `at` computes; `None` if it is none.
    pub fn of(context: &Context<'_>, at: NodeId) -> Option<Self> {
        let graph = context.graph;
        let squares = mean(graph, &graph.nodes[at.0])?;
        let deviation = squared(graph, squares)?;
        let (x, centred) = centred(context, deviation).map_or((deviation, false), |x| (x, true));
        let (divided, epsilon) = divided(context, graph.nodes[at.0].outputs[0], deviation)?;
        let is_own = |reader: &NodeId| *reader == divided || graph.nodes[reader.0].outputs[0] == squares;
        let is_inner = context.readers[deviation.0].iter().all(is_own) && !context.shown.contains(&deviation);
        if context.reader(squares).is_none() || (centred && !is_inner) {
            return None;
        }
        let (weighted, weight) = with_vector(context, divided, Binary::Mul)?;
        let biased = with_vector(context, weighted, Binary::Add);
        let (last, bias) = biased.map_or((weighted, None), |(last, bias)| (last, Some(bias)));
        Some(Self { x, weight, bias, centred, epsilon, last })
    }
}

/// The value of which a node computes the mean along the last axis.
fn mean(graph: &Graph, node: &Node) -> Option<ValueId> {
    let x = node.inputs[0]?;
    let last = graph.value(x).rank().checked_sub(1)?;
    match &node.op {
        Op::Reduce(Reduce { op: ReduceOp::Mean, axes, keep: true }) => (*axes == [last]).then_some(x),
        _ => None,
    }
}

/// The value of which `id` is the square.
fn squared(graph: &Graph, id: ValueId) -> Option<ValueId> {
    let node = writer(graph, id)?;
    let Expr::Binary(op, of) = inlined(graph, node)? else { return None };
    match (op, &of[0], &of[1]) {
        (Binary::Mul, Expr::Arg(a), Expr::Arg(b)) if node.inputs[*a] == node.inputs[*b] => node.inputs[*a],
        (Binary::Pow, Expr::Arg(a), power) if float(power) == Some(2.0) => node.inputs[*a],
        _ => None,
    }
}

/// The value from which `id` is computed by subtraction of its mean, if no other node reads the mean.
fn centred(context: &Context<'_>, id: ValueId) -> Option<ValueId> {
    let node = writer(context.graph, id)?;
    let Expr::Binary(Binary::Sub, of) = inlined(context.graph, node)? else { return None };
    let [Expr::Arg(a), Expr::Arg(b)] = &*of else { return None };
    let [x, subtracted] = [node.inputs[*a]?, node.inputs[*b]?];
    let is_mean = mean(context.graph, writer(context.graph, subtracted)?) == Some(x);
    (is_mean && context.reader(subtracted).is_some()).then_some(x)
}

/// The node that divides deviations by the root of the sum of their mean square and a number, and that number.
fn divided(context: &Context<'_>, mean: ValueId, deviation: ValueId) -> Option<(NodeId, f64)> {
    let (mut id, mut of_mean) = (mean, Expr::arg(1));
    loop {
        let next = context.reader(id)?;
        let node = &context.graph.nodes[next.0];
        let expr = inlined(context.graph, node)?;
        let place = |number: usize| match node.inputs[number]? {
            input if input == id => Some(of_mean.clone()),
            input if input == deviation => Some(Expr::arg(0)),
            _ => None,
        };
        let mut places = vec![Expr::arg(0); node.inputs.len()];
        for number in args(&expr) {
            places[number] = place(number)?;
        }
        of_mean = expr.with_args(&places);
        if args(&of_mean) == [0, 1] {
            return epsilon(&of_mean).map(|epsilon| (next, epsilon));
        }
        id = node.outputs[0];
    }
}

/// The number in an expression of two operands that divides the first by the root of the second plus that number;
/// `None` for any other expression. It is found by values at samples, within the precision of f32: mean squares of all
/// magnitudes, so that some are as large as any number in the expression.
fn epsilon(expr: &Expr) -> Option<f64> {
    if has_steps(expr) {
        return None;
    }
    let magnitudes: Vec<f32> = (-60..=60).flat_map(|power| [1.0, 1.37].map(|of| of * 2_f32.powi(power))).collect();
    let [deviations, squares]: [Vec<f32>; 2] = [
        DEVIATIONS.iter().flat_map(|&deviation| magnitudes.iter().map(move |_| deviation)).chain([1.0]).collect(),
        DEVIATIONS.iter().flat_map(|_| magnitudes.iter().copied()).chain([0.0]).collect(),
    ];
    let of = ValueType::new(Dtype::F32, &[squares.len()]);
    let [x, v] = [&deviations, &squares].map(|samples| Tensor::of(&of.dims, samples));
    let y = loops::compute(&Op::Map(expr.clone()), &[Some(&x), Some(&v)], &[of]).ok()?.remove(0);
    let epsilon = f64::from(*y.elems::<f32>().last()?).powi(-2);
    let is_near = |((&x, &v), &y): ((&f32, &f32), &f32)| {
        let wanted = f64::from(x) / (f64::from(v) + epsilon).sqrt();
        (f64::from(y) - wanted).abs() <= 1e-5 * wanted.abs()
    };
    let is_root = deviations.iter().zip(&squares).zip(y.elems::<f32>()).all(is_near);
    (is_root && epsilon.is_finite() && epsilon > 0.0).then_some(epsilon)
}

/// Samples of deviations.
const DEVIATIONS: [f32; 4] = [-30.0, -0.01, 0.7, 8.0];

/// The node that reads the result of `at`, as its only reader, and multiplies it by or adds a constant for each column;
/// and the constant.
fn with_vector(context: &Context<'_>, at: NodeId, op: Binary) -> Option<(NodeId, ValueId)> {
    let graph = context.graph;
    let y = graph.nodes[at.0].outputs[0];
    let next = context.reader(y)?;
    let node = &graph.nodes[next.0];
    let Expr::Binary(found, of) = inlined(graph, node)? else { return None };
    let [Expr::Arg(a), Expr::Arg(b)] = &*of else { return None };
    let other = match [node.inputs[*a]?, node.inputs[*b]?] {
        [one, other] | [other, one] if one == y => other,
        _ => return None,
    };
    let is_vector = graph.constant(other).is_some()
        && graph.value(other).dims[..] == graph.value(y).dims[graph.value(y).rank() - 1..];
    (found == op && is_vector).then_some((next, other))
}
