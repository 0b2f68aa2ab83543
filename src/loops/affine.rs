//! Indices that are a number plus a sum of multiples of axes, here called sums.

use std::collections::BTreeMap;

use super::ir::{Loop, Term, TermId, TermKind};
use crate::graph::Binary;
use crate::tensor::Dtype;

/// A sum: `base` plus stride x index for each axis in `strides`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Affine {
    pub base: i64,
    pub strides: BTreeMap<usize, i64>,
}

impl Affine {
    pub fn stride(&self, axis: usize) -> i64 {
        self.strides.get(&axis).copied().unwrap_or(0)
    }

    /// The smallest and the largest value of the sum if axes are within these bounds, both included.
    pub fn range(&self, bounds: &[[i64; 2]]) -> [i64; 2] {
        self.strides.iter().fold([self.base; 2], |[low, high], (&axis, &by)| {
            let ends = bounds[axis].map(|end| by.saturating_mul(end));
            [low.saturating_add(ends[0].min(ends[1])), high.saturating_add(ends[0].max(ends[1]))]
        })
    }

    /// Whether the sum has one stride over all points of `axes`, numbered row by row. `extents` are those of all axes.
    pub fn runs_on(&self, axes: &[usize], extents: &[usize]) -> bool {
        let along: Vec<usize> = axes.iter().map(|&axis| extents[axis]).collect();
        let strides: Vec<i64> = axes.iter().map(|&axis| self.stride(axis)).collect();
        linear(&along, &strides).is_some()
    }

    fn plus(mut self, other: &Self, times: i64) -> Self {
        self.base = self.base.wrapping_add(other.base.wrapping_mul(times));
        for (&axis, stride) in &other.strides {
            let sum = self.strides.entry(axis).or_insert(0);
            *sum = sum.wrapping_add(stride.wrapping_mul(times));
        }
        self.strides.retain(|_, stride| *stride != 0);
        self
    }
}

/// Each term of a loop as a sum; `None` for a term that is none.
pub(super) fn affine(of: &Loop) -> Vec<Option<Affine>> {
    let mut all: Vec<Option<Affine>> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let found = term_as_sum(term, &all);
        all.push(found);
    }
    all
}

/// A term as a sum, if it is one; `before` has the earlier terms as sums.
pub(super) fn term_as_sum(term: &Term, before: &[Option<Affine>]) -> Option<Affine> {
    match &term.kind {
        _ if term.dtype != Dtype::I64 => None,
        TermKind::Axis(axis) => Some(Affine { base: 0, strides: BTreeMap::from([(*axis, 1)]) }),
        TermKind::Const(bits) => Some(Affine { base: *bits as i64, strides: BTreeMap::new() }),
        TermKind::Binary(op, [a, b]) => combined(*op, before[a.0].as_ref()?, before[b.0].as_ref()?),
        _ => None,
    }
}

/// The sums that a loop reads, as indices of loads or as values.
pub(super) fn sums_read<'a>(
    of: &'a Loop,
    sums: &'a [Option<Affine>],
    needed: &'a [bool],
) -> impl Iterator<Item = &'a Affine> {
    let read = |(id, term): (usize, &Term)| match term.kind {
        TermKind::Load { index, .. } => index.0,
        _ => id,
    };
    let terms = of.terms.iter().enumerate().filter(|(id, _)| needed[*id]);
    terms.map(read).filter_map(|id| sums[id].as_ref())
}

/// For each term, whether it is read as a value. Terms that only affine indices read are not.
pub(super) fn needed(of: &Loop, affine: &[Option<Affine>]) -> Vec<bool> {
    let mut needed = vec![false; of.terms.len()];
    needed[of.result.0] = true;
    for (id, term) in of.terms.iter().enumerate().rev() {
        if !needed[id] {
            continue;
        }
        match &term.kind {
            TermKind::Load { index, guard, .. } => {
                needed[index.0] |= affine[index.0].is_none();
                guard.iter().for_each(|guard| (needed[guard.condition.0], needed[guard.otherwise.0]) = (true, true));
            }
            _ if affine[id].is_some() => {}
            _ => term.reads().iter().for_each(|read| needed[read.0] = true),
        }
    }
    needed
}

/// The first and the last index along each axis for which a condition can hold, as far as the condition bounds single
/// axes. Without bounds these are the axis' own first and last index.
pub(super) fn bounds(
    terms: &[Term],
    sums: &[Option<Affine>],
    extents: &[usize],
    condition: Option<TermId>,
) -> Vec<[i64; 2]> {
    let mut all: Vec<[i64; 2]> = extents.iter().map(|&extent| [0, extent as i64 - 1]).collect();
    let mut left: Vec<TermId> = condition.into_iter().collect();
    while let Some(id) = left.pop() {
        match &terms[id.0].kind {
            TermKind::Binary(Binary::And, both) => left.extend(both),
            TermKind::Binary(Binary::Less, [index, size]) => {
                if let Some((axis, [first, last])) = within(terms, sums, *index, *size) {
                    all[axis] = [all[axis][0].max(first), all[axis][1].min(last)];
                }
            }
            _ => {}
        }
    }
    all
}

/// The axis and its bounds if an index is below a size, where negative indices count as large; `None` if the index is
/// no rising multiple of one axis.
pub(super) fn within(
    terms: &[Term],
    sums: &[Option<Affine>],
    index: TermId,
    size: TermId,
) -> Option<(usize, [i64; 2])> {
    let (TermKind::Cast(index), TermKind::Const(size)) = (&terms[index.0].kind, &terms[size.0].kind) else {
        return None;
    };
    let sum = sums[index.0].as_ref()?;
    let (&axis, &by) = sum.strides.iter().next().filter(|(_, by)| sum.strides.len() == 1 && **by > 0)?;
    let last = i64::try_from(*size).ok()?.checked_sub(1)?.checked_sub(sum.base)?;
    Some((
        axis,
        [sum.base.checked_neg()?.div_euclid(by) + i64::from(sum.base.rem_euclid(by) != 0), last.div_euclid(by)],
    ))
}

fn combined(op: Binary, a: &Affine, b: &Affine) -> Option<Affine> {
    match op {
        Binary::Add => Some(a.clone().plus(b, 1)),
        Binary::Sub => Some(a.clone().plus(b, -1)),
        Binary::Mul if b.strides.is_empty() => Some(Affine::default().plus(a, b.base)),
        Binary::Mul if a.strides.is_empty() => Some(Affine::default().plus(b, a.base)),
        _ => None,
    }
}

/// The stride from each point to the next if points are numbered row by row over axes with these strides; `None` if it
/// is not always the same.
pub(super) fn linear(extents: &[usize], strides: &[i64]) -> Option<i64> {
    let mut axes = extents.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1);
    let Some((&extent, &innermost)) = axes.next() else { return Some(0) };
    let mut expected = innermost.wrapping_mul(extent as i64);
    for (&extent, &stride) in axes {
        if stride != expected {
            return None;
        }
        expected = expected.wrapping_mul(extent as i64);
    }
    Some(innermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_one_run_are_linear() {
        assert_eq!(linear(&[2, 3, 4], &[12, 4, 1]), Some(1));
        assert_eq!(linear(&[2, 1, 4], &[8, 99, 2]), Some(2));
        assert_eq!(linear(&[2, 3, 4], &[0, 4, 1]), None);
        assert_eq!(linear(&[2, 3, 4], &[0, 0, 0]), Some(0));
        assert_eq!(linear(&[], &[]), Some(0));
    }
}
