//! Several threads compute each row together: first the row's reductions, then its elements.
//!
//! The axes of the result on which reductions depend number the rows; its other axes number the elements of a row. If
//! all reductions and the elements of a row run over the same single axis, and the threads have registers for all of
//! its points, each point is read once and held.

use super::PtxTarget;
use super::columns::Columns;
use super::emit::{Emitter, Lanes};
use super::memory::neighbours;
use super::nest::{Nest, Reduction};
use super::point::unravelled;
use super::team::{Member, Team, WARP};
use super::text::{Class, Reg};
use super::unify::{outermost, rows};
use crate::loops::ir::TermKind;

/// The largest number of points that a thread holds.
const HELD: usize = 32;
/// The largest number of points that a thread takes side by side if it does not hold all points.
const AT_ONCE: usize = 8;
/// If all reductions have fewer points than this, threads do not share them.
const SHORT: usize = 16;

/// The number of threads that fills a unit. If few threads for each row fill all units, few threads share a row.
const FULL_UNIT: usize = 2048;
/// Up to this number of rows per unit, several threads compute each row even if rows read the same elements.
const FEW: usize = 64;

/// How the rows of a nest are computed.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Vec<usize>,
    inner: Vec<usize>,
    tops: Vec<Reduction>,
    team: Team,
    /// The number of neighbours that a thread takes at once.
    run: usize,
    /// The axis along which the threads of a row hold all points; `None` if they go through the points instead.
    held: Option<usize>,
}

impl Rows {
    /// The way to compute the rows of a nest; `None` if another schedule is better.
    pub fn plan(nest: &Nest, target: &PtxTarget) -> Option<Self> {
        let units = target.units;
        let (tops, [rows, inner]) = (outermost(nest), rows(nest));
        let extent = |axes: &[usize]| -> usize { axes.iter().map(|&axis| nest.extents[axis]).product() };
        let longest = tops.iter().map(|of| of.points).max()?;
        let (count, elems) = (extent(&rows), extent(&inner));
        let fits = longest.max(count).max(elems) < 1 << 30;
        if tops.iter().any(|of| of.points == 0) || longest < SHORT || !fits {
            return None;
        }
        if count > units * FEW && tops.iter().any(|of| shares(nest, of, &rows)) {
            return None;
        }
        let last: Vec<usize> = tops.iter().filter_map(|of| of.axes.last()).chain(inner.last()).copied().collect();
        let along = last.iter().any(|&axis| reads_along(nest, axis));
        let team = match along {
            true => side_by_side(count, longest, units),
            false => Columns::plan(nest, &tops, &rows, longest, target).map_or(Team::Thread, Team::Columns),
        };
        if team == Team::Thread && inner.is_empty() {
            return None; // a thread for some neighbouring results is faster
        }
        let run = if along { neighbours(nest, &last, longest / team.members()) } else { 1 };
        let held = one_axis(&tops, &inner).filter(|_| longest <= team.members() * HELD && along);
        Some(Self { rows, inner, tops, team, run, held })
    }

    /// Writes the code, and returns the number of blocks and the number of threads of a block.
    pub fn write(&self, emitter: &mut Emitter<'_>) -> [usize; 2] {
        let nest = emitter.nest;
        let mut extents: Vec<usize> = self.rows.iter().map(|&axis| nest.extents[axis]).collect();
        let side = self.team.side();
        if let Some(last) = extents.last_mut() {
            *last /= side;
        }
        let rows: usize = extents.iter().product();
        let member = self.team.member(&mut emitter.text, rows);
        let indices = unravelled(emitter, member.row, &extents);
        for (place, (&axis, index)) in self.rows.iter().zip(indices).enumerate() {
            if side == 1 || place + 1 < self.rows.len() {
                emitter.bind(axis, Some(index), 1);
                continue;
            }
            let first = emitter.text.op(Class::Word, "mul.lo.s32", &[&index, &side]);
            emitter.bind_lanes(Some(first), side as i64, Lanes::neighbours(axis, side));
        }
        match self.held {
            Some(axis) => self.hold(emitter, axis, &member),
            None => self.pass(emitter, &member),
        }
        self.team.finish(&mut emitter.text);
        let [threads, of_block] = self.team.block();
        [rows.div_ceil(of_block) * self.team.cluster(), threads]
    }

    /// The number of blocks of a cluster.
    pub const fn cluster(&self) -> usize {
        self.team.cluster()
    }

