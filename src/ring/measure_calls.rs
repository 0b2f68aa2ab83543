//! Measures the driver calls of batches without the ring around them: the baseline for the cost of the ring.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Core, Waiting};
use crate::device::{Access, Note, Run};
use crate::error::Error;

impl Core {
    /// Makes the driver calls of `batches` batches of `rows` rows on this thread, with `ahead` of them in flight: the
    /// calls of the ring's table, and one wait in the ring's way of waiting. Returns the seconds of each batch from its
    /// first call to the end of its wait. Takes all credits while it runs.
    pub fn measure_calls(self: &Arc<Self>, rows: usize, batches: usize, ahead: usize) -> Result<Vec<f64>, Error> {
        self.has_one_program()?;
        let Ok(size) = self.batch_sizes().binary_search(&rows) else {
            let sizes = self.batch_sizes();
            return Err(Error::option("batch", rows, format!("one of the engine's batch sizes, {sizes:?}")));
        };
        let held = self.acquire_all()?;
        let most = held.len().min(self.slots());
        if !(1..=most).contains(&ahead) {
            return Err(Error::option("ahead", ahead, format!("1 to {most}, the slots")));
        }
        self.reset_states();
        let buffers: Vec<(usize, usize)> = held.iter().map(|batch| batch.buffers()).collect();
        for (staging, _) in &buffers {
            self.device.note(Note::End(self.staging[*staging].buffer.span()));
        }
        let mut took = Vec::with_capacity(batches);
        let mut began = vec![Instant::now(); ahead];
        for index in 0..batches + ahead {
            let place = index % ahead;
            if index >= ahead {
                self.wait_bare(buffers[place].1)?;
                took.push(began[place].elapsed().as_secs_f64());
            }
            if index < batches {
                began[place] = Instant::now();
                self.enqueue_bare(buffers[place], place, Run { slot: place, size, rows }, index >= ahead)?;
            }
        }
        for (staging, _) in &buffers {
            self.device.note(Note::Begin(self.staging[*staging].buffer.span(), Access::Write));
        }
        self.reset_states(); // who read one meanwhile has taken the first reset
        Ok(took)
    }

    fn enqueue_bare(&self, (staging, result): (usize, usize), slot: usize, run: Run, used: bool) -> Result<(), Error> {
        let (staging, computed, result) =
            (&self.staging[staging], &self.runners[0].computed[slot], &self.results[result]);
        self.copy_in.wait(computed)?;
        // SAFETY: the caller holds all credits and waits for each batch before it uses the place again, or drops the
        // credits; an error on the way is a fault, after which the buffers are not used again.
        unsafe {
            let bytes = run.rows * self.bucket(0).input.row_pitch;
            self.copy_in.copy_in(self.runners[0].program.input(slot), &staging.buffer, bytes)?;
        }
        staging.uploaded.record(&self.copy_in)?;
        let stream = self.runners[0].stream(slot);
        stream.wait(&staging.uploaded)?;
        if used {
            stream.wait(&result.done)?;
        }
        stream.launch(&self.runners[0].program, run)?;
        computed.record(stream)?;
        self.copy_out.wait(computed)?;
        // SAFETY: as above.
        unsafe {
            let bytes = run.rows * self.bucket(0).outputs[0].row_pitch;
            self.copy_out.copy_out(&result.buffer, self.runners[0].program.output(slot), bytes)?;
        }
        result.done.record(&self.copy_out)?;
        match self.spec.waiting {
            Waiting::Callback => self.copy_out.notify(&result.signal),
            Waiting::Spin | Waiting::Block => Ok(()),
        }
    }

    fn wait_bare(&self, result: usize) -> Result<(), Error> {
        let result = &self.results[result];
        match self.spec.waiting {
            Waiting::Block => result.done.wait(),
            Waiting::Spin => {
                while !result.done.is_done()? {
                    std::hint::spin_loop();
                }
                Ok(())
            }
            Waiting::Callback => loop {
                let seen = result.signal.count();
                if result.done.is_done()? {
                    return Ok(());
                }
                result.signal.wait_past(seen, Instant::now() + Duration::from_millis(100));
            },
        }
    }
}
