//! Values of which only some elements along an axis are in use, a number that depends on the data.

use super::context::{Context, Outcome};
use crate::graph::{Binary, Contract, Cumulate, Expr, Op, ReduceOp, Slice, ValueId};
use crate::tensor::Dtype;

/// The number of elements of a value along an axis that are in use. The others fill it up to its largest size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::onnx) struct Counted {
    pub axis: usize,
    /// The number, a value of type i64.
    pub count: ValueId,
}

impl Context<'_> {
    /// The axis and number of elements in use of an operation's result.
    ///
    /// # Errors
    /// If the operation combines elements in use with those that fill.
    pub(super) fn counted_of(&self, op: &Op, inputs: &[Option<ValueId>], dims: &[usize]) -> Outcome<Option<Counted>> {
        let mut found: Option<Counted> = None;
        for (operand, id) in inputs.iter().enumerate() {
            let Some((id, of)) = id.and_then(|id| Some((id, *self.counted.get(&id)?))) else { continue };
            let axis = self.moved(op, operand, inputs, of, dims);
            let next = axis.map(|axis| Counted { axis, ..of });
            if next.is_none() || found.is_some_and(|found| Some(found) != next) {
                let (kind, axis, of) = (op.kind(), of.axis, self.of(id));
                return Err(format!(
                    "{kind}: the number of elements in use along axis {axis} of {of} depends on the data"
                ));
            }
            found = next;
        }
        Ok(found)
    }

    /// The axis of the result that corresponds to the counted axis of an operand, if elements along this axis are
    /// computed separately.
    fn moved(&self, op: &Op, operand: usize, inputs: &[Option<ValueId>], of: Counted, dims: &[usize]) -> Option<usize> {
        let (axis, x) = (of.axis, self.of(inputs[operand]?));
        let other_than = |reduced: usize| (axis != reduced).then_some(axis);
        match op {
            Op::Map(_) | Op::Broadcast(_) => {
                let to = axis + dims.len() - x.rank();
                let alone = |id: &ValueId| self.counted.contains_key(id) || self.is_one_along(*id, to, dims.len());
                (dims[to] == x.dims[axis] && inputs.iter().flatten().all(alone)).then_some(to)
            }
            Op::Transpose(order) => order.iter().position(|&from| from == axis),
            Op::Reshape(_) => same_axis(&x.dims, axis, dims),
            Op::Slice(Slice { start, step, dims }) => {
                (start[axis] == 0 && step[axis] == 1 && dims[axis] == x.dims[axis]).then_some(axis)
            }
            Op::Reduce(reduce) if reduce.axes.contains(&axis) => None,
            Op::Reduce(reduce) if reduce.keep => Some(axis),
            Op::Reduce(reduce) => Some(axis - reduce.axes.iter().filter(|&&other| other < axis).count()),
            Op::ArgReduce(reduce) => Some(other_than(reduce.axis)? - usize::from(!reduce.keep && reduce.axis < axis)),
            Op::Concat(joined) => other_than(*joined)
                .filter(|_| inputs.iter().flatten().all(|id| self.counted.get(id).is_some_and(|all| *all == of))),
            Op::Softmax { axis: along, .. } => other_than(*along),
            Op::Norm(norm) => (operand == 0 && axis < norm.axis).then_some(axis),
            Op::Quantize { .. } | Op::Dequantize { .. } => (operand == 0).then_some(axis),
            Op::Gather(along) if operand == 1 => Some(along + axis),
            Op::Gather(along) => {
                let added = self.rank(inputs[1]?);
                other_than(*along).map(|axis| if axis > *along { axis + added - 1 } else { axis })
            }
            Op::GatherNd(_) => (operand == 1 && axis + 1 < x.rank()).then_some(axis),
            Op::Contract(Contract { left, right, result }) => {
                let label = [left, right][operand][axis];
                let shared = left.contains(&label) && right.contains(&label);
                result.iter().position(|&other| other == label).filter(|_| !shared)
            }
            Op::Recurrent(_) => (axis == 1 && matches!(operand, 0 | 3 | 4)).then_some(1),
            _ => None,
        }
    }

    /// Whether an operand has one element along an axis of the result, which has `rank` axes, so that it is broadcast.
    fn is_one_along(&self, id: ValueId, axis: usize, rank: usize) -> bool {
        let dims = &self.of(id).dims;
        (axis + dims.len()).checked_sub(rank).is_none_or(|axis| dims[axis] == 1)
    }

    /// Marks a value as one with `count` elements in use along an axis; if the count is known, returns only those.
    pub fn count(&mut self, value: ValueId, axis: usize, count: ValueId) -> Outcome<ValueId> {
        match self.known(count)?.and_then(|count| count.to_i64s()).as_deref() {
            Some([known]) => self.slice(value, axis, 0, *known as usize),
            Some(other) => Err(format!("a count of {} elements: expected one", other.len())),
            None => {
                self.counted.insert(value, Counted { axis, count });
                Ok(value)
            }
        }
    }

    /// The indices of the flags, `[n]`, that are set, followed by -1.
    pub fn places(&mut self, flags: ValueId) -> Outcome<ValueId> {
        let [elems] = self.dims(flags)[..] else { return Err(format!("expected one axis, found {}", self.of(flags))) };
        let flags = self.cast(flags, Dtype::I64)?;
        let count = self.reduce(flags, ReduceOp::Sum, &[0], false)?;
        let sums = Cumulate { op: ReduceOp::Sum, axis: 0, exclusive: false, reverse: false };
        let sums = self.op(Op::Cumulate(sums), &[flags])?;
        let mut before = self.filled(Dtype::I64, &[elems], 0.0)?;
        for bit in (0..usize::BITS - elems.leading_zeros()).rev() {
            let step = || Expr::int(Dtype::I64, 1 << bit);
            let last = self.map(Expr::arg(0) + step() - Expr::int(Dtype::I64, 1), &[before])?;
            let sum = self.op(Op::Gather(0), &[sums, last])?;
            let is_there = Expr::arg(0).binary(Binary::Less, Expr::int(Dtype::I64, elems as i128));
            let few = Expr::arg(1).binary(Binary::LessEqual, Expr::Axis(0));
            let next = is_there.binary(Binary::And, few).select(Expr::arg(2) + step(), Expr::arg(2));
            before = self.map(next, &[last, sum, before])?;
        }
        let is_one = Expr::Axis(0).binary(Binary::Less, Expr::arg(1));
        let places = self.map(is_one.select(Expr::arg(0), Expr::int(Dtype::I64, -1)), &[before, count])?;
        self.count(places, 0, count)
    }
}

/// The axis of dimensions `to` that is the axis `axis` of dimensions `from`, if all elements keep their index along it.
fn same_axis(from: &[usize], axis: usize, to: &[usize]) -> Option<usize> {
    let outer: usize = from[..axis].iter().product();
    (0..to.len()).find(|&at| to[at] == from[axis] && to[..at].iter().product::<usize>() == outer)
}
