//! Mean over all pixels of bytes of a scale, as floats.
//!
//! y[c] = (sum over pixels of x[pixel][c]) * factor, where factor = scale / pixels, rounded to f32.
//!
//! - x: read, bytes [H][W][C] without gaps, unsigned or signed. y: written, f32 [C], disjoint from x. Any alignment.
//! - Sums are exact, in 32 bits; then they are rounded to f32, as is the product. A GPU rounds the product to f16.

use super::conv2d_s8::Image;
use crate::plan::mean_factor;

/// A mean of bytes, ready to run.
#[derive(Debug)]
pub(super) struct MeanS8 {
    x: Image,
    factor: f32,
}

impl MeanS8 {
    /// A mean over the pixels of `x`, whose bytes have this scale.
    pub fn new(scale: f32, x: Image) -> Self {
        Self { x, factor: mean_factor(scale, x.shape) }
    }

    /// Computes one image.
    pub fn run(&self, x: &[u8], y: &mut [f32]) {
        let channels = self.x.shape.channels;
        assert_eq!((x.len(), y.len()), (self.x.shape.elems(), channels));
        for (c, y) in y.iter_mut().enumerate() {
            let bytes = x[c..].iter().step_by(channels);
            let sum: i32 = match self.x.signed {
                true => bytes.map(|byte| i32::from(*byte as i8)).sum(),
                false => bytes.map(|byte| i32::from(*byte)).sum(),
            };
            *y = sum as f32 * self.factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn sums_are_of_bytes_as_they_are_signed() {
        let shape = Shape::new(1, 2, 3);
        let x = [1, 255, 128, 3, 254, 128];
        let of = |signed| {
            let mut y = [9.0; 3];
            MeanS8::new(0.5, Image { shape, signed }).run(&x, &mut y);
            y
        };
        assert_eq!((of(false), of(true)), ([1.0, 127.25, 64.0], [1.0, -0.75, -64.0]));
    }
}
