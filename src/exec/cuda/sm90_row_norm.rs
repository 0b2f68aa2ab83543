//! Launches of `kernels/sm90_row_norm.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{
    ArgBytes, CHUNK, FastDivide, INDEX_LIMIT, Launch, Rows, aligned, chunks_of, in_range, kernel_args, pitch,
    positive_epsilon, to_codes, unsupported,
};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::{JoinedNorm, Kernel, RowNormOp, RowNormResult, RowSum, RowsAt, StepOp};
use crate::tensor::Dtype;

kernel_args! {
    /// `RowNormArgs`.
    RowNormArgs, 168 bytes {
        x: u64,
        y: u64,
        weight: u64,
        bias: u64,
        x_pitch: i64,
        y_pitch: i64,
        rows: i32,
        chunks: i32,
        centred: i32,
        epsilon: f32,
        per_column: f32,
        to_codes: f32,
        codes: u64,
        codes_pitch: i64,
        first_block: i32,
        image_rows: i32,
        prefix: u64,
        positions: u64,
        sum: u64,
        sum_pitch: i64,
        first_weight: u64,
        first_bias: u64,
        prefix_rows: i32,
        first_placed: i32,
        first_centred: i32,
        first_epsilon: f32,
        by_image_rows: FastDivide,
    }
}

/// The modules of f16 and bf16, and that of codes of f16, alone and beside the result in f16. Results in f32 are in the
/// first two.
const MODULES: [&str; 4] = ["sm90_row_norm", "sm90_row_norm_bf16", "sm90_row_norm", "sm90_row_norm"];

/// The names of the kernels with this suffix: one for each of these numbers of chunks of a lane, and one for few rows.
macro_rules! names {
    ($of:literal, $($chunks:literal)*) => {
        ([$(concat!("sm90_row_norm_", $chunks, $of)),*], concat!("sm90_row_norm_few", $of))
    };
}

/// The kernels of each module.
const ENTRIES: [([&str; 8], &str); 4] = [
    names!("", 1 2 3 4 5 6 7 8),
    names!("_bf16", 1 2 3 4 5 6 7 8),
    names!("_e4m3", 1 2 3 4 5 6 7 8),
    names!("_both", 1 2 3 4 5 6 7 8),
];
/// The kernels of f16 and bf16 that write f32, for any number of rows.
const TO_F32: [&str; 2] = ["sm90_row_norm_few_f32", "sm90_row_norm_few_f32_bf16"];
/// The kernels of norms of sums in f16 and bf16, first of one norm and then of two. Rows of more chunks go to those for few
/// rows.
const OF_SUMS: [[([&str; 4], &str); 2]; 2] = [
    [names!("_sum", 1 2 3 4), names!("_sum_twice", 1 2 3 4)],
    [names!("_sum_bf16", 1 2 3 4), names!("_sum_twice_bf16", 1 2 3 4)],
];
/// The most threads of a block of the kernel for few rows.
const FEW_THREADS: u32 = 256;
/// The most rows for which that kernel is taken: all blocks then run at the same time on an H200.
const FEW_ROWS: usize = 1024;
/// The most blocks of a result in floats: 16 for each multiprocessor of an H200. Where there are more rows, each block
/// has several.
const FLOAT_BLOCKS: usize = 16 * 132;
/// Threads of a block.
const THREADS: u32 = 64;
/// Rows of a block, two for each warp.
const BLOCK_ROWS: usize = 4;
/// Columns that the 32 lanes of a warp read in one chunk each.
const LANE_COLUMNS: usize = 32 * CHUNK;

/// The launcher of norms of rows.
pub(super) struct Sm90RowNorm;

