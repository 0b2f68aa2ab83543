//! Loops that compute what they read.

use std::collections::BTreeSet;

use super::affine::{Affine, affine};
use super::build::LoopBuilder;
use super::ir::{Loop, TermId, TermKind};
use super::rewrite::Copier;
use crate::graph::{Binary, Unary};

/// The loop that does what `consumer` does, but computes its operand of this number where it reads it, as `producer`
/// does, whose operands follow the consumer's own; none where that is not worth it, an index is not told by axes, or the
/// operand is empty.
///
/// What is expensive, a reduction or a transcendental function, is computed as often as before at most.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, Op, Tensor, Unary, ValueType}, loops::{Lowered, inline, lower, run}};
/// let x = ValueType::new(Dtype::F32, &[4]);
/// let one = |op: &Op| match lower(op, &[Some(&x)], &[x.clone()]) {
///     Lowered::Loops(mut loops) => loops.remove(0),
///     Lowered::ByHand => panic!(),
/// };
/// let root = one(&Op::Map(Expr::arg(0).unary(Unary::Sqrt)));
/// let twice = one(&Op::Map(Expr::arg(0) + Expr::arg(0)));
/// let both = inline(&twice, 0, &root).expect("each root is computed once");
/// let [unused, x] = [Tensor::of(&[4], &[0.0_f32; 4]), Tensor::of(&[4], &[1.0_f32, 4.0, 9.0, 16.0])];
/// assert_eq!(run(&both, &[&unused, &x], x.value_type().clone())?.elems::<f32>(), [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Panics
/// If the producer writes another type or number of elements than the operand has.
pub fn inline(consumer: &Loop, operand: usize, producer: &Loop) -> Option<Loop> {
    let read = &consumer.operands[operand];
    assert_eq!((read.elems(), read.dtype), (producer.elems(), producer.dtype()), "what is read and what is written");
    if producer.elems() == 0 {
        return None;
    }
    let extents = &producer.axes[..producer.rank];
    let (indices, deps, cost) = (affine(consumer), consumer.dependencies(), Cost::of(producer));
    let mut reads = 0_usize;
    for (term, of_load) in consumer.terms.iter().zip(&deps) {
        let TermKind::Load { operand: found, index, .. } = term.kind else { continue };
        if found == operand {
            coordinates(indices[index.0].as_ref()?, &consumer.axes, extents)?;
            reads = reads.saturating_add(computed(consumer, &deps, of_load, cost));
        }
    }
    (cost == Cost::Cheap || reads <= producer.elems()).then(|| {
        let operands = [&consumer.operands[..], &producer.operands].concat();
        let mut b = LoopBuilder::new(&operands, &consumer.axes[..consumer.rank]);
        let point = b.point();
        let numbers = (0..consumer.operands.len()).collect();
        let mut copier = Copier::new(consumer, point.into_iter().enumerate(), numbers).inline(operand, producer);
        let result = copier.term(&mut b, consumer.result);
        b.finish(result)
    })
}

/// What it takes to compute an element again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cost {
    /// About as long as to read it.
    Cheap,
    /// Long, but reductions alone, which are computed once for all points of axes that no reduction depends on.
    Reductions,
    /// Long, at every point.
    Dear,
}

impl Cost {
    fn of(of: &Loop) -> Self {
        let mut cost = Self::Cheap;
        let mut left = vec![of.result];
        while let Some(id) = left.pop() {
            let term = of.term(id);
            match &term.kind {
                TermKind::Reduce { .. } => cost = Self::Reductions,
                kind if is_dear(kind) => return Self::Dear,
                _ => left.extend(term.reads()),
            }
        }
        cost
    }
}

fn is_dear(kind: &TermKind) -> bool {
    use Unary::{Abs, Ceil, Floor, IsInf, IsNan, Neg, Not, Round, Sign};
    match kind {
        TermKind::Unary(op, _) => !matches!(op, Neg | Abs | Sign | Floor | Ceil | Round | Not | IsNan | IsInf),
        TermKind::Binary(op, _) => matches!(op, Binary::Pow | Binary::Div | Binary::Rem | Binary::Mod),
        _ => false,
    }
}

/// How often what depends on these axes is computed: at all points, if it is not a reduction that stands alone, or
/// with others of the same axes.
fn computed(of: &Loop, all: &[BTreeSet<usize>], deps: &BTreeSet<usize>, cost: Cost) -> usize {
    let mut reductions = of.terms.iter().zip(all).filter(|(term, _)| matches!(term.kind, TermKind::Reduce { .. }));
    let apart = cost == Cost::Reductions && reductions.all(|(_, other)| other == deps);
    let runs = |axis: usize| match axis < of.rank {
        true => !apart || deps.contains(&axis),
        false => deps.range(of.rank..).next().is_some(),
    };
    (0..of.axes.len()).filter(|&axis| runs(axis)).fold(1, |points, axis| points.saturating_mul(of.axes[axis]))
}

/// The index along each axis of a value of these extents that an element's number stands for, as sums of multiples of
/// axes, if they are that.
fn coordinates(index: &Affine, axes: &[usize], extents: &[usize]) -> Option<Vec<Affine>> {
    let mut rest = index.clone();
    let mut all = Vec::with_capacity(extents.len());
    for (axis, &extent) in extents.iter().enumerate() {
        let stride: i64 = extents[axis + 1..].iter().product::<usize>() as i64;
        let mut along = Affine::default();
        if extent != 1 {
            let whole = |(_, by): &(&usize, &i64)| **by % stride == 0 && by.abs() >= stride;
            along.strides = rest.strides.iter().filter(whole).map(|(&axis, by)| (axis, by / stride)).collect();
            rest.strides.retain(|axis, _| !along.strides.contains_key(axis));
            along.base = rest.range(axes)[0].div_euclid(stride);
            rest.base -= along.base * stride;
        }
        let [low, high] = along.range(axes);
        if low < 0 || high >= extent as i64 {
            return None;
        }
        all.push(along);
    }
    (rest == Affine::default()).then_some(all)
}

impl LoopBuilder {
    /// The indices along axes of these extents that an element's number stands for.
    pub(super) fn coordinates(&mut self, index: TermId, extents: &[usize]) -> Option<Vec<TermId>> {
        let index = affine(self.so_far())[index.0].clone()?;
        let all = coordinates(&index, &self.so_far().axes, extents)?;
        Some(all.iter().map(|along| self.sum(along)).collect())
    }

    fn sum(&mut self, of: &Affine) -> TermId {
        let base = self.index(of.base);
        of.strides.iter().fold(base, |sum, (&axis, &by)| {
            let index = self.axis(axis);
            let part = self.scaled(index, by);
            self.binary(Binary::Add, sum, part)
        })
    }
}
