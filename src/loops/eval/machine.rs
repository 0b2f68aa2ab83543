//! The evaluation of a prepared loop.

use std::ops::Range;

use super::View;
use super::column::{Block, Column, LANES};
use super::fold::{self, Extreme};
use super::lanes::{Lanes, point, step, tabulate};
use super::ops;
use super::program::{Address, Band, Place, Program, Step};
use crate::graph::Element;
use crate::loops::ir::{Guard, Monoid, TermId, TermKind};
use crate::loops::team::Team;

/// Writes the elements of a loop. A team shares out the points if their results follow one another.
pub(super) fn run(program: &Program, operands: &[View<'_>], to: &mut [u8], team: &dyn Team) {
    match program.lines() {
        Some((band, lines)) => lines.share(team, to, &|_, points, to| {
            Machine::new(program, operands).write_points(band, points, lines.pitch, to);
        }),
        None => {
            let points = program.scopes[0][0].extents.iter().product();
            Machine::new(program, operands).write_points(0, 0..points, 0, to);
        }
    }
}

/// The state of a loop's evaluation.
pub(super) struct Machine<'a> {
    program: &'a Program<'a>,
    operands: &'a [View<'a>],
    near: Option<Near>,
    /// Whether the terms that are the same at all points are computed, if all points are side by side.
    has_begun: bool,
    /// The values of terms, see [`Program::column_of`].
    columns: Vec<Column>,
    /// The extreme values of those reductions whose result is an index.
    best: Vec<Column>,
    tables: Vec<Vec<i64>>,
    /// For each band, the block for which its kept terms were computed: the number of its first lane among the inner
    /// points, and the number of its lanes. `None` before that.
    kept: Vec<Option<(usize, usize)>>,
    /// The index along each axis that runs point by point.
    at: Vec<usize>,
    /// The number of lanes in the block, and the number of the first lane among the points of its band.
    len: usize,
    start: usize,
}

/// Neighbouring elements of an operand that is not in memory as a whole.
struct Near {
    operand: usize,
    /// The index of the first element.
    first: i64,
    words: Vec<u64>,
}

