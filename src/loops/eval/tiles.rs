//! Sums of products of rows, whose sums stay in registers.

use super::factor::{COLUMNS, Factor, ROWS};
use super::runs::Places;

/// Defines `$name(arguments...)`, which runs `$body::<T, FMA>(arguments...)` compiled for AVX2 where the processor has it and
/// FMA, else for the target's baseline.
macro_rules! wide {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        pub(super) fn $name<T: Factor>($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                #[target_feature(enable = "avx2,fma")]
                fn avx2<T: Factor>($($arg: $ty),*) {
                    $body::<T, true>($($arg),*)
                }
                // SAFETY: the processor was just seen to have both.
                return unsafe { avx2($($arg),*) };
            }
            $body::<T, { cfg!(any(target_feature = "fma", target_arch = "aarch64")) }>($($arg),*)
        }
    };
}

wide! {
    /// Writes the product of rows and of `panels`, of all sums of [`COLUMNS`] columns each, to y `[rows, n]`.
    fn multiply(rows: &Places<'_, T>, panels: &[[T; COLUMNS]], y: &mut [T], n: usize) = multiply_body
}

#[inline(always)]
fn multiply_body<T: Factor, const FMA: bool>(rows: &Places<'_, T>, panels: &[[T; COLUMNS]], y: &mut [T], n: usize) {
    let k = rows.taps * rows.outside.len();
    for (panel, column) in panels.chunks_exact(k).zip((0..n).step_by(COLUMNS)) {
        for (tile, y) in y.chunks_mut(ROWS * n).enumerate() {
            let (row, y) = (tile * ROWS, Columns { y, n, column });
            match y.y.len() / n {
                6 => y.write(sums::<T, 6, FMA>(rows, row, panel)),
                5 => y.write(sums::<T, 5, FMA>(rows, row, panel)),
                4 => y.write(sums::<T, 4, FMA>(rows, row, panel)),
                3 => y.write(sums::<T, 3, FMA>(rows, row, panel)),
                2 => y.write(sums::<T, 2, FMA>(rows, row, panel)),
                _ => y.write(sums::<T, 1, FMA>(rows, row, panel)),
            }
        }
    }
}

/// The sums of a tile, in the order of taps and their runs.
#[inline(always)]
fn sums<T: Factor, const M: usize, const FMA: bool>(
    rows: &Places<'_, T>,
    first: usize,
    panel: &[[T; COLUMNS]],
) -> [[T; COLUMNS]; M] {
    let mut sums = [[T::default(); COLUMNS]; M];
    for (tap, panel) in panel.chunks_exact(rows.outside.len()).enumerate() {
        let runs: [&[T]; M] = std::array::from_fn(|m| &rows.run(first + m, tap)[..panel.len()]);
        T::add_products::<M, FMA>(runs, panel, &mut sums);
    }
    sums
}

/// Some neighbouring columns of a few rows.
struct Columns<'y, T> {
    y: &'y mut [T],
    n: usize,
    column: usize,
}

impl<T: Copy> Columns<'_, T> {
    #[inline(always)]
    fn write<const M: usize>(self, sums: [[T; COLUMNS]; M]) {
        for (y, sums) in self.y.chunks_exact_mut(self.n).zip(sums) {
            match y[self.column..].first_chunk_mut() {
                Some(whole) => *whole = sums,
                None => y[self.column..].iter_mut().zip(sums).for_each(|(y, sum)| *y = sum),
            }
        }
    }
}

wide! {
    /// Writes to y `[rows, channels]` for each channel the sum over taps of what rows have there times `factors`
    /// `[taps, channels]`.
    fn channelwise(rows: &Places<'_, T>, factors: &[T], y: &mut [T]) = channelwise_body
}

/// Rows that share the loads of factors.
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
