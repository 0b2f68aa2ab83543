//! Recurrent layers as operations of single steps, one step behind the other.

use super::Writer;
use crate::graph::expr::{Binary, Expr, Number};
use crate::graph::op::{Contract, Op, Recurrent, RecurrentCell, Slice};
use crate::graph::tensor::Tensor;
use crate::graph::value::{ValueId, ValueType};
use crate::tensor::Dtype;

/// One direction of a layer.
struct Direction<'a> {
    cell: RecurrentCell,
    activations: &'a [Expr],
    /// The recurrent weights `[G x H, H]`.
    weights: ValueId,
    /// The bias of the last gate's recurrent product `[H]`.
    bias: Option<ValueId>,
    /// The weights of c in the gates `[3 x H]`.
    peepholes: Option<ValueId>,
    /// The lengths of the sequences, i64 `[B, 1]`.
    lengths: Option<ValueId>,
    hidden: usize,
    dtype: Dtype,
}

/// The results of a layer.
pub(super) fn unroll(w: &mut Writer<'_, '_>, of: &Recurrent, inputs: &[Option<ValueId>]) -> Vec<ValueId> {
    let input = |number: usize| inputs.get(number).copied().flatten();
    let (x, weights) = (input(0).expect("checked to be there"), input(1).expect("checked to be there"));
    let dtype = w.of(x).dtype;
    let ([steps, batch], hidden) = ([0, 1].map(|axis| w.dims(x)[axis]), w.dims(weights)[1]);
    let rows = of.cell.gates() * hidden;
    let lengths = input(6).map(|lengths| {
        let lengths = w.reshape(lengths, &[batch, 1]);
        w.cast(lengths, Dtype::I64)
    });
    let (mut shown, mut last) = (Vec::new(), vec![Vec::new(); of.cell.states()]);
    for (index, (&backwards, activations)) in of.backwards.iter().zip(&of.activations).enumerate() {
        let mut own = |all: ValueId| w.at(all, 0, index);
        let (bias, peepholes) = (input(2).map(&mut own), input(5).map(&mut own));
        let first: Vec<_> = (3..3 + of.cell.states()).map(|number| input(number).map(&mut own)).collect();
        let weights = w.slice(weights, 0, index * rows, rows);
        let state = first.into_iter().map(|first| first.unwrap_or_else(|| w.zeros(dtype, &[batch, hidden]))).collect();
        let direction = Direction { cell: of.cell, activations, weights, bias, peepholes, lengths, hidden, dtype };
        let times: Vec<usize> = if backwards { (0..steps).rev().collect() } else { (0..steps).collect() };
        let (mut each, state) = direction.run(w, x, index, &times, state);
        if backwards {
            each.reverse();
        }
        let each: Vec<ValueId> = each.into_iter().map(|value| w.unsqueeze(value, 0)).collect();
        shown.push(w.op(Op::Concat(0), &each));
        last.iter_mut().zip(state).for_each(|(all, state)| all.push(w.unsqueeze(state, 0)));
    }
    let shown = w.op(Op::Concat(2), &shown);
    [shown].into_iter().chain(last.iter().map(|states| w.op(Op::Concat(0), states))).collect()
}

