//! Attention of one row of each image, with the norm and the product that make its queries, keys and values, on sm90
//! hardware.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::{PackedSum, usual};
use crate::plan::roofline::LAUNCH;
use crate::plan::transformer::norm_name;
use crate::plan::work::Work;
use crate::plan::{AttentionSizes, Joined, JoinedNorm, Limits, Rates, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_class_attention.cu`.
pub(super) struct Sm90ClassAttention;

impl KernelDef for Sm90ClassAttention {
    fn name(&self) -> &'static str {
        "sm90_class_attention"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        let StepOp::ClassAttention(of) = work.op else { return false };
        let [_, vectors @ ..] = &work.inputs[..] else { return false };
        work.half().is_some() && vectors.len() == of.vectors() && vectors.iter().all(|of| of.dtype == Dtype::F32)
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90ClassAttention
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let StepOp::ClassAttention(of) = work.op else { return Vec::new() };
        let clocks = of.clocks(limits).into_iter();
        clocks.map(|clocks| Variant::modelled((Kernel::Sm90ClassAttention, clocks))).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        match (work.op, kernel) {
            (StepOp::ClassAttention(of), Kernel::Sm90ClassAttention) if of.layout(limits).is_some() => Ok(()),
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }

    /// Rows once, and the matrix once for each cluster.
    fn cache_bytes(&self, work: &Work<'_>, limits: &Limits) -> u64 {
        let StepOp::ClassAttention(of) = work.op else { return 0 };
        let Some(layout) = of.layout(limits) else { return 0 };
        let rows = of.sizes.images * of.sizes.keys;
        (Dtype::F16.bytes() * of.columns() * (rows + 3 * of.columns() * layout.clusters)) as u64
    }

    /// The matrix without a bias, as a product of rows has it, so that a model with both has it once.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        usual(work).into_iter().map(|sum| PackedSum { bias: None, ..sum }).collect()
    }
}

/// Attention of one row of each image to all rows of the image, with the product that makes queries, keys and values of
/// the rows, and the norm of the rows if there is one. Its step reads the rows, the biases of the product if there are any,
/// and the norm's factors and biases, and writes a row for each image.
///
/// ```
/// use trefoil::model::images::{Conv2d, Window};
/// use trefoil::plan::{AttentionSizes, ClassAttentionOp, Joined, StepOp};
/// let sizes = AttentionSizes { images: 64, heads: 16, rows: 1, keys: 257, dims: 64 };
/// let conv = Conv2d::named("qkv", 3072, Window::square(1, 1, 0));
/// let product = Joined { name: "qkv".into(), conv };
/// let parts = [0, 1024, 2048];
/// let of = ClassAttentionOp { sizes, query: 0, scale: 0.125, product, parts, bias: true, norm: None };
/// assert_eq!(of.flops(), 4 * 64 * 16 * 257 * 1024);
/// assert_eq!(StepOp::ClassAttention(of).label(2), "class-attention");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClassAttentionOp {
    /// The sizes of a run: one row.
    pub sizes: AttentionSizes,
    /// The index of the row that attends.
    pub query: usize,
    /// The factor of the scores; positive.
    pub scale: f32,
    /// The product whose result has queries, keys and values side by side.
    pub product: Joined,
    /// The first of the product's columns that are queries, keys and values.
    pub parts: [usize; 3],
    /// Whether the product has a bias for each column.
    pub bias: bool,
    /// The norm of the rows that the product reads, if the step computes it too.
    pub norm: Option<JoinedNorm>,
}

/// How the blocks of the kernel share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassAttentionLayout {
    /// The largest number of heads of the kernel, one of `CLASS_HEADS`.
    pub(crate) most_heads: usize,
    /// The number of images of a cluster.
    pub(crate) each: usize,
    /// The number of clusters.
    pub(crate) clusters: usize,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: usize,
}

/// The numbers of heads up to which there are kernels. A head is a block of a cluster, and a cluster has two at least: a block
/// of its own cannot send to itself (CUDA_ERROR_ILLEGAL_INSTRUCTION).
pub(crate) const CLASS_HEADS: [usize; 4] = [4, 8, 12, 16];
/// The number of an image's rows that the kernel multiplies at a time.
pub(crate) const CLASS_KEYS: usize = 16;
/// The number of values of a head.
const DIMS: usize = 64;
/// The limit of the numbers of images and of keys.
const MOST: usize = 1 << 31;

impl ClassAttentionOp {
    /// Floating-point operations of a run besides the products with weights: each head reads whole rows.
    pub const fn flops(&self) -> usize {
        4 * self.sizes.images * self.sizes.heads * self.sizes.keys * self.columns()
    }

    pub(crate) fn label(&self) -> String {
        let norm = self.norm.map(|norm| format!("{}+", norm_name(norm.centred))).unwrap_or_default();
        format!("{norm}class-attention")
    }

