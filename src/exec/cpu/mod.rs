//! A plan on the CPU: f32 activations, one image at a time on each worker thread, each with an arena of its own.
//!
//! A batch is run image by image, so a plan is made for one image and stays in a core's cache. Every kernel file
//! shares its stem with the CUDA kernel of the same operation.

mod add;
mod conv2d_depthwise;
mod conv2d_fprop;
mod emit;
mod global_avg_pool;
mod linear;
mod normalize;
mod pool;
mod pool2d;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{BuildSpec, plan_batch, row_specs};
use crate::device::cpu::{Cpu, Work};
use crate::device::{Device, DeviceBuffer, Program, Run, Stream};
use crate::error::Error;
use crate::model::{Model, fold_conv, read_linear};
use crate::plan::{Place, Plan, Step, StepOp, Tensor};
use crate::sync::lock;
use crate::tensor::TensorSpec;
use pool::Pool;

/// A model on the CPU.
struct CpuProgram {
    cpu: Arc<Cpu>,
    batch_sizes: Vec<usize>,
    steps: Vec<CpuStep>,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    input: TensorSpec,
    output: TensorSpec,
    pool: Pool,
    /// One for each worker, which alone locks it.
    scratch: Vec<Mutex<Scratch>>,
}

/// A worker's memory, all of it allocated when the program is built.
struct Scratch {
    arena: Vec<f32>,
    columns: Vec<f32>,
}

/// A step made ready: its kernel and where its operands lie in the arena, in elements.
struct CpuStep {
    kernel: Kernel,
    inputs: Vec<Range<usize>>,
    output: Range<usize>,
}

enum Kernel {
    Normalize(normalize::Normalize),
    Conv(conv2d_fprop::Conv),
    Depthwise(conv2d_depthwise::Depthwise),
    Pool(pool2d::Pool2d),
    GlobalAvgPool { channels: usize },
    Linear(linear::Dense),
    Add(crate::tensor::Activation),
    Emit(crate::tensor::OutputKind),
}

/// Plans one image, packs the weights and allocates everything that a run needs.
pub(super) fn build(
    model: &Model,
    device: &Device,
    cpu: &Arc<Cpu>,
    spec: &BuildSpec,
) -> Result<(Arc<dyn Program>, Vec<Plan>), Error> {
    let plan = plan_batch(model, device, spec, 1)?;
    let steps = plan.steps.iter().map(|step| prepare(model, &plan, step)).collect::<Result<Vec<_>, _>>()?;
    let (input, output) = row_specs(&plan);
    let largest = *spec.batch_sizes.last().expect("a spec has a batch size");
    let rows = |pitch: usize| -> Result<Vec<DeviceBuffer>, Error> {
        (0..spec.slots).map(|_| DeviceBuffer::new(device, largest * pitch)).collect()
    };
    let threads = device.info().units;
    let columns = steps.iter().map(CpuStep::columns).max().unwrap_or(0);
    let scratch = || Mutex::new(Scratch { arena: vec![0.0; plan.arena_bytes / 4], columns: vec![0.0; columns] });
    let program = CpuProgram {
        cpu: cpu.clone(),
        batch_sizes: spec.batch_sizes.clone(),
        steps,
        inputs: rows(input.row_pitch)?,
        outputs: rows(output.row_pitch)?,
        input,
        output,
        pool: Pool::new(threads)?,
        scratch: (0..threads).map(|_| scratch()).collect(),
    };
    Ok((Arc::new(program), vec![plan]))
}

fn prepare(model: &Model, plan: &Plan, step: &Step) -> Result<CpuStep, Error> {
    let tensor = |id: crate::plan::TensorId| &plan.tensors[id.0];
    let (x, y) = (tensor(step.inputs[0]), tensor(step.output));
    let kernel = match &step.op {
        StepOp::Normalize { mean, std } => Kernel::Normalize(normalize::Normalize::new(plan.input, x.shape, mean, std)),
        StepOp::Conv(conv) => {
            let folded = fold_conv(model.weights(), conv, x.shape.channels)?;
            Kernel::Conv(conv2d_fprop::Conv::new(conv, x.shape, y.shape, &folded))
        }
        StepOp::Depthwise(conv) => {
            let folded = fold_conv(model.weights(), conv, x.shape.channels)?;
            Kernel::Depthwise(conv2d_depthwise::Depthwise::new(conv, x.shape, y.shape, &folded))
        }
        StepOp::MaxPool(pool) => Kernel::Pool(pool2d::Pool2d::max(*pool, x.shape, y.shape)),
        StepOp::AvgPool(pool) => Kernel::Pool(pool2d::Pool2d::average(*pool, x.shape, y.shape)),
        StepOp::GlobalAvgPool => Kernel::GlobalAvgPool { channels: x.shape.channels },
        StepOp::Linear(linear) => {
            let (weight, bias) = read_linear(model.weights(), linear, x.shape.channels)?;
            Kernel::Linear(linear::Dense::new(x.shape.channels, &weight, bias))
        }
        StepOp::Add(activation) => Kernel::Add(*activation),
        StepOp::Emit(kind) => Kernel::Emit(*kind),
    };
    let inputs = step.inputs.iter().map(|&id| range(tensor(id))).collect();
    Ok(CpuStep { kernel, inputs, output: range(y) })
}

