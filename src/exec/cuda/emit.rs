//! Launches of `kernels/emit.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{FastDivide, INDEX_LIMIT, Launch, aligned, in_range, kernel_args, product, unsupported};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::StepOp;
use crate::tensor::{Dtype, OutputKind};

kernel_args! {
    /// `EmitArgs`.
    EmitArgs, 56 bytes {
        x: u64,
        y: u64,
        row_pitch_bytes: u64,
        channels: u32,
        stored_channels: u32,
        pixels: u32,
        tiles: u32,
        top_k: u32,
        reserved: u32,
        by_channels: FastDivide,
    }
}

/// The launcher of kernels that write output rows.
pub(super) struct Emit;

impl Launcher for Emit {
    fn name(&self) -> &'static str {
        "emit"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("emit", &ENTRIES, THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Emit(output) = *step.op() else { return Err(step.wrong_kernel()) };
        let ((x, _, y), source) = (step.pointers(), step.x());
        let problem = EmitProblem {
            kind: kind(output, source.dtype)?,
            rows: step.batch(),
            pixels: source.shape.pixels(),
            channels: source.shape.channels,
            stored_channels: source.stored_channels,
            row_pitch: step.output_rows().row_pitch,
        };
        launch(&problem, &EmitPointers { x, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<EmitArgs>("emit.cu", "EmitArgs", EmitArgs::FIELDS)]
    }
}

/// The content of a row of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmitKind {
    /// The floats of the input.
    ValuesF32,
    /// The halves of the input, as floats.
    ValuesF16,
    /// Softmax of the input's floats.
    Softmax,
    /// This many pairs of probability and index.
    TopK(usize),
}

/// Values to be written as output rows, without padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmitProblem {
    /// What to write in a row.
    pub(crate) kind: EmitKind,
    /// Rows.
    pub(crate) rows: usize,
    /// Pixels of a row; 1 for softmax and top k.
    pub(crate) pixels: usize,
    /// Logical channels of a pixel.
    pub(crate) channels: usize,
    /// Stored channels of a pixel of the input.
    pub(crate) stored_channels: usize,
    /// Distance of two rows of the result in bytes.
    pub(crate) row_pitch: usize,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmitPointers {
    /// Floats or halves [rows][pixels][stored channels].
    pub(crate) x: u64,
    /// The result's rows.
    pub(crate) y: u64,
}

/// The largest k of top k.
pub(crate) const MAX_TOP_K: usize = 64;
/// Values of a block.
const TILE: usize = 1024;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernels.
pub(super) const ENTRIES: [&str; 4] =
    ["sm80_emit_values_f32", "sm80_emit_values_f16", "sm80_emit_softmax", "sm80_emit_top_k"];

/// The content of rows for an output kind and values of type `dtype`.
fn kind(output: OutputKind, dtype: Dtype) -> Result<EmitKind, Error> {
    match (output, dtype) {
        (OutputKind::Logits | OutputKind::Features, Dtype::F32) => Ok(EmitKind::ValuesF32),
        (OutputKind::Logits | OutputKind::Features, Dtype::F16) => Ok(EmitKind::ValuesF16),
        (OutputKind::Probabilities, Dtype::F32) => Ok(EmitKind::Softmax),
        (OutputKind::TopK(k), Dtype::F32) => Ok(EmitKind::TopK(k)),
        (_, dtype) => {
            let takes = "the kernels take f32 values, and f16 ones for logits and features";
            Err(unsupported(&format!("type of values for {output:?}"), dtype, takes))
        }
    }
}

