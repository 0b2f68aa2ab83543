//! The mean of other programs' outputs: what is the same on every device.

use std::sync::Arc;

use crate::device::{Access, Device, DeviceBuffer, Program, Span};
use crate::error::Error;
use crate::tensor::RowSpec;

/// Programs, which it keeps alive, and where the mean of their outputs goes.
pub(super) struct Averaged {
    pub programs: Vec<Arc<dyn Program>>,
    pub row_pitch: usize,
    /// Of each slot, for the largest batch.
    pub outputs: Vec<DeviceBuffer>,
}

impl Averaged {
    /// For programs whose rows are all `rows`.
    pub fn new(device: &Device, programs: Vec<Arc<dyn Program>>, rows: &RowSpec) -> Result<Self, Error> {
        let most = *programs[0].batch_sizes().last().expect("a program has a batch size");
        let output = |_| DeviceBuffer::new(device, most * rows.row_pitch);
        let outputs = (0..programs[0].slots()).map(output).collect::<Result<_, _>>()?;
        Ok(Self { programs, row_pitch: rows.row_pitch, outputs })
    }

    /// The programs' batch sizes.
    pub fn batch_sizes(&self) -> &[usize] {
        self.programs[0].batch_sizes()
    }

    /// The first of the programs' outputs.
    pub fn input(&self, slot: usize) -> &DeviceBuffer {
        self.programs[0].output(slot)
    }

    /// What a run of so many rows reads and writes.
    pub fn touches(&self, slot: usize, rows: usize) -> Vec<(Span, Access)> {
        let bytes = rows * self.row_pitch;
        let read = self.programs.iter().map(|program| (program.output(slot).span_of(bytes), Access::Read));
        read.chain([(self.outputs[slot].span_of(bytes), Access::Write)]).collect()
    }
}
