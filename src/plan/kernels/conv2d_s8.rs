//! The convolution of bytes of any GPU as the planner sees it, and what all kernels of such convolutions compute.

use super::{ConvTile, Kernel, KernelDef, Variant, conv2d_fprop, not_a_choice};
use crate::error::Error;
use crate::model::{Conv2d, NodeId};
use crate::plan::context::{Context, Match};
#[cfg(feature = "cuda")]
use crate::plan::packing::{self, FilterOrder, PackedSum};
use crate::plan::work::{Operand, Work};
use crate::plan::{Family, Limits, S8Conv, S8Kernel, StepOp, bytes};
use crate::tensor::Dtype;

/// The kernel in `kernels/conv2d_s8.cu`.
pub(super) struct Conv2dS8;

impl KernelDef for Conv2dS8 {
    fn name(&self) -> &'static str {
        "conv2d_s8"
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.family == Family::Sm80
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        sum(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::S8(S8Kernel::Sm80Gemm(_)))
    }

    /// On compute capability 9.0 there is no prediction: this kernel is for what no other one computes there.
    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(sum) = sum(work) else { return Vec::new() };
        let predicted = |tile| (!limits.has_sm90_kernels()).then(|| clocks(&sum, tile, limits));
        let variant = |of| match of {
            S8Kernel::Sm80Gemm(tile) => Some(Variant { kernel: Kernel::S8(of), clocks: predicted(tile) }),
            S8Kernel::Tiled { .. } | S8Kernel::Halo => None,
        };
        kernels(&sum, limits).filter_map(variant).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        let sum = sum(work).ok_or_else(|| not_a_choice(work.name, kernel))?;
        sum[0].check_sizes()?;
        let is_one = kernels(&sum, limits).any(|of| Kernel::S8(of) == kernel);
        if is_one { Ok(()) } else { Err(not_a_choice(work.name, kernel)) }
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(bytes::joined(context, at)?.into_iter().collect())
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        packing::in_bytes(work, FilterOrder::Bytes)
    }
}

/// The convolutions of bytes whose products a step sums; `None` for any other step.
pub(super) fn sum(work: &Work<'_>) -> Option<Vec<S8Conv>> {
    let StepOp::QuantizedConv(of) = work.op else { return None };
    let mut operands = work.inputs.iter().chain(&work.outputs);
    let is_in_bytes = operands.all(|operand| matches!(operand.dtype, Dtype::U8 | Dtype::I8));
    let (batch, output) = (work.batch, work.outputs[0].stored());
    let conv = |((conv, _), input): ((&Conv2d, _), &Operand)| {
        let (input, window) = (input.stored(), conv.window);
        S8Conv { batch, input, output, window }
    };
    is_in_bytes.then(|| of.convs().zip(&work.inputs).map(conv).collect())
}

/// The kernels that compute a sum of convolutions.
pub(super) fn kernels(sum: &[S8Conv], limits: &Limits) -> impl Iterator<Item = S8Kernel> {
    let (first, others) = sum.split_first().expect("a step has a convolution");
    first.kernels(limits).into_iter().filter(move |&kernel| others.iter().all(|other| first.adds(other, kernel)))
}

/// Predicted clocks of the busiest multiprocessor: mma.sync multiplies two bytes in the time of one half.
fn clocks(sum: &[S8Conv], tile: ConvTile, limits: &Limits) -> f64 {
    let S8Conv { batch, output, .. } = sum[0];
    let bytes = sum.iter().map(S8Conv::products).sum::<usize>();
    conv2d_fprop::clocks(tile, limits, [batch * output.pixels(), output.channels, bytes.div_ceil(2)])
}
