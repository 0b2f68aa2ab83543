//! Selections between two calls of one function become one call of a selection between the arguments, if the function
//! is expensive: then it is computed only once.

use std::collections::HashMap;

use crate::graph::{Binary, Unary};
use crate::loops::ir::{Loop, Term, TermId, TermKind};

/// The loop with selections moved into the innermost expensive functions, and no other selections changed.
pub(super) fn inside(of: &Loop) -> Loop {
    let mut new = Chooser::default();
    let mut ids: Vec<TermId> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let term = term.clone().with_reads(|read| ids[read.0]);
        ids.push(match term.kind {
            TermKind::Select(sides @ [_, a, b]) if new.shares([a, b]) => new.choose(sides),
            _ => new.term(term),
        });
    }
    Loop { terms: new.terms, result: ids[of.result.0], ..of.clone() }
}

/// The terms of the new loop, no two of them equal.
#[derive(Default)]
struct Chooser {
    terms: Vec<Term>,
    known: HashMap<Term, TermId>,
    chosen: HashMap<[TermId; 3], TermId>,
    shared: HashMap<[TermId; 2], bool>,
}

impl Chooser {
    fn term(&mut self, term: Term) -> TermId {
        let id = *self.known.entry(term.clone()).or_insert(TermId(self.terms.len()));
        if id.0 == self.terms.len() {
            self.terms.push(term);
        }
        id
    }

    /// The pairs of arguments of two terms that are the same function of floats; empty for other terms.
    fn sides(&self, [a, b]: [TermId; 2]) -> Vec<[TermId; 2]> {
        let [first, second] = [a, b].map(|id| &self.terms[id.0]);
        let of: Vec<[TermId; 2]> = match (&first.kind, &second.kind) {
            (TermKind::Cast(x), TermKind::Cast(y)) => vec![[*x, *y]],
            (TermKind::Unary(op, x), TermKind::Unary(other, y)) if op == other => vec![[*x, *y]],
            (TermKind::Binary(op, [x, z]), TermKind::Binary(other, [y, w])) if op == other => vec![[*x, *y], [*z, *w]],
            _ => Vec::new(),
        };
        let alike = |pair: &[TermId; 2]| {
            let [x, y] = pair.map(|id| self.terms[id.0].dtype);
            x == y && x.is_float()
        };
        let fits = first.dtype == second.dtype && first.dtype.is_float() && of.iter().all(alike);
        if fits { of } else { Vec::new() }
    }

    /// Whether both sides of a selection are calls of the same expensive function, or the same functions of such calls.
    fn shares(&mut self, [a, b]: [TermId; 2]) -> bool {
        if a == b {
            return false;
        }
        if let Some(&known) = self.shared.get(&[a, b]) {
            return known;
        }
        let is_dear = match &self.terms[a.0].kind {
            TermKind::Unary(op, _) => !matches!(op, Unary::Neg | Unary::Abs | Unary::Sign),
            TermKind::Binary(op, _) => matches!(op, Binary::Div | Binary::Pow | Binary::Rem | Binary::Mod),
            _ => false,
        };
        let sides = self.sides([a, b]);
        let shares = (is_dear && !sides.is_empty()) || sides.into_iter().any(|pair| self.shares(pair));
        self.shared.insert([a, b], shares);
        shares
    }

    /// A selection between two terms, moved into functions that both terms call: functions of one number, and functions
    /// of two numbers if one of them is the same or both terms share an expensive function. In other cases it would
    /// become two selections, and is not moved.
    fn choose(&mut self, [condition, a, b]: [TermId; 3]) -> TermId {
        if a == b {
            return a;
        }
        if let Some(&known) = self.chosen.get(&[condition, a, b]) {
            return known;
        }
        let mut sides = self.sides([a, b]);
        if sides.iter().filter(|[x, y]| x != y).count() > 1 && !self.shares([a, b]) {
            sides.clear();
        }
        let of: Vec<TermId> = sides.into_iter().map(|[x, y]| self.choose([condition, x, y])).collect();
        let Term { dtype, kind } = self.terms[a.0].clone();
        let kind = match (kind, &of[..]) {
            (TermKind::Cast(_), &[x]) => TermKind::Cast(x),
            (TermKind::Unary(op, _), &[x]) => TermKind::Unary(op, x),
            (TermKind::Binary(op, _), &[x, y]) => TermKind::Binary(op, [x, y]),
            _ => TermKind::Select([condition, a, b]),
        };
        let id = self.term(Term { dtype, kind });
        self.chosen.insert([condition, a, b], id);
        id
    }
}
