//! Launches of `kernels/sm90_stem_s8_runs.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, aligned, kernel_args, product, unsupported};
use super::sm90_conv2d_fprop::int;
use super::sm90_requantise::S8Output;
use super::sm90_stem::check_row_pitch;
use super::sm90_stem_s8::{S8StemProblem, words_of};
use super::steps::Operands;
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::{S8Stem, STEM_RUNS};

kernel_args! {
    /// `StemS8RunsArgs`; the maps are encoded before the launch.
    StemS8RunsArgs, 384 bytes {
        y: [u64; 16],
        x: [u64; 16],
        filter: u64,
        bias: u64,
        scale: u64,
        row_bytes: i32,
        height: i32,
        out_height: i32,
        pairs: i32,
        pad_top: i32,
        k_stored: i32,
        run_rows: i32,
        longer_runs: i32,
        by_out_height: FastDivide,
        outside: [u32; 3],
        output: S8Output,
        padding: [i32; 7],
    }
}

const ENTRY: &str = "sm90_stem_u8_7x7_pool_runs";

/// Threads of a block: those that multiply each run, and those that bring image rows.
const THREADS: u32 = 128 * (STEM_RUNS as u32 + 1);

/// Dynamic shared memory of a block: for each run two rows of results, eight stages and one more copy of the first line,
/// sixteen image rows, and sixteen pixels outside of the image.
const SHARED_BYTES: usize = STEM_RUNS * (2 * 4096 + (3 * 8 + 1) * 112 * 16 + 16 * 224 * 3 + 16 * 3);

/// Image rows that the copy engine brings at once.
const STRIP_ROWS: u32 = 4;

/// A network's first layers from usual photos to bytes.
pub(super) struct Sm90StemS8Runs;

impl Launcher for Sm90StemS8Runs {
    fn name(&self) -> &'static str {
        "sm90_stem_s8_runs"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let shared_bytes = SHARED_BYTES as u32;
        vec![EntryPoint { module: "sm90_stem_s8_runs", name: ENTRY, threads: THREADS, shared_bytes, cluster: 1 }]
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        launch(&S8StemProblem::of(step)?, step.limits().units)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<StemS8RunsArgs>("sm90_stem_s8_runs.cu", "StemS8RunsArgs", StemS8RunsArgs::FIELDS)]
    }
}

