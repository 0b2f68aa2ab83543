//! Launches of `kernels/sm90_attention.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{
    ArgBytes, FastDivide, INDEX_LIMIT, Launch, aligned, chunks_of, in_range, kernel_args, product, to_codes,
    unsupported,
};
use super::sm90_attention_packed;
use super::sm90_conv2d_fprop::MapBytes;
use super::steps::Operands;
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::{
    AttentionKernel, AttentionOp, AttentionSizes, AttentionTile, HeadsAt, Kernel, MOST_BLOCK_TILES, STORE_ROWS, StepOp,
    TAIL_ROWS, TILE_ROWS,
};
use crate::tensor::Dtype;

kernel_args! {
    /// `Sm90AttentionArgs`; the maps are encoded before the launch.
    Sm90AttentionArgs, 832 bytes {
        q: MapBytes,
        k: MapBytes,
        v: MapBytes,
        out: MapBytes,
        tail_q: MapBytes,
        lengths: u64,
        mask: u64,
        mask_batch: u64,
        mask_head: u64,
        mask_row: u64,
        rows: i32,
        keys: i32,
        blocks: i32,
        block_tiles: i32,
        row_tiles: i32,
        ahead: i32,
        scale_log2: f32,
        by_heads: FastDivide,
        by_blocks: FastDivide,
        heads: i32,
        head_blocks: i32,
        tail: i32,
        table: u64,
        result: u64,
        result_row: i32,
        result_head: i32,
        dims: i32,
        to_codes: f32,
        first_block: i32,
        pair_order: u32,
        padding: [i32; 14],
    }
}

/// The selector of `prmt` that puts the low halves of two words together.
const PAIR_ORDER: u32 = 0x5410;

/// The tile that has kernels of f16 without a mask whose first chunk is shorter; the number of keys of this chunk; the
/// kernels for elements and for codes.
const SHORT_FIRST: (AttentionTile, usize, [&str; 2]) = (
    AttentionTile { dims: 64, keys: 128 },
    96,
    ["sm90_attention_64_128_first_96", "sm90_attention_64_128_first_96_e4m3"],
);

/// The kernel with the shorter first chunk, if a row that sees all `keys` needs no more chunks with it: the last chunk then
/// has room for the keys that the first one leaves.
fn short_first(tile: AttentionTile, keys: usize, has_codes: bool) -> Option<&'static str> {
    let (of, first, [elements, codes]) = SHORT_FIRST;
    let is_spared = keys > tile.keys && (1..=first).contains(&(keys % tile.keys));
    (tile == of && is_spared).then_some(if has_codes { codes } else { elements })
}

/// The modules of f16 and bf16, and that of codes of f16.
pub(super) const MODULES: [&str; 3] = ["sm90_attention", "sm90_attention_bf16", "sm90_attention"];

/// The names of a tile's kernels of f16 and bf16, and those of f16 that write codes: without a mask, with a mask that all rows
/// share, with any other mask. The kernels of packed rows are in `sm90_attention_packed.rs`.
macro_rules! names {
    ($tile:literal) => {
        [names!($tile, ""), names!($tile, "_bf16"), names!($tile, "_e4m3")]
    };
    ($tile:literal, $of:literal) => {
        [
            concat!("sm90_attention_", $tile, $of),
            concat!("sm90_attention_", $tile, "_key_masked", $of),
            concat!("sm90_attention_", $tile, "_masked", $of),
        ]
    };
}

/// The kernels of each tile.
const ENTRIES: [(AttentionTile, [[&str; 3]; 3]); AttentionTile::ALL.len()] = [
    (AttentionTile { dims: 64, keys: 88 }, names!("64_88")),
    (AttentionTile { dims: 64, keys: 104 }, names!("64_104")),
    (AttentionTile { dims: 64, keys: 128 }, names!("64_128")),
    (AttentionTile { dims: 128, keys: 112 }, names!("128_112")),
];

/// The launcher of attention.
pub(super) struct Sm90Attention;

