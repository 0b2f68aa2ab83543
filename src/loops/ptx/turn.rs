//! Results whose operands lie in another order of axes. Tiles of operands are transposed in shared memory, so that
//! neighbouring threads read neighbouring elements and write neighbouring elements.

use super::emit::{Emitter, Lanes, Value};
use super::nest::Nest;
use super::point::unravelled;
use super::team::{get, put};
use super::text::{Class, Reg};
use crate::loops::ir::{TermId, TermKind};

/// The number of points of a tile along both axes, and of rows of threads. Each thread has several points along the
/// other axis.
const TILE: usize = 32;
const ROWS: usize = 8;
/// The largest number of operands that are transposed.
const MOST: usize = 4;

/// The division of a nest into tiles.
#[derive(Debug)]
pub(super) struct Turn {
    /// The loads that are contiguous along the first axis. The result is contiguous along the second.
    loads: Vec<TermId>,
    axes: [usize; 2],
    others: Vec<usize>,
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
        let of_axis = |&axis: &usize| nest.extents[axis] >= TILE / 2 && nest.needed().any(|id| lies(&id, axis));
        let across = others.iter().copied().find(of_axis)?;
        let loads: Vec<TermId> = nest.needed().filter(|id| lies(id, across)).take(MOST).collect();
        let extents = results.iter().map(|&axis| nest.extents[axis]).product::<usize>();
        let fits = nest.extents[along] >= TILE / 2
            && extents < 1 << 40
            && nest.extents[along].max(nest.extents[across]) < 1 << 30;
        let others = others.iter().copied().filter(|&axis| axis != across).collect();
        (fits && nest.reductions().next().is_none()).then_some(Self { loads, axes: [across, along], others })
    }

    /// Writes the kernel; returns the number of blocks, and of threads of a block.
    pub fn write(&self, emitter: &mut Emitter<'_>) -> [usize; 2] {
        let nest = emitter.nest;
        let tiles = self.axes.map(|axis| nest.extents[axis].div_ceil(TILE));
        let others: Vec<usize> = self.others.iter().map(|&axis| nest.extents[axis]).collect();
        let block = emitter.text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
        let indices = unravelled(emitter, block, &[&others[..], &tiles].concat());
        let (outer, corner) = indices.split_at(others.len());
        self.others.iter().zip(outer).for_each(|(&axis, &index)| emitter.bind(axis, Some(index), 1));
        let text = &mut emitter.text;
        let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let column = text.op(Class::Word, "and.b32", &[&thread, &(TILE - 1)]);
        let row = text.op(Class::Word, "shr.u32", &[&thread, &TILE.ilog2()]);
        let corner = [corner[0], corner[1]].map(|corner| text.op(Class::Word, "mul.lo.s32", &[&corner, &TILE]));
        let slot = text.op(Class::Word, "mad.lo.s32", &[&row, &(TILE + 1), &column]);
        let turned = text.op(Class::Word, "mad.lo.s32", &[&column, &(TILE + 1), &row]);
        let places: Vec<u32> = self.loads.iter().map(|&load| emitter.text.share(bytes(nest, load))).collect();
        emitter.scope(|emitter| {
            self.bind(emitter, [0, 1], corner, [column, row]);
            for (&load, &place) in self.loads.iter().zip(&places) {
                let value = emitter.value(load);
                for (lane, reg) in lanes(emitter, &value, self.axes[1]).into_iter().enumerate() {
                    put(&mut emitter.text, reg, place, slot, lane * ROWS * (TILE + 1), None);
                }
            }
        });
        emitter.text.put(format_args!("bar.sync 0"));
        let inside = self.bind(emitter, [1, 0], corner, [column, row]);
        for (&load, &place) in self.loads.iter().zip(&places) {
            let class = Class::of(nest.machine(load));
            let regs: Vec<Reg> = (0..TILE / ROWS).map(|_| emitter.text.reg(class)).collect();
            regs.iter().enumerate().for_each(|(lane, &reg)| get(&mut emitter.text, reg, place, turned, lane * ROWS));
            let lanes = emitter.lanes_of(&[self.axes[0]]);
            emitter.set_value(load, Value { lanes, regs });
        }
        emitter.store(Some(inside));
        [tiles.iter().chain(&others).product(), TILE * ROWS]
    }

    /// Binds the axes: neighbouring threads run along the first axis and have several points along the second. Returns
    /// whether the thread is inside along the first axis; if not, it is bound to the last point.
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
        let along = text.op(Class::Word, "add.s32", &[&corner[first], &column]);
        let inside = text.op(Class::Pred, "setp.lt.s32", &[&along, &extents[0]]);
        let along = text.op(Class::Word, "min.s32", &[&along, &(extents[0] - 1)]);
        let across = text.op(Class::Word, "add.s32", &[&corner[second], &row]);
        let mut lanes = Lanes::runs(self.axes[second], 1, ROWS, TILE / ROWS);
        if !extents[1].is_multiple_of(TILE) {
            for lane in 0..lanes.len() {
                let end = extents[1] as i64 - lanes.offset(lane);
                lanes.set_valid(lane, Some(text.op(Class::Pred, "setp.lt.s32", &[&across, &end])));
            }
        }
        emitter.bind(self.axes[first], Some(along), 1);
        emitter.bind_lanes(Some(across), 1, lanes);
        inside
    }
}

/// The registers of a value at all lanes of an axis.
fn lanes(emitter: &Emitter<'_>, value: &Value, axis: usize) -> Vec<Reg> {
    emitter.points(emitter.lanes_of(&[axis])).iter().map(|at| emitter.pick(value, at)).collect()
}

/// The number of bytes of a term's tile.
fn bytes(nest: &Nest, id: TermId) -> u32 {
    let bytes = if Class::of(nest.machine(id)) == Class::Long { 8 } else { 4 };
    (TILE * (TILE + 1) * bytes) as u32
}
