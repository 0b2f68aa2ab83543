//! The operations of steps, on operands of any shape: their names, their layers with weights, their counts of
//! operations.
//!
//! The file is long because each operation has a case in each function: so all cases of a new operation are in one
//! place.

use std::sync::Arc;

use super::packed_attention::PackedAttentionOp;
use super::product_e4m3::E4m3ProductOp;
use super::transformer::{AttentionOp, ProductOp, RowNormOp};
use super::work::{Layer, Operand, Weights};
use super::{ClassAttentionOp, Family, FewOp, RecurrentOp, SqueezeExciteOp, Stem, Tail};
use crate::error::Error;
use crate::graph::{Op, ValueType};
use crate::loops::Loop;
use crate::model::{self, ByteFilter, ByteSource, Conv2d, Linear, Pool, Window, byte_filter};
use crate::tensor::{Activation, InputFormat, OutputKind, Shape};

/// The operation of a step.
///
/// ```
/// use trefoil::{Activation, model::images::{Conv2d, Window}, plan::StepOp};
/// let conv = Conv2d { activation: Activation::Relu, ..Conv2d::named("conv1", 64, Window::square(7, 2, 3)) };
/// assert_eq!(StepOp::Conv(conv).label(1), "conv7x7+relu");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum StepOp {
    /// Input rows → normalised activations, channels padded to the family's alignment.
    Normalize {
        /// The format of the input rows.
        format: InputFormat,
        /// Subtracted from each channel of the input, in units of its full scale (0-1).
        mean: Vec<f32>,
        /// Divides each channel after the mean is subtracted.
        std: Vec<f32>,
    },
    /// Normalisation, convolution and maximum in one: input rows → activations.
    Stem(Stem),
    /// Dense convolution with bias, residual and activation.
    Conv(Conv2d),
    /// A convolution of images of few channels in f32, with an epilogue.
    Few(FewOp),
    /// Dense convolution of bytes with bias, residual and activation.
    QuantizedConv(QuantizedConv),
    /// Depthwise convolution of bytes with bias and activation.
    QuantizedDepthwise(QuantizedDepthwise),
    /// A network's first layers from photos to bytes: input rows → bytes.
    QuantizedStem(QuantizedStem),
    /// Mean over all pixels of a value in bytes with this scale.
    QuantizedMean(f32),
    /// Conversion of floats to bytes with this scale.
    Quantize(f32),
    /// Conversion of bytes with this scale to floats.
    Dequantize(f32),
    /// The sum of two dense convolutions with different inputs and the same output shape, then the activation of the
    /// first one.
    ConvSum {
        /// The convolution after which the step is named.
        conv: Conv2d,
        /// The other convolution.
        joined: Box<Joined>,
    },
    /// A 1x1 convolution or a sum of them, and another 1x1 convolution of its result. Both results are written.
    Chain {
        /// The convolution after which the step is named.
        conv: Conv2d,
        /// A convolution of the step's second input, whose result is added to that of `conv`.
        joined: Option<Box<Joined>>,
        /// The convolution that reads the result.
        next: Box<Joined>,
    },
    /// Depthwise convolution with bias and activation.
    Depthwise(Conv2d),
    /// A 1x1 convolution and a depthwise convolution of its result.
    ExpandDepthwise {
        /// The 1x1 convolution.
        expand: Box<Joined>,
        /// The depthwise convolution, after which the step is named.
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
    /// Elementwise sum and activation; with one input, the activation alone.
    Add(Activation),
    /// Mean over all pixels, fully connected layer and output rows in one, the last step.
    Tail(Tail),
    /// The last step: logits or features → output rows.
    Emit(OutputKind),
    /// A product of rows with a matrix of weights, and its epilogue.
    Product(ProductOp),
    /// A product of rows and a matrix of e4m3, and its epilogue.
    E4m3Product(E4m3ProductOp),
    /// Attention of all heads.
    Attention(AttentionOp),
    /// Attention of all heads within rows that lie end to end.
    PackedAttention(PackedAttentionOp),
    /// Attention of one row of each image, with the product before it.
    ClassAttention(ClassAttentionOp),
    /// LayerNorm or RMSNorm of rows.
    RowNorm(RowNormOp),
    /// All steps of a recurrent layer.
    Recurrent(RecurrentOp),
    /// Squeeze and excitation of images.
    SqueezeExcite(SqueezeExciteOp),
    /// Some operations of a graph of values, as one loop.
    Loop(LoopOp),
    /// An operation of a graph of values that is no loop.
    Hand(HandOp),
}

