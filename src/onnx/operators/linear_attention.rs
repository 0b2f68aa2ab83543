//! Attention with a state instead of all keys, and the short convolution before it.

use super::Operator::Many;
use super::activation::{sigmoid_of, wide};
use super::attention::{heads_apart, heads_together};
use super::{Outcome, Table};
use crate::graph::{Contract, Conv, Expr, Op, Unary, ValueId, Window};
use crate::onnx::import::Call;
use crate::tensor::Dtype;

pub(super) const TABLE: Table =
    &[("LinearAttention", Many(linear_attention)), ("CausalConvWithState", Many(causal_conv))];

/// One position after the other: the state decays, adds the position's key and value, and is read by its query.
fn linear_attention(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let (q, k, v, past) = (c.x(0)?, c.x(1)?, c.x(2)?, c.maybe(3));
    let dtype = c.dtype(q);
    let state_dtype = past.map_or(dtype, |past| c.dtype(past));
    let number = |name: &str| c.size(name)?.filter(|&n| n > 0).ok_or_else(|| format!("{name}: expected 1 or more"));
    let (heads, kv_heads) = (number("q_num_heads")?, number("kv_num_heads")?);
    if heads % kv_heads != 0 {
        return Err(format!("{heads} heads of queries on {kv_heads}: expected a multiple"));
    }
    let mut apart = Vec::new();
    for (value, heads) in [(q, heads), (k, kv_heads), (v, kv_heads)] {
        let value = c.cast(value, Dtype::F32)?;
        apart.push(heads_apart(c, value, heads)?);
    }
    let [b, _, len, size] = c.dims(apart[0])[..] else { return Err("expected three axes".into()) };
    let v_size = c.dim(apart[2], 3)?;
    let rule = c.text_or("update_rule", "gated_delta");
    let (gated, delta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(format!("update_rule: unknown value `{other}`")),
    };
    let along = |c: &mut Call<'_, '_>, index: usize, heads: usize| -> Outcome<ValueId> {
        let value = c.x(index)?;
        let value = c.cast(value, Dtype::F32)?;
        heads_apart(c, value, heads)
    };
    let decay = if gated { Some(along(c, 4, kv_heads)?) } else { None };
    let beta = match delta {
        true => {
            let heads = c.dims(c.x(5)?).last().copied().unwrap_or(1);
            Some(along(c, 5, heads)?)
        }
        false => None,
    };
    let mut state = match past {
        Some(past) => c.cast(past, Dtype::F32)?,
        None => c.filled(Dtype::F32, &[b, kv_heads, size, v_size], 0.0)?,
    };
    let scale = match c.float_or("scale", 0.0) {
        0.0 => 1.0 / (size as f64).sqrt(),
        scale => scale,
    };
    let mut outputs = Vec::new();
    for place in 0..len {
        let [q, k, mut v] = [c.at(apart[0], 2, place)?, c.at(apart[1], 2, place)?, c.at(apart[2], 2, place)?];
        if let Some(decay) = decay {
            let decay = c.at(decay, 2, place)?;
            let decay = c.unsqueeze(decay, 3)?;
            state = c.map(Expr::arg(0) * Expr::arg(1).unary(Unary::Exp), &[state, decay])?;
        }
        if let Some(beta) = beta {
            let read = Contract { left: vec![0, 1, 2, 3], right: vec![0, 1, 2], result: vec![0, 1, 3] };
            let retrieved = c.op(Op::Contract(read), &[state, k])?;
            let beta = c.at(beta, 2, place)?;
            v = c.map(Expr::arg(0) * (Expr::arg(1) - Expr::arg(2)), &[beta, v, retrieved])?;
        }
        let (k, v) = (c.unsqueeze(k, 3)?, c.unsqueeze(v, 2)?);
        state = c.map(Expr::arg(0) + Expr::arg(1) * Expr::arg(2), &[state, k, v])?;
        let q = c.reshape(q, &[b, kv_heads, heads / kv_heads, size])?;
        let read = Contract { left: vec![0, 1, 2, 3], right: vec![0, 1, 3, 4], result: vec![0, 1, 2, 4] };
        let y = c.op(Op::Contract(read), &[q, state])?;
        let y = c.scaled(y, scale)?;
        outputs.push(c.reshape(y, &[b, heads, 1, v_size])?);
    }
    let y = c.concat(&outputs, 2)?;
    let y = heads_together(c, y)?;
    Ok(vec![c.cast(y, dtype)?, c.cast(state, state_dtype)?])
}

/// A depthwise convolution over the past state and the input; its last elements are the next state.
fn causal_conv(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let (x, filter, bias) = (c.x(0)?, c.x(1)?, c.maybe(2));
    let [b, channels, _] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let taps = *c.dims(filter).last().ok_or("expected a filter of three axes")?;
    let (dtype, before) = (c.dtype(x), taps.saturating_sub(1));
    let past = match c.maybe(3) {
        Some(past) => past,
        None => c.filled(dtype, &[b, channels, before], 0.0)?,
    };
    let padded = c.concat(&[past, x], 2)?;
    let inner = c.channels_last(padded)?;
    let conv = Conv { window: Window::all(1, taps, 1, 0), groups: channels };
    let y = c.emit(Op::Conv(conv), &[Some(inner), Some(filter), bias], 1)?[0];
    let y = c.channels_first(y)?;
    let y = match c.text_or("activation", "none") {
        "none" => y,
        "silu" | "swish" => wide(c, y, |x, k| x() * sigmoid_of(x(), k))?,
        other => return Err(format!("activation: expected none, silu or swish, found `{other}`")),
    };
    let len = c.dim(padded, 2)?;
    Ok(vec![y, c.slice(padded, 2, len - before, before)?])
}
