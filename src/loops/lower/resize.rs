//! Interpolation.
//!
//! Along each axis an element is a weighted sum of taps around a place. Places and weights are computed in f64, or in f32
//! if that is as exact: GPUs convert between integers and f64 at a quarter of the rate.

use super::{Operation, wide};
use crate::graph::{Binary, Nearest, Resize, ResizeCoordinates, ResizeMode, Unary};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Monoid, TermId};
use crate::tensor::Dtype;

/// An axis along which elements are interpolated, at one point of the result.
struct Axis {
    axis: usize,
    size: usize,
    /// The place, in f32 or f64, and the largest whole number that is not above it.
    place: TermId,
    floor: TermId,
    /// The number of taps, and the distance of the first one from `floor`.
    taps: usize,
    first: i64,
    /// The factor by which the filter shortens distances between taps.
    scale: f64,
}

impl Operation<'_> {
    pub fn resize(&self, of: &Resize) -> Loop {
        let x = self.operand(0);
        let mut b = self.each();
        let mut point = b.point();
        let (mut axes, mut outside) = (Vec::new(), Vec::new());
        for axis in (0..x.rank()).filter(|&axis| !stays(of, axis, x.dims[axis])) {
            let size = x.dims[axis];
            let place = place(&mut b, of, axis, size, point[axis]);
            if of.coordinates == ResizeCoordinates::Crop {
                outside.push(leaves(&mut b, place, size));
            }
            match of.mode {
                _ if size == 1 => point[axis] = b.index(0), // each tap is the only element; weights add up to 1
                ResizeMode::Nearest(nearest) => point[axis] = rounded(&mut b, nearest, place, size),
                ResizeMode::Linear => axes.push(taps(&mut b, of, axis, size, place, 1)),
                ResizeMode::Cubic(_) => axes.push(taps(&mut b, of, axis, size, place, 2)),
            }
        }
        let mut result = match axes.is_empty() {
            true => b.load(0, &point),
            false => self.weighted(&mut b, of, &axes, &point),
        };
        if let Some(value) = of.outside {
            let value = b.float(Dtype::F64, value);
            let value = b.cast(x.dtype, value);
            for outside in outside {
                result = b.select(outside, value, result);
            }
        }
        b.finish(result)
    }

    /// The weighted sum over the taps of all axes. The weights along each axis add up to 1.
    fn weighted(&self, b: &mut LoopBuilder, of: &Resize, axes: &[Axis], point: &[TermId]) -> TermId {
        let dtype = self.operand(0).dtype;
        let inner = if dtype.is_integer() { Dtype::F64 } else { wide(&[dtype]) };
        let sum = self.sum(b, of, axes, &mut point.to_vec(), inner);
        match dtype.is_integer() {
            true => {
                let rounded = b.unary(Unary::Round, sum);
                b.cast(dtype, rounded)
            }
            false => b.cast(dtype, sum),
        }
    }

    fn sum(&self, b: &mut LoopBuilder, of: &Resize, axes: &[Axis], point: &mut Vec<TermId>, inner: Dtype) -> TermId {
        let Some((along, rest)) = axes.split_first() else {
            let x = b.load(0, point);
            return b.cast(inner, x);
        };
        let sum = b.reduce(Monoid::Sum, &[along.taps], |b, tap| {
            let (weight, index) = weight(b, of, along, tap[0]);
            point[along.axis] = b.clamped(index, along.size);
            let x = self.sum(b, of, rest, point, inner);
            let weight = b.cast(inner, weight);
            b.binary(Binary::Mul, weight, x)
        });
        if !(of.antialias || of.exclude_outside) {
            return sum;
        }
        let weights = b.reduce(Monoid::Sum, &[along.taps], |b, tap| weight(b, of, along, tap[0]).0);
        let weights = b.cast(inner, weights);
        b.binary(Binary::Div, sum, weights)
    }
}

