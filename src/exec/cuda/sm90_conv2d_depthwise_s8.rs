//! Launches of `kernels/sm90_conv2d_depthwise_s8.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, aligned, in_range, kernel_args, product, unsupported};
use super::sm90_conv2d_depthwise::{MOST_SHARED_BYTES, MOST_THREADS};
use super::sm90_requantise::S8Output;
use super::steps::{Operands, stored};
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::kernels::{DepthwiseShape, TILE_CHANNELS};
use crate::plan::{DepthwiseTile, Kernel, Limits, S8Conv, StepOp};
use crate::tensor::{Activation, Dtype};

kernel_args! {
    /// `Sm90DepthwiseS8Args`; the map is encoded before the launch.
    Sm90DepthwiseS8Args, 320 bytes {
        x: [u64; 16],
        filter: u64,
        bias: u64,
        scale: u64,
        y: u64,
        c_stored: i32,
        out_height: i32,
        out_width: i32,
        pad_top: i32,
        pad_left: i32,
        box_width: i32,
        box_bytes: i32,
        stage_bytes: i32,
        rows: i32,
        columns: i32,
        units: i32,
        unit_columns: i32,
        channel_tiles: i32,
        bands: i32,
        column_tiles: i32,
        tiles: i32,
        flip: u32,
        output: S8Output,
        by_unit_columns: FastDivide,
        by_channel_tiles: FastDivide,
        by_bands: FastDivide,
        by_column_tiles: FastDivide,
        padding: [i32; 9],
    }
}

/// Hopper depthwise convolutions of bytes.
pub(super) struct Sm90Conv2dDepthwiseS8;

impl Launcher for Sm90Conv2dDepthwiseS8 {
    fn name(&self) -> &'static str {
        "sm90_conv2d_depthwise_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |name| {
            let (module, threads, shared_bytes) = ("sm90_conv2d_depthwise_s8", MOST_THREADS, MOST_SHARED_BYTES);
            EntryPoint { module, name, threads, shared_bytes, cluster: 1 }
        };
        ENTRIES.into_iter().flat_map(|(.., names)| names).map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Sm90DepthwiseS8(tile) = step.kernel() else { return Err(step.wrong_kernel()) };
        launch(&DepthwiseS8Problem::of(step)?, tile, step.limits())
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        let file = "sm90_conv2d_depthwise_s8.cu";
        vec![Arguments::of::<Sm90DepthwiseS8Args>(file, "Sm90DepthwiseS8Args", Sm90DepthwiseS8Args::FIELDS)]
    }
}

/// The names of a kernel for tiles of 64 channels and of 32.
macro_rules! names {
    ($of:literal) => {
        [concat!("sm90_conv2d_depthwise_s8_", $of), concat!("sm90_conv2d_depthwise_s8_", $of, "_c32")]
    };
}

