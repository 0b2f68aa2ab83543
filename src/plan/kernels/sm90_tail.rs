//! A network's last layers as one step on compute capability 9.0: the pattern in a graph, and the tile of the kernel.

use std::fmt;

use super::sm90_mean_linear::MeanLinearShape;
use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::{Linear, NodeId, Op};
use crate::plan::context::{ALWAYS, CHOSEN, Context, Match};
use crate::plan::work::{Operand, Work};
use crate::plan::{Family, Limits, StepOp};
use crate::tensor::{Dtype, OutputKind, Shape};

/// The kernel in `kernels/sm90_tail.cu`.
pub(super) struct Sm90Tail;

impl KernelDef for Sm90Tail {
    fn name(&self) -> &'static str {
        "sm90_tail"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        TailShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Tail(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(shape) = TailShape::of(work) else { return Vec::new() };
        shape.tiles(limits).map(|(tile, clocks)| Variant::modelled((Kernel::Sm90Tail(tile), clocks))).collect()
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(find(context, at).into_iter().collect())
    }
}

/// A network's last layers: mean over all pixels, fully connected layer, output rows.
///
/// ```
/// use trefoil::{OutputKind, model::images::Linear, plan::{StepOp, Tail}};
/// let tail = Tail { linear: Linear::named("fc", 1000), output: Some(OutputKind::TopK(5)), x_scale: None };
/// assert_eq!(StepOp::Tail(tail.clone()).label(1), "mean+fc+topk(5)");
/// assert_eq!(StepOp::Tail(Tail { x_scale: Some(0.02), ..tail.clone() }).label(1), "s8 mean+fc+topk(5)");
/// assert_eq!(StepOp::Tail(Tail { output: None, ..tail }).label(1), "mean+fc");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tail {
    /// The fully connected layer.
    pub linear: Linear,
    /// The kind of output, not features; `None` if the step writes logits for another step.
    pub output: Option<OutputKind>,
    /// The scale of the input, if the mean reads bytes.
    pub x_scale: Option<f32>,
}

impl Tail {
    /// The number of outputs of the layer as its weights are stored, with padding.
    pub(crate) fn k_stored(&self) -> usize {
        self.linear.out_features.next_multiple_of(Family::Sm80.channel_align())
    }

    /// Whether the kernels read such activations: those in f16, or bytes with a scale.
    pub(super) fn reads(&self, x: Operand) -> bool {
        match self.x_scale {
            Some(_) => matches!(x.dtype, Dtype::U8 | Dtype::I8) && x.shape.pixels() <= MOST_PIXELS,
            None => x.dtype == Dtype::F16,
        }
    }

    /// The operands of the fully connected layer: the mean of `x`, and the logits. The kernel writes neither to memory.
    pub(crate) fn layer(&self, x: Operand) -> [Operand; 2] {
        let vector =
            |channels, stored_channels, dtype| Operand { shape: Shape::vector(channels), stored_channels, dtype };
        let mean = vector(x.shape.channels, x.stored_channels, Dtype::F16);
        [mean, vector(self.linear.out_features, self.k_stored(), Dtype::F32)]
    }

    /// The parts of the step, by short names.
    pub(crate) fn parts(&self) -> String {
        match self.output {
            None => "mean+fc".into(),
            Some(OutputKind::Probabilities) => "mean+fc+softmax".into(),
            Some(output) => format!("mean+fc+{output:?}").to_lowercase(),
        }
    }
}

/// The tile of the tail kernel: the images that one cluster of thread blocks computes, and the number of its blocks.
///
/// ```
/// use trefoil::plan::{Kernel, TailTile};
/// let tile = TailTile { images: 1, blocks: 16 };
/// assert!(TailTile::BLOCKS.contains(&tile.blocks));
/// assert_eq!(Kernel::Sm90Tail(tile).to_string(), "sm90 tail 1/16");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TailTile {
    /// The number of images, from 1 to the largest of [`TailTile::IMAGES`].
    pub images: usize,
    /// The number of blocks of the cluster, one of [`TailTile::BLOCKS`].
    pub blocks: usize,
}

impl TailTile {
    /// The numbers of images that the kernels are compiled for; each kernel also computes fewer.
    pub const IMAGES: [usize; 2] = [8, 16];
    /// The numbers of blocks of a cluster. 16 blocks need a GPU whose multiprocessors are in groups of 16: a whole H100
    /// or H200.
    pub const BLOCKS: [usize; 2] = [8, 16];

