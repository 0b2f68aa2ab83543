//! LayerNorm and RMSNorm of rows on sm90 hardware.

use super::{Kernel, KernelDef, Variant};
#[cfg(feature = "cuda")]
use crate::plan::packing::PackedSum;
use crate::plan::work::Work;
use crate::plan::{Limits, RowNormResult, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_row_norm.cu`.
pub(super) struct Sm90RowNorm;

impl KernelDef for Sm90RowNorm {
    fn name(&self) -> &'static str {
        "sm90_row_norm"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        match work.op {
            StepOp::RowNorm(of) => {
                let written: Vec<Dtype> = work.outputs.iter().map(|output| output.dtype).collect();
                let x = work.inputs[0].dtype;
                let is_half = matches!(x, Dtype::F16 | Dtype::Bf16);
                let fits = match of.result {
                    RowNormResult::Rows if of.sum.is_some() => is_half && written == [x; 2],
                    RowNormResult::Rows => is_half && written == [x],
                    RowNormResult::F32 => is_half && written == [Dtype::F32],
                    RowNormResult::Codes(_) => x == Dtype::F16 && written == [Dtype::U8],
                    RowNormResult::Both(_) => x == Dtype::F16 && written == [x, Dtype::U8],
                };
                fits && of.has_kernel()
            }
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
