//! Launches of `kernels/convert.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{CHUNK, FastDivide, Launch, aligned, chunks_of, kernel_args, pitch, product, unsupported};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::{StepOp, Tensor};
use crate::tensor::{Dtype, Shape};

kernel_args! {
    /// `ConvertArgs`.
    ConvertArgs, 48 bytes {
        halves: u64,
        bytes: u64,
        chunks: u32,
        factor: f32,
        lowest: i32,
        c_chunks: i32,
        half_chunks: i32,
        c_halves: i32,
        by_c_chunks: FastDivide,
    }
}

/// Conversions of halves to bytes and back.
pub(super) struct Convert;

impl Launcher for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("convert", &[QUANTIZE, DEQUANTIZE], THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (x, _, y) = step.pointers();
        let batch = step.images();
        let of = |entry, factor, [halves, bytes]: [u64; 2], [of_halves, of_bytes]: [&Tensor; 2]| {
            let (shape, signed) = (stored(of_bytes), of_bytes.dtype == Dtype::I8);
            let (c_halves, half_pitch) = (of_halves.stored_channels, of_halves.pitch);
            launch(entry, &ConvertProblem { batch, shape, factor, signed, halves, bytes, c_halves, half_pitch })
        };
        match *step.op() {
            StepOp::Quantize(scale) => of(QUANTIZE, 1.0 / scale, [x, y], [step.x(), step.y()]),
            StepOp::Dequantize(scale) => of(DEQUANTIZE, scale, [y, x], [step.y(), step.x()]),
            _ => Err(step.wrong_kernel()),
        }
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<ConvertArgs>("convert.cu", "ConvertArgs", ConvertArgs::FIELDS)]
    }
}

/// A conversion between halves and bytes, with the addresses of both.
#[derive(Clone, Copy, Debug)]
struct ConvertProblem {
    /// Images.
    batch: usize,
    /// H, W and the stored channels of the bytes.
    shape: Shape,
    /// The factor that a value is multiplied by.
    factor: f32,
    /// Whether the bytes are signed.
    signed: bool,
    /// Address of the halves [batch][H][W][C].
    halves: u64,
    /// Address of the bytes, without gaps.
    bytes: u64,
    /// The stored channels of the halves, as many as the bytes or fewer.
    c_halves: usize,
    /// Halves from one pixel to the next.
    half_pitch: usize,
}

/// Threads of a block.
const THREADS: u32 = 256;
/// The kernels.
const QUANTIZE: &str = "sm80_quantize";
const DEQUANTIZE: &str = "sm80_dequantize";

fn launch(entry: &'static str, problem: &ConvertProblem) -> Result<Launch, Error> {
    let ConvertProblem { batch, shape, factor, signed, halves, bytes, c_halves, half_pitch } = *problem;
    if c_halves > shape.channels {
        return Err(unsupported("channels of halves", c_halves, "there are as many bytes or more"));
    }
    let c_chunks = chunks_of("channels", shape.channels)?;
    let chunks = product("chunks", &[batch, shape.height, shape.width, c_chunks])?;
    let args = ConvertArgs {
        halves: aligned("halves", halves, 16)?,
        bytes: aligned("bytes", bytes, 8)?,
        chunks,
        factor,
        lowest: if signed { -128 } else { 0 },
        c_chunks: c_chunks as i32, // a factor of `chunks`
        half_chunks: pitch(half_pitch, c_halves)? / CHUNK as i32,
        c_halves: chunks_of("channels of halves", c_halves)? as i32, // c_chunks at most
        by_c_chunks: FastDivide::by(c_chunks as u32),
    };
    Ok(Launch::flat(entry, chunks.div_ceil(THREADS), THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: ConvertProblem = ConvertProblem {
        batch: 3,
        shape: Shape::new(5, 7, 32),
        factor: 0.25,
        signed: true,
        halves: 0x100,
        bytes: 0x208,
        c_halves: 24,
        half_pitch: 72,
    };

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(DEQUANTIZE, &PROBLEM).unwrap();
        let args: ConvertArgs = launch.args.read();
        assert_eq!((args.halves, args.bytes, args.chunks), (0x100, 0x208, 420));
        assert_eq!((args.factor, args.lowest, args.c_chunks, args.half_chunks), (0.25, -128, 4, 9));
        assert_eq!(args.c_halves, 3);
        assert_eq!(args.by_c_chunks.divide(419), 104);
        assert_eq!((launch.grid, &*launch.entry), ([2, 1, 1], DEQUANTIZE));
    }

    #[test]
    fn operands_that_are_not_aligned_are_refused() {
        let refused = |problem| matches!(launch(QUANTIZE, &problem), Err(Error::Option { .. }));
        assert!(
            refused(ConvertProblem { halves: 0x108, ..PROBLEM }) && refused(ConvertProblem { bytes: 0x204, ..PROBLEM })
        );
        assert!(launch(QUANTIZE, &ConvertProblem { half_pitch: 16, ..PROBLEM }).is_err());
        assert!(launch(QUANTIZE, &ConvertProblem { c_halves: 40, ..PROBLEM }).is_err());
    }
}
