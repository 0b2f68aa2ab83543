//! The argument that tells the kernels of `kernels/requantise.cuh` how to round their results.

use super::launch::kernel_args;
use super::sm90_conv2d_s8::S8Residual;

kernel_args! {
    /// `ByteResult`.
    ByteResult, 16 bytes {
        lowest: i32,
        highest: i32,
        residual_scale: f32,
        residual_signed: i32,
    }
}

impl ByteResult {
    /// How results are rounded: whether they are signed, what is added to them before, and whether negative results
    /// become 0.
    pub(super) fn of(residual: Option<S8Residual>, y_signed: bool, relu: bool) -> Self {
        Self {
            lowest: if y_signed && !relu { -128 } else { 0 },
            highest: if y_signed { 127 } else { 255 },
            residual_scale: residual.map_or(0.0, |residual| residual.scale),
            residual_signed: i32::from(residual.is_some_and(|residual| residual.signed)),
        }
    }
}
