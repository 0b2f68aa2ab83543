//! Encoders of texts: BERT and what follows it, and CLIP's.

use super::block::{Block, HIDDEN, Stack, number};
use super::options::Pooling;
use super::places;
use super::pooling::{Counted, over};
use crate::graph::{ArgReduce, Binary, Expr, Op, ReduceOp, Slice, ValueId};
use crate::tensor::Dtype;

/// An encoder of texts.
pub(super) struct Text {
    pub stack: Stack,
    /// Tables of what a token, a place and a type of token add, each with its rows.
    pub words: (&'static str, usize),
    pub places: (&'static str, usize),
    pub types: Option<(&'static str, usize)>,
    /// The row of the first place.
    pub first_place: usize,
    /// The norm of the sum of the three.
    pub norm: Option<&'static str>,
    /// The norm behind the last layer.
    pub last_norm: Option<&'static str>,
    /// A table of what distances add to the scores of each head, and its rows.
    pub distances: Option<(&'static str, usize)>,
    /// Whether no token sees those behind it.
    pub is_causal: bool,
    pub end: End,
    /// Tokens.
    pub sequence: usize,
    pub pooling: Pooling,
    pub normalized: bool,
    /// The product behind pooling, and its columns.
    pub projection: Option<(&'static str, usize)>,
}

/// Which token is the last one.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The last one that the mask shows.
    Seen,
    /// The first of this number.
    Id(i64),
    /// The first of the largest number.
    Largest,
}

impl Text {
    /// Its graph for so many rows.
    pub fn block(&self, rows: usize) -> Block {
        let mut block = Block::default();
        let dims = [rows, self.sequence];
        let ids = block.g.input("input_ids", Dtype::I64, &dims);
        let mask = block.g.input("attention_mask", Dtype::I64, &dims);
        let x = self.embedded(&mut block, ids, dims);
        let added = self.added(&mut block, mask);
        let first_alone = self.pooling == Pooling::Class && !self.is_causal && self.distances.is_none();
        let x = block.layers(&self.stack, x, Some(added), if first_alone { 1 } else { self.sequence });
        let x = match self.last_norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, self.stack.eps),
            None => x,
        };
        let counted = Counted::Masked { mask, last: self.last(&mut block, ids, mask) };
        let x = block.pooled(self.pooling, x, &counted);
        let x = match self.projection {
            Some((name, columns)) if self.pooling != Pooling::Tokens => block.linear(name, x, columns, false),
            _ => x,
        };
        let x = if self.normalized { block.unit(x) } else { x };
        block.g.output(if self.pooling == Pooling::Tokens { "tokens" } else { "embedding" }, x);
        block
    }

    /// What tokens, their places and types are as vectors.
    fn embedded(&self, block: &mut Block, ids: ValueId, dims: [usize; 2]) -> ValueId {
        let width = self.stack.width;
        let table = |block: &mut Block, (name, rows)| {
            block.weight(&format!("{}.weight", self.stack.name(name)), &[rows, width])
        };
        let words = table(block, self.words);
        let words = block.g.node("words", Op::Gather(0), &[words, ids]);
        let places = table(block, self.places);
        let slice = Slice { start: vec![self.first_place, 0], step: vec![1; 2], dims: vec![self.sequence, width] };
        let places = block.g.node("places", Op::Slice(slice), &[places]);
        let x = match self.types {
            None => block.g.map("embedded", Expr::arg(0) + Expr::arg(1), &[words, places]),
            Some((name, rows)) => {
                let types = table(block, (name, rows));
                let types = match rows {
                    1 => types,
                    _ => {
                        let ids = block.g.input("token_type_ids", Dtype::I64, &dims);
                        block.g.node("types", Op::Gather(0), &[types, ids])
                    }
                };
                let sum = Expr::arg(0) + Expr::arg(1) + Expr::arg(2);
                block.g.map("embedded", sum, &[words, places, types])
            }
        };
        match self.norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, self.stack.eps),
            None => x,
        }
    }

    /// What is added to scores: `[rows, 1 or heads, 1 or tokens, keys]`.
    fn added(&self, block: &mut Block, mask: ValueId) -> ValueId {
        let (rows, tokens) = (block.g.value(mask).dims[0], self.sequence);
        let apart = block.g.node("mask.apart", Op::Reshape(vec![rows, 1, 1, tokens]), &[mask]);
        let is_hidden = Expr::arg(0).binary(Binary::Equal, Expr::int(Dtype::I64, 0));
        let hidden = block.g.map("mask", is_hidden.select(number(HIDDEN), number(0.0)), &[apart]);
        let other = match self.distances {
            Some(distances) => self.by_distance(block, distances),
            None if self.is_causal => causal(block, tokens),
            None => return hidden,
        };
        block.g.map("mask.both", Expr::arg(0) + Expr::arg(1), &[hidden, other])
    }

    /// `[1, heads, tokens, keys]`.
    fn by_distance(&self, block: &mut Block, (name, rows): (&str, usize)) -> ValueId {
        let (heads, tokens) = (self.stack.heads, self.sequence);
        let table = block.weight(&format!("{}.weight", self.stack.name(name)), &[rows, heads]);
        let buckets = places::buckets(tokens, rows);
        let buckets =
            block.g.constant(Dtype::I64, &[tokens, tokens], bytemuck::cast_slice::<i64, u8>(&buckets).to_vec());
        let biases = block.g.node("distances", Op::Gather(0), &[table, buckets]);
        let turned = block.g.node("distances.turned", Op::Transpose(vec![2, 0, 1]), &[biases]);
        block.g.node("distances.apart", Op::Reshape(vec![1, heads, tokens, tokens]), &[turned])
    }

    /// The index of the last token of each row.
    fn last(&self, block: &mut Block, ids: ValueId, mask: ValueId) -> ValueId {
        let largest = Op::ArgReduce(ArgReduce { largest: true, axis: 1, keep: false, last: false });
        match self.end {
            End::Largest => block.g.node("last", largest, &[ids]),
            End::Id(id) => {
                let is_end = Expr::arg(0).binary(Binary::Equal, Expr::int(Dtype::I64, id.into()));
                let is_end = block.g.map("is_end", is_end.cast(Dtype::I64), &[ids]);
                block.g.node("last", largest, &[is_end])
            }
            End::Seen => {
                let count = block.g.node("count", over(ReduceOp::Sum, 1, false), &[mask]);
                let one = || Expr::int(Dtype::I64, 1);
                block.g.map("last", Expr::arg(0).binary(Binary::Max, one()).binary(Binary::Sub, one()), &[count])
            }
        }
    }
}

/// What hides the tokens behind each token: `[1, 1, tokens, keys]`.
fn causal(block: &mut Block, tokens: usize) -> ValueId {
    let hidden = |token, key| if key > token { HIDDEN as f32 } else { 0.0 };
    let all: Vec<f32> = (0..tokens).flat_map(|token| (0..tokens).map(move |key| hidden(token, key))).collect();
    block.g.constant(Dtype::F32, &[1, 1, tokens, tokens], bytemuck::cast_slice::<f32, u8>(&all).to_vec())
}
