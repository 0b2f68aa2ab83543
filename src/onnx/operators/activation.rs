//! Activations: functions of single elements, with attributes.

use super::Operator::One;
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Op, Unary, ValueId};
use crate::onnx::import::{Call, Context, axis_of, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Relu", One(relu)),
    ("Clip", One(clip)),
    ("Sigmoid", One(sigmoid)),
    ("HardSigmoid", One(hard_sigmoid)),
    ("HardSwish", One(hard_swish)),
    ("LeakyRelu", One(leaky_relu)),
    ("PRelu", One(prelu)),
    ("Elu", One(elu)),
    ("Celu", One(celu)),
    ("Selu", One(selu)),
    ("Gelu", One(gelu)),
    ("Softplus", One(softplus)),
    ("Softsign", One(softsign)),
    ("Mish", One(mish)),
    ("Swish", One(swish)),
    ("SwiGLU", One(swiglu)),
    ("ThresholdedRelu", One(thresholded_relu)),
    ("Shrink", One(shrink)),
    ("Softmax", One(softmax)),
    ("LogSoftmax", One(log_softmax)),
    ("Hardmax", One(hardmax)),
];

/// Applies an expression to one operand, computed in f32 or a wider type. `of` gets the operand and a function that
/// makes numbers of its type.
pub(super) fn wide(
    c: &mut Context<'_>,
    x: ValueId,
    expr: impl Fn(&dyn Fn() -> Expr, &dyn Fn(f64) -> Expr) -> Expr,
) -> Outcome<ValueId> {
    let dtype = c.dtype(x);
    let narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
    let at = if narrow { Dtype::F32 } else { dtype };
    let operand = || if narrow { Expr::arg(0).cast(at) } else { Expr::arg(0) };
    let value = expr(&operand, &|value| number(at, value));
    c.map(if narrow { value.cast(dtype) } else { value }, &[x])
}

/// 1 / (1 + exp(-x)).
pub(super) fn sigmoid_of(x: Expr, one: impl Fn(f64) -> Expr) -> Expr {
    one(1.0) / (one(1.0) + (-x).unary(Unary::Exp))
}

/// log(1 + exp(x)), in a form that does not overflow.
pub(super) fn softplus_of(x: &dyn Fn() -> Expr, k: &dyn Fn(f64) -> Expr) -> Expr {
    x().binary(Binary::Max, k(0.0)) + (k(1.0) + (-x().unary(Unary::Abs)).unary(Unary::Exp)).unary(Unary::Log)
}

fn clamp(x: Expr, low: Expr, high: Expr) -> Expr {
    x.binary(Binary::Max, low).binary(Binary::Min, high)
}

fn relu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    c.cx.map(Expr::arg(0).binary(Binary::Max, number(c.dtype(x), 0.0)), &[x])
}

/// The bounds are attributes up to version 10, inputs later.
fn clip(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let mut x = c.x(0)?;
    let dtype = c.dtype(x);
    for (index, (name, op)) in [("min", Binary::Max), ("max", Binary::Min)].into_iter().enumerate() {
        let bound = match (c.version < 11, c.float(name)) {
            (true, Some(value)) => Some(c.scalar(dtype, value)?),
            (true, None) => None,
            (false, _) => c.maybe(index + 1),
        };
        if let Some(bound) = bound {
            x = c.cx.binary(op, x, bound)?;
        }
    }
    Ok(x)
}

fn sigmoid(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    wide(c, x, |x, k| sigmoid_of(x(), k))
}

fn hard_sigmoid(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha, beta) = (c.x(0)?, c.float_or("alpha", 0.2), c.float_or("beta", 0.5));
    wide(c, x, |x, k| clamp(x() * k(alpha) + k(beta), k(0.0), k(1.0)))
}

fn hard_swish(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    wide(c, x, |x, k| x() * clamp(x() * k(1.0 / 6.0) + k(0.5), k(0.0), k(1.0)))
}

fn leaky_relu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha) = (c.x(0)?, c.float_or("alpha", 0.01));
    wide(c, x, |x, k| x().binary(Binary::Less, k(0.0)).select(x() * k(alpha), x()))
}

fn prelu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, slope) = (c.x(0)?, c.x(1)?);
    let negative = Expr::arg(0).binary(Binary::Less, number(c.dtype(x), 0.0));
    c.map(negative.select(Expr::arg(0) * Expr::arg(1), Expr::arg(0)), &[x, slope])
}

