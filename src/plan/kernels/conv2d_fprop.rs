//! The implicit-GEMM convolution of any GPU: its tiles, and their predicted times.

use std::fmt;

use super::conv_shape::{self, ConvShape};
use super::{Kernel, KernelDef, Variant};
use crate::plan::work::Work;
use crate::plan::{Family, Limits, Rates, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/conv2d_fprop.cu`.
pub(super) struct Conv2dFprop;

impl KernelDef for Conv2dFprop {
    fn name(&self) -> &'static str {
        "conv2d_fprop"
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.family == Family::Sm80
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::Conv(_)) && work.is_in(Dtype::F16, Dtype::F16)
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm80Gemm(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(layer) = work.sums().into_iter().flatten().next() else { return Vec::new() };
        let output = layer.output.shape;
        let mnk = [work.batch * output.pixels(), output.channels, layer.terms()];
        tiles(&ConvTile::ALL, limits, mnk).into_iter().map(Variant::modelled).collect()
    }

    fn cache_bytes(&self, work: &Work<'_>, limits: &Limits) -> u64 {
        conv_shape::cache_bytes(&ConvShape::all(work).unwrap_or_default(), limits)
    }
}

/// The tile of the implicit-GEMM and of the linear kernels: pixels x output channels of one thread block.
///
/// ```
/// use trefoil::plan::ConvTile;
/// let tile = ConvTile { m: 128, n: 64 };
/// assert!(ConvTile::ALL.contains(&tile) && tile.to_string() == "128x64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConvTile {
    /// The number of output pixels (M of the GEMM).
    pub m: usize,
    /// The number of output channels (N of the GEMM).
    pub n: usize,
}

impl ConvTile {
    /// Every tile that the kernels are compiled for, largest first.
    pub const ALL: [Self; 7] = [
        Self { m: 256, n: 128 },
        Self { m: 128, n: 128 },
        Self { m: 256, n: 64 },
        Self { m: 128, n: 64 },
        Self { m: 128, n: 32 },
        Self { m: 64, n: 64 },
        Self { m: 32, n: 64 },
    ];

    /// The tiles that the kernels of bytes are compiled for, largest first.
    pub const OF_BYTES: [Self; 6] = [
        Self { m: 256, n: 128 },
        Self { m: 128, n: 128 },
        Self { m: 256, n: 64 },
        Self { m: 128, n: 64 },
        Self { m: 64, n: 64 },
        Self { m: 32, n: 64 },
    ];

    /// The tiles of the linear layer's kernels, images x outputs, largest first.
    pub const LINEAR: [Self; 5] = [
        Self { m: 64, n: 32 },
        Self { m: 32, n: 32 },
        Self { m: 32, n: 16 },
        Self { m: 32, n: 8 },
        Self { m: 16, n: 8 },
    ];

    /// The pipeline of the convolution kernels for this tile; `None` if they are not compiled for it.
    pub(crate) const fn pipeline(self) -> Option<Pipeline> {
        let (k, stages, threads) = match (self.m, self.n) {
            (256, 128) => (64, 3, 256),
            (256, 64) => (32, 4, 128),
            (128, 128 | 64 | 32) | (64, 64) => (64, 3, 128),
            (32, 64) => (64, 4, 128),
            _ => return None,
        };
        // Halves of both operands in every stage, then a float of bias for each channel.
        let shared_bytes = stages * (self.m + self.n) * k * 2 + self.n * 4;
        Some(Pipeline { k, stages, threads, shared_bytes })
    }

    /// The pipeline of the kernels of bytes for this tile: the stages have as many bytes, and behind them each channel
    /// has a scale too. `None` if they are not compiled for it.
    pub(crate) const fn pipeline_of_bytes(self) -> Option<Pipeline> {
        match self.pipeline() {
            Some(Pipeline { k, stages, threads, shared_bytes }) if self.n != 32 => {
                Some(Pipeline { k: 2 * k, stages, threads, shared_bytes: shared_bytes + self.n * 4 })
            }
            _ => None,
        }
    }
}

/// The pipeline of an implicit-GEMM kernel for one tile, as in `kernels/gemm_tiles.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pipeline {
    /// Depth of one stage, in channels times taps.
    pub(crate) k: usize,
    /// Stages in flight.
    pub(crate) stages: usize,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Dynamic shared memory of a block; a device must grant that much.
    pub(crate) shared_bytes: usize,
}

impl fmt::Display for ConvTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.m, self.n)
    }
}

/// The sm80 kernels in `tiles` for a GEMM of `m` pixels, `n` channels and `k` taps on `limits`, with the clocks that each
/// takes: the work of its busiest multiprocessor, weighed by how well the tile uses the tensor cores. Tiles that need
/// more shared memory than a block may have are left out, unless all do.
fn tiles(tiles: &[ConvTile], limits: &Limits, mnk: [usize; 3]) -> Vec<(Kernel, f64)> {
    let fits = |tile: &&ConvTile| tile.pipeline().is_some_and(|p| p.shared_bytes <= limits.shared_bytes);
    let least = tiles.last().filter(|_| !tiles.iter().any(|tile| fits(&tile)));
    let kernel = |tile: &ConvTile| (Kernel::Sm80Gemm(*tile), clocks(*tile, limits, mnk));
    tiles.iter().filter(fits).chain(least).map(kernel).collect()
}

