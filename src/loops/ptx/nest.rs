//! A loop in the form in which it is written as PTX: axes collapsed, and for each term what it reads and depends on.

use std::collections::BTreeSet;

use super::sum::{Range, Sum, ranges, sums};
use crate::graph::{Binary, Unary};
use crate::loops::ir::{Loop, Monoid, Term, TermId, TermKind};
use crate::tensor::Dtype;

/// A prepared loop. Axes of one point no longer count as axes.
#[derive(Debug)]
pub(super) struct Nest {
    pub of: Loop,
    /// The number of points along each axis; 1 for an axis that became part of the next one.
    pub extents: Vec<usize>,
    /// Each term of type i64 as a sum.
    pub sums: Vec<Option<Sum>>,
    /// The axes that each term depends on, without those over which it reduces.
    pub deps: Vec<BTreeSet<usize>>,
    ranges: Vec<Range>,
    needed: Vec<bool>,
    rounded: Vec<bool>,
}

impl Nest {
    pub fn new(of: Loop) -> Self {
        Self::of(of, true)
    }

    /// The nest of a loop without collapsed axes.
    pub fn plain(of: Loop) -> Self {
        Self::of(of, false)
    }

    fn of(of: Loop, collapses: bool) -> Self {
        let (extents, sums) = (of.axes.clone(), sums(&of));
        let (rounded, needed) = (rounded(&of), vec![false; of.terms.len()]);
        let mut nest = Self { extents, sums, deps: Vec::new(), ranges: Vec::new(), needed, rounded, of };
        nest.find_needed();
        if collapses {
            nest.collapse();
        }
        nest.ranges = ranges(&nest.of, &nest.extents, &nest.sums);
        nest.find_deps();
        nest
    }

    pub fn term(&self, id: TermId) -> &Term {
        &self.of.terms[id.0]
    }

    /// The terms that are computed.
    pub fn needed(&self) -> impl Iterator<Item = TermId> {
        (0..self.of.terms.len()).filter(|&id| self.needed[id]).map(TermId)
    }

    /// The sum that computes a term from other terms and axes; `None` if the term is no sum of others.
    pub fn linear(&self, id: TermId) -> Option<&Sum> {
        self.sums[id.0].as_ref().filter(|sum| !sum.terms.contains_key(&id))
    }

    /// The sum that an index is.
    pub fn index(&self, id: TermId) -> &Sum {
        self.sums[id.0].as_ref().expect("an index is of type i64")
    }

    /// The type in which a term is computed: i32 for an i64 whose values fit, else its own.
    pub fn machine(&self, id: TermId) -> Dtype {
        let fits = |[low, high]: Range| low >= i128::from(i32::MIN) && high <= i128::from(i32::MAX);
        match self.term(id).dtype {
            Dtype::I64 if fits(self.ranges[id.0]) => Dtype::I32,
            dtype => dtype,
        }
    }

    /// Whether an integer is never negative.
    pub fn is_positive(&self, id: TermId) -> bool {
        self.ranges[id.0][0] >= 0
    }

    /// Whether a number depends on one that is only rounded to a few units in the last place.
    pub fn is_rounded(&self, id: TermId) -> bool {
        self.rounded[id.0]
    }

    /// Whether a sum of f32 is at least 1 or NaN because one side is a constant of at least 1 and the other an
    /// exponential.
    pub fn is_from_one(&self, id: TermId) -> bool {
        let TermKind::Binary(Binary::Add, sides) = self.term(id).kind else { return false };
        let from_one = |id: TermId| match self.term(id).kind {
            TermKind::Const(bits) => f32::from_bits(bits as u32) >= 1.0,
            _ => false,
        };
        let exponential = |id: TermId| matches!(self.term(id).kind, TermKind::Unary(Unary::Exp, _));
        let [a, b] = sides;
        self.term(id).dtype == Dtype::F32 && ((from_one(a) && exponential(b)) || (from_one(b) && exponential(a)))
    }

    /// The value of an integer constant; `None` for any other term.
    pub fn constant(&self, id: TermId) -> Option<i64> {
        match self.term(id).kind {
            TermKind::Const(bits) => Some(match self.term(id).dtype {
                Dtype::I8 => i64::from(bits as i8),
                Dtype::I16 => i64::from(bits as i16),
                Dtype::I32 => i64::from(bits as i32),
                _ => bits as i64,
            }),
            _ => None,
        }
    }

    /// The terms that the code of a term reads.
    pub fn reads(&self, id: TermId) -> Vec<TermId> {
        if let Some(sum) = self.linear(id) {
            return sum.terms.keys().copied().collect();
        }
        match &self.term(id).kind {
            TermKind::Load { index, guard, .. } => {
                let guard = guard.iter().flat_map(|guard| [guard.condition, guard.otherwise]);
                self.index(*index).terms.keys().copied().chain(guard).collect()
            }
            _ => self.term(id).reads(),
        }
    }

    /// The sums by which terms depend on axes: indices of loads, and terms that are sums.
    fn used(&self) -> impl Iterator<Item = &Sum> {
        self.needed().filter_map(|id| match &self.term(id).kind {
            TermKind::Load { index, .. } if self.linear(id).is_none() => Some(self.index(*index)),
            _ => self.linear(id),
        })
    }