impl Launcher for Sm90RowNorm {
    fn name(&self) -> &'static str {
        "sm90_row_norm"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_type = |(module, (names, few)): (_, ([&'static str; 8], _))| {
            EntryPoint::flat(module, &names, THREADS).into_iter().chain(EntryPoint::flat(module, &[few], FEW_THREADS))
        };
        let to_f32 = MODULES.into_iter().zip(TO_F32);
        let to_f32 = to_f32.flat_map(|(module, name)| EntryPoint::flat(module, &[name], FEW_THREADS));
        let of_sums = MODULES.into_iter().zip(OF_SUMS).flat_map(|(module, kinds)| {
            kinds.into_iter().flat_map(move |(names, few)| {
                EntryPoint::flat(module, &names, THREADS).into_iter().chain(EntryPoint::flat(
                    module,
                    &[few],
                    FEW_THREADS,
                ))
            })
        });
        MODULES.into_iter().zip(ENTRIES).flat_map(of_type).chain(to_f32).chain(of_sums).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::RowNorm(of), Kernel::Sm90RowNorm) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        launch(&RowNormProblem::of(of, step))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<RowNormArgs>("sm90_row_norm.cu", "RowNormArgs", RowNormArgs::FIELDS)]
    }
}

/// A LayerNorm or RMSNorm and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNormProblem {
    /// The type of x: f16 or bf16.
    pub(crate) dtype: Dtype,
    /// Rows, and values of each.
    pub(crate) sizes: [usize; 2],
    /// Whether the mean is subtracted: LayerNorm.
    pub(crate) centred: bool,
    /// The positive number that is added to the variance.
    pub(crate) epsilon: f32,
    /// The operand; of a sum the images' own rows.
    pub(crate) x: Rows,
    /// Address of a float for each column.
    pub(crate) weight: u64,
    /// Address of a float for each column, if there is a bias.
    pub(crate) bias: Option<u64>,
    /// The result in the type of x, if it is wanted; may be x.
    pub(crate) y: Option<Rows>,
    /// The result in f32, if it is wanted; then no other is.
    pub(crate) floats: Option<Rows>,
    /// The result in codes of e4m3, if they are wanted, and their scale. Then x is of f16.
    pub(crate) codes: Option<(Rows, f32)>,
    /// Whether the last rows are computed first, where there are many.
    pub(crate) backward: bool,
    /// The sum that the norm is of, if it makes one: then its result is in the type of x.
    pub(crate) sum: Option<RowSumProblem>,
}

/// The sum of a norm, with its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSumProblem {
    /// What is added.
    pub(crate) of: RowSum,
    /// Address of the floats of the rows in front, if there are any.
    pub(crate) prefix: u64,
    /// Address of the floats of the positions, if there are any.
    pub(crate) positions: u64,
    /// The sum, or the result of its first norm.
    pub(crate) sum: Rows,
    /// Addresses of a float for each column for the first norm, if there is one: its factors, and its biases.
    pub(crate) first: [u64; 2],
}

impl RowNormProblem {
    /// The problem of a step, which reads rows, the operands of a sum if it makes one, factors, and biases if there are any.
    fn of(of: &RowNormOp, step: &Operands<'_>) -> Self {
        let &RowNormOp { rows, columns, centred, epsilon, result, sum } = of;
        let dense = |address| RowsAt { first: 0, pitch: columns }.on(address);
        let (x, _, first) = step.pointers();
        let (y, codes) = match result {
            RowNormResult::Rows => (Some(dense(first)), None),
            RowNormResult::Codes(scale) => (None, Some((dense(first), scale))),
            RowNormResult::Both(scale) => (Some(dense(first)), Some((dense(step.output_address(1)), scale))),
            RowNormResult::F32 => (None, None),
        };
        let floats = (result == RowNormResult::F32).then_some(Rows { address: first, pitch: columns });
        let mut inputs = 1..step.inputs();
        let mut next =
            |is_there: bool| is_there.then(|| inputs.next()).flatten().map(|index| step.input_address(index));
        let sum = sum.map(|of| {
            let [prefix, positions] =
                [of.prefix > 0, of.positions.is_some()].map(|is_there| next(is_there).unwrap_or(0));
            let first = [of.first.is_some(), of.first.is_some_and(|first| first.bias)];
            let first = first.map(|is_there| next(is_there).unwrap_or(0));
            RowSumProblem { of, prefix, positions, sum: dense(step.output_address(1)), first }
        });
        let (weight, bias) = (next(true).unwrap_or(0), next(true));
        let (dtype, sizes, x, backward) = (step.x().dtype, [rows, columns], dense(x), step.backward);
        Self { dtype, sizes, centred, epsilon, x, weight, bias, y, floats, codes, backward, sum }
    }
}

