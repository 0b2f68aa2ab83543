//! Launches of `kernels/conv2d_depthwise.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    FastDivide, INDEX_LIMIT, Launch, activation_code, aligned, chunks_of, in_range, kernel_args, product,
};
use super::steps::Operands;
use crate::error::Error;
use crate::model::{Conv2d, Window};
use crate::plan::StepOp;
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `DepthwiseGeometry`.
    DepthwiseGeometry, 84 bytes {
        threads: u32,
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
        out_height: i32,
        out_width: i32,
        q_groups: i32,
        by_c_chunks: FastDivide,
        by_q_groups: FastDivide,
        by_out_height: FastDivide,
    }
}

kernel_args! {
    /// `DepthwiseArgs`.
    DepthwiseArgs, 120 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        y: u64,
        sizes: DepthwiseGeometry,
        activation: i32,
    }
}

/// Depthwise convolutions on any GPU.
pub(super) struct Conv2dDepthwise;

impl Launcher for Conv2dDepthwise {
    fn name(&self) -> &'static str {
        "conv2d_depthwise"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("conv2d_depthwise", &ENTRIES, THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Depthwise(conv) = step.op() else { return Err(step.wrong_kernel()) };
        launch(&DepthwiseProblem::of(step, conv), &DepthwisePointers::of(step))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        let (part, fields) = ("DepthwiseGeometry", DepthwiseGeometry::FIELDS);
        vec![
            Arguments::of::<DepthwiseGeometry>("conv2d_depthwise.cuh", part, fields).part(),
            Arguments::of::<DepthwiseArgs>("conv2d_depthwise.cu", "DepthwiseArgs", DepthwiseArgs::FIELDS),
        ]
    }
}

/// A depthwise convolution with bias and activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels, which are those of the output too.
    pub(crate) input: Shape,
    /// P and Q.
    pub(crate) output: [usize; 2],
    /// The window; bottom and right padding follow from P and Q.
    pub(crate) window: Window,
    /// Applied last.
    pub(crate) activation: Activation,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwisePointers {
    /// Halves [batch][H][W][C].
    pub(crate) x: u64,
    /// Halves [R][S][C].
    pub(crate) filter: u64,
    /// Floats [C].
    pub(crate) bias: u64,
    /// Halves [batch][P][Q][C].
    pub(crate) y: u64,
}

impl DepthwiseProblem {
    /// The problem of a step, whose input a 1x1 convolution may make.
    pub(super) fn of(step: &Operands<'_>, conv: &Conv2d) -> Self {
        let y = step.y();
        Self {
            batch: step.images(),
            input: Shape { channels: y.stored_channels, ..step.x().shape },
            output: [y.shape.height, y.shape.width],
            window: conv.window,
            activation: conv.activation,
        }
    }
}

impl DepthwisePointers {
    pub(super) fn of(step: &Operands<'_>) -> Self {
        let ((x, _, y), (filter, bias)) = (step.pointers(), step.weights());
        Self { x, filter, bias, y }
    }
}

/// Output pixels of a thread: `kGroup`.
const GROUP: usize = 4;
/// Threads of a block: `kThreads`.
pub(super) const THREADS: u32 = 128;
/// The windows for which a kernel is compiled: square, without dilation, with this size and stride along the row. The last
/// kernel of each kind is for any window.
const SQUARE: [(usize, usize); 4] = [(3, 1), (3, 2), (5, 1), (5, 2)];
/// All kernels: for each window of `SQUARE`, then for any window.
const ENTRIES: [&str; SQUARE.len() + 1] = [
    "sm80_conv2d_depthwise_3x3_stride1",
    "sm80_conv2d_depthwise_3x3_stride2",
    "sm80_conv2d_depthwise_5x5_stride1",
    "sm80_conv2d_depthwise_5x5_stride2",
    "sm80_conv2d_depthwise_any",
];

/// The launch of `problem`.
pub(crate) fn launch(problem: &DepthwiseProblem, pointers: &DepthwisePointers) -> Result<Launch, Error> {
    let DepthwiseProblem { batch, input, output, window, activation } = *problem;
    let sizes = DepthwiseGeometry::of(batch, input, output, &window)?;
    let args = DepthwiseArgs {
        x: aligned("x", pointers.x, 16)?,
        filter: aligned("filter", pointers.filter, 16)?,
        bias: aligned("bias", pointers.bias, 16)?,
        y: aligned("y", pointers.y, 16)?,
        sizes,
        activation: activation_code(activation)?,
    };
    Ok(Launch::flat(ENTRIES[kernel_of(&window)], sizes.blocks(), THREADS, &args))
}

