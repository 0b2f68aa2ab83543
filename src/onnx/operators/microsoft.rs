//! Operators of `com.microsoft` that onnxruntime's quantizer writes.

use super::Operator::{Items, One};
use super::product::rows_by_columns;
use super::quantize::{centred, dequantize, quantize, requantised};
use super::{Outcome, Table, find};
use crate::graph::{Op, ValueId};
use crate::onnx::import::{Call, Item};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("QLinearAdd", One(of_floats)),
    ("QLinearAveragePool", One(of_floats)),
    ("QLinearConcat", One(concat)),
    ("QLinearGlobalAveragePool", One(of_floats)),
    ("QLinearLeakyRelu", One(of_floats)),
    ("QLinearMul", One(of_floats)),
    ("QLinearSigmoid", One(of_floats)),
    ("QLinearSoftmax", One(of_floats)),
    ("QGemm", One(gemm)),
    ("QuantizeLinear", Items(quantize)),
    ("DequantizeLinear", Items(dequantize)),
];

/// Operands are bytes, each followed by a scale and a zero point, or none; the last two inputs are the scale and zero
/// point of the result.
fn of_floats(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let operands = c.inputs.len().saturating_sub(1) / 3;
    let expected = if matches!(&*c.node.op_type, "QLinearAdd" | "QLinearMul") { 2 } else { 1 };
    if operands != expected {
        return Err(format!("{operands} operands: expected {expected}"));
    }
    let result = 3 * operands;
    computed(c, (0..result).step_by(3), result)
}

/// Concatenates operands as `of_floats` has them, with the scale and zero point of the result as the first inputs.
fn concat(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let operands = (2..c.inputs.len()).step_by(3);
    computed(c, operands, 0)
}

/// Applies the standard operator whose name follows `QLinear` to the floats that the operands stand for; returns bytes.
fn computed(c: &mut Call<'_, '_>, operands: impl Iterator<Item = usize>, result: usize) -> Outcome<ValueId> {
    if c.flag("channels_last") {
        return Err("channels_last: expected 0".into());
    }
    let inputs = operands.map(|at| floats(c, at).map(|x| Some(x.into()))).collect::<Outcome<Vec<Option<Item>>>>()?;
    let name = c.node.op_type.strip_prefix("QLinear").expect("the table has no other here");
    let version = c.int_or("opset", AXIS_ALONE);
    let standard = find("", name, version)?;
    let mut inner = Call { cx: &mut *c.cx, node: c.node, version, inputs, scope: c.scope };
    let Some(Item::Tensor(real)) = standard.import(&mut inner)?.pop() else {
        return Err(format!("{name}: expected one tensor"));
    };
    let (scale, zero) = (scalar(c, result)?, scalar_or_none(c, result + 1)?);
    let dtype = zero.map_or(Dtype::U8, |zero| c.dtype(zero));
    Ok(c.emit(Op::Quantize { dtype, axis: None }, &[Some(real), Some(scale), zero], 1)?[0])
}

/// The first version of the operators whose softmax is only along its axis.
const AXIS_ALONE: i64 = 13;

/// The floats that an input stands for, with the scale and zero point in the next two inputs.
fn floats(c: &mut Call<'_, '_>, at: usize) -> Outcome<ValueId> {
    let (x, scale, zero) = (c.x(at)?, scalar(c, at + 1)?, scalar_or_none(c, at + 2)?);
    Ok(c.emit(Op::Dequantize { axis: None }, &[Some(x), Some(scale), zero], 1)?[0])
}

fn scalar(c: &mut Call<'_, '_>, at: usize) -> Outcome<ValueId> {
    let x = c.x(at)?;
    c.reshape(x, &[])
}

fn scalar_or_none(c: &mut Call<'_, '_>, at: usize) -> Outcome<Option<ValueId>> {
    c.maybe(at).map(|x| c.reshape(x, &[])).transpose()
}

/// A x B + C in whole numbers, times alpha and the scales of A and B: bytes if the result has a scale, otherwise
/// floats.
fn gemm(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b, [a_zero, b_zero]) = (c.x(0)?, c.x(3)?, [2, 5].map(|index| c.maybe(index)));
    let is_turned = c.flag("transB");
    let a = centred(c, a, a_zero, false)?;
    let b = centred(c, b, b_zero, is_turned)?;
    let mut sum = rows_by_columns(c, a, b)?;
    if let Some(bias) = c.maybe(6) {
        sum = c.add(sum, bias)?;
    }
    let (a_scale, b_scale) = (scalar(c, 1)?, c.x(4)?);
    let scale = c.mul(a_scale, b_scale)?;
    let scale = c.cx.scaled(scale, c.float_or("alpha", 1.0))?;
    if c.maybe(7).is_some() {
        let (y_scale, y_zero) = (c.x(7)?, c.x(8)?);
        return requantised(c, sum, scale, y_scale, y_zero);
    }
    let real = c.cast(sum, Dtype::F32)?;
    c.mul(real, scale)
}