/// Operations of a graph of values that one loop computes. The loop's operands are the tensors that the step reads.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopOp {
    /// The kinds of the operations: `"conv+map"`.
    pub kinds: String,
    /// The names of the nodes, in their order.
    pub nodes: Vec<String>,
    /// The loop.
    pub of: Arc<Loop>,
    /// The number of arithmetic operations of a run.
    pub flops: u64,
}

/// An operation of a graph of values that is no loop: its elements are sorted, or written in an order that matters.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOp {
    /// The operation.
    pub op: Op,
    /// The types of its operands; `None` for an operand that is left out. The step reads the others.
    pub inputs: Vec<Option<ValueType>>,
    /// The types of its results.
    pub outputs: Vec<ValueType>,
}

/// A convolution without a step of its own. The step of the convolution that reads its result, or whose result it
/// reads, computes it too.
///
/// ```
/// use trefoil::{model::images::{Conv2d, Window}, plan::{Joined, StepOp}};
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

/// A dense convolution with bias, residual and activation, all of bytes: sums are exact, and a result is rounded once.
///
/// ```
/// use trefoil::{model::images::{Conv2d, Window}, plan::{QuantizedConv, StepOp}};
/// let conv = Conv2d::named("conv3", 256, Window::square(1, 1, 0));
/// let of = QuantizedConv { conv, input_scale: 0.5, residual_scale: Some(0.1), joined: None, output_scale: 0.4 };
/// assert_eq!((of.residual_factor(), StepOp::QuantizedConv(of).label(2)), (Some(0.25), "s8 conv1x1+res".to_string()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedConv {
    /// The convolution.
    pub conv: Conv2d,
    /// The scale of the input.
    pub input_scale: f32,
    /// The scale of the residual, if there is one.
    pub residual_scale: Option<f32>,
    /// The convolution whose products are added to the same sums, if there is one; then there is no residual.
    pub joined: Option<Box<JoinedBytes>>,
    /// The number that 1 of the result stands for.
    pub output_scale: f32,
}

/// A convolution of bytes that reads the step's second input. Its products are added to the sums of the step's own
/// convolution.
///
/// ```
/// use trefoil::{model::images::{Conv2d, Window}, plan::{Joined, JoinedBytes, QuantizedConv, StepOp}};
/// let single = |name| Conv2d::named(name, 256, Window::square(1, 1, 0));
/// let of = Joined { name: "downsample.0".into(), conv: single("downsample.0") };
/// let joined = Some(Box::new(JoinedBytes { of, input_scale: 0.02 }));
/// let sum = QuantizedConv { conv: single("conv3"), input_scale: 0.5, residual_scale: None, joined, output_scale: 0.4 };
/// assert_eq!(StepOp::QuantizedConv(sum).label(2), "s8 conv1x1+1x1");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedBytes {
    /// The convolution.
    pub of: Joined,
    /// The scale of the second input.
    pub input_scale: f32,
}

impl QuantizedConv {
    /// A convolution alone, with all scales 1: for questions about kernels that do not depend on scales.
    pub(crate) fn plain(conv: &Conv2d) -> Self {
        Self { conv: conv.clone(), input_scale: 1.0, residual_scale: None, joined: None, output_scale: 1.0 }
    }

    /// The factor that brings the residual to units of the result; `None` without a residual.
    pub fn residual_factor(&self) -> Option<f32> {
        self.residual_scale.map(|scale| (f64::from(scale) / f64::from(self.output_scale)) as f32)
    }

    /// The convolutions whose products are summed, in the order of the step's inputs, with the scales of these inputs.
    pub(crate) fn convs(&self) -> impl Iterator<Item = (&Conv2d, f32)> {
        let joined = self.joined.iter().map(|joined| (&joined.of.conv, joined.input_scale));
        [(&self.conv, self.input_scale)].into_iter().chain(joined)
    }

