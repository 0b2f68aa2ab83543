//! The outputs of an encoder of images: vectors, and logits of classes.

use super::block::Block;
use super::options::Pooling;
use super::pooling::Counted;
use crate::error::Error;
use crate::graph::ValueId;
use crate::model::weights::Weights;

/// What follows pooling.
#[derive(Clone)]
pub(super) struct Ends {
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalized: bool,
    /// The norm of the pooled vector, and what it adds to the variance.
    pub norm: Option<(String, f64)>,
    /// The product behind it, and its columns.
    pub projection: Option<(&'static str, usize)>,
    /// The classifier, and its classes.
    pub classes: Option<(&'static str, usize)>,
}

impl Ends {
    /// # Errors
    /// [`Error::Option`] where the first token is asked for of an encoder that has none before those of pixels.
    pub fn check(&self, has_first: bool) -> Result<(), Error> {
        match self.pooling {
            Pooling::Class if !has_first => {
                Err(Error::option("pooling", "Class", "Mean or Tokens, for an encoder without a first token"))
            }
            _ => Ok(()),
        }
    }

    /// Gives all tokens, `[rows, tokens, width]`, pooled, and what is made of that.
    pub fn pool(&self, block: &mut Block, tokens: ValueId) {
        let pooled = block.pooled(self.pooling, tokens, &Counted::From(0));
        self.give(block, pooled);
    }

    /// Gives a pooled vector, or all tokens, and what is made of it.
    pub fn give(&self, block: &mut Block, pooled: ValueId) {
        if self.pooling == Pooling::Tokens {
            let x = if self.normalized { block.unit(pooled) } else { pooled };
            return block.g.output("tokens", x);
        }
        let pooled = match &self.norm {
            Some((norm, eps)) => block.g.layer_norm(norm, pooled, *eps),
            None => pooled,
        };
        if let Some((name, classes)) = self.classes {
            let logits = block.linear(name, pooled, classes, true);
            block.g.output("logits", logits);
        }
        let x = match self.projection {
            Some((name, columns)) => block.linear(name, pooled, columns, false),
            None => pooled,
        };
        let x = if self.normalized { block.unit(x) } else { x };
        block.g.output("embedding", x);
    }
}

/// A classifier that is there and reads one vector.
pub(super) fn classes(weights: &Weights, name: &'static str, width: usize) -> Option<(&'static str, usize)> {
    match weights.dims(&format!("{name}.weight")) {
        Some(&[classes, read]) if read == width => Some((name, classes)),
        _ => None,
    }
}
