//! Attention: its sizes, its kernels, and how many tiles of rows share the keys and values that a block reads.

use std::fmt;

use super::Limits;
use crate::error::Error;

/// The sizes of an attention operation: for each image and head, rows of queries that attend to keys.
///
/// ```
/// use trefoil::plan::{AttentionSizes, AttentionTile, Limits};
/// let vit = AttentionSizes { images: 128, heads: 12, rows: 197, keys: 197, dims: 64 };
/// let kernel = vit.kernel(&Limits::h200())?;
/// assert_eq!((kernel.tile, kernel.block_tiles), (AttentionTile { dims: 64, keys: 104 }, 4));
/// assert_eq!(kernel.to_string(), "sm90 attention 64/104, 4 tiles, tails");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionSizes {
    /// The number of images.
    pub images: usize,
    /// The number of heads of an image.
    pub heads: usize,
    /// The number of queries of a head.
    pub rows: usize,
    /// The number of keys of a head, which is also the number of its values.
    pub keys: usize,
    /// The number of elements of a query, a key or a value.
    pub dims: usize,
}

/// The place of the heads in an operand: the first value, and the distances between heads, rows and images, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsAt {
    /// The index of the first value.
    pub first: usize,
    /// The distances from one head, one row and one image to the next, in values.
    pub pitches: [usize; 3],
}

/// A kernel of attention: it computes heads of up to `dims` values, in chunks of `keys` keys.
///
/// ```
/// use trefoil::plan::AttentionTile;
/// assert_eq!(AttentionTile::ALL.map(|tile| tile.to_string()), ["64/88", "64/104", "64/128", "128/112"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionTile {
    /// The largest number of elements of a query, a key or a value.
    pub dims: usize,
    /// The number of keys in a chunk.
    pub keys: usize,
}

/// A kernel of attention together with the number of 64-row tiles that share the keys and values that a block reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    /// The kernel.
    pub tile: AttentionTile,
    /// The number of tiles, up to 4,096; more than the warpgroups of a block only if all chunks of a head fit into shared
    /// memory.
    pub block_tiles: usize,
    /// Whether extra warps compute the few rows behind a head's last full tile, instead of another tile. With a mask,
    /// these rows are always computed as a tile.
    pub tails: bool,
}

impl HeadsAt {
    /// Whether all heads begin at multiples of 16 bytes.
    pub(super) fn is_aligned(self) -> bool {
        self.pitches.iter().chain([&self.first]).all(|of| of.is_multiple_of(8))
    }

    /// The same, where each value is a byte.
    pub(super) fn is_aligned_in_bytes(self) -> bool {
        self.pitches.iter().chain([&self.first]).all(|of| of.is_multiple_of(16))
    }
}

impl AttentionTile {
    /// Every kernel.
    pub const ALL: [Self; 4] = [
        Self { dims: 64, keys: 88 },
        Self { dims: 64, keys: 104 },
        Self { dims: 64, keys: 128 },
        Self { dims: 128, keys: 112 },
    ];

    /// The number of warpgroups that multiply. Each computes one tile at a time.
    pub(crate) const fn groups(self) -> usize {
        if self.dims <= 64 { 3 } else { 2 }
    }

    /// The number of extra warps, which compute tails in turn.
    pub(crate) const fn tail_warps(self) -> usize {
        if self.dims <= 64 && self.keys <= 104 { 2 } else { 0 }
    }

    /// The number of values in a chunk: the keys, rounded up to 16, because a product takes 16 at a time.
    pub(crate) const fn values(self) -> usize {
        self.keys.next_multiple_of(16)
    }

    /// The number of chunks that fit into shared memory. This function and those below agree with
    /// `kernels/sm90_attention.cu`.
    pub(crate) const fn stages(self) -> usize {
        let besides = 1024 + self.groups() * self.group_bytes() + self.tail_bytes();
        let fit = (SHARED_BYTES - besides) / self.stage_bytes();
        if fit < 6 { fit } else { 6 }
    }

    /// Bytes of dynamic shared memory without a mask: rows and a result for each warpgroup and for tails, chunks,
    /// barriers and records.
    pub(crate) const fn shared_bytes(self) -> usize {
        let (groups, stages) = (self.groups(), self.stages());
        let readers = groups + self.tail_warps();
        let barriers = 4 * stages + 2 * 2 * readers;
        let rows = groups * self.group_bytes() + self.tail_bytes();
        rows + stages * self.stage_bytes() + barriers * 8 + readers * 4 * 32 + 16
    }

