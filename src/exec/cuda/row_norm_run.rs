//! LayerNorm and RMSNorm without a model, on operands that the caller brings, for tests and benchmarks.

use std::marker::PhantomData;

use half::f16;

use super::alone::{Alone, check_lengths};
use super::launch::Rows;
use super::sm90_row_norm::{RowNormProblem, RowSumProblem, launch};
use crate::device::Device;
use crate::error::Error;
use crate::plan::{RowSum, RowsAt};
use crate::tensor::Element;

/// A LayerNorm or RMSNorm and its operands, of f16 or bf16, in host memory.
#[derive(Clone, Debug)]
pub struct RowNormOperands<'a, T = f16> {
    /// Rows, and values of each: a multiple of 8 up to 2048.
    pub sizes: [usize; 2],
    /// Whether the mean is subtracted: LayerNorm.
    pub centred: bool,
    /// The positive number that is added to the variance.
    pub epsilon: f32,
    /// The buffer with the rows, and their place; of a sum only with the images' own rows.
    pub x: (&'a [T], RowsAt),
    /// A number for each column.
    pub weight: &'a [f32],
    /// A number for each column, if there is a bias.
    pub bias: Option<&'a [f32]>,
    /// The buffer for the result, and the place of its rows.
    pub result: (&'a [T], RowsAt),
    /// The codes that the norm writes too, or instead of the result, if any; operands are of f16 then.
    pub codes: Option<RowNormCodes<'a>>,
    /// The buffer for the result in f32, and the place of its rows, if the norm writes that and nothing else.
    pub floats: Option<(&'a [f32], RowsAt)>,
    /// Whether the last rows are computed first.
    pub backward: bool,
    /// The sum that the norm is of, if it makes one; its result is then in the type of the operands.
    pub sum: Option<RowSumOperands<'a, T>>,
}

/// The sum of rows, and its first norm if there are two, that a norm makes.
#[derive(Clone, Copy, Debug)]
pub struct RowSumOperands<'a, T = f16> {
    /// What is added. Then the operand has the images' own rows.
    pub of: RowSum,
    /// The rows in front, `[prefix][columns]`.
    pub prefix: &'a [f32],
    /// The positions, one for each row of an image from the first that has one on; empty if there are none.
    pub positions: &'a [f32],
    /// A number for each column and a bias, of the first of two norms; both empty without it, the second without biases.
    pub first: [&'a [f32]; 2],
    /// The buffer for the sum, or for the result of the first norm, and the place of its rows.
    pub sum: (&'a [T], RowsAt),
}

/// The codes of e4m3 that a norm writes of its result.
#[derive(Clone, Copy, Debug)]
pub struct RowNormCodes<'a> {
    /// The buffer for the codes, and the place of their rows.
    pub values: (&'a [u8], RowsAt),
    /// Their scale.
    pub scale: f32,
    /// Whether nothing else is written.
    pub alone: bool,
}

/// LayerNorm or RMSNorm on a GPU, ready to run: several copies of its operands in turns, so that none stays in a cache.
pub struct RowNormRun<T = f16>(Alone, PhantomData<T>);

impl<T: Element> RowNormRun<T> {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new(device: &Device, operands: &RowNormOperands<'_, T>, copies: usize) -> Result<Self, Error> {
        operands.check()?;
        let bytes = [
            bytemuck::cast_slice(operands.x.0),
            bytemuck::cast_slice(operands.weight),
            bytemuck::cast_slice(operands.bias.unwrap_or_default()),
            bytemuck::cast_slice(operands.result.0),
            operands.codes.map_or(&[][..], |codes| codes.values.0),
            bytemuck::cast_slice(operands.sum.map_or(&[][..], |sum| sum.prefix)),
            bytemuck::cast_slice(operands.sum.map_or(&[][..], |sum| sum.positions)),
            bytemuck::cast_slice(operands.sum.map_or(&[][..], |sum| sum.first[0])),
            bytemuck::cast_slice(operands.sum.map_or(&[][..], |sum| sum.first[1])),
            bytemuck::cast_slice(operands.sum.map_or(&[] as &[T], |sum| sum.sum.0)),
            bytemuck::cast_slice(operands.floats.map_or(&[][..], |(values, _)| values)),
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
    pub fn result(&self) -> Result<Vec<T>, Error> {
        self.0.operand(RESULT)
    }

    /// The buffer that the first copy's codes are written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn codes(&self) -> Result<Vec<u8>, Error> {
        self.0.operand(CODES)
    }

    /// The buffer that the first copy's sum is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn sum(&self) -> Result<Vec<T>, Error> {
        self.0.operand(SUM)
    }

    /// The buffer that the first copy's result in f32 is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn floats(&self) -> Result<Vec<f32>, Error> {
        self.0.result()
    }
}

/// The numbers of the result, the codes and the sum among the operands.
const RESULT: usize = 3;
const CODES: usize = 4;
const SUM: usize = 9;

impl<T: Element> RowNormOperands<'_, T> {
    /// Checks that every operand is as long as the part of it that is read or written.
    fn check(&self) -> Result<(), Error> {
        let [rows, columns] = self.sizes;
        if let Some(RowSumOperands { of, prefix, positions, first, sum }) = self.sum {
            let placed = of.positions.map_or(0, |from| of.rows.saturating_sub(from));
            let [weights, biases] = [of.first.is_some(), of.first.is_some_and(|first| first.bias)].map(usize::from);
            check_lengths([
                ("rows in front", prefix.len(), of.prefix.checked_mul(columns)),
                ("positions", positions.len(), placed.checked_mul(columns)),
                ("weight of the first norm", first[0].len(), weights.checked_mul(columns)),
                ("bias of the first norm", first[1].len(), biases.checked_mul(columns)),
                ("sum", sum.0.len(), sum.1.end(rows, columns)),
            ])?;
        }
        let own = self.sum.map_or(rows, |RowSumOperands { of, .. }| {
            rows.saturating_sub(rows.checked_div(of.rows).unwrap_or(0).saturating_mul(of.prefix))
        });
        check_lengths([
            ("x", self.x.0.len(), self.x.1.end(own, columns)),
            ("weight", self.weight.len(), Some(columns)),
            ("bias", self.bias.map_or(columns, <[f32]>::len), Some(columns)),
            ("result", self.result.0.len(), self.result.1.end(rows, columns)),
            (
                "codes",
                self.codes.map_or(0, |codes| codes.values.0.len()),
                self.codes.map_or(Some(0), |codes| codes.values.1.end(rows, columns)),
            ),
            (
                "floats",
                self.floats.map_or(0, |(values, _)| values.len()),
                self.floats.map_or(Some(0), |(_, at)| at.end(rows, columns)),
            ),
        ])
    }

    /// The operation on the copy at these addresses.
    fn problem(&self, addresses: [u64; 11]) -> RowNormProblem {
        let [x, weight, bias, result, codes, prefix, positions, first_weight, first_bias, sum, floats] = addresses;
        let sum = self.sum.map(|RowSumOperands { of, sum: (_, at), .. }| RowSumProblem {
            of,
            prefix,
            positions,
            sum: at.on(sum),
            first: [first_weight, first_bias],
        });
        let is_alone = self.codes.is_some_and(|codes| codes.alone) || self.floats.is_some();
        let floats = self.floats.map(|(_, at)| Rows { address: floats + 4 * at.first as u64, pitch: at.pitch });
        let codes = self.codes.map(|RowNormCodes { values: (_, at), scale, .. }| {
            (Rows { address: codes + at.first as u64, pitch: at.pitch }, scale)
        });
        RowNormProblem {
            dtype: T::DTYPES[0],
            sizes: self.sizes,
            centred: self.centred,
            epsilon: self.epsilon,
            x: self.x.1.on(x),
            weight,
            bias: self.bias.map(|_| bias),
            y: (!is_alone).then(|| self.result.1.on(result)),
            floats,
            codes,
            backward: self.backward,
            sum,
        }
    }
}