    /// Computes the row with all of its points bound at once.
    fn hold(&self, emitter: &mut Emitter<'_>, axis: usize, member: &Member) {
        let extent = emitter.nest.extents[axis];
        let step = self.team.members() * self.run;
        let first = self.first(emitter, member);
        let mut lanes = Lanes::runs(axis, self.run, step, extent.div_ceil(step));
        for place in 0..lanes.len() {
            let offset = place / self.run * step;
            if offset + step > extent {
                let valid = match place % self.run {
                    0 => first.map(|first| emitter.text.op(Class::Pred, "setp.lt.s32", &[&first, &(extent - offset)])),
                    _ => lanes.valid(place - 1),
                };
                lanes.set_valid(place, valid);
            }
        }
        emitter.bind_lanes(first, self.run as i64, lanes);
        for of in &self.tops {
            self.reduce(emitter, of, |emitter, combine| combine(emitter));
        }
        if self.inner.is_empty() { self.store_once(emitter, member) } else { emitter.store(member.valid) }
    }

    /// Computes the row by going through it once for each reduction, and once more for its elements.
    fn pass(&self, emitter: &mut Emitter<'_>, member: &Member) {
        for of in &self.tops {
            of.body.iter().for_each(|&body| emitter.hoist(body));
            self.reduce(emitter, of, |emitter, combine| self.share(emitter, member, &of.axes, combine));
        }
        if self.inner.is_empty() {
            return self.store_once(emitter, member);
        }
        emitter.hoist(emitter.nest.of.result);
        self.share(emitter, member, &self.inner, &mut |emitter| emitter.store(member.valid));
    }

    /// Lets the first thread of a row write the row's one result.
    fn store_once(&self, emitter: &mut Emitter<'_>, member: &Member) {
        let first = member.number.map(|number| emitter.text.op(Class::Pred, "setp.eq.s32", &[&number, &0]));
        let both = [first, member.valid].into_iter().flatten();
        let predicate = both.reduce(|a, b| emitter.text.op(Class::Pred, "and.pred", &[&a, &b]));
        emitter.store(predicate);
    }

    /// Computes a reduction: each thread combines its own points, then the threads of a row combine their parts.
    fn reduce<'n>(
        &self,
        emitter: &mut Emitter<'n>,
        of: &Reduction,
        through: impl FnOnce(&mut Emitter<'n>, &mut dyn FnMut(&mut Emitter<'n>)),
    ) {
        let fold = emitter.fold(of);
        let lanes = if self.team.side() > 1 { emitter.lanes_of(self.rows.last()) } else { 0 };
        let so_far: Vec<Vec<Reg>> = emitter.points(lanes).iter().map(|_| fold.start(&mut emitter.text)).collect();
        through(emitter, &mut |emitter| emitter.combine(of, &fold, lanes, &so_far));
        self.team.join(emitter, &fold, &so_far);
        let value = emitter.folded(of, &so_far, lanes);
        emitter.set_value(of.id, value);
    }

    /// Goes through a thread's share of the points of `axes`: first with several runs at a time, at last with one.
    fn share<'n>(
        &self,
        emitter: &mut Emitter<'n>,
        member: &Member,
        axes: &[usize],
        body: &mut dyn FnMut(&mut Emitter<'n>),
    ) {
        let extents: Vec<usize> = axes.iter().map(|&axis| emitter.nest.extents[axis]).collect();
        let points: usize = extents.iter().product();
        let run = if extents.last().is_some_and(|extent| extent.is_multiple_of(self.run)) { self.run } else { 1 };
        let step = self.team.members() * run;
        let index = emitter.text.reg(Class::Word);
        match self.scaled(emitter, member, run) {
            Some(first) => emitter.text.set(index, "mov.b32", &[&first]),
            None => emitter.text.set(index, "mov.b32", &[&0]),
        }
        for runs in self.runs(axes, run) {
            let Some(end) = points.checked_sub((runs - 1) * step + run - 1) else { continue };
            emitter.while_below(index, runs * step, end, |emitter| {
                self.bind(emitter, axes, &extents, index, run, [step, runs]);
                body(emitter);
            });
        }
    }

    /// The numbers of runs of points that a thread takes at a time, in falling order: each is for what the larger ones
    /// leave.
    fn runs(&self, axes: &[usize], run: usize) -> Vec<usize> {
        let ([_], side) = (axes, self.team.side()) else { return vec![1] };
        match (AT_ONCE / run, side) {
            (0 | 1, _) => vec![1],
            (several, 1) => vec![several, 1],
            (_, 2 | 4) => vec![8, 4, 2, 1],
            _ => vec![4, 2, 1],
        }
    }

    /// Binds `axes` to `runs` runs of points along the last axis, which begin `step` apart. The first run begins at
    /// point number `index`.
    fn bind(
        &self,
        emitter: &mut Emitter<'_>,
        axes: &[usize],
        extents: &[usize],
        index: Reg,
        run: usize,
        [step, runs]: [usize; 2],
    ) {
        let Some((&last, outer)) = axes.split_last() else { return };
        let indices = unravelled(emitter, index, extents);
        for (&axis, &index) in outer.iter().zip(&indices) {
            emitter.bind(axis, Some(index), 1);
        }
        let lanes = Lanes::runs(last, run, step, runs);
        emitter.bind_lanes(indices.last().copied(), run as i64, lanes);
    }

    fn first(&self, emitter: &mut Emitter<'_>, member: &Member) -> Option<Reg> {
        self.scaled(emitter, member, self.run)
    }

    /// The first point of a thread that takes `run` neighbours at once; `None` for 0.
    fn scaled(&self, emitter: &mut Emitter<'_>, member: &Member, run: usize) -> Option<Reg> {
        member.number.map(|number| emitter.text.op(Class::Word, "mul.lo.s32", &[&number, &run]))
    }
}

