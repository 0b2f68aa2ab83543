//! Launches of `kernels/conv2d_fprop.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::implicit_gemm::{GemmProblem, GemmResult, GemmSource};
use super::launch::{CHUNK, Launch, activation_code, aligned, kernel_args, pitch, unsupported};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::model::{Conv2d, Window};
use crate::plan::{ConvTile, Kernel, StepOp};
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `ImplicitGemmArgs`.
    ImplicitGemmArgs, 152 bytes {
        source: [GemmSource; 1],
        result: GemmResult,
        bias: u64,
        residual: u64,
        y: u64,
        activation: i32,
        y_chunks: i32,
    }
}

/// Dense convolutions on any GPU.
pub(super) struct Conv2dFprop;

impl Launcher for Conv2dFprop {
    fn name(&self) -> &'static str {
        "conv2d_fprop"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(tile, name): (ConvTile, _)| {
            let pipeline = tile.pipeline().expect("every compiled tile has one");
            let (threads, shared_bytes) = (pipeline.threads as u32, pipeline.shared_bytes as u32);
            EntryPoint { module: "conv2d_fprop", name, threads, shared_bytes, cluster: 8 }
        };
        ENTRIES.map(of).into()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        match (step.op(), step.kernel()) {
            (StepOp::Conv(conv), Kernel::Sm80Gemm(tile)) => {
                let (_, residual, _) = step.pointers();
                launch(&ConvProblem::of(step, conv), tile, &ConvPointers::of(step, residual))
            }
            _ => Err(step.wrong_kernel()),
        }
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![
            Arguments::of::<GemmSource>("implicit_gemm.cuh", "GemmSource", GemmSource::FIELDS).part(),
            Arguments::of::<GemmResult>("implicit_gemm.cuh", "GemmResult", GemmResult::FIELDS).part(),
            Arguments::of::<ImplicitGemmArgs>("conv2d_fprop.cu", "ImplicitGemmArgs", ImplicitGemmArgs::FIELDS),
        ]
    }
}

/// A convolution with bias, residual and activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels of the input.
    pub(crate) input: Shape,
    /// P, Q and the stored channels of the output.
    pub(crate) output: Shape,
    /// Channels from one pixel of the output to the next.
    pub(crate) y_pitch: usize,
    /// The window; bottom and right padding follow from P and Q.
    pub(crate) window: Window,
    /// Applied last.
    pub(crate) activation: Activation,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvPointers {
    /// Halves [batch][H][W][C].
    pub(crate) x: u64,
    /// Halves [K][R][S][C].
    pub(crate) filter: u64,
    /// Floats [K].
    pub(crate) bias: u64,
    /// Halves like `y` without gaps, and possibly `y` itself.
    pub(crate) residual: Option<u64>,
    /// Halves [batch][P][Q][K], with pixels `y_pitch` channels apart.
    pub(crate) y: u64,
}

impl ConvProblem {
    /// The problem of a step by its first convolution.
    pub(super) fn of(step: &Operands<'_>, conv: &Conv2d) -> Self {
        let (x, y) = (step.x(), step.y());
        let (batch, y_pitch) = (step.images(), y.pitch);
        let Conv2d { window, activation, .. } = *conv;
        Self { batch, input: stored(x), output: stored(y), y_pitch, window, activation }
    }
}

impl ConvPointers {
    /// The operands of a step, which may add a residual.
    pub(super) fn of(step: &Operands<'_>, residual: Option<u64>) -> Self {
        let ((x, _, y), (filter, bias)) = (step.pointers(), step.weights());
        Self { x, filter, bias, residual, y }
    }
}

