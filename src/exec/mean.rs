//! The mean of other programs' outputs: the part that is the same on every device.

use std::sync::Arc;

use crate::device::{Access, Device, DeviceBuffer, Program, Span};
use crate::error::Error;

/// Programs, which are kept alive, and the buffers for the mean of their outputs.
pub(super) struct Averaged {
    pub programs: Vec<Arc<dyn Program>>,
    /// Bytes from one output row to the next, at each size.
    pitches: Vec<usize>,
    /// The output buffer of each slot, for the largest size.
    pub outputs: Vec<DeviceBuffer>,
}

impl Averaged {
    /// Makes the output buffers for programs whose rows have these pitches at each size.
    pub fn new(device: &Device, programs: Vec<Arc<dyn Program>>, pitches: Vec<usize>) -> Result<Self, Error> {
        let mut this = Self { programs, pitches, outputs: Vec::new() };
        let most = (0..this.pitches.len()).map(|size| this.bytes(size, this.batch_sizes()[size])).max().unwrap_or(0);
        let output = |_| DeviceBuffer::new(device, most);
        this.outputs = (0..this.programs[0].slots()).map(output).collect::<Result<_, _>>()?;
        Ok(this)
    }

    /// Bytes of `rows` output rows at a size.
    pub fn bytes(&self, size: usize, rows: usize) -> usize {
        rows * self.pitches[size]
    }

    /// The programs' batch sizes.
    pub fn batch_sizes(&self) -> &[usize] {
        self.programs[0].batch_sizes()
    }

    /// The output of the first program, which a run of the mean reads.
    pub fn input(&self, slot: usize) -> &DeviceBuffer {
        self.programs[0].output(slot)
    }

    /// The memory that a run of `rows` rows at a size reads and writes.
    pub fn touches(&self, slot: usize, size: usize, rows: usize) -> Vec<(Span, Access)> {
        let bytes = self.bytes(size, rows);
        let read = self.programs.iter().map(|program| (program.output(slot).span_of(bytes), Access::Read));
        read.chain([(self.outputs[slot].span_of(bytes), Access::Write)]).collect()
    }
}