/// Whether each element along an axis is the operand's element at the same index.
fn stays(of: &Resize, axis: usize, size: usize) -> bool {
    let whole = of.coordinates != ResizeCoordinates::Crop || of.crop[axis] == [0.0, 1.0];
    of.dims[axis] == size && of.scales[axis] == 1.0 && whole
}

/// The place along an axis of the operand for an index of the result: (index + shift) x times / over + offset.
fn place(b: &mut LoopBuilder, of: &Resize, axis: usize, size: usize, index: TermId) -> TermId {
    let (scale, size, dim) = (of.scales[axis], size as f64, of.dims[axis]);
    let (last, resized) = (size - 1.0, scale * size);
    let [from, to] = of.crop[axis];
    let [shift, times, over, offset] = match of.coordinates {
        ResizeCoordinates::PytorchHalfPixel if dim == 1 => [0.0, 0.0, 1.0, 0.0],
        ResizeCoordinates::HalfPixel | ResizeCoordinates::PytorchHalfPixel => [0.5, 1.0, scale, -0.5],
        ResizeCoordinates::HalfPixelSymmetric => [0.5, 1.0, scale, size / 2.0 * (1.0 - dim as f64 / resized) - 0.5],
        ResizeCoordinates::AlignCorners if resized == 1.0 => [0.0, 0.0, 1.0, 0.0],
        ResizeCoordinates::AlignCorners => [0.0, last, resized - 1.0, 0.0],
        ResizeCoordinates::Asymmetric => [0.0, 1.0, scale, 0.0],
        ResizeCoordinates::Crop if dim == 1 => [0.0, 0.0, 1.0, (from + to) * last / 2.0],
        ResizeCoordinates::Crop => [0.0, (to - from) * last, dim as f64 - 1.0, from * last],
    };
    let is_exact = is_exact_in_f32(of, dim, [shift, times, over, offset]);
    let dtype = if is_exact { Dtype::F32 } else { Dtype::F64 };
    let index = b.cast(dtype, index);
    let mut then = |op, x, number| {
        let number = b.float(dtype, number);
        b.binary(op, x, number)
    };
    let shifted = then(Binary::Add, index, shift);
    let scaled = match is_exact {
        true => then(Binary::Mul, shifted, 1.0 / over),
        false => {
            let scaled = then(Binary::Mul, shifted, times);
            then(Binary::Div, scaled, over)
        }
    };
    then(Binary::Add, scaled, offset)
}

/// Whether f32 holds each place, its distance from each tap, and each weight: they are multiples of one half, or of a
/// half divided by a power of two, and have at most 24 bits.
fn is_exact_in_f32(of: &Resize, dim: usize, [shift, times, over, offset]: [f64; 4]) -> bool {
    let halves = |x: f64| (2.0 * x).fract() == 0.0 && x.abs() <= 1.0;
    let power = over.log2(); // no whole number for a scale that is no power of two
    let is_weighted_linearly = !of.antialias && !matches!(of.mode, ResizeMode::Cubic(_));
    is_weighted_linearly
        && times == 1.0
        && power.fract() == 0.0
        && over == power.exp2()
        && halves(shift)
        && halves(offset)
        && (dim as f64 + 2.0).log2().ceil() + 1.0 + power.abs() <= 24.0
}

/// Whether a place is before the first element or after the last.
fn leaves(b: &mut LoopBuilder, place: TermId, size: usize) -> TermId {
    let dtype = b.dtype(place);
    let [first, last] = [0.0, size as f64 - 1.0].map(|bound| b.float(dtype, bound));
    let before = b.binary(Binary::Less, place, first);
    let behind = b.binary(Binary::Less, last, place);
    b.binary(Binary::Or, before, behind)
}

