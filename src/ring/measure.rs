//! Measures the stages of a ring, each back to back on its stream without waits of the host: alone, or with the other
//! stages running beside it as in normal use.

use std::sync::Arc;

use super::{Batch, Core};
use crate::device::{Access, DeviceBuffer, Event, Noise, Note, Run, Span, Stream};
use crate::error::Error;

/// A stage of the ring.
///
/// ```
/// use trefoil::Stage;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// let engine = Engine::builder(&model).on(&cpu).batch(4).build()?;
/// for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
///     let seconds = engine.measure(stage, 4, 3)?; // of three batches of four rows
///     assert_eq!(seconds.len(), 3);
/// }
/// # Ok::<(), trefoil::Error>(())
/// ```
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
        let prepared = self.prepare(rows)?;
        let (size, buffers) = (prepared.size, prepared.buffers);
        let marks = (0..=repetitions).map(|_| Event::with_timing(&self.device)).collect::<Result<Vec<_>, _>>()?;
        let stream = self.stream_of(stage);
        for warm_up in 0..self.slots() {
            self.run_stage(stage, buffers, self.measured_slot(warm_up), size, stream)?;
        }
        marks[0].record(stream)?;
        for (index, mark) in marks[1..].iter().enumerate() {
            self.run_stage(stage, buffers, self.measured_slot(index), size, stream)?;
            mark.record(stream)?;
        }
        marks[repetitions].wait()?;
        self.device.note(Note::Begin(prepared.staging, Access::Write));
        marks.windows(2).map(|pair| Ok(f64::from(pair[1].ms_since(&pair[0])?) * 1e-3)).collect()
    }

    /// The mean seconds of a batch of one stage, back to back, over `repetitions`, while the other two stages run as in
    /// normal use: each processes one batch for each batch of this stage, started together, or follows without a gap.
    /// Copies go to and from device memory of their own, so that stages beside each other do not conflict.
    pub fn measure_loaded(self: &Arc<Self>, stage: Stage, rows: usize, repetitions: usize) -> Result<f64, Error> {
        if repetitions == 0 {
            return Err(Error::option("repetitions", repetitions, "at least 1"));
        }
        let prepared = self.prepare(rows)?;
        let first = self.bucket(0);
        let input = DeviceBuffer::new(&self.device, self.capacity() * first.input.row_pitch)?;
        let output = DeviceBuffer::new(&self.device, self.capacity() * first.outputs[0].row_pitch)?;
        let staging = &self.staging[prepared.buffers.0].buffer;
        // SAFETY: the buffer was just made, and `prepared` holds the staging; both outlive the wait for this stream
        // below. The output is given contents that are not zeros.
        unsafe { self.copy_out.copy_in(&output, staging, input.len().min(output.len()))? };
        let result = prepared.drained(self, || {
            let [start, end] = [Event::with_timing(&self.device)?, Event::with_timing(&self.device)?];
            let pace = Event::new(&self.device)?;
            let others = STAGES.into_iter().filter(|other| *other != stage);
            let run = |which, index| self.run_apart(which, &prepared, index, [&input, &output]);
            let stream = self.stream_of(stage);
            for index in 0..self.slots() + repetitions {
                if index == self.slots() {
                    start.record(stream)?;
                }
                pace.record(stream)?;
                for other in others.clone() {
                    self.stream_of(other).wait(&pace)?;
                    run(other, index)?;
                }
                run(stage, index)?;
            }
            end.record(stream)?;
            end.wait()?;
            Ok(f64::from(end.ms_since(&start)?) * 1e-3 / repetitions as f64)
        });
        self.device.note(Note::Begin(prepared.staging, Access::Write));
        result
    }

    /// Takes all credits, and puts random rows into one staging buffer and every slot's input.
    fn prepare(self: &Arc<Self>, rows: usize) -> Result<Prepared, Error> {
        self.has_one_program()?;
        let Ok(size) = self.batch_sizes().binary_search(&rows) else {
            let sizes = self.batch_sizes();
            return Err(Error::option("batch", rows, format!("one of the engine's batch sizes, {sizes:?}")));
        };
        let mut held = self.acquire_all()?;
        self.reset_states(); // runs that are measured leave them as they may
        let mut noise = Noise::new();
        for row in held[0].rows_mut() {
            noise.fill_row(row, &self.bucket(0).input);
        }
        let buffers = held[0].buffers();
        let staging = self.staging[buffers.0].buffer.span();
        self.device.note(Note::End(staging));
        for slot in 0..self.slots() {
            self.run_stage(Stage::CopyIn, buffers, slot, self.batch_sizes().len() - 1, &self.copy_in)?;
        }
        let uploaded = Event::new(&self.device)?;
        uploaded.record(&self.copy_in)?;
        uploaded.wait()?;
        Ok(Prepared { _held: held, size, buffers, staging })
    }

    /// An error if the ring has several programs: only the stages of one model can be measured.
    pub(super) fn has_one_program(&self) -> Result<(), Error> {
        match self.runners.len() {
            1 => Ok(()),
            programs => Err(Error::Unsupported {
                what: format!("measuring the stages of an engine of {programs} models"),
                instead: "measure an engine of each".into(),
            }),
        }
    }

    fn stream_of(&self, stage: Stage) -> &Stream {
        match stage {
            Stage::CopyIn => &self.copy_in,
            Stage::Compute => self.runners[0].stream(0),
            Stage::CopyOut => &self.copy_out,
        }
    }

    /// The slots of the first compute stream, in turn: a stage is measured alone.
    fn measured_slot(&self, index: usize) -> usize {
        let streams = self.compute_streams();
        index % self.slots().div_ceil(streams) * streams
    }

    /// Acquires all batches: afterwards no batch is in flight, and no other thread can submit.
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
                let bytes = rows * self.bucket(0).input.row_pitch;
                stream.copy_in(self.runners[0].program.input(slot), &self.staging[staging].buffer, bytes)
            },
            Stage::Compute => stream.launch(&self.runners[0].program, Run { slot, size, rows }),
            // SAFETY: as above.
            Stage::CopyOut => unsafe {
                let bytes = rows * self.bucket(0).outputs[0].row_pitch;
                stream.copy_out(&self.results[result].buffer, self.runners[0].program.output(slot), bytes)
            },
        }
    }

    /// Enqueues a stage on its stream; copies use device memory of their own in place of the slots'.
    fn run_apart(
        &self,
        stage: Stage,
        prepared: &Prepared,
        index: usize,
        [input, output]: [&DeviceBuffer; 2],
    ) -> Result<(), Error> {
        let (staging, result) = prepared.buffers;
        let rows = self.batch_sizes()[prepared.size];
        match stage {
            // SAFETY: as in `run_stage`; the device memory is the caller's, who waits for all streams before it frees
            // it, and each of the two is accessed by one stream alone.
            Stage::CopyIn => unsafe {
                self.copy_in.copy_in(input, &self.staging[staging].buffer, rows * self.bucket(0).input.row_pitch)
            },
            // SAFETY: as above.
            Stage::CopyOut => unsafe {
                self.copy_out.copy_out(&self.results[result].buffer, output, rows * self.bucket(0).outputs[0].row_pitch)
            },
            Stage::Compute => {
                let slot = self.measured_slot(index);
                self.runners[0].stream(slot).launch(&self.runners[0].program, Run { slot, size: prepared.size, rows })
            }
        }
    }
}

const STAGES: [Stage; 3] = [Stage::CopyIn, Stage::Compute, Stage::CopyOut];

/// All credits, and the buffers that a measurement runs on.
struct Prepared {
    _held: Vec<Batch>,
    /// The index of the batch size.
    size: usize,
    /// The staging and the result buffer of one held batch.
    buffers: (usize, usize),
    staging: Span,
}

impl Prepared {
    /// Runs `work`, then waits until all three streams are idle, so that the memory that they access may be freed.
    fn drained<T>(&self, core: &Core, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let done = work();
        for stage in STAGES {
            let idle = Event::new(&core.device)?;
            idle.record(core.stream_of(stage))?;
            idle.wait()?;
        }
        done
    }
}
