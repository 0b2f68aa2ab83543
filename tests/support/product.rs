//! Matrix products by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use trefoil::plan::ProductWay;
use trefoil::plan::{Limits, ProductActivation, ProductKernel, ProductSizes, RowsAt};
use trefoil::{Device, Dtype, ProductNormOperands, ProductOperands, ProductRun, Shape};

use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, F16, Growth, Rounding, Storage, U32};

/// One product of random operands.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The type of operands and result: f16 or bf16.
    pub dtype: Dtype,
    pub sizes: ProductSizes,
    pub activation: ProductActivation,
    /// Whether there is a bias, a scale and a residual.
    has: [bool; 3],
    /// Number of values between the rows of x, residual and result.
    gap: usize,
    /// The largest absolute value of x.
    most: f64,
    /// What is done of norms of rows.
    norm: Norm,
    /// The expected rows, computed by the first kernel that is compared, for each way to compute GELU.
    expected: Arc<[OnceLock<Vec<Expected>>; 2]>,
}

/// What a product does of a norm of rows.
#[derive(Clone, Copy, Debug)]
enum Norm {
    None,
    /// It norms the rows of x, which lie around `offset`.
    OfX {
        centred: bool,
        offset: f64,
    },
    /// It writes the statistics of the rows of the result.
    OfY,
}

/// The operands of a problem.
struct Operands<T> {
    x: Vec<T>,
    w: Vec<T>,
    bias: Vec<f32>,
    scale: Vec<f32>,
    residual: Vec<T>,
    /// The statistics of the rows of x, and the sums of the rows of w.
    statistics: Vec<f32>,
    weight_sums: Vec<f32>,
}

/// All problems of a type.
pub fn all(dtype: Dtype) -> Vec<Problem> {
    let of = |m, n, k, activation, has, gap| Problem {
        dtype,
        sizes: ProductSizes { m, n, k },
        activation,
        has,
        gap,
        most: 1.0,
        norm: Norm::None,
        expected: Arc::default(),
    };
    let plain = |m, n, k| of(m, n, k, ProductActivation::None, [true, false, false], 0);
    let mut all: Vec<Problem> = [1, 7, 64, 65, 191, 193, 197, 385].into_iter().map(|m| plain(m, 200, 136)).collect();
    all.extend([8, 64, 72, 128, 136, 264].map(|n| plain(70, n, 72)));
    all.extend([8, 64, 72, 200, 520, 1032].map(|k| plain(70, 72, k)));
    for activation in ProductActivation::ALL {
        all.push(of(333, 136, 264, activation, [true, false, false], 0));
        all.push(of(99, 264, 72, activation, [true, true, true], 16));
    }
    for bits in 0..8_usize {
        let has = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        all.push(of(131, 72, 200, ProductActivation::None, has, 8 * (bits % 2)));
    }
    // These problems have more tiles than multiprocessors, several for each warpgroup, or tiles of few steps.
    all.push(of(9001, 392, 72, ProductActivation::None, [true, false, true], 0));
    all.push(of(4100, 776, 136, ProductActivation::Gelu, [true, true, true], 8));
    all.push(of(20_011, 136, 8, ProductActivation::Silu, [false, true, true], 0));
    all.push(of(2000, 768, 768, ProductActivation::Gelu, [true, false, false], 0));
    all.extend(with_norms(&of));
    if dtype == Dtype::Bf16 {
        // Some results are too large for f16, and the squares of some are too large for f32.
        let beyond = ProductActivation::ALL.into_iter().zip([1e6, 1e22].into_iter().cycle());
        all.extend(beyond.map(|(activation, most)| Problem { most, ..of(70, 136, 72, activation, [true; 3], 8) }));
        all.extend(
            [ProductActivation::GeluTanh, ProductActivation::Silu]
                .map(|activation| Problem { most: 1e22, ..of(333, 264, 72, activation, [true, false, false], 0) }),
        );
    }
    all
}