/// The launch of `problem`.
pub(crate) fn launch(problem: &RowNormProblem) -> Result<Launch, Error> {
    let &RowNormProblem { dtype, sizes: [rows, columns], centred, epsilon, x, weight, bias, codes, .. } = problem;
    let RowNormProblem { floats, backward, sum, .. } = *problem;
    let chunks = chunks_of("columns", columns)?;
    let [f16, bf16, to_e4m3, both] = ENTRIES;
    let y = problem.y.or(floats);
    let (names, few) = match (problem.y, codes) {
        (None, None) if floats.is_some() => (f16.0, of_half(dtype, TO_F32)?),
        (Some(_), None) => of_half(dtype, [f16, bf16])?,
        (None, None) => {
            return Err(unsupported("results of a norm", "none", "it writes rows, codes, both, or rows in f32"));
        }
        (_, Some(_)) if dtype != Dtype::F16 => return Err(unsupported("codes of rows", dtype, "they are of f16")),
        (None, Some(_)) => to_e4m3,
        (Some(_), Some(_)) => both,
    };
    let lane_chunks = columns.div_ceil(LANE_COLUMNS);
    let entry = names.get(lane_chunks - 1);
    let mut entry = *entry.ok_or_else(|| unsupported("columns", columns, "the kernel takes rows of up to 2048"))?;
    let (mut few, mut is_few) = (few, rows <= FEW_ROWS || floats.is_some());
    if let Some(sum) = sum {
        if problem.y.is_none() || codes.is_some() {
            return Err(unsupported("results of a norm of a sum", "others", "it writes rows"));
        }
        let of_type = of_half(dtype, OF_SUMS)?;
        let (names, of_few) = of_type[usize::from(sum.of.first.is_some())];
        (entry, few) = (*names.get(lane_chunks - 1).unwrap_or(&of_few), of_few);
        is_few |= entry == few;
    }
    let (entry, blocks, threads) = if is_few {
        let blocks = if floats.is_some() { rows.min(FLOAT_BLOCKS) } else { rows };
        (few, blocks, chunks.next_multiple_of(32) as u32)
    } else {
        // Of a sum a warp has the same row of two images.
        let whole = sum.and_then(|sum| Some(rows.checked_div(sum.of.rows)?.next_multiple_of(2) * sum.of.rows));
        (entry, whole.unwrap_or(rows).div_ceil(BLOCK_ROWS), THREADS)
    };
    let chunk_pitch = |at: Rows| pitch(at.pitch, columns).map(|pitch| i64::from(pitch) / CHUNK as i64);
    let args = RowNormArgs {
        x: aligned("x", x.address, 16)?,
        y: y.map_or(Ok(0), |y| aligned("y", y.address, 16))?,
        weight: aligned("weight", weight, 16)?,
        bias: bias.map_or(Ok(0), |address| aligned("bias", address, 16))?,
        x_pitch: chunk_pitch(x)?,
        y_pitch: y.map_or(Ok(0), chunk_pitch)?,
        rows: in_range("rows", rows, 1, INDEX_LIMIT - BLOCK_ROWS)?,
        chunks: chunks as i32,
        centred: i32::from(centred),
        epsilon: positive_epsilon(epsilon)?,
        per_column: (columns as f32).recip(),
        to_codes: to_codes(codes.map(|(_, scale)| scale))?,
        codes: codes.map_or(Ok(0), |(codes, _)| aligned("codes", codes.address, 8))?,
        codes_pitch: codes.map_or(Ok(0), |(codes, _)| chunk_pitch(codes))?,
        first_block: if backward && !is_few { blocks as i32 - 1 } else { 0 },
        ..RowNormArgs::zeroed()
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [blocks as u32, 1, 1],
        cluster: 1,
        block: [threads, 1, 1],
        shared_bytes: 0,
        args: match &sum {
            Some(sum) => ArgBytes::new(&sum.beside(args, [rows, columns])?),
            None => ArgBytes::new(&args),
        },
        maps: Vec::new(),
        waits_itself: true,
    })
}

