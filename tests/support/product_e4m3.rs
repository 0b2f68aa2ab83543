//! Matrix products of e4m3 by plain loops in f64, with the error that a kernel may have, and problems for them.

use std::fmt;

use half::f16;
use trefoil::plan::{Limits, ProductActivation, ProductSizes, ProductTile};
use trefoil::{Device, E4m3ProductOperands, E4m3ProductRun, Shape};

use super::codes::number;
use super::halves::Half;
use super::product::{Gelu, finished};
use super::random::Random;
use super::tolerance::{DEVIATIONS, Expected, F16, Growth, Rounding, U32};

/// One product of random operands.
#[derive(Clone, Debug)]
pub struct Problem {
    pub sizes: ProductSizes,
    pub activation: ProductActivation,
    /// Whether there is a unit for each column, a bias, a scale and a residual.
    has: [bool; 4],
    /// The scale of the result if it is codes.
    result_scale: Option<f32>,
}

/// The operands of a problem.
struct Operands {
    x: Vec<u8>,
    w: Vec<u8>,
    unit: Vec<f32>,
    bias: Vec<f32>,
    scale: Vec<f32>,
    residual: Vec<f16>,
}

/// All problems.
pub fn all() -> Vec<Problem> {
    let of = |m, n, k, activation, has, result_scale| Problem {
        sizes: ProductSizes { m, n, k },
        activation,
        has,
        result_scale,
    };
    let mut all = Vec::new();
    for result_scale in [None, Some(0.02)] {
        let plain = |m, n, k| of(m, n, k, ProductActivation::None, [true, true, false, false], result_scale);
        all.extend([1, 7, 64, 65, 191, 193, 385].map(|m| plain(m, 208, 144)));
        all.extend([16, 64, 80, 128, 144, 272].map(|n| plain(70, n, 80)));
        all.extend([16, 64, 128, 144, 256, 528, 1040, 3072].map(|k| plain(70, 80, k)));
        for activation in ProductActivation::ALL {
            all.push(of(333, 144, 272, activation, [true, true, false, false], result_scale));
            all.push(of(99, 272, 80, activation, [true, true, true, result_scale.is_none()], result_scale));
        }
        for bits in 0..16_usize {
            let has = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
            if !(has[3] && result_scale.is_some()) {
                all.push(of(131, 80, 208, ProductActivation::None, has, result_scale));
            }
        }
        // These problems have more tiles than multiprocessors, or several for each warpgroup.
        all.push(of(9001, 400, 144, ProductActivation::Gelu, [true, true, false, false], result_scale));
        all.push(of(4100, 784, 272, ProductActivation::None, [true; 4].map(|_| result_scale.is_none()), result_scale));
        // Some results are beyond what a code holds.
        all.push(of(200, 64, 64, ProductActivation::None, [true, true, false, false], result_scale.map(|_| 1e-3)));
    }
    all
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProductSizes { m, n, k } = self.sizes;
        write!(f, "e4m3, {m} x {n} x {k}, {:?}", self.activation)?;
        let named = self.has.into_iter().zip(["unit", "bias", "scale", "residual"]).filter(|(has, _)| *has);
        named.into_iter().try_for_each(|(_, name)| write!(f, ", {name}"))?;
        self.result_scale.map_or(Ok(()), |scale| write!(f, ", to codes of {scale}"))
    }
}

impl Problem {
    /// The tiles whose kernels can compute the problem on `limits`.
    pub fn tiles(&self, limits: &Limits) -> Vec<ProductTile> {
        ProductTile::of_e4m3(self.sizes, limits)
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.sizes.m * self.sizes.n
    }

