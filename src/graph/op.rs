//! The operations of a graph.
//!
//! There are few operations: other operations are written as several of these, and kernels that compute several nodes
//! at once recognise them again.

use super::expr::{Expr, Number};
use crate::tensor::Dtype;

/// An operation. Axes are counted from 0, the outermost.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// An expression that computes each element from the elements of the operands at the same place. Operands are
    /// broadcast to one shape as in NumPy.
    Map(Expr),
    /// Sums and other reductions along axes.
    Reduce(Reduce),
    /// The index of the largest or smallest element along an axis: i64. NaN is larger, or smaller, than any number.
    ArgReduce(ArgReduce),
    /// Cumulative sums or products along an axis.
    Cumulate(Cumulate),
    /// exp(x - max) / sum(exp(x - max)) along an axis, computed in f32 or f64; with `log`, the logarithm of that.
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
    /// The operands joined one behind the other along an axis.
    Concat(usize),
    /// Slices of the first operand along an axis, at the indices in the second operand: integers of any rank, whose
    /// axes replace this axis. Negative indices count from the end; an index that is still out of range becomes the
    /// nearest valid one.
    Gather(usize),
    /// For each element of the second operand, which is an index as for [`Gather`](Self::Gather), the element of the
    /// first operand at the same place except for this index along an axis.
    GatherElements(usize),
    /// Slices of the first operand at the places that the rows of the second operand name. The number is that of
    /// leading axes that are a batch.
    GatherNd(usize),
    /// The first operand with some elements replaced by elements of the third operand: an element goes to its own
    /// place, except that the second operand has the index along this axis.
    ScatterElements(usize, Scatter),
    /// The first operand with some slices replaced by slices of the third operand, at the places that the rows of the
    /// second operand name.
    ScatterNd(Scatter),
    /// The largest or smallest elements along an axis, and their indices (i64).
    TopK(TopK),
    /// Products of two operands, summed over axes.
    Contract(Contract),
    /// Attention within rows of tokens that lie end to end.
    PackedAttention(PackedAttention),
    /// All steps of a recurrent layer.
    Recurrent(Recurrent),
    /// Convolution of `[N, spatial…, C]` by `[K, C / groups, taps…]`, and an optional bias `[K]`: `[N, spatial…, K]`.
    Conv(Conv),
    /// Transposed convolution of `[N, spatial…, C]` by `[C, K / groups, taps…]`, and an optional bias `[K]`. Its window's
    /// padding is cut off the result.
    ConvTranspose(Conv, Vec<usize>),
    /// Maximum, mean or sum over windows of `[N, spatial…, C]`.
    Pool(Pool),
    /// Interpolation of axes to other sizes.
    Resize(Resize),
    /// The operand rounded to integers of a type: round(x / scale) + zero point, saturated; NaN becomes 0. The second
    /// operand is the scale, the third, optional one the zero point. If they are vectors, they have one element for
    /// each index along `axis`.
    Quantize {
        /// The type.
        dtype: Dtype,
        /// The axis along which scales differ, if they do.
        axis: Option<usize>,
    },
    /// (x - zero point) x scale, in the type of the scale. The operands are those of [`Quantize`](Self::Quantize).
    Dequantize {
        /// The axis along which scales differ, if they do.
        axis: Option<usize>,
    },
}

/// Sums and other reductions along axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// The reduction. Floats are summed and multiplied in f32 or f64.
    pub op: ReduceOp,
    /// The axes, ascending.
    pub axes: Vec<usize>,
    /// Whether the result keeps the axes, with size 1.
    pub keep: bool,
}

/// The kind of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum; 0 without elements.
    Sum,
    /// The product; 1 without elements.
    Prod,
    /// The smallest element, or NaN if one is NaN; without elements the type's largest number, or infinity for floats.
    /// For bools whether all are true.
    Min,
    /// The largest element, or NaN if one is NaN; without elements the type's smallest number, or minus infinity for
    /// floats. For bools whether at least one is true.
    Max,
    /// The sum divided by the number of elements.
    Mean,
}

