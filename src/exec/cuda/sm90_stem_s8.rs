//! Launches of `kernels/sm90_stem_s8.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, aligned, in_range, kernel_args, product, unsupported};
use super::sm90_conv2d_fprop::int;
use super::sm90_requantise::S8Output;
use super::sm90_stem::{STAGES, THREADS, check_row_pitch};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::kernels::StemLayers;
use crate::plan::{Kernel, S8Stem, STEM_FILTER_BYTES, STEM_TAPS, StemTile, StepOp, stem_filter_index};
use crate::tensor::{Activation, Dtype};

kernel_args! {
    /// `StemS8Args`.
    StemS8Args, 152 bytes {
        x: u64,
        filter: u64,
        y: u64,
        bias: u64,
        scale: u64,
        row_pitch_bytes: u64,
        height: i32,
        width: i32,
        conv_height: i32,
        conv_width: i32,
        out_height: i32,
        out_width: i32,
        pad_top: i32,
        pad_left: i32,
        k_stored: i32,
        band_rows: i32,
        column_tiles: i32,
        bands: i32,
        by_column_tiles: FastDivide,
        by_bands: FastDivide,
        outside: [u32; 3],
        output: S8Output,
        padding: i32,
    }
}

/// The kernel, and the columns of the convolution that a block computes.
const ENTRY: &str = "sm90_stem_u8_7x7_pool_112";
const COLUMNS: usize = 112;

/// A network's first layers from bytes to bytes.
pub(super) struct Sm90StemS8;

impl Launcher for Sm90StemS8 {
    fn name(&self) -> &'static str {
        "sm90_stem_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let (threads, shared_bytes) = (THREADS, SHARED_BYTES as u32);
        vec![EntryPoint { module: "sm90_stem_s8", name: ENTRY, threads, shared_bytes, cluster: 1 }]
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Sm90StemS8(tile) = step.kernel() else { return Err(step.wrong_kernel()) };
        launch(&S8StemProblem::of(step)?, tile)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<StemS8Args>("sm90_stem_s8.cu", "StemS8Args", StemS8Args::FIELDS)]
    }
}

/// Four pixels outside of the image, as words.
pub(super) fn words_of(outside: [u8; 3]) -> [u32; 3] {
    std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|byte| outside[(4 * word + byte) % 3])))
}

/// Dynamic shared memory of a block: three lines of image rows for each stage and for the three rows before the first,
/// one more copy of the first line, and two rows of results.
const SHARED_BYTES: usize = (3 * (STAGES + 3) + 1) * COLUMNS * 16 + 2 * (COLUMNS / 2) * 64;

/// A network's first layers and the addresses of their operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct S8StemProblem {
    /// The layers.
    pub(crate) stem: S8Stem,
    /// Bytes [H][W][3] of each image.
    pub(crate) x: u64,
    /// Bytes from one image to the next, a multiple of 4.
    pub(crate) row_pitch: usize,
    /// The pixel outside of the image.
    pub(crate) outside: [u8; 3],
    /// Signed bytes, placed by [`packed_stem`].
    pub(crate) filter: u64,
    /// `i32` [K].
    pub(crate) bias: u64,
    /// `f32` [K], finite, not negative.
    pub(crate) scale: u64,
    /// Bytes [batch][H][W][K].
    pub(crate) y: u64,
    /// Whether the bytes of y are signed.
    pub(crate) y_signed: bool,
    /// Whether negative results become 0.
    pub(crate) relu: bool,
}

impl S8StemProblem {
    /// The problem of a step. The step's biases and scales lie behind its filter.
    pub(super) fn of(step: &Operands<'_>) -> Result<Self, Error> {
        let (StepOp::QuantizedStem(of), Some(stem)) = (step.op(), S8Stem::of(&step.work())) else {
            return Err(step.wrong_kernel());
        };
        let (x, _, y) = step.pointers();
        let filter = step.filter(step.name());
        let bias = filter + STEM_FILTER_BYTES as u64;
        Ok(Self {
            stem,
            x,
            row_pitch: step.input_rows().row_pitch,
            outside: of.outside(),
            filter,
            bias,
            scale: bias + (stem.output.channels * size_of::<i32>()) as u64,
            y,
            y_signed: step.y().dtype == Dtype::I8,
            relu: of.stem.conv.activation != Activation::None,
        })
    }
}

