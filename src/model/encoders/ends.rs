//! The outputs of an encoder of images: vectors, and logits of classes.

use super::block::Block;
use super::options::Pooling;
use super::pooling::Counted;
use crate::error::Error;
use crate::graph::ValueId;
use crate::model::weights::Weights;

/// The operations after pooling.
#[derive(Clone)]
pub(super) struct Ends {
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalized: bool,
    /// The norm of the pooled vector: its name and the number that it adds to the variance.
    pub norm: Option<(String, f64)>,
    /// The product after the norm: its name and the number of columns.
    pub projection: Option<(&'static str, usize)>,
    /// The classifier: its name and the number of classes.
    pub classes: Option<(&'static str, usize)>,
}

impl Ends {
    /// Checks that the pooling is possible.
    ///
    /// # Errors
    /// [`Error::Option`] if the first token is requested of an encoder that has no token before those of pixels.
    pub fn check(&self, has_first: bool) -> Result<(), Error> {
        match self.pooling {
            Pooling::Class if !has_first => {
                Err(Error::option("pooling", "Class", "Mean or Tokens, for an encoder without a first token"))
            }
            _ => Ok(()),
        }
    }

    /// Pools tokens, `[rows, tokens, width]`, and adds the outputs that follow.
    pub fn pool(&self, block: &mut Block, tokens: ValueId) {
        let pooled = block.pooled(self.pooling, tokens, &Counted::From(0));
        self.give(block, pooled);
    }

    /// Adds the outputs of a pooled vector, or of all tokens.
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

/// The classifier in the weights that reads one pooled vector: its name and the number of classes; `None` if there is
/// none.
pub(super) fn classes(weights: &Weights, name: &'static str, width: usize) -> Option<(&'static str, usize)> {
    match weights.dims(&format!("{name}.weight")) {
        Some(&[classes, read]) if read == width => Some((name, classes)),
        _ => None,
    }
}
