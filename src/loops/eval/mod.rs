//! The evaluation of loops on the CPU, in blocks of points side by side.

mod attention;
mod column;
mod factor;
mod fold;
mod lanes;
mod machine;
mod ops;
mod pieces;
mod product;
mod program;
mod quotients;
mod runs;
mod tiles;

pub(crate) use quotients::in_parts;

pub(super) use self::attention::packed_attention;
use super::ir::Loop;
use super::team::Team;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};

/// A value in memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub of: &'a ValueType,
    /// The elements, dense and aligned.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self { of: tensor.value_type(), bytes: tensor.bytes() }
    }
}

/// Writes every element of a loop's result; the threads of a team share the work.
///
/// # Errors
/// [`Error::OutOfMemory`] if there is no room for intermediate results.
///
/// # Panics
/// If operands have other types than those of the loop, or `to` does not have the size of the result in bytes.
pub(super) fn run(of: &Loop, operands: &[View<'_>], to: &mut [u8], team: &dyn Team) -> Result<(), Error> {
    assert!(of.operands.iter().eq(operands.iter().map(|operand| operand.of)), "operands of a loop");
    assert!(operands.iter().all(|operand| operand.bytes.len() == operand.of.bytes()), "bytes of operands");
    assert_eq!(of.elems() * of.dtype().bytes(), to.len(), "what a loop writes");
    match product::Product::find(of) {
        Some(product) => product.run(operands, to, team),
        None => {
            match pieces::Pieces::of(of) {
                _ if of.elems() == 0 => {}
                Some(pieces) => pieces.run(operands, to, team),
                None => machine::run(&program::Program::new(of), operands, to, team),
            }
            Ok(())
        }
    }
}
