//! Launches of `kernels/normalize.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{INDEX_LIMIT, Launch, aligned, chunks_of, in_range, kernel_args, product, unsupported};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::StepOp;
use crate::tensor::{InputFormat, Shape};

kernel_args! {
    /// `NormalizeArgs`.
    NormalizeArgs, 104 bytes {
        x: u64,
        y: u64,
        row_pitch_bytes: u64,
        pixels: i32,
        channels: i32,
        c_chunks: i32,
        tiles: i32,
        mean: [f32; MAX_MEANS],
        inv_std: [f32; MAX_MEANS],
    }
}

/// The launcher of kernels that turn input rows into activations.
pub(super) struct Normalize;

impl Launcher for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("normalize", &ENTRIES, THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Normalize { format, mean, std } = step.op() else { return Err(step.wrong_kernel()) };
        let ((x, _, y), rows) = (step.pointers(), step.x());
        let problem = NormalizeProblem {
            batch: step.batch(),
            format: *format,
            shape: rows.shape,
            c_stored: step.y().stored_channels,
            row_pitch: step.input_rows().row_pitch,
            mean,
            std,
        };
        launch(&problem, &NormalizePointers { x, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<NormalizeArgs>("normalize.cu", "NormalizeArgs", NormalizeArgs::FIELDS)]
    }
}

/// Input rows that become halves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormalizeProblem<'a> {
    /// Rows.
    pub(crate) batch: usize,
    /// The format of the rows.
    pub(crate) format: InputFormat,
    /// H, W and the logical channels.
    pub(crate) shape: Shape,
    /// Stored channels of the result.
    pub(crate) c_stored: usize,
    /// Distance from one row to the next, in bytes.
    pub(crate) row_pitch: usize,
    /// Subtracted from each channel of bytes, in units of their full scale; one value a channel, unused otherwise.
    pub(crate) mean: &'a [f32],
    /// Divides each channel of bytes after the subtraction.
    pub(crate) std: &'a [f32],
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormalizePointers {
    /// The rows.
    pub(crate) x: u64,
    /// Halves [batch][H][W][C].
    pub(crate) y: u64,
}

/// `kMaxMeans`.
pub(super) const MAX_MEANS: usize = 8;
/// Pixels or chunks that a block computes: `kTilePixels`.
const TILE: usize = 1024;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernels: bytes, floats by plane, halves, floats.
pub(super) const ENTRIES: [&str; 4] =
    ["sm80_normalize_u8_nhwc", "sm80_normalize_f32_nchw", "sm80_normalize_f16_nhwc", "sm80_normalize_f32_nhwc"];

/// The launch of `problem`.
pub(crate) fn launch(problem: &NormalizeProblem<'_>, pointers: &NormalizePointers) -> Result<Launch, Error> {
    let NormalizeProblem { batch, format, shape, c_stored, row_pitch, mean, std } = *problem;
    let c_chunks = chunks_of("stored channels", c_stored)?;
    let channels = in_range("channels", shape.channels, 1, c_stored + 1)?;
    let elems = product("elements of a row", &[shape.height, shape.width, c_stored])?;
    if row_pitch < shape.elems() * format.dtype().bytes() {
        return Err(unsupported("row pitch", row_pitch, "rows must not overlap"));
    }
    // Bytes are read 16 at a time, up to the pitch.
    let (entry, align) = match format {
        InputFormat::U8Nhwc => (ENTRIES[0], 16),
        InputFormat::F32Nchw => (ENTRIES[1], 4),
        InputFormat::F16Nhwc => (ENTRIES[2], 2),
        InputFormat::F32Nhwc => (ENTRIES[3], 4),
    };
    if !row_pitch.is_multiple_of(align) {
        return Err(unsupported("row pitch", row_pitch, &format!("a multiple of {align}")));
    }
    let [mean, inv_std] = match format {
        InputFormat::U8Nhwc if c_stored == MAX_MEANS => constants(shape.channels, mean, std)?,
        InputFormat::U8Nhwc => return Err(too_many(shape.channels)),
        InputFormat::F32Nchw | InputFormat::F16Nhwc | InputFormat::F32Nhwc => [[0.0; MAX_MEANS]; 2],
    };
    let tiles = (elems as usize / super::launch::CHUNK).div_ceil(TILE);
    let args = NormalizeArgs {
        x: aligned("x", pointers.x, align as u64)?,
        y: aligned("y", pointers.y, 16)?,
        row_pitch_bytes: row_pitch as u64,
        pixels: in_range("pixels", shape.pixels(), 1, INDEX_LIMIT)?,
        channels,
        c_chunks: in_range("stored channels / 8", c_chunks, 1, INDEX_LIMIT)?,
        tiles: in_range("tiles", tiles, 1, INDEX_LIMIT)?,
        mean,
        inv_std,
    };
    Ok(Launch::flat(entry, product("blocks", &[batch, tiles])?, THREADS, &args))
}

