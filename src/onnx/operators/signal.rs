//! Fourier transforms and windows.

use std::f64::consts::TAU;

use super::Operator::One;
use super::cast::graph_type;
use super::{Outcome, Table};
use crate::graph::{Contract, Number, Op, Pad, PadMode, Tensor, ValueId};
use crate::onnx::DataType;
use crate::onnx::import::{Call, Context, axis_of, product, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("DFT", One(dft)),
    ("STFT", One(stft)),
    ("HannWindow", One(hann)),
    ("HammingWindow", One(hamming)),
    ("BlackmanWindow", One(blackman)),
    ("MelWeightMatrix", One(mel)),
];

/// The most elements of the matrix of a transform.
const MOST_ELEMS: usize = 1 << 22;

/// The matrix of a function of index and frequency.
fn matrix(
    c: &mut Context<'_>,
    dtype: Dtype,
    [rows, columns]: [usize; 2],
    of: impl Fn(usize, usize) -> f64,
) -> Outcome<ValueId> {
    expect_few([rows, columns])?;
    let elems: Vec<f64> = (0..rows * columns).map(|at| of(at / columns, at % columns)).collect();
    let value = c.constant(&Tensor::of(&[rows, columns], &elems));
    c.cast(value, dtype)
}

/// # Errors
/// A matrix of too many elements.
fn expect_few([rows, columns]: [usize; 2]) -> Outcome<()> {
    if rows.saturating_mul(columns) > MOST_ELEMS {
        return Err(format!("a transform of {rows} elements to {columns}: expected smaller ones"));
    }
    Ok(())
}

/// The transform of real and imaginary parts along the last axis: `[…, n]` to `[…, frequencies, 2]`, of length `len`.
fn transform(
    c: &mut Context<'_>,
    [re, im]: [Option<ValueId>; 2],
    len: usize,
    frequencies: usize,
    inverse: bool,
) -> Outcome<ValueId> {
    let real = re.ok_or("expected a real part")?;
    let (dtype, rank, size) = (c.dtype(real), c.rank(real), *c.dims(real).last().ok_or("expected an axis")?);
    let angle = move |n: usize, k: usize| TAU * ((n * k) % len) as f64 / len as f64;
    let scale = if inverse { 1.0 / len as f64 } else { 1.0 };
    let sign = if inverse { 1.0 } else { -1.0 };
    let cos = matrix(c, dtype, [size, frequencies], |n, k| scale * angle(n, k).cos())?;
    let sin = matrix(c, dtype, [size, frequencies], |n, k| scale * sign * angle(n, k).sin())?;
    let mut product = |value: ValueId, by: ValueId| {
        let contract = Contract::matmul(rank.max(1), 2);
        c.op(Op::Contract(contract), &[value, by])
    };
    let (mut real_part, mut imaginary) = (product(real, cos)?, product(real, sin)?);
    if let Some(im) = im {
        let (by_cos, by_sin) = (product(im, cos)?, product(im, sin)?);
        real_part = c.binary(crate::graph::Binary::Sub, real_part, by_sin)?;
        imaginary = c.add(imaginary, by_cos)?;
    }
    let parts = [c.unsqueeze(real_part, rank)?, c.unsqueeze(imaginary, rank)?];
    c.concat(&parts, rank)
}

/// The first `len` elements along an axis, with zeros if it has fewer.
fn resized(c: &mut Context<'_>, x: ValueId, axis: usize, len: usize) -> Outcome<ValueId> {
    let dims = c.dims(x);
    let mut of =
        Pad { before: vec![0; dims.len()], after: vec![0; dims.len()], mode: PadMode::Constant(Number::Float(0.0)) };
    of.after[axis] = len as isize - dims[axis] as isize;
    c.op(Op::Pad(of), &[x])
}

/// The axis is an attribute up to version 19, an input later.
fn dft(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let rank = c.rank(x);
    let axis = match c.version < 20 {
        true => c.int_or("axis", 1),
        false => c.int_at(2, "the axis")?.unwrap_or(-2),
    };
    let axis = axis_of(axis, rank)?;
    let parts = c.dims(x)[rank - 1];
    if axis + 1 == rank || !(1..=2).contains(&parts) {
        return Err(format!("along axis {axis} of {}: expected real or complex elements in the last axis", c.of(x)));
    }
    let (inverse, onesided) = (c.flag("inverse"), c.flag("onesided"));
    let given = c.int_at(1, "the length")?.map(|len| size_of_dim(len, "length")).transpose()?;
    let size = c.dims(x)[axis];
    let len = given.unwrap_or(if inverse && onesided { 2 * size.saturating_sub(1) } else { size });
    let mut x = x;
    if inverse && onesided {
        x = mirrored(c, x, axis, len)?;
    } else {
        x = resized(c, x, axis, len)?;
    }
    // The axis is moved behind all others, and moved back afterwards.
    let others: Vec<usize> = (0..rank - 1).filter(|&other| other != axis).collect();
    let order = [&others[..], &[axis, rank - 1]].concat();
    let turned = c.transpose(x, &order)?;
    let re = c.at(turned, rank - 1, 0)?;
    let im = if parts == 2 { Some(c.at(turned, rank - 1, 1)?) } else { None };
    let frequencies = if onesided && !inverse { len / 2 + 1 } else { len };
    let y = transform(c, [Some(re), im], len, frequencies, inverse)?;
    let back: Vec<usize> =
        (0..rank).map(|axis| order.iter().position(|&at| at == axis).expect("it has each")).collect();
    let y = c.transpose(y, &back)?;
    if inverse && onesided { c.slice(y, rank - 1, 0, 1) } else { Ok(y) }
}

