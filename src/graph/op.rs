//! The operations of a graph.
//!
//! They are few: what other systems have beside these is written in them, and found again in them by the kernels that
//! compute several at once.

use super::expr::{Expr, Number};
use crate::tensor::Dtype;

/// An operation. Axes are counted from 0, the outermost.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// An expression of the elements at one place, of operands that are broadcast to one shape as NumPy does.
    Map(Expr),
    /// Sums and the like along axes.
    Reduce(Reduce),
    /// Where along an axis the extreme is: i64. NaN is more extreme than any number.
    ArgReduce(ArgReduce),
    /// Sums of all elements so far along an axis.
    Cumulate(Cumulate),
    /// exp(x - max) / sum(exp(x - max)) along an axis, computed in f32 or more; `log` takes the logarithm of it.
    Softmax {
        /// The axis.
        axis: usize,
        /// Whether the logarithm of it is wanted.
        log: bool,
    },
    /// Normalisation over the last axes: x, and optional scale and bias that are broadcast to x.
    Norm(Norm),
    /// The same elements in other dimensions.
    Reshape(Vec<usize>),
    /// The axes in another order: axis i of the result is axis `[i]` of the operand.
    Transpose(Vec<usize>),
    /// Some indices along each axis.
    Slice(Slice),
    /// The same elements repeated along axes of 1 and along new outer axes, to these dimensions.
    Broadcast(Vec<usize>),
    /// Elements added around, or cut off, along each axis.
    Pad(Pad),
    /// The operands one behind the other along an axis.
    Concat(usize),
    /// Slices of the first operand along an axis, in the order of the second: whole numbers of any rank, whose axes take
    /// the place of the axis. Negative ones count from the end; what is out of range then is the nearest that is not.
    Gather(usize),
    /// For each element of the second operand, an index as for a gather, the element of the first at its place with that
    /// index along an axis.
    GatherElements(usize),
    /// Slices of the first operand at the places that the rows of the second have: the first axes, as many as this
    /// says, are a batch.
    GatherNd(usize),
    /// The first operand with elements replaced: each element of the third has its place, but that the second has the
    /// index along this axis.
    ScatterElements(usize, Scatter),
    /// The first operand with slices replaced by those of the third, at the places that the rows of the second have.
    ScatterNd(Scatter),
    /// The largest or smallest elements along an axis, and their indices (i64).
    TopK(TopK),
    /// Products of two operands, summed over axes.
    Contract(Contract),
    /// Convolution of `[N, spatial…, C]` by `[K, C / groups, taps…]`, and an optional bias `[K]`: `[N, spatial…, K]`.
    Conv(Conv),
    /// Transposed convolution of `[N, spatial…, C]` by `[C, K / groups, taps…]`, and an optional bias `[K]`. Its window's
    /// padding is cut off the result.
    ConvTranspose(Conv, Vec<usize>),
    /// Maximum, mean or sum over windows of `[N, spatial…, C]`.
    Pool(Pool),
    /// Interpolation of axes to other sizes.
    Resize(Resize),
    /// Integers of a type that stand for the operand: round(x / scale) + zero point, saturated, NaN being 0. The second
    /// operand is the scale, the third, optional, the zero point; a vector of them goes along `axis`.
    Quantize {
        /// The type.
        dtype: Dtype,
        /// Along which scales differ, if they do.
        axis: Option<usize>,
    },
    /// (x - zero point) x scale, in the scale's type: operands as for [`Quantize`](Self::Quantize).
    Dequantize {
        /// Along which scales differ, if they do.
        axis: Option<usize>,
    },
}

/// Sums and the like along axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// What is computed. Floats are summed and multiplied in f32 or more.
    pub op: ReduceOp,
    /// The axes, ascending.
    pub axes: Vec<usize>,
    /// Whether the axes stay, as 1.
    pub keep: bool,
}

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum; of nothing 0.
    Sum,
    /// The product; of nothing 1.
    Prod,
    /// The smallest, NaN if one is; of nothing the type's largest, infinity of floats. Of bools whether all hold.
    Min,
    /// The largest, NaN if one is; of nothing the type's smallest. Of bools whether one holds.
    Max,
    /// The sum divided by their number.
    Mean,
}

/// Where along an axis the extreme is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgReduce {
    /// Whether the largest is looked for, or the smallest.
    pub largest: bool,
    /// The axis.
    pub axis: usize,
    /// Whether the axis stays, as 1.
    pub keep: bool,
    /// Whether the last of equal ones is taken, or the first.
    pub last: bool,
}

