//! Conversions between types, also to and from types that are only stored.

use super::Operator::Items;
use super::storage::{decode, encode};
use super::{Item, Outcome, Table};
use crate::graph::{Tensor, ValueId, ValueType};
use crate::onnx::DataType;
use crate::onnx::import::{Call, Context, dtype_of, is_storage};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("Cast", Items(cast)), ("CastLike", Items(cast_like)), ("BitCast", Items(bit_cast))];

fn cast(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let x = c.x(0)?;
    let to = to(c)?;
    cast_to(c, x, to)
}

fn cast_like(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let (x, like) = (c.x(0)?, c.x(1)?);
    let to = data_type(c, like);
    cast_to(c, x, to)
}

fn to(c: &Call<'_, '_>) -> Outcome<DataType> {
    c.int("to").and_then(DataType::from_number).ok_or_else(|| "to: expected the number of a type".into())
}

/// The ONNX type of a value.
pub(super) fn data_type(c: &Context<'_>, value: ValueId) -> DataType {
    let of = |dtype| match dtype {
        Dtype::Bool => DataType::Bool,
        Dtype::U8 => DataType::Uint8,
        Dtype::U16 => DataType::Uint16,
        Dtype::U32 => DataType::Uint32,
        Dtype::U64 => DataType::Uint64,
        Dtype::I8 => DataType::Int8,
        Dtype::I16 => DataType::Int16,
        Dtype::I32 => DataType::Int32,
        Dtype::I64 => DataType::Int64,
        Dtype::F16 => DataType::Float16,
        Dtype::Bf16 => DataType::Bfloat16,
        Dtype::F32 => DataType::Float,
        Dtype::F64 => DataType::Double,
    };
    c.stored.get(&value).copied().unwrap_or_else(|| of(c.dtype(value)))
}

/// The graph type of an ONNX type, unless the type is only stored.
pub(super) fn graph_type(of: DataType) -> Outcome<Dtype> {
    dtype_of(of).filter(|_| !is_storage(of)).ok_or_else(|| format!("{of}: no graph computes with this type"))
}

/// Converts to a type; by way of f32 if both types are only stored.
fn cast_to(c: &mut Call<'_, '_>, x: ValueId, to: DataType) -> Outcome<Vec<Item>> {
    let from = data_type(c, x);
    if from == to {
        return Ok(vec![x.into()]);
    }
    if !is_storage(to) {
        return Ok(vec![decode(c, x, from, graph_type(to)?)?.into()]);
    }
    if to == DataType::Float8E8M0 && c.text_or("round_mode", "up") != "up" {
        return Err("round_mode: expected up".into());
    }
    let numbers = if is_storage(from) { decode(c, x, from, Dtype::F32)? } else { x };
    let saturate = c.int_or("saturate", 1) != 0;
    let codes = encode(c, numbers, to, saturate)?;
    let codes = own(c, codes)?;
    c.store(codes, to);
    Ok(vec![codes.into()])
}

/// A value that no other name has: the type of values that are only stored is recorded by value.
fn own(c: &mut Call<'_, '_>, value: ValueId) -> Outcome<ValueId> {
    let known = c.known(value)?;
    Ok(known.map_or(value, |known| c.constant(&known)))
}

/// The bits of a known value as another type of the same number of bits.
fn bit_cast(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let x = c.x(0)?;
    let dtype = graph_type(to(c)?)?;
    if dtype.bytes() != c.dtype(x).bytes() {
        return Err(format!("from {} to {dtype}: expected as many bits", c.of(x)));
    }
    let known: Tensor = c.known(x)?.ok_or("bits that depend on the inputs are not read as another type")?;
    let cast = known.cast(ValueType::new(dtype, &c.dims(x)));
    Ok(vec![c.constant(&cast).into()])
}
