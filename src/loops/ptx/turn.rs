//! Results whose operands lie in another order of axes. Tiles of operands are transposed in shared memory, so that
//! neighbouring threads read neighbouring elements and write neighbouring elements. Where all operands lie so, and there
//! are several, the result is transposed in their place. Of elements of two bytes or less a
//! thread has pairs of neighbours on both sides: then a tile is twice as long along both axes, and as many bytes are on
//! their way as of larger elements.

use super::emit::{Emitter, Lanes, Value};
use super::nest::Nest;
use super::point::unravelled;
use super::team::{get, put};
use super::text::{Class, Reg, Text};
use crate::loops::ir::{TermId, TermKind};

/// The number of threads of a row, and of rows of threads. A row of threads has a run of neighbours for each thread, and
/// each thread has several of these runs along the other axis.
const COLUMNS: usize = 32;
const ROWS: usize = 8;
/// The largest number of terms that are transposed, and of those of which a thread has pairs of neighbours.
const MOST: usize = 4;
const MOST_PAIRS: usize = 2;

/// The division of a nest into tiles.
#[derive(Debug)]
pub(super) struct Turn {
    /// The terms that go through shared memory: loads that are contiguous along the first axis, or the result of several of
    /// them. The result is contiguous along the second axis.
    turned: Vec<TermId>,
    axes: [usize; 2],
    others: Vec<usize>,
    /// The number of neighbours that a thread reads, and writes, at once: 1 or 2.
    run: usize,
}

impl Turn {
    /// The division into tiles, if there are loads in another order; else `None`.
    pub fn find(nest: &Nest) -> Option<Self> {
        let results = nest.result_axes();
        let (&along, others) = results.split_last()?;
        let lies = |id: &TermId, axis: usize| match nest.term(*id).kind {
            TermKind::Load { index, .. } => {
                let index = nest.index(index);
                index.stride(axis) == 1 && index.stride(along) != 1 && nest.deps[id.0].contains(&along)
            }
            _ => false,
        };
        let of_axis = |&axis: &usize| nest.extents[axis] >= COLUMNS / 2 && nest.needed().any(|id| lies(&id, axis));
        let across = others.iter().copied().find(of_axis)?;
        let axes = [across, along];
        let mut turned: Vec<TermId> = nest.needed().filter(|id| lies(id, across)).collect();
        let are_all = nest.needed().all(|id| turned.contains(&id) || !varies(nest, id, across));
        let has_several = turned.len() > 1;
        turned.truncate(MOST);
        let result = vec![nest.of.result];
        if has_several && are_all && run(nest, &result, axes) >= run(nest, &turned, axes) {
            turned = result;
        }
        let extents = results.iter().map(|&axis| nest.extents[axis]).product::<usize>();
        let fits = nest.extents[along] >= COLUMNS / 2
            && extents < 1 << 40
            && nest.extents[along].max(nest.extents[across]) < 1 << 30;
        let others = others.iter().copied().filter(|&axis| axis != across).collect();
        let run = run(nest, &turned, axes);
        (fits && nest.reductions().next().is_none()).then_some(Self { turned, axes, others, run })
    }

    /// The number of points of a tile along both axes.
    const fn tile(&self) -> usize {
        COLUMNS * self.run
    }

    /// The number of runs of a thread.
    const fn runs(&self) -> usize {
        self.tile() / ROWS
    }

    /// The number of slots of shared memory from one row of a tile to the next. Neighbours of a column lie in other banks.
    const fn pitch(&self) -> usize {
        self.tile() + 1
    }

    /// Writes the kernel; returns the number of blocks, and of threads of a block.
    pub fn write(&self, emitter: &mut Emitter<'_>) -> [usize; 2] {
        let nest = emitter.nest;
        let tiles = self.axes.map(|axis| nest.extents[axis].div_ceil(self.tile()));
        let others: Vec<usize> = self.others.iter().map(|&axis| nest.extents[axis]).collect();
        let block = emitter.text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
        let indices = unravelled(emitter, block, &[&others[..], &tiles].concat());
        let (outer, corner) = indices.split_at(others.len());
        self.others.iter().zip(outer).for_each(|(&axis, &index)| emitter.bind(axis, Some(index), 1));
        let text = &mut emitter.text;
        let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let column = text.op(Class::Word, "and.b32", &[&thread, &(COLUMNS - 1)]);
        let row = text.op(Class::Word, "shr.u32", &[&thread, &COLUMNS.ilog2()]);
        let corner = [corner[0], corner[1]].map(|corner| text.op(Class::Word, "mul.lo.s32", &[&corner, &self.tile()]));
        let place = self.place(text, row);
        let slot = text.op(Class::Word, "mad.lo.s32", &[&place, &self.pitch(), &column]);
        let turned = text.op(Class::Word, "mad.lo.s32", &[&column, &self.pitch(), &place]);
        let places: Vec<u32> = self.turned.iter().map(|&term| emitter.text.share(self.bytes(nest, term))).collect();
        emitter.scope(|emitter| {
            self.bind(emitter, [0, 1], corner, [column, row]);
            for (&term, &place) in self.turned.iter().zip(&places) {
                let value = emitter.value(term);
                for (behind, at) in self.behind([1, self.pitch()]).zip(self.points(emitter)) {
                    let reg = emitter.pick(&value, &at);
                    put(&mut emitter.text, reg, place, slot, behind, None);
                }
            }
        });
        emitter.text.put(format_args!("bar.sync 0"));
        let inside = self.bind(emitter, [1, 0], corner, [column, row]);
        for (&term, &place) in self.turned.iter().zip(&places) {
            let class = Class::of(nest.machine(term));
            let read = |behind| {
                let reg = emitter.text.reg(class);
                get(&mut emitter.text, reg, place, turned, behind);
                reg
            };
            let regs: Vec<Reg> = self.behind([self.pitch(), 1]).map(read).collect();
            let lanes = emitter.lanes_of(&self.axes);
            emitter.set_value(term, Value { lanes, regs });
        }
        emitter.store(Some(inside));
        [tiles.iter().chain(&others).product(), COLUMNS * ROWS]
    }

