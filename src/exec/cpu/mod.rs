//! The CPU device's program: a plan for one row, run on the rows of a batch by several threads at once.
//!
//! Each worker thread runs the whole plan on a row of its own, in an arena of its own. Where one row is left when all threads
//! have had as many, they share out its steps. Weights are repacked once, arenas and scratch are allocated once; a run of
//! images allocates nothing. Activations of images are f32 or bytes, NHWC, channels without padding; values are dense.

mod add;
mod conv2d_depthwise;
mod conv2d_depthwise_s8;
mod conv2d_fprop;
mod conv2d_s8;
mod convert;
mod emit;
mod global_avg_pool;
mod linear;
mod mean;
mod mean_s8;
mod network;
mod normalize;
mod packed;
mod pool;
mod pool2d;
mod probe;
mod simd;
mod stem_s8;
mod taps;
mod target;
#[cfg(test)]
mod tests;
mod values;
mod window;

use std::slice;
use std::sync::Arc;

use self::mean::MeanProgram;
use self::network::{Arena, Desk, Images};
use self::packed::Packed;
use self::pool::Pool;
pub(crate) use self::probe::Probe;
use self::simd::{Isa, Lanes};
use self::values::Values;
use super::mean::Averaged;
use super::{BuildSpec, Needs, Planned, states};
use crate::device::cpu::{Cpu, Work};
use crate::device::{Access, Device, DeviceBuffer, Inputs, Program, Run, Span, StateBuffer};
use crate::error::Error;
use crate::loops::{Alone, Team};
use crate::model::Model;
use crate::phases::Stopwatch;
use crate::plan::Plan;
use crate::tensor::{Bucket, RowSpec};

/// Makes `model` ready to run on the CPU by its plans for one row, of which each bucket has one.
pub(crate) fn build(
    model: &Model,
    device: &Device,
    cpu: &Arc<Cpu>,
    spec: &BuildSpec,
    plans: &[Plan],
    inputs: Option<Inputs>,
    watch: &mut Stopwatch,
) -> Result<Arc<dyn Program>, Error> {
    let buffers = |rows: fn(&Plan) -> &RowSpec| {
        let bytes = buffer_bytes(plans, spec, rows)?;
        (0..spec.slots).map(|_| DeviceBuffer::new(device, bytes)).collect::<Result<Vec<_>, Error>>()
    };
    let inputs = inputs.map_or_else(|| buffers(|plan| &plan.input).map(Inputs::Own), Ok)?;
    let outputs = buffers(|plan| &plan.output)?;
    let states = states::new(device, plans, spec)?;
    watch.lap("device memory");
    let packed = Packed::of(model.weights(), device)?;
    let ready = |plan: &Plan| Ok(Arc::new(Ready { plan: plan.clone(), steps: Steps::new(plan, &packed)? }));
    let ready = plans.iter().map(ready).collect::<Result<Vec<_>, Error>>()?;
    watch.lap("weights");
    let pool = Pool::new(device.info().units)?;
    let most = |what: fn([usize; 2]) -> usize| ready.iter().map(|ready| what(ready.steps.memory())).max().unwrap_or(0);
    let [bytes, elems] = [most(|[bytes, _]| bytes), most(|[_, elems]| elems)];
    let arenas = (0..pool.workers()).map(|_| Arena::new(bytes, elems)).collect::<Result<_, Error>>()?;
    watch.lap("workers");
    let of_bucket = |(ready, bucket): (Arc<Ready>, &Bucket)| vec![ready; bucket.batch_sizes.len()];
    let of_size = ready.into_iter().zip(&spec.buckets).flat_map(of_bucket).collect();
    let (cpu, batch_sizes) = (cpu.clone(), spec.batch_sizes());
    Ok(Arc::new(CpuProgram { cpu, batch_sizes, inputs, outputs, states, of_size, _packed: packed, pool, arenas }))
}

/// Bytes of a slot's input or output buffer: enough for the largest batch of every bucket.
fn buffer_bytes(plans: &[Plan], spec: &BuildSpec, rows: fn(&Plan) -> &RowSpec) -> Result<usize, Error> {
    let mut most = 0;
    for (plan, bucket) in plans.iter().zip(&spec.buckets) {
        let bytes = rows(plan).row_pitch.checked_mul(bucket.most()).filter(|&bytes| bytes <= isize::MAX as usize);
        let too_large = || Error::option("batch", bucket.most(), "a batch whose rows fit into memory");
        most = most.max(bytes.ok_or_else(too_large)?);
    }
    Ok(most)
}

/// The memory that [`build`] will take.
pub(crate) fn needs((model, plans): Planned<'_>, before: &[Planned<'_>], device: &Device, spec: &BuildSpec) -> Needs {
    let bytes = |rows: fn(&Plan) -> &RowSpec| {
        let of = |(plan, bucket): (&Plan, &Bucket)| (rows(plan).row_pitch as u64).saturating_mul(bucket.most() as u64);
        plans.iter().zip(&spec.buckets).map(of).max().unwrap_or(0)
    };
    let input = if before.is_empty() { bytes(|plan| &plan.input) } else { 0 };
    let rows = (spec.slots as u64).saturating_mul(bytes(|plan| &plan.output).saturating_add(input));
    let [weights, passing] = packed::missing((model, plans), before, device);
    let worker = match plans.iter().all(Plan::is_of_values) {
        true => plans.iter().map(|plan| plan.arena_bytes as u64).max().unwrap_or(0),
        false => network::arena_bytes(plans),
    };
    let workers = (device.info().units as u64).saturating_mul(worker);
    Needs { device: rows, host: workers.saturating_add(weights), passing }
}