/// The index of the largest or smallest element along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgReduce {
    /// Whether the largest element is wanted, or the smallest.
    pub largest: bool,
    /// The axis.
    pub axis: usize,
    /// Whether the result keeps the axis, with size 1.
    pub keep: bool,
    /// Whether the last of equal elements is taken, or the first.
    pub last: bool,
}

/// Cumulative sums or products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cumulate {
    /// [`ReduceOp::Sum`] or [`ReduceOp::Prod`].
    pub op: ReduceOp,
    /// The axis.
    pub axis: usize,
    /// Whether the sum at an element excludes the element itself.
    pub exclusive: bool,
    /// Whether the sums begin at the end of the axis.
    pub reverse: bool,
}

/// Normalisation: (x - mean) x (1 / sqrt(variance + eps)) x scale + bias, computed in f32, or in f64 for elements in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The first of the axes that are normalised together with all axes behind it.
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
    /// The number of elements added before the first index of each axis; if negative, as many are cut off.
    pub before: Vec<isize>,
    /// The number of elements added behind the last index, likewise.
    pub after: Vec<isize>,
    /// The values of the added elements.
    pub mode: PadMode,
}

/// The values of added elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number.
    Constant(Number),
    /// The operand mirrored at its first and last element, which are not repeated.
    Reflect,
    /// The nearest element.
    Edge,
    /// The operand repeated periodically, from its other end.
    Wrap,
}

/// How a scatter combines elements with the element at their place. Indices are read as those of a gather; 16-bit
/// floats are combined in f32 and rounded at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scatter {
    /// The new element replaces the old one; the last of several stays.
    Replace,
    /// New elements are added to the old one.
    Add,
    /// The old element is multiplied by the new ones.
    Mul,
    /// The smallest of all stays.
    Min,
    /// The largest of all stays.
    Max,
}

/// The extremes along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The axis.
    pub axis: usize,
    /// The number of elements.
    pub k: usize,
    /// Whether the largest are wanted, or the smallest. The most extreme comes first, of equal ones the first. NaN is
    /// larger than every number.
    pub largest: bool,
}

/// Products of two operands, summed over some axes, as in an einsum. Each axis has a label, and axes with the same
/// label have the same index. Labels that the result does not have are summed over. An axis of size 1 is broadcast.
/// Floats are summed in f32 or f64.
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
    /// Labels of the result's axes; an operand has each of them.
    pub result: Vec<usize>,
}

/// softmax(q kᵀ x scale + bias) v for each head, within rows of tokens that lie end to end: a token sees those of its own row
/// and no others.
///
/// Operands: queries and keys `[tokens, heads, features]` and values `[tokens, heads, values]` of f32; where rows begin and
/// end, i32 or i64, as cumulative lengths have it; and an optional bias of f32, `[heads, 2 x longest - 1]`, or of one head for
/// all, whose element `longest - 1 + d` is added to the scores of the keys d places behind a token. The result has a vector for
/// each token and head, as the values do.
///
/// A token's row is from the largest such number that is not behind it to the smallest one that is, but no longer than
/// `longest`. Only numbers from 0 to `tokens` count, whatever their order. A token that is in no row gets zeros. So a row's
/// result depends on its own tokens alone, and nothing outside the operands is read, whatever the numbers are.
///
/// ```
/// use trefoil::{Dtype, graph::{Op, PackedAttention, Tensor, ValueType}, loops};
/// let zeros = Tensor::of(&[4, 1, 1], &[0.0_f32; 4]); // all keys have the same score
/// let values = Tensor::of(&[4, 1, 1], &[1.0_f32, 3.0, 5.0, 7.0]);
/// let starts = Tensor::of(&[3], &[0_i64, 2, 3]); // two tokens, then one; the last token is in no row
/// let of = Op::PackedAttention(PackedAttention { longest: 2, scale: 1.0 });
/// let operands = [Some(&zeros), Some(&zeros), Some(&values), Some(&starts)];
/// let mixed = loops::compute(&of, &operands, &[ValueType::new(Dtype::F32, &[4, 1, 1])])?;
/// assert_eq!(mixed[0].elems::<f32>(), [2.0, 2.0, 5.0, 0.0]);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackedAttention {
    /// Tokens of the longest row.
    pub longest: usize,
    /// What scores are multiplied by.
    pub scale: f64,
}

