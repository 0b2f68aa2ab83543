//! Recurrent layers, unrolled one step after the other.

use super::Operator::Many;
use super::{Outcome, Table};
use crate::graph::{Binary, Contract, Expr, Op, Unary, ValueId};
use crate::onnx::import::{Call, Context, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("RNN", Many(rnn)), ("GRU", Many(gru)), ("LSTM", Many(lstm))];

/// The most steps that are unrolled.
const STEPS: usize = 4096;

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

/// The parameters of one direction of a layer.
struct Cell {
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// Recurrent weights `[gates x H, H]`.
    recurrent: ValueId,
    /// The bias of the recurrent products `[gates x H]`, if it is not added to the bias of the inputs.
    bias: Option<ValueId>,
    /// The weights of the state in the gates `[3 x H]`.
    peepholes: Option<ValueId>,
    hidden: usize,
    dtype: Dtype,
    flag: bool,
}

/// Computes one step from the inputs' products `[B, gates x H]` and the state. Returns the new state, whose first value
/// is the output.
type Step = fn(&mut Context<'_>, &Cell, ValueId, &[ValueId]) -> Outcome<Vec<ValueId>>;

struct Layer {
    gates: usize,
    states: usize,
    activations: &'static [&'static str],
    step: Step,
}

fn rnn(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    layer(c, &Layer { gates: 1, states: 1, activations: &["Tanh"], step: rnn_step })
}

fn gru(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    layer(c, &Layer { gates: 3, states: 1, activations: &["Sigmoid", "Tanh"], step: gru_step })
}

fn lstm(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    layer(c, &Layer { gates: 4, states: 2, activations: &["Sigmoid", "Tanh", "Tanh"], step: lstm_step })
}

/// The state `[B, H]` times the transposed weights `[gates x H, H]`.
fn times(c: &mut Context<'_>, state: ValueId, weights: ValueId) -> Outcome<ValueId> {
    let contract = Contract { left: vec![0, 2], right: vec![1, 2], result: vec![0, 1] };
    c.op(Op::Contract(contract), &[state, weights])
}

impl Cell {
    fn clipped(&self, x: Expr) -> Expr {
        match self.clip {
            None => x,
            Some(clip) => {
                x.binary(Binary::Max, number(self.dtype, -clip)).binary(Binary::Min, number(self.dtype, clip))
            }
        }
    }

    fn activate(&self, index: usize, x: Expr) -> Outcome<Expr> {
        self.activations[index].of(self.clipped(x), self.dtype)
    }

    /// The part of `all` that belongs to a gate.
    fn gate(&self, c: &mut Context<'_>, all: ValueId, index: usize) -> Outcome<ValueId> {
        let axis = c.rank(all) - 1;
        c.slice(all, axis, index * self.hidden, self.hidden)
    }
}

fn rnn_step(c: &mut Context<'_>, cell: &Cell, x: ValueId, state: &[ValueId]) -> Outcome<Vec<ValueId>> {
    let product = times(c, state[0], cell.recurrent)?;
    let h = cell.activate(0, Expr::arg(0) + Expr::arg(1))?;
    Ok(vec![c.map(h, &[x, product])?])
}

/// The gates are z, r, h.
fn gru_step(c: &mut Context<'_>, cell: &Cell, x: ValueId, state: &[ValueId]) -> Outcome<Vec<ValueId>> {
    let (h, size) = (state[0], cell.hidden);
    let [xz, xr, xh] = [cell.gate(c, x, 0)?, cell.gate(c, x, 1)?, cell.gate(c, x, 2)?];
    let both = c.slice(cell.recurrent, 0, 0, 2 * size)?;
    let own = c.slice(cell.recurrent, 0, 2 * size, size)?;
    let product = times(c, h, both)?;
    let [hz, hr] = [cell.gate(c, product, 0)?, cell.gate(c, product, 1)?];
    let gate = cell.activate(0, Expr::arg(0) + Expr::arg(1))?;
    let z = c.map(gate.clone(), &[xz, hz])?;
    let r = c.map(gate, &[xr, hr])?;
    let bias = cell.bias.ok_or("expected a bias")?;
    let bias = cell.gate(c, bias, 2)?;
    let hidden = match cell.flag {
        // The reset gate is applied after the product.
        true => {
            let product = times(c, h, own)?;
            let sum = cell.activate(1, Expr::arg(0) + Expr::arg(1) * (Expr::arg(2) + Expr::arg(3)))?;
            c.map(sum, &[xh, r, product, bias])?
        }
        false => {
            let reset = c.mul(r, h)?;
            let product = times(c, reset, own)?;
            let sum = cell.activate(1, Expr::arg(0) + Expr::arg(1) + Expr::arg(2))?;
            c.map(sum, &[xh, product, bias])?
        }
    };
    let one = number(cell.dtype, 1.0);
    let mixed = (one - Expr::arg(0)) * Expr::arg(1) + Expr::arg(0) * Expr::arg(2);
    Ok(vec![c.map(mixed, &[z, hidden, h])?])
}