    fn filter(&self, weights: &model::Weights, channels: &[usize]) -> Result<ByteFilter, Error> {
        let source = |((conv, scale), &in_channels): ((_, f32), &usize)| ByteSource { conv, in_channels, scale };
        let sources: Vec<_> = self.convs().zip(channels).map(source).collect();
        byte_filter(weights, &sources, self.output_scale)
    }
}

/// A depthwise convolution with bias and activation, all of bytes: sums are exact, and a result is rounded once.
///
/// ```
/// use trefoil::{Activation, model::images::{Conv2d, Window}, plan::{QuantizedDepthwise, StepOp}};
/// let conv = Conv2d { groups: 32, ..Conv2d::named("conv_dw", 32, Window::square(3, 1, 1)) };
/// let conv = Conv2d { activation: Activation::Relu6, ..conv };
/// let of = QuantizedDepthwise { conv, input_scale: 0.02, output_scale: 0.01 };
/// assert_eq!(StepOp::QuantizedDepthwise(of).label(1), "s8 dw3x3+relu6");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedDepthwise {
    /// The convolution.
    pub conv: Conv2d,
    /// The scale of the input.
    pub input_scale: f32,
    /// The number that 1 of the result stands for.
    pub output_scale: f32,
}

impl QuantizedDepthwise {
    fn filter(&self, weights: &model::Weights, in_channels: usize) -> Result<ByteFilter, Error> {
        let source = ByteSource { conv: &self.conv, in_channels, scale: self.input_scale };
        byte_filter(weights, &[source], self.output_scale)
    }
}

/// A network's first layers, from photos to bytes. Weights and biases contain the normalisation. Sums over the photo's
/// bytes are exact, and the maximum of sums is rounded once. Pixels outside of the photo have the bytes nearest to the
/// mean.
///
/// ```
/// # use trefoil::{Shape, model::images::{Conv2d, Pool, Window}};
/// use trefoil::plan::{QuantizedStem, Stem, StepOp};
/// let [mean, std] = [vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]];
/// let pool = Some(Pool { window: Window::square(3, 2, 1), count_pad: false });
/// let conv = Conv2d::named("conv1", 64, Window::square(7, 2, 3));
/// let stem = Stem { mean, std, conv, conv_shape: Shape::new(112, 112, 64), pool };
/// let of = QuantizedStem { stem, output_scale: 0.02 };
/// assert_eq!((of.outside(), StepOp::QuantizedStem(of).label(1)), ([124, 116, 104], "s8 stem7x7+max".to_string()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedStem {
    /// The layers.
    pub stem: Stem,
    /// The number that 1 of the result stands for.
    pub output_scale: f32,
}

impl QuantizedStem {
    /// The bytes of a pixel outside of the photo.
    ///
    /// # Panics
    /// If the mean has other than three channels.
    pub fn outside(&self) -> [u8; 3] {
        model::outside(self.stem.mean[..].try_into().expect("first layers of bytes have three channels"))
    }

    fn filter(&self, weights: &model::Weights) -> Result<ByteFilter, Error> {
        let Stem { mean, std, conv, .. } = &self.stem;
        model::byte_filter_of_photos(weights, conv, [mean, std], self.output_scale)
    }
}

impl StepOp {
    /// The operation for images of any size: only the parts on which its weights depend.
    pub(crate) fn of_any_size(&self) -> Self {
        match self {
            Self::Conv(conv) => Self::Conv(conv.for_weights()),
            Self::Depthwise(conv) => Self::Depthwise(conv.for_weights()),
            Self::QuantizedConv(of) => {
                let joined = of.joined.as_ref().map(|joined| {
                    let of = Joined { conv: joined.of.conv.for_weights(), ..joined.of.clone() };
                    Box::new(JoinedBytes { of, ..**joined })
                });
                Self::QuantizedConv(QuantizedConv { conv: of.conv.for_weights(), joined, ..*of })
            }
            Self::QuantizedDepthwise(of) => {
                Self::QuantizedDepthwise(QuantizedDepthwise { conv: of.conv.for_weights(), ..*of })
            }
            Self::QuantizedStem(QuantizedStem { stem, output_scale }) => {
                let (conv, conv_shape) = (stem.conv.for_weights(), Shape::vector(0));
                let stem = Stem { conv, conv_shape, pool: None, ..stem.clone() };
                Self::QuantizedStem(QuantizedStem { stem, output_scale: *output_scale })
            }
            Self::Normalize { .. }
            | Self::Stem(_)
            | Self::Few(_)
            | Self::QuantizedMean(_)
            | Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::ExpandDepthwise { .. }
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Tail(_)
            | Self::Emit(_)
            | Self::Product(_)
            | Self::E4m3Product(_)
            | Self::Attention(_)
            | Self::PackedAttention(_)
            | Self::ClassAttention(_)
            | Self::RowNorm(_)
            | Self::Recurrent(_)
            | Self::SqueezeExcite(_)
            | Self::Loop(_)
            | Self::Hand(_) => self.clone(),
        }
    }

