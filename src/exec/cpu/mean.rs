//! The mean of other programs' outputs: y[i] = (x[0][i] + … + x[n - 1][i]) / n, added in order in f32, then divided.

use std::slice;
use std::sync::Arc;

use crate::device::cpu::{Cpu, Work};
use crate::device::{Access, DeviceBuffer, Program, Run, Span};
use crate::error::Error;
use crate::exec::mean::Averaged;

/// Averages the outputs of programs.
pub(super) struct MeanProgram {
    cpu: Arc<Cpu>,
    averaged: Averaged,
}

impl MeanProgram {
    pub fn new(cpu: &Arc<Cpu>, averaged: Averaged) -> Self {
        Self { cpu: cpu.clone(), averaged }
    }
}

impl Program for MeanProgram {
    fn slots(&self) -> usize {
        self.averaged.outputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        self.averaged.batch_sizes()
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        self.averaged.input(slot)
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.averaged.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        self.averaged.touches(run.slot, run.size, run.rows)
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let cpu = self.cpu.clone();
        cpu.enqueue(stream, self, run)
    }
}

impl Work for MeanProgram {
    fn run(&self, run: Run) {
        let floats = self.averaged.bytes(run.size, run.rows) / size_of::<f32>();
        let outputs = || self.averaged.programs.iter().map(|program| program.output(run.slot));
        assert!(
            outputs().chain([&self.averaged.outputs[run.slot]]).all(|buffer| floats * size_of::<f32>() <= buffer.len())
        );
        // SAFETY: within the buffer (asserted), which lives as long as self and is aligned to more than a float; nobody
        // else accesses it during the run: the ring orders it with the downloads before and after.
        let y = unsafe { slice::from_raw_parts_mut(self.averaged.outputs[run.slot].addr() as *mut f32, floats) };
        y.fill(0.0);
        for x in outputs() {
            // SAFETY: as above; the ring orders the run after those that write it and before those that write it again.
            let x = unsafe { slice::from_raw_parts(x.addr() as *const f32, floats) };
            y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
        }
        y.iter_mut().for_each(|y| *y /= self.averaged.programs.len() as f32);
    }
}
