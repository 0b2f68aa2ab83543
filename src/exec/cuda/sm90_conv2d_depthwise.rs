//! Launches of `kernels/sm90_conv2d_depthwise.cu`.

use bytemuck::Zeroable;

use super::conv2d_depthwise::{DepthwisePointers, DepthwiseProblem};
#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, CHUNK, FastDivide, Launch, SM90_SHARED_BYTES, aligned, chunks_of, in_range, kernel_args, product,
    unsupported,
};
use super::sm90_conv2d_fprop::applied;
use super::steps::Operands;
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::kernels::{self, DepthwiseShape, TILE_CHANNELS};
use crate::plan::{DepthwiseTile, Kernel, Limits, StepOp};
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `Sm90DepthwiseArgs`; the map is encoded before the launch.
    Sm90DepthwiseArgs, 320 bytes {
        x: [u64; 16],
        filter: u64,
        bias: u64,
        y: u64,
        c_stored: i32,
        out_height: i32,
        out_width: i32,
        pad_top: i32,
        pad_left: i32,
        box_width: i32,
        box_pixels: i32,
        stage_bytes: i32,
        rows: i32,
        columns: i32,
        units: i32,
        unit_columns: i32,
        channel_tiles: i32,
        bands: i32,
        column_tiles: i32,
        tiles: i32,
        activation: i32,
        height: i32,
        width: i32,
        x_chunks: i32,
        x_activation: i32,
        reserved: i32,
        x_filter: u64,
        x_bias: u64,
        by_unit_columns: FastDivide,
        by_channel_tiles: FastDivide,
        by_bands: FastDivide,
        by_column_tiles: FastDivide,
        by_box_width: FastDivide,
        padding: [i32; 6],
    }
}

/// Hopper depthwise convolutions, of an input or of the result of a 1x1 convolution.
pub(super) struct Sm90Conv2dDepthwise;

impl Launcher for Sm90Conv2dDepthwise {
    fn name(&self) -> &'static str {
        "sm90_conv2d_depthwise"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(module, name)| {
            let (threads, shared_bytes) = (MOST_THREADS, MOST_SHARED_BYTES);
            EntryPoint { module, name, threads, shared_bytes, cluster: 8 }
        };
        ENTRIES.into_iter().flat_map(|(.., names)| MODULES.into_iter().zip(names)).map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (conv, expand, tile) = match (step.op(), step.kernel()) {
            (StepOp::Depthwise(conv), Kernel::Sm90Depthwise(tile)) => (conv, None, tile),
            (StepOp::ExpandDepthwise { expand, conv }, Kernel::Sm90Expand(tile)) => (conv, Some(expand), tile),
            _ => return Err(step.wrong_kernel()),
        };
        let expand = expand.map(|expand| Expand {
            channels: step.x().stored_channels,
            activation: expand.conv.activation,
            filter: step.filter(&expand.name),
            bias: step.bias(1),
        });
        let (problem, pointers) = (DepthwiseProblem::of(step, conv), DepthwisePointers::of(step));
        launch(&problem, expand.as_ref(), tile, step.limits(), &pointers)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90DepthwiseArgs>(
            "sm90_conv2d_depthwise.cu",
            "Sm90DepthwiseArgs",
            Sm90DepthwiseArgs::FIELDS,
        )]
    }
}

/// The most threads of a block.
pub(super) const MOST_THREADS: u32 = kernels::MOST_THREADS as u32;

/// The most dynamic shared memory of a block: the shared memory of compute capability 9.0 without the kernel's
/// barriers.
pub(super) const MOST_SHARED_BYTES: u32 = SM90_SHARED_BYTES - kernels::STATIC_BYTES as u32;

/// The modules of activations that clamp, and of SiLU.
const MODULES: [&str; 2] = ["sm90_conv2d_depthwise", "sm90_conv2d_depthwise_silu"];

/// The names of a kernel in both modules.
macro_rules! names {
    ($of:literal) => {
        [concat!("sm90_conv2d_depthwise_", $of), concat!("sm90_conv2d_depthwise_", $of, "_silu")]
    };
}

