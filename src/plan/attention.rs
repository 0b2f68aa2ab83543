//! Attention: what it computes, its kernels, and how many tiles of rows share what a block reads.

use std::fmt;

use super::Limits;
use crate::error::Error;

/// The sizes of an attention operation: of each image and head, rows of queries that look at keys.
///
/// ```
/// use trefoil::plan::{AttentionSizes, AttentionTile, Limits};
/// let vit = AttentionSizes { images: 128, heads: 12, rows: 197, keys: 197, dims: 64 };
/// let kernel = vit.kernel(&Limits::h200())?;
/// assert_eq!((kernel.tile, kernel.block_tiles), (AttentionTile { dims: 64, keys: 104 }, 4));
/// assert_eq!(kernel.to_string(), "sm90 attention 64/104, 4 tiles");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionSizes {
    /// Images.
    pub images: usize,
    /// Heads of an image.
    pub heads: usize,
    /// Queries of a head.
    pub rows: usize,
    /// Keys and values of a head.
    pub keys: usize,
    /// Values of a query, a key and a value.
    pub dims: usize,
}

/// A kernel that attention is compiled for: heads of up to `dims` values, in chunks of so many keys.
///
/// ```
/// use trefoil::plan::AttentionTile;
/// assert_eq!(AttentionTile::ALL.map(|tile| tile.to_string()), ["64/104", "64/128", "128/112"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionTile {
    /// Values of a head, at most.
    pub dims: usize,
    /// Keys of a chunk.
    pub keys: usize,
}

/// A kernel, and how many tiles of 64 rows share the keys and values that a block reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    /// The kernel.
    pub tile: AttentionTile,
    /// Tiles; more than its warpgroups only where all chunks of a head fit the shared memory.
    pub block_tiles: usize,
}

impl AttentionTile {
    /// Every kernel.
    pub const ALL: [Self; 3] =
        [Self { dims: 64, keys: 104 }, Self { dims: 64, keys: 128 }, Self { dims: 128, keys: 112 }];

    /// Warpgroups that multiply, each with a tile of its own.
    pub(crate) const fn groups(self) -> usize {
        if self.dims <= 64 { 3 } else { 2 }
    }

    /// Keys whose values a chunk has: products take 16 at a time.
    pub(crate) const fn values(self) -> usize {
        self.keys.next_multiple_of(16)
    }

    /// Chunks that the shared memory holds. As `kernels/sm90_attention.cu` has it, like what follows.
    pub(crate) const fn stages(self) -> usize {
        let fit = (SHARED_BYTES - 1024 - self.groups() * self.group_bytes()) / self.stage_bytes();
        if fit < 6 { fit } else { 6 }
    }

    /// Dynamic shared memory: rows and a result for each warpgroup, chunks, barriers, records.
    pub(crate) const fn shared_bytes(self) -> usize {
        let (groups, stages) = (self.groups(), self.stages());
        let barriers = 4 * stages + 2 * 2 * groups;
        groups * self.group_bytes() + stages * self.stage_bytes() + barriers * 8 + groups * 4 * 32 + 16
    }

    /// Boxes of 64 halves side by side.
    const fn boxes(self) -> usize {
        self.dims.div_ceil(64)
    }

    const fn group_bytes(self) -> usize {
        3 * TILE_ROWS * 128 * self.boxes()
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
        write!(f, "sm90 attention {}, {} tiles", self.tile, self.block_tiles)
    }
}

impl AttentionSizes {
    /// The kernel that is done first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is none: on hardware without sm90 kernels, or for longer heads.
    pub fn kernel(&self, limits: &Limits) -> Result<AttentionKernel, Error> {
        let kernels = self.kernels(limits).into_iter();
        let best = kernels.min_by(|a, b| self.clocks(*a, limits).total_cmp(&self.clocks(*b, limits)));
        best.ok_or_else(|| Error::Unsupported {
            what: format!("attention of {self:?} on {limits}"),
            instead: "use heads of a multiple of 8 values up to 128, on compute capability 9.0".into(),
        })
    }

