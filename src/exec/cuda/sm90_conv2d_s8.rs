//! Launches of `kernels/sm90_conv2d_s8.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, INDEX_LIMIT, Launch, aligned, in_range, kernel_args, unsupported};
use super::sm90_conv2d_fprop::{MapBytes, backward_from, int};
use super::sm90_requantise::S8Output;
use super::steps::{Operands, stored};
use crate::device::cuda::{TensorMap, Windows};
use crate::error::Error;
use crate::plan::{CHUNK_PIXELS, FILTER_ORDER, JoinedBytes, Kernel, S8Conv, S8Kernel, S8Tile, StepOp};
use crate::tensor::{Activation, Dtype};

kernel_args! {
    /// `S8Source`.
    S8SourceArgs, 40 bytes {
        filter_h: i32,
        filter_w: i32,
        c_bytes: i32,
        stride_h: i32,
        stride_w: i32,
        pad_top: i32,
        pad_left: i32,
        dilation_h: i32,
        dilation_w: i32,
        by_windows: i32,
    }
}

kernel_args! {
    /// `S8Taps`.
    S8TapsArgs, 16 bytes {
        by_c_steps: FastDivide,
        by_filter_w: FastDivide,
    }
}

kernel_args! {
    /// `Sm90ConvS8Args`; the maps are encoded before the launch.
    Sm90ConvS8Args, 1024 bytes {
        filter: [MapBytes; 2],
        x: [MapBytes; 2],
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        scale: u64,
        k_stored: i32,
        tiles: i32,
        channel_tiles: i32,
        out_pixels: i32,
        out_width: i32,
        steps: i32,
        by_channel_tiles: FastDivide,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        source: [S8SourceArgs; 2],
        output: S8Output,
        residual_values: u64,
        y_values: u64,
        m_pixels: i32,
        first_steps: i32,
        taps: [S8TapsArgs; 2],
        backward_from: i32,
        padding: [i32; 7],
    }
}

/// A tile and the names of its kernels, in the order of `ENTRIES`.
macro_rules! of_tile {
    ($pixels:literal, $channels:literal, $row_bytes:literal) => {
        of_tile!(tile($pixels, $channels, $row_bytes), $pixels, $channels, $row_bytes, "")
    };
    ($pixels:literal, $channels:literal, $row_bytes:literal, kept) => {
        of_tile!(S8Tile { kept: true, ..tile($pixels, $channels, $row_bytes) }, $pixels, $channels, $row_bytes, "_kept")
    };
    ($tile:expr, $pixels:literal, $channels:literal, $row_bytes:literal, $kept:literal) => {
        (
            $tile,
            [
                concat!("sm90_conv2d_u8_", $pixels, "x", $channels, "x", $row_bytes, $kept),
                concat!("sm90_conv2d_u8_add_", $pixels, "x", $channels, "x", $row_bytes, $kept),
                concat!("sm90_conv2d_s8_", $pixels, "x", $channels, "x", $row_bytes, $kept),
                concat!("sm90_conv2d_s8_add_", $pixels, "x", $channels, "x", $row_bytes, $kept),
            ],
        )
    };
}
/// The kernels of each tile: of unsigned pixels without and with a residual, then of signed pixels without and with a
/// residual.
pub(super) const ENTRIES: [(S8Tile, [&str; 4]); S8Tile::ALL.len()] = [
    of_tile!(192, 256, 128),
    of_tile!(256, 128, 128),
    of_tile!(192, 128, 128),
    of_tile!(128, 128, 128),
    of_tile!(128, 128, 64),
    of_tile!(128, 64, 128),
    of_tile!(256, 64, 64),
    of_tile!(64, 128, 128),
    of_tile!(64, 64, 128),
    of_tile!(32, 64, 128),
    of_tile!(64, 256, 128, kept),
    of_tile!(64, 256, 64, kept),
];

const fn tile(pixels: usize, channels: usize, row_bytes: usize) -> S8Tile {
    S8Tile { pixels, channels, row_bytes, kept: false }
}

/// Hopper convolutions of bytes.
pub(super) struct Sm90Conv2dS8;

