//! Launches of `kernels/sm90_conv2d_fprop.cu`.

use super::conv2d_fprop::{ConvPointers, ConvProblem};
use super::launch::{ArgBytes, FastDivide, Launch, activation_code, aligned, kernel_args, unsupported};
use crate::device::cuda::{TensorMap, Windows};
use crate::error::Error;
use crate::plan::{ConvShape, Sm90Tile, check_sm90};

kernel_args! {
    /// `Sm90ConvArgs`; the maps are encoded before the launch.
    Sm90ConvArgs, 640 bytes {
        filter: MapBytes,
        x: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        k_stored: i32,
        tiles: i32,
        channel_tiles: i32,
        out_pixels: i32,
        out_width: i32,
        filter_h: i32,
        filter_w: i32,
        c_steps: i32,
        stride_h: i32,
        stride_w: i32,
        pad_top: i32,
        pad_left: i32,
        dilation_h: i32,
        dilation_w: i32,
        activation: i32,
        x_by_windows: i32,
        has_residual: i32,
        reserved: i32,
        by_channel_tiles: FastDivide,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        padding: [i32; 6],
    }
}

/// An encoded tensor map.
type MapBytes = [u64; 16];

/// The kernel for each tile.
pub(super) const ENTRIES: [(Sm90Tile, &str); Sm90Tile::ALL.len()] = [
    (Sm90Tile { channels: 128, pixels: 256 }, "sm90_conv2d_fprop_128x256"),
    (Sm90Tile { channels: 128, pixels: 192 }, "sm90_conv2d_fprop_128x192"),
    (Sm90Tile { channels: 128, pixels: 128 }, "sm90_conv2d_fprop_128x128"),
    (Sm90Tile { channels: 128, pixels: 64 }, "sm90_conv2d_fprop_128x64"),
    (Sm90Tile { channels: 64, pixels: 256 }, "sm90_conv2d_fprop_64x256"),
    (Sm90Tile { channels: 64, pixels: 128 }, "sm90_conv2d_fprop_64x128"),
    (Sm90Tile { channels: 64, pixels: 64 }, "sm90_conv2d_fprop_64x64"),
    (Sm90Tile { channels: 64, pixels: 32 }, "sm90_conv2d_fprop_64x32"),
];

/// Channels of one stage.
const STEP_CHANNELS: usize = 64;

/// The launch of `problem` in tiles of `tile`, on a device of `units` multiprocessors.
pub(crate) fn launch(
    problem: &ConvProblem,
    tile: Sm90Tile,
    units: usize,
    pointers: &ConvPointers,
) -> Result<Launch, Error> {
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, entry)| *entry);
    let (Some(entry), Some(pipeline)) = (entry, tile.pipeline()) else {
        return Err(unsupported("sm90 tile", tile, "use one of Sm90Tile::ALL"));
    };
    let ConvProblem { batch, input, output, window, activation } = *problem;
    check_sm90(&ConvShape { batch, input, output, window })?;
    let pixels = batch * output.pixels();
    let channel_tiles = output.channels.div_ceil(tile.channels);
    let tiles = pixels.div_ceil(tile.pixels) * channel_tiles;
    let x_by_windows = !is_matrix(problem);
    let int = |value: usize| value as i32; // all checked above
    let args = Sm90ConvArgs {
        bias: aligned("bias", pointers.bias, 16)?,
        k_stored: int(output.channels),
        tiles: int(tiles),
        channel_tiles: int(channel_tiles),
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        filter_h: int(window.size[0]),
        filter_w: int(window.size[1]),
        c_steps: int(input.channels.div_ceil(STEP_CHANNELS)),
        stride_h: int(window.stride[0]),
        stride_w: int(window.stride[1]),
        pad_top: int(window.pad.top),
        pad_left: int(window.pad.left),
        dilation_h: int(window.dilation[0]),
        dilation_w: int(window.dilation[1]),
        activation: activation_code(activation),
        x_by_windows: i32::from(x_by_windows),
        has_residual: i32::from(pointers.residual.is_some()),
        by_channel_tiles: FastDivide::by(channel_tiles as u32),
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        ..bytemuck::Zeroable::zeroed()
    };

    let channels = STEP_CHANNELS as u32;
    let [c, k, m] = [input.channels, output.channels, pixels].map(|value| value as u64);
    let x = aligned("x", pointers.x, 16)?;
    let outputs =
        |address: u64, pixels: usize| TensorMap::Matrix { address, dims: [k, m], box_dims: [channels, pixels as u32] };
    let y = aligned("y", pointers.y, 16)?;
    let filter = TensorMap::Blocks {
        address: aligned("filter", pointers.filter, 16)?,
        dims: [c, window.size.iter().product::<usize>() as u64, k],
        box_dims: [channels, 1, tile.channels as u32],
    };
    let x = if x_by_windows {
        TensorMap::Windows(windows(problem, x, pipeline.part_pixels))
    } else {
        TensorMap::Matrix { address: x, dims: [c, m], box_dims: [channels, pipeline.part_pixels as u32] }
    };
    // Without a residual its map is there, and is not used.
    let residual = aligned("residual", pointers.residual.unwrap_or(y), 16)?;
    let residual = outputs(residual, pipeline.part_pixels);
    Ok(Launch {
        entry,
        grid: [tiles.min(units * pipeline.blocks) as u32, 1, 1],
        block: [pipeline.threads() as u32, 1, 1],
        shared_bytes: pipeline.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps: vec![filter, x, residual, outputs(y, pipeline.chunk_pixels)],
        waits_itself: true,
    })
}

