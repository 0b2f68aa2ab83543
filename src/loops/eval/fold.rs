//! Reductions over blocks of values.

use super::column::Column;
use crate::graph::Element;
use crate::loops::ir::Monoid;
use crate::loops::scalar::integers;
use crate::tensor::Dtype;

/// A type in which values are combined. Bools are bytes, which have only a minimum and a maximum.
trait Fold: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_nan(self) -> bool;

    fn least(self, other: Self) -> Self {
        if other < self || other.is_nan() { other } else { self }
    }

    fn most(self, other: Self) -> Self {
        if other > self || other.is_nan() { other } else { self }
    }
}

macro_rules! folds {
    ($($T:ident: $add:ident, $mul:ident, $low:expr, $high:expr, $nan:expr);* $(;)?) => {$(
        impl Fold for $T {
            const ZERO: Self = 0 as Self;
            const ONE: Self = 1 as Self;
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
            fn plus(self, other: Self) -> Self { self.$add(other) }
            fn times(self, other: Self) -> Self { self.$mul(other) }
            fn is_nan(self) -> bool { $nan(self) }
        }
    )*};
    (integers $($T:ident),*) => {
        folds! { $($T: wrapping_add, wrapping_mul, $T::MIN, $T::MAX, |_| false);* }
    };
}

use std::ops::{Add, Mul};

folds! { integers u8, u16, u32, u64, i8, i16, i32, i64 }
folds! {
    f32: add, mul, f32::NEG_INFINITY, f32::INFINITY, f32::is_nan;
    f64: add, mul, f64::NEG_INFINITY, f64::INFINITY, f64::is_nan;
}

/// Runs `$body` with `$T` as the host's type in which values of `$dtype` are combined.
macro_rules! folded {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Dtype::Bool => {
                type $T = u8;
                $body
            }
            integer @ (Dtype::U8
            | Dtype::U16
            | Dtype::U32
            | Dtype::U64
            | Dtype::I8
            | Dtype::I16
            | Dtype::I32
            | Dtype::I64) => integers!(integer, $T => $body),
            Dtype::F32 => {
                type $T = f32;
                $body
            }
            Dtype::F64 => {
                type $T = f64;
                $body
            }
            Dtype::F16 | Dtype::Bf16 => unreachable!("{} is combined as f32", $dtype),
        }
    };
}

/// Writes the result of a reduction of no values to every lane; `of` is the type of the values.
pub(super) fn start(op: Monoid, of: Dtype, to: &mut Column) {
    fn value<T: Fold>(op: Monoid, of: Dtype) -> T {
        match op {
            Monoid::Sum => T::ZERO,
            Monoid::Prod => T::ONE,
            Monoid::Min if of == Dtype::Bool => T::ONE,
            Monoid::Max if of == Dtype::Bool => T::ZERO,
            Monoid::Min => T::HIGHEST,
            Monoid::Max => T::LOWEST,
            Monoid::Arg { .. } => unreachable!("an index starts at 0"),
        }
    }
    match op {
        Monoid::Arg { .. } => to.elems_mut::<i64>().fill(0),
        _ => folded!(of, T => to.elems_mut::<T>().fill(value(op, of))),
    }
}

/// Combines the values of each lane of `from` into the same lane of `to`.
pub(super) fn across(op: Monoid, of: Dtype, from: &Column, to: &mut Column, n: usize) {
    fn all<T: Fold>(from: &Column, to: &mut Column, n: usize, with: impl Fn(T, T) -> T) {
        to.elems_mut::<T>()[..n].iter_mut().zip(from.elems::<T>()).for_each(|(to, &from)| *to = with(*to, from));
    }
    folded!(of, T => match op {
        Monoid::Sum => all(from, to, n, T::plus),
        Monoid::Prod => all(from, to, n, T::times),
        Monoid::Min => all(from, to, n, T::least),
        Monoid::Max => all(from, to, n, T::most),
        Monoid::Arg { .. } => unreachable!("an index has a reduction of its own"),
    })
}

/// Combines the first `n` values of `from` into the first value of `to`.
pub(super) fn along(op: Monoid, of: Dtype, from: &Column, to: &mut Column, n: usize) {
    fn all<T: Fold>(from: &Column, to: &mut Column, n: usize, with: impl Fn(T, T) -> T, neutral: T) {
        const SIDE: usize = 16; // the number of partial results, which the compiler computes side by side
        let mut partial = [neutral; SIDE];
        let chunks = from.elems::<T>()[..n].chunks_exact(SIDE);
        let rest = chunks.remainder();
        chunks.for_each(|chunk| partial.iter_mut().zip(chunk).for_each(|(p, &x)| *p = with(*p, x)));
        partial.iter_mut().zip(rest).for_each(|(p, &x)| *p = with(*p, x));
        let first = &mut to.elems_mut::<T>()[0];
        *first = with(*first, partial.into_iter().reduce(&with).unwrap_or(neutral));
    }
    folded!(of, T => match op {
        Monoid::Sum => all(from, to, n, T::plus, T::ZERO),
        Monoid::Prod => all(from, to, n, T::times, T::ONE),
        Monoid::Min => all(from, to, n, T::least, T::HIGHEST),
        Monoid::Max => all(from, to, n, T::most, T::LOWEST),
        Monoid::Arg { .. } => unreachable!("an index has a reduction of its own"),
    })
}

/// The extreme value so far and its index, in each lane.
pub(super) struct Extreme<'c> {
    pub largest: bool,
    pub last: bool,
    pub best: &'c mut Column,
    pub at: &'c mut Column,
}

impl Extreme<'_> {
    fn better<T: Fold>(&self, new: T, old: T) -> bool {
        match (new.is_nan(), old.is_nan()) {
            (true, old) => self.last || !old,
            (false, true) => false,
            _ if new == old => self.last,
            _ => (new > old) == self.largest,
        }
    }

    /// Takes the values and indices of one more point in each lane; `first` if it is the first point.
    pub fn across(&mut self, of: Dtype, [value, index]: [&Column; 2], n: usize, first: bool) {
        folded!(of, T => (0..n).for_each(|lane| self.take::<T>([lane, lane], value, index, first)));
    }

    /// Takes the values and indices of all lanes into the first lane; `first` if there was no point before.
    pub fn along(&mut self, of: Dtype, [value, index]: [&Column; 2], n: usize, first: bool) {
        folded!(of, T => (0..n).for_each(|lane| self.take::<T>([0, lane], value, index, first && lane == 0)));
    }

    fn take<T: Fold>(&mut self, [to, from]: [usize; 2], value: &Column, index: &Column, first: bool) {
        let new = value.elems::<T>()[from];
        if first || self.better(new, self.best.elems::<T>()[to]) {
            self.best.elems_mut::<T>()[to] = new;
            self.at.elems_mut::<i64>()[to] = index.elems::<i64>()[from];
        }
    }
}
