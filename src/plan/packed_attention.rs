//! Attention within rows of different lengths that lie end to end: its sizes, its kernels, and the blocks of tiles that they
//! compute.

use super::attention::{TILE_ROWS, best};
use super::{AttentionKernel, AttentionSizes, AttentionTile, HeadsAt, Limits};
use crate::error::Error;

/// The sizes of attention within rows that lie end to end.
///
/// ```
/// use trefoil::plan::{AttentionTile, Limits, PackedSizes};
/// let bert = PackedSizes { tokens: 8192, rows: 64, longest: 384, heads: 16, dims: 64 };
/// let kernel = bert.kernel(&Limits::h200())?;
/// assert_eq!((kernel.tile, kernel.block_tiles), (AttentionTile { dims: 64, keys: 104 }, 3));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedSizes {
    /// The largest number of tokens of all rows.
    pub tokens: usize,
    /// The largest number of rows.
    pub rows: usize,
    /// The largest number of tokens of a row.
    pub longest: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of elements of a query, a key or a value.
    pub dims: usize,
}

/// Attention within rows that lie end to end, whose step reads queries, keys, values and the blocks.
///
/// ```
/// use trefoil::plan::{HeadsAt, PackedAttentionOp, PackedSizes, StepOp};
/// let sizes = PackedSizes { tokens: 4096, rows: 32, longest: 384, heads: 12, dims: 64 };
/// let at = |part: usize| HeadsAt { first: 768 * part, pitches: [64, 2304, 4096 * 2304] };
/// let out = HeadsAt { first: 0, pitches: [64, 768, 4096 * 768] };
/// let of = PackedAttentionOp { sizes, block_tiles: 3, scale: 0.125, qkv: [at(0), at(1), at(2)], out };
/// assert_eq!(of.flops(), 4 * 12 * 64 * 4096 * 128); // of 32 rows of 128 tokens
/// assert_eq!(StepOp::PackedAttention(of).label(4), "packed-attention");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackedAttentionOp {
    /// The sizes.
    pub sizes: PackedSizes,
    /// The largest number of 64-row tiles of a block. The blocks that the step reads have to be made for it.
    pub block_tiles: usize,
    /// The factor of the scores; positive.
    pub scale: f32,
    /// The places of queries, keys and values in their operands.
    pub qkv: [HeadsAt; 3],
    /// The place of the result in the output.
    pub out: HeadsAt,
}

impl AttentionTile {
    /// The tiles of the kernels for rows that lie end to end.
    pub(crate) const PACKED: [Self; 2] = [Self { dims: 64, keys: 104 }, Self { dims: 128, keys: 112 }];

    /// Bytes of dynamic shared memory for rows that lie end to end, which need one more barrier for each stage.
    pub(crate) const fn packed_shared_bytes(self) -> usize {
        self.shared_bytes() + (8 * self.stages()).next_multiple_of(16)
    }
}

impl PackedSizes {
    /// The kernel with the least predicted time for rows that are all as long as the longest may be.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none: on hardware without sm90 kernels, or for longer heads.
    pub fn kernel(&self, limits: &Limits) -> Result<AttentionKernel, Error> {
        best(self.kernels(limits), |kernel| self.clocks(kernel, limits), self, limits)
    }

    /// Every kernel that computes these sizes: with the narrowest possible tile, and blocks of 1 tile up to a tile for
    /// each warpgroup.
    fn kernels(&self, limits: &Limits) -> Vec<AttentionKernel> {
        let is_one = limits.has_sm90_kernels() && self.dims.is_multiple_of(8) && self.dims > 0 && self.longest > 0;
        let fits = |tile: &AttentionTile| self.dims <= tile.dims && tile.packed_shared_bytes() <= limits.shared_bytes;
        let Some(tile) = AttentionTile::PACKED.into_iter().find(|tile| is_one && fits(tile)) else { return Vec::new() };
        let most = tile.groups().min(self.longest.div_ceil(TILE_ROWS));
        (1..=most).map(|block_tiles| AttentionKernel { tile, block_tiles, tails: false }).collect()
    }

