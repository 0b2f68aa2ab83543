//! Loops made of parts of others.

use std::collections::HashMap;

use super::build::LoopBuilder;
use super::ir::{Guard, Loop, Term, TermId, TermKind};
use crate::graph::{Binary, ValueType};
use crate::tensor::Dtype;

/// Copies terms of a loop into another one.
pub(super) struct Copier<'l> {
    of: &'l Loop,
    /// What stands for each axis.
    axes: HashMap<usize, TermId>,
    /// What stands for terms.
    known: HashMap<TermId, TermId>,
    /// The number that each operand has there.
    operands: Vec<usize>,
    /// The operand that a loop stands for whose terms are copied in place of a load, and the numbers of its operands.
    inlined: Option<(usize, &'l Loop, Vec<usize>)>,
    /// Points of the inner one of the two axes that become of an axis.
    splits: &'l [(usize, usize)],
    /// Where anything may be read at all.
    only: Option<TermId>,
}

impl<'l> Copier<'l> {
    /// Axes become the terms that are told, and operands those of these numbers.
    pub fn new(of: &'l Loop, axes: impl IntoIterator<Item = (usize, TermId)>, operands: Vec<usize>) -> Self {
        let axes = axes.into_iter().collect();
        Self { of, axes, known: HashMap::new(), operands, inlined: None, splits: &[], only: None }
    }

    /// Computes an operand where it is read, as this loop does, whose operands have these numbers.
    pub fn inline(mut self, operand: usize, producer: &'l Loop, operands: Vec<usize>) -> Self {
        self.inlined = Some((operand, producer, operands));
        self
    }

    /// Lets a term stand for another.
    pub fn replace(&mut self, term: TermId, by: TermId) {
        self.known.insert(term, by);
    }

    /// The term of the other loop that stands for this one.
    pub fn term(&mut self, b: &mut LoopBuilder, id: TermId) -> TermId {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let Term { dtype, kind } = self.of.term(id);
        let copied = match kind {
            TermKind::Axis(axis) => self.axes[axis],
            TermKind::Const(_) => b.term(*dtype, kind.clone()),
            TermKind::Load { operand, index, guard } => {
                let index = self.term(b, *index);
                let otherwise = guard.map(|guard| self.term(b, guard.otherwise));
                let condition = guard.map(|guard| self.term(b, guard.condition));
                let condition = b.all([self.only, condition]);
                self.load(b, *operand, index, condition, otherwise)
            }
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
            TermKind::Select(of) => {
                let [condition, then, otherwise] = of.map(|of| self.term(b, of));
                b.select(condition, then, otherwise)
            }
            TermKind::Reduce { op, axes, body } => {
                let axes = self.run(b, axes);
                let body = body.iter().map(|&of| self.term(b, of)).collect();
                b.term(*dtype, TermKind::Reduce { op: *op, axes, body })
            }
        };
        self.known.insert(id, copied);
        copied
    }

    /// Lets new axes stand for these.
    fn run(&mut self, b: &mut LoopBuilder, axes: &[usize]) -> Vec<usize> {
        let mut all = Vec::new();
        for &axis in axes {
            let (run, at) = b.run(&parts(self.of.axes[axis], axis, self.splits));
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
                let at = b.coordinates(index, &producer.axes[..producer.rank]).expect("checked by who inlines");
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

/// The loop with some axes as two: those of these numbers, the inner one of so many points.
pub(super) fn split(of: &Loop, splits: &[(usize, usize)]) -> Loop {
    let extents = |axis: usize| parts(of.axes[axis], axis, splits);
    let mut b = LoopBuilder::new(&of.operands, &(0..of.rank).flat_map(extents).collect::<Vec<_>>());
    let point = b.point();
    let (mut axes, mut first) = (Vec::new(), 0);
    for axis in 0..of.rank {
        let run: Vec<usize> = (first..).take(extents(axis).len()).collect();
        first += run.len();
        axes.push((axis, number(&mut b, &run, &point[run[0]..first])));
    }
    let mut copier = Copier { splits, ..Copier::new(of, axes, (0..of.operands.len()).collect()) };
    let result = copier.term(&mut b, of.result);
    b.finish(result)
}

/// The loop with other operands: each has the number there that is told; those that it does not read have none.
pub(super) fn with_operands(of: &Loop, operands: &[ValueType], numbers: Vec<usize>) -> Loop {
    let mut b = LoopBuilder::new(operands, &of.axes[..of.rank]);
    let point = b.point();
    let result = Copier::new(of, point.into_iter().enumerate(), numbers).term(&mut b, of.result);
    b.finish(result)
}

/// The extents that become of an axis.
fn parts(extent: usize, axis: usize, splits: &[(usize, usize)]) -> Vec<usize> {
    match splits.iter().find(|(split, _)| *split == axis) {
        Some(&(_, inner)) => vec![extent / inner, inner],
        None => vec![extent],
    }
}

/// The number of a point of these axes, the last running fastest.
fn number(b: &mut LoopBuilder, axes: &[usize], at: &[TermId]) -> TermId {
    axes.iter().zip(at).fold(b.index(0), |sum, (&axis, &index)| {
        let outer = b.scaled(sum, b.extents()[axis] as i64);
        b.binary(Binary::Add, outer, index)
    })
}