impl<'a> Machine<'a> {
    pub fn new(program: &'a Program, operands: &'a [View<'a>]) -> Self {
        let of = program.of;
        let best = |(step, _): (&Option<Step>, usize)| match step {
            Some(Step::Reduce { op: Monoid::Arg { .. }, body, .. }) => Column::new(of.term(body[0]).dtype),
            _ => Column::default(),
        };
        Self {
            program,
            operands,
            near: None,
            has_begun: false,
            columns: program.columns.iter().map(|&dtype| Column::new(dtype)).collect(),
            best: program.steps.iter().zip(0..).map(best).collect(),
            tables: vec![vec![0; LANES]; program.tables],
            kept: vec![None; program.bands],
            at: vec![0; of.axes.len()],
            len: 1,
            start: 0,
        }
    }

    /// Writes the elements at these points of a band of the result; each point has `pitch` bytes. The bands around it
    /// have one point each.
    fn write_points(&mut self, band: usize, points: Range<usize>, pitch: usize, to: &mut [u8]) {
        let of = self.program.of;
        let (bands, size) = (&self.program.scopes[0], of.dtype().bytes());
        let stride = |axis: usize| of.axes[axis + 1..of.rank].iter().product::<usize>();
        let one_by_one = bands.iter().filter(|band| !band.lanes).flat_map(|band| &band.axes);
        let scalars: Vec<(usize, usize)> = one_by_one.map(|&axis| (axis, stride(axis))).collect();
        let before = points.start * pitch / size;
        let mut write = |machine: &mut Self| {
            let row: usize = scalars.iter().map(|&(axis, stride)| machine.at[axis] * stride).sum();
            machine.write(row + machine.start - before, to);
        };
        bands[..band].iter().for_each(|outer| self.some_points(outer, 0..1, &mut |_| ()));
        self.some_points(&bands[band], points, &mut |machine| machine.points(&bands[band + 1..], &mut write));
    }

    /// Goes through the points of these bands, computes the terms of each, and calls `then` at each innermost point or
    /// block.
    fn points(&mut self, bands: &'a [Band], then: &mut dyn FnMut(&mut Self)) {
        match bands.split_first() {
            Some((band, inner)) => {
                let all = 0..band.extents.iter().product();
                self.some_points(band, all, &mut |machine| machine.points(inner, then));
            }
            None => then(self),
        }
    }

    /// Goes through these points of a band.
    fn some_points(&mut self, band: &'a Band, points: Range<usize>, then: &mut dyn FnMut(&mut Self)) {
        if band.lanes {
            return self.blocks(band, points, then);
        }
        if points.is_empty() {
            return;
        }
        let mut at = point(&band.extents, points.start);
        for _ in points {
            band.axes.iter().zip(&at).for_each(|(&axis, &i)| self.at[axis] = i);
            self.compute(&band.terms);
            then(self);
            step(&band.extents, &mut at);
        }
    }

    /// Goes through these points of a band of lanes, block by block.
    fn blocks(&mut self, band: &'a Band, points: Range<usize>, then: &mut dyn FnMut(&mut Self)) {
        let outside = (self.len, self.start);
        for start in points.clone().step_by(band.block()) {
            (self.len, self.start) = (band.block().min(points.end - start), start);
            if start == points.start {
                self.keep(band);
                self.compute(&band.repeated);
            }
            self.tabulate(band, false);
            self.compute(&band.terms);
            then(self);
        }
        (self.len, self.start) = outside;
    }

    /// Computes the terms of a band that are the same in all blocks, unless they are still there.
    fn keep(&mut self, band: &'a Band) {
        let Some(inner) = band.inner() else { return };
        let first = self.start % inner;
        if self.kept[band.number].is_some_and(|(known, len)| known == first && len >= self.len) {
            return;
        }
        self.tabulate(band, true);
        self.compute(&band.kept);
        self.kept[band.number] = Some((first, self.len));
    }

    /// Room for the elements `first..first + count` of the last operand, which follows the given ones. The caller
    /// computes the elements. Until the next call, loads of this operand can read only these. They depend on all axes of
    /// the result, so that no kept term reads them.
    pub fn near<T: Element>(&mut self, first: usize, count: usize) -> &mut [T] {
        let near = self.near.get_or_insert(Near { operand: self.operands.len(), first: 0, words: Vec::new() });
        near.first = first as i64;
        near.words.resize((count * size_of::<T>()).div_ceil(size_of::<u64>()).max(near.words.len()), 0);
        &mut bytemuck::cast_slice_mut(&mut near.words)[..count]
    }

    /// Writes the elements at these points of a loop without reductions, all of whose points are side by side.
    pub fn part(&mut self, points: Range<usize>, to: &mut [u8]) {
        let size = self.program.of.dtype().bytes();
        self.each_block(points, &mut |first, block| to[first * size..][..block.len()].copy_from_slice(block));
    }

    /// Calls `of` with neighbouring elements at some of these points, and with the number of the first one of them from
    /// the first point on, until all are computed. The loop has no reductions, and all of its points are side by side.
    pub fn each_block(&mut self, points: Range<usize>, of: &mut dyn FnMut(usize, &[u8])) {
        let first = points.start;
        for band in &self.program.scopes[0] {
            match band.lanes {
                true => {
                    let mut then = |machine: &mut Self| of(machine.start - first, machine.results());
                    self.blocks(band, points.clone(), &mut then);
                }
                false if self.has_begun => {}
                false => self.compute(&band.terms),
            }
        }
        self.has_begun = true;
    }

    /// Writes the results of a block to `to`, from element `at` on.
    fn write(&self, at: usize, to: &mut [u8]) {
        let result = self.results();
        to[at * self.program.of.dtype().bytes()..][..result.len()].copy_from_slice(result);
    }

    /// The results of a block.
    fn results(&self) -> &[u8] {
        &self.block(self.program.of.result.0).0[..self.len * self.program.of.dtype().bytes()]
    }

    /// Writes those tables of a band that are the same in each of its blocks (`repeated`), or the others.
    fn tabulate(&mut self, band: &Band, repeated: bool) {
        for (table, strides) in band.tables.iter().filter(|(_, strides)| band.repeats(strides) == repeated) {
            tabulate(&band.extents, strides, self.start, &mut self.tables[*table][..self.len]);
        }
    }

    /// The values of a term in the block: in its column, or where they are loaded from.
    fn block(&self, id: usize) -> Block<'_> {
        match &self.program.steps[id] {
            Some(Step::Load { operand, at: Address::Affine(place), .. }) if self.program.in_place[id] => {
                let near = self.near.as_ref().filter(|near| near.operand == *operand);
                let first = self.base(place) + self.start as i64 - near.map_or(0, |near| near.first);
                let from = near.map_or_else(|| self.operands[*operand].bytes, |near| bytemuck::cast_slice(&near.words));
                let size = self.program.of.terms[id].dtype.bytes();
                Block(&from[first as usize * size..][..self.len * size])
            }
            _ => Block(self.column(id).bytes()),
        }
    }

    fn column(&self, id: usize) -> &Column {
        &self.columns[self.program.column_of[id]]
    }

    /// Takes the column of a term, which is then written while columns of other terms are read.
    fn take(&mut self, id: usize) -> Column {
        std::mem::take(&mut self.columns[self.program.column_of[id]])
    }

    /// Puts the column of a term back.
    fn put(&mut self, id: usize, column: Column) {
        self.columns[self.program.column_of[id]] = column;
    }

