//! The argument that tells the kernels of `kernels/sm90_requantise.cuh` how to round their results.

use super::launch::{kernel_args, unsupported};
use super::sm90_conv2d_s8::S8Residual;
use crate::error::Error;

kernel_args! {
    /// `S8Output`.
    S8Output, 24 bytes {
        residual_scale: f32,
        residual_flip: u32,
        residual_base: u32,
        result_offset: u32,
        result_flip: u32,
        result_is_low: i32,
    }
}

impl S8Output {
    /// How results are rounded: whether they are signed, whether there is a residual, and whether negative results
    /// become 0.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the scale of the residual is not below 2^103.
    pub(super) fn of(residual: Option<S8Residual>, y_signed: bool, relu: bool) -> Result<Self, Error> {
        let residual_scale = residual.map_or(0.0, |residual| residual.scale) * RESIDUAL_UNIT;
        if !residual_scale.is_finite() {
            return Err(unsupported("scale of a residual", residual_scale / RESIDUAL_UNIT, "it is below 2^103"));
        }
        let residual_signed = u32::from(residual.is_some_and(|residual| residual.signed));
        let negative = u32::from(y_signed && !relu);
        Ok(Self {
            residual_scale,
            residual_flip: residual_signed * 0x8080_8080,
            residual_base: residual_signed * 0x0080_0080,
            result_offset: negative * 0x80,
            result_flip: negative * 0x8080_8080,
            result_is_low: i32::from(y_signed && relu),
        })
    }
}

/// The unit of a residual's scale: the kernel reads its bytes as halves in units of 2^-24.
const RESIDUAL_UNIT: f32 = (1 << 24) as f32;