impl Launcher for Sm90Conv2dS8 {
    fn name(&self) -> &'static str {
        "sm90_conv2d_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_tile = |(tile, names): (S8Tile, [&'static str; 4])| {
            let (threads, shared_bytes) =
                tile.threads().zip(tile.shared_bytes()).expect("every compiled tile has them");
            let (threads, shared_bytes) = (threads as u32, shared_bytes as u32);
            let cluster = tile.clusters().iter().max().map_or(1, |&blocks| blocks as u32);
            names.map(|name| EntryPoint { module: "sm90_conv2d_s8", name, threads, shared_bytes, cluster })
        };
        ENTRIES.into_iter().flat_map(of_tile).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::S8(S8Kernel::Tiled { tile, cluster }) = step.kernel() else {
            return Err(step.wrong_kernel());
        };
        launch(&S8Problem::of(step)?, tile, cluster, step.limits().units)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        let of_kernel = Arguments::of::<Sm90ConvS8Args>("sm90_conv2d_s8.cuh", "Sm90ConvS8Args", Sm90ConvS8Args::FIELDS);
        vec![
            Arguments::of::<S8SourceArgs>("sm90_conv2d_s8.cuh", "S8Source", S8SourceArgs::FIELDS).part(),
            Arguments::of::<S8TapsArgs>("sm90_conv2d_s8.cuh", "S8Taps", S8TapsArgs::FIELDS).part(),
            Arguments::of::<S8Output>("sm90_requantise.cuh", "S8Output", S8Output::FIELDS).part(),
            of_kernel,
        ]
    }
}

/// A convolution of bytes and the addresses of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct S8Problem {
    /// The convolution.
    pub(crate) conv: S8Conv,
    /// Bytes [batch][H][W][C].
    pub(crate) x: u64,
    /// Whether the bytes of x, and those of the second convolution's input, are signed.
    pub(crate) x_signed: bool,
    /// Signed bytes [K][R][S][C], in the order that [`packed`] gives them.
    pub(crate) filter: u64,
    /// A convolution of the same output, whose sums are added to the first one's.
    pub(crate) second: Option<S8Second>,
    /// `i32` [K].
    pub(crate) bias: u64,
    /// `f32` [K], finite.
    pub(crate) scale: u64,
    /// Added before the result is rounded.
    pub(crate) residual: Option<S8Residual>,
    /// Bytes [batch][P][Q][K].
    pub(crate) y: u64,
    /// Whether the bytes of y are signed.
    pub(crate) y_signed: bool,
    /// Whether negative results become 0.
    pub(crate) relu: bool,
    /// Whether the last pixels are computed first, by kernels that have an order.
    pub(crate) backward: bool,
}

impl S8Problem {
    /// The problem of a step. The step's biases and scales lie behind its filter.
    pub(super) fn of(step: &Operands<'_>) -> Result<Self, Error> {
        let StepOp::QuantizedConv(of) = step.op() else { return Err(step.wrong_kernel()) };
        let (window, activation) = (of.conv.window, of.conv.activation);
        let (input, output) = (stored(step.x()), stored(step.y()));
        let conv = S8Conv { batch: step.images(), input, output, window };
        let (x, other, y) = step.pointers();
        let is_signed = |dtype| dtype == Dtype::I8;
        let residual = other.zip(of.residual_factor()).map(|(address, scale)| {
            let signed = is_signed(step.input(1).dtype);
            S8Residual { address, signed, scale }
        });
        let second = other.zip(of.joined.as_deref()).map(|(x, JoinedBytes { of, .. })| {
            let conv = S8Conv { input: stored(step.input(1)), window: of.conv.window, ..conv };
            S8Second { conv, x, filter: step.filter(&of.name) }
        });
        let filter = step.filter(step.name());
        let bias = filter + (output.channels * conv.products()) as u64;
        Ok(Self {
            conv,
            x,
            x_signed: is_signed(step.x().dtype),
            filter,
            second,
            bias,
            scale: bias + (output.channels * size_of::<i32>()) as u64,
            residual,
            y,
            y_signed: is_signed(step.y().dtype),
            relu: activation != Activation::None,
            backward: step.backward,
        })
    }

    /// The index of the kernel in `ENTRIES`: of unsigned pixels without and with a residual, then of signed pixels
    /// without and with one.
    pub(super) fn way(&self) -> usize {
        2 * usize::from(self.x_signed) + usize::from(self.residual.is_some())
    }
}

