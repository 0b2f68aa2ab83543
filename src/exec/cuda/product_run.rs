//! A matrix product without a model, on operands that the caller brings, for its tests and its benchmark.

use std::marker::PhantomData;

use half::f16;

use super::alone::{Alone, check_lengths};
use super::sm90_product::{ProductNorm, ProductProblem, launch};
use crate::device::Device;
use crate::error::Error;
use crate::plan::{ProductActivation, ProductKernel, ProductSizes, RowsAt, SLAB};
use crate::tensor::Element;

/// A matrix product and its operands, of f16 or bf16, in host memory.
#[derive(Clone, Debug)]
pub struct ProductOperands<'a, T = f16> {
    /// The sizes of the product.
    pub sizes: ProductSizes,
    /// The activation of the sums with their bias.
    pub activation: ProductActivation,
    /// The buffer with the left operand, and the place of its rows.
    pub x: (&'a [T], RowsAt),
    /// The right operand, `[n][k]`.
    pub w: &'a [T],
    /// n numbers that are added to the sums, if any.
    pub bias: Option<&'a [f32]>,
    /// n numbers that the activations are multiplied by, if any.
    pub scale: Option<&'a [f32]>,
    /// The buffer with the residual, which is added last, and the place of its rows; `None` without one.
    pub residual: Option<(&'a [T], RowsAt)>,
    /// The buffer for the result, and the place of its rows.
    pub result: (&'a [T], RowsAt),
    /// Whether the last rows are computed first.
    pub backward: bool,
    /// What is done of norms of rows.
    pub norm: ProductNormOperands<'a>,
}

/// What a product does of a norm of rows, with its operands. Statistics are a mean and a sum of squares of distances from
/// it for each row, of the first 64 columns, then of the next; if the number of rows is odd, there is one row more.
#[derive(Clone, Copy, Debug, Default)]
pub enum ProductNormOperands<'a> {
    /// Nothing.
    #[default]
    None,
    /// It norms the rows of the left operand.
    OfX {
        /// The statistics of the rows.
        statistics: &'a [f32],
        /// The sums of the rows of the right operand.
        weight_sums: &'a [f32],
        /// Whether the mean is subtracted: LayerNorm.
        centred: bool,
        /// The positive number that is added to the variance.
        epsilon: f32,
    },
    /// It writes the statistics of the result's rows into this buffer.
    OfY(&'a [f32]),
}

/// A matrix product on a GPU, ready to run: several copies of its operands in turns, so that none stays in a cache.
pub struct ProductRun<T = f16>(Alone, PhantomData<T>);

impl<T: Element> ProductRun<T> {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new(
        device: &Device,
        operands: &ProductOperands<'_, T>,
        kernel: ProductKernel,
        copies: usize,
    ) -> Result<Self, Error> {
        operands.check()?;
        let bytes = [
            bytemuck::cast_slice(operands.x.0),
            bytemuck::cast_slice(operands.w),
            bytemuck::cast_slice(operands.bias.unwrap_or_default()),
            bytemuck::cast_slice(operands.scale.unwrap_or_default()),
            bytemuck::cast_slice(operands.residual.map_or(&[] as &[T], |(values, _)| values)),
            bytemuck::cast_slice(operands.norm.weight_sums()),
            bytemuck::cast_slice(operands.norm.statistics()),
            bytemuck::cast_slice(operands.result.0),
        ];
        let units = device.info().units;
        let launched = |addresses| Ok(vec![launch(&operands.problem(addresses), kernel, units)?]);
        Alone::new(device, "a matrix product", bytes, copies, launched).map(|alone| Self(alone, PhantomData))
    }

    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        // SAFETY: `check` and the launcher held the sizes and pitches against the operands.
        unsafe { self.0.run(0, times) }
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<T>, Error> {
        self.0.result()
    }

    /// The buffer that the statistics of the first copy's rows are written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn statistics(&self) -> Result<Vec<f32>, Error> {
        self.0.operand(STATISTICS)
    }
}

/// The place of the statistics among the operands.
const STATISTICS: usize = 6;

impl<'a> ProductNormOperands<'a> {
    fn statistics(self) -> &'a [f32] {
        match self {
            Self::None => &[],
            Self::OfX { statistics, .. } | Self::OfY(statistics) => statistics,
        }
    }

    fn weight_sums(self) -> &'a [f32] {
        if let Self::OfX { weight_sums, .. } = self { weight_sums } else { &[] }
    }

    /// The numbers of statistics and of sums of weights of a product of these sizes.
    fn lengths(self, ProductSizes { m, n, k }: ProductSizes) -> [Option<usize>; 2] {
        let of_rows =
            |columns: usize| columns.div_ceil(SLAB).checked_mul(2)?.checked_mul(m.checked_next_multiple_of(2)?);
        match self {
            Self::None => [Some(0); 2],
            Self::OfX { .. } => [of_rows(k), Some(n)],
            Self::OfY(_) => [of_rows(n), Some(0)],
        }
    }

    fn on(self, weight_sums: u64, statistics: u64) -> Option<ProductNorm> {
        match self {
            Self::None => None,
            Self::OfX { centred, epsilon, .. } => Some(ProductNorm::OfX { statistics, weight_sums, centred, epsilon }),
            Self::OfY(_) => Some(ProductNorm::OfY(statistics)),
        }
    }
}

impl<T: Element> ProductOperands<'_, T> {
    /// Checks that every operand is as long as the part of it that is read or written.
    fn check(&self) -> Result<(), Error> {
        let ProductSizes { m, n, k } = self.sizes;
        let of_norm = self.norm.lengths(self.sizes);
        check_lengths([
            ("x", self.x.0.len(), self.x.1.end(m, k)),
            ("w", self.w.len(), n.checked_mul(k)),
            ("bias", self.bias.map_or(n, <[f32]>::len), Some(n)),
            ("scale", self.scale.map_or(n, <[f32]>::len), Some(n)),
            (
                "residual",
                self.residual.map_or(0, |(values, _)| values.len()),
                self.residual.map_or(Some(0), |(_, at)| at.end(m, n)),
            ),
            ("result", self.result.0.len(), self.result.1.end(m, n)),
            ("statistics", self.norm.statistics().len(), of_norm[0]),
            ("sums of weights", self.norm.weight_sums().len(), of_norm[1]),
        ])
    }

    /// The product on the copy at these addresses.
    fn problem(&self, [x, w, bias, scale, residual, weight_sums, statistics, result]: [u64; 8]) -> ProductProblem {
        ProductProblem {
            dtype: T::DTYPES[0],
            sizes: self.sizes,
            activation: self.activation,
            x: self.x.1.on(x),
            w,
            bias: self.bias.map(|_| bias),
            scale: self.scale.map(|_| scale),
            residual: self.residual.map(|(_, at)| at.on(residual)),
            y: self.result.1.on(result),
            backward: self.backward,
            norm: self.norm.on(weight_sums, statistics),
        }
    }
}
