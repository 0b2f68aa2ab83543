//! Chains: which pairs of 1x1 convolutions one step computes, and in which tile of the sm90 chain kernel.

use std::fmt;

use super::conv_shape::{self, ConvShape};
use super::sm90_conv2d_fprop::joined;
use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::{NodeId, Pad, Window};
use crate::plan::context::{CHOSEN, Context, Match};
use crate::plan::work::Work;
use crate::plan::{Joined, Limits, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_conv2d_chain.cu`.
pub(super) struct Sm90Conv2dChain;

impl KernelDef for Sm90Conv2dChain {
    fn name(&self) -> &'static str {
        "sm90_conv2d_chain"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        ChainShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Chain(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let kernels = ChainShape::of(work).map(|shape| kernels(&shape, limits));
        kernels.into_iter().flatten().map(Variant::modelled).collect()
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        let Some(chain) = Chain::find(context, at)? else { return Ok(Vec::new()) };
        Ok(chain.matched()?.into_iter().collect())
    }

    fn cache_bytes(&self, work: &Work<'_>, limits: &Limits) -> u64 {
        let Some(shape) = ChainShape::of(work) else { return 0 };
        // The result of the first convolution stays on the multiprocessor.
        let filter = shape.sources[0].output.channels * shape.next_channels * Dtype::F16.bytes();
        let next = filter * limits.units.min(shape.pixels().div_ceil(conv_shape::SHARED));
        conv_shape::cache_bytes(&shape.sources, limits) + next as u64
    }
}

/// The tile of the sm90 chain kernel: all channels of some pixels.
///
/// ```
/// use trefoil::plan::{ChainTile, Kernel};
/// assert_eq!(ChainTile::ALL.map(|tile| tile.pixels), [128, 256]);
/// assert_eq!(Kernel::Sm90Chain(ChainTile { pixels: 256 }).to_string(), "sm90 chain 256");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainTile {
    /// The number of pixels.
    pub pixels: usize,
}

impl ChainTile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 2] = [Self { pixels: 128 }, Self { pixels: 256 }];

    /// The number of warpgroups that multiply. Each computes one part of the pixels.
    pub(crate) const PARTS: usize = 2;

    /// The channels of the second result for which the kernel is compiled, in units of 64; registers limit them.
    pub(crate) const fn next_slabs(self) -> &'static [usize] {
        match self.pixels {
            128 => &[1, 2, 4],
            256 => &[1, 2],
            _ => &[],
        }
    }

    /// The number of pixels of a part.
    pub(crate) const fn part_pixels(self) -> usize {
        self.pixels / Self::PARTS
    }
}

impl fmt::Display for ChainTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pixels)
    }
}

/// The two convolutions of a chain as the kernel sees them.
#[derive(Clone, Debug)]
pub(crate) struct ChainShape {
    /// The first convolution, or the two convolutions whose sum the second one reads.
    pub(crate) sources: Vec<ConvShape>,
    /// Whether a residual is added to the first result.
    pub(crate) has_residual: bool,
    /// The stored channels of the second result.
    pub(crate) next_channels: usize,
}

/// The division of shared memory in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainLayout {
    /// The channels of the second result for which the kernel is compiled, in units of 64.
    pub(crate) next_slabs: usize,
    /// The number of places for filters of 64x64 channels. With a place for each filter, filters are read only once.
    pub(crate) filter_stages: usize,
    /// The number of tiles whose input is in shared memory at the same time.
    pub(crate) x_buffers: usize,
    /// The number of slabs of a part that are on their way in or out.
    pub(crate) slots: usize,
    /// Bytes of shared memory in all, with the barriers.
    pub(crate) shared_bytes: usize,
}

/// The channels of a slab, and of a step of a sum.
const SLAB: usize = 64;
/// The bytes of a filter of 64x64 channels, and of 64 channels of a pixel.
const FILTER_BYTES: usize = SLAB * SLAB * 2;
const ROW_BYTES: usize = SLAB * 2;
/// The bytes of the two barriers of each place.
const BARRIER_BYTES: usize = 16;
/// The largest number of slabs of a part that pays for its memory.
const MOST_SLOTS: usize = 10;

