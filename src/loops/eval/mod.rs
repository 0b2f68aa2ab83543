//! Evaluating loops on the CPU, in blocks of points side by side.

mod column;
mod fold;
mod lanes;
mod machine;
mod ops;
mod product;
mod program;

use super::ir::Loop;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};

/// What a loop writes, as a value of this type.
///
/// # Panics
/// If operands are of other types than the loop's, or `of` has another type or number of elements than the loop writes.
pub(super) fn run(of: &Loop, operands: &[&Tensor], to: ValueType) -> Result<Tensor, Error> {
    assert!(of.operands.iter().eq(operands.iter().map(|operand| operand.value_type())), "operands of a loop");
    assert_eq!((of.elems(), of.dtype()), (to.elems(), to.dtype), "what a loop writes");
    match product::Product::find(of) {
        Some(product) if product.is_all() => Ok(product.compute(operands)?.cast(to)),
        Some(product) => {
            let sums = product.compute(operands)?;
            run(&product.rest(), &[operands, &[&sums]].concat(), to)
        }
        None => {
            let mut result = Tensor::zeros(to)?;
            if of.elems() > 0 {
                machine::run(&program::Program::new(of), operands, result.bytes_mut());
            }
            Ok(result)
        }
    }
}
