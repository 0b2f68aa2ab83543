//! Products of rows with matrices of weights on sm90 hardware.

use super::{Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::plan::packing::{FilterOrder, PackedSum, Packing, usual};
use crate::plan::work::Work;
use crate::plan::{Limits, ProductOp, ProductSizes, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_product.cu`.
pub(super) struct Sm90Product;

impl KernelDef for Sm90Product {
    fn name(&self) -> &'static str {
        "sm90_product"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        product(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Product(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some((of, sizes)) = product(work) else { return Vec::new() };
        let variant = |kernel| Variant::modelled((Kernel::Sm90Product(kernel), sizes.clocks(kernel, limits)));
        sizes.kernels(limits).into_iter().filter(|kernel| of.is_for(*kernel)).map(variant).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, _limits: &Limits) -> Result<(), Error> {
        match (kernel, product(work)) {
            (Kernel::Sm90Product(kernel), Some((of, sizes))) if of.is_for(kernel) => sizes.check(kernel),
            _ => Err(not_a_choice(work.name, kernel)),
        }
    }

    /// The matrix without a bias, in the type of the rows: biases are tensors. A norm within the product is in the matrix,
    /// and what it adds behind it.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let StepOp::Product(of) = work.op else { return usual(work) };
        let order = match of.norm {
            Some(_) => FilterOrder::Normed,
            None if of.stored_terms() == of.terms => FilterOrder::Dense,
            None => FilterOrder::Eights,
        };
        let in_type = |filter| Packing { dtype: work.inputs[0].dtype, order, norm: of.norm.as_ref(), ..filter };
        let alone =
            |PackedSum { filters, .. }| PackedSum { filters: filters.into_iter().map(in_type).collect(), bias: None };
        usual(work).into_iter().map(alone).collect()
    }
}

/// A step's product and its sizes, if its rows are f16 or bf16 and result and residual have the same type.
fn product<'a>(work: &Work<'a>) -> Option<(&'a ProductOp, ProductSizes)> {
    let StepOp::Product(of) = work.op else { return None };
    let (rows, result, last) = (work.inputs.first()?.dtype, work.outputs.first()?.dtype, work.inputs.last()?.dtype);
    let is_half = matches!(rows, Dtype::F16 | Dtype::Bf16) && result == rows && (of.residual.is_none() || last == rows);
    is_half.then(|| (of, of.sizes(work.batch)))
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::model::{Conv2d, Window};
    use crate::plan::work::Operand;
    use crate::plan::{ProductActivation, ProductOp, RowsAt};
    use crate::tensor::{Dtype, Shape};

    /// The matrix of patches of 14x14 pixels of 3 channels has 588 values a row, that of three overlapping taps of 200
    /// channels 600 and zeros up to whole steps; those of other products are dense.
    #[test]
    fn zeros_follow_rows_that_are_no_multiple_of_8() {
        let places = |size: [usize; 2], stride: [usize; 2], channels: usize| {
            let window = Window { size, stride, ..Window::square(1, 1, 0) };
            let op = StepOp::Product(ProductOp {
                weights: Conv2d::named("patches", 64, window),
                rows: 4,
                terms: size[0] * size[1] * channels,
                x: RowsAt { first: 0, pitch: 0 },
                activation: ProductActivation::None,
                bias: false,
                scale: false,
                residual: None,
                norm: None,
                statistics: false,
            });
            let operand = |elems| Operand::rows(Shape::vector(elems), Dtype::F16);
            let (inputs, outputs) = (vec![operand(4 * 672)], vec![operand(4 * 64)]);
            let work = Work { name: "patches", op: &op, batch: 1, inputs, outputs };
            let packed = Sm90Product.packing(&work);
            let filter = &packed[0].filters[0];
            (filter.order, filter.bytes(), filter.places(5)(2, 195))
        };
        assert_eq!(places([1, 3], [1, 1], 200), (FilterOrder::Eights, 64 * 640 * 2, 5 * 640 + 195 * 200 + 2));
        assert_eq!(places([14; 2], [14; 2], 3), (FilterOrder::Eights, 64 * 672 * 2, 5 * 672 + 195 * 3 + 2));
        assert_eq!(places([14; 2], [14; 2], 4), (FilterOrder::Dense, 64 * 784 * 2, 5 * 784 + 195 * 4 + 2));
    }
}
