//! Operands of products that are read in place.

use std::ops::Range;

use super::View;
use super::lanes::{point, step};
use crate::graph::{Binary, Element};
use crate::loops::affine::{Affine, affine};
use crate::loops::ir::{Guard, Loop, Term, TermId, TermKind};
use crate::tensor::Dtype;

/// The number of taps of single elements up to which it pays to read them in place, without a copy.
const MOST_SINGLE: usize = 64;

/// A loop that only copies elements of an operand: rows of taps of runs of neighbouring elements. Taps that a guard
/// excludes are a constant, as padding is.
#[derive(Debug)]
pub(super) struct Runs {
    operand: usize,
    base: i64,
    /// The extents of the rows' axes, and the distances along them in elements.
    extents: Vec<usize>,
    rows: Vec<i64>,
    /// The distance of each tap from its row, in elements.
    taps: Vec<i64>,
    /// The number of elements of a run.
    pub run: usize,
    bounds: Vec<Bound>,
    otherwise: u64,
}

/// The bound of a sum: it has to be at least 0 and less than `size`.
#[derive(Debug)]
struct Bound {
    base: i64,
    /// The strides along each axis of the rows.
    rows: Vec<i64>,
    taps: Vec<i64>,
    /// The least and the largest of `taps`.
    ends: [i64; 2],
    size: u64,
}

/// The places where the runs of some rows begin: for each row, those of its taps.
pub(super) struct Places<'a, T> {
    pub from: &'a [T],
    /// The run that is read outside of the operand.
    pub outside: &'a [T],
    pub at: &'a [usize],
    pub taps: usize,
}

/// The place of a run outside of the operand.
pub(super) const OUTSIDE: usize = usize::MAX;

impl<T> Places<'_, T> {
    /// The run of a row at a tap.
    #[inline(always)]
    pub fn run(&self, row: usize, tap: usize) -> &[T] {
        match self.at[row * self.taps + tap] {
            OUTSIDE => self.outside,
            at => &self.from[at..][..self.outside.len()],
        }
    }
}

impl Runs {
    /// The runs of a loop that only copies elements; `None` if it does more. The first `rows` axes are those of rows;
    /// the axes of runs begin at axis `from` or later.
    pub fn of(of: &Loop, rows: usize, from: usize) -> Option<Self> {
        let TermKind::Load { operand, index, guard } = of.term(of.result).kind else { return None };
        let sums = affine(of);
        let at = sums[index.0].as_ref()?;
        let (bounds, otherwise) = match guard {
            None => (Vec::new(), 0),
            Some(Guard { condition, otherwise }) => (bounds(of, &sums, condition)?, constant(of, otherwise)?),
        };
        let first = first_of_run(of, at, &bounds, from);
        let axes = rows..first;
        let taps = offsets(of, at, axes.clone());
        let run = of.axes[first..].iter().product();
        let strides = |of: &Affine| (0..rows).map(|axis| of.stride(axis)).collect::<Vec<_>>();
        let bound = |(sum, size): &(&Affine, u64)| {
            let taps = offsets(of, sum, axes.clone());
            let ends = [taps.iter().min(), taps.iter().max()].map(|end| end.copied().unwrap_or(0));
            Bound { base: sum.base, rows: strides(sum), taps, ends, size: *size }
        };
        (run > 1 || taps.len() <= MOST_SINGLE).then(|| Self {
            operand,
            base: at.base,
            extents: of.axes[..rows].to_vec(),
            rows: strides(at),
            taps,
            run,
            bounds: bounds.iter().map(bound).collect(),
            otherwise,
        })
    }

    pub fn taps(&self) -> usize {
        self.taps.len()
    }

    /// The elements of the operand that is read.
    pub fn operand<'t, T: Element>(&self, operands: &[View<'t>]) -> &'t [T] {
        bytemuck::cast_slice(operands[self.operand].bytes)
    }

    /// A run outside of the operand, which repeats one constant.
    pub fn outside<T: Element>(&self) -> Vec<T> {
        vec![bytemuck::pod_read_unaligned(&self.otherwise.to_le_bytes()[..size_of::<T>()]); self.run]
    }

    /// Writes the places where the runs of these rows begin.
    pub fn places(&self, rows: Range<usize>, to: &mut Vec<usize>) {
        to.clear();
        let mut at = point(&self.extents, rows.start);
        let mut sums = vec![0; self.bounds.len()];
        let mut row = rows.start;
        while row < rows.end {
            let line = match (self.extents.last(), at.last()) {
                (Some(extent), Some(inner)) => (extent - inner).min(rows.end - row),
                _ => 1,
            };
            let mut first = self.base + along(&self.rows, &at);
            sums.iter_mut().zip(&self.bounds).for_each(|(sum, bound)| *sum = bound.base + along(&bound.rows, &at));
            for _ in 0..line {
                self.places_of_row(first, &sums, to);
                first += innermost(&self.rows);
                sums.iter_mut().zip(&self.bounds).for_each(|(sum, bound)| *sum += innermost(&bound.rows));
            }
            row += line;
            if let Some(inner) = at.last_mut() {
                *inner += line - 1;
            }
            step(&self.extents, &mut at);
        }
    }

    /// Adds the places of a row's runs. `first` is the place of a tap of distance 0; `sums` are the sums that are bounded.
    fn places_of_row(&self, first: i64, sums: &[i64], to: &mut Vec<usize>) {
        let place = |offset: i64| (first + offset) as usize;
        let bounds = || sums.iter().zip(&self.bounds);
        match bounds().all(|(sum, bound)| bound.ends.iter().all(|end| bound.holds(sum + end))) {
            true => to.extend(self.taps.iter().map(|offset| place(*offset))),
            false => to.extend(self.taps.iter().enumerate().map(|(tap, offset)| {
                match bounds().all(|(sum, bound)| bound.holds(sum + bound.taps[tap])) {
                    true => place(*offset),
                    false => OUTSIDE,
                }
            })),
        }
    }
}

