//! Products of rows with matrices of weights on sm90 hardware.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::{FilterOrder, PackedSum, Packing, usual};
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
        let is_whole = matches!(work.op, StepOp::Product(of) if of.terms.is_multiple_of(8));
        let order = if is_whole { FilterOrder::Dense } else { FilterOrder::Eights };
        let in_type = |filter| Packing { dtype: work.inputs[0].dtype, order, ..filter };
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
            (of.residual.is_none() || residual.dtype == rows).then(|| of.sizes(work.batch))
        }
        _ => None,
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::model::{Conv2d, Window};
    use crate::plan::work::Operand;
    use crate::plan::{ProductActivation, ProductOp, RowsAt};
    use crate::tensor::{Dtype, Shape};

    /// The matrix of patches of 14x14 pixels of 3 channels has 588 values a row; those of other products are dense.
    #[test]
    fn zeros_follow_rows_that_are_no_multiple_of_8() {
        let places = |size: usize, channels: usize| {
            let op = StepOp::Product(ProductOp {
                weights: Conv2d::named("patches", 64, Window::square(size, size, 0)),
                rows: 4,
                terms: size * size * channels,
                x: RowsAt { first: 0, pitch: 0 },
                activation: ProductActivation::None,
                bias: false,
                scale: false,
                residual: false,
            });
            let operand = |elems| Operand::rows(Shape::vector(elems), Dtype::F16);
            let (inputs, outputs) = (vec![operand(4 * 672)], vec![operand(4 * 64)]);
            let work = Work { name: "patches", op: &op, batch: 1, inputs, outputs };
            let packed = Sm90Product.packing(&work);
            let filter = &packed[0].filters[0];
            (filter.order, filter.bytes(), filter.places(5)(2, 195))
        };
        assert_eq!(places(14, 3), (FilterOrder::Eights, 64 * 672 * 2, 5 * 672 + 195 * 3 + 2));
        assert_eq!(places(14, 4), (FilterOrder::Dense, 64 * 784 * 2, 5 * 784 + 195 * 4 + 2));
    }
}
