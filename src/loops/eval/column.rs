//! Values of a term at a block of points.

use crate::graph::Element;
use crate::tensor::Dtype;

/// The number of points in a block, which are computed side by side.
pub(super) const LANES: usize = 1024;

/// The values of a term at all points of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    words: Vec<u64>,
}

/// The values of a term that are read at all points of a block: those of a column, or neighbouring elements of an
/// operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a>(pub &'a [u8]);

impl<'a> Block<'a> {
    pub fn elems<T: Element>(self) -> &'a [T] {
        bytemuck::cast_slice(self.0)
    }
}

impl Column {
    pub fn new(dtype: Dtype) -> Self {
        Self { words: vec![0; LANES * dtype.bytes() / size_of::<u64>()] }
    }

    pub fn elems<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(&self.words)
    }

    pub fn elems_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// Copies the first element to every lane.
    pub fn splat(&mut self, dtype: Dtype) {
        fn fill<T: Element>(elems: &mut [T]) {
            elems.fill(elems[0]);
        }
        match dtype.bytes() {
            1 => fill::<u8>(self.elems_mut()),
            2 => fill::<u16>(self.elems_mut()),
            4 => fill::<u32>(self.elems_mut()),
            _ => fill::<u64>(self.elems_mut()),
        }
    }

    /// Writes the element with these bits to every lane.
    pub fn fill(&mut self, dtype: Dtype, bits: u64) {
        self.bytes_mut()[..dtype.bytes()].copy_from_slice(&bits.to_le_bytes()[..dtype.bytes()]);
        self.splat(dtype);
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }
}
