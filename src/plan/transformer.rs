//! Operations of transformers: products, attention and norms of rows of f16 or bf16.

use super::product::{SLAB, STEP_K};
use super::{AttentionSizes, HeadsAt, ProductActivation, ProductKernel, ProductSizes, RowsAt};
use crate::model::{Conv2d, Window};

/// A product of rows with a matrix of weights, and its epilogue. The step reads the rows, then the statistics of the rows
/// if it norms them, then biases, factors and residual if there are any. It writes rows one behind the other, and their
/// statistics if a product behind it norms them.
///
/// ```
/// use trefoil::plan::{ProductActivation, ProductOp, ProductSizes, RowsAt, StepOp};
/// use trefoil::model::images::{Conv2d, Window};
/// let product = ProductOp {
///     weights: Conv2d::named("fc1", 3072, Window::square(1, 1, 0)),
///     rows: 197,
///     terms: 768,
///     x: RowsAt { first: 0, pitch: 768 },
///     activation: ProductActivation::Gelu,
///     bias: true,
///     scale: false,
///     residual: None,
///     norm: None,
///     statistics: false,
/// };
/// assert_eq!(product.sizes(128), ProductSizes { m: 25_216, n: 3072, k: 768 });
/// assert_eq!(StepOp::Product(product).label(2), "product+gelu");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ProductOp {
    /// The matrix as the filter of a convolution: with one tap, or with the taps whose pixels lie in a row.
    pub weights: Conv2d,
    /// The number of result rows for each row of a batch.
    pub rows: usize,
    /// The number of products in each value of the result.
    pub terms: usize,
    /// The place of the rows in the operand.
    pub x: RowsAt,
    /// The activation, applied after the biases are added.
    pub activation: ProductActivation,
    /// Whether a bias for each column is added to the sums.
    pub bias: bool,
    /// Whether the activations are multiplied by a factor for each column.
    pub scale: bool,
    /// The place of the rows of a residual, which is added at the end, in its operand; `None` without one.
    pub residual: Option<RowsAt>,
    /// The norm of the rows within the product, if there is one; biases are then among the weights.
    pub norm: Option<NormWithin>,
    /// Whether the statistics of the result's rows are written too.
    pub statistics: bool,
}

/// A LayerNorm or RMSNorm of rows within the product that reads them: the norm's factors are in the product's weights,
/// and mean and variance of each row, made of its statistics, are applied to the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWithin {
    /// Whether the mean is subtracted (LayerNorm) or not (RMSNorm).
    pub centred: bool,
    /// The number that is added to the variance; positive.
    pub epsilon: f32,
    /// Name of the norm's factors.
    pub weight: String,
    /// Name of the norm's biases, if it has any.
    pub bias: Option<String>,
    /// Name of the product's own biases, if it has any.
    pub product_bias: Option<String>,
}

/// Attention, whose step reads queries, keys, values and a mask, if there is one.
///
/// ```
/// use trefoil::plan::{AttentionOp, AttentionSizes, HeadsAt, StepOp};
/// let sizes = AttentionSizes { images: 32, heads: 12, rows: 197, keys: 197, dims: 64 };
/// let at = |part: usize| HeadsAt { first: 768 * part, pitches: [64, 2304, 197 * 2304] };
/// let out = HeadsAt { first: 0, pitches: [64, 768, 197 * 768] };
/// let attention = AttentionOp { sizes, scale: 0.125, qkv: [at(0), at(1), at(2)], out, mask: None, result: None };
/// assert_eq!(attention.flops(), 4 * 32 * 12 * 197 * 197 * 64);
/// assert_eq!(StepOp::Attention(attention).label(3), "attention");
/// let to_codes = AttentionOp { result: Some(0.02), ..attention };
/// assert_eq!(StepOp::Attention(to_codes).label(3), "attention to e4m3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOp {
    /// The sizes of a run.
    pub sizes: AttentionSizes,
    /// The factor of the scores; positive.
    pub scale: f32,
    /// The places of queries, keys and values in their operands.
    pub qkv: [HeadsAt; 3],
    /// The place of the result in the output.
    pub out: HeadsAt,
    /// The distances from one head, row and image of the mask to the next, in values; `None` without a mask.
    pub mask: Option<[usize; 3]>,
    /// The scale of the result if it is codes of e4m3, of operands in f16; `None` if it is in the type of the operands.
    pub result: Option<f32>,
}