fn elu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha) = (c.x(0)?, c.float_or("alpha", 1.0));
    wide(c, x, |x, k| x().binary(Binary::Less, k(0.0)).select(k(alpha) * (x().unary(Unary::Exp) - k(1.0)), x()))
}

fn celu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha) = (c.x(0)?, c.float_or("alpha", 1.0));
    wide(c, x, |x, k| {
        let below = k(alpha) * ((x() / k(alpha)).unary(Unary::Exp) - k(1.0));
        x().binary(Binary::Max, k(0.0)) + below.binary(Binary::Min, k(0.0))
    })
}

fn selu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let alpha = c.float_or("alpha", 1.673_263_192_176_818_8);
    let gamma = c.float_or("gamma", 1.050_701_022_148_132_3);
    wide(c, x, |x, k| {
        let below = k(alpha) * (x().unary(Unary::Exp) - k(1.0));
        k(gamma) * k(0.0).binary(Binary::Less, x()).select(x(), below)
    })
}

fn gelu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    match c.text_or("approximate", "none") {
        "none" => {
            wide(c, x, |x, k| k(0.5) * x() * (k(1.0) + (x() * k(std::f64::consts::FRAC_1_SQRT_2)).unary(Unary::Erf)))
        }
        "tanh" => wide(c, x, |x, k| {
            let inner = k((2.0 / std::f64::consts::PI).sqrt()) * (x() + k(0.044715) * x() * x() * x());
            k(0.5) * x() * (k(1.0) + inner.unary(Unary::Tanh))
        }),
        other => Err(format!("approximate: expected none or tanh, found `{other}`")),
    }
}

fn softplus(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    wide(c, x, softplus_of)
}

fn softsign(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    wide(c, x, |x, k| x() / (k(1.0) + x().unary(Unary::Abs)))
}

fn mish(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    wide(c, x, |x, k| x() * softplus_of(x, k).unary(Unary::Tanh))
}

fn swish(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha) = (c.x(0)?, c.float_or("alpha", 1.0));
    wide(c, x, |x, k| x() * sigmoid_of(x() * k(alpha), k))
}

fn swiglu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (gate, up, alpha) = (c.x(0)?, c.x(1)?, c.float_or("alpha", 1.0));
    let gate = wide(c, gate, |x, k| x() * sigmoid_of(x() * k(alpha), k))?;
    c.mul(gate, up)
}

fn thresholded_relu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, alpha) = (c.x(0)?, c.float_or("alpha", 1.0));
    wide(c, x, |x, k| k(alpha).binary(Binary::Less, x()).select(x(), k(0.0)))
}

fn shrink(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, lambd, bias) = (c.x(0)?, c.float_or("lambd", 0.5), c.float_or("bias", 0.0));
    wide(c, x, |x, k| {
        let above = k(lambd).binary(Binary::Less, x()).select(x() - k(bias), k(0.0));
        x().binary(Binary::Less, k(-lambd)).select(x() + k(bias), above)
    })
}

/// The dimensions as `[before the axis, from the axis on]`, as operators used them up to version 12.
fn flattened(dims: &[usize], axis: usize) -> [usize; 2] {
    [dims[..axis].iter().product(), dims[axis..].iter().product()]
}

/// A function along an axis; up to version 12, along all axes from this one on.
fn along_axis(
    c: &mut Call<'_, '_>,
    op: impl Fn(&mut Context<'_>, ValueId, usize) -> Outcome<ValueId>,
) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    if c.version >= 13 {
        let axis = axis_of(c.int_or("axis", -1), dims.len())?;
        return op(c, x, axis);
    }
    let axis = axis_of(c.int_or("axis", 1), dims.len())?;
    let flat = c.reshape(x, &flattened(&dims, axis))?;
    let y = op(c, flat, 1)?;
    c.reshape(y, &dims)
}

fn softmax(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    along_axis(c, |c, x, axis| c.op(Op::Softmax { axis, log: false }, &[x]))
}

fn log_softmax(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    along_axis(c, |c, x, axis| c.op(Op::Softmax { axis, log: true }, &[x]))
}

fn hardmax(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    along_axis(c, |c, x, axis| {
        let (dims, dtype) = (c.dims(x), c.dtype(x));
        let arg = crate::graph::ArgReduce { largest: true, axis, keep: true, last: false };
        let first = c.op(Op::ArgReduce(arg), &[x])?;
        let index = c.indices(&dims, axis)?;
        c.map(Expr::arg(0).binary(Binary::Equal, Expr::arg(1)).cast(dtype), &[index, first])
    })
}
