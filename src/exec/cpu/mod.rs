//! The CPU device's program: a plan for one image, run on the rows of a batch by several threads at once.
//!
//! Every worker thread runs the whole plan on one image in an arena of its own. Weights are repacked once, arenas and
//! scratch are allocated once; a run allocates nothing. Activations are f32 or bytes, NHWC, channels without padding.

mod add;
mod conv2d_depthwise;
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
use self::network::{Arena, Images};
use self::pool::Pool;
pub(crate) use self::probe::Probe;
use self::simd::Isa;
use self::values::Values;
use super::mean::Averaged;
use super::{BuildSpec, Needs, Planned};
use crate::device::cpu::{Cpu, Work};
use crate::device::{Access, Device, DeviceBuffer, Inputs, Program, Run, Span};
use crate::error::Error;
use crate::model::{Model, Network, Weights};
use crate::phases::Stopwatch;
use crate::plan::Plan;
use crate::sync::{Mutex, lock};
use crate::tensor::RowSpec;

/// Makes `model` ready to run on the CPU by its plan for one image.
pub(crate) fn build(
    model: &Model,
    device: &Device,
    cpu: &Arc<Cpu>,
    spec: &BuildSpec,
    plan: &Plan,
    inputs: Option<Inputs>,
    watch: &mut Stopwatch,
) -> Result<Arc<dyn Program>, Error> {
    let (input, output) = (plan.input.clone(), plan.output.clone());
    let most = *spec.batch_sizes.last().ok_or_else(|| Error::option("batch", "empty", "at least one batch size"))?;
    let bytes = |spec: &RowSpec| {
        let too_large = || Error::option("batch", most, "a batch whose rows fit into memory");
        spec.row_pitch.checked_mul(most).filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(too_large)
    };
    let buffer = |spec: &RowSpec| DeviceBuffer::new(device, bytes(spec)?);
    let slots = spec.slots;
    let rows = |spec| (0..slots).map(|_| buffer(spec)).collect::<Result<Vec<_>, Error>>();
    let inputs = inputs.map_or_else(|| rows(&input).map(Inputs::Own), Ok)?;
    let outputs = rows(&output)?;
    watch.lap("device memory");
    let ready = device.share(
        |there: &Ready| there.is_of(model, plan),
        || {
            let steps = Steps::new(model, plan)?;
            Ok(Ready { from: model.weights().clone(), plan: plan.clone(), steps })
        },
    )?;
    watch.lap("weights");
    let pool = Pool::new(device.info().units)?;
    let worker = |_| Ok(Mutex::new(ready.steps.worker()?));
    let workers = (0..pool.workers()).map(worker).collect::<Result<_, Error>>()?;
    watch.lap("workers");
    let program = CpuProgram {
        cpu: cpu.clone(),
        batch_sizes: spec.batch_sizes.clone(),
        inputs,
        outputs,
        input,
        output,
        ready,
        pool,
        workers,
    };
    Ok(Arc::new(program))
}

/// What [`build`] will take.
pub(crate) fn needs((model, plans): Planned<'_>, before: &[Planned<'_>], device: &Device, spec: &BuildSpec) -> Needs {
    let plan = &plans[0];
    let (input, output) = (&plan.input, &plan.output);
    let row = output.row_pitch as u64 + if before.is_empty() { input.row_pitch as u64 } else { 0 };
    let rows = spec.slots as u64 * spec.batch_sizes.last().map_or(0, |&most| most as u64);
    let is_there = device.shares(|there: &Ready| there.is_of(model, plan))
        || before.iter().any(|(other, plans)| Arc::ptr_eq(other.weights(), model.weights()) && plans[0] == *plan);
    let ([weights, passing], worker) = match model.network() {
        Network::Images(_) => (network::weight_bytes(plan), network::arena_bytes(plan)),
        Network::Values(_) => ([values::constant_bytes(plan), 0], plan.arena_bytes as u64),
    };
    let [weights, passing] = if is_there { [0, 0] } else { [weights, passing] };
    let workers = (device.info().units as u64).saturating_mul(worker);
    Needs { device: rows.saturating_mul(row), host: workers.saturating_add(weights), passing }
}

