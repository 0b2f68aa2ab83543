//! The steps of a plan for one image, with their weights and the places of their tensors.

use std::ops::Range;

use super::add::Add;
use super::conv2d_depthwise::{Conv2dDepthwise, Taps};
use super::conv2d_depthwise_s8::{ByteTaps, Conv2dDepthwiseS8};
use super::conv2d_fprop::{Conv2dFprop, Panels, scratch_of};
use super::conv2d_s8::{self, BytePanels, Conv2dS8, Image};
use super::convert::{Dequantize, Quantize};
use super::emit;
use super::global_avg_pool::GlobalAvgPool;
use super::linear::Linear;
use super::mean_s8::MeanS8;
use super::normalize::Normalize;
use super::packed::Packed;
use super::pool2d::Pool2d;
use super::simd::{Isa, LANES, Lanes};
use super::stem_s8::{StemS8, scratch_of_stem};
use super::target::OutputTarget;
use crate::device::free_on_host;
use crate::error::Error;
use crate::loops::{Lines, Team};
use crate::model::{Conv2d, fold_conv, read_linear};
use crate::plan::{Place, Plan, QuantizedConv, QuantizedStem, Stem, Step, StepOp, TensorId};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::tensor::{Dtype, OutputKind, Shape};

/// A network of images, ready to run.
pub(super) struct Images {
    steps: Vec<Ready>,
    arena_bytes: usize,
    scratch_elems: usize,
}

/// A step, ready to run.
struct Ready {
    kernel: Kernel,
    /// Ranges of the arena's bytes that the step reads; empty for the first step.
    inputs: Vec<Range<usize>>,
    /// The range of the arena's bytes that the step writes; empty for the last step.
    output: Range<usize>,
}

enum Kernel {
    Normalize(Normalize),
    Conv(Box<Conv2dFprop>),
    ConvS8(Box<Conv2dS8>),
    StemS8(Box<StemS8>),
    MeanS8(MeanS8),
    Quantize(Quantize),
    Dequantize(Box<Dequantize>),
    Depthwise(Box<Conv2dDepthwise>),
    DepthwiseS8(Box<Conv2dDepthwiseS8>),
    Pool(Box<Pool2d>),
    GlobalAvgPool(GlobalAvgPool),
    Linear(Linear),
    Add(Add),
    Emit(OutputKind),
}

/// The memory that a worker thread computes in.
pub(super) struct Arena {
    /// The tensors of the image that the worker computes; locked through a run.
    tensors: Mutex<Vec<Lanes>>,
    /// Scratch for the part of a step that the worker computes; no other worker locks it.
    scratch: Mutex<Vec<Lanes>>,
}

impl Arena {
    /// An arena for one worker thread, with `bytes` bytes for tensors and `elems` floats of scratch.
    pub fn new(bytes: usize, elems: usize) -> Result<Self, Error> {
        let [tensors, scratch] = [bytes.div_ceil(size_of::<f32>()), elems].map(zeroed);
        Ok(Self { tensors: Mutex::new(tensors?), scratch: Mutex::new(scratch?) })
    }
}

