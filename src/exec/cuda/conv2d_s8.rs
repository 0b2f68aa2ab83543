//! Launches of `kernels/conv2d_s8.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::implicit_gemm::{GemmProblem, GemmResult, GemmSource};
use super::launch::{Launch, aligned, kernel_args, unsupported};
use super::requantise::ByteResult;
use super::sm90_conv2d_s8::S8Problem;
use super::steps::Operands;
use crate::error::Error;
use crate::plan::{ConvTile, Kernel, S8Conv, S8Kernel};

kernel_args! {
    /// `ConvS8Args`.
    ConvS8Args, 256 bytes {
        source: [GemmSource; 2],
        result: GemmResult,
        bias: u64,
        scale: u64,
        residual: u64,
        y: u64,
        bytes: ByteResult,
        y_chunks: i32,
        reserved: i32,
    }
}

/// Convolutions of bytes on any GPU.
pub(super) struct Conv2dS8;

impl Launcher for Conv2dS8 {
    fn name(&self) -> &'static str {
        "conv2d_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_tile = |(tile, names): (ConvTile, [&'static str; 2])| {
            let pipeline = tile.pipeline_of_bytes().expect("every compiled tile has one");
            let (threads, shared_bytes) = (pipeline.threads as u32, pipeline.shared_bytes as u32);
            names.map(|name| EntryPoint { module: "conv2d_s8", name, threads, shared_bytes, cluster: 1 })
        };
        ENTRIES.into_iter().flat_map(of_tile).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::S8(S8Kernel::Sm80Gemm(tile)) = step.kernel() else { return Err(step.wrong_kernel()) };
        launch(&S8Problem::of(step)?, tile)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![
            Arguments::of::<ByteResult>("requantise.cuh", "ByteResult", ByteResult::FIELDS).part(),
            Arguments::of::<ConvS8Args>("conv2d_s8.cu", "ConvS8Args", ConvS8Args::FIELDS),
        ]
    }
}

/// A tile and the names of its kernels, in the order of `ENTRIES`.
macro_rules! of_tile {
    ($m:literal, $n:literal) => {
        (ConvTile { m: $m, n: $n }, [concat!("sm80_conv2d_u8_", $m, "x", $n), concat!("sm80_conv2d_s8_", $m, "x", $n)])
    };
}
/// The kernels of each tile: of unsigned pixels, then of signed ones.
const ENTRIES: [(ConvTile, [&str; 2]); ConvTile::OF_BYTES.len()] =
    [of_tile!(256, 128), of_tile!(128, 128), of_tile!(256, 64), of_tile!(128, 64), of_tile!(64, 64), of_tile!(32, 64)];

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &S8Problem, tile: ConvTile) -> Result<Launch, Error> {
    let S8Problem { conv, x, filter, second, residual, .. } = *problem;
    conv.check_sizes()?;
    if let Some(second) = second {
        second.conv.check_sizes()?;
        conv.check_sum(&second.conv)?;
    }
    let entry = ENTRIES.iter().find(|(of, _)| *of == tile).map(|(_, names)| names[usize::from(problem.x_signed)]);
    let (Some(entry), Some(pipeline)) = (entry, tile.pipeline_of_bytes()) else {
        return Err(unsupported("tile of bytes", tile, "use one of ConvTile::OF_BYTES"));
    };
    let gemm = |conv: S8Conv| {
        let S8Conv { batch, input, output, window } = conv;
        GemmProblem { batch, input, output, window, chunk: CHUNK }
    };
    let first = gemm(conv).source(tile, pipeline, [x, filter])?;
    let second = match second {
        Some(second) => gemm(second.conv).source(tile, pipeline, [second.x, second.filter])?,
        None => GemmSource::zeroed(),
    };
    let (result, blocks) = gemm(conv).result(tile)?;
    let args = ConvS8Args {
        source: [first, second],
        result,
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        residual: residual.map_or(Ok(0), |residual| aligned("residual", residual.address, 16))?,
        y: aligned("y", problem.y, 16)?,
        bytes: ByteResult::of(residual, problem.y_signed, problem.relu),
        y_chunks: (conv.output.channels / CHUNK) as i32,
        reserved: 0,
    };
    let shared_bytes = pipeline.shared_bytes as u32;
    Ok(Launch { shared_bytes, ..Launch::flat(entry, blocks, pipeline.threads as u32, &args) })
}