    /// The axes with more than one point in the sum of a term or in the index of a load.
    fn axes_of(&self, id: TermId) -> BTreeSet<usize> {
        match (&self.term(id).kind, self.linear(id)) {
            (_, Some(sum)) => sum.axes.keys().copied().collect(),
            (TermKind::Load { index, .. }, None) => self.index(*index).axes.keys().copied().collect(),
            _ => BTreeSet::new(),
        }
    }

    /// The axes of the result that have more than one point.
    pub fn result_axes(&self) -> Vec<usize> {
        (0..self.of.rank).filter(|&axis| self.extents[axis] != 1).collect()
    }

    /// The reduction that a term is, with its axes of more than one point; `None` for any other term.
    pub fn reduction(&self, id: TermId) -> Option<Reduction> {
        match &self.term(id).kind {
            TermKind::Reduce { op, axes, body } => {
                let axes: Vec<usize> = axes.iter().copied().filter(|&axis| self.extents[axis] != 1).collect();
                let points = axes.iter().map(|&axis| self.extents[axis]).product();
                Some(Reduction { id, op: *op, axes, body: body.clone(), points })
            }
            _ => None,
        }
    }

    /// The reductions that are computed.
    pub fn reductions(&self) -> impl Iterator<Item = Reduction> {
        self.needed().filter_map(|id| self.reduction(id))
    }

    fn find_needed(&mut self) {
        let mut left = vec![self.of.result];
        while let Some(id) = left.pop() {
            if !std::mem::replace(&mut self.needed[id.0], true) {
                left.extend(self.reads(id));
            }
        }
    }

    /// Joins neighbouring axes if all sums that depend on them have one stride over both.
    fn collapse(&mut self) {
        let mut runs: Vec<Vec<usize>> = vec![(0..self.of.rank).collect()];
        runs.extend(self.needed().filter_map(|id| match &self.term(id).kind {
            TermKind::Reduce { axes, .. } => Some(axes.clone()),
            _ => None,
        }));
        for run in runs {
            let mut axes: Vec<usize> = run.into_iter().filter(|&axis| self.extents[axis] != 1).collect();
            while let [.., outer, inner] = axes[..] {
                let extent = self.extents[inner] as i64;
                let alike = |sum: &Sum| sum.stride(outer) == sum.stride(inner).wrapping_mul(extent);
                axes.pop();
                let together = self.reductions().all(|of| of.axes.contains(&outer) == of.axes.contains(&inner));
                if self.extents[outer] > 0 && extent > 0 && together && self.used().all(alike) {
                    self.extents[inner] *= self.extents[outer];
                    self.extents[outer] = 1;
                    self.sums.iter_mut().flatten().for_each(|sum| sum.axes.retain(|&axis, _| axis != outer));
                    axes.pop();
                    axes.push(inner);
                }
            }
        }
    }

    fn find_deps(&mut self) {
        let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(self.of.terms.len());
        for id in (0..self.of.terms.len()).map(TermId) {
            let mut axes = self.axes_of(id);
            axes.extend(self.reads(id).iter().flat_map(|read| all[read.0].iter().copied()));
            if let TermKind::Reduce { axes: reduced, .. } = &self.term(id).kind {
                axes.retain(|axis| !reduced.contains(axis));
            }
            all.push(axes);
        }
        self.deps = all;
    }
}

/// For each term, whether it is computed from transcendental functions or powers of floats. Terms that only select or
/// find values by comparing such numbers do not count.
fn rounded(of: &Loop) -> Vec<bool> {
    use Unary::{Abs, Ceil, Floor, IsInf, IsNan, Neg, Not, OfE4m3, Round, Sign, Sqrt, ToE4m3};
    let mut all: Vec<bool> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let itself = match &term.kind {
            TermKind::Unary(op, _) => {
                let is_exact = matches!(
                    op,
                    Abs | Ceil | Floor | IsInf | IsNan | Neg | Not | OfE4m3 | Round | Sign | Sqrt | ToE4m3
                );
                !is_exact
            }
            TermKind::Binary(op, _) => *op == Binary::Pow && term.dtype.is_float(),
            _ => false,
        };
        let is_number = term.dtype != Dtype::Bool;
        all.push(is_number && (itself || values(&term.kind).iter().any(|value| all[value.0])));
    }
    all
}

/// The terms from which a term's value is computed or to which it is equal, without conditions and indices of loads.
fn values(kind: &TermKind) -> Vec<TermId> {
    match kind {
        TermKind::Axis(_) | TermKind::Const(_) | TermKind::Load { guard: None, .. } => Vec::new(),
        TermKind::Load { guard: Some(guard), .. } => vec![guard.otherwise],
        TermKind::Cast(of) | TermKind::Unary(_, of) => vec![*of],
        TermKind::Binary(_, of) => of.to_vec(),
        TermKind::Select([_, a, b]) => vec![*a, *b],
        TermKind::Reduce { op: Monoid::Arg { .. }, body, .. } => body[1..].to_vec(),
        TermKind::Reduce { body, .. } => body.clone(),
    }
}

/// A reduction in a nest.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub id: TermId,
    pub op: Monoid,
    pub axes: Vec<usize>,
    pub body: Vec<TermId>,
    /// The number of points over which it runs.
    pub points: usize,
}
