//! Recurrent layers: the products of the inputs of all steps, and an operation of all steps.

use super::Operator::Many;
use super::{Outcome, Table};
use crate::graph::{Binary, Constant, Contract, Expr, Op, Recurrent, RecurrentCell, Unary, ValueId};
use crate::onnx::import::{Call, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("RNN", Many(rnn)), ("GRU", Many(gru)), ("LSTM", Many(lstm))];

/// The most steps of a layer: where no kernel takes it, each becomes operations of its own.
const STEPS: usize = 4096;
/// The number of operations that a step of a direction counts as in the import's budget.
const STEP_NODES: usize = 20;

/// An activation with its two parameters.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: f64,
    beta: f64,
}

impl Activation {
    fn of(&self, x: Expr, dtype: Dtype) -> Outcome<Expr> {
        let k = |value| number(dtype, value);
        let (alpha, beta) = (self.alpha, self.beta);
        let zero = || k(0.0);
        Ok(match &self.name.to_lowercase()[..] {
            "sigmoid" => super::activation::sigmoid_of(x, k),
            "tanh" => x.unary(Unary::Tanh),
            "relu" => x.binary(Binary::Max, zero()),
            "affine" => x * k(alpha) + k(beta),
            "leakyrelu" => x.clone().binary(Binary::Less, zero()).select(x.clone() * k(alpha), x),
            "thresholdedrelu" => x.clone().binary(Binary::Less, k(alpha)).select(zero(), x),
            "scaledtanh" => k(alpha) * (x * k(beta)).unary(Unary::Tanh),
            "hardsigmoid" => (x * k(alpha) + k(beta)).binary(Binary::Max, zero()).binary(Binary::Min, k(1.0)),
            "elu" => {
                x.clone().binary(Binary::Less, zero()).select(k(alpha) * (x.clone().unary(Unary::Exp) - k(1.0)), x)
            }
            "softsign" => x.clone() / (k(1.0) + x.unary(Unary::Abs)),
            "softplus" => super::activation::softplus_of(&|| x.clone(), &k),
            other => return Err(format!("activations: unknown value `{other}`")),
        })
    }
}

/// What ONNX says of a kind of layer.
struct Layer {
    cell: RecurrentCell,
    /// The default activations.
    activations: &'static [&'static str],
}

fn rnn(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    layer(c, &Layer { cell: RecurrentCell::Rnn, activations: &["Tanh"] })
}

fn gru(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let cell = RecurrentCell::Gru { reset_after: c.flag("linear_before_reset") };
    layer(c, &Layer { cell, activations: &["Sigmoid", "Tanh"] })
}

fn lstm(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let cell = RecurrentCell::Lstm { coupled: c.flag("input_forget") };
    layer(c, &Layer { cell, activations: &["Sigmoid", "Tanh", "Tanh"] })
}

/// The activations of all directions, with their parameters.
fn activations(c: &Call<'_, '_>, layer: &Layer, directions: usize) -> Outcome<Vec<Vec<Activation>>> {
    let each = layer.activations.len();
    let given = c.texts_attr("activations");
    let names = given
        .unwrap_or_else(|| layer.activations.iter().cycle().take(each * directions).map(|&name| name.into()).collect());
    if names.len() < each * directions {
        return Err(format!("activations: expected {}, found {names:?}", each * directions));
    }
    let [mut alphas, mut betas] = ["activation_alpha", "activation_beta"]
        .map(|name| c.floats_attr(name).unwrap_or(&[]).iter().map(|&v| f64::from(v)));
    let activation = |name: &String| {
        let (alpha, beta) = defaults(name);
        let alpha = alpha.map(|default| alphas.next().unwrap_or(default)).unwrap_or(0.0);
        let beta = beta.map(|default| betas.next().unwrap_or(default)).unwrap_or(0.0);
        Activation { name: name.clone(), alpha, beta }
    };
    let all: Vec<Activation> = names.iter().map(activation).collect();
    Ok(all.chunks(each).take(directions).map(<[Activation]>::to_vec).collect())
}

/// The default parameters of an activation, if it has some.
fn defaults(name: &str) -> (Option<f64>, Option<f64>) {
    match &name.to_lowercase()[..] {
        "affine" | "scaledtanh" => (Some(1.0), Some(1.0)),
        "leakyrelu" => (Some(0.01), None),
        "thresholdedrelu" | "elu" => (Some(1.0), None),
        "hardsigmoid" => (Some(0.2), Some(0.5)),
        _ => (None, None),
    }
}

/// The activations as expressions of operand 0. What they take is limited to `clip`, except for an LSTM's c.
fn expressions(activations: &[Activation], clip: Option<f64>, dtype: Dtype) -> Outcome<Vec<Expr>> {
    let expression = |(index, activation): (usize, &Activation)| {
        let x = match clip.filter(|_| index < 2) {
            None => Expr::arg(0),
            Some(clip) => {
                Expr::arg(0).binary(Binary::Max, number(dtype, -clip)).binary(Binary::Min, number(dtype, clip))
            }
        };
        activation.of(x, dtype)
    };
    activations.iter().enumerate().map(expression).collect()
}

