//! Operations that are no loops: their elements are sorted, or written in an order that matters, or their number
//! depends on values; or they are many loops, one behind the other.
//!
//! Each operation has an arm in [`compute`] here and one in [`lower`](super::lower). The functions here define its
//! meaning; [`expand`](crate::graph::expand) replaces it by loops, which take longer on the CPU, except for recurrent
//! layers, which are computed as such loops.

use std::cmp::Ordering;
use std::collections::HashSet;

use half::{bf16, f16};

use super::eval::packed_attention;
use super::evaluate::evaluate;
use super::scalar::{Convert, typed};
use super::team::Team;
use crate::error::Error;
use crate::graph::{Cumulate, Element, GraphBuilder, Op, ReduceOp, Scatter, Tensor, TopK, ValueType, place, unrolled};

/// The results of an operation that is computed by a function over values. A team shares the work if it has parts.
///
/// # Panics
/// If the operation is a loop, or does not take these operands.
pub(super) fn compute(
    op: &Op,
    inputs: &[Option<&Tensor>],
    outputs: &[ValueType],
    team: &dyn Team,
) -> Result<Vec<Tensor>, Error> {
    let input = |number: usize| inputs[number].expect("an operand that was checked to be there");
    let x = input(0);
    match op {
        Op::TopK(of) => typed!(x.value_type().dtype, T => top_k::<T>(of, x, outputs)),
        Op::Cumulate(of) => typed!(x.value_type().dtype, T => cumulate::<T>(of, x)),
        Op::PackedAttention(of) => packed_attention(of, inputs, team).map(|mixed| vec![mixed]),
        Op::Recurrent(_) => by_steps(op, inputs, outputs.len()),
        Op::ScatterElements(axis, how) => {
            let places = element_places(*axis, x.value_type(), input(1));
            typed!(x.value_type().dtype, T => scatter::<T>(*how, x, &places, 1, input(2)))
        }
        Op::ScatterNd(how) => {
            let (places, run) = slice_places(x.value_type(), input(1));
            typed!(x.value_type().dtype, T => scatter::<T>(*how, x, &places, run, input(2)))
        }
        other => unreachable!("{} is a loop", other.kind()),
    }
}

/// The results of a recurrent layer, computed step by step.
fn by_steps(op: &Op, inputs: &[Option<&Tensor>], outputs: usize) -> Result<Vec<Tensor>, Error> {
    let mut g = GraphBuilder::new();
    let mut operand = |(number, of): (usize, &Option<&Tensor>)| {
        of.map(|of| g.input(&number.to_string(), of.value_type().dtype, &of.value_type().dims))
    };
    let operands: Vec<_> = inputs.iter().enumerate().map(&mut operand).collect();
    let written = g.node_with("layer", op.clone(), &operands, outputs);
    written.iter().enumerate().for_each(|(number, &value)| g.output(&number.to_string(), value));
    let inputs: Vec<Tensor> = inputs.iter().copied().flatten().cloned().collect();
    evaluate(&unrolled(&g.finish()?, &HashSet::new()), &mut |_, _| unreachable!("it has no weights"), &inputs)
}

/// An element type whose numbers are compared and combined. Floats of 16 bits are combined as f32.
trait Number: Element + PartialOrd + Convert<Self::Inner> {
    type Inner: Copy + PartialOrd + Convert<Self>;
    const ZERO: Self::Inner;
    const ONE: Self::Inner;
    fn plus(a: Self::Inner, b: Self::Inner) -> Self::Inner;
    fn times(a: Self::Inner, b: Self::Inner) -> Self::Inner;
}

macro_rules! numbers {
    ($($T:ident as $Inner:ident: $add:ident, $mul:ident);* $(;)?) => {$(
        impl Number for $T {
            type Inner = $Inner;
            const ZERO: $Inner = 0 as $Inner;
            const ONE: $Inner = 1 as $Inner;
            fn plus(a: $Inner, b: $Inner) -> $Inner { a.$add(b) }
            fn times(a: $Inner, b: $Inner) -> $Inner { a.$mul(b) }
        }
    )*};
    (integers $($T:ident),*) => {
        numbers! { $($T as $T: wrapping_add, wrapping_mul);* }
    };
}

use std::ops::{Add, Mul};

numbers! { integers u8, u16, u32, u64, i8, i16, i32, i64 }
numbers! { f16 as f32: add, mul; bf16 as f32: add, mul; f32 as f32: add, mul; f64 as f64: add, mul }

fn is_nan<T: PartialOrd>(x: &T) -> bool {
    x.partial_cmp(x).is_none()
}

/// Ascending order, with NaN after every number.
fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

/// The number of elements before, along and after an axis.
fn around(dims: &[usize], axis: usize) -> [usize; 3] {
    [dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()]
}

