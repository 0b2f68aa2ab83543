//! Products of rows with panels of columns. The sums stay in registers.

use std::ops::Range;

use super::factor::{Factor, GROUP, GROUPS, rows_of_tile};
use super::runs::{OUTSIDE, Places};
use crate::loops::vectorized;

/// A matrix `[k, n]` as panels of up to [`GROUPS`] groups of columns, each `[k, columns of its groups]`, with zeros
/// behind the last column.
pub(super) struct Panels<T> {
    elems: Vec<T>,
    k: usize,
    n: usize,
}

impl<T: Factor> Panels<T> {
    /// The panels of a matrix of n columns.
    pub fn new(of: &[T], n: usize) -> Self {
        let k = of.len() / n;
        let mut elems = vec![T::default(); n.div_ceil(GROUP) * GROUP * k];
        for (column, groups) in panels(n) {
            let width = groups * GROUP;
            let panel = elems[column * k..][..width * k].chunks_exact_mut(width);
            let count = width.min(n - column);
            panel.zip(of.chunks_exact(n)).for_each(|(to, of)| to[..count].copy_from_slice(&of[column..][..count]));
        }
        Self { elems, k, n }
    }

    /// The elements of the panel that begins with this column.
    fn panel(&self, column: usize, groups: usize) -> &[T] {
        &self.elems[column * self.k..][..groups * GROUP * self.k]
    }
}

/// The first column of each panel of n columns, and the number of its groups: two, or three so that none is left.
fn panels(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = n.div_ceil(GROUP);
    let (odd, wide) = (all % 2 == 1, all >= GROUPS);
    let first = if odd && wide { GROUPS } else { 0 };
    let pairs = (first..all).step_by(2).map(move |group| (group * GROUP, 2.min(all - group)));
    (first > 0).then_some((0, GROUPS)).into_iter().chain(pairs)
}

vectorized! {
    /// Writes the product of `rows` and `panels` to y `[rows, n]`.
    pub(super) fn multiply<T: Factor>(rows: &Places<'_, T>, of: &Panels<T>, y: &mut [T]) = multiply_body
}

/// The number of rows of a panel that are multiplied with all tiles before the next ones are: they stay in a core's
/// first-level cache.
const NEAR: usize = 288;

#[inline(always)]
fn multiply_body<T: Factor, const FMA: bool>(rows: &Places<'_, T>, of: &Panels<T>, y: &mut [T]) {
    for (column, groups) in panels(of.n) {
        let panel = of.panel(column, groups);
        for part in parts(rows) {
            let y = Columns { y: &mut *y, n: of.n, column };
            match groups {
                1 => of_panel::<T, 1, FMA>(rows, &part, panel, y),
                2 => of_panel::<T, 2, FMA>(rows, &part, panel, y),
                _ => of_panel::<T, GROUPS, FMA>(rows, &part, panel, y),
            }
        }
    }
}

/// A part of a sum's products: those of some elements of each of some taps' runs.
struct Part {
    taps: Range<usize>,
    elems: Range<usize>,
}

/// The parts of all products, in the order in which they are added. A part has several whole runs, or some elements of one.
fn parts<T>(rows: &Places<'_, T>) -> impl Iterator<Item = Part> {
    let (run, all) = (rows.outside.len(), rows.taps);
    let (taps, elems) = if run <= NEAR { (NEAR / run, run) } else { (1, run.div_ceil(run.div_ceil(NEAR))) };
    (0..all).step_by(taps).flat_map(move |tap| {
        let of_run = (0..run).step_by(elems);
        of_run.map(move |elem| Part { taps: tap..all.min(tap + taps), elems: elem..run.min(elem + elems) })
    })
}

/// Adds the products of a part to the columns of a panel of H groups.
#[inline(always)]
fn of_panel<T: Factor, const H: usize, const FMA: bool>(
    rows: &Places<'_, T>,
    part: &Part,
    panel: &[T],
    Columns { y, n, column }: Columns<'_, T>,
) {
    let together = rows_of_tile(H);
    for (tile, y) in y.chunks_mut(together * n).enumerate() {
        let tile = Tile { rows, first: tile * together, part, panel };
        let y = Columns { y, n, column };
        match y.y.len() / n {
            6 => T::add_tile::<6, H, FMA>(&tile, y),
            5 => T::add_tile::<5, H, FMA>(&tile, y),
            4 => T::add_tile::<4, H, FMA>(&tile, y),
            3 => T::add_tile::<3, H, FMA>(&tile, y),
            2 => T::add_tile::<2, H, FMA>(&tile, y),
            _ => T::add_tile::<1, H, FMA>(&tile, y),
        }
    }
}

/// Some rows, and a part of their products with a panel.
pub(super) struct Tile<'t, T> {
    rows: &'t Places<'t, T>,
    /// The number of the first row.
    first: usize,
    part: &'t Part,
    panel: &'t [T],
}

