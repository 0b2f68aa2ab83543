//! Where a kernel writes.

use crate::tensor::Shape;

/// What a kernel writes: an image, or some neighbouring channels of each pixel of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputTarget {
    /// Of what is written.
    pub shape: Shape,
    /// Floats from one pixel to the next.
    pub pitch: usize,
}

impl OutputTarget {
    /// Floats from the first that is written to the last.
    pub fn elems(&self) -> usize {
        (self.shape.pixels() - 1) * self.pitch + self.shape.channels
    }
}

/// A whole image.
impl From<Shape> for OutputTarget {
    fn from(shape: Shape) -> Self {
        Self { shape, pitch: shape.channels }
    }
}