fn top_k<T: Number>(of: &TopK, x: &Tensor, outputs: &[ValueType]) -> Result<Vec<Tensor>, Error> {
    let [outer, size, inner] = around(&x.value_type().dims, of.axis);
    let (mut values, mut indices) = (Tensor::zeros(outputs[0].clone())?, Tensor::zeros(outputs[1].clone())?);
    let elems = x.elems::<T>();
    let mut sorted: Vec<usize> = Vec::with_capacity(size);
    for (row, column) in (0..outer).flat_map(|row| (0..inner).map(move |column| (row, column))) {
        let at = |i: usize| &elems[(row * size + i) * inner + column];
        sorted.clear();
        sorted.extend(0..size);
        match of.largest {
            true => sorted.sort_by(|&a, &b| order(at(b), at(a))), // stable: the first of equal ones stays first
            false => sorted.sort_by(|&a, &b| order(at(a), at(b))),
        }
        for (place, &i) in sorted[..of.k].iter().enumerate() {
            let to = (row * of.k + place) * inner + column;
            values.elems_mut::<T>()[to] = *at(i);
            indices.elems_mut::<i64>()[to] = i as i64;
        }
    }
    Ok(vec![values, indices])
}

type Combine<T> = fn(T, T) -> T;

fn cumulate<T: Number>(of: &Cumulate, x: &Tensor) -> Result<Vec<Tensor>, Error> {
    let [outer, size, inner] = around(&x.value_type().dims, of.axis);
    let mut result = Tensor::zeros(x.value_type().clone())?;
    let (from, to) = (x.elems::<T>(), result.elems_mut::<T>());
    for (row, column) in (0..outer).flat_map(|row| (0..inner).map(move |column| (row, column))) {
        let (mut sofar, combine): (T::Inner, Combine<T::Inner>) = match of.op {
            ReduceOp::Prod => (T::ONE, T::times),
            _ => (T::ZERO, T::plus),
        };
        for step in 0..size {
            let i = if of.reverse { size - 1 - step } else { step };
            let at = (row * size + i) * inner + column;
            let with = combine(sofar, from[at].convert());
            to[at] = if of.exclusive { sofar } else { with }.convert();
            sofar = with;
        }
    }
    Ok(vec![result])
}

fn indices(of: &Tensor) -> Vec<i64> {
    of.to_i64s().expect("indices that were checked to be whole")
}

fn strides(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect()
}

/// The index in `x` for each element of updates, which have the dimensions of `at`.
fn element_places(axis: usize, x: &ValueType, at: &Tensor) -> Vec<usize> {
    let (from, to) = (strides(&at.value_type().dims), strides(&x.dims));
    let of = |(number, index): (usize, i64)| {
        let coordinate =
            |i: usize| if i == axis { place(index, x.dims[axis]) } else { number / from[i] % at.value_type().dims[i] };
        (0..x.rank()).map(|i| coordinate(i) * to[i]).sum()
    };
    indices(at).into_iter().enumerate().map(of).collect()
}

/// The index in `x` of the first element for each slice of updates, and the number of elements of a slice.
fn slice_places(x: &ValueType, at: &Tensor) -> (Vec<usize>, usize) {
    let len = at.value_type().dims[at.value_type().rank() - 1];
    let to = strides(&x.dims);
    let run = x.dims[len..].iter().product();
    let rows =
        at.value_type().elems().checked_div(len).unwrap_or_else(|| at.value_type().dims.iter().rev().skip(1).product());
    let all = indices(at);
    let of = |row: usize| (0..len).map(|i| place(all[row * len + i], x.dims[i]) * to[i]).sum();
    ((0..rows).map(of).collect(), run)
}

/// The first operand, with runs of its elements combined with those of updates, in the order of the updates.
fn scatter<T: Number>(
    how: Scatter,
    x: &Tensor,
    places: &[usize],
    run: usize,
    updates: &Tensor,
) -> Result<Vec<Tensor>, Error> {
    let mut all: Vec<T::Inner> = x.elems::<T>().iter().map(|&elem| elem.convert()).collect();
    for (number, &new) in updates.elems::<T>().iter().enumerate() {
        let (old, new): (&mut T::Inner, T::Inner) = (&mut all[places[number / run] + number % run], new.convert());
        *old = match how {
            Scatter::Replace => new,
            Scatter::Add => T::plus(*old, new),
            Scatter::Mul => T::times(*old, new),
            Scatter::Min if new < *old || is_nan(&new) => new,
            Scatter::Max if new > *old || is_nan(&new) => new,
            Scatter::Min | Scatter::Max => *old,
        };
    }
    let mut result = x.clone();
    result.elems_mut::<T>().iter_mut().zip(all).for_each(|(to, elem)| *to = elem.convert());
    Ok(vec![result])
}