/// The index of the element nearest to a place.
fn rounded(b: &mut LoopBuilder, nearest: Nearest, place: TermId, size: usize) -> TermId {
    let (shift, round) = match nearest {
        Nearest::PreferFloor => (-0.5, Unary::Ceil),
        Nearest::PreferCeil => (0.5, Unary::Floor),
        Nearest::Floor => (0.0, Unary::Floor),
        Nearest::Ceil => (0.0, Unary::Ceil),
    };
    let dtype = b.dtype(place);
    let shift = b.float(dtype, shift);
    let shifted = b.binary(Binary::Add, place, shift);
    let whole = b.unary(round, shifted);
    let index = b.cast(Dtype::I64, whole);
    b.clamped(index, size)
}

/// The taps around a place, for a filter that reaches `reach` elements to either side.
fn taps(b: &mut LoopBuilder, of: &Resize, axis: usize, size: usize, place: TermId, reach: i64) -> Axis {
    let scale = if of.antialias { of.scales[axis].min(1.0) } else { 1.0 };
    let first = (-reach as f64 / scale).floor() as i64 + 1;
    let floor = b.unary(Unary::Floor, place);
    let floor = b.cast(Dtype::I64, floor);
    Axis { axis, size, place, floor, taps: (2 - 2 * first) as usize, first, scale }
}

/// The weight of a tap, and the index of its element, which may be outside of the operand.
fn weight(b: &mut LoopBuilder, of: &Resize, along: &Axis, tap: TermId) -> (TermId, TermId) {
    let index = b.binary(Binary::Add, along.floor, tap);
    let index = b.shifted(index, along.first);
    let dtype = b.dtype(along.place);
    let at = b.cast(dtype, index);
    let distance = b.binary(Binary::Sub, at, along.place);
    let distance = b.unary(Unary::Abs, distance);
    let distance = match along.scale {
        1.0 => distance,
        scale => {
            let scale = b.float(dtype, scale);
            b.binary(Binary::Mul, distance, scale)
        }
    };
    let weight = match of.mode {
        ResizeMode::Cubic(a) => cubic(b, a, distance),
        ResizeMode::Linear | ResizeMode::Nearest(_) => linear(b, distance),
    };
    match b.within(index, along.size) {
        Some(inside) if of.exclude_outside => {
            let nothing = b.float(dtype, 0.0);
            (b.select(inside, weight, nothing), index)
        }
        _ => (weight, index),
    }
}

/// max(1 - x, 0).
fn linear(b: &mut LoopBuilder, x: TermId) -> TermId {
    let dtype = b.dtype(x);
    let [zero, one] = [0.0, 1.0].map(|number| b.float(dtype, number));
    let weight = b.binary(Binary::Sub, one, x);
    b.binary(Binary::Max, weight, zero)
}

/// The cubic filter: (a + 2) x^3 - (a + 3) x^2 + 1 for x up to 1, a x^3 - 5a x^2 + 8a x - 4a up to 2, then 0.
fn cubic(b: &mut LoopBuilder, a: f64, x: TermId) -> TermId {
    let [one, two, zero] = [1.0, 2.0, 0.0].map(|number| b.float(Dtype::F64, number));
    let near = polynomial(b, x, &[a + 2.0, -(a + 3.0), 0.0, 1.0]);
    let far = polynomial(b, x, &[a, -5.0 * a, 8.0 * a, -4.0 * a]);
    let [is_near, is_far] = [b.binary(Binary::LessEqual, x, one), b.binary(Binary::Less, x, two)];
    let beyond = b.select(is_far, far, zero);
    b.select(is_near, near, beyond)
}

/// The polynomial with these coefficients, the highest first, at x.
fn polynomial(b: &mut LoopBuilder, x: TermId, coefficients: &[f64]) -> TermId {
    let mut sum = b.float(Dtype::F64, coefficients[0]);
    for &coefficient in &coefficients[1..] {
        let coefficient = b.float(Dtype::F64, coefficient);
        let product = b.binary(Binary::Mul, sum, x);
        sum = b.binary(Binary::Add, product, coefficient);
    }
    sum
}
