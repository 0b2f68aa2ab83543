//! What the arguments of the kernels of `kernels/implicit_gemm.cuh` have in common.

use super::launch::{FastDivide, INDEX_LIMIT, aligned, in_range, kernel_args, product, unsupported};
use crate::error::Error;
use crate::model::Window;
use crate::plan::ConvTile;
use crate::plan::kernels::Pipeline;
use crate::tensor::Shape;

kernel_args! {
    /// `GemmSource`.
    GemmSource, 80 bytes {
        x: u64,
        filter: u64,
        height: i32,
        width: i32,
        c_chunks: i32,
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
        reserved: i32,
    }
}

kernel_args! {
    /// `GemmResult`.
    GemmResult, 40 bytes {
        m_pixels: i32,
        out_pixels: i32,
        out_width: i32,
        k_stored: i32,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        by_n_tiles: FastDivide,
    }
}

/// A convolution whose products go into a sum; the channels of both shapes are the stored ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmProblem {
    pub(super) batch: usize,
    pub(super) input: Shape,
    pub(super) output: Shape,
    pub(super) window: Window,
    /// The number of channels of a chunk, 16 bytes.
    pub(super) chunk: usize,
}

/// Coordinates, image sizes and extents stay below this: the kernel packs two of them into a word.
const POSITION_LIMIT: usize = 1 << 14;

impl GemmProblem {
    /// The argument of the convolution as a source at these addresses.
    pub(super) fn source(
        &self,
        tile: ConvTile,
        pipeline: Pipeline,
        [x, filter]: [u64; 2],
    ) -> Result<GemmSource, Error> {
        let Self { input, output, window, chunk, .. } = *self;
        let c_chunks = self.chunks("input channels", input.channels)?;
        self.check_extents(c_chunks)?;
        let [filter_h, filter_w] = window.size;
        let k_chunks = filter_h * filter_w * c_chunks;
        product("filter chunks", &[output.channels + tile.n, k_chunks])?;
        // The step from one k tile to the next, as a number with the digits r, s, c.
        let step = pipeline.k / chunk;
        let [step_r, step_s, step_c] = [step / c_chunks / filter_w, step / c_chunks % filter_w, step % c_chunks];
        Ok(GemmSource {
            x: aligned("x", x, 16)?,
            filter: aligned("filter", filter, 16)?,
            height: int(input.height),
            width: int(input.width),
            c_chunks: int(c_chunks),
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
            reserved: 0,
        })
    }

    /// The argument of the result in tiles, and the number of blocks.
    pub(super) fn result(&self, tile: ConvTile) -> Result<(GemmResult, u32), Error> {
        let Self { batch, output, .. } = *self;
        self.chunks("output channels", output.channels)?;
        let m_pixels = product("output pixels", &[batch, output.height, output.width])?;
        in_range("output pixels", m_pixels as usize + tile.m, 1, INDEX_LIMIT)?;
        let n_tiles = output.channels.div_ceil(tile.n);
        let blocks = product("blocks", &[(m_pixels as usize).div_ceil(tile.m), n_tiles])?;
        let result = GemmResult {
            m_pixels: m_pixels as i32,
            out_pixels: int(output.pixels()),
            out_width: int(output.width),
            k_stored: int(output.channels),
            by_out_pixels: FastDivide::by(output.pixels() as u32),
            by_out_width: FastDivide::by(output.width as u32),
            by_n_tiles: FastDivide::by(n_tiles as u32),
        };
        Ok((result, blocks))
    }

    /// The chunks of this many channels.
    fn chunks(&self, what: &str, channels: usize) -> Result<usize, Error> {
        if channels == 0 || !channels.is_multiple_of(self.chunk) {
            let takes = format!("stored channels are a positive multiple of {}", self.chunk);
            return Err(unsupported(what, channels, &takes));
        }
        Ok(channels / self.chunk)
    }

    /// Checks the limits of everything about positions and chunk indices of the input.
    fn check_extents(&self, c_chunks: usize) -> Result<(), Error> {
        let Self { batch, input, output, window, .. } = *self;
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
}

/// A number that was checked as the kernel's integer type.
fn int(value: usize) -> i32 {
    value as i32
}
