//! The error that a device may have against exact arithmetic: derived from rounding, never tuned.
//!
//! With u the unit roundoff (2^-24 for f32, 2^-11 for f16, 2^-8 for bf16), each f32 operation gives the exact result times 1 + d with
//! |d| <= u. A sum of n products in any order, fused or not, is then off by at most
//! gamma(n + 1) * sum |x w|, gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1):
//! each term meets at most one product's and n sums' roundings. That is [`Growth::Worst`], a proof; a term left out of
//! n changes the sum by about sum |x w| / n, far more than that.
//!
//! Through a network the worst case multiplies by sum |w| in every layer, which soon says nothing. Roundings of
//! different elements are as good as independent with mean 0, so [`Growth::Quadrature`] follows standard deviations:
//! variances of independent errors add, weighted by w^2; deviations of possibly dependent ones (both operands of a
//! residual addition, pixels of a mean) add plainly, which no dependence exceeds. A sum's own deviation is
//! u sqrt(n + 1) * sum |x w|: the i-th of n + 1 roundings is at most u times a partial sum, which is at most sum |x w|.
//! Where f16 is stored, tensor cores add: they align a block of products to the largest and truncate (Fasi et al.,
//! Numerical behavior of NVIDIA tensor cores, 2021), which is an error of 2 u a term at most. Truncation has a mean,
//! but it acts on partial sums, which for terms of both signs are smaller than sum |x w| by about sqrt(n).
//! A rounding to f16 is uniform over an interval of its spacing: at most u |y| / sqrt(3) in deviation. Results may
//! differ by [`DEVIATIONS`] deviations.

use trefoil::{Dtype, Shape};

/// Unit roundoff of f32.
pub const U32: f64 = 1.0 / (1 << 24) as f64;
/// Unit roundoff of f16.
pub const U16: f64 = F16.unit;
/// Half the spacing of f32's subnormal numbers; a device may also flush them to zero.
const TINY32: f64 = f32::MIN_POSITIVE as f64;

/// Number of deviations that a result may be off by: a normal distribution has 1.2e-15 of all cases beyond it.
pub const DEVIATIONS: f64 = 8.0;

/// The rounding to nearest of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// The unit roundoff of the type.
    pub unit: f64,
    /// Half the spacing of the type's subnormal numbers.
    pub tiny: f64,
}

/// The rounding of f16.
pub const F16: Rounding = Rounding { unit: 1.0 / (1 << 11) as f64, tiny: 1.0 / ((1_u64 << 11) * (1 << 14)) as f64 };
/// The rounding of bf16, which has f32's range; a device may also flush its subnormal numbers to zero.
pub const BF16: Rounding = Rounding { unit: 1.0 / (1 << 8) as f64, tiny: TINY32 };

/// How activations are stored between operations; sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Values are stored as they are computed.
    F32,
    /// Values are rounded to f16; so are filters, after batch norms are folded into them.
    F16,
    /// Values are stored as they are computed; layers round their inputs and filters to this type, f16 or bf16.
    Operands(Dtype),
}

/// How errors grow from operation to operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Errors are bounds: for a few operations.
    Worst,
    /// Errors are standard deviations: for a network.
    Quadrature,
}

impl Rounding {
    /// The rounding of f16 or bf16.
    pub fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => F16,
            Dtype::Bf16 => BF16,
            _ => panic!("{dtype} is no type of 16 bits"),
        }
    }

    /// The largest error of `value` after rounding, with an error of `error` before.
    pub fn rounded(self, value: f64, error: f64) -> f64 {
        error + self.unit * (value.abs() + error) + self.tiny
    }
}

impl Growth {
    /// The error of a sum of `terms` products, whose magnitudes add up to `magnitude`.
    pub fn sum(self, storage: Storage, terms: usize, magnitude: f64) -> f64 {
        let n = (terms + 1) as f64;
        let u = match storage {
            Storage::F32 | Storage::Operands(_) => U32,
            Storage::F16 => 2.0 * U32,
        };
        let error = match self {
            Self::Worst => n * u / (1.0 - n * u) * magnitude,
            Self::Quadrature => n.sqrt() * u * magnitude,
        };
        error + TINY32
    }

    /// Combines the errors of independent values.
    pub fn join(self, errors: impl Iterator<Item = f64>) -> f64 {
        match self {
            Self::Worst => errors.sum(),
            Self::Quadrature => errors.map(|e| e * e).sum::<f64>().sqrt(),
        }
    }

    /// The error of `value` after it was stored, with an error of `error` before.
    pub fn stored(self, storage: Storage, value: f64, error: f64) -> f64 {
        match storage {
            Storage::F32 | Storage::Operands(_) => error,
            Storage::F16 => self.rounded(F16, value, error),
        }
    }

    /// The error of `value` after a layer has read it, with an error of `error` before.
    pub fn read(self, storage: Storage, value: f64, error: f64) -> f64 {
        match storage {
            Storage::F32 | Storage::F16 => error,
            Storage::Operands(dtype) => self.rounded(Rounding::of(dtype), value, error),
        }
    }

    fn rounded(self, how: Rounding, value: f64, error: f64) -> f64 {
        match self {
            Self::Worst => how.rounded(value, error),
            Self::Quadrature => {
                self.join([error, (how.unit * (value.abs() + 2.0 * error) + how.tiny) / 3_f64.sqrt()].into_iter())
            }
        }
    }

    /// The largest allowed difference for this error.
    pub fn limit(self, error: f64) -> f64 {
        match self {
            Self::Worst => error,
            Self::Quadrature => DEVIATIONS * error,
        }
    }
}

/// A value of [`Shape`] in NHWC order, and the error that each element may have.
#[derive(Clone, Debug)]
pub struct Expected {
    pub shape: Shape,
    pub values: Vec<f64>,
    pub errors: Vec<f64>,
}

impl Expected {
    /// Compares; the message names the first bad coordinate, both values, the limit, and the worst element.
    ///
    /// NaN and infinity are always wrong, on either side.
    pub fn check(&self, growth: Growth, actual: &[f32]) -> Result<(), String> {
        if actual.len() != self.values.len() {
            return Err(format!("{} elements instead of {}", actual.len(), self.values.len()));
        }
        let excess = |i: usize| {
            let limit = growth.limit(self.errors[i]);
            let difference = (f64::from(actual[i]) - self.values[i]).abs();
            let good = actual[i].is_finite() && self.values[i].is_finite() && difference <= limit;
            (good, if difference.is_nan() { f64::INFINITY } else { difference / limit })
        };
        let bad: Vec<usize> = (0..actual.len()).filter(|&i| !excess(i).0).collect();
        let Some(&first) = bad.first() else { return Ok(()) };
        let worst = *bad.iter().max_by(|a, b| excess(**a).1.total_cmp(&excess(**b).1)).expect("there is a first");
        let tell = |i: usize| {
            let (pixel, c) = (i / self.shape.channels, i % self.shape.channels);
            let (h, w) = (pixel / self.shape.width, pixel % self.shape.width);
            let limit = growth.limit(self.errors[i]);
            format!("[{h}, {w}, {c}] is {:e}, expected {:e} +- {limit:.1e}", actual[i], self.values[i])
        };
        let total = actual.len();
        Err(format!(
            "{} of {total} elements: first {}; worst {} ({:.1} limits)",
            bad.len(),
            tell(first),
            tell(worst),
            excess(worst).1
        ))
    }
}
