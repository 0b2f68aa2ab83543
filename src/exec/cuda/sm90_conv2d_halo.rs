//! Launches of `kernels/sm90_conv2d_halo.cu`.

use bytemuck::Zeroable;

use super::conv2d_fprop::{ConvPointers, ConvProblem};
#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, aligned, kernel_args, pitch, product, unsupported,
};
use super::sm90_conv2d_fprop::{MapBytes, applied, backward_from, int};
use super::steps::Operands;
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::kernels::{ConvShape, HALO_CHANNELS, HALO_PARTS, HALO_STORED, HaloTile};
use crate::plan::{Limits, StepOp};
use crate::tensor::Shape;

kernel_args! {
    /// `Sm90HaloArgs`; the maps are encoded before the launch.
    Sm90HaloArgs, 640 bytes {
        filter: MapBytes,
        x: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        k_stored: i32,
        has_residual: i32,
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
        activation: i32,
        backward_from: i32,
        by_channel_tiles: FastDivide,
        by_column_tiles: FastDivide,
        by_row_tiles: FastDivide,
        by_line: FastDivide,
        padding: [i32; 8],
    }
}

/// Hopper convolutions by 3x3 windows of few channels.
pub(super) struct Sm90Conv2dHalo;

impl Launcher for Sm90Conv2dHalo {
    fn name(&self) -> &'static str {
        "sm90_conv2d_halo"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let (threads, shared_bytes) = (THREADS, SM90_SHARED_BYTES);
        let with = |names: [&'static str; 2]| {
            let of = |(module, name)| EntryPoint { module, name, threads, shared_bytes, cluster: 1 };
            MODULES.into_iter().zip(names).map(of)
        };
        ENTRIES.into_iter().flat_map(|(_, names)| with(names)).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Conv(conv) = step.op() else { return Err(step.wrong_kernel()) };
        let (_, residual, _) = step.pointers();
        launch(&ConvProblem::of(step, conv), step.backward, step.limits(), &ConvPointers::of(step, residual))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90HaloArgs>("sm90_conv2d_halo.cu", "Sm90HaloArgs", Sm90HaloArgs::FIELDS)]
    }
}

/// The modules of activations that clamp, and of SiLU.
const MODULES: [&str; 2] = ["sm90_conv2d_halo", "sm90_conv2d_halo_silu"];

/// The kernels of both modules, by the channels of a pixel that lie in shared memory.
const ENTRIES: [(usize, [&str; 2]); HALO_STORED.len()] = [
    (16, ["sm90_conv2d_halo_16", "sm90_conv2d_halo_16_silu"]),
    (32, ["sm90_conv2d_halo_32", "sm90_conv2d_halo_32_silu"]),
    (64, ["sm90_conv2d_halo_64", "sm90_conv2d_halo_64_silu"]),
];

/// The kernel of a tile with an activation that clamps (0) or SiLU (1).
fn name(tile: HaloTile, of_activation: usize) -> &'static str {
    let of_tile = ENTRIES.iter().find(|(stored, _)| 2 * stored == tile.row_bytes);
    of_tile.expect("every tile of halves has its kernels").1[of_activation]
}

/// Threads of a block: a warpgroup that copies, and the warpgroups that multiply.
pub(super) const THREADS: u32 = 128 * (1 + HALO_PARTS as u32);

