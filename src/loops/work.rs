//! The cost of a loop: the number of times that each term is computed, and the bytes that are moved.

use std::collections::BTreeSet;

use super::affine::{affine, needed};
use super::ir::{Loop, TermId, TermKind};
use super::lower::{Lowered, lower};
use crate::graph::{Binary, Op, Recurrent, Unary, ValueType};

/// The number of operations that an expensive function counts as.
const DEAR: f64 = 16.0;

/// The number of operations that the nodes of a step of a recurrent layer count as, whatever they compute.
const STEP: f64 = 65_536.0;

/// The number of times that a loop computes each term.
pub(super) struct Work<'l> {
    of: &'l Loop,
    /// The axes that each term depends on, without those over which it reduces.
    deps: Vec<BTreeSet<usize>>,
    needed: Vec<bool>,
    /// The number of points at which each term is computed.
    times: Vec<f64>,
    rows: BTreeSet<usize>,
}

/// The number of operations that an operation of a graph takes on the CPU.
pub(crate) fn operations(op: &Op, inputs: &[Option<&ValueType>], outputs: &[ValueType]) -> f64 {
    match lower(op, inputs, outputs) {
        Lowered::Loops(loops) => loops.iter().map(|of| Work::of(of).ops()).sum(),
        Lowered::ByHand => {
            if let (Op::Recurrent(of), Some(&Some(x)), Some(&Some(weights))) = (op, inputs.first(), inputs.get(1)) {
                return of_recurrent(of, x, weights);
            }
            let elems: usize = inputs.iter().flatten().copied().chain(outputs).map(ValueType::elems).sum();
            DEAR * elems as f64
        }
    }
}

/// The number of operations of a recurrent layer: the products of each step with the state, and what is written and
/// planned for a step.
fn of_recurrent(of: &Recurrent, x: &ValueType, weights: &ValueType) -> f64 {
    let sequences: f64 = x.dims[..2].iter().map(|&dim| dim as f64).product();
    let steps = (x.dims[0] * of.backwards.len()) as f64;
    2.0 * sequences * weights.elems() as f64 + DEAR * x.elems() as f64 + STEP * steps
}

impl<'l> Work<'l> {
    pub fn of(of: &'l Loop) -> Self {
        let (deps, needed) = (of.dependencies(), needed(of, &affine(of)));
        let rows = rows(of, &deps, &needed);
        let mut work = Self { of, deps, needed, times: vec![0.0; of.terms.len()], rows };
        let mut owners = vec![0; of.axes.len()];
        for (id, term) in of.terms.iter().enumerate() {
            if let TermKind::Reduce { axes, .. } = &term.kind {
                axes.iter().for_each(|&axis| owners[axis] = id);
            }
        }
        for id in (0..of.terms.len()).rev() {
            work.times[id] = work.points(id, &owners);
        }
        work
    }

    /// The number of points at which a term is computed; `owners` has the reduction to which each axis belongs.
    fn points(&self, id: usize, owners: &[usize]) -> f64 {
        let inner = self.deps[id].range(self.of.rank..).map(|&axis| self.runs(owners[axis]));
        inner.reduce(f64::max).unwrap_or_else(|| match &self.deps[id] {
            axes if axes.is_empty() => 1.0,
            axes if axes.is_subset(&self.rows) => self.extent(&self.rows),
            _ => self.of.axes[..self.of.rank].iter().map(|&extent| extent as f64).product(),
        })
    }

    /// The number of times that the body of a reduction is computed.
    fn runs(&self, reduction: usize) -> f64 {
        match &self.of.terms[reduction].kind {
            TermKind::Reduce { axes, .. } => self.times[reduction] * self.extent(axes),
            _ => 0.0,
        }
    }

