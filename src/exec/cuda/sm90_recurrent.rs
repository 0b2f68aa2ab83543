//! Launches of `kernels/sm90_recurrent.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, aligned, kernel_args, product, unsupported};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::kernels::{
    MOST_RECURRENT_BLOCKS, MOST_RECURRENT_THREADS, RECURRENT_ROWS, RECURRENT_STEPS, RecurrentLayout, RecurrentRead,
};
use crate::plan::{Kernel, Limits, RecurrentKind, RecurrentOp, RecurrentTile, StepOp};
use crate::tensor::Dtype;

kernel_args! {
    /// `RecurrentArgs`.
    RecurrentArgs, 144 bytes {
        inputs: u64,
        weights: u64,
        bias: u64,
        h_first: u64,
        c_first: u64,
        y: u64,
        h_last: u64,
        c_last: u64,
        steps: i32,
        rows: i32,
        directions: i32,
        hidden: i32,
        gates: i32,
        cell: i32,
        reverse: i32,
        parts: i32,
        part_hidden: i32,
        row_tiles: i32,
        column_parts: i32,
        column_steps: i32,
        h_pitch: i32,
        h_bytes: i32,
        sums_at: i32,
        inputs_at: i32,
        inputs_pitch: i32,
        inputs_bytes: i32,
        by_part_chunks: FastDivide,
    }
}

/// The modules of f16 and bf16.
const MODULES: [&str; 2] = ["sm90_recurrent", "sm90_recurrent_bf16"];

/// The names of the kernels in the module with this suffix: for each of `RECURRENT_ROWS` one for each of
/// `RECURRENT_STEPS`.
macro_rules! names {
    ($of:literal) => {
        [
            [
                concat!("sm90_recurrent_8x4", $of),
                concat!("sm90_recurrent_8x8", $of),
                concat!("sm90_recurrent_8x16", $of),
            ],
            [
                concat!("sm90_recurrent_16x4", $of),
                concat!("sm90_recurrent_16x8", $of),
                concat!("sm90_recurrent_16x16", $of),
            ],
            [
                concat!("sm90_recurrent_32x4", $of),
                concat!("sm90_recurrent_32x8", $of),
                concat!("sm90_recurrent_32x16", $of),
            ],
        ]
    };
}

/// The kernels of f16 and bf16.
const ENTRIES: [[[&str; 3]; 3]; 2] = [names!(""), names!("_bf16")];

/// Recurrent layers.
pub(super) struct Sm90Recurrent;

impl Launcher for Sm90Recurrent {
    fn name(&self) -> &'static str {
        "sm90_recurrent"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let (threads, cluster) = (MOST_RECURRENT_THREADS as u32, MOST_RECURRENT_BLOCKS as u32);
        let of = |(module, name)| EntryPoint { module, name, threads, shared_bytes: SM90_SHARED_BYTES, cluster };
        let names = |(module, names): (_, [[_; 3]; 3])| names.concat().into_iter().map(move |name| (module, name));
        MODULES.into_iter().zip(ENTRIES).flat_map(names).map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::Recurrent(of), Kernel::Sm90Recurrent(tile)) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        let reads = of.reads();
        let operand = |wanted| reads.iter().position(|&read| read == wanted).map(|at| step.input_address(1 + at));
        let operands = RecurrentOperands {
            dtype: step.x().dtype,
            batch: step.images(),
            inputs: step.input_address(0),
            weights: step.filter(step.name()),
            bias: operand(RecurrentRead::Bias),
            first: [RecurrentRead::FirstH, RecurrentRead::FirstC].map(operand),
            y: step.output_address(0),
            last: (0..of.cell.states()).map(|state| step.output_address(1 + state)).collect(),
        };
        launch(of, tile, step.limits(), &operands)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<RecurrentArgs>("sm90_recurrent.cu", "RecurrentArgs", RecurrentArgs::FIELDS)]
    }
}

/// The addresses that a launch reads and writes, with type and batch.
#[derive(Clone, Debug)]
struct RecurrentOperands {
    /// The type of inputs, weights and result: f16 or bf16.
    dtype: Dtype,
    /// The number of rows.
    batch: usize,
    /// Address of the inputs' products.
    inputs: u64,
    /// Address of the recurrent weights.
    weights: u64,
    /// Address of the bias of a GRU.
    bias: Option<u64>,
    /// Addresses of the first h and c, if they are not zeros.
    first: [Option<u64>; 2],
    /// Address of the result.
    y: u64,
    /// Addresses of the last states.
    last: Vec<u64>,
}

