//! Launches of `kernels/sm90_conv2d_chain.cu`.

use bytemuck::Zeroable;

use super::launch::{ArgBytes, FastDivide, Launch, activation_code, aligned, kernel_args, unsupported};
use crate::device::cuda::{TensorMap, Windows};
use crate::error::Error;
use crate::plan::{ChainLayout, ChainShape, ChainTile, ConvShape, Limits, check_sm90};
use crate::tensor::Activation;

kernel_args! {
    /// `Sm90ChainSource`.
    Sm90ChainSource, 16 bytes {
        steps: i32,
        stride_h: i32,
        stride_w: i32,
        by_windows: i32,
    }
}

kernel_args! {
    /// `Sm90ChainArgs`; the maps are encoded before the launch.
    Sm90ChainArgs, 1152 bytes {
        filter: [MapBytes; 2],
        x: [MapBytes; 2],
        next_filter: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        z: MapBytes,
        bias: u64,
        next_bias: u64,
        k_stored: i32,
        n_stored: i32,
        slabs: i32,
        tiles: i32,
        out_pixels: i32,
        out_width: i32,
        has_residual: i32,
        activation: i32,
        next_activation: i32,
        filter_stages: i32,
        x_buffers: i32,
        slots: i32,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        source: [Sm90ChainSource; 2],
        padding: [i32; 4],
    }
}

/// An encoded tensor map.
type MapBytes = [u64; 16];

/// The kernel for each tile and count of 64 channels of z.
pub(super) const ENTRIES: [(ChainTile, usize, &str); 7] = [
    (ChainTile { parts: 2, pixels: 64 }, 1, "sm90_conv2d_chain_2x64_1"),
    (ChainTile { parts: 2, pixels: 64 }, 2, "sm90_conv2d_chain_2x64_2"),
    (ChainTile { parts: 2, pixels: 64 }, 4, "sm90_conv2d_chain_2x64_4"),
    (ChainTile { parts: 2, pixels: 128 }, 1, "sm90_conv2d_chain_2x128_1"),
    (ChainTile { parts: 2, pixels: 128 }, 2, "sm90_conv2d_chain_2x128_2"),
    (ChainTile { parts: 1, pixels: 32 }, 1, "sm90_conv2d_chain_1x32_1"),
    (ChainTile { parts: 1, pixels: 32 }, 2, "sm90_conv2d_chain_1x32_2"),
];

/// Shared memory that a block may have on compute capability 9.0.
pub(super) const MOST_SHARED_BYTES: u32 = 227 * 1024;

/// Channels of a slab, and of a step of a sum.
const SLAB: usize = 64;

/// What is computed.
#[derive(Clone, Debug)]
pub(super) struct ChainProblem {
    /// The convolutions.
    pub shape: ChainShape,
    /// Of both results.
    pub activations: [Activation; 2],
}

/// Device addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainPointers {
    /// Of each source.
    pub x: [Option<u64>; 2],
    pub filter: [Option<u64>; 2],
    /// Of all sources together.
    pub bias: u64,
    pub residual: Option<u64>,
    pub y: u64,
    pub next_filter: u64,
    pub next_bias: u64,
    pub z: u64,
}

