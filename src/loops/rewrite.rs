//! Loops that are made of parts of other loops.

use std::collections::HashMap;

use super::affine::{affine, needed, sums_read};
use super::build::LoopBuilder;
use super::ir::{Guard, Loop, Term, TermId, TermKind};
use crate::graph::{Binary, ValueType};
use crate::tensor::Dtype;

/// Copies terms of a loop into another one.
pub(super) struct Copier<'l> {
    of: &'l Loop,
    /// The term that replaces each axis.
    axes: HashMap<usize, TermId>,
    /// The terms that replace terms, including copies.
    known: HashMap<TermId, TermId>,
    /// The number of each operand in the other loop.
    operands: Vec<usize>,
    /// The operand whose loads are replaced by the terms of another loop, that loop, and the numbers of its operands.
    inlined: Option<(usize, &'l Loop, Vec<usize>)>,
    /// The extents of the new axes that replace an axis, for axes that are replaced.
    parts: HashMap<usize, Vec<usize>>,
    /// The condition under which loads may read; `None` if they always may.
    only: Option<TermId>,
    /// The conditions that hold at all points, or at none.
    decided: HashMap<TermId, bool>,
}

impl<'l> Copier<'l> {
    /// A copier of the terms of `of`. `axes` gives the term that replaces each axis, and `operands` the number of each
    /// operand.
    pub fn new(of: &'l Loop, axes: impl IntoIterator<Item = (usize, TermId)>, operands: Vec<usize>) -> Self {
        let axes = axes.into_iter().collect();
        let (known, parts, decided) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { of, axes, known, operands, inlined: None, parts, only: None, decided }
    }

    /// Replaces loads of an operand by the terms of the loop `producer`, whose operands get the numbers `operands`.
    pub fn inline(mut self, operand: usize, producer: &'l Loop, operands: Vec<usize>) -> Self {
        self.inlined = Some((operand, producer, operands));
        self
    }

    /// Leaves out what is not read where these conditions hold at all points, or at none.
    pub fn decide(mut self, decided: HashMap<TermId, bool>) -> Self {
        self.decided = decided;
        // Each term once, and those that it reads before: a condition may be a part of many others.
        for (id, term) in self.of.terms.iter().enumerate() {
            let TermKind::Binary(Binary::And, of) = term.kind else { continue };
            let holds = match of.map(|of| self.holds(of)) {
                [Some(false), _] | [_, Some(false)] => Some(false),
                [Some(true), other] | [other, Some(true)] => other,
                [None, None] => None,
            };
            self.decided.extend(holds.map(|holds| (TermId(id), holds)));
        }
        self
    }

    /// Replaces a term by another one.
    pub fn replace(&mut self, term: TermId, by: TermId) {
        self.known.insert(term, by);
    }

    /// The copy of a term in the other loop.
    pub fn term(&mut self, b: &mut LoopBuilder, id: TermId) -> TermId {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let Term { dtype, kind } = self.of.term(id);
        let copied = match kind {
            TermKind::Axis(axis) => self.axes[axis],
            TermKind::Const(_) => b.term(*dtype, kind.clone()),
            TermKind::Load { operand, index, guard } => match guard.map(|guard| (guard, self.holds(guard.condition))) {
                Some((guard, Some(false))) => self.term(b, guard.otherwise),
                guard => {
                    let guard = guard.filter(|(_, holds)| holds.is_none()).map(|(guard, _)| guard);
                    let index = self.term(b, *index);
                    let otherwise = guard.map(|guard| self.term(b, guard.otherwise));
                    let condition = guard.map(|guard| self.condition(b, guard.condition));
                    let condition = b.all([self.only, condition]);
                    self.load(b, *operand, index, condition, otherwise)
                }
            },
            TermKind::Cast(of) => {
                let of = self.term(b, *of);
                b.cast(*dtype, of)
            }
            TermKind::Unary(op, of) => {
                let of = self.term(b, *of);
                b.unary(*op, of)
            }
            TermKind::Binary(op, of) => {
                let [x, y] = of.map(|of| self.term(b, of));
                b.binary(*op, x, y)
            }
            TermKind::Select([condition, then, otherwise]) => match self.holds(*condition) {
                Some(holds) => self.term(b, if holds { *then } else { *otherwise }),
                None => {
                    let condition = self.condition(b, *condition);
                    let [then, otherwise] = [then, otherwise].map(|&of| self.term(b, of));
                    b.select(condition, then, otherwise)
                }
            },
            TermKind::Reduce { op, axes, body } => {
                let axes = self.run(b, axes);
                let body = body.iter().map(|&of| self.term(b, of)).collect();
                b.term(*dtype, TermKind::Reduce { op: *op, axes, body })
            }
        };
        self.known.insert(id, copied);
        copied
    }

    /// Whether a condition holds at all points or at none; `None` if that is not decided.
    fn holds(&self, id: TermId) -> Option<bool> {
        self.decided.get(&id).copied()
    }

    /// The copy of a condition that is not decided, without the parts of it that are.
    fn condition(&mut self, b: &mut LoopBuilder, id: TermId) -> TermId {
        match self.of.term(id).kind {
            TermKind::Binary(Binary::And, [x, y]) if self.holds(x).is_some() => self.condition(b, y),
            TermKind::Binary(Binary::And, [x, y]) if self.holds(y).is_some() => self.condition(b, x),
            _ => self.term(b, id),
        }
    }

    /// Replaces axes by new ones; returns the new axes.
    fn run(&mut self, b: &mut LoopBuilder, axes: &[usize]) -> Vec<usize> {
        let mut all = Vec::new();
        for &axis in axes {
            let (run, at) = b.run(&parts(self.of, axis, &self.parts));
            self.axes.insert(axis, number(b, &run, &at));
            all.extend(run);
        }
        all
    }

