//! Each operation against results by hand, and against plain loops over single elements.

mod expanded;
mod fused;
mod graphs;
mod layers;
mod moves;
mod narrowed;
mod numbers;
mod packed;
mod ptx;
mod schedule;
mod shared;
mod windows;

use super::compute;
use crate::graph::{Element, Op, Tensor};

/// The outputs of an operation that is valid.
pub(super) fn outputs(op: &Op, inputs: &[Option<&Tensor>], count: usize) -> Vec<Tensor> {
    let types: Vec<_> = inputs.iter().map(|input| input.map(Tensor::value_type)).collect();
    let written = op.infer(&types, count).unwrap_or_else(|what| panic!("{op:?} of {types:?}: {what}"));
    compute(op, inputs, &written).unwrap()
}

/// The only output of an operation.
pub(super) fn output(op: &Op, inputs: &[&Tensor]) -> Tensor {
    outputs(op, &inputs.iter().copied().map(Some).collect::<Vec<_>>(), 1).remove(0)
}

/// The elements of the only output of an operation.
pub(super) fn elems<T: Element>(op: &Op, inputs: &[&Tensor]) -> Vec<T> {
    output(op, inputs).elems().to_vec()
}

/// Different numbers from -1 to 1.
pub(super) fn signed(dims: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let elems: Vec<f32> = (0..dims.iter().product()).map(|_| next()).collect();
    Tensor::of(dims, &elems)
}

/// A tensor of the numbers 0, 1, 2, and so on.
pub(super) fn counted(dims: &[usize]) -> Tensor {
    let elems: Vec<i32> = (0..dims.iter().product::<usize>() as i32).collect();
    Tensor::of(dims, &elems)
}

/// Checks that two lists are equal up to rounding. `scale` is the largest possible sum of absolute values.
pub(super) fn close(found: &Tensor, expected: &[f64], scale: f64) {
    let found = found.to_f64s();
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = scale * f64::from(f32::EPSILON) * 16.0;
        assert!((found - expected).abs() <= bound, "element {i}: {found}, expected {expected} within {bound}");
    }
}
