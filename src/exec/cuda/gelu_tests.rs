//! The polynomials of `kernels/gelu.cuh`, with the numbers that stand there, against what the file says of their errors.

use std::f64::consts::{LN_2, PI};

use half::f16;

use super::entries::tests::read;
use crate::plan::ProductActivation;

/// The largest relative error of `ex2.approx.f16x2`, and of `ex2.approx.ftz.f32`.
const OF_HALF_EXP2: f64 = 1.05e-3; // 2^-9.9
const OF_EXP2: f64 = 2.4e-7; // 2^-22

/// The numbers of a struct of the file, in their order.
fn numbers(of: &str) -> Vec<f32> {
    let source = read("gelu.cuh");
    let from = source.find(&format!("struct {of} {{")).expect("the struct");
    let text = source[from..].split("\n};").next().expect("its end");
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-'));
    words.filter_map(|word| word.strip_suffix('f')?.parse().ok()).collect()
}

fn rounded(x: f64) -> f64 {
    f16::from_f32(x as f32).to_f64() // from_f64 may look at 20 bits of the mantissa alone
}

#[test]
fn gelu_in_f16_is_as_near_as_its_source_says() {
    let [bound, last, constants @ .., 0.0] = &numbers("ErfOfHalves")[..] else {
        panic!("not the bound, five factors, 0")
    };
    assert_eq!(constants.len(), 4);
    let factors: Vec<f64> = [last].into_iter().chain(constants).map(|&of| rounded(of.into())).collect();
    let mut squares = 0.0;
    for bits in 0..f16::INFINITY.to_bits() {
        let a = f16::from_bits(bits).to_f64();
        let within = a.min(f64::from(*bound));
        let log2 = factors[1..].iter().fold(factors[0], |sum, of| rounded(within * sum + of));
        for off in [-OF_HALF_EXP2, 0.0, OF_HALF_EXP2] {
            let beyond = rounded(log2.exp2() * (1.0 + off));
            for (x, positive) in [(a, a), (-a, 0.0)] {
                let y = ProductActivation::Gelu.of(x);
                let error = positive - within * beyond - y;
                let allowed = y.abs() * 2_f64.powi(-8) + 2_f64.powi(-14);
                assert!(error.abs() < allowed, "GELU({x}) = {y} is off by {error}, {allowed} allowed");
            }
        }
        // Of normally distributed sums, of both signs.
        let width = f16::from_bits(bits + 1).to_f64() - a;
        if width.is_finite() {
            let error = rounded(within * rounded(log2.exp2())) + ProductActivation::Gelu.of(-a);
            squares += error * error * width * (-0.5 * a * a).exp() / (0.5 * PI).sqrt();
        }
    }
    assert!(squares.sqrt() < 1e-4, "{}", squares.sqrt());
}

#[test]
fn gelu_in_f32_is_as_near_as_its_source_says() {
    let all = numbers("Erf");
    let [bound, factors @ .., 0.0] = &all[..] else { panic!("not the bound, five factors, 0") };
    assert_eq!(factors.len(), 5);
    for step in 0..400_000 {
        let a = 1e-3 * 1.000_03_f64.powi(step); // up to 160
        let a32 = (a as f32).min(*bound);
        let log2 = factors[1..].iter().fold(factors[0], |sum, &of| a32.mul_add(sum, of));
        // What a rounding of the exponent moves the result by lies beside the error of the exponential.
        let off = OF_EXP2 + f64::from(log2.abs()) * f64::from(f32::EPSILON) * LN_2;
        for off in [-off, off] {
            let beyond = f64::from(log2).exp2() * (1.0 + off);
            for (x, positive) in [(a, a), (-a, 0.0)] {
                let y = ProductActivation::Gelu.of(x);
                let error = positive - f64::from(a32) * beyond - y;
                let allowed = y.abs() * 2_f64.powi(-13) + 2_f64.powi(-19);
                assert!(error.abs() < allowed, "GELU({x}) = {y} is off by {error}, {allowed} allowed");
            }
        }
    }
}
