//! The mean of other programs' outputs: y[i] = (x[0][i] + … + x[n - 1][i]) / n, added in order in f32, then divided.

use std::slice;
use std::sync::Arc;

use crate::device::cpu::{Cpu, Work};
use crate::device::{Access, Device, DeviceBuffer, Program, Run, Span};
use crate::error::Error;
use crate::tensor::TensorSpec;

/// Averages the outputs of programs, which it keeps alive.
pub(super) struct MeanProgram {
    cpu: Arc<Cpu>,
    programs: Vec<Arc<dyn Program>>,
    row_pitch: usize,
    outputs: Vec<DeviceBuffer>,
}

impl MeanProgram {
    pub fn new(
        device: &Device,
        cpu: &Arc<Cpu>,
        programs: Vec<Arc<dyn Program>>,
        rows: TensorSpec,
    ) -> Result<Self, Error> {
        let most = *programs[0].batch_sizes().last().expect("a program has a batch size");
        let output = |_| DeviceBuffer::new(device, most * rows.row_pitch);
        let outputs = (0..programs[0].slots()).map(output).collect::<Result<_, _>>()?;
        Ok(Self { cpu: cpu.clone(), programs, row_pitch: rows.row_pitch, outputs })
    }
}

impl Program for MeanProgram {
    fn slots(&self) -> usize {
        self.outputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        self.programs[0].batch_sizes()
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        self.programs[0].output(slot)
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        let bytes = run.rows * self.row_pitch;
        let read = self.programs.iter().map(|program| (program.output(run.slot).span_of(bytes), Access::Read));
        read.chain([(self.outputs[run.slot].span_of(bytes), Access::Write)]).collect()
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let cpu = self.cpu.clone();
        cpu.enqueue(stream, self, run)
    }
}

impl Work for MeanProgram {
    fn run(&self, run: Run) {
        let floats = run.rows * self.row_pitch / size_of::<f32>();
        let outputs = || self.programs.iter().map(|program| program.output(run.slot));
        assert!(outputs().chain([&self.outputs[run.slot]]).all(|buffer| floats * size_of::<f32>() <= buffer.len()));
        // SAFETY: within the buffer (asserted), which lives as long as self and is aligned to more than a float; nobody
        // else accesses it during the run: the ring orders it with the downloads before and after.
        let y = unsafe { slice::from_raw_parts_mut(self.outputs[run.slot].addr() as *mut f32, floats) };
        y.fill(0.0);
        for x in outputs() {
            // SAFETY: as above; the ring orders the run after those that write it and before those that write it again.
            let x = unsafe { slice::from_raw_parts(x.addr() as *const f32, floats) };
            y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
        }
        y.iter_mut().for_each(|y| *y /= self.programs.len() as f32);
    }
}
