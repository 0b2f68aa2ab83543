//! Vision transformers: ViT, DeiT, DINOv2 and DINOv3, and those of CLIP and SigLIP.

use super::block::{Block, Seen, Stack};
use super::encoder::Encoder;
use super::ends::Ends;
use super::head::Head;
use super::options::{Embedding, Pooling};
use super::pixels::{CHANNELS, Pixels};
use super::places::{grid_angles, resized};
use super::pooling::Counted;
use crate::error::Error;
use crate::graph::{Conv, Expr, Op, Tensor, ValueId, ValueType, Window};
use crate::model::weights::Weights;
use crate::tensor::Dtype;

/// An encoder of images.
pub(super) struct Images {
    pub stack: Stack,
    pub pixels: Pixels,
    pub patch: usize,
    /// The product of patches: its name, and whether it has biases.
    pub filter: (&'static str, bool),
    /// The tokens before those of patches: the name and dimensions of each tensor.
    pub tokens: Vec<(&'static str, Vec<usize>)>,
    /// The table of position embeddings: its name and dimensions, if there is one.
    pub places: Option<(&'static str, Vec<usize>)>,
    /// The number of tokens before patches that have position embeddings.
    pub placed: usize,
    /// The number of patches along the height and the width of the images for which the table was made.
    pub trained: [usize; 2],
    /// Whether the table is filtered when it is reduced to fewer patches.
    pub antialias: bool,
    /// The base of the angles by which queries and keys are turned, if they are.
    pub turning: Option<f64>,
    /// The norm before the first layer, if there is one.
    pub first_norm: Option<&'static str>,
    /// The norm of all tokens after the last layer, if there is one.
    pub last_norm: Option<&'static str>,
    /// The head that pools unless another pooling is requested.
    pub head: Option<Head>,
    pub ends: Ends,
}

const PREFIX: &str = "tokens before patches";
const PLACES: &str = "places of patches";

impl Encoder for Images {
    fn block(&self, rows: usize) -> Block {
        let mut block = Block::new(&self.stack);
        let x = self.embedded(&mut block, rows);
        let eps = self.stack.eps;
        let x = match self.first_norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, eps),
            None => x,
        };
        let tokens = block.g.value(x).dims[1];
        let last = if self.ends.pooling == Pooling::Class && self.head.is_none() { 1 } else { tokens };
        let turned = self.turning.map(|base| self.angles(&mut block, base));
        let seen = Seen { turned, ..Seen::default() };
        let x = block.layers(&self.stack, x, &[seen], last);
        let x = match self.last_norm {
            Some(norm) => block.g.layer_norm(&self.stack.name(norm), x, eps),
            None => x,
        };
        let pooled = match &self.head {
            Some(head) => head.pooled(&mut block, &self.stack, x),
            None => block.pooled(self.ends.pooling, x, &Counted::From(self.prefix())),
        };
        self.ends.give(&mut block, pooled);
        block
    }

    fn check(&self, asked: &Embedding) -> Result<(), Error> {
        self.ends.check(!self.tokens.is_empty())?;
        self.pixels.check(asked, self.patch, "patches")
    }

    fn stacks(&self) -> &[Stack] {
        std::slice::from_ref(&self.stack)
    }

    fn made(&self) -> usize {
        let [height, width] = self.pixels.grid(self.patch.max(1));
        let numbers = |dims: &[usize]| dims.iter().copied().fold(1, usize::saturating_mul);
        let before = self.tokens.iter().map(|(_, dims)| numbers(dims)).fold(0, usize::saturating_add);
        numbers(&[height, width, self.stack.width]).saturating_add(before)
    }

    fn layers(&self) -> String {
        self.stack.name(self.stack.names.layers)
    }

    fn pixels(&mut self) -> Option<&mut Pixels> {
        Some(&mut self.pixels)
    }

    /// The tokens before patches with their position embeddings, those of patches at this size, and the head's weights.
    fn computed(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>, Error> {
        let width = self.stack.width;
        let read = |(name, dims): &(&str, Vec<usize>)| {
            let tensor = weights.read_as(&self.stack.name(name), &ValueType::new(Dtype::F32, dims))?;
            Ok::<_, Error>(tensor.elems::<f32>().to_vec())
        };
        let of = |tokens: usize| ValueType::new(Dtype::F32, &[1, tokens, width]);
        let (mut prefix, mut all) = (Vec::new(), Vec::new());
        for token in &self.tokens {
            prefix.extend(read(token)?);
        }
        if let Some(places) = &self.places {
            let places = read(places)?;
            let (first, patches) = places.split_at(self.placed * width);
            prefix.iter_mut().zip(first).for_each(|(token, place)| *token += place);
            let [height, columns] = self.trained;
            let places = resized(Tensor::of(&[height, columns, width], patches), self.grid(), self.antialias)?;
            all.push((PLACES.to_owned(), places.cast(of(self.patches()))));
        }
        if !self.tokens.is_empty() {
            all.push((PREFIX.to_owned(), Tensor::of(&of(self.prefix()).dims, &prefix)));
        }
        if let Some(head) = &self.head {
            all.extend(head.computed(weights, &self.stack)?);
        }
        Ok(all)
    }
}

impl Images {
    /// The vectors of all tokens, with position embeddings: the tokens before patches, then the patches of the image's
    /// bytes.
    fn embedded(&self, block: &mut Block, rows: usize) -> ValueId {
        let (width, patch) = (self.stack.width, self.patch);
        let x = self.pixels.normalized(block, rows, patch);
        let (name, has_bias) = self.filter;
        let name = self.stack.name(name);
        let filter = block.weight(&format!("{name}.weight"), &[width, CHANNELS, patch, patch]);
        let bias = has_bias.then(|| block.weight(&format!("{name}.bias"), &[width]));
        let conv = Conv { window: Window::all(2, patch, patch, 0), groups: 1 };
        let x = block.g.node(&name, Op::Conv(conv), &[&[x, filter][..], bias.as_slice()].concat());
        let mut x = block.g.node("patches", Op::Reshape(vec![rows, self.patches(), width]), &[x]);
        for (name, dims) in self.tokens.iter().chain(&self.places) {
            block.parts.insert(self.stack.name(name), dims.clone());
        }
        block.made.extend([PLACES, PREFIX].map(str::to_owned));
        if self.places.is_some() {
            let places = block.g.weight(PLACES, Dtype::F32, &[1, self.patches(), width]);
            x = block.g.map("placed", Expr::arg(0) + Expr::arg(1), &[x, places]);
        }
        if self.tokens.is_empty() {
            return x;
        }
        let prefix = block.g.weight(PREFIX, Dtype::F32, &[1, self.prefix(), width]);
        let prefix = block.g.node("prefix", Op::Broadcast(vec![rows, self.prefix(), width]), &[prefix]);
        block.g.node("tokens", Op::Concat(1), &[prefix, x])
    }

    /// The angles by which queries and keys are turned. Tokens before patches are not turned.
    fn angles(&self, block: &mut Block, base: f64) -> [ValueId; 2] {
        let dims = self.stack.width / self.stack.heads;
        let prefix = vec![vec![0.0; dims / 2]; self.prefix()];
        block.angles(&[prefix, grid_angles(self.grid(), base, dims)].concat())
    }

    /// The number of patches along each side.
    fn grid(&self) -> [usize; 2] {
        self.pixels.grid(self.patch)
    }

    fn patches(&self) -> usize {
        self.grid().iter().product()
    }

    /// The number of tokens before those of patches.
    fn prefix(&self) -> usize {
        self.tokens.iter().map(|(_, dims)| dims.iter().product::<usize>() / self.stack.width).sum()
    }
}
