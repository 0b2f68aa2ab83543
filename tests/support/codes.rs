//! Codes of e4m3, as tests make and compare them.

use std::sync::LazyLock;

use half::f16;

use super::random::Random;

/// The code that fills results before they are written: NaN with a sign, which no kernel writes.
pub const POISON: u8 = 0xff;
/// The code of NaN that kernels write.
const NAN: u8 = 0x7f;
/// The sizes of the codes without a sign, ascending.
static SIZES: LazyLock<Vec<f64>> = LazyLock::new(|| (0..NAN).map(number).collect());

/// The number of a code.
pub fn number(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let size = match (exponent, code & 0x7f) {
        (_, NAN) => f64::NAN,
        (0, _) => mantissa / 8.0 * 2_f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
    };
    if code < 0x80 { size } else { -size }
}

/// The code of the number nearest to `x`, of two the even one; the largest where `x` is beyond it.
fn nearest(x: f32) -> u8 {
    if x.is_nan() {
        return NAN;
    }
    let (size, sign) = (f64::from(x.abs()), if x.is_sign_negative() { 0x80 } else { 0 });
    let below = SIZES.partition_point(|&of| of <= size) - 1;
    let middle = SIZES.get(below + 1).map_or(f64::INFINITY, |above| (SIZES[below] + above) / 2.0);
    let code = if size > middle || (size == middle && below % 2 == 1) { below + 1 } else { below };
    code as u8 | sign
}

/// A number to be rounded to a code of this scale: of any size that codes have, near the middle between two codes, too large,
/// or NaN.
pub fn sample(random: &mut Random, scale: f32) -> f32 {
    let sign = random.pick(&[1.0, -1.0]);
    let size = match random.between(0, 9) {
        0 => f64::NAN,
        1 => random.pick(&[449.0, 463.0, 464.0, 465.0, 1e30, f64::INFINITY]),
        2..5 => {
            let below = random.between(0, SIZES.len() - 2);
            (SIZES[below] + SIZES[below + 1]) / 2.0
        }
        _ => (1.0 + random.signed().abs()) * 2_f64.powi(random.between(0, 20) as i32 - 12),
    };
    (sign * size) as f32 * scale
}

/// Checks the code of a float: its product with the reciprocal of the scale, rounded.
pub fn check_exact(code: u8, of: f32, scale: f32) -> Result<(), String> {
    let expected = nearest(of * scale.recip());
    if code == expected { Ok(()) } else { Err(format!("code {code:#x} of {of}, which is {expected:#x}")) }
}

/// Checks the code of a float of which only its rounding to f16 is known: it is the code of a float that is rounded to this.
/// Nearly all floats of one f16 have the same code.
pub fn check(code: u8, of: f16, scale: f32) -> Result<(), String> {
    if of.is_nan() {
        return check_exact(code, f32::NAN, scale);
    }
    let (bits, infinity) = (of.to_bits() & 0x7fff, f16::INFINITY.to_bits());
    let size = |bits: u16| if bits < infinity { f16::from_bits(bits).to_f32() } else { 65_536.0 };
    let low = if bits == 0 { 0.0 } else { (size(bits - 1) + size(bits)) / 2.0 };
    let high = if bits == infinity { f32::INFINITY } else { (size(bits) + size(bits + 1)) / 2.0 };
    let sign = if of.is_sign_negative() { 0x80 } else { 0 };
    let [least, most] = [low, high].map(|size| nearest(size * scale.recip()) | sign);
    match (least..=most).contains(&code) {
        true => Ok(()),
        false => {
            Err(format!("code {code:#x} of a float that is {of} in f16, which has one from {least:#x} to {most:#x}"))
        }
    }
}
