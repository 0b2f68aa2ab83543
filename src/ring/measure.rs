//! The stages of a ring, each alone: back to back on its stream, with no host wait and nothing else running.

use std::sync::Arc;

use super::{Batch, Core};
use crate::device::{Access, Event, Note, Run, Stream};
use crate::error::Error;
use crate::tensor::Dtype;

/// A stage of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Staging → device.
    CopyIn,
    /// The model's program, its input already on the device.
    Compute,
    /// Device → result.
    CopyOut,
}

impl Core {
    /// Times `repetitions` runs of one stage at a batch size that the ring was built for, in seconds each. Takes all
    /// credits first, so that nothing else runs.
    pub fn measure(self: &Arc<Self>, stage: Stage, rows: usize, repetitions: usize) -> Result<Vec<f64>, Error> {
        let Ok(size) = self.batch_sizes().binary_search(&rows) else {
            let sizes = self.batch_sizes();
            return Err(Error::option("batch", rows, format!("one of the engine's batch sizes, {sizes:?}")));
        };
        let mut held = self.acquire_all()?;
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        for row in held[0].rows_mut() {
            random.fill(row, self.spec.input.dtype);
        }
        let buffers = held[0].buffers();
        let staging = self.staging[buffers.0].buffer.span();
        self.device.note(Note::End(staging));
        let uploaded = Event::new(&self.device)?;
        let marks = (0..=repetitions).map(|_| Event::with_timing(&self.device)).collect::<Result<Vec<_>, _>>()?;
        for slot in 0..self.slots() {
            self.run_stage(Stage::CopyIn, buffers, slot, self.batch_sizes().len() - 1, &self.copy_in)?;
        }
        uploaded.record(&self.copy_in)?;
        uploaded.wait()?;
        let stream = match stage {
            Stage::CopyIn => &self.copy_in,
            Stage::Compute => &self.compute,
            Stage::CopyOut => &self.copy_out,
        };
        for warm_up in 0..self.slots() {
            self.run_stage(stage, buffers, warm_up, size, stream)?;
        }
        marks[0].record(stream)?;
        for (index, mark) in marks[1..].iter().enumerate() {
            self.run_stage(stage, buffers, index % self.slots(), size, stream)?;
            mark.record(stream)?;
        }
        marks[repetitions].wait()?;
        self.device.note(Note::Begin(staging, Access::Write));
        marks.windows(2).map(|pair| Ok(f64::from(pair[1].ms_since(&pair[0])?) * 1e-3)).collect()
    }

    /// All batches at once: afterwards nothing is in flight and nobody else can submit.
    pub(super) fn acquire_all(self: &Arc<Self>) -> Result<Vec<Batch>, Error> {
        let credits = self.spec.staging.min(self.spec.results);
        let held = (0..credits).map(|_| self.acquire(self.spec.acquire_limit)).collect::<Result<Vec<_>, _>>()?;
        let idle = Event::new(&self.device)?;
        idle.record(&self.copy_out)?;
        idle.wait()?;
        Ok(held)
    }

    /// Enqueues a stage between a slot and a held batch's staging and result `buffers`.
    fn run_stage(
        &self,
        stage: Stage,
        (staging, result): (usize, usize),
        slot: usize,
        size: usize,
        stream: &Stream,
    ) -> Result<(), Error> {
        let rows = self.batch_sizes()[size];
        match stage {
            // SAFETY: the caller holds all staging, so nobody else submits, and every earlier submission is done: the
            // slots are free. It holds the batch whose two buffers these are, and waits for an event behind the last
            // copy before it gives them back; an error on the way is a fault, after which they are not used again.
            Stage::CopyIn => unsafe {
                let bytes = rows * self.spec.input.row_pitch;
                stream.copy_in(self.program.input(slot), &self.staging[staging].buffer, bytes)
            },
            Stage::Compute => stream.launch(&self.program, Run { slot, size, rows }),
            // SAFETY: as above.
            Stage::CopyOut => unsafe {
                let bytes = rows * self.spec.output.row_pitch;
                stream.copy_out(&self.results[result].buffer, self.program.output(slot), bytes)
            },
        }
    }
}

/// xorshift64: numbers that are not zeros, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills a row with any bytes, or with numbers in [-1, 1).
    fn fill(&mut self, row: &mut [u8], dtype: Dtype) {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match dtype {
            Dtype::U8 => row.iter_mut().for_each(|b| *b = self.next() as u8),
            Dtype::F16 => row
                .chunks_exact_mut(2)
                .for_each(|b| b.copy_from_slice(&half::f16::from_f32(unit(self.next())).to_le_bytes())),
            Dtype::F32 => row.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&unit(self.next()).to_le_bytes())),
        }
    }
}