/// Channels of a 16-byte access.
const CHUNK: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::super::sm90_conv2d_s8::{S8Residual, S8Second};
    use super::*;
    use crate::model::{Pad, Window};
    use crate::tensor::Shape;

    fn problem() -> S8Problem {
        let pad = Pad { top: 2, left: 1, bottom: 3, right: 0 };
        let window = Window { size: [5, 7], stride: [3, 2], pad, dilation: [4, 6] };
        let conv = S8Conv { batch: 3, input: Shape::new(30, 40, 48), output: Shape::new(7, 3, 144), window };
        let second = S8Conv { input: Shape::new(7, 3, 32), window: Window::square(1, 1, 0), ..conv };
        S8Problem {
            conv,
            x: 0x100,
            x_signed: true,
            filter: 0x200,
            second: Some(S8Second { conv: second, x: 0x600, filter: 0x700 }),
            bias: 0x300,
            scale: 0x350,
            residual: Some(S8Residual { address: 0x400, signed: true, scale: 0.5 }),
            y: 0x500,
            y_signed: true,
            relu: true,
            backward: false,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), ConvTile { m: 128, n: 64 }).unwrap();
        let args: ConvS8Args = launch.args.read();
        let [first, second] = args.source;
        assert_eq!([first.x, first.filter, second.x, second.filter], [0x100, 0x200, 0x600, 0x700]);
        assert_eq!([args.bias, args.scale, args.residual, args.y], [0x300, 0x350, 0x400, 0x500]);
        assert_eq!([first.height, first.width, first.c_chunks, first.k_chunks], [30, 40, 3, 105]);
        assert_eq!([second.height, second.width, second.c_chunks, second.k_chunks], [7, 3, 2, 2]);
        assert_eq!([first.step_r, first.step_s, first.step_c], [0, 2, 2]);
        assert_eq!([args.result.m_pixels, args.result.k_stored, args.y_chunks], [63, 144, 9]);
        let ByteResult { lowest, highest, residual_scale, residual_signed } = args.bytes;
        assert_eq!((residual_scale, residual_signed, lowest, highest), (0.5, 1, 0, 127));
        assert_eq!((launch.grid, launch.block), ([3, 1, 1], [128, 1, 1]));
        assert_eq!(launch.shared_bytes, 3 * (128 + 64) * 128 + 64 * 8);
        assert_eq!(launch.entry, "sm80_conv2d_s8_128x64");
    }

    #[test]
    fn out_of_range_is_an_error() {
        let tile = ConvTile { m: 64, n: 64 };
        let refused = |change: fn(&mut S8Problem)| {
            let mut problem = problem();
            change(&mut problem);
            matches!(launch(&problem, tile), Err(Error::Unsupported { .. } | Error::Option { .. }))
        };
        assert!(!refused(|_| ()));
        assert!(refused(|p| p.conv.batch = 0) && refused(|p| p.conv.input.channels = 24));
        assert!(refused(|p| p.conv.output.channels = 8) && refused(|p| p.x = 0x108));
        assert!(refused(|p| p.conv.input.channels = 2048) && refused(|p| p.conv.window.stride = [0, 1]));
        assert!(refused(|p| p.second.as_mut().unwrap().conv.output.height = 12));
        assert!(refused(|p| p.second.as_mut().unwrap().conv.input.channels = 1 << 17));
        let odd = ConvTile { m: 128, n: 32 };
        assert!(matches!(launch(&problem(), odd), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("conv2d_s8.cu");
        let lines = source.lines().filter(|line| line.contains("using Tile"));
        let numbers = |line: &str| -> Vec<usize> {
            let list = line.split_once("GemmTile<").expect("a tile").1.split_once(", Bytes").expect("a tile").0;
            list.split(',').map(|n| n.trim().parse().expect("a number")).collect()
        };
        let lines: Vec<_> = lines.map(numbers).collect();
        assert_eq!(lines.len(), ConvTile::OF_BYTES.len());
        for line in lines {
            let [m, n, k, warps_m, warps_n, stages, _] = line[..] else { panic!("{line:?}") };
            let pipeline = ConvTile { m, n }.pipeline_of_bytes().unwrap_or_else(|| panic!("{m}x{n}"));
            assert_eq!([pipeline.k, pipeline.stages, pipeline.threads], [k, stages, 32 * warps_m * warps_n]);
        }
        assert_eq!(ENTRIES.map(|(tile, _)| tile), ConvTile::OF_BYTES);
    }
}
