//! The program of a plan on an NVIDIA GPU: uploaded weights, and one captured graph for each slot and batch size.

mod add;
mod alone;
mod attention_run;
#[cfg(test)]
mod bytes_tests;
mod capture;
mod conv2d_depthwise;
mod conv2d_depthwise_s8;
mod conv2d_fprop;
mod conv2d_s8;
mod conv_run;
mod convert;
mod depthwise_run;
mod emit;
mod entries;
#[cfg(test)]
mod gelu_tests;
mod global_avg_pool;
mod implicit_gemm;
mod launch;
mod linear;
mod loop_run;
mod loops;
mod mean;
mod mean_s8;
mod normalize;
mod pack;
mod pool2d;
mod product_e4m3_run;
mod product_run;
mod requantise;
mod row_norm_run;
mod s8_ends_run;
mod sm90_attention;
mod sm90_attention_packed;
mod sm90_class_attention;
mod sm90_conv2d_chain;
mod sm90_conv2d_depthwise;
mod sm90_conv2d_depthwise_s8;
mod sm90_conv2d_few;
mod sm90_conv2d_fprop;
mod sm90_conv2d_halo;
mod sm90_conv2d_s8;
mod sm90_conv2d_s8_halo;
mod sm90_linear;
mod sm90_mean_linear;
mod sm90_product;
mod sm90_product_e4m3;
mod sm90_recurrent;
#[cfg(test)]
mod sm90_recurrent_tests;
mod sm90_requantise;
mod sm90_row_norm;
mod sm90_squeeze_excite;
mod sm90_stem;
mod sm90_stem_s8;
mod sm90_stem_s8_runs;
mod sm90_tail;
mod steps;
#[cfg(test)]
mod toy;
mod trial;
mod until_fault;
mod uploaded;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::mean::Averaged;
use super::{BuildSpec, Needs, Planned, states};
use crate::device::cuda::{Cuda, CudaGraph, Function, LaunchShape, Module};
use crate::device::{Access, Device, DeviceBuffer, Inputs, Priority, Program, Run, Span, StateBuffer, Stream};
use crate::error::Error;
use crate::model::Model;
use crate::phases::Stopwatch;
use crate::plan::{Plan, StepOp};
pub use attention_run::{AttentionOperands, AttentionRun, PackedAttentionOperands, PackedAttentionRun};
pub use conv_run::{ConvRun, HalfOperands, S8Operands};
pub use depthwise_run::{DepthwiseRun, S8DepthwiseOperands};
use entries::Launcher;
use launch::Launch;
pub use loop_run::{LoopModule, LoopRun};
use loops::Written;
use mean::MeanProgram;
use pack::Layout;
pub use product_e4m3_run::{E4m3ProductOperands, E4m3ProductRun};
pub use product_run::{ProductNormOperands, ProductOperands, ProductRun};
pub use row_norm_run::{RowNormCodes, RowNormOperands, RowNormRun, RowSumOperands};
pub use s8_ends_run::{S8MeanOperands, S8MeanRun, S8StemOperands, S8StemRun};
use steps::Addresses;
pub(super) use trial::Trial;
use until_fault::UntilFault;
use uploaded::{Uploaded, upload};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The launcher of each kernel of `crate::plan::kernels`.
static LAUNCHERS: &[&dyn Launcher] = &[
    &add::Add,
    &conv2d_depthwise::Conv2dDepthwise,
    &conv2d_depthwise_s8::Conv2dDepthwiseS8,
    &conv2d_fprop::Conv2dFprop,
    &conv2d_s8::Conv2dS8,
    &convert::Convert,
    &emit::Emit,
    &global_avg_pool::GlobalAvgPool,
    &linear::Linear,
    &loops::Loops,
    &mean_s8::MeanS8,
    &normalize::Normalize,
    &pool2d::Pool2d,
    &sm90_attention::Sm90Attention,
    &sm90_class_attention::Sm90ClassAttention,
    &sm90_conv2d_chain::Sm90Conv2dChain,
    &sm90_conv2d_depthwise::Sm90Conv2dDepthwise,
    &sm90_conv2d_depthwise_s8::Sm90Conv2dDepthwiseS8,
    &sm90_conv2d_few::Sm90Conv2dFew,
    &sm90_conv2d_fprop::Sm90Conv2dFprop,
    &sm90_conv2d_halo::Sm90Conv2dHalo,
    &sm90_conv2d_s8::Sm90Conv2dS8,
    &sm90_conv2d_s8_halo::Sm90Conv2dS8Halo,
    &sm90_linear::Sm90Linear,
    &sm90_mean_linear::Sm90MeanLinear,
    &sm90_product::Sm90Product,
    &sm90_product_e4m3::Sm90ProductE4m3,
    &sm90_row_norm::Sm90RowNorm,
    &sm90_recurrent::Sm90Recurrent,
    &sm90_squeeze_excite::Sm90SqueezeExcite,
    &sm90_stem::Sm90Stem,
    &sm90_stem_s8::Sm90StemS8,
    &sm90_stem_s8_runs::Sm90StemS8Runs,
    &sm90_tail::Sm90Tail,
    #[cfg(test)]
    &toy::Toy,
];

