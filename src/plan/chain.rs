//! Which 1x1 convolutions are computed by the one whose result they read, and in which tile of the Hopper chain kernel.

use std::collections::BTreeMap;
use std::fmt;

use super::sm90::{self, ConvShape};
use super::{Kernel, Limits, Request, select};
use crate::model::{Conv2d, Graph, NodeId, Op, Pad, Window};
use crate::tensor::Shape;

/// The tile of the Hopper chain kernel: all channels of some pixels.
///
/// ```
/// use trefoil::plan::{ChainTile, Kernel};
/// assert_eq!(ChainTile::ALL.map(|tile| tile.pixels), [128, 256]);
/// assert_eq!(Kernel::Sm90Chain(ChainTile { pixels: 256 }).to_string(), "sm90 chain 256");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainTile {
    /// Pixels.
    pub pixels: usize,
}

impl ChainTile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 2] = [Self { pixels: 128 }, Self { pixels: 256 }];

    /// Warpgroups that multiply, each its own part of the pixels.
    pub(crate) const PARTS: usize = 2;

    /// The counts of 64 channels of the second result that it is compiled for: as many as there are registers for.
    pub(crate) const fn next_slabs(self) -> &'static [usize] {
        match self.pixels {
            128 => &[1, 2, 4],
            256 => &[1, 2],
            _ => &[],
        }
    }

    /// Pixels of a part.
    pub(crate) const fn part_pixels(self) -> usize {
        self.pixels / Self::PARTS
    }
}

impl fmt::Display for ChainTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pixels)
    }
}

/// Two convolutions as the kernel sees them.
#[derive(Clone, Debug)]
pub(crate) struct ChainShape {
    /// The first one; two, if their sum is what the second reads.
    pub(crate) sources: Vec<ConvShape>,
    /// Whether a residual is added.
    pub(crate) has_residual: bool,
    /// Stored channels of the second result.
    pub(crate) next_channels: usize,
}

/// How a launch divides shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainLayout {
    /// Counts of 64 channels of the second result, as compiled.
    pub(crate) next_slabs: usize,
    /// Filters of 64x64 channels; as many as there are: they are read once.
    pub(crate) filter_stages: usize,
    /// Tiles whose input is there.
    pub(crate) x_buffers: usize,
    /// Slabs of a part on their way in and out.
    pub(crate) slots: usize,
    /// All of it, with the barriers.
    pub(crate) shared_bytes: usize,
}

/// Channels of a slab, and of a step of a sum.
const SLAB: usize = 64;
/// Of a filter of 64x64 channels, and of 64 channels of a pixel.
const FILTER_BYTES: usize = SLAB * SLAB * 2;
const ROW_BYTES: usize = SLAB * 2;
/// Two barriers for each place.
const BARRIER_BYTES: usize = 16;
/// Slabs of a part that are worth their memory.
const MOST_SLOTS: usize = 10;

impl ChainShape {
    /// Whether the kernel computes it.
    pub(crate) fn fits(&self) -> bool {
        let single = |window: &Window| {
            let none = Pad { top: 0, left: 0, bottom: 0, right: 0 };
            window.size == [1; 2] && window.pad == none
        };
        let sources = &self.sources;
        (1..=2).contains(&sources.len())
            && sources.iter().all(|conv| single(&conv.window) && sm90::check(conv).is_ok())
            && self.next_channels.is_multiple_of(8)
    }

    /// Slabs of the first result, and steps of each.
    fn work(&self) -> [usize; 2] {
        let slabs = self.sources[0].output.channels.div_ceil(SLAB);
        [slabs, self.sources.iter().map(ConvShape::steps).sum()]
    }

    /// What it reads and writes, without weights.
    fn values(&self) -> usize {
        let ConvShape { batch, output, .. } = self.sources[0];
        let sources: usize = self.sources.iter().map(|conv| conv.output.pixels() * conv.input.channels).sum();
        let outputs = output.channels * (1 + usize::from(self.has_residual)) + self.next_channels;
        batch * (sources + output.pixels() * outputs)
    }