impl<'t, T> Tile<'t, T> {
    /// Whether the products are the first ones, so that sums begin with zeros.
    pub fn is_first(&self) -> bool {
        self.part.taps.start == 0 && self.part.elems.start == 0
    }

    /// The taps whose products are added.
    pub fn taps(&self) -> Range<usize> {
        self.part.taps.clone()
    }

    /// The elements of M rows at a tap, with those of the taps behind it as long as they are neighbours in each row; the
    /// rows of the panel, which has `width` columns, for them; and the next tap. Each of the M rows has as many elements
    /// as the panel has rows.
    #[inline(always)]
    pub fn elems<const M: usize>(&self, tap: usize, width: usize) -> ([&'t [T]; M], &'t [T], usize) {
        let Places { from, outside, at, taps } = *self.rows;
        let (run, elems) = (outside.len(), &self.part.elems);
        let at = &at[self.first * taps..][..M * taps];
        let mut end = tap + 1;
        if elems.len() == run {
            let follows = |row: usize, tap: usize| {
                let [before, place] = [at[row * taps + tap - 1], at[row * taps + tap]];
                before != OUTSIDE && before.wrapping_add(run) == place
            };
            while end < self.part.taps.end && (0..M).all(|row| follows(row, end)) {
                end += 1;
            }
        }
        let count = (end - tap - 1) * run + elems.len();
        let mut rows: [&[T]; M] = [&[]; M];
        for (row, elems_of) in rows.iter_mut().enumerate() {
            *elems_of = match at[row * taps + tap] {
                OUTSIDE => &outside[elems.clone()],
                place => &from[place + elems.start..][..count],
            };
        }
        (rows, &self.panel[(tap * run + elems.start) * width..][..count * width], end)
    }
}

/// Some neighbouring columns of a few rows of y.
pub(super) struct Columns<'y, T> {
    y: &'y mut [T],
    n: usize,
    column: usize,
}

impl<T> Columns<'_, T> {
    /// The columns of a row, with all columns behind them.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &[T] {
        &self.y[row * self.n..][self.column..self.n]
    }

    /// As [`row`](Self::row), to be written.
    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        &mut self.y[row * self.n..][self.column..self.n]
    }
}