/// A model on a GPU. It owns every buffer that its graphs address.
struct CudaProgram {
    batch_sizes: Vec<usize>,
    /// Bytes of the input and of the output of a run, at each size.
    bytes: Vec<[usize; 2]>,
    /// `[slot][size]`.
    graphs: UntilFault<Vec<Vec<CudaGraph>>>,
    _kernels: UntilFault<Kernels>,
    inputs: Inputs,
    outputs: Vec<DeviceBuffer>,
    /// The arena of each compute stream, for all slots and sizes of the stream: a stream runs one graph at a time.
    arenas: Vec<DeviceBuffer>,
    states: Vec<StateBuffer>,
    weights: Arc<Uploaded>,
}

/// All that graphs for some plans of one model are captured from: weights on the device, and loaded kernels.
struct Material {
    device: Device,
    stream: Stream,
    /// Streams on which lanes beyond the first are captured, as many as a plan has needed so far.
    lane_streams: Vec<Stream>,
    priority: Priority,
    weights: Arc<Uploaded>,
    written: Arc<Written>,
    kernels: UntilFault<Kernels>,
}

/// The memory that a graph runs on, beside the weights.
#[derive(Clone, Copy)]
struct Memory<'a> {
    input: &'a DeviceBuffer,
    output: &'a DeviceBuffer,
    arena: &'a DeviceBuffer,
    states: &'a [StateBuffer],
}

/// The modules and kernels that a program needs, loaded.
struct Kernels {
    cuda: Arc<Cuda>,
    modules: BTreeMap<&'static str, Arc<Module>>,
    /// The module of the loops that were written for the program.
    written: Option<Arc<Module>>,
    /// Whether kernels that may begin early ask multiprocessors for all the shared memory there is. Blocks of attention and of
    /// products need most of it, and those of the steps between them would leave them less. Other networks lose more by the
    /// smaller cache than they gain.
    prefers_shared_memory: bool,
    functions: BTreeMap<Cow<'static, str>, Function>,
}

/// Uploads the weights of `plans`, allocates all buffers, loads all kernels and captures all graphs.
pub(super) fn build(
    model: &Model,
    device: &Device,
    cuda: &Arc<Cuda>,
    spec: &BuildSpec,
    plans: &[Plan],
    inputs: Option<Inputs>,
    watch: &mut Stopwatch,
) -> Result<Arc<dyn Program>, Error> {
    plans.iter().try_for_each(Plan::check)?;
    let [input_bytes, output_bytes] = buffer_bytes(plans);
    let arenas = (0..spec.streams).map(|_| arena(device, plans)).collect::<Result<Vec<_>, _>>()?;
    let states = states::new(device, plans, spec)?;
    watch.lap("device memory");
    let mut material = Material::new(model, device, cuda, spec.priority, plans, watch)?;
    let rows = |bytes: usize| (0..spec.slots).map(|_| DeviceBuffer::new(device, bytes)).collect::<Result<Vec<_>, _>>();
    let inputs = inputs.map_or_else(|| rows(input_bytes).map(Inputs::Own), Ok)?;
    let outputs = rows(output_bytes)?;
    let memory = |slot: usize| {
        let arena = &arenas[slot % arenas.len()];
        Memory { input: inputs.at(slot), output: &outputs[slot], arena, states: &states }
    };
    let mut launches = plans.iter().map(|plan| material.launches(plan, memory(0))).collect::<Result<Vec<_>, _>>()?;
    watch.lap("kernels loaded");
    // Slots of one arena follow each other: their launches differ only in steps that touch rows.
    let mut slots: Vec<usize> = (0..spec.slots).collect();
    slots.sort_by_key(|slot| slot % arenas.len());
    let mut graphs = BTreeMap::new();
    let mut before = 0;
    for slot in slots {
        let mut of_slot = Vec::with_capacity(plans.len());
        for (plan, launches) in plans.iter().zip(&mut launches) {
            let _named = cuda.range(format_args!("graph (slot {slot}, batch {})", plan.batch));
            material.readdress(plan, launches, [memory(before), memory(slot)])?;
            of_slot.push(material.capture(plan, launches, &[])?);
        }
        graphs.insert(slot, of_slot);
        before = slot;
    }
    let graphs: Vec<Vec<CudaGraph>> = graphs.into_values().collect();
    watch.lap("graphs");
    let Material { weights, kernels, .. } = material;
    let program = CudaProgram {
        batch_sizes: spec.batch_sizes(),
        bytes: plans.iter().map(|plan| [plan.input_bytes(), plan.output_bytes()]).collect(),
        graphs: UntilFault::new(device, graphs),
        _kernels: kernels,
        inputs,
        outputs,
        arenas,
        states,
        weights,
    };
    Ok(Arc::new(program))
}

