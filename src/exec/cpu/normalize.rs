//! First step: an input row to floats, channels innermost.
//!
//! - `U8Nhwc`: y[pixel][c] = (x[pixel][c] / 255 - mean[c]) / std[c], from a table of every byte's result for each
//!   channel, worked out once in f64 and rounded once.
//! - `F32Nchw`: y[pixel][c] = x[c][pixel]. `F16Nhwc`, `F32Nhwc`: y[pixel][c] = x[pixel][c]. All exact.
//! - x: read, the bytes of one row, aligned for its elements. y: written, f32 [H][W][C] without gaps, disjoint from x.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::loops::Lines;
use crate::tensor::{InputFormat, Shape};

/// A normalisation of input rows, ready to run.
#[derive(Debug)]
pub(super) struct Normalize {
    shape: Shape,
    input: InputFormat,
    /// The results of each byte, for each channel.
    table: Vec<[f32; 256]>,
}

impl Normalize {
    /// The step for rows of format `input` that hold images of `shape`.
    pub fn new(input: InputFormat, shape: Shape, mean: &[f32], std: &[f32]) -> Self {
        let value = |c: usize, byte: usize| ((byte as f64 / 255.0 - f64::from(mean[c])) / f64::from(std[c])) as f32;
        let table = match input {
            InputFormat::U8Nhwc => (0..shape.channels).map(|c| std::array::from_fn(|byte| value(c, byte))).collect(),
            InputFormat::F32Nchw | InputFormat::F16Nhwc | InputFormat::F32Nhwc => Vec::new(),
        };
        Self { shape, input, table }
    }

    /// How the work is shared out: by the pixels of y.
    pub fn lines(&self) -> Lines {
        let Shape { channels, .. } = self.shape;
        Lines { count: self.shape.pixels(), pitch: channels, together: 1, least: 1, ops: 2 * channels }
    }

    /// Computes these pixels of an image.
    pub fn run(&self, pixels: Range<usize>, row: &[u8], y: &mut [f32]) {
        let channels = self.shape.channels;
        assert_eq!(y.len(), pixels.len() * channels);
        let elems = pixels.start * channels..pixels.end * channels;
        let of_y = y.chunks_exact_mut(channels);
        match self.input {
            InputFormat::U8Nhwc => {
                assert_eq!(row.len(), self.shape.elems());
                for (y, x) in of_y.zip(row[elems].chunks_exact(channels)) {
                    for ((y, x), table) in y.iter_mut().zip(x).zip(&self.table) {
                        *y = table[usize::from(*x)];
                    }
                }
            }
            InputFormat::F32Nchw => {
                let x: &[f32] = bytemuck::cast_slice(row);
                let count = self.shape.pixels();
                for (pixel, y) in pixels.zip(of_y) {
                    for (y, plane) in y.iter_mut().zip(x.chunks_exact(count)) {
                        *y = plane[pixel];
                    }
                }
            }
            InputFormat::F16Nhwc => bytemuck::cast_slice::<u8, f16>(row)[elems].convert_to_f32_slice(y),
            InputFormat::F32Nhwc => y.copy_from_slice(&bytemuck::cast_slice(row)[elems]),
        }
    }
}
