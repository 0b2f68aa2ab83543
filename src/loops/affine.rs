//! Indices that are sums of multiples of axes.

use std::collections::BTreeMap;

use super::ir::{Loop, Term, TermKind};
use crate::graph::Binary;
use crate::tensor::Dtype;

/// base + the sum of stride x index over axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Affine {
    pub base: i64,
    pub strides: BTreeMap<usize, i64>,
}

impl Affine {
    pub fn stride(&self, axis: usize) -> i64 {
        self.strides.get(&axis).copied().unwrap_or(0)
    }

    /// The smallest and the largest that it is, where axes have these extents.
    pub fn range(&self, extents: &[usize]) -> [i64; 2] {
        self.strides.iter().fold([self.base; 2], |[low, high], (&axis, &by)| {
            let end = by.saturating_mul(extents[axis] as i64 - 1);
            [low.saturating_add(end.min(0)), high.saturating_add(end.max(0))]
        })
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

/// Each term as such a sum, where it is one.
pub(super) fn affine(of: &Loop) -> Vec<Option<Affine>> {
    let mut all: Vec<Option<Affine>> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let found = term_as_sum(term, &all);
        all.push(found);
    }
    all
}

/// A term as such a sum, if it is one, by what the terms before it are.
pub(super) fn term_as_sum(term: &Term, before: &[Option<Affine>]) -> Option<Affine> {
    match &term.kind {
        _ if term.dtype != Dtype::I64 => None,
        TermKind::Axis(axis) => Some(Affine { base: 0, strides: BTreeMap::from([(*axis, 1)]) }),
        TermKind::Const(bits) => Some(Affine { base: *bits as i64, strides: BTreeMap::new() }),
        TermKind::Binary(op, [a, b]) => combined(*op, before[a.0].as_ref()?, before[b.0].as_ref()?),
        _ => None,
    }
}

/// Whether each term is read as a value; what only affine indices read is not.
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

fn combined(op: Binary, a: &Affine, b: &Affine) -> Option<Affine> {
    match op {
        Binary::Add => Some(a.clone().plus(b, 1)),
        Binary::Sub => Some(a.clone().plus(b, -1)),
        Binary::Mul if b.strides.is_empty() => Some(Affine::default().plus(a, b.base)),
        Binary::Mul if a.strides.is_empty() => Some(Affine::default().plus(b, a.base)),
        _ => None,
    }
}
