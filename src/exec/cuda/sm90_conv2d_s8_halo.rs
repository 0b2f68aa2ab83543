//! Launches of `kernels/sm90_conv2d_s8_halo.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, aligned, kernel_args, unsupported};
use super::sm90_conv2d_fprop::{MapBytes, backward_from, int};
use super::sm90_conv2d_halo::{HaloGrid, HaloPointers, THREADS, maps};
use super::sm90_conv2d_s8::S8Problem;
use super::sm90_requantise::S8Output;
use super::steps::Operands;
use crate::error::Error;
use crate::plan::Limits;
use crate::plan::kernels::HaloTile;

kernel_args! {
    /// `Sm90S8HaloArgs`; the maps are encoded before the launch.
    Sm90S8HaloArgs, 640 bytes {
        filter: MapBytes,
        x: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        scale: u64,
        k_stored: i32,
        rows: i32,
        columns: i32,
        line: i32,
        band_bytes: i32,
        tiles: i32,
        channel_tiles: i32,
        column_tiles: i32,
        row_tiles: i32,
        pad_top: i32,
        pad_left: i32,
        backward_from: i32,
        by_channel_tiles: FastDivide,
        by_column_tiles: FastDivide,
        by_row_tiles: FastDivide,
        by_line: FastDivide,
        output: S8Output,
        padding: [i32; 2],
    }
}

/// The kernels by the channels of a pixel in shared memory, in the order of [`S8Problem::way`].
const ENTRIES: [(usize, [&str; 4]); 2] = [
    (
        64,
        [
            "sm90_conv2d_u8_halo_64",
            "sm90_conv2d_u8_add_halo_64",
            "sm90_conv2d_s8_halo_64",
            "sm90_conv2d_s8_add_halo_64",
        ],
    ),
    (
        128,
        [
            "sm90_conv2d_u8_halo_128",
            "sm90_conv2d_u8_add_halo_128",
            "sm90_conv2d_s8_halo_128",
            "sm90_conv2d_s8_add_halo_128",
        ],
    ),
];

/// Hopper convolutions of bytes by 3x3 windows of few channels.
pub(super) struct Sm90Conv2dS8Halo;

impl Launcher for Sm90Conv2dS8Halo {
    fn name(&self) -> &'static str {
        "sm90_conv2d_s8_halo"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let (threads, shared_bytes) = (THREADS, SM90_SHARED_BYTES);
        let of = |name| EntryPoint { module: "sm90_conv2d_s8_halo", name, threads, shared_bytes, cluster: 1 };
        ENTRIES.into_iter().flat_map(|(_, names)| names).map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        launch(&S8Problem::of(step)?, step.limits())
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90S8HaloArgs>("sm90_conv2d_s8_halo.cu", "Sm90S8HaloArgs", Sm90S8HaloArgs::FIELDS)]
    }
}

/// The kernel of a tile for one of [`S8Problem::way`].
fn name(tile: HaloTile, way: usize) -> &'static str {
    let of_tile = ENTRIES.iter().find(|(stored, _)| *stored == tile.stored());
    of_tile.expect("every tile of bytes has its kernels").1[way]
}

