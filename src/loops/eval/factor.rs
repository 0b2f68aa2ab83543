//! Products of a few rows with a panel of columns. The sums stay in registers.

use crate::graph::Element;

/// The number of rows of a tile.
pub(super) const ROWS: usize = 6;

/// The number of columns of a panel. With AVX, the sums of six rows of f32 fill 12 of 16 registers. Only half of the
/// last panel's columns may be in use.
pub(super) const COLUMNS: usize = 16;
/// The number of halves of a panel. The sums of a row in a half fill one register.
pub(super) const HALVES: usize = 2;
/// The number of columns of a half.
pub(super) const HALF: usize = COLUMNS / HALVES;

/// A type in which products are computed.
pub(super) trait Factor: Element + Default + Send + Sync {
    /// The sum self + a x b, with one rounding if `FMA` and the type rounds.
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self;

    /// Adds to the sums of M rows, in the first H halves, the products of the rows' first elements with those of a
    /// panel, in the order of the elements.
    ///
    /// # Panics
    /// If a row is shorter than the panel.
    #[inline(always)]
    fn add_products<const M: usize, const H: usize, const FMA: bool>(
        rows: [&[Self]; M],
        panel: &[[Self; COLUMNS]],
        sums: &mut [[Self; COLUMNS]; M],
    ) {
        add_products::<Self, M, H, FMA>(rows, panel, sums);
    }
}

impl Factor for f32 {
    #[inline(always)]
    fn plus<const FMA: bool>(self, a: Self, b: Self) -> Self {
        if FMA { a.mul_add(b, self) } else { self + a * b }
    }

    #[inline(always)]
    fn add_products<const M: usize, const H: usize, const FMA: bool>(
        rows: [&[Self]; M],
        panel: &[[Self; COLUMNS]],
        sums: &mut [[Self; COLUMNS]; M],
    ) {
        #[cfg(target_arch = "x86_64")]
        if FMA && is_x86_feature_detected!("avx") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor was just seen to have both.
            return unsafe { avx::add_products::<M, H>(rows, panel, sums) };
        }
        add_products::<Self, M, H, FMA>(rows, panel, sums);
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
fn add_products<T: Factor, const M: usize, const H: usize, const FMA: bool>(
    rows: [&[T]; M],
    panel: &[[T; COLUMNS]],
    to: &mut [[T; COLUMNS]; M],
) {
    let (rows, mut sums) = (rows.map(|row| &row[..panel.len()]), *to); // no code may take the address of `sums`
    for (i, factors) in panel.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let value = row[i];
            for (sum, &factor) in sums[..H * HALF].iter_mut().zip(&factors[..H * HALF]) {
                *sum = sum.plus::<FMA>(value, factor);
            }
        }
    }
    *to = sums;
}

/// The code of `add_products` for f32 in AVX instructions. From plain loops within loops over taps the compiler makes
/// code that keeps some sums in memory.
#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps};

    use super::{COLUMNS, HALF, HALVES};

    #[target_feature(enable = "avx,fma")]
    pub fn add_products<const M: usize, const H: usize>(
        rows: [&[f32]; M],
        panel: &[[f32; COLUMNS]],
        to: &mut [[f32; COLUMNS]; M],
    ) {
        const { assert!(H <= HALVES) };
        assert!(rows.iter().all(|row| row.len() >= panel.len()));
        let mut sums = [[_mm256_setzero_ps(); H]; M];
        for m in 0..M {
            for h in 0..H {
                // SAFETY: the pointer is to eight floats, which are borrowed.
                sums[m][h] = unsafe { _mm256_loadu_ps(to[m][h * HALF..][..HALF].as_ptr()) };
            }
        }
        for (i, of_panel) in panel.iter().enumerate() {
            let mut factors = [_mm256_setzero_ps(); H];
            for h in 0..H {
                // SAFETY: the pointer is to eight floats, which are borrowed.
                factors[h] = unsafe { _mm256_loadu_ps(of_panel[h * HALF..][..HALF].as_ptr()) };
            }
            for m in 0..M {
                // SAFETY: `i` is less than the length of the panel, and no row is shorter than that (asserted).
                let value = _mm256_set1_ps(unsafe { *rows[m].get_unchecked(i) });
                for h in 0..H {
                    sums[m][h] = _mm256_fmadd_ps(value, factors[h], sums[m][h]);
                }
            }
        }
        for m in 0..M {
            for h in 0..H {
                // SAFETY: the pointer is to eight floats, which are borrowed mutably.
                unsafe { _mm256_storeu_ps(to[m][h * HALF..][..HALF].as_mut_ptr(), sums[m][h]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the products of M rows of k elements, computed by AVX instructions if the processor has them, with
    /// those of plain loops.
    fn compare<const M: usize, const H: usize>(k: usize) {
        let number = |i: usize| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0;
        let elems: Vec<f32> = (0..M * k).map(number).collect();
        let panel: Vec<[f32; COLUMNS]> = (0..k).map(|i| std::array::from_fn(|c| number(i * COLUMNS + c))).collect();
        let rows: [&[f32]; M] = std::array::from_fn(|m| &elems[m * k..][..k]);
        let start: [[f32; COLUMNS]; M] = std::array::from_fn(|m| std::array::from_fn(|c| (m + c) as f32));
        let (mut named, mut plain) = (start, start);
        f32::add_products::<M, H, true>(rows, &panel, &mut named);
        add_products::<f32, M, H, true>(rows, &panel, &mut plain);
        assert_eq!(named, plain);
        let kept = named.iter().zip(start).all(|(sums, start)| sums[H * HALF..] == start[H * HALF..]);
        assert!(kept, "columns behind {H} halves");
    }

    #[test]
    fn named_instructions_give_the_bits_of_plain_ones() {
        for k in [0, 1, 7, 64] {
            compare::<1, 2>(k);
            compare::<5, 2>(k);
            compare::<6, 2>(k);
            compare::<1, 1>(k);
            compare::<6, 1>(k);
        }
    }

    #[test]
    #[should_panic(expected = "rows.iter()")]
    #[cfg(target_arch = "x86_64")]
    fn a_row_that_is_shorter_than_the_panel_is_refused() {
        if !is_x86_feature_detected!("fma") {
            panic!("rows.iter() are not looked at by these instructions");
        }
        f32::add_products::<1, 2, true>([&[1.0]], &[[1.0; COLUMNS]; 2], &mut [[0.0; COLUMNS]; 1]);
    }
}
