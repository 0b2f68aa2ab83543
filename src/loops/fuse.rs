//! Fusion: a loop computes the elements that it would read.

use std::collections::HashMap;

use super::affine::{Affine, affine, bounds, needed};
use super::build::LoopBuilder;
use super::ir::{Loop, TermId, TermKind};
use super::rewrite::{Copier, with_axes};
use super::work::Work;
use crate::graph::ValueType;

/// The largest number of splits of axes that make the indices of a loop fit the axes of a value that it reads.
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

/// Two loops that become one.
pub(super) struct Join<'l> {
    pub consumer: &'l Loop,
    /// The consumer's operand that the producer writes.
    pub operand: usize,
    pub producer: &'l Loop,
    /// The types of all operands of both loops.
    pub operands: Vec<ValueType>,
    /// For each loop, the consumer first, the index in `operands` of each of its operands.
    pub numbers: [Vec<usize>; 2],
}

impl Join<'_> {
    /// The loop that computes each element of the operand where the consumer reads it, even if it then computes
    /// elements several times. `None` if an index does not follow from the axes, or if the operand is empty.
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

/// The loop with axes split so that each index of an operand gives the indices along axes of these extents, or
/// `Some(None)` if no split is needed. `None` if no splits achieve this.
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

/// An axis of a loop along which the index of an element moves across one of the innermost axes of a value with these
/// extents, and the number of the axis' points before it does; `None` if there is no axis that can be split so.
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

/// The indices along the axes of a value with these extents, for the element at a row-major index. `None` if they are
/// no sums of multiples of axes.
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
    /// The indices along axes of these extents, for the element at a row-major index, if the condition holds. `None` as
    /// in the function `coordinates`.
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
