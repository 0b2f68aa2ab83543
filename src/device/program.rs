//! What a device runs: a plan, made launchable by `exec`.

use std::sync::Arc;

use super::{Access, DeviceBuffer, Span};
use crate::error::Error;

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Which slot's buffers it reads and writes.
    pub slot: usize,
    /// Index into [`Program::batch_sizes`].
    pub size: usize,
    /// Rows that matter; the program may compute up to the batch size.
    pub rows: usize,
}

/// Something that a compute stream launches: a model made ready for a device, with the slots' buffers it addresses.
pub(crate) trait Program: Send + Sync {
    /// Slots it was built for.
    fn slots(&self) -> usize;
    /// Compute streams it was built for, of which slot i runs on number i modulo their count. Runs on different ones share
    /// nothing that either writes.
    fn streams(&self) -> usize {
        1
    }
    /// Batch sizes it was built for: those of one kind of rows after those of the other, each ascending.
    fn batch_sizes(&self) -> &[usize];
    /// A slot's device input: rows of the input spec's pitch.
    fn input(&self, slot: usize) -> &DeviceBuffer;
    /// A slot's device output: rows of the output spec's pitch.
    fn output(&self, slot: usize) -> &DeviceBuffer;
    /// All memory that a run touches, and how: the slot's input and output, weights, and what is shared by all slots.
    fn touches(&self, run: Run) -> Vec<(Span, Access)>;
    /// Enqueues one run on `stream`; never waits.
    /// # Safety
    /// `stream` is valid; other work on the memory that the run touches is ordered with it.
    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error>;
}

/// Where a program's input rows lie. What it shares with another program lives as long as both.
pub(crate) enum Inputs {
    /// In buffers of its own, one for each slot.
    Own(Vec<DeviceBuffer>),
    /// Where another program's are.
    Beside(Arc<dyn Program>),
    /// Where another program puts its output.
    After(Arc<dyn Program>),
}

impl Inputs {
    /// A slot's.
    pub fn at(&self, slot: usize) -> &DeviceBuffer {
        match self {
            Self::Own(buffers) => &buffers[slot],
            Self::Beside(program) => program.input(slot),
            Self::After(program) => program.output(slot),
        }
    }
}
