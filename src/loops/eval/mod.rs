//! Evaluating loops on the CPU, in blocks of points side by side.

mod column;
mod factor;
mod fold;
mod lanes;
mod machine;
mod ops;
mod product;
mod program;
mod runs;
mod tiles;

use super::ir::Loop;
use super::team::Team;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};

/// What a loop writes, as a value of this type, by a team.
///
/// # Panics
/// If operands are of other types than the loop's, or `of` has another type or number of elements than the loop writes.
pub(super) fn run(of: &Loop, operands: &[&Tensor], to: ValueType, team: &dyn Team) -> Result<Tensor, Error> {
    assert!(of.operands.iter().eq(operands.iter().map(|operand| operand.value_type())), "operands of a loop");
    assert_eq!((of.elems(), of.dtype()), (to.elems(), to.dtype), "what a loop writes");
    match product::Product::find(of) {
        Some(product) if product.is_all() => Ok(product.compute(operands, team)?.cast(to)),
        Some(product) => {
            let sums = product.compute(operands, team)?;
            run(&product.rest(), &[operands, &[&sums]].concat(), to, team)
        }
        None => {
            let mut result = Tensor::zeros(to)?;
            if of.elems() > 0 {
                machine::run(&program::Program::new(of), operands, result.bytes_mut(), team);
            }
            Ok(result)
        }
    }
}
