//! A loop in the form in which it is evaluated: when each term is computed, and over which points side by side.

use std::collections::BTreeSet;

use super::column::LANES;
use super::lanes::{Lanes, RunsOfLanes};
use crate::loops::affine::{Affine, affine, linear, needed, sums_read};
use crate::loops::ir::{Guard, Loop, Monoid, Term, TermId, TermKind};
use crate::loops::team::Lines;
use crate::loops::work::rows;
use crate::tensor::Dtype;

/// The number of points below which it does not pay to compute them side by side if other points can be.
const FEW: usize = 16;

/// The number of points side by side from which on it pays to separate them from others.
const MANY: usize = 64;

/// The number of neighbouring elements from which on it pays to copy a run of its own.
const RUN: usize = 24;

/// A prepared loop.
///
/// Points run through nested bands. Some bands run point by point, others in blocks of lanes. A term is computed in the
/// outermost band where all that it depends on is known. No term depends on the lanes of two bands.
#[derive(Debug)]
pub(super) struct Program<'l> {
    pub of: &'l Loop,
    /// The step that computes each term; `None` for a term that is not read.
    pub steps: Vec<Option<Step>>,
    /// For each term, whether it differs between lanes.
    pub varies: Vec<bool>,
    /// For each term, whether it is the same in all lanes and is read where there are many.
    pub splat: Vec<bool>,
    /// For each term, whether it is a load of neighbouring elements that functions read where they are. It has no column.
    pub in_place: Vec<bool>,
    /// The column of each term. Terms of one band share a column if one is read for the last time before the next is
    /// computed.
    pub column_of: Vec<usize>,
    /// The type of each column's elements, or another one with as many bytes.
    pub columns: Vec<Dtype>,
    /// The bands of the result's points, then those of each reduction. A reduction within another one comes later.
    pub scopes: Vec<Vec<Band>>,
    /// The number of all bands.
    pub bands: usize,
    /// The number of tables of all bands.
    pub tables: usize,
}

/// A band: axes that run together.
#[derive(Debug, Default)]
pub(super) struct Band {
    pub axes: Vec<usize>,
    pub extents: Vec<usize>,
    /// Whether many points are computed side by side.
    pub lanes: bool,
    /// The number of this band among all bands of the program.
    pub number: usize,
    /// The number of first axes that `kept` and `repeated` terms do not depend on; `None` if there are no such terms.
    pub outer: Option<usize>,
    /// The terms that depend only on the inner axes, so that they are the same in all blocks of lanes.
    pub kept: Vec<usize>,
    /// The terms that depend on the inner axes and on axes of other bands, so that they are the same in each block of
    /// lanes at one point of those.
    pub repeated: Vec<usize>,
    /// The other terms that are computed at each point or block, in this order.
    pub terms: Vec<usize>,
    /// The tables that are written for each block: their numbers, and the strides of the axes.
    pub tables: Vec<(usize, Vec<i64>)>,
}

impl Band {
    /// The number of lanes of a block: the points of the inner axes, as many times as there is room for.
    pub fn block(&self) -> usize {
        self.inner().map_or(LANES, |inner| LANES / inner * inner)
    }

    /// The number of points of the inner axes; `None` if no term depends on these alone.
    pub fn inner(&self) -> Option<usize> {
        self.outer.map(|outer| self.extents[outer..].iter().product())
    }

    /// Whether an index with these strides is the same in each block.
    pub fn repeats(&self, strides: &[i64]) -> bool {
        self.outer.is_some_and(|outer| strides[..outer].iter().all(|&by| by == 0))
    }
}

/// The step that computes a term.
#[derive(Debug)]
pub(super) enum Step {
    /// A constant with these bits.
    Const(u64),
    /// A sum of multiples of axes.
    Affine(Place),
    Load {
        operand: usize,
        at: Address,
        guard: Option<Guard>,
    },
    /// A cast, a function or a selection, as in the term itself.
    Function,
    Reduce {
        op: Monoid,
        body: Vec<TermId>,
        scope: usize,
    },
}

/// The address of a load.
#[derive(Debug)]
pub(super) enum Address {
    Affine(Place),
    Term(usize),
}

/// A sum of multiples of axes: of those that run point by point, and of those of lanes.
#[derive(Debug)]
pub(super) struct Place {
    pub base: i64,
    pub scalars: Vec<(usize, i64)>,
    pub lanes: Lanes,
}