    /// Bytes of dynamic shared memory with a mask of keys: for each chunk also its mask as floats, and 16 bytes about
    /// the mask.
    pub(crate) const fn key_masked_shared_bytes(self) -> usize {
        self.shared_bytes() + self.stages() * (4 * self.keys + 16)
    }

    /// The number of boxes of 64 halves side by side that a row takes.
    const fn boxes(self) -> usize {
        self.dims.div_ceil(64)
    }

    const fn group_bytes(self) -> usize {
        3 * TILE_ROWS * 128 * self.boxes()
    }

    const fn tail_bytes(self) -> usize {
        self.tail_warps() * (2 * TAIL_ROWS + STORE_ROWS) * 128 * self.boxes()
    }

    const fn stage_bytes(self) -> usize {
        (self.keys + self.values()) * 128 * self.boxes()
    }
}

impl fmt::Display for AttentionTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dims, self.keys)
    }
}

impl fmt::Display for AttentionKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm90 attention {}, {} tiles", self.tile, self.block_tiles)?;
        if self.tails { write!(f, ", tails") } else { Ok(()) }
    }
}

/// The kernel with the fewest clocks; an error that names `sizes` and the hardware if there is none.
pub(super) fn best(
    kernels: Vec<AttentionKernel>,
    clocks: impl Fn(AttentionKernel) -> f64,
    sizes: &impl fmt::Debug,
    limits: &Limits,
) -> Result<AttentionKernel, Error> {
    let best = kernels.into_iter().min_by(|a, b| clocks(*a).total_cmp(&clocks(*b)));
    best.ok_or_else(|| Error::Unsupported {
        what: format!("attention of {sizes:?} on {limits}"),
        instead: "use heads of a multiple of 8 values up to 128, on compute capability 9.0".into(),
    })
}

impl AttentionSizes {
    /// The kernel with the least predicted time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none: on hardware without sm90 kernels, or for longer heads.
    pub fn kernel(&self, limits: &Limits) -> Result<AttentionKernel, Error> {
        best(self.kernels(limits), |kernel| self.clocks(kernel, limits), self, limits)
    }

    /// Every kernel that computes attention of these sizes.
    pub fn kernels(&self, limits: &Limits) -> Vec<AttentionKernel> {
        let is_one = limits.has_sm90_kernels() && self.dims.is_multiple_of(8) && self.dims > 0;
        let tiles = AttentionTile::ALL.into_iter();
        let tiles = tiles
            .filter(|tile| is_one && self.dims <= tile.dims && tile.key_masked_shared_bytes() <= limits.shared_bytes);
        let both = tiles.flat_map(|tile| [(tile, false), (tile, true)]);
        let of_tile = |(tile, tails): (AttentionTile, bool)| {
            let (tiles, _) = self.tiles_and_tail(tails);
            let mut counts = vec![1, 2, tile.groups()];
            counts.retain(|count| *count < tiles);
            // All tiles of a head, including the one that replaces the tail where there is a mask.
            counts.push(self.row_tiles().min(MOST_BLOCK_TILES));
            counts.into_iter().map(move |block_tiles| AttentionKernel { tile, block_tiles, tails })
        };
        both.flat_map(of_tile).filter(|kernel| self.check(*kernel).is_ok()).collect()
    }

    /// Predicted clocks of the best kernel; `None` if there is none.
    pub(super) fn least_clocks(&self, limits: &Limits) -> Option<f64> {
        let kernel = self.kernel(limits).ok()?;
        Some(STEP_CLOCKS * self.clocks(kernel, limits))
    }

    /// The number of tiles of a head without a tail.
    fn row_tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// The number of tiles of a head, and the number of rows behind them that are computed as a tail. The second number
    /// is 0 without `tails`, without a full tile, or if too many rows are left.
    pub(crate) fn tiles_and_tail(&self, tails: bool) -> (usize, usize) {
        let (tiles, rest) = (self.rows / TILE_ROWS, self.rows % TILE_ROWS);
        if tails && tiles > 0 && (1..=TAIL_ROWS).contains(&rest) { (tiles, rest) } else { (self.row_tiles(), 0) }
    }

