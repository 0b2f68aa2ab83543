//! The few kernels that a step is worth being timed in, with what the tile model predicts of each.

use std::fmt;

use super::chain::ChainShape;
use super::depthwise::{DepthwiseShape, DepthwiseTile};
use super::floor::LAUNCH;
use super::linear::{self, LinearShape};
use super::sm90::ConvShape;
use super::tail::{self, TailShape};
use super::{Kernel, Plan, Rates, Step, StepOp, TensorId, chain, depthwise, select, stem};
use crate::model::Window;
use crate::tensor::Shape;

/// A kernel that computes a step, and how long the tile model takes it to be.
///
/// ```
/// use trefoil::plan::{Candidate, ConvTile, Kernel, Limits, Rates};
/// let rates = Rates::of(&Limits::h200()).expect("an H200 is known");
/// let kernel = Kernel::Sm80Gemm(ConvTile { m: 128, n: 64 });
/// let candidate = Candidate { kernel, clocks: 8_400.0, bytes: 100 << 20 };
/// assert_eq!(candidate.to_string(), "sm80 128x64 (8.4 kclk)");
/// // Memory takes longer than the clocks; and there is a launch, as in the floors.
/// assert_eq!(candidate.seconds(&rates), (100 << 20) as f64 / rates.memory_bytes + 2.5e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The kernel.
    pub kernel: Kernel,
    /// Clocks of the busiest multiprocessor.
    pub clocks: f64,
    /// Bytes through device memory, residual and weights included, in every kernel alike.
    pub bytes: u64,
}

impl Candidate {
    /// The clocks in seconds, or what device memory takes if that is longer; and the launch, as a
    /// [`Floor`](super::Floor) has it.
    pub fn seconds(&self, rates: &Rates) -> f64 {
        (self.clocks / rates.clock_hz).max(self.bytes as f64 / rates.memory_bytes) + LAUNCH
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.1} kclk)", self.kernel, self.clocks / 1e3)
    }
}

/// The most that a step has.
const MOST: usize = 4;

/// How much longer than the first a candidate may be predicted to take.
const WITHIN: f64 = 1.5;

impl Plan {
    /// The kernels worth timing for a step, at most four, the planner's first choice first and then as they are
    /// predicted. None for a step whose operation has one kernel.
    ///
    /// ```
    /// use trefoil::plan::{Choices, Limits, Request, plan};
    /// # use trefoil::{InputFormat, OutputKind, model::Model};
    /// # let model = Model::open("weights/efficientnet-lite0")?;
    /// # let (preprocessing, output) = (model.preprocessing(), OutputKind::Logits);
    /// let (limits, choices) = (Limits::h200(), Choices::new());
    /// let request =
    ///     Request { limits: &limits, batch: 32, input: InputFormat::U8Nhwc, preprocessing, output, choices: &choices };
    /// let plan = plan(model.graph(), &request)?;
    /// for (index, step) in plan.steps.iter().enumerate() {
    ///     let candidates = plan.candidates(index);
    ///     assert!(candidates.len() <= 4 && candidates.first().is_none_or(|first| first.kernel == step.kernel));
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such step.
    pub fn candidates(&self, step: usize) -> Vec<Candidate> {
        let step = &self.steps[step];
        let candidate = |(kernel, clocks)| Candidate { kernel, clocks, bytes: step.bytes };
        let mut kernels: Vec<Candidate> = self.kernels(step).into_iter().map(candidate).collect();
        kernels.sort_by(|a, b| a.clocks.total_cmp(&b.clocks));
        let most = kernels.first().map_or(0.0, |first| WITHIN * first.clocks);
        kernels.retain(|candidate| candidate.clocks <= most);
        kernels.truncate(MOST);
        kernels
    }