    /// The largest number of images of the kernel that computes the tile, and its stages in flight; `None` if no kernel
    /// does.
    pub(crate) fn kernel(self) -> Option<[usize; 2]> {
        let stages = [5, 3];
        let index = Self::IMAGES.into_iter().position(|most| self.images <= most)?;
        (self.images >= 1 && Self::BLOCKS.contains(&self.blocks)).then(|| [Self::IMAGES[index], stages[index]])
    }
}

impl fmt::Display for TailTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.images, self.blocks)
    }
}

/// The properties of a tail that decide its time: the rows, an image with its stored channels and type, the stored
/// outputs, and the kind of output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailShape {
    pub batch: usize,
    pub input: Shape,
    pub dtype: Dtype,
    pub k_stored: usize,
    pub output: OutputKind,
}

/// The number of threads of a block.
pub(crate) const TAIL_THREADS: usize = 512;
/// The number of outputs that a warp computes at a time.
pub(crate) const TAIL_UNIT: usize = 32;

/// Bytes of shared memory of the means of so many images. It agrees with the kernels: rows lie in different banks.
pub(super) const fn mean_bytes(images: usize, channels: usize) -> usize {
    images * ((channels / 8).next_multiple_of(8) + 4) * 16
}

impl TailShape {
    /// The tail of a step; `None` unless it reads activations in f16, or bytes with a scale.
    fn of(work: &Work<'_>) -> Option<Self> {
        let StepOp::Tail(tail @ Tail { output: Some(output), .. }) = work.op else { return None };
        let (input, dtype) = (work.inputs[0].stored(), work.inputs[0].dtype);
        let shape = Self { batch: work.batch, input, dtype, k_stored: tail.k_stored(), output: *output };
        (tail.reads(work.inputs[0]) && work.writes(Dtype::F32)).then_some(shape)
    }

    /// Bytes of dynamic shared memory of a block: filters on their way, partial sums, means, and logits of the rows
    /// that the block writes. `None` if there is no kernel for the tile. It agrees with `kernels/sm90_tail.cu`.
    pub(crate) fn shared_bytes(&self, tile: TailTile) -> Option<usize> {
        let [most_images, stages] = tile.kernel()?;
        let ring = stages * TAIL_UNIT / 8 * TAIL_THREADS * 16;
        let sums = (TAIL_THREADS * 32).max(TAIL_THREADS / 32 * TAIL_UNIT * most_images * 4);
        let means = mean_bytes(tile.images, self.input.channels);
        let rows = if self.output == OutputKind::Logits { 0 } else { tile.images.div_ceil(tile.blocks) };
        Some(ring + sums + means + rows * self.k_stored * 4)
    }

    fn fits(&self, tile: TailTile, limits: &Limits) -> bool {
        self.shared_bytes(tile).is_some_and(|bytes| bytes + STATIC_BYTES <= limits.shared_bytes)
    }

    /// Every tile that fits into shared memory, with its predicted clocks.
    fn tiles(&self, limits: &Limits) -> impl Iterator<Item = (TailTile, f64)> {
        let most = TailTile::IMAGES[1].min(self.batch);
        // The smallest number of images for each number of clusters.
        let images = (1..=most).filter(|&images| self.batch.div_ceil(self.batch.div_ceil(images)) == images);
        let blocks = TailTile::BLOCKS.into_iter().filter(|&blocks| blocks <= limits.most_cluster_blocks());
        let tiles = images.flat_map(move |images| blocks.clone().map(move |blocks| TailTile { images, blocks }));
        tiles.filter(|&tile| self.fits(tile, limits)).map(|tile| (tile, self.clocks(tile, limits)))
    }

    /// Predicted clocks of the busiest multiprocessor. About one of eleven multiprocessors is in no whole cluster. The
    /// copy of a block's share of the filters and of its images takes most of the time; its rate is bounded by what one
    /// multiprocessor can read, and by what all can read together.
    fn clocks(&self, tile: TailTile, limits: &Limits) -> f64 {
        let clusters = self.batch.div_ceil(tile.images);
        let at_once = clusters.min((limits.units * 10 / 11 / tile.blocks).max(1));
        let rate = OF_ONE.min(OF_EACH * limits.units as f64 / (at_once * tile.blocks) as f64);
        let filters = self.k_stored.div_ceil(tile.blocks).next_multiple_of(TAIL_UNIT) * self.input.channels * 2;
        let images = tile.images * self.input.elems() * self.dtype.bytes() / tile.blocks;
        let exchanged = tile.images * self.input.channels * 2;
        let bytes = (filters + images + exchanged) as f64;
        clusters.div_ceil(at_once) as f64 * (bytes / rate + OF_BLOCK)
    }
}