/// All steps of a recurrent layer of one or two directions, as ONNX has them. Each step computes the next state of a
/// sequence from the step's inputs and the state, and shows it.
///
/// Operands, all but the last of one type of floats, where D is the number of directions, G that of the cell's gates, B
/// that of sequences and H that of hidden units:
///
/// 0. the inputs' products of all steps, with their biases, `[steps, B, D x G x H]`;
/// 1. the recurrent weights `[D x G x H, H]`;
/// 2. for a GRU, the bias of the last gate's recurrent product, `[D, H]`;
/// 3. optional, the first h `[D, B, H]`; zeros without it;
/// 4. optional, for an LSTM, the first c likewise;
/// 5. optional, for an LSTM, the weights of c in the gates i, o and f, `[D, 3 x H]`;
/// 6. optional, the lengths of the sequences, i32 or i64 `[B]`: after its end a sequence keeps its state, and shows zeros.
///
/// Results: what is shown, `[steps, B, D x H]`; the last h `[D, B, H]`; for an LSTM, the last c.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, Op, Recurrent, RecurrentCell, Tensor, ValueType}, loops};
/// // h is the sum of all inputs so far: the recurrent weight is 1.
/// let of = Recurrent { cell: RecurrentCell::Rnn, backwards: vec![false], activations: vec![vec![Expr::arg(0)]] };
/// let [inputs, weights] = [Tensor::of(&[3, 1, 1], &[1.0_f32, 2.0, 3.0]), Tensor::of(&[1, 1], &[1.0_f32])];
/// let types = [[3, 1, 1], [1, 1, 1]].map(|dims| ValueType::new(Dtype::F32, &dims));
/// let sums = loops::compute(&Op::Recurrent(of), &[Some(&inputs), Some(&weights)], &types)?;
/// assert_eq!((sums[0].elems::<f32>(), sums[1].elems::<f32>()), (&[1.0, 3.0, 6.0][..], &[6.0][..]));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// What computes a step.
    pub cell: RecurrentCell,
    /// For each direction, whether it begins with the last step.
    pub backwards: Vec<bool>,
    /// For each direction, the cell's activations as expressions of operand 0.
    pub activations: Vec<Vec<Expr>>,
}

/// The computation of a step of a recurrent layer. Below, `s` is what the inputs make of a gate and `p` the product of
/// its recurrent weights with h; `f`, `g` and `k` are the cell's activations, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecurrentCell {
    /// h = f(s + p).
    Rnn,
    /// The gates are z, r and h: z = f(s + p), r = f(s + p), n = g(s + r (p + bias)), and h = (1 - z) n + z h.
    Gru {
        /// Whether r is applied after the product; else n = g(s + p + bias), where p is the product with r h.
        reset_after: bool,
    },
    /// The gates are i, o, f and c: c = f(s_f + p_f) c + f(s_i + p_i) g(s_c + p_c), and h = f(s_o + p_o) k(c).
    Lstm {
        /// Whether 1 - i stands for the gate f.
        coupled: bool,
    },
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
    /// The step from one output to the next, along each axis.
    pub stride: Vec<usize>,
    /// The step from one tap to the next, along each axis.
    pub dilation: Vec<usize>,
    /// The padding before and behind each axis.
    pub pad: Vec<[usize; 2]>,
}

/// Attributes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Its window; padding is zeros.
    pub window: Window,
    /// The number of groups of channels; an output channel reads only the input channels of its group.
    pub groups: usize,
}

/// A pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The function of a window.
    pub op: PoolOp,
    /// The window. Padding behind an axis may reach further than the last window needs.
    pub window: Window,
}