    /// Pixels of the results.
    pub(crate) fn pixels(&self) -> usize {
        self.sources[0].batch * self.sources[0].output.pixels()
    }

    /// How shared memory is divided in this tile; `None` if it does not suffice.
    pub(crate) fn layout(&self, tile: ChainTile, limits: &Limits) -> Option<ChainLayout> {
        let wanted = self.next_channels.div_ceil(SLAB);
        let next_slabs = *tile.next_slabs().iter().find(|&&compiled| compiled >= wanted)?;
        let [slabs, steps] = self.work();
        let filters = slabs * (steps + next_slabs);
        let part_bytes = tile.part_pixels() * ROW_BYTES;
        let place = |bytes: usize, count: usize| count * (bytes + BARRIER_BYTES);
        // Filters that stay are best, then x of the next tile beside this one's; but slabs must be on their way.
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

/// Every tile in which the kernel computes both, with its clocks.
pub(super) fn kernels(shape: &ChainShape, limits: &Limits) -> Vec<(Kernel, f64)> {
    if !limits.has_sm90_kernels() || !shape.fits() {
        return Vec::new();
    }
    let of = |tile: ChainTile| Some((Kernel::Sm90Chain(tile), clocks(shape, tile, limits)?));
    ChainTile::ALL.into_iter().filter_map(of).collect()
}

/// Clocks of the busiest multiprocessor.
fn clocks(shape: &ChainShape, tile: ChainTile, limits: &Limits) -> Option<f64> {
    let layout = shape.layout(tile, limits)?;
    let [slabs, steps] = shape.work();
    let waves = shape.pixels().div_ceil(tile.pixels).div_ceil(limits.units.max(1)) as f64;
    let of_slab = OF_SLAB + (steps + layout.next_slabs) as f64 * OF_FILTER;
    let of_pixel = slabs as f64 * of_slab + layout.next_slabs as f64 * OF_SLAB;
    Some(STARTUP + waves * tile.pixels as f64 * of_pixel)
}

/// Launch, barriers and the first loads.
const STARTUP: f64 = 3600.0;
/// Of a pixel of a slab: from sums to halves, and out.
const OF_SLAB: f64 = 7.0;
/// Of a pixel, for each 64x64 of the filters.
const OF_FILTER: f64 = 2.5;

/// The clocks that so many halves take through device memory.
fn memory_clocks(values: usize, limits: &Limits) -> f64 {
    (values * VALUE_BYTES) as f64 / (MEMORY_BYTES_A_CLOCK * limits.units.max(1) as f64)
}

/// Of a half.
const VALUE_BYTES: usize = 2;
/// A multiprocessor's part of what device memory moves in a clock: 4.35 TB/s of an H200's 132.
const MEMORY_BYTES_A_CLOCK: f64 = 18.0;
/// A tensor up to this size is still in the L2 cache when the next step reads it.
const KEPT_BYTES: usize = 30_000_000;
/// Of two things that go on at the same time: how much of the shorter one comes on top.
const ON_TOP: f64 = 0.25;

/// Clocks of what a kernel computes and moves at the same time.
fn beside(clocks: f64, memory_clocks: f64) -> f64 {
    clocks.max(memory_clocks) + ON_TOP * clocks.min(memory_clocks)
}

/// The convolution that each of some computes too, and the tile.
pub(super) fn chained(
    graph: &Graph,
    shapes: &[Shape],
    request: &Request<'_>,
    joined: &BTreeMap<NodeId, NodeId>,
    taken: impl Fn(NodeId) -> bool,
) -> BTreeMap<NodeId, (NodeId, ChainTile)> {
    if !request.limits.has_sm90_kernels() {
        return BTreeMap::new();
    }
    let mut chained = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let (Op::Conv2d(_), &[first]) = (&node.op, &node.inputs[..]) else { continue };
        let next = NodeId(index);
        let is_second = chained.values().any(|&(second, _)| second == first);
        if chained.contains_key(&first) || is_second || taken(first) || taken(next) {
            continue;
        }
        let chain = Chain { graph, shapes, request, first, joined: joined.get(&first).copied(), next };
        if let Some(tile) = chain.shape().and_then(|shape| chain.tile(&shape)) {
            chained.insert(first, (next, tile));
        }
    }
    chained
}

/// A convolution, the one joined to it if there is one, and one that reads their result.
struct Chain<'a> {
    graph: &'a Graph,
    shapes: &'a [Shape],
    request: &'a Request<'a>,
    first: NodeId,
    joined: Option<NodeId>,
    next: NodeId,
}

