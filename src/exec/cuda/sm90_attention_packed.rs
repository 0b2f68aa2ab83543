//! Launches of the kernels of `kernels/sm90_attention.cu` for rows that lie end to end: see
//! `sm90_attention_packed.cuh`.

use bytemuck::Zeroable;

use super::entries::{EntryPoint, of_half};
use super::launch::{ArgBytes, FastDivide, INDEX_LIMIT, Launch, aligned, chunks_of, in_range, product, unsupported};
use super::sm90_attention::{MODULES, MOST, Sm90AttentionArgs, boxes, threads};
use crate::error::Error;
use crate::plan::{
    AttentionKernel, AttentionSizes, AttentionTile, PackedAttentionOp, PackedSizes, STORE_ROWS, TILE_ROWS,
};
use crate::tensor::Dtype;

/// The kernels of each tile, of f16 and of bf16.
const ENTRIES: [(AttentionTile, [&str; 2]); AttentionTile::PACKED.len()] = [
    (AttentionTile { dims: 64, keys: 104 }, ["sm90_attention_64_104_packed", "sm90_attention_64_104_packed_bf16"]),
    (AttentionTile { dims: 128, keys: 112 }, ["sm90_attention_128_112_packed", "sm90_attention_128_112_packed_bf16"]),
];

/// The limit of units, which are pairs of a block and a head: indices run beyond the last unit by those of two grids.
const MOST_UNITS: usize = INDEX_LIMIT / 2;

pub(super) fn entries() -> impl Iterator<Item = EntryPoint> {
    ENTRIES.into_iter().flat_map(|(tile, names)| {
        let (threads, shared_bytes) = (threads(tile), tile.packed_shared_bytes() as u32);
        let of_type = move |(module, name)| EntryPoint { module, name, threads, shared_bytes, cluster: 1 };
        MODULES.into_iter().zip(names).map(of_type)
    })
}

