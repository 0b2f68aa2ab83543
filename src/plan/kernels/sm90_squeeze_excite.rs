//! Squeeze and excitation of images on sm90 hardware: what the kernel can compute, its tiles and their predicted time.

use std::fmt;

use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::plan::op::Joined;
use crate::plan::roofline::LAUNCH;
use crate::plan::work::Work;
use crate::plan::{Limits, ProductActivation, Rates, StepOp};
use crate::tensor::Shape;

/// The kernel in `kernels/sm90_squeeze_excite.cu`.
pub(super) struct Sm90SqueezeExcite;

impl KernelDef for Sm90SqueezeExcite {
    fn name(&self) -> &'static str {
        "sm90_squeeze_excite"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::SqueezeExcite(_)) && work.half().is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90SqueezeExcite(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let StepOp::SqueezeExcite(of) = work.op else { return Vec::new() };
        let variant = |tile| {
            let clocks = of.clocks(tile, work.batch, limits);
            Variant { kernel: Kernel::Sm90SqueezeExcite(tile), clocks }
        };
        of.tiles(limits).into_iter().map(variant).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        match (work.op, kernel) {
            (StepOp::SqueezeExcite(of), Kernel::Sm90SqueezeExcite(tile)) if of.layout(tile, limits).is_some() => Ok(()),
            _ => Err(super::not_a_choice(work.name, kernel)),
        }
    }
}

/// Squeeze and excitation: the means of an image's channels, two layers of them, and the image times the gates that come
/// out. Its step reads images and writes images of the same shape.
///
/// ```
/// use trefoil::Shape;
/// use trefoil::model::images::{Conv2d, Window};
/// use trefoil::plan::{Gate, Joined, ProductActivation, SqueezeExciteOp, StepOp};
/// let layer = |name: &str, to| Joined { name: name.into(), conv: Conv2d::named(name, to, Window::square(1, 1, 0)) };
/// let of = SqueezeExciteOp {
///     input: Shape::new(14, 14, 480),
///     activation: ProductActivation::None,
///     squeeze: layer("fc1", 20),
///     hidden: ProductActivation::Silu,
///     excite: layer("fc2", 480),
///     gate: Gate::Sigmoid,
/// };
/// assert_eq!(StepOp::SqueezeExcite(of).label(1), "squeeze-excite");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SqueezeExciteOp {
    /// The shape of an image.
    pub input: Shape,
    /// The activation that is applied to the image first.
    pub activation: ProductActivation,
    /// The layer of the means, without its activation.
    pub squeeze: Joined,
    /// The activation of that layer's result, the hidden vector.
    pub hidden: ProductActivation,
    /// The layer of the hidden vector, without its activation.
    pub excite: Joined,
    /// The activation of that layer's result.
    pub gate: Gate,
}

/// The function that makes a factor from 0 to 1 of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// The number times `slope` plus `offset`, between 0 and 1.
    HardSigmoid {
        /// The factor.
        slope: f32,
        /// The term.
        offset: f32,
    },
}

impl Gate {
    /// The exact value of the gate at `x`.
    pub(in crate::plan) fn of(self, x: f64) -> f64 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::HardSigmoid { slope, offset } => (x * f64::from(slope) + f64::from(offset)).clamp(0.0, 1.0),
        }
    }
}

/// The numbers of parts of the channels and of the pixels of an image, one part for each thread block of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqueezeTile {
    /// The number of parts of the channels.
    pub channel_parts: usize,
    /// The number of parts of the pixels.
    pub pixel_parts: usize,
}

impl fmt::Display for SqueezeTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.channel_parts, self.pixel_parts)
    }
}

/// How a tile's blocks share an image, as in `kernels/sm90_squeeze_excite.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqueezeLayout {
    /// The number of blocks of a cluster; those beyond the parts do nothing.
    pub(crate) cluster: usize,
    /// The number of groups of 8 channels of an image, and of the hidden vector.
    pub(crate) chunks: [usize; 2],
    /// The number of groups of 8 channels, and of pixels, of a block.
    pub(crate) part: [usize; 2],
    /// The number of pixels that a block's threads have side by side.
    pub(crate) rows: usize,
    /// The number of pixels that a thread has one after the other.
    pub(crate) loads: usize,
    /// The number of threads that add the rows of a channel.
    pub(crate) groups: usize,
    /// The number of lanes that compute a value of each layer together.
    pub(crate) lanes: [usize; 2],
    /// The distance between rows of each layer's filter in shared memory, in groups of 8 channels.
    pub(crate) pitches: [usize; 2],
    /// Bytes of shared memory before the second filter, and before each of the seven parts that follow.
    pub(crate) offsets: [usize; 8],
    /// Bytes of shared memory of a block.
    pub(crate) shared_bytes: usize,
}

