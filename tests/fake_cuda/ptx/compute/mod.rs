//! Instructions that compute one value from up to four operands, without any other effect.

mod bits;
mod compare;
mod convert;
mod float;
mod half;
mod integer;
mod pack;
mod round;

use super::opcode::Opcode;
use super::program::Function4;
use super::types::Type;

pub use compare::{NEGATED, opposite, replaces};
pub use float::adds;
pub use integer::{carry, combine};
pub use pack::{pack, unpack};

/// An instruction as a function of its operands, followed by a constant if there is one.
pub struct Compute {
    pub function: Function4,
    pub to: Type,
    pub of: Vec<Type>,
    pub constant: Option<u64>,
    /// Whether registers may be wider than the types of the instruction.
    pub wider: bool,
}

impl Compute {
    fn new(function: Function4, to: Type, of: &[Type]) -> Self {
        Self { function, to, of: of.to_vec(), constant: None, wider: false }
    }

    fn with(self, constant: u64) -> Self {
        Self { constant: Some(constant), ..self }
    }
}

/// The function by which a group reads an opcode: `None` for an opcode that is not one of the group.
type Select = fn(&mut Opcode<'_>) -> Result<Option<Compute>, String>;

const GROUPS: [Select; 6] =
    [integer::select, bits::select, float::select, half::select, compare::select, convert::select];

/// The function of an opcode; `None` if no group knows the opcode.
pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    for group in GROUPS {
        if let Some(compute) = group(opcode)? {
            return Ok(Some(compute));
        }
    }
    Ok(None)
}
