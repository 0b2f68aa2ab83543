//! Attention within rows that lie end to end: each token reads as many keys as the longest row has, from its own row.

use super::Writer;
use crate::graph::expr::{Binary, Expr, Number};
use crate::graph::op::{Contract, Op, PackedAttention, ReduceOp};
use crate::graph::value::ValueId;
use crate::tensor::Dtype;

/// The places of the tokens' keys.
struct Keys {
    /// The number of keys that each token sees, `[tokens]`; 0 for a token in no row.
    counts: ValueId,
    /// The places of these keys, filled up with the last one to the longest row, `[tokens, longest]`.
    places: ValueId,
    /// For each place, the index into a bias.
    distances: ValueId,
}

/// The labels of the axes.
const TOKEN: usize = 0;
const HEAD: usize = 1;
const KEY: usize = 2;
const VALUE: usize = 3;

pub(super) fn expand(
    w: &mut Writer<'_, '_>,
    of: &PackedAttention,
    [q, k, v, starts]: [ValueId; 4],
    bias: Option<ValueId>,
) -> ValueId {
    let keys = keys(w, of.longest, q, starts);
    let [k, v] = [k, v].map(|of| w.op(Op::Gather(0), &[of, keys.places]));
    let (of_token, of_key, scored) = (vec![TOKEN, HEAD, VALUE], vec![TOKEN, KEY, HEAD, VALUE], vec![TOKEN, HEAD, KEY]);
    let scores = Contract { left: of_token.clone(), right: of_key.clone(), result: scored.clone() };
    let scores = w.op(Op::Contract(scores), &[q, k]);
    let tokens = w.dims(q)[0];
    let counts = w.reshape(keys.counts, &[tokens, 1, 1]);
    let scaled = Expr::arg(0) * Expr::float(Dtype::F32, of.scale);
    let is_seen = Expr::Axis(2).binary(Binary::Less, Expr::arg(1));
    let hidden = Expr::float(Dtype::F32, f64::NEG_INFINITY);
    let scores = match bias {
        None => w.map(is_seen.select(scaled, hidden), &[scores, counts]),
        Some(bias) => {
            let added = w.op(Op::Gather(1), &[bias, keys.distances]);
            let added = w.op(Op::Transpose(vec![1, 0, 2]), &[added]);
            w.map(is_seen.select(scaled + Expr::arg(2), hidden), &[scores, counts, added])
        }
    };
    let weights = w.op(Op::Softmax { axis: 2, log: false }, &[scores]);
    let mixed = w.op(Op::Contract(Contract { left: scored, right: of_key, result: of_token }), &[weights, v]);
    let is_in_a_row = int(0).binary(Binary::Less, Expr::arg(1));
    w.map(is_in_a_row.select(Expr::arg(0), Expr::float(Dtype::F32, 0.0)), &[mixed, counts])
}

fn keys(w: &mut Writer<'_, '_>, longest: usize, q: ValueId, starts: ValueId) -> Keys {
    let (tokens, count) = (w.dims(q)[0], w.of(starts).elems());
    let starts = w.cast(starts, Dtype::I64);
    let starts = w.reshape(starts, &[1, count]);
    let token = w.counted(tokens, 1);
    let is_before = || Expr::arg(0).binary(Binary::LessEqual, Expr::arg(1));
    let before = w.map(is_before().select(Expr::arg(0), int(-1)), &[starts, token]);
    let begins = w.reduce(ReduceOp::Max, before, 1);
    let behind = w.map(is_before().select(int(i64::MAX), Expr::arg(0)), &[starts, token]);
    let ends = w.reduce(ReduceOp::Min, behind, 1);
    let counts = w.map(seen(tokens, longest), &[begins, ends]);
    let [from, seen] = [begins, counts].map(|of| w.unsqueeze(of, 1));
    let key = w.counted(longest, 0);
    let last = Expr::arg(1).binary(Binary::Sub, int(1));
    let places = w.map(Expr::arg(0) + Expr::arg(2).binary(Binary::Min, last), &[from, seen, key]);
    let distance = Expr::arg(1) - (Expr::Axis(0) - Expr::arg(0)) + int(longest as i64 - 1);
    let distances = w.map(distance, &[from, key]);
    Keys { counts, places, distances }
}

/// The number of keys that a token sees whose row is from operand 0 to operand 1: at most as many as the longest row
/// has, and none if there is no such row or it ends before the token.
fn seen(tokens: usize, longest: usize) -> Expr {
    let [begin, end] = [0, 1].map(Expr::arg);
    let is_row = int(0).binary(Binary::LessEqual, begin.clone());
    let is_row = is_row.binary(Binary::And, end.clone().binary(Binary::LessEqual, int(tokens as i64)));
    let is_within = (Expr::Axis(0) - begin.clone()).binary(Binary::Less, int(longest as i64));
    let length = (end - begin).binary(Binary::Min, int(longest as i64));
    is_row.binary(Binary::And, is_within).select(length, int(0))
}

fn int(value: i64) -> Expr {
    Expr::Const(Dtype::I64, Number::Int(value.into()))
}
