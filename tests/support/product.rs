//! Matrix products by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use trefoil::plan::{Limits, ProductActivation, ProductKernel, ProductSizes, RowsAt};
use trefoil::{Device, Dtype, ProductOperands, ProductRun, Shape};

use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth, Rounding, Storage, U32};

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
    /// The expected rows, computed by the first kernel that is compared.
    expected: Arc<OnceLock<Vec<Expected>>>,
}

/// The operands of a problem.
struct Operands<T> {
    x: Vec<T>,
    w: Vec<T>,
    bias: Vec<f32>,
    scale: Vec<f32>,
    residual: Vec<T>,
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProductSizes { m, n, k } = self.sizes;
        write!(f, "{}, {m} x {n} x {k}, {:?}", self.dtype, self.activation)?;
        if self.most != 1.0 {
            write!(f, ", up to {:e}", self.most)?;
        }
        let named = self.has.into_iter().zip(["bias", "scale", "residual"]).filter(|(has, _)| *has);
        named.into_iter().try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}

impl Problem {
    /// The kernels that can compute the problem on `limits`.
    pub fn kernels(&self, limits: &Limits) -> Vec<ProductKernel> {
        self.sizes.kernels(limits)
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
        let of = self.as_operands(&operands, (&poisoned, at), kernel);
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
        for (row, expected) in self.checked_rows().zip(self.expected.get_or_init(|| self.expected_rows(&operands))) {
            let first = at.first + row * at.pitch;
            let actual: Vec<f32> = result[first..first + n].iter().map(|value| value.value() as f32).collect();
            expected.check(Growth::Worst, &actual).map_err(|error| format!("row {row}: {error}"))?;
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
        let x = halves(m * (k + self.gap), self.most);
        let (w, residual) = (halves(n * k, 1.0), halves(m * (n + self.gap), self.most));
        Operands { x, w, residual, bias: random.singles(n, 2.0), scale: random.singles(n, 1.5) }
    }

    /// The operands for a kernel. Whether the last rows come first depends on sizes and kernel, so that each kernel does both.
    fn as_operands<'a, T: Half>(
        &self,
        of: &'a Operands<T>,
        result: (&'a [T], RowsAt),
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
        }
    }

    fn expected_rows<T: Half>(&self, of: &Operands<T>) -> Vec<Expected> {
        let ProductSizes { n, k, .. } = self.sizes;
        let [has_bias, has_scale, has_residual] = self.has;
        let value = |row: usize, column: usize| {
            let x = &of.x[row * (k + self.gap)..][..k];
            let terms = x.iter().zip(&of.w[column * k..][..k]).map(|(x, w)| x.value() * w.value());
            let bias = if has_bias { f64::from(of.bias[column]) } else { 0.0 };
            let (sum, magnitude) = terms.fold((bias, bias.abs()), |(sum, all), term| (sum + term, all + term.abs()));
            let scale = if has_scale { f64::from(of.scale[column]) } else { 1.0 };
            let residual = if has_residual { of.residual[row * (n + self.gap) + column].value() } else { 0.0 };
            // Tensor cores make the sums, whatever the type.
            let error = Growth::Worst.sum(Storage::F16, k + 1, magnitude);
            finished(self.activation, sum, error, scale, residual, T::ROUNDING)
        };
        let expected = |row: usize| {
            let (values, errors) = (0..n).map(|column| value(row, column)).unzip();
            Expected { shape: Shape::vector(n), values, errors }
        };
        self.checked_rows().map(expected).collect()
    }
}

/// Number of values before and behind the result that no kernel may write.
const GUARD: usize = 1024;
/// The most products that the reference has time for.
const MOST_PRODUCTS: usize = 4 << 20;
/// The steepest slope of an activation: that of GELU is 1.129 at the root of 2.
const STEEPEST: f64 = 1.13;
/// The largest relative and absolute error of the kernels' activations, as their sources say.
const OF_ITSELF: f64 = 1.0 / (1 << 14) as f64;
const IN_ALL: f64 = 1.0 / (1 << 28) as f64;

/// The result for a sum with this error, and the result's error: two more roundings of f32, and one to f16 or bf16.
pub fn finished(
    activation: ProductActivation,
    sum: f64,
    error: f64,
    scale: f64,
    residual: f64,
    rounding: Rounding,
) -> (f64, f64) {
    let active = activate(activation, sum);
    let approximated = match activation {
        ProductActivation::None | ProductActivation::Relu => error,
        _ => STEEPEST * error + OF_ITSELF * (active.abs() + STEEPEST * error) + IN_ALL,
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
fn normal_below(x: f64) -> f64 {
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
