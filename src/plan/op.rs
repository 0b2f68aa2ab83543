//! What a step computes, on operands of any shape: its name, its nodes with weights, its work.

use std::sync::Arc;

use super::work::{Layer, Operand, Weights};
use super::{Stem, Tail};
use crate::graph::{Op, ValueType};
use crate::loops::Loop;
use crate::model::{Conv2d, Linear, Pool, Window};
use crate::tensor::{Activation, InputFormat, OutputKind, Shape};

/// What a step computes.
///
/// ```
/// use trefoil::{Activation, model::{Conv2d, Window}, plan::StepOp};
/// let conv = Conv2d { activation: Activation::Relu, ..Conv2d::named("conv1", 64, Window::square(7, 2, 3)) };
/// assert_eq!(StepOp::Conv(conv).label(1), "conv7x7+relu");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum StepOp {
    /// Input rows → normalised activations, channels padded to the family's alignment.
    Normalize {
        /// What the rows hold.
        format: InputFormat,
        /// Subtracted from each channel, in units of the input's full scale (0-1).
        mean: Vec<f32>,
        /// Divides each channel after that.
        std: Vec<f32>,
    },
    /// Normalisation, convolution and maximum in one: input rows → activations.
    Stem(Stem),
    /// Dense convolution with bias, residual and activation.
    Conv(Conv2d),
    /// The sum of two dense convolutions of one output shape, each of its own input, then the first one's activation.
    ConvSum {
        /// The one that the step is named after.
        conv: Conv2d,
        /// The other.
        joined: Box<Joined>,
    },
    /// One of these with 1x1 windows, and another 1x1 convolution of its result: both results are written.
    Chain {
        /// The one that the step is named after.
        conv: Conv2d,
        /// The one that its result is the sum with, of the step's second input.
        joined: Option<Box<Joined>>,
        /// The one that reads the result.
        next: Box<Joined>,
    },
    /// Depthwise convolution with bias and activation.
    Depthwise(Conv2d),
    /// The same of what a 1x1 convolution makes of the input.
    ExpandDepthwise {
        /// The 1x1 convolution.
        expand: Box<Joined>,
        /// The depthwise one, which the step is named after.
        conv: Conv2d,
    },
    /// Maximum over windows.
    MaxPool(Pool),
    /// Mean over windows.
    AvgPool(Pool),
    /// Mean over all pixels.
    GlobalAvgPool,
    /// Fully connected layer; its result is f32.
    Linear(Linear),
    /// Elementwise sum (one input: none) and activation.
    Add(Activation),
    /// Mean over all pixels, fully connected layer and output rows in one, the last step.
    Tail(Tail),
    /// The last step: logits or features → output rows.
    Emit(OutputKind),
    /// Some operations of a graph of values, as one loop.
    Loop(LoopOp),
    /// An operation of a graph of values that is no loop.
    Hand(HandOp),
}

/// Operations of a graph of values that one loop computes. The loop's operands are what the step reads.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopOp {
    /// What they are: `"conv+map"`.
    pub kinds: String,
    /// The nodes' names, in their order.
    pub nodes: Vec<String>,
    /// The loop.
    pub of: Arc<Loop>,
    /// Arithmetic operations.
    pub flops: u64,
}

/// An operation of a graph of values that is no loop: its elements are sorted, or written in an order that matters.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOp {
    /// The operation.
    pub op: Op,
    /// The types of its operands; none where one is left out. The step reads the others.
    pub inputs: Vec<Option<ValueType>>,
    /// The types of its results.
    pub outputs: Vec<ValueType>,
}

/// A convolution without a step of its own: it is computed by the one that reads its result, or whose result it reads.
///
/// ```
/// use trefoil::{model::{Conv2d, Window}, plan::{Joined, StepOp}};
/// let single = |name| Conv2d::named(name, 256, Window::square(1, 1, 0));
/// let joined = Box::new(Joined { name: "downsample.0".into(), conv: single("downsample.0") });
/// assert_eq!(StepOp::ConvSum { conv: single("conv3"), joined }.label(2), "conv1x1+1x1");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Name of the graph's node.
    pub name: String,
    /// The convolution.
    pub conv: Conv2d,
}

