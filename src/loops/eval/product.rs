//! Sums of products, in tiles.
//!
//! A sum of products whose sides depend on different axes is a matrix product: the rows of one side are computed a panel
//! at a time, the other side once, by loops of their own; then tiles of their product are summed in registers.

use std::collections::BTreeSet;

use super::machine::Machine;
use super::program::Program;
use crate::error::Error;
use crate::graph::{Binary, Element, Tensor, ValueType};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Monoid, TermId, TermKind};
use crate::loops::rewrite::Copier;
use crate::tensor::Dtype;

/// Rows of a tile whose sums are in registers.
const ROWS: usize = 4;

/// Elements of a panel of rows, and of summed products between two visits of a tile: they fit a core's caches.
const PANEL: usize = 1 << 17;
const DEPTH: usize = 256;

/// A sum of products in a loop: `[batch, rows, summed]` by `[batch, summed, columns]`.
#[derive(Debug)]
pub(super) struct Product<'l> {
    of: &'l Loop,
    sum: TermId,
    sides: [TermId; 2],
    batch: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    summed: &'l [usize],
}

impl<'l> Product<'l> {
    /// The first sum of products of a loop that is worth tiles.
    pub fn find(of: &'l Loop) -> Option<Self> {
        let (deps, reduces) = (of.dependencies(), reduces(of));
        (0..of.terms.len()).find_map(|id| Self::at(of, &deps, &reduces, id))
    }

    fn at(of: &'l Loop, deps: &[BTreeSet<usize>], reduces: &[bool], id: usize) -> Option<Self> {
        let TermKind::Reduce { op: Monoid::Sum, axes: summed, body } = &of.terms[id].kind else { return None };
        let TermKind::Binary(Binary::Mul, [left, right]) = of.term(body[0]).kind else { return None };
        let typed = matches!(of.terms[id].dtype, Dtype::F32 | Dtype::F64 | Dtype::I32);
        let alone = deps[id].iter().all(|&axis| axis < of.rank) && ![left, right].iter().any(|side| reduces[side.0]);
        let last = deps[id].iter().next_back()?;
        let sides = if deps[right.0].contains(last) { [left, right] } else { [right, left] };
        let of_side = |side: TermId, other: TermId| -> Vec<usize> {
            deps[side.0].difference(&deps[other.0]).copied().filter(|&axis| axis < of.rank).collect()
        };
        let batch = deps[left.0].intersection(&deps[right.0]).copied().filter(|&axis| axis < of.rank).collect();
        let [rows, columns] = [of_side(sides[0], sides[1]), of_side(sides[1], sides[0])];
        let product = Self { of, sum: TermId(id), sides, batch, rows, columns, summed };
        let [_, m, n, _] = product.sizes();
        (typed && alone && m >= ROWS && n >= ROWS).then_some(product)
    }

    /// Sizes of batch, rows, columns, sums.
    fn sizes(&self) -> [usize; 4] {
        [&self.batch[..], &self.rows, &self.columns, self.summed].map(|axes| self.extents(axes).iter().product())
    }

    fn extents(&self, axes: &[usize]) -> Vec<usize> {
        axes.iter().map(|&axis| self.of.axes[axis]).collect()
    }

    /// The axes of the sums, in the order in which they lie.
    fn axes(&self) -> Vec<usize> {
        [&self.batch[..], &self.rows, &self.columns].concat()
    }

    /// Whether the loop writes the sums as they are.
    pub fn is_all(&self) -> bool {
        let axes = (0..self.of.rank).filter(|&axis| self.of.axes[axis] != 1);
        self.sum == self.of.result && axes.eq(self.axes())
    }

    /// The sums.
    pub fn compute(&self, operands: &[&Tensor]) -> Result<Tensor, Error> {
        let dtype = self.of.term(self.sum).dtype;
        match dtype {
            Dtype::F64 => self.tiles::<f64>(dtype, operands),
            Dtype::I32 => self.tiles::<i32>(dtype, operands),
            _ => self.tiles::<f32>(dtype, operands),
        }
    }

    fn tiles<T: Factor>(&self, dtype: Dtype, operands: &[&Tensor]) -> Result<Tensor, Error> {
        let [batch, m, n, k] = self.sizes();
        let left = self.side(self.sides[0], &[&self.batch[..], &self.rows, self.summed].concat());
        let right = self.side(self.sides[1], &[&self.batch[..], self.summed, &self.columns].concat());
        let (left, right) = (Program::flat(&left), Program::flat(&right));
        let (mut left, mut right) = (Machine::new(&left, operands), Machine::new(&right, operands));
        let most = (PANEL / k.max(1)).clamp(ROWS, m);
        let mut result = Tensor::zeros(ValueType::new(dtype, &self.extents(&self.axes())))?;
        let mut panel = Tensor::zeros(ValueType::new(dtype, &[most, k]))?;
        let mut other = Tensor::zeros(ValueType::new(dtype, &[k, n]))?;
        for item in 0..if k > 0 { batch } else { 0 } {
            right.part(item * k * n..(item + 1) * k * n, other.bytes_mut());
            for first in (0..m).step_by(most) {
                let row = item * m + first;
                let rows = most.min(m - first);
                left.part(row * k..(row + rows) * k, panel.bytes_mut());
                let sums = &mut result.elems_mut::<T>()[row * n..][..rows * n];
                multiply(&panel.elems::<T>()[..rows * k], other.elems(), sums, [k, n]);
            }
        }
        Ok(result)
    }

