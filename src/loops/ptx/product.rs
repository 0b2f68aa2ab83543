//! Sums of products in tiles. A block stages a slice of both sides in shared memory, and each of its threads sums a
//! small tile in registers.
//!
//! The sides are any terms: a convolution gathers its operand when it stages it, and conversions and functions of
//! operands are computed once for each tile. Terms that depend on the sum are computed in registers.

use super::emit::{EmitState, Emitter, Lanes, Value};
use super::nest::{Nest, Reduction};
use super::point::unravelled;
use super::text::{Class, Reg, Text};
use crate::graph::Binary;
use crate::loops::ir::{Monoid, TermId, TermKind};
use crate::tensor::Dtype;

/// The number of threads of a block, and the number of neighbours that a thread reads at once.
const THREADS: usize = 256;
const RUN: usize = 4;
/// The least number of rows and of columns of a product.
const FEWEST: usize = 16;
/// The number of points of the sum that are staged at a time.
const DEPTH: usize = 16;

/// A loop that is a product: `[batch, rows, summed]` by `[batch, summed, columns]`.
#[derive(Debug)]
pub(super) struct Product {
    sum: Reduction,
    sides: [Side; 2],
    batch: Vec<usize>,
    tile: Tile,
}

/// A tile: the rows and columns of a block's threads, and those of the results of each thread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    threads: [usize; 2],
    each: [usize; 2],
}

/// One side of a product.
#[derive(Clone, Debug)]
struct Side {
    term: TermId,
    /// The axes of its rows or columns.
    axes: Vec<usize>,
    count: usize,
    /// The number of neighbouring elements that a thread reads at once along the sum, or along the side's own axes.
    along_sum: usize,
    along_own: usize,
}

/// The place of a side in shared memory, and the elements of it that a thread stages.
struct Stage {
    place: u32,
    /// The distance from one point of the sum to the next, in elements.
    pitch: usize,
    /// For each group of rows that a thread stages, the emitter's state and the group's first row in the tile.
    groups: Vec<(EmitState, Reg)>,
    /// The thread's first point of the sum, and the distances to its further points.
    depth: Reg,
    depths: Vec<usize>,
    /// Whether neighbours are points of the sum; else they are rows.
    is_along_sum: bool,
    /// The loaded elements: registers for each group and depth.
    held: Vec<Vec<Reg>>,
}

impl Tile {
    /// The tiles in which kernels are written.
    fn all() -> impl Iterator<Item = Self> {
        let threads = [[16, 16], [32, 8], [8, 32], [64, 4], [4, 64]];
        let each = [[8, 8], [8, 4], [4, 8], [4, 4]];
        let all = threads.into_iter().flat_map(move |threads| each.map(|each| Self { threads, each }));
        all.filter(|tile| tile.size().iter().all(|&size| size <= THREADS))
    }

    /// The numbers of rows and columns of the tile.
    fn size(&self) -> [usize; 2] {
        [0, 1].map(|i| self.threads[i] * self.each[i])
    }

    /// The number of results of a thread.
    fn results(&self) -> usize {
        self.each[0] * self.each[1]
    }

    /// The distance of a thread's row or column `number` from its first one.
    fn offset(&self, side: usize, number: usize) -> usize {
        number / RUN * RUN * self.threads[side] + number % RUN
    }

    /// The predicted clocks of a product. Blocks of a multiprocessor run one after the other or, if there are registers
    /// left, beside each other, so that each hides the others' waits. The constants are fitted to 14 convolutions in
    /// all tiles on an H100 (benches/notes/2026-11-26-products-in-f32.md).
    fn clocks(&self, [m, n]: [usize; 2], batch: usize, points: usize, units: usize) -> f64 {
        const FIXED: f64 = 2000.0;
        const OF_A_RESULT: f64 = 30.0;
        const OF_A_WAIT: f64 = 0.3;
        let [rows, columns] = self.size();
        let [a, b] = self.each;
        let blocks = m.div_ceil(rows) * n.div_ceil(columns) * batch;
        let of_a_point = (2 * a * b + 2 * (a + b)) as f64 + (rows + columns) as f64 / 24.0;
        let points = points.next_multiple_of(DEPTH) as f64;
        let block = points * of_a_point + FIXED + OF_A_RESULT * self.results() as f64;
        let of_a_unit = blocks.div_ceil(units.max(1));
        let beside = of_a_unit.min(64 / self.results());
        of_a_unit as f64 * block * (1.0 + OF_A_WAIT / beside as f64)
    }
}