/// The launch of `problem` on a device with these limits.
pub(crate) fn launch(problem: &S8Problem, limits: &Limits) -> Result<Launch, Error> {
    let S8Problem { conv, x, filter, residual, y, .. } = *problem;
    conv.check()?;
    let shape = conv.shape();
    let tile = HaloTile::of_bytes(&shape, limits).filter(|_| problem.second.is_none());
    let Some(tile) = tile else {
        let takes = "the kernel takes one 3x3 window at stride 1 of at most 128 channels, on compute capability 9.0";
        return Err(unsupported("convolution of bytes", format!("{} by {:?}", conv.input, conv.window.size), takes));
    };
    let [row_tiles, column_tiles] = tile.tiles(&shape);
    let HaloGrid { pixel_tiles, channel_tiles, tiles, blocks } = HaloGrid::of(tile, &shape, limits)?;
    let args = Sm90S8HaloArgs {
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        k_stored: int(conv.output.channels),
        rows: int(tile.rows),
        columns: int(tile.columns),
        line: int(tile.line()),
        band_bytes: int(tile.band_bytes()),
        tiles,
        channel_tiles: int(channel_tiles),
        column_tiles: int(column_tiles),
        row_tiles: int(row_tiles),
        pad_top: int(conv.window.pad.top),
        pad_left: int(conv.window.pad.left),
        backward_from: backward_from(problem.backward, pixel_tiles),
        by_channel_tiles: FastDivide::by(channel_tiles as u32),
        by_column_tiles: FastDivide::by(column_tiles as u32),
        by_row_tiles: FastDivide::by(row_tiles as u32),
        by_line: FastDivide::by(tile.line() as u32),
        output: S8Output::of(residual, problem.y_signed, problem.relu)?,
        ..Zeroable::zeroed()
    };
    let pointers = HaloPointers { x, filter, residual: residual.map(|residual| residual.address), y };
    Ok(Launch {
        entry: name(tile, problem.way()).into(),
        grid: [blocks, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: tile.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps: maps(tile, &shape, pointers, conv.output.channels)?,
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sm90_conv2d_s8::{S8Second, tests::problem};
    use super::*;
    use crate::device::cuda::{Swizzle, TensorMap};
    use crate::model::{Pad, Window};
    use crate::plan::S8Conv;
    use crate::tensor::Shape;

    fn of_channels(channels: usize) -> S8Problem {
        let pad = Pad { top: 2, left: 0, bottom: 1, right: 3 };
        let conv = S8Conv {
            batch: 5,
            input: Shape::new(30, 140, channels),
            output: Shape::new(31, 141, 144),
            window: Window { pad, ..Window::square(3, 1, 0) },
        };
        S8Problem { conv, ..problem() }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let backward = S8Problem { backward: true, ..of_channels(48) };
        let launch = launch(&backward, &Limits::h200()).unwrap();
        let args: Sm90S8HaloArgs = launch.args.read();
        assert_eq!([args.bias, args.scale, args.k_stored as u64], [0x300, 0x400, 144]);
        // Two tiles across, of three rows a part.
        assert_eq!([args.rows, args.columns, args.line, args.band_bytes], [3, 71, 73, 38 << 10]);
        assert_eq!([args.channel_tiles, args.column_tiles, args.row_tiles], [3, 2, 6]);
        assert_eq!([args.tiles, args.backward_from], [3 * 2 * 6 * 5, 2 * 6 * 5 - 1]);
        assert_eq!([args.pad_top, args.pad_left], [2, 0]);
        assert_eq!([args.by_channel_tiles, args.by_column_tiles].map(|by| by.divide(179)), [59, 89]);
        assert_eq!([args.by_row_tiles.divide(179), args.by_line.divide(239)], [29, 3]);
        assert_eq!(args.output, S8Output::of(problem().residual, true, false).unwrap());
        assert_eq!(
            (&*launch.entry, launch.grid, launch.block),
            ("sm90_conv2d_u8_add_halo_64", [132, 1, 1], [384, 1, 1])
        );
        assert_eq!(launch.shared_bytes, 9 * 4096 + 4 * 16384 + 2 * (38 << 10) + 72);
        let image = |address, dims, pitch, [width, height]: [u32; 2]| TensorMap::Images {
            address,
            dims,
            pitch,
            box_dims: [32, width, height, 1],
            swizzle: Swizzle::Rows64,
        };
        assert_eq!(
            launch.maps,
            [
                TensorMap::Blocks { address: 0x200, dims: [24, 9, 144], box_dims: [32, 1, 64] },
                image(0x100, [24, 140, 30, 5], 24, [73, 8]),
                image(0x500, [72, 141, 31, 5], 72, [71, 3]),
                image(0x600, [72, 141, 31, 5], 72, [71, 3]),
            ]
        );
    }

    /// Of more than 64 channels a part has fewer pixels, and one place for results.
    #[test]
    fn pixels_of_128_channels_have_their_own_kernels() {
        let launch = launch(&of_channels(112), &Limits::h200()).unwrap();
        let args: Sm90S8HaloArgs = launch.args.read();
        // Six tiles across, of eight rows a part.
        assert_eq!([args.rows, args.columns, args.line, args.band_bytes], [8, 24, 26, 59 << 10]);
        assert_eq!([args.channel_tiles, args.column_tiles, args.row_tiles], [3, 6, 2]);
        assert_eq!((&*launch.entry, launch.grid), ("sm90_conv2d_u8_add_halo_128", [132, 1, 1]));
        assert_eq!(launch.shared_bytes, 9 * 8192 + 2 * 16384 + 2 * (59 << 10) + 56);
        let [filter, x, residual, _] = &launch.maps[..] else { panic!("four maps") };
        assert_eq!(*filter, TensorMap::Blocks { address: 0x200, dims: [56, 9, 144], box_dims: [64, 1, 64] });
        let boxes = |map: &TensorMap| match map {
            TensorMap::Images { box_dims, swizzle, .. } => (*box_dims, *swizzle),
            other => panic!("{other:?}"),
        };
        assert_eq!(boxes(x), ([64, 26, 18, 1], Swizzle::Rows128));
        assert_eq!(boxes(residual), ([32, 24, 8, 1], Swizzle::Rows64));
    }

    #[test]
    fn what_the_kernel_does_not_do_is_an_error() {
        let refused = |problem: S8Problem| launch(&problem, &Limits::h200()).unwrap_err();
        assert!(matches!(refused(problem()), Error::Unsupported { .. }));
        let few = of_channels(48);
        let second = Some(S8Second { conv: few.conv, x: 0x700, filter: 0x800 });
        assert!(matches!(refused(S8Problem { second, ..few }), Error::Unsupported { .. }));
        let shifted = refused(S8Problem { x: 0x108, ..of_channels(48) });
        assert!(matches!(shifted, Error::Option { option: "x", .. }));
    }
}
