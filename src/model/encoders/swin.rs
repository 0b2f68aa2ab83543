//! Swin: stages of layers whose tokens attend only to tokens of the same window; every second layer has shifted
//! windows. Tokens stay in the order of windows from layer to layer, so that only shifted windows reorder them.

use super::block::{Block, HIDDEN, Seen, Stack, number};
use super::encoder::Encoder;
use super::ends::Ends;
use super::options::Embedding;
use super::pixels::{CHANNELS, Pixels};
use crate::error::Error;
use crate::graph::{Binary, Conv, Expr, Op, Pad, PadMode, ValueId, Window};
use crate::tensor::Dtype;

pub(super) struct Swin {
    pub pixels: Pixels,
    pub patch: usize,
    /// The number of tokens along each side of a window.
    pub window: usize,
    /// Whether windows are shifted along a side with several windows if the other side has only one.
    pub moves_one_side: bool,
    /// The layers of each stage. The tokens of a stage have twice as many values as those of the stage before.
    pub stages: Vec<Stack>,
    /// The product of patches, and the norm that follows.
    pub filter: &'static str,
    pub first_norm: &'static str,
    /// The table of numbers that are added to scores by distance within a window: its name in a layer.
    pub distances: &'static str,
    /// The stage in whose names the merging after stage i is.
    pub merged_by: fn(usize) -> usize,
    /// The norm after the last stage.
    pub last_norm: &'static str,
    /// The beginning of all tensors' names.
    pub prefix: String,
    /// The beginning of the names of stages.
    pub layers: &'static str,
    pub eps: f64,
    pub ends: Ends,
}

/// The number that the norms between stages add to the variance. Other norms have `eps`.
const MERGING_EPS: f64 = 1e-5;

impl Encoder for Swin {
    fn block(&self, rows: usize) -> Block {
        let mut block = self.stages.first().map(Block::new).unwrap_or_default();
        let mut sides = self.pixels.grid(self.patch);
        let mut x = self.embedded(&mut block, rows);
        for (index, stage) in self.stages.iter().enumerate() {
            if index > 0 {
                x = self.merged(&mut block, index - 1, x, sides);
                sides = sides.map(|side| side / 2);
            }
            x = (0..stage.layers).fold(x, |x, layer| self.layer(&mut block, stage, layer, x, sides));
        }
        let x = block.g.layer_norm(&format!("{}{}", self.prefix, self.last_norm), x, self.eps);
        self.ends.pool(&mut block, x);
        block
    }

    fn check(&self, asked: &Embedding) -> Result<(), Error> {
        self.ends.check(false)?;
        let grain = (self.patch * self.window) << (self.stages.len() - 1);
        let [height, width] = self.pixels.size;
        self.pixels.check(&asked.clone().image(height, width), grain, "last windows")
    }

    fn stacks(&self) -> &[Stack] {
        &self.stages
    }

    /// The largest table: the distances of each pair of tokens of a window, or the masks of shifted windows.
    fn made(&self) -> usize {
        let [height, width] = self.pixels.grid(self.patch.max(1));
        self.window.saturating_pow(4).max(height.saturating_mul(width).saturating_mul(self.window.saturating_pow(2)))
    }

    fn layers(&self) -> String {
        format!("{}{}", self.prefix, self.layers)
    }

    fn pixels(&mut self) -> Option<&mut Pixels> {
        Some(&mut self.pixels)
    }
}

impl Swin {
    fn embedded(&self, block: &mut Block, rows: usize) -> ValueId {
        let (width, patch) = (self.stages[0].width, self.patch);
        let x = self.pixels.normalized(block, rows, patch);
        let name = format!("{}{}", self.prefix, self.filter);
        let filter = block.weight(&format!("{name}.weight"), &[width, CHANNELS, patch, patch]);
        let bias = block.weight(&format!("{name}.bias"), &[width]);
        let conv = Conv { window: Window::all(2, patch, patch, 0), groups: 1 };
        let x = block.g.node(&name, Op::Conv(conv), &[x, filter, bias]);
        let tokens = self.pixels.grid(patch).iter().product();
        let x = block.g.node("patches", Op::Reshape(vec![rows, tokens, width]), &[x]);
        block.g.layer_norm(&format!("{}{}", self.prefix, self.first_norm), x, MERGING_EPS)
    }

