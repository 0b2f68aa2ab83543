//! Values that nodes make without operands, or pass on.

use super::Operator::{Items, Many, One};
use super::cast::{data_type, graph_type};
use super::{Item, Outcome, Table};
use crate::graph::{Binary, Expr, Number, Tensor, ValueId};
use crate::onnx::import::{Call, axis_of, size_of_dim};
use crate::onnx::{AttributeValue, DataType};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Constant", Items(constant)),
    ("ConstantOfShape", One(constant_of_shape)),
    ("Identity", Items(identity)),
    ("Dropout", Many(dropout)),
    ("Range", One(range)),
    ("EyeLike", One(eye_like)),
    ("OneHot", One(one_hot)),
];

fn constant(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let names = ["value", "value_float", "value_floats", "value_int", "value_ints"];
    let value = names.into_iter().find_map(|name| c.attribute(name));
    let value = match value.ok_or("expected a value of numbers")? {
        AttributeValue::Tensor(tensor) => c.tensor(tensor)?,
        AttributeValue::Float(value) => c.constant(&Tensor::of(&[], &[*value])),
        AttributeValue::Floats(values) => c.constant(&Tensor::of(&[values.len()], values)),
        AttributeValue::Int(value) => c.constant(&Tensor::of(&[], &[*value])),
        AttributeValue::Ints(values) => c.vector(values),
        other => return Err(format!("a constant of {other:?}: expected numbers")),
    };
    Ok(vec![value.into()])
}

fn constant_of_shape(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let shape = c.ints_at(0, "the shape")?.ok_or("expected a shape")?;
    let dims = shape.iter().map(|&dim| size_of_dim(dim, "shape")).collect::<Outcome<Vec<_>>>()?;
    let value = match c.tensor_attr("value") {
        Some(tensor) if tensor.elems() == 1 => c.tensor(tensor)?,
        Some(tensor) => return Err(format!("value: expected one element, found {}", tensor.elems())),
        None => c.constant(&Tensor::of(&[], &[0_f32])),
    };
    let value = c.reshape(value, &[])?;
    c.broadcast(value, &dims)
}

fn identity(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    Ok(vec![c.inputs.first().cloned().flatten().ok_or("expected an operand")?])
}

/// Inference drops no elements.
fn dropout(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let training = c.int_at(2, "the training mode")?.unwrap_or(0) != 0;
    let ratio = c.maybe(1).map(|ratio| c.floats(ratio, "the ratio")).transpose()?;
    let ratio = ratio.and_then(|ratio| ratio.first().copied()).unwrap_or(0.5);
    if training && ratio != 0.0 {
        return Err("training mode: elements are not dropped at random".into());
    }
    let (dims, mask) = (c.dims(x), if c.version < 10 { c.dtype(x) } else { Dtype::Bool });
    if !c.wants(1) {
        return Ok(vec![x]);
    }
    Ok(vec![x, c.filled(mask, &dims, 1.0)?])
}

/// start, start + delta, …, up to but without the limit.
fn range(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let all = [c.x(0)?, c.x(1)?, c.x(2)?];
    let dtype = c.dtype(all[0]);
    let mut numbers = [Number::Int(0); 3];
    for (number, (&value, what)) in numbers.iter_mut().zip(all.iter().zip(["the start", "the limit", "the step"])) {
        *number = c.first(value, what)?.ok_or("expected numbers")?;
    }
    let count = match numbers {
        [Number::Int(start), Number::Int(limit), Number::Int(delta)] if delta != 0 => {
            let [way, step] = [limit - start, delta].map(|way| if delta < 0 { -way } else { way });
            Some((way.max(0) + step - 1) / step)
        }
        [Number::Float(start), Number::Float(limit), Number::Float(delta)] => {
            Some(((limit - start) / delta).ceil().max(0.0)).filter(|count| count.is_finite()).map(|count| count as i128)
        }
        _ => None,
    };
    let count = count.filter(|&count| count <= MOST).ok_or_else(|| {
        let [start, limit, delta] = numbers.map(shown);
        format!("{start} to {limit} by {delta}: expected {MOST} elements at most")
    })?;
    let at = c.indices(&[count as usize], 0)?;
    let [start, _, delta] = numbers.map(|number| Expr::Const(dtype, number));
    c.map(start + Expr::arg(0).cast(dtype) * delta, &[at])
}

fn shown(number: Number) -> String {
    match number {
        Number::Float(value) => value.to_string(),
        Number::Int(value) => value.to_string(),
    }
}

/// The most elements of a range.
const MOST: i128 = 4_000_000_000;

fn eye_like(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dtype = match c.int("dtype") {
        Some(dtype) => graph_type(DataType::from_number(dtype).ok_or("dtype: expected the number of a type")?)?,
        None => graph_type(data_type(c, x))?,
    };
    let dims = c.dims(x);
    if dims.len() != 2 {
        return Err(format!("expected a matrix, found {}", c.of(x)));
    }
    let zeros = c.filled(Dtype::I64, &dims, 0.0)?;
    let diagonal = Expr::Axis(0) + Expr::int(Dtype::I64, c.int_or("k", 0).into());
    let on = Expr::arg(0) + Expr::Axis(1);
    c.map(on.binary(Binary::Equal, diagonal).cast(dtype), &[zeros])
}

/// Indices as vectors along a new axis, with one value at the index and another elsewhere.
fn one_hot(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (at, values) = (c.x(0)?, c.x(2)?);
    let depth = c.maybe(1).map(|depth| c.floats(depth, "the depth")).transpose()?;
    let depth = depth.and_then(|depth| depth.first().copied()).ok_or("expected a depth")? as i64;
    let axis = axis_of(c.int_or("axis", -1), c.rank(at) + 1)?;
    let at = c.cast(at, Dtype::I64)?;
    let at = c.cx.unsqueeze(at, axis)?;
    let int = |value: i64| Expr::int(Dtype::I64, value.into());
    let negative = Expr::arg(0).binary(Binary::Less, int(0));
    let at = c.map(negative.select(Expr::arg(0) + int(depth), Expr::arg(0)), &[at])?;
    let mut dims = c.dims(at);
    dims[axis] = size_of_dim(depth, "depth")?;
    let index = c.indices(&dims, axis)?;
    let (off, on) = (c.at(values, 0, 0)?, c.at(values, 0, 1)?);
    let hot = Expr::arg(0).binary(Binary::Equal, Expr::arg(1));
    c.map(hot.select(Expr::arg(2), Expr::arg(3)), &[at, index, on, off])
}
