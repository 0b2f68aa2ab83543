//! Loops made of parts of others.

use std::collections::HashMap;

use super::build::LoopBuilder;
use super::ir::{Guard, Loop, Term, TermId, TermKind};
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
    /// The operand that a loop stands for whose terms are copied in place of a load.
    inlined: Option<(usize, &'l Loop)>,
    /// Where anything may be read at all.
    only: Option<TermId>,
}

impl<'l> Copier<'l> {
    /// Axes become the terms that are told, and operands those of these numbers.
    pub fn new(of: &'l Loop, axes: impl IntoIterator<Item = (usize, TermId)>, operands: Vec<usize>) -> Self {
        Self { of, axes: axes.into_iter().collect(), known: HashMap::new(), operands, inlined: None, only: None }
    }

    /// Computes an operand where it is read, as this loop does, whose operands follow the loop's own.
    pub fn inline(mut self, operand: usize, producer: &'l Loop) -> Self {
        self.inlined = Some((operand, producer));
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
                let extents: Vec<usize> = axes.iter().map(|&axis| self.of.axes[axis]).collect();
                let (run, at) = b.run(&extents);
                self.axes.extend(axes.iter().copied().zip(at));
                let body = body.iter().map(|&of| self.term(b, of)).collect();
                b.term(*dtype, TermKind::Reduce { op: *op, axes: run, body })
            }
        };
        self.known.insert(id, copied);
        copied
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
        match self.inlined.filter(|(inlined, _)| *inlined == operand) {
            None => {
                let guard = condition.map(|condition| guard(b, condition, self.of.operands[operand].dtype));
                b.load_flat(self.operands[operand], index, guard)
            }
            Some((_, producer)) => {
                let at = b.coordinates(index, &producer.axes[..producer.rank]).expect("checked by who inlines");
                let operands = (self.of.operands.len()..).take(producer.operands.len()).collect();
                let mut inner = Copier::new(producer, at.into_iter().enumerate(), operands);
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
