//! Attention on Hopper.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::PackedSum;
use crate::plan::work::Work;
use crate::plan::{AttentionSizes, Limits, StepOp};

/// `kernels/sm90_attention.cu`.
pub(super) struct Sm90Attention;

impl KernelDef for Sm90Attention {
    fn name(&self) -> &'static str {
        "sm90_attention"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        sizes(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Attention(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(sizes) = sizes(work) else { return Vec::new() };
        let clocks = |kernel| STEP_CLOCKS * sizes.clocks(kernel, limits);
        let of = |kernel| Variant::modelled((Kernel::Sm90Attention(kernel), clocks(kernel)));
        sizes.kernels(limits).into_iter().map(of).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, _limits: &Limits) -> Result<(), Error> {
        match (kernel, sizes(work)) {
            (Kernel::Sm90Attention(kernel), Some(sizes)) => sizes.check(kernel),
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, _work: &Work<'a>) -> Vec<PackedSum<'a>> {
        Vec::new()
    }
}

/// Of attention of f16 or bf16, all operands of one type.
fn sizes(work: &Work<'_>) -> Option<AttentionSizes> {
    match work.op {
        StepOp::Attention(of) if work.half().is_some_and(|of| work.is_in(of, of)) => Some(of.sizes),
        _ => None,
    }
}

/// Clocks of a warpgroup's step for a key: of 197 rows of 12 heads, 128 images, in 51 us.
const STEP_CLOCKS: f64 = 20.0;
