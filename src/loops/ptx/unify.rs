//! Joins axes over which reductions and the result run in the same way. Values that are read or computed along each of
//! these axes become one term.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::nest::{Nest, Reduction};
use crate::loops::ir::{Guard, Loop, Term, TermId, TermKind};

/// The axes of the result on which reductions depend, and the other axes, which number the elements of a row.
pub(super) fn rows(nest: &Nest) -> [Vec<usize>; 2] {
    let rows: BTreeSet<usize> = nest.reductions().flat_map(|of| nest.deps[of.id.0].iter().copied()).collect();
    let (rows, inner) = nest.result_axes().into_iter().partition(|axis| rows.contains(axis));
    [rows, inner]
}

/// The reductions that are not within another one.
pub(super) fn outermost(nest: &Nest) -> Vec<Reduction> {
    nest.reductions().filter(|of| nest.deps[of.id.0].iter().all(|&axis| axis < nest.of.rank)).collect()
}

/// The loop with one axis for all axes that have as many points as the elements of a row, or as the first reduction.
/// Its reductions may then run over axes of the result. If a reduction is within another one, the loop is unchanged.
pub(super) fn unified(of: &Loop) -> Loop {
    let nest = Nest::plain(of.clone());
    let (tops, [_, inner]) = (outermost(&nest), rows(&nest));
    let Some(first) = tops.first() else { return of.clone() };
    let along = if inner.is_empty() { first.axes.clone() } else { inner };
    let extents = |axes: &[usize]| -> Vec<usize> { axes.iter().map(|&axis| of.axes[axis]).collect() };
    let alike = tops.iter().filter(|of| extents(&of.axes) == extents(&along));
    let renamed: BTreeMap<usize, usize> =
        alike.flat_map(|of| of.axes.iter().copied().zip(along.iter().copied())).collect();
    let is_inside = |of: &Reduction| nest.deps[of.id.0].iter().any(|axis| renamed.contains_key(axis));
    if nest.reductions().any(|of| is_inside(&of)) { of.clone() } else { rename(of, &renamed) }
}

/// The loop with some axes replaced by others; equal terms are joined.
fn rename(of: &Loop, axes: &BTreeMap<usize, usize>) -> Loop {
    let axis = |axis: usize| axes.get(&axis).copied().unwrap_or(axis);
    let (mut ids, mut known): (Vec<TermId>, HashMap<Term, TermId>) = (Vec::new(), HashMap::new());
    let mut terms: Vec<Term> = Vec::new();
    for term in &of.terms {
        let id = |id: &TermId| ids[id.0];
        let kind = match &term.kind {
            TermKind::Axis(along) => TermKind::Axis(axis(*along)),
            TermKind::Const(bits) => TermKind::Const(*bits),
            TermKind::Load { operand, index, guard } => {
                let guard = guard.map(|of| Guard { condition: id(&of.condition), otherwise: id(&of.otherwise) });
                TermKind::Load { operand: *operand, index: id(index), guard }
            }
            TermKind::Cast(of) => TermKind::Cast(id(of)),
            TermKind::Unary(op, of) => TermKind::Unary(*op, id(of)),
            TermKind::Binary(op, of) => TermKind::Binary(*op, of.each_ref().map(id)),
            TermKind::Select(of) => TermKind::Select(of.each_ref().map(id)),
            TermKind::Reduce { op, axes, body } => TermKind::Reduce {
                op: *op,
                axes: axes.iter().map(|&along| axis(along)).collect(),
                body: body.iter().map(id).collect(),
            },
        };
        let term = Term { dtype: term.dtype, kind };
        let new = *known.entry(term.clone()).or_insert(TermId(terms.len()));
        if new.0 == terms.len() {
            terms.push(term);
        }
        ids.push(new);
    }
    Loop { terms, result: ids[of.result.0], ..of.clone() }
}