    fn compute(&mut self, terms: &'a [usize]) {
        for &id in terms {
            self.term(id);
        }
    }

    fn term(&mut self, id: usize) {
        let n = if self.program.varies[id] { self.len } else { 1 };
        match self.program.steps[id].as_ref().expect("a term that is needed") {
            Step::Reduce { op: Monoid::Arg { largest, last }, body, scope } => {
                self.extreme(id, [*largest, *last], [body[0].0, body[1].0], *scope);
            }
            Step::Reduce { op, body, scope } => self.reduce(id, *op, body[0].0, *scope),
            step => {
                let mut to = self.take(id);
                self.write_term(id, step, &mut to, n);
                self.put(id, to);
            }
        }
        if self.program.splat[id] {
            self.columns[self.program.column_of[id]].splat(self.program.of.terms[id].dtype);
        }
    }

    /// Writes the first `n` values of a term that is no reduction.
    fn write_term(&self, id: usize, step: &Step, to: &mut Column, n: usize) {
        match step {
            Step::Const(bits) => to.fill(self.program.of.terms[id].dtype, *bits),
            Step::Affine(place) => self.affine(place, &mut to.elems_mut()[..n]),
            Step::Load { operand, at, guard } => match self.program.of.terms[id].dtype.bytes() {
                1 => self.load::<u8>(*operand, at, *guard, &mut to.elems_mut()[..n]),
                2 => self.load::<u16>(*operand, at, *guard, &mut to.elems_mut()[..n]),
                4 => self.load::<u32>(*operand, at, *guard, &mut to.elems_mut()[..n]),
                _ => self.load::<u64>(*operand, at, *guard, &mut to.elems_mut()[..n]),
            },
            Step::Function => self.function(id, to, n),
            Step::Reduce { .. } => unreachable!("reductions compute other terms"),
        }
    }

    /// The part of an index that is the same in all lanes.
    fn base(&self, place: &Place) -> i64 {
        place
            .scalars
            .iter()
            .fold(place.base, |sum, &(axis, stride)| sum.wrapping_add(stride.wrapping_mul(self.at[axis] as i64)))
    }

    fn affine(&self, place: &Place, to: &mut [i64]) {
        let base = self.base(place);
        match &place.lanes {
            Lanes::Same => to.fill(base),
            Lanes::Linear(by) => to.iter_mut().zip(self.start as i64..).for_each(|(to, i)| *to = base + by * i),
            Lanes::Table(table) => to.iter_mut().zip(&self.tables[*table]).for_each(|(to, offset)| *to = base + offset),
            Lanes::Runs(_) => unreachable!("runs are of addresses"),
        }
    }

    fn load<T: Element>(&self, operand: usize, at: &Address, guard: Option<Guard>, to: &mut [T]) {
        let n = to.len();
        let near = self.near.as_ref().filter(|near| near.operand == operand);
        let base = match at {
            Address::Affine(place) => self.base(place) - near.map_or(0, |near| near.first),
            Address::Term(_) => {
                debug_assert!(near.is_none(), "sums are read where the point is");
                0
            }
        };
        let from: &[T] = match near {
            Some(near) => bytemuck::cast_slice(&near.words),
            None => bytemuck::cast_slice(self.operands[operand].bytes),
        };
        let guard = guard
            .map(|guard| {
                let (condition, otherwise) = (self.column(guard.condition.0), self.column(guard.otherwise.0));
                (&condition.elems::<u8>()[..n], &otherwise.elems::<T>()[..n])
            })
            .filter(|(condition, _)| condition.contains(&0));
        if let Some((_, otherwise)) = guard.filter(|(condition, _)| !condition.contains(&1)) {
            return to.copy_from_slice(otherwise);
        }
        match at {
            Address::Term(index) => {
                let index = self.column(*index).elems::<i64>();
                read(from, to, guard, |lane| index[lane]);
            }
            Address::Affine(place) => match &place.lanes {
                Lanes::Linear(1) => copy(from, to, guard, 0, base + self.start as i64),
                &Lanes::Linear(by) if by > 1 && guard.is_none() => {
                    let every = from[(base + by * self.start as i64) as usize..].iter().step_by(by as usize);
                    assert!(every.len() >= n, "elements of a load");
                    to.iter_mut().zip(every).for_each(|(to, &elem)| *to = elem);
                }
                Lanes::Same => read(from, to, guard, |_| base),
                Lanes::Linear(by) => {
                    let first = base + by * self.start as i64;
                    read(from, to, guard, |lane| first + by * lane as i64);
                }
                Lanes::Runs(runs) => runs.each(self.start, n, |lanes, index| {
                    copy(from, &mut to[..lanes.end], guard, lanes.start, base + index);
                }),
                Lanes::Table(table) => {
                    let table = &self.tables[*table][..n];
                    read(from, to, guard, |lane| base + table[lane]);
                }
            },
        }
    }