/// Size of the window, stride, unit, names.
type Entry = (usize, usize, [usize; 2], [&'static str; 2]);

/// The kernels.
const ENTRIES: [Entry; 8] = [
    (3, 1, [2, 7], names!("3x3_stride1_2x7")),
    (3, 1, [1, 4], names!("3x3_stride1_1x4")),
    (3, 2, [2, 7], names!("3x3_stride2_2x7")),
    (3, 2, [1, 4], names!("3x3_stride2_1x4")),
    (5, 1, [2, 7], names!("5x5_stride1_2x7")),
    (5, 1, [1, 4], names!("5x5_stride1_1x4")),
    (5, 2, [2, 7], names!("5x5_stride2_2x7")),
    (5, 2, [1, 4], names!("5x5_stride2_1x4")),
];

/// A depthwise convolution of bytes, with the addresses of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseS8Problem {
    /// The sizes, of an input and an output with the same channels.
    pub(crate) conv: S8Conv,
    /// Bytes [batch][H][W][C].
    pub(crate) x: u64,
    /// Whether the bytes of x are signed.
    pub(crate) x_signed: bool,
    /// Signed bytes [R][S][C].
    pub(crate) filter: u64,
    /// Integers [C].
    pub(crate) bias: u64,
    /// Floats [C].
    pub(crate) scale: u64,
    /// Bytes [batch][P][Q][C].
    pub(crate) y: u64,
    /// Whether the bytes of y are signed.
    pub(crate) y_signed: bool,
    /// Whether negative results become 0.
    pub(crate) relu: bool,
}

impl DepthwiseS8Problem {
    /// The problem of a step. The step's biases and scales lie behind its filter.
    pub(super) fn of(step: &Operands<'_>) -> Result<Self, Error> {
        let StepOp::QuantizedDepthwise(of) = step.op() else { return Err(step.wrong_kernel()) };
        let (input, output, window) = (stored(step.x()), stored(step.y()), of.conv.window);
        let conv = S8Conv { batch: step.images(), input, output, window };
        let (x, _, y) = step.pointers();
        let filter = step.filter(step.name());
        let bias = filter + (output.channels * conv.taps()) as u64;
        Ok(Self {
            conv,
            x,
            x_signed: step.x().dtype == Dtype::I8,
            filter,
            bias,
            scale: bias + (output.channels * size_of::<i32>()) as u64,
            y,
            y_signed: step.y().dtype == Dtype::I8,
            relu: of.conv.activation != Activation::None,
        })
    }

    /// An error unless the channels are as many on both sides, and a multiple of 16.
    pub(super) fn check_channels(&self) -> Result<(), Error> {
        let [from, to] = [self.conv.input.channels, self.conv.output.channels];
        if from != to || to == 0 || !to.is_multiple_of(16) {
            let found = format!("{from} to {to}");
            return Err(unsupported("channels", found, "the kernel takes a multiple of 16, the same on both sides"));
        }
        Ok(())
    }
}

/// The launch of `problem` in tiles of `tile` on a device with these limits.
pub(crate) fn launch(problem: &DepthwiseS8Problem, tile: DepthwiseTile, limits: &Limits) -> Result<Launch, Error> {
    let S8Conv { batch, input, output, window } = problem.conv;
    problem.check_channels()?;
    let channels = output.channels;
    let shape = DepthwiseShape { batch, input, output, window, expands: false, silu: false, in_bytes: true };
    let ([size, _], [stride, _]) = (window.size, window.stride);
    let entry = ENTRIES.iter().find(|entry| (entry.0, entry.1, entry.2) == (size, stride, tile.unit));
    let (Some(grid), Some((.., names))) = (shape.grid(tile, limits), entry) else {
        return Err(unsupported("depthwise tile", tile, "whole units of a window of 3x3 or 5x5, in shared memory"));
    };
    let extent = |what: &str, value: usize, min: usize| in_range(what, value, min, 1 << 14);
    product("input pixels", &[batch, input.height, input.width])?;
    product("output pixels", &[batch, output.height, output.width])?;
    product("filter", &[size * size, channels])?;
    let tiles = product("tiles", &[batch, grid.bands, grid.column_tiles, 1])?;
    let blocks = product("blocks", &[grid.blocks, grid.channel_tiles])?;
    let ([box_height, box_width], tile_channels) = (grid.box_size, shape.tile_channels());
    let small = |value: usize| value as i32; // of a tile, whose boxes fit the shared memory
    let args = Sm90DepthwiseS8Args {
        filter: aligned("filter", problem.filter, 16)?,
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        y: aligned("y", problem.y, 16)?,
        c_stored: in_range("channels", channels, 16, 1 << 24)?,
        out_height: extent("output height", output.height, 1)?,
        out_width: extent("output width", output.width, 1)?,
        pad_top: extent("top padding", window.pad.top, 0)?,
        pad_left: extent("left padding", window.pad.left, 0)?,
        box_width: small(box_width),
        box_bytes: small(box_height * box_width * tile_channels),
        stage_bytes: small(grid.stage_bytes),
        rows: small(tile.rows),
        columns: small(tile.columns),
        units: small(grid.units[0] * grid.units[1]),
        unit_columns: small(grid.units[1]),
        channel_tiles: small(grid.channel_tiles),
        bands: small(grid.bands),
        column_tiles: small(grid.column_tiles),
        tiles: tiles as i32,
        flip: u32::from(problem.x_signed) * 0x8080_8080,
        output: S8Output::of(None, problem.y_signed, problem.relu)?,
        by_unit_columns: FastDivide::by(grid.units[1] as u32),
        by_channel_tiles: FastDivide::by(grid.channel_tiles as u32),
        by_bands: FastDivide::by(grid.bands as u32),
        by_column_tiles: FastDivide::by(grid.column_tiles as u32),
        ..Zeroable::zeroed()
    };
    // In words of two bytes.
    let x = TensorMap::Images {
        address: aligned("x", problem.x, 16)?,
        dims: [channels / 2, input.width, input.height, batch].map(|value| value as u64),
        pitch: channels as u64 / 2,
        box_dims: [tile_channels as u32 / 2, box_width as u32, box_height as u32, 1],
        swizzle: Swizzle::None,
    };
    Ok(Launch {
        entry: names[usize::from(tile_channels == TILE_CHANNELS)].into(),
        grid: [blocks, 1, 1],
        cluster: 1,
        block: [grid.threads as u32, 1, 1],
        shared_bytes: grid.shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps: vec![x],
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pad, Window};
    use crate::tensor::Shape;

    const TILE: DepthwiseTile = DepthwiseTile { rows: 4, columns: 21, unit: [2, 7] };

    fn problem() -> DepthwiseS8Problem {
        let pad = Pad { top: 1, left: 2, bottom: 2, right: 1 };
        let conv = S8Conv {
            batch: 9,
            input: Shape::new(31, 120, 208),
            output: Shape::new(15, 60, 208),
            window: Window { size: [5, 5], stride: [2, 2], pad, dilation: [1, 1] },
        };
        let [x, filter, bias, scale, y] = [0x100, 0x200, 0x300, 0x400, 0x500];
        DepthwiseS8Problem { conv, x, x_signed: true, filter, bias, scale, y, y_signed: true, relu: false }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), TILE, &Limits::h200()).unwrap();
        let args: Sm90DepthwiseS8Args = launch.args.read();
        assert_eq!([args.filter, args.bias, args.scale, args.y], [0x200, 0x300, 0x400, 0x500]);
        assert_eq!([args.c_stored, args.out_height, args.out_width], [208, 15, 60]);
        assert_eq!([args.pad_top, args.pad_left, args.box_width], [1, 2, 45]);
        assert_eq!([args.box_bytes, args.stage_bytes], [11 * 45 * 32, 15_872]);
        assert_eq!([args.rows, args.columns, args.units, args.unit_columns], [4, 21, 6, 3]);
        assert_eq!([args.channel_tiles, args.bands, args.column_tiles, args.tiles], [7, 4, 3, 108]);
        assert_eq!((args.flip, args.output), (0x8080_8080, S8Output::of(None, true, false).unwrap()));
        let divided = [args.by_unit_columns, args.by_channel_tiles, args.by_bands, args.by_column_tiles];
        assert_eq!(divided.map(|by| by.divide(84)), [28, 12, 21, 28]);
        assert_eq!((&*launch.entry, launch.waits_itself), ("sm90_conv2d_depthwise_s8_5x5_stride2_2x7_c32", true));
        assert_eq!((launch.block, launch.shared_bytes, launch.grid[0] % 7), ([64, 1, 1], 2 * 15_872, 0));
        let (dims, box_dims) = ([104, 120, 31, 9], [16, 45, 11, 1]);
        let x = TensorMap::Images { address: 0x100, dims, pitch: 104, box_dims, swizzle: Swizzle::None };
        assert_eq!(launch.maps, [x]);
    }

    #[test]
    fn a_tile_has_64_channels_unless_half_of_them_would_be_in_vain() {
        let entry = |channels| {
            let of = |shape: Shape| Shape { channels, ..shape };
            let conv = S8Conv { input: of(problem().conv.input), output: of(problem().conv.output), ..problem().conv };
            let launch = launch(&DepthwiseS8Problem { conv, ..problem() }, TILE, &Limits::h200()).unwrap();
            (launch.entry.ends_with("_c32"), launch.args.read::<Sm90DepthwiseS8Args>().channel_tiles)
        };
        assert_eq!([32, 48, 64, 96, 112].map(entry), [(true, 1), (false, 1), (false, 1), (true, 3), (false, 2)]);
    }

    #[test]
    fn out_of_range_is_an_error() {
        let refused = |tile: DepthwiseTile, change: fn(&mut DepthwiseS8Problem)| {
            let mut problem = problem();
            change(&mut problem);
            launch(&problem, tile, &Limits::h200()).is_err()
        };
        assert!(!refused(TILE, |_| ()));
        assert!(refused(TILE, |p| p.conv.batch = 0));
        assert!(refused(TILE, |p| p.conv.input.channels = 192));
        assert!(refused(TILE, |p| [p.conv.input.channels, p.conv.output.channels] = [24; 2]));
        assert!(refused(TILE, |p| p.conv.window.stride = [2, 1]));
        assert!(refused(TILE, |p| p.conv.window = Window::square(7, 1, 3)));
        assert!(refused(TILE, |p| p.scale += 8));
        assert!(refused(DepthwiseTile { rows: 3, ..TILE }, |_| ()));
        assert!(refused(DepthwiseTile { rows: 80, columns: 84, ..TILE }, |_| ()));
    }
}
