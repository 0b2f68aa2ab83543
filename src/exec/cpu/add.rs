//! Elementwise sum and activation; with one operand the activation alone.
//!
//! y[i] = act(a[i] + b[i]).
//!
//! - a: read, f32, pixels without gaps. b: read if there is one, of a's length; it may be a itself. y: written, the same
//!   with a pitch of its pixels, disjoint from both. Any alignment and length.
//! - A NaN stays one.

use std::ops::Range;

use super::simd::{Clamp, Isa, vectorized};
use super::target::OutputTarget;
use crate::loops::Lines;
use crate::tensor::Activation;

/// An addition, ready to run.
#[derive(Debug)]
pub(super) struct Add {
    isa: Isa,
    y: OutputTarget,
    clamp: Clamp,
}

impl Add {
    /// An addition followed by `activation`.
    pub fn new(isa: Isa, activation: Activation, y: impl Into<OutputTarget>) -> Self {
        Self { isa, y: y.into(), clamp: activation.into() }
    }

    /// How the work is shared out: by the pixels of y.
    pub fn lines(&self) -> Lines {
        let OutputTarget { shape, pitch } = self.y;
        Lines { count: shape.pixels(), pitch, together: 1, least: 1, ops: shape.channels }
    }

    /// Computes these pixels of an image.
    pub fn run(&self, pixels: Range<usize>, a: &[f32], b: Option<&[f32]>, y: &mut [f32]) {
        let elems = pixels.start * self.y.shape.channels..pixels.end * self.y.shape.channels;
        match b {
            Some(b) => add(self.isa, self, &a[elems.clone()], &b[elems], y),
            None => activate(self.isa, self, &a[elems], y),
        }
    }
}

vectorized! {
    fn add(add: &Add, a: &[f32], b: &[f32], y: &mut [f32]) = add_body
}

#[inline(always)]
fn add_body<const FMA: bool>(add: &Add, a: &[f32], b: &[f32], y: &mut [f32]) {
    let channels = add.y.shape.channels;
    for ((y, a), b) in y.chunks_mut(add.y.pitch).zip(a.chunks(channels)).zip(b.chunks(channels)) {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            *y = add.clamp.apply(a + b);
        }
    }
}

vectorized! {
    fn activate(add: &Add, a: &[f32], y: &mut [f32]) = activate_body
}

#[inline(always)]
fn activate_body<const FMA: bool>(add: &Add, a: &[f32], y: &mut [f32]) {
    for (y, a) in y.chunks_mut(add.y.pitch).zip(a.chunks(add.y.shape.channels)) {
        for (y, a) in y.iter_mut().zip(a) {
            *y = add.clamp.apply(*a);
        }
    }
}
