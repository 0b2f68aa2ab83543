//! Linear layers on any GPU: the predicted time in each tile. The copies of both operands to the multiprocessors take
//! most of it.

use super::{ConvTile, Kernel, KernelDef, Variant};
use crate::plan::work::Work;
use crate::plan::{Family, Limits, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/linear.cu`.
pub(super) struct Linear;

impl KernelDef for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.family == Family::Sm80
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        LinearShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm80Gemm(_))
    }

    /// The smallest tile comes first: of tiles with equal times it has the fewest products.
    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(shape) = LinearShape::of(work) else { return Vec::new() };
        let of = |tile| Variant::modelled((Kernel::Sm80Gemm(tile), sm80_clocks(&shape, tile, limits)));
        ConvTile::LINEAR.into_iter().rev().map(of).collect()
    }
}

/// The sizes of a linear layer that decide its time; channels and outputs are the stored ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearShape {
    pub batch: usize,
    pub channels: usize,
    pub outputs: usize,
}

impl LinearShape {
    /// The sizes of a step; `None` unless it is a linear layer of values in f16.
    pub(super) fn of(work: &Work<'_>) -> Option<Self> {
        let is_linear = matches!(work.op, StepOp::Linear(_)) && work.is_in(Dtype::F16, Dtype::F32);
        is_linear.then(|| {
            let [channels, outputs] = [work.inputs[0], work.outputs[0]].map(|operand| operand.stored_channels);
            Self { batch: work.batch, channels, outputs }
        })
    }
}

fn sm80_clocks(shape: &LinearShape, tile: ConvTile, limits: &Limits) -> f64 {
    let &LinearShape { batch, channels, outputs } = shape;
    let blocks = batch.div_ceil(tile.m) * outputs.div_ceil(tile.n);
    let operand_bytes = (tile.m.min(batch) + tile.n.min(outputs)) * channels * 2;
    blocks.div_ceil(limits.units.max(1)) as f64 * (operand_bytes as f64 / BYTES_A_CLOCK + SM80_BLOCK)
}

/// Bytes that a multiprocessor of an H200 gets from the L2 cache in a clock while all others read too: 7.8 TB/s over
/// 132.
pub(super) const BYTES_A_CLOCK: f64 = 30.0;
/// The rest of a block's time, in clocks: latencies, and the addition of its warps' sums.
const SM80_BLOCK: f64 = 2000.0;