/// Whether every output pixel sees just the input pixel of its own place.
fn is_matrix(problem: &ConvProblem) -> bool {
    let ConvProblem { input, output, window, .. } = problem;
    window.size == [1; 2]
        && window.stride == [1; 2]
        && [window.pad.top, window.pad.left] == [0; 2]
        && [input.height, input.width] == [output.height, output.width]
}

fn windows(problem: &ConvProblem, address: u64, pixels: usize) -> Windows {
    let ConvProblem { batch, input, window, .. } = problem;
    let corner = |pad: usize| pad as i32; // checked to be small
    let reach = |axis: usize| ((window.size[axis] - 1) * window.dilation[axis]) as i32;
    Windows {
        address,
        dims: [input.channels, input.width, input.height, *batch].map(|value| value as u64),
        lower: [-corner(window.pad.left), -corner(window.pad.top)],
        upper: [corner(window.pad.right) - reach(1), corner(window.pad.bottom) - reach(0)],
        strides: [window.stride[1], window.stride[0]].map(|value| value as u32),
        channels: STEP_CHANNELS as u32,
        pixels: pixels as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pad, Window};
    use crate::tensor::{Activation, Shape};

    const POINTERS: ConvPointers =
        ConvPointers { x: 0x100, filter: 0x200, bias: 0x300, residual: Some(0x400), y: 0x500 };

    fn problem() -> ConvProblem {
        let pad = Pad { top: 2, left: 1, bottom: 16, right: 32 };
        ConvProblem {
            batch: 3,
            input: Shape::new(30, 40, 72),
            output: Shape::new(11, 19, 136),
            window: Window { size: [5, 7], stride: [3, 2], pad, dilation: [4, 6] },
            activation: Activation::Relu6,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), Sm90Tile { channels: 128, pixels: 64 }, 132, &POINTERS).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.bias, args.k_stored as u64], [0x300, 136]);
        assert_eq!([args.tiles, args.channel_tiles], [20, 2]);
        assert_eq!([args.out_pixels, args.out_width, args.filter_h, args.filter_w], [209, 19, 5, 7]);
        assert_eq!([args.c_steps, args.stride_h, args.stride_w], [2, 3, 2]);
        assert_eq!([args.pad_top, args.pad_left, args.dilation_h, args.dilation_w], [2, 1, 4, 6]);
        assert_eq!([args.activation, args.x_by_windows, args.has_residual], [2, 1, 1]);
        assert_eq!(args.by_channel_tiles.divide(19), 9);
        assert_eq!(args.by_out_pixels.divide(627), 3);
        assert_eq!(args.by_out_width.divide(208), 10);
        assert_eq!((launch.grid, launch.block), ([20, 1, 1], [384, 1, 1]));
        assert_eq!(launch.shared_bytes, 4 * ((128 + 64) * 128 + 16) + 2 * 64 * 128);
        assert_eq!(launch.entry, "sm90_conv2d_fprop_128x64");
        let matrix = |address, pixels| TensorMap::Matrix { address, dims: [136, 627], box_dims: [64, pixels] };
        assert_eq!(
            launch.maps,
            [
                TensorMap::Blocks { address: 0x200, dims: [72, 35, 136], box_dims: [64, 1, 128] },
                TensorMap::Windows(Windows {
                    address: 0x100,
                    dims: [72, 40, 30, 3],
                    lower: [-1, -2],
                    upper: [32 - 36, 0],
                    strides: [2, 3],
                    channels: 64,
                    pixels: 64,
                }),
                matrix(0x400, 64),
                matrix(0x500, 64),
            ]
        );
    }

    #[test]
    fn single_pixels_are_a_matrix_and_the_grid_is_no_larger_than_the_device() {
        let problem = ConvProblem {
            input: Shape::new(30, 40, 24),
            output: Shape::new(30, 40, 64),
            window: Window::square(1, 1, 0),
            ..problem()
        };
        let tile = Sm90Tile { channels: 64, pixels: 256 };
        let launch = launch(&problem, tile, 7, &ConvPointers { residual: None, ..POINTERS }).unwrap();
        let args: Sm90ConvArgs = launch.args.read();
        assert_eq!([args.x_by_windows, args.has_residual, args.tiles], [0, 0, 15]);
        assert_eq!(launch.grid, [7, 1, 1]);
        assert_eq!(launch.maps[1], TensorMap::Matrix { address: 0x100, dims: [24, 3600], box_dims: [64, 128] });
    }

    #[test]
    fn out_of_range_is_an_error() {
        let tile = Sm90Tile { channels: 128, pixels: 128 };
        let wide = ConvProblem { window: Window { stride: [9, 2], ..problem().window }, ..problem() };
        assert!(matches!(launch(&wide, tile, 132, &POINTERS), Err(Error::Unsupported { .. })));
        let odd = Sm90Tile { channels: 96, pixels: 96 };
        assert!(matches!(launch(&problem(), odd, 132, &POINTERS), Err(Error::Unsupported { .. })));
        let shifted = ConvPointers { x: 0x108, ..POINTERS };
        assert!(matches!(launch(&problem(), tile, 132, &shifted), Err(Error::Option { option: "x", .. })));
    }
}
