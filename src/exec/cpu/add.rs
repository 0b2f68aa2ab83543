//! y = act(x + residual), or act(x) without a residual; all of one shape, elementwise.

use crate::tensor::Activation;

/// `y`, `x` and `residual` have one length; `y` is apart from both.
pub(super) fn run(x: &[f32], residual: Option<&[f32]>, activation: Activation, y: &mut [f32]) {
    match residual {
        Some(residual) => {
            for ((y, x), residual) in y.iter_mut().zip(x).zip(residual) {
                *y = activation.apply(x + residual);
            }
        }
        None => {
            for (y, x) in y.iter_mut().zip(x) {
                *y = activation.apply(*x);
            }
        }
    }
}
