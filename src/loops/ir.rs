//! The representation of a loop: axes, terms, and the one value that the loop writes.

use std::collections::BTreeSet;

use crate::graph::{Binary, Unary, ValueType};
use crate::tensor::Dtype;

/// Index of a term in [`Loop::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(pub usize);

/// A loop writes one dense value: an element for each point of its first `rank` axes, the last of them innermost.
///
/// Its terms are in topological order and no two are equal. Arithmetic is on bools, integers, f32 and f64; values of
/// f16 and bf16 are only loaded, converted, selected and written.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// The types of the operands.
    pub operands: Vec<ValueType>,
    /// Points along each axis: first the axes of the result, then those that its reductions run over, each of which
    /// belongs to one reduction.
    pub axes: Vec<usize>,
    /// The number of axes of the result. The value that is written has as many elements in the same order, and perhaps
    /// other axes.
    pub rank: usize,
    /// All terms that are computed.
    pub terms: Vec<Term>,
    /// The term that is written.
    pub result: TermId,
}

/// A scalar that is computed at each point.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// The type of the scalar.
    pub dtype: Dtype,
    /// The way in which it is computed.
    pub kind: TermKind,
}

/// The way in which a term is computed. Functions have the meaning that they have in an [`Expr`](crate::graph::Expr).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TermKind {
    /// The index along this axis: i64.
    Axis(usize),
    /// A constant with these bits, the lowest first; bits that its type does not have are 0.
    Const(u64),
    /// An element of an operand.
    Load {
        /// The operand.
        operand: usize,
        /// The row-major index of the element: i64.
        index: TermId,
        /// The condition under which the element is read.
        guard: Option<Guard>,
    },
    /// The number of another term, converted to this term's type.
    Cast(TermId),
    /// A function of one number.
    Unary(Unary, TermId),
    /// A function of two numbers.
    Binary(Binary, [TermId; 2]),
    /// The second term if the first is true, else the third. Both are computed.
    Select([TermId; 3]),
    /// The values of a body at all points of some axes, combined to one.
    Reduce {
        /// The monoid that combines them.
        op: Monoid,
        /// The axes, the last running fastest.
        axes: Vec<usize>,
        /// The terms that are combined; for [`Monoid::Arg`] the value and the index (i64).
        body: Vec<TermId>,
    },
}

/// A condition on a load. If it is false, the load does not compute the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// Whether the load reads at this point.
    pub condition: TermId,
    /// The value of the load at other points.
    pub otherwise: TermId,
}

/// How a reduction combines values. The order of sums and products is unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Monoid {
    /// The sum; 0 without values. Integers wrap around.
    Sum,
    /// The product; 1 without values.
    Prod,
    /// The smallest value, or NaN if one is NaN; without values the type's largest number.
    Min,
    /// The largest value, or NaN if one is NaN; without values the type's smallest number.
    Max,
    /// The index that belongs to the largest or smallest value; 0 without values. NaN counts as larger, or smaller,
    /// than any number.
    Arg {
        /// Whether the largest value is searched, or the smallest.
        largest: bool,
        /// Whether the last of equal values is taken, or the first.
        last: bool,
    },
}

impl Loop {
    /// The number of elements of the result.
    pub fn elems(&self) -> usize {
        self.axes[..self.rank].iter().product()
    }

    /// The type of the result.
    pub fn dtype(&self) -> Dtype {
        self.term(self.result).dtype
    }

    /// The axes that each term depends on, without those over which it reduces.
    pub(super) fn dependencies(&self) -> Vec<BTreeSet<usize>> {
        let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(self.terms.len());
        for term in &self.terms {
            let mut axes: BTreeSet<usize> = term.reads().iter().flat_map(|read| all[read.0].iter().copied()).collect();
            match &term.kind {
                TermKind::Axis(axis) => drop(axes.insert(*axis)),
                TermKind::Reduce { axes: reduced, .. } => axes.retain(|axis| !reduced.contains(axis)),
                _ => {}
            }
            all.push(axes);
        }
        all
    }

    pub(super) fn term(&self, id: TermId) -> &Term {
        &self.terms[id.0]
    }
}

impl Term {
    /// The terms that this term reads.
    ///
    /// ```
    /// use trefoil::{Dtype, loops::LoopBuilder, graph::Unary};
    /// let mut b = LoopBuilder::new(&[], &[4]);
    /// let i = b.axis(0);
    /// let x = b.cast(Dtype::F32, i);
    /// let root = b.unary(Unary::Sqrt, x);
    /// let of = b.finish(root);
    /// assert_eq!(of.terms[root.0].reads(), [x]);
    /// ```
    pub fn reads(&self) -> Vec<TermId> {
        match &self.kind {
            TermKind::Axis(_) | TermKind::Const(_) => Vec::new(),
            TermKind::Load { index, guard: None, .. } => vec![*index],
            TermKind::Load { index, guard: Some(guard), .. } => vec![*index, guard.condition, guard.otherwise],
            TermKind::Cast(of) | TermKind::Unary(_, of) => vec![*of],
            TermKind::Binary(_, of) => of.to_vec(),
            TermKind::Select(of) => of.to_vec(),
            TermKind::Reduce { body, .. } => body.clone(),
        }
    }

    /// The term with other terms in place of those that it reads.
    pub(super) fn with_reads(self, new: impl Fn(TermId) -> TermId) -> Self {
        let kind = match self.kind {
            kind @ (TermKind::Axis(_) | TermKind::Const(_)) => kind,
            TermKind::Load { operand, index, guard } => {
                let guarded = |of: Guard| Guard { condition: new(of.condition), otherwise: new(of.otherwise) };
                TermKind::Load { operand, index: new(index), guard: guard.map(guarded) }
            }
            TermKind::Cast(of) => TermKind::Cast(new(of)),
            TermKind::Unary(op, of) => TermKind::Unary(op, new(of)),
            TermKind::Binary(op, of) => TermKind::Binary(op, of.map(&new)),
            TermKind::Select(of) => TermKind::Select(of.map(&new)),
            TermKind::Reduce { op, axes, body } => {
                TermKind::Reduce { op, axes, body: body.into_iter().map(&new).collect() }
            }
        };
        Self { kind, ..self }
    }
}
