//! Products of rows with panels of columns. The sums stay in registers.

use std::ops::Range;

use super::factor::{COLUMNS, Factor, HALF, HALVES, ROWS};
use super::runs::Places;
use crate::loops::vectorized;

vectorized! {
    /// Writes the product of `rows` and `panels`, which have [`COLUMNS`] columns each, to y `[rows, n]`.
    pub(super) fn multiply<T: Factor>(rows: &Places<'_, T>, panels: &[[T; COLUMNS]], y: &mut [T], n: usize) = multiply_body
}

/// The number of rows of a panel that are multiplied with all tiles before the next ones are: they stay in a core's
/// first-level cache.
const NEAR: usize = 256;

#[inline(always)]
fn multiply_body<T: Factor, const FMA: bool>(rows: &Places<'_, T>, panels: &[[T; COLUMNS]], y: &mut [T], n: usize) {
    let k = rows.taps * rows.outside.len();
    for (panel, column) in panels.chunks_exact(k).zip((0..n).step_by(COLUMNS)) {
        for part in parts(rows) {
            match n - column {
                1..=HALF => of_panel::<T, 1, FMA>(rows, &part, panel, Columns { y, n, column }),
                _ => of_panel::<T, HALVES, FMA>(rows, &part, panel, Columns { y, n, column }),
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
    let (taps, elems) = if run < NEAR { (NEAR / run, run) } else { (1, NEAR) };
    (0..all).step_by(taps).flat_map(move |tap| {
        let of_run = (0..run).step_by(elems);
        of_run.map(move |elem| Part { taps: tap..all.min(tap + taps), elems: elem..run.min(elem + elems) })
    })
}

/// Adds the products of a part to the columns of a panel, only to the first H halves of them.
#[inline(always)]
fn of_panel<T: Factor, const H: usize, const FMA: bool>(
    rows: &Places<'_, T>,
    part: &Part,
    panel: &[[T; COLUMNS]],
    Columns { y, n, column }: Columns<'_, T>,
) {
    for (tile, y) in y.chunks_mut(ROWS * n).enumerate() {
        let (row, y) = (tile * ROWS, Columns { y, n, column });
        match y.y.len() / n {
            6 => of_tile::<T, 6, H, FMA>(rows, row, part, panel, y),
            5 => of_tile::<T, 5, H, FMA>(rows, row, part, panel, y),
            4 => of_tile::<T, 4, H, FMA>(rows, row, part, panel, y),
            3 => of_tile::<T, 3, H, FMA>(rows, row, part, panel, y),
            2 => of_tile::<T, 2, H, FMA>(rows, row, part, panel, y),
            _ => of_tile::<T, 1, H, FMA>(rows, row, part, panel, y),
        }
    }
}

/// Adds the products of a part to the sums of a tile, in the order of taps, and within a tap in the order of its run. The
/// first part's sums begin with zeros.
#[inline(always)]
fn of_tile<T: Factor, const M: usize, const H: usize, const FMA: bool>(
    rows: &Places<'_, T>,
    first: usize,
    part: &Part,
    panel: &[[T; COLUMNS]],
    mut y: Columns<'_, T>,
) {
    let run = rows.outside.len();
    let is_first = part.taps.start == 0 && part.elems.start == 0;
    let mut sums = if is_first { [[T::default(); COLUMNS]; M] } else { y.read() };
    for tap in part.taps.clone() {
        let runs: [&[T]; M] = std::array::from_fn(|m| &rows.run(first + m, tap)[part.elems.clone()]);
        T::add_products::<M, H, FMA>(runs, &panel[tap * run..][part.elems.clone()], &mut sums);
    }
    y.write(sums);
}

/// Some neighbouring columns of a few rows of y.
struct Columns<'y, T> {
    y: &'y mut [T],
    n: usize,
    column: usize,
}

impl<T: Copy + Default> Columns<'_, T> {
    #[inline(always)]
    fn read<const M: usize>(&self) -> [[T; COLUMNS]; M] {
        let mut sums = [[T::default(); COLUMNS]; M];
        for (y, sums) in self.y.chunks_exact(self.n).zip(&mut sums) {
            match y[self.column..].first_chunk() {
                Some(whole) => *sums = *whole,
                None => sums.iter_mut().zip(&y[self.column..]).for_each(|(sum, y)| *sum = *y),
            }
        }
        sums
    }

    #[inline(always)]
    fn write<const M: usize>(&mut self, sums: [[T; COLUMNS]; M]) {
        for (y, sums) in self.y.chunks_exact_mut(self.n).zip(sums) {
            match y[self.column..].first_chunk_mut() {
                Some(whole) => *whole = sums,
                None => y[self.column..].iter_mut().zip(sums).for_each(|(y, sum)| *y = sum),
            }
        }
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
    while c + COLUMNS <= channels {
        some_channels::<T, M, COLUMNS, FMA>(rows, [row, c], factors, y);
        c += COLUMNS;
    }
    while c + COLUMNS / 2 <= channels {
        some_channels::<T, M, { COLUMNS / 2 }, FMA>(rows, [row, c], factors, y);
        c += COLUMNS / 2;
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
    use super::super::runs::OUTSIDE;
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

    /// Every number of rows with every number of columns, so that tiles with fewer rows and panels with fewer columns
    /// occur.
    #[test]
    fn products_of_every_count_of_rows_and_columns() {
        const RUN: usize = 4;
        let (from, outside) = (numbers(RUN + 7, 1), numbers(RUN, 2));
        for (m, n) in (1..=2 * ROWS + 1).flat_map(|m| (1..=2 * COLUMNS + 1).map(move |n| (m, n))) {
            let at = places(m);
            let rows = Places { from: &from, outside: &outside, at: &at, taps: TAPS };
            let factors = numbers(TAPS * RUN * n, 3);
            let factor = |i: usize, c: usize| if c < n { factors[i * n + c] } else { f32::NAN };
            let panel = |c: usize| (0..TAPS * RUN).map(move |i| std::array::from_fn(|lane| factor(i, c + lane)));
            let panels: Vec<[f32; COLUMNS]> = (0..n).step_by(COLUMNS).flat_map(panel).collect();
            let sum = |row: usize, c: usize| -> f32 {
                (0..TAPS * RUN).map(|i| rows.run(row, i / RUN)[i % RUN] * factor(i, c)).sum()
            };
            let wanted: Vec<f32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
            for isa in [Isa::BASELINE, Isa::detect()] {
                let mut y = vec![f32::NAN; m * n + 1];
                multiply(isa, &rows, &panels, &mut y[..m * n], n);
                assert_eq!(y[..m * n], wanted, "{m} rows, {n} columns");
                assert!(y[m * n].is_nan(), "{m} rows, {n} columns");
            }
        }
    }

    /// Sums that are longer than what is near: of long runs, of many short ones, and of both.
    #[test]
    fn products_of_long_sums() {
        for (taps, run) in [(1, 2 * NEAR + 3), (3, NEAR), (3, NEAR + 1), (NEAR + 7, 1), (9, NEAR / 3), (40, 13)] {
            let (m, n, k) = (ROWS + 2, COLUMNS + HALF + 1, taps * run);
            let at: Vec<usize> = (0..m * taps).map(|i| if i % 5 == 1 { OUTSIDE } else { i % 7 }).collect();
            let (from, outside, factors) = (numbers(run + 7, 1), numbers(run, 2), numbers(k * n, 3));
            let rows = Places { from: &from, outside: &outside, at: &at, taps };
            let panels = super::super::product::packed(&factors, n);
            let sum = |row: usize, c: usize| {
                (0..k).map(|i| rows.run(row, i / run)[i % run] * factors[i * n + c]).sum::<f32>()
            };
            let wanted: Vec<f32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
            for isa in [Isa::BASELINE, Isa::detect()] {
                let mut y = vec![f32::NAN; m * n];
                multiply(isa, &rows, &panels, &mut y, n);
                assert_eq!(y, wanted, "{taps} taps of {run}");
            }
        }
    }

    /// Every number of rows with every number of channels, so that single rows, groups of eight channels and single
    /// channels occur.
    #[test]
    fn sums_by_channel_of_every_count_of_rows_and_channels() {
        for (m, channels) in (1..=2 * TOGETHER + 1).flat_map(|m| (1..=2 * COLUMNS + 9).map(move |n| (m, n))) {
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