    fn extent<'a>(&self, axes: impl IntoIterator<Item = &'a usize>) -> f64 {
        axes.into_iter().map(|&axis| self.of.axes[axis] as f64).product()
    }

    fn terms(&self) -> impl Iterator<Item = usize> {
        (0..self.of.terms.len()).filter(|&id| self.needed[id])
    }

    /// The operations of reductions. To compute a reduction again never saves time.
    pub fn reductions(&self) -> f64 {
        self.terms().map(|id| self.runs(id)).sum()
    }

    /// The operations of expensive functions.
    pub fn functions(&self) -> f64 {
        self.functions_where(|_| true)
    }

    /// The operations of expensive functions within reductions.
    pub fn reduced_functions(&self) -> f64 {
        self.functions_where(|id| self.deps[id].range(self.of.rank..).next().is_some())
    }

    fn functions_where(&self, counts: impl Fn(usize) -> bool) -> f64 {
        let dear = self.terms().filter(|&id| is_dear(&self.of.terms[id].kind) && counts(id));
        dear.map(|id| DEAR * self.times[id]).sum()
    }

    /// The operations of reductions and expensive functions.
    pub fn dear(&self) -> f64 {
        self.reductions() + self.functions()
    }

    /// The number of all operations.
    pub fn ops(&self) -> f64 {
        let cheap = |id: usize| match self.of.terms[id].kind {
            TermKind::Axis(_) | TermKind::Const(_) | TermKind::Reduce { .. } => 0.0,
            ref kind if is_dear(kind) => 0.0,
            _ => self.times[id],
        };
        self.dear() + self.terms().map(cheap).sum::<f64>()
    }

    /// The bytes that are read and written. Bytes that are read several times count once.
    pub fn bytes(&self) -> f64 {
        let mut reads = vec![0.0; self.of.operands.len()];
        for (operand, id) in self.loads() {
            let TermKind::Load { index, .. } = self.of.terms[id].kind else { continue };
            reads[operand] += self.extent(&self.deps[index.0]);
        }
        let read = |(of, reads): (&ValueType, &f64)| reads.min(of.elems() as f64) * of.dtype.bytes() as f64;
        let written = self.of.elems() * self.of.dtype().bytes();
        written as f64 + self.of.operands.iter().zip(&reads).map(read).sum::<f64>()
    }

    /// For each operand, the number of elements that are read, each counted as often as it is read.
    pub fn reads(&self) -> Vec<f64> {
        let mut reads = vec![0.0; self.of.operands.len()];
        self.loads().for_each(|(operand, id)| reads[operand] += self.times[id]);
        reads
    }

    fn loads(&self) -> impl Iterator<Item = (usize, usize)> {
        self.terms().filter_map(|id| match self.of.terms[id].kind {
            TermKind::Load { operand, .. } => Some((operand, id)),
            _ => None,
        })
    }

    /// Whether a reduction reads elements of an operand more than once.
    pub fn reuses(&self, operand: usize) -> bool {
        let elems = self.of.operands[operand].elems() as f64;
        let within = |id: usize| self.deps[id].range(self.of.rank..).next().is_some();
        self.loads().any(|(of, id)| of == operand && within(id) && self.times[id] > elems)
    }

    /// Whether a reduction runs within another one.
    pub fn nests(&self) -> bool {
        let reduces = |id: usize| matches!(self.of.terms[id].kind, TermKind::Reduce { .. });
        self.terms().any(|id| reduces(id) && self.deps[id].range(self.of.rank..).next().is_some())
    }

    /// Whether reductions depend only on the outer axes of the result, or on all of them.
    pub fn reduces_rows(&self) -> bool {
        let axes = (0..self.of.rank).filter(|&axis| self.of.axes[axis] != 1);
        axes.map(|axis| self.rows.contains(&axis)).is_sorted_by(|outer, inner| outer >= inner)
    }
}

impl Loop {
    /// The number of arithmetic operations of the loop, if values that a row shares are computed once. A function such
    /// as an exponential counts as 16.
    pub(crate) fn operations(&self) -> u64 {
        Work::of(self).ops() as u64
    }
}

/// The axes of the result that run outside of the others, so that terms that depend only on them are not computed
/// again: the axes that a reduction depends on, and all axes up to the last one that an expensive function depends on.
pub(super) fn rows(of: &Loop, deps: &[BTreeSet<usize>], needed: &[bool]) -> BTreeSet<usize> {
    let mut rows = BTreeSet::new();
    let last = (0..of.rank).rfind(|&axis| of.axes[axis] != 1);
    for (id, term) in of.terms.iter().enumerate().filter(|(id, _)| needed[*id]) {
        let innermost = deps[id].iter().next_back().copied();
        match &term.kind {
            TermKind::Reduce { .. } => rows.extend(deps[id].range(..of.rank)),
            kind if is_dear(kind) && innermost < last => rows.extend(0..innermost.map_or(0, |axis| axis + 1)),
            _ => {}
        }
    }
    rows.retain(|&axis| of.axes[axis] != 1);
    rows
}

/// Whether a loop only copies elements of an operand, in any order.
pub(super) fn only_moves(of: &Loop) -> bool {
    let TermKind::Load { index, guard: None, .. } = of.term(of.result).kind else { return false };
    affine(of)[index.0].is_some()
}

/// The operand whose elements a loop copies in their own order; `None` if the loop does anything else.
pub(super) fn same_as(of: &Loop) -> Option<usize> {
    let TermKind::Load { operand, index: TermId(index), guard: None } = of.term(of.result).kind else { return None };
    let sum = affine(of)[index].clone()?;
    let stride = |axis: usize| of.axes[axis + 1..of.rank].iter().product::<usize>() as i64;
    let in_order = (0..of.rank).all(|axis| of.axes[axis] == 1 || sum.stride(axis) == stride(axis));
    (sum.base == 0 && in_order && of.operands[operand].elems() == of.elems()).then_some(operand)
}

fn is_dear(kind: &TermKind) -> bool {
    use Unary::{Abs, Ceil, Floor, IsInf, IsNan, Neg, Not, OfE4m3, Round, Sign, ToE4m3};
    match kind {
        TermKind::Unary(op, _) => {
            !matches!(op, Neg | Abs | Sign | Floor | Ceil | Round | Not | IsNan | IsInf | ToE4m3 | OfE4m3)
        }
        TermKind::Binary(op, _) => matches!(op, Binary::Pow | Binary::Div | Binary::Rem | Binary::Mod),
        _ => false,
    }
}