/// Sums (or products) so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cumulate {
    /// [`ReduceOp::Sum`] or [`ReduceOp::Prod`].
    pub op: ReduceOp,
    /// The axis.
    pub axis: usize,
    /// Whether an element itself is left out of its sum.
    pub exclusive: bool,
    /// Whether they are summed from the end.
    pub reverse: bool,
}

/// Normalisation: (x - mean) / sqrt(variance + eps) x scale + bias, statistics in f32 or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The first of the axes that are normalised; all behind it are too.
    pub axis: usize,
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is subtracted; otherwise the variance is the mean of the squares.
    pub centred: bool,
}

/// Some indices along each axis: `start`, `start + step`, …, as many as `dims`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first index along each axis.
    pub start: Vec<usize>,
    /// From one to the next, which may be negative.
    pub step: Vec<isize>,
    /// The result's dimensions.
    pub dims: Vec<usize>,
}

/// Elements added around.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Before the first index of each axis; cut off if negative.
    pub before: Vec<isize>,
    /// Behind the last.
    pub after: Vec<isize>,
    /// Which elements.
    pub mode: PadMode,
}

/// What padding holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number.
    Constant(Number),
    /// The operand mirrored at its first and last element, which are not repeated.
    Reflect,
    /// The nearest element.
    Edge,
    /// The operand again, from its other end.
    Wrap,
}

/// What becomes of an element that is scattered to. Places are read as those of a gather; floats of 16 bits are combined in
/// f32 and rounded at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scatter {
    /// It is replaced; of several the last one stays.
    Replace,
    /// They are added to it.
    Add,
    /// It is multiplied by them.
    Mul,
    /// The smallest stays.
    Min,
    /// The largest stays.
    Max,
}

/// The extremes along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The axis.
    pub axis: usize,
    /// How many.
    pub k: usize,
    /// Whether the largest are wanted, or the smallest. The most extreme comes first, of equal ones the first. NaN is
    /// larger than every number.
    pub largest: bool,
}

/// Products of two operands, each of whose axes has a label: axes of one label go together. What is not in the result is
/// summed over. An axis of 1 goes with any size. Floats are summed in f32 or more.
///
/// ```
/// use trefoil::graph::Contract;
/// let product = Contract::matmul(3, 2); // [B, M, K] x [K, N] -> [B, M, N]
/// assert_eq!((&product.left[..], &product.right[..], &product.result[..]), (&[0, 1, 3][..], &[3, 2][..], &[0, 1, 2][..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Labels of the first operand's axes, each once.
    pub left: Vec<usize>,
    /// Labels of the second operand's axes, each once.
    pub right: Vec<usize>,
    /// Labels of the result's axes, each of which an operand has.
    pub result: Vec<usize>,
}

/// A sliding window over the spatial axes.
///
/// ```
/// use trefoil::{Shape, graph::{GraphBuilder, Window}};
/// let mut g = GraphBuilder::new();
/// let x = g.image("image", Shape::new(14, 14, 8));
/// let dilated = Window { dilation: vec![2; 2], ..Window::square(3, 1, 2) }; // reaches over 5x5 pixels
/// let x = g.conv2d("conv", x, 16, dilated);
/// assert_eq!(g.value(x).dims, [1, 14, 14, 16]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Taps along each axis.
    pub size: Vec<usize>,
    /// From one output to the next.
    pub stride: Vec<usize>,
    /// From one tap to the next.
    pub dilation: Vec<usize>,
    /// Added before and behind each axis.
    pub pad: Vec<[usize; 2]>,
}

/// Attributes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Its window; padding is zeros.
    pub window: Window,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

/// A pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// What is computed.
    pub op: PoolOp,
    /// The window. Padding behind an axis may reach further than the last window needs.
    pub window: Window,
}

/// What a pooling computes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolOp {
    /// The maximum; padding never wins. A second output, if there is one, has the index of each maximum within its image
    /// plane (i64): spatial positions counted row by row.
    Max,
    /// The sum; padding is 0.
    Sum,
    /// The mean of what is not padding.
    Mean,
    /// The sum divided by the window's taps, those in padding counted.
    MeanOfTaps,
}

/// Interpolation of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// How.
    pub mode: ResizeMode,
    /// Which place of the operand a place of the result is.
    pub coordinates: ResizeCoordinates,
    /// The result's dimensions.
    pub dims: Vec<usize>,
    /// Result over operand for each axis, as places are computed with; 1 where an axis stays.
    pub scales: Vec<f64>,
    /// The part of the operand, for each axis, that [`ResizeCoordinates::Crop`] maps to: 0 is its first element, 1 its last.
    pub crop: Vec<[f64; 2]>,
    /// Whether a smaller result is filtered by as much as it is smaller.
    pub antialias: bool,
    /// Whether taps outside the operand are left out and the others weighted up.
    pub exclude_outside: bool,
    /// What a place outside the crop holds.
    pub outside: Option<f64>,
}

