//! Simplifies views that do nothing, views of views, and padding that a convolution can do itself.

use super::rebuild::{Change, Draft, Rebuild};
use crate::graph::expr::{Expr, Number};
use crate::graph::op::{Conv, Op, PadMode};
use crate::graph::value::{ValueId, ValueType};

/// The simpler form of a view, or of a map that is its operand; `None` if there is none.
pub(super) fn simplify(rebuild: &Rebuild<'_>, node: &Draft) -> Option<Change> {
    let x = (*node.inputs.first()?)?;
    let of = rebuild.of(x);
    if does_nothing(node, of) {
        return Some(Change::Same(vec![x]));
    }
    if let Some(conv) = with_padding(rebuild, node, x) {
        return Some(Change::Become(Box::new(conv)));
    }
    let become_view = |op: Op, x: ValueId| {
        Some(Change::Become(Box::new(Draft { name: node.name.clone(), op, inputs: vec![Some(x)], outputs: 1 })))
    };
    match (&node.op, rebuild.writer(x)) {
        (Op::Transpose(order), Some((Op::Transpose(before), from))) => {
            become_view(Op::Transpose(order.iter().map(|&axis| before[axis]).collect()), from)
        }
        (Op::Transpose(order), _) if moves_only_units(order, &of.dims) => {
            become_view(Op::Reshape(order.iter().map(|&axis| of.dims[axis]).collect()), x)
        }
        (Op::Reshape(dims), Some((Op::Reshape(_), from))) => become_view(Op::Reshape(dims.clone()), from),
        _ => None,
    }
}

/// The convolution with the padding of its operand added to its own, if it can be.
fn with_padding(rebuild: &Rebuild<'_>, node: &Draft, x: ValueId) -> Option<Draft> {
    let (Op::Conv(conv), (Op::Pad(pad), from)) = (&node.op, rebuild.writer(x)?) else { return None };
    let PadMode::Constant(Number::Float(0.0) | Number::Int(0)) = pad.mode else { return None };
    let added = |of: &[isize]| of.iter().map(|&elems| usize::try_from(elems).ok()).collect::<Option<Vec<_>>>();
    let (before, after) = (added(&pad.before)?, added(&pad.after)?);
    let last = before.len() - 1;
    if [0, last].iter().any(|&axis| before[axis] + after[axis] > 0) {
        return None; // it adds images or channels
    }
    let mut window = conv.window.clone();
    for (axis, sides) in window.pad.iter_mut().enumerate() {
        *sides = [sides[0].checked_add(before[axis + 1])?, sides[1].checked_add(after[axis + 1])?];
    }
    let inputs = [&[Some(from)], &node.inputs[1..]].concat();
    Some(Draft { op: Op::Conv(Conv { window, ..conv.clone() }), inputs, ..node.clone() })
}

/// Whether axes of more than one element keep their order, so that no element moves.
pub(super) fn moves_only_units(order: &[usize], dims: &[usize]) -> bool {
    order.iter().filter(|&&axis| dims[axis] != 1).is_sorted()
}

fn does_nothing(node: &Draft, x: &ValueType) -> bool {
    match &node.op {
        Op::Reshape(dims) | Op::Broadcast(dims) => *dims == x.dims,
        Op::Transpose(order) => order.iter().copied().eq(0..x.rank()),
        Op::Slice(slice) => slice.dims == x.dims && slice.start.iter().all(|&start| start == 0),
        Op::Pad(pad) => pad.before.iter().chain(&pad.after).all(|&elems| elems == 0),
        Op::Concat(_) => node.inputs.len() == 1,
        Op::Map(Expr::Arg(0)) => node.inputs.len() == 1,
        Op::Map(Expr::Cast(dtype, of)) => node.inputs.len() == 1 && **of == Expr::Arg(0) && *dtype == x.dtype,
        _ => false,
    }
}
