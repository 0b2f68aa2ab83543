//! Encoders of images: ViT, DeiT, DINOv2 and CLIP's.

use super::block::{Block, Stack};
use super::options::Pooling;
use super::places::resized;
use super::pooling::Counted;
use crate::error::Error;
use crate::graph::{Conv, Expr, Op, Tensor, ValueId, ValueType, Window};
use crate::model::weights::Weights;
use crate::tensor::Dtype;

/// An encoder of images.
pub(super) struct Images {
    pub stack: Stack,
    /// Height and width.
    pub size: [usize; 2],
    pub patch: usize,
    /// The product of patches, and whether it has biases.
    pub filter: (&'static str, bool),
    /// Tokens before those of patches: the tensor of each, and its dimensions.
    pub tokens: Vec<(&'static str, Vec<usize>)>,
    /// The table of places and its dimensions.
    pub places: (&'static str, Vec<usize>),
    /// How many of the tokens before patches have places.
    pub placed: usize,
    /// Whether a table for fewer patches is filtered.
    pub antialias: bool,
    /// The norm before the first layer.
    pub first_norm: Option<&'static str>,
    /// The norm of all tokens behind the last layer.
    pub last_norm: Option<&'static str>,
    /// The norm of the pooled vector.
    pub pooled_norm: Option<&'static str>,
    /// Subtracted from each channel, and what divides it then, of values from 0 to 1.
    pub mean: [f32; 3],
    pub std: [f32; 3],
    pub pooling: Pooling,
    pub normalized: bool,
    /// The product behind pooling, and its columns.
    pub projection: Option<(&'static str, usize)>,
    /// The classifier, and its classes.
    pub classes: Option<(&'static str, usize)>,
}

/// Channels of a picture.
const CHANNELS: usize = 3;
const PREFIX: &str = "tokens before patches";
const PLACES: &str = "places of patches";

impl Images {
    /// Its graph for so many rows.
    pub fn block(&self, rows: usize) -> Block {
        let mut block = Block::default();
        let x = self.embedded(&mut block, rows);
        let eps = self.stack.eps;
        let x = match self.first_norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, eps),
            None => x,
        };
        let tokens = block.g.value(x).dims[1];
        let last = if self.pooling == Pooling::Class { 1 } else { tokens };
        let x = block.layers(&self.stack, x, None, last);
        let x = match self.last_norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, eps),
            None => x,
        };
        let pooled = block.pooled(self.pooling, x, &Counted::From(self.prefix()));
        let pooled = match self.pooled_norm {
            Some(norm) if self.pooling != Pooling::Tokens => block.g.layer_norm(&self.stack.name(norm), pooled, eps),
            _ => pooled,
        };
        if let Some((name, classes)) = self.classes.filter(|_| self.pooling != Pooling::Tokens) {
            let logits = block.linear(name, pooled, classes, true);
            block.g.output("logits", logits);
        }
        let x = match self.projection {
            Some((name, columns)) if self.pooling != Pooling::Tokens => block.linear(name, pooled, columns, false),
            _ => pooled,
        };
        let x = if self.normalized { block.unit(x) } else { x };
        block.g.output(if self.pooling == Pooling::Tokens { "tokens" } else { "embedding" }, x);
        block
    }

    /// Bytes of pixels as vectors of patches with their places, behind the tokens before them.
    fn embedded(&self, block: &mut Block, rows: usize) -> ValueId {
        let (width, patch, [height, wide]) = (self.stack.width, self.patch, self.size);
        let pixels = block.g.input("pixels", Dtype::U8, &[rows, height, wide, CHANNELS]);
        let (scale, shift) = self.normalization();
        let [scale, shift] = [scale, shift].map(|by| vector(block, &by));
        let x = Expr::arg(0).cast(Dtype::F32) * Expr::arg(1) + Expr::arg(2);
        let x = block.g.map("normalized", x, &[pixels, scale, shift]);
        let (name, has_bias) = self.filter;
        let name = self.stack.name(name);
        let filter = block.weight(&format!("{name}.weight"), &[width, CHANNELS, patch, patch]);
        let bias = has_bias.then(|| block.weight(&format!("{name}.bias"), &[width]));
        let conv = Conv { window: Window::all(2, patch, patch, 0), groups: 1 };
        let x = block.g.node(&name, Op::Conv(conv), &[&[x, filter][..], bias.as_slice()].concat());
        let x = block.g.node("patches", Op::Reshape(vec![rows, self.patches(), width]), &[x]);
        for (name, dims) in self.tokens.iter().chain([&self.places]) {
            block.parts.insert(self.stack.name(name), dims.clone());
        }
        block.made.extend([PLACES, PREFIX]);
        let places = block.g.weight(PLACES, Dtype::F32, &[1, self.patches(), width]);
        let prefix = block.g.weight(PREFIX, Dtype::F32, &[1, self.prefix(), width]);
        let x = block.g.map("placed", Expr::arg(0) + Expr::arg(1), &[x, places]);
        let prefix = block.g.node("prefix", Op::Broadcast(vec![rows, self.prefix(), width]), &[prefix]);
        block.g.node("tokens", Op::Concat(1), &[prefix, x])
    }

    /// What bytes are multiplied by, and what is added.
    fn normalization(&self) -> ([f32; 3], [f32; 3]) {
        let of = |c: usize| {
            let [mean, std] = [self.mean[c], self.std[c]].map(f64::from);
            ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32)
        };
        (of_each(|c| of(c).0), of_each(|c| of(c).1))
    }

    /// Patches along each side.
    fn grid(&self) -> [usize; 2] {
        self.size.map(|side| side / self.patch)
    }

    fn patches(&self) -> usize {
        self.grid().iter().product()
    }

    /// Tokens before those of patches.
    fn prefix(&self) -> usize {
        self.tokens.iter().map(|(_, dims)| dims.iter().product::<usize>() / self.stack.width).sum()
    }

    /// What is computed of the weights once: tokens before patches with their places, and places of patches at this
    /// size.
    ///
    /// # Errors
    /// [`Error::Io`] if weights cannot be read; [`Error::Tensor`] if they are no floats.
    pub fn computed(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>, Error> {
        let width = self.stack.width;
        let read = |(name, dims): &(&str, Vec<usize>)| {
            let tensor = weights.read_as(&self.stack.name(name), &ValueType::new(Dtype::F32, dims))?;
            Ok::<_, Error>(tensor.elems::<f32>().to_vec())
        };
        let places = read(&self.places)?;
        let (first, patches) = places.split_at(self.placed * width);
        let mut prefix = Vec::new();
        for token in &self.tokens {
            prefix.extend(read(token)?);
        }
        prefix.iter_mut().zip(first).for_each(|(token, place)| *token += place);
        let side = (patches.len() / width).isqrt();
        let places = resized(Tensor::of(&[side, side, width], patches), self.grid(), self.antialias)?;
        let of = |tokens: usize| ValueType::new(Dtype::F32, &[1, tokens, width]);
        Ok(vec![
            (PREFIX.to_owned(), Tensor::of(&of(self.prefix()).dims, &prefix)),
            (PLACES.to_owned(), places.cast(of(self.patches()))),
        ])
    }
}

fn of_each(of: impl Fn(usize) -> f32) -> [f32; 3] {
    [of(0), of(1), of(2)]
}

/// A constant for each channel.
fn vector(block: &mut Block, values: &[f32; 3]) -> ValueId {
    block.g.constant(Dtype::F32, &[CHANNELS], bytemuck::cast_slice::<f32, u8>(values).to_vec())
}