/// Means and reciprocals of deviations, one for each channel.
pub(super) fn constants(channels: usize, mean: &[f32], std: &[f32]) -> Result<[[f32; MAX_MEANS]; 2], Error> {
    if channels > MAX_MEANS {
        return Err(too_many(channels));
    }
    if mean.len() != channels || std.len() != channels {
        let given = format!("{} and {} values", mean.len(), std.len());
        return Err(Error::option("mean and std", given, format!("{channels} each")));
    }
    if let Some(bad) = std.iter().find(|s| !s.recip().is_finite()) {
        return Err(Error::option("std", bad, "a finite reciprocal"));
    }
    let mut constants = [[0.0; MAX_MEANS]; 2];
    constants[0][..mean.len()].copy_from_slice(mean);
    for (inverse, std) in constants[1].iter_mut().zip(std) {
        *inverse = std.recip();
    }
    Ok(constants)
}

fn too_many(channels: usize) -> Error {
    unsupported("channels of bytes", channels, "up to 8; feed floats or halves instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTERS: NormalizePointers = NormalizePointers { x: 0x100, y: 0x200 };

    fn problem() -> NormalizeProblem<'static> {
        NormalizeProblem {
            batch: 5,
            format: InputFormat::U8Nhwc,
            shape: Shape::new(41, 43, 3),
            c_stored: 8,
            row_pitch: 5376,
            mean: &[0.1, 0.2, 0.3],
            std: &[0.5, 0.25, 0.125],
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), &POINTERS).unwrap();
        let args: NormalizeArgs = launch.args.read();
        assert_eq!([args.x, args.y, args.row_pitch_bytes], [0x100, 0x200, 5376]);
        assert_eq!([args.pixels, args.channels, args.c_chunks, args.tiles], [1763, 3, 1, 2]);
        assert_eq!(args.mean, [0.1, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(args.inv_std, [2.0, 4.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((&*launch.entry, launch.grid), ("sm80_normalize_u8_nhwc", [10, 1, 1]));
    }

    #[test]
    fn floats_and_halves_may_have_many_channels() {
        let many = NormalizeProblem {
            shape: Shape::new(32, 32, 20),
            c_stored: 24,
            row_pitch: 32 * 32 * 20 * 4,
            mean: &[],
            std: &[],
            ..problem()
        };
        let floats = launch(&NormalizeProblem { format: InputFormat::F32Nchw, ..many }, &POINTERS).unwrap();
        assert_eq!((&*floats.entry, floats.grid), ("sm80_normalize_f32_nchw", [5 * 3, 1, 1]));
        let halves = launch(&NormalizeProblem { format: InputFormat::F16Nhwc, ..many }, &POINTERS).unwrap();
        assert_eq!(halves.entry, "sm80_normalize_f16_nhwc");
        let floats = launch(&NormalizeProblem { format: InputFormat::F32Nhwc, ..many }, &POINTERS).unwrap();
        assert_eq!(floats.entry, "sm80_normalize_f32_nhwc");
        assert!(launch(&many, &POINTERS).is_err());
    }

    #[test]
    fn out_of_range_is_an_error() {
        assert!(launch(&NormalizeProblem { row_pitch: 5288, ..problem() }, &POINTERS).is_err());
        assert!(launch(&NormalizeProblem { row_pitch: 5300, ..problem() }, &POINTERS).is_err());
        assert!(launch(&NormalizeProblem { mean: &[0.0], ..problem() }, &POINTERS).is_err());
        assert!(launch(&NormalizeProblem { std: &[1.0, 0.0, 1.0], ..problem() }, &POINTERS).is_err());
        assert!(launch(&problem(), &NormalizePointers { x: 0x108, ..POINTERS }).is_err());
    }
}
