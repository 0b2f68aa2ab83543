//! The first layers of a network of bytes, and the mean behind its last convolution, without a model, for tests and
//! benchmarks of both kernels.

use half::f16;

use super::alone::{Alone, check_lengths};
use super::launch::unsupported;
use super::mean_s8::{self, S8MeanProblem};
use super::sm90_stem_s8::{self, S8StemProblem, packed_stem};
use super::sm90_stem_s8_runs;
use crate::device::Device;
use crate::error::Error;
use crate::plan::{Kernel, S8Stem, STEM_TAPS};
use crate::tensor::Shape;

/// A network's first layers of bytes and their operands, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct S8StemOperands<'a> {
    /// The sizes of the layers.
    pub stem: S8Stem,
    /// The pixels `[H][W][3]` of each image, and the number of bytes from one image to the next, a multiple of 4.
    pub x: (&'a [u8], usize),
    /// The values of pixels outside of an image.
    pub outside: [u8; 3],
    /// The filter, `[K][7][7][3]`.
    pub filter: &'a [i8],
    /// The bias of each channel, added to the sums.
    pub bias: &'a [i32],
    /// The factor of each channel, by which sums with their bias are multiplied; none is negative.
    pub scale: &'a [f32],
    /// The buffer for the result, and whether the result is signed.
    pub result: (&'a [u8], bool),
    /// Where the result begins in its buffer: a multiple of 16.
    pub result_at: usize,
    /// Whether negative results become 0.
    pub relu: bool,
}

/// A network's first layers on a GPU, ready to run by some kernels: several copies of the operands in turns, so that none
/// stays in a cache.
pub struct S8StemRun(Alone);

impl S8StemRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernels, which are some of [`S8Stem::kernels`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or a kernel cannot; [`Error::Option`] where an operand is not as long as its
    /// sizes or a scale is negative; any of the device.
    pub fn new(
        device: &Device,
        operands: &S8StemOperands<'_>,
        kernels: &[Kernel],
        copies: usize,
    ) -> Result<Self, Error> {
        let S8StemOperands { stem, x: (x, row_pitch), outside, filter, bias, scale, result, result_at, relu } =
            *operands;
        stem.check()?;
        let channels = stem.output.channels;
        check_lengths([
            ("x", x.len(), stem.batch.checked_mul(row_pitch)),
            ("filter", filter.len(), Some(channels * STEM_TAPS * STEM_TAPS * 3)),
            ("bias", bias.len(), Some(channels)),
            ("scale", scale.len(), Some(channels)),
            ("result", result.0.len(), stem.batch.checked_mul(stem.output.elems()).map(|values| values + result_at)),
        ])?;
        if let Some(scale) = scale.iter().find(|scale| **scale < 0.0) {
            return Err(Error::option("scale", scale, "none that is negative: maxima are taken of sums"));
        }
        let filter = packed_stem(filter);
        let bytes: [&[u8]; 5] =
            [x, bytemuck::cast_slice(&filter), bytemuck::cast_slice(bias), bytemuck::cast_slice(scale), result.0];
        let launches = |[x, filter, bias, scale, y]: [u64; 5]| {
            let y = y + result_at as u64;
            let problem =
                S8StemProblem { stem, x, row_pitch, outside, filter, bias, scale, y, y_signed: result.1, relu };
            let launched = |kernel: &Kernel| match *kernel {
                Kernel::Sm90StemS8(tile) => sm90_stem_s8::launch(&problem, tile),
                Kernel::Sm90StemS8Runs => sm90_stem_s8_runs::launch(&problem, device.info().units),
                other => Err(unsupported("kernel of first layers", other, "use one of S8Stem::kernels")),
            };
            kernels.iter().map(launched).collect()
        };
        Alone::new(device, "first layers of bytes", bytes, copies, launches).map(Self)
    }

    /// Runs the kernel at this index of those given to [`Self::new`] `times` times, on one copy after the other, and
    /// waits. Returns the seconds of all runs together.
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

/// A mean over all pixels of images of bytes and its operands, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct S8MeanOperands<'a> {
    /// Number of images.
    pub batch: usize,
    /// H, W and C of an image; C is a multiple of 16.
    pub input: Shape,
    /// The pixels, `[batch][H][W][C]`, and whether they are signed.
    pub x: (&'a [u8], bool),
    /// The factor of the sums over pixels.
    pub scale: f32,
    /// The buffer for the result, `[batch][C]`.
    pub result: &'a [f16],
}

/// A mean over all pixels of images of bytes on a GPU, ready to run: several copies of the operands in turns, so that none
/// stays in a cache.
pub struct S8MeanRun(Alone);

impl S8MeanRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as long as
    /// its sizes; any of the device.
    pub fn new(device: &Device, operands: &S8MeanOperands<'_>, copies: usize) -> Result<Self, Error> {
        let S8MeanOperands { batch, input, x: (x, x_signed), scale, result } = *operands;
        check_lengths([
            ("x", x.len(), batch.checked_mul(input.elems())),
            ("result", result.len(), batch.checked_mul(input.channels)),
        ])?;
        let launches = |[x, y]: [u64; 2]| {
            let y_channels = input.channels;
            Ok(vec![mean_s8::launch(&S8MeanProblem { batch, input, x, x_signed, scale, y, y_channels })?])
        };
        Alone::new(device, "a mean of bytes", [x, bytemuck::cast_slice(result)], copies, launches).map(Self)
    }

    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        // SAFETY: the lengths of both operands were checked against the sizes that the launcher keeps to.
        unsafe { self.0.run(0, times) }
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<f16>, Error> {
        self.0.result()
    }
}