/// Adds the second half of the frequencies, which are conjugates of the first half.
fn mirrored(c: &mut Context<'_>, x: ValueId, axis: usize, len: usize) -> Outcome<ValueId> {
    let half = resized(c, x, axis, len / 2 + 1)?;
    let count = len.saturating_sub(len / 2 + 1);
    if count == 0 {
        return Ok(half);
    }
    let last = c.rank(x) - 1;
    let rest = c.stepped(half, axis, count, -1, count)?;
    let re = c.slice(rest, last, 0, 1)?;
    let im = c.slice(rest, last, 1, 1)?;
    let im = c.scaled(im, -1.0)?;
    let rest = c.concat(&[re, im], last)?;
    c.concat(&[half, rest], axis)
}

/// Transforms of frames, `[batch, frames, frequencies, 2]`, each weighted by a window.
fn stft(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let mut x = c.x(0)?;
    let step = c.int_at(1, "the step")?.filter(|&step| step > 0).ok_or("expected a step of 1 or more")? as usize;
    let window = c.maybe(2);
    let told = c.int_at(3, "the frame's length")?.map(|len| size_of_dim(len, "length")).transpose()?;
    let len = told.or_else(|| window.map(|window| c.of(window).elems())).ok_or("expected a window or a length")?;
    if c.rank(x) == 2 {
        x = c.unsqueeze(x, 2)?;
    }
    let [_, size, parts] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let frames = size.checked_sub(len).ok_or("the signal is shorter than a frame")? / step + 1;
    c.step(product(&[frames, len])?)?;
    let at: Vec<i64> = (0..frames * len).map(|at| (at / len * step + at % len) as i64).collect();
    let at = c.constant(&Tensor::of(&[frames, len], &at));
    let mut all = Vec::new();
    for part in 0..parts.min(2) {
        let signal = c.at(x, 2, part)?;
        let cut = c.op(Op::Gather(1), &[signal, at])?;
        all.push(match window {
            Some(window) => c.mul(cut, window)?,
            None => cut,
        });
    }
    let frequencies = if c.int_or("onesided", 1) != 0 { len / 2 + 1 } else { len };
    transform(c, [all.first().copied(), all.get(1).copied()], len, frequencies, false)
}

/// A window that is a sum of cosines.
fn window(c: &mut Call<'_, '_>, [a, b, d]: [f64; 3]) -> Outcome<ValueId> {
    let size = size_of_dim(c.int_at(0, "the size")?.ok_or("expected a size")?, "size")?;
    let dtype =
        graph_type(DataType::from_number(c.int_or("output_datatype", 1)).ok_or("output_datatype: expected a type")?)?;
    let period = if c.int_or("periodic", 1) != 0 { size } else { size.max(2) - 1 } as f64;
    matrix(c, dtype, [1, size], |_, at| {
        let angle = TAU * at as f64 / period;
        a - b * angle.cos() + d * (2.0 * angle).cos()
    })
    .and_then(|value| c.reshape(value, &[size]))
}

fn hann(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    window(c, [0.5, 0.5, 0.0])
}

fn hamming(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    window(c, [25.0 / 46.0, 1.0 - 25.0 / 46.0, 0.0])
}

fn blackman(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    window(c, [0.42, 0.5, 0.08])
}

/// Triangles over the frequencies of a transform, evenly spaced on the mel scale.
fn mel(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let size = |c: &Call<'_, '_>, index, what| -> Outcome<usize> {
        size_of_dim(c.int_at(index, what)?.ok_or("expected sizes")?, what)
    };
    let (bins, len, rate) = (size(c, 0, "bins")?, size(c, 1, "the length")?, size(c, 2, "the rate")?);
    let mut edges = [0.0; 2];
    for (edge, index) in edges.iter_mut().zip([3, 4]) {
        let value = c.x(index)?;
        *edge = *c.floats(value, "edges")?.first().ok_or("expected edges")?;
    }
    let to_mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let [low, high] = edges.map(to_mel);
    let step = (high - low) / (bins as f64 + 2.0);
    expect_few([len / 2 + 1, bins])?;
    let columns: Vec<usize> = (0..bins + 2)
        .map(|bin| {
            let hz = 700.0 * (10_f64.powf((low + step * bin as f64) / 2595.0) - 1.0);
            ((len as f64 + 1.0) * hz / rate as f64).floor() as usize
        })
        .collect();
    let dtype =
        graph_type(DataType::from_number(c.int_or("output_datatype", 1)).ok_or("output_datatype: expected a type")?)?;
    matrix(c, dtype, [len / 2 + 1, bins], |at, bin| {
        let [low, middle, high] = [columns[bin], columns[bin + 1], columns[bin + 2]];
        match at {
            at if at == middle => 1.0,
            at if (low..middle).contains(&at) => (at - low) as f64 / (middle - low) as f64,
            at if (middle..high).contains(&at) => (high - at) as f64 / (high - middle) as f64,
            _ => 0.0,
        }
    })
}