impl<'l> Program<'l> {
    pub fn new(of: &'l Loop) -> Self {
        Planner::new(of).program(false)
    }

    /// The program of a loop without reductions, with all points of its axes side by side.
    pub fn flat(of: &'l Loop) -> Self {
        Planner::new(of).program(true)
    }

    /// The program with all points side by side; `None` if reductions or expensive functions are better without that.
    pub fn if_flat(of: &'l Loop) -> Option<Self> {
        let planner = Planner::new(of);
        let is_flat = planner.reductions().next().is_none() && planner.outer().is_empty();
        is_flat.then(|| planner.program(true))
    }

    /// The first band of the result that has several points, and how its points can be shared out, in bytes of the
    /// result. `None` if the results of points do not follow one another.
    pub fn lines(&self) -> Option<(usize, Lines)> {
        let (of, bands) = (self.of, &self.scopes[0]);
        let points = |band: &Band| band.extents.iter().product::<usize>();
        let number = bands.iter().position(|band| points(band) != 1)?;
        let long = (0..of.rank).filter(|&axis| of.axes[axis] != 1);
        let band = &bands[number];
        let count = points(band);
        let pitch = of.elems() / count.max(1);
        let summed: usize = of.axes[of.rank..].iter().product();
        let ops = pitch.saturating_mul(self.steps.iter().flatten().count()).saturating_mul(summed.max(1));
        let together = if band.lanes { band.block() } else { 1 };
        let first = long.take(band.axes.len()).eq(band.axes.iter().copied());
        first.then(|| (number, Lines { count, pitch: pitch * of.dtype().bytes(), together, least: 1, ops }))
    }
}

struct Planner<'l> {
    of: &'l Loop,
    affine: Vec<Option<Affine>>,
    /// The axes that each term depends on, without those over which it reduces.
    deps: Vec<BTreeSet<usize>>,
    needed: Vec<bool>,
    scopes: Vec<Vec<Band>>,
    /// The scope and band in which each axis runs.
    home: Vec<Option<(usize, usize)>>,
    tables: usize,
}

impl<'l> Planner<'l> {
    fn new(of: &'l Loop) -> Self {
        let affine = affine(of);
        let (needed, deps, home) = (needed(of, &affine), of.dependencies(), vec![None; of.axes.len()]);
        Self { of, affine, deps, needed, scopes: Vec::new(), home, tables: 0 }
    }

