//! Products of rows and matrices of e4m3 on sm90 hardware.

use super::{Kernel, KernelDef, Variant, check_variants};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::{FilterOrder, PackedSum, Packing, usual};
use crate::plan::work::Work;
use crate::plan::{E4m3ProductOp, Limits, ProductSizes, ProductTile, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_product_e4m3.cu`.
pub(super) struct Sm90ProductE4m3;

impl KernelDef for Sm90ProductE4m3 {
    fn name(&self) -> &'static str {
        "sm90_product_e4m3"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90ProductE4m3(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some((_, sizes)) = of(work) else { return Vec::new() };
        let variant =
            |tile: ProductTile| Variant::modelled((Kernel::Sm90ProductE4m3(tile), tile.e4m3_clocks(sizes, limits)));
        ProductTile::of_e4m3(sizes, limits).into_iter().map(variant).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        check_variants(self, work, kernel, limits)
    }

    /// The codes of the matrix; of a result in codes in the order that its kernels read.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let is_of_codes = of(work).is_some_and(|(of, _)| of.result.is_some());
        let order = if is_of_codes { FilterOrder::EvenFirst } else { FilterOrder::Dense };
        let in_codes = |filter| Packing { dtype: Dtype::U8, order, ..filter };
        let alone =
            |PackedSum { filters, .. }| PackedSum { filters: filters.into_iter().map(in_codes).collect(), bias: None };
        usual(work).into_iter().map(alone).collect()
    }
}

/// The operation and sizes of a step, if its operands have the types of the kernel, which adds no residual to codes.
fn of<'a>(work: &Work<'a>) -> Option<(&'a E4m3ProductOp, ProductSizes)> {
    let StepOp::E4m3Product(of) = work.op else { return None };
    let written = if of.result.is_some() { Dtype::U8 } else { Dtype::F16 };
    let residual = work.inputs.last()?.dtype;
    let fits = work.inputs[0].dtype == Dtype::U8
        && work.writes(written)
        && (of.product.residual.is_none() || (residual == Dtype::F16 && of.result.is_none()));
    fits.then(|| (of, of.product.sizes(work.batch)))
}