impl Launcher for Sm90Attention {
    fn name(&self) -> &'static str {
        "sm90_attention"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_tile = |(tile, of_types): (AttentionTile, [[&'static str; 3]; 3])| {
            let threads = threads(tile);
            let of_type = move |(module, names): (&'static str, [&'static str; 3])| {
                let entry =
                    move |(name, bytes)| EntryPoint { module, name, threads, shared_bytes: bytes as u32, cluster: 1 };
                names.into_iter().zip(shared_bytes(tile)).map(entry)
            };
            MODULES.into_iter().zip(of_types).flat_map(of_type)
        };
        let (tile, _, names) = SHORT_FIRST;
        let (threads, shared_bytes) = (threads(tile), tile.shared_bytes() as u32);
        let short = names.map(|name| EntryPoint { module: MODULES[0], name, threads, shared_bytes, cluster: 1 });
        ENTRIES.into_iter().flat_map(of_tile).chain(short).chain(sm90_attention_packed::entries()).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let units = step.limits().units;
        match (step.op(), step.kernel()) {
            (StepOp::Attention(of), Kernel::Sm90Attention(kernel)) => {
                launch(&AttentionProblem::of(of, step), kernel, units)
            }
            (StepOp::PackedAttention(of), Kernel::Sm90Attention(kernel)) => {
                let inputs = [0, 1, 2, 3].map(|part| step.input_address(part));
                sm90_attention_packed::launch(of, step.x().dtype, inputs, step.pointers().2, kernel, units)
            }
            _ => Err(step.wrong_kernel()),
        }
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90AttentionArgs>("sm90_attention.cuh", "Sm90AttentionArgs", Sm90AttentionArgs::FIELDS)]
    }
}

/// Threads of a block: the warpgroups that multiply, and the one that loads.
pub(super) const fn threads(tile: AttentionTile) -> u32 {
    (tile.groups() as u32 + 1) * 128
}

/// Dynamic shared memory of each kernel of a tile.
const fn shared_bytes(tile: AttentionTile) -> [usize; 3] {
    [tile.shared_bytes(), tile.key_masked_shared_bytes(), tile.shared_bytes()]
}

/// The place of an operand's heads: the address of the first, and values from one head, row and image to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Address of the first value.
    pub(crate) address: u64,
    /// Values from one head, row and image to the next; multiples of 8.
    pub(crate) pitches: [usize; 3],
}

impl HeadsAt {
    /// The heads, in a buffer of 16-bit values at `address`.
    pub(super) const fn on(self, address: u64) -> Heads {
        Heads { address: address + 2 * self.first as u64, pitches: self.pitches }
    }

    /// The heads, in a buffer of codes at `address`.
    pub(super) const fn of_codes_on(self, address: u64) -> Heads {
        Heads { address: address + self.first as u64, pitches: self.pitches }
    }
}

/// The mask that is added to scaled scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    /// Address of the first value. The values of a row's keys follow each other, with room for an even number of them.
    pub(crate) address: u64,
    /// Values from one head, row and image to the next: even, or 0 where all share the values.
    pub(crate) pitches: [usize; 3],
}

/// An attention operation and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionProblem {
    /// The type of queries, keys, values and mask: f16 or bf16.
    pub(crate) dtype: Dtype,
    /// The sizes of the operands.
    pub(crate) sizes: AttentionSizes,
    /// The factor of the scores; positive.
    pub(crate) scale: f32,
    /// Row i sees keys up to i + `ahead`; `None`: all keys.
    pub(crate) ahead: Option<usize>,
    /// Queries.
    pub(crate) q: Heads,
    /// Keys.
    pub(crate) k: Heads,
    /// Values; they are finite.
    pub(crate) v: Heads,
    /// The result; overlaps nothing.
    pub(crate) out: Heads,
    /// Address of an `i32` for each image, the number of its keys that count; `None`: all keys count.
    pub(crate) lengths: Option<u64>,
    /// Added to scaled scores, if any.
    pub(crate) mask: Option<Mask>,
    /// The scale of the result if it is codes, of f16; else it is of the type of the operands.
    pub(crate) result: Option<f32>,
    /// Whether the last heads are computed first.
    pub(crate) backward: bool,
}

impl AttentionProblem {
    /// The problem of a step, which reads queries, keys, values and the mask.
    fn of(of: &AttentionOp, step: &Operands<'_>) -> Self {
        let [q, k, v] = [0, 1, 2].map(|part| of.qkv[part].on(step.input_address(part)));
        let (_, _, out) = step.pointers();
        Self {
            dtype: step.x().dtype,
            sizes: of.sizes,
            scale: of.scale,
            ahead: None,
            q,
            k,
            v,
            out: if of.result.is_some() { of.out.of_codes_on(out) } else { of.out.on(out) },
            lengths: None,
            mask: of.mask.map(|pitches| Mask { address: step.input_address(3), pitches }),
            result: of.result,
            backward: step.backward,
        }
    }
}

