//! Attention and related operators.

use super::Operator::{Items, Many, One};
use super::cast::graph_type;
use super::{Item, Outcome, Table};
use crate::graph::{Binary, Contract, Expr, Number, Op, Pad, PadMode, ReduceOp, Unary, ValueId};
use crate::onnx::DataType;
use crate::onnx::import::{Call, Context, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("Attention", Many(attention)), ("RotaryEmbedding", One(rotary))];

/// Operators of the domain `ai.onnx.preview`.
pub(super) const PREVIEW: Table = &[("FlexAttention", Items(flex))];

/// `[B, S, heads x D]` as `[B, heads, S, D]`.
pub(super) fn heads_apart(c: &mut Context<'_>, x: ValueId, heads: usize) -> Outcome<ValueId> {
    let [b, s, hidden] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let apart = c.reshape(x, &[b, s, heads, hidden / heads.max(1)])?;
    c.transpose(apart, &[0, 2, 1, 3])
}

/// `[B, heads, S, D]` as `[B, S, heads x D]`.
pub(super) fn heads_together(c: &mut Context<'_>, x: ValueId) -> Outcome<ValueId> {
    let [b, heads, s, size] = c.dims(x)[..] else { return Err(format!("expected four axes, found {}", c.of(x))) };
    let turned = c.transpose(x, &[0, 2, 1, 3])?;
    c.reshape(turned, &[b, s, heads * size])
}

/// Queries, keys and values, each `[B, heads, S, D]`.
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// The batch, the number of query heads, and the number of queries.
    of: [usize; 3],
    kv_heads: usize,
    kv_len: usize,
}

fn heads(c: &Context<'_>, [q, k, v]: [ValueId; 3]) -> Outcome<Heads> {
    let four = |value: ValueId| {
        <[usize; 4]>::try_from(c.dims(value)).map_err(|_| format!("expected four axes, found {}", c.of(value)))
    };
    let ([b, heads, len, _], [_, kv_heads, kv_len, _]) = (four(q)?, four(k)?);
    match kv_heads > 0 && heads % kv_heads == 0 && four(v)?[1..3] == [kv_heads, kv_len] {
        true => Ok(Heads { q, k, v, of: [b, heads, len], kv_heads, kv_len }),
        false => Err(format!("{heads} heads of queries, {} and {}", c.of(k), c.of(v))),
    }
}

impl Heads {
    /// Queries times keys, `[B, heads, S, T]`; several query heads may share one key head.
    fn scores(&self, c: &mut Context<'_>, scale: f64) -> Outcome<ValueId> {
        let [b, heads, len] = self.of;
        let q = c.scaled(self.q, scale)?;
        let size = c.dim(q, 3)?;
        let q = c.reshape(q, &[b, self.kv_heads, heads / self.kv_heads, len, size])?;
        let contract = Contract { left: vec![0, 1, 2, 3, 5], right: vec![0, 1, 4, 5], result: vec![0, 1, 2, 3, 4] };
        let scores = c.op(Op::Contract(contract), &[q, self.k])?;
        c.reshape(scores, &[b, heads, len, self.kv_len])
    }

    /// Weights times values: `[B, heads, S, D]`.
    fn mixed(&self, c: &mut Context<'_>, weights: ValueId) -> Outcome<ValueId> {
        let [b, heads, len] = self.of;
        let size = c.dim(self.v, 3)?;
        let weights = c.reshape(weights, &[b, self.kv_heads, heads / self.kv_heads, len, self.kv_len])?;
        let contract = Contract { left: vec![0, 1, 2, 3, 4], right: vec![0, 1, 4, 5], result: vec![0, 1, 2, 3, 5] };
        let mixed = c.op(Op::Contract(contract), &[weights, self.v])?;
        c.reshape(mixed, &[b, heads, len, size])
    }
}

