//! A matrix product of e4m3 without a model, on operands that the caller brings, for its tests and its benchmark.

use half::f16;

use super::alone::{Alone, check_lengths};
use super::sm90_product_e4m3::{E4m3Problem, launch};
use crate::device::Device;
use crate::error::Error;
use crate::plan::packing::even_first;
use crate::plan::{ProductActivation, ProductSizes, ProductTile};

/// A matrix product of codes of e4m3 and its operands, in host memory. Rows lie end to end.
#[derive(Clone, Debug)]
pub struct E4m3ProductOperands<'a> {
    /// The sizes of the product.
    pub sizes: ProductSizes,
    /// The activation of the sums with their bias.
    pub activation: ProductActivation,
    /// The codes of the left operand, `[m][k]`.
    pub x: &'a [u8],
    /// The codes of the right operand, `[n][k]`.
    pub w: &'a [u8],
    /// The number that all sums are multiplied by.
    pub factor: f32,
    /// n numbers that the sums are multiplied by too, if any.
    pub unit: Option<&'a [f32]>,
    /// n numbers that are added to the sums, if any.
    pub bias: Option<&'a [f32]>,
    /// n numbers that the activations are multiplied by, if any.
    pub scale: Option<&'a [f32]>,
    /// The residual, `[m][n]`, which is added last; `None` without one.
    pub residual: Option<&'a [f16]>,
    /// The scale of the result if it is codes; else it is f16.
    pub result_scale: Option<f32>,
    /// The buffer for the result, `[m][n]`, as bytes.
    pub result: &'a [u8],
    /// The byte of the buffer at which the result begins, a multiple of 16.
    pub first: usize,
    /// Whether the last rows are computed first.
    pub backward: bool,
}

/// A matrix product of e4m3 on a GPU, ready to run: several copies of its operands in turns, so that none stays in a
/// cache.
pub struct E4m3ProductRun(Alone);

impl E4m3ProductRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new(
        device: &Device,
        operands: &E4m3ProductOperands<'_>,
        tile: ProductTile,
        copies: usize,
    ) -> Result<Self, Error> {
        operands.check()?;
        let E4m3ProductOperands { sizes, result_scale, .. } = *operands;
        let w = if result_scale.is_some() { in_order(operands.w, sizes.k) } else { operands.w.to_vec() };
        let bytes = [
            operands.x,
            &w,
            bytemuck::cast_slice(operands.unit.unwrap_or_default()),
            bytemuck::cast_slice(operands.bias.unwrap_or_default()),
            bytemuck::cast_slice(operands.scale.unwrap_or_default()),
            bytemuck::cast_slice(operands.residual.unwrap_or_default()),
            operands.result,
        ];
        let units = device.info().units;
        let launched = |addresses| Ok(vec![launch(&operands.problem(addresses), tile, units)?]);
        Alone::new(device, "a matrix product of e4m3", bytes, copies, launched).map(Self)
    }

    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        // SAFETY: `check` and the launcher held the sizes against the operands.
        unsafe { self.0.run(0, times) }
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<u8>, Error> {
        self.0.result()
    }
}

/// The rows of a matrix in the order that kernels read for a result in codes.
fn in_order(w: &[u8], k: usize) -> Vec<u8> {
    let mut ordered = vec![0; w.len()];
    for (row, codes) in w.chunks_exact(k.max(1)).enumerate() {
        ordered[even_first(row) * k..][..k].copy_from_slice(codes);
    }
    ordered
}

impl E4m3ProductOperands<'_> {
    /// Checks that every operand is as long as the part of it that is read or written.
    fn check(&self) -> Result<(), Error> {
        let ProductSizes { m, n, k } = self.sizes;
        let width = if self.result_scale.is_some() { 1 } else { 2 };
        let result = m.checked_mul(n).and_then(|of| of.checked_mul(width)?.checked_add(self.first));
        if !n.is_multiple_of(16) {
            return Err(Error::option("n", n, "a multiple of 16"));
        }
        check_lengths([
            ("x", self.x.len(), m.checked_mul(k)),
            ("w", self.w.len(), n.checked_mul(k)),
            ("unit", self.unit.map_or(n, <[f32]>::len), Some(n)),
            ("bias", self.bias.map_or(n, <[f32]>::len), Some(n)),
            ("scale", self.scale.map_or(n, <[f32]>::len), Some(n)),
            ("residual", self.residual.map_or(0, <[f16]>::len), self.residual.map_or(Some(0), |_| m.checked_mul(n))),
            ("result", self.result.len(), result),
        ])
    }

    /// The product on the copy at these addresses.
    fn problem(&self, [x, w, unit, bias, scale, residual, result]: [u64; 7]) -> E4m3Problem {
        E4m3Problem {
            sizes: self.sizes,
            activation: self.activation,
            x,
            w,
            factor: self.factor,
            unit: self.unit.map(|_| unit),
            bias: self.bias.map(|_| bias),
            scale: self.scale.map(|_| scale),
            residual: self.residual.map(|_| residual),
            y: result + self.first as u64,
            result: self.result_scale,
            backward: self.backward,
        }
    }
}