impl Product {
    /// The product that a nest is; `None` if it is none, or if tiles do not pay.
    pub fn find(nest: &Nest, units: usize) -> Option<Self> {
        let mut all = nest.reductions();
        let (sum, None) = (all.next()?, all.next()) else { return None };
        let TermKind::Binary(Binary::Mul, [left, right]) = nest.term(*sum.body.first()?).kind else { return None };
        let typed = sum.op == Monoid::Sum && nest.machine(sum.id) == Dtype::F32;
        let results = nest.result_axes();
        let of = |side: TermId, with: bool, other: TermId| -> Vec<usize> {
            let has = |id: TermId, axis: &usize| nest.deps[id.0].contains(axis);
            results.iter().copied().filter(|axis| has(side, axis) && has(other, axis) == with).collect()
        };
        let last = results.last()?;
        let sides = if nest.deps[right.0].contains(last) { [left, right] } else { [right, left] };
        let batch = of(left, true, right);
        let sides = [(sides[0], sides[1]), (sides[1], sides[0])]
            .map(|(side, other)| Side::new(nest, side, of(side, false, other), &sum));
        let all = batch.len() + sides.iter().map(|side| side.axes.len()).sum::<usize>() == results.len();
        let [m, n] = sides.each_ref().map(|side| side.count);
        let fits = sum.points.max(m).max(n) < 1 << 30 && m * n < 1 << 31;
        if !(typed && all && fits && m >= FEWEST && n >= FEWEST && sum.points >= DEPTH / 2) {
            return None;
        }
        let clocks = |tile: &Tile| tile.clocks([m, n], extent(nest, &batch), sum.points, units);
        let tile = Tile::all().min_by(|a, b| clocks(a).total_cmp(&clocks(b)))?;
        let sides = [0, 1].map(|i| sides[i].clone().staged(tile.size()[i]));
        Some(Self { sum, sides, batch, tile })
    }

    /// Writes the kernel; returns the number of blocks, and of threads of a block.
    pub fn write(&self, emitter: &mut Emitter<'_>) -> [usize; 2] {
        let nest = emitter.nest;
        let size = self.tile.size();
        let tiles = [0, 1].map(|i| self.sides[i].count.div_ceil(size[i]));
        let batch: Vec<usize> = self.batch.iter().map(|&axis| nest.extents[axis]).collect();
        let block = emitter.text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
        let indices = unravelled(emitter, block, &[&batch[..], &tiles].concat());
        let (batches, corner) = indices.split_at(batch.len());
        self.batch.iter().zip(batches).for_each(|(&axis, &index)| emitter.bind(axis, Some(index), 1));
        let corner = [0, 1].map(|i| scaled(&mut emitter.text, corner[i], size[i]));
        let thread = emitter.text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let stages = [0, 1].map(|i| self.stage(emitter, i, corner[i], thread));
        let places = self.places(emitter, thread);
        let sums: Vec<Reg> = (0..self.tile.results()).map(|_| emitter.text.number(Class::Word, 0)).collect();
        let depth = emitter.text.number(Class::Word, 0);
        stages.iter().zip(&self.sides).for_each(|(stage, side)| self.load(emitter, side, stage, depth, 0));
        emitter.repeat(depth, DEPTH, self.sum.points, |emitter| {
            stages.iter().for_each(|stage| stage.put(&mut emitter.text));
            emitter.text.put(format_args!("bar.sync 0"));
            stages.iter().zip(&self.sides).for_each(|(stage, side)| self.load(emitter, side, stage, depth, DEPTH));
            self.multiply(&mut emitter.text, &stages, places, &sums);
            emitter.text.put(format_args!("bar.sync 0"));
        });
        self.finish(emitter, corner, thread, &sums);
        [tiles.iter().chain(&batch).product(), THREADS]
    }

