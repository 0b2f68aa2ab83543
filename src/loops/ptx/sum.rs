//! Indices as sums of multiples of axes and of other terms, and the ranges of their values.

use std::collections::BTreeMap;

use crate::graph::{Binary, Unary};
use crate::loops::ir::{Loop, Monoid, Term, TermId, TermKind};
use crate::tensor::Dtype;

/// A sum: `base` plus stride x index for each axis plus stride x value for each term.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub base: i64,
    pub axes: BTreeMap<usize, i64>,
    pub terms: BTreeMap<TermId, i64>,
}

impl Sum {
    pub fn number(base: i64) -> Self {
        Self { base, ..Self::default() }
    }

    /// The index of a point in a dense value with these axes and extents.
    pub fn dense(axes: &[usize], extents: &[usize]) -> Self {
        let mut sum = Self::default();
        let mut stride = 1;
        for &axis in axes.iter().rev() {
            if extents[axis] != 1 {
                sum.axes.insert(axis, stride);
            }
            stride *= extents[axis] as i64;
        }
        sum
    }

    pub fn stride(&self, axis: usize) -> i64 {
        self.axes.get(&axis).copied().unwrap_or(0)
    }

    fn plus(mut self, other: &Self, times: i64) -> Self {
        fn add<K: Ord + Copy>(to: &mut BTreeMap<K, i64>, from: &BTreeMap<K, i64>, times: i64) {
            for (&key, stride) in from {
                let sum = to.entry(key).or_insert(0);
                *sum = sum.wrapping_add(stride.wrapping_mul(times));
            }
            to.retain(|_, stride| *stride != 0);
        }
        self.base = self.base.wrapping_add(other.base.wrapping_mul(times));
        add(&mut self.axes, &other.axes, times);
        add(&mut self.terms, &other.terms, times);
        self
    }

    fn constant(&self) -> Option<i64> {
        (self.axes.is_empty() && self.terms.is_empty()).then_some(self.base)
    }

    /// The smallest and the largest value of the sum.
    pub fn range(&self, extents: &[usize], terms: &[Range]) -> Range {
        let scaled = |[low, high]: Range, by: i64| {
            let ends = [low, high].map(|end| end.saturating_mul(i128::from(by)));
            [ends[0].min(ends[1]), ends[0].max(ends[1])]
        };
        let of_axes = self.axes.iter().map(|(&axis, &by)| scaled([0, extents[axis] as i128 - 1], by));
        let of_terms = self.terms.iter().map(|(id, &by)| scaled(terms[id.0], by));
        let base = i128::from(self.base);
        let sum = of_axes.chain(of_terms).fold([base; 2], |[a, b], [c, d]| [a.saturating_add(c), b.saturating_add(d)]);
        if sum[0] < ALL[0] || sum[1] > ALL[1] { ALL } else { sum }
    }
}

/// Each term of type i64 as a sum. A term that is no sum of others is the sum of itself alone.
pub(super) fn sums(of: &Loop) -> Vec<Option<Sum>> {
    let mut all: Vec<Option<Sum>> = Vec::with_capacity(of.terms.len());
    for (id, term) in of.terms.iter().enumerate() {
        let found = (term.dtype == Dtype::I64).then(|| {
            let itself = || Sum { terms: BTreeMap::from([(TermId(id), 1)]), ..Sum::default() };
            match &term.kind {
                TermKind::Axis(axis) if of.axes[*axis] == 1 => Sum::default(),
                TermKind::Axis(axis) => Sum { axes: BTreeMap::from([(*axis, 1)]), ..Sum::default() },
                TermKind::Const(bits) => Sum::number(*bits as i64),
                TermKind::Binary(op, [a, b]) => match (&all[a.0], &all[b.0]) {
                    (Some(a), Some(b)) => combined(*op, a, b).unwrap_or_else(itself),
                    _ => itself(),
                },
                _ => itself(),
            }
        });
        all.push(found);
    }
    all
}

fn combined(op: Binary, a: &Sum, b: &Sum) -> Option<Sum> {
    match op {
        Binary::Add => Some(a.clone().plus(b, 1)),
        Binary::Sub => Some(a.clone().plus(b, -1)),
        Binary::Mul => match (a.constant(), b.constant()) {
            (_, Some(by)) => Some(Sum::default().plus(a, by)),
            (Some(by), None) => Some(Sum::default().plus(b, by)),
            _ => None,
        },
        _ => None,
    }
}

/// The smallest and the largest value of an integer.
pub(super) type Range = [i128; 2];

const ALL: Range = [i64::MIN as i128, i64::MAX as i128];

/// The range of each term of type i64. It is the whole range of the type if nothing else is known, and for other types.
pub(super) fn ranges(of: &Loop, extents: &[usize], sums: &[Option<Sum>]) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::with_capacity(of.terms.len());
    for (id, term) in of.terms.iter().enumerate() {
        let range = match &sums[id] {
            Some(sum) if !sum.terms.contains_key(&TermId(id)) => sum.range(extents, &all),
            Some(_) => range(of, extents, term, &all).unwrap_or(ALL),
            None => ALL,
        };
        all.push(range);
    }
    all
}

fn range(of: &Loop, extents: &[usize], term: &Term, all: &[Range]) -> Option<Range> {
    let at = |id: TermId| all[id.0];
    match &term.kind {
        TermKind::Cast(from) => of_type(of.term(*from).dtype),
        TermKind::Unary(Unary::Abs, x) => {
            let [low, high] = at(*x);
            (low > ALL[0]).then(|| [low.max(-high).max(0), high.max(-low)])
        }
        TermKind::Binary(op, [a, b]) => {
            let ([a, b], [c, d]) = (at(*a), at(*b));
            match op {
                Binary::Min => Some([a.min(c), b.min(d)]),
                Binary::Max => Some([a.max(c), b.max(d)]),
                Binary::Div if c == d && c > 0 => Some([a / c, b / c]),
                Binary::Mod if c == d && c > 0 => Some([0, c - 1]),
                Binary::Rem if c == d && c > 0 => Some([a.clamp(1 - c, 0), b.clamp(0, c - 1)]),
                _ => None,
            }
        }
        TermKind::Select([_, a, b]) => {
            let ([a, b], [c, d]) = (at(*a), at(*b));
            Some([a.min(c), b.max(d)])
        }
        TermKind::Reduce { op: Monoid::Min | Monoid::Max, axes, body } => {
            axes.iter().all(|&axis| extents[axis] > 0).then(|| at(body[0]))
        }
        _ => None,
    }
}

/// The range of a type of at most 32 bits; `None` for other types.
fn of_type(dtype: Dtype) -> Option<Range> {
    match dtype {
        Dtype::Bool => Some([0, 1]),
        _ if dtype.is_float() || dtype.bytes() > 4 => None,
        _ if dtype.is_signed() => Some([-1 << (8 * dtype.bytes() - 1), (1 << (8 * dtype.bytes() - 1)) - 1]),
        _ => Some([0, (1 << (8 * dtype.bytes())) - 1]),
    }
}