/// The largest number of pixels of an image of bytes, so that sums fit 32 bits.
pub(crate) const MOST_PIXELS: usize = 1 << 23;
/// Bytes of static shared memory of a block, plus the shared memory that the driver reserves.
const STATIC_BYTES: usize = 256;
/// Bytes per clock that a multiprocessor of an H200 gets from the L2 cache while few others read.
const OF_ONE: f64 = 60.0;
/// Bytes per clock that a multiprocessor of an H200 gets from the L2 cache while all others read.
const OF_EACH: f64 = 30.0;
/// The rest of a block's time, in clocks: latencies, waits for other blocks, sums and rows.
const OF_BLOCK: f64 = 6000.0;

/// The largest batch whose last layers are one step by default, where they are not two: in measurements this was faster
/// than three steps.
const MOST_ROWS: usize = 1;

/// The match of the last layers whose output rows are node `at`. `None` if the kernel does not compute them, if the
/// program chose another kernel for the linear layer, or if the batch is too large for one step by default.
fn find(context: &Context<'_>, at: NodeId) -> Option<Match> {
    let (&Op::Emit(output), &[layer]) = (&context.node(at).op, &context.node(at).inputs[..]) else { return None };
    if output == OutputKind::Features {
        return None;
    }
    let found = mean_and_layer(context, layer, Some((at, output)))?;
    let (shape, limits) = (TailShape::of(&context.work(&found))?, context.limits());
    let is_mean_linear = shape.input.channels <= MeanLinearShape::CHANNELS;
    let (tile, saved) = match context.chosen(layer) {
        None if shape.batch <= MOST_ROWS && !is_mean_linear => (best(&shape, limits)?, ALWAYS),
        Some(Kernel::Sm90Tail(tile)) if shape.fits(tile, limits) => (tile, CHOSEN),
        _ => return None,
    };
    Some(Match { kernel: Some(Kernel::Sm90Tail(tile)), saved, ..found })
}

/// The match of a linear layer with the mean over pixels that it reads, and with the rows of the result that a node makes
/// of its logits, if one is given; without a kernel. `None` if the node is no such layer.
pub(super) fn mean_and_layer(
    context: &Context<'_>,
    layer: NodeId,
    rows: Option<(NodeId, OutputKind)>,
) -> Option<Match> {
    let node = context.node(layer);
    let (Op::Linear(linear), &[mean]) = (&node.op, &node.inputs[..]) else { return None };
    let pooled = context.node(mean);
    let (at, output) = rows.unzip();
    let x_scale = context.scale(*pooled.inputs.first()?);
    (pooled.op == Op::GlobalAvgPool).then(|| Match {
        name: node.name.clone(),
        op: StepOp::Tail(Tail { linear: linear.clone(), output, x_scale }),
        kernel: None,
        place: at.unwrap_or(layer),
        covers: [mean, layer].into_iter().chain(at).collect(),
        reads: pooled.inputs.clone(),
        writes: vec![at.unwrap_or(layer)],
        saved: 0.0,
    })
}

/// The tile with the least predicted time of the busiest multiprocessor; `None` if none fits into shared memory.
fn best(shape: &TailShape, limits: &Limits) -> Option<TailTile> {
    shape.tiles(limits).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(tile, _)| tile)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resnet50(batch: usize) -> TailShape {
        let (input, dtype) = (Shape::new(7, 7, 2048), Dtype::F16);
        TailShape { batch, input, dtype, k_stored: 1000, output: OutputKind::Probabilities }
    }

    #[test]
    fn tiles_are_those_that_were_fastest() {
        let tile = |batch| best(&resnet50(batch), &Limits::h200()).unwrap();
        assert_eq!(tile(1), TailTile { images: 1, blocks: 16 });
        assert_eq!(tile(128), TailTile { images: 16, blocks: 8 });
    }

    #[test]
    fn a_part_of_a_gpu_has_no_clusters_of_sixteen() {
        let limits = Limits { units: 60, ..Limits::h200() };
        assert!([1, 8, 128].iter().all(|&batch| best(&resnet50(batch), &limits).unwrap().blocks == 8));
    }

    #[test]
    fn what_there_is_no_room_for_has_no_tile() {
        let wide = TailShape { input: Shape::new(7, 7, 1 << 16), ..resnet50(128) };
        assert_eq!(best(&wide, &Limits::h200()), None);
        let many = TailShape { k_stored: 1 << 18, ..resnet50(128) };
        assert_eq!(best(&many, &Limits::h200()), None);
        assert!(best(&TailShape { output: OutputKind::Logits, ..many }, &Limits::h200()).is_some());
    }
}
