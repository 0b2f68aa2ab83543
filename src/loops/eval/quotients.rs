//! Indices that are whole quotients of an axis, as in a picture that is enlarged by a whole factor. If the axis is
//! divided into parts, these indices are sums of multiples of axes, and the elements at them lie in runs.

use std::collections::{BTreeSet, HashMap};

use super::machine;
use super::program::Program;
use crate::loops::affine::{affine, needed};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Term, TermId, TermKind};
use crate::loops::rewrite::{Copier, Quotient, with_parts};
use crate::loops::team::Alone;
use crate::tensor::Dtype;

/// The loop with its axes divided into parts; `None` if none of its terms is a quotient of an axis.
pub(crate) fn in_parts(of: &Loop) -> Option<Loop> {
    let found = quotients(of);
    let mut in_place = HashMap::new();
    for axis in found.iter().map(|quotient| quotient.axis).collect::<BTreeSet<_>>() {
        let divisors: BTreeSet<usize> = found.iter().filter(|of| of.axis == axis).map(|of| of.divisor).collect();
        in_place.insert(axis, parts(of.axes[axis], &divisors)?);
    }
    (!found.is_empty()).then(|| with_parts(of, in_place, &found))
}

/// Parts of an axis, such that each divisor is the number of points of the last parts; `None` if the divisors do not
/// divide one another.
fn parts(extent: usize, divisors: &BTreeSet<usize>) -> Option<Vec<usize>> {
    let mut parts = Vec::new();
    let mut inner = 1;
    for &outer in divisors.iter().chain([&extent]) {
        parts.push(Some(outer / inner).filter(|_| outer % inner == 0)?);
        inner = outer;
    }
    parts.reverse();
    Some(parts)
}

/// The terms that are whole quotients of one of the result's axes, without those that are sums of multiples of axes.
fn quotients(of: &Loop) -> Vec<Quotient> {
    let sums = affine(of);
    let (needed, deps) = (needed(of, &sums), of.dependencies());
    let mut indices: Vec<bool> = Vec::with_capacity(of.terms.len()); // whether each reads no operand
    for term in &of.terms {
        let reads = matches!(term.kind, TermKind::Load { .. } | TermKind::Reduce { .. });
        indices.push(!reads && term.reads().iter().all(|read| indices[read.0]));
    }
    let candidate = |(id, term): (usize, &Term)| {
        let axis = *deps[id].first().filter(|&&axis| deps[id].len() == 1 && axis < of.rank)?;
        let wanted = needed[id] && indices[id] && sums[id].is_none() && term.dtype == Dtype::I64;
        let divisor = wanted.then(|| divisor(&values(of, TermId(id), axis)))??;
        Some(Quotient { term: TermId(id), axis, divisor })
    };
    of.terms.iter().enumerate().filter_map(candidate).collect()
}

/// The values of a term at all points of the axis that it depends on.
fn values(of: &Loop, term: TermId, axis: usize) -> Vec<i64> {
    let mut b = LoopBuilder::new(&[], &[of.axes[axis]]);
    let at = b.axis(0);
    let root = Copier::new(of, [(axis, at)], Vec::new()).term(&mut b, term);
    let mut values = vec![0_i64; of.axes[axis]];
    machine::run(&Program::new(&b.finish(root)), &[], bytemuck::cast_slice_mut(&mut values), &Alone(0));
    values
}

/// The divisor of which these values are the quotients of their places; `None` if there is none that divides their
/// number.
fn divisor(values: &[i64]) -> Option<usize> {
    let divisor = values.iter().position(|&value| value != 0)?;
    let whole = divisor > 1 && values.len().is_multiple_of(divisor);
    (whole && values.iter().zip(0..).all(|(&value, i)| value == i / divisor as i64)).then_some(divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Tensor, Unary, ValueType};
    use crate::loops::eval::View;

    /// The sum of two pictures `[rows, 2]`, enlarged by 3 and by 6.
    fn enlarged(rows: usize) -> Loop {
        let types = [ValueType::new(Dtype::F32, &[rows * 2, 2]), ValueType::new(Dtype::F32, &[rows, 2])];
        let mut b = LoopBuilder::new(&types, &[rows * 6, 2]);
        let [row, column] = b.point()[..] else { unreachable!() };
        let loads = [(0, 3.0), (1, 6.0)].map(|(operand, times)| {
            let [place, times] = [b.cast(Dtype::F64, row), b.float(Dtype::F64, times)];
            let place = b.binary(crate::graph::Binary::Div, place, times);
            let floor = b.unary(Unary::Floor, place);
            let index = b.cast(Dtype::I64, floor);
            b.load(operand, &[index, column])
        });
        let sum = b.binary(crate::graph::Binary::Add, loads[0], loads[1]);
        b.finish(sum)
    }

    #[test]
    fn an_enlarged_axis_is_in_parts_and_its_indices_are_sums() {
        let of = enlarged(5);
        let split = in_parts(&of).expect("two quotients");
        assert_eq!(split.axes, [5, 2, 3, 2]);
        assert!(in_parts(&split).is_none());
        let tensors = [20, 10].map(|n| Tensor::of(&[n / 2, 2], &(0..n).map(|i| (i * i) as f32).collect::<Vec<_>>()));
        let views = tensors.each_ref().map(View::from);
        let mut written = [vec![0_f32; 60], vec![0_f32; 60]];
        for (of, to) in [&of, &split].into_iter().zip(&mut written) {
            machine::run(&Program::new(of), &views, bytemuck::cast_slice_mut(to), &Alone(0));
        }
        assert_eq!(written[0], written[1]);
        assert_eq!(written[0][37], 13.0 * 13.0 + 7.0 * 7.0); // row 18, column 1: from rows 6 and 3
    }

    #[test]
    fn other_indices_stay() {
        assert_eq!(divisor(&[0, 0, 1, 1, 2, 2]), Some(2));
        for other in [&[0, 0, 1, 1, 2][..], &[0, 1, 2, 3], &[0, 0, 1, 2, 2, 2], &[1, 1, 2, 2], &[0, 0, 0], &[]] {
            assert_eq!(divisor(other), None, "{other:?}");
        }
        assert_eq!(parts(24, &BTreeSet::from([2, 4, 8])), Some(vec![3, 2, 2, 2]));
        assert_eq!(parts(24, &BTreeSet::from([2, 3])), None);
    }
}