    /// Joins two by two tokens to one, with twice as many values as one of them.
    fn merged(&self, block: &mut Block, stage: usize, x: ValueId, [height, wide]: [usize; 2]) -> ValueId {
        let (rows, width) = (block.g.value(x).dims[0], self.stages[stage].width);
        let name = |part: &str| format!("{}{}.downsample.{part}", self.layers(), (self.merged_by)(stage));
        let pairs = Op::Reshape(vec![rows, height / 2, 2, wide / 2, 2, width]);
        let x = block.g.node(&name("pairs"), pairs, &[x]);
        let x = block.g.node(&name("turned"), Op::Transpose(vec![0, 1, 3, 4, 2, 5]), &[x]);
        let together = Op::Reshape(vec![rows, height * wide / 4, 4 * width]);
        let x = block.g.node(&name("together"), together, &[x]);
        let x = block.g.layer_norm(&name("norm"), x, MERGING_EPS);
        block.linear(&name("reduction"), x, 2 * width, false)
    }

    /// A layer. Between its steps, tokens are in the order of windows; if the next layer has the same windows, they
    /// stay so.
    fn layer(&self, block: &mut Block, of: &Stack, layer: usize, x: ValueId, sides: [usize; 2]) -> ValueId {
        let (rows, shift) = (block.g.value(x).dims[0], self.shift(layer, sides));
        let x = self.windows(block, &of.at(layer, "windows"), x, sides, shift);
        let added = self.added(block, of, layer, rows, sides, shift);
        let x = block.layer(of, layer, x, Seen { added: Some(added), ..Seen::default() }, self.window * self.window);
        self.joined(block, &of.at(layer, "whole"), x, sides, shift)
    }

    /// The distance by which a layer's windows are shifted along each side: half a window in every second layer. A side
    /// with only one window is not shifted, and then, unless `moves_one_side`, neither is the other side.
    fn shift(&self, layer: usize, sides: [usize; 2]) -> [usize; 2] {
        let has_several = sides.map(|side| side > self.window);
        let is_moved = |of: bool| layer % 2 == 1 && of && (self.moves_one_side || has_several == [true; 2]);
        has_several.map(|of| if is_moved(of) { self.window / 2 } else { 0 })
    }

    /// Reorders tokens by windows that are shifted by `shift`: `[rows x windows, tokens, width]`.
    fn windows(&self, block: &mut Block, name: &str, x: ValueId, sides: [usize; 2], shift: [usize; 2]) -> ValueId {
        let ([height, wide], window) = (sides, self.window);
        let (rows, width) = (block.g.value(x).dims[0], block.width(x));
        let x = block.g.node(&format!("{name}.image"), Op::Reshape(vec![rows, height, wide, width]), &[x]);
        let x = moved(block, &format!("{name}.moved"), x, shift.map(|by| by as isize));
        let apart = vec![rows, height / window, window, wide / window, window, width];
        let x = block.g.node(&format!("{name}.apart"), Op::Reshape(apart), &[x]);
        let x = block.g.node(&format!("{name}.turned"), Op::Transpose(vec![0, 1, 3, 2, 4, 5]), &[x]);
        let windows = rows * height * wide / (window * window);
        block.g.node(name, Op::Reshape(vec![windows, window * window, width]), &[x])
    }

    /// Reorders tokens of windows to those of images: the reverse of `windows`.
    fn joined(&self, block: &mut Block, name: &str, x: ValueId, sides: [usize; 2], shift: [usize; 2]) -> ValueId {
        let ([height, wide], window) = (sides, self.window);
        let width = block.width(x);
        let rows = block.g.value(x).elems() / (height * wide * width);
        let apart = vec![rows, height / window, wide / window, window, window, width];
        let x = block.g.node(&format!("{name}.apart"), Op::Reshape(apart), &[x]);
        let x = block.g.node(&format!("{name}.turned"), Op::Transpose(vec![0, 1, 3, 2, 4, 5]), &[x]);
        let x = block.g.node(&format!("{name}.image"), Op::Reshape(vec![rows, height, wide, width]), &[x]);
        let x = moved(block, &format!("{name}.moved"), x, shift.map(|by| -(by as isize)));
        block.g.node(name, Op::Reshape(vec![rows, height * wide, width]), &[x])
    }