    /// Every kernel that computes it.
    pub fn kernels(&self, limits: &Limits) -> Vec<AttentionKernel> {
        let is_one = limits.has_sm90_kernels() && self.dims.is_multiple_of(8) && self.dims > 0;
        let tiles = AttentionTile::ALL.into_iter();
        let tiles = tiles.filter(|tile| is_one && self.dims <= tile.dims && tile.shared_bytes() <= limits.shared_bytes);
        let of_tile = |tile: AttentionTile| {
            let mut counts = vec![1, 2, tile.groups(), self.row_tiles()];
            counts.sort_unstable();
            counts.dedup();
            counts.into_iter().map(move |block_tiles| AttentionKernel { tile, block_tiles })
        };
        tiles.flat_map(of_tile).filter(|kernel| self.check(*kernel).is_ok()).collect()
    }

    /// Tiles of rows of a head.
    pub(crate) fn row_tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// An error where more tiles share chunks than warpgroups work on, and the chunks do not stay.
    pub(crate) fn check(&self, kernel: AttentionKernel) -> Result<(), Error> {
        let AttentionKernel { tile, block_tiles } = kernel;
        let fits = block_tiles <= tile.groups() || self.keys.div_ceil(tile.keys) <= tile.stages();
        if AttentionTile::ALL.contains(&tile) && self.dims <= tile.dims && block_tiles > 0 && fits {
            return Ok(());
        }
        let instead = "use one of AttentionSizes::kernels".into();
        Err(Error::Unsupported { what: format!("attention of {self:?} by {kernel}"), instead })
    }

    /// In units of a warpgroup's step for a key: of the multiprocessor that has the most blocks.
    fn clocks(&self, kernel: AttentionKernel, limits: &Limits) -> f64 {
        let AttentionKernel { tile, block_tiles } = kernel;
        let blocks = self.images * self.heads * self.row_tiles().div_ceil(block_tiles);
        let rounds = blocks.div_ceil(limits.units.max(1)) as f64;
        let at_once = (block_tiles as f64 / tile.groups() as f64).max(1.0);
        let steps = self.keys.div_ceil(tile.keys) as f64;
        rounds * (at_once + LOADING) * steps * (tile.keys as f64 + STEP)
    }
}

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 64;
/// What a block may have on compute capability 9.0.
const SHARED_BYTES: usize = 227 << 10;
/// What a step takes besides its keys, in keys: of the times of both kernels of 64 values at 257 to 1500 keys.
const STEP: f64 = 40.0;
/// What a block takes before it has its first chunk, in steps: a guess, which keeps blocks large where no time is lost.
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
            let AttentionKernel { tile, block_tiles } = sizes.kernel(&Limits::h200()).unwrap();
            (tile.keys, block_tiles)
        };
        assert_eq!(chosen(sizes(128, 12, 197, 64)), (104, 4));
        assert_eq!(chosen(sizes(64, 16, 257, 64)).0, 104);
        assert_eq!(chosen(sizes(32, 16, 384, 64)).0, 128);
        assert_eq!(chosen(sizes(8, 12, 1500, 64)), (128, 3));
        assert_eq!(chosen(sizes(1, 12, 197, 64)), (104, 1));
        assert_eq!(chosen(sizes(16, 16, 577, 128)).0, 112);
    }

    #[test]
    fn shared_memory_is_what_the_source_takes() {
        let all = AttentionTile::ALL.map(|tile| (tile.stages(), tile.shared_bytes()));
        assert_eq!(all, [(5, 212_624), (4, 205_424), (2, 213_392)]);
        assert!(all.iter().all(|(stages, bytes)| *stages >= 2 && *bytes <= SHARED_BYTES));
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let h200 = Limits::h200();
        let refused = |sizes: AttentionSizes| matches!(sizes.kernel(&h200), Err(Error::Unsupported { .. }));
        assert!(refused(sizes(1, 1, 64, 136)) && refused(sizes(1, 1, 64, 12)) && refused(sizes(1, 1, 64, 0)));
        assert!(sizes(1, 1, 64, 64).kernel(&Limits::a100()).is_err());
        let long = sizes(1, 1, 1500, 64);
        let kernel = |block_tiles| AttentionKernel { tile: AttentionTile { dims: 64, keys: 128 }, block_tiles };
        assert!(long.check(kernel(3)).is_ok() && long.check(kernel(4)).is_err() && long.check(kernel(0)).is_err());
        assert!(sizes(1, 1, 512, 64).check(kernel(8)).is_ok());
        let other = AttentionKernel { tile: AttentionTile { dims: 64, keys: 64 }, block_tiles: 1 };
        assert!(long.check(other).is_err());
    }
}