impl ChainShape {
    /// The chain of a step; `None` if it is no chain of convolutions in f16.
    pub(crate) fn of(work: &Work<'_>) -> Option<Self> {
        let StepOp::Chain { joined, .. } = work.op else { return None };
        let &[_, next] = &work.outputs[..] else { return None };
        let has_residual = joined.is_none() && work.inputs.len() > 1;
        Some(Self { sources: ConvShape::all(work)?, has_residual, next_channels: next.stored_channels })
    }

    /// Whether the kernel can compute the chain.
    pub(crate) fn fits(&self) -> bool {
        let single = |window: &Window| {
            let none = Pad { top: 0, left: 0, bottom: 0, right: 0 };
            window.size == [1; 2] && window.pad == none
        };
        let sources = &self.sources;
        (1..=2).contains(&sources.len())
            && sources.iter().all(|conv| single(&conv.window) && conv_shape::check(conv).is_ok())
            && self.next_channels.is_multiple_of(8)
    }

    /// The number of slabs of the first result, and the number of steps of each.
    fn work(&self) -> [usize; 2] {
        let slabs = self.sources[0].output.channels.div_ceil(SLAB);
        [slabs, self.sources.iter().map(ConvShape::steps).sum()]
    }

    /// The number of values that the chain reads and writes, without weights.
    fn values(&self) -> usize {
        let ConvShape { batch, output, .. } = self.sources[0];
        let sources: usize = self.sources.iter().map(|conv| conv.output.pixels() * conv.input.channels).sum();
        let outputs = output.channels * (1 + usize::from(self.has_residual)) + self.next_channels;
        batch * (sources + output.pixels() * outputs)
    }

    /// The number of pixels of the results.
    pub(crate) fn pixels(&self) -> usize {
        self.sources[0].batch * self.sources[0].output.pixels()
    }

    /// The division of shared memory in this tile; `None` if there is too little.
    pub(crate) fn layout(&self, tile: ChainTile, limits: &Limits) -> Option<ChainLayout> {
        let wanted = self.next_channels.div_ceil(SLAB);
        let next_slabs = *tile.next_slabs().iter().find(|&&compiled| compiled >= wanted)?;
        let [slabs, steps] = self.work();
        let filters = slabs * (steps + next_slabs);
        let part_bytes = tile.part_pixels() * ROW_BYTES;
        let place = |bytes: usize, count: usize| count * (bytes + BARRIER_BYTES);
        // Best is a place for each filter; next, room for the input of the next tile. But some slabs must be on their
        // way.
        let ways = [filters, 8, 6, 4].map(|stages| [2, 1].map(|x_buffers| (stages.min(filters), x_buffers)));
        let with = |least: usize| {
            ways.into_iter().flatten().find_map(|(filter_stages, x_buffers)| {
                let of_x = ChainTile::PARTS * place(steps * part_bytes, x_buffers);
                let fixed = place(FILTER_BYTES, filter_stages) + of_x;
                let free = limits.shared_bytes.checked_sub(fixed)?;
                let slots = (free / (ChainTile::PARTS * (part_bytes + BARRIER_BYTES))).min(MOST_SLOTS);
                let shared_bytes = fixed + ChainTile::PARTS * place(part_bytes, slots);
                let layout = ChainLayout { next_slabs, filter_stages, x_buffers, slots, shared_bytes };
                (slots >= least).then_some(layout)
            })
        };
        with(if self.has_residual { 4 } else { 3 }).or_else(|| with(2))
    }
}

/// Every tile in which the kernel computes the chain, with its predicted clocks.
fn kernels(shape: &ChainShape, limits: &Limits) -> Vec<(Kernel, f64)> {
    if !shape.fits() {
        return Vec::new();
    }
    let of = |tile: ChainTile| Some((Kernel::Sm90Chain(tile), clocks(shape, tile, limits)?));
    ChainTile::ALL.into_iter().filter_map(of).collect()
}

/// Predicted clocks of the busiest multiprocessor; `None` if the tile has too little shared memory.
fn clocks(shape: &ChainShape, tile: ChainTile, limits: &Limits) -> Option<f64> {
    let layout = shape.layout(tile, limits)?;
    let [slabs, steps] = shape.work();
    let waves = shape.pixels().div_ceil(tile.pixels).div_ceil(limits.units.max(1)) as f64;
    let of_slab = OF_SLAB + (steps + layout.next_slabs) as f64 * OF_FILTER;
    let of_pixel = slabs as f64 * of_slab + layout.next_slabs as f64 * OF_SLAB;
    Some(STARTUP + waves * tile.pixels as f64 * of_pixel)
}