impl RowSumProblem {
    /// The arguments of a norm with those of the sum.
    fn beside(&self, norm: RowNormArgs, [rows, columns]: [usize; 2]) -> Result<RowNormArgs, Error> {
        let Self { of: RowSum { rows: each, prefix, positions, first }, sum, .. } = *self;
        if each == 0 || !rows.is_multiple_of(each) || prefix >= each {
            return Err(unsupported("rows of an image", each, "images have as many rows each, and some of their own"));
        }
        if positions.is_some_and(|from| from != 0 && from != prefix) {
            return Err(unsupported("rows without a position", "some", "they are none, or those in front"));
        }
        // A warp may have rows of an image behind the last one, in a block behind the last pair of images.
        in_range("rows and those of two more images", rows.saturating_add(2 * each), 1, INDEX_LIMIT)?;
        let JoinedNorm { centred, epsilon, bias } =
            first.unwrap_or(JoinedNorm { centred: false, epsilon: 1.0, bias: false });
        let given = |what, is_there: bool, address| if is_there { aligned(what, address, 16) } else { Ok(0) };
        Ok(RowNormArgs {
            prefix: given("prefix", prefix > 0, self.prefix)?,
            positions: given("positions", positions.is_some(), self.positions)?,
            sum: aligned("sum", sum.address, 16)?,
            sum_pitch: i64::from(pitch(sum.pitch, columns)?) / CHUNK as i64,
            first_weight: given("weight", first.is_some(), self.first[0])?,
            first_bias: given("bias", bias, self.first[1])?,
            image_rows: each as i32,
            prefix_rows: prefix as i32,
            first_placed: positions.unwrap_or(0) as i32,
            first_centred: i32::from(centred),
            first_epsilon: positive_epsilon(epsilon)?,
            by_image_rows: FastDivide::by(each as u32),
            ..norm
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const PROBLEM: RowNormProblem = RowNormProblem {
        dtype: Dtype::F16,
        sizes: [1025, 776],
        centred: true,
        epsilon: 1e-6,
        x: Rows { address: 0x100, pitch: 784 },
        weight: 0x200,
        bias: Some(0x300),
        y: Some(Rows { address: 0x400, pitch: 792 }),
        floats: None,
        codes: None,
        backward: false,
        sum: None,
    };
    const CODES: (Rows, f32) = (Rows { address: 0x508, pitch: 800 }, 0.25);

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_row_norm.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_ROW_NORM(")?.strip_suffix(')'));
        let chunks: Vec<&str> = found.collect();
        for (suffix, (names, few)) in ["", "_bf16", "_e4m3", "_both"].into_iter().zip(ENTRIES) {
            assert!(chunks.iter().map(|chunks| format!("sm90_row_norm_{chunks}{suffix}")).eq(names));
            assert_eq!(few, format!("sm90_row_norm_few{suffix}"));
        }
        assert!(source.contains(&format!("TREFOIL_SM90_ROW_NORM_FEW({}, Writes::kFloats)", TO_F32[0])));
        let is_there = |name: &&str| source.contains(&format!("TREFOIL_SM90_ROW_NORM_FEW({name}, "));
        assert!(["sm90_row_norm_few", "sm90_row_norm_few_e4m3", "sm90_row_norm_few_both"].iter().all(is_there));
        let of_sums =
            |line: &str| line.strip_prefix("TREFOIL_SM90_ROW_NORM_OF_SUM(")?.strip_suffix(')').map(str::to_owned);
        let chunks: Vec<String> = source.lines().filter_map(of_sums).collect();
        for (kinds, of_type) in OF_SUMS.into_iter().zip(["", "_bf16"]) {
            for ((names, few), kind) in kinds.into_iter().zip(["_sum", "_sum_twice"]) {
                assert!(chunks.iter().map(|chunks| format!("sm90_row_norm_{chunks}{kind}{of_type}")).eq(names));
                assert_eq!(few, format!("sm90_row_norm_few{kind}{of_type}"));
            }
        }
    }

    #[test]
    fn a_sum_has_its_own_kernels_and_arguments() {
        let of = |first, rows| RowSum { rows, prefix: 1, positions: Some(1), first };
        let sum = |of| RowSumProblem {
            of,
            prefix: 0x700,
            positions: 0x800,
            sum: Rows { address: 0x900, pitch: 816 },
            first: [0xa00, 0xb00],
        };
        let first = Some(JoinedNorm { centred: true, epsilon: 0.5, bias: false });
        let of_sum = |of| RowNormProblem { sizes: [3 * 500, 776], sum: Some(sum(of)), ..PROBLEM };
        let twice = launch(&of_sum(of(first, 500))).unwrap();
        // Two pairs of images, of which the last one has one.
        assert_eq!((&*twice.entry, twice.grid, twice.block), ("sm90_row_norm_4_sum_twice", [500, 1, 1], [64, 1, 1]));
        let args: RowNormArgs = twice.args.read();
        assert_eq!([args.prefix, args.positions, args.sum, args.first_weight], [0x700, 0x800, 0x900, 0xa00]);
        assert_eq!((args.first_bias, args.sum_pitch, args.first_centred, args.first_epsilon), (0, 102, 1, 0.5));
        assert_eq!([args.image_rows, args.prefix_rows, args.first_placed], [500, 1, 1]);
        assert_eq!(args.by_image_rows.divide(1499), 2);
        let once = launch(&RowNormProblem { dtype: Dtype::Bf16, ..of_sum(of(None, 1500)) }).unwrap();
        assert_eq!((&*once.entry, once.grid), ("sm90_row_norm_4_sum_bf16", [750, 1, 1]));
        let few = launch(&RowNormProblem { sizes: [500, 776], ..of_sum(of(None, 500)) }).unwrap();
        assert_eq!((&*few.entry, few.grid, few.block), ("sm90_row_norm_few_sum", [500, 1, 1], [128, 1, 1]));
        let wide = Rows { address: 0x100, pitch: 2048 };
        let wide = RowNormProblem { sizes: [1500, 1032], x: wide, y: Some(wide), ..PROBLEM };
        let of_wide = RowSumProblem { sum: Rows { address: 0x100, pitch: 2048 }, ..sum(of(None, 500)) };
        let of_wide = launch(&RowNormProblem { sum: Some(of_wide), backward: true, ..wide }).unwrap();
        assert_eq!((&*of_wide.entry, of_wide.grid), ("sm90_row_norm_few_sum", [1500, 1, 1]));
        assert_eq!(of_wide.args.read::<RowNormArgs>().first_block, 0);
        let refused = |of| launch(&of_sum(of)).is_err();
        assert!(
            refused(of(None, 499)) && refused(of(None, 1)) && refused(RowSum { positions: Some(2), ..of(None, 500) })
        );
        let many = |rows: usize| RowNormProblem { sizes: [rows, 776], ..of_sum(of(None, rows)) };
        assert!(launch(&many(700_000_000)).is_ok() && launch(&many(720_000_000)).is_err());
        assert!(refused(of(Some(JoinedNorm { centred: true, epsilon: 0.0, bias: true }), 500)));
        assert!(launch(&RowNormProblem { codes: Some(CODES), ..of_sum(of(None, 500)) }).is_err());
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&PROBLEM).unwrap();
        let args: RowNormArgs = of.args.read();
        assert_eq!([args.x, args.weight, args.bias, args.y], [0x100, 0x200, 0x300, 0x400]);
        assert_eq!(([args.x_pitch, args.y_pitch], [args.rows, args.chunks, args.centred]), ([98, 99], [1025, 97, 1]));
        assert_eq!([args.epsilon, args.per_column], [1e-6, 1.0 / 776.0]);
        let first = |rows| {
            let of = launch(&RowNormProblem { sizes: [rows, 776], backward: true, ..PROBLEM }).unwrap();
            of.args.read::<RowNormArgs>().first_block
        };
        assert_eq!((args.first_block, first(1025), first(1024)), (0, 256, 0));
        assert_eq!((&*of.entry, of.grid, of.block), ("sm90_row_norm_4", [257, 1, 1], [64, 1, 1]));
        let of = launch(&RowNormProblem { sizes: [1024, 776], ..PROBLEM }).unwrap();
        assert_eq!((&*of.entry, of.grid, of.block), ("sm90_row_norm_few", [1024, 1, 1], [128, 1, 1]));
        for (rows, name) in [(1024, "sm90_row_norm_few_bf16"), (1025, "sm90_row_norm_4_bf16")] {
            let problem = RowNormProblem { sizes: [rows, 776], ..PROBLEM };
            let of_bf16 = launch(&RowNormProblem { dtype: Dtype::Bf16, ..problem }).unwrap();
            assert_eq!(of_bf16.entry, name);
            assert_eq!(of_bf16.args.as_bytes(), launch(&problem).unwrap().args.as_bytes());
        }
        for (rows, name) in [(1024, "sm90_row_norm_few_e4m3"), (1025, "sm90_row_norm_4_e4m3")] {
            let problem = RowNormProblem { sizes: [rows, 776], codes: Some(CODES), ..PROBLEM };
            let [alone, both] =
                [RowNormProblem { y: None, ..problem }, problem].map(|problem| launch(&problem).unwrap());
            assert_eq!([alone.entry.to_string(), both.entry.replace("_both", "_e4m3")], [name; 2]);
            let [alone, both]: [RowNormArgs; 2] = [alone.args.read(), both.args.read()];
            assert_eq!(([alone.y, both.y], [alone.y_pitch, both.y_pitch]), ([0, 0x400], [0, 99]));
            assert!([alone, both].iter().all(|of| (of.codes, of.codes_pitch, of.to_codes) == (0x508, 100, 4.0)));
        }
        for (rows, (dtype, name)) in [7, 2113].into_iter().zip([Dtype::F16, Dtype::Bf16].into_iter().zip(TO_F32)) {
            let floats = Some(Rows { address: 0x600, pitch: 808 });
            let to_f32 = RowNormProblem { dtype, sizes: [rows, 776], y: None, floats, backward: true, ..PROBLEM };
            let of = launch(&to_f32).unwrap();
            let args: RowNormArgs = of.args.read();
            assert_eq!((&*of.entry, of.grid, of.block), (name, [rows.min(2112) as u32, 1, 1], [128, 1, 1]));
            assert_eq!((args.y, args.y_pitch, args.first_block), (0x600, 101, 0));
            assert!(launch(&RowNormProblem { floats: None, ..to_f32 }).is_err());
        }
        let of = launch(&RowNormProblem { bias: None, centred: false, ..PROBLEM }).unwrap();
        let args: RowNormArgs = of.args.read();
        assert_eq!((args.bias, args.centred), (0, 0));
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |problem: RowNormProblem| launch(&problem).is_err();
        let wide = Rows { address: 0x100, pitch: 4096 };
        let sized =
            |rows, columns| refused(RowNormProblem { sizes: [rows, columns], x: wide, y: Some(wide), ..PROBLEM });
        assert!(!sized(1, 2048) && !sized(1, 8) && sized(1, 2056) && sized(1, 12) && sized(1, 0) && sized(0, 8));
        assert!(
            refused(RowNormProblem { epsilon: 0.0, ..PROBLEM }) && refused(RowNormProblem { weight: 8, ..PROBLEM })
        );
        assert!(refused(RowNormProblem { epsilon: f32::NAN, ..PROBLEM }));
        assert!(refused(RowNormProblem { dtype: Dtype::F32, ..PROBLEM }));
        let codes = Some(CODES);
        assert!(refused(RowNormProblem { dtype: Dtype::Bf16, codes, ..PROBLEM }));
        assert!(refused(RowNormProblem { y: None, ..PROBLEM }) && !refused(RowNormProblem { codes, ..PROBLEM }));
        let scaled = |scale| refused(RowNormProblem { codes: Some((CODES.0, scale)), ..PROBLEM });
        assert!([0.0, -1.0, f32::NAN, f32::INFINITY].into_iter().all(scaled));
        let misplaced = |at| refused(RowNormProblem { codes: Some((at, 0.25)), ..PROBLEM });
        assert!(misplaced(Rows { address: 0x504, ..CODES.0 }) && misplaced(Rows { pitch: 768, ..CODES.0 }));
        assert!(refused(RowNormProblem { x: Rows { address: 0x100, pitch: 768 }, ..PROBLEM }));
        assert!(refused(RowNormProblem { y: Some(Rows { address: 0x108, pitch: 776 }), ..PROBLEM }));
    }
}
