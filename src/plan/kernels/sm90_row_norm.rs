//! LayerNorm and RMSNorm of rows on sm90 hardware.

use super::{Kernel, KernelDef, Variant};
#[cfg(feature = "cuda")]
use crate::plan::packing::PackedSum;
use crate::plan::work::Work;
use crate::plan::{Limits, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_row_norm.cu`.
pub(super) struct Sm90RowNorm;

impl KernelDef for Sm90RowNorm {
    fn name(&self) -> &'static str {
        "sm90_row_norm"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        match work.op {
            StepOp::RowNorm(of) if of.result.is_some() => {
                of.has_kernel() && work.inputs[0].dtype == Dtype::F16 && work.writes(Dtype::U8)
            }
            StepOp::RowNorm(of) => of.has_kernel() && work.half().is_some(),
            _ => false,
        }
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90RowNorm
    }

    fn variants(&self, _work: &Work<'_>, _limits: &Limits) -> Vec<Variant> {
        vec![Variant { kernel: Kernel::Sm90RowNorm, clocks: None }]
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, _work: &Work<'a>) -> Vec<PackedSum<'a>> {
        Vec::new()
    }
}
