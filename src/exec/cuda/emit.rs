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
            kind: kind(output),
            dtype: source.dtype,
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
    /// The values of the input, as floats.
    Values,
    /// Softmax of the input's values.
    Softmax,
    /// This many pairs of probability and index.
    TopK(usize),
}

/// Values to be written as output rows, without padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmitProblem {
    /// What to write in a row.
    pub(crate) kind: EmitKind,
    /// The type of the input's values: f32 or f16.
    pub(crate) dtype: Dtype,
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
/// The kernels: of floats, then of halves.
pub(super) const ENTRIES: [&str; 6] = [
    "sm80_emit_values_f32",
    "sm80_emit_softmax",
    "sm80_emit_top_k",
    "sm80_emit_values_f16",
    "sm80_emit_softmax_f16",
    "sm80_emit_top_k_f16",
];

/// The content of rows for an output kind.
const fn kind(output: OutputKind) -> EmitKind {
    match output {
        OutputKind::Logits | OutputKind::Features => EmitKind::Values,
        OutputKind::Probabilities => EmitKind::Softmax,
        OutputKind::TopK(k) => EmitKind::TopK(k),
    }
}

/// The launch of `problem`.
pub(crate) fn launch(problem: &EmitProblem, pointers: &EmitPointers) -> Result<Launch, Error> {
    let EmitProblem { kind, dtype, rows, pixels, channels, stored_channels, row_pitch } = *problem;
    let of_type = match dtype {
        Dtype::F32 => &ENTRIES[..3],
        Dtype::F16 => &ENTRIES[3..],
        other => return Err(unsupported("type of values", other, "the kernels take f32 and f16")),
    };
    in_range("channels", channels, 1, stored_channels.saturating_add(1))?;
    // Leaves room for a stride of threads beyond the last value.
    let stored = product("values of a row", &[pixels, stored_channels])?;
    in_range("values of a row", stored as usize, 1, INDEX_LIMIT - THREADS as usize)?;
    let values = pixels * channels;
    let (entry, y_align, row_bytes, tiles) = match kind {
        EmitKind::Values => (of_type[0], 4, values * 4, values.div_ceil(TILE)),
        EmitKind::Softmax => (of_type[1], 4, values * 4, 1),
        EmitKind::TopK(k) => (of_type[2], 8, k * 8, 1),
    };
    let top_k = match kind {
        EmitKind::TopK(k) => in_range("k of top k", k, 1, MAX_TOP_K.min(channels) + 1)? as u32,
        EmitKind::Values | EmitKind::Softmax => 0,
    };
    if matches!(kind, EmitKind::Softmax | EmitKind::TopK(_)) && pixels != 1 {
        return Err(unsupported("softmax over pixels", pixels, "it takes a vector"));
    }
    if row_pitch < row_bytes || !row_pitch.is_multiple_of(y_align) {
        let instead = format!("at least {row_bytes} and a multiple of {y_align}");
        return Err(unsupported("row pitch", row_pitch, &instead));
    }
    let args = EmitArgs {
        x: aligned("x", pointers.x, dtype.bytes() as u64)?,
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
        EmitProblem {
            kind,
            dtype: Dtype::F32,
            rows: 3,
            pixels: 1,
            channels: 1005,
            stored_channels: 1008,
            row_pitch: 4096,
        }
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
        let of = problem(EmitKind::Values);
        let features = EmitProblem { dtype: Dtype::F16, pixels: 49, row_pitch: 49 * 1005 * 4, ..of };
        let launch = launch(&features, &POINTERS).unwrap();
        assert_eq!(&*launch.entry, "sm80_emit_values_f16");
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
        assert!(launch(&EmitProblem { channels: 1009, ..problem(EmitKind::Values) }, &POINTERS).is_err());
    }

    #[test]
    fn values_of_a_type_that_no_kernel_writes_out_are_refused() {
        let of = |dtype, output| launch(&EmitProblem { dtype, ..problem(kind(output)) }, &POINTERS);
        for output in [OutputKind::Logits, OutputKind::Probabilities, OutputKind::TopK(5), OutputKind::Features] {
            assert!(matches!(of(Dtype::U8, output), Err(Error::Unsupported { .. })), "{output:?}");
            let [floats, halves] = [Dtype::F32, Dtype::F16].map(|dtype| of(dtype, output).unwrap().entry);
            assert_eq!(floats.trim_end_matches("_f32"), halves.trim_end_matches("_f16"), "{output:?}");
        }
    }
}
