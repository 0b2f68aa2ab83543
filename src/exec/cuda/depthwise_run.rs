//! Depthwise convolutions of bytes or halves without a model, on operands that the caller brings, for tests and the
//! benchmark of the kernel of bytes.

use super::alone::{Alone, check_lengths};
use super::conv_run::HalfOperands;
use super::conv2d_depthwise::{DepthwisePointers, DepthwiseProblem};
use super::conv2d_depthwise_s8;
use super::launch::{Launch, unsupported};
use super::sm90_conv2d_depthwise;
use super::sm90_conv2d_depthwise_s8::{self, DepthwiseS8Problem};
use crate::device::Device;
use crate::error::Error;
use crate::exec::Hardware;
use crate::plan::{DepthwiseTile, Kernel, S8Conv};
use crate::tensor::Activation;

/// A depthwise convolution of bytes and its operands, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct S8DepthwiseOperands<'a> {
    /// The sizes of the convolution, with as many output channels as input channels.
    pub conv: S8Conv,
    /// Pixels, `[batch][H][W][C]`, and whether they are signed.
    pub x: (&'a [u8], bool),
    /// The filter, `[R][S][C]`.
    pub filter: &'a [i8],
    /// The bias of each channel, added to the sums.
    pub bias: &'a [i32],
    /// The factor of each channel, by which sums with their bias are multiplied.
    pub scale: &'a [f32],
    /// The buffer for the result, and whether the result is signed.
    pub result: (&'a [u8], bool),
    /// Where the result begins in its buffer: a multiple of 16.
    pub result_at: usize,
    /// Whether negative results become 0.
    pub relu: bool,
}

/// A depthwise convolution on a GPU, ready to run by some kernels: several copies of its operands in turns, so that none
/// stays in a cache.
pub struct DepthwiseRun(Alone);

impl DepthwiseRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernels, each [`Kernel::Sm80`] or a
    /// [`Kernel::Sm90DepthwiseS8`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or a kernel cannot; [`Error::Option`] where an operand is not as long as
    /// its sizes; any of the device.
    pub fn of_bytes(
        device: &Device,
        operands: &S8DepthwiseOperands<'_>,
        kernels: &[Kernel],
        copies: usize,
    ) -> Result<Self, Error> {
        let S8DepthwiseOperands { conv, x: (x, x_signed), filter, bias, scale, result, result_at, relu } = *operands;
        let channels = conv.output.channels;
        check_lengths([
            ("x", x.len(), conv.batch.checked_mul(conv.input.elems())),
            ("filter", filter.len(), Some(channels * conv.taps())),
            ("bias", bias.len(), Some(channels)),
            ("scale", scale.len(), Some(channels)),
            ("result", result.0.len(), conv.batch.checked_mul(conv.output.elems()).map(|values| values + result_at)),
        ])?;
        let bytes: [&[u8]; 5] =
            [x, bytemuck::cast_slice(filter), bytemuck::cast_slice(bias), bytemuck::cast_slice(scale), result.0];
        let Hardware { limits, .. } = Hardware::of(device);
        let launches = |[x, filter, bias, scale, y]: [u64; 5]| -> Result<Vec<Launch>, Error> {
            let (y, y_signed) = (y + result_at as u64, result.1);
            let problem = DepthwiseS8Problem { conv, x, x_signed, filter, bias, scale, y, y_signed, relu };
            let launch = |&kernel: &Kernel| match kernel {
                Kernel::Sm80 => conv2d_depthwise_s8::launch(&problem),
                Kernel::Sm90DepthwiseS8(tile) => sm90_conv2d_depthwise_s8::launch(&problem, tile, &limits),
                _ => Err(unsupported("kernel", kernel, "one of a depthwise convolution of bytes")),
            };
            kernels.iter().map(launch).collect()
        };
        Alone::new(device, "a depthwise convolution of bytes", bytes, copies, launches).map(Self)
    }

    /// Uploads the operands of a depthwise convolution of halves, whose filter is `[R][S][C]`.
    ///
    /// # Errors
    /// As [`DepthwiseRun::of_bytes`].
    pub fn of_halves(
        device: &Device,
        operands: &HalfOperands<'_>,
        tiles: &[DepthwiseTile],
        copies: usize,
    ) -> Result<Self, Error> {
        let HalfOperands { conv, x, filter, bias, result, relu, residual: _ } = *operands;
        let S8Conv { batch, input, output, window } = conv;
        check_lengths([
            ("x", x.len(), batch.checked_mul(input.elems())),
            ("filter", filter.len(), Some(output.channels * conv.taps())),
            ("bias", bias.len(), Some(output.channels)),
            ("result", result.len(), batch.checked_mul(output.elems())),
        ])?;
        let bytes: [&[u8]; 4] = [
            bytemuck::cast_slice(x),
            bytemuck::cast_slice(filter),
            bytemuck::cast_slice(bias),
            bytemuck::cast_slice(result),
        ];
        let Hardware { limits, .. } = Hardware::of(device);
        let activation = if relu { Activation::Relu } else { Activation::None };
        let problem = DepthwiseProblem { batch, input, output: [output.height, output.width], window, activation };
        let launches = |[x, filter, bias, y]: [u64; 4]| -> Result<Vec<Launch>, Error> {
            let pointers = DepthwisePointers { x, filter, bias, y };
            let launch = |&tile| sm90_conv2d_depthwise::launch(&problem, None, tile, &limits, &pointers);
            tiles.iter().map(launch).collect()
        };
        Alone::new(device, "a depthwise convolution of halves", bytes, copies, launches).map(Self)
    }

    /// Runs a kernel `times` times, on one copy after the other, and waits. Returns the seconds of all runs together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, kernel: usize, times: usize) -> Result<f64, Error> {
        // SAFETY: the lengths of all operands were checked against the sizes that the launchers keep to.
        unsafe { self.0.run(kernel, times) }
    }

    /// The bytes of the buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<u8>, Error> {
        self.0.result()
    }
}