impl Direction<'_> {
    /// What is shown of each step, in their order, and the state after the last one.
    fn run(
        &self,
        w: &mut Writer<'_, '_>,
        x: ValueId,
        index: usize,
        times: &[usize],
        mut state: Vec<ValueId>,
    ) -> (Vec<ValueId>, Vec<ValueId>) {
        let columns = self.cell.gates() * self.hidden;
        let mut outputs = Vec::with_capacity(times.len());
        for &time in times {
            let now = w.at(x, 0, time);
            let now = w.slice(now, 1, index * columns, columns);
            let next = match self.cell {
                RecurrentCell::Rnn => self.rnn(w, now, &state),
                RecurrentCell::Gru { reset_after } => self.gru(w, now, &state, reset_after),
                RecurrentCell::Lstm { coupled } => self.lstm(w, now, &state, coupled),
            };
            let mut shown = next[0];
            state = match self.lengths {
                None => next,
                Some(lengths) => {
                    let time = || Expr::Const(Dtype::I64, Number::Int(time as i128));
                    let runs = || time().binary(Binary::Less, Expr::arg(0));
                    shown = w.map(runs().select(Expr::arg(1), self.number(0.0)), &[lengths, shown]);
                    let kept = runs().select(Expr::arg(1), Expr::arg(2));
                    next.into_iter().zip(state).map(|(new, old)| w.map(kept.clone(), &[lengths, new, old])).collect()
                }
            };
            outputs.push(shown);
        }
        (outputs, state)
    }

    fn number(&self, value: f64) -> Expr {
        Expr::float(self.dtype, value)
    }

    /// One of the activations, of an expression.
    fn activated(&self, index: usize, x: Expr) -> Expr {
        self.activations[index].clone().with_args(&[x])
    }

    /// The part of `all` that belongs to a gate.
    fn gate(&self, w: &mut Writer<'_, '_>, all: ValueId, index: usize) -> ValueId {
        let axis = w.dims(all).len() - 1;
        w.slice(all, axis, index * self.hidden, self.hidden)
    }

    fn rnn(&self, w: &mut Writer<'_, '_>, x: ValueId, state: &[ValueId]) -> Vec<ValueId> {
        let product = times(w, state[0], self.weights);
        vec![w.map(self.activated(0, Expr::arg(0) + Expr::arg(1)), &[x, product])]
    }

    fn gru(&self, w: &mut Writer<'_, '_>, x: ValueId, state: &[ValueId], reset_after: bool) -> Vec<ValueId> {
        let (h, size) = (state[0], self.hidden);
        let [xz, xr, xh] = [0, 1, 2].map(|index| self.gate(w, x, index));
        let both = w.slice(self.weights, 0, 0, 2 * size);
        let own = w.slice(self.weights, 0, 2 * size, size);
        let product = times(w, h, both);
        let [hz, hr] = [0, 1].map(|index| self.gate(w, product, index));
        let gate = self.activated(0, Expr::arg(0) + Expr::arg(1));
        let z = w.map(gate.clone(), &[xz, hz]);
        let r = w.map(gate, &[xr, hr]);
        let bias = self.bias.expect("checked to be there");
        let hidden = match reset_after {
            true => {
                let product = times(w, h, own);
                let sum = Expr::arg(0) + Expr::arg(1) * (Expr::arg(2) + Expr::arg(3));
                w.map(self.activated(1, sum), &[xh, r, product, bias])
            }
            false => {
                let reset = w.map(Expr::arg(0) * Expr::arg(1), &[r, h]);
                let product = times(w, reset, own);
                w.map(self.activated(1, Expr::arg(0) + Expr::arg(1) + Expr::arg(2)), &[xh, product, bias])
            }
        };
        let mixed = (self.number(1.0) - Expr::arg(0)) * Expr::arg(1) + Expr::arg(0) * Expr::arg(2);
        vec![w.map(mixed, &[z, hidden, h])]
    }

    fn lstm(&self, w: &mut Writer<'_, '_>, x: ValueId, state: &[ValueId], coupled: bool) -> Vec<ValueId> {
        let [h, old] = [state[0], state[1]];
        let product = times(w, h, self.weights);
        let sum = w.map(Expr::arg(0) + Expr::arg(1), &[x, product]);
        let [i, o, f, new] = [0, 1, 2, 3].map(|index| self.gate(w, sum, index));
        let gate = |w: &mut Writer<'_, '_>, value: ValueId, peephole: usize, from: ValueId| match self.peepholes {
            Some(all) => {
                let weight = self.gate(w, all, peephole);
                let sum = Expr::arg(0) + Expr::arg(1) * Expr::arg(2);
                w.map(self.activated(0, sum), &[value, weight, from])
            }
            None => w.map(self.activated(0, Expr::arg(0)), &[value]),
        };
        let i = gate(w, i, 0, old);
        let f = match coupled {
            true => w.map(self.number(1.0) - Expr::arg(0), &[i]),
            false => gate(w, f, 2, old),
        };
        let new = w.map(self.activated(1, Expr::arg(0)), &[new]);
        let now = w.map(Expr::arg(0) * Expr::arg(1) + Expr::arg(2) * Expr::arg(3), &[f, old, i, new]);
        let o = gate(w, o, 1, now);
        vec![w.map(Expr::arg(0) * self.activated(2, Expr::arg(1)), &[o, now]), now]
    }
}

/// The state `[B, H]` times the transposed weights `[G x H, H]`.
fn times(w: &mut Writer<'_, '_>, state: ValueId, weights: ValueId) -> ValueId {
    w.op(Op::Contract(Contract { left: vec![0, 2], right: vec![1, 2], result: vec![0, 1] }), &[state, weights])
}

impl Writer<'_, '_> {
    /// `len` indices along an axis, from `start`.
    fn slice(&mut self, x: ValueId, axis: usize, start: usize, len: usize) -> ValueId {
        let mut dims = self.dims(x);
        let mut of = Slice { start: vec![0; dims.len()], step: vec![1; dims.len()], dims: Vec::new() };
        (of.start[axis], dims[axis]) = (start, len);
        of.dims = dims;
        self.op(Op::Slice(of), &[x])
    }

    /// The elements at one index along an axis, which is removed.
    fn at(&mut self, x: ValueId, axis: usize, index: usize) -> ValueId {
        let one = self.slice(x, axis, index, 1);
        let mut dims = self.dims(one);
        dims.remove(axis);
        self.reshape(one, &dims)
    }

    /// Zeros of a type of floats.
    fn zeros(&mut self, dtype: Dtype, dims: &[usize]) -> ValueId {
        let of = ValueType::new(dtype, dims);
        let bytes = vec![0; of.bytes()];
        self.rebuild.constant(&Tensor::from_bytes(of, &bytes))
    }
}