/// The launch of packed attention of `dtype` by `kernel` on a GPU of `units` multiprocessors. The addresses are those of
/// queries, keys, values and blocks, and of the result.
pub(super) fn launch(
    of: &PackedAttentionOp,
    dtype: Dtype,
    [q, k, v, table]: [u64; 4],
    out: u64,
    kernel: AttentionKernel,
    units: usize,
) -> Result<Launch, Error> {
    let PackedAttentionOp { sizes: PackedSizes { tokens, longest, heads, dims, .. }, block_tiles, scale, qkv, .. } =
        *of;
    let AttentionKernel { tile, .. } = kernel;
    let entry = ENTRIES.iter().find(|(known, _)| *known == tile).map(|(_, names)| *names);
    let entry =
        entry.filter(|_| kernel.block_tiles == block_tiles && dims <= tile.dims && block_tiles <= tile.groups());
    let entry =
        entry.ok_or_else(|| unsupported("attention of packed rows by", kernel, "its own kernel computes it"))?;
    let entry = of_half(dtype, entry)?;
    chunks_of("values of a head", dims)?;
    if !(scale.is_finite() && scale > 0.0) {
        return Err(unsupported("scale", scale, "scores are multiplied by a positive number"));
    }
    let most_units = product("blocks", &[of.sizes.most_blocks(block_tiles), heads])? as usize;
    in_range("blocks", most_units, 1, MOST_UNITS)?;
    in_range("tokens of a row", longest, 1, tokens + 1)?;
    let [q, k, v] = [(q, 0), (k, 1), (v, 2)].map(|(address, part)| qkv[part].on(address));
    let out = of.out.on(out);
    let [of_head, of_row, _] = out.pitches;
    let args = Sm90AttentionArgs {
        rows: in_range("tokens", tokens, 1, MOST)?,
        keys: tokens as i32,
        block_tiles: in_range("tiles of a block", block_tiles, 1, 1 << 16)?,
        scale_log2: scale * std::f32::consts::LOG2_E,
        by_heads: FastDivide::by(in_range("heads", heads, 1, INDEX_LIMIT)? as u32),
        heads: heads as i32,
        table: aligned("blocks", table, 16)?,
        result: aligned("out", out.address, 16)?,
        result_row: in_range("halves between tokens", of_row, 0, INDEX_LIMIT)?,
        result_head: in_range("halves between heads", of_head, 0, INDEX_LIMIT / heads)?,
        dims: dims as i32,
        ..Zeroable::zeroed()
    };
    let sizes = AttentionSizes { images: 1, heads, rows: tokens, keys: tokens, dims };
    let maps = vec![
        boxes("q", &q, &sizes, tokens, TILE_ROWS)?,
        boxes("k", &k, &sizes, tokens, tile.keys)?,
        boxes("v", &v, &sizes, tokens, tile.values())?,
        boxes("out", &out, &sizes, tokens, STORE_ROWS)?,
        boxes("q", &q, &sizes, tokens, TILE_ROWS)?, // of tails, which there are none of
    ];
    Ok(Launch {
        entry: entry.into(),
        grid: [most_units.min(units.max(1)) as u32, 1, 1],
        cluster: 1,
        block: [threads(tile), 1, 1],
        shared_bytes: tile.packed_shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::device::cuda::{Swizzle, TensorMap};
    use crate::plan::HeadsAt;

    const SIZES: PackedSizes = PackedSizes { tokens: 300, rows: 5, longest: 200, heads: 6, dims: 40 };
    const OP: PackedAttentionOp = PackedAttentionOp {
        sizes: SIZES,
        block_tiles: 3,
        scale: 0.5,
        qkv: [
            HeadsAt { first: 8, pitches: [40, 720, 216_000] },
            HeadsAt { first: 16, pitches: [48, 728, 218_400] },
            HeadsAt { first: 24, pitches: [56, 736, 220_800] },
        ],
        out: HeadsAt { first: 32, pitches: [64, 384, 115_200] },
    };
    const KERNEL: AttentionKernel =
        AttentionKernel { tile: AttentionTile { dims: 64, keys: 104 }, block_tiles: 3, tails: false };

    fn launched(op: &PackedAttentionOp, kernel: AttentionKernel) -> Result<Launch, Error> {
        launch(op, Dtype::F16, [0x1000, 0x2000, 0x3000, 0x4000], 0x5000, kernel, 132)
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_attention.cu");
        let packed =
            source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_ATTENTION_PACKED(")?.strip_suffix(')'));
        let listed = ENTRIES.map(|(tile, names)| {
            let AttentionTile { dims, keys } = tile;
            assert_eq!(names, ["", "_bf16"].map(|of| format!("sm90_attention_{dims}_{keys}_packed{of}")));
            format!("{dims}, {keys}, {}", tile.groups())
        });
        assert!(packed.eq(listed));
        assert_eq!(ENTRIES.map(|(tile, _)| tile), AttentionTile::PACKED);
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launched(&OP, KERNEL).unwrap();
        let args: Sm90AttentionArgs = launch.args.read();
        assert_eq!([args.table, args.result], [0x4000, 0x5040]);
        assert_eq!([args.result_row, args.result_head, args.dims], [384, 64, 40]);
        assert_eq!([args.rows, args.keys, args.heads, args.block_tiles, args.tail], [300, 300, 6, 3, 0]);
        assert_eq!((args.by_heads.divide(29), args.scale_log2), (4, 0.5 * std::f32::consts::LOG2_E));
        let map = |address, pitches, box_rows| TensorMap::Strided {
            address,
            dims: [40, 6, 300, 1],
            pitches,
            box_dims: [64, 1, box_rows, 1],
            swizzle: Swizzle::Rows128,
        };
        let maps = [
            map(0x1010, [40, 720, 216_000], 64),
            map(0x2020, [48, 728, 218_400], 104),
            map(0x3030, [56, 736, 220_800], 112),
            map(0x5040, [64, 384, 115_200], 16),
            map(0x1010, [40, 720, 216_000], 64),
        ];
        assert_eq!(launch.maps, maps);
        // At most 13 blocks of each head.
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([78, 1, 1], [512, 1, 1], 221_184));
        assert_eq!((&*launch.entry, launch.waits_itself), ("sm90_attention_64_104_packed", true));
        let of_bf16 = super::launch(&OP, Dtype::Bf16, [0x1000, 0x2000, 0x3000, 0x4000], 0x5000, KERNEL, 132).unwrap();
        assert_eq!((&*of_bf16.entry, of_bf16.maps), ("sm90_attention_64_104_packed_bf16", launch.maps));
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |op: PackedAttentionOp| launched(&op, KERNEL).is_err();
        let sized = |sizes: PackedSizes| refused(PackedAttentionOp { sizes, ..OP });
        assert!(!refused(OP));
        assert!(sized(PackedSizes { dims: 72, ..SIZES }) && sized(PackedSizes { dims: 12, ..SIZES }));
        assert!(sized(PackedSizes { tokens: 0, ..SIZES }) && sized(PackedSizes { tokens: 1 << 28, ..SIZES }));
        assert!(sized(PackedSizes { longest: 0, ..SIZES }) && sized(PackedSizes { longest: 301, ..SIZES }));
        assert!(sized(PackedSizes { heads: 0, ..SIZES }));
        assert!(sized(PackedSizes { tokens: 1 << 27, rows: 1 << 27, heads: 8, ..SIZES }));
        assert!(
            refused(PackedAttentionOp { scale: f32::NAN, ..OP }) && refused(PackedAttentionOp { scale: 0.0, ..OP })
        );
        assert!(refused(PackedAttentionOp { block_tiles: 2, ..OP }));
        let [q, k, v] = OP.qkv;
        assert!(refused(PackedAttentionOp { qkv: [HeadsAt { first: 4, ..q }, k, v], ..OP }));
        assert!(refused(PackedAttentionOp { out: HeadsAt { pitches: [64, 388, 115_200], ..OP.out }, ..OP }));
        let other = AttentionKernel { tile: AttentionTile { dims: 64, keys: 128 }, ..KERNEL };
        assert!(launched(&OP, other).is_err());
        let addresses = [0x1000, 0x2000, 0x3000, 0x4000];
        assert!(launch(&OP, Dtype::F16, [0x1000, 0x2000, 0x3000, 0x4008], 0x5000, KERNEL, 132).is_err());
        assert!(launch(&OP, Dtype::F32, addresses, 0x5000, KERNEL, 132).is_err());
    }
}
