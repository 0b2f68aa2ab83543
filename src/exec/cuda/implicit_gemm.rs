//! The arguments of `kernels/implicit_gemm.cuh`.

use super::launch::{
    ArgBytes, CHUNK, FastDivide, INDEX_LIMIT, Launch, activation_code, aligned, chunks_of, in_range, kernel_args,
    pitch, product, unsupported,
};
use crate::error::Error;
use crate::model::Window;
use crate::plan::ConvTile;
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `ImplicitGemmArgs`.
    ImplicitGemmArgs, 152 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        residual: u64,
        y: u64,
        m_pixels: i32,
        out_pixels: i32,
        out_width: i32,
        height: i32,
        width: i32,
        c_chunks: i32,
        k_stored: i32,
        filter_h: i32,
        filter_w: i32,
        stride_h: i32,
        stride_w: i32,
        pad_top: i32,
        pad_left: i32,
        dilation_h: i32,
        dilation_w: i32,
        k_chunks: i32,
        step_r: i32,
        step_s: i32,
        step_c: i32,
        activation: i32,
        y_chunks: i32,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        by_n_tiles: FastDivide,
        reserved: i32,
    }
}

/// A product to compute; the channels of both shapes are the stored ones.
pub(super) struct GemmProblem {
    pub(super) batch: usize,
    pub(super) input: Shape,
    pub(super) output: Shape,
    pub(super) y_pitch: usize,
    pub(super) window: Window,
    pub(super) activation: Activation,
}

/// Device addresses; a residual of 0 means none.
pub(super) struct GemmPointers {
    pub(super) x: u64,
    pub(super) filter: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) y: u64,
}

/// Coordinates, image sizes and extents stay below this: the kernel packs two of them into a word.
const POSITION_LIMIT: usize = 1 << 14;

/// The launch of `entry`, compiled for `tile`.
pub(super) fn launch(
    entry: &'static str,
    tile: ConvTile,
    problem: &GemmProblem,
    pointers: &GemmPointers,
) -> Result<Launch, Error> {
    let pipeline = tile.pipeline().ok_or_else(|| unsupported("tile", tile, "one of ConvTile::ALL"))?;
    let GemmProblem { batch, input, output, y_pitch, window, activation } = *problem;
    let c_chunks = chunks_of("input channels", input.channels)?;
    chunks_of("output channels", output.channels)?;
    check_extents(problem, c_chunks)?;

    let m_pixels = product("output pixels", &[batch, output.height, output.width])?;
    let [filter_h, filter_w] = window.size;
    let k_chunks = filter_h * filter_w * c_chunks;
    product("filter chunks", &[output.channels + tile.n, k_chunks])?;
    in_range("output pixels", m_pixels as usize + tile.m, 1, INDEX_LIMIT)?;
    let n_tiles = output.channels.div_ceil(tile.n);
    let blocks = product("blocks", &[(m_pixels as usize).div_ceil(tile.m), n_tiles])?;

    // The step from one k tile to the next, as a number with the digits r, s, c.
    let step = pipeline.k / CHUNK;
    let [step_r, step_s, step_c] = [step / c_chunks / filter_w, step / c_chunks % filter_w, step % c_chunks];
    let int = |value: usize| value as i32; // all checked above
    let args = ImplicitGemmArgs {
        x: aligned("x", pointers.x, 16)?,
        filter: aligned("filter", pointers.filter, 16)?,
        bias: aligned("bias", pointers.bias, 16)?,
        residual: if pointers.residual == 0 { 0 } else { aligned("residual", pointers.residual, 16)? },
        y: aligned("y", pointers.y, 16)?,
        m_pixels: m_pixels as i32,
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        height: int(input.height),
        width: int(input.width),
        c_chunks: int(c_chunks),
        k_stored: int(output.channels),
        filter_h: int(filter_h),
        filter_w: int(filter_w),
        stride_h: int(window.stride[0]),
        stride_w: int(window.stride[1]),
        pad_top: int(window.pad.top),
        pad_left: int(window.pad.left),
        dilation_h: int(window.dilation[0]),
        dilation_w: int(window.dilation[1]),
        k_chunks: int(k_chunks),
        step_r: int(step_r),
        step_s: int(step_s),
        step_c: int(step_c),
        activation: activation_code(activation)?,
        y_chunks: pitch(y_pitch, output.channels)? / CHUNK as i32,
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        by_n_tiles: FastDivide::by(n_tiles as u32),
        reserved: 0,
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [blocks, 1, 1],
        cluster: 1,
        block: [pipeline.threads as u32, 1, 1],
        shared_bytes: pipeline.shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: false,
    })
}

/// Checks the limits of everything about positions and chunk indices of the input.
fn check_extents(problem: &GemmProblem, c_chunks: usize) -> Result<(), Error> {
    let GemmProblem { batch, input, output, window, .. } = *problem;
    let axes = [
        ("height", input.height, output.height, 0, window.pad.top),
        ("width", input.width, output.width, 1, window.pad.left),
    ];
    let mut reach = [0; 2];
    for (what, size, out_size, axis, pad) in axes {
        let [taps, stride, dilation] = [window.size[axis], window.stride[axis], window.dilation[axis]];
        for (name, value) in [("size", size), ("window", taps), ("stride", stride), ("dilation", dilation)] {
            in_range(&format!("{what}: {name}"), value, 1, POSITION_LIMIT)?;
        }
        in_range(&format!("{what}: padding"), pad, 0, POSITION_LIMIT)?;
        in_range(&format!("{what}: output size"), out_size, 1, INDEX_LIMIT)?;
        // The last tap of the last output, and a k tile's overshoot of up to eight taps.
        in_range(&format!("{what}: window extent"), (taps + 8) * dilation, 1, POSITION_LIMIT)?;
        reach[axis] = (out_size - 1).saturating_mul(stride) + (taps + 8) * dilation;
        in_range(&format!("{what}: reach"), reach[axis], 1, POSITION_LIMIT)?;
    }
    product(
        "input chunks",
        &[batch.saturating_mul(input.height).saturating_add(reach[0]), input.width + reach[1], c_chunks],
    )?;
    Ok(())
}