    fn function(&self, id: usize, to: &mut Column, n: usize) {
        let term = &self.program.of.terms[id];
        let dtype = |of: &TermId| self.program.of.term(*of).dtype;
        let block = |of: &TermId| self.block(of.0);
        match &term.kind {
            TermKind::Cast(of) => ops::cast([dtype(of), term.dtype], block(of), to, n),
            TermKind::Unary(op, of) => ops::unary(*op, dtype(of), block(of), to, n),
            TermKind::Binary(op, of @ [a, b]) => {
                let varies = of.map(|of| self.program.varies[of.0]);
                ops::binary(*op, dtype(a), [block(a), block(b)], varies, to, n);
            }
            TermKind::Select([condition, a, b]) => {
                ops::select(term.dtype.bytes(), block(condition), [block(a), block(b)], to, n);
            }
            other => unreachable!("{other:?} has a step of its own"),
        }
    }

    fn reduce(&mut self, id: usize, op: Monoid, body: usize, scope: usize) {
        let program = self.program;
        let (dtype, n) = (program.of.terms[id].dtype, self.len);
        fold::start(op, dtype, &mut self.columns[program.column_of[id]]);
        self.points(&program.scopes[scope], &mut |machine| {
            let mut to = machine.take(id);
            match program.varies[id] {
                true => fold::across(op, dtype, machine.column(body), &mut to, n),
                false => fold::along(op, dtype, machine.column(body), &mut to, machine.len),
            }
            machine.put(id, to);
        });
    }

    fn extreme(&mut self, id: usize, [largest, last]: [bool; 2], [value, index]: [usize; 2], scope: usize) {
        let program = self.program;
        let (dtype, n) = (program.of.terms[value].dtype, self.len);
        let mut first = true;
        self.columns[program.column_of[id]].elems_mut::<i64>().fill(0);
        self.points(&program.scopes[scope], &mut |machine| {
            let (mut to, mut best) = (machine.take(id), std::mem::take(&mut machine.best[id]));
            let of = [value, index].map(|id| machine.column(id));
            let mut extreme = Extreme { largest, last, best: &mut best, at: &mut to };
            match program.varies[id] {
                true => extreme.across(dtype, of, n, first),
                false => extreme.along(dtype, of, machine.len, first),
            }
            machine.best[id] = best;
            machine.put(id, to);
            first = false;
        });
    }
}

/// Reads neighbouring elements, from element `at` on, for the lanes from `lane` on. Lanes whose guard is false get the
/// guard's other value.
fn copy<T: Copy>(from: &[T], to: &mut [T], guard: Option<(&[u8], &[T])>, mut lane: usize, at: i64) {
    let Some((condition, otherwise)) = guard else {
        let to = &mut to[lane..];
        return to.copy_from_slice(&from[at as usize..][..to.len()]);
    };
    let (first, end) = (lane, to.len());
    while lane < end {
        let count = alike(&condition[lane..end]);
        let to = &mut to[lane..][..count];
        match condition[lane] {
            0 => to.copy_from_slice(&otherwise[lane..][..count]),
            _ => to.copy_from_slice(&from[(at + (lane - first) as i64) as usize..][..count]),
        }
        lane += count;
    }
}

/// The number of first flags that are the same.
fn alike(flags: &[u8]) -> usize {
    let first = flags[0];
    let (words, rest) = flags.as_chunks();
    for (word, at) in words.iter().zip((0..).step_by(size_of::<u64>())) {
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes([first; size_of::<u64>()]);
        if differs != 0 {
            return at + differs.trailing_zeros() as usize / u8::BITS as usize;
        }
    }
    flags.len() - rest.len() + rest.iter().take_while(|flag| **flag == first).count()
}

/// Reads an element for each lane. Lanes whose guard is false get the guard's other value.
fn read<T: Copy>(from: &[T], to: &mut [T], guard: Option<(&[u8], &[T])>, at: impl Fn(usize) -> i64) {
    match guard {
        None => to.iter_mut().enumerate().for_each(|(lane, to)| *to = from[at(lane) as usize]),
        Some((condition, otherwise)) => {
            for (lane, to) in to.iter_mut().enumerate() {
                *to = if condition[lane] != 0 { from[at(lane) as usize] } else { otherwise[lane] };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_alike_up_to_the_first_other_one() {
        for len in 1..40 {
            for other in 1..=len {
                for first in [0, 1] {
                    let flags: Vec<u8> =
                        (0..len).map(|i| if i < other { first } else { first ^ (i % 2 == other % 2) as u8 }).collect();
                    assert_eq!(alike(&flags), other, "{flags:?}");
                }
            }
        }
    }
}
