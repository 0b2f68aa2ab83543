//! LayerNorm and RMSNorm without a model, on operands that the caller brings, for tests and benchmarks.

use std::marker::PhantomData;

use half::f16;

use super::alone::{Alone, check_lengths};
use super::launch::Rows;
use super::sm90_row_norm::{RowNormProblem, launch};
use crate::device::Device;
use crate::error::Error;
use crate::plan::RowsAt;
use crate::tensor::{Dtype, Element};

/// A LayerNorm or RMSNorm and its operands, of f16 or bf16, in host memory. Its result is of the same type, or bytes: codes
/// of e4m3.
#[derive(Clone, Debug)]
pub struct RowNormOperands<'a, T = f16, Y = T> {
    /// Rows, and values of each: a multiple of 8 up to 2048.
    pub sizes: [usize; 2],
    /// Whether the mean is subtracted: LayerNorm.
    pub centred: bool,
    /// The positive number that is added to the variance.
    pub epsilon: f32,
    /// The buffer with the rows, and their place.
    pub x: (&'a [T], RowsAt),
    /// A number for each column.
    pub weight: &'a [f32],
    /// A number for each column, if there is a bias.
    pub bias: Option<&'a [f32]>,
    /// The buffer for the result, and the place of its rows.
    pub result: (&'a [Y], RowsAt),
    /// The scale of the result if it is codes.
    pub result_scale: Option<f32>,
}

/// LayerNorm or RMSNorm on a GPU, ready to run: several copies of its operands in turns, so that none stays in a cache.
pub struct RowNormRun<Y = f16>(Alone, PhantomData<Y>);

impl<Y: Element> RowNormRun<Y> {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new<T: Element>(
        device: &Device,
        operands: &RowNormOperands<'_, T, Y>,
        copies: usize,
    ) -> Result<Self, Error> {
        operands.check()?;
        let bytes = [
            bytemuck::cast_slice(operands.x.0),
            bytemuck::cast_slice(operands.weight),
            bytemuck::cast_slice(operands.bias.unwrap_or_default()),
            bytemuck::cast_slice(operands.result.0),
        ];
        let launched = |addresses| Ok(vec![launch(&operands.problem(addresses))?]);
        Alone::new(device, "a norm of rows", bytes, copies, launched).map(|alone| Self(alone, PhantomData))
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
    pub fn result(&self) -> Result<Vec<Y>, Error> {
        self.0.result()
    }
}

impl<T: Element, Y: Element> RowNormOperands<'_, T, Y> {
    /// Checks that every operand is as long as the part of it that is read or written, and the type of the result.
    fn check(&self) -> Result<(), Error> {
        let written = if self.result_scale.is_some() { Dtype::U8 } else { T::DTYPES[0] };
        if Y::DTYPES[0] != written {
            return Err(Error::option("result", Y::DTYPES[0], written.to_string()));
        }
        let [rows, columns] = self.sizes;
        check_lengths([
            ("x", self.x.0.len(), self.x.1.end(rows, columns)),
            ("weight", self.weight.len(), Some(columns)),
            ("bias", self.bias.map_or(columns, <[f32]>::len), Some(columns)),
            ("result", self.result.0.len(), self.result.1.end(rows, columns)),
        ])
    }

    /// The operation on the copy at these addresses.
    fn problem(&self, [x, weight, bias, result]: [u64; 4]) -> RowNormProblem {
        RowNormProblem {
            dtype: T::DTYPES[0],
            sizes: self.sizes,
            centred: self.centred,
            epsilon: self.epsilon,
            x: self.x.1.on(x),
            weight,
            bias: self.bias.map(|_| bias),
            y: Rows { address: result + (size_of::<Y>() * self.result.1.first) as u64, pitch: self.result.1.pitch },
            result: self.result_scale,
        }
    }
}