/// The gates are i, o, f, c; the state is h and c.
fn lstm_step(c: &mut Context<'_>, cell: &Cell, x: ValueId, state: &[ValueId]) -> Outcome<Vec<ValueId>> {
    let [h, old] = [state[0], state[1]];
    let product = times(c, h, cell.recurrent)?;
    let sum = c.add(x, product)?;
    let [i, o, f, new] = [cell.gate(c, sum, 0)?, cell.gate(c, sum, 1)?, cell.gate(c, sum, 2)?, cell.gate(c, sum, 3)?];
    let gate = |c: &mut Context<'_>, value: ValueId, peephole: usize, from: ValueId| match cell.peepholes {
        Some(all) => {
            let weight = cell.gate(c, all, peephole)?;
            c.map(cell.activate(0, Expr::arg(0) + Expr::arg(1) * Expr::arg(2))?, &[value, weight, from])
        }
        None => c.map(cell.activate(0, Expr::arg(0))?, &[value]),
    };
    let i = gate(c, i, 0, old)?;
    let f = match cell.flag {
        // The input and forget gates are coupled.
        true => c.map(number(cell.dtype, 1.0) - Expr::arg(0), &[i])?,
        false => gate(c, f, 2, old)?,
    };
    let new = c.map(cell.activate(1, Expr::arg(0))?, &[new])?;
    let now = c.map(Expr::arg(0) * Expr::arg(1) + Expr::arg(2) * Expr::arg(3), &[f, old, i, new])?;
    let o = gate(c, o, 1, now)?;
    let shown = cell.activations[2].of(Expr::arg(1), cell.dtype)?;
    Ok(vec![c.map(Expr::arg(0) * shown, &[o, now])?, now])
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

/// The input is `[T, B, I]`, or `[B, T, I]` with layout 1; the outputs are `[T, directions, B, H]` and the last states.
fn layer(c: &mut Call<'_, '_>, layer: &Layer) -> Outcome<Vec<ValueId>> {
    let batch_first = c.flag("layout");
    let turned =
        |c: &mut Call<'_, '_>, value: ValueId| if batch_first { c.transpose(value, &[1, 0, 2]) } else { Ok(value) };
    let x = c.x(0)?;
    let x = turned(c, x)?;
    let (weights, recurrent) = (c.x(1)?, c.x(2)?);
    let [len, batch, _] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let [directions, _, hidden] = c.dims(recurrent)[..] else {
        return Err(format!("expected three axes, found {}", c.of(recurrent)));
    };
    if len > STEPS {
        return Err(format!("{len} steps: expected {STEPS} at most, which are unrolled"));
    }
    let backwards = match (c.text_or("direction", "forward"), directions) {
        ("forward", 1) => vec![false],
        ("reverse", 1) => vec![true],
        ("bidirectional", 2) => vec![false, true],
        (other, _) => return Err(format!("direction: `{other}` with {directions} directions of weights")),
    };
    let dtype = c.dtype(x);
    let activations = activations(c, layer, directions)?;
    let lens = c.maybe(4);
    let lens = lens.map(|lens| {
        let lens = c.reshape(lens, &[batch, 1])?;
        c.cast(lens, Dtype::I64)
    });
    let lens = lens.transpose()?;
    let (mut outputs, mut last) = (Vec::new(), vec![Vec::new(); layer.states]);
    for (index, (&backwards, activations)) in backwards.iter().zip(activations).enumerate() {
        let rows = layer.gates * hidden;
        let (inputs, bias) = biases(c, layer, index, rows, dtype)?;
        let peepholes = c.maybe(7).map(|all| c.at(all, 0, index)).transpose()?;
        let own = c.at(recurrent, 0, index)?;
        let flag = c.flag("linear_before_reset") || c.flag("input_forget");
        let cell = Cell { activations, clip: c.float("clip"), recurrent: own, bias, peepholes, hidden, dtype, flag };
        let mut state = Vec::new();
        for number in 0..layer.states {
            state.push(match c.maybe(5 + number) {
                Some(initial) => {
                    let initial = turned(c, initial)?;
                    c.at(initial, 0, index)?
                }
                None => c.filled(dtype, &[batch, hidden], 0.0)?,
            });
        }
        let weights = c.at(weights, 0, index)?;
        let contract = Contract { left: vec![0, 1, 3], right: vec![2, 3], result: vec![0, 1, 2] };
        let gates = c.op(Op::Contract(contract), &[x, weights])?;
        let gates = c.add(gates, inputs)?;
        let (each, end) = steps(c, layer, &cell, gates, state, lens, backwards)?;
        outputs.push(each);
        last.iter_mut().zip(end).for_each(|(all, state)| all.push(state));
    }
    finish(c, &outputs, &last, batch_first)
}

