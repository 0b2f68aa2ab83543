//! Convolutions of bytes or halves without a model, on operands that the caller brings, for tests and the benchmark of
//! the kernel of bytes.

use half::f16;

use super::alone::Alone;
use super::conv2d_fprop::{ConvPointers, ConvProblem};
use super::conv2d_s8;
use super::launch::Launch;
use super::sm90_conv2d_fprop::{self, Tiling};
use super::sm90_conv2d_s8::{self, S8Problem, S8Residual, S8Second, packed};
use super::sm90_conv2d_s8_halo;
use crate::device::Device;
use crate::error::Error;
use crate::exec::Hardware;
use crate::plan::kernels::{packed_channel, packed_channels};
use crate::plan::{S8Conv, S8Kernel, Sm90Tile};
use crate::tensor::Activation;

/// A convolution of bytes and its operands, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct S8Operands<'a> {
    /// The sizes of the convolution.
    pub conv: S8Conv,
    /// Pixels, `[batch][H][W][C]`, and whether they are signed.
    pub x: (&'a [u8], bool),
    /// The filter, `[K][R][S][C]`.
    pub filter: &'a [i8],
    /// A convolution of the same output, whose sums are added to those of the first: its pixels, signed like the first
    /// one's, and its filters.
    pub second: Option<(S8Conv, &'a [u8], &'a [i8])>,
    /// The bias of each output channel, added to the sums.
    pub bias: &'a [i32],
    /// The factor of each output channel, by which sums with their bias are multiplied.
    pub scale: &'a [f32],
    /// The residual, added to the scaled sums: values like the result, whether they are signed, and their factor.
    pub residual: Option<(&'a [u8], bool, f32)>,
    /// The buffer for the result, and whether the result is signed.
    pub result: (&'a [u8], bool),
    /// Where the result begins in its buffer: a multiple of 16.
    pub result_at: usize,
    /// Whether negative results become 0.
    pub relu: bool,
    /// Whether the last pixels are computed first, by kernels that have an order.
    pub backward: bool,
}

/// A convolution of halves and its operands, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HalfOperands<'a> {
    /// The sizes of the convolution, here of halves.
    pub conv: S8Conv,
    /// Pixels, `[batch][H][W][C]`.
    pub x: &'a [f16],
    /// The filter, `[K][R][S][C]`.
    pub filter: &'a [f16],
    /// The bias of each output channel.
    pub bias: &'a [f32],
    /// The residual, added to the result: values like the result.
    pub residual: Option<&'a [f16]>,
    /// The buffer for the result.
    pub result: &'a [f16],
    /// Whether negative results become 0.
    pub relu: bool,
}

/// A convolution on a GPU, ready to run by some kernels: several copies of its operands in turns, so that none stays in a
/// cache.
pub struct ConvRun(Alone);

impl ConvRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or a kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn of_bytes(
        device: &Device,
        operands: &S8Operands<'_>,
        kernels: &[S8Kernel],
        copies: usize,
    ) -> Result<Self, Error> {
        let S8Operands { conv, x, filter, second, bias, scale, residual, result, result_at, relu, backward } =
            *operands;
        conv.check_sizes()?;
        let residual_values = residual.map(|(values, _, _)| values);
        check(
            &conv,
            [x.0.len(), filter.len(), bias.len(), result.0.len()],
            residual_values.map(<[u8]>::len),
            result_at,
        )?;
        check_length("scale", scale.len(), conv.output.channels)?;
        let filter = packed(filter, conv.products());
        if let Some((second, x, filter)) = &second {
            check_sources(second, x.len(), filter.len())?;
        }
        let (second_x, second_filter) =
            second.map_or_else(Default::default, |(conv, x, filter)| (x, packed(filter, conv.products())));
        let bytes: [&[u8]; 8] = [
            x.0,
            bytemuck::cast_slice(&filter),
            second_x,
            bytemuck::cast_slice(&second_filter),
            bytemuck::cast_slice(bias),
            bytemuck::cast_slice(scale),
            residual_values.unwrap_or_default(),
            result.0,
        ];
        let Hardware { limits, .. } = Hardware::of(device);
        let x_signed = x.1;
        let launches = |[x, filter, x2, filter2, bias, factor, added, y]: [u64; 8]| -> Result<Vec<Launch>, Error> {
            let problem = S8Problem {
                conv,
                x,
                x_signed,
                filter,
                second: second.map(|(conv, _, _)| S8Second { conv, x: x2, filter: filter2 }),
                bias,
                scale: factor,
                residual: residual.map(|(_, signed, scale)| S8Residual { address: added, signed, scale }),
                y: y + result_at as u64,
                y_signed: result.1,
                relu,
                backward,
            };
            let launch = |&kernel: &S8Kernel| match kernel {
                S8Kernel::Tiled { tile, cluster } => sm90_conv2d_s8::launch(&problem, tile, cluster, limits.units),
                S8Kernel::Halo => sm90_conv2d_s8_halo::launch(&problem, &limits),
                S8Kernel::Sm80Gemm(tile) => conv2d_s8::launch(&problem, tile),
            };
            kernels.iter().map(launch).collect()
        };
        Alone::new(device, "a convolution of bytes", bytes, copies, launches).map(Self)
    }

    /// Uploads the operands of a convolution of halves, for tiles of the kernel of halves in clusters of this many
    /// blocks.
    ///
    /// # Errors
    /// As [`ConvRun::of_bytes`].
    pub fn of_halves(
        device: &Device,
        operands: &HalfOperands<'_>,
        kernels: &[(Sm90Tile, usize)],
        copies: usize,
    ) -> Result<Self, Error> {
        let HalfOperands { conv, x, filter, bias, residual, result, relu } = *operands;
        conv.check()?;
        check(&conv, [x.len(), filter.len(), bias.len(), result.len()], residual.map(<[f16]>::len), 0)?;
        let filter = by_steps(filter, conv.input.channels);
        let bytes: [&[u8]; 6] = [
            bytemuck::cast_slice(x),
            bytemuck::cast_slice(&filter),
            bytemuck::cast_slice(bias),
            &[],
            bytemuck::cast_slice(residual.unwrap_or_default()),
            bytemuck::cast_slice(result),
        ];
        let units = device.info().units;
        let S8Conv { batch, input, output, window } = conv;
        let activation = if relu { Activation::Relu } else { Activation::None };
        let problem = ConvProblem { batch, input, output, y_pitch: output.channels, window, activation };
        let launches = |[x, filter, bias, _, added, y]: [u64; 6]| -> Result<Vec<Launch>, Error> {
            let pointers = ConvPointers { x, filter, bias, residual: residual.map(|_| added), y };
            let tilings = kernels.iter().map(|&(tile, cluster)| Tiling { tile, cluster, units, backward: false });
            tilings.map(|tiling| sm90_conv2d_fprop::launch(&problem, None, &tiling, &pointers)).collect()
        };
        Alone::new(device, "a convolution of halves", bytes, copies, launches).map(Self)
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

/// Checks that pixels, filters, bias, residual and result are as long as the part of them that is read or written.
fn check(
    conv: &S8Conv,
    [x, filter, bias, result]: [usize; 4],
    residual: Option<usize>,
    result_at: usize,
) -> Result<(), Error> {
    let pixels = conv.batch * conv.output.pixels();
    let values = pixels * conv.output.channels;
    check_sources(conv, x, filter)?;
    check_length("bias", bias, conv.output.channels)?;
    check_length("residual", residual.unwrap_or(values), values)?;
    check_length("result", result.saturating_sub(result_at), values)
}

/// Checks that pixels and filters are as long as the part of them that is read.
fn check_sources(conv: &S8Conv, x: usize, filter: usize) -> Result<(), Error> {
    check_length("x", x, conv.batch * conv.input.elems())?;
    check_length("filter", filter, conv.output.channels * conv.products())
}

fn check_length(what: &'static str, length: usize, needed: usize) -> Result<(), Error> {
    if length < needed {
        let needed = format!("{needed}, as its sizes say");
        return Err(Error::option(what, format!("{length} values"), needed));
    }
    Ok(())
}

/// A filter of `channels` channels in the order that the kernel of halves reads.
fn by_steps(filter: &[f16], channels: usize) -> Vec<f16> {
    let packed = packed_channels(channels);
    let mut result = vec![f16::ZERO; filter.len() / channels * packed];
    for (from, to) in filter.chunks_exact(channels).zip(result.chunks_exact_mut(packed)) {
        from.iter().enumerate().for_each(|(channel, value)| to[packed_channel(channels, channel)] = *value);
    }
    result
}
