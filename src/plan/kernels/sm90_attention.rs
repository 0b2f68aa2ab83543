//! Attention on sm90 hardware: the kernel as the planner sees it.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::plan::attention::STEP_CLOCKS;
#[cfg(feature = "cuda")]
use crate::plan::packing::PackedSum;
use crate::plan::work::Work;
use crate::plan::{AttentionSizes, Limits, PackedAttentionOp, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_attention.cu`.
pub(super) struct Sm90Attention;

impl KernelDef for Sm90Attention {
    fn name(&self) -> &'static str {
        "sm90_attention"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Attention(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let modelled = |(kernel, clocks)| Variant::modelled((Kernel::Sm90Attention(kernel), STEP_CLOCKS * clocks));
        match of(work) {
            Some(Of::Images(sizes)) => {
                let kernels = sizes.kernels(limits).into_iter();
                kernels.map(|kernel| modelled((kernel, sizes.clocks(kernel, limits)))).collect()
            }
            Some(Of::Packed(of)) => {
                let kernel = of.kernel(limits).into_iter();
                kernel.map(|kernel| modelled((kernel, of.sizes.clocks(kernel, limits)))).collect()
            }
            None => Vec::new(),
        }
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        match (kernel, of(work)) {
            (Kernel::Sm90Attention(kernel), Some(Of::Images(sizes))) => sizes.check(kernel),
            (Kernel::Sm90Attention(chosen), Some(Of::Packed(of)))
                if of.kernel(limits).is_some_and(|of| of == chosen) =>
            {
                Ok(())
            }
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, _work: &Work<'a>) -> Vec<PackedSum<'a>> {
        Vec::new()
    }
}

/// The attention of a step: of images of equal size, or of packed rows.
enum Of<'a> {
    Images(AttentionSizes),
    Packed(&'a PackedAttentionOp),
}

/// The attention of `work`, if the kernel is for its types: all operands f16 or all bf16; for a result in codes only f16.
fn of<'a>(work: &Work<'a>) -> Option<Of<'a>> {
    match work.op {
        StepOp::Attention(of) if of.result.is_some() => {
            (of.is_aligned() && work.is_in(Dtype::F16, Dtype::U8)).then_some(Of::Images(of.sizes))
        }
        StepOp::Attention(of) if work.half().is_some_and(|of| work.is_in(of, of)) => Some(Of::Images(of.sizes)),
        StepOp::PackedAttention(of) => {
            let [qkv @ .., blocks] = &work.inputs[..] else { return None };
            let is_one = work.half().is_some_and(|half| qkv.iter().all(|operand| operand.dtype == half));
            (is_one && blocks.dtype == Dtype::I32).then_some(Of::Packed(of))
        }
        _ => None,
    }
}
