//! Launches of `kernels/pool2d.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    CHUNK, FastDivide, INDEX_LIMIT, Launch, aligned, chunks_of, in_range, kernel_args, pitch, product,
};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::model::Pool;
use crate::plan::StepOp;
use crate::tensor::Shape;

kernel_args! {
    /// `Pool2dArgs`.
    Pool2dArgs, 104 bytes {
        x: u64,
        y: u64,
        chunks: u32,
        height: i32,
        width: i32,
        filter_h: i32,
        filter_w: i32,
        stride_h: i32,
        stride_w: i32,
        pad_top: i32,
        pad_left: i32,
        dilation_h: i32,
        dilation_w: i32,
        count_pad: i32,
        c_chunks: i32,
        out_height: i32,
        out_width: i32,
        y_chunks: i32,
        by_c_chunks: FastDivide,
        by_out_width: FastDivide,
        by_out_height: FastDivide,
    }
}

/// Maxima and means over windows.
pub(super) struct Pool2d;

impl Launcher for Pool2d {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("pool2d", &ENTRIES, THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (kind, pool) = match *step.op() {
            StepOp::MaxPool(pool) => (PoolKind::Max, pool),
            StepOp::AvgPool(pool) => (PoolKind::Average, pool),
            _ => return Err(step.wrong_kernel()),
        };
        let ((x, _, y), result) = (step.pointers(), step.y());
        let (batch, input, y_pitch) = (step.images(), stored(step.x()), result.pitch);
        let output = [result.shape.height, result.shape.width];
        launch(&PoolProblem { kind, batch, input, output, y_pitch, pool }, &PoolPointers { x, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Pool2dArgs>("pool2d.cu", "Pool2dArgs", Pool2dArgs::FIELDS)]
    }
}

/// The value of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// The maximum of the window.
    Max,
    /// The mean of the window.
    Average,
}

/// A pooling layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolProblem {
    /// Maximum or mean.
    pub(crate) kind: PoolKind,
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels, which are those of the output too.
    pub(crate) input: Shape,
    /// P and Q.
    pub(crate) output: [usize; 2],
    /// Channels from one pixel of the output to the next.
    pub(crate) y_pitch: usize,
    /// The window; bottom and right padding follow from P and Q.
    pub(crate) pool: Pool,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolPointers {
    /// Halves [batch][H][W][C].
    pub(crate) x: u64,
    /// Halves [batch][P][Q][C], with pixels `y_pitch` channels apart.
    pub(crate) y: u64,
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernels: maximum, mean.
pub(super) const ENTRIES: [&str; 2] = ["sm80_max_pool2d", "sm80_avg_pool2d"];

/// The launch of `problem`.
pub(crate) fn launch(problem: &PoolProblem, pointers: &PoolPointers) -> Result<Launch, Error> {
    let PoolProblem { kind, batch, input, output: [p, q], y_pitch, pool } = *problem;
    let c_chunks = chunks_of("channels", input.channels)?;
    let extent = |what: &str, value: usize, min: usize| in_range(what, value, min, 1 << 14);
    let chunks = product("output chunks", &[batch, p, q, c_chunks])?;
    let window = pool.window;
    let args = Pool2dArgs {
        x: aligned("x", pointers.x, 16)?,
        y: aligned("y", pointers.y, 16)?,
        chunks,
        height: extent("height", input.height, 1)?,
        width: extent("width", input.width, 1)?,
        filter_h: extent("window height", window.size[0], 1)?,
        filter_w: extent("window width", window.size[1], 1)?,
        stride_h: extent("vertical stride", window.stride[0], 1)?,
        stride_w: extent("horizontal stride", window.stride[1], 1)?,
        pad_top: extent("top padding", window.pad.top, 0)?,
        pad_left: extent("left padding", window.pad.left, 0)?,
        dilation_h: extent("vertical dilation", window.dilation[0], 1)?,
        dilation_w: extent("horizontal dilation", window.dilation[1], 1)?,
        count_pad: i32::from(pool.count_pad),
        c_chunks: in_range("channels / 8", c_chunks, 1, INDEX_LIMIT)?,
        out_height: extent("output height", p, 1)?,
        out_width: extent("output width", q, 1)?,
        y_chunks: pitch(y_pitch, input.channels)? / CHUNK as i32,
        by_c_chunks: FastDivide::by(c_chunks as u32),
        by_out_width: FastDivide::by(q as u32),
        by_out_height: FastDivide::by(p as u32),
    };
    let entry = ENTRIES[usize::from(kind == PoolKind::Average)];
    Ok(Launch::flat(entry, chunks.div_ceil(THREADS), THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pad, Window};

    const POINTERS: PoolPointers = PoolPointers { x: 0x100, y: 0x200 };

    fn problem() -> PoolProblem {
        let pad = Pad { top: 2, left: 1, bottom: 3, right: 0 };
        let window = Window { size: [8, 9], stride: [12, 13], pad, dilation: [4, 6] };
        PoolProblem {
            kind: PoolKind::Average,
            batch: 7,
            input: Shape::new(30, 40, 24),
            output: [11, 18],
            y_pitch: 40,
            pool: Pool { window, count_pad: true },
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), &POINTERS).unwrap();
        let args: Pool2dArgs = launch.args.read();
        assert_eq!([args.x, args.y], [0x100, 0x200]);
        assert_eq!(args.chunks, 7 * 11 * 18 * 3);
        assert_eq!([args.height, args.width, args.c_chunks, args.count_pad], [30, 40, 3, 1]);
        assert_eq!([args.filter_h, args.filter_w, args.stride_h, args.stride_w], [8, 9, 12, 13]);
        assert_eq!([args.pad_top, args.pad_left, args.dilation_h, args.dilation_w], [2, 1, 4, 6]);
        assert_eq!([args.out_height, args.out_width, args.y_chunks], [11, 18, 5]);
        assert_eq!([args.by_c_chunks, args.by_out_width, args.by_out_height].map(|d| d.divide(100)), [33, 5, 9]);
        assert_eq!((launch.grid, launch.block), ([17, 1, 1], [256, 1, 1]));
        assert_eq!(launch.entry, "sm80_avg_pool2d");
    }

    #[test]
    fn the_kind_chooses_the_kernel_and_ranges_are_checked() {
        let max = PoolProblem { kind: PoolKind::Max, ..problem() };
        assert_eq!(launch(&max, &POINTERS).unwrap().entry, "sm80_max_pool2d");
        let empty = PoolProblem { output: [0, 5], ..problem() };
        assert!(matches!(launch(&empty, &POINTERS), Err(Error::Unsupported { .. })));
        let odd = PoolProblem { input: Shape::new(30, 40, 12), ..problem() };
        assert!(matches!(launch(&odd, &POINTERS), Err(Error::Unsupported { .. })));
    }
}
