//! Reductions that a thread computes alone, and loops of instructions.

use super::emit::{Emitter, Lanes, Value};
use super::fold::Fold;
use super::nest::Reduction;
use super::number::convert;
use super::sum::Sum;
use super::text::{Class, Reg};
use crate::graph::Binary;
use crate::loops::ir::{Monoid, TermId, TermKind};
use crate::tensor::Dtype;

/// The largest number of points of a long reduction that are computed side by side.
const SIDE: usize = 8;
/// The largest number of points side by side times other lanes, in a long reduction.
const REGISTERS: usize = 64;
/// The largest number of points of a short reduction, all of which are computed side by side.
const SHORT: usize = 64;
/// The largest number of points times other lanes, in a short reduction.
const LINES: usize = 1536;

/// Whether all `points` points of a reduction are computed side by side if it has `lanes` other lanes.
pub(super) const fn is_whole(points: usize, lanes: usize) -> bool {
    points <= SHORT && points * lanes <= LINES
}

impl Emitter<'_> {
    /// The value of a reduction at the points of the thread.
    pub fn reduce(&mut self, id: TermId) -> Value {
        let nest = self.nest;
        let of = nest.reduction(id).expect("a reduction");
        let fold = self.fold(&of);
        if of.points == 0 {
            let start = fold.start(&mut self.text);
            return Value { lanes: 0, regs: vec![start[usize::from(fold.parts().len() > 1)]] };
        }
        of.body.iter().for_each(|&body| self.hoist(body));
        let lanes = self.lanes_of(&nest.deps[id.0]);
        let so_far: Vec<Vec<Reg>> = self.points(lanes).iter().map(|_| fold.start(&mut self.text)).collect();
        let sides = self.sides(&of, &fold, so_far.len());
        self.scope(|emitter| emitter.through(&of.axes, &sides, |emitter| emitter.combine(&of, &fold, lanes, &so_far)));
        self.folded(&of, &so_far, lanes)
    }

    /// The value of a reduction, from its combined parts at each lane.
    pub fn folded(&mut self, of: &Reduction, so_far: &[Vec<Reg>], lanes: u32) -> Value {
        let part = usize::from(matches!(of.op, Monoid::Arg { .. }));
        let fold = self.fold(of);
        let (from, to) = (fold.parts()[part], self.nest.machine(of.id));
        Value { lanes, regs: so_far.iter().map(|parts| convert(&mut self.text, [from, to], parts[part])).collect() }
    }

    /// The way in which a reduction combines values.
    pub fn fold(&self, of: &Reduction) -> Fold {
        let place = if of.points < 1 << 31 { Dtype::I32 } else { Dtype::I64 };
        match of.op {
            Monoid::Arg { .. } => {
                let [dtype, index] = [of.body[0], of.body[1]].map(|body| self.nest.machine(body));
                Fold { op: of.op, dtype, index, place }
            }
            _ => Fold { op: of.op, dtype: self.nest.machine(of.id), index: place, place },
        }
    }

    /// How many points of each axis are computed side by side: all where the reduction is short, else some of the last.
    fn sides(&self, of: &Reduction, fold: &Fold, lanes: usize) -> Vec<usize> {
        let extents: Vec<usize> = of.axes.iter().map(|&axis| self.nest.extents[axis]).collect();
        if self.factors(of, fold).is_some() && is_whole(of.points, lanes) {
            return extents;
        }
        let mut sides = vec![1; extents.len()];
        if let ([.., side], [.., extent]) = (&mut sides[..], &extents[..]) {
            let fits = |side: &usize| extent.is_multiple_of(*side) && side * lanes <= REGISTERS;
            *side = (1..=SIDE).rev().find(fits).unwrap_or(1);
        }
        sides
    }

    /// Runs through the points of `axes`. `sides` has the number of points side by side along each axis.
    fn through(&mut self, axes: &[usize], sides: &[usize], body: impl FnOnce(&mut Self)) {
        let (Some((&axis, inner)), Some((&side, sides))) = (axes.split_first(), sides.split_first()) else {
            return body(self);
        };
        let extent = self.nest.extents[axis];
        let step = |emitter: &mut Self, first: Option<Reg>| {
            match side {
                1 => emitter.bind(axis, first, 1),
                _ => emitter.bind_lanes(first, side as i64, Lanes::neighbours(axis, side)),
            }
            emitter.through(inner, sides, body);
        };
        if extent == side {
            return step(self, None);
        }
        let index = self.counter(extent, 0);
        self.repeat(index, side, extent, |emitter| step(emitter, Some(index)));
    }

    /// A register for an index up to an extent, set to `first`.
    pub fn counter(&mut self, extent: usize, first: u64) -> Reg {
        let class = if extent < 1 << 31 { Class::Word } else { Class::Long };
        self.text.number(class, first)
    }

    /// Repeats a body while an index, raised by `step` each time, is below `end`, but at least once.
    pub fn repeat(&mut self, index: Reg, step: usize, end: usize, body: impl FnOnce(&mut Self)) {
        let top = self.text.label();
        self.text.place(top);
        self.scope(body);
        let kind = if index.class == Class::Long { "s64" } else { "s32" };
        self.text.set(index, &format!("add.{kind}"), &[&index, &step]);
        let again = self.text.op(Class::Pred, &format!("setp.lt.{kind}"), &[&index, &end]);
        self.text.put(format_args!("@{again} bra {top}"));
    }

    /// Repeats a body while an index, raised by `step` each time, is below `end`. It does not run if the index is not
    /// below `end` at first.
    pub fn while_below(&mut self, index: Reg, step: usize, end: usize, body: impl FnOnce(&mut Self)) {
        let behind = self.text.label();
        let beyond = self.text.op(Class::Pred, "setp.ge.s32", &[&index, &end]);
        self.text.put(format_args!("@{beyond} bra {behind}"));
        self.repeat(index, step, end, body);
        self.text.place(behind);
    }

    /// Combines the value of the body at the bound points into `so_far`, for each lane of the result.
    pub fn combine(&mut self, of: &Reduction, fold: &Fold, lanes: u32, so_far: &[Vec<Reg>]) {
        if let Some(factors) = self.factors(of, fold) {
            return self.multiply(of, fold.dtype, factors, lanes, so_far);
        }
        let mut parts: Vec<Value> = of.body.iter().map(|&body| self.value(body)).collect();
        if parts.len() > 1 {
            let place = Sum::dense(&of.axes, &self.nest.extents);
            parts.push(self.index(&place, fold.place));
        }
        let all = self.lanes_of(&of.axes) | parts.iter().fold(lanes, |lanes, part| lanes | part.lanes);
        let from: Vec<Dtype> = of.body.iter().map(|&body| self.nest.machine(body)).chain([fold.place]).collect();
        for at in self.points_within(all, lanes) {
            let types = from.iter().zip(fold.parts());
            let new: Vec<Reg> = parts.iter().map(|part| self.pick(part, &at)).collect();
            let new: Vec<Reg> = types.zip(new).map(|((&from, to), x)| convert(&mut self.text, [from, to], x)).collect();
            let so_far = &so_far[self.place(lanes, &at)];
            self.when_valid(all & !lanes, &at, |emitter| fold.combine(&mut emitter.text, so_far, &new));
        }
    }

    /// Writes a body that is skipped if the thread does not have this combination of lanes.
    fn when_valid(&mut self, lanes: u32, at: &[usize], body: impl FnOnce(&mut Self)) {
        let Some(valid) = self.valid(lanes, at) else { return body(self) };
        let behind = self.text.label();
        self.text.put(format_args!("@!{valid} bra {behind}"));
        body(self);
        self.text.place(behind);
    }

    /// The two factors of the products that a sum of floats adds, which are then added by fused multiply-adds; `None`
    /// if it adds no products.
    fn factors(&self, of: &Reduction, fold: &Fold) -> Option<[TermId; 2]> {
        let is_float = matches!(fold.dtype, Dtype::F32 | Dtype::F64);
        match self.nest.term(of.body[0]).kind {
            TermKind::Binary(Binary::Mul, sides) if of.op == Monoid::Sum && is_float => Some(sides),
            _ => None,
        }
    }

    fn multiply(&mut self, of: &Reduction, dtype: Dtype, sides: [TermId; 2], lanes: u32, so_far: &[Vec<Reg>]) {
        let [a, b] = sides.map(|side| self.value(side));
        let name = format!("fma.rn.{}", super::number::kind(dtype));
        let all = self.lanes_of(&of.axes) | a.lanes | b.lanes; // axes that no factor depends on count too
        for at in self.points_within(all, lanes) {
            let (x, y, sum) = (self.pick(&a, &at), self.pick(&b, &at), so_far[self.place(lanes, &at)][0]);
            self.when_valid(all, &at, |emitter| emitter.text.set(sum, &name, &[&x, &y, &sum]));
        }
    }
}