    /// Where a tile has the point of a number along an axis: first all that are the first of their run, then all others.
    fn place(&self, text: &mut Text, number: Reg) -> Reg {
        if self.run == 1 {
            return number;
        }
        let first = text.op(Class::Word, "shr.u32", &[&number, &self.run.ilog2()]);
        let of_run = text.op(Class::Word, "and.b32", &[&number, &(self.run - 1)]);
        text.op(Class::Word, "mad.lo.s32", &[&of_run, &COLUMNS, &first])
    }

    /// How many slots behind the first one each point of a thread lies, in the order of [`points`](Self::points).
    /// Neighbours in the tile lie `along` slots apart, runs of a thread `across`.
    fn behind(&self, [along, across]: [usize; 2]) -> impl Iterator<Item = usize> {
        let step = ROWS / self.run * across;
        let runs = self.runs();
        (0..self.run).flat_map(move |of_run| (0..runs).map(move |run| of_run * COLUMNS * along + run * step))
    }

    /// All points of a thread: the place in a run varies slowest.
    fn points(&self, emitter: &Emitter<'_>) -> Vec<Vec<usize>> {
        emitter.points(emitter.lanes_of(&self.axes))
    }

    /// Binds the axes: neighbouring threads have neighbouring runs along the first axis, and each has several along the
    /// second. Returns whether the thread is inside along the first axis; if not, it is bound to the last run.
    fn bind(
        &self,
        emitter: &mut Emitter<'_>,
        [first, second]: [usize; 2],
        corner: [Reg; 2],
        [column, row]: [Reg; 2],
    ) -> Reg {
        let nest = emitter.nest;
        let extents = [first, second].map(|i| nest.extents[self.axes[i]]);
        let text = &mut emitter.text;
        let along = text.op(Class::Word, "mad.lo.s32", &[&column, &self.run, &corner[first]]);
        let inside = text.op(Class::Pred, "setp.lt.s32", &[&along, &extents[0]]);
        let along = text.op(Class::Word, "min.s32", &[&along, &(extents[0] - self.run)]);
        let across = text.op(Class::Word, "add.s32", &[&corner[second], &row]);
        let mut lanes = Lanes::runs(self.axes[second], 1, ROWS, self.runs());
        if !extents[1].is_multiple_of(self.tile()) {
            for lane in 0..lanes.len() {
                let end = extents[1] as i64 - lanes.offset(lane);
                lanes.set_valid(lane, Some(text.op(Class::Pred, "setp.lt.s32", &[&across, &end])));
            }
        }
        emitter.bind_lanes(Some(along), self.run as i64, Lanes::neighbours(self.axes[first], self.run));
        emitter.bind_lanes(Some(across), 1, lanes);
        inside
    }

    /// The number of bytes of a term's tile.
    fn bytes(&self, nest: &Nest, id: TermId) -> u32 {
        let bytes = if Class::of(nest.machine(id)) == Class::Long { 8 } else { 4 };
        (self.tile() * self.pitch() * bytes) as u32
    }
}

/// Whether a term is a load of other elements along an axis.
fn varies(nest: &Nest, id: TermId, axis: usize) -> bool {
    matches!(nest.term(id).kind, TermKind::Load { .. }) && nest.deps[id.0].contains(&axis)
}

/// The number of neighbours that a thread reads and writes at once.
fn run(nest: &Nest, turned: &[TermId], axes: [usize; 2]) -> usize {
    let is_narrow = |id: &TermId| match nest.term(*id).kind {
        TermKind::Load { operand, .. } => nest.of.operands[operand].dtype.bytes() <= 2,
        _ => nest.term(*id).dtype.bytes() <= 2,
    };
    let in_pairs = axes.iter().all(|&axis| nest.extents[axis].is_multiple_of(2));
    if in_pairs && turned.len() <= MOST_PAIRS && turned.iter().all(is_narrow) { 2 } else { 1 }
}
