//! Operations that reduce along axes.

use super::{Operation, wide};
use crate::graph::{ArgReduce, Binary, Norm, Reduce, ReduceOp, Unary};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Monoid, TermId};
use crate::tensor::Dtype;

impl Operation<'_> {
    pub fn reduce(&self, of: &Reduce) -> Loop {
        let x = self.operand(0);
        let mut b = self.each();
        let extents: Vec<usize> = of.axes.iter().map(|&axis| x.dims[axis]).collect();
        let kept = self.kept(&mut b, &of.axes, of.keep);
        let (op, inner) = match of.op {
            ReduceOp::Sum => (Monoid::Sum, x.dtype),
            ReduceOp::Prod => (Monoid::Prod, x.dtype),
            ReduceOp::Min => (Monoid::Min, x.dtype),
            ReduceOp::Max => (Monoid::Max, x.dtype),
            ReduceOp::Mean => (Monoid::Sum, wide(&[x.dtype])),
        };
        let result = b.reduce(op, &extents, |b, at| {
            let x = b.load(0, &merged(&kept, &of.axes, at));
            b.cast(inner, x)
        });
        let result = match of.op {
            ReduceOp::Mean => mean(&mut b, result, extents.iter().product()),
            _ => result,
        };
        let result = b.cast(x.dtype, result);
        b.finish(result)
    }

    pub fn arg_reduce(&self, of: &ArgReduce) -> Loop {
        let mut b = self.each();
        let kept = self.kept(&mut b, &[of.axis], of.keep);
        let extents = [self.operand(0).dims[of.axis]];
        let result =
            b.arg_reduce([of.largest, of.last], &extents, |b, at| [b.load(0, &merged(&kept, &[of.axis], at)), at[0]]);
        b.finish(result)
    }

    pub fn softmax(&self, axis: usize, log: bool) -> Loop {
        let x = self.operand(0);
        let mut b = self.each();
        let point = b.point();
        let extents = [x.dims[axis]];
        let inner = wide(&[x.dtype]);
        let load = |b: &mut LoopBuilder, at: TermId| {
            let mut point = point.clone();
            point[axis] = at;
            let x = b.load(0, &point);
            b.cast(inner, x)
        };
        let most = b.reduce(Monoid::Max, &extents, |b, at| load(b, at[0]));
        let sum = b.reduce(Monoid::Sum, &extents, |b, at| {
            let x = load(b, at[0]);
            let below = b.binary(Binary::Sub, x, most);
            b.unary(Unary::Exp, below)
        });
        let x = load(&mut b, point[axis]);
        let below = b.binary(Binary::Sub, x, most);
        let result = if log {
            let log = b.unary(Unary::Log, sum);
            b.binary(Binary::Sub, below, log)
        } else {
            let exp = b.unary(Unary::Exp, below);
            b.binary(Binary::Div, exp, sum)
        };
        let result = b.cast(self.to.dtype, result);
        b.finish(result)
    }

    pub fn norm(&self, of: &Norm) -> Loop {
        let x = self.operand(0);
        let mut b = self.each();
        let point = b.point();
        let extents = &x.dims[of.axis..];
        let elems = extents.iter().product();
        let inner = wide(&[x.dtype]);
        let load = |b: &mut LoopBuilder, at: &[TermId]| {
            let x = b.load(0, &[&point[..of.axis], at].concat());
            b.cast(inner, x)
        };
        let centre = of.centred.then(|| {
            let sum = b.reduce(Monoid::Sum, extents, load);
            mean(&mut b, sum, elems)
        });
        let centred = |b: &mut LoopBuilder, at: &[TermId]| {
            let x = load(b, at);
            centre.map_or(x, |centre| b.binary(Binary::Sub, x, centre))
        };
        let squares = b.reduce(Monoid::Sum, extents, |b, at| {
            let x = centred(b, at);
            b.binary(Binary::Mul, x, x)
        });
        let variance = mean(&mut b, squares, elems);
        let eps = b.float(inner, of.eps);
        let shifted = b.binary(Binary::Add, variance, eps);
        let deviation = b.unary(Unary::Sqrt, shifted);
        // One quotient of a row, and a product of each element.
        let one = b.float(inner, 1.0);
        let factor = b.binary(Binary::Div, one, deviation);
        let x = centred(&mut b, &point[of.axis..]);
        let mut result = b.binary(Binary::Mul, x, factor);
        for (number, op) in [(1, Binary::Mul), (2, Binary::Add)] {
            if self.input(number).is_some() {
                let with = self.broadcast_load(&mut b, number, &point);
                let with = b.cast(inner, with);
                result = b.binary(op, result, with);
            }
        }
        let result = b.cast(self.to.dtype, result);
        b.finish(result)
    }

    /// The index along each axis of the operand: 0 along reduced axes, else that of the result.
    fn kept(&self, b: &mut LoopBuilder, axes: &[usize], keep: bool) -> Vec<TermId> {
        let mut left = b.point().into_iter();
        let mut at = Vec::new();
        for axis in 0..self.operand(0).rank() {
            let reduced = axes.contains(&axis);
            let index = if reduced && !keep { None } else { left.next() };
            at.push(index.filter(|_| !reduced).unwrap_or_else(|| b.index(0)));
        }
        at
    }
}

/// Indices in which those along some axes are replaced.
fn merged(kept: &[TermId], axes: &[usize], at: &[TermId]) -> Vec<TermId> {
    let mut all = kept.to_vec();
    axes.iter().zip(at).for_each(|(&axis, &index)| all[axis] = index);
    all
}

fn mean(b: &mut LoopBuilder, sum: TermId, elems: usize) -> TermId {
    let dtype: Dtype = b.dtype(sum);
    let count = b.float(dtype, elems as f64);
    b.binary(Binary::Div, sum, count)
}