    /// The predicted time for rows of the greatest length, in the unit of [`AttentionSizes::clocks`].
    pub(super) fn clocks(&self, kernel: AttentionKernel, limits: &Limits) -> f64 {
        let Self { tokens, longest, heads, dims, .. } = *self;
        let images = tokens.div_ceil(longest);
        AttentionSizes { images, heads, rows: longest, keys: longest, dims }.clocks(kernel, limits)
    }

    /// The largest number of blocks of a head, for rows and for tokens in no row: each run of tokens may end within a
    /// block.
    pub(crate) fn most_blocks(&self, block_tiles: usize) -> usize {
        let Self { tokens, rows, .. } = *self;
        tokens / (block_tiles * TILE_ROWS) + tokens.min(2 * rows + 2)
    }
}

impl PackedAttentionOp {
    /// Floating-point operations of the products for the largest number of tokens in rows of equal length. Other
    /// lengths take more.
    pub const fn flops(&self) -> usize {
        let PackedSizes { tokens, rows, heads, dims, .. } = self.sizes;
        4 * heads * dims * tokens * tokens.div_ceil(if rows > 0 { rows } else { 1 })
    }

    /// The kernel whose blocks have `block_tiles` tiles, if there is one.
    pub(super) fn kernel(&self, limits: &Limits) -> Option<AttentionKernel> {
        self.sizes.kernels(limits).into_iter().find(|kernel| kernel.block_tiles == self.block_tiles)
    }

    /// The number of rows of a block.
    pub(crate) const fn block_rows(&self) -> usize {
        self.block_tiles * TILE_ROWS
    }

    /// Whether all heads begin at multiples of 16 bytes, as the kernels need it.
    pub(super) fn is_aligned(&self) -> bool {
        let [q, k, v] = self.qkv;
        [q, k, v, self.out].into_iter().all(HeadsAt::is_aligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: PackedSizes = PackedSizes { tokens: 8192, rows: 64, longest: 384, heads: 16, dims: 64 };

    #[test]
    fn blocks_are_small_where_there_are_few() {
        let chosen = |sizes: PackedSizes| {
            let AttentionKernel { tile, block_tiles, tails } = sizes.kernel(&Limits::h200()).unwrap();
            (tile.dims, block_tiles, tails)
        };
        assert_eq!(chosen(SIZES), (64, 3, false));
        assert_eq!(chosen(PackedSizes { tokens: 384, rows: 1, ..SIZES }), (64, 1, false));
        assert_eq!(chosen(PackedSizes { longest: 64, ..SIZES }), (64, 1, false));
        assert_eq!(chosen(PackedSizes { dims: 96, ..SIZES }), (128, 2, false));
        assert!(AttentionTile::PACKED.iter().all(|tile| tile.packed_shared_bytes() <= Limits::h200().shared_bytes));
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let refused = |sizes: PackedSizes, limits: &Limits| sizes.kernel(limits).is_err();
        assert!(refused(PackedSizes { dims: 136, ..SIZES }, &Limits::h200()));
        assert!(refused(PackedSizes { dims: 12, ..SIZES }, &Limits::h200()));
        assert!(refused(SIZES, &Limits::a100()));
    }

    #[test]
    fn there_is_room_for_every_block() {
        // Rows of 1, 65 and 1 tokens have 1, 2 and 1 blocks; a token between rows or behind them, 3 in all, has a block
        // too.
        let sizes = PackedSizes { tokens: 70, rows: 5, longest: 66, heads: 1, dims: 8 };
        assert!(sizes.most_blocks(1) >= 7);
        assert_eq!(PackedSizes { tokens: 2, ..sizes }.most_blocks(1), 2);
    }
}
