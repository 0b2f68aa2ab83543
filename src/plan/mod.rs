//! Plans: how a graph runs on given hardware, with steps, kernels, buffer lifetimes and one arena. Planning uses no
//! device and no file.
//!
//! [`plan`] turns a rewritten [`Network`] and plain-data [`Limits`] into a [`Plan`]: the launch order, a kernel for
//! each step, and an offset in one arena for each intermediate tensor. `Display` prints it.

mod arena;
mod attention;
mod bytes;
mod candidates;
mod check;
mod choices;
mod concat;
mod context;
mod conv_s8;
mod cover;
mod display;
pub(crate) mod kernels;
mod lanes;
mod limits;
mod lower;
mod op;
mod packed_attention;
#[cfg(feature = "cuda")]
pub(crate) mod packing;
mod product;
mod product_e4m3;
mod roofline;
pub(crate) mod rows;
mod stem_s8;
mod tensors;
mod transformer;
pub(crate) mod values;
pub(crate) mod work;

use crate::error::Error;
use crate::graph::{self, ValueType};
use crate::model::images::Network;
use crate::model::{Preprocessing, Weights};
use crate::tensor::{Dtype, InputFormat, OutputKind, RowPort, RowSpec, Shape};

pub use attention::{AttentionKernel, AttentionSizes, AttentionTile, HeadsAt};
#[cfg(feature = "cuda")]
pub(crate) use attention::{MOST_BLOCK_TILES, STORE_ROWS, TAIL_ROWS, TILE_ROWS};
pub use candidates::Candidate;
pub use choices::Choices;
#[cfg(feature = "cuda")]
pub(crate) use conv_s8::{CHUNK_PIXELS, FILTER_ORDER};
pub use conv_s8::{S8Conv, S8Kernel, S8Tile};
pub use display::PlanTable;
pub use kernels::{
    ChainTile, ClassAttentionOp, ConvTile, DepthwiseTile, FewOp, Gate, ImagesAt, Kernel, LinearTile, RecurrentKind,
    RecurrentOp, RecurrentTile, Sm90Tile, SqueezeExciteOp, SqueezeTile, Stem, StemTile, Tail, TailTile,
};
pub use limits::{Family, Limits};
pub(crate) use op::mean_factor;
pub use op::{HandOp, Joined, JoinedBytes, LoopOp, QuantizedConv, QuantizedDepthwise, QuantizedStem, StepOp};
pub use packed_attention::{PackedAttentionOp, PackedSizes};
#[cfg(feature = "cuda")]
pub(crate) use product::{ActivationKind, CHUNK_ROWS, SLAB, STEP_K};
pub use product::{ProductActivation, ProductKernel, ProductSizes, ProductTile, ProductWay, RowsAt};
#[cfg(feature = "cuda")]
pub(crate) use product_e4m3::E4M3_STEP_K;
pub use product_e4m3::E4m3ProductOp;
pub use roofline::{Rates, Roofline};
pub use stem_s8::S8Stem;
#[cfg(feature = "cuda")]
pub(crate) use stem_s8::{STEM_FILTER_BYTES, STEM_RUNS, STEM_TAPS, stem_filter_index};
pub use transformer::{AttentionOp, JoinedNorm, NormWithin, ProductOp, RowNormOp, RowNormResult, RowSum};

/// The input of [`plan`].
///
/// ```
/// use trefoil::plan::{Choices, Limits, Request, plan};
/// use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// let (input, output) = (InputFormat::U8Nhwc, OutputKind::TopK(5));
/// let request = Request { limits: &limits, batch: 32, input, preprocessing, output, choices: &choices };
/// let single = Request { batch: 1, ..request.clone() };
/// assert!(plan(&graph, &single)?.arena_bytes < plan(&graph, &request)?.arena_bytes);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The hardware.
    pub limits: &'a Limits,
    /// Rows of one run.
    pub batch: usize,
    /// The format of the input rows.
    pub input: InputFormat,
    /// How bytes become activations.
    pub preprocessing: &'a Preprocessing,
    /// The kind of output.
    pub output: OutputKind,
    /// Kernels that overrule the planner's.
    pub choices: &'a Choices,
}

