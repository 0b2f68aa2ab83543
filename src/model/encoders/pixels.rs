//! Bytes of pixels and their normalisation.

use super::block::Block;
use super::options::{Embedding, Pooling};
use crate::error::Error;
use crate::graph::{Expr, Op, Slice, ValueId};
use crate::tensor::Dtype;

/// An image whose pixels are given as bytes.
#[derive(Clone)]
pub(super) struct Pixels {
    /// The height and the width.
    pub size: [usize; 2],
    /// The mean and the deviation of each channel, for values from 0 to 1: the mean is subtracted, then the deviation
    /// divides.
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

/// The number of channels of a picture.
pub(super) const CHANNELS: usize = 3;

impl Pixels {
    /// Adds the input and returns its normalised pixels, without rows and columns after the last whole multiple of
    /// `grain`.
    pub fn normalized(&self, block: &mut Block, rows: usize, grain: usize) -> ValueId {
        let [height, width] = self.size;
        let mut x = block.g.input("pixels", Dtype::U8, &[rows, height, width, CHANNELS]);
        let [seen_height, seen_width] = self.grid(grain).map(|count| count * grain);
        if [seen_height, seen_width] != self.size {
            let dims = vec![rows, seen_height, seen_width, CHANNELS];
            x = block.g.node("pixels.seen", Op::Slice(Slice { start: vec![0; 4], step: vec![1; 4], dims }), &[x]);
        }
        let [scale, shift] = self.normalization().map(|by| vector(block, &by));
        let y = Expr::arg(0).cast(Dtype::F32) * Expr::arg(1) + Expr::arg(2);
        block.g.map("normalized", y, &[x, scale, shift])
    }

    /// The factors by which bytes are multiplied, and the numbers that are added then, for each channel.
    fn normalization(&self) -> [[f32; 3]; 2] {
        let of = |c: usize| {
            let [mean, std] = [self.mean[c], self.std[c]].map(f64::from);
            [(1.0 / (255.0 * std)) as f32, (-mean / std) as f32]
        };
        [0, 1].map(|part| [0, 1, 2].map(|c| of(c)[part]))
    }

    /// How many times `grain` pixels fit along each side.
    pub fn grid(&self, grain: usize) -> [usize; 2] {
        self.size.map(|side| side / grain)
    }

    /// Checks that the requested options are possible, and that sides are multiples of `grain`, the size of the
    /// encoder's `parts`.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn check(&self, asked: &Embedding, grain: usize, parts: &str) -> Result<(), Error> {
        if asked.sequence.is_some() {
            return Err(Error::option("sequence", "given", "none, for an encoder of images"));
        }
        let ([height, width], is_asked) = (self.size, asked.image.is_some());
        let fits = |side: &usize| (grain..=MOST_SIDE).contains(side) && (!is_asked || side.is_multiple_of(grain));
        if grain == 0 || !self.size.iter().all(fits) {
            let expected = format!("sides up to {MOST_SIDE} that are multiples of the {parts}' {grain}");
            return Err(Error::option("image", format_args!("{height} x {width}"), expected));
        }
        if asked.pooling == Some(Pooling::Last) {
            return Err(Error::option("pooling", "Last", "Mean, Class or Tokens, for an encoder of images"));
        }
        Ok(())
    }
}

/// A constant with a number for each channel.
fn vector(block: &mut Block, values: &[f32; 3]) -> ValueId {
    block.g.constant(Dtype::F32, &[CHANNELS], bytemuck::cast_slice::<f32, u8>(values).to_vec())
}

/// The longest side of a picture that an encoder reads.
const MOST_SIDE: usize = 1 << 13;