    /// The elements of a side that a thread stages: groups of rows at points of the sum, in the order in which
    /// neighbours lie.
    fn stage(&self, emitter: &mut Emitter<'_>, number: usize, corner: Reg, thread: Reg) -> Stage {
        let (side, size) = (&self.sides[number], self.tile.size()[number]);
        let text = &mut emitter.text;
        let (own, of_sum) = match side.along_sum > 1 {
            true => (1, side.along_sum),
            false => (side.along_own, 1),
        };
        let across = if side.along_sum > 1 { DEPTH / of_sum } else { size / own };
        let fast = text.op(Class::Word, "and.b32", &[&thread, &(across - 1)]);
        let slow = text.op(Class::Word, "shr.u32", &[&thread, &across.ilog2()]);
        let (row, depth) = if side.along_sum > 1 { (slow, fast) } else { (fast, slow) };
        let (rows, depths) = if side.along_sum > 1 { (THREADS / across, DEPTH) } else { (size, THREADS / across) };
        let (row, depth) = (scaled(text, row, own), scaled(text, depth, of_sum));
        let groups = (0..size / rows).map(|group| {
            let in_tile = emitter.text.op(Class::Word, "add.s32", &[&row, &(group * rows)]);
            let first = emitter.text.op(Class::Word, "add.s32", &[&corner, &in_tile]);
            let state = emitter.scope(|emitter| {
                self.bind(emitter, &side.axes, first, side.count, own);
                emitter.hoist(side.term);
                emitter.state()
            });
            (state, in_tile)
        });
        let groups: Vec<(EmitState, Reg)> = groups.collect();
        let depths: Vec<usize> = (0..DEPTH).step_by(depths).collect();
        let count = groups.len() * depths.len();
        let held = (0..count).map(|_| (0..own * of_sum).map(|_| emitter.text.reg(Class::Word)).collect()).collect();
        let pitch = size + RUN;
        let place = emitter.text.share((4 * pitch * DEPTH) as u32);
        Stage { place, pitch, groups, depth, depths, is_along_sum: side.along_sum > 1, held }
    }

    /// Binds axes to their points from point `number` on, `run` neighbours along the last axis. If there are too few
    /// points, binds the last ones.
    fn bind(&self, emitter: &mut Emitter<'_>, axes: &[usize], number: Reg, count: usize, run: usize) {
        let extents: Vec<usize> = axes.iter().map(|&axis| emitter.nest.extents[axis]).collect();
        let number = emitter.text.op(Class::Word, "min.s32", &[&number, &(count - run)]);
        let indices = unravelled(emitter, number, &extents);
        for (place, (&axis, index)) in axes.iter().zip(indices).enumerate() {
            match place + 1 == axes.len() && run > 1 {
                true => emitter.bind_lanes(Some(index), run as i64, Lanes::neighbours(axis, run)),
                false => emitter.bind(axis, Some(index), 1),
            }
        }
    }

    /// Loads the elements of a side that a thread stages, `ahead` points behind point `depth` of the sum; zeros after
    /// the last point.
    fn load(&self, emitter: &mut Emitter<'_>, side: &Side, stage: &Stage, depth: Reg, ahead: usize) {
        let (run, points) = (side.along_sum, self.sum.points);
        for (place, &further) in stage.depths.iter().enumerate() {
            let first = emitter.text.op(Class::Word, "add.s32", &[&depth, &stage.depth]);
            let first = emitter.text.op(Class::Word, "add.s32", &[&first, &(further + ahead)]);
            let inside = emitter.text.op(Class::Pred, "setp.lt.s32", &[&first, &points]);
            for (group, (state, _)) in stage.groups.iter().enumerate() {
                let held = &stage.held[group * stage.depths.len() + place];
                emitter.scope(|emitter| {
                    emitter.restore(state.clone());
                    self.bind(emitter, &self.sum.axes, first, points, run);
                    let value = emitter.value(side.term);
                    let of = emitter.lanes_of(side.axes.iter().chain(&self.sum.axes));
                    for (at, &to) in emitter.points(of).iter().zip(held) {
                        let x = emitter.pick(&value, at);
                        emitter.text.set(to, "selp.b32", &[&x, &0, &inside]);
                    }
                });
            }
        }
    }

