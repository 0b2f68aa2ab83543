//! Launches of `kernels/sm90_conv2d_fprop.cu`.

use bytemuck::Zeroable;

use super::conv2d_fprop::{ConvPointers, ConvProblem};
#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, INDEX_LIMIT, Launch, activation_code, aligned, in_range, kernel_args, pitch, product,
    unsupported,
};
use super::steps::{Operands, stored};
use crate::device::cuda::{TensorMap, Windows};
use crate::error::Error;
use crate::model::Window;
use crate::plan::kernels::{ConvShape, check_sm90, packed_channels};
use crate::plan::{Kernel, Sm90Tile, StepOp};
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `Sm90Source`.
    Sm90Source, 48 bytes {
        filter_h: i32,
        filter_w: i32,
        c_steps: i32,
        stride_h: i32,
        stride_w: i32,
        pad_top: i32,
        pad_left: i32,
        dilation_h: i32,
        dilation_w: i32,
        by_windows: i32,
        last_channel: i32,
        padding: i32,
    }
}

kernel_args! {
    /// `Sm90ConvArgs`; the maps are encoded before the launch.
    Sm90ConvArgs, 960 bytes {
        filter: [MapBytes; 2],
        x: [MapBytes; 2],
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        residual_values: u64,
        y_values: u64,
        k_stored: i32,
        tiles: i32,
        channel_tiles: i32,
        m_pixels: i32,
        out_pixels: i32,
        out_width: i32,
        steps: i32,
        activation: i32,
        by_channel_tiles: FastDivide,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        source: [Sm90Source; 2],
        y_pitch: i32,
        backward_from: i32,
        cuts: i32,
        padding: i32,
    }
}

/// Hopper convolutions, and sums of two.
pub(super) struct Sm90Conv2dFprop;

impl Launcher for Sm90Conv2dFprop {
    fn name(&self) -> &'static str {
        "sm90_conv2d_fprop"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(tile, names): (Sm90Tile, [_; 3])| {
            let pipeline = tile.pipeline().expect("every compiled tile has one");
            let (threads, shared_bytes) = (pipeline.threads() as u32, pipeline.shared_bytes() as u32);
            let with = move |(module, name)| EntryPoint { module, name, threads, shared_bytes, cluster: 8 };
            MODULES.into_iter().zip(names).map(with)
        };
        ENTRIES.into_iter().flat_map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Sm90Conv { tile, cluster } = step.kernel() else { return Err(step.wrong_kernel()) };
        let (_, second, _) = step.pointers();
        let (conv, residual, joined) = match step.op() {
            StepOp::Conv(conv) => (conv, second, None),
            StepOp::ConvSum { conv, joined } => (conv, None, Some(joined)),
            _ => return Err(step.wrong_kernel()),
        };
        let second = joined.zip(second).map(|(joined, x)| {
            let (input, window) = (stored(step.input(1)), joined.conv.window);
            Second { input, window, x, filter: step.filter(&joined.name) }
        });
        let tiling = Tiling { tile, cluster, units: step.limits().units, backward: step.backward };
        launch(&ConvProblem::of(step, conv), second.as_ref(), &tiling, &ConvPointers::of(step, residual))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![
            Arguments::of::<Sm90Source>("sm90_conv2d_fprop.cuh", "Sm90Source", Sm90Source::FIELDS).part(),
            Arguments::of::<Sm90ConvArgs>("sm90_conv2d_fprop.cuh", "Sm90ConvArgs", Sm90ConvArgs::FIELDS),
        ]
    }
}

/// An encoded tensor map.
pub(super) type MapBytes = [u64; 16];

/// The modules of activations that clamp, of SiLU and of GELU.
const MODULES: [&str; 3] = ["sm90_conv2d_fprop", "sm90_conv2d_fprop_silu", "sm90_conv2d_fprop_gelu"];

macro_rules! names {
    ($tile:literal) => {
        [
            concat!("sm90_conv2d_fprop_", $tile),
            concat!("sm90_conv2d_fprop_", $tile, "_silu"),
            concat!("sm90_conv2d_fprop_", $tile, "_gelu"),
        ]
    };
}

