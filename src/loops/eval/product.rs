//! Sums of products, in tiles.
//!
//! A sum of products whose sides depend on different axes is a matrix product. Its right side is computed once, by a
//! loop of its own, and packed. If the rows of the left side are runs of an operand, as those of a convolution are,
//! they are read in place; otherwise a loop computes some of them at a time. If both sides depend on the innermost
//! axis, as in a depthwise convolution, the channels of such rows are computed side by side.

use std::collections::BTreeSet;
use std::ops::Range;

use super::View;
use super::factor::{Factor, ROWS};
use super::machine::Machine;
use super::program::Program;
use super::runs::{Places, Runs};
use super::tiles::{Panels, channelwise, multiply};
use crate::error::Error;
use crate::graph::{Binary, Tensor, ValueType};
use crate::loops::Isa;
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Monoid, TermId, TermKind};
use crate::loops::rewrite::Copier;
use crate::loops::team::{Lines, Team};
use crate::tensor::Dtype;

/// The number of rows or columns from which on tiles pay.
const FEW: usize = 4;

/// The largest number of elements of rows that are multiplied with all panels at a time: they fit a core's caches.
const BLOCK_ELEMS: usize = 1 << 16;

/// The number of sums of these rows up to which there may be more than `BLOCK_ROWS`, the number of rows whose places are
/// recorded.
const BLOCK_SUMS: usize = 1 << 13;
const BLOCK_ROWS: usize = 16 * ROWS;

/// A sum of products in a loop: `[batch, rows, summed]` by `[batch, summed, columns]`. If there are few columns, the
/// batch is innermost: `[rows, summed, batch]` by `[summed, batch]`.
#[derive(Debug)]
pub(super) struct Product<'l> {
    of: &'l Loop,
    sum: TermId,
    sides: [TermId; 2],
    batch: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    summed: &'l [usize],
    by_channel: bool,
}

impl<'l> Product<'l> {
    /// The first sum of products of a loop for which tiles pay; `None` if there is none.
    pub fn find(of: &'l Loop) -> Option<Self> {
        let (deps, reduces) = (of.dependencies(), reduces(of));
        (0..of.terms.len()).find_map(|id| Self::at(of, &deps, &reduces, id))
    }

    fn at(of: &'l Loop, deps: &[BTreeSet<usize>], reduces: &[bool], id: usize) -> Option<Self> {
        let TermKind::Reduce { op: Monoid::Sum, axes: summed, body } = &of.terms[id].kind else { return None };
        let TermKind::Binary(Binary::Mul, [left, right]) = of.term(body[0]).kind else { return None };
        let typed = matches!(of.terms[id].dtype, Dtype::F32 | Dtype::F64 | Dtype::I32);
        let alone = deps[id].iter().all(|&axis| axis < of.rank) && ![left, right].iter().any(|side| reduces[side.0]);
        if !(typed && alone) {
            return None; // the factors depend on further axes
        }
        let long = |axis: &usize| *axis < of.rank && of.axes[*axis] != 1;
        let of_side = |side: TermId, other: TermId| -> Vec<usize> {
            deps[side.0].difference(&deps[other.0]).copied().filter(long).collect()
        };
        let batch: Vec<usize> = deps[left.0].intersection(&deps[right.0]).copied().filter(long).collect();
        let last = deps[id].iter().copied().rfind(long)?;
        let innermost_is_shared = batch.contains(&last);
        let swapped =
            if innermost_is_shared { of_side(left, right).is_empty() } else { !deps[right.0].contains(&last) };
        let sides = if swapped { [right, left] } else { [left, right] };
        let [rows, columns] = [of_side(sides[0], sides[1]), of_side(sides[1], sides[0])];
        let by_channel = innermost_is_shared && columns.is_empty();
        let product = Self { of, sum: TermId(id), sides, batch, rows, columns, summed, by_channel };
        let [batch, m, n, k] = product.sizes();
        let worth = if by_channel { m >= FEW && product.runs_of_channels() } else { m >= FEW && n >= FEW };
        (worth && batch > 0 && k > 0).then_some(product)
    }

    /// The sizes of batch, rows, columns and sums.
    fn sizes(&self) -> [usize; 4] {
        [&self.batch[..], &self.rows, &self.columns, self.summed].map(|axes| self.extents(axes).iter().product())
    }

    fn extents(&self, axes: &[usize]) -> Vec<usize> {
        axes.iter().map(|&axis| self.of.axes[axis]).collect()
    }

    /// The axes of the sums, in their order in memory.
    fn axes(&self) -> Vec<usize> {
        match self.by_channel {
            true => [&self.rows[..], &self.batch].concat(),
            false => [&self.batch[..], &self.rows, &self.columns].concat(),
        }
    }