/// Clocks of a tile of halves.
pub(super) fn clocks(tile: ConvTile, limits: &Limits, [m, n, k]: [usize; 3]) -> f64 {
    let blocks = m.div_ceil(tile.m) * n.div_ceil(tile.n);
    let rounds = blocks.div_ceil(limits.units.max(1));
    let cost = (tile.m * tile.n) as f64 * k as f64 / rate(tile) + FIXED_COST;
    rounds as f64 * cost / products_a_clock(limits)
}

/// Multiply-adds of halves that the best sm80 tile is taken to do in a clock, on each multiprocessor.
///
/// On compute capability 9.0 this is half of the measured rate, so that an sm80 kernel is chosen only where no sm90
/// kernel can run: side by side in `examples/tile_sweep.rs`, the sm90 kernel is no slower on any layer of ResNet-50 and
/// EfficientNet-Lite0 except the stems. On other GPUs it is the rate on an H200, or the same part of the GPU's own
/// tensor rate if that is less. No such GPU has confirmed the prediction.
fn products_a_clock(limits: &Limits) -> f64 {
    if limits.has_sm90_kernels() {
        return SM80_PRODUCTS / 2.0;
    }
    Rates::of(limits).map_or(SM80_PRODUCTS, |rates| SM80_PRODUCTS.min(SM80_PART * rates.products_a_clock(limits.units)))
}

/// Multiply-adds in a clock of the best tile on an H200, measured where products bound the time.
const SM80_PRODUCTS: f64 = 800.0;

/// The part of the rate of mma.sync that the best tile reaches there. mma.sync has about 60 % of the 2048 of wgmma.
const SM80_PART: f64 = SM80_PRODUCTS / (0.6 * 2048.0);

/// Prologue and epilogue of one block, in multiply-adds of the best tile.
const FIXED_COST: f64 = 1.0e6;

/// Throughput of a tile against the best one when the GPU is full, from a sweep over the layers of ResNet-50 on an
/// H200 (`examples/tile_sweep.rs`). The smaller a tile, the more bytes it loads for each operation; the largest has
/// one block on a multiprocessor, so nothing hides its prologue and epilogue.
fn rate(tile: ConvTile) -> f64 {
    match (tile.m, tile.n) {
        (128, 128) => 1.0,
        (256, 128) => 0.92,
        (128, 64) => 0.9,
        (256, 64) => 0.86,
        (64, 64) => 0.75,
        (128, 32) => 0.5,
        _ => 0.45,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Network;
    use crate::model::{Preprocessing, architecture};
    use crate::plan::{Choices, Plan, Request, plan};
    use crate::tensor::{InputFormat, OutputKind};

    /// The rate of products decides between families, never between tiles of one family.
    #[test]
    fn tiles_are_chosen_alike_whatever_products_cost() {
        let other_gpus = [Limits::a100(), Limits::b200(), Limits::l4(), Limits::rtx4090(), Limits::rtx5090()];
        let unknown = Limits::gpu("another one", [8, 6], 84, 101_376);
        let mut convs = 0;
        for (name, batch) in
            ["resnet50", "efficientnet_lite0"].into_iter().flat_map(|n| [1, 8, 32, 256].map(|b| (n, b)))
        {
            let graph = Network::of(&architecture(name, 1000, None).unwrap()).unwrap();
            for limits in other_gpus.iter().chain([&unknown]) {
                let (preprocessing, choices) = (&Preprocessing::new(graph.input), &Choices::new());
                let (input, output) = (InputFormat::U8Nhwc, OutputKind::Logits);
                let plan = plan(&graph, &Request { limits, batch, input, preprocessing, output, choices }).unwrap();
                // The same hardware with the rate of products of compute capability 9.0.
                let like_hopper = Limits { compute_capability: [9, 0], ..limits.clone() };
                for (step, mnk) in products(&plan) {
                    let [here, there] = [limits, &like_hopper].map(|limits| tiles(&ConvTile::ALL, limits, mnk));
                    assert_ne!(products_a_clock(limits), products_a_clock(&like_hopper));
                    let best = here.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|best| best.0);
                    assert_eq!(best, Some(plan.steps[step].kernel), "{limits}");
                    let ratio = products_a_clock(&like_hopper) / products_a_clock(limits);
                    for ((kernel, clocks), (other, more)) in here.iter().zip(&there) {
                        assert!(kernel == other && (clocks / more / ratio - 1.0).abs() < 1e-9, "{limits}: {kernel}");
                    }
                    convs += 1;
                }
            }
        }
        assert!(convs > 1000, "{convs}");
    }

    /// The dense convolutions of a plan: the index of the step, and M, N and K of the GEMM.
    fn products(plan: &Plan) -> Vec<(usize, [usize; 3])> {
        let of = |(index, step): (usize, &crate::plan::Step)| {
            let StepOp::Conv(conv) = &step.op else { return None };
            let [x, y] = [step.inputs[0], step.outputs[0]].map(|id| plan.tensors[id.0].shape);
            let taps = conv.window.size.iter().product::<usize>();
            Some((index, [plan.batch * y.pixels(), y.channels, taps * x.channels]))
        };
        plan.steps.iter().enumerate().filter_map(of).collect()
    }

    #[test]
    fn products_are_those_of_the_gpu() {
        assert_eq!(products_a_clock(&Limits::h200()), 400.0);
        let near = |limits: &Limits, expected: f64| (products_a_clock(limits) / expected - 1.0).abs() < 0.01;
        assert!(near(&Limits::a100(), 667.0) && near(&Limits::l4(), 333.0) && near(&Limits::rtx4090(), 167.0));
        assert_eq!(products_a_clock(&Limits::b200()), 800.0);
        assert_eq!(products_a_clock(&Limits::gpu("another one", [8, 6], 84, 101_376)), 800.0);
    }
}
