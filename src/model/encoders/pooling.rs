//! Pooling: one vector of all tokens.

use super::block::{Block, number};
use super::options::Pooling;
use crate::graph::{Binary, Expr, Op, Reduce, ReduceOp, Unary, ValueId};
use crate::tensor::Dtype;

/// The tokens that pooling reads.
pub(super) enum Counted {
    /// Tokens whose element in the mask, `[rows, tokens]`, is not 0. `last` has the index of the last one, i64
    /// `[rows]`.
    Masked { mask: ValueId, last: ValueId },
    /// All tokens from this index on.
    From(usize),
}

impl Block {
    /// Pools tokens `[rows, tokens, width]` to one vector, `[rows, width]`; returns all tokens if the pooling is none.
    pub fn pooled(&mut self, pooling: Pooling, x: ValueId, counted: &Counted) -> ValueId {
        let [rows, tokens, width] = self.g.value(x).dims[..] else { return x }; // after another error
        match (pooling, counted) {
            (Pooling::Tokens, _) => x,
            (Pooling::Class, _) | (Pooling::Last, Counted::From(_)) => {
                let at = if pooling == Pooling::Class { 0 } else { tokens - 1 };
                let one = self.cut("one", x, [at, 0], [1, width]);
                self.g.node("pooled", Op::Reshape(vec![rows, width]), &[one])
            }
            (Pooling::Last, Counted::Masked { last, .. }) => {
                let at = self.g.node("last.at", Op::Reshape(vec![rows, 1]), &[*last]);
                self.g.node("pooled", Op::GatherNd(1), &[x, at])
            }
            (Pooling::Mean, Counted::From(first)) => {
                let patches = self.cut("counted", x, [*first, 0], [tokens - first, width]);
                self.g.node("pooled", over(ReduceOp::Mean, 1, false), &[patches])
            }
            (Pooling::Mean, Counted::Masked { mask, .. }) => {
                let seen = Expr::arg(0).binary(Binary::Equal, Expr::int(Dtype::I64, 0));
                let seen = self.g.map("seen", seen.select(number(0.0), number(1.0)), &[*mask]);
                let seen = self.g.node("seen.apart", Op::Reshape(vec![rows, tokens, 1]), &[seen]);
                let shown = self.g.map("shown", Expr::arg(0) * Expr::arg(1), &[x, seen]);
                let sum = self.g.node("shown.sum", over(ReduceOp::Sum, 1, false), &[shown]);
                let count = self.g.node("seen.count", over(ReduceOp::Sum, 1, false), &[seen]);
                let least = Expr::arg(1).binary(Binary::Max, number(1e-9));
                self.g.map("pooled", Expr::arg(0) / least, &[sum, count])
            }
        }
    }

    /// Divides each vector by its length.
    pub fn unit(&mut self, x: ValueId) -> ValueId {
        let axis = self.g.value(x).rank() - 1;
        let squares = self.g.map("squares", Expr::arg(0) * Expr::arg(0), &[x]);
        let sum = self.g.node("squares.sum", over(ReduceOp::Sum, axis, true), &[squares]);
        let length = Expr::arg(1).unary(Unary::Sqrt).binary(Binary::Max, number(1e-12));
        self.g.map("unit", Expr::arg(0) / length, &[x, sum])
    }
}

pub(super) fn over(op: ReduceOp, axis: usize, keep: bool) -> Op {
    Op::Reduce(Reduce { op, axes: vec![axis], keep })
}