/// Elements of the arena that hold a tensor; none if it lies in the slot's input or output.
fn range(tensor: &Tensor) -> Range<usize> {
    match tensor.place {
        Place::Arena(offset) => offset / 4..offset / 4 + tensor.bytes / 4,
        Place::Input | Place::Output => 0..0,
    }
}

impl CpuStep {
    /// Elements of column scratch that it needs.
    fn columns(&self) -> usize {
        match &self.kernel {
            Kernel::Conv(conv) => conv.columns_elems(),
            _ => 0,
        }
    }

    /// Runs the step on one image.
    fn run(&self, scratch: &mut Scratch, input: &[u8], output: &mut [u8]) {
        let Scratch { arena, columns } = scratch;
        let disjoint = "the planner keeps a step's operands apart";
        match &self.kernel {
            Kernel::Normalize(normalize) => return normalize.run(input, &mut arena[self.output.clone()]),
            Kernel::Emit(kind) => return emit::run(*kind, &arena[self.inputs[0].clone()], output),
            _ => {}
        }
        if let [a, b] = &self.inputs[..] {
            // An addition of a tensor to itself reads one range twice.
            let (a, b) = (a.clone(), b.clone());
            let ([x, y], residual) = if a == b {
                (arena.get_disjoint_mut([a, self.output.clone()]).expect(disjoint), None)
            } else {
                let [x, residual, y] = arena.get_disjoint_mut([a, b, self.output.clone()]).expect(disjoint);
                ([x, y], Some(&*residual))
            };
            let residual = residual.unwrap_or(x);
            match &self.kernel {
                Kernel::Conv(conv) => conv.run(x, Some(residual), y, columns),
                Kernel::Add(activation) => add::run(x, Some(residual), *activation, y),
                _ => unreachable!("only convolutions and additions have two inputs"),
            }
            return;
        }
        let [x, y] = arena.get_disjoint_mut([self.inputs[0].clone(), self.output.clone()]).expect(disjoint);
        match &self.kernel {
            Kernel::Conv(conv) => conv.run(x, None, y, columns),
            Kernel::Depthwise(depthwise) => depthwise.run(x, y),
            Kernel::Pool(pool) => pool.run(x, y),
            Kernel::GlobalAvgPool { channels } => global_avg_pool::run(x, *channels, y),
            Kernel::Linear(dense) => dense.run(x, y),
            Kernel::Add(activation) => add::run(x, None, *activation, y),
            Kernel::Normalize(_) | Kernel::Emit(_) => unreachable!("handled above"),
        }
    }
}

impl Work for CpuProgram {
    fn run(&self, run: Run) {
        let next = AtomicUsize::new(0);
        self.pool.run(run.rows, &|worker| {
            let mut scratch = lock(&self.scratch[worker]);
            loop {
                let row = next.fetch_add(1, Ordering::Relaxed);
                if row >= run.rows {
                    return;
                }
                let (input, output) = (self.inputs[run.slot].addr(), self.outputs[run.slot].addr());
                // SAFETY: both buffers hold `largest batch` rows of these pitches and `run.rows` is no more; the ring
                // orders this run behind the upload into the input and before the slot's next one; rows are claimed
                // once each, so the output slices of two workers are disjoint.
                let (input, output) = unsafe {
                    let input = (input as *const u8).add(row * self.input.row_pitch);
                    let output = (output as *mut u8).add(row * self.output.row_pitch);
                    (
                        std::slice::from_raw_parts(input, self.input.row_bytes),
                        std::slice::from_raw_parts_mut(output, self.output.row_bytes),
                    )
                };
                for step in &self.steps {
                    step.run(&mut scratch, input, output);
                }
            }
        });
    }
}

impl Program for CpuProgram {
    fn slots(&self) -> usize {
        self.inputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        &self.inputs[slot]
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn launch(self: Arc<Self>, run: Run, stream: &Stream) -> Result<(), Error> {
        let cpu = self.cpu.clone();
        stream.device().latch(cpu.enqueue(stream.raw(), self, run))
    }
}