/// The launch of `problem`.
pub(crate) fn launch(problem: &EmitProblem, pointers: &EmitPointers) -> Result<Launch, Error> {
    let EmitProblem { kind, rows, pixels, channels, stored_channels, row_pitch } = *problem;
    in_range("channels", channels, 1, stored_channels.saturating_add(1))?;
    // Leaves room for a stride of threads beyond the last value.
    let stored = product("values of a row", &[pixels, stored_channels])?;
    in_range("values of a row", stored as usize, 1, INDEX_LIMIT - THREADS as usize)?;
    let values = pixels * channels;
    let (entry, x_align, y_align, row_bytes, tiles) = match kind {
        EmitKind::ValuesF32 => (ENTRIES[0], 4, 4, values * 4, values.div_ceil(TILE)),
        EmitKind::ValuesF16 => (ENTRIES[1], 2, 4, values * 4, values.div_ceil(TILE)),
        EmitKind::Softmax => (ENTRIES[2], 4, 4, values * 4, 1),
        EmitKind::TopK(k) => (ENTRIES[3], 4, 8, k * 8, 1),
    };
    let top_k = match kind {
        EmitKind::TopK(k) => in_range("k of top k", k, 1, MAX_TOP_K.min(channels) + 1)? as u32,
        EmitKind::ValuesF32 | EmitKind::ValuesF16 | EmitKind::Softmax => 0,
    };
    if matches!(kind, EmitKind::Softmax | EmitKind::TopK(_)) && pixels != 1 {
        return Err(unsupported("softmax over pixels", pixels, "it takes a vector"));
    }
    if row_pitch < row_bytes || !row_pitch.is_multiple_of(y_align) {
        let instead = format!("at least {row_bytes} and a multiple of {y_align}");
        return Err(unsupported("row pitch", row_pitch, &instead));
    }
    let args = EmitArgs {
        x: aligned("x", pointers.x, x_align)?,
        y: aligned("y", pointers.y, y_align as u64)?,
        row_pitch_bytes: row_pitch as u64,
        channels: channels as u32, // all below `stored`
        stored_channels: stored_channels as u32,
        pixels: pixels as u32,
        tiles: tiles as u32,
        top_k,
        reserved: 0,
        by_channels: FastDivide::by(channels as u32),
    };
    Ok(Launch::flat(entry, product("blocks", &[rows, tiles])?, THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTERS: EmitPointers = EmitPointers { x: 0x100, y: 0x200 };

    fn problem(kind: EmitKind) -> EmitProblem {
        EmitProblem { kind, rows: 3, pixels: 1, channels: 1005, stored_channels: 1008, row_pitch: 4096 }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let top = launch(&problem(EmitKind::TopK(5)), &POINTERS).unwrap();
        let args: EmitArgs = top.args.read();
        assert_eq!([args.x, args.y, args.row_pitch_bytes], [0x100, 0x200, 4096]);
        assert_eq!([args.channels, args.stored_channels, args.pixels, args.top_k], [1005, 1008, 1, 5]);
        assert_eq!(args.by_channels.divide(2010), 2);
        assert_eq!((&*top.entry, top.grid), ("sm80_emit_top_k", [3, 1, 1]));
    }

    #[test]
    fn features_have_pixels_and_tiles() {
        let features = EmitProblem { pixels: 49, row_pitch: 49 * 1005 * 4, ..problem(EmitKind::ValuesF16) };
        let launch = launch(&features, &POINTERS).unwrap();
        assert_eq!(launch.args.read::<EmitArgs>().tiles, 49);
        assert_eq!(launch.grid, [3 * 49, 1, 1]);
    }

    #[test]
    fn out_of_range_is_an_error() {
        for k in [0, 65] {
            assert!(matches!(launch(&problem(EmitKind::TopK(k)), &POINTERS), Err(Error::Unsupported { .. })));
        }
        let few = EmitProblem { channels: 4, ..problem(EmitKind::TopK(5)) };
        assert!(launch(&few, &POINTERS).is_err());
        assert!(launch(&EmitProblem { pixels: 2, ..problem(EmitKind::Softmax) }, &POINTERS).is_err());
        assert!(launch(&EmitProblem { row_pitch: 4016, ..problem(EmitKind::Softmax) }, &POINTERS).is_err());
        assert!(launch(&EmitProblem { rows: 0, ..problem(EmitKind::Softmax) }, &POINTERS).is_err());
        assert!(launch(&EmitProblem { channels: 1009, ..problem(EmitKind::ValuesF32) }, &POINTERS).is_err());
    }

    #[test]
    fn values_of_a_type_that_no_kernel_writes_out_are_refused() {
        assert_eq!(kind(OutputKind::Features, Dtype::F16).unwrap(), EmitKind::ValuesF16);
        assert_eq!(kind(OutputKind::Logits, Dtype::F32).unwrap(), EmitKind::ValuesF32);
        let refused = [
            (OutputKind::Logits, Dtype::U8),
            (OutputKind::Probabilities, Dtype::F16),
            (OutputKind::TopK(5), Dtype::F16),
        ];
        for (output, dtype) in refused {
            assert!(matches!(kind(output, dtype), Err(Error::Unsupported { .. })), "{output:?} of {dtype}");
        }
    }
}