/// Products that norm the rows that they read, and products that write statistics of rows.
fn with_norms(of: &impl Fn(usize, usize, usize, ProductActivation, [bool; 3], usize) -> Problem) -> Vec<Problem> {
    let of_x = |centred, offset, problem| Problem { norm: Norm::OfX { centred, offset }, ..problem };
    let of_y = |problem| Problem { norm: Norm::OfY, ..problem };
    let (none, bias) = (ProductActivation::None, [true, false, false]);
    let mut all = Vec::new();
    for m in [1, 3, 31, 64, 65, 197, 257, 385] {
        all.push(of_x(true, 0.0, of(m, 200, 136, none, bias, 0)));
        all.push(of_y(of(m, 200, 136, none, [true, true, true], 0)));
    }
    for columns in [8, 64, 72, 128, 264, 776, 1032, 1160] {
        all.push(of_x(true, 0.5, of(70, 136, columns, none, bias, 8)));
        all.push(of_x(false, 0.5, of(70, 72, columns, none, [false; 3], 8)));
        all.push(of_y(of(70, columns, 72, none, [true, false, true], 8)));
    }
    for activation in ProductActivation::ALL.into_iter().filter(|&of| of != ProductActivation::HardSwish) {
        all.push(of_x(true, 0.0, of(333, 136, 264, activation, bias, 0)));
        all.push(of_x(true, -3.0, of(99, 264, 72, activation, [true; 3], 16)));
    }
    all.extend([4.0, -64.0].map(|offset| of_x(true, offset, of(197, 72, 768, none, bias, 0))));
    all.extend([[false; 3], [true, false, false], [false, true, true]].map(|has| of_y(of(131, 72, 200, none, has, 0))));
    all.push(of_y(of(131, 72, 200, ProductActivation::Relu, [true, false, true], 0)));
    // These problems have more tiles than multiprocessors, several for each warpgroup, or tiles of few steps.
    all.push(of_x(true, 0.25, of(9001, 392, 72, none, bias, 0)));
    all.push(of_x(true, 0.25, of(4100, 776, 136, ProductActivation::Gelu, bias, 8)));
    all.push(of_x(false, 0.25, of(2000, 768, 768, ProductActivation::QuickGelu, bias, 0)));
    all.push(of_y(of(9001, 392, 72, none, [true, false, true], 0)));
    all.push(of_y(of(4100, 776, 136, none, [true; 3], 8)));
    all.push(of_y(of(20_011, 136, 8, none, [true, false, true], 0)));
    all.push(of_y(of(2000, 768, 768, none, [true, false, true], 0)));
    all
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProductSizes { m, n, k } = self.sizes;
        write!(f, "{}, {m} x {n} x {k}, {:?}", self.dtype, self.activation)?;
        if self.most != 1.0 {
            write!(f, ", up to {:e}", self.most)?;
        }
        match self.norm {
            Norm::None => {}
            Norm::OfX { centred, offset } => write!(f, ", norm of rows around {offset}, centred {centred}")?,
            Norm::OfY => write!(f, ", statistics")?,
        }
        let named = self.has.into_iter().zip(["bias", "scale", "residual"]).filter(|(has, _)| *has);
        named.into_iter().try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}

impl Problem {
    /// The kernels that can compute the problem on `limits`.
    pub fn kernels(&self, limits: &Limits) -> Vec<ProductKernel> {
        let has_norm = !matches!(self.norm, Norm::None);
        let fits = |kernel: &ProductKernel| !has_norm || kernel.tile.way == ProductWay::Split;
        self.sizes.kernels(limits).into_iter().filter(fits).collect()
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.sizes.m * self.sizes.n
    }

    /// Runs the problem twice, into a buffer of NaN that is longer than the result, and compares.
    pub fn run(&self, device: &Device, kernel: ProductKernel) -> Result<(), String> {
        match self.dtype {
            Dtype::Bf16 => self.run_of::<bf16>(device, kernel),
            _ => self.run_of::<f16>(device, kernel),
        }
    }