/// The mean of the outputs of `programs`, whose rows are all `rows`.
pub(crate) fn mean(
    device: &Device,
    cpu: &Arc<Cpu>,
    programs: Vec<Arc<dyn Program>>,
    rows: &RowSpec,
) -> Result<Arc<dyn Program>, Error> {
    let averaged = Averaged::new(device, programs, rows)?;
    Ok(Arc::new(MeanProgram::new(cpu, averaged)))
}

/// A model made ready for the CPU.
pub(crate) struct CpuProgram {
    cpu: Arc<Cpu>,
    batch_sizes: Vec<usize>,
    /// Of each slot, for the largest batch.
    inputs: Inputs,
    outputs: Vec<DeviceBuffer>,
    input: RowSpec,
    output: RowSpec,
    ready: Arc<Ready>,
    pool: Pool,
    /// One for each of the pool's workers. Locked by that worker alone, so never contended.
    workers: Vec<Mutex<Worker>>,
}

/// A network with its weights, repacked; engines of the same model and plan share it.
struct Ready {
    from: Arc<Weights>,
    plan: Plan,
    steps: Steps,
}

/// The steps of a plan, made ready.
enum Steps {
    Images(Images),
    Values(Values),
}

/// What one worker thread computes in.
enum Worker {
    Images(Arena),
    /// Values are made as they are computed.
    Values,
}

impl Steps {
    fn new(model: &Model, plan: &Plan) -> Result<Self, Error> {
        match model.network() {
            Network::Images(_) => Images::new(model, plan, Isa::detect()).map(Self::Images),
            Network::Values(_) => Values::new(model.weights(), plan).map(Self::Values),
        }
    }

    fn worker(&self) -> Result<Worker, Error> {
        match self {
            Self::Images(images) => images.arena().map(Worker::Images),
            Self::Values(_) => Ok(Worker::Values),
        }
    }

    /// Computes the output row of one input row.
    fn run(&self, x: &[u8], y: &mut [u8], worker: &mut Worker) {
        match (self, worker) {
            (Self::Images(images), Worker::Images(arena)) => images.run(x, bytemuck::cast_slice_mut(y), arena),
            (Self::Values(values), Worker::Values) => values.run(x, y),
            _ => unreachable!("a worker is made by the steps that it computes"),
        }
    }
}

impl Ready {
    /// Whether it is what a build of `model` with this plan makes.
    fn is_of(&self, model: &Model, plan: &Plan) -> bool {
        Arc::ptr_eq(&self.from, model.weights()) && self.plan == *plan
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
        let bytes = |spec: &RowSpec| run.rows * spec.row_pitch;
        vec![(input.span_of(bytes(&self.input)), Access::Read), (output.span_of(bytes(&self.output)), Access::Write)]
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
        assert!(run.rows * self.input.row_pitch <= input.len() && run.rows * self.output.row_pitch <= output.len());
        let (x, y) = (input.addr() as usize, output.addr() as usize);
        self.pool.for_each(run.rows, &|worker, row| {
            // SAFETY: `row` is below `run.rows`, whose rows lie within the slot's buffer (asserted), which lives as
            // long as self, is initialised (the CPU's memory is zeroed) and which nobody writes during the run: the
            // ring orders copies into a slot before and after the runs that read it.
            let x =
                unsafe { slice::from_raw_parts((x + row * self.input.row_pitch) as *const u8, self.input.row_bytes) };
            // SAFETY: as above for the output, which nobody reads during the run; the pool hands each row to one
            // worker, and rows are disjoint.
            let y = unsafe {
                slice::from_raw_parts_mut((y + row * self.output.row_pitch) as *mut u8, self.output.row_bytes)
            };
            self.ready.steps.run(x, y, &mut lock(&self.workers[worker]));
        });
    }
}
