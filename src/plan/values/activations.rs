//! Activations in a graph of values, in whatever pieces they were written: expressions of one value.

use crate::graph::{Binary, Constant, Expr, Graph, Node, Number, Op, Origin, Tensor, ValueId};
use crate::tensor::{Activation, Dtype};

/// How many nodes one behind the other make an activation at most.
const MOST_NODES: usize = 6;

/// The activation that a node is of `x`, if it is one.
pub(super) fn activation(graph: &Graph, node: &Node, x: ValueId) -> Option<Activation> {
    let of = graph.value(x);
    let Op::Map(expr) = &node.op else { return None };
    if of != graph.value(node.outputs[0]) || of.dtype != Dtype::F32 {
        return None;
    }
    let whole = inlined(graph, node, expr, x, MOST_NODES)?;
    let known = forms().into_iter().find(|(_, form)| is_same(&whole, form));
    known.map(|(activation, _)| activation)
}

/// An expression of a node's operands as one of `x` alone, which becomes operand 0; none where it is of something else.
fn inlined(graph: &Graph, node: &Node, expr: &Expr, x: ValueId, most: usize) -> Option<Expr> {
    let inner = |of: &Expr| inlined(graph, node, of, x, most);
    match expr {
        Expr::Arg(number) => operand(graph, node.inputs[*number]?, x, most),
        Expr::Const(..) => Some(expr.clone()),
        Expr::Unary(op, of) => Some(inner(of)?.unary(*op)),
        Expr::Binary(op, of) => Some(inner(&of[0])?.binary(*op, inner(&of[1])?)),
        Expr::Axis(_) | Expr::Cast(..) | Expr::Select(_) => None,
    }
}

/// An operand as an expression of `x`: itself, a number, or what another node makes of it.
fn operand(graph: &Graph, id: ValueId, x: ValueId, most: usize) -> Option<Expr> {
    if id == x {
        return Some(Expr::arg(0));
    }
    let of = graph.value(id);
    match &graph.values[id.0].origin {
        Origin::Constant(Constant::Bytes(bytes)) if of.elems() == 1 && of.dtype == Dtype::F32 => {
            Some(Expr::float(Dtype::F32, Tensor::from_bytes(of.clone(), bytes).to_f64s()[0]))
        }
        Origin::Node(before, _) if most > 0 && of == graph.value(x) => match &graph.nodes[before.0] {
            node @ Node { op: Op::Map(expr), .. } => inlined(graph, node, expr, x, most - 1),
            _ => None,
        },
        _ => None,
    }
}

/// The ways in which activations are written, without the order of what commutes.
fn forms() -> Vec<(Activation, Expr)> {
    let (x, k) = (|| Expr::arg(0), |number| Expr::float(Dtype::F32, number));
    let relu = || x().binary(Binary::Max, k(0.0));
    vec![(Activation::Relu, relu()), (Activation::Relu6, relu().binary(Binary::Min, k(6.0)))]
}

/// Whether two expressions compute the same, but for the last digits of numbers in f32.
fn is_same(a: &Expr, b: &Expr) -> bool {
    match (a, b) {
        (Expr::Const(dtype, Number::Float(a)), Expr::Const(other, Number::Float(b))) => {
            dtype == other && (a - b).abs() <= f64::from(f32::EPSILON) * b.abs()
        }
        (Expr::Unary(op, a), Expr::Unary(other, b)) => op == other && is_same(a, b),
        (Expr::Binary(op, a), Expr::Binary(other, b)) => {
            let commutes = matches!(op, Binary::Add | Binary::Mul | Binary::Min | Binary::Max);
            let same = |c: &Expr, d: &Expr| is_same(&a[0], c) && is_same(&a[1], d);
            op == other && (same(&b[0], &b[1]) || (commutes && same(&b[1], &b[0])))
        }
        _ => a == b,
    }
}
