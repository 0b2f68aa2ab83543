//! The place that a kernel writes to.

use crate::tensor::Shape;

/// The output of a kernel: an image, or some neighbouring channels of each pixel of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputTarget {
    /// The shape of the written values.
    pub shape: Shape,
    /// Floats from one pixel to the next.
    pub pitch: usize,
}

impl OutputTarget {
    /// The number of floats from the first written one to the last.
    pub fn elems(&self) -> usize {
        (self.shape.pixels() - 1) * self.pitch + self.shape.channels
    }
}

/// A whole image, without gaps.
impl From<Shape> for OutputTarget {
    fn from(shape: Shape) -> Self {
        Self { shape, pitch: shape.channels }
    }
}