impl DepthwiseGeometry {
    /// The sizes of a convolution of so many images with these stored channels to `[P, Q]` pixels each.
    pub(super) fn of(batch: usize, input: Shape, [p, q]: [usize; 2], window: &Window) -> Result<Self, Error> {
        let c_chunks = chunks_of("channels", input.channels)?;
        let limit = 1 << 14;
        let extent = |what: &str, value: usize, min: usize| in_range(what, value, min, limit);
        let q_groups = q.div_ceil(GROUP);
        let threads = product("threads", &[batch, p, q_groups, c_chunks])?;
        product("filter chunks", &[window.size[0], window.size[1], c_chunks])?;
        Ok(Self {
            threads,
            height: extent("height", input.height, 1)?,
            width: extent("width", input.width, 1)?,
            c_chunks: in_range("channels / 8", c_chunks, 1, INDEX_LIMIT)?,
            filter_h: extent("filter height", window.size[0], 1)?,
            filter_w: extent("filter width", window.size[1], 1)?,
            stride_h: extent("vertical stride", window.stride[0], 1)?,
            stride_w: extent("horizontal stride", window.stride[1], 1)?,
            pad_top: extent("top padding", window.pad.top, 0)?,
            pad_left: extent("left padding", window.pad.left, 0)?,
            dilation_h: extent("vertical dilation", window.dilation[0], 1)?,
            dilation_w: extent("horizontal dilation", window.dilation[1], 1)?,
            out_height: extent("output height", p, 1)?,
            out_width: extent("output width", q, 1)?,
            q_groups: q_groups as i32, // fewer than out_width
            by_c_chunks: FastDivide::by(c_chunks as u32),
            by_q_groups: FastDivide::by(q_groups as u32),
            by_out_height: FastDivide::by(p as u32),
        })
    }

    /// The number of blocks that have these threads.
    pub(super) const fn blocks(&self) -> u32 {
        self.threads.div_ceil(THREADS)
    }
}

/// The index of the kernel for `window` in `ENTRIES`.
pub(super) fn kernel_of(window: &Window) -> usize {
    let [r, s] = window.size;
    let fits = |&(size, stride): &(usize, usize)| {
        [r, s] == [size; 2] && window.stride[1] == stride && window.dilation == [1; 2]
    };
    SQUARE.iter().position(fits).unwrap_or(SQUARE.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pad;

    const POINTERS: DepthwisePointers = DepthwisePointers { x: 0x100, filter: 0x200, bias: 0x300, y: 0x400 };

    fn problem() -> DepthwiseProblem {
        let pad = Pad { top: 2, left: 1, bottom: 3, right: 0 };
        DepthwiseProblem {
            batch: 7,
            input: Shape::new(30, 40, 24),
            output: [11, 18],
            window: Window { size: [8, 9], stride: [12, 13], pad, dilation: [4, 6] },
            activation: Activation::Relu,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), &POINTERS).unwrap();
        let args: DepthwiseArgs = launch.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.y], [0x100, 0x200, 0x300, 0x400]);
        let sizes = args.sizes;
        assert_eq!(sizes.threads, 7 * 11 * 5 * 3);
        assert_eq!([sizes.height, sizes.width, sizes.c_chunks], [30, 40, 3]);
        assert_eq!([sizes.filter_h, sizes.filter_w, sizes.stride_h, sizes.stride_w], [8, 9, 12, 13]);
        assert_eq!([sizes.pad_top, sizes.pad_left, sizes.dilation_h, sizes.dilation_w], [2, 1, 4, 6]);
        assert_eq!([sizes.out_height, sizes.out_width, sizes.q_groups, args.activation], [11, 18, 5, 1]);
        assert_eq!([sizes.by_c_chunks, sizes.by_q_groups, sizes.by_out_height].map(|d| d.divide(100)), [33, 20, 9]);
        assert_eq!((launch.grid, launch.block), ([10, 1, 1], [128, 1, 1]));
        assert_eq!(launch.entry, "sm80_conv2d_depthwise_any");
    }

    #[test]
    fn common_windows_have_their_own_kernels() {
        let entry = |window: Window| ENTRIES[kernel_of(&window)].trim_start_matches("sm80_conv2d_depthwise_");
        assert_eq!(entry(Window::square(3, 1, 1)), "3x3_stride1");
        assert_eq!(entry(Window::square(5, 2, 2)), "5x5_stride2");
        assert_eq!(entry(Window::square(3, 3, 1)), "any");
        assert_eq!(entry(Window { dilation: [2, 1], ..Window::square(3, 1, 1) }), "any");
        assert_eq!(entry(Window { stride: [2, 1], ..Window::square(3, 1, 1) }), "3x3_stride1");
        for ((size, stride), name) in SQUARE.iter().zip(ENTRIES) {
            assert_eq!(name, format!("sm80_conv2d_depthwise_{size}x{size}_stride{stride}"));
        }
    }

    #[test]
    fn out_of_range_is_an_error() {
        let refused = |change: fn(&mut DepthwiseProblem)| {
            let mut problem = problem();
            change(&mut problem);
            matches!(launch(&problem, &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(refused(|p| p.batch = 0));
        assert!(refused(|p| p.batch = 1 << 24));
        assert!(refused(|p| p.input.channels = 25));
        assert!(refused(|p| p.input.width = 1 << 14));
        assert!(refused(|p| p.window.stride = [1, 0]));
    }
}
