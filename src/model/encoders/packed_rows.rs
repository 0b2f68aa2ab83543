//! Rows that lie end to end, as values of a graph: their places, and one vector of each row.
//!
//! If the numbers in a request are no valid rows, the graph reads wrong tokens or none, but no memory outside.

use super::block::{Block, number};
use super::pooling::over;
use super::text::End;
use crate::graph::{ArgReduce, Binary, Expr, Op, ReduceOp, Slice, ValueId};
use crate::tensor::{Dtype, Packing};

/// Rows that lie end to end.
pub(super) struct Rows {
    pub of: Packing,
    /// The places where rows begin and end, `[rows + 1]`.
    pub starts: ValueId,
    /// The first token and the number of tokens of each row, `[rows]`.
    first: ValueId,
    counts: ValueId,
    /// The position of each token in its row, `[tokens]`.
    place: ValueId,
}

impl Rows {
    pub fn new(block: &mut Block, starts: ValueId, of: Packing) -> Self {
        let Packing { tokens, rows, longest } = of;
        let mut side = |name: &str, from: usize| {
            let slice = Slice { start: vec![from], step: vec![1], dims: vec![rows] };
            let side = block.g.node(name, Op::Slice(slice), &[starts]);
            block.g.map(&format!("{name}.within"), within(Expr::arg(0), tokens), &[side])
        };
        let [first, end] = [side("rows.begin", 0), side("rows.end", 1)];
        let count = within(Expr::arg(1) - Expr::arg(0), longest);
        let counts = block.g.map("rows.count", count, &[first, end]);
        let place = places(block, starts, of);
        Self { of, starts, first, counts, place }
    }

    /// The index of each token in a table of positions whose row `first` is the first position: `[1, tokens]`.
    pub fn places(&self, block: &mut Block, first: usize) -> ValueId {
        let shifted = block.g.map("places.at", Expr::arg(0) + int(first as i64), &[self.place]);
        block.g.node("places.apart", Op::Reshape(vec![1, self.of.tokens]), &[shifted])
    }

    /// The line of each token in a table of angles by position, `[tokens, 1, values]`.
    pub fn turns(&self, block: &mut Block, table: ValueId) -> ValueId {
        let name = format!("turns {}", table.0);
        block.g.node(&name, Op::Gather(0), &[table, self.place])
    }

    /// One of the tokens of each row, from `[tokens, width]` to `[rows, width]`: the first token, or the one at these
    /// positions. An empty row gives zeros.
    pub fn at(&self, block: &mut Block, x: ValueId, place: Option<ValueId>) -> ValueId {
        let at = match place {
            Some(place) => block.g.map("one.at", Expr::arg(0) + Expr::arg(1), &[self.first, place]),
            None => self.first,
        };
        let one = block.g.node("one", Op::Gather(0), &[x, at]);
        let counts = block.g.node("counts.apart", Op::Reshape(vec![self.of.rows, 1]), &[self.counts]);
        let is_there = int(0).binary(Binary::Less, Expr::arg(1));
        block.g.map("pooled", is_there.select(Expr::arg(0), number(0.0)), &[one, counts])
    }

    /// The mean over the tokens of each row.
    pub fn mean(&self, block: &mut Block, x: ValueId) -> ValueId {
        let Packing { rows, .. } = self.of;
        let each = self.each(block);
        let tokens = block.g.node("rows.tokens", Op::Gather(0), &[x, each]);
        let counts = block.g.node("counts.apart", Op::Reshape(vec![rows, 1, 1]), &[self.counts]);
        let is_there = Expr::Axis(1).binary(Binary::Less, Expr::arg(1));
        let shown = block.g.map("shown", is_there.select(Expr::arg(0), number(0.0)), &[tokens, counts]);
        let sum = block.g.node("shown.sum", over(ReduceOp::Sum, 1, false), &[shown]);
        let counts = block.g.node("counts.of", Op::Reshape(vec![rows, 1]), &[self.counts]);
        let count = Expr::arg(1).cast(Dtype::F32).binary(Binary::Max, number(1.0));
        block.g.map("pooled", Expr::arg(0) / count, &[sum, counts])
    }

    /// The position of the last token of each row, `[rows]`.
    pub fn last(&self, block: &mut Block, ids: ValueId, end: End) -> ValueId {
        let score = match end {
            End::Seen => {
                let last = Expr::arg(0) - int(1);
                return block.g.map("last", last, &[self.counts]);
            }
            End::Largest => Expr::arg(0),
            End::Id(id) => Expr::arg(0).binary(Binary::Equal, int(id)).cast(Dtype::I64),
        };
        let each = self.each(block);
        let ids = block.g.node("rows.ids", Op::Gather(0), &[ids, each]);
        let counts = block.g.node("counts.of", Op::Reshape(vec![self.of.rows, 1]), &[self.counts]);
        let is_there = Expr::Axis(1).binary(Binary::Less, Expr::arg(1));
        let scores = block.g.map("last.scores", is_there.select(score, int(i64::MIN)), &[ids, counts]);
        let largest = ArgReduce { largest: true, axis: 1, keep: false, last: false };
        block.g.node("last", Op::ArgReduce(largest), &[scores])
    }

    /// The tokens of each row, `[rows, longest]`. After a row's end, its last token is repeated.
    fn each(&self, block: &mut Block) -> ValueId {
        let Packing { rows, longest, .. } = self.of;
        let [first, counts] = [("first", self.first), ("count", self.counts)]
            .map(|(name, of)| block.g.node(&format!("{name}.of_each"), Op::Reshape(vec![rows, 1]), &[of]));
        let place = counted(block, longest, &[longest]);
        let last = Expr::arg(1) - int(1);
        block.g.map("each", Expr::arg(0) + Expr::arg(2).binary(Binary::Min, last), &[first, counts, place])
    }
}

/// The position of each token in its row, `[tokens]`: the distance from the last start at or before the token.
fn places(block: &mut Block, starts: ValueId, Packing { tokens, rows, longest }: Packing) -> ValueId {
    let apart = block.g.node("starts.apart", Op::Reshape(vec![1, rows + 1]), &[starts]);
    let token = counted(block, tokens, &[tokens, 1]);
    let is_before = Expr::arg(0).binary(Binary::LessEqual, Expr::arg(1));
    let before = block.g.map("starts.before", is_before.select(Expr::arg(0), int(0)), &[apart, token]);
    let first = block.g.node("token.first", over(ReduceOp::Max, 1, false), &[before]);
    block.g.map("token.place", within(Expr::Axis(0) - Expr::arg(0), longest - 1), &[first])
}

/// A constant of these dimensions with the numbers 0, 1, 2, and so on.
fn counted(block: &mut Block, elems: usize, dims: &[usize]) -> ValueId {
    let all: Vec<i64> = (0..elems as i64).collect();
    block.g.constant(Dtype::I64, dims, bytemuck::cast_slice::<i64, u8>(&all).to_vec())
}

/// The number from 0 to `most` that is nearest to `of`.
fn within(of: Expr, most: usize) -> Expr {
    of.binary(Binary::Max, int(0)).binary(Binary::Min, int(most as i64))
}

fn int(value: i64) -> Expr {
    Expr::int(Dtype::I64, value.into())
}
