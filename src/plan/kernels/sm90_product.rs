//! Products of rows with matrices of weights on sm90 hardware.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::{PackedSum, Packing, usual};
use crate::plan::work::Work;
use crate::plan::{Limits, ProductSizes, StepOp};

/// The kernel in `kernels/sm90_product.cu`.
pub(super) struct Sm90Product;

impl KernelDef for Sm90Product {
    fn name(&self) -> &'static str {
        "sm90_product"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        sizes(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Product(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(sizes) = sizes(work) else { return Vec::new() };
        let of = |kernel| Variant::modelled((Kernel::Sm90Product(kernel), sizes.clocks(kernel, limits)));
        sizes.kernels(limits).into_iter().map(of).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, _limits: &Limits) -> Result<(), Error> {
        match (kernel, sizes(work)) {
            (Kernel::Sm90Product(kernel), Some(sizes)) => sizes.check(kernel),
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }

    /// The matrix without a bias, in the type of the rows: biases are tensors.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let in_type = |filter| Packing { dtype: work.inputs[0].dtype, ..filter };
        let alone =
            |PackedSum { filters, .. }| PackedSum { filters: filters.into_iter().map(in_type).collect(), bias: None };
        usual(work).into_iter().map(alone).collect()
    }
}

/// The sizes of a step's product, if its rows are f16 or bf16 and a residual has the same type.
fn sizes(work: &Work<'_>) -> Option<ProductSizes> {
    match work.op {
        StepOp::Product(of) => {
            let (rows, residual) = (work.half()?, work.inputs.last()?);
            (!of.residual || residual.dtype == rows).then(|| of.sizes(work.batch))
        }
        _ => None,
    }
}