/// Size of the window, stride, unit, whether a 1x1 convolution comes first, names.
type Entry = (usize, usize, [usize; 2], bool, [&'static str; 2]);

/// The kernels.
const ENTRIES: [Entry; 20] = [
    (3, 1, [2, 7], false, names!("3x3_stride1_2x7")),
    (3, 1, [1, 4], false, names!("3x3_stride1_1x4")),
    (3, 2, [2, 7], false, names!("3x3_stride2_2x7")),
    (3, 2, [1, 4], false, names!("3x3_stride2_1x4")),
    (5, 1, [2, 7], false, names!("5x5_stride1_2x7")),
    (5, 1, [1, 4], false, names!("5x5_stride1_1x4")),
    (5, 2, [2, 7], false, names!("5x5_stride2_2x7")),
    (5, 2, [1, 4], false, names!("5x5_stride2_1x4")),
    (7, 1, [2, 7], false, names!("7x7_stride1_2x7")),
    (7, 1, [1, 4], false, names!("7x7_stride1_1x4")),
    (3, 1, [2, 7], true, names!("expand_3x3_stride1_2x7")),
    (3, 1, [1, 4], true, names!("expand_3x3_stride1_1x4")),
    (3, 2, [2, 7], true, names!("expand_3x3_stride2_2x7")),
    (3, 2, [1, 4], true, names!("expand_3x3_stride2_1x4")),
    (5, 1, [2, 7], true, names!("expand_5x5_stride1_2x7")),
    (5, 1, [1, 4], true, names!("expand_5x5_stride1_1x4")),
    (5, 2, [2, 7], true, names!("expand_5x5_stride2_2x7")),
    (5, 2, [1, 4], true, names!("expand_5x5_stride2_1x4")),
    (7, 1, [2, 7], true, names!("expand_7x7_stride1_2x7")),
    (7, 1, [1, 4], true, names!("expand_7x7_stride1_1x4")),
];

/// A 1x1 convolution whose result the depthwise one reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expand {
    /// Stored channels of the input of the 1x1 convolution, which is x of the launch.
    pub(crate) channels: usize,
    /// The activation of its result.
    pub(crate) activation: Activation,
    /// Address of its filter: halves [C][channels].
    pub(crate) filter: u64,
    /// Address of its bias: floats [C].
    pub(crate) bias: u64,
}

/// The launch of `problem`, whose input a 1x1 convolution may make, in tiles of `tile` on a device with these limits.
pub(crate) fn launch(
    problem: &DepthwiseProblem,
    expand: Option<&Expand>,
    tile: DepthwiseTile,
    limits: &Limits,
    pointers: &DepthwisePointers,
) -> Result<Launch, Error> {
    let DepthwiseProblem { batch, input, output: [p, q], window, activation } = *problem;
    let (of_activation, activation) = applied(activation)?;
    let (of_first, x_activation) = expand.map_or(Ok((of_activation, 0)), |expand| applied(expand.activation))?;
    if of_first != of_activation {
        return Err(unsupported("SiLU", "of one convolution", "the kernel applies it to both or to none"));
    }
    chunks_of("channels", input.channels)?;
    let x = Shape { channels: expand.map_or(input.channels, |expand| expand.channels), ..input };
    let x_chunks = chunks_of("channels of x", x.channels)?;
    let output = Shape::new(p, q, input.channels);
    let shape = DepthwiseShape {
        batch,
        input: x,
        output,
        window,
        expands: expand.is_some(),
        silu: of_activation == 1,
        in_bytes: false,
    };
    let ([size, _], [stride, _]) = (window.size, window.stride);
    let wanted = (size, stride, tile.unit, expand.is_some());
    let entry = ENTRIES.iter().find(|entry| (entry.0, entry.1, entry.2, entry.3) == wanted);
    let (Some(grid), Some((.., names))) = (shape.grid(tile, limits), entry) else {
        return Err(unsupported(
            "depthwise tile",
            tile,
            "whole units of a window of 3x3, 5x5 or 7x7, in shared memory",
        ));
    };
    let extent = |what: &str, value: usize, min: usize| in_range(what, value, min, 1 << 14);
    product("input pixels", &[batch, input.height, input.width])?;
    product("output pixels", &[batch, p, q])?;
    product("filter", &[size * size, input.channels])?;
    product("filter of x", &[x.channels, input.channels])?;
    let tiles = product("tiles", &[batch, grid.bands, grid.column_tiles, 1])?;
    let blocks = product("blocks", &[grid.blocks, grid.channel_tiles])?;
    let [box_height, box_width] = grid.box_size;
    let small = |value: usize| value as i32; // of a tile, whose boxes fit the shared memory
    let args = Sm90DepthwiseArgs {
        filter: aligned("filter", pointers.filter, 16)?,
        bias: aligned("bias", pointers.bias, 16)?,
        y: aligned("y", pointers.y, 16)?,
        c_stored: in_range("channels", input.channels, 8, 1 << 24)?,
        out_height: extent("output height", p, 1)?,
        out_width: extent("output width", q, 1)?,
        pad_top: extent("top padding", window.pad.top, 0)?,
        pad_left: extent("left padding", window.pad.left, 0)?,
        box_width: small(box_width),
        box_pixels: small(box_height * box_width),
        stage_bytes: small(grid.stage_bytes),
        rows: small(tile.rows),
        columns: small(tile.columns),
        units: small(grid.units[0] * grid.units[1]),
        unit_columns: small(grid.units[1]),
        channel_tiles: small(grid.channel_tiles),
        bands: small(grid.bands),
        column_tiles: small(grid.column_tiles),
        tiles: tiles as i32,
        activation,
        height: extent("height", input.height, 1)?,
        width: extent("width", input.width, 1)?,
        x_chunks: in_range("channels of x / 8", x_chunks, 1, (1 << 24) / CHUNK)?,
        x_activation,
        x_filter: expand.map_or(Ok(0), |expand| aligned("filter of x", expand.filter, 16))?,
        x_bias: expand.map_or(Ok(0), |expand| aligned("bias of x", expand.bias, 16))?,
        by_unit_columns: FastDivide::by(grid.units[1] as u32),
        by_channel_tiles: FastDivide::by(grid.channel_tiles as u32),
        by_bands: FastDivide::by(grid.bands as u32),
        by_column_tiles: FastDivide::by(grid.column_tiles as u32),
        by_box_width: FastDivide::by(box_width as u32),
        ..Zeroable::zeroed()
    };
    let x = TensorMap::Images {
        address: aligned("x", pointers.x, 16)?,
        dims: [x.channels, x.width, x.height, batch].map(|value| value as u64),
        pitch: x.channels as u64,
        box_dims: [TILE_CHANNELS as u32, box_width as u32, box_height as u32, 1],
        swizzle: if expand.is_some() { Swizzle::Rows64 } else { Swizzle::None },
    };
    Ok(Launch {
        entry: names[of_activation].into(),
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

    const POINTERS: DepthwisePointers = DepthwisePointers { x: 0x100, filter: 0x200, bias: 0x300, y: 0x400 };
    const TILE: DepthwiseTile = DepthwiseTile { rows: 4, columns: 21, unit: [2, 7] };

    fn problem() -> DepthwiseProblem {
        let pad = Pad { top: 1, left: 2, bottom: 2, right: 1 };
        DepthwiseProblem {
            batch: 9,
            input: Shape::new(31, 120, 200),
            output: [15, 60],
            window: Window { size: [5, 5], stride: [2, 2], pad, dilation: [1, 1] },
            activation: Activation::Relu6,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let expand = Expand { channels: 56, activation: Activation::Relu, filter: 0x500, bias: 0x600 };
        let launch = launch(&problem(), Some(&expand), TILE, &Limits::h200(), &POINTERS).unwrap();
        let args: Sm90DepthwiseArgs = launch.args.read();
        assert_eq!([args.filter, args.bias, args.y, args.x_filter, args.x_bias], [0x200, 0x300, 0x400, 0x500, 0x600]);
        assert_eq!([args.c_stored, args.out_height, args.out_width], [200, 15, 60]);
        assert_eq!([args.pad_top, args.pad_left, args.box_width], [1, 2, 45]);
        assert_eq!([args.box_pixels, args.stage_bytes], [11 * 45, 31_744]);
        assert_eq!([args.rows, args.columns, args.units, args.unit_columns], [4, 21, 6, 3]);
        assert_eq!([args.channel_tiles, args.bands, args.column_tiles, args.tiles], [7, 4, 3, 108]);
        assert_eq!([args.activation, args.height, args.width, args.x_chunks, args.x_activation], [2, 31, 120, 7, 1]);
        let divided = [args.by_unit_columns, args.by_channel_tiles, args.by_bands, args.by_column_tiles];
        assert_eq!(divided.map(|by| by.divide(84)), [28, 12, 21, 28]);
        assert_eq!(args.by_box_width.divide(90), 2);
        assert_eq!(launch.entry, "sm90_conv2d_depthwise_expand_5x5_stride2_2x7");
        // Two boxes, the results of the 1x1 convolution, filter and bias.
        let shared_bytes = 2 * 31_744 + 495 * 80 + 32 * (64 + 8) * 2 + 32 * 4;
        // Two blocks by memory: 2 * 132 / 7.
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([37 * 7, 1, 1], [96, 1, 1], shared_bytes));
        let box_dims = [32, 45, 11, 1];
        let (dims, swizzle) = ([56, 120, 31, 9], Swizzle::Rows64);
        let x = TensorMap::Images { address: 0x100, dims, pitch: 56, box_dims, swizzle };
        assert_eq!(launch.maps, [x]);
    }

    #[test]
    fn both_convolutions_apply_silu_or_none() {
        let of = |first, second| {
            let expand = Expand { channels: 56, activation: first, filter: 0x500, bias: 0x600 };
            let problem = DepthwiseProblem { activation: second, ..problem() };
            launch(&problem, Some(&expand), TILE, &Limits::h200(), &POINTERS).map(|launch| launch.entry.into_owned())
        };
        let both = of(Activation::Silu, Activation::Silu).unwrap();
        assert_eq!(both, "sm90_conv2d_depthwise_expand_5x5_stride2_2x7_silu");
        assert!(of(Activation::Silu, Activation::Relu).is_err() && of(Activation::None, Activation::Silu).is_err());
        let alone = DepthwiseProblem { activation: Activation::Silu, ..problem() };
        let alone = launch(&alone, None, TILE, &Limits::h200(), &POINTERS).unwrap();
        assert_eq!(alone.entry, "sm90_conv2d_depthwise_5x5_stride2_2x7_silu");
    }

    #[test]
    fn without_a_convolution_in_front_two_boxes_lie_side_by_side() {
        let launch = launch(&problem(), None, TILE, &Limits::h200(), &POINTERS).unwrap();
        assert_eq!(launch.entry, "sm90_conv2d_depthwise_5x5_stride2_2x7");
        // Three blocks by memory: 3 * 132 / 7.
        assert_eq!((launch.grid, launch.shared_bytes), ([56 * 7, 1, 1], 2 * 31_744));
        assert!(matches!(&launch.maps[0], TensorMap::Images { dims: [200, ..], swizzle: Swizzle::None, .. }));
    }

    #[test]
    fn out_of_range_is_an_error() {
        let refused = |tile: DepthwiseTile, change: fn(&mut DepthwiseProblem)| {
            let mut problem = problem();
            change(&mut problem);
            matches!(launch(&problem, None, tile, &Limits::h200(), &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(!refused(TILE, |_| ()));
        assert!(refused(TILE, |p| p.batch = 0));
        assert!(refused(TILE, |p| p.batch = 1 << 24));
        assert!(refused(TILE, |p| p.input.channels = 25));
        assert!(refused(TILE, |p| p.window.stride = [2, 1]));
        assert!(refused(TILE, |p| p.window.size = [7, 7]));
        assert!(refused(DepthwiseTile { rows: 3, ..TILE }, |_| ()));
        assert!(refused(DepthwiseTile { rows: 200, ..TILE }, |_| ()));
        assert!(refused(DepthwiseTile { rows: 40, columns: 42, ..TILE }, |_| ()));
        assert!(refused(DepthwiseTile { unit: [2, 21], ..TILE }, |_| ()));
    }
}
