//! Networks of images: graphs of one image, in the operations that the kernels for images compute.
//!
//! A [`Network`] has an operation for each kernel for images, with its attributes and the names of its weights; every value is
//! an image of height x width x channels, a vector is 1 x 1 x C. A [`GraphBuilder`](crate::graph::GraphBuilder) writes the
//! graph; [`Network::of`] and [`Model::new`](super::Model::new) find the network in it, [`optimize`] fuses its operations,
//! and [`plan`](crate::plan::plan()) chooses kernels.

use std::sync::Arc;

use crate::error::Error;
use crate::graph;
use crate::tensor::{Activation, Dtype, InputFormat, OutputKind, Shape};

use super::preprocessing::Preprocessing;

pub use super::fold::{FoldedConv, fold_conv};
pub use super::rewrite::optimize;
pub use super::shape::{infer, params};
pub use crate::graph::{BatchNorm, Linear};

/// Index of a node in [`Network::nodes`].
///
/// ```
/// use trefoil::model::{architecture, images::{Network, NodeId}};
/// let network = Network::of(&architecture("resnet50", 1000, None)?)?;
/// let NodeId(index) = network.output;
/// assert_eq!(network.nodes[index].name, "fc");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// A feed-forward network with one input and one output. Nodes are in topological order:
/// a node's inputs come before it.
///
/// ```
/// use trefoil::{Shape, model::{architecture, images::Network}};
/// let network = Network::of(&architecture("resnet50", 1000, None)?)?;
/// assert_eq!((network.input, network.output), (Shape::new(224, 224, 3), network.find("fc").unwrap()));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The nodes; the first is [`Op::Input`], in plans [`Op::Given`] or [`Op::Rows`].
    pub nodes: Vec<Node>,
    /// The node whose value is the network's result.
    pub output: NodeId,
    /// Shape of one input image.
    pub input: Shape,
}

/// One operation.
///
/// ```
/// use trefoil::model::{architecture, images::Network};
/// let network = Network::of(&architecture("resnet50", 1000, None)?)?;
/// let bn1 = &network.nodes[network.find("bn1").unwrap().0];
/// assert_eq!((bn1.op.kind(), &bn1.inputs[..]), ("batch_norm", &[network.find("conv1").unwrap()][..]));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// A unique name, used in errors and in `inspect`.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// The nodes whose values it reads.
    pub inputs: Vec<NodeId>,
    /// The number that the byte 1 stands for if the node's value is kept in bytes: unsigned bytes behind a ReLU, signed
    /// bytes elsewhere. `None`: the value is kept in floats.
    pub scale: Option<f32>,
}

/// The operations.
///
/// ```
/// use trefoil::model::{architecture, images::{Network, Op}};
/// let network = Network::of(&architecture("resnet50", 1000, None)?)?;
/// assert_eq!(network.nodes.iter().filter(|node| matches!(node.op, Op::Conv2d(_))).count(), 53);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// The normalised image.
    Input,
    /// A value of this shape that another step computes from the values that the node reads. It occurs only in plans of
    /// models of values, whose layers the kernels for images compute.
    Given(Shape),
    /// Images of this shape in rows that a run reads, in elements of this type. It occurs only in plans.
    Rows(Shape, Dtype),
    /// Rows of images in a format → the normalised images. It occurs only in plans, in place of [`Op::Input`].
    Normalize(InputFormat, Arc<Preprocessing>),
    /// A result → rows that a run writes. It occurs only in plans.
    Emit(OutputKind),
    /// Convolution; the rewrites move batch norm, residual and activation into it. A second input, if present, is the
    /// residual that is added before the activation.
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
    /// The channels of the first value, then those of the next; all have one height and width.
    Concat,
}