    fn run_of<T: Half>(&self, device: &Device, kernel: ProductKernel) -> Result<(), String> {
        let ProductSizes { m, n, .. } = self.sizes;
        let operands = self.operands::<T>();
        let at = RowsAt { first: GUARD, pitch: n + self.gap };
        let poisoned = vec![T::POISON; m * at.pitch + 2 * GUARD];
        let pitch = m.next_multiple_of(2);
        let len = if matches!(self.norm, Norm::OfY) { 2 * pitch * n.div_ceil(PART) } else { 0 };
        let statistics = vec![f32::NAN; len];
        let of = self.as_operands(&operands, (&poisoned, at), &statistics, kernel);
        let mut run = ProductRun::new(device, &of, kernel, 1).map_err(|error| error.to_string())?;
        run.run(2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        let is_poison = |i: usize| result[i].is_poison();
        let is_result = |i: usize| i >= GUARD && i - GUARD < m * at.pitch && (i - GUARD) % at.pitch < n;
        if let Some(i) = (0..poisoned.len()).find(|&i| is_result(i) == is_poison(i)) {
            let (row, column) = (i.saturating_sub(GUARD) / at.pitch, i.saturating_sub(GUARD) % at.pitch);
            let what = if is_result(i) { "was not written" } else { "outside of the result was written" };
            return Err(format!("value {i} (row {row}, column {column}) {what}"));
        }
        let gelu = if kernel.tile.way == ProductWay::Split { Gelu::InF32 } else { Gelu::of(T::ROUNDING) };
        let expected = self.expected[gelu as usize].get_or_init(|| self.expected_rows(&operands, gelu));
        for (row, expected) in self.checked_rows().zip(expected) {
            let first = at.first + row * at.pitch;
            let actual: Vec<f32> = result[first..first + n].iter().map(|value| value.value() as f32).collect();
            expected.check(Growth::Worst, &actual).map_err(|error| format!("row {row}: {error}"))?;
        }
        if let Norm::OfY = self.norm {
            let statistics = run.statistics().map_err(|error| error.to_string())?;
            for row in 0..m {
                let values: Vec<f64> = result[at.first + row * at.pitch..][..n].iter().map(|v| v.value()).collect();
                for (part, values) in values.chunks(PART).enumerate() {
                    let actual = &statistics[2 * (part * pitch + row)..][..2];
                    let wrong = |error| format!("part {part} of row {row}: {error}");
                    expected_statistics(values).check(Growth::Worst, actual).map_err(wrong)?;
                }
            }
        }
        Ok(())
    }

    /// The rows that are compared: all, or as many as plain loops have time for, evenly spread and including the last.
    fn checked_rows(&self) -> impl Iterator<Item = usize> {
        let ProductSizes { m, n, k } = self.sizes;
        let step = (m * n * k).div_ceil(MOST_PRODUCTS) | 1;
        (0..m).rev().step_by(step)
    }

    fn operands<T: Half>(&self) -> Operands<T> {
        let ProductSizes { m, n, k } = self.sizes;
        let mut random = Random::new(&format!("{:?} {:?} {:?}", self.sizes, self.activation, self.has));
        let mut halves = |count: usize, most: f64| T::all((0..count).map(|_| most * random.signed()));
        let mut x = halves(m * (k + self.gap), self.most);
        let (w, residual) = (halves(n * k, 1.0), halves(m * (n + self.gap), self.most));
        let (bias, scale) = (random.singles(n, 2.0), random.singles(n, 1.5));
        let (mut statistics, mut weight_sums) = (Vec::new(), Vec::new());
        if let Norm::OfX { offset, .. } = self.norm {
            x.iter_mut().for_each(|x| *x = T::of(x.value() + offset));
            statistics = statistics_of(&x, [m, k], k + self.gap);
            weight_sums = w.chunks(k).map(|row| row.iter().map(|w| w.value()).sum::<f64>() as f32).collect();
        }
        Operands { x, w, residual, bias, scale, statistics, weight_sums }
    }

    /// The operands for a kernel. Whether the last rows come first depends on sizes and kernel, so that each kernel does both.
    fn as_operands<'a, T: Half>(
        &self,
        of: &'a Operands<T>,
        result: (&'a [T], RowsAt),
        statistics: &'a [f32],
        kernel: ProductKernel,
    ) -> ProductOperands<'a, T> {
        let ProductSizes { n, k, .. } = self.sizes;
        let [has_bias, has_scale, has_residual] = self.has;
        let rows = |columns: usize| RowsAt { first: 0, pitch: columns + self.gap };
        ProductOperands {
            sizes: self.sizes,
            activation: self.activation,
            x: (&of.x, rows(k)),
            w: &of.w,
            bias: has_bias.then_some(&of.bias[..]),
            scale: has_scale.then_some(&of.scale[..]),
            residual: has_residual.then_some((&of.residual[..], rows(n))),
            result,
            backward: (self.sizes.m + kernel.tile.m / 8) % 2 == 1,
            norm: match self.norm {
                Norm::None => ProductNormOperands::None,
                Norm::OfX { centred, .. } => ProductNormOperands::OfX {
                    statistics: &of.statistics,
                    weight_sums: &of.weight_sums,
                    centred,
                    epsilon: EPSILON,
                },
                Norm::OfY => ProductNormOperands::OfY(statistics),
            },
        }
    }

