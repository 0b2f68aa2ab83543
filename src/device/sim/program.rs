//! A program of the simulated device: it takes given times, and its output is its input.

use std::sync::Arc;

use super::units::Moves;
use super::{Picos, Sim};
use crate::device::{Access, Device, DeviceBuffer, Inputs, Program, Run, Span, StateBuffer};
use crate::error::Error;

/// Takes a given time for each batch size and moves the rows of a slot's input to its output.
pub(crate) struct SimProgram {
    sim: Arc<Sim>,
    batch_sizes: Vec<usize>,
    /// The duration for each batch size, with the part of the highest rate that the size reaches.
    durations: Vec<(Picos, f64)>,
    row_bytes: usize,
    inputs: Inputs,
    outputs: Vec<DeviceBuffer>,
    /// The memory that each compute stream has for its runs.
    arenas: Vec<DeviceBuffer>,
    states: Vec<StateBuffer>,
    streams: usize,
}

impl SimProgram {
    /// A program for `slots` slots, with rows of `row_bytes` on both sides; `sizes` has ascending batch sizes and their
    /// durations.
    pub fn new(
        device: &Device,
        sim: &Arc<Sim>,
        sizes: &[(usize, Picos)],
        row_bytes: usize,
        slots: usize,
    ) -> Result<Self, Error> {
        let bytes = row_bytes * sizes.last().expect("a program has a batch size").0;
        let rate = |&(rows, took): &(usize, Picos)| rows as f64 / took.max(1) as f64;
        let highest = sizes.iter().map(rate).fold(0.0, f64::max);
        let buffers = || (0..slots).map(|_| DeviceBuffer::new(device, bytes)).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            sim: sim.clone(),
            batch_sizes: sizes.iter().map(|size| size.0).collect(),
            durations: sizes.iter().map(|size| (size.1, rate(size) / highest)).collect(),
            row_bytes,
            inputs: Inputs::Own(buffers()?),
            outputs: buffers()?,
            arenas: vec![DeviceBuffer::new(device, ARENA_BYTES)?],
            states: Vec::new(),
            streams: 1,
        })
    }

    /// The program on several compute streams, each with an arena.
    pub fn on_streams(mut self, device: &Device, streams: usize) -> Result<Self, Error> {
        while self.arenas.len() < streams {
            self.arenas.push(DeviceBuffer::new(device, ARENA_BYTES)?);
        }
        Ok(Self { streams, ..self })
    }

    /// The program with one arena for all compute streams, which is wrong: for tests of the checker.
    #[cfg(test)]
    pub fn with_one_arena(mut self) -> Self {
        self.arenas.truncate(1);
        self
    }

    /// The program with a state, which runs do not change.
    #[cfg(test)]
    pub fn with_state(self, state: StateBuffer) -> Self {
        Self { states: vec![state], ..self }
    }

    /// The program with another program's rows as its input.
    #[cfg(test)]
    pub fn reading(self, inputs: Inputs) -> Self {
        Self { inputs, ..self }
    }
}

/// The size of an arena in bytes: nothing is computed in it.
const ARENA_BYTES: usize = 1;

impl Program for SimProgram {
    fn slots(&self) -> usize {
        self.outputs.len()
    }

    fn streams(&self) -> usize {
        self.streams
    }

    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        self.inputs.at(slot)
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        let bytes = run.rows * self.row_bytes;
        let arena = &self.arenas[run.slot % self.arenas.len()];
        let slot = [
            (arena.span_of(ARENA_BYTES), Access::Write),
            (self.inputs.at(run.slot).span_of(bytes), Access::Read),
            (self.outputs[run.slot].span_of(bytes), Access::Write),
        ];
        let states = self.states.iter().map(|state| (state.buffer.span_of(state.bytes()), Access::Write));
        slot.into_iter().chain(states).collect()
    }

    fn states(&self) -> &[StateBuffer] {
        &self.states
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let [dst, src] = [&self.outputs[run.slot], self.inputs.at(run.slot)].map(|buffer| buffer.addr() as usize);
        let moves = Moves { dst, src, bytes: run.rows * self.row_bytes };
        // SAFETY: rows fit the batch, so both buffers hold `bytes`. They live as long as the ring, which waits for the
        // run through an event behind it; other work on the slot is ordered by the ring's events.
        unsafe { self.sim.launch(stream, self.durations[run.size], moves) }
    }
}