/// The launch of the layer.
fn launch(
    of: &RecurrentOp,
    tile: RecurrentTile,
    limits: &Limits,
    operands: &RecurrentOperands,
) -> Result<Launch, Error> {
    let RecurrentOperands { dtype, batch, inputs, weights, bias, first, y, ref last } = *operands;
    let layout = of.layout(tile, batch, limits);
    let layout = layout.ok_or_else(|| unsupported("a recurrent layer", of.detail(), "the kernel has no such tile"))?;
    let RecurrentLayout { cluster, clusters, part_hidden, row_tiles, columns, held, .. } = layout;
    let blocks = product("blocks", &[clusters, cluster])?;
    let is_gru = of.cell == RecurrentKind::Gru;
    if bias.is_some() != is_gru || first[1].is_some() && of.cell.states() < 2 || last.len() != of.cell.states() {
        return Err(unsupported("operands of a recurrent layer", of.label(), "they are those of another cell"));
    }
    let or_null = |what, address: Option<u64>| address.map_or(Ok(0), |address| aligned(what, address, 16));
    let small = |value: usize| value as i32; // as the layout has checked
    let args = RecurrentArgs {
        inputs: aligned("inputs", inputs, 16)?,
        weights: aligned("weights", weights, 16)?,
        bias: or_null("bias", bias)?,
        h_first: or_null("first h", first[0])?,
        c_first: or_null("first c", first[1])?,
        y: aligned("y", y, 16)?,
        h_last: aligned("last h", last[0], 16)?,
        c_last: or_null("last c", last.get(1).copied())?,
        steps: small(of.steps),
        rows: small(of.rows * batch),
        directions: small(of.backwards.len()),
        hidden: small(of.hidden),
        gates: small(of.cell.gates()),
        cell: match of.cell {
            RecurrentKind::Lstm => 0,
            RecurrentKind::Gru => 1,
            RecurrentKind::RnnTanh => 2,
            RecurrentKind::RnnRelu => 3,
        },
        reverse: of.backwards.iter().enumerate().map(|(bit, &is_set)| i32::from(is_set) << bit).sum(),
        parts: small(tile.blocks),
        part_hidden: small(part_hidden),
        row_tiles: small(row_tiles),
        column_parts: small(columns[0]),
        column_steps: small(columns[1]),
        h_pitch: small(layout.h_bytes[0]),
        h_bytes: small(layout.h_bytes[1]),
        sums_at: small(layout.sums_at),
        inputs_at: small(layout.inputs_at),
        inputs_pitch: small(layout.inputs_bytes[0]),
        inputs_bytes: small(layout.inputs_bytes[1]),
        by_part_chunks: FastDivide::by(part_hidden as u32 / 8),
    };
    let names = of_half(dtype, ENTRIES)?;
    let rows = RECURRENT_ROWS.iter().position(|&rows| rows == tile.rows).expect("one of the kernels, by the layout");
    let held = RECURRENT_STEPS.iter().position(|&of| of == held).expect("one of the kernels, by the layout");
    Ok(Launch {
        entry: names[rows][held].into(),
        grid: [blocks, 1, 1],
        cluster: cluster as u32,
        block: [layout.threads as u32, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: true,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::{Conv2d, Window};

    /// The launch of a layer on these operands, with its arguments.
    pub(in crate::exec::cuda) fn launched(
        of: &RecurrentOp,
        tile: RecurrentTile,
        batch: usize,
        first: [Option<u64>; 2],
    ) -> (Launch, RecurrentArgs) {
        let bias = (of.cell == RecurrentKind::Gru).then_some(0x300);
        let last = [0x700, 0x800][..of.cell.states()].to_vec();
        let operands =
            RecurrentOperands { dtype: Dtype::F16, batch, inputs: 0x100, weights: 0x200, bias, first, y: 0x600, last };
        let of = launch(of, tile, &Limits::h200(), &operands).unwrap();
        let args = of.args.read();
        (of, args)
    }

    /// A layer with forward and backward direction, or with forward direction alone.
    pub(in crate::exec::cuda) fn layer(
        cell: RecurrentKind,
        directions: usize,
        steps: usize,
        hidden: usize,
    ) -> RecurrentOp {
        let weights = Conv2d::named("layer", directions * cell.gates() * hidden, Window::square(1, 1, 0));
        let backwards = [false, true][..directions].to_vec();
        RecurrentOp { cell, backwards, steps, rows: 1, hidden, weights, first: [true, cell.states() == 2] }
    }

    const TILE: RecurrentTile = RecurrentTile { blocks: 5, rows: 16 };

    #[test]
    fn constants_agree_with_the_source() {
        let source = read("sm90_recurrent.cu");
        let has = |line: &str| assert!(source.contains(line), "{line}");
        has(&format!("kMostThreads = {MOST_RECURRENT_THREADS};"));
        has("kLstm = 0, kGru = 1, kRnnTanh = 2, kRnnRelu = 3");
        has("kBarrierBytes = 16;");
        has("kInputBuffers = 3;");
        has("kSumPitch = kRows + 4;");
        for (rows, names) in RECURRENT_ROWS.into_iter().zip(ENTRIES[0]) {
            for (steps, name) in RECURRENT_STEPS.into_iter().zip(names) {
                has(&format!("TREFOIL_SM90_RECURRENT({rows}, {steps})"));
                assert_eq!(name, format!("sm90_recurrent_{rows}x{steps}"));
            }
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = layer(RecurrentKind::Lstm, 2, 7, 200);
        let (launch, args) = launched(&of, TILE, 37, [Some(0x400), Some(0x500)]);
        assert_eq!([args.inputs, args.weights, args.bias, args.y], [0x100, 0x200, 0, 0x600]);
        assert_eq!([args.h_first, args.c_first, args.h_last, args.c_last], [0x400, 0x500, 0x700, 0x800]);
        assert_eq!([args.steps, args.rows, args.directions, args.hidden], [7, 37, 2, 200]);
        assert_eq!([args.gates, args.cell, args.reverse, args.parts], [4, 0, 2, 5]);
        // 25 groups of 8 units in five parts; 160 rows of weights are ten tiles, and 13 steps of columns one part.
        assert_eq!([args.part_hidden, args.row_tiles, args.column_parts, args.column_steps], [40, 10, 1, 13]);
        assert_eq!([args.h_pitch, args.h_bytes, args.sums_at], [432, 16 * 432 + 16, 16 + 2 * (16 * 432 + 16)]);
        assert_eq!([args.inputs_at, args.inputs_pitch, args.inputs_bytes], [39_472, 96, 64 * 96]);
        assert_eq!(args.by_part_chunks.divide(11), 2);
        // Three groups of rows in two directions, each with five blocks of eight.
        assert_eq!((&*launch.entry, launch.grid, launch.cluster), ("sm90_recurrent_16x16", [48, 1, 1], 8));
        assert_eq!((launch.block, launch.shared_bytes), ([320, 1, 1], 39_472 + 3 * 64 * 96));
        assert!(launch.waits_itself);
        let (_, args) =
            launched(&layer(RecurrentKind::Gru, 1, 1, 64), RecurrentTile { blocks: 2, rows: 8 }, 1, [None; 2]);
        assert_eq!([args.bias, args.h_first, args.c_first, args.c_last], [0x300, 0, 0, 0]);
        assert_eq!([args.gates, args.cell, args.reverse], [3, 1, 0]);
    }

    #[test]
    fn what_the_kernel_does_not_survive_is_refused() {
        let operands = RecurrentOperands {
            dtype: Dtype::Bf16,
            batch: 3,
            inputs: 0x100,
            weights: 0x200,
            bias: None,
            first: [None; 2],
            y: 0x300,
            last: vec![0x400, 0x500],
        };
        let of = layer(RecurrentKind::Lstm, 1, 4, 64);
        let tile = RecurrentTile { blocks: 4, rows: 8 };
        let with = |change: &dyn Fn(&mut RecurrentOp, &mut RecurrentTile, &mut RecurrentOperands)| {
            let (mut of, mut tile, mut operands) = (of.clone(), tile, operands.clone());
            change(&mut of, &mut tile, &mut operands);
            launch(&of, tile, &Limits::h200(), &operands).map(|launch| launch.entry.into_owned())
        };
        assert_eq!(with(&|_, _, _| {}).unwrap(), "sm90_recurrent_8x4_bf16");
        assert!(with(&|_, _, operands| operands.inputs = 0x108).is_err());
        assert!(with(&|_, _, operands| operands.y = 0).is_err());
        assert!(with(&|_, _, operands| operands.bias = Some(0x600)).is_err());
        assert!(with(&|_, _, operands| operands.first[1] = Some(0x604)).is_err());
        assert!(with(&|_, _, operands| operands.last = vec![0x400]).is_err());
        assert!(with(&|_, _, operands| operands.dtype = Dtype::F32).is_err());
        assert!(with(&|_, _, operands| operands.batch = 0).is_err());
        assert!(with(&|of, _, _| of.hidden = 60).is_err());
        assert!(with(&|of, _, _| of.steps = 0).is_err());
        assert!(with(&|_, tile, _| tile.blocks = 9).is_err() && with(&|_, tile, _| tile.rows = 12).is_err());
        assert!(with(&|of, tile, _| (of.hidden, tile.blocks) = (520, 16)).is_err());
    }
}