/// For each tile the kernel that clamps, and those with SiLU and GELU.
pub(super) const ENTRIES: [(Sm90Tile, [&str; 3]); Sm90Tile::ALL.len()] = [
    (Sm90Tile { channels: 128, pixels: 256 }, names!("128x256")),
    (Sm90Tile { channels: 128, pixels: 192 }, names!("128x192")),
    (Sm90Tile { channels: 128, pixels: 144 }, names!("128x144")),
    (Sm90Tile { channels: 128, pixels: 128 }, names!("128x128")),
    (Sm90Tile { channels: 128, pixels: 64 }, names!("128x64")),
    (Sm90Tile { channels: 64, pixels: 256 }, names!("64x256")),
    (Sm90Tile { channels: 64, pixels: 128 }, names!("64x128")),
    (Sm90Tile { channels: 64, pixels: 64 }, names!("64x64")),
    (Sm90Tile { channels: 64, pixels: 32 }, names!("64x32")),
];

/// Channels of one stage of the kernel's pipeline.
const STEP_CHANNELS: usize = 64;

/// The most blocks that share a tile.
const MOST_BLOCKS: usize = 8;

/// A second convolution, of the same output shape, whose sum is added to the first one's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// H, W and the stored channels of its input.
    pub(crate) input: Shape,
    /// The second convolution's window.
    pub(crate) window: Window,
    /// Address of its input.
    pub(crate) x: u64,
    /// Address of its filter.
    pub(crate) filter: u64,
}

/// How the work is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    /// The tile of a block.
    pub(crate) tile: Sm90Tile,
    /// The number of blocks of a cluster.
    pub(crate) cluster: usize,
    /// The number of the device's multiprocessors.
    pub(crate) units: usize,
    /// Whether the last pixels are computed first.
    pub(crate) backward: bool,
}