    /// The weights in bytes of a step of bytes; `channels` has the channels of each input.
    ///
    /// # Errors
    /// [`Error::Tensor`] if weights are not as the graph describes them; [`Error::Unsupported`] if a scale exceeds f32.
    pub(crate) fn byte_filter(&self, weights: &model::Weights, channels: &[usize]) -> Result<ByteFilter, Error> {
        match self {
            Self::QuantizedConv(of) => of.filter(weights, channels),
            Self::QuantizedDepthwise(of) => of.filter(weights, channels[0]),
            Self::QuantizedStem(of) => of.filter(weights),
            other => Err(Error::Internal { what: format!("{} in bytes", other.label(channels.len())) }),
        }
    }

    /// A short name of the operation; the number of `inputs` shows whether it has a fused residual.
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
            Self::Few(of) => of.label(),
            Self::QuantizedConv(of) => {
                let conv = of.conv.clone();
                let in_floats = match &of.joined {
                    Some(joined) => Self::ConvSum { conv, joined: Box::new(joined.of.clone()) },
                    None => Self::Conv(conv),
                };
                format!("s8 {}", in_floats.label(inputs))
            }
            Self::QuantizedDepthwise(of) => format!("s8 {}", Self::Depthwise(of.conv.clone()).label(inputs)),
            Self::QuantizedStem(of) => format!("s8 {}", Self::Stem(of.stem.clone()).label(inputs)),
            Self::QuantizedMean(_) => "s8 global-pool".into(),
            Self::Quantize(_) => "quantize".into(),
            Self::Dequantize(_) => "dequantize".into(),
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
            Self::Tail(tail) => format!("{}{}", if tail.x_scale.is_some() { "s8 " } else { "" }, tail.parts()),
            Self::Emit(output) => format!("{output:?}").to_lowercase(),
            Self::Product(of) => of.label(),
            Self::E4m3Product(of) => of.label(),
            Self::Attention(of) => of.label(),
            Self::PackedAttention(_) => "packed-attention".into(),
            Self::ClassAttention(of) => of.label(),
            Self::Recurrent(of) => of.label(),
            Self::SqueezeExcite(of) => of.label(),
            Self::RowNorm(of) => of.label(),
            Self::Loop(of) => of.kinds.clone(),
            Self::Hand(of) => of.op.kind().into(),
        }
    }

    /// The stem of the file names of the operation's kernels, without the architecture.
    pub(super) const fn stem(&self) -> &'static str {
        match self {
            Self::Normalize { .. } => "normalize",
            Self::Stem(_) => "stem",
            Self::Conv(_) | Self::ConvSum { .. } => "conv2d_fprop",
            Self::Few(_) => "conv2d_few",
            Self::QuantizedConv(_) => "conv2d_s8",
            Self::QuantizedDepthwise(_) => "conv2d_depthwise_s8",
            Self::QuantizedStem(_) => "stem_s8",
            Self::QuantizedMean(_) => "mean_s8",
            Self::Quantize(_) | Self::Dequantize(_) => "convert",
            Self::Chain { .. } => "conv2d_chain",
            Self::Depthwise(_) | Self::ExpandDepthwise { .. } => "conv2d_depthwise",
            Self::MaxPool(_) | Self::AvgPool(_) => "pool2d",
            Self::GlobalAvgPool => "global_avg_pool",
            Self::Linear(_) => "linear",
            Self::Add(_) => "add",
            Self::Tail(_) => "tail",
            Self::Emit(_) => "emit",
            Self::Product(_) | Self::E4m3Product(_) => "product",
            Self::Attention(_) | Self::PackedAttention(_) => "attention",
            Self::ClassAttention(_) => "class_attention",
            Self::RowNorm(_) => "row_norm",
            Self::Recurrent(_) => "recurrent",
            Self::SqueezeExcite(_) => "squeeze_excite",
            Self::Loop(_) => "loop",
            Self::Hand(_) => "by hand",
        }
    }

    /// All that decides the time of a step besides its operands, as text.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Stem(stem) | Self::QuantizedStem(QuantizedStem { stem, .. }) => {
                format!("{} {}", window(&stem.conv.window), stem.conv_shape)
            }
            Self::Conv(conv)
            | Self::Depthwise(conv)
            | Self::QuantizedDepthwise(QuantizedDepthwise { conv, .. })
            | Self::ExpandDepthwise { conv, .. } => window(&conv.window),
            Self::Few(of) => format!("{} {} {:?}", window(&of.conv.window), of.input, of.x),
            Self::QuantizedConv(of) => of.convs().map(|(conv, _)| window(&conv.window)).collect::<Vec<_>>().join(" + "),
            Self::ConvSum { conv, joined } | Self::Chain { conv, joined: Some(joined), .. } => {
                format!("{} + {}", window(&conv.window), window(&joined.conv.window))
            }
            Self::Chain { conv, joined: None, .. } => window(&conv.window),
            Self::MaxPool(pool) | Self::AvgPool(pool) => window(&pool.window),
            Self::Tail(tail) => format!("to {}", tail.k_stored()),
            Self::Product(of) | Self::E4m3Product(E4m3ProductOp { product: of, .. }) => {
                format!("{}x{} by {}", of.rows, of.terms, of.weights.out_channels)
            }
            Self::Attention(of) => format!("{:?}", of.sizes),
            Self::PackedAttention(of) => format!("{:?} by {} tiles", of.sizes, of.block_tiles),
            Self::ClassAttention(of) => format!("{:?}", of.sizes),
            Self::RowNorm(of) => format!("{}x{}", of.rows, of.columns),
            Self::Recurrent(of) => of.detail(),
            Self::SqueezeExcite(of) => format!("{} by {}", of.input, of.hidden_channels()),
            Self::Normalize { .. }
            | Self::QuantizedMean(_)
            | Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Emit(_)
            | Self::Loop(_)
            | Self::Hand(_) => String::new(),
        }
    }

    /// The layers with weights of a step named `name` with these operands, grouped by the sum that they go into.
    pub(super) fn sums<'a>(&'a self, name: &'a str, x: &[Operand], y: &[Operand]) -> Vec<Vec<Layer<'a>>> {
        let layer = |node, weights, input, output| Layer { node, weights, input, output };
        let conv = |node, conv, input, output| layer(node, Weights::Conv(conv), input, output);
        let joined = |of: &'a Joined| conv(&of.name, &of.conv, x[1], y[0]);
        match self {
            Self::Stem(stem) | Self::QuantizedStem(QuantizedStem { stem, .. }) => {
                let output = Operand { shape: stem.conv_shape, ..y[0] };
                vec![vec![conv(name, &stem.conv, x[0], output)]]
            }
            Self::Conv(own) | Self::Depthwise(own) | Self::QuantizedDepthwise(QuantizedDepthwise { conv: own, .. }) => {
                vec![vec![conv(name, own, x[0], y[0])]]
            }
            Self::Few(of) => {
                vec![vec![conv(name, &of.conv, of.pixels(y[0].dtype), Operand::rows(of.output, y[0].dtype))]]
            }
            Self::QuantizedConv(of) => {
                let others = of.joined.iter().map(|other| joined(&other.of));
                vec![[conv(name, &of.conv, x[0], y[0])].into_iter().chain(others).collect()]
            }
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
            Self::Product(of) | Self::E4m3Product(E4m3ProductOp { product: of, .. }) => {
                let rows = |channels| Operand::rows(Shape::new(1, of.rows, channels), x[0].dtype);
                let channels = of.terms / of.weights.window.size.iter().product::<usize>();
                vec![vec![conv(name, &of.weights, rows(channels), rows(of.weights.out_channels))]]
            }
            // Of each image one row: queries, queries times the matrix of keys, and results take as many operations as this
            // row's queries, keys and values.
            Self::ClassAttention(of) => {
                let row = |channels| Operand::rows(Shape::vector(channels), x[0].dtype);
                let Joined { name, conv: own } = &of.product;
                vec![vec![conv(name, own, row(of.columns()), row(own.out_channels))]]
            }
            Self::Recurrent(of) => {
                let rows = |channels| Operand::rows(Shape::new(1, of.steps * of.rows, channels), x[0].dtype);
                vec![vec![conv(name, &of.weights, rows(of.hidden), rows(of.weights.out_channels))]]
            }
            Self::SqueezeExcite(of) => {
                let vector = |channels| Operand::activations(Shape::vector(channels), x[0].dtype, Family::Sm80);
                let [channels, hidden] = [of.input.channels, of.hidden_channels()].map(vector);
                let of_joined = |of: &'a Joined, from, to| vec![conv(&of.name, &of.conv, from, to)];
                vec![of_joined(&of.squeeze, channels, hidden), of_joined(&of.excite, hidden, channels)]
            }
            Self::Normalize { .. }
            | Self::QuantizedMean(_)
            | Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Add(_)
            | Self::Emit(_)
            | Self::Attention(_)
            | Self::PackedAttention(_)
            | Self::RowNorm(_)
            | Self::Loop(_)
            | Self::Hand(_) => Vec::new(),
        }
    }

    /// Floating-point operations for a row besides the products of layers.
    pub(super) fn other_flops(&self, x: &[Operand], y: &[Operand]) -> usize {
        let window = |pool: &Pool| y[0].shape.elems() * pool.window.size.iter().product::<usize>();
        match self {
            Self::Normalize { .. } => 2 * y[0].shape.elems(),
            Self::Stem(stem) => 2 * x[0].shape.elems() + stem.pool.as_ref().map_or(0, window),
            Self::QuantizedStem(of) => of.stem.pool.as_ref().map_or(0, window),
            Self::MaxPool(pool) | Self::AvgPool(pool) => window(pool),
            Self::GlobalAvgPool | Self::QuantizedMean(_) | Self::Tail(_) => x[0].shape.elems(),
            Self::Loop(of) => of.flops as usize,
            Self::Recurrent(of) => 12 * of.steps * of.rows * of.backwards.len() * of.hidden,
            Self::SqueezeExcite(of) => 2 * of.input.elems(),
            Self::Add(Activation::None) if x.len() == 1 => 0,
            Self::Add(_) => x.len() * y[0].shape.elems(),
            Self::Quantize(_) | Self::Dequantize(_) => y[0].shape.elems(),
            Self::Conv(_)
            | Self::Few(_)
            | Self::QuantizedConv(_)
            | Self::QuantizedDepthwise(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::Depthwise(_)
            | Self::ExpandDepthwise { .. }
            | Self::Linear(_)
            | Self::Emit(_)
            | Self::Product(_)
            | Self::E4m3Product(_)
            | Self::Attention(_)
            | Self::PackedAttention(_)
            | Self::ClassAttention(_)
            | Self::RowNorm(_)
            | Self::Hand(_) => 0,
        }
    }

    /// Floating-point operations of a run if they are not counted by rows: those of tensor cores, and others. Zeros
    /// otherwise.
    pub(super) const fn flops_of_run(&self) -> [usize; 2] {
        match self {
            Self::Attention(of) => [of.flops(), 0],
            Self::PackedAttention(of) => [of.flops(), 0],
            Self::ClassAttention(of) => [of.flops(), 0],
            Self::RowNorm(of) => [0, of.flops()],
            Self::Normalize { .. }
            | Self::Stem(_)
            | Self::Conv(_)
            | Self::Few(_)
            | Self::QuantizedConv(_)
            | Self::QuantizedDepthwise(_)
            | Self::QuantizedStem(_)
            | Self::QuantizedMean(_)
            | Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::Depthwise(_)
            | Self::ExpandDepthwise { .. }
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Tail(_)
            | Self::Emit(_)
            | Self::Product(_)
            | Self::E4m3Product(_)
            | Self::Recurrent(_)
            | Self::SqueezeExcite(_)
            | Self::Loop(_)
            | Self::Hand(_) => [0; 2],
        }
    }

    /// The number of steps of a recurrent layer that wait for the one before.
    pub(super) const fn exchanges(&self) -> usize {
        if let Self::Recurrent(of) = self { of.steps.saturating_sub(1) } else { 0 }
    }

    /// Whether the products of the operation are of bytes.
    pub(super) const fn is_of_bytes(&self) -> bool {
        matches!(
            self,
            Self::QuantizedConv(_) | Self::QuantizedDepthwise(_) | Self::QuantizedStem(_) | Self::E4m3Product(_)
        )
    }

    /// Whether a CPU computes the operation: one node of a graph, the output rows, or nodes that every device computes
    /// together in bytes.
    pub(super) const fn is_for_cpus(&self) -> bool {
        match self {
            Self::Normalize { .. }
            | Self::Conv(_)
            | Self::QuantizedConv(_)
            | Self::QuantizedDepthwise(_)
            | Self::QuantizedStem(_)
            | Self::QuantizedMean(_)
            | Self::Quantize(_)
            | Self::Dequantize(_)
            | Self::Depthwise(_)
            | Self::MaxPool(_)
            | Self::AvgPool(_)
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Add(_)
            | Self::Emit(_) => true,
            Self::Stem(_)
            | Self::Few(_)
            | Self::ConvSum { .. }
            | Self::Chain { .. }
            | Self::ExpandDepthwise { .. }
            | Self::Tail(_)
            | Self::Product(_)
            | Self::E4m3Product(_)
            | Self::Attention(_)
            | Self::PackedAttention(_)
            | Self::ClassAttention(_)
            | Self::RowNorm(_)
            | Self::Recurrent(_)
            | Self::SqueezeExcite(_)
            | Self::Loop(_)
            | Self::Hand(_) => false,
        }
    }

    /// Whether kernels of the operation can write a part of a concatenation, in pixels that have further channels.
    pub(super) fn writes_parts(&self) -> bool {
        match self {
            Self::Conv(_) | Self::ConvSum { .. } | Self::MaxPool(_) | Self::AvgPool(_) | Self::Add(_) => true,
            Self::Dequantize(_) => true,
            Self::QuantizedConv(_) | Self::QuantizedDepthwise(_) | Self::QuantizedStem(_) => false,
            Self::QuantizedMean(_) | Self::Quantize(_) => false,
            Self::Normalize { .. }
            | Self::Stem(_)
            | Self::Few(_)
            | Self::Chain { .. }
            | Self::Depthwise(_)
            | Self::ExpandDepthwise { .. }
            | Self::GlobalAvgPool
            | Self::Linear(_)
            | Self::Tail(_)
            | Self::Emit(_)
            | Self::Product(_)
            | Self::E4m3Product(_)
            | Self::Attention(_)
            | Self::PackedAttention(_)
            | Self::ClassAttention(_)
            | Self::RowNorm(_)
            | Self::Recurrent(_)
            | Self::SqueezeExcite(_)
            | Self::Loop(_)
            | Self::Hand(_) => false,
        }
    }
}

/// The factor by which the mean over `image` multiplies sums of bytes with this scale.
pub(crate) fn mean_factor(scale: f32, image: Shape) -> f32 {
    (f64::from(scale) / image.pixels() as f64) as f32
}

fn suffix(activation: Activation) -> String {
    match activation {
        Activation::None => String::new(),
        Activation::Relu | Activation::Relu6 | Activation::Silu | Activation::Gelu => format!("+{activation}"),
    }
}

fn window(window: &Window) -> String {
    let Window { size: [r, s], stride: [down, right], pad, dilation: [dilation_h, dilation_w] } = *window;
    let dilation =
        if [dilation_h, dilation_w] == [1; 2] { String::new() } else { format!(" d{dilation_h}x{dilation_w}") };
    format!("{r}x{s}/{down}x{right} pad {},{},{},{}{dilation}", pad.top, pad.left, pad.bottom, pad.right)
}