/// The launch of `problem` on a device with these limits. If `backward`, the last pixels are computed first.
pub(crate) fn launch(
    problem: &ConvProblem,
    backward: bool,
    limits: &Limits,
    pointers: &ConvPointers,
) -> Result<Launch, Error> {
    let ConvProblem { batch, input, output, y_pitch, window, activation } = *problem;
    let (of_activation, activation) = applied(activation)?;
    let ConvPointers { x, filter, bias, residual, y } = *pointers;
    let shape = ConvShape { batch, input, output, window };
    let Some(tile) = HaloTile::of(&shape, limits) else {
        let takes = "the kernel takes 3x3 windows at stride 1 of at most 64 channels, on compute capability 9.0";
        return Err(unsupported("convolution", format!("{input} by {:?}", window.size), takes));
    };
    let [row_tiles, column_tiles] = tile.tiles(&shape);
    let HaloGrid { pixel_tiles, channel_tiles, tiles, blocks } = HaloGrid::of(tile, &shape, limits)?;
    let args = Sm90HaloArgs {
        bias: aligned("bias", bias, 16)?,
        k_stored: int(output.channels),
        has_residual: i32::from(residual.is_some()),
        rows: int(tile.rows),
        columns: int(tile.columns),
        line: int(tile.line()),
        band_bytes: int(tile.band_bytes()),
        tiles,
        channel_tiles: int(channel_tiles),
        column_tiles: int(column_tiles),
        row_tiles: int(row_tiles),
        pad_top: int(window.pad.top),
        pad_left: int(window.pad.left),
        activation,
        backward_from: backward_from(backward, pixel_tiles),
        by_channel_tiles: FastDivide::by(channel_tiles as u32),
        by_column_tiles: FastDivide::by(column_tiles as u32),
        by_row_tiles: FastDivide::by(row_tiles as u32),
        by_line: FastDivide::by(tile.line() as u32),
        ..Zeroable::zeroed()
    };
    let y_pitch = pitch(y_pitch, output.channels)? as usize;
    let maps = maps(tile, &shape, HaloPointers { x, filter, residual, y }, y_pitch)?;
    Ok(Launch {
        entry: name(tile, of_activation).into(),
        grid: [blocks, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: tile.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// The tiles and blocks of a launch.
pub(super) struct HaloGrid {
    pub(super) pixel_tiles: usize,
    pub(super) channel_tiles: usize,
    pub(super) tiles: i32,
    pub(super) blocks: u32,
}

impl HaloGrid {
    pub(super) fn of(tile: HaloTile, shape: &ConvShape, limits: &Limits) -> Result<Self, Error> {
        let channel_tiles = shape.output.channels.div_ceil(HALO_CHANNELS);
        let pixel_tiles = tile.count(shape);
        let tiles = product("tiles", &[pixel_tiles, channel_tiles])? as i32;
        // All tiles of a block have the same channels.
        let blocks = ((limits.units / channel_tiles).clamp(1, pixel_tiles) * channel_tiles) as u32;
        Ok(Self { pixel_tiles, channel_tiles, tiles, blocks })
    }
}

/// Addresses of the operands that have maps.
pub(super) struct HaloPointers {
    pub(super) x: u64,
    pub(super) filter: u64,
    pub(super) residual: Option<u64>,
    pub(super) y: u64,
}

/// The maps of filter, x, residual and y, whose pixels are `y_pitch` channels apart. Operands of bytes are mapped as
/// pairs of bytes.
pub(super) fn maps(
    tile: HaloTile,
    shape: &ConvShape,
    pointers: HaloPointers,
    y_pitch: usize,
) -> Result<Vec<TensorMap>, Error> {
    let ConvShape { batch, input, output, window } = *shape;
    let HaloPointers { x, filter, residual, y } = pointers;
    let halves = |channels: usize| if tile.is_of_bytes() { channels / 2 } else { channels } as u64;
    let (row, result) = (tile.row_bytes as u32 / 2, halves(HALO_CHANNELS) as u32);
    let image = |address, of: Shape, pitch: usize, [row, width, height]: [u32; 3]| TensorMap::Images {
        address,
        dims: [halves(of.channels), of.width as u64, of.height as u64, batch as u64],
        pitch: halves(pitch),
        box_dims: [row, width, height, 1],
        swizzle: Swizzle::of_width(row),
    };
    let y = aligned("y", y, 16)?;
    // Without a residual its map is still encoded; the kernel does not use it.
    let residual = aligned("residual", residual.unwrap_or(y), 16)?;
    let of_part = [result, tile.columns as u32, tile.rows as u32];
    let band = [row, tile.line() as u32, tile.band_rows() as u32];
    Ok(vec![
        TensorMap::Blocks {
            address: aligned("filter", filter, 16)?,
            dims: [halves(input.channels), window.size.iter().product::<usize>() as u64, output.channels as u64],
            box_dims: [row, 1, HALO_CHANNELS as u32],
        },
        image(aligned("x", x, 16)?, input, input.channels, band),
        image(residual, output, output.channels, of_part),
        image(y, output, y_pitch, of_part),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pad, Window};
    use crate::tensor::Activation;

    const POINTERS: ConvPointers =
        ConvPointers { x: 0x100, filter: 0x200, bias: 0x300, residual: Some(0x400), y: 0x500 };

    fn problem() -> ConvProblem {
        let pad = Pad { top: 2, left: 0, bottom: 1, right: 3 };
        ConvProblem {
            batch: 5,
            input: Shape::new(30, 140, 40),
            output: Shape::new(31, 141, 136),
            y_pitch: 200,
            window: Window { pad, ..Window::square(3, 1, 0) },
            activation: Activation::Relu6,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), true, &Limits::h200(), &POINTERS).unwrap();
        let args: Sm90HaloArgs = launch.args.read();
        assert_eq!([args.bias, args.k_stored as u64, args.has_residual as u64], [0x300, 136, 1]);
        // Three tiles across, of two rows a part.
        assert_eq!([args.rows, args.columns, args.line, args.band_bytes], [2, 47, 49, 40 << 10]);
        assert_eq!([args.channel_tiles, args.column_tiles, args.row_tiles], [3, 3, 8]);
        assert_eq!([args.tiles, args.backward_from], [3 * 3 * 8 * 5, 3 * 8 * 5 - 1]);
        assert_eq!([args.pad_top, args.pad_left, args.activation], [2, 0, 2]);
        assert_eq!([args.by_channel_tiles, args.by_column_tiles].map(|by| by.divide(359)), [119; 2]);
        assert_eq!([args.by_row_tiles.divide(359), args.by_line.divide(119)], [44, 2]);
        assert_eq!((&*launch.entry, launch.grid, launch.block), ("sm90_conv2d_halo_64", [132, 1, 1], [384, 1, 1]));
        assert_eq!(launch.shared_bytes, 9 * 8192 + 4 * 16384 + 2 * (40 << 10) + 72);
        let image = |address, dims, pitch, [width, height]: [u32; 2]| TensorMap::Images {
            address,
            dims,
            pitch,
            box_dims: [64, width, height, 1],
            swizzle: Swizzle::Rows128,
        };
        assert_eq!(
            launch.maps,
            [
                TensorMap::Blocks { address: 0x200, dims: [40, 9, 136], box_dims: [64, 1, 64] },
                image(0x100, [40, 140, 30, 5], 40, [49, 6]),
                image(0x400, [136, 141, 31, 5], 136, [47, 2]),
                image(0x500, [136, 141, 31, 5], 200, [47, 2]),
            ]
        );
    }

    #[test]
    fn few_tiles_are_a_block_each() {
        let problem = ConvProblem { batch: 1, ..problem() };
        let launch = launch(&problem, false, &Limits::h200(), &ConvPointers { residual: None, ..POINTERS }).unwrap();
        let args: Sm90HaloArgs = launch.args.read();
        assert_eq!((launch.grid, args.tiles), ([72, 1, 1], 72));
        assert_eq!([args.has_residual, args.backward_from], [0, -1]);
    }

    #[test]
    fn what_the_kernel_does_not_do_is_an_error() {
        let refused = |problem: ConvProblem| launch(&problem, false, &Limits::h200(), &POINTERS).unwrap_err();
        let wide = ConvProblem { input: Shape::new(30, 140, 72), ..problem() };
        assert!(matches!(refused(wide), Error::Unsupported { .. }));
        let window = Window { dilation: [2, 1], ..problem().window };
        assert!(matches!(refused(ConvProblem { window, ..problem() }), Error::Unsupported { .. }));
        let shifted = ConvPointers { x: 0x108, ..POINTERS };
        let error = launch(&problem(), false, &Limits::h200(), &shifted).unwrap_err();
        assert!(matches!(error, Error::Option { option: "x", .. }));
    }
}
