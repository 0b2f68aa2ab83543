//! Rounding of exact results to each format of floating-point numbers, in each direction.

use half::{bf16, f16};

use crate::ptx::opcode::Opcode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Rounding {
    pub fn numbered(number: u64) -> Self {
        [Self::Nearest, Self::Zero, Self::Down, Self::Up][number as usize & 3]
    }

    /// The modifier of an opcode, if it has one.
    pub fn of(opcode: &mut Opcode<'_>) -> Option<Self> {
        opcode.one_of(&[("rn", Self::Nearest), ("rz", Self::Zero), ("rm", Self::Down), ("rp", Self::Up)])
    }

    /// Whether a rounded number has to move to its neighbour: down if it is above the exact number, up if it is below.
    fn steps(self, is_above: bool, is_positive: bool) -> bool {
        match self {
            Self::Nearest => false,
            Self::Zero => is_above == is_positive,
            Self::Down => is_above,
            Self::Up => !is_above,
        }
    }
}

/// An exact number, as the sum of the nearest double and the remainder.
#[derive(Clone, Copy)]
pub struct Exact {
    high: f64,
    low: f64,
}

impl Exact {
    pub fn of(high: f64, low: f64) -> Self {
        Self { high, low: if high.is_finite() { low } else { 0.0 } }
    }

    /// The sum of two doubles.
    pub fn sum(a: f64, b: f64) -> Self {
        let high = a + b;
        let of_b = high - a;
        Self::of(high, (a - (high - of_b)) + (b - of_b))
    }

    /// The product of two doubles, neither of which has an exponent near the limits.
    pub fn product(a: f64, b: f64) -> Self {
        Self::of(a * b, a.mul_add(b, -(a * b)))
    }

    pub fn quotient(a: f64, b: f64) -> Self {
        let high = a / b;
        Self::of(high, (-high).mul_add(b, a) / b)
    }

    pub fn root(a: f64) -> Self {
        let high = a.sqrt();
        Self::of(high, if high == 0.0 { 0.0 } else { (-high).mul_add(high, a) / (2.0 * high) })
    }

    pub fn integer(a: i128) -> Self {
        let high = a as f64;
        Self::of(high, (a - high as i128) as f64)
    }

    /// The number rounded to odd: unless a double equals it, the neighbouring double whose last bit is 1. A second
    /// rounding of it gives the correctly rounded number.
    fn to_odd(self) -> f64 {
        match self.low == 0.0 || self.high.to_bits() & 1 == 1 {
            true => self.high,
            false if self.low > 0.0 => self.high.next_up(),
            false => self.high.next_down(),
        }
    }

    pub fn to_f64(self, rounding: Rounding) -> f64 {
        let is_above = self.low < 0.0;
        match self.low != 0.0 && rounding.steps(is_above, self.high > 0.0) {
            true if is_above => self.high.next_down(),
            true => self.high.next_up(),
            false => self.high,
        }
    }

    pub fn to_f32(self, rounding: Rounding) -> f32 {
        let exact = self.to_odd();
        let near = exact as f32;
        let found = f64::from(near);
        match found != exact && rounding.steps(found > exact, exact > 0.0) {
            true if found > exact => near.next_down(),
            true => near.next_up(),
            false => near,
        }
    }

    /// The bits of the number in a half format.
    pub fn to_half<H: Half>(self, rounding: Rounding) -> u16 {
        let exact = self.to_odd();
        let near = H::nearest(odd_single(exact));
        let found = H::widen(near);
        if found == exact || !rounding.steps(found > exact, exact > 0.0) {
            return near;
        }
        match (found > exact) == (found > 0.0) {
            true => near.wrapping_sub(1),
            false if found == 0.0 => u16::from(exact < 0.0) << 15 | 1,
            false => near + 1,
        }
    }
}

/// A floating-point format of two bytes.
pub trait Half {
    const QUIET_NAN: u16 = 0x7fff;
    const SMALLEST_NORMAL: f64;
    fn nearest(x: f32) -> u16;
    fn widen(bits: u16) -> f64;
}

impl Half for f16 {
    const SMALLEST_NORMAL: f64 = f16::MIN_POSITIVE.to_f64_const();

    fn nearest(x: f32) -> u16 {
        if x.is_nan() { Self::QUIET_NAN } else { f16::from_f32(x).to_bits() }
    }

    fn widen(bits: u16) -> f64 {
        f16::from_bits(bits).to_f64()
    }
}

impl Half for bf16 {
    const SMALLEST_NORMAL: f64 = bf16::MIN_POSITIVE.to_f64_const();

    fn nearest(x: f32) -> u16 {
        if x.is_nan() { Self::QUIET_NAN } else { bf16::from_f32(x).to_bits() }
    }

    fn widen(bits: u16) -> f64 {
        bf16::from_bits(bits).to_f64()
    }
}

/// A number rounded to odd: unless a single equals it, the neighbouring single whose last bit is 1.
fn odd_single(x: f64) -> f32 {
    let near = x as f32;
    let found = f64::from(near);
    match found == x || !near.is_finite() || near.to_bits() & 1 == 1 {
        true => near,
        false if found < x => near.next_up(),
        false => near.next_down(),
    }
}
