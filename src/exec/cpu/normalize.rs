//! Input rows → f32 NHWC: bytes as (x / 255 - mean[c]) / std[c]; f32 NCHW and f16 NHWC are normalised already.

use half::f16;

use crate::tensor::{InputFormat, Shape};

/// The first step.
pub(super) struct Normalize {
    format: InputFormat,
    shape: Shape,
    /// For each channel, what each byte becomes.
    of_byte: Vec<[f32; 256]>,
}

impl Normalize {
    pub fn new(format: InputFormat, shape: Shape, mean: &[f32], std: &[f32]) -> Self {
        let table = |(mean, std): (&f32, &f32)| std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std);
        Self { format, shape, of_byte: mean.iter().zip(std).map(table).collect() }
    }

    /// One row of input; `y` is [H][W][C].
    pub fn run(&self, row: &[u8], y: &mut [f32]) {
        let Shape { channels, .. } = self.shape;
        match self.format {
            InputFormat::U8Nhwc => {
                for (y, x) in y.chunks_exact_mut(channels).zip(row.chunks_exact(channels)) {
                    for ((y, x), of_byte) in y.iter_mut().zip(x).zip(&self.of_byte) {
                        *y = of_byte[usize::from(*x)];
                    }
                }
            }
            InputFormat::F32Nchw => {
                let planes: &[f32] = bytemuck::cast_slice(row);
                for (pixel, y) in y.chunks_exact_mut(channels).enumerate() {
                    for (c, y) in y.iter_mut().enumerate() {
                        *y = planes[c * self.shape.pixels() + pixel];
                    }
                }
            }
            InputFormat::F16Nhwc => {
                let halves: &[f16] = bytemuck::cast_slice(row);
                y.iter_mut().zip(halves).for_each(|(y, x)| *y = x.to_f32());
            }
        }
    }
}
