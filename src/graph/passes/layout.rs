//! Moves transposes behind the operations that read them, so that they meet others that undo them.

use super::rebuild::{Change, Draft, Rebuild};
use super::views::moves_only_units;
use crate::graph::expr::Expr;
use crate::graph::op::{ArgReduce, Cumulate, Op, Pad, Reduce, Resize, Slice, TopK};
use crate::graph::value::ValueId;

/// Changes an operation on transposed values to the operation on the values, followed by the transpose.
pub(super) fn sink_transpose(rebuild: &mut Rebuild<'_>, node: &Draft) -> Option<Change> {
    let order = node.inputs.iter().flatten().find_map(|&id| transposed(rebuild, id))?;
    if let Op::Reshape(dims) = &node.op {
        return joined(rebuild, node, dims, &order);
    }
    let (op, order_of_result) = match &node.op {
        Op::Map(expr) => (Op::Map(with_axes(expr, &order)), order.clone()),
        other => moved(other, &order)?,
    };
    let inputs = node.inputs.iter().map(|id| Some(Some(undone(rebuild, node, (*id)?, &order)?)));
    let inputs = inputs.collect::<Option<Vec<_>>>()?;
    let inputs = inputs.into_iter().map(|from| from.map(|from| from.make(rebuild, &node.name))).collect();
    let inner = rebuild.add(Draft { op, inputs, ..node.clone() });
    let all = inner.into_iter().map(|value| rebuild.part(&node.name, Op::Transpose(order_of_result.clone()), &[value]));
    Some(Change::Same(all.collect()))
}

/// Moves a reshape before a transpose if it joins axes that are neighbours before the transpose too.
fn joined(rebuild: &mut Rebuild<'_>, node: &Draft, dims: &[usize], order: &[usize]) -> Option<Change> {
    let x = node.inputs[0]?;
    let groups = groups(&rebuild.of(x).dims, dims)?;
    let is_run = |group: &[usize]| group.is_sorted_by(|&before, &after| order[before] + 1 == order[after]);
    if groups.iter().all(|group| group.len() == 1) || !groups.iter().all(|group| is_run(group)) {
        return None;
    }
    let (_, from) = rebuild.writer(x)?;
    let mut before: Vec<usize> = (0..dims.len()).collect();
    before.sort_by_key(|&axis| order[groups[axis][0]]);
    let reshape = Op::Reshape(before.iter().map(|&axis| dims[axis]).collect());
    let inner = rebuild.part(&node.name, reshape, &[from]);
    Some(Change::Same(vec![rebuild.part(&node.name, Op::Transpose(inverse(&before)), &[inner])]))
}

/// For each dimension of a reshape, the axes that it joins, one or more; `None` if it does more than join axes.
fn groups(from: &[usize], to: &[usize]) -> Option<Vec<Vec<usize>>> {
    let (mut all, mut next) = (Vec::new(), 0);
    for &dim in to {
        let (first, mut elems) = (next, 1);
        while next < from.len() && (next == first || elems < dim) {
            (elems, next) = (elems * from[next], next + 1);
        }
        if next == first || elems != dim {
            return None;
        }
        all.push((first..next).collect());
    }
    (next == from.len()).then_some(all)
}

/// The order of the transpose that writes a value, if a transpose writes it.
fn transposed(rebuild: &Rebuild<'_>, id: ValueId) -> Option<Vec<usize>> {
    match rebuild.writer(id)? {
        (Op::Transpose(order), _) => Some(order.clone()),
        _ => None,
    }
}

/// How to get a value as it is before a transpose.
enum Undone {
    /// The value exists.
    There(ValueId),
    /// This value, reshaped to the rank and transposed back.
    Back(ValueId, Vec<usize>, Vec<usize>),
}

impl Undone {
    fn make(self, rebuild: &mut Rebuild<'_>, node: &str) -> ValueId {
        match self {
            Self::There(id) => id,
            Self::Back(id, dims, inverse) => {
                let ranked = rebuild.part(node, Op::Reshape(dims), &[id]);
                rebuild.part(node, Op::Transpose(inverse), &[ranked])
            }
        }
    }
}