/// A LayerNorm or RMSNorm of rows, whose step reads the rows, the operands of a sum if the norm is of one, a factor for
/// each column, and biases if there are any.
///
/// ```
/// use trefoil::plan::{RowNormOp, RowNormResult, RowSum, StepOp};
/// let result = RowNormResult::Rows;
/// let norm = RowNormOp { rows: 25_216, columns: 768, centred: true, epsilon: 1e-6, result, sum: None };
/// assert_eq!(StepOp::RowNorm(norm).label(3), "layer-norm");
/// let with = |result| StepOp::RowNorm(RowNormOp { result, ..norm }).label(3);
/// assert_eq!(with(RowNormResult::Codes(0.02)), "layer-norm to e4m3");
/// assert_eq!(with(RowNormResult::Both(0.02)), "layer-norm and e4m3");
/// assert_eq!(with(RowNormResult::F32), "layer-norm to f32");
/// let sum = Some(RowSum { rows: 197, prefix: 1, positions: Some(0), first: None });
/// assert_eq!(StepOp::RowNorm(RowNormOp { sum, ..norm }).label(5), "sum+layer-norm");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNormOp {
    /// The number of rows of a run.
    pub rows: usize,
    /// The number of values of each row.
    pub columns: usize,
    /// Whether the mean is subtracted (LayerNorm) or not (RMSNorm).
    pub centred: bool,
    /// The number that is added to the variance; positive.
    pub epsilon: f32,
    /// What the step writes.
    pub result: RowNormResult,
    /// The sum that the norm is of, if the step computes it too and writes it as its second output; the result is then
    /// [`RowNormResult::Rows`].
    pub sum: Option<RowSum>,
}

/// What a step adds to the rows of images before it norms them: rows in front of those of each image, and positions. They
/// are the same for all images, and the step reads them, in f32 and in this order, behind the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSum {
    /// The number of rows of an image with those in front.
    pub rows: usize,
    /// The number of rows in front of an image's own.
    pub prefix: usize,
    /// The first row of an image to which a position is added, if there are positions: 0, or `prefix`.
    pub positions: Option<usize>,
    /// A norm of the sum that comes before the step's own, if there is one: the step writes its result in place of the
    /// sum, and reads its factors and biases in front of those of its own norm.
    pub first: Option<JoinedNorm>,
}

/// A norm that a step makes beside what it is named after. The step reads its factors, and its biases if it has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinedNorm {
    /// Whether the mean is subtracted (LayerNorm) or not (RMSNorm).
    pub centred: bool,
    /// The number that is added to the variance; positive.
    pub epsilon: f32,
    /// Whether it has biases.
    pub bias: bool,
}

/// What a norm of rows writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowNormResult {
    /// Its result, in the type of the rows.
    Rows,
    /// Codes of e4m3 with this scale, of rows in f16.
    Codes(f32),
    /// Both: the codes are the second output.
    Both(f32),
    /// Its result in f32.
    F32,
}

impl ProductOp {
    /// The sizes of a run with this number of rows.
    pub const fn sizes(&self, batch: usize) -> ProductSizes {
        ProductSizes { m: batch * self.rows, n: self.weights.out_channels, k: self.stored_terms() }
    }

    /// The number of values of a row of the operand and of the matrix.
    pub(crate) const fn stored_terms(&self) -> usize {
        stored_terms(&self.weights.window, self.terms)
    }

    /// Whether a kernel for products computes this one. Those for few rows do what there is to do of norms.
    pub(super) fn is_for(&self, kernel: ProductKernel) -> bool {
        kernel.tile.is_split() || !(self.norm.is_some() || self.statistics)
    }

    /// The dimensions of the statistics of the result's rows in a run: parts, an even number of rows, and two numbers.
    pub(super) const fn statistics_dims(&self, batch: usize) -> [usize; 3] {
        let ProductSizes { m, n, .. } = self.sizes(batch);
        [n.div_ceil(SLAB), m.next_multiple_of(2), 2]
    }