    /// The addresses in the tiles from which a thread reads its rows and columns.
    fn places(&self, emitter: &mut Emitter<'_>, thread: Reg) -> [Reg; 2] {
        let text = &mut emitter.text;
        let base = text.op(Class::Word, "mov.u32", &[&"shared"]);
        self.cell(text, thread).map(|first| text.op(Class::Word, "mad.lo.s32", &[&first, &4, &base]))
    }

    /// The first row and the first column of a thread in the tile.
    fn cell(&self, text: &mut Text, thread: Reg) -> [Reg; 2] {
        let [_, columns] = self.tile.threads;
        let row = text.op(Class::Word, "shr.u32", &[&thread, &columns.ilog2()]);
        let column = text.op(Class::Word, "and.b32", &[&thread, &(columns - 1)]);
        [row, column].map(|index| scaled(text, index, RUN))
    }

    /// Adds the products of the staged elements to the sums.
    fn multiply(&self, text: &mut Text, stages: &[Stage; 2], places: [Reg; 2], sums: &[Reg]) {
        for depth in 0..DEPTH {
            let [a, b] = [0, 1].map(|i| {
                let runs = self.tile.each[i] / RUN;
                let read = |run: usize| {
                    let regs: [Reg; RUN] = std::array::from_fn(|_| text.reg(Class::Word));
                    let first = self.tile.offset(i, run * RUN);
                    let offset = stages[i].place as usize + 4 * (depth * stages[i].pitch + first);
                    let [p, q, r, s] = regs;
                    text.put(format_args!("ld.shared.v4.b32 {{{p}, {q}, {r}, {s}}}, [{}+{offset}]", places[i]));
                    regs
                };
                (0..runs).flat_map(read).collect::<Vec<Reg>>()
            });
            for (i, a) in a.iter().enumerate() {
                for (j, b) in b.iter().enumerate() {
                    let sum = sums[i * self.tile.each[1] + j];
                    text.set(sum, "fma.rn.f32", &[a, b, &sum]);
                }
            }
        }
    }

    /// Computes the results from the sums and writes them, row by row.
    fn finish(&self, emitter: &mut Emitter<'_>, corner: [Reg; 2], thread: Reg, sums: &[Reg]) {
        let cell = self.cell(&mut emitter.text, thread);
        let first = [0, 1].map(|i| emitter.text.op(Class::Word, "add.s32", &[&corner[i], &cell[i]]));
        let [rows, columns] = &self.sides;
        for i in 0..self.tile.each[0] {
            let row = emitter.text.op(Class::Word, "add.s32", &[&first[0], &self.tile.offset(0, i)]);
            let valid = emitter.text.op(Class::Pred, "setp.lt.s32", &[&row, &rows.count]);
            emitter.scope(|emitter| {
                self.bind(emitter, &rows.axes, row, rows.count, 1);
                let sums = &sums[i * self.tile.each[1]..][..self.tile.each[1]];
                if let [axis] = columns.axes[..] {
                    self.finish_row(emitter, axis, first[1], valid, sums);
                    return;
                }
                for (j, &sum) in sums.iter().enumerate() {
                    let column = emitter.text.op(Class::Word, "add.s32", &[&first[1], &self.tile.offset(1, j)]);
                    let inside = emitter.text.op(Class::Pred, "setp.lt.s32", &[&column, &columns.count]);
                    let both = emitter.text.op(Class::Pred, "and.pred", &[&valid, &inside]);
                    emitter.scope(|emitter| {
                        self.bind(emitter, &columns.axes, column, columns.count, 1);
                        emitter.set_value(self.sum.id, Value { lanes: 0, regs: vec![sum] });
                        emitter.store(Some(both));
                    });
                }
            });
        }
    }