/// The launch of `problem`.
pub(super) fn launch(
    problem: &ChainProblem,
    tile: ChainTile,
    limits: &Limits,
    pointers: &ChainPointers,
) -> Result<Launch, Error> {
    let ChainProblem { shape, activations } = problem;
    shape.sources.iter().try_for_each(check_sm90)?;
    let layout = shape.layout(tile, limits).filter(|_| shape.fits());
    let entry = |layout: ChainLayout| {
        ENTRIES.iter().find(|(t, next, _)| (*t, *next) == (tile, layout.next_slabs)).map(|(.., name)| (layout, *name))
    };
    let Some((layout, entry)) = layout.and_then(entry) else {
        return Err(unsupported("sm90 chain tile", tile, "use one of ChainTile::ALL, with room for a block"));
    };
    let (output, pixels) = (shape.sources[0].output, shape.pixels());
    let tiles = pixels.div_ceil(tile.parts * tile.pixels);
    let [channels, next_channels] = [output.channels, shape.next_channels];
    let source = |conv: &ConvShape| Sm90ChainSource {
        steps: int(conv.steps()),
        stride_h: int(conv.window.stride[0]),
        stride_w: int(conv.window.stride[1]),
        by_windows: i32::from(!is_matrix(conv)),
    };
    let args = Sm90ChainArgs {
        bias: aligned("bias", pointers.bias, 16)?,
        next_bias: aligned("next_bias", pointers.next_bias, 16)?,
        k_stored: int(channels),
        n_stored: int(next_channels),
        slabs: int(channels.div_ceil(SLAB)),
        tiles: int(tiles),
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        has_residual: i32::from(pointers.residual.is_some()),
        activation: activation_code(activations[0]),
        next_activation: activation_code(activations[1]),
        filter_stages: int(layout.filter_stages),
        x_buffers: int(layout.x_buffers),
        slots: int(layout.slots),
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        source: [source(&shape.sources[0]), shape.sources.get(1).map_or(Zeroable::zeroed(), source)],
        ..Zeroable::zeroed()
    };
    let filter = |address: u64, c: usize, k: usize| -> Result<TensorMap, Error> {
        let dims = [c as u64, 1, k as u64];
        Ok(TensorMap::Blocks {
            address: aligned("filter", address, 16)?,
            dims,
            box_dims: [SLAB as u32, 1, SLAB as u32],
        })
    };
    let matrix = |name, address: u64, channels: usize| -> Result<TensorMap, Error> {
        let (dims, box_dims) = ([channels as u64, pixels as u64], [SLAB as u32, tile.pixels as u32]);
        Ok(TensorMap::Matrix { address: aligned(name, address, 16)?, dims, box_dims })
    };
    // Without a second source or residual their maps are there, and are not used.
    let mut maps = Vec::with_capacity(8);
    let both = [0, shape.sources.len() - 1];
    let address = |of: [Option<u64>; 2], index: usize| of[index].unwrap_or(0);
    for index in both {
        maps.push(filter(address(pointers.filter, index), shape.sources[index].input.channels, channels)?);
    }
    for index in both {
        let conv = &shape.sources[index];
        maps.push(x_map(conv, aligned("x", address(pointers.x, index), 16)?, tile.pixels));
    }
    maps.push(filter(pointers.next_filter, channels, next_channels)?);
    maps.push(matrix("residual", pointers.residual.unwrap_or(pointers.y), channels)?);
    maps.push(matrix("y", pointers.y, channels)?);
    maps.push(matrix("z", pointers.z, next_channels)?);
    Ok(Launch {
        entry,
        grid: [tiles.min(limits.units.max(1)) as u32, 1, 1],
        cluster: 1,
        block: [tile.threads() as u32, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// A value that `check_sm90` found to be small enough.
fn int(value: usize) -> i32 {
    value as i32
}

/// Whether every output pixel sees the input pixel of its own place.
fn is_matrix(conv: &ConvShape) -> bool {
    conv.window.stride == [1; 2]
}

/// The map of an input in columns of `pixels`.
fn x_map(conv: &ConvShape, address: u64, pixels: usize) -> TensorMap {
    let ConvShape { batch, input, window, .. } = *conv;
    if is_matrix(conv) {
        let dims = [input.channels as u64, (batch * input.pixels()) as u64];
        return TensorMap::Matrix { address, dims, box_dims: [SLAB as u32, pixels as u32] };
    }
    TensorMap::Windows(Windows {
        address,
        dims: [input.channels, input.width, input.height, batch].map(|value| value as u64),
        lower: [0; 2],
        upper: [0; 2],
        strides: [window.stride[1], window.stride[0]].map(|value| value as u32),
        channels: SLAB as u32,
        pixels: pixels as u32,
    })
}