/// Plans a graph: rewrites it, chooses kernels, and places every tensor.
///
/// ```
/// use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let (limits, choices) = (Limits::a100(), Choices::new());
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// let preprocessing = &Preprocessing::new(graph.input);
/// let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// assert!(plan.steps.len() < graph.nodes.len()); // batch norms, sums and activations are in the convolutions
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Graph`] for a graph that is not well-formed; [`Error::Unsupported`] for an operation that the family's
/// kernels do not do, with the node's name; [`Error::Option`] for a batch of zero or one too large to address.
pub fn plan(graph: &Network, request: &Request<'_>) -> Result<Plan, Error> {
    let mut plan = lower::lower(graph, request)?;
    plan.place(true);
    Ok(plan)
}

/// A graph prepared for one device and one size.
///
/// ```
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// assert!(plan.to_string().starts_with("plan for NVIDIA H200 (sm_90, 132 SMs), batch 32"));
/// assert!(plan.arena_bytes < plan.arena_bytes_without_reuse / 2);
/// assert_eq!(plan.steps[0].name, "conv1");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The hardware that it was planned for.
    pub limits: Limits,
    /// Rows computed by one run.
    pub batch: usize,
    /// Images of one run that layers compute: one for each row, or several if rows of a model of values have several.
    pub images: usize,
    /// The rows that a run reads.
    pub input: RowSpec,
    /// The rows that a run writes.
    pub output: RowSpec,
    /// The port of a row for each state; a state is a value that a run reads as the previous run has left it.
    pub states: Vec<RowPort>,
    /// The launches, in order.
    pub steps: Vec<Step>,
    /// The tensors between steps.
    pub tensors: Vec<Tensor>,
    /// The constants that steps read as tensors.
    pub constants: Vec<Constant>,
    /// Bytes of the arena, tensors sharing memory where their lifetimes allow it.
    pub arena_bytes: usize,
    /// Bytes that the arena would take if no tensors shared memory.
    pub arena_bytes_without_reuse: usize,
}

impl Plan {
    /// A plan without steps, with these input and output rows.
    fn new(limits: &Limits, batch: usize, [input, output]: [RowSpec; 2]) -> Self {
        let (limits, states, steps) = (limits.clone(), Vec::new(), Vec::new());
        let (tensors, constants, arena_bytes, arena_bytes_without_reuse) = (Vec::new(), Vec::new(), 0, 0);
        let images = batch;
        Self {
            limits,
            batch,
            images,
            input,
            output,
            states,
            steps,
            tensors,
            constants,
            arena_bytes,
            arena_bytes_without_reuse,
        }
    }

    /// The plan with the same steps in several lanes, as [`plan`] makes them if there are independent branches, or in
    /// one lane.
    ///
    /// ```
    /// use trefoil::plan::{Choices, Limits, Request, plan};
    /// use trefoil::{InputFormat, OutputKind, Shape, graph::{GraphBuilder, Window}};
    /// use trefoil::model::{Preprocessing, images::Network};
    /// let mut g = GraphBuilder::new();
    /// let image = g.image("image", Shape::new(14, 14, 64));
    /// let a = g.conv2d("a", image, 64, Window::square(3, 1, 1));
    /// let b = g.conv2d("b", image, 64, Window::square(1, 1, 0));
    /// let both = g.concat("both", &[a, b]);
    /// g.output("y", both);
    /// let network = Network::of(&g.finish()?)?;
    /// let (limits, choices, output) = (Limits::h200(), Choices::new(), OutputKind::Features);
    /// let (input, preprocessing) = (InputFormat::F16Nhwc, &Preprocessing::new(network.input));
    /// let plan = plan(&network, &Request { limits: &limits, batch: 1, input, preprocessing, output, choices: &choices })?;
    /// assert_eq!((plan.lanes(), plan.with_lanes(false).lanes()), (2, 1));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn with_lanes(mut self, several: bool) -> Self {
        self.place(several);
        self
    }

    /// The plan with these kernels, by step name, each a [candidate](Self::candidates) of its step.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_kernels(mut self, kernels: &Choices) -> Self {
        for step in &mut self.steps {
            step.kernel = kernels.get(&step.name).copied().unwrap_or(step.kernel);
        }
        let several = self.lanes() > 1;
        self.with_lanes(several)
    }

    /// The number of lanes. With 1 lane every step begins when the previous one has ended.
    pub fn lanes(&self) -> usize {
        self.steps.iter().map(|step| step.lane + 1).max().unwrap_or(0)
    }

    /// Whether only loops and functions over values compute the plan, and no kernels for images.
    pub(crate) fn is_of_values(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.op, StepOp::Loop(_) | StepOp::Hand(_)))
    }

    /// Gives every step its lane and every tensor its place.
    fn place(&mut self, several_lanes: bool) {
        let order = lanes::assign(self, several_lanes);
        arena::place(self, &order);
    }

    /// The tensor that holds another one's memory: the whole that it is a part of, or else the tensor itself.
    fn holder(&self, id: TensorId) -> TensorId {
        self.tensors[id.0].part_of.map_or(id, |part| self.holder(part.of))
    }

    /// Bytes of device memory that a program of this plan takes with `slots` slots: weights, states, arena, inputs, outputs.
    pub fn device_bytes(&self, slots: usize) -> u64 {
        let weights: u64 = self.steps.iter().map(|step| step.weight_bytes).sum();
        let constants: usize = self.constants.iter().map(|constant| constant.of.bytes()).sum();
        let states: usize = self.states.iter().map(|state| self.batch * state.bytes()).sum();
        let rows = self.input_bytes() + self.output_bytes();
        weights + (constants + states + self.arena_bytes + slots * rows) as u64
    }

    /// Bytes of a slot's input buffer.
    pub(crate) fn input_bytes(&self) -> usize {
        self.batch * self.input.row_pitch
    }

    /// Bytes of a slot's output buffer.
    pub(crate) fn output_bytes(&self) -> usize {
        self.batch * self.output.row_pitch
    }
}