    /// Whether the sums are in the order of the loop's elements, one for each.
    fn in_order(&self) -> bool {
        let axes = (0..self.of.rank).filter(|&axis| self.of.axes[axis] != 1);
        axes.eq(self.axes())
    }

    /// Writes the elements of the loop.
    pub fn run(&self, operands: &[View<'_>], to: &mut [u8], team: &dyn Team) -> Result<(), Error> {
        let in_order = self.in_order();
        if in_order && self.sum == self.of.result {
            return self.sums(operands, None, to, team);
        }
        let rest = self.rest();
        match in_order.then(|| Program::if_flat(&rest)).flatten() {
            Some(rest) => self.sums(operands, Some(&rest), to, team),
            None => {
                let mut sums = self.zeros(&self.extents(&self.axes()))?;
                self.sums(operands, None, sums.bytes_mut(), team)?;
                super::run(&rest, &[operands, &[(&sums).into()]].concat(), to, team)
            }
        }
    }

    /// Writes the sums, or the results of the program `rest` from each sum.
    fn sums(&self, of: &[View<'_>], rest: Option<&Program>, to: &mut [u8], team: &dyn Team) -> Result<(), Error> {
        match (self.of.term(self.sum).dtype, self.by_channel) {
            (Dtype::F64, false) => self.tiles::<f64>(of, rest, to, team),
            (Dtype::I32, false) => self.tiles::<i32>(of, rest, to, team),
            (_, false) => self.tiles::<f32>(of, rest, to, team),
            (Dtype::F64, true) => self.channels::<f64>(of, rest, to, team),
            (Dtype::I32, true) => self.channels::<i32>(of, rest, to, team),
            (_, true) => self.channels::<f32>(of, rest, to, team),
        }
    }

    /// A tensor of zeros with the type of the sums.
    fn zeros(&self, dims: &[usize]) -> Result<Tensor, Error> {
        Tensor::zeros(ValueType::new(self.of.term(self.sum).dtype, dims))
    }

    fn tiles<T: Factor>(
        &self,
        operands: &[View<'_>],
        rest: Option<&Program>,
        to: &mut [u8],
        team: &dyn Team,
    ) -> Result<(), Error> {
        let ([batch, m, n, k], isa) = (self.sizes(), Isa::detect());
        let outer = self.batch.len() + self.rows.len();
        let left = self.side(self.sides[0], &[&self.batch[..], &self.rows, self.summed].concat());
        let right = self.side(self.sides[1], &[&self.batch[..], self.summed, &self.columns].concat());
        let rows = Rows { program: Program::flat(&left), runs: Runs::of(&left, outer, outer), operands, k, n };
        let right = Program::flat(&right);
        let mut right = Machine::new(&right, operands);
        let mut factors = self.zeros(&[k, n])?;
        let pitch = to.len() / (batch * m);
        let lines = Lines { count: m, pitch, together: ROWS, least: 4 * ROWS, ops: n * k };
        for (item, to) in to.chunks_exact_mut(m * pitch).enumerate() {
            right.part(item * k * n..(item + 1) * k * n, factors.bytes_mut());
            let panels = Panels::<T>::new(factors.elems(), n);
            lines.share(team, to, &|_, part, to| {
                let part = item * m + part.start..item * m + part.end;
                let mut sink = Sink::new(rest, operands, part.start * n);
                rows.blocks(part, |places, at| {
                    sink.write(at.start * n..at.end * n, to, |sums| multiply(isa, places, &panels, sums));
                });
            });
        }
        Ok(())
    }

    /// The left side in the order of channels, and the number of its first axes that number its rows.
    fn rows_of_channels(&self) -> (Loop, usize) {
        (self.side(self.sides[0], &[&self.rows[..], self.summed, &self.batch].concat()), self.rows.len())
    }

    fn runs_of_channels(&self) -> bool {
        let [channels, ..] = self.sizes();
        let (left, outer) = self.rows_of_channels();
        Runs::of(&left, outer, outer + self.summed.len()).is_some_and(|runs| runs.run == channels)
    }

    fn channels<T: Factor>(
        &self,
        operands: &[View<'_>],
        rest: Option<&Program>,
        to: &mut [u8],
        team: &dyn Team,
    ) -> Result<(), Error> {
        let ([channels, m, _, k], isa) = (self.sizes(), Isa::detect());
        let (left, outer) = self.rows_of_channels();
        let right = self.side(self.sides[1], &[self.summed, &self.batch].concat());
        let runs = Runs::of(&left, outer, outer + self.summed.len());
        let rows = Rows { program: Program::flat(&left), runs, operands, k: k * channels, n: channels };
        let mut factors = self.zeros(&[k, channels])?;
        Machine::new(&Program::flat(&right), operands).part(0..k * channels, factors.bytes_mut());
        let lines = Lines { count: m, pitch: to.len() / m, together: 1, least: 1, ops: 2 * k * channels };
        lines.share(team, to, &|_, part, to| {
            let mut sink = Sink::new(rest, operands, part.start * channels);
            rows.blocks(part, |places, at| {
                let elems = at.start * channels..at.end * channels;
                sink.write(elems, to, |sums| channelwise::<T>(isa, places, factors.elems(), sums));
            });
        });
        Ok(())
    }

    /// A loop that writes one side with these axes.
    fn side(&self, root: TermId, axes: &[usize]) -> Loop {
        let mut b = LoopBuilder::new(&self.of.operands, &self.extents(axes));
        let at: Vec<TermId> = b.point();
        let mut copier = Copier::new(self.of, axes.iter().copied().zip(at), (0..self.of.operands.len()).collect());
        let root = copier.term(&mut b, root);
        b.finish(root)
    }

    /// The rest of the loop, which reads the sums as an additional operand.
    fn rest(&self) -> Loop {
        let sums = ValueType::new(self.of.term(self.sum).dtype, &self.extents(&self.axes()));
        let operands = [&self.of.operands[..], &[sums]].concat();
        let mut b = LoopBuilder::new(&operands, &self.of.axes[..self.of.rank]);
        let point = b.point();
        let at: Vec<TermId> = self.axes().iter().map(|&axis| point[axis]).collect();
        let mut copier =
            Copier::new(self.of, point.into_iter().enumerate().collect::<Vec<_>>(), (0..operands.len()).collect());
        copier.replace(self.sum, b.load(operands.len() - 1, &at));
        let root = copier.term(&mut b, self.of.result);
        b.finish(root)
    }
}

/// For each term, whether it is a reduction or depends on one.
fn reduces(of: &Loop) -> Vec<bool> {
    let mut all: Vec<bool> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let found = matches!(term.kind, TermKind::Reduce { .. }) || term.reads().iter().any(|read| all[read.0]);
        all.push(found);
    }
    all
}

/// The destination of a part's sums.
struct Sink<'p> {
    /// The loop that reads the sums, and the bytes of an element that it writes; `None` if the sums are the result.
    rest: Option<(Machine<'p>, usize)>,
    /// The index of the part's first element.
    first: usize,
}

impl<'p> Sink<'p> {
    fn new(rest: Option<&'p Program<'p>>, operands: &'p [View<'p>], first: usize) -> Self {
        Self { rest: rest.map(|rest| (Machine::new(rest, operands), rest.of.dtype().bytes())), first }
    }

    /// Writes some elements of the part; `of` computes their sums.
    fn write<T: Factor>(&mut self, elems: Range<usize>, to: &mut [u8], of: impl FnOnce(&mut [T])) {
        let Some((rest, size)) = &mut self.rest else {
            return of(&mut bytemuck::cast_slice_mut(to)[elems]);
        };
        let all = self.first + elems.start..self.first + elems.end;
        of(rest.near(all.start, all.len()));
        rest.part(all, &mut to[elems.start * *size..elems.end * *size]);
    }
}

/// The rows of a left side, which are read in place or computed.
struct Rows<'p> {
    program: Program<'p>,
    runs: Option<Runs>,
    operands: &'p [View<'p>],
    /// The number of elements of a row, and that of its sums.
    k: usize,
    n: usize,
}