/// The launch of `problem` by `kernel` on a GPU of `units` multiprocessors.
pub(crate) fn launch(problem: &AttentionProblem, kernel: AttentionKernel, units: usize) -> Result<Launch, Error> {
    let AttentionProblem { dtype, sizes, scale, ahead, q, k, v, out, lengths, mask, result, backward } = problem;
    let AttentionKernel { tile, block_tiles, tails } = kernel;
    sizes.check(kernel)?;
    chunks_of("values of a head", sizes.dims)?;
    if !(scale.is_finite() && *scale > 0.0) {
        return Err(unsupported("scale", scale, "scores are multiplied by a positive number"));
    }
    let names = ENTRIES.iter().find(|(of, _)| *of == tile).map(|(_, names)| *names);
    let [f16, bf16, to_e4m3] =
        names.ok_or_else(|| unsupported("attention tile", tile, "use one of AttentionTile::ALL"))?;
    let names = match result {
        None => of_half(*dtype, [f16, bf16])?,
        Some(_) if *dtype == Dtype::F16 => to_e4m3,
        Some(_) => return Err(unsupported("codes of attention", dtype, "they are of f16")),
    };
    let kind = match mask {
        None => 0,
        Some(Mask { pitches: [_, of_row, _], .. }) if *of_row == 0 || sizes.rows == 1 => 1,
        Some(_) => 2,
    };
    let short = short_first(tile, sizes.keys, result.is_some()).filter(|_| kind == 0 && *dtype == Dtype::F16);
    let (entry, shared_bytes) = (short.unwrap_or(names[kind]), shared_bytes(tile)[kind] as u32);
    let (row_tiles, tail) = sizes.tiles_and_tail(tails && mask.is_none());
    let head_blocks = row_tiles.div_ceil(block_tiles);
    product("tiles", &[sizes.images, sizes.heads, row_tiles])?;
    let blocks = product("blocks", &[sizes.images, sizes.heads, head_blocks])?;
    let [mask_head, mask_row, mask_batch] = mask.map_or(Ok([0; 3]), |mask| even(mask.pitches))?;
    let args = Sm90AttentionArgs {
        lengths: lengths.map_or(Ok(0), |address| aligned("lengths", address, 4))?,
        mask: mask.map_or(Ok(0), |mask| aligned("mask", mask.address, 4))?,
        mask_batch,
        mask_head,
        mask_row,
        rows: in_range("rows", sizes.rows, 1, MOST)?,
        keys: in_range("keys", sizes.keys, 1, MOST)?,
        blocks: blocks as i32,
        block_tiles: in_range("tiles of a block", block_tiles, 1, MOST_BLOCK_TILES + 1)?,
        row_tiles: in_range("tiles", row_tiles, 1, INDEX_LIMIT)?,
        ahead: in_range("keys ahead", ahead.unwrap_or(MOST - 1), 0, MOST)?,
        scale_log2: scale * std::f32::consts::LOG2_E,
        by_heads: FastDivide::by(in_range("heads", sizes.heads, 1, INDEX_LIMIT)? as u32),
        by_blocks: FastDivide::by(head_blocks as u32),
        heads: in_range("heads", sizes.heads, 1, INDEX_LIMIT)?,
        head_blocks: in_range("blocks of a head", head_blocks, 1, INDEX_LIMIT)?,
        tail: tail as i32,
        to_codes: to_codes(*result)?,
        first_block: if *backward { blocks as i32 - 1 } else { 0 },
        pair_order: PAIR_ORDER,
        ..Zeroable::zeroed()
    };
    let maps = vec![
        boxes("q", q, sizes, sizes.rows, TILE_ROWS)?,
        boxes("k", k, sizes, sizes.keys, tile.keys)?,
        boxes("v", v, sizes, sizes.keys, tile.values())?,
        match result {
            None => boxes("out", out, sizes, sizes.rows, STORE_ROWS)?,
            Some(_) => boxes_of_codes(out, sizes)?,
        },
        boxes("q", q, sizes, sizes.rows, TAIL_ROWS)?,
    ];
    Ok(Launch {
        entry: entry.into(),
        grid: [blocks.min(units.max(1) as u32), 1, 1],
        cluster: 1,
        block: [threads(tile), 1, 1],
        shared_bytes,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// The limit of the numbers of rows and keys, and of how far ahead a row sees.
pub(super) const MOST: usize = 1 << 28;

/// The tensor map of an operand, with boxes of 64 values of one head and `box_rows` rows.
pub(super) fn boxes(
    what: &'static str,
    at: &Heads,
    sizes: &AttentionSizes,
    rows: usize,
    box_rows: usize,
) -> Result<TensorMap, Error> {
    for pitch in at.pitches {
        chunks_of("halves between heads, rows or images", pitch)?;
    }
    Ok(TensorMap::Strided {
        address: aligned(what, at.address, 16)?,
        dims: [sizes.dims, sizes.heads, rows, sizes.images].map(|dim| dim as u64),
        pitches: at.pitches.map(|pitch| pitch as u64),
        box_dims: [64, 1, box_rows as u32, 1],
        swizzle: Swizzle::Rows128,
    })
}

/// The tensor map of a result in codes, with boxes of 64 codes of one head, whose elements are pairs of codes.
fn boxes_of_codes(out: &Heads, sizes: &AttentionSizes) -> Result<TensorMap, Error> {
    if let Some(pitch) = out.pitches.iter().find(|pitch| !pitch.is_multiple_of(16)) {
        return Err(unsupported("codes between heads, rows or images", pitch, "they are multiples of 16"));
    }
    Ok(TensorMap::Strided {
        address: aligned("out", out.address, 16)?,
        dims: [sizes.dims / 2, sizes.heads, sizes.rows, sizes.images].map(|dim| dim as u64),
        pitches: out.pitches.map(|pitch| pitch as u64 / 2),
        box_dims: [32, 1, STORE_ROWS as u32, 1],
        swizzle: Swizzle::Rows64,
    })
}

fn even(pitches: [usize; 3]) -> Result<[u64; 3], Error> {
    match pitches.iter().find(|pitch| !pitch.is_multiple_of(2)) {
        Some(odd) => Err(unsupported("halves between rows of a mask", odd, "they are even")),
        None => Ok(pitches.map(|pitch| pitch as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const SIZES: AttentionSizes = AttentionSizes { images: 5, heads: 6, rows: 300, keys: 200, dims: 40 };
    const PROBLEM: AttentionProblem = AttentionProblem {
        dtype: Dtype::F16,
        sizes: SIZES,
        scale: 0.5,
        ahead: Some(7),
        q: Heads { address: 0x100, pitches: [40, 720, 216_000] },
        k: Heads { address: 0x200, pitches: [48, 320, 64_000] },
        v: Heads { address: 0x300, pitches: [56, 328, 65_600] },
        out: Heads { address: 0x400, pitches: [64, 384, 115_200] },
        lengths: Some(0x504),
        mask: Some(Mask { address: 0x608, pitches: [60_000, 202, 0] }),
        result: None,
        backward: false,
    };
    const KERNEL: AttentionKernel =
        AttentionKernel { tile: AttentionTile { dims: 64, keys: 104 }, block_tiles: 3, tails: false };

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_attention.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_ATTENTION(")?.strip_suffix(')'));
        let listed = ENTRIES.map(|(tile, of_types)| {
            let AttentionTile { dims, keys } = tile;
            let stem = format!("sm90_attention_{dims}_{keys}");
            let names = |of| ["", "_key_masked", "_masked"].map(|masked| format!("{stem}{masked}{of}"));
            assert_eq!(of_types, ["", "_bf16", "_e4m3"].map(names));
            format!("{dims}, {keys}, {}, {}", tile.groups(), tile.tail_warps() > 0)
        });
        assert!(found.eq(listed));
        assert_eq!(ENTRIES.map(|(tile, _)| tile), AttentionTile::ALL);
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&PROBLEM, KERNEL, 132).unwrap();
        let args: Sm90AttentionArgs = launch.args.read();
        assert_eq!([args.lengths, args.mask], [0x504, 0x608]);
        assert_eq!([args.mask_head, args.mask_row, args.mask_batch], [60_000, 202, 0]);
        assert_eq!(args.pair_order, 0x5410);
        assert_eq!([args.rows, args.keys, args.heads, args.ahead], [300, 200, 6, 7]);
        assert_eq!([args.row_tiles, args.block_tiles, args.head_blocks, args.blocks], [5, 3, 2, 60]);
        assert_eq!((args.by_heads.divide(29), args.by_blocks.divide(59)), (4, 29));
        assert_eq!(args.scale_log2, 0.5 * std::f32::consts::LOG2_E);
        let map = |address, rows, pitches, box_rows| TensorMap::Strided {
            address,
            dims: [40, 6, rows, 5],
            pitches,
            box_dims: [64, 1, box_rows, 1],
            swizzle: Swizzle::Rows128,
        };
        let maps = [
            map(0x100, 300, [40, 720, 216_000], 64),
            map(0x200, 200, [48, 320, 64_000], 104),
            map(0x300, 200, [56, 328, 65_600], 112),
            map(0x400, 300, [64, 384, 115_200], 16),
            map(0x100, 300, [40, 720, 216_000], 8),
        ];
        assert_eq!(launch.maps, maps);
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([60, 1, 1], [512, 1, 1], 221_136));
        assert_eq!((&*launch.entry, launch.waits_itself), ("sm90_attention_64_104_masked", true));
    }

    #[test]
    fn a_first_chunk_is_short_where_the_last_one_has_room() {
        let kernel = AttentionKernel { tile: AttentionTile { dims: 64, keys: 128 }, block_tiles: 3, tails: false };
        let entry = |keys, problem| {
            let sizes = AttentionSizes { keys, ..SIZES };
            launch(&AttentionProblem { sizes, ..problem }, kernel, 132).unwrap().entry.to_string()
        };
        let plain = AttentionProblem { mask: None, lengths: None, ..PROBLEM };
        let is_short = |keys| match &*entry(keys, plain) {
            "sm90_attention_64_128" => false,
            "sm90_attention_64_128_first_96" => true,
            other => panic!("{other}"),
        };
        assert!([129, 224, 257, 1500].into_iter().all(is_short));
        assert!(![1, 96, 128, 225, 256, 384].into_iter().any(is_short));
        assert_eq!(entry(1500, AttentionProblem { result: Some(1.0), ..plain }), "sm90_attention_64_128_first_96_e4m3");
        assert_eq!(entry(1500, AttentionProblem { dtype: Dtype::Bf16, ..plain }), "sm90_attention_64_128_bf16");
        assert_eq!(entry(1500, PROBLEM), "sm90_attention_64_128_masked");
    }

    #[test]
    fn attention_of_bf16_is_the_same_launch_of_another_kernel() {
        for mask in [None, PROBLEM.mask] {
            let [of_f16, of_bf16] = [Dtype::F16, Dtype::Bf16]
                .map(|dtype| launch(&AttentionProblem { dtype, mask, ..PROBLEM }, KERNEL, 132).unwrap());
            assert_eq!(of_bf16.entry, format!("{}_bf16", of_f16.entry));
            assert_eq!((of_bf16.args.as_bytes(), &of_bf16.maps), (of_f16.args.as_bytes(), &of_f16.maps));
        }
    }

    #[test]
    fn a_result_in_codes_is_the_same_launch_of_another_kernel_and_map() {
        let out = Heads { pitches: [64, 384, 115_200], ..PROBLEM.out };
        let [of_f16, of_codes] =
            [None, Some(0.25)].map(|result| launch(&AttentionProblem { out, result, ..PROBLEM }, KERNEL, 132).unwrap());
        assert_eq!(
            (of_codes.entry, of_codes.shared_bytes),
            (format!("{}_e4m3", of_f16.entry).into(), of_f16.shared_bytes)
        );
        let [args, args_of_codes]: [Sm90AttentionArgs; 2] = [of_f16.args.read(), of_codes.args.read()];
        assert_eq!((args.to_codes, args_of_codes.to_codes, args_of_codes.blocks), (1.0, 4.0, args.blocks));
        let (pitches, box_dims) = ([32, 192, 57_600], [32, 1, 16, 1]);
        let swizzle = Swizzle::Rows64;
        let map = TensorMap::Strided { address: 0x400, dims: [20, 6, 300, 5], pitches, box_dims, swizzle };
        assert_eq!(of_codes.maps[3], map);
        assert!([0, 1, 2, 4].iter().all(|&index| of_codes.maps[index] == of_f16.maps[index]));
    }

    #[test]
    fn without_a_mask_or_a_limit() {
        let problem = AttentionProblem { ahead: None, mask: None, lengths: None, ..PROBLEM };
        let wide = AttentionKernel { tile: AttentionTile { dims: 128, keys: 112 }, block_tiles: 1, tails: false };
        let launch = launch(&problem, wide, 132).unwrap();
        let args: Sm90AttentionArgs = launch.args.read();
        assert_eq!((args.lengths, args.mask, args.ahead), (0, 0, (1 << 28) - 1));
        assert_eq!((&*launch.entry, launch.grid, launch.block), ("sm90_attention_128_112", [132, 1, 1], [384, 1, 1]));
    }

    #[test]
    fn a_mask_that_all_rows_share_has_a_kernel_of_its_own() {
        let launched = |rows, of_row| {
            let mask = Some(Mask { address: 0x608, pitches: [202, of_row, 1212] });
            let problem = AttentionProblem { sizes: AttentionSizes { rows, ..SIZES }, mask, ..PROBLEM };
            let launch = launch(&problem, KERNEL, 132).unwrap();
            (launch.entry.to_string(), launch.shared_bytes)
        };
        let of_keys = ("sm90_attention_64_104_key_masked".to_owned(), 223_296);
        assert_eq!([launched(300, 0), launched(1, 202)], [of_keys.clone(), of_keys]);
        assert_eq!(launched(2, 202), ("sm90_attention_64_104_masked".to_owned(), 221_136));
    }

    #[test]
    fn rows_behind_whole_tiles_are_no_tile_where_there_is_no_mask() {
        let of = |mask| {
            let problem = AttentionProblem { sizes: AttentionSizes { rows: 133, ..SIZES }, mask, ..PROBLEM };
            let launch = |tails| launch(&problem, AttentionKernel { tails, ..KERNEL }, 132).unwrap();
            let args: [Sm90AttentionArgs; 2] = [launch(false), launch(true)].map(|launch| launch.args.read());
            args.map(|args| (args.row_tiles, args.tail))
        };
        assert_eq!((of(None), of(PROBLEM.mask)), ([(3, 0), (2, 5)], [(3, 0), (3, 0)]));
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |problem: AttentionProblem| launch(&problem, KERNEL, 132).is_err();
        let sized = |sizes: AttentionSizes| refused(AttentionProblem { sizes, ..PROBLEM });
        assert!(!refused(PROBLEM));
        assert!(sized(AttentionSizes { dims: 72, ..SIZES }) && sized(AttentionSizes { dims: 12, ..SIZES }));
        assert!(sized(AttentionSizes { rows: 0, ..SIZES }) && sized(AttentionSizes { keys: 0, ..SIZES }));
        assert!(sized(AttentionSizes { keys: 1 << 28, ..SIZES }) && sized(AttentionSizes { images: 1 << 28, ..SIZES }));
        assert!(refused(AttentionProblem { scale: 0.0, ..PROBLEM }));
        assert!(refused(AttentionProblem { scale: f32::NAN, ..PROBLEM }));
        assert!(refused(AttentionProblem { dtype: Dtype::F32, ..PROBLEM }));
        let codes = AttentionProblem { result: Some(0.25), ..PROBLEM };
        assert!(!refused(codes) && refused(AttentionProblem { dtype: Dtype::Bf16, ..codes }));
        assert!([0.0, -1.0, f32::NAN].iter().all(|&of| refused(AttentionProblem { result: Some(of), ..codes })));
        assert!(refused(AttentionProblem { out: Heads { pitches: [40, 384, 115_200], ..PROBLEM.out }, ..codes }));
        assert!(refused(AttentionProblem { ahead: Some(1 << 28), ..PROBLEM }));
        assert!(refused(AttentionProblem { q: Heads { address: 0x108, ..PROBLEM.q }, ..PROBLEM }));
        assert!(refused(AttentionProblem { v: Heads { pitches: [56, 324, 65_600], ..PROBLEM.v }, ..PROBLEM }));
        assert!(refused(AttentionProblem { lengths: Some(0x502), ..PROBLEM }));
        assert!(refused(AttentionProblem { mask: Some(Mask { address: 0x602, pitches: [0; 3] }), ..PROBLEM }));
        assert!(refused(AttentionProblem { mask: Some(Mask { address: 0x604, pitches: [0, 201, 0] }), ..PROBLEM }));
        let many = AttentionKernel { block_tiles: 4, ..KERNEL };
        let long = AttentionProblem { sizes: AttentionSizes { keys: 1000, ..SIZES }, ..PROBLEM };
        assert!(launch(&PROBLEM, many, 132).is_ok() && launch(&long, many, 132).is_err());
        let high = AttentionProblem { sizes: AttentionSizes { rows: 1 << 20, keys: 100, ..SIZES }, ..PROBLEM };
        let by_tiles = |mask, block_tiles| {
            launch(&AttentionProblem { mask, ..high }, AttentionKernel { block_tiles, ..KERNEL }, 132)
        };
        for mask in [None, PROBLEM.mask, Some(Mask { address: 0x608, pitches: [0, 0, 202] })] {
            assert!(by_tiles(mask, 4096).is_ok() && by_tiles(mask, 4097).is_err());
        }
    }
}