/// The axis that all reductions and the row's elements, if there are any, have as their only axis; else `None`.
fn one_axis(tops: &[Reduction], inner: &[usize]) -> Option<usize> {
    let [axis] = tops.first()?.axes[..] else { return None };
    let alike = tops.iter().all(|of| of.axes == [axis]) && (inner.is_empty() || inner == [axis]);
    alike.then_some(axis)
}

/// Whether a load reads neighbouring elements along an axis.
fn reads_along(nest: &Nest, axis: usize) -> bool {
    nest.needed().any(|id| match nest.term(id).kind {
        TermKind::Load { index, .. } => nest.index(index).stride(axis) == 1,
        _ => false,
    })
}

/// The team if neighbours along a row are neighbours in memory: lanes of a warp or a block, with enough threads to hold
/// the row if possible.
fn side_by_side(rows: usize, longest: usize, units: usize) -> Team {
    let few = |members: &usize| longest <= members * AT_ONCE && rows * members >= units * FULL_UNIT;
    if let Some(members) = [2, 4, 8, 16].into_iter().find(few) {
        return Team::Lanes(members);
    }
    let is_enough =
        |members: &usize| longest <= members * HELD / 2 || (rows >= units * 16 && longest <= members * HELD);
    match [WARP, 128, 256, 512].into_iter().find(is_enough) {
        Some(WARP) => Team::Lanes(WARP),
        Some(members) => Team::Block(members),
        None => Team::Block(1024),
    }
}

/// Whether several rows read the same elements in a reduction, as in a product. A thread for some neighbouring results
/// reads such elements once.
fn shares(nest: &Nest, of: &Reduction, rows: &[usize]) -> bool {
    let mut left = of.body.clone();
    while let Some(id) = left.pop() {
        let is_load = matches!(nest.term(id).kind, TermKind::Load { .. });
        let deps = &nest.deps[id.0];
        if is_load && of.axes.iter().any(|axis| deps.contains(axis)) && !rows.iter().all(|axis| deps.contains(axis)) {
            return true;
        }
        left.extend(nest.reads(id).into_iter().filter(|read| nest.reduction(*read).is_none()));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::{Schedule, schedule};
    use super::*;
    use crate::graph::{Op, ValueType};
    use crate::loops::{Lowered, lower};
    use crate::tensor::Dtype;

    #[test]
    fn of_many_short_rows_few_lanes_share_each() {
        let team = |[rows, columns]: [usize; 2], units| {
            let x = ValueType::new(Dtype::F16, &[rows, columns]);
            let Lowered::Loops(loops) =
                lower(&Op::Softmax { axis: 1, log: false }, &[Some(&x)], std::slice::from_ref(&x))
            else {
                panic!("softmax is a loop")
            };
            match schedule(&loops[0], &PtxTarget { units, ..PtxTarget::ANY }).1 {
                Schedule::Rows(rows) => rows.team,
                _ => panic!("[{rows}, {columns}] has no team"),
            }
        };
        for units in [108, 132] {
            let cases = [[140_001, 16], [70_001, 20], [35_001, 40], [20_000, 64], [20_000, 200]];
            assert_eq!(cases.map(|dims| team(dims, units)), [2, 4, 8, 16, 32].map(Team::Lanes));
        }
        assert_eq!([1000, 5000, 10_000].map(|columns| team([33, columns], 132)), [128, 512, 1024].map(Team::Block));
    }
}