impl Images {
    /// Makes the steps of `plan`, which is for one image, ready to run.
    pub fn new(packed: &Packed, plan: &Plan, isa: Isa) -> Result<Self, Error> {
        assert_eq!(plan.batch, 1, "a CPU runs image by image");
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let kernel = kernel(packed, plan, step, isa)?;
            let inputs = step.inputs.iter().filter_map(|&id| bytes(plan, id)).collect();
            steps.push(Ready { kernel, inputs, output: bytes(plan, step.outputs[0]).unwrap_or(0..0) });
        }
        Ok(Self { steps, arena_bytes: plan.arena_bytes, scratch_elems: scratch_elems(plan) })
    }

    /// Bytes of the arena and elements of scratch that a run takes.
    pub const fn memory(&self) -> [usize; 2] {
        [self.arena_bytes, self.scratch_elems]
    }

    /// Computes the output row, 32-bit words, of one input row.
    pub fn run(&self, x: &[u8], y: &mut [u32], at: &Desk<'_>) {
        self.run_seen(x, y, at, |_, _| ());
    }

    /// Computes the output row like `run`. `seen` gets each step's number and the bytes that it wrote in the arena,
    /// before another step runs.
    pub fn run_seen(&self, x: &[u8], y: &mut [u32], at: &Desk<'_>, mut seen: impl FnMut(usize, &[u8])) {
        let mut tensors = at.tensors();
        let arena = bytemuck::cast_slice_mut::<Lanes, u8>(&mut tensors);
        for (index, step) in self.steps.iter().enumerate() {
            match &step.kernel {
                Kernel::Normalize(kernel) => {
                    let y = floats_mut(&mut arena[step.output.clone()]);
                    kernel.lines().share(at.team, y, &|_, pixels, y| kernel.run(pixels, x, y));
                }
                Kernel::StemS8(kernel) => {
                    at.with_scratch(at.worker, |scratch| kernel.run(x, &mut arena[step.output.clone()], scratch));
                }
                Kernel::Emit(output) => emit::run(*output, floats(&arena[step.inputs[0].clone()]), y),
                kernel => kernel.run_between(step, arena, at),
            }
            seen(index, &arena[step.output.clone()]);
        }
    }
}

/// The workers that compute an image, and their arenas.
pub(super) struct Desk<'a> {
    /// The arena of each worker.
    pub arenas: &'a [Arena],
    /// The worker in whose arena the image's tensors lie.
    pub worker: usize,
    /// The workers that share out the steps.
    pub team: &'a dyn Team,
}

impl Desk<'_> {
    /// Locks the tensors of the image that is computed.
    pub fn tensors(&self) -> MutexGuard<'_, Vec<Lanes>> {
        lock(&self.arenas[self.worker].tensors)
    }

    fn with_scratch(&self, worker: usize, of: impl FnOnce(&mut [f32])) {
        of(bytemuck::cast_slice_mut::<Lanes, f32>(&mut lock(&self.arenas[worker].scratch)));
    }
}

impl Kernel {
    /// Runs a step that reads and writes the arena.
    fn run_between(&self, step: &Ready, arena: &mut [u8], at: &Desk<'_>) {
        const DISJOINT: &str = "the planner gives tensors that are alive together disjoint ranges of the arena";
        let [first, output] = [&step.inputs[0], &step.output].map(Range::clone);
        let (x, second, y) = match step.inputs.get(1) {
            Some(second) if *second != first => {
                let [x, second, y] = arena.get_disjoint_mut([first, second.clone(), output]).expect(DISJOINT);
                (&*x, Some(&*second), y)
            }
            second => {
                let [x, y] = arena.get_disjoint_mut([first, output]).expect(DISJOINT);
                (&*x, second.map(|_| &*x), y)
            }
        };
        match self {
            Self::Conv(kernel) => {
                let (x, second) = (floats(x), second.map(floats));
                kernel.lines().share(at.team, floats_mut(y), &|worker, pixels, y| {
                    at.with_scratch(worker, |scratch| kernel.run(pixels, x, second, y, scratch));
                });
            }
            Self::ConvS8(kernel) => kernel.lines().share(at.team, y, &|worker, pixels, y| {
                at.with_scratch(worker, |scratch| kernel.run(pixels, x, second, y, scratch));
            }),
            Self::MeanS8(kernel) => kernel.run(x, floats_mut(y)),
            Self::Quantize(kernel) => {
                let (x, lines) = (floats(x), Lines { count: y.len(), pitch: 1, together: 1, least: 1, ops: 1 });
                lines.share(at.team, y, &|_, elems, y| kernel.run(&x[elems], y));
            }
            Self::Dequantize(kernel) => {
                kernel.lines().share(at.team, floats_mut(y), &|_, pixels, y| kernel.run(pixels, x, y));
            }
            Self::Depthwise(kernel) => {
                kernel.lines().share(at.team, floats_mut(y), &|_, rows, y| kernel.run(rows, floats(x), y));
            }
            Self::DepthwiseS8(kernel) => kernel.lines().share(at.team, y, &|_, rows, y| kernel.run(rows, x, y)),
            Self::Pool(kernel) => {
                kernel.lines().share(at.team, floats_mut(y), &|_, rows, y| kernel.run(rows, floats(x), y));
            }
            Self::GlobalAvgPool(kernel) => {
                kernel.lines().share(at.team, floats_mut(y), &|_, channels, y| kernel.run(channels, floats(x), y));
            }
            Self::Linear(kernel) => {
                kernel.lines().share(at.team, floats_mut(y), &|_, outputs, y| kernel.run(outputs, floats(x), y));
            }
            Self::Add(kernel) => {
                let (x, second) = (floats(x), second.map(floats));
                kernel.lines().share(at.team, floats_mut(y), &|_, pixels, y| kernel.run(pixels, x, second, y));
            }
            Self::Normalize(_) | Self::StemS8(_) | Self::Emit(_) => unreachable!("the first and last step touch rows"),
        }
    }
}