impl Bound {
    fn holds(&self, sum: i64) -> bool {
        (sum as u64) < self.size // negative ones are large
    }
}

/// The stride along the innermost axis; 0 if there is none.
fn innermost(strides: &[i64]) -> i64 {
    strides.last().copied().unwrap_or(0)
}

fn along(strides: &[i64], at: &[usize]) -> i64 {
    strides.iter().zip(at).map(|(by, &i)| by * i as i64).sum()
}

/// The sums and sizes that a condition bounds; `None` if it does anything else.
fn bounds<'s>(of: &Loop, sums: &'s [Option<Affine>], condition: TermId) -> Option<Vec<(&'s Affine, u64)>> {
    match &of.term(condition).kind {
        TermKind::Binary(Binary::And, [a, b]) => {
            Some([bounds(of, sums, *a)?, bounds(of, sums, *b)?].into_iter().flatten().collect())
        }
        TermKind::Binary(Binary::Less, [index, size]) => match &of.term(*index) {
            Term { dtype: Dtype::U64, kind: TermKind::Cast(index) } => {
                Some(vec![(sums[index.0].as_ref()?, constant(of, *size)?)])
            }
            _ => None,
        },
        _ => None,
    }
}

fn constant(of: &Loop, id: TermId) -> Option<u64> {
    match of.term(id).kind {
        TermKind::Const(bits) => Some(bits),
        _ => None,
    }
}

/// The first of the innermost axes, from `from` on, along which elements are neighbours and no bound changes.
fn first_of_run(of: &Loop, at: &Affine, bounds: &[(&Affine, u64)], from: usize) -> usize {
    let (mut first, mut run) = (of.rank, 1);
    while first > from {
        let axis = first - 1;
        let along = at.stride(axis) == run && bounds.iter().all(|(sum, _)| sum.stride(axis) == 0);
        if !along && of.axes[axis] != 1 {
            break;
        }
        (first, run) = (axis, run * of.axes[axis] as i64);
    }
    first
}

/// The values of a sum without its base at all points of these axes.
fn offsets(of: &Loop, sum: &Affine, axes: Range<usize>) -> Vec<i64> {
    let (extents, mut at) = (&of.axes[axes.clone()], vec![0; axes.len()]);
    let mut all = Vec::new();
    if extents.contains(&0) {
        return all;
    }
    loop {
        all.push(axes.clone().zip(&at).map(|(axis, &i)| sum.stride(axis) * i as i64).sum());
        if !step(extents, &mut at) {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Number, ValueType};
    use crate::loops::build::LoopBuilder;

    #[test]
    fn taps_in_padding_are_outside_and_neighbours_are_runs() {
        let (types, all) = ([ValueType::new(Dtype::F32, &[4, 3])], [5, 3, 3]); // 5 rows of 3 taps of 3 channels
        let mut b = LoopBuilder::new(&types, &all);
        let [row, tap, channel] = b.point()[..] else { unreachable!() };
        let sum = b.binary(Binary::Add, row, tap);
        let at = b.shifted(sum, -1);
        let (inside, seven) = (b.within(at, 4), b.number(Dtype::F32, Number::Float(7.0)));
        let root = b.load_if(0, &[at, channel], inside, seven);
        let of = b.finish(root);
        let runs = Runs::of(&of, 1, 1).unwrap();
        assert_eq!((runs.taps(), runs.run, runs.outside::<f32>()), (3, 3, vec![7.0; 3]));
        let mut places = Vec::new();
        runs.places(0..5, &mut places);
        assert_eq!(places[..6], [OUTSIDE, 0, 3, 0, 3, 6]);
        assert_eq!(places[9..], [6, 9, OUTSIDE, 9, OUTSIDE, OUTSIDE]);
        runs.places(3..4, &mut places);
        assert_eq!(places, [6, 9, OUTSIDE]);
    }

    #[test]
    fn a_function_of_elements_is_no_run() {
        let mut b = LoopBuilder::new(&[ValueType::new(Dtype::F32, &[4])], &[4]);
        let point = b.point();
        let x = b.load(0, &point);
        let root = b.binary(Binary::Mul, x, x);
        assert!(Runs::of(&b.finish(root), 0, 0).is_none());
    }
}