/// Imports attention of four axes, or of three with the heads side by side. Earlier keys and values may come first.
fn attention(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let mut all = [c.x(0)?, c.x(1)?, c.x(2)?];
    let together = c.rank(all[0]) == 3;
    if together {
        for (value, name) in all.iter_mut().zip(["q_num_heads", "kv_num_heads", "kv_num_heads"]) {
            let heads = c.size(name)?.ok_or_else(|| format!("{name}: expected a number"))?;
            *value = heads_apart(c, *value, heads)?;
        }
    }
    let past = c.maybe(4).map_or(Ok(0), |past| c.dim(past, 2))?;
    for (value, past) in all[1..].iter_mut().zip([c.maybe(4), c.maybe(5)]) {
        if let Some(past) = past {
            *value = c.concat(&[past, *value], 2)?;
        }
    }
    let of = heads(c, all)?;
    let dtype = c.dtype(of.q);
    let size = c.dim(of.q, 3)? as f64;
    let scale = c.float_or("scale", 1.0 / size.sqrt());
    let mut scores = of.scores(c, scale)?;
    let mut shown = vec![scores];
    let cap = c.float_or("softcap", 0.0);
    if cap > 0.0 {
        let k = |value| number(dtype, value);
        scores = c.map((Expr::arg(0) / k(cap)).unary(Unary::Tanh) * k(cap), &[scores])?;
    }
    shown.push(scores);
    let (masked, may_be_empty) = mask(c, &of, scores, past)?;
    shown.push(masked);
    let at = match c.int("softmax_precision").and_then(DataType::from_number) {
        Some(precision) => graph_type(precision)?,
        None => dtype,
    };
    let wide = c.cast(masked, at)?;
    let mut weights = c.op(Op::Softmax { axis: 3, log: false }, &[wide])?;
    if may_be_empty {
        // A query that may attend to no key gets zeros.
        let best = c.reduce(wide, ReduceOp::Max, &[3], true)?;
        let none = Expr::arg(1).binary(Binary::Equal, number(at, f64::NEG_INFINITY));
        weights = c.map(none.select(number(at, 0.0), Expr::arg(0)), &[weights, best])?;
    }
    let weights = c.cast(weights, dtype)?;
    shown.push(weights);
    let y = of.mixed(c, weights)?;
    let y = if together { heads_together(c, y)? } else { y };
    let mode = c.size("qk_matmul_output_mode")?.unwrap_or(0);
    let shown = *shown.get(mode).ok_or_else(|| format!("qk_matmul_output_mode: expected 0 to 3, found {mode}"))?;
    Ok(vec![y, of.k, of.v, shown])
}

/// The scores, with minus infinity where a query may not attend, and whether a query may exist that can attend to no
/// key.
fn mask(c: &mut Call<'_, '_>, of: &Heads, mut scores: ValueId, past: usize) -> Outcome<(ValueId, bool)> {
    let dtype = c.dtype(scores);
    let never = || number(dtype, f64::NEG_INFINITY);
    let mut may_be_empty = false;
    if let Some(mask) = c.maybe(3) {
        let mask = padded(c, mask, of.kv_len)?;
        scores = match c.dtype(mask) {
            Dtype::Bool => c.map(Expr::arg(1).select(Expr::arg(0), never()), &[scores, mask])?,
            _ => c.add(scores, mask)?,
        };
        may_be_empty = true;
    }
    let int = |value: i64| Expr::int(Dtype::I64, value.into());
    let lens = match c.maybe(6) {
        Some(lens) => {
            let lens = c.reshape(lens, &[of.of[0], 1, 1, 1])?;
            may_be_empty = true;
            Some(c.cast(lens, Dtype::I64)?)
        }
        None => None,
    };
    let place = match lens.is_some() && c.maybe(4).is_none() {
        true => Expr::Axis(2) + Expr::arg(1) - int(of.of[2] as i64),
        false => Expr::Axis(2) + int(past as i64),
    };
    let mut rules = Vec::new();
    if c.flag("is_causal") {
        rules.push(Expr::Axis(3).binary(Binary::LessEqual, place.clone()));
    }
    let (left, right) = (c.int_or("left_window_size", -1), c.int_or("right_window_size", -1));
    if left >= 0 {
        rules.push((place.clone() - int(left)).binary(Binary::LessEqual, Expr::Axis(3)));
        may_be_empty = true;
    }
    if right >= 0 {
        rules.push(Expr::Axis(3).binary(Binary::LessEqual, place + int(right)));
        may_be_empty = true;
    }
    if lens.is_some() {
        rules.push(Expr::Axis(3).binary(Binary::Less, Expr::arg(1)));
    }
    let Some(rule) = rules.into_iter().reduce(|a, b| a.binary(Binary::And, b)) else {
        return Ok((scores, may_be_empty));
    };
    let operands: Vec<ValueId> = [Some(scores), lens].into_iter().flatten().collect();
    Ok((c.map(rule.select(Expr::arg(0), never()), &operands)?, may_be_empty))
}