/// Filters [K][7][7][3], of up to 64 channels, in the order that the kernel reads.
pub(crate) fn packed_stem(filter: &[i8]) -> Vec<i8> {
    let mut packed = vec![0; STEM_FILTER_BYTES];
    for (channel, taps) in filter.chunks_exact(STEM_TAPS * STEM_TAPS * 3).enumerate() {
        for (at, weight) in taps.iter().enumerate() {
            packed[stem_filter_index([at / 3 / STEM_TAPS, at / 3 % STEM_TAPS, at % 3], channel)] = *weight;
        }
    }
    packed
}

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &S8StemProblem, tile: StemTile) -> Result<Launch, Error> {
    let S8StemProblem { stem, row_pitch, outside, y_signed, relu, .. } = *problem;
    stem.check()?;
    let S8Stem { batch, input, pad, conv, output } = stem;
    if tile.columns != COLUMNS {
        return Err(unsupported("stem tile", tile, "use one of S8Stem::tiles"));
    }
    check_row_pitch(row_pitch, input)?;
    let column_tiles = StemLayers { taps: STEM_TAPS, pools: true }.column_tiles(COLUMNS, output.width);
    let band_rows = in_range("rows of a tile", tile.rows, 1, 1 << 14)?;
    let bands = output.height.div_ceil(tile.rows);
    let args = StemS8Args {
        x: aligned("x", problem.x, 4)?,
        filter: aligned("filter", problem.filter, 16)?,
        y: aligned("y", problem.y, 16)?,
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        row_pitch_bytes: row_pitch as u64,
        height: int(input.height),
        width: int(input.width),
        conv_height: int(conv.height),
        conv_width: int(conv.width),
        out_height: int(output.height),
        out_width: int(output.width),
        pad_top: int(pad[0]),
        pad_left: int(pad[1]),
        k_stored: int(output.channels),
        band_rows,
        column_tiles: int(column_tiles),
        bands: int(bands),
        by_column_tiles: FastDivide::by(column_tiles as u32),
        by_bands: FastDivide::by(bands as u32),
        outside: words_of(outside),
        output: S8Output::of(None, y_signed, relu)?,
        ..Zeroable::zeroed()
    };
    Ok(Launch {
        entry: ENTRY.into(),
        grid: [product("blocks", &[batch, bands, column_tiles])?, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: SHARED_BYTES as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: false,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::entries::tests::{manifest, read};
    use super::*;
    use crate::tensor::Shape;

    pub fn problem() -> S8StemProblem {
        let [input, conv, output] = [Shape::new(39, 260, 3), Shape::new(20, 130, 48), Shape::new(10, 65, 48)];
        S8StemProblem {
            stem: S8Stem { batch: 5, input, pad: [3, 2], conv, output },
            x: 0x104,
            row_pitch: 30_464,
            outside: [1, 2, 3],
            filter: 0x200,
            bias: 0x300,
            scale: 0x400,
            y: 0x500,
            y_signed: true,
            relu: false,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), StemTile { columns: 112, rows: 4 }).unwrap();
        let args: StemS8Args = launch.args.read();
        assert_eq!([args.x, args.filter, args.y, args.bias, args.scale], [0x104, 0x200, 0x500, 0x300, 0x400]);
        assert_eq!(args.row_pitch_bytes, 30_464);
        assert_eq!([args.height, args.width, args.conv_height, args.conv_width], [39, 260, 20, 130]);
        assert_eq!([args.out_height, args.out_width, args.pad_top, args.pad_left], [10, 65, 3, 2]);
        assert_eq!([args.k_stored, args.band_rows, args.column_tiles, args.bands], [48, 4, 2, 3]);
        assert_eq!([args.by_column_tiles.divide(7), args.by_bands.divide(7)], [3, 2]);
        assert_eq!(args.outside, [0x0103_0201, 0x0201_0302, 0x0302_0103]);
        assert_eq!((args.output.result_offset, args.output.residual_scale), (128, 0.0));
        assert_eq!((&*launch.entry, launch.grid, launch.block), ("sm90_stem_u8_7x7_pool_112", [30, 1, 1], [256, 1, 1]));
        assert_eq!((launch.shared_bytes, launch.waits_itself), (46_592, false));
    }

    #[test]
    fn filters_are_packed_by_lines() {
        let filter: Vec<i8> = (0..17 * 147).map(|i| (i % 251) as i8).collect();
        let packed = packed_stem(&filter);
        assert_eq!(packed[stem_filter_index([4, 6, 1], 16)], filter[16 * 147 + (4 * 7 + 6) * 3 + 1]);
        let mut sorted: Vec<i8> = packed.into_iter().filter(|weight| *weight != 0).collect();
        let mut expected: Vec<i8> = filter.into_iter().filter(|weight| *weight != 0).collect();
        sorted.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn what_the_kernel_does_not_do_is_an_error() {
        let tile = StemTile { columns: 112, rows: 3 };
        let refused = |problem: S8StemProblem, tile| launch(&problem, tile).is_err();
        let good = problem();
        assert!(!refused(good, tile));
        assert!(refused(good, StemTile { columns: 64, ..tile }) && refused(good, StemTile { rows: 0, ..tile }));
        assert!(refused(S8StemProblem { row_pitch: 30_466, ..good }, tile));
        assert!(refused(S8StemProblem { row_pitch: 30_416, ..good }, tile));
        assert!(refused(S8StemProblem { stem: S8Stem { batch: 0, ..good.stem }, ..good }, tile));
        for at in 0..5 {
            let mut addresses = [good.x, good.filter, good.bias, good.scale, good.y];
            addresses[at] += 2;
            let [x, filter, bias, scale, y] = addresses;
            assert!(refused(S8StemProblem { x, filter, bias, scale, y, ..good }, tile), "operand {at}");
        }
    }

    #[test]
    fn the_kernel_agrees_with_the_source() {
        let (source, manifest) = (read("sm90_stem_s8.cu"), manifest());
        let mut lines = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_STEM_S8("));
        let line = lines.next().and_then(|line| line.strip_suffix(')')).expect("a kernel");
        let numbers: Vec<u64> = line.split(", ").map(|number| number.parse().unwrap()).collect();
        // The threads of a block begin with as many registers as its warpgroups use together; otherwise a warpgroup
        // would wait for more for ever.
        let begins = &manifest["modules"]["sm90_stem_s8"][ENTRY]["sm_90a"]["registers"];
        assert_eq!(2 * begins.as_u64().unwrap(), numbers[2] + numbers[3]);
        assert_eq!((numbers[0], lines.next()), (COLUMNS as u64, None));
        assert!(source.contains(&format!("kStages = {STAGES};")));
    }
}