/// A convolution whose sums are added to another one's, and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct S8Second {
    /// The convolution, with as many images and the same output as the first one.
    pub(crate) conv: S8Conv,
    /// Bytes [batch][H][W][C].
    pub(crate) x: u64,
    /// The filter, in the order of the first convolution's.
    pub(crate) filter: u64,
}

/// A residual of bytes [batch][P][Q][K], and its scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct S8Residual {
    /// Address of the first byte.
    pub(crate) address: u64,
    /// Whether the bytes are signed.
    pub(crate) signed: bool,
    /// The scale, below 2^103, so that it is finite in the kernel's unit.
    pub(crate) scale: f32,
}

/// Filters [K][R][S][C], with `channel_bytes` bytes for each output channel, in the order of output channels that the
/// kernel reads.
pub(crate) fn packed(filter: &[i8], channel_bytes: usize) -> Vec<i8> {
    let groups = filter.chunks_exact(FILTER_ORDER.len() * channel_bytes);
    let ordered = groups.flat_map(|group| FILTER_ORDER.map(|from| &group[from * channel_bytes..][..channel_bytes]));
    ordered.flatten().copied().collect()
}

/// The launch of `problem` in tiles of `tile` on a GPU of `units` multiprocessors, in clusters of `cluster` blocks.
pub(crate) fn launch(problem: &S8Problem, tile: S8Tile, cluster: usize, units: usize) -> Result<Launch, Error> {
    let S8Problem { conv, x, filter, second, residual, .. } = *problem;
    conv.check()?;
    if let Some(second) = second {
        second.conv.check()?;
        conv.check_sum(&second.conv)?;
    }
    let entry = ENTRIES.iter().find(|(of, _)| *of == tile).map(|(_, names)| names[problem.way()]);
    let (Some(entry), Some(pipeline)) = (entry, tile.pipeline()) else {
        return Err(unsupported("tile of bytes", tile, "use one of S8Tile::ALL"));
    };
    let (threads, shared_bytes) = tile.threads().zip(tile.shared_bytes()).expect("a tile with a pipeline has them");
    let S8Conv { batch, output, .. } = conv;
    let pixels = batch * output.pixels();
    let first = Source { conv, x, filter };
    let second = second.map(|S8Second { conv, x, filter }| Source { conv, x, filter });
    let steps = conv.steps(tile) + second.map_or(0, |second| second.conv.steps(tile));
    if steps > tile.most_steps() {
        return Err(unsupported("steps with kept filters", steps, "use a tile that does not keep them"));
    }
    if !tile.takes(cluster, steps) {
        let takes = "use one of S8Tile::clusters, up to the sum's steps";
        return Err(unsupported("blocks of a cluster", format!("{cluster} with {steps} steps"), takes));
    }
    let pair = if pipeline.shares() { 1 } else { cluster };
    let channel_tiles = output.channels.div_ceil(tile.channels);
    let tiles = pixels.div_ceil(tile.pixels * pair) * channel_tiles;
    let args = Sm90ConvS8Args {
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        k_stored: int(output.channels),
        tiles: in_range("tiles", tiles, 1, INDEX_LIMIT / cluster)?,
        channel_tiles: int(channel_tiles),
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        steps: int(steps),
        by_channel_tiles: FastDivide::by(channel_tiles as u32),
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        source: [first.args(tile), second.map_or(Zeroable::zeroed(), |second| second.args(tile))],
        output: S8Output::of(residual, problem.y_signed, problem.relu)?,
        residual_values: residual.map_or(0, |residual| residual.address),
        y_values: problem.y,
        m_pixels: int(pixels),
        first_steps: int(conv.steps(tile)),
        taps: [first.taps(tile), second.map_or(Zeroable::zeroed(), |second| second.taps(tile))],
        backward_from: backward_from(problem.backward, tiles / channel_tiles),
        ..Zeroable::zeroed()
    };
    // The blocks of a pair each copy half of a filter. Without a second source or a residual their maps are still
    // encoded; the kernel does not use them.
    let residual = residual.map_or(problem.y, |residual| residual.address);
    let other = second.unwrap_or(first);
    let maps = vec![
        first.filter_map(tile, tile.channels / pair)?,
        other.filter_map(tile, tile.channels / pair)?,
        first.x_map(tile)?,
        other.x_map(tile)?,
        result_map("residual", residual, &conv, pipeline.out_channels())?,
        result_map("y", problem.y, &conv, pipeline.out_channels())?,
    ];
    // Blocks that share a tile compute only this one; other blocks run at the same time and share out all tiles.
    let at_once = (units * pipeline.blocks / pair).max(1);
    let clusters = match pipeline.shares() {
        true => tiles,
        // A block's tiles are all of the same channels.
        false if tile.kept => tiles.min((at_once / channel_tiles).max(1) * channel_tiles),
        false => tiles.min(at_once),
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [(clusters * cluster) as u32, 1, 1],
        cluster: cluster as u32,
        block: [threads as u32, 1, 1],
        shared_bytes: shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// One of the convolutions of a sum.
#[derive(Clone, Copy)]
struct Source {
    conv: S8Conv,
    x: u64,
    filter: u64,
}

// Maps have elements of 16 bits, pairs of bytes. The number of bytes is a multiple of 16, so that the number of pairs
// is a multiple of 8.
impl Source {
    /// Steps that the channels of one tap take.
    fn c_steps(&self, tile: S8Tile) -> usize {
        self.conv.input.channels.div_ceil(tile.row_bytes)
    }

    fn args(&self, tile: S8Tile) -> S8SourceArgs {
        let window = self.conv.window;
        S8SourceArgs {
            filter_h: int(window.size[0]),
            filter_w: int(window.size[1]),
            c_bytes: int(self.c_steps(tile) * tile.row_bytes),
            stride_h: int(window.stride[0]),
            stride_w: int(window.stride[1]),
            pad_top: int(window.pad.top),
            pad_left: int(window.pad.left),
            dilation_h: int(window.dilation[0]),
            dilation_w: int(window.dilation[1]),
            by_windows: i32::from(!self.conv.shape().is_matrix()),
        }
    }

    fn taps(&self, tile: S8Tile) -> S8TapsArgs {
        S8TapsArgs {
            by_c_steps: FastDivide::by(self.c_steps(tile) as u32),
            by_filter_w: FastDivide::by(self.conv.window.size[1] as u32),
        }
    }

    fn filter_map(&self, tile: S8Tile, channels: usize) -> Result<TensorMap, Error> {
        let S8Conv { input, output, .. } = self.conv;
        Ok(TensorMap::Blocks {
            address: aligned("filter", self.filter, 16)?,
            dims: [input.channels / 2, self.conv.taps(), output.channels].map(|value| value as u64),
            box_dims: [tile.row_bytes as u32 / 2, 1, channels as u32],
        })
    }

    fn x_map(&self, tile: S8Tile) -> Result<TensorMap, Error> {
        let S8Conv { batch, input, window, .. } = self.conv;
        let (address, channels, pixels) = (aligned("x", self.x, 16)?, tile.row_bytes as u32 / 2, tile.pixels as u32);
        if self.conv.shape().is_matrix() {
            let dims = [input.channels as u64 / 2, (batch * input.pixels()) as u64];
            return Ok(TensorMap::Matrix { address, dims, pitch: dims[0], box_dims: [channels, pixels] });
        }
        let reach = |axis: usize| int((window.size[axis] - 1) * window.dilation[axis]);
        Ok(TensorMap::Windows(Windows {
            address,
            dims: [input.channels / 2, input.width, input.height, batch].map(|value| value as u64),
            lower: [-int(window.pad.left), -int(window.pad.top)],
            upper: [int(window.pad.right) - reach(1), int(window.pad.bottom) - reach(0)],
            strides: [window.stride[1], window.stride[0]].map(|value| value as u32),
            channels,
            pixels,
        }))
    }
}

/// The map of the result, or of a tensor with its shape, in boxes of `channels` channels and the pixels of a chunk.
fn result_map(what: &'static str, address: u64, conv: &S8Conv, channels: usize) -> Result<TensorMap, Error> {
    let dims = [conv.output.channels as u64 / 2, (conv.batch * conv.output.pixels()) as u64];
    let box_dims = [channels as u32 / 2, CHUNK_PIXELS as u32];
    Ok(TensorMap::Matrix { address: aligned(what, address, 16)?, dims, pitch: dims[0], box_dims })
}

#[cfg(test)]
#[path = "sm90_conv2d_s8_tests.rs"]
pub(super) mod tests;