    /// The numbers that are added to scores: by distance, and for shifted windows those that hide tokens from the
    /// opposite edge of the image.
    fn added(
        &self,
        block: &mut Block,
        of: &Stack,
        layer: usize,
        rows: usize,
        sides: [usize; 2],
        shift: [usize; 2],
    ) -> ValueId {
        let (window, heads) = (self.window, of.heads);
        let (tokens, reach) = (window * window, 2 * window - 1);
        let at = |part: &str| of.at(layer, part);
        let table = block.weight(&at(self.distances), &[reach * reach, heads]);
        let distances = distances(window);
        let bytes = bytemuck::cast_slice::<i64, u8>(&distances).to_vec();
        let index = block.g.constant(Dtype::I64, &[tokens, tokens], bytes);
        let biases = block.g.node(&at("distances"), Op::Gather(0), &[table, index]);
        let biases = block.g.node(&at("distances.turned"), Op::Transpose(vec![2, 0, 1]), &[biases]);
        let biases = block.g.node(&at("distances.apart"), Op::Reshape(vec![1, heads, tokens, tokens]), &[biases]);
        if shift == [0; 2] {
            return biases;
        }
        let regions = regions(sides, window, shift);
        let count = regions.len() / tokens;
        let [token, key] = [[count, 1, tokens, 1], [count, 1, 1, tokens]]
            .map(|dims| block.g.constant(Dtype::F32, &dims, bytemuck::cast_slice::<f32, u8>(&regions).to_vec()));
        let is_same = Expr::arg(1).binary(Binary::Equal, Expr::arg(2));
        let both = Expr::arg(0) + is_same.select(number(0.0), number(HIDDEN));
        let both = block.g.map(&at("mask"), both, &[biases, token, key]);
        let each = Op::Broadcast(vec![rows, count, heads, tokens, tokens]);
        let each = block.g.node(&at("mask.rows"), each, &[both]);
        block.g.node(&at("mask.windows"), Op::Reshape(vec![rows * count, heads, tokens, tokens]), &[each])
    }
}

/// The image from row and column `by` on; the rows and columns before wrap around to its end.
fn moved(block: &mut Block, name: &str, x: ValueId, by: [isize; 2]) -> ValueId {
    if by == [0; 2] {
        return x;
    }
    let [down, right] = by;
    let pad = Pad { before: vec![0, -down, -right, 0], after: vec![0, down, right, 0], mode: PadMode::Wrap };
    block.g.node(name, Op::Pad(pad), &[x])
}

/// For each pair of a token and a key of a window, the row of the table for their distance.
fn distances(window: usize) -> Vec<i64> {
    let place = |token: usize| [token / window, token % window];
    let row = |token: usize, key: usize| {
        let [dy, dx] = [0, 1].map(|axis| place(token)[axis] + window - 1 - place(key)[axis]);
        (dy * (2 * window - 1) + dx) as i64
    };
    let tokens = window * window;
    (0..tokens).flat_map(|token| (0..tokens).map(move |key| row(token, key))).collect()
}

/// For each token of each shifted window, the number of the region of the image that it comes from. Tokens of one
/// region were neighbours.
fn regions([height, wide]: [usize; 2], window: usize, [down, right]: [usize; 2]) -> Vec<f32> {
    let part = |at: usize, side: usize, by: usize| usize::from(at >= side - window) + usize::from(at >= side - by);
    let of_window = |y: usize, x: usize| {
        let tokens = (y..y + window).flat_map(move |y| (x..x + window).map(move |x| (y, x)));
        tokens.map(move |(y, x)| (3 * part(y, height, down) + part(x, wide, right)) as f32)
    };
    let starts = (0..height).step_by(window).flat_map(|y| (0..wide).step_by(window).map(move |x| (y, x)));
    starts.flat_map(|(y, x)| of_window(y, x)).collect()
}
