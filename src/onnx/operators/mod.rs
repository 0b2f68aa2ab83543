//! The operators of ONNX, by families, in tables by domain and name.
//!
//! The function of an operator reads the node's attributes as the model's version defines them; there is no conversion
//! between versions.

mod activation;
mod attention;
mod cast;
mod control;
mod conv;
mod found;
mod image;
mod index;
mod linear_attention;
mod loss;
mod make;
mod math;
mod microsoft;
mod norm;
mod pool;
mod product;
mod quantize;
mod recurrent;
mod reduce;
mod sample;
mod sequence;
mod shape;
mod signal;
mod storage;
mod suppression;

use super::import::{Call, Item, Outcome};
use crate::graph::{Binary, Unary, ValueId};
use crate::onnx::DataType;

/// How an operator is imported.
pub(super) enum Operator {
    /// A function of one number.
    Unary(Unary),
    /// A function of two numbers.
    Binary(Binary),
    /// Any operands, one output.
    One(fn(&mut Call<'_, '_>) -> Outcome<ValueId>),
    /// Any operands, several outputs.
    Many(fn(&mut Call<'_, '_>) -> Outcome<Vec<ValueId>>),
    /// Operands or outputs that need not be tensors.
    Items(fn(&mut Call<'_, '_>) -> Outcome<Vec<Item>>),
    /// One output, without a computation on the operands' bits, so that types that are only stored are allowed.
    Moves(fn(&mut Call<'_, '_>) -> Outcome<ValueId>),
}

/// Operators of a family, by name.
type Table = &'static [(&'static str, Operator)];

const STANDARD: [Table; 23] = [
    activation::TABLE,
    attention::TABLE,
    cast::TABLE,
    control::TABLE,
    conv::TABLE,
    found::TABLE,
    image::TABLE,
    index::TABLE,
    linear_attention::TABLE,
    loss::TABLE,
    make::TABLE,
    math::TABLE,
    norm::TABLE,
    pool::TABLE,
    product::TABLE,
    quantize::TABLE,
    recurrent::TABLE,
    reduce::TABLE,
    sample::TABLE,
    sequence::TABLE,
    shape::TABLE,
    signal::TABLE,
    suppression::TABLE,
];

/// The known versions of the standard operators.
const VERSIONS: std::ops::RangeInclusive<i64> = 7..=28;

/// The operator of this domain and name.
pub(super) fn find(domain: &str, name: &str, version: i64) -> Outcome<&'static Operator> {
    let tables: &[Table] = match domain {
        "" => &STANDARD,
        "ai.onnx.preview" => &[attention::PREVIEW],
        "com.microsoft" => &[microsoft::TABLE],
        _ => &[],
    };
    let found = tables.iter().flat_map(|table| table.iter()).find(|(known, _)| *known == name);
    let (_, operator) = found.ok_or("this operator is not known")?;
    match domain.is_empty() && !VERSIONS.contains(&version) {
        true => Err(format!("version {version} of the operators: expected {} to {}", VERSIONS.start(), VERSIONS.end())),
        false => Ok(operator),
    }
}

impl Operator {
    pub fn import(&self, call: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
        if let Self::Items(import) = self {
            return import(call);
        }
        let stored = call.inputs.iter().find_map(|input| match input {
            Some(Item::Tensor(value)) => call.stored.get(value).copied(),
            _ => None,
        });
        let written = match (self, stored) {
            (Self::Moves(import), Some(stored)) => return moved(*import, call, stored),
            (_, Some(stored)) => return Err(format!("{stored} is only stored: cast it first")),
            (Self::Unary(op), _) => vec![math::unary(call, *op)?],
            (Self::Binary(op), _) => vec![math::binary(call, *op)?],
            (Self::One(import) | Self::Moves(import), _) => vec![import(call)?],
            (Self::Many(import), _) => import(call)?,
            (Self::Items(_), _) => unreachable!("answered above"),
        };
        Ok(written.into_iter().map(Item::from).collect())
    }
}

fn moved(
    import: fn(&mut Call<'_, '_>) -> Outcome<ValueId>,
    call: &mut Call<'_, '_>,
    stored: DataType,
) -> Outcome<Vec<Item>> {
    let value = import(call)?;
    call.store(value, stored);
    Ok(vec![value.into()])
}