    fn load(
        &mut self,
        b: &mut LoopBuilder,
        operand: usize,
        index: TermId,
        condition: Option<TermId>,
        otherwise: Option<TermId>,
    ) -> TermId {
        let guard = |b: &mut LoopBuilder, condition: TermId, dtype: Dtype| {
            let otherwise = otherwise.unwrap_or_else(|| b.term(dtype, TermKind::Const(0)));
            Guard { condition, otherwise }
        };
        match self.inlined.as_ref().filter(|(inlined, ..)| *inlined == operand) {
            None => {
                let guard = condition.map(|condition| guard(b, condition, self.of.operands[operand].dtype));
                b.load_flat(self.operands[operand], index, guard)
            }
            Some((_, producer, operands)) => {
                let at =
                    b.coordinates(index, &producer.axes[..producer.rank], condition).expect("checked by who inlines");
                let mut inner = Copier::new(producer, at.into_iter().enumerate(), operands.clone());
                inner.only = condition;
                let value = inner.term(b, producer.result);
                match condition.map(|condition| guard(b, condition, producer.dtype())) {
                    Some(Guard { condition, otherwise }) => b.select(condition, value, otherwise),
                    None => value,
                }
            }
        }
    }
}

/// The loop with some axes replaced. Each is replaced by several axes of the given extents, the last of which runs
/// fastest: the number of their point is the index of the replaced axis.
pub(super) fn with_axes(of: &Loop, in_place: HashMap<usize, Vec<usize>>) -> Loop {
    with_parts(of, in_place, &[])
}

/// A term that is a whole quotient of an axis.
#[derive(Debug)]
pub(super) struct Quotient {
    pub term: TermId,
    pub axis: usize,
    pub divisor: usize,
}

/// The loop with some axes replaced, as in `with_axes`, and with quotients of them. A quotient becomes the number of
/// the point of the outer new axes, those before the inner ones that have as many points as its divisor.
pub(super) fn with_parts(of: &Loop, in_place: HashMap<usize, Vec<usize>>, quotients: &[Quotient]) -> Loop {
    let extents = |axis: usize| parts(of, axis, &in_place);
    let mut b = LoopBuilder::new(&of.operands, &(0..of.rank).flat_map(extents).collect::<Vec<_>>());
    let point = b.point();
    let (mut axes, mut known, mut first) = (Vec::new(), Vec::new(), 0);
    for axis in 0..of.rank {
        let run: Vec<usize> = (first..).take(extents(axis).len()).collect();
        axes.push((axis, number(&mut b, &run, &point[first..][..run.len()])));
        for quotient in quotients.iter().filter(|quotient| quotient.axis == axis) {
            let inner = |outer: &usize| extents(axis)[*outer..].iter().product::<usize>() == quotient.divisor;
            let outer = (0..run.len()).find(inner).expect("axes for each divisor");
            known.push((quotient.term, number(&mut b, &run[..outer], &point[first..][..outer])));
        }
        first += run.len();
    }
    let mut copier = Copier { parts: in_place, ..Copier::new(of, axes, (0..of.operands.len()).collect()) };
    known.into_iter().for_each(|(term, by)| copier.replace(term, by));
    let result = copier.term(&mut b, of.result);
    b.finish(result)
}

/// The loop in which neighbouring axes are joined if every index continues over them, and axes of one point are
/// removed.
pub(super) fn collapsed(of: &Loop) -> Loop {
    let sums = affine(of);
    let needed = needed(of, &sums);
    let run_on = |axes: &[usize]| sums_read(of, &sums, &needed).all(|sum| sum.runs_on(axes, &of.axes));
    let mut in_place = HashMap::new();
    let mut collapse = |axes: &[usize], least: usize| {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &axis in axes.iter().filter(|&&axis| of.axes[axis] != 1) {
            match groups.last_mut() {
                Some(group) if run_on(&[&group[..], &[axis]].concat()) => group.push(axis),
                _ => groups.push(vec![axis]),
            }
        }
        // All indices are sums of multiples of axes, so the last axis of a group can replace the whole group.
        in_place.extend(axes.iter().skip(if groups.is_empty() { least } else { 0 }).map(|&axis| (axis, Vec::new())));
        for group in groups {
            in_place.insert(group[group.len() - 1], vec![group.iter().map(|&axis| of.axes[axis]).product()]);
        }
    };
    collapse(&(0..of.rank).collect::<Vec<_>>(), 0);
    for term in &of.terms {
        if let TermKind::Reduce { axes, .. } = &term.kind {
            collapse(axes, 1);
        }
    }
    with_axes(of, in_place)
}

/// The loop with other operands. `numbers` has the new number of each old operand; it does not matter for operands
/// without a load.
pub(super) fn with_operands(of: &Loop, operands: &[ValueType], numbers: Vec<usize>) -> Loop {
    let mut b = LoopBuilder::new(operands, &of.axes[..of.rank]);
    let point = b.point();
    let result = Copier::new(of, point.into_iter().enumerate(), numbers).term(&mut b, of.result);
    b.finish(result)
}

/// The extents of the axes that replace an axis.
fn parts(of: &Loop, axis: usize, in_place: &HashMap<usize, Vec<usize>>) -> Vec<usize> {
    in_place.get(&axis).cloned().unwrap_or_else(|| vec![of.axes[axis]])
}

/// The number of a point of these axes, the last of which runs fastest.
fn number(b: &mut LoopBuilder, axes: &[usize], at: &[TermId]) -> TermId {
    axes.iter().zip(at).fold(b.index(0), |sum, (&axis, &index)| {
        let outer = b.scaled(sum, b.extents()[axis] as i64);
        b.binary(Binary::Add, outer, index)
    })
}
