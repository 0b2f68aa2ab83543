//! The graph as a value: operations, their attributes, and the names of their weights.
//!
//! No device, file or stream is in it. Every tensor is NHWC; a vector is 1 x 1 x C.

use crate::tensor::{Activation, Shape};

/// Index of a node in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// A feed-forward graph with one input and one output. Nodes are in topological order:
/// a node's inputs come before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The nodes; the first is [`Op::Input`].
    pub nodes: Vec<Node>,
    /// The node whose value is the graph's result.
    pub output: NodeId,
    /// Shape of one input image.
    pub input: Shape,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// A unique name, used in errors and in `inspect`.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<NodeId>,
}

/// The operations.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The normalised image.
    Input,
    /// Convolution; after the rewrites with batch norm, residual and activation inside.
    /// A second input, if present, is the residual that is added before the activation.
    Conv2d(Conv2d),
    /// Inference-mode batch normalisation over channels.
    BatchNorm(BatchNorm),
    /// Elementwise activation.
    Activation(Activation),
    /// Elementwise sum of two tensors of one shape, then an activation.
    Add(Activation),
    /// Maximum over windows; padding never wins.
    MaxPool(Pool),
    /// Mean over windows.
    AvgPool(Pool),
    /// Mean over all pixels: H x W x C → 1 x 1 x C.
    GlobalAvgPool,
    /// Fully connected layer on a 1 x 1 x C vector.
    Linear(Linear),
}

/// Attributes and weights of a convolution. The filter tensor is [K, C / groups, R, S], as PyTorch stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d {
    /// K.
    pub out_channels: usize,
    /// The window: size, stride, padding, dilation.
    pub window: Window,
    /// 1, or C for a depthwise convolution.
    pub groups: usize,
    /// Name of the filter tensor.
    pub filter: String,
    /// Name of the bias tensor, if there is one.
    pub bias: Option<String>,
    /// Batch norm folded into filter and bias when they are uploaded.
    pub norm: Option<BatchNorm>,
    /// Applied last.
    pub activation: Activation,
}

/// A sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// R, S: height and width of the window.
    pub size: [usize; 2],
    /// Step along height and width.
    pub stride: [usize; 2],
    /// Zeros added around the image.
    pub pad: Pad,
    /// Distance of neighbouring taps along height and width.
    pub dilation: [usize; 2],
}

/// Padding of each side, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Pad {
    /// Above.
    pub top: usize,
    /// To the left.
    pub left: usize,
    /// Below.
    pub bottom: usize,
    /// To the right.
    pub right: usize,
}

/// Names of a batch norm's tensors, each [C].
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Scale.
    pub gamma: String,
    /// Shift.
    pub beta: String,
    /// Running mean.
    pub mean: String,
    /// Running variance.
    pub var: String,
    /// Added to the variance.
    pub eps: f64,
}

/// A pooling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// The window.
    pub window: Window,
    /// For means: whether padded pixels count in the divisor.
    pub count_pad: bool,
}

/// Weights of a fully connected layer: weight [out, in], bias [out].
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Length of the result.
    pub out_features: usize,
    /// Name of the weight tensor.
    pub weight: String,
    /// Name of the bias tensor, if there is one.
    pub bias: Option<String>,
}

impl Pad {
    /// The same padding on every side.
    pub const fn all(n: usize) -> Self {
        Self { top: n, left: n, bottom: n, right: n }
    }
}

impl Window {
    /// A square window of `size` with `stride` and `pad` on every side.
    pub const fn square(size: usize, stride: usize, pad: usize) -> Self {
        Self { size: [size; 2], stride: [stride; 2], pad: Pad::all(pad), dilation: [1; 2] }
    }
}