/// A tensor of floats.
fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

fn floats_mut(bytes: &mut [u8]) -> &mut [f32] {
    bytemuck::cast_slice_mut(bytes)
}

/// Bytes of one worker's arena, enough for each of these plans.
pub(super) fn arena_bytes(plans: &[Plan]) -> u64 {
    let most = |elems: fn(&Plan) -> usize| plans.iter().map(elems).max().unwrap_or(0);
    [most(|plan| plan.arena_bytes / size_of::<f32>()), most(scratch_elems)]
        .map(|elems| (elems.div_ceil(LANES) * size_of::<Lanes>()) as u64)
        .iter()
        .sum()
}

/// Bytes of a step's weights, repacked; most are kept as they are.
pub(super) fn weight_bytes(step: &Step) -> u64 {
    let in_lanes = |conv: &Conv2d, bytes: u64| {
        let channels = conv.out_channels as u64;
        bytes / channels * channels.next_multiple_of(LANES as u64)
    };
    if let StepOp::Conv(conv) = &step.op {
        in_lanes(conv, step.weight_bytes)
    } else if let StepOp::QuantizedConv(QuantizedConv { conv, .. })
    | StepOp::QuantizedStem(QuantizedStem { stem: Stem { conv, .. }, .. }) = &step.op
    {
        in_lanes(conv, size_of::<f32>() as u64 * step.weight_bytes) // a filter's are kept as floats
    } else if let StepOp::QuantizedDepthwise(_) = &step.op {
        size_of::<i32>() as u64 * step.weight_bytes
    } else {
        step.weight_bytes
    }
}

/// Floats of scratch that a run of the plan needs: the most of any of its convolutions; other steps need none.
fn scratch_elems(plan: &Plan) -> usize {
    let shape = |id: TensorId| plan.tensors[id.0].shape;
    let of_step = |step: &Step| {
        if let StepOp::Conv(conv) = &step.op {
            scratch_of(conv, shape(step.inputs[0]), shape(step.outputs[0]))
        } else if let StepOp::QuantizedConv(of) = &step.op {
            let inputs: Vec<Shape> = step.inputs.iter().map(|&id| shape(id)).collect();
            conv2d_s8::scratch_of(of, &inputs, shape(step.outputs[0]))
        } else if let StepOp::QuantizedStem(of) = &step.op {
            scratch_of_stem(of, shape(step.inputs[0]))
        } else {
            0
        }
    };
    plan.steps.iter().map(of_step).max().unwrap_or(0)
}