    /// The number of vectors that the step reads behind the rows.
    fn vectors(&self) -> usize {
        usize::from(self.bias) + self.norm.map_or(0, |norm| 1 + usize::from(norm.bias))
    }

    /// The number of values of a row.
    pub(crate) const fn columns(&self) -> usize {
        self.sizes.heads * self.sizes.dims
    }

    /// How the kernel does its work; `None` if it cannot. It agrees with `Shared` in `kernels/sm90_class_attention.cu`.
    pub(crate) fn layout(&self, limits: &Limits) -> Option<ClassAttentionLayout> {
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        let most_heads = CLASS_HEADS.into_iter().find(|&most| heads <= most)?;
        let is_one = heads > 1 && dims == DIMS && rows == 1 && self.query < keys;
        let is_counted = (1..MOST).contains(&images) && keys < MOST;
        let inside =
            |first: usize| first.is_multiple_of(DIMS) && first + heads * dims <= self.product.conv.out_channels;
        if !(is_one
            && heads <= limits.most_cluster_blocks()
            && is_counted
            && self.scale > 0.0
            && self.scale.is_finite()
            && self.norm.is_none_or(|norm| norm.epsilon > 0.0 && norm.epsilon.is_finite())
            && self.parts.into_iter().all(inside))
        {
            return None;
        }
        let stage = 2 * CLASS_KEYS * DIMS * most_heads;
        let last = stage.max((most_heads * (2 * DIMS * most_heads + 64)).next_multiple_of(1024));
        let scores = 2 * 4 * WARPS * MOST_IMAGES * SCORE_PITCH;
        let gains = 2 * 4 * DIMS * most_heads;
        let moments = 2 * 8 * WARPS * MOST_IMAGES;
        let barriers = 8 * (8 + STAGES);
        let shared_bytes =
            (STAGES - 1) * stage + last + scores + MOST_IMAGES * QUERY_PITCH + gains + moments + barriers;
        // Each block has an image at most, and all clusters run at the same time if they can.
        let at_once = at_once(heads, limits);
        let rounds = images.div_ceil(at_once * heads);
        let each = images.div_ceil(at_once * rounds);
        let layout = ClassAttentionLayout { most_heads, each, clusters: images.div_ceil(each), shared_bytes };
        (shared_bytes <= limits.shared_bytes).then_some(layout)
    }

    /// Predicted clocks with a launch; `None` if the kernel cannot compute it.
    pub(crate) fn clocks(&self, limits: &Limits) -> Option<f64> {
        let ClassAttentionLayout { clusters, .. } = self.layout(limits)?;
        let AttentionSizes { images, heads, keys, .. } = self.sizes;
        let rounds = clusters.div_ceil(at_once(heads, limits)) as f64;
        let weights = (3 * 2 * DIMS * self.columns()) as f64 / CACHE_BYTES;
        let steps = keys.div_ceil(CLASS_KEYS) as f64;
        let clocks = rounds * (FIXED + weights + steps * (STEP + STEP_OF_HEAD * heads as f64));
        let rates = Rates::of(limits);
        let memory = |rates: Rates| (2 * images * keys * self.columns()) as f64 / rates.memory_bytes * rates.clock_hz;
        let [hz, memory] = [rates.map_or(CLOCK_HZ, |rates| rates.clock_hz), rates.map_or(0.0, memory)];
        Some(LAUNCH * hz + clocks.max(memory))
    }
}

/// The number of clusters of so many blocks that run at the same time, at least: the blocks of a cluster are on neighbouring
/// multiprocessors, of which a group has 16 to 18 on most of an H200. There, 7 clusters of 10 to 16 blocks run at the same
/// time, 15 of 8, 17 of 6, 30 of 4 and 66 of 2.
fn at_once(blocks: usize, limits: &Limits) -> usize {
    (limits.units / NEIGHBOURS * (16 / blocks)).max(1)
}

/// The most multiprocessors of a group.
const NEIGHBOURS: usize = 18;
/// What the kernel's source has: the most images of a cluster, parts of `CLASS_KEYS` rows that a block has, warps that
/// multiply, and pitches.
const MOST_IMAGES: usize = 16;
const STAGES: usize = 6;
const WARPS: usize = 8;
const SCORE_PITCH: usize = 20;
const QUERY_PITCH: usize = 144;
/// The clock frequency of unknown hardware.
const CLOCK_HZ: f64 = 1.8e9;
/// Bytes of weights that a multiprocessor reads in a clock. This and what follows is fitted to four problems on an H200
/// (benches/notes/2026-11-30-the-norm-of-one-row.md).
const CACHE_BYTES: f64 = 16.0;
/// Clocks of the accesses and barriers that follow each other.
const FIXED: f64 = 4000.0;
/// Clocks of a step of rows, and what each head adds.
const STEP: f64 = 250.0;
const STEP_OF_HEAD: f64 = 90.0;