/// Clocks of the launch, the barriers and the first loads.
const STARTUP: f64 = 3600.0;
/// Clocks for each pixel of a slab, from sums to halves that are stored.
const OF_SLAB: f64 = 7.0;
/// Clocks for each pixel and each 64x64 channels of the filters.
const OF_FILTER: f64 = 2.5;

/// The clocks in which `values` halves pass through device memory.
fn memory_clocks(values: usize, limits: &Limits) -> f64 {
    (values * VALUE_BYTES) as f64 / (MEMORY_BYTES_A_CLOCK * limits.units.max(1) as f64)
}

/// The bytes of a half.
const VALUE_BYTES: usize = 2;
/// The bytes that device memory moves in a clock for each multiprocessor: 4.35 TB/s over the 132 of an H200.
const MEMORY_BYTES_A_CLOCK: f64 = 18.0;
/// A tensor up to this size is still in the L2 cache when the next step reads it.
const KEPT_BYTES: usize = 30_000_000;
/// Of two activities at the same time, the part of the shorter one that adds to the time of the longer one.
const ON_TOP: f64 = 0.25;

/// Clocks of a kernel that computes and moves data at the same time.
fn overlapped(clocks: f64, memory_clocks: f64) -> f64 {
    clocks.max(memory_clocks) + ON_TOP * clocks.min(memory_clocks)
}

/// A convolution, or the sum of two, followed by a 1x1 convolution that reads the result.
struct Chain<'a> {
    context: &'a Context<'a>,
    /// The step of the first convolution, or of the sum, by itself.
    first: Match,
    next: Match,
    both: Match,
}

impl<'a> Chain<'a> {
    /// The chain whose second convolution is node `next`, whether or not the kernel computes it; `None` if there is
    /// none.
    fn find(context: &'a Context<'a>, next: NodeId) -> Result<Option<Self>, Error> {
        let Some((conv, &[first])) = context.dense(next) else { return Ok(None) };
        let Some((first_conv, _)) = context.dense(first) else { return Ok(None) };
        let is_part = [first, next].iter().any(|id| context.parts[id.0].is_some());
        if conv.window != Window::square(1, 1, 0) || is_part {
            return Ok(None);
        }
        let sum = joined(context, first)?.filter(|sum| sum.saved > 0.0);
        let first_alone = match sum {
            Some(sum) => Some(sum),
            None => context.single(first)?,
        };
        let Some((first_alone, next_alone)) = first_alone.zip(context.single(next)?) else { return Ok(None) };
        let joined = match &first_alone.op {
            StepOp::Conv(_) => None,
            StepOp::ConvSum { joined, .. } => Some(joined.clone()),
            _ => return Ok(None),
        };
        let chained = Box::new(Joined { name: next_alone.name.clone(), conv: conv.clone() });
        let both = Match {
            op: StepOp::Chain { conv: first_conv.clone(), joined, next: chained },
            covers: [&first_alone.covers[..], &[next]].concat(),
            writes: vec![first, next],
            ..first_alone.clone()
        };
        Ok(Some(Self { context, first: first_alone, next: next_alone, both }))
    }

    /// The chain in its best or chosen tile; `None` if the kernel does not compute it, or if it saves nothing and is
    /// not chosen.
    fn matched(self) -> Result<Option<Match>, Error> {
        let (limits, work) = (self.context.limits(), self.context.work(&self.both));
        let Some(shape) = ChainShape::of(&work).filter(ChainShape::fits) else { return Ok(None) };
        let chosen = [self.first.place, self.next.place].map(|id| self.context.chosen(id));
        let found = match chosen {
            [Some(Kernel::Sm90Chain(tile)), None] => {
                shape.layout(tile, limits).map(|_| (Kernel::Sm90Chain(tile), CHOSEN))
            }
            [None, None] if self.read_back() > KEPT_BYTES => {
                let fastest = kernels(&shape, limits).into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
                fastest.map(|(kernel, clocks)| {
                    let together = overlapped(clocks, memory_clocks(shape.values(), limits));
                    (kernel, self.apart_clocks(&shape) - together)
                })
            }
            _ => None,
        };
        let found = found.filter(|(_, saved)| *saved > 0.0);
        Ok(found.map(|(kernel, saved)| Match { kernel: Some(kernel), saved: self.first.saved + saved, ..self.both }))
    }

