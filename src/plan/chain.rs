//! Which 1x1 convolutions are computed by the one whose result they read, and in which tile of the Hopper chain kernel.

use std::collections::BTreeMap;
use std::fmt;

use super::sm90::{self, ConvShape};
use super::{Kernel, Limits, Request, select};
use crate::model::{Conv2d, Graph, NodeId, Op, Pad, Window};
use crate::tensor::Shape;

/// The tile of the Hopper chain kernel: all channels of some pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainTile {
    /// Pixels.
    pub pixels: usize,
}

impl ChainTile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 2] = [Self { pixels: 128 }, Self { pixels: 64 }];

    /// The counts of 64 channels of the second result that it is compiled for.
    pub(crate) const NEXT_SLABS: [usize; 3] = [1, 2, 4];

    /// Pixels of each warpgroup that multiplies.
    pub(crate) const PART: usize = 64;

    /// Warpgroups that multiply.
    pub(crate) const fn parts(self) -> usize {
        self.pixels / Self::PART
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
/// Of a filter of 64x64 channels, and of 64 channels of a part.
const FILTER_BYTES: usize = SLAB * SLAB * 2;
const PART_BYTES: usize = SLAB * ChainTile::PART * 2;
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

    /// The clocks that its bytes take through device memory.
    fn memory_clocks(&self, limits: &Limits) -> f64 {
        memory_clocks(self.values(), limits)
    }

    /// Pixels of the results.
    pub(crate) fn pixels(&self) -> usize {
        self.sources[0].batch * self.sources[0].output.pixels()
    }

    /// How shared memory is divided in this tile; `None` if it does not suffice.
    pub(crate) fn layout(&self, tile: ChainTile, limits: &Limits) -> Option<ChainLayout> {
        if !ChainTile::ALL.contains(&tile) {
            return None;
        }
        let wanted = self.next_channels.div_ceil(SLAB);
        let next_slabs = ChainTile::NEXT_SLABS.into_iter().find(|&compiled| compiled >= wanted)?;
        let [slabs, steps] = self.work();
        let (of_slab, parts) = (steps + next_slabs, tile.parts());
        let place = |bytes: usize, count: usize| count * (bytes + BARRIER_BYTES);
        // Filters that stay are best, then x of the next tile beside this one's; but slabs must be on their way.
        let ways = [slabs * of_slab, 2 * of_slab, of_slab].map(|stages| [2, 1].map(|x_buffers| (stages, x_buffers)));
        let with = |least: usize| {
            ways.into_iter().flatten().find_map(|(filter_stages, x_buffers)| {
                let fixed = place(FILTER_BYTES, filter_stages) + parts * place(steps * PART_BYTES, x_buffers);
                let free = limits.shared_bytes.checked_sub(fixed)?;
                let slots = (free / (parts * (PART_BYTES + BARRIER_BYTES))).min(MOST_SLOTS);
                let shared_bytes = fixed + parts * place(PART_BYTES, slots);
                let layout = ChainLayout { next_slabs, filter_stages, x_buffers, slots, shared_bytes };
                (slots >= least).then_some(layout)
            })
        };
        with(4).or_else(|| with(2))
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
    let tiles = shape.pixels().div_ceil(tile.pixels);
    let waves = tiles.div_ceil(limits.units.max(1)) as f64;
    let products = (SLAB * SLAB * ChainTile::PART * (steps + layout.next_slabs)) as f64 / PRODUCTS_A_CLOCK;
    let values = (SLAB * ChainTile::PART) as f64;
    let alone = products + SLAB_CLOCKS + values * VALUE_CLOCKS;
    let slab = alone.max(products * tile.parts() as f64);
    let last = layout.next_slabs as f64 * (SLAB_CLOCKS + values * VALUE_CLOCKS);
    Some(STARTUP + waves * (slabs as f64 * slab + last))
}

/// The clocks that so many halves take through device memory.
fn memory_clocks(values: usize, limits: &Limits) -> f64 {
    (values * VALUE_BYTES) as f64 / (MEMORY_BYTES_A_CLOCK * limits.units.max(1) as f64)
}

/// Of a half.
const VALUE_BYTES: usize = 2;
/// A multiprocessor's part of what device memory moves in a clock: 4.35 TB/s of an H200's 132.
const MEMORY_BYTES_A_CLOCK: f64 = 18.0;
/// A tensor up to this size is still in the L2 cache when the next step reads it.
const KEPT_BYTES: usize = 25_000_000;

/// Multiply-adds of halves that a multiprocessor does in a clock.
const PRODUCTS_A_CLOCK: f64 = 2048.0 / 1.06;
/// Launch, barriers and the first loads.
const STARTUP: f64 = 1800.0;
/// Of each slab: waits, barriers, stores.
const SLAB_CLOCKS: f64 = 350.0;
/// Of each value of it: sums to halves.
const VALUE_CLOCKS: f64 = 0.06;

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
                let together = together.max(shape.memory_clocks(limits));
                (together < self.apart_clocks(shape)).then_some(tile)
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
        let read_back = if values(y) * VALUE_BYTES > KEPT_BYTES { values(y) } else { 0 };
        let of_first = memory_clocks(shape.values() - values(next), limits);
        first.max(of_first) + then.max(memory_clocks(read_back + values(next), limits))
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
            shape(9, 40, 0, 4096, 200),
        ] {
            for tile in ChainTile::ALL {
                let layout = shape.layout(tile, &limits).unwrap();
                let [slabs, steps] = shape.work();
                let of_slab = steps + layout.next_slabs;
                assert!(layout.shared_bytes <= limits.shared_bytes && layout.next_slabs * SLAB >= shape.next_channels);
                // A slab's filters must be there at once, and one slot more than the one that is stored.
                assert!(layout.filter_stages >= of_slab && layout.filter_stages <= slabs * of_slab, "{layout:?}");
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