/// The kernel for each tile.
pub(super) const ENTRIES: [(ConvTile, &str); ConvTile::ALL.len()] = [
    (ConvTile { m: 256, n: 128 }, "sm80_conv2d_fprop_256x128"),
    (ConvTile { m: 128, n: 128 }, "sm80_conv2d_fprop_128x128"),
    (ConvTile { m: 256, n: 64 }, "sm80_conv2d_fprop_256x64"),
    (ConvTile { m: 128, n: 64 }, "sm80_conv2d_fprop_128x64"),
    (ConvTile { m: 128, n: 32 }, "sm80_conv2d_fprop_128x32"),
    (ConvTile { m: 64, n: 64 }, "sm80_conv2d_fprop_64x64"),
    (ConvTile { m: 32, n: 64 }, "sm80_conv2d_fprop_32x64"),
];

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &ConvProblem, tile: ConvTile, pointers: &ConvPointers) -> Result<Launch, Error> {
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, entry)| *entry);
    let (Some(entry), Some(pipeline)) = (entry, tile.pipeline()) else {
        return Err(unsupported("convolution tile", tile, "use one of ConvTile::ALL"));
    };
    let ConvProblem { batch, input, output, y_pitch, window, activation } = *problem;
    let ConvPointers { x, filter, bias, residual, y } = *pointers;
    let gemm = GemmProblem { batch, input, output, window, chunk: CHUNK };
    let (result, blocks) = gemm.result(tile)?;
    let args = ImplicitGemmArgs {
        source: [gemm.source(tile, pipeline, [x, filter])?],
        result,
        bias: aligned("bias", bias, 16)?,
        residual: residual.map_or(Ok(0), |residual| aligned("residual", residual, 16))?,
        y: aligned("y", y, 16)?,
        activation: activation_code(activation)?,
        y_chunks: pitch(y_pitch, output.channels)? / CHUNK as i32,
    };
    let shared_bytes = pipeline.shared_bytes as u32;
    Ok(Launch { shared_bytes, ..Launch::flat(entry, blocks, pipeline.threads as u32, &args) })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::Pad;

    const POINTERS: ConvPointers =
        ConvPointers { x: 0x100, filter: 0x200, bias: 0x300, residual: Some(0x400), y: 0x500 };

    fn problem() -> ConvProblem {
        let pad = Pad { top: 2, left: 1, bottom: 3, right: 0 };
        ConvProblem {
            batch: 3,
            input: Shape::new(30, 40, 24),
            output: Shape::new(11, 19, 72),
            y_pitch: 96,
            window: Window { size: [5, 7], stride: [3, 2], pad, dilation: [4, 6] },
            activation: Activation::Relu6,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), ConvTile { m: 128, n: 64 }, &POINTERS).unwrap();
        let args: ImplicitGemmArgs = launch.args.read();
        let ([source], result) = (args.source, args.result);
        assert_eq!([source.x, source.filter, args.bias, args.residual, args.y], [0x100, 0x200, 0x300, 0x400, 0x500]);
        assert_eq!([result.m_pixels, result.out_pixels, result.out_width, result.k_stored], [627, 209, 19, 72]);
        assert_eq!([source.height, source.width, source.c_chunks], [30, 40, 3]);
        assert_eq!([source.filter_h, source.filter_w, source.stride_h, source.stride_w], [5, 7, 3, 2]);
        assert_eq!([source.pad_top, source.pad_left, source.dilation_h, source.dilation_w], [2, 1, 4, 6]);
        assert_eq!([source.k_chunks, args.activation, args.y_chunks], [105, 2, 12]);
        // 8 chunks = 0 rows + 2 taps of 3 chunks + 2 chunks.
        assert_eq!([source.step_r, source.step_s, source.step_c], [0, 2, 2]);
        assert_eq!(result.by_out_pixels.divide(627), 3);
        assert_eq!(result.by_out_width.divide(208), 10);
        assert_eq!(result.by_n_tiles.divide(5), 2);
        assert_eq!(launch.grid, [5 * 2, 1, 1]);
        assert_eq!(launch.block, [128, 1, 1]);
        assert_eq!(launch.shared_bytes, 3 * (128 + 64) * 64 * 2 + 64 * 4);
        assert_eq!(launch.entry, "sm80_conv2d_fprop_128x64");
    }

    #[test]
    fn out_of_range_is_an_error() {
        let tile = ConvTile { m: 64, n: 64 };
        let refused = |change: fn(&mut ConvProblem)| {
            let mut problem = problem();
            change(&mut problem);
            matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(refused(|p| p.batch = 0));
        assert!(refused(|p| p.input.channels = 20));
        assert!(refused(|p| p.output.channels = 0));
        assert!(refused(|p| p.y_pitch = 64) && refused(|p| p.y_pitch = 100));
        assert!(refused(|p| p.input.height = 1 << 14));
        assert!(refused(|p| p.window.dilation = [1 << 13, 1]));
        assert!(refused(|p| p.window.stride = [0, 1]));
        assert!(refused(|p| p.batch = 100_000_000));
        assert!(refused(|p| p.input.channels = 1 << 27));
        let odd = ConvTile { m: 96, n: 96 };
        assert!(matches!(launch(&problem(), odd, &POINTERS), Err(Error::Unsupported { .. })));
        let shifted = ConvPointers { x: 0x108, ..POINTERS };
        assert!(matches!(launch(&problem(), tile, &shifted), Err(Error::Option { option: "x", .. })));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("gemm_tiles.cuh");
        let numbers = |line: &str| -> Vec<usize> {
            let list = line.split_once("GemmTile<").expect("a tile").1.split_once('>').expect("a tile").0;
            list.split(',').map(|n| n.trim().parse().expect("a number")).collect()
        };
        let lines: Vec<_> = source.lines().filter(|line| line.starts_with("using Tile")).map(numbers).collect();
        assert_eq!(lines.len(), ConvTile::ALL.len());
        for line in lines {
            let [m, n, k, warps_m, warps_n, stages, _] = line[..] else { panic!("{line:?}") };
            let pipeline = ConvTile { m, n }.pipeline().unwrap_or_else(|| panic!("{m}x{n}"));
            assert_eq!([pipeline.k, pipeline.stages, pipeline.threads], [k, stages, 32 * warps_m * warps_n]);
        }
        assert_eq!(ENTRIES.map(|(tile, _)| tile), ConvTile::ALL);
    }
}
