//! Encoders of texts: BERT and its successors, and those of CLIP and SigLIP.

use super::block::{Block, HIDDEN, Seen, Stack, number};
use super::encoder::Encoder;
use super::options::{Embedding, Pooling};
use super::places;
use super::pooling::{Counted, over};
use super::spans::Span;
use crate::error::Error;
use crate::graph::{ArgReduce, Binary, Expr, Op, ReduceOp, Slice, ValueId};
use crate::tensor::Dtype;

/// An encoder of texts.
pub(super) struct Text {
    pub stack: Stack,
    /// The tables of embeddings of tokens, of positions and of token types, each with its number of rows.
    pub words: (&'static str, usize),
    pub places: Option<(&'static str, usize)>,
    pub types: Option<(&'static str, usize)>,
    /// The row of the table for the first position.
    pub first_place: usize,
    /// The norm of the sum of the three embeddings.
    pub norm: Option<&'static str>,
    /// The norm after the last layer.
    pub last_norm: Option<&'static str>,
    /// The table of numbers that are added to the scores of each head by distance, and its number of rows.
    pub distances: Option<(&'static str, usize)>,
    /// Whether tokens attend only to themselves and to earlier tokens.
    pub is_causal: bool,
    /// The spans of layers, if queries and keys are turned by positions: layer i has the span `i % spans.len()`.
    pub spans: Vec<Span>,
    /// The rule for the last token. `None` if there is no mask: all tokens attend to all, and the last of all is the
    /// last token.
    pub end: Option<End>,
    /// The number of tokens, and the largest possible one.
    pub sequence: usize,
    pub most: usize,
    pub pooling: Pooling,
    pub normalized: bool,
    /// The product after pooling: its name, its number of columns, and whether it has biases.
    pub projection: Option<(&'static str, usize, bool)>,
}

/// The rule for the last token of a text.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The last token that the mask shows.
    Seen,
    /// The first token with this id.
    Id(i64),
    /// The first token with the largest id.
    Largest,
}

impl Encoder for Text {
    fn block(&self, rows: usize) -> Block {
        let mut block = Block::new(&self.stack);
        let dims = [rows, self.sequence];
        let ids = block.g.input("input_ids", Dtype::I64, &dims);
        let ended = self.end.map(|end| (end, block.g.input("attention_mask", Dtype::I64, &dims)));
        let types = self.has_types().then(|| block.g.input("token_type_ids", Dtype::I64, &dims));
        let x = self.embedded(&mut block, ids, types, None);
        let seen = self.seen(&mut block, ended.map(|(_, mask)| mask));
        let x = block.layers(&self.stack, x, &seen, if self.is_first_alone() { 1 } else { self.sequence });
        let x = self.normed(&mut block, self.last_norm, x);
        let counted = match ended {
            Some((end, mask)) => Counted::Masked { mask, last: end.last(&mut block, ids, mask) },
            None => Counted::From(0),
        };
        let x = block.pooled(self.pooling, x, &counted);
        self.give(&mut block, x);
        block
    }

    fn check(&self, asked: &Embedding) -> Result<(), Error> {
        if asked.image.is_some() {
            return Err(Error::option("image", "given", "none, for an encoder of texts"));
        }
        if !(1..=self.most).contains(&self.sequence) {
            return Err(Error::option("sequence", self.sequence, format!("1 to {} tokens", self.most)));
        }
        Ok(())
    }

    fn stacks(&self) -> &[Stack] {
        std::slice::from_ref(&self.stack)
    }

    fn made(&self) -> usize {
        let turned = if self.spans.is_empty() { 0 } else { self.stack.width };
        self.sequence.saturating_mul(self.sequence.max(turned))
    }

    fn layers(&self) -> String {
        self.stack.name(self.stack.names.layers)
    }

    fn texts(&self) -> Option<&Text> {
        Some(self)
    }
}

impl Text {
    /// Whether the last layer computes only the first token, which attends to all others.
    fn is_first_alone(&self) -> bool {
        self.pooling == Pooling::Class && !self.is_causal && self.distances.is_none() && self.spans.is_empty()
    }

    /// The attention of the layers, for one layer or several in turn.
    fn seen(&self, block: &mut Block, mask: Option<ValueId>) -> Vec<Seen> {
        let Some(mask) = mask else { return vec![Seen::default()] };
        let added = self.added(block, mask);
        match self.spans[..] {
            [] => vec![Seen { added: Some(added), ..Seen::default() }],
            _ => self.spanned(block, added),
        }
    }

    /// Whether tokens have types, which are an input of requests.
    pub fn has_types(&self) -> bool {
        self.types.is_some_and(|(_, rows)| rows > 1)
    }

    /// The sum of the embeddings of tokens, positions and types. Without `places`, positions are 0, 1, 2, and so on.
    pub fn embedded(
        &self,
        block: &mut Block,
        ids: ValueId,
        types: Option<ValueId>,
        places: Option<ValueId>,
    ) -> ValueId {
        let width = self.stack.width;
        let table = |block: &mut Block, (name, rows)| {
            block.weight(&format!("{}.weight", self.stack.name(name)), &[rows, width])
        };
        let words = table(block, self.words);
        let words = block.g.node("words", Op::Gather(0), &[words, ids]);
        let mut added = vec![words];
        if let Some(of) = self.places {
            let table = table(block, of);
            let slice = Slice { start: vec![self.first_place, 0], step: vec![1; 2], dims: vec![self.sequence, width] };
            added.push(match places {
                None => block.g.node("places", Op::Slice(slice), &[table]),
                Some(places) => block.g.node("places", Op::Gather(0), &[table, places]),
            });
        }
        if let Some(of) = self.types {
            let table = table(block, of);
            added.push(types.map_or(table, |ids| block.g.node("types", Op::Gather(0), &[table, ids])));
        }
        let x = match added[..] {
            [words] => words,
            _ => {
                let sum = (1..added.len()).fold(Expr::arg(0), |sum, number| sum + Expr::arg(number));
                block.g.map("embedded", sum, &added)
            }
        };
        self.normed(block, self.norm, x)
    }

    /// The value after a norm, if there is one.
    pub fn normed(&self, block: &mut Block, norm: Option<&str>, x: ValueId) -> ValueId {
        norm.map_or(x, |norm| block.g.layer_norm(&self.stack.name(norm), x, self.stack.eps))
    }

    /// Adds the outputs of a pooled vector, or of all tokens.
    pub fn give(&self, block: &mut Block, pooled: ValueId) {
        let x = match self.projection {
            Some((name, columns, bias)) if self.pooling != Pooling::Tokens => block.linear(name, pooled, columns, bias),
            _ => pooled,
        };
        let x = if self.normalized { block.unit(x) } else { x };
        block.g.output(if self.pooling == Pooling::Tokens { "tokens" } else { "embedding" }, x);
    }

    /// The numbers that are added to scores: `[rows, 1 or heads, 1 or tokens, keys]`.
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

    /// The numbers that are added to scores by distance: `[1, heads, tokens, keys]`.
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
}

impl End {
    /// The index of the last token of each row.
    fn last(self, block: &mut Block, ids: ValueId, mask: ValueId) -> ValueId {
        let largest = Op::ArgReduce(ArgReduce { largest: true, axis: 1, keep: false, last: false });
        match self {
            Self::Largest => block.g.node("last", largest, &[ids]),
            Self::Id(id) => {
                let is_end = Expr::arg(0).binary(Binary::Equal, Expr::int(Dtype::I64, id.into()));
                let is_end = block.g.map("is_end", is_end.cast(Dtype::I64), &[ids]);
                block.g.node("last", largest, &[is_end])
            }
            Self::Seen => {
                let count = block.g.node("count", over(ReduceOp::Sum, 1, false), &[mask]);
                let one = || Expr::int(Dtype::I64, 1);
                block.g.map("last", Expr::arg(0).binary(Binary::Max, one()).binary(Binary::Sub, one()), &[count])
            }
        }
    }
}

/// The numbers that hide later tokens from each token: `[1, 1, tokens, keys]`.
fn causal(block: &mut Block, tokens: usize) -> ValueId {
    let hidden = |token, key| if key > token { HIDDEN as f32 } else { 0.0 };
    let all: Vec<f32> = (0..tokens).flat_map(|token| (0..tokens).map(move |key| hidden(token, key))).collect();
    block.g.constant(Dtype::F32, &[1, 1, tokens, tokens], bytemuck::cast_slice::<f32, u8>(&all).to_vec())
}