/// The launch of `problem`, whose sums may include those of a second convolution. The bias is added once for both.
pub(crate) fn launch(
    problem: &ConvProblem,
    second: Option<&Second>,
    tiling: &Tiling,
    pointers: &ConvPointers,
) -> Result<Launch, Error> {
    let Tiling { tile, cluster, units, backward } = *tiling;
    let ConvProblem { batch, input, output, y_pitch, window, activation } = *problem;
    let (of_activation, activation) = match activation {
        Activation::Gelu => (2, 0),
        other => applied(other)?,
    };
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, names)| names[of_activation]);
    let (Some(entry), Some(pipeline)) = (entry, tile.pipeline()) else {
        return Err(unsupported("sm90 tile", tile, "use one of Sm90Tile::ALL"));
    };
    if !tile.clusters().contains(&cluster) {
        return Err(unsupported("blocks of a cluster", cluster, "use one of Sm90Tile::clusters"));
    }
    let (pair, summands) = (pipeline.pair(cluster), pipeline.summands(cluster));
    let ConvPointers { x, filter, bias, residual, y } = *pointers;
    let pixels = batch * output.pixels();
    let channel_tiles = output.channels.div_ceil(tile.channels).next_multiple_of(pair);
    let first = Source { shape: ConvShape { batch, input, output, window }, x, filter };
    let second = second.map(|second| {
        let Second { input, window, x, filter } = *second;
        Source { shape: ConvShape { batch, input, output, window }, x, filter }
    });
    let sources: Vec<Source> = [first].into_iter().chain(second).collect();
    sources.iter().try_for_each(|source| check_sm90(&source.shape))?;
    let steps = sources.iter().map(|source| source.shape.steps()).sum::<usize>();
    let tiles = pixels.div_ceil(tile.pixels) * channel_tiles;
    let args = Sm90ConvArgs {
        bias: aligned("bias", bias, 16)?,
        residual_values: residual.unwrap_or(0),
        y_values: y,
        k_stored: int(output.channels),
        tiles: int(tiles),
        channel_tiles: int(channel_tiles),
        m_pixels: int(pixels),
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        steps: in_range("steps", steps, 1, INDEX_LIMIT / MOST_BLOCKS)?,
        activation,
        by_channel_tiles: FastDivide::by(channel_tiles as u32),
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        backward_from: backward_from(backward, pixels.div_ceil(tile.pixels)),
        source: [first.args(), second.map_or(Zeroable::zeroed(), |second| second.args())],
        y_pitch: pitch(y_pitch, output.channels)?,
        cuts: i32::from(sources.iter().any(|of| !of.shape.input.channels.is_multiple_of(STEP_CHANNELS))),
        ..Zeroable::zeroed()
    };
    // Without a second source or a residual their maps are still encoded; the kernel does not use them.
    let both = [first, second.unwrap_or(first)];
    let y = aligned("y", y, 16)?;
    let residual = aligned("residual", residual.unwrap_or(y), 16)?;
    let outputs = |address: u64, pitch: usize, box_pixels: usize| TensorMap::Matrix {
        address,
        dims: [output.channels as u64, pixels as u64],
        pitch: pitch as u64,
        box_dims: [STEP_CHANNELS as u32, box_pixels as u32],
    };
    let mut maps = Vec::with_capacity(6);
    for source in both {
        maps.push(source.filter_map(tile.channels)?);
    }
    for source in both {
        maps.push(source.x_map(pipeline.part_pixels / pair)?);
    }
    maps.extend([outputs(residual, output.channels, pipeline.part_pixels), outputs(y, y_pitch, pipeline.chunk_pixels)]);
    // Blocks that share their tile compute only this one.
    let blocks = match summands {
        2.. => product("blocks", &[tiles, summands])?,
        _ => tiles.min((units * pipeline.blocks / cluster).max(1) * cluster) as u32,
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [blocks, 1, 1],
        cluster: cluster as u32,
        block: [pipeline.threads() as u32, 1, 1],
        shared_bytes: pipeline.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// The index of the kernel of a tile that applies an activation, 0 for the one that clamps and 1 for SiLU; and the
/// number by which the first knows the activation. GELU is refused: of the kernels with SiLU only the dense one applies it.
pub(super) fn applied(activation: Activation) -> Result<(usize, i32), Error> {
    match activation {
        Activation::Silu => Ok((1, 0)),
        bound => Ok((0, activation_code(bound)?)),
    }
}

/// Converts a value that `check_sm90` has found small enough.
pub(super) fn int(value: usize) -> i32 {
    value as i32
}

/// `backward_from` of a kernel's arguments: the last of its tiles of pixels, if they are taken from there on down, or -1.
pub(super) fn backward_from(backward: bool, tiles: usize) -> i32 {
    if backward { int(tiles) - 1 } else { -1 }
}

/// One of the convolutions whose sum is computed.
#[derive(Clone, Copy)]
struct Source {
    shape: ConvShape,
    x: u64,
    filter: u64,
}

impl Source {
    fn args(&self) -> Sm90Source {
        let ConvShape { input, window, .. } = self.shape;
        Sm90Source {
            filter_h: int(window.size[0]),
            filter_w: int(window.size[1]),
            c_steps: int(input.channels.div_ceil(STEP_CHANNELS)),
            stride_h: int(window.stride[0]),
            stride_w: int(window.stride[1]),
            pad_top: int(window.pad.top),
            pad_left: int(window.pad.left),
            dilation_h: int(window.dilation[0]),
            dilation_w: int(window.dilation[1]),
            by_windows: i32::from(!self.shape.is_matrix()),
            last_channel: int(input.channels.saturating_sub(STEP_CHANNELS)),
            padding: 0,
        }
    }

    fn filter_map(&self, channels: usize) -> Result<TensorMap, Error> {
        let ConvShape { input, output, window, .. } = self.shape;
        let taps = window.size.iter().product::<usize>();
        Ok(TensorMap::Blocks {
            address: aligned("filter", self.filter, 16)?,
            dims: [packed_channels(input.channels), taps, output.channels].map(|value| value as u64),
            box_dims: [STEP_CHANNELS as u32, 1, channels as u32],
        })
    }

    /// The map of the source's input in columns of `pixels`.
    fn x_map(&self, pixels: usize) -> Result<TensorMap, Error> {
        let ConvShape { batch, input, window, .. } = self.shape;
        let (address, channels, pixels) = (aligned("x", self.x, 16)?, STEP_CHANNELS as u32, pixels as u32);
        if self.shape.is_matrix() {
            let dims = [input.channels as u64, (batch * input.pixels()) as u64];
            return Ok(TensorMap::Matrix { address, dims, pitch: dims[0], box_dims: [channels, pixels] });
        }
        let reach = |axis: usize| int((window.size[axis] - 1) * window.dilation[axis]);
        Ok(TensorMap::Windows(Windows {
            address,
            dims: [input.channels, input.width, input.height, batch].map(|value| value as u64),
            lower: [-int(window.pad.left), -int(window.pad.top)],
            upper: [int(window.pad.right) - reach(1), int(window.pad.bottom) - reach(0)],
            strides: [window.stride[1], window.stride[0]].map(|value| value as u32),
            channels,
            pixels,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::Pad;

    const POINTERS: ConvPointers =
        ConvPointers { x: 0x100, filter: 0x200, bias: 0x300, residual: Some(0x400), y: 0x500 };

    fn tiling(channels: usize, pixels: usize) -> Tiling {
        Tiling { tile: Sm90Tile { channels, pixels }, cluster: 1, units: 132, backward: false }
    }

    fn problem() -> ConvProblem {
        let pad = Pad { top: 2, left: 1, bottom: 16, right: 32 };
        ConvProblem {
            batch: 3,
            input: Shape::new(30, 40, 72),
            output: Shape::new(11, 19, 136),
            y_pitch: 200,
            window: Window { size: [5, 7], stride: [3, 2], pad, dilation: [4, 6] },
            activation: Activation::Relu6,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let second = Second {
            input: Shape::new(21, 55, 200),
            window: Window { stride: [2, 3], ..Window::square(1, 1, 0) },
            x: 0x600,
            filter: 0x700,
        };
        let tiling = tiling(128, 64);
        let launch = launch(&problem(), Some(&second), &tiling, &POINTERS).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.bias, args.residual_values, args.y_values], [0x300, 0x400, 0x500]);
        assert_eq!([args.k_stored, args.y_pitch, args.m_pixels], [136, 200, 627]);
        assert_eq!([args.tiles, args.channel_tiles], [20, 2]);
        assert_eq!([args.out_pixels, args.out_width, args.steps], [209, 19, 35 * 2 + 4]);
        assert_eq!(args.activation, 2);
        let source = args.source[0];
        assert_eq!([source.filter_h, source.filter_w, source.c_steps, source.last_channel], [5, 7, 2, 8]);
        assert_eq!([source.stride_h, source.stride_w], [3, 2]);
        assert_eq!([source.pad_top, source.pad_left, source.dilation_h, source.dilation_w], [2, 1, 4, 6]);
        let source = args.source[1];
        assert_eq!([source.filter_h, source.filter_w, source.c_steps], [1, 1, 4]);
        assert_eq!([source.stride_h, source.stride_w, source.by_windows], [2, 3, 1]);
        assert_eq!(args.by_channel_tiles.divide(19), 9);
        assert_eq!(args.by_out_pixels.divide(627), 3);
        assert_eq!(args.by_out_width.divide(208), 10);
        assert_eq!((launch.grid, launch.cluster, launch.block), ([20, 1, 1], 1, [384, 1, 1]));
        assert_eq!(launch.shared_bytes, 4 * ((128 + 64) * 128 + 16) + 2 * 64 * 128);
        assert_eq!(launch.entry, "sm90_conv2d_fprop_128x64");
        let matrix =
            |address, pitch, pixels| TensorMap::Matrix { address, dims: [136, 627], pitch, box_dims: [64, pixels] };
        assert_eq!(
            launch.maps,
            [
                TensorMap::Blocks { address: 0x200, dims: [128, 35, 136], box_dims: [64, 1, 128] },
                TensorMap::Blocks { address: 0x700, dims: [256, 1, 136], box_dims: [64, 1, 128] },
                TensorMap::Windows(Windows {
                    address: 0x100,
                    dims: [72, 40, 30, 3],
                    lower: [-1, -2],
                    upper: [32 - 36, 0],
                    strides: [2, 3],
                    channels: 64,
                    pixels: 64,
                }),
                TensorMap::Windows(Windows {
                    address: 0x600,
                    dims: [200, 55, 21, 3],
                    lower: [0, 0],
                    upper: [0, 0],
                    strides: [3, 2],
                    channels: 64,
                    pixels: 64,
                }),
                matrix(0x400, 136, 64),
                matrix(0x500, 200, 64),
            ]
        );
    }

    #[test]
    fn single_pixels_are_a_matrix_and_the_grid_is_no_larger_than_the_device() {
        let problem = ConvProblem {
            input: Shape::new(30, 40, 24),
            output: Shape::new(30, 40, 64),
            y_pitch: 64,
            window: Window::square(1, 1, 0),
            ..problem()
        };
        let tiling = Tiling { units: 7, ..tiling(64, 256) };
        let launch = launch(&problem, None, &tiling, &ConvPointers { residual: None, ..POINTERS }).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.source[0].by_windows, args.tiles, args.steps], [0, 15, 1]);
        assert_eq!(args.residual_values, 0);
        assert_eq!(launch.grid, [7, 1, 1]);
        assert_eq!(
            launch.maps[2],
            TensorMap::Matrix { address: 0x100, dims: [24, 3600], pitch: 24, box_dims: [64, 128] }
        );
    }

    #[test]
    fn clusters_share_tiles_one_each() {
        let tiling = Tiling { cluster: 4, units: 7, ..tiling(64, 32) };
        let launch = launch(&problem(), None, &tiling, &POINTERS).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.tiles, args.steps], [20 * 3, 70]);
        assert_eq!((launch.grid, launch.cluster), ([60 * 4, 1, 1], 4));
        assert_eq!(launch.shared_bytes, 8 * ((64 + 32) * 128 + 16) + 32 * 64 * 4 + 8);
    }

    #[test]
    fn pairs_have_an_even_number_of_channel_tiles_and_copy_half_of_the_pixels() {
        let problem = ConvProblem { output: Shape::new(11, 19, 264), y_pitch: 264, ..problem() };
        let tiling = Tiling { cluster: 2, units: 7, ..tiling(128, 128) };
        let launch = launch(&problem, None, &tiling, &POINTERS).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.tiles, args.channel_tiles], [5 * 4, 4]);
        assert_eq!((launch.grid, launch.cluster), ([6, 1, 1], 2));
        assert!(matches!(&launch.maps[2], TensorMap::Windows(Windows { pixels: 64, .. })));
    }

    #[test]
    fn two_pairs_share_their_tiles() {
        let problem = ConvProblem { output: Shape::new(11, 19, 264), y_pitch: 264, ..problem() };
        let tiling = Tiling { cluster: 4, units: 7, ..tiling(128, 144) };
        let launch = launch(&problem, None, &tiling, &POINTERS).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.tiles, args.channel_tiles, args.steps], [5 * 4, 4, 70]);
        assert_eq!((launch.grid, launch.cluster), ([5 * 4 * 2, 1, 1], 4));
        assert_eq!(launch.shared_bytes, 5 * ((128 + 144) * 128 + 16) + 144 * 64 * 4 + 8);
        assert!(matches!(&launch.maps[2], TensorMap::Windows(Windows { pixels: 72, .. })));
        assert!(matches!(&launch.maps[4], TensorMap::Matrix { box_dims: [64, 144], .. }));
        assert!(matches!(&launch.maps[5], TensorMap::Matrix { box_dims: [64, 48], .. }));
    }

    #[test]
    fn out_of_range_is_an_error() {
        let fine = tiling(128, 128);
        let wide = ConvProblem { window: Window { stride: [9, 2], ..problem().window }, ..problem() };
        assert!(matches!(launch(&wide, None, &fine, &POINTERS), Err(Error::Unsupported { .. })));
        let odd = tiling(96, 96);
        assert!(matches!(launch(&problem(), None, &odd, &POINTERS), Err(Error::Unsupported { .. })));
        let unknown = [(3, [64, 64]), (16, [64, 64]), (2, [64, 128]), (4, [128, 64]), (4, [128, 256]), (8, [128, 144])];
        for (cluster, tile) in unknown {
            let tiling = Tiling { cluster, ..tiling(tile[0], tile[1]) };
            assert!(matches!(launch(&problem(), None, &tiling, &POINTERS), Err(Error::Unsupported { .. })));
        }
        let shifted = ConvPointers { x: 0x108, ..POINTERS };
        assert!(matches!(launch(&problem(), None, &fine, &shifted), Err(Error::Option { option: "x", .. })));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_conv2d_fprop.cu");
        let line = |line: &str| -> (String, Vec<usize>) {
            let (name, list) = line.split_once(" = Sm90Tile<").expect("a tile");
            let numbers = list.trim_end_matches(">;").split(',').map(|n| n.trim().parse().expect("a number"));
            (name.trim_start_matches("using Tile").to_owned(), numbers.collect())
        };
        let lines: Vec<_> = source.lines().filter(|line| line.starts_with("using Tile")).map(line).collect();
        assert_eq!(lines.len(), Sm90Tile::ALL.len());
        for ((name, numbers), tile) in lines.into_iter().zip(Sm90Tile::ALL) {
            assert_eq!(name, tile.to_string());
            let p = tile.pipeline().unwrap();
            let expected = [p.slabs, p.parts, p.part_pixels, p.stages, p.chunk_pixels, p.chunks, p.blocks];
            assert_eq!(numbers, expected, "{name}");
        }
        assert_eq!(ENTRIES.map(|(tile, _)| tile), Sm90Tile::ALL);
    }
}