    fn expected_rows<T: Half>(&self, of: &Operands<T>, gelu: Gelu) -> Vec<Expected> {
        let ProductSizes { n, k, .. } = self.sizes;
        let [has_bias, has_scale, has_residual] = self.has;
        let value = |row: usize, column: usize| {
            let x = &of.x[row * (k + self.gap)..][..k];
            let w = &of.w[column * k..][..k];
            let terms = x.iter().zip(w).map(|(x, w)| x.value() * w.value());
            let bias = if has_bias { f64::from(of.bias[column]) } else { 0.0 };
            let (sum, magnitude) = terms.fold((bias, bias.abs()), |(sum, all), term| (sum + term, all + term.abs()));
            let scale = if has_scale { f64::from(of.scale[column]) } else { 1.0 };
            let residual = if has_residual { of.residual[row * (n + self.gap) + column].value() } else { 0.0 };
            // Tensor cores make the sums, whatever the type.
            let error = Growth::Worst.sum(Storage::F16, k + 1, magnitude);
            let (sum, error) = match self.norm {
                Norm::OfX { centred, .. } => {
                    let w_sum = w.iter().map(|w| w.value()).sum::<f64>();
                    let x: Vec<f64> = x.iter().map(|x| x.value()).collect();
                    normed(&x, centred, w_sum, bias, (sum - bias, error))
                }
                Norm::None | Norm::OfY => (sum, error),
            };
            finished((self.activation, gelu), sum, error, scale, residual, T::ROUNDING)
        };
        let expected = |row: usize| {
            let (values, errors) = (0..n).map(|column| value(row, column)).unzip();
            Expected { shape: Shape::vector(n), values, errors }
        };
        self.checked_rows().map(expected).collect()
    }
}

/// The statistics of the parts of rows: those of the first part of all rows, then of the next.
fn statistics_of<T: Half>(x: &[T], [m, k]: [usize; 2], pitch: usize) -> Vec<f32> {
    let of_part = |part: usize, row: usize| {
        let row = row.min(m - 1); // one row more if their number is odd
        let end = k.min((part + 1) * PART);
        let values: Vec<f64> = x[row * pitch..][part * PART..end].iter().map(|x| x.value()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        [mean as f32, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() as f32]
    };
    let rows = 0..m.next_multiple_of(2);
    (0..k.div_ceil(PART)).flat_map(|part| rows.clone().flat_map(move |row| of_part(part, row))).collect()
}

/// Mean and sum of squares of the distances from it of some values, as a kernel computes them in f32.
fn expected_statistics(values: &[f64]) -> Expected {
    let (count, magnitude) = (values.len(), values.iter().map(|v| v.abs()).sum::<f64>());
    let mean = values.iter().sum::<f64>() / count as f64;
    let of_mean = (Growth::Worst.sum(Storage::F32, count + 1, magnitude) + 3.0 * U32 * magnitude) / count as f64;
    let distances: Vec<f64> = values.iter().map(|v| v - mean).collect();
    let off = |distance: f64| of_mean + U32 * (distance.abs() + of_mean);
    let squares = distances.iter().map(|distance| distance * distance).sum::<f64>();
    let from_mean = distances.iter().map(|of| off(*of) * (2.0 * of.abs() + off(*of))).sum::<f64>();
    let of_squares = from_mean + Growth::Worst.sum(Storage::F32, count + 1, squares + from_mean);
    Expected { shape: Shape::vector(2), values: vec![mean, squares], errors: vec![of_mean, of_squares] }
}

/// The sum with the norm of its row, and its error; `sum` is the sum without it and its error. Statistics of parts are
/// rounded once. A kernel adds up, for each part, how far its mean is from the first one's: the sum of squares of these
/// distances is at most that of the row times one more than the parts. The root halves a relative error, and is approximated
/// to two units of the last place.
fn normed(x: &[f64], centred: bool, w_sum: f64, bias: f64, (sum, of_sum): (f64, f64)) -> (f64, f64) {
    let (columns, parts) = (x.len() as f64, x.len().div_ceil(PART) as f64);
    let means: Vec<f64> = x.chunks(PART).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
    let mean = x.iter().sum::<f64>() / columns;
    let squares = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns;
    let largest = means.iter().fold(0.0, |most: f64, mean| most.max(mean.abs()));
    // Of a distance, and of the mean: the roundings of means, and of a sum of distances with a factor.
    let of_distance = 3.0 * U32 * largest;
    let of_mean = of_distance + (parts + 6.0) * U32 * 2.0 * largest;
    let from_distances =
        2.0 * of_distance * (means.iter().map(|mean| (mean - means[0]).abs()).sum::<f64>() / parts * 2.0 + of_distance);
    let of_squares = 3.0 * (parts + 8.0) * U32 * (1.0 + parts) * squares + 2.0 * from_distances;
    let from_mean = if centred { 0.0 } else { of_mean * (2.0 * mean.abs() + of_mean) + 2.0 * U32 * mean * mean };
    let (from, variance) = if centred { (mean, squares) } else { (0.0, squares + mean * mean) };
    let relative = (of_squares + from_mean) / (variance + f64::from(EPSILON)) + 8.0 * U32;
    let scale = (variance + f64::from(EPSILON)).sqrt().recip();
    let (subtracted, of_subtracted) = (from * w_sum, if centred { of_mean * w_sum.abs() } else { 0.0 });
    let exact = scale * (sum - subtracted) + bias;
    let roundings = 4.0 * U32 * (scale * (sum.abs() + subtracted.abs()) + bias.abs());
    let error = scale * (1.0 + relative) * (of_sum + of_subtracted) + relative * scale * (sum - subtracted).abs();
    (exact, error + roundings)
}

/// The number of columns of which a row has statistics.
const PART: usize = 64;
/// The number that is added to variances.
const EPSILON: f32 = 1e-5;
/// Number of values before and behind the result that no kernel may write.
const GUARD: usize = 1024;
/// The most products that the reference has time for.
const MOST_PRODUCTS: usize = 4 << 20;
/// The steepest slope of an activation: that of GELU is 1.129 at the root of 2.
const STEEPEST: f64 = 1.13;
/// The largest relative and absolute error of the kernels' activations but GELU by erf, as their sources say.
const OF_OTHERS: [f64; 2] = [1.0 / (1 << 14) as f64, 1.0 / (1 << 28) as f64];

/// How a kernel computes GELU by erf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// In f32.
    InF32,
    /// In f16, of a sum that is rounded to it.
    InF16,
}