/// How to get an operand as it is before a transpose in `order`; `None` if this would add a transpose at run time.
fn undone(rebuild: &Rebuild<'_>, node: &Draft, id: ValueId, order: &[usize]) -> Option<Undone> {
    if let Some((Op::Transpose(own), from)) = rebuild.writer(id)
        && own == order
    {
        return Some(Undone::There(from));
    }
    let of = rebuild.of(id);
    if of.rank() > order.len() || (of.rank() < order.len() && !matches!(node.op, Op::Map(_))) {
        return None;
    }
    let dims = [&vec![1; order.len() - of.rank()], &of.dims[..]].concat();
    let inverse = inverse(order);
    let is_cheap = rebuild.is_constant(id) || moves_only_units(&inverse, &dims);
    if of.elems() == 1 && matches!(node.op, Op::Map(_)) && of.rank() <= 1 {
        return Some(Undone::There(id)); // it is broadcast, whatever the order
    }
    is_cheap.then_some(Undone::Back(id, dims, inverse))
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    inverse
}

/// The expression with the axes of the result before the transpose.
fn with_axes(expr: &Expr, order: &[usize]) -> Expr {
    let next = |of: &Expr| with_axes(of, order);
    match expr {
        Expr::Arg(_) | Expr::Const(..) => expr.clone(),
        Expr::Axis(axis) => Expr::Axis(order[*axis]),
        Expr::Cast(dtype, of) => next(of).cast(*dtype),
        Expr::Unary(op, of) => next(of).unary(*op),
        Expr::Binary(op, of) => next(&of[0]).binary(*op, next(&of[1])),
        Expr::Select(of) => next(&of[0]).select(next(&of[1]), next(&of[2])),
    }
}

/// The operation on values before a transpose in `order`, and the order of the transpose that follows it. `None` for an
/// operation that does not work along axes, or for which no such form is known.
fn moved(op: &Op, order: &[usize]) -> Option<(Op, Vec<usize>)> {
    let stays = |op| Some((op, order.to_vec()));
    match op {
        Op::Softmax { axis, log } => stays(Op::Softmax { axis: order[*axis], log: *log }),
        Op::Concat(axis) => stays(Op::Concat(order[*axis])),
        Op::Cumulate(of) => stays(Op::Cumulate(Cumulate { axis: order[of.axis], ..*of })),
        Op::TopK(of) => stays(Op::TopK(TopK { axis: order[of.axis], ..*of })),
        Op::Slice(of) => stays(Op::Slice(Slice {
            start: reordered(&of.start, order),
            step: reordered(&of.step, order),
            dims: reordered(&of.dims, order),
        })),
        Op::Pad(of) => stays(Op::Pad(Pad {
            before: reordered(&of.before, order),
            after: reordered(&of.after, order),
            mode: of.mode,
        })),
        Op::Resize(of) => stays(Op::Resize(Resize {
            dims: reordered(&of.dims, order),
            scales: reordered(&of.scales, order),
            crop: reordered(&of.crop, order),
            ..of.clone()
        })),
        Op::Reduce(of) => {
            let mut axes: Vec<usize> = of.axes.iter().map(|&axis| order[axis]).collect();
            axes.sort_unstable();
            let left = without(order, &of.axes, of.keep);
            Some((Op::Reduce(Reduce { axes, ..of.clone() }), left))
        }
        Op::ArgReduce(of) => {
            let left = without(order, &[of.axis], of.keep);
            Some((Op::ArgReduce(ArgReduce { axis: order[of.axis], ..*of }), left))
        }
        _ => None,
    }
}

/// The values of the result's axes, in the order of the axes before the transpose.
fn reordered<T: Copy>(of: &[T], order: &[usize]) -> Vec<T> {
    inverse(order).iter().map(|&axis| of[axis]).collect()
}

/// The order of a transposed value's remaining axes after some of its axes are removed, or, with `keep`, set to size 1.
fn without(order: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    if keep {
        return order.to_vec();
    }
    let left: Vec<usize> = (0..order.len()).filter(|axis| !axes.contains(axis)).map(|axis| order[axis]).collect();
    left.iter().map(|&axis| left.iter().filter(|&&other| other < axis).count()).collect()
}