/// The memory that [`build`] will take.
pub(super) fn needs(
    (model, plans): Planned<'_>,
    before: &[Planned<'_>],
    device: &Device,
    spec: &BuildSpec,
) -> Result<Needs, Error> {
    let layout = Layout::new(plans)?;
    let mut is_there = device.shares(|there: &Uploaded| there.has(model, &layout));
    for (_, plans) in before.iter().filter(|(other, _)| Arc::ptr_eq(other.weights(), model.weights())) {
        is_there |= Layout::new(plans)?.covers(&layout);
    }
    let weights = if is_there { 0 } else { layout.bytes() as u64 };
    let [input, output] = buffer_bytes(plans).map(|bytes| bytes as u64);
    let input = if before.is_empty() { input } else { 0 };
    let rows = (spec.slots as u64).saturating_mul(input.saturating_add(output));
    let arenas = (spec.streams as u64).saturating_mul(arena_bytes(plans) as u64);
    Ok(Needs {
        device: rows.saturating_add(weights).saturating_add(arenas),
        host: 0,
        passing: uploaded::passing(weights),
    })
}

/// Bytes of a slot's input and output.
fn buffer_bytes(plans: &[Plan]) -> [usize; 2] {
    [Plan::input_bytes, Plan::output_bytes].map(|bytes| plans.iter().map(bytes).max().unwrap_or(0))
}

/// Bytes of the arena of a program of `plans`.
fn arena_bytes(plans: &[Plan]) -> usize {
    plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0)
}

/// An arena for `plans`.
fn arena(device: &Device, plans: &[Plan]) -> Result<DeviceBuffer, Error> {
    DeviceBuffer::new(device, arena_bytes(plans))
}

/// The mean of the outputs of `programs`, whose rows have these pitches at each size.
pub(super) fn mean(
    device: &Device,
    cuda: &Arc<Cuda>,
    programs: Vec<Arc<dyn Program>>,
    pitches: Vec<usize>,
) -> Result<Arc<dyn Program>, Error> {
    let averaged = Averaged::new(device, programs, pitches)?;
    Ok(Arc::new(MeanProgram::new(device, cuda, averaged)?))
}

impl Material {
    /// Uploads the weights of `plans`, and loads the module of their loops.
    fn new(
        model: &Model,
        device: &Device,
        cuda: &Arc<Cuda>,
        priority: Priority,
        plans: &[Plan],
        watch: &mut Stopwatch,
    ) -> Result<Self, Error> {
        let stream = Stream::new(device, priority, "trefoil-build")?;
        let weights = upload(model, device, plans, &stream, watch)?;
        let written = Written::new(plans)?;
        let kernels = UntilFault::new(device, Kernels::new(cuda).of_plans(plans, &written)?);
        watch.lap("loops written");
        let (lane_streams, written) = (Vec::new(), Arc::new(written));
        Ok(Self { device: device.clone(), stream, lane_streams, priority, weights, written, kernels })
    }

    /// The launches of one of the plans on `memory`, with their kernels loaded.
    fn launches(&mut self, plan: &Plan, memory: Memory<'_>) -> Result<Vec<Launch>, Error> {
        let addresses = self.addresses(memory);
        let mut launches = steps::launches(plan, self.weights.layout(), &self.written, &addresses)?;
        self.kernels.load(&launches)?;
        launches.iter_mut().try_for_each(|launch| self.kernels.encode(launch))?;
        Ok(launches)
    }