impl StepOp {
    /// A short name of the operation; `inputs` tells a fused residual.
    pub fn label(&self, inputs: usize) -> String {
        match self {
            Self::Normalize { .. } => "normalize".into(),
            Self::Stem(stem) => {
                let [r, s] = stem.conv.window.size;
                let max = if stem.pool.is_some() { "+max" } else { "" };
                format!("stem{r}x{s}{}{max}", suffix(stem.conv.activation))
            }
            Self::Conv(conv) => {
                let [r, s] = conv.window.size;
                let residual = if inputs > 1 { "+res" } else { "" };
                format!("conv{r}x{s}{residual}{}", suffix(conv.activation))
            }
            Self::ConvSum { conv, joined } => {
                let ([r, s], [joined_r, joined_s]) = (conv.window.size, joined.conv.window.size);
                format!("conv{r}x{s}+{joined_r}x{joined_s}{}", suffix(conv.activation))
            }
            Self::Chain { conv, joined, next } => {
                let first = match joined {
                    Some(joined) => Self::ConvSum { conv: conv.clone(), joined: joined.clone() },
                    None => Self::Conv(conv.clone()),
                };
                format!("{}>1x1{}", first.label(inputs), suffix(next.conv.activation))
            }
            Self::Depthwise(conv) => {
                let [r, s] = conv.window.size;
                format!("dw{r}x{s}{}", suffix(conv.activation))
            }
            Self::ExpandDepthwise { conv, .. } => {
                let [r, s] = conv.window.size;
                format!("1x1+dw{r}x{s}{}", suffix(conv.activation))
            }
            Self::MaxPool(_) => "max-pool".into(),
            Self::AvgPool(_) => "avg-pool".into(),
            Self::GlobalAvgPool => "global-pool".into(),
            Self::Linear(_) => "linear".into(),
            Self::Add(activation) => format!("{}{}", if inputs > 1 { "add" } else { "act" }, suffix(*activation)),
            Self::Tail(tail) => format!("mean+fc+{}", tail.rows()),
            Self::Emit(output) => format!("{output:?}").to_lowercase(),
            Self::Loop(of) => of.kinds.clone(),
            Self::Hand(of) => of.op.kind().into(),
        }
    }