impl Rows<'_> {
    /// Calls `of` with the places of some rows of this part at a time, and with the rows' numbers within the part.
    fn blocks<T: Factor>(&self, part: Range<usize>, mut of: impl FnMut(&Places<'_, T>, Range<usize>)) {
        let most = (BLOCK_ELEMS / self.k.max(1)).clamp(ROWS, BLOCK_ROWS.max(BLOCK_SUMS / self.n)) / ROWS * ROWS;
        let blocks = part.clone().step_by(most).map(|first| first..part.end.min(first + most));
        let within = |rows: &Range<usize>| rows.start - part.start..rows.end - part.start;
        match &self.runs {
            Some(runs) => {
                let (from, outside, mut at) = (runs.operand(self.operands), runs.outside::<T>(), Vec::new());
                for rows in blocks {
                    runs.places(rows.clone(), &mut at);
                    of(&Places { from, outside: &outside, at: &at, taps: runs.taps() }, within(&rows));
                }
            }
            None => {
                let mut machine = Machine::new(&self.program, self.operands);
                let (mut computed, outside) =
                    (vec![T::default(); most.min(part.len()) * self.k], vec![T::default(); self.k]);
                let at: Vec<usize> = (0..most).map(|row| row * self.k).collect();
                for rows in blocks {
                    let elems = rows.start * self.k..rows.end * self.k;
                    machine.part(elems.clone(), bytemuck::cast_slice_mut(&mut computed[..elems.len()]));
                    of(&Places { from: &computed, outside: &outside, at: &at, taps: 1 }, within(&rows));
                }
            }
        }
    }
}