/// The mean of the outputs of `programs`, whose rows have these pitches at each size.
pub(crate) fn mean(
    device: &Device,
    cpu: &Arc<Cpu>,
    programs: Vec<Arc<dyn Program>>,
    pitches: Vec<usize>,
) -> Result<Arc<dyn Program>, Error> {
    let averaged = Averaged::new(device, programs, pitches)?;
    Ok(Arc::new(MeanProgram::new(cpu, averaged)))
}

/// A model made ready for the CPU.
pub(crate) struct CpuProgram {
    cpu: Arc<Cpu>,
    batch_sizes: Vec<usize>,
    /// The input buffer of each slot, for the largest batch.
    inputs: Inputs,
    outputs: Vec<DeviceBuffer>,
    states: Vec<StateBuffer>,
    /// The plan and the steps that compute a row at each size.
    of_size: Vec<Arc<Ready>>,
    /// The model's repacked weights, kept so that later engines of the model share them.
    _packed: Arc<Packed>,
    pool: Pool,
    /// The arena of each of the pool's workers.
    arenas: Vec<Arena>,
}

/// A plan for one row and its steps.
struct Ready {
    plan: Plan,
    steps: Steps,
}

/// The steps of a plan, made ready.
enum Steps {
    Images(Images),
    Values(Values),
}

impl Steps {
    fn new(plan: &Plan, packed: &Packed) -> Result<Self, Error> {
        match plan.is_of_values() {
            true => Values::new(packed, plan).map(Self::Values),
            false => Images::new(packed, plan, Isa::detect()).map(Self::Images),
        }
    }

    /// Bytes of the arena and elements of scratch that a run takes.
    const fn memory(&self) -> [usize; 2] {
        match self {
            Self::Images(images) => images.memory(),
            Self::Values(values) => [values.arena_bytes(), 0],
        }
    }

    /// Computes the output row of one input row, and the next row of each state.
    fn run(&self, x: &[u8], y: &mut [u8], states: &mut [&mut [u8]], at: &Desk<'_>) {
        match self {
            Self::Images(images) => images.run(x, bytemuck::cast_slice_mut(y), at),
            Self::Values(values) => {
                values.run(x, y, states, bytemuck::cast_slice_mut::<Lanes, u8>(&mut at.tensors()), at.team);
            }
        }
    }
}

impl Program for CpuProgram {
    fn slots(&self) -> usize {
        self.outputs.len()
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
        let (input, output) = (self.inputs.at(run.slot), &self.outputs[run.slot]);
        let plan = &self.of_size[run.size].plan;
        let bytes = |spec: &RowSpec| run.rows * spec.row_pitch;
        let rows =
            [(input.span_of(bytes(&plan.input)), Access::Read), (output.span_of(bytes(&plan.output)), Access::Write)];
        let states =
            self.states.iter().map(|state| (state.buffer.span_of(run.rows * state.row.bytes()), Access::Write));
        rows.into_iter().chain(states).collect()
    }

    fn states(&self) -> &[StateBuffer] {
        &self.states
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        assert!(run.slot < self.outputs.len() && run.rows <= self.batch_sizes[run.size], "a run out of range: {run:?}");
        let cpu = self.cpu.clone();
        cpu.enqueue(stream, self, run)
    }
}

impl Work for CpuProgram {
    fn run(&self, run: Run) {
        let (input, output) = (self.inputs.at(run.slot), &self.outputs[run.slot]);
        let Ready { plan: Plan { input: read, output: written, .. }, .. } = &*self.of_size[run.size];
        assert!(run.rows * read.row_pitch <= input.len() && run.rows * written.row_pitch <= output.len());
        let apart = run.rows - usize::from(run.rows % self.pool.workers() == 1);
        self.pool.each(apart, &|worker, row| self.row(run, row, worker, &Alone(worker)));
        (apart..run.rows).for_each(|row| self.row(run, row, 0, &self.pool));
    }
}

impl CpuProgram {
    /// Computes a row of a run, in this worker's arena. Each row of a run is computed once, and no worker computes two
    /// rows at the same time.
    /// are at a time by the same worker.
    fn row(&self, run: Run, row: usize, worker: usize, team: &dyn Team) {
        let (x, y) = (self.inputs.at(run.slot).addr() as usize, self.outputs[run.slot].addr() as usize);
        let Ready { plan: Plan { input: read, output: written, .. }, steps, .. } = &*self.of_size[run.size];
        // SAFETY: `row` is below `run.rows`, whose rows lie within the slot's buffer (`Work::run` asserted), which lives
        // as long as self, is initialised (the CPU's memory is zeroed) and which nobody writes during the run: the ring
        // orders copies into a slot before and after the runs that read it.
        let x = unsafe { slice::from_raw_parts((x + row * read.row_pitch) as *const u8, read.row_bytes) };
        // SAFETY: as above for the output, which nobody reads during the run; each row is computed once, and rows are
        // disjoint.
        let y = unsafe { slice::from_raw_parts_mut((y + row * written.row_pitch) as *mut u8, written.row_bytes) };
        let state = |state: &StateBuffer| {
            assert!(row < state.rows, "a row of a state");
            let bytes = state.row.bytes();
            // SAFETY: as above for the row of a state, which lives as long as self: nobody else accesses states during
            // the run, for a ring orders all that does on the one compute stream.
            unsafe { slice::from_raw_parts_mut((state.buffer.addr() as usize + row * bytes) as *mut u8, bytes) }
        };
        let mut states: Vec<&mut [u8]> = self.states.iter().map(state).collect();
        steps.run(x, y, &mut states, &Desk { arenas: &self.arenas, worker, team });
    }
}