/// Index into [`Plan::tensors`].
///
/// ```
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// let read = plan.steps[0].inputs[0];
/// assert_eq!(plan.tensors[read.0].shape, graph.input);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// One launch.
///
/// ```
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// let step = plan.steps.iter().find(|step| step.name == "layer2.1.conv3").unwrap();
/// assert_eq!((step.op.label(step.inputs.len()), step.inputs.len()), ("conv1x1+res+relu".into(), 2));
/// assert_eq!(step.flops, 2 * 32 * 28 * 28 * 128 * 512);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the graph's node that it computes.
    pub name: String,
    /// The operation.
    pub op: StepOp,
    /// The tensors that it reads. For a convolution or an addition the second is the residual; for a sum of
    /// convolutions it is the input of the joined one.
    pub inputs: Vec<TensorId>,
    /// The tensors that it writes: one, or two for a chain, whose second tensor is the result of the second
    /// convolution.
    pub outputs: Vec<TensorId>,
    /// The kernel, with its tile.
    pub kernel: Kernel,
    /// The lane. The steps of a lane begin in their order, each when the previous one has ended.
    pub lane: usize,
    /// Steps of other lanes that have to end before this one begins.
    pub after: Vec<usize>,
    /// Floating-point operations of one run.
    pub flops: u64,
    /// Bytes read and written by one run, weights included, each tensor once.
    pub bytes: u64,
    /// Bytes of its weights alone.
    pub weight_bytes: u64,
}

/// A tensor between steps.
///
/// ```
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// let tensor = &plan.tensors[plan.steps[0].outputs[0].0];
/// let row_elems = tensor.shape.pixels() * tensor.stored_channels;
/// assert_eq!(tensor.bytes, plan.batch * row_elems * tensor.dtype.bytes());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The logical shape of one row; for a value that is no image, all its elements as one vector.
    pub shape: Shape,
    /// The type and dimensions, including the batch, of a value that is no image.
    pub value: Option<ValueType>,
    /// Channels stored: `shape.channels` rounded up to the family's alignment, the rest zeros.
    pub stored_channels: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Channels from one pixel to the next: `stored_channels`, or more for a part of a tensor.
    pub pitch: usize,
    /// The tensor of which this one is a part, if it is one: the result of a concatenation, into which steps write the
    /// operands directly.
    pub part_of: Option<PartOf>,
    /// Bytes for all rows; for a part only its own bytes.
    pub bytes: usize,
    /// The place of the tensor.
    pub place: Place,
    /// The first step that writes the tensor and the last step that reads it; for a part, those of the whole tensor.
    pub lifetime: [usize; 2],
}

/// A part of a tensor: some neighbouring channels of each pixel.
///
/// ```
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("googlenet", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (1, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// let branch = plan.tensors.iter().find(|tensor| tensor.part_of.is_some_and(|part| part.first_channel > 0)).unwrap();
/// let whole = &plan.tensors[branch.part_of.unwrap().of.0];
/// assert!(branch.stored_channels < whole.stored_channels && branch.pitch == whole.pitch);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// The whole tensor, which may be a part itself.
    pub of: TensorId,
    /// The first of the channels.
    pub first_channel: usize,
}

/// A constant that steps read as a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constant {
    /// The type and dimensions of the constant.
    pub of: ValueType,
    /// The source of the value.
    pub source: graph::Constant,
}

impl Constant {
    /// Reads the elements.
    pub(crate) fn read(&self, weights: &Weights) -> Result<graph::Tensor, Error> {
        match &self.source {
            graph::Constant::Weight(name) => weights.read_as(name, &self.of),
            graph::Constant::Bytes(bytes) => Ok(graph::Tensor::from_bytes(self.of.clone(), bytes)),
        }
    }
}

/// The place of a tensor in memory.
///
/// ```
/// # use trefoil::plan::Place;
/// # use trefoil::plan::{Choices, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// # let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// assert_eq!(plan.tensors[0].place, Place::Input(0));
/// let Place::Arena(offset) = plan.tensors[1].place else { panic!() };
/// assert!(offset + plan.tensors[1].bytes <= plan.arena_bytes);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this byte offset in the slot's input buffer.
    Input(usize),
    /// At this byte offset in the slot's output buffer.
    Output(usize),
    /// Among the weights: the constant of this number in [`Plan::constants`].
    Constant(usize),
    /// The state of this number in [`Plan::states`], its rows one behind the other.
    State(usize),
    /// At this byte offset in the arena.
    Arena(usize),
}