    /// Checks that `kernel` can compute these sizes. Tiles beyond the number of warpgroups need all chunks of a head in
    /// shared memory; a block has at most [`MOST_BLOCK_TILES`] tiles; and a kernel with tails needs rows for a tail.
    pub(crate) fn check(&self, kernel: AttentionKernel) -> Result<(), Error> {
        let AttentionKernel { tile, block_tiles, tails } = kernel;
        let fits = block_tiles <= tile.groups() || self.keys.div_ceil(tile.keys) <= tile.stages();
        let has_tails = tile.tail_warps() > 0 && self.tiles_and_tail(true).1 > 0;
        let is_one = AttentionTile::ALL.contains(&tile) && self.dims <= tile.dims && (has_tails || !tails);
        if is_one && (1..=MOST_BLOCK_TILES).contains(&block_tiles) && fits {
            return Ok(());
        }
        let instead = "use one of AttentionSizes::kernels".into();
        Err(Error::Unsupported { what: format!("attention of {self:?} by {kernel}"), instead })
    }

    /// The predicted time of the busiest multiprocessor. The unit is the time in which a warpgroup processes one key.
    pub(super) fn clocks(&self, kernel: AttentionKernel, limits: &Limits) -> f64 {
        let AttentionKernel { tile, block_tiles, tails } = kernel;
        let (row_tiles, _) = self.tiles_and_tail(tails);
        let blocks = self.images * self.heads * row_tiles.div_ceil(block_tiles);
        let rounds = blocks.div_ceil(limits.units.max(1)) as f64;
        let at_once = (block_tiles.min(row_tiles) as f64 / tile.groups() as f64).max(if tails { TAIL } else { 1.0 });
        let steps = self.keys.div_ceil(tile.keys) as f64;
        (rounds * at_once + LOADING) * steps * (tile.keys as f64 + STEP)
    }
}