/// Threads of a block.
pub(crate) const SQUEEZE_THREADS: usize = 512;
/// The largest number of blocks of a cluster.
pub(crate) const MOST_SQUEEZE_BLOCKS: usize = 16;
/// The numbers of pixels of a thread for which there are kernels.
pub(crate) const SQUEEZE_LOADS: [usize; 4] = [2, 4, 7, 9];
/// The number of threads that add the rows of a channel, at most.
const MOST_GROUPS: usize = 16;
/// Channels of a 16-byte access.
const CHUNK: usize = 8;
/// The limit of counts of an image, and of weights.
const MOST: usize = 1 << 31;

impl SqueezeLayout {
    /// The number of blocks that a multiprocessor has at the same time.
    fn resident(&self, limits: &Limits) -> usize {
        let by_registers = if self.loads <= 7 { 2 } else { 1 };
        (limits.shared_bytes / (self.shared_bytes + BLOCK_BYTES)).clamp(1, by_registers)
    }

    /// The number of clusters that run at the same time. A cluster's blocks are neighbours, so that some multiprocessors
    /// stay without one.
    pub(crate) fn at_a_time(&self, limits: &Limits) -> usize {
        let blocks = (limits.units * self.resident(limits)) as f64;
        ((NEIGHBOURS * blocks / self.cluster as f64) as usize).max(1)
    }
}

impl SqueezeExciteOp {
    /// A short text of the operation.
    pub(crate) fn label(&self) -> String {
        format!("squeeze-excite{}", self.activation.suffix())
    }

    /// The number of values of the hidden vector.
    pub(crate) const fn hidden_channels(&self) -> usize {
        self.squeeze.conv.out_channels
    }

    /// Whether the kernel applies an activation to images and to the hidden vector.
    pub(in crate::plan) const fn applies(activation: ProductActivation) -> bool {
        use ProductActivation as A;
        matches!(activation, A::None | A::Relu | A::QuickGelu | A::Silu | A::HardSwish)
    }

    /// How the blocks of a cluster share an image in a tile; `None` if they cannot.
    pub(crate) fn layout(&self, tile: SqueezeTile, limits: &Limits) -> Option<SqueezeLayout> {
        let SqueezeTile { channel_parts, pixel_parts } = tile;
        let (channels, pixels) = (self.input.channels, self.input.pixels());
        let parts = channel_parts.checked_mul(pixel_parts).filter(|parts| (1..=MOST_SQUEEZE_BLOCKS).contains(parts))?;
        let hidden = self.hidden_channels().next_multiple_of(CHUNK);
        let chunks = [channels / CHUNK, hidden / CHUNK];
        let is_counted = self.input.elems() < MOST && channels.checked_mul(hidden).is_some_and(|all| all < MOST);
        let applies = Self::applies(self.activation) && Self::applies(self.hidden);
        if !channels.is_multiple_of(CHUNK) || channels * pixels * hidden == 0 || !is_counted || !applies {
            return None;
        }
        let part = [chunks[0].div_ceil(channel_parts), pixels.div_ceil(pixel_parts)];
        let no_part_is_empty = chunks[0].div_ceil(part[0]) == channel_parts && pixels.div_ceil(part[1]) == pixel_parts;
        let part_channels = part[0] * CHUNK;
        if !no_part_is_empty || part_channels > SQUEEZE_THREADS || hidden > SQUEEZE_THREADS {
            return None;
        }
        let rows = SQUEEZE_THREADS / part[0];
        let needed = part[1].div_ceil(rows);
        let loads = SQUEEZE_LOADS.into_iter().find(|&loads| needed <= loads)?;
        let groups = (SQUEEZE_THREADS / part_channels).min(MOST_GROUPS);
        // No more lanes than there are threads for the values, and groups of channels for the lanes.
        let lanes = |values: usize, terms: usize| {
            let most = (SQUEEZE_THREADS / values).min(terms.next_power_of_two()).min(32);
            1 << most.ilog2()
        };
        let lanes = [lanes(hidden, part[0]), lanes(part_channels, chunks[1])];
        let pitches = [part[0] | 1, chunks[1] | 1];
        let sums = 2 * 16 * SQUEEZE_THREADS + 64;
        let of_parts = [
            16 * hidden * pitches[0],
            16 * part_channels * pitches[1],
            sums,
            4 * groups * part_channels,
            4 * part_channels,
            4 * parts * hidden,
            4 * hidden,
            4 * part_channels,
        ];
        let mut shared_bytes = 0;
        let offsets = of_parts.map(|bytes| {
            shared_bytes += bytes;
            shared_bytes
        });
        shared_bytes += 8 * SQUEEZE_THREADS;
        let cluster = parts.next_power_of_two();
        let layout =
            SqueezeLayout { cluster, chunks, part, rows, loads, groups, lanes, pitches, offsets, shared_bytes };
        (shared_bytes <= limits.shared_bytes && cluster <= limits.most_cluster_blocks()).then_some(layout)
    }