    /// Computes and writes the results of a row whose columns are one axis, side by side.
    fn finish_row(&self, emitter: &mut Emitter<'_>, axis: usize, first: Reg, valid: Reg, sums: &[Reg]) {
        let count = self.sides[1].count;
        let run = if count.is_multiple_of(RUN) { RUN } else { 1 };
        let runs: Vec<i64> = (0..self.tile.each[1]).map(|j| self.tile.offset(1, j) as i64).collect();
        let mut lanes = Lanes::at(axis, runs, run);
        for lane in 0..lanes.len() {
            let is_new = lane % run == 0;
            let inside = match is_new {
                true => {
                    let end = count as i64 - lanes.offset(lane);
                    Some(emitter.text.op(Class::Pred, "setp.lt.s32", &[&first, &end]))
                }
                false => lanes.valid(lane - 1),
            };
            lanes.set_valid(lane, inside);
        }
        emitter.bind_lanes(Some(first), run as i64, lanes);
        let lanes = emitter.lanes_of(&[axis]);
        emitter.set_value(self.sum.id, Value { lanes, regs: sums.to_vec() });
        emitter.store(Some(valid));
    }
}

impl Side {
    fn new(nest: &Nest, term: TermId, axes: Vec<usize>, sum: &Reduction) -> Self {
        let run = |axes: &[usize]| match axes.last() {
            Some(&axis) if nest.extents[axis].is_multiple_of(RUN) && steps_by_one(nest, term, axis) => RUN,
            _ => 1,
        };
        let (along_sum, along_own) = (run(&sum.axes), run(&axes));
        Self { term, count: extent(nest, &axes), along_sum, along_own, axes }
    }

    /// The side if `size` rows or columns are staged at a time. With few of them, no thread stages several neighbours.
    fn staged(self, size: usize) -> Self {
        match size * RUN >= THREADS {
            true => self,
            false => Self { along_sum: 1, along_own: 1, ..self },
        }
    }
}

/// Whether a term depends on a load that reads neighbouring elements along an axis.
fn steps_by_one(nest: &Nest, term: TermId, axis: usize) -> bool {
    match nest.term(term).kind {
        TermKind::Load { index, .. } => nest.index(index).stride(axis) == 1,
        _ => nest.reads(term).into_iter().any(|read| steps_by_one(nest, read, axis)),
    }
}

impl Stage {
    /// Writes the loaded elements to shared memory.
    fn put(&self, text: &mut Text) {
        let base = text.op(Class::Word, "mov.u32", &[&"shared"]);
        for (group, (_, row)) in self.groups.iter().enumerate() {
            let at = text.op(Class::Word, "mad.lo.s32", &[&self.depth, &self.pitch, row]);
            let at = text.op(Class::Word, "mad.lo.s32", &[&at, &4, &base]);
            for (place, further) in self.depths.iter().enumerate() {
                let held = &self.held[group * self.depths.len() + place];
                let offset = self.place as usize + 4 * further * self.pitch;
                match (&held[..], self.is_along_sum) {
                    ([p, q, r, s], false) => {
                        text.put(format_args!("st.shared.v4.b32 [{at}+{offset}], {{{p}, {q}, {r}, {s}}}"));
                    }
                    (held, _) => held.iter().enumerate().for_each(|(i, x)| {
                        text.put(format_args!("st.shared.b32 [{at}+{}], {x}", offset + 4 * i * self.pitch));
                    }),
                }
            }
        }
    }
}

fn extent(nest: &Nest, axes: &[usize]) -> usize {
    axes.iter().map(|&axis| nest.extents[axis]).product()
}

fn scaled(text: &mut Text, x: Reg, by: usize) -> Reg {
    text.op(Class::Word, "mul.lo.s32", &[&x, &by])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_about_as_wide_as_what_it_computes() {
        let size = |[m, n]: [usize; 2]| {
            let clocks = |tile: &Tile| tile.clocks([m, n], 1, 144, 132);
            Tile::all().min_by(|a, b| clocks(a).total_cmp(&clocks(b))).unwrap().size()
        };
        for few in [16, 24, 32, 40, 64] {
            assert!(size([100_352, few])[1] < 2 * few.next_multiple_of(16), "{few}: {:?}", size([100_352, few]));
            assert!(size([few, 100_352])[0] < 2 * few.next_multiple_of(16), "{few}: {:?}", size([few, 100_352]));
        }
        assert_eq!(size([100_352, 1024]).iter().product::<usize>(), THREADS * 64);
        assert!(size([49, 960]).iter().product::<usize>() < THREADS * 64, "every multiprocessor has a block");
    }
}