/// The bias that is added to the inputs' products, and the bias of the recurrent products if the layer adds it later.
fn biases(
    c: &mut Call<'_, '_>,
    layer: &Layer,
    index: usize,
    rows: usize,
    dtype: Dtype,
) -> Outcome<(ValueId, Option<ValueId>)> {
    let [inputs, recurrent] = match c.maybe(3) {
        Some(both) => {
            let both = c.at(both, 0, index)?;
            [c.slice(both, 0, 0, rows)?, c.slice(both, 0, rows, rows)?]
        }
        None => [c.filled(dtype, &[rows], 0.0)?; 2],
    };
    if layer.gates != 3 {
        return Ok((c.add(inputs, recurrent)?, None));
    }
    // The recurrent bias of the last gate stays with the recurrent product.
    let gate = rows / 3;
    let early = c.slice(recurrent, 0, 0, 2 * gate)?;
    let zeros = c.filled(dtype, &[gate], 0.0)?;
    let early = c.concat(&[early, zeros], 0)?;
    Ok((c.add(inputs, early)?, Some(recurrent)))
}

/// The outputs of all steps in the order of time, and the state after the last step.
fn steps(
    c: &mut Call<'_, '_>,
    layer: &Layer,
    cell: &Cell,
    gates: ValueId,
    mut state: Vec<ValueId>,
    lens: Option<ValueId>,
    backwards: bool,
) -> Outcome<(Vec<ValueId>, Vec<ValueId>)> {
    let len = c.dim(gates, 0)?;
    let mut outputs = Vec::new();
    for step in 0..len {
        let time = if backwards { len - 1 - step } else { step };
        let x = c.at(gates, 0, time)?;
        let next = (layer.step)(c, cell, x, &state)?;
        let mut shown = next[0];
        state = match lens {
            None => next,
            Some(lens) => {
                // After its end a sequence keeps its state, and outputs 0.
                let runs = || Expr::int(Dtype::I64, time as i128).binary(Binary::Less, Expr::arg(0));
                let zero = number(cell.dtype, 0.0);
                shown = c.map(runs().select(Expr::arg(1), zero), &[lens, shown])?;
                let kept = |(new, old): (ValueId, ValueId)| {
                    c.map(runs().select(Expr::arg(1), Expr::arg(2)), &[lens, new, old])
                };
                next.into_iter().zip(state).map(kept).collect::<Outcome<_>>()?
            }
        };
        outputs.push(shown);
    }
    if backwards {
        outputs.reverse();
    }
    Ok((outputs, state))
}

/// Joins the outputs of all directions, and the states.
fn finish(
    c: &mut Call<'_, '_>,
    outputs: &[Vec<ValueId>],
    last: &[Vec<ValueId>],
    batch_first: bool,
) -> Outcome<Vec<ValueId>> {
    let mut each = Vec::new();
    for direction in outputs {
        let mut steps = Vec::with_capacity(direction.len());
        for &value in direction {
            let value = c.unsqueeze(value, 0)?;
            steps.push(c.unsqueeze(value, 1)?);
        }
        each.push(c.concat(&steps, 0)?);
    }
    let y = c.concat(&each, 1)?;
    let mut all = vec![if batch_first { c.transpose(y, &[2, 0, 1, 3])? } else { y }];
    for states in last {
        let mut rows = Vec::new();
        for &state in states {
            rows.push(c.unsqueeze(state, 0)?);
        }
        let state = c.concat(&rows, 0)?;
        all.push(if batch_first { c.transpose(state, &[1, 0, 2])? } else { state });
    }
    Ok(all)
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