    /// Runs the problem twice, into a buffer of NaN that is longer than the result, and compares.
    pub fn run(&self, device: &Device, tile: ProductTile) -> Result<(), String> {
        let ProductSizes { m, n, .. } = self.sizes;
        let width = if self.result_scale.is_some() { 1 } else { 2 };
        let operands = self.operands();
        // Codes and elements of NaN.
        let poisoned = [0xff, 0x7f].repeat(m * n * width / 2 + GUARD);
        let [has_unit, has_bias, has_scale, has_residual] = self.has;
        let of = E4m3ProductOperands {
            sizes: self.sizes,
            activation: self.activation,
            x: &operands.x,
            w: &operands.w,
            factor: FACTOR,
            unit: has_unit.then_some(&operands.unit[..]),
            bias: has_bias.then_some(&operands.bias[..]),
            scale: has_scale.then_some(&operands.scale[..]),
            residual: has_residual.then_some(&operands.residual[..]),
            result_scale: self.result_scale,
            result: &poisoned,
            first: GUARD,
            backward: m % 2 == 1,
        };
        let mut run = E4m3ProductRun::new(device, &of, tile, 1).map_err(|error| error.to_string())?;
        run.run(2).map_err(|error| error.to_string())?;
        let found = run.result().map_err(|error| error.to_string())?;
        let (before, rest) = found.split_at(GUARD);
        let (result, behind) = rest.split_at(m * n * width);
        if before != &poisoned[..GUARD] || behind != &poisoned[GUARD + m * n * width..] {
            return Err("something outside of the result was written".into());
        }
        for row in self.checked_rows() {
            let found: Vec<f32> = match self.result_scale {
                Some(_) => result[row * n..][..n].iter().map(|&code| number(code) as f32).collect(),
                None => result[2 * row * n..][..2 * n]
                    .chunks_exact(2)
                    .map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32())
                    .collect(),
            };
            let (values, errors) = (0..n).map(|column| self.value(&operands, tile, row, column)).unzip();
            let expected = Expected { shape: Shape::vector(n), values, errors };
            expected.check(Growth::Worst, &found).map_err(|error| format!("row {row}: {error}"))?;
        }
        Ok(())
    }

    /// The rows that are compared: all, or as many as plain loops have time for, evenly spread and including the last.
    fn checked_rows(&self) -> impl Iterator<Item = usize> {
        let ProductSizes { m, n, k } = self.sizes;
        (0..m).rev().step_by((m * n * k).div_ceil(MOST_PRODUCTS) | 1)
    }

    fn operands(&self) -> Operands {
        let ProductSizes { m, n, k } = self.sizes;
        let mut random = Random::new(&self.to_string());
        // Any code but those of NaN; those of magnitudes below 2 are the most.
        let mut codes = |count: usize| -> Vec<u8> {
            let sign = |bits: usize| if bits.is_multiple_of(2) { 0 } else { 0x80 };
            (0..count).map(|_| (random.between(0, 0x3f) | sign(random.between(0, 1))) as u8).collect()
        };
        let (x, w) = (codes(m * k), codes(n * k));
        let positive = random.singles(n, 0.4).into_iter().map(|x| 0.5 + x).collect();
        let residual = f16::all((0..m * n).map(|_| random.signed()));
        Operands { x, w, unit: positive, bias: random.singles(n, 2.0), scale: random.singles(n, 1.5), residual }
    }

    /// A value of the result, in units of the result's scale if it is codes, and the error that it may have.
    fn value(&self, of: &Operands, tile: ProductTile, row: usize, column: usize) -> (f64, f64) {
        let ProductSizes { n, k, .. } = self.sizes;
        let [has_unit, has_bias, has_scale, has_residual] = self.has;
        let terms = of.x[row * k..][..k].iter().zip(&of.w[column * k..][..k]);
        let terms: Vec<f64> = terms.map(|(&x, &w)| number(x) * number(w)).collect();
        let (sum, error) = sum(&terms, tile != ProductTile::OF_E4M3[0]);
        let unit = f64::from(FACTOR) * if has_unit { f64::from(of.unit[column]) } else { 1.0 };
        let bias = if has_bias { f64::from(of.bias[column]) } else { 0.0 };
        let biased = sum * unit + bias;
        let error = error * unit + 3.0 * U32 * (sum.abs() * unit + bias.abs());
        let scale = if has_scale { f64::from(of.scale[column]) } else { 1.0 };
        let residual = if has_residual { of.residual[row * n + column].value() } else { 0.0 };
        let Some(result_scale) = self.result_scale else {
            return finished((self.activation, Gelu::InF32), biased, error, scale, residual, F16);
        };
        let scale = scale / f64::from(result_scale);
        let (value, error) = finished((self.activation, Gelu::InF32), biased, error, scale, residual, CODES);
        (value.clamp(-MOST, MOST), error + 2.0 * U32 * value.abs())
    }
}

/// The sum of some products, and the error that a kernel's sum may have. A tensor core adds 32 products to a sum at a time:
/// it aligns all to the largest and cuts them off behind 14 bits. Of random signs, these errors are independent but for
/// those of the sum itself, which becomes smaller each time. A kernel that adds up every 128 products begins anew with them,
/// and rounds in f32.
fn sum(terms: &[f64], adds_up: bool) -> (f64, f64) {
    let (mut whole, mut squares, mut towards_zero) = (0.0, 0.0, 0.0);
    let of_part = if adds_up { 128 } else { terms.len() };
    for part in terms.chunks(of_part) {
        let mut sum = 0.0_f64;
        for added in part.chunks(32) {
            let largest = added.iter().fold(sum.abs(), |most, term| most.max(term.abs()));
            squares += (added.len() + 1) as f64 * (KEPT * largest).powi(2) / 3.0;
            towards_zero += KEPT * largest;
            sum += added.iter().sum::<f64>();
        }
        whole += sum;
    }
    let magnitude: f64 = terms.iter().map(|term| term.abs()).sum();
    let in_f32 = (terms.len() / 128 + 1) as f64 * U32 * magnitude;
    (whole, DEVIATIONS * squares.sqrt() + towards_zero + in_f32)
}

/// The unit of the last of 14 bits.
const KEPT: f64 = 1.0 / (1 << 13) as f64;
/// The rounding of codes, and the largest number of one.
const CODES: Rounding = Rounding { unit: 1.0 / 16.0, tiny: 1.0 / 1024.0 };
const MOST: f64 = 448.0;
/// The number that all sums are multiplied by.
const FACTOR: f32 = 0.25;
/// Number of bytes before and behind the result that no kernel may write.
const GUARD: usize = 1024;
/// The most products that the reference has time for.
const MOST_PRODUCTS: usize = 4 << 20;
