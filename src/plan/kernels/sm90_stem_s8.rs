//! A network's first layers from photos to bytes as one step on compute capability 9.0: its tiles and their predicted
//! times.

use super::sm90_stem::{RowClocks, StemLayers, clocks_of};
use super::{Kernel, KernelDef, Variant, check_variants};
use crate::error::Error;
use crate::model::NodeId;
use crate::plan::context::{Context, Match};
#[cfg(feature = "cuda")]
use crate::plan::packing::{self, FilterOrder, PackedSum};
use crate::plan::work::Work;
use crate::plan::{Limits, S8Stem, StemTile, StepOp, bytes};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_stem_s8.cu`.
pub(super) struct Sm90StemS8;

impl KernelDef for Sm90StemS8 {
    fn name(&self) -> &'static str {
        "sm90_stem_s8"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        let is_one = matches!(work.op, StepOp::QuantizedStem(_));
        is_one && (work.is_in(Dtype::U8, Dtype::U8) || work.is_in(Dtype::U8, Dtype::I8))
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90StemS8(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(stem) = S8Stem::of(work) else { return Vec::new() };
        let of = |tile| Variant::modelled((Kernel::Sm90StemS8(tile), clocks(&stem, tile, limits)));
        stem.tiles(limits).into_iter().map(of).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        check_variants(self, work, kernel, limits)
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(bytes::first(context, at).into_iter().collect())
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        packing::in_bytes(work, FilterOrder::StemBytes)
    }
}

/// Predicted clocks of the busiest multiprocessor.
pub(super) fn clocks(stem: &S8Stem, tile: StemTile, limits: &Limits) -> f64 {
    clocks_of(LAYERS, ROW, stem.batch, stem.output, tile, limits)
}

/// The layers of the kernel: its blocks overlap like those of the kernel of halves, and as many fit on a
/// multiprocessor.
const LAYERS: StemLayers = StemLayers { taps: 7, pools: true };

/// Clocks of a row. There is only one number of columns, so the clocks are all fixed.
const ROW: RowClocks = RowClocks { fixed: 770.0, column: 0.0 };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn blocks_fill_the_device_in_whole_rounds() {
        let [input, conv, output] = [Shape::new(224, 224, 3), Shape::new(112, 112, 64), Shape::new(56, 56, 64)];
        let limits = Limits::h200();
        let best = |batch: usize| {
            let stem = S8Stem { batch, input, pad: [3, 3], conv, output };
            let tiles = stem.tiles(&limits).into_iter();
            tiles.min_by(|a, b| clocks(&stem, *a, &limits).total_cmp(&clocks(&stem, *b, &limits))).unwrap()
        };
        assert_eq!([1, 8, 128, 256].map(|batch| best(batch).rows), [1, 2, 28, 56]);
    }
}