    /// What the tile model predicts of a step in the kernel that it has; `None` where it has no model of it.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn predicted(&self, step: usize) -> Option<Candidate> {
        let step = &self.steps[step];
        let found = self.kernels(step).into_iter().find(|(kernel, _)| *kernel == step.kernel);
        found.map(|(kernel, clocks)| Candidate { kernel, clocks, bytes: step.bytes })
    }

    /// What decides how long a step takes in each of its kernels, as text: the same for steps of one shape and type, of
    /// any model. Not where a concatenation has its result.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn shape_of(&self, step: usize) -> String {
        let Step { op, inputs, output, also, .. } = &self.steps[step];
        let windows: String = match op {
            StepOp::Stem(stem) => format!("{} {}", window(&stem.conv.window), stem.conv_shape),
            StepOp::Chain { conv, joined: Some(joined), .. } => {
                format!("{} + {}", window(&conv.window), window(&joined.conv.window))
            }
            StepOp::Chain { conv, joined: None, .. } => window(&conv.window),
            StepOp::Conv(conv) | StepOp::Depthwise(conv) | StepOp::ExpandDepthwise { conv, .. } => window(&conv.window),
            StepOp::ConvSum { conv, joined } => format!("{} + {}", window(&conv.window), window(&joined.conv.window)),
            StepOp::MaxPool(pool) | StepOp::AvgPool(pool) => window(&pool.window),
            StepOp::Tail(tail) => format!("to {}", tail.k_stored()),
            StepOp::Normalize { .. } | StepOp::GlobalAvgPool | StepOp::Linear(_) | StepOp::Add(_) | StepOp::Emit(_) => {
                String::new()
            }
        };
        let shape = |id: &TensorId| format!("{} {}", self.stored(*id), self.tensors[id.0].dtype);
        let inputs: Vec<String> = inputs.iter().map(shape).collect();
        let label = op.label(inputs.len());
        let outputs: Vec<String> = [Some(output), also.as_ref()].into_iter().flatten().map(shape).collect();
        format!("{label} {windows}: {} -> {}, batch {}", inputs.join(" + "), outputs.join(" -> "), self.batch)
    }

    /// A tensor's shape with the channels that are stored.
    pub(super) fn stored(&self, id: TensorId) -> Shape {
        let tensor = &self.tensors[id.0];
        Shape { channels: tensor.stored_channels, ..tensor.shape }
    }

    /// The convolutions of a step, each of its own input.
    pub(super) fn convs(&self, step: &Step) -> Vec<ConvShape> {
        let windows = match &step.op {
            StepOp::Conv(conv) => vec![conv.window],
            StepOp::ConvSum { conv, joined } | StepOp::Chain { conv, joined: Some(joined), .. } => {
                vec![conv.window, joined.conv.window]
            }
            StepOp::Chain { conv, joined: None, .. } => vec![conv.window],
            StepOp::Normalize { .. }
            | StepOp::Stem(_)
            | StepOp::Depthwise(_)
            | StepOp::ExpandDepthwise { .. }
            | StepOp::MaxPool(_)
            | StepOp::AvgPool(_)
            | StepOp::GlobalAvgPool
            | StepOp::Linear(_)
            | StepOp::Add(_)
            | StepOp::Tail(_)
            | StepOp::Emit(_) => Vec::new(),
        };
        let output = self.stored(step.output);
        let of = |(window, input): (Window, &TensorId)| {
            let input = self.stored(*input);
            ConvShape { batch: self.batch, input, output, window }
        };
        windows.into_iter().zip(&step.inputs).map(of).collect()
    }

    /// The two convolutions of a chain.
    pub(crate) fn chain(&self, step: &Step) -> Option<ChainShape> {
        let StepOp::Chain { joined, .. } = &step.op else { return None };
        Some(ChainShape {
            sources: self.convs(step),
            has_residual: joined.is_none() && step.inputs.len() > 1,
            next_channels: self.stored(step.also?).channels,
        })
    }

    /// Every kernel of a step that the tile model knows, with its clocks.
    fn kernels(&self, step: &Step) -> Vec<(Kernel, f64)> {
        let [x, y] = [step.inputs[0], step.output].map(|id| &self.tensors[id.0]);
        let (m_gemm, channels) = (self.batch * y.shape.pixels(), x.shape.channels);
        if step.kernel == Kernel::Cpu {
            return Vec::new();
        }
        match &step.op {
            StepOp::Conv(conv) => {
                let k_gemm = conv.window.size.iter().product::<usize>() * channels;
                select::conv_kernels(&self.limits, &self.convs(step)[0], [m_gemm, y.shape.channels, k_gemm])
            }
            StepOp::ConvSum { .. } => select::sm90_kernels(&self.limits, &self.convs(step)),
            StepOp::Chain { .. } => self.chain(step).map_or(Vec::new(), |shape| chain::kernels(&shape, &self.limits)),
            StepOp::Linear(_) => {
                let shape = LinearShape { batch: self.batch, channels: x.stored_channels, outputs: y.stored_channels };
                linear::kernels(&shape, &self.limits)
            }
            StepOp::Stem(stem) => stem::kernels(stem, self.batch, y.shape, &self.limits),
            StepOp::Tail(tail) => {
                let shape = TailShape {
                    batch: self.batch,
                    input: self.stored(step.inputs[0]),
                    k_stored: tail.k_stored(),
                    output: tail.output,
                };
                tail::kernels(&shape, &self.limits)
            }
            StepOp::Depthwise(conv) => self.depthwise(step, conv.window, Kernel::Sm90Depthwise),
            StepOp::ExpandDepthwise { conv, .. } => self.depthwise(step, conv.window, Kernel::Sm90Expand),
            StepOp::Normalize { .. }
            | StepOp::MaxPool(_)
            | StepOp::AvgPool(_)
            | StepOp::GlobalAvgPool
            | StepOp::Add(_)
            | StepOp::Emit(_) => Vec::new(),
        }
    }
}

impl Plan {
    /// Every kernel of a depthwise convolution, or of one with a 1x1 convolution in front.
    fn depthwise(&self, step: &Step, window: Window, kernel: fn(DepthwiseTile) -> Kernel) -> Vec<(Kernel, f64)> {
        let [input, output] = [step.inputs[0], step.output].map(|id| self.stored(id));
        let expands = matches!(step.op, StepOp::ExpandDepthwise { .. });
        let shape = DepthwiseShape { batch: self.batch, input, output, window, expands };
        depthwise::tiles(&shape, &self.limits).map(|(tile, clocks)| (kernel(tile), clocks)).collect()
    }
}

fn window(window: &Window) -> String {
    let Window { size: [r, s], stride: [down, right], pad, dilation: [dilation_h, dilation_w] } = *window;
    let dilation =
        if [dilation_h, dilation_w] == [1; 2] { String::new() } else { format!(" d{dilation_h}x{dilation_w}") };
    format!("{r}x{s}/{down}x{right} pad {},{},{},{}{dilation}", pad.top, pad.left, pad.bottom, pad.right)
}
