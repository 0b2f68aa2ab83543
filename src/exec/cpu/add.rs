//! Elementwise sum and activation; with one operand the activation alone.
//!
//! y[i] = act(a[i] + b[i]).
//!
//! - a: read, f32. b: read if there is one, of a's length; it may be a itself. y: written, of a's length, disjoint from
//!   both. Any alignment and length.
//! - A NaN stays one.

use super::simd::{Clamp, Isa, vectorized};
use crate::tensor::Activation;

/// An addition made ready.
#[derive(Debug)]
pub(super) struct Add {
    isa: Isa,
    clamp: Clamp,
}

impl Add {
    /// An addition followed by `activation`.
    pub fn new(isa: Isa, activation: Activation) -> Self {
        Self { isa, clamp: activation.into() }
    }

    /// Computes one image.
    pub fn run(&self, a: &[f32], b: Option<&[f32]>, y: &mut [f32]) {
        assert_eq!(a.len(), y.len());
        match b {
            Some(b) => {
                assert_eq!(b.len(), y.len());
                add(self.isa, self.clamp, a, b, y);
            }
            None => activate(self.isa, self.clamp, a, y),
        }
    }
}

vectorized! {
    fn add(clamp: Clamp, a: &[f32], b: &[f32], y: &mut [f32]) = add_body
}

#[inline(always)]
fn add_body<const FMA: bool>(clamp: Clamp, a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = clamp.apply(a + b);
    }
}

vectorized! {
    fn activate(clamp: Clamp, a: &[f32], y: &mut [f32]) = activate_body
}

#[inline(always)]
fn activate_body<const FMA: bool>(clamp: Clamp, a: &[f32], y: &mut [f32]) {
    for (y, a) in y.iter_mut().zip(a) {
        *y = clamp.apply(*a);
    }
}
