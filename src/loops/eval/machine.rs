//! The evaluation of a prepared loop.

use std::ops::Range;

use super::View;
use super::column::{Column, LANES};
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
    /// The values of each term.
    columns: Vec<Column>,
    /// The extreme values of those reductions whose result is an index.
    best: Vec<Column>,
    tables: Vec<Vec<i64>>,
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
        let column = |(step, id): (&Option<Step>, usize)| match step {
            Some(_) => Column::new(of.terms[id].dtype),
            None => Column::empty(),
        };
        let best = |(step, _): (&Option<Step>, usize)| match step {
            Some(Step::Reduce { op: Monoid::Arg { .. }, body, .. }) => Column::new(of.term(body[0]).dtype),
            _ => Column::empty(),
        };
        Self {
            program,
            operands,
            near: None,
            columns: program.steps.iter().zip(0..).map(column).collect(),
            best: program.steps.iter().zip(0..).map(best).collect(),
            tables: vec![vec![0; LANES]; program.tables],
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
                self.tabulate(band, true);
                self.compute(&band.repeated);
            }
            self.tabulate(band, false);
            self.compute(&band.terms);
            then(self);
        }
        (self.len, self.start) = outside;
    }

    /// Room for the elements `first..first + count` of the last operand, which follows the given ones. The caller
    /// computes the elements. Until the next call, loads of this operand can read only these.
    pub fn near<T: Element>(&mut self, first: usize, count: usize) -> &mut [T] {
        let near = self.near.get_or_insert(Near { operand: self.operands.len(), first: 0, words: Vec::new() });
        near.first = first as i64;
        near.words.resize((count * size_of::<T>()).div_ceil(size_of::<u64>()).max(near.words.len()), 0);
        &mut bytemuck::cast_slice_mut(&mut near.words)[..count]
    }

    /// Writes the elements at these points of a loop without reductions, all of whose points are side by side.
    pub fn part(&mut self, points: Range<usize>, to: &mut [u8]) {
        let first = points.start;
        for band in &self.program.scopes[0] {
            match band.lanes {
                true => self.blocks(band, points.clone(), &mut |machine| machine.write(machine.start - first, to)),
                false => self.compute(&band.terms),
            }
        }
    }

    /// Writes the results of a block to `to`, from element `at` on.
    fn write(&self, at: usize, to: &mut [u8]) {
        let size = self.program.of.dtype().bytes();
        let result = &self.columns[self.program.of.result.0].bytes()[..self.len * size];
        to[at * size..][..result.len()].copy_from_slice(result);
    }

    /// Writes those tables of a band that are the same in each of its blocks (`repeated`), or the others.
    fn tabulate(&mut self, band: &Band, repeated: bool) {
        for (table, strides) in band.tables.iter().filter(|(_, strides)| band.repeats(strides) == repeated) {
            tabulate(&band.extents, strides, self.start, &mut self.tables[*table][..self.len]);
        }
    }

    fn compute(&mut self, terms: &'a [usize]) {
        for &id in terms {
            self.term(id);
            if self.program.splat[id] {
                self.columns[id].splat(self.program.of.terms[id].dtype);
            }
        }
    }

    fn term(&mut self, id: usize) {
        let n = if self.program.varies[id] { self.len } else { 1 };
        match self.program.steps[id].as_ref().expect("a term that is needed") {
            Step::Const(bits) => self.columns[id].fill(self.program.of.terms[id].dtype, *bits),
            Step::Affine(place) => self.affine(id, place, n),
            Step::Load { operand, at, guard } => self.load(id, *operand, at, *guard, n),
            Step::Function => self.function(id, n),
            Step::Reduce { op: Monoid::Arg { largest, last }, body, scope } => {
                self.extreme(id, [*largest, *last], [body[0].0, body[1].0], *scope);
            }
            Step::Reduce { op, body, scope } => self.reduce(id, *op, body[0].0, *scope),
        }
    }

    /// The part of an index that is the same in all lanes.
    fn base(&self, place: &Place) -> i64 {
        place
            .scalars
            .iter()
            .fold(place.base, |sum, &(axis, stride)| sum.wrapping_add(stride.wrapping_mul(self.at[axis] as i64)))
    }

    fn affine(&mut self, id: usize, place: &Place, n: usize) {
        let base = self.base(place);
        let to = &mut self.columns[id].elems_mut::<i64>()[..n];
        match &place.lanes {
            Lanes::Same => to.fill(base),
            Lanes::Linear(by) => to.iter_mut().zip(self.start as i64..).for_each(|(to, i)| *to = base + by * i),
            Lanes::Table(table) => to.iter_mut().zip(&self.tables[*table]).for_each(|(to, offset)| *to = base + offset),
            Lanes::Runs(_) => unreachable!("runs are of addresses"),
        }
    }

    fn load(&mut self, id: usize, operand: usize, at: &Address, guard: Option<Guard>, n: usize) {
        match self.program.of.terms[id].dtype.bytes() {
            1 => self.load_as::<u8>(id, operand, at, guard, n),
            2 => self.load_as::<u16>(id, operand, at, guard, n),
            4 => self.load_as::<u32>(id, operand, at, guard, n),
            _ => self.load_as::<u64>(id, operand, at, guard, n),
        }
    }

    fn load_as<T: Element>(&mut self, id: usize, operand: usize, at: &Address, guard: Option<Guard>, n: usize) {
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
        let (before, to) = self.columns.split_at_mut(id);
        let to = &mut to[0].elems_mut::<T>()[..n];
        let guard = guard
            .map(|guard| (&before[guard.condition.0].elems::<u8>()[..n], &before[guard.otherwise.0].elems::<T>()[..n]))
            .filter(|(condition, _)| condition.contains(&0));
        if let Some((_, otherwise)) = guard.filter(|(condition, _)| !condition.contains(&1)) {
            return to.copy_from_slice(otherwise);
        }
        match at {
            Address::Term(index) => {
                let index = before[*index].elems::<i64>();
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

    fn function(&mut self, id: usize, n: usize) {
        let term = &self.program.of.terms[id];
        let dtype = |of: &TermId| self.program.of.term(*of).dtype;
        let (before, to) = self.columns.split_at_mut(id);
        let to = &mut to[0];
        match &term.kind {
            TermKind::Cast(of) => ops::cast([dtype(of), term.dtype], &before[of.0], to, n),
            TermKind::Unary(op, of) => ops::unary(*op, dtype(of), &before[of.0], to, n),
            TermKind::Binary(op, [a, b]) => ops::binary(*op, dtype(a), [&before[a.0], &before[b.0]], to, n),
            TermKind::Select([condition, a, b]) => {
                ops::select(term.dtype.bytes(), &before[condition.0], [&before[a.0], &before[b.0]], to, n);
            }
            other => unreachable!("{other:?} has a step of its own"),
        }
    }

    fn reduce(&mut self, id: usize, op: Monoid, body: usize, scope: usize) {
        let program = self.program;
        let (dtype, n) = (program.of.terms[id].dtype, self.len);
        fold::start(op, dtype, &mut self.columns[id]);
        self.points(&program.scopes[scope], &mut |machine| {
            let (before, to) = machine.columns.split_at_mut(id);
            match program.varies[id] {
                true => fold::across(op, dtype, &before[body], &mut to[0], n),
                false => fold::along(op, dtype, &before[body], &mut to[0], machine.len),
            }
        });
    }

    fn extreme(&mut self, id: usize, [largest, last]: [bool; 2], [value, index]: [usize; 2], scope: usize) {
        let program = self.program;
        let (dtype, n) = (program.of.terms[value].dtype, self.len);
        let mut first = true;
        self.columns[id].elems_mut::<i64>().fill(0);
        self.points(&program.scopes[scope], &mut |machine| {
            let (before, to) = machine.columns.split_at_mut(id);
            let mut extreme = Extreme { largest, last, best: &mut machine.best[id], at: &mut to[0] };
            match program.varies[id] {
                true => extreme.across(dtype, [&before[value], &before[index]], n, first),
                false => extreme.along(dtype, [&before[value], &before[index]], machine.len, first),
            }
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
        let alike = |other: &u8| *other == condition[lane];
        let count = condition[lane..end].iter().take_while(|other| alike(other)).count();
        let to = &mut to[lane..][..count];
        match condition[lane] {
            0 => to.copy_from_slice(&otherwise[lane..][..count]),
            _ => to.copy_from_slice(&from[(at + (lane - first) as i64) as usize..][..count]),
        }
        lane += count;
    }
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
