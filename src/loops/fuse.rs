//! Fusion: loops that compute the values that they read.

use std::collections::HashMap;

use super::affine::{Affine, affine, bounds, needed};
use super::build::LoopBuilder;
use super::ir::{Loop, TermId, TermKind};
use super::rewrite::{Copier, with_axes};
use super::work::Work;
use crate::graph::ValueType;

/// An axis is split so often at most, that a loop may read what has its axes otherwise.
const MOST_SPLITS: usize = 8;

/// A loop that computes what `consumer` computes, but computes the elements of this operand, as `producer` does,
/// instead of loading them. The producer's operands follow the consumer's own. `None` if the fusion does not pay, if an
/// index does not follow from the axes, or if the operand is empty.
///
/// Expensive terms, which are reductions and transcendental functions, are computed at most as often as before.
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
    let first = consumer.operands.len();
    let operands = [&consumer.operands[..], &producer.operands].concat();
    let join = Join {
        consumer,
        operand,
        producer,
        numbers: [(0..first).collect(), (first..operands.len()).collect()],
        operands,
    };
    let both = join.fused()?;
    (Work::of(&both).dear() <= Work::of(consumer).dear() + Work::of(producer).dear()).then_some(both)
}

/// Two loops that are to become one.
pub(super) struct Join<'l> {
    pub consumer: &'l Loop,
    /// What the consumer reads and the producer writes.
    pub operand: usize,
    pub producer: &'l Loop,
    /// What both read.
    pub operands: Vec<ValueType>,
    /// The number there of each operand of the consumer, and of each of the producer.
    pub numbers: [Vec<usize>; 2],
}

impl Join<'_> {
    /// The loop that computes the operand where it reads it, however often; none where an index is not told by axes, or
    /// the operand is empty.
    ///
    /// # Panics
    /// If the producer writes another type or number of elements than the operand has.
    pub fn fused(&self) -> Option<Loop> {
        let (read, producer) = (&self.consumer.operands[self.operand], self.producer);
        assert_eq!(
            (read.elems(), read.dtype),
            (producer.elems(), producer.dtype()),
            "what is read and what is written"
        );
        if producer.elems() == 0 {
            return None;
        }
        let splits = splits(self.consumer, self.operand, &producer.axes[..producer.rank])?;
        let consumer = splits.as_ref().unwrap_or(self.consumer);
        let mut b = LoopBuilder::new(&self.operands, &consumer.axes[..consumer.rank]);
        let point = b.point();
        let [numbers, of_producer] = self.numbers.clone();
        let mut copier = Copier::new(consumer, point.into_iter().enumerate(), numbers);
        copier = copier.inline(self.operand, producer, of_producer);
        let result = copier.term(&mut b, consumer.result);
        Some(b.finish(result))
    }
}

/// The loop with axes split so that each index of an operand tells the indices along axes of these extents; it stays as
/// it is where it does that already. None where no splits help.
fn splits(of: &Loop, operand: usize, extents: &[usize]) -> Option<Option<Loop>> {
    let mut found: Option<Loop> = None;
    for _ in 0..MOST_SPLITS {
        let of = found.as_ref().unwrap_or(of);
        let all = affine(of);
        let needed = needed(of, &all);
        let mut helpful = HashMap::new();
        for (term, _) in of.terms.iter().zip(needed).filter(|(_, needed)| *needed) {
            let TermKind::Load { operand: read, index, guard } = term.kind else { continue };
            let index = if read == operand { all[index.0].as_ref()? } else { continue };
            let bounds = bounds(&of.terms, &all, &of.axes, guard.map(|guard| guard.condition));
            if coordinates(index, &bounds, extents).is_none() {
                let (axis, inner) = across(index, &of.axes, extents)?;
                helpful.insert(axis, vec![of.axes[axis] / inner, inner]);
            }
        }
        if helpful.is_empty() {
            return Some(found);
        }
        found = Some(with_axes(of, helpful));
    }
    None
}

/// An axis of a loop along which an element's number leaves the innermost axes of a value of these extents, and how many
/// of its points do not.
fn across(index: &Affine, axes: &[usize], extents: &[usize]) -> Option<(usize, usize)> {
    let inner = |axis: usize| extents[axis + 1..].iter().product::<usize>();
    index.strides.iter().find_map(|(&axis, by)| {
        let by = by.unsigned_abs() as usize;
        (0..extents.len()).map(inner).find_map(|run| {
            let leaves = by < run && run < by.saturating_mul(axes[axis]);
            (leaves && run.is_multiple_of(by) && axes[axis].is_multiple_of(run / by)).then(|| (axis, run / by))
        })
    })
}

/// The index along each axis of a value of these extents that an element's number stands for, as sums of multiples of
/// axes, if they are that.
fn coordinates(index: &Affine, bounds: &[[i64; 2]], extents: &[usize]) -> Option<Vec<Affine>> {
    let mut rest = index.clone();
    let mut all = Vec::with_capacity(extents.len());
    for (axis, &extent) in extents.iter().enumerate() {
        let stride: i64 = extents[axis + 1..].iter().product::<usize>() as i64;
        let mut along = Affine::default();
        if extent != 1 {
            let whole = |(_, by): &(&usize, &i64)| **by % stride == 0 && by.abs() >= stride;
            along.strides = rest.strides.iter().filter(whole).map(|(&axis, by)| (axis, by / stride)).collect();
            rest.strides.retain(|axis, _| !along.strides.contains_key(axis));
            along.base = rest.range(bounds)[0].div_euclid(stride);
            rest.base -= along.base * stride;
        }
        let [low, high] = along.range(bounds);
        if low < 0 || high >= extent as i64 {
            return None;
        }
        all.push(along);
    }
    (rest == Affine::default()).then_some(all)
}

impl LoopBuilder {
    /// The indices along axes of these extents that an element's number stands for, where a condition holds.
    pub(super) fn coordinates(
        &mut self,
        index: TermId,
        extents: &[usize],
        condition: Option<TermId>,
    ) -> Option<Vec<TermId>> {
        let all = coordinates(self.as_sum(index)?, &self.bounds(condition), extents)?;
        Some(all.iter().map(|along| self.sum(along)).collect())
    }
}