/// The function that a pooling applies to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolOp {
    /// The maximum; padding never wins. A second output, if there is one, has the index of each maximum within its image
    /// plane (i64): spatial positions counted row by row.
    Max,
    /// The sum; padding is 0.
    Sum,
    /// The mean of the elements that are not padding.
    Mean,
    /// The sum divided by the number of the window's taps, including taps in padding.
    MeanOfTaps,
}

/// Interpolation of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// The interpolation.
    pub mode: ResizeMode,
    /// The mapping from places of the result to places of the operand.
    pub coordinates: ResizeCoordinates,
    /// The result's dimensions.
    pub dims: Vec<usize>,
    /// The size of the result divided by that of the operand, for each axis; the mapping of places uses it. 1 for axes
    /// that do not change.
    pub scales: Vec<f64>,
    /// The part of the operand, for each axis, that [`ResizeCoordinates::Crop`] maps to: 0 is its first element, 1 its last.
    pub crop: Vec<[f64; 2]>,
    /// Whether a filter as wide as the reduction is applied if the result is smaller.
    pub antialias: bool,
    /// Whether taps outside the operand are left out, and the weights of the others scaled to a sum of 1.
    pub exclude_outside: bool,
    /// The value of places outside the crop.
    pub outside: Option<f64>,
}

/// How elements between places are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResizeMode {
    /// The nearest element.
    Nearest(Nearest),
    /// Linear interpolation between the two nearest elements along each axis.
    Linear,
    /// Cubic interpolation of four elements along each axis, with this coefficient.
    Cubic(f64),
}

/// The rule by which the nearest element is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nearest {
    /// The nearest; half-way the lower.
    PreferFloor,
    /// The nearest; half-way the higher.
    PreferCeil,
    /// Always the lower.
    Floor,
    /// Always the higher.
    Ceil,
}

/// The place x of the operand to which the place y of the result is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeCoordinates {
    /// (y + 0.5) / scale - 0.5.
    HalfPixel,
    /// As [`HalfPixel`](Self::HalfPixel), but the middle of the image stays in the middle if the size of the result was
    /// rounded.
    HalfPixelSymmetric,
    /// As [`HalfPixel`](Self::HalfPixel), but 0 if the result has one element.
    PytorchHalfPixel,
    /// The first element maps to the first and the last to the last: y (size - 1) / (size x scale - 1).
    AlignCorners,
    /// y / scale.
    Asymmetric,
    /// The first and the last element map to those of the crop.
    Crop,
}

/// The position that an index stands for along an axis of this size: a negative index counts from the end, and an index
/// that is still out of range becomes the nearest valid position.
pub(crate) fn place(index: i64, size: usize) -> usize {
    let size = size as i64;
    let index = if index < 0 { index.saturating_add(size) } else { index };
    index.clamp(0, (size - 1).max(0)) as usize
}

impl RecurrentCell {
    /// The number of its gates.
    pub const fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    /// The number of values of its state, each `[D, B, H]`.
    pub const fn states(self) -> usize {
        match self {
            Self::Rnn | Self::Gru { .. } => 1,
            Self::Lstm { .. } => 2,
        }
    }

    /// The number of its activations.
    pub const fn activations(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 2,
            Self::Lstm { .. } => 3,
        }
    }
}

impl Contract {
    /// The product of matrices in the last two axes of operands with these ranks; rank 1 is a vector. Outer axes are a
    /// batch, and are broadcast.
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
    /// Whether the second operand has the summed axis first. `None` if this is not a product of the last axis of the
    /// first operand with a matrix that leaves the other axes in place.
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
    /// A window with the same size, stride and padding along each of `axes` axes.
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
            Self::PackedAttention(_) => "packed-attention",
            Self::Recurrent(_) => "recurrent",
            Self::Conv(_) => "conv",
            Self::ConvTranspose(..) => "conv-transpose",
            Self::Pool(_) => "pool",
            Self::Resize(_) => "resize",
            Self::Quantize { .. } => "quantize",
            Self::Dequantize { .. } => "dequantize",
        }
    }
}