/// Extends a mask for the first keys to all keys: the others are not attended to.
fn padded(c: &mut Context<'_>, mask: ValueId, len: usize) -> Outcome<ValueId> {
    let dims = c.dims(mask);
    let Some(&last) = dims.last().filter(|&&last| last < len && last > 1) else { return Ok(mask) };
    let nothing = if c.dtype(mask) == Dtype::Bool { Number::Int(0) } else { Number::Float(f64::NEG_INFINITY) };
    let mut of = Pad { before: vec![0; dims.len()], after: vec![0; dims.len()], mode: PadMode::Constant(nothing) };
    of.after[dims.len() - 1] = (len - last) as isize;
    c.op(Op::Pad(of), &[mask])
}

/// Turns pairs of elements by the angle of their position: the halves of a head, or neighbours.
fn rotary(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (mut x, mut cos, mut sin) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let together = c.rank(x) == 3;
    if together {
        let heads = c.size("num_heads")?.filter(|&heads| heads > 0).ok_or("num_heads: expected 1 or more")?;
        x = heads_apart(c, x, heads)?;
    }
    let size = *c.dims(x).get(3).ok_or_else(|| format!("expected three or four axes, found {}", c.of(x)))?;
    let turned = c.size("rotary_embedding_dim")?.filter(|&turned| turned > 0).unwrap_or(size).min(size);
    let half = turned / 2;
    if let Some(at) = c.maybe(3) {
        let at = c.cast(at, Dtype::I64)?;
        cos = c.op(Op::Gather(0), &[cos, at])?;
        sin = c.op(Op::Gather(0), &[sin, at])?;
    }
    let [cos, sin] = [c.unsqueeze(cos, 1)?, c.unsqueeze(sin, 1)?];
    let interleaved = c.flag("interleaved");
    let [a, b] = match interleaved {
        true => [c.stepped(x, 3, 0, 2, half)?, c.stepped(x, 3, 1.min(half), 2, half)?],
        false => [c.slice(x, 3, 0, half)?, c.slice(x, 3, half, half)?],
    };
    let real = Expr::arg(0) * Expr::arg(2) - Expr::arg(1) * Expr::arg(3);
    let imaginary = Expr::arg(0) * Expr::arg(3) + Expr::arg(1) * Expr::arg(2);
    let mut parts = vec![c.map(real, &[a, b, cos, sin])?, c.map(imaginary, &[a, b, cos, sin])?];
    if interleaved {
        let mut dims = c.dims(parts[0]);
        let apart = [c.unsqueeze(parts[0], 4)?, c.unsqueeze(parts[1], 4)?];
        dims[3] = turned;
        let joined = c.concat(&apart, 4)?;
        parts = vec![c.reshape(joined, &dims)?];
    }
    if turned < size {
        parts.push(c.slice(x, 3, turned, size - turned)?);
    }
    let y = c.concat(&parts, 3)?;
    if together { heads_together(c, y) } else { Ok(y) }
}

/// Attention whose scores and weights pass through graphs of the model.
fn flex(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let of = heads(c, [c.x(0)?, c.x(1)?, c.x(2)?])?;
    let (dtype, size) = (c.dtype(of.v), c.dim(of.q, 3)? as f64);
    let at = match (c.int("softmax_precision").and_then(DataType::from_number), c.dtype(of.q)) {
        (Some(precision), _) => graph_type(precision)?,
        (None, Dtype::F64) => Dtype::F64,
        (None, _) => Dtype::F32,
    };
    let scale = c.float_or("scale", 1.0 / size.sqrt());
    let scores = of.scores(c, scale)?;
    let scores = c.cast(scores, at)?;
    let Some(scores) = modified(c, "score_mod", scores)? else { return Ok(vec![Item::Broken]) };
    let weights = c.op(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let Some(weights) = modified(c, "prob_mod", weights)? else { return Ok(vec![Item::Broken]) };
    let v = c.cast(of.v, at)?;
    let y = Heads { v, ..of }.mixed(c, weights)?;
    Ok(vec![c.cast(y, dtype)?.into()])
}

/// The result of a graph attribute for a value; the value itself if there is no such graph, `None` if the graph cannot
/// be imported.
fn modified(c: &mut Call<'_, '_>, name: &str, value: ValueId) -> Outcome<Option<ValueId>> {
    if c.attribute(name).is_none() {
        return Ok(Some(value));
    }
    let body = c.graph_attr(name)?;
    match c.body(body, vec![value.into()])?.as_slice() {
        [Item::Tensor(value)] => Ok(Some(*value)),
        [Item::Broken] => Ok(None),
        _ => Err(format!("{name}: expected a graph of one output")),
    }
}