/// The input is `[T, B, I]`, or `[B, T, I]` with layout 1; the outputs are `[T, directions, B, H]` and the last states.
fn layer(c: &mut Call<'_, '_>, layer: &Layer) -> Outcome<Vec<ValueId>> {
    let batch_first = c.flag("layout");
    let turned =
        |c: &mut Call<'_, '_>, value: ValueId| if batch_first { c.transpose(value, &[1, 0, 2]) } else { Ok(value) };
    let x = c.x(0)?;
    let x = turned(c, x)?;
    let (weights, recurrent) = (read(c, c.x(1)?), read(c, c.x(2)?));
    let [len, batch, features] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let [directions, _, hidden] = c.dims(recurrent)[..] else {
        return Err(format!("expected three axes, found {}", c.of(recurrent)));
    };
    if len > STEPS {
        return Err(format!("{len} steps: expected {STEPS} at most"));
    }
    let backwards = match (c.text_or("direction", "forward"), directions) {
        ("forward", 1) => vec![false],
        ("reverse", 1) => vec![true],
        ("bidirectional", 2) => vec![false, true],
        (other, _) => return Err(format!("direction: `{other}` with {directions} directions of weights")),
    };
    c.step(len * directions * STEP_NODES)?;
    let dtype = c.dtype(x);
    let clip = c.float("clip");
    let activations = activations(c, layer, directions)?;
    let activations = activations.iter().map(|of| expressions(of, clip, dtype)).collect::<Outcome<_>>()?;
    let (gates, states) = (layer.cell.gates(), layer.cell.states());
    let rows = gates * hidden;
    let (bias, late) = biases(c, gates, [directions, hidden], dtype)?;
    let weights = c.reshape(weights, &[directions * rows, features])?;
    let contract = Contract { left: vec![0, 1, 3], right: vec![2, 3], result: vec![0, 1, 2] };
    let inputs = c.op(Op::Contract(contract), &[x, weights])?;
    let inputs = c.add(inputs, bias)?;
    let recurrent = c.reshape(recurrent, &[directions * rows, hidden])?;
    let mut operands = vec![Some(inputs), Some(recurrent), late, None, None, None, None];
    for number in 0..states {
        operands[3 + number] = c.maybe(5 + number).map(|first| turned(c, first)).transpose()?;
    }
    (operands[5], operands[6]) = (c.maybe(7).filter(|_| states == 2), c.maybe(4));
    let of = Recurrent { cell: layer.cell, backwards, activations };
    let mut results = c.emit(Op::Recurrent(of), &operands, 1 + states)?;
    let shown = c.reshape(results[0], &[len, batch, directions, hidden])?;
    results[0] = c.transpose(shown, if batch_first { &[1, 0, 2, 3] } else { &[0, 2, 1, 3] })?;
    for state in &mut results[1..] {
        *state = turned(c, *state)?;
    }
    Ok(results)
}

/// A weight as a constant whose elements are known, so that what is made of it is a constant too. Other values, and
/// weights that are too large, stay as they are.
fn read(c: &mut Call<'_, '_>, value: ValueId) -> ValueId {
    match (c.builder.graph().constant(value), c.known(value)) {
        (Some(Constant::Weight(_)), Ok(Some(known))) => c.constant(&known),
        _ => value,
    }
}

/// The biases `[D x G x H]` that are added to the inputs' products, and `[D, H]` of a GRU's last recurrent product, which
/// are added later.
fn biases(
    c: &mut Call<'_, '_>,
    gates: usize,
    [directions, hidden]: [usize; 2],
    dtype: Dtype,
) -> Outcome<(ValueId, Option<ValueId>)> {
    let rows = gates * hidden;
    let [inputs, recurrent] = match c.maybe(3) {
        Some(both) => {
            let both = read(c, both);
            [c.slice(both, 1, 0, rows)?, c.slice(both, 1, rows, rows)?]
        }
        None => [c.filled(dtype, &[directions, rows], 0.0)?; 2],
    };
    let (early, late) = match gates {
        3 => {
            let early = c.slice(recurrent, 1, 0, 2 * hidden)?;
            let zeros = c.filled(dtype, &[directions, hidden], 0.0)?;
            (c.concat(&[early, zeros], 1)?, Some(c.slice(recurrent, 1, 2 * hidden, hidden)?))
        }
        _ => (recurrent, None),
    };
    let sum = c.add(inputs, early)?;
    Ok((c.reshape(sum, &[directions * rows])?, late))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, Tensor, ValueType};
    use crate::loops;

    #[test]
    fn the_softplus_of_large_numbers_is_finite() {
        let softplus = Activation { name: "Softplus".into(), alpha: 0.0, beta: 0.0 };
        let expr = softplus.of(Expr::arg(0), Dtype::F32).unwrap();
        let x = Tensor::of(&[3], &[-200.0_f32, 0.0, 200.0]);
        let y = loops::compute(&Op::Map(expr), &[Some(&x)], &[ValueType::new(Dtype::F32, &[3])]).unwrap();
        let y = y[0].elems::<f32>();
        assert!(y[0].abs() < 1e-6 && (y[1] - 2.0_f32.ln()).abs() < 1e-6 && y[2] == 200.0, "{y:?}");
    }
}