fn kernel(packed: &Packed, plan: &Plan, step: &Step, isa: Isa) -> Result<Kernel, Error> {
    let weights = packed.from();
    let (x, y) = (plan.tensors[step.inputs[0].0].shape, plan.tensors[step.outputs[0].0].shape);
    let target = target(plan, step.outputs[0]);
    let is_signed = |id: TensorId| plan.tensors[id.0].dtype == Dtype::I8;
    let image = |id: TensorId| Image { shape: plan.tensors[id.0].shape, signed: is_signed(id) };
    Ok(match &step.op {
        StepOp::Normalize { format, mean, std } => Kernel::Normalize(Normalize::new(*format, y, mean, std)),
        StepOp::Conv(conv) => {
            let repack = || Ok(Panels::new(conv, &fold_conv(weights, conv, x.channels)?, x.channels));
            Kernel::Conv(Conv2dFprop::new(isa, conv, packed.filter(plan, step, repack)?, x, target).into())
        }
        StepOp::QuantizedConv(of) => {
            let inputs: Vec<Image> = step.inputs.iter().map(|&id| image(id)).collect();
            let channels: Vec<usize> = inputs.iter().map(|x| x.shape.channels).collect();
            let repack = || Ok(BytePanels::new(step.op.byte_filter(weights, &channels)?, &channels));
            let panels = packed.filter(plan, step, repack)?;
            Kernel::ConvS8(Conv2dS8::new(isa, of, panels, &inputs, image(step.outputs[0])).into())
        }
        StepOp::QuantizedStem(of) => {
            let repack = || Ok(BytePanels::new(step.op.byte_filter(weights, &[x.channels])?, &[x.channels]));
            let panels = packed.filter(plan, step, repack)?;
            Kernel::StemS8(StemS8::new(isa, of, panels, x, image(step.outputs[0])).into())
        }
        StepOp::QuantizedMean(scale) => Kernel::MeanS8(MeanS8::new(*scale, image(step.inputs[0]))),
        StepOp::Quantize(scale) => Kernel::Quantize(Quantize::new(isa, *scale, is_signed(step.outputs[0]))),
        StepOp::Dequantize(scale) => {
            Kernel::Dequantize(Dequantize::new(*scale, is_signed(step.inputs[0]), target).into())
        }
        StepOp::Depthwise(conv) => {
            let repack = || Ok(Taps::new(fold_conv(weights, conv, x.channels)?, x.channels));
            Kernel::Depthwise(Conv2dDepthwise::new(isa, conv, packed.filter(plan, step, repack)?, x, y).into())
        }
        StepOp::QuantizedDepthwise(of) => {
            let repack = || Ok(ByteTaps::new(step.op.byte_filter(weights, &[x.channels])?));
            let taps = packed.filter(plan, step, repack)?;
            let [x, y] = [step.inputs[0], step.outputs[0]].map(image);
            Kernel::DepthwiseS8(Conv2dDepthwiseS8::new(isa, &of.conv, taps, x, y).into())
        }
        StepOp::MaxPool(pool) => Kernel::Pool(Pool2d::max(isa, pool, x, target).into()),
        StepOp::AvgPool(pool) => Kernel::Pool(Pool2d::mean(isa, pool, x, target).into()),
        StepOp::GlobalAvgPool => Kernel::GlobalAvgPool(GlobalAvgPool::new(isa, x)),
        StepOp::Linear(linear) => {
            let read = || read_linear(weights, linear, x.channels);
            Kernel::Linear(Linear::new(isa, packed.filter(plan, step, read)?))
        }
        StepOp::Add(activation) => Kernel::Add(Add::new(isa, *activation, target)),
        StepOp::Emit(output) => Kernel::Emit(*output),
        other => {
            let what = format!("step {} ({}), planned for a CPU", step.name, other.label(step.inputs.len()));
            return Err(Error::Internal { what });
        }
    })
}

fn target(plan: &Plan, id: TensorId) -> OutputTarget {
    OutputTarget { shape: plan.tensors[id.0].shape, pitch: plan.tensors[id.0].pitch }
}

/// The range of the arena's bytes from the tensor's first to its last; `None` if the tensor lies in a slot's rows.
fn bytes(plan: &Plan, id: TensorId) -> Option<Range<usize>> {
    match plan.tensors[id.0].place {
        Place::Arena(offset) => Some(offset..offset + target(plan, id).elems() * plan.tensors[id.0].dtype.bytes()),
        Place::Input(_) | Place::Output(_) | Place::Constant(_) | Place::State(_) => None,
    }
}

/// At least `elems` zeros.
fn zeroed(elems: usize) -> Result<Vec<Lanes>, Error> {
    let count = elems.div_ceil(LANES);
    let mut lanes = Vec::new();
    lanes.try_reserve_exact(count).map_err(|_| Error::OutOfMemory {
        device: "cpu".into(),
        what: "a worker's arena".into(),
        needed_bytes: (count * size_of::<Lanes>()) as u64,
        free_bytes: free_on_host(),
        fitting_batch: None,
    })?;
    lanes.resize(count, Lanes::ZERO);
    Ok(lanes)
}
