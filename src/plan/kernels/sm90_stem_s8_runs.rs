//! A network's first layers from photos to bytes in equal runs of rows on compute capability 9.0: when there are such runs,
//! and their predicted time.

use super::sm90_stem_s8::Sm90StemS8;
use super::{Kernel, KernelDef, Variant, check_variants};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::PackedSum;
use crate::plan::stem_s8::STEM_RUNS;
use crate::plan::work::Work;
use crate::plan::{Limits, S8Stem};

/// The kernel in `kernels/sm90_stem_s8_runs.cu`.
pub(super) struct Sm90StemS8Runs;

impl KernelDef for Sm90StemS8Runs {
    fn name(&self) -> &'static str {
        "sm90_stem_s8_runs"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        Sm90StemS8.takes(work)
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90StemS8Runs
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let stem = S8Stem::of(work).filter(|stem| limits.has_sm90_kernels() && stem.fits_runs());
        let of = |stem| Variant::modelled((Kernel::Sm90StemS8Runs, clocks(&stem, limits)));
        stem.map(of).into_iter().collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        check_variants(self, work, kernel, limits)
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        Sm90StemS8.packing(work)
    }
}

/// Predicted clocks of the multiprocessor with the longest run.
fn clocks(stem: &S8Stem, limits: &Limits) -> f64 {
    let rows = stem.batch * stem.output.height;
    let runs = STEM_RUNS * limits.units.clamp(1, rows.max(1));
    RUN_STARTUP + rows.div_ceil(runs) as f64 * RUN_ROW
}

// These constants are fitted to times on an H200 at batch 8 to 256, in units of the tiles' predictions
// (benches/notes/2026-11-28-first-layers-in-runs.md).

/// Clocks of the launch, of the first image rows, of the last stores, and of the next launch, for which a block of runs
/// leaves no place.
const RUN_STARTUP: f64 = 12_500.0;
/// Clocks of a row of a run's results, beside the two other groups of its multiprocessor.
const RUN_ROW: f64 = 2500.0;

#[cfg(test)]
mod tests {
    use super::super::sm90_stem_s8;
    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn runs_are_of_many_photos() {
        let [input, conv, output] = [Shape::new(224, 224, 3), Shape::new(112, 112, 64), Shape::new(56, 56, 64)];
        let limits = Limits::h200();
        let gains = |batch: usize| {
            let stem = S8Stem { batch, input, pad: [3, 3], conv, output };
            let best = stem
                .tiles(&limits)
                .into_iter()
                .map(|tile| sm90_stem_s8::clocks(&stem, tile, &limits))
                .min_by(f64::total_cmp);
            best.unwrap() / clocks(&stem, &limits) > 1.0
        };
        assert_eq!([1, 8, 16, 32, 64, 128, 256].map(gains), [false, false, false, true, true, true, true]);
    }
}