    /// Clocks of two separate steps. Each takes its kernel's clocks and those of its bytes, partly at the same time.
    fn apart_clocks(&self, shape: &ChainShape) -> f64 {
        let limits = self.context.limits();
        let values = |id: NodeId| shape.sources[0].batch * self.context.shapes[id.0].elems();
        let [y, next] = [self.first.place, self.next.place].map(values);
        let clocks = |of: &Match| self.context.clocks(of).unwrap_or(f64::INFINITY);
        overlapped(clocks(&self.first), memory_clocks(shape.values() - next, limits))
            + overlapped(clocks(&self.next), memory_clocks(y + next, limits))
    }

    /// Bytes of the tensor between the two convolutions.
    fn read_back(&self) -> usize {
        self.context.target.batch * self.context.shapes[self.first.place.0].elems() * VALUE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    /// A chain from `channels` and, if not 0, `strided` channels at stride 2 to `wide` channels, and from these to
    /// `next`.
    fn shape(side: usize, channels: usize, strided: usize, wide: usize, next: usize) -> ChainShape {
        let (output, single) = (Shape::new(side, side, wide), Window::square(1, 1, 0));
        let conv = |input, window| ConvShape { batch: 8, input, output, window };
        let other = conv(Shape::new(2 * side, 2 * side, strided), Window { stride: [2; 2], ..single });
        let mut sources = vec![conv(Shape::new(side, side, channels), single)];
        sources.extend((strided > 0).then_some(other));
        ChainShape { sources, has_residual: strided == 0, next_channels: next }
    }

    #[test]
    fn shared_memory_is_divided_so_that_all_of_it_fits() {
        let limits = Limits::h200();
        for shape in [
            shape(56, 64, 0, 256, 64),
            shape(28, 128, 0, 512, 128),
            shape(28, 128, 256, 512, 128),
            shape(28, 128, 0, 512, 256),
            shape(14, 256, 0, 1024, 256),
            shape(9, 8, 16, 24, 8),
            shape(9, 40, 0, 4096, 100),
        ] {
            let layouts: Vec<_> = ChainTile::ALL.into_iter().filter_map(|tile| shape.layout(tile, &limits)).collect();
            assert!(!layouts.is_empty());
            for layout in layouts {
                let [slabs, steps] = shape.work();
                let filters = slabs * (steps + layout.next_slabs);
                assert!(layout.shared_bytes <= limits.shared_bytes && layout.next_slabs * SLAB >= shape.next_channels);
                assert!(layout.filter_stages >= 2 && layout.filter_stages <= filters, "{layout:?}");
                assert!(layout.slots >= 2 && (1..=2).contains(&layout.x_buffers), "{layout:?}");
            }
        }
        // Filters of the first stage of a ResNet all have a place in shared memory; those of the second stage do not.
        let stay = |shape: &ChainShape| {
            let layout = shape.layout(ChainTile { pixels: 128 }, &limits).unwrap();
            let [slabs, steps] = shape.work();
            layout.filter_stages == slabs * (steps + layout.next_slabs)
        };
        assert!(stay(&shape(56, 64, 0, 256, 64)) && !stay(&shape(28, 128, 0, 512, 128)));
    }

    #[test]
    fn what_the_kernel_does_not_do_has_no_layout() {
        let (limits, tile) = (Limits::h200(), ChainTile { pixels: 128 });
        assert_eq!(shape(14, 256, 0, 1024, 264).layout(tile, &limits), None);
        assert_eq!(shape(7, 2048, 0, 512, 64).layout(tile, &limits), None);
        assert_eq!(shape(56, 64, 0, 256, 64).layout(ChainTile { pixels: 32 }, &limits), None);
        assert!(shape(56, 64, 0, 256, 64).fits());
        let mut padded = shape(56, 64, 0, 256, 64);
        padded.sources[0].window = Window::square(1, 1, 1);
        assert!(!padded.fits());
        assert!(!shape(56, 64, 0, 256, 20).fits());
    }
}