    fn program(mut self, flat: bool) -> Program<'l> {
        let main = if flat { vec![Band::default(), self.band(self.result_axes(), true)] } else { self.main_bands() };
        self.add_scope(main);
        let mut scope_of = vec![0; self.of.terms.len()];
        for id in self.reductions().collect::<Vec<_>>().into_iter().rev() {
            scope_of[id] = self.scopes.len();
            let bands = self.reduction_bands(self.reduced(id), self.lane_band(&self.deps[id]).is_some());
            self.add_scope(bands);
        }
        let repeated = self.repeated();
        let steps: Vec<_> =
            scope_of.iter().enumerate().map(|(id, &scope)| self.needed[id].then(|| self.step(id, scope))).collect();
        let in_place = self.in_place(&steps, &repeated);
        for id in (0..steps.len()).filter(|&id| steps[id].is_some() && !in_place[id]) {
            let (scope, band) = self.band_of(id);
            let band = &mut self.scopes[scope][band];
            let terms = match repeated[id] {
                true if self.deps[id].iter().all(|axis| band.axes.contains(axis)) => &mut band.kept,
                true => &mut band.repeated,
                false => &mut band.terms,
            };
            terms.push(id);
        }
        let varies: Vec<bool> = self.deps.iter().map(|deps| self.lane_band(deps).is_some()).collect();
        let splat = self.splat(&varies, &scope_of);
        let (column_of, columns) = self.columns(&steps, &in_place);
        let bands = self.scopes.iter().map(Vec::len).sum();
        Program {
            of: self.of,
            steps,
            varies,
            splat,
            in_place,
            column_of,
            columns,
            scopes: self.scopes,
            bands,
            tables: self.tables,
        }
    }

    fn band(&self, axes: Vec<usize>, lanes: bool) -> Band {
        let extents = axes.iter().map(|&axis| self.of.axes[axis]).collect();
        Band { axes, extents, lanes, ..Band::default() }
    }

    fn add_scope(&mut self, mut bands: Vec<Band>) {
        let points = |band: &Band| band.extents.iter().product::<usize>();
        let is_within = !self.scopes.is_empty() || bands.iter().any(|band| !band.lanes && points(band) > 1);
        for band in bands.iter_mut().filter(|band| band.lanes) {
            band.outer = self.outer_axes(band, is_within);
        }
        let before: usize = self.scopes.iter().map(Vec::len).sum();
        for (number, band) in bands.iter_mut().enumerate() {
            band.number = before + number;
            band.axes.iter().for_each(|&axis| self.home[axis] = Some((self.scopes.len(), number)));
        }
        self.scopes.push(bands);
    }

    /// The number of first axes of a band of lanes that some loads do not depend on, if a block has room for all points
    /// of the other axes: 0 if the band runs more than once (`is_within`) and a block has room for all of it. `None` if
    /// there are no such axes.
    fn outer_axes(&self, band: &Band, is_within: bool) -> Option<usize> {
        let first = |sum: &Affine| band.axes.iter().position(|&axis| sum.stride(axis) != 0);
        let fits = |&outer: &usize| (1..=LANES).contains(&band.extents[outer..].iter().product());
        self.loads().filter_map(first).filter(|&outer| outer > 0).chain(is_within.then_some(0)).filter(fits).min()
    }

    /// The band in which a term is computed.
    fn band_of(&self, id: usize) -> (usize, usize) {
        self.deps[id].iter().filter_map(|&axis| self.home[axis]).max().unwrap_or((0, 0))
    }

    /// For each term, whether it is the same in each block of its band of lanes.
    fn repeated(&self) -> Vec<bool> {
        let mut all: Vec<bool> = Vec::with_capacity(self.of.terms.len());
        for (id, term) in self.of.terms.iter().enumerate() {
            let at = self.band_of(id);
            let band = &self.scopes[at.0][at.1];
            let known = |read: &TermId| self.band_of(read.0) != at || all[read.0];
            let moves = |axis| self.deps[id].contains(axis);
            let is_sum = matches!(term.kind, TermKind::Reduce { .. });
            let inner = band.outer.is_some_and(|outer| !band.axes[..outer].iter().any(moves));
            all.push(inner && !is_sum && term.reads().iter().all(known));
        }
        all
    }

    /// The band of lanes in which one of these axes runs; `None` if there is none.
    fn lane_band(&self, axes: &BTreeSet<usize>) -> Option<(usize, usize)> {
        axes.iter().filter_map(|&axis| self.home[axis]).find(|&(scope, band)| self.scopes[scope][band].lanes)
    }

    /// The axes of the result that have several points.
    fn result_axes(&self) -> Vec<usize> {
        (0..self.of.rank).filter(|&axis| self.of.axes[axis] != 1).collect()
    }

    /// The bands of the result's points. Axes on which reductions depend run outside of the others, so that no
    /// reduction is computed again. The innermost axes of one of these two kinds are lanes.
    fn main_bands(&self) -> Vec<Band> {
        let (axes, outer) = (self.result_axes(), self.outer());
        let last = axes.last().is_some_and(|axis| outer.contains(axis));
        let alike = axes.iter().rev().take_while(|axis| outer.contains(axis) == last).count();
        let mut lanes = self.side_by_side(&axes[axes.len() - alike..]);
        if last && self.rows_are_better(lanes) {
            lanes = &[];
        }
        let of = |wanted: bool| -> Vec<usize> {
            axes.iter().copied().filter(|axis| outer.contains(axis) == wanted && !lanes.contains(axis)).collect()
        };
        let lanes = self.band(lanes.to_vec(), !lanes.is_empty());
        let [outer, inner] = [of(true), of(false)].map(|axes| self.band(axes, false));
        match last {
            true => vec![Band::default(), outer, lanes, inner],
            false => vec![Band::default(), outer, inner, lanes],
        }
    }

    /// The axes of the result that run outside of the others. If the others have few points, these are only the axes on
    /// which reductions depend, without those of expensive functions.
    fn outer(&self) -> BTreeSet<usize> {
        let rows = rows(self.of, &self.deps, &self.needed);
        let inner: usize =
            self.result_axes().iter().filter(|axis| !rows.contains(axis)).map(|&i| self.of.axes[i]).product();
        if inner >= MANY {
            return rows;
        }
        self.reductions().flat_map(|id| self.deps[id].range(..self.of.rank).copied()).collect()
    }

    /// The innermost of these axes that are worth running side by side, together with axes around them: as long as all
    /// indices continue over them, or, until a block is full, are long runs.
    fn side_by_side<'a>(&self, axes: &'a [usize]) -> &'a [usize] {
        let mut first = axes.len();
        while first > 0 {
            let points: usize = axes[first..].iter().map(|&axis| self.of.axes[axis]).product();
            let around = &axes[first - 1..];
            let is_worth = self.runs_on(around) || (points < LANES && self.in_long_runs(around));
            if first < axes.len() && points >= MANY && !is_worth {
                break;
            }
            first -= 1;
        }
        &axes[first..]
    }

    /// Whether each index has one stride over all points of these axes, or repeats within a block's number of points.
    fn runs_on(&self, axes: &[usize]) -> bool {
        let repeats = |sum: &Affine| {
            let inner = axes.iter().skip_while(|axis| sum.stride(**axis) == 0);
            inner.map(|&axis| self.of.axes[axis]).product::<usize>() <= LANES
        };
        sums_read(self.of, &self.affine, &self.needed).all(|sum| sum.runs_on(axes, &self.of.axes) || repeats(sum))
    }

    /// Whether each index of a load over all points of these axes has one stride, or rises by one in runs that are long
    /// enough to be copied one by one.
    fn in_long_runs(&self, axes: &[usize]) -> bool {
        let extents: Vec<usize> = axes.iter().map(|&axis| self.of.axes[axis]).collect();
        let strides = |sum: &Affine| axes.iter().map(|&axis| sum.stride(axis)).collect::<Vec<_>>();
        let is_long = |strides: &[i64]| RunsOfLanes::of(&extents, strides).is_some_and(|runs| runs.run() >= RUN);
        self.loads().map(strides).all(|strides| linear(&extents, &strides).is_some() || is_long(&strides))
    }

    fn reductions(&self) -> impl Iterator<Item = usize> {
        (0..self.of.terms.len())
            .filter(|&id| self.needed[id] && matches!(self.of.terms[id].kind, TermKind::Reduce { .. }))
    }

    /// The axes over which a reduction runs.
    fn reduced(&self, id: usize) -> &'l [usize] {
        match &self.of.terms[id].kind {
            TermKind::Reduce { axes, .. } => axes,
            _ => &[],
        }
    }

    /// Whether it is better to run the points of reductions side by side than these points of the result, because the
    /// latter are few, or because memory is contiguous along the reductions.
    fn rows_are_better(&self, lanes: &[usize]) -> bool {
        let points: usize = lanes.iter().map(|&axis| self.of.axes[axis]).product();
        let innermost = *lanes.last().expect("axes of lanes");
        let (mut longest, mut along, mut across) = (0, false, false);
        for id in self.reductions() {
            let axes = self.reduced(id);
            longest = longest.max(axes.iter().map(|&axis| self.of.axes[axis]).product());
            for place in self.loads().filter(|place| axes.iter().any(|&axis| place.stride(axis) != 0)) {
                along |= axes.iter().any(|&axis| place.stride(axis) == 1) && place.stride(innermost) != 0;
                across |= place.stride(innermost) == 1;
            }
        }
        (points < FEW && longest > points) || (longest >= FEW && along && !across)
    }

    /// The indices of all loads that are sums.
    fn loads(&self) -> impl Iterator<Item = &Affine> {
        let index = |(id, term): (usize, &Term)| match term.kind {
            TermKind::Load { index, .. } if self.needed[id] => Some(index),
            _ => None,
        };
        self.of.terms.iter().enumerate().filter_map(index).filter_map(|index| self.affine[index.0].as_ref())
    }

    /// The bands of a reduction's points: point by point if its result differs between lanes, else side by side.
    fn reduction_bands(&self, axes: &[usize], one_by_one: bool) -> Vec<Band> {
        match one_by_one {
            true => axes.iter().map(|&axis| self.band(vec![axis], false)).collect(),
            false => vec![self.band(axes.to_vec(), true)],
        }
    }

    fn step(&mut self, id: usize, scope: usize) -> Step {
        let kind = self.of.terms[id].kind.clone();
        match kind {
            TermKind::Const(bits) => Step::Const(bits),
            TermKind::Load { operand, index, guard } => {
                let at = match self.affine[index.0].clone() {
                    Some(affine) => Address::Affine(self.place(&affine, true)),
                    None => Address::Term(index.0),
                };
                Step::Load { operand, at, guard }
            }
            TermKind::Reduce { op, body, .. } => Step::Reduce { op, body, scope },
            _ => match self.affine[id].clone() {
                Some(affine) => Step::Affine(self.place(&affine, false)),
                None => Step::Function,
            },
        }
    }

    /// A sum of multiples of axes as a place; `of_address` if it is the address of a load.
    fn place(&mut self, affine: &Affine, of_address: bool) -> Place {
        let axes: BTreeSet<usize> = affine.strides.keys().copied().collect();
        let band = self.lane_band(&axes);
        let is_lane = |axis: usize| band.is_some() && self.home[axis] == band;
        let scalars =
            affine.strides.iter().filter(|(axis, _)| !is_lane(**axis)).map(|(&axis, &by)| (axis, by)).collect();
        let lanes = band.map_or(Lanes::Same, |band| self.lanes(affine, band, of_address));
        Place { base: affine.base, scalars, lanes }
    }

    fn lanes(&mut self, affine: &Affine, (scope, band): (usize, usize), of_address: bool) -> Lanes {
        let band = &mut self.scopes[scope][band];
        let strides: Vec<i64> = band.axes.iter().map(|&axis| affine.stride(axis)).collect();
        if let Some(stride) = linear(&band.extents, &strides) {
            return Lanes::Linear(stride);
        }
        if let Some(runs) = RunsOfLanes::of(&band.extents, &strides).filter(|_| of_address) {
            return Lanes::Runs(runs);
        }
        if let Some((table, _)) = band.tables.iter().find(|(_, known)| *known == strides) {
            return Lanes::Table(*table);
        }
        band.tables.push((self.tables, strides));
        self.tables += 1;
        Lanes::Table(self.tables - 1)
    }

    /// For each term, whether it is a load of neighbouring elements, without a guard, in each block of lanes, and only
    /// functions of the same block read it, or nobody.
    fn in_place(&self, steps: &[Option<Step>], repeated: &[bool]) -> Vec<bool> {
        let is_run = |step: &Option<Step>| match step {
            Some(Step::Load { at: Address::Affine(place), guard: None, .. }) => place.lanes == Lanes::Linear(1),
            _ => false,
        };
        let mut all: Vec<bool> = steps.iter().zip(repeated).map(|(step, repeated)| is_run(step) && !repeated).collect();
        for (id, step) in steps.iter().enumerate() {
            let reads = step.iter().flat_map(|_| self.of.terms[id].reads());
            for read in reads.filter(|_| !matches!(step, Some(Step::Affine(_)))) {
                all[read.0] &= matches!(step, Some(Step::Function)) && self.band_of(read.0) == self.band_of(id);
            }
        }
        all
    }

    /// The column of each term that is computed, and the type of each column.
    fn columns(&self, steps: &[Option<Step>], in_place: &[bool]) -> (Vec<usize>, Vec<Dtype>) {
        let (mut column_of, mut columns) = (vec![0; steps.len()], Vec::new());
        let mut add = |dtype: Dtype| {
            columns.push(dtype);
            columns.len() - 1
        };
        let last = self.last_reads(steps);
        for band in self.scopes.iter().flatten() {
            for &id in band.kept.iter().chain(&band.repeated) {
                column_of[id] = add(self.of.terms[id].dtype);
            }
            let mut free: Vec<(usize, usize)> = Vec::new(); // columns that nobody reads any more, and their bytes
            for &id in &band.terms {
                let dtype = self.of.terms[id].dtype;
                let known = free.iter().position(|(_, bytes)| *bytes == dtype.bytes());
                column_of[id] = match known.filter(|_| !matches!(steps[id], Some(Step::Reduce { .. }))) {
                    Some(at) => free.swap_remove(at).0,
                    None => add(dtype),
                };
                let reads: BTreeSet<usize> = self.of.terms[id].reads().iter().map(|read| read.0).collect();
                let done = reads.into_iter().filter(|&read| last[read] == Some(id) && !in_place[read]);
                free.extend(done.map(|read| (column_of[read], self.of.terms[read].dtype.bytes())));
            }
        }
        (column_of, columns)
    }

    /// For each term, the last term that reads it, if all that read it are among the terms of its band that are computed
    /// at each point or block. `None` for reductions, for the result, and for terms that are not computed or are read
    /// elsewhere.
    fn last_reads(&self, steps: &[Option<Step>]) -> Vec<Option<usize>> {
        let (mut last, mut elsewhere) = (vec![None; steps.len()], vec![false; steps.len()]);
        elsewhere[self.of.result.0] = true;
        for band in self.scopes.iter().flatten() {
            for &id in band.kept.iter().chain(&band.repeated) {
                elsewhere[id] = true;
                self.of.terms[id].reads().iter().for_each(|read| elsewhere[read.0] = true);
            }
            for &id in &band.terms {
                elsewhere[id] |= matches!(steps[id], Some(Step::Reduce { .. }));
                for read in self.of.terms[id].reads() {
                    elsewhere[read.0] |= steps[read.0].is_none() || self.band_of(read.0) != self.band_of(id);
                    last[read.0] = last[read.0].max(Some(id));
                }
            }
        }
        last.into_iter().zip(elsewhere).map(|(last, elsewhere)| last.filter(|_| !elsewhere)).collect()
    }

    fn splat(&self, varies: &[bool], scope_of: &[usize]) -> Vec<bool> {
        let mut splat = vec![false; varies.len()];
        let sides = |scope: usize| self.scopes[scope].iter().any(|band| band.lanes);
        for (id, term) in self.of.terms.iter().enumerate().filter(|(id, _)| self.needed[*id]) {
            let takes_one_for_all = |read: &&TermId| {
                matches!(term.kind, TermKind::Binary(..))
                    && matches!(self.of.term(**read).dtype, Dtype::F32 | Dtype::F64)
            };
            if varies[id] || (scope_of[id] > 0 && sides(scope_of[id])) {
                let reads = term.reads();
                let same = reads.iter().filter(|read| !varies[read.0]).filter(|read| !takes_one_for_all(read));
                same.for_each(|read| splat[read.0] = true);
            }
        }
        let result = self.of.result.0;
        splat[result] |= sides(0) && !varies[result];
        splat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, ValueType};
    use crate::loops::build::LoopBuilder;

    #[test]
    fn a_chain_has_few_columns() {
        let mut b = LoopBuilder::new(&[ValueType::new(Dtype::F32, &[50, 96])], &[50, 96]);
        let point = b.point();
        let x = b.load(0, &point);
        let (mut y, two) = (x, b.float(Dtype::F32, 2.0));
        for _ in 0..50 {
            let square = b.binary(Binary::Mul, y, y);
            y = b.binary(Binary::Add, square, two);
        }
        let of = b.finish(y);
        let program = Program::new(&of);
        assert!(program.columns.len() <= 5, "{:?}", program.columns);
        let computed = |&id: &usize| program.steps[id].is_some() && !program.in_place[id];
        let all: BTreeSet<usize> = (0..program.steps.len()).filter(computed).map(|id| program.column_of[id]).collect();
        assert_eq!(all.len(), program.columns.len());
    }

    #[test]
    fn what_depends_on_channels_alone_is_kept() {
        let mut b = LoopBuilder::new(
            &[ValueType::new(Dtype::F32, &[9, 80, 96]), ValueType::new(Dtype::F32, &[96])],
            &[9, 80, 96],
        );
        let point = b.point();
        let (x, bias) = (b.load(0, &point), b.load(1, &point[2..]));
        let half = b.float(Dtype::F32, 0.5);
        let bias = b.binary(Binary::Mul, bias, half);
        let y = b.binary(Binary::Add, x, bias);
        let of = b.finish(y);
        let program = Program::new(&of);
        let lanes = program.scopes[0].iter().find(|band| band.lanes).unwrap();
        assert_eq!((lanes.inner(), lanes.kept.len(), lanes.terms.len(), lanes.block()), (Some(96), 2, 1, 960));
        assert_eq!(program.in_place.iter().filter(|in_place| **in_place).count(), 1, "x is read where it is");
    }
}