    /// A loop that writes one side.
    fn side(&self, root: TermId, axes: &[usize]) -> Loop {
        let mut b = LoopBuilder::new(&self.of.operands, &self.extents(axes));
        let at: Vec<TermId> = b.point();
        let mut copier = Copier::new(self.of, axes.iter().copied().zip(at), (0..self.of.operands.len()).collect());
        let root = copier.term(&mut b, root);
        b.finish(root)
    }

    /// The loop that reads the sums, as one more operand.
    pub fn rest(&self) -> Loop {
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

/// Whether each term is a reduction or computed from one.
fn reduces(of: &Loop) -> Vec<bool> {
    let mut all: Vec<bool> = Vec::with_capacity(of.terms.len());
    for term in &of.terms {
        let found = matches!(term.kind, TermKind::Reduce { .. }) || term.reads().iter().any(|read| all[read.0]);
        all.push(found);
    }
    all
}

/// A type of products.
trait Factor: Element + Default {
    const ONE: Self;

    /// self + a x b.
    fn plus(self, a: Self, b: Self) -> Self;
}

impl Factor for f32 {
    const ONE: Self = 1.0;

    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Factor for f64 {
    const ONE: Self = 1.0;

    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Factor for i32 {
    const ONE: Self = 1;

    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// Adds the product of a `[rows, k]` and b `[k, n]` to c `[rows, n]`. The result is the same on every processor.
fn multiply<T: Factor>(a: &[T], b: &[T], c: &mut [T], sizes: [usize; 2]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<T: Factor>(a: &[T], b: &[T], c: &mut [T], sizes: [usize; 2]) {
            tiles::<T, 16>(a, b, c, sizes);
        }
        // SAFETY: the processor was just seen to have AVX2.
        return unsafe { wide(a, b, c, sizes) };
    }
    tiles::<T, 8>(a, b, c, sizes);
}

/// The same in tiles of so many columns.
#[inline(always)]
fn tiles<T: Factor, const WIDE: usize>(a: &[T], b: &[T], c: &mut [T], [k, n]: [usize; 2]) {
    let mut tile = [[T::default(); WIDE]; DEPTH];
    for depth in (0..k).step_by(DEPTH) {
        let tile = &mut tile[..DEPTH.min(k - depth)];
        for column in (0..n).step_by(WIDE) {
            let width = WIDE.min(n - column);
            for (row, to) in tile.iter_mut().enumerate() {
                to[..width].copy_from_slice(&b[(depth + row) * n + column..][..width]);
            }
            for (a, c) in a.chunks(ROWS * k).zip(c.chunks_mut(ROWS * n)) {
                let row = |i: usize| &a[i * k + depth..][..tile.len()];
                match a.len() / k {
                    4 => add(sums([0, 1, 2, 3].map(row), tile), c, n, column, width),
                    3 => add(sums([0, 1, 2].map(row), tile), c, n, column, width),
                    2 => add(sums([0, 1].map(row), tile), c, n, column, width),
                    _ => add(sums([row(0)], tile), c, n, column, width),
                }
            }
        }
    }
}

/// The sums of a tile.
#[inline(always)]
fn sums<T: Factor, const ROWS: usize, const WIDE: usize>(a: [&[T]; ROWS], b: &[[T; WIDE]]) -> [[T; WIDE]; ROWS] {
    let mut sums = [[T::default(); WIDE]; ROWS];
    let a = a.map(|row| &row[..b.len()]);
    for (k, b) in b.iter().enumerate() {
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = a[k];
            sums.iter_mut().zip(b).for_each(|(sum, &b)| *sum = sum.plus(a, b));
        }
    }
    sums
}

#[inline(always)]
fn add<T: Factor, const ROWS: usize, const WIDE: usize>(
    sums: [[T; WIDE]; ROWS],
    c: &mut [T],
    n: usize,
    column: usize,
    width: usize,
) {
    for (row, sums) in sums.iter().enumerate() {
        let to = &mut c[row * n + column..][..width];
        to.iter_mut().zip(sums).for_each(|(to, &sum)| *to = to.plus(sum, T::ONE));
    }
}
