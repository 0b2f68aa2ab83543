//! Programs that a device runs: plans, made launchable by `exec`.

use std::sync::Arc;

use super::{Access, Device, DeviceBuffer, Span};
use crate::error::Error;
use crate::tensor::RowPort;

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The slot whose buffers it reads and writes.
    pub slot: usize,
    /// Index into [`Program::batch_sizes`].
    pub size: usize,
    /// The number of rows that matter; the program may compute up to the batch size.
    pub rows: usize,
}

/// A model made ready for a device, which a compute stream launches. It has the slots' buffers that it addresses.
pub(crate) trait Program: Send + Sync {
    /// The number of slots that it was built for.
    fn slots(&self) -> usize;
    /// The number of compute streams that it was built for. Slot i runs on stream i modulo this number. Runs on
    /// different streams share no memory that one of them writes.
    fn streams(&self) -> usize {
        1
    }
    /// The batch sizes that it was built for: those of one bucket after those of the previous one, each ascending.
    fn batch_sizes(&self) -> &[usize];
    /// The device input of a slot: rows of the input spec's pitch.
    fn input(&self, slot: usize) -> &DeviceBuffer;
    /// The device output of a slot: rows of the output spec's pitch.
    fn output(&self, slot: usize) -> &DeviceBuffer;
    /// The states that it keeps from one run to the next, in whichever slot; a program with states has one compute
    /// stream.
    fn states(&self) -> &[StateBuffer] {
        &[]
    }
    /// All memory that a run touches, and how: the slot's input and output, weights, states, and what is shared by all slots.
    fn touches(&self, run: Run) -> Vec<(Span, Access)>;
    /// Enqueues one run on `stream`; never waits.
    /// # Safety
    /// `stream` is valid; other work on the memory that the run touches is ordered with it.
    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error>;
}

/// A buffer whose content persists from one run to the next.
pub(crate) struct StateBuffer {
    /// The row of the state for one request.
    pub row: RowPort,
    /// The number of rows: that of the largest batch.
    pub rows: usize,
    /// The rows, one after the other.
    pub buffer: DeviceBuffer,
}

impl StateBuffer {
    /// Memory for `rows` rows, contents undefined.
    pub fn new(device: &Device, row: RowPort, rows: usize) -> Result<Self, Error> {
        let buffer = DeviceBuffer::new(device, row.bytes() * rows)?;
        Ok(Self { row, rows, buffer })
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.row.bytes() * self.rows
    }
}

/// The place of a program's input rows. Buffers that it shares with another program live as long as both.
pub(crate) enum Inputs {
    /// In buffers of its own, one for each slot.
    Own(Vec<DeviceBuffer>),
    /// In the input buffers of another program.
    InputOf(Arc<dyn Program>),
    /// In the output buffers of another program.
    OutputOf(Arc<dyn Program>),
}

impl Inputs {
    /// The input buffer of a slot.
    pub fn at(&self, slot: usize) -> &DeviceBuffer {
        match self {
            Self::Own(buffers) => &buffers[slot],
            Self::InputOf(program) => program.input(slot),
            Self::OutputOf(program) => program.output(slot),
        }
    }
}