impl Chain<'_> {
    /// What the kernel would compute, if it can.
    fn shape(&self) -> Option<ChainShape> {
        let next = self.conv(self.next).filter(|(conv, _)| conv.window == Window::square(1, 1, 0))?.1;
        let sources = [Some(self.first), self.joined].into_iter().flatten();
        let sources: Option<Vec<ConvShape>> = sources.map(|id| Some(self.conv(id)?.1)).collect();
        let has_residual = self.joined.is_none() && self.graph.nodes[self.first.0].inputs.len() > 1;
        let shape = ChainShape { sources: sources?, has_residual, next_channels: next.output.channels };
        shape.fits().then_some(shape)
    }

    /// The tile in which one kernel computes both, if it is chosen or pays.
    fn tile(&self, shape: &ChainShape) -> Option<ChainTile> {
        let Request { limits, choices, .. } = *self.request;
        let chosen = [self.first, self.next].map(|id| choices.get(&self.graph.nodes[id.0].name));
        match chosen {
            [Some(&Kernel::Sm90Chain(tile)), None] => shape.layout(tile, limits).map(|_| tile),
            [None, None] => {
                let fastest = kernels(shape, limits).into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
                let (Kernel::Sm90Chain(tile), together) = fastest? else { return None };
                let together = beside(together, memory_clocks(shape.values(), limits));
                (self.read_back() > KEPT_BYTES && together < self.apart_clocks(shape)).then_some(tile)
            }
            _ => None,
        }
    }

    /// Clocks of the two by themselves: their kernels' or their bytes'.
    fn apart_clocks(&self, shape: &ChainShape) -> f64 {
        let limits = self.request.limits;
        let values = |of: Shape| shape.sources[0].batch * of.elems();
        let [y, next] = [self.first, self.next].map(|id| self.shapes[id.0]);
        let first = match &shape.sources[..] {
            [conv] => select::conv_kernel(limits, conv, [shape.pixels(), y.channels, conv.input.channels]).1,
            sums => select::sm90_kernel(limits, sums).map_or(f64::INFINITY, |(_, clocks)| clocks),
        };
        let second = ConvShape { input: y, output: next, window: Window::square(1, 1, 0), ..shape.sources[0] };
        let (_, then) = select::conv_kernel(limits, &second, [shape.pixels(), next.channels, y.channels]);
        let of_first = memory_clocks(shape.values() - values(next), limits);
        beside(first, of_first) + beside(then, memory_clocks(values(y) + values(next), limits))
    }

    /// Bytes of what is between the two.
    fn read_back(&self) -> usize {
        self.request.batch * self.shapes[self.first.0].elems() * VALUE_BYTES
    }

    /// A dense convolution and its shape.
    fn conv(&self, id: NodeId) -> Option<(&Conv2d, ConvShape)> {
        let node = &self.graph.nodes[id.0];
        let Op::Conv2d(conv) = &node.op else { return None };
        let [input, output] = [self.shapes[node.inputs[0].0], self.shapes[id.0]];
        (conv.groups == 1).then(|| (conv, ConvShape::stored(self.request, input, output, conv.window)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `channels` and, at stride 2, `strided` channels to `wide`, and those to `next`.
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
        // Filters of the first stage of a ResNet stay, those of the second do not.
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