vectorized! {
    /// Writes to y `[rows, channels]`, for each channel, the sum over taps of the row's element at the tap times that
    /// of `factors` `[taps, channels]`.
    pub(super) fn channelwise<T: Factor>(rows: &Places<'_, T>, factors: &[T], y: &mut [T]) = channelwise_body
}

/// The number of rows that share the loads of factors.
const TOGETHER: usize = 4;

#[inline(always)]
fn channelwise_body<T: Factor, const FMA: bool>(rows: &Places<'_, T>, factors: &[T], y: &mut [T]) {
    let channels = rows.outside.len();
    for (group, y) in y.chunks_mut(TOGETHER * channels).enumerate() {
        let row = group * TOGETHER;
        if y.len() == TOGETHER * channels {
            some_rows::<T, TOGETHER, FMA>(rows, row, factors, y);
        } else {
            let each = y.chunks_exact_mut(channels).enumerate();
            each.for_each(|(m, y)| some_rows::<T, 1, FMA>(rows, row + m, factors, y));
        }
    }
}

#[inline(always)]
fn some_rows<T: Factor, const M: usize, const FMA: bool>(rows: &Places<'_, T>, row: usize, factors: &[T], y: &mut [T]) {
    let channels = rows.outside.len();
    let mut c = 0;
    while c + 2 * GROUP <= channels {
        some_channels::<T, M, { 2 * GROUP }, FMA>(rows, [row, c], factors, y);
        c += 2 * GROUP;
    }
    while c + GROUP <= channels {
        some_channels::<T, M, GROUP, FMA>(rows, [row, c], factors, y);
        c += GROUP;
    }
    (c..channels).for_each(|c| some_channels::<T, M, 1, FMA>(rows, [row, c], factors, y));
}

#[inline(always)]
fn some_channels<T: Factor, const M: usize, const W: usize, const FMA: bool>(
    rows: &Places<'_, T>,
    [row, c]: [usize; 2],
    factors: &[T],
    y: &mut [T],
) {
    let channels = rows.outside.len();
    let mut sums = [[T::default(); W]; M];
    for (tap, factors) in factors.chunks_exact(channels).enumerate() {
        let factors = &factors[c..][..W];
        for (m, sums) in sums.iter_mut().enumerate() {
            let run = &rows.run(row + m, tap)[c..][..W];
            for lane in 0..W {
                sums[lane] = sums[lane].plus::<FMA>(run[lane], factors[lane]);
            }
        }
    }
    for (y, sums) in y.chunks_exact_mut(channels).zip(sums) {
        y[c..][..W].copy_from_slice(&sums);
    }
}

#[cfg(test)]
mod tests {
    use super::super::factor::ROWS;
    use super::*;
    use crate::loops::Isa;

    /// The number of taps of a row.
    const TAPS: usize = 3;

    /// Whole numbers from -8 to 8. The sums of their products are exact in f32.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 17) as f32 - 8.0).collect()
    }

    /// The places where the runs of `rows` rows begin; one run is outside.
    fn places(rows: usize) -> Vec<usize> {
        (0..rows * TAPS).map(|i| if i == 1 { OUTSIDE } else { (i * 5) % 7 }).collect()
    }

    /// The sum that tiles write, one product after another.
    fn sum(rows: &Places<'_, f32>, factors: &[f32], n: usize, [row, column]: [usize; 2]) -> f32 {
        let run = rows.outside.len();
        (0..rows.taps * run).map(|i| rows.run(row, i / run)[i % run] * factors[i * n + column]).sum()
    }

    /// Compares the product with sums.
    fn compare(rows: &Places<'_, f32>, [m, n]: [usize; 2]) {
        let factors = numbers(rows.taps * rows.outside.len() * n, 3);
        let wanted: Vec<f32> = (0..m * n).map(|i| sum(rows, &factors, n, [i / n, i % n])).collect();
        for isa in [Isa::BASELINE, Isa::detect()] {
            let mut y = vec![f32::NAN; m * n + 1];
            multiply(isa, rows, &Panels::new(&factors, n), &mut y[..m * n]);
            let taps = format!("{m} rows, {n} columns, {} taps of {}", rows.taps, rows.outside.len());
            assert_eq!(y[..m * n], wanted, "{taps}");
            assert!(y[m * n].is_nan(), "{taps}");
        }
    }

    /// Every number of rows with every number of columns, so that tiles with fewer rows and panels with fewer columns
    /// occur.
    #[test]
    fn products_of_every_count_of_rows_and_columns() {
        const RUN: usize = 4;
        let (from, outside) = (numbers(RUN + 7, 1), numbers(RUN, 2));
        for (m, n) in (1..=2 * ROWS + 1).flat_map(|m| (1..=5 * GROUP + 1).map(move |n| (m, n))) {
            compare(&Places { from: &from, outside: &outside, at: &places(m), taps: TAPS }, [m, n]);
        }
    }

    /// Sums that are longer than what is near: of long runs, of many short ones, and of both.
    #[test]
    fn products_of_long_sums() {
        for (taps, run) in [(1, 2 * NEAR + 3), (3, NEAR), (3, NEAR + 1), (NEAR + 7, 1), (9, NEAR / 3), (40, 13)] {
            let (m, n) = (ROWS + 2, 3 * GROUP + 1);
            let at: Vec<usize> = (0..m * taps).map(|i| if i % 5 == 1 { OUTSIDE } else { i % 7 }).collect();
            let (from, outside) = (numbers(run + 7, 1), numbers(run, 2));
            compare(&Places { from: &from, outside: &outside, at: &at, taps }, [m, n]);
        }
    }

    /// Taps that are neighbours in all rows, in some of them, and behind a run that is outside.
    #[test]
    fn products_of_neighbouring_taps() {
        let (taps, run, m) = (9, 5, ROWS + 1);
        let (from, outside) = (numbers(m + taps * run, 1), numbers(run, 2));
        let place = |row: usize, tap: usize| row + (tap + usize::from(row == 3 && tap > 4)) % taps * run;
        let inside: Vec<usize> = (0..m * taps).map(|i| place(i / taps, i % taps)).collect();
        let padded: Vec<usize> = inside.iter().zip(0..).map(|(&at, i)| if i % 4 == 2 { OUTSIDE } else { at }).collect();
        for at in [inside, padded] {
            (1..=m).for_each(|m| {
                let at = &at[..m * taps];
                compare(&Places { from: &from, outside: &outside, at, taps }, [m, 3 * GROUP]);
            });
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_run_that_ends_behind_the_operand_is_refused() {
        let (from, outside) = (numbers(9, 1), numbers(5, 2));
        let rows = Places { from: &from, outside: &outside, at: &[4, 5], taps: 1 };
        multiply(Isa::detect(), &rows, &Panels::new(&numbers(5 * GROUP, 3), GROUP), &mut [0.0; 2 * GROUP]);
    }

    /// Two groups to a panel, and a third where one is left.
    #[test]
    fn every_group_is_in_one_panel() {
        let all = |n| panels(n).collect::<Vec<_>>();
        assert_eq!([all(1), all(8), all(9), all(17)], [vec![(0, 1)], vec![(0, 1)], vec![(0, 2)], vec![(0, 3)]]);
        assert_eq!([all(32), all(40)], [vec![(0, 2), (16, 2)], vec![(0, 3), (24, 2)]]);
    }

    /// Every number of rows with every number of channels, so that single rows, groups of eight channels and single
    /// channels occur.
    #[test]
    fn sums_by_channel_of_every_count_of_rows_and_channels() {
        for (m, channels) in (1..=2 * TOGETHER + 1).flat_map(|m| (1..=5 * GROUP + 1).map(move |n| (m, n))) {
            let (from, outside) = (numbers(channels + 7, 4), numbers(channels, 5));
            let (at, factors) = (places(m), numbers(TAPS * channels, 6));
            let rows = Places { from: &from, outside: &outside, at: &at, taps: TAPS };
            let sum = |row: usize, c: usize| -> f32 {
                (0..TAPS).map(|tap| rows.run(row, tap)[c] * factors[tap * channels + c]).sum()
            };
            let wanted: Vec<f32> = (0..m * channels).map(|i| sum(i / channels, i % channels)).collect();
            for isa in [Isa::BASELINE, Isa::detect()] {
                let mut y = vec![f32::NAN; m * channels + 1];
                channelwise(isa, &rows, &factors, &mut y[..m * channels]);
                assert_eq!(y[..m * channels], wanted, "{m} rows, {channels} channels");
                assert!(y[m * channels].is_nan(), "{m} rows, {channels} channels");
            }
        }
    }
}