    /// Changes launches on memory `from` into launches on memory `to`: only launches of steps that touch moved memory
    /// are made anew.
    fn readdress(&self, plan: &Plan, launches: &mut [Launch], [from, to]: [Memory<'_>; 2]) -> Result<(), Error> {
        let [from, to] = [from, to].map(|memory| self.addresses(memory));
        for (index, launch) in launches.iter_mut().enumerate().filter(|(index, _)| from.is_moved(&to, plan, *index)) {
            *launch = steps::launch(plan, index, self.weights.layout(), &self.written, &to)?;
            self.kernels.encode(launch)?;
        }
        Ok(())
    }

    fn addresses(&self, memory: Memory<'_>) -> Addresses {
        let [input, output, arena] = [memory.input, memory.output, memory.arena].map(DeviceBuffer::addr);
        let states = memory.states.iter().map(|state| state.buffer.addr()).collect();
        Addresses { input, output, arena, weights: self.weights.span().addr, states }
    }
}

impl Kernels {
    fn new(cuda: &Arc<Cuda>) -> Self {
        let (modules, functions) = (BTreeMap::new(), BTreeMap::new());
        Self { cuda: cuda.clone(), modules, written: None, prefers_shared_memory: false, functions }
    }

    /// Kernels for these plans, with the module of the loops that were written for them.
    fn of_plans(self, plans: &[Plan], written: &Written) -> Result<Self, Error> {
        let mut steps = plans.iter().flat_map(|plan| &plan.steps);
        let prefers_shared_memory = steps.any(|step| {
            matches!(step.op, StepOp::Attention(_) | StepOp::PackedAttention(_) | StepOp::ClassAttention(_))
        });
        Ok(Self { written: written.load(&self.cuda)?, prefers_shared_memory, ..self })
    }

    /// Loads the kernels that `launches` name and that are not loaded yet.
    fn load(&mut self, launches: &[Launch]) -> Result<(), Error> {
        for launch in launches {
            if self.functions.contains_key(&launch.entry) {
                continue;
            }
            let prefers = launch.waits_itself && self.prefers_shared_memory;
            let function = match (entries::find(&launch.entry), &self.written) {
                (Some(entry), _) => {
                    self.module(entry.module)?.function(entry.name, entry.shared_bytes, entry.cluster, prefers)?
                }
                (None, Some(written)) => written.function(&launch.entry, 0, 1, prefers)?,
                (None, None) => return Err(missing(&launch.entry)),
            };
            self.functions.insert(launch.entry.clone(), function);
        }
        Ok(())
    }

    fn module(&mut self, name: &'static str) -> Result<&Arc<Module>, Error> {
        if !self.modules.contains_key(name) {
            let (_, image) = MODULES.iter().find(|(stem, _)| *stem == name).ok_or_else(|| missing(name))?;
            self.modules.insert(name, Module::load(&self.cuda, name, image)?);
        }
        Ok(&self.modules[name])
    }

    /// Encodes the tensor maps of a launch into its arguments.
    fn encode(&self, Launch { args, maps, .. }: &mut Launch) -> Result<(), Error> {
        for (index, map) in maps.iter().enumerate() {
            args.put_map(index, &self.cuda.encode(map)?);
        }
        Ok(())
    }

    /// Enqueues a launch whose kernel is loaded.
    ///
    /// # Safety
    /// The stream is live, the launch's addresses are valid for what its kernel does with them until it has run, and what
    /// else touches them is ordered with it.
    unsafe fn launch(&self, launch: &Launch, stream: u64) -> Result<(), Error> {
        if launch.grid.contains(&0) {
            return Ok(()); // a value without elements
        }
        let function = &self.functions[&launch.entry];
        let shape = LaunchShape {
            grid: launch.grid,
            cluster: launch.cluster,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            waits_itself: launch.waits_itself,
        };
        // SAFETY: the launcher that made `launch` filled the kernel's own argument struct, whose size a test compares with
        // the PTX and the cubins, and checked its ranges; the rest by the caller.
        unsafe { self.cuda.launch(function, &shape, launch.args.as_bytes(), stream) }
    }
}

fn missing(kernel: &str) -> Error {
    Error::Internal { what: format!("kernel {kernel} is not embedded") }
}

impl Program for CudaProgram {
    fn slots(&self) -> usize {
        self.outputs.len()
    }

    fn streams(&self) -> usize {
        self.arenas.len()
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
        // The graph always computes the whole size, also rows that no producer submitted.
        let [input, output] = self.bytes[run.size];
        let arena = &self.arenas[run.slot % self.arenas.len()];
        let slot = [
            (self.inputs.at(run.slot).span_of(input), Access::Read),
            (self.outputs[run.slot].span_of(output), Access::Write),
            (arena.span_of(arena.len()), Access::Write),
            (self.weights.span(), Access::Read),
        ];
        let states = self.states.iter().map(|state| (state.buffer.span_of(state.bytes()), Access::Write));
        slot.into_iter().chain(states).collect()
    }

    fn states(&self) -> &[StateBuffer] {
        &self.states
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let graph = &self.graphs[run.slot][run.size];
        // SAFETY: the stream is live, and a ring launches all graphs that address an arena on the same stream.
        unsafe { graph.launch(stream) }
    }
}