/// The launch of `problem` on a GPU of `units` multiprocessors.
pub(crate) fn launch(problem: &S8StemProblem, units: usize) -> Result<Launch, Error> {
    let S8StemProblem { stem, row_pitch, outside, y_signed, relu, .. } = *problem;
    stem.check()?;
    if !stem.fits_runs() {
        return Err(unsupported("first layers", format!("{stem:?}"), "use one of S8Stem::kernels"));
    }
    let S8Stem { batch, input, pad, output, .. } = stem;
    check_row_pitch(row_pitch, input)?;
    if !row_pitch.is_multiple_of(16) {
        return Err(unsupported("row pitch", row_pitch, "the copy engine takes multiples of 16 bytes"));
    }
    let rows = product("rows", &[batch, output.height])? as usize;
    let blocks = units.clamp(1, rows);
    let runs = blocks * STEM_RUNS;
    let y = aligned("y", problem.y, 16)?;
    let pairs = output.width / 2;
    // Two pixels are 128 bytes, 64 halves.
    let (dims, box_dims) = ([64, (rows * pairs) as u64], [64, pairs as u32]);
    let y_map = TensorMap::Matrix { address: y, dims, pitch: dims[0], box_dims };
    // A box is at most 256 halves wide: rows of whole 48 bytes have thirds of whole 16.
    let row_bytes = input.width * input.channels;
    let third = (row_bytes / 6) as u64;
    let x_map = TensorMap::Strided {
        address: aligned("x", problem.x, 16)?,
        dims: [third, 3, input.height as u64, batch as u64],
        pitches: [third, 3 * third, row_pitch as u64 / 2],
        box_dims: [third as u32, 3, STRIP_ROWS, 1],
        swizzle: Swizzle::None,
    };
    let args = StemS8RunsArgs {
        filter: aligned("filter", problem.filter, 16)?,
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        row_bytes: int(row_bytes),
        height: int(input.height),
        out_height: int(output.height),
        pairs: int(pairs),
        pad_top: int(pad[0]),
        k_stored: int(output.channels),
        run_rows: int(rows / runs),
        longer_runs: int(rows % runs),
        by_out_height: FastDivide::by(output.height as u32),
        outside: words_of(outside),
        output: S8Output::of(None, y_signed, relu)?,
        ..Zeroable::zeroed()
    };
    Ok(Launch {
        entry: ENTRY.into(),
        grid: [blocks as u32, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: SHARED_BYTES as u32,
        args: ArgBytes::new(&args),
        maps: vec![y_map, x_map],
        waits_itself: false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::{manifest, read};
    use super::super::sm90_stem_s8::tests::problem as of_tiles;
    use super::*;
    use crate::tensor::Shape;

    fn problem() -> S8StemProblem {
        let [input, conv, output] = [Shape::new(40, 208, 3), Shape::new(20, 104, 64), Shape::new(10, 52, 64)];
        let stem = S8Stem { batch: 5, input, pad: [2, 3], conv, output };
        S8StemProblem { stem, x: 0x110, row_pitch: 24_976, ..of_tiles() }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), 4).unwrap();
        let args: StemS8RunsArgs = launch.args.read();
        assert_eq!([args.filter, args.bias, args.scale], [0x200, 0x300, 0x400]);
        assert_eq!([args.row_bytes, args.height, args.out_height, args.pairs], [624, 40, 10, 26]);
        assert_eq!([args.pad_top, args.k_stored, args.run_rows, args.longer_runs], [2, 64, 4, 2]);
        assert_eq!(args.by_out_height.divide(37), 3);
        assert_eq!(args.outside, [0x0103_0201, 0x0201_0302, 0x0302_0103]);
        assert_eq!((args.output.result_offset, args.output.residual_scale), (128, 0.0));
        let y = TensorMap::Matrix { address: 0x500, dims: [64, 1300], pitch: 64, box_dims: [64, 26] };
        let (dims, pitches) = ([104, 3, 40, 5], [104, 312, 12_488]);
        let (box_dims, swizzle) = ([104, 3, 4, 1], Swizzle::None);
        let x = TensorMap::Strided { address: 0x110, dims, pitches, box_dims, swizzle };
        assert_eq!((&*launch.entry, launch.maps), (ENTRY, vec![y, x]));
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([4, 1, 1], [512, 1, 1], 191_376));
        assert_eq!(super::launch(&problem(), 132).unwrap().grid, [50, 1, 1]);
    }

    #[test]
    fn what_the_kernel_does_not_do_is_an_error() {
        let refused = |problem: S8StemProblem| launch(&problem, 4).is_err();
        let good = problem();
        assert!(!refused(good));
        assert!(refused(S8StemProblem { row_pitch: 24_964, ..good }));
        assert!(refused(S8StemProblem { row_pitch: 24_944, ..good }));
        assert!(refused(S8StemProblem { stem: S8Stem { pad: [2, 2], ..good.stem }, ..good }));
        assert!(refused(S8StemProblem { stem: S8Stem { batch: 0, ..good.stem }, ..good }));
        let wide = S8Stem { conv: Shape::new(20, 108, 64), output: Shape::new(10, 54, 64), ..good.stem };
        assert!(refused(S8StemProblem { stem: wide, ..good }), "windows behind the image");
        for at in 0..5 {
            let mut addresses = [good.x, good.filter, good.bias, good.scale, good.y];
            addresses[at] += 8;
            let [x, filter, bias, scale, y] = addresses;
            assert!(refused(S8StemProblem { x, filter, bias, scale, y, ..good }), "operand {at}");
        }
    }

    #[test]
    fn the_kernel_agrees_with_the_source() {
        let (source, manifest) = (read("sm90_stem_s8_runs.cu"), manifest());
        let number = |before: &str| -> u64 {
            let (_, rest) = source.split_once(before).expect(before);
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
        };
        assert_eq!(number("kGroups = "), STEM_RUNS as u64);
        assert_eq!([number("kStagedBytes = "), number("kOutsideWords = "), number("kLines = ")], [4096, 12, 3]);
        assert_eq!(2 * number("kStripStages = "), u64::from(STRIP_ROWS));
        assert_eq!([number("kColumns = "), number("kSlots = "), number("kStripStages = ")], [112, 8, 2]);
        // The threads of a block begin with as many registers as its warpgroups use together; otherwise a warpgroup
        // would wait for more for ever.
        let begins = &manifest["modules"]["sm90_stem_s8_runs"][ENTRY]["sm_90a"]["registers"];
        let uses = number("kLineRegisters = ") + 3 * number("kProductRegisters = ");
        assert_eq!(4 * begins.as_u64().unwrap(), uses);
    }
}
