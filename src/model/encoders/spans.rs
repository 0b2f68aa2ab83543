//! Layers with rotary position embeddings, some of which have local attention.

use super::block::{Block, HIDDEN, Seen, number};
use super::text::Text;
use super::turned::frequencies;
use crate::graph::{Binary, Expr, Unary, ValueId};
use crate::tensor::Dtype;

/// The span of a layer: the tokens to which a token attends, and the angles of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    /// The base of the angles by which queries and keys are turned from token to token.
    pub base: f64,
    /// The distance to the furthest token that a token attends to; `None` if it attends to all.
    pub reach: Option<usize>,
}

impl Text {
    /// The attention of layers with these spans; `mask` is added to all scores.
    pub fn spanned(&self, block: &mut Block, mask: ValueId) -> Vec<Seen> {
        self.by_spans(|span| {
            let reach = span.reach.filter(|reach| reach + 1 < self.sequence);
            let added = reach.map_or(mask, |reach| self.near(block, mask, reach));
            Seen { added: Some(added), turned: Some(self.turns(block, span.base, self.sequence)), packed: None }
        })
    }

    /// The result of `of` for the span of each layer. It is called once for each different span.
    pub fn by_spans(&self, mut of: impl FnMut(Span) -> Seen) -> Vec<Seen> {
        let mut known: Vec<(Span, Seen)> = Vec::new();
        let seen = |span: &Span| match known.iter().find(|(other, _)| other == span) {
            Some((_, seen)) => *seen,
            None => {
                known.push((*span, of(*span)));
                known[known.len() - 1].1
            }
        };
        self.spans.iter().map(seen).collect()
    }

    /// The mask that also hides keys further away than `reach`: `[rows, 1, tokens, keys]`.
    fn near(&self, block: &mut Block, mask: ValueId, reach: usize) -> ValueId {
        let places: Vec<f32> = (0..self.sequence).map(|place| place as f32).collect();
        let [token, key] = [[1, 1, self.sequence, 1], [1, 1, 1, self.sequence]]
            .map(|dims| block.g.constant(Dtype::F32, &dims, bytemuck::cast_slice::<f32, u8>(&places).to_vec()));
        let far = (Expr::arg(1) - Expr::arg(2)).unary(Unary::Abs);
        let is_far = number(reach as f64).binary(Binary::Less, far);
        let near = Expr::arg(0) + is_far.select(number(HIDDEN), number(0.0));
        block.g.map(&format!("mask within {reach}"), near, &[mask, token, key])
    }

    /// Cosines and sines of the angles of `tokens` tokens.
    pub fn turns(&self, block: &mut Block, base: f64, tokens: usize) -> [ValueId; 2] {
        let speeds = frequencies(base, self.stack.width / self.stack.heads / 2);
        let of_token = |token: usize| speeds.iter().map(|speed| token as f32 * speed).collect();
        block.angles(&(0..tokens).map(of_token).collect::<Vec<_>>())
    }
}