    /// The tiles in which the kernel can compute the operation; empty if it cannot.
    pub(crate) fn tiles(&self, limits: &Limits) -> Vec<SqueezeTile> {
        let all = (1..=MOST_SQUEEZE_BLOCKS).flat_map(|channel_parts| {
            (1..=MOST_SQUEEZE_BLOCKS / channel_parts).map(move |pixel_parts| SqueezeTile { channel_parts, pixel_parts })
        });
        all.filter(|&tile| self.layout(tile, limits).is_some()).collect()
    }

    /// The clocks of the best tile; `None` if there is none.
    pub(in crate::plan) fn best_clocks(&self, batch: usize, limits: &Limits) -> Option<f64> {
        let clocks = self.tiles(limits).into_iter().filter_map(|tile| self.clocks(tile, batch, limits));
        clocks.min_by(f64::total_cmp)
    }

    /// Clocks of a tile: of its phases one after the other, for each image of a cluster, or of the memory if they are
    /// more. `None` if the kernel does not have the tile.
    pub(crate) fn clocks(&self, tile: SqueezeTile, batch: usize, limits: &Limits) -> Option<f64> {
        let layout = self.layout(tile, limits)?;
        let rates = Rates::of(limits);
        let SqueezeLayout { cluster, chunks, part, rows, groups, lanes, .. } = layout;
        let sets = batch.div_ceil(layout.at_a_time(limits)) as f64;
        let resident = (batch * cluster).div_ceil(limits.units.max(1)).clamp(1, layout.resident(limits)) as f64;
        // A warp's access has as many lines as there are pixels in it, or four.
        let accesses = (part[1].div_ceil(rows) * (SQUEEZE_THREADS / 32)) as f64;
        let lines = accesses * (32.0 / part[0] as f64).clamp(4.0, 32.0);
        let bytes = (2 * CHUNK * part[0] * part[1]) as f64;
        let pixels = 2.0 * lines.max(bytes / CACHE_BYTES);
        let functions = match self.activation {
            ProductActivation::Silu | ProductActivation::QuickGelu => bytes / 16.0,
            _ => 0.0,
        };
        let sums = (rows.div_ceil(groups) + groups + tile.channel_parts * tile.pixel_parts) as f64 / 4.0;
        let layers = (part[0].div_ceil(lanes[0]) + chunks[1].div_ceil(lanes[1])) as f64;
        let filters = (4 * CHUNK * part[0] * CHUNK * chunks[1]) as f64 / CACHE_BYTES;
        let image = resident * (pixels + functions) + STEP * (sums + layers);
        let first = PHASES + resident * FILTERS * filters + image;
        let clocks = first + (sets - 1.0) * (NEXT_PHASES + image);
        let memory = |rates: Rates| (4 * batch * self.input.elems()) as f64 / rates.memory_bytes * rates.clock_hz;
        let [hz, memory] = [rates.map_or(CLOCK_HZ, |rates| rates.clock_hz), rates.map_or(0.0, memory)];
        Some(LAUNCH * hz + clocks.max(memory))
    }
}

/// The clock frequency of unknown hardware.
const CLOCK_HZ: f64 = 1.8e9;
/// Bytes of shared memory that a multiprocessor keeps for each block.
const BLOCK_BYTES: usize = 1 << 10;
/// The part of the multiprocessors that clusters use. This and what follows is fitted to the times of 41 steps of three
/// networks (benches/notes/2026-11-26-squeeze-and-excitation.md).
const NEIGHBOURS: f64 = 0.72;
/// Clocks of the accesses and barriers that follow each other in a block, for its first image and for each further one.
const PHASES: f64 = 5800.0;
const NEXT_PHASES: f64 = 2500.0;
/// Bytes that a multiprocessor reads from the L2 cache in a clock, with latencies.
const CACHE_BYTES: f64 = 21.0;
/// Clocks of an access to shared memory with what depends on it.
const STEP: f64 = 20.0;
/// The part of the filters' way that nothing hides.
const FILTERS: f64 = 1.2;