/// How elements between places are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResizeMode {
    /// The nearest element.
    Nearest(Nearest),
    /// Between the two nearest along each axis.
    Linear,
    /// By the cubic through four along each axis, with this coefficient.
    Cubic(f64),
}

/// Which element is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nearest {
    /// Half-way the lower.
    PreferFloor,
    /// Half-way the higher.
    PreferCeil,
    /// Always the lower.
    Floor,
    /// Always the higher.
    Ceil,
}

/// Which place x of the operand the place y of the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeCoordinates {
    /// (y + 0.5) / scale - 0.5.
    HalfPixel,
    /// The same with the middle of the image kept where the result's size was rounded.
    HalfPixelSymmetric,
    /// The same, but 0 where the result has one element.
    PytorchHalfPixel,
    /// First on first, last on last: y (size - 1) / (size x scale - 1).
    AlignCorners,
    /// y / scale.
    Asymmetric,
    /// From the crop's first to its last.
    Crop,
}

/// The place that an index of an axis of this size means: a negative one counts from the end, and what is out of range
/// then is the nearest that is not.
pub(crate) fn place(index: i64, size: usize) -> usize {
    let size = size as i64;
    let index = if index < 0 { index.saturating_add(size) } else { index };
    index.clamp(0, (size - 1).max(0)) as usize
}

impl Contract {
    /// The product of matrices in the last two axes of operands of these ranks (1: a vector); outer axes are a batch, and
    /// broadcast.
    pub fn matmul(left: usize, right: usize) -> Self {
        let batch = left.max(right).saturating_sub(2);
        let [m, n, k] = [batch, batch + 1, batch + 2];
        let outer = |rank: usize| (batch - rank.saturating_sub(2)..batch).collect::<Vec<_>>();
        let rows: &[usize] = if left > 1 { &[m] } else { &[] };
        let columns: &[usize] = if right > 1 { &[n] } else { &[] };
        Self {
            left: [&outer(left)[..], rows, &[k]].concat(),
            right: [&outer(right)[..], &[k], columns].concat(),
            result: [&outer(left.max(right))[..], rows, columns].concat(),
        }
    }
}

impl Contract {
    /// Whether the second operand has the summed axis first; none where this is another product than of the last axis of the
    /// first operand by a matrix, with the other axes in their places.
    pub(crate) fn sums_first(&self) -> Option<bool> {
        let (&summed, outer) = self.left.split_last()?;
        let (&last, result) = self.result.split_last()?;
        match self.right[..] {
            _ if outer != result || outer.contains(&last) => None,
            [a, b] if [a, b] == [summed, last] => Some(true),
            [a, b] if [a, b] == [last, summed] => Some(false),
            _ => None,
        }
    }
}

impl Window {
    /// The same along each of so many axes.
    pub fn all(axes: usize, size: usize, stride: usize, pad: usize) -> Self {
        Self { size: vec![size; axes], stride: vec![stride; axes], dilation: vec![1; axes], pad: vec![[pad; 2]; axes] }
    }

    /// A square window over the pixels of an image, with the same padding on every side.
    pub fn square(size: usize, stride: usize, pad: usize) -> Self {
        Self::all(2, size, stride, pad)
    }
}

/// Layers take a window by value or by reference.
impl From<&Self> for Window {
    fn from(of: &Self) -> Self {
        of.clone()
    }
}

impl Op {
    /// The operation's name, for messages: `"conv"`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Map(_) => "map",
            Self::Reduce(_) => "reduce",
            Self::ArgReduce(_) => "arg-reduce",
            Self::Cumulate(_) => "cumulate",
            Self::Softmax { .. } => "softmax",
            Self::Norm(_) => "norm",
            Self::Reshape(_) => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Slice(_) => "slice",
            Self::Broadcast(_) => "broadcast",
            Self::Pad(_) => "pad",
            Self::Concat(_) => "concat",
            Self::Gather(_) => "gather",
            Self::GatherElements(_) => "gather-elements",
            Self::GatherNd(_) => "gather-nd",
            Self::ScatterElements(..) => "scatter-elements",
            Self::ScatterNd(_) => "scatter-nd",
            Self::TopK(_) => "top-k",
            Self::Contract(_) => "contract",
            Self::Conv(_) => "conv",
            Self::ConvTranspose(..) => "conv-transpose",
            Self::Pool(_) => "pool",
            Self::Resize(_) => "resize",
            Self::Quantize { .. } => "quantize",
            Self::Dequantize { .. } => "dequantize",
        }
    }
}