    /// The stem of its kernels' files, without the architecture.
    pub(super) const fn stem(&self) -> &'static str {
        match self {
            Self::Normalize { .. } => "normalize",
            Self::Stem(_) => "stem",
            Self::Conv(_) | Self::ConvSum { .. } => "conv2d_fprop",
            Self::Chain { .. } => "conv2d_chain",
            Self::Depthwise(_) | Self::ExpandDepthwise { .. } => "conv2d_depthwise",
            Self::MaxPool(_) | Self::AvgPool(_) => "pool2d",
            Self::GlobalAvgPool => "global_avg_pool",
            Self::Linear(_) => "linear",
            Self::Add(_) => "add",
            Self::Tail(_) => "tail",
            Self::Emit(_) => "emit",
            Self::Loop(_) => "loop",
            Self::Hand(_) => "by hand",
        }
    }

    /// What else decides how long it takes beside its operands, as text.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Stem(stem) => format!("{} {}", window(&stem.conv.window), stem.conv_shape),
            Self::Conv(conv) | Self::Depthwise(conv) | Self::ExpandDepthwise { conv, .. } => window(&conv.window),
            Self::ConvSum { conv, joined } | Self::Chain { conv, joined: Some(joined), .. } => {
                format!("{} + {}", window(&conv.window), window(&joined.conv.window))
            }
            Self::Chain { conv, joined: None, .. } => window(&conv.window),
            Self::MaxPool(pool) | Self::AvgPool(pool) => window(&pool.window),
            Self::Tail(tail) => format!("to {}", tail.k_stored()),
            Self::Normalize { .. }
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Emit(_)
            | Self::Loop(_)
            | Self::Hand(_) => String::new(),
        }
    }

    /// The nodes with weights that a step of this name computes of these operands: those that go into one sum together.
    pub(super) fn sums<'a>(&'a self, name: &'a str, x: &[Operand], y: &[Operand]) -> Vec<Vec<Layer<'a>>> {
        let layer = |node, weights, input, output| Layer { node, weights, input, output };
        let conv = |node, conv, input, output| layer(node, Weights::Conv(conv), input, output);
        let joined = |of: &'a Joined| conv(&of.name, &of.conv, x[1], y[0]);
        match self {
            Self::Stem(stem) => {
                let output = Operand { shape: stem.conv_shape, ..y[0] };
                vec![vec![conv(name, &stem.conv, x[0], output)]]
            }
            Self::Conv(own) | Self::Depthwise(own) => vec![vec![conv(name, own, x[0], y[0])]],
            Self::ConvSum { conv: own, joined: other } => vec![vec![conv(name, own, x[0], y[0]), joined(other)]],
            Self::Chain { conv: own, joined: other, next } => {
                let first = [conv(name, own, x[0], y[0])].into_iter().chain(other.as_deref().map(joined));
                vec![first.collect(), vec![conv(&next.name, &next.conv, y[0], y[1])]]
            }
            Self::ExpandDepthwise { expand, conv: own } => {
                let channels = y[0].shape.channels;
                let between = Operand { shape: Shape { channels, ..x[0].shape }, ..y[0] };
                vec![vec![conv(name, own, between, y[0])], vec![conv(&expand.name, &expand.conv, x[0], between)]]
            }
            Self::Linear(linear) => vec![vec![layer(name, Weights::Linear(linear), x[0], y[0])]],
            Self::Tail(tail) => {
                let [mean, outputs] = tail.layer(x[0]);
                vec![vec![layer(name, Weights::Linear(&tail.linear), mean, outputs)]]
            }
            Self::Normalize { .. }
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Add(_)
            | Self::Emit(_)
            | Self::Loop(_)
            | Self::Hand(_) => Vec::new(),
        }
    }

    /// Floating-point operations of a row beside the products of its layers.
    pub(super) fn other_flops(&self, x: &[Operand], y: &[Operand]) -> usize {
        let window = |pool: &Pool| y[0].shape.elems() * pool.window.size.iter().product::<usize>();
        match self {
            Self::Normalize { .. } => 2 * y[0].shape.elems(),
            Self::Stem(stem) => 2 * x[0].shape.elems() + stem.pool.as_ref().map_or(0, window),
            Self::MaxPool(pool) | Self::AvgPool(pool) => window(pool),
            Self::GlobalAvgPool | Self::Tail(_) => x[0].shape.elems(),
            Self::Loop(of) => of.flops as usize,
            Self::Add(Activation::None) if x.len() == 1 => 0,
            Self::Add(_) => x.len() * y[0].shape.elems(),
            Self::Conv(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::Depthwise(_)
            | Self::ExpandDepthwise { .. }
            | Self::Linear(_)
            | Self::Emit(_)
            | Self::Hand(_) => 0,
        }
    }

    /// Whether it is one node of a graph, or its output rows: what a CPU computes.
    pub(super) const fn is_of_one_node(&self) -> bool {
        match self {
            Self::Normalize { .. }
            | Self::Conv(_)
            | Self::Depthwise(_)
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Emit(_) => true,
            Self::Stem(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::ExpandDepthwise { .. }
            | Self::Tail(_)
            | Self::Loop(_)
            | Self::Hand(_) => false,
        }
    }

    /// Whether its kernels can write pixels that have more channels than their own: a part of a concatenation.
    pub(super) fn writes_parts(&self) -> bool {
        match self {
            Self::Conv(_) | Self::ConvSum { .. } | Self::MaxPool(_) | Self::AvgPool(_) | Self::Add(_) => true,
            Self::Normalize { .. }
            | Self::Stem(_)
            | Self::Chain { .. }
            | Self::Depthwise(_)
            | Self::ExpandDepthwise { .. }
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Tail(_)
            | Self::Emit(_)
            | Self::Loop(_)
            | Self::Hand(_) => false,
        }
    }
}

fn suffix(activation: Activation) -> String {
    match activation {
        Activation::None => String::new(),
        Activation::Relu | Activation::Relu6 => format!("+{activation}"),
    }
}

fn window(window: &Window) -> String {
    let Window { size: [r, s], stride: [down, right], pad, dilation: [dilation_h, dilation_w] } = *window;
    let dilation =
        if [dilation_h, dilation_w] == [1; 2] { String::new() } else { format!(" d{dilation_h}x{dilation_w}") };
    format!("{r}x{s}/{down}x{right} pad {},{},{},{}{dilation}", pad.top, pad.left, pad.bottom, pad.right)
}
