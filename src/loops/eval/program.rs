//! A loop in the form in which it is evaluated: when each term is computed, and over which points side by side.

use std::collections::BTreeSet;

use super::column::LANES;
use super::lanes::{Lanes, RunsOfLanes};
use crate::loops::affine::{Affine, affine, linear, needed, sums_read};
use crate::loops::ir::{Guard, Loop, Monoid, Term, TermId, TermKind};
use crate::loops::team::Lines;
use crate::loops::work::rows;

/// The number of points below which it does not pay to compute them side by side if other points can be.
const FEW: usize = 16;

/// The number of points side by side from which on it pays to separate them from others.
const MANY: usize = 64;

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
    /// The bands of the result's points, then those of each reduction. A reduction within another one comes later.
    pub scopes: Vec<Vec<Band>>,
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
    /// The number of first axes that `repeated` terms do not depend on; 0 if there are no such terms.
    pub outer: usize,
    /// The terms that are the same in each block of lanes, because they depend only on the inner axes.
    pub repeated: Vec<usize>,
    /// The other terms that are computed at each point or block, in this order.
    pub terms: Vec<usize>,
    /// The tables that are written for each block: their numbers, and the strides of the axes.
    pub tables: Vec<(usize, Vec<i64>)>,
}

impl Band {
    /// The number of lanes of a block: the points of the inner axes, as many times as there is room for.
    pub fn block(&self) -> usize {
        let inner: usize = self.extents[self.outer..].iter().product();
        if self.outer == 0 { LANES } else { LANES / inner * inner }
    }

    /// Whether an index with these strides is the same in each block.
    pub fn repeats(&self, strides: &[i64]) -> bool {
        self.outer > 0 && strides[..self.outer].iter().all(|&by| by == 0)
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
        let mut steps = Vec::with_capacity(self.of.terms.len());
        for (id, &scope) in scope_of.iter().enumerate() {
            if !self.needed[id] {
                steps.push(None);
                continue;
            }
            steps.push(Some(self.step(id, scope)));
            let (scope, band) = self.band_of(id);
            let band = &mut self.scopes[scope][band];
            if repeated[id] { &mut band.repeated } else { &mut band.terms }.push(id);
        }
        let varies: Vec<bool> = self.deps.iter().map(|deps| self.lane_band(deps).is_some()).collect();
        let splat = self.splat(&varies, &scope_of);
        Program { of: self.of, steps, varies, splat, scopes: self.scopes, tables: self.tables }
    }

    fn band(&self, axes: Vec<usize>, lanes: bool) -> Band {
        let extents = axes.iter().map(|&axis| self.of.axes[axis]).collect();
        Band { axes, extents, lanes, ..Band::default() }
    }

    fn add_scope(&mut self, mut bands: Vec<Band>) {
        for band in bands.iter_mut().filter(|band| band.lanes) {
            band.outer = self.outer_axes(band);
        }
        for (number, band) in bands.iter().enumerate() {
            band.axes.iter().for_each(|&axis| self.home[axis] = Some((self.scopes.len(), number)));
        }
        self.scopes.push(bands);
    }

    /// The number of first axes of a band of lanes that some loads do not depend on, if a block has room for all points
    /// of the other axes; else 0.
    fn outer_axes(&self, band: &Band) -> usize {
        let first = |sum: &Affine| band.axes.iter().position(|&axis| sum.stride(axis) != 0);
        let fits = |&outer: &usize| (1..=LANES).contains(&band.extents[outer..].iter().product());
        self.loads().filter_map(first).filter(fits).min().unwrap_or(0)
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
            let inner = band.outer > 0 && !band.axes[..band.outer].iter().any(moves);
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

    /// The innermost of these axes that are worth running side by side, together with axes around them as long as all
    /// indices continue over them.
    fn side_by_side<'a>(&self, axes: &'a [usize]) -> &'a [usize] {
        let mut first = axes.len();
        while first > 0 {
            let points: usize = axes[first..].iter().map(|&axis| self.of.axes[axis]).product();
            if first < axes.len() && points >= MANY && !self.runs_on(&axes[first - 1..]) {
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

    fn splat(&self, varies: &[bool], scope_of: &[usize]) -> Vec<bool> {
        let mut splat = vec![false; varies.len()];
        let sides = |scope: usize| self.scopes[scope].iter().any(|band| band.lanes);
        for (id, term) in self.of.terms.iter().enumerate().filter(|(id, _)| self.needed[*id]) {
            if varies[id] || (scope_of[id] > 0 && sides(scope_of[id])) {
                term.reads().iter().filter(|read| !varies[read.0]).for_each(|read| splat[read.0] = true);
            }
        }
        let result = self.of.result.0;
        splat[result] |= sides(0) && !varies[result];
        splat
    }
}
