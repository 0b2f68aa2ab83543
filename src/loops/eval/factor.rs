//! Products of a few rows with a panel of columns. The sums stay in registers.

use super::tiles::{Columns, Tile};
use crate::graph::Element;

/// The number of columns of a group. The sums of a row of f32 in a group fill one register of AVX.
pub(super) const GROUP: usize = 8;

/// The largest number of groups of a panel.
pub(super) const GROUPS: usize = 3;

/// A multiple of the rows of each tile.
pub(super) const ROWS: usize = 6;

/// The number of rows of a tile whose panel has so many groups. With AVX the sums of f32 fill 6, 12 or 9 of 16 registers:
/// eight are what two multiply-adds in each clock need, and beside 12 sums of three groups the compiler keeps one in
/// memory.
pub(super) const fn rows_of_tile(groups: usize) -> usize {
    if groups == GROUPS { ROWS / 2 } else { ROWS }
}

/// A type in which products are computed.
pub(super) trait Factor: Element + Default + Send + Sync {
    /// The sum self + a x b, with one rounding if `FMA` and the type rounds.
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self;

    /// Adds the products of a tile of M rows with a panel of H groups to y, in the order of the elements.
    #[inline(always)]
    fn add_tile<const M: usize, const H: usize, const FMA: bool>(tile: &Tile<'_, Self>, y: Columns<'_, Self>) {
        add_tile::<Self, M, H, FMA>(tile, y);
    }
}

impl Factor for f32 {
    #[inline(always)]
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self {
        if FMA { a.mul_add(b, self) } else { self + a * b }
    }

    #[inline(always)]
    fn add_tile<const M: usize, const H: usize, const FMA: bool>(tile: &Tile<'_, Self>, y: Columns<'_, Self>) {
        #[cfg(target_arch = "x86_64")]
        if FMA && is_x86_feature_detected!("avx") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor was just seen to have both.
            return unsafe { avx::add_tile::<M, H>(tile, y) };
        }
        add_tile::<Self, M, H, FMA>(tile, y);
    }
}

impl Factor for f64 {
    #[inline(always)]
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self {
        if FMA { a.mul_add(b, self) } else { self + a * b }
    }
}

impl Factor for i32 {
    #[inline(always)]
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

#[inline(always)]
fn add_tile<T: Factor, const M: usize, const H: usize, const FMA: bool>(tile: &Tile<'_, T>, mut y: Columns<'_, T>) {
    let mut sums = [[[T::default(); GROUP]; H]; M];
    if !tile.is_first() {
        for (row, sums) in sums.iter_mut().enumerate() {
            sums.as_flattened_mut().iter_mut().zip(y.row(row)).for_each(|(sum, y)| *sum = *y);
        }
    }
    let mut tap = tile.taps().start;
    while tap < tile.taps().end {
        let (rows, panel, next) = tile.elems::<M>(tap, H * GROUP);
        for (i, factors) in panel.chunks_exact(H * GROUP).enumerate() {
            for (sums, row) in sums.iter_mut().zip(rows) {
                let value = row[i];
                for (sum, &factor) in sums.as_flattened_mut().iter_mut().zip(factors) {
                    *sum = sum.plus::<FMA>(value, factor);
                }
            }
        }
        tap = next;
    }
    for (row, sums) in sums.iter().enumerate() {
        y.row_mut(row).iter_mut().zip(sums.as_flattened()).for_each(|(y, sum)| *y = *sum);
    }
}

/// The code of `add_tile` for f32 in AVX instructions. From plain loops within loops over taps the compiler makes code
/// that keeps some sums in memory.
#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps};

    use super::{Columns, GROUP, GROUPS, Tile};

    #[target_feature(enable = "avx,fma")]
    pub fn add_tile<const M: usize, const H: usize>(tile: &Tile<'_, f32>, mut y: Columns<'_, f32>) {
        const { assert!(H <= GROUPS) };
        let (width, columns) = (H * GROUP, y.row(0).len());
        let mut sums = [[_mm256_setzero_ps(); H]; M];
        if !tile.is_first() {
            for (m, sums) in sums.iter_mut().enumerate() {
                let (mut some, row) = ([0.0; GROUPS * GROUP], y.row(m));
                let row = if columns >= width { row } else { filled(&mut some, row) };
                for h in 0..H {
                    // SAFETY: the pointer is to eight floats, which are borrowed.
                    sums[h] = unsafe { _mm256_loadu_ps(row[h * GROUP..][..GROUP].as_ptr()) };
                }
            }
        }
        let mut tap = tile.taps().start;
        while tap < tile.taps().end {
            let (rows, panel, next) = tile.elems::<M>(tap, width);
            let count = panel.len() / width;
            assert!(rows.iter().all(|row| row.len() >= count));
            for (i, of_panel) in panel.chunks_exact(width).enumerate() {
                let mut factors = [_mm256_setzero_ps(); H];
                for h in 0..H {
                    // SAFETY: the pointer is to eight floats, which are borrowed.
                    factors[h] = unsafe { _mm256_loadu_ps(of_panel[h * GROUP..][..GROUP].as_ptr()) };
                }
                for m in 0..M {
                    // SAFETY: `i` is less than `count`, and no row is shorter than that (asserted).
                    let value = _mm256_set1_ps(unsafe { *rows[m].get_unchecked(i) });
                    for h in 0..H {
                        sums[m][h] = _mm256_fmadd_ps(value, factors[h], sums[m][h]);
                    }
                }
            }
            tap = next;
        }
        for (m, sums) in sums.into_iter().enumerate() {
            let (mut some, row) = ([0.0; GROUPS * GROUP], y.row_mut(m));
            let to = if columns >= width { &mut *row } else { &mut some[..] };
            for h in 0..H {
                // SAFETY: the pointer is to eight floats, which are borrowed mutably.
                unsafe { _mm256_storeu_ps(to[h * GROUP..][..GROUP].as_mut_ptr(), sums[h]) };
            }
            if columns < width {
                row.copy_from_slice(&some[..columns]);
            }
        }
    }

    /// The elements of a row that is shorter than a panel, with zeros behind them.
    fn filled<'s>(some: &'s mut [f32], row: &[f32]) -> &'s [f32] {
        some[..row.len()].copy_from_slice(row);
        some
    }
}