/// Attributes and weights of a convolution. The filter tensor is [K, C / groups, R, S], as PyTorch stores it.
///
/// ```
/// use trefoil::model::images::{Conv2d, Window};
/// let conv = Conv2d::named("conv1", 64, Window::square(7, 2, 3));
/// let with_bias = Conv2d { bias: Some("conv1.bias".into()), ..conv.clone() };
/// assert_eq!((with_bias.filter, conv.bias), ("conv1.weight".to_string(), None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d {
    /// K.
    pub out_channels: usize,
    /// The window: size, stride, padding, dilation.
    pub window: Window,
    /// The number of groups. C and K are divided into that many parts, and an output channel reads only input channels
    /// of its own part; with C groups every output channel reads one input channel.
    pub groups: usize,
    /// Name of the filter tensor.
    pub filter: String,
    /// Name of the bias tensor, if there is one.
    pub bias: Option<String>,
    /// Batch norm folded into filter and bias when they are uploaded.
    pub norm: Option<BatchNorm>,
    /// Applied last.
    pub activation: Activation,
    /// Whether it is computed in floats although all its operands have scales.
    pub in_floats: bool,
    /// The means of the input by channel, if they are known. They give the expected loss in sums by the rounding of
    /// weights to bytes.
    pub means: Option<Arc<[f32]>>,
}

/// A sliding window: a [window of the graph](crate::graph::Window) over an image's two axes.
///
/// ```
/// use trefoil::model::images::{Pad, Window};
/// let dilated = Window { dilation: [2; 2], ..Window::square(3, 1, 2) }; // reaches over 5x5 pixels
/// assert_eq!((dilated.size, dilated.pad), ([3; 2], Pad::all(2)));
/// ```
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
///
/// ```
/// use trefoil::model::images::Pad;
/// let pad = Pad { bottom: 1, right: 1, ..Pad::default() }; // as TensorFlow pads
/// assert_eq!((pad.top, pad.bottom), (0, 1));
/// ```
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

/// A pooling window.
///
/// ```
/// use trefoil::{Shape, graph::{GraphBuilder, Window}, model::images::{Network, Op}};
/// let mut g = GraphBuilder::new();
/// let x = g.image("image", Shape::new(8, 8, 4));
/// let x = g.avg_pool("pool", x, Window::square(3, 2, 1), false);
/// g.output("mean", x);
/// let network = Network::of(&g.finish()?)?;
/// assert!(matches!(network.nodes[1].op, Op::AvgPool(pool) if pool.window.stride == [2; 2] && !pool.count_pad));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// The window.
    pub window: Window,
    /// For means: whether padded pixels count in the divisor.
    pub count_pad: bool,
}

impl Network {
    /// The node called `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).map(NodeId)
    }

    /// The network with values in bytes of these scales, by the names of their nodes.
    #[cfg(test)]
    pub(crate) fn scaled(mut self, scales: &[(&str, f32)]) -> Self {
        for (name, scale) in scales {
            let id = self.find(name).expect("a node of this name");
            self.nodes[id.0].scale = Some(*scale);
        }
        self
    }

    /// For each node, how many times it is read: by other nodes, and once more if it is the output.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.nodes.len()];
        for id in self.nodes.iter().flat_map(|node| &node.inputs).chain([&self.output]) {
            counts[id.0] += 1;
        }
        counts
    }

    /// The network whose result is node `output`, without the nodes that it does not need.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn cut(&self, output: NodeId) -> Self {
        self.cut_of(output).0
    }

    /// The network cut at `output`, and for each of its nodes the node of this network.
    pub(super) fn cut_of(&self, output: NodeId) -> (Self, Vec<NodeId>) {
        let mut needed = vec![false; self.nodes.len()];
        needed[output.0] = true;
        needed[0] = true; // the input stays, even if nothing reads it
        for i in (0..self.nodes.len()).rev().filter(|&i| i <= output.0) {
            if needed[i] {
                self.nodes[i].inputs.iter().for_each(|input| needed[input.0] = true);
            }
        }
        let mut new_ids = vec![NodeId(0); self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::new();
        let kept: Vec<NodeId> = (0..self.nodes.len()).filter(|&i| needed[i]).map(NodeId).collect();
        for id in &kept {
            let node = &self.nodes[id.0];
            new_ids[id.0] = NodeId(nodes.len());
            let inputs = node.inputs.iter().map(|input| new_ids[input.0]).collect();
            nodes.push(Node { inputs, ..node.clone() });
        }
        (Self { nodes, output: new_ids[output.0], input: self.input }, kept)
    }

    /// The network that computes the result from the value of a node, which has `shape` and becomes the input.
    ///
    /// # Errors
    ///
    /// [`Error::Graph`] if something after the node reads something before it.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn rest(&self, after: NodeId, shape: Shape) -> Result<Self, Error> {
        let input = &self.nodes[0];
        let scale = self.nodes[after.0].scale;
        let mut nodes = vec![Node { name: input.name.clone(), op: Op::Input, inputs: Vec::new(), scale }];
        for node in &self.nodes[after.0 + 1..] {
            let new = |id: &NodeId| match id.0.checked_sub(after.0) {
                Some(index) => Ok(NodeId(index)),
                None => Err(Error::graph(&node.name, "reads something before the place where the network is cut")),
            };
            let inputs = node.inputs.iter().map(new).collect::<Result<_, _>>()?;
            nodes.push(Node { inputs, ..node.clone() });
        }
        let output = self.output.0.checked_sub(after.0).map(NodeId);
        let output = output.ok_or_else(|| Error::graph(&self.nodes[after.0].name, "comes after the result"))?;
        let this = Self { nodes, output, input: shape };
        Ok(this.cut(output))
    }
}