    /// A short text of the operation.
    pub(super) fn label(&self) -> String {
        let norm = self.norm.as_ref().map(|norm| format!("{}+", norm_name(norm.centred))).unwrap_or_default();
        let statistics = if self.statistics { "+statistics" } else { "" };
        let activation = self.activation.suffix();
        let scale = if self.scale { "+scale" } else { "" };
        let residual = if self.residual.is_some() { "+res" } else { "" };
        format!("{norm}product{activation}{scale}{residual}{statistics}")
    }
}

impl AttentionOp {
    /// Floating-point operations of the products of a run.
    pub const fn flops(&self) -> usize {
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        4 * images * heads * rows * keys * dims
    }

    /// A short text of the operation.
    pub(super) fn label(&self) -> String {
        let mask = if self.mask.is_some() { "+mask" } else { "" };
        format!("attention{mask}{}", to_e4m3(self.result))
    }

    /// Whether all heads begin at multiples of 16 bytes, as the kernels need it.
    pub(super) fn is_aligned(&self) -> bool {
        let [q, k, v] = self.qkv;
        let of_result = if self.result.is_some() { self.out.is_aligned_in_bytes() } else { self.out.is_aligned() };
        of_result && [q, k, v].into_iter().all(HeadsAt::is_aligned)
    }
}

/// What a norm is called in labels.
pub(super) const fn norm_name(centred: bool) -> &'static str {
    if centred { "layer-norm" } else { "rms-norm" }
}

impl RowNormOp {
    /// A short text of the operation.
    pub(super) fn label(&self) -> String {
        let result = match self.result {
            RowNormResult::Rows => "",
            RowNormResult::Codes(_) => " to e4m3",
            RowNormResult::Both(_) => " and e4m3",
            RowNormResult::F32 => " to f32",
        };
        let sum = match self.sum {
            Some(RowSum { first: Some(first), .. }) => format!("sum+{}+", norm_name(first.centred)),
            Some(_) => "sum+".to_owned(),
            None => String::new(),
        };
        format!("{sum}{}{result}", norm_name(self.centred))
    }

    /// Whether the kernel can compute the norm.
    pub(super) fn has_kernel(&self) -> bool {
        let first = self.sum.and_then(|sum| sum.first);
        let are_positive =
            [Some(self.epsilon), first.map(|of| of.epsilon)].into_iter().flatten().all(|of| of.is_finite() && of > 0.0);
        let has_sum = self.sum.is_none_or(|sum| {
            let begins = sum.positions.is_none_or(|from| from == 0 || from == sum.prefix);
            sum.prefix < sum.rows && self.rows.is_multiple_of(sum.rows) && begins && self.result == RowNormResult::Rows
        });
        let fits = self.columns.is_multiple_of(8) && (1..=MOST_COLUMNS).contains(&self.columns);
        self.rows > 0 && fits && are_positive && has_sum
    }

    /// Floating-point operations of a run.
    pub(super) const fn flops(&self) -> usize {
        let of_each = match self.sum {
            Some(RowSum { first: Some(_), .. }) => 17,
            Some(_) => 9,
            None => 8,
        };
        of_each * self.rows * self.columns
    }
}

/// The number of values that an operand of a product has for a window of so many: windows that overlap are copied in whole
/// steps of the product, others with rows of zeros.
pub(super) const fn stored_terms(window: &Window, terms: usize) -> usize {
    let [height, _] = window.size;
    if overlaps(window) { terms.next_multiple_of(STEP_K) } else { height_of_eights(height, terms) * (terms / height) }
}

/// Whether windows overlap.
pub(super) const fn overlaps(window: &Window) -> bool {
    window.stride[0] < window.size[0] || window.stride[1] < window.size[1]
}

/// The height of the windows of `terms` values that a product reads, if they are `height` high: whole rows of zeros follow
/// values whose number is no multiple of 8.
pub(super) const fn height_of_eights(height: usize, terms: usize) -> usize {
    let row = terms / height;
    let mut stored = height;
    while !(stored * row).is_multiple_of(8) {
        stored += 1;
    }
    stored
}

/// The end of the text of an operation: whether its result is codes of e4m3.
pub(super) const fn to_e4m3(result: Option<f32>) -> &'static str {
    if result.is_some() { " to e4m3" } else { "" }
}

/// The largest number of values of a row, which a kernel keeps in registers.
const MOST_COLUMNS: usize = 2048;
