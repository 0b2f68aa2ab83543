//! Products whose operands are codes of e4m3, with the operations that follow.

use super::epilogue::Epilogue;
use super::expr::{float, inlined};
use super::product::behind;
use super::{Context, Found, Read};
use crate::graph::e4m3::{Coded, is_scale};
use crate::graph::{Binary, Expr, Node, NodeId, Op, Unary, ValueId};
use crate::model::{Conv2d, Window, filter_of, name_of};
use crate::plan::{E4m3ProductOp, ProductOp, ProductSizes, ProductTile, RowsAt, StepOp};
use crate::tensor::Dtype;

/// The largest number of nodes between a product and the codes that its result is rounded to.
const MOST_NODES: usize = 4;

/// The product of values in codes that begins at node `at`, and its last node. If only codes of the result are needed, the
/// step writes them.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let graph = context.graph;
    let node = &graph.nodes[at.0];
    let Op::Contract(of) = &node.op else { return None };
    let [x, w] = [Coded::of(graph, node.inputs[0]?)?, Coded::of(graph, node.inputs[1]?)?];
    let sums_first = of.sums_first()? != w.transposed;
    let (y, matrix) = (graph.value(node.outputs[0]), graph.value(w.codes));
    let (&n, &k) = (y.dims.last()?, graph.value(node.inputs[0]?).dims.last()?);
    let sizes = ProductSizes { m: y.elems().checked_div(n)?, n, k };
    let units = w.unit.map(|_| w.units(graph, usize::from(sums_first), n));
    let is_of_bytes = [x, w].iter().all(|of| graph.value(of.codes).dtype == Dtype::U8);
    let is_plain = x.unit.is_none() && !x.transposed && units != Some(None) && matrix.rank() == 2;
    let fits = sizes.m.is_multiple_of(context.batch) && context.dtype == Dtype::F16 && y.dtype == Dtype::F32;
    if !(is_of_bytes && is_plain && fits) {
        return None;
    }
    let filter = filter_of(&name_of(graph.constant(w.codes)?, matrix), sums_first);
    let weights = Conv2d { filter, ..Conv2d::named(&node.name, n, Window::square(1, 1, 0)) };
    let (last, value, Epilogue { bias, activation, scale, residual }) = behind(context, at, n, None, |_, _| true);
    let codes = if residual.is_none() { rounded(context, value) } else { None };
    let (last, writes, result) = codes.map_or((last, value, None), |(last, codes, scale)| (last, codes, Some(scale)));
    let units = units.flatten();
    let vectors = [units, bias, scale].into_iter().flatten().map(Read::Own);
    let reads = [Read::Own(x.codes)].into_iter().chain(vectors).chain(residual.map(Read::Half)).collect();
    let product = ProductOp {
        weights,
        rows: sizes.m / context.batch,
        terms: k,
        x: RowsAt { first: 0, pitch: k },
        activation,
        bias: bias.is_some(),
        scale: scale.is_some(),
        residual: residual.map(|_| RowsAt { first: 0, pitch: n }),
        norm: None,
        statistics: false,
    };
    let factor = (x.factor * w.factor) as f32;
    let op = StepOp::E4m3Product(E4m3ProductOp { product, factor, has_units: units.is_some(), result });
    let is_possible = factor.is_finite() && !ProductTile::of_e4m3(sizes, context.limits).is_empty();
    is_possible.then_some((last, Found { op, named: at, reads, writes, beside: None }))
}

/// The codes that a value is rounded to if nothing else reads it, in a network of f16: the last node, the codes, and their
/// scale, whose reciprocal in f32 the kernels multiply by.
pub(super) fn rounded(context: &Context<'_>, value: ValueId) -> Option<(NodeId, ValueId, f32)> {
    if context.dtype != Dtype::F16 {
        return None;
    }
    let (mut value, mut expr) = (value, Expr::arg(0));
    for _ in 0..MOST_NODES {
        let id = context.reader(value)?;
        let node = &context.graph.nodes[id.0];
        expr = match &node.op {
            Op::Map(_) => of_one(context, node, value)?.with_args(&[expr]),
            Op::Reshape(_) => expr,
            _ => return None,
        };
        value = node.outputs[0];
        if let Expr::Unary(Unary::ToE4m3, of) = &expr {
            return Some((id, value, scale(of)?));
        }
    }
    None
}

/// The codes that one of several readers rounds a value to, in a network of f16, and their scale.
pub(super) fn rounded_beside(context: &Context<'_>, value: ValueId) -> Option<(ValueId, f32)> {
    if context.dtype != Dtype::F16 {
        return None;
    }
    let codes = context.readers[value.0].iter().find_map(|reader| {
        let node = &context.graph.nodes[reader.0];
        match of_one(context, node, value)? {
            Expr::Unary(Unary::ToE4m3, of) => Some((node.outputs[0], scale(&of)?)),
            _ => None,
        }
    });
    codes.filter(|(codes, _)| !context.shown.contains(codes))
}

/// The expression of a map that reads only one value, which becomes its first operand.
fn of_one(context: &Context<'_>, node: &Node, value: ValueId) -> Option<Expr> {
    let expr = inlined(context.graph, node)?;
    let reads_it = |&number: &usize| node.inputs[number] == Some(value);
    if !super::expr::args(&expr).iter().all(reads_it) {
        return None;
    }
    Some(expr.with_args(&vec![Expr::arg(0); node.inputs.len()]))
}

/// The scale by which an expression divides its operand, if it does nothing else: a product with a number only if the
/// number is the reciprocal of the scale in f32.
fn scale(expr: &Expr) -> Option<f32> {
    let is_operand = |expr: &Expr| match expr {
        Expr::Cast(Dtype::F32, of) => **of == Expr::Arg(0),
        of => *of == Expr::Arg(0),
    };
    let number = |expr: &Expr| float(expr).map(|number| number as f32);
    let scale = match expr {
        Expr::Binary(Binary::Div, of) if is_operand(&of[0]) => number(&of[1])?,
        Expr::Binary(Binary::Mul, of) => {
            let by = match &**of {
                [x, by] if is_operand(x) => number(by)?,
                [by, x] if is_operand(x) => number(by)?,
                _ => return None,
            };
            Some(by.recip()).filter(|scale| scale.recip() == by)?
        }
        of if is_operand(of) => 1.0,
        _ => return None,
    };
    is_scale(scale).then_some(scale)
}