impl Conv2d {
    /// The convolution with only the parts on which its weights depend: without padding, which may depend on the
    /// image's size, and without the activation, which a kernel or a loop may apply.
    pub(crate) fn for_weights(&self) -> Self {
        let window = Window { pad: Pad::default(), ..self.window };
        Self { window, activation: Activation::None, ..self.clone() }
    }
}

impl Op {
    /// The operation's name, for messages: `"conv2d"`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Given(_) => "given",
            Self::Rows(..) => "rows",
            Self::Normalize(..) => "normalize",
            Self::Emit(_) => "emit",
            Self::Conv2d(_) => "conv2d",
            Self::BatchNorm(_) => "batch_norm",
            Self::Activation(_) => "activation",
            Self::Add(_) => "add",
            Self::MaxPool(_) => "max_pool",
            Self::AvgPool(_) => "avg_pool",
            Self::GlobalAvgPool => "global_avg_pool",
            Self::Linear(_) => "linear",
            Self::Concat => "concat",
        }
    }
}

impl Conv2d {
    /// Whether every output channel reads only the input channel of the same number, if there are `in_channels`.
    pub(crate) const fn is_depthwise(&self, in_channels: usize) -> bool {
        self.groups > 1 && self.groups == in_channels && self.out_channels == in_channels
    }

    /// Whether there are kernels of bytes for such a convolution of `in_channels` channels: it is dense or depthwise.
    pub(crate) const fn has_bytes(&self, in_channels: usize) -> bool {
        self.groups == 1 || self.is_depthwise(in_channels)
    }

    /// The first input channel, of `in_channels`, that an output channel reads.
    pub(crate) const fn first_channel(&self, k_out: usize, in_channels: usize) -> usize {
        k_out / (self.out_channels / self.groups) * (in_channels / self.groups)
    }

    /// A dense convolution without bias whose filter is `{module}.weight`, as PyTorch names it.
    pub fn named(module: &str, out_channels: usize, window: Window) -> Self {
        Self {
            out_channels,
            window,
            groups: 1,
            filter: format!("{module}.weight"),
            bias: None,
            norm: None,
            activation: Activation::None,
            in_floats: false,
            means: None,
        }
    }
}

impl From<Window> for graph::Window {
    fn from(of: Window) -> Self {
        let Window { size, stride, pad: Pad { top, left, bottom, right }, dilation } = of;
        Self {
            size: size.into(),
            stride: stride.into(),
            dilation: dilation.into(),
            pad: vec![[top, bottom], [left, right]],
        }
    }
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