impl Gelu {
    /// The way of kernels of many rows, and of convolutions, whose results are rounded so.
    pub fn of(rounding: Rounding) -> Self {
        if rounding == F16 { Self::InF16 } else { Self::InF32 }
    }

    /// The largest relative and absolute error, as the kernels' source says, beside roundings to f16.
    pub fn errors(self) -> [f64; 2] {
        match self {
            Self::InF32 => [1.0 / (1 << 13) as f64, 1.0 / (1 << 19) as f64],
            Self::InF16 => [1.0 / (1 << 8) as f64, 1.0 / (1 << 14) as f64],
        }
    }
}

/// The result for a sum with this error, and the result's error: two more roundings of f32, and one to f16 or bf16.
pub fn finished(
    (activation, gelu): (ProductActivation, Gelu),
    sum: f64,
    error: f64,
    scale: f64,
    residual: f64,
    rounding: Rounding,
) -> (f64, f64) {
    let active = activate(activation, sum);
    let (error, [of_itself, in_all]) = match (activation, gelu) {
        (ProductActivation::Gelu, Gelu::InF32) => (error, gelu.errors()),
        (ProductActivation::Gelu, Gelu::InF16) => {
            let [of_itself, in_all] = gelu.errors();
            // What it gives is rounded before scale and residual, too.
            (F16.rounded(sum, error), [of_itself + F16.unit, in_all])
        }
        _ => (error, OF_OTHERS),
    };
    let approximated = match activation {
        ProductActivation::None | ProductActivation::Relu => error,
        _ => STEEPEST * error + of_itself * (active.abs() + STEEPEST * error) + in_all,
    };
    let exact = active * scale + residual;
    let magnitude = (active.abs() + approximated) * scale.abs() + residual.abs();
    (exact, rounding.rounded(exact, approximated * scale.abs() + 2.0 * U32 * magnitude))
}

fn activate(activation: ProductActivation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        ProductActivation::None => x,
        ProductActivation::Relu => x.max(0.0),
        ProductActivation::Gelu => x * normal_below(x),
        ProductActivation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        }
        ProductActivation::QuickGelu => x * sigmoid(1.702 * x),
        ProductActivation::Silu => x * sigmoid(x),
        ProductActivation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
    }
}

/// The part of a normal distribution below x: 1/2 plus the density times x + x^3/3 + x^5/(3*5) + ...; beyond 6, where
/// this loses its digits, density / (x + 1/(x + 2/(x + ...))).
pub fn normal_below(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 6.0 {
        let (mut term, mut sum) = (x, 0.0);
        for i in 1..200 {
            sum += term;
            term *= x * x / f64::from(2 * i + 1);
        }
        return 0.5 + density * sum;
    }
    let beyond = density / (1..60).rev().fold(x.abs(), |fraction, i| x.abs() + f64::from(i) / fraction);
    if x < 0.0 { beyond } else { 1.0 - beyond }
}