/// The largest number of tiles of a block. With a mask of keys, 128 threads for each tile arrive at a barrier, which
/// counts to 2^20 - 1.
pub(crate) const MOST_BLOCK_TILES: usize = 4096;
const _: () = assert!(128 * MOST_BLOCK_TILES < 1 << 20);
/// The number of rows of a tile.
pub(crate) const TILE_ROWS: usize = 64;
/// The largest number of rows of a tail.
pub(crate) const TAIL_ROWS: usize = 8;
/// The number of rows that a warp stores at once.
pub(crate) const STORE_ROWS: usize = 16;
/// The bytes of shared memory that a block may have on compute capability 9.0.
const SHARED_BYTES: usize = 227 << 10;
/// Clocks in which a warpgroup processes one key: measured on 197 rows of 12 heads in 128 images, which took 51 us.
pub(super) const STEP_CLOCKS: f64 = 20.0;
/// The fixed time of a step over a chunk, in keys: fitted to times of the kernels of 64 values at 257 to 1500 keys.
const STEP: f64 = 40.0;
/// The least time of a block with a tail, in tiles of a warpgroup: measured at 197 rows and 128 images.
const TAIL: f64 = 1.12;
/// The time before the first block has its first chunk, in steps. Chunks of the blocks behind it come while blocks before
/// them are computed. So if blocks of several sizes take as long, the smallest is taken: at 384 rows and 512 heads blocks of
/// three tiles took 49.3 us, blocks of six 52.2.
const LOADING: f64 = 0.15;

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(images: usize, heads: usize, rows: usize, dims: usize) -> AttentionSizes {
        AttentionSizes { images, heads, rows, keys: rows, dims }
    }

    #[test]
    fn the_faster_kernel_is_taken() {
        let chosen = |sizes: AttentionSizes| {
            let AttentionKernel { tile, block_tiles, .. } = sizes.kernel(&Limits::h200()).unwrap();
            (tile.keys, block_tiles)
        };
        assert_eq!(chosen(sizes(128, 12, 197, 64)), (104, 4));
        assert_eq!([(64, 16), (64, 12)].map(|(b, h)| chosen(sizes(b, h, 257, 64))), [(88, 5); 2]);
        assert_eq!(chosen(sizes(32, 16, 384, 64)), (128, 3));
        assert_eq!(chosen(sizes(8, 12, 1500, 64)), (128, 3));
        assert_eq!(chosen(sizes(1, 12, 197, 64)), (104, 1));
        assert_eq!(chosen(sizes(16, 16, 577, 128)).0, 112);
    }

    #[test]
    fn shared_memory_is_what_the_source_takes() {
        let all = AttentionTile::ALL.map(|tile| (tile.stages(), tile.shared_bytes()));
        assert_eq!(all, [(6, 224_240), (5, 221_136), (4, 205_424), (2, 213_392)]);
        let masked = AttentionTile::ALL.map(AttentionTile::key_masked_shared_bytes);
        assert_eq!(masked, [226_448, 223_296, 207_536, 214_320]);
        assert!(all.iter().all(|(stages, _)| *stages >= 2) && masked.iter().all(|bytes| *bytes <= SHARED_BYTES));
    }

    #[test]
    fn few_rows_behind_whole_tiles_are_a_tail() {
        let of = |rows| sizes(1, 1, rows, 64).tiles_and_tail(true);
        assert_eq!([1, 8, 64, 65, 72, 73].map(of), [(1, 0), (1, 0), (1, 0), (1, 1), (1, 8), (2, 0)]);
        assert_eq!((of(197), sizes(1, 1, 197, 64).tiles_and_tail(false)), ((3, 5), (4, 0)));
        let h200 = Limits::h200();
        let counts = |keys, tails| {
            let kernels = sizes(1, 1, 197, 64).kernels(&h200).into_iter();
            let kernels = kernels.filter(|kernel| (kernel.tile.keys, kernel.tails) == (keys, tails));
            kernels.map(|kernel| kernel.block_tiles).collect::<Vec<_>>()
        };
        assert_eq!([counts(104, true), counts(128, true)], [vec![1, 2, 4], vec![]]);
        assert_eq!([counts(104, false), counts(128, false)], [vec![1, 2, 3, 4], vec![1, 2, 3, 4]]);
        let has_tails = |images, rows| sizes(images, 12, rows, 64).kernel(&h200).unwrap().tails;
        assert_eq!(
            [(128, 197), (32, 197), (64, 257), (1, 197), (128, 192)].map(|(b, s)| has_tails(b, s)),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn blocks_have_no_more_tiles_than_a_barrier_counts() {
        let few_keys =
            |row_tiles: usize| AttentionSizes { images: 1, heads: 1, rows: 64 * row_tiles, keys: 100, dims: 64 };
        let most = |row_tiles| {
            let kernels = few_keys(row_tiles).kernels(&Limits::h200());
            kernels.into_iter().map(|kernel| kernel.block_tiles).max()
        };
        assert_eq!([4095, 4096, 4097, 70_000].map(most), [4095, 4096, 4096, 4096].map(Some));
        let kernel =
            |block_tiles| AttentionKernel { tile: AttentionTile { dims: 64, keys: 104 }, block_tiles, tails: false };
        assert!(few_keys(5000).check(kernel(4096)).is_ok() && few_keys(5000).check(kernel(4097)).is_err());
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let h200 = Limits::h200();
        let refused = |sizes: AttentionSizes| matches!(sizes.kernel(&h200), Err(Error::Unsupported { .. }));
        assert!(refused(sizes(1, 1, 64, 136)) && refused(sizes(1, 1, 64, 12)) && refused(sizes(1, 1, 64, 0)));
        assert!(sizes(1, 1, 64, 64).kernel(&Limits::a100()).is_err());
        let long = sizes(1, 1, 1500, 64);
        let tile = AttentionTile { dims: 64, keys: 128 };
        let kernel = |block_tiles| AttentionKernel { tile, block_tiles, tails: false };
        let tailed = AttentionKernel { tile: AttentionTile { dims: 64, keys: 104 }, block_tiles: 1, tails: true };
        assert!(sizes(1, 1, 197, 64).check(tailed).is_ok() && long.check(tailed).is_err());
        assert!(long.check(kernel(3)).is_ok() && long.check(kernel(4)).is_err() && long.check(kernel(0)).is_err());
        assert!(sizes(1, 1, 512, 64).check(kernel(8)).is_ok());
        let other = AttentionKernel { tile: AttentionTile { dims: 64, keys: 64 }, block_tiles: 1, tails: false };
        assert!(long.check(other).is_err());
    }
}
