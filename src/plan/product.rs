//! Matrix products with a transformer's epilogues: their sizes, their kernels, and the choice among them.

#[cfg(feature = "cuda")]
use std::f64::consts::LOG2_E;
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::fmt;

use super::Limits;
use crate::error::Error;

/// The sizes of a matrix product: `Y[m][n]` from `X[m][k]` and `W[n][k]`.
///
/// ```
/// use trefoil::plan::{Limits, ProductSizes};
/// let fc1 = ProductSizes { m: 25_216, n: 3072, k: 768 };
/// assert_eq!(fc1.kernel(&Limits::h200())?.to_string(), "sm90 product 128x192, pairs");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductSizes {
    /// The number of rows of X and Y.
    pub m: usize,
    /// The number of rows of W and columns of Y; a multiple of 8.
    pub n: usize,
    /// The number of columns of X and W; a multiple of 8.
    pub k: usize,
}

/// The activation of a product, applied to the sums and biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProductActivation {
    /// No activation.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// GELU: x times the standard normal cumulative distribution function at x.
    Gelu,
    /// GELU, approximated by tanh.
    GeluTanh,
    /// x * sigmoid(1.702 x).
    QuickGelu,
    /// x * sigmoid(x).
    Silu,
    /// x * min(max(x / 6 + 1 / 2, 0), 1).
    HardSwish,
}

/// How a kernel computes an activation.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationKind {
    /// max(x, bound).
    Clamped,
    /// x / (1 + 2^(x * (linear + cubic x^2))).
    Sigmoid,
    /// x * min(max(slope x + offset, 0), 1).
    Ramp,
    /// GELU by erf.
    Erf,
}

/// The tile of a product: the part of Y that one thread block computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductTile {
    /// The number of columns of Y.
    pub n: usize,
    /// The number of rows of Y.
    pub m: usize,
    /// The way in which it is computed.
    pub way: ProductWay,
}

/// The place of the rows in an operand: the first value, and the distance between rows, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsAt {
    /// The index of the first value.
    pub first: usize,
    /// The distance from one row to the next, in values.
    pub pitch: usize,
}

/// The way in which a tile is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductWay {
    /// One warpgroup computes a tile, while another one finishes its tile.
    InTurns,
    /// The same, in clusters of two blocks that compute neighbouring columns of the same rows. Each block copies one half
    /// of the rows for both.
    InPairs,
    /// All warpgroups of a block compute a tile together.
    Together,
    /// The blocks of a cluster compute a tile together, each for a part of k.
    Split,
}

/// A kernel of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductKernel {
    /// The kernel's tile.
    pub tile: ProductTile,
    /// The number of parts into which k is divided.
    pub parts: usize,
}

impl ProductActivation {
    /// Every activation.
    pub const ALL: [Self; 7] =
        [Self::None, Self::Relu, Self::Gelu, Self::GeluTanh, Self::QuickGelu, Self::Silu, Self::HardSwish];

    /// The exact value of the activation at `x`.
    pub(crate) fn of(self, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self {
            Self::None => x,
            Self::Relu => x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + libm::erf(x / SQRT_2)),
            Self::GeluTanh => x * sigmoid(SQRT_2 * FRAC_2_SQRT_PI * (x + TANH_CUBIC * x * x * x)),
            Self::QuickGelu => x * sigmoid(QUICK * x),
            Self::Silu => x * sigmoid(x),
            Self::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        }
    }

    /// The suffix of an operation's name for this activation.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Relu => "+relu",
            Self::Gelu => "+gelu",
            Self::GeluTanh => "+gelu(tanh)",
            Self::QuickGelu => "+quick-gelu",
            Self::Silu => "+silu",
            Self::HardSwish => "+hard-swish",
        }
    }

    /// The way in which a kernel computes the activation, with its two parameters.
    #[cfg(feature = "cuda")]
    pub(crate) fn kind(self) -> (ActivationKind, [f32; 2]) {
        let sigmoid = |linear: f64, cubic: f64| {
            (ActivationKind::Sigmoid, [linear, cubic].map(|factor| (-factor * LOG2_E) as f32))
        };
        match self {
            Self::None => (ActivationKind::Clamped, [f32::NEG_INFINITY, 0.0]),
            Self::Relu => (ActivationKind::Clamped, [0.0; 2]),
            Self::Gelu => (ActivationKind::Erf, [0.0; 2]),
            // (1 + tanh(u)) / 2 is the sigmoid of 2 u.
            Self::GeluTanh => sigmoid(SQRT_2 * FRAC_2_SQRT_PI, SQRT_2 * FRAC_2_SQRT_PI * TANH_CUBIC),
            Self::QuickGelu => sigmoid(QUICK, 0.0),
            Self::Silu => sigmoid(1.0, 0.0),
            Self::HardSwish => (ActivationKind::Ramp, [1.0 / 6.0, 0.5]),
        }
    }
}

impl ProductTile {
    /// Every tile.
    pub const ALL: [Self; 15] = [
        Self { n: 128, m: 192, way: ProductWay::InTurns },
        Self { n: 128, m: 184, way: ProductWay::InTurns },
        Self { n: 128, m: 176, way: ProductWay::InTurns },
        Self { n: 128, m: 168, way: ProductWay::InTurns },
        Self { n: 128, m: 144, way: ProductWay::InTurns },
        Self { n: 128, m: 128, way: ProductWay::InTurns },
        Self { n: 128, m: 64, way: ProductWay::InTurns },
        Self { n: 192, m: 192, way: ProductWay::Together },
        Self { n: 128, m: 256, way: ProductWay::Together },
        Self { n: 128, m: 192, way: ProductWay::InPairs },
        Self { n: 128, m: 184, way: ProductWay::InPairs },
        Self { n: 128, m: 168, way: ProductWay::InPairs },
        Self { n: 64, m: 32, way: ProductWay::Split },
        Self { n: 64, m: 40, way: ProductWay::Split },
        Self { n: 64, m: 72, way: ProductWay::Split },
    ];

    /// The number of stages of shared memory for operands. This function and those below agree with
    /// `kernels/sm90_product.cu`.
    pub(crate) const fn stages(self) -> usize {
        match (self.way, self.n, self.m) {
            (ProductWay::Together, ..) => 4,
            (ProductWay::InTurns | ProductWay::InPairs, _, ..128) => 6,
            (ProductWay::InTurns | ProductWay::InPairs, _, 128..168) => 5,
            (ProductWay::InTurns | ProductWay::InPairs, ..) => 4,
            (ProductWay::Split, _, 72) => 6,
            (ProductWay::Split, _, 40) => 7,
            (ProductWay::Split, ..) => 8,
        }
    }

    /// The number of warpgroups that multiply.
    const fn groups(self) -> usize {
        match self.way {
            ProductWay::InTurns | ProductWay::InPairs => 2,
            ProductWay::Together | ProductWay::Split => self.n / SLAB,
        }
    }

    /// The number of threads of a block: its warpgroups that multiply, and a warpgroup or a warp that loads.
    #[cfg(feature = "cuda")]
    pub(crate) const fn threads(self) -> usize {
        self.groups() * 128 + if self.is_split() { 32 } else { 128 }
    }

    /// The number of chunks of the result for which a warpgroup has a place beside the stages.
    pub(crate) const fn buffers(self) -> usize {
        if matches!(self.way, ProductWay::InTurns | ProductWay::InPairs) { 3 } else { 0 }
    }

    /// Bytes of dynamic shared memory of a block: stages and their two barriers each. Of tiles in turns some chunks of the
    /// result for each warpgroup as well, with a barrier each, and two for each chunk of a tile; of a split tile the sums and
    /// residuals of a tile, and two barriers.
    pub(crate) const fn shared_bytes(self) -> usize {
        let stages = self.stages() * ((self.n + self.m) * ROW_BYTES + 2 * 8);
        let chunks = self.n / SLAB * self.m.div_ceil(CHUNK_ROWS);
        let results = match self.way {
            ProductWay::InTurns | ProductWay::InPairs => {
                self.groups() * (self.buffers() * (CHUNK_ROWS * ROW_BYTES + 8) + 2 * 8 * chunks)
            }
            ProductWay::Together => 0,
            ProductWay::Split => self.sum_bytes() + self.n * self.m * 2 + 2 * 8,
        };
        stages + results
    }

    /// Bytes of shared memory for norms of rows, in kernels for few rows that make them: two floats for each row, and a
    /// barrier.
    #[cfg(feature = "cuda")]
    pub(crate) const fn norm_bytes(self) -> usize {
        8 * self.m + 16
    }

    /// The rows of a split tile that a block adds up at most, of so many that share it: eights, so that the last blocks may
    /// have fewer, or none.
    pub(crate) const fn part_rows(self, parts: usize) -> usize {
        (self.m / 8).div_ceil(parts) * 8
    }

    /// The bytes of the sums that the blocks of a split tile send to one of them, none where a block computes it alone.
    const fn sum_bytes(self) -> usize {
        match self.part_counts().len() {
            1 => 0,
            _ => MOST_PARTS * self.part_rows(MOST_PARTS) * self.n * size_of::<f32>(),
        }
    }

    /// The numbers of parts into which k may be divided. Tiles of 64x72 have stages where others have the parts' sums.
    pub(crate) const fn part_counts(self) -> &'static [usize] {
        if self.is_split() && self.m <= 40 { &[1, 2, 4] } else { &[1] }
    }

    /// The number of rows that a block copies: all rows of the tile, or a half in multiples of 8.
    #[cfg(feature = "cuda")]
    pub(crate) const fn copied_rows(self) -> usize {
        if self.is_paired() { (self.m / 2).next_multiple_of(8) } else { self.m }
    }

    /// Whether two blocks copy rows for each other.
    pub(crate) const fn is_paired(self) -> bool {
        matches!(self.way, ProductWay::InPairs)
    }

    /// Whether the blocks of a cluster compute a tile together.
    pub(crate) const fn is_split(self) -> bool {
        matches!(self.way, ProductWay::Split)
    }

    /// Clocks of a step: of its products, or of copying its operands into and out of shared memory at 128 bytes a
    /// clock.
    pub(super) fn step_clocks(self) -> f64 {
        let (products, slabs) = (self.n * self.m / 32, self.n / SLAB);
        let operands = self.n + self.m + 4 * slabs * (16 + self.m / 4);
        products.max(operands) as f64
    }
}

/// The factor of x^3 in GELU by tanh, and that of x in QuickGELU.
const TANH_CUBIC: f64 = 0.044_715;
const QUICK: f64 = 1.702;
/// The number of channels of a warpgroup's product.
pub(crate) const SLAB: usize = 64;
/// The number of columns of X and W in a stage.
pub(crate) const STEP_K: usize = 64;
/// The number of rows of the result that are stored together, with the channels of a slab each.
pub(crate) const CHUNK_ROWS: usize = 64;
/// Clocks that a block takes to store a value of its tile; and where two warpgroups have a tile of 256 rows together: fitted
/// to three products of 768 and 1024 columns.
const STORE: f64 = 0.15;
const STORE_OF_TWO: f64 = 0.26;
/// Clocks of the copy engine for a row that ends within a box. To fill the rest with zeros takes several times as long
/// as to copy a whole row.
pub(in crate::plan) const CUT_ROW: f64 = 23.0;
/// The factor of a split tile's step, additional clocks of a round of its blocks, and clocks of the exchange of sums
/// between two parts and between four.
const SPLIT_STEP: f64 = 1.35;
const SPLIT_ROUND: f64 = 1500.0;
const EXCHANGE_OF_TWO: f64 = 1000.0;
const EXCHANGE_OF_FOUR: f64 = 1400.0;
/// The additional time of a second block on a multiprocessor, as a part of the first one's, if neither has more than this
/// many steps: then both mostly wait for operands.
const SECOND_BLOCK: f64 = 0.6;
const FEW_STEPS: usize = 12;
/// The largest split tile, and the most rows for which it is taken and launches leave places for the next one: encoders of
/// 128 and of 197 rows were timed.
const LARGEST_SPLIT: ProductTile = ProductTile { n: 64, m: 72, way: ProductWay::Split };
pub(super) const TIMED_ROWS: usize = 200;
/// The part of their products' time that pairs of blocks save, because they copy less, which leaves power for the clock;
/// and the clocks that they lose where a launch begins and ends, because then they wait for each other. Within networks at
/// the power limit 144 steps of a block gain, and 108 do not.
const SAVED_BY_PAIRS: f64 = 0.015;
const ENDS_OF_PAIRS: f64 = 1400.0;
/// The most blocks of a cluster that share a split tile.
const MOST_PARTS: usize = 4;
/// Bytes of a row in a stage.
const ROW_BYTES: usize = 2 * STEP_K;

impl fmt::Display for ProductKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProductTile { n, m, way } = self.tile;
        write!(f, "sm90 product {n}x{m}")?;
        match way {
            ProductWay::Split => write!(f, ", k in {}", self.parts),
            ProductWay::InPairs => write!(f, ", pairs"),
            ProductWay::InTurns | ProductWay::Together => Ok(()),
        }
    }
}

impl ProductSizes {
    /// The kernel with the least predicted time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none: on hardware without sm90 kernels, or for columns that are no multiple
    /// of 8.
    pub fn kernel(&self, limits: &Limits) -> Result<ProductKernel, Error> {
        self.kernels(limits).into_iter().next().ok_or_else(|| Error::Unsupported {
            what: format!("a matrix product of {self:?} on {limits}"),
            instead: "use n and k that are multiples of 8, on compute capability 9.0".into(),
        })
    }

    /// Every kernel that computes this product, in the order of predicted time.
    pub fn kernels(&self, limits: &Limits) -> Vec<ProductKernel> {
        let tiles = ProductTile::ALL.into_iter();
        let tiles = tiles.filter(|tile| limits.has_sm90_kernels() && tile.shared_bytes() <= limits.shared_bytes);
        let of_tile = |tile: ProductTile| tile.part_counts().iter().map(move |&parts| ProductKernel { tile, parts });
        let mut kernels: Vec<_> = tiles.flat_map(of_tile).filter(|kernel| self.check(*kernel).is_ok()).collect();
        kernels.sort_by(|a, b| self.clocks(*a, limits).total_cmp(&self.clocks(*b, limits)));
        kernels
    }

    /// An error unless the kernel computes this product.
    pub(crate) fn check(&self, kernel: ProductKernel) -> Result<(), Error> {
        let eights = |columns: usize| columns > 0 && columns.is_multiple_of(8);
        let ProductKernel { tile, parts } = kernel;
        let is_one = ProductTile::ALL.contains(&tile) && tile.part_counts().contains(&parts);
        let has_pairs = !tile.is_paired() || self.n.div_ceil(tile.n).is_multiple_of(2);
        if is_one && has_pairs && self.m > 0 && eights(self.n) && eights(self.k) {
            return Ok(());
        }
        let instead = "use one of ProductSizes::kernels, with n and k that are multiples of 8".into();
        Err(Error::Unsupported { what: format!("a matrix product of {self:?} by {kernel}"), instead })
    }

    /// Clocks of the copies of a tile's operands in the one step in which their rows end; 0 if rows end with a step.
    fn cut_clocks(&self, tile: ProductTile) -> f64 {
        let rows = tile.n.min(self.n) + tile.m.min(self.m);
        if self.k.is_multiple_of(STEP_K) { 0.0 } else { rows as f64 * CUT_ROW }
    }

    /// The number of tiles, each counted as often as blocks share it: the blocks of a launch, where no block has several.
    pub(super) const fn blocks(&self, ProductKernel { tile, parts }: ProductKernel) -> usize {
        self.n.div_ceil(tile.n) * self.m.div_ceil(tile.m) * parts
    }

    /// Predicted clocks of the best kernel; `None` if there is none.
    pub(super) fn least_clocks(&self, limits: &Limits) -> Option<f64> {
        self.kernels(limits).first().map(|&kernel| self.clocks(kernel, limits))
    }

    /// Predicted clocks of the multiprocessor with the most tiles, fitted to 22 products on an H200.
    pub(super) fn clocks(&self, kernel: ProductKernel, limits: &Limits) -> f64 {
        let ProductKernel { tile, parts } = kernel;
        if tile == LARGEST_SPLIT && self.m > TIMED_ROWS {
            return f64::INFINITY;
        }
        let tiles = self.blocks(kernel);
        let units = limits.units.max(1);
        let rounds = tiles.div_ceil(units) as f64;
        let steps = self.k.div_ceil(STEP_K).div_ceil(parts);
        let products = steps as f64 * tile.step_clocks();
        // Only one of the parts of k has the step in which rows end.
        let copies = self.cut_clocks(tile) / parts as f64;
        let stored = tile.n * tile.m.next_multiple_of(CHUNK_ROWS);
        let store = if tile.m == 256 { STORE_OF_TWO } else { STORE } * stored as f64;
        match tile.way {
            // One warpgroup stores while the other one multiplies.
            ProductWay::InTurns => rounds * products.max(store / 2.0).max(copies) + store,
            ProductWay::InPairs => {
                let products = (1.0 - SAVED_BY_PAIRS) * products;
                rounds * products.max(store / 2.0).max(copies) + store + ENDS_OF_PAIRS
            }
            ProductWay::Together => rounds * (products + store).max(copies),
            ProductWay::Split => {
                let (load, rounds) = (tiles as f64 / units as f64, tiles.div_ceil(2 * units) as f64);
                let crowding = if load <= 2.0 && steps <= FEW_STEPS { 1.0 + SECOND_BLOCK * (load - 1.0) } else { load };
                let exchange = [0.0, EXCHANGE_OF_TWO, EXCHANGE_OF_FOUR][parts.ilog2() as usize];
                crowding.max(1.0) * (SPLIT_STEP * products).max(copies) + rounds * SPLIT_ROUND + exchange
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(m: usize, n: usize, k: usize) -> ProductSizes {
        ProductSizes { m, n, k }
    }

    #[test]
    fn shared_memory_is_what_the_source_takes() {
        let all = ProductTile::ALL.map(|tile| tile.shared_bytes());
        let in_turns = [213_296, 209_200, 205_104, 201_008, 223_552, 213_248, 196_816];
        let in_pairs = [213_296, 209_200, 201_008];
        assert_eq!(all[..], [&in_turns[..], &[196_672, 196_672], &in_pairs, &[110_736, 114_816, 113_776]].concat());
        assert!(all.iter().all(|bytes| *bytes <= 227 << 10));
    }

    #[test]
    fn the_faster_kernel_is_taken() {
        let chosen = |m, n, k| {
            let ProductKernel { tile, parts } = sizes(m, n, k).kernel(&Limits::h200()).unwrap();
            (tile.n, tile.m, parts)
        };
        let layers = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
        assert_eq!(layers.map(|(n, k)| chosen(25_216, n, k)), [(128, 192, 1); 4]);
        assert_eq!(layers.map(|(n, k)| chosen(6304, n, k).0), [128, 192, 128, 192]);
        // By 128x256 the second takes 166 us for 165 by 128x192, and the third 131 for 125.
        let long = [(4096, 1024, 4096), (12_288, 1024, 4096), (16_448, 768, 3072)];
        assert_eq!(long.map(|(m, n, k)| chosen(m, n, k).1), [256, 192, 192]);
        // ViT-B/16 and BERT-base at one row: all blocks of a product at once.
        let few = [(64, 40, 1), (64, 40, 4), (64, 72, 1), (64, 40, 4)];
        assert_eq!(layers.map(|(n, k)| chosen(197, n, k)), few);
        assert_eq!(layers.map(|(n, k)| chosen(128, n, k)), [1, 4, 1, 4].map(|parts| (64, 32, parts)));
    }

    /// Tiles of fewer rows are taken where as many rounds of them have all rows.
    #[test]
    fn heights_of_tiles_follow_from_rounds() {
        let height = |m, n, k| sizes(m, n, k).kernel(&Limits::h200()).unwrap().tile.m;
        let whisper = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
        assert_eq!(whisper.map(|(n, k)| height(12_000, n, k)), [184; 4]);
        assert_eq!([(1024, 1024), (1024, 4096), (4096, 1024)].map(|(n, k)| height(16_448, n, k)), [168, 168, 192]);
        assert_eq!((height(6304, 2304, 768), height(6304, 3072, 768), height(1576, 3072, 768)), (176, 192, 144));
    }

    /// Pairs are taken where a block has many steps: for all products of CLIP L/14 at 64 images and ViT-B/16 at 128 but the
    /// projections, for both layers behind attention of Whisper at 8, for none of ViT-B/16 at 32.
    #[test]
    fn pairs_have_many_steps() {
        let is_paired = |(m, n, k)| sizes(m, n, k).kernel(&Limits::h200()).unwrap().tile.is_paired();
        let layers = |m: usize, d: usize| [(m, 3 * d, d), (m, 4 * d, d), (m, d, 4 * d), (m, d, d)];
        assert_eq!(layers(16_448, 1024).map(is_paired), [true, true, true, false]);
        assert_eq!(layers(25_216, 768).map(is_paired), [true, true, true, false]);
        assert_eq!(layers(12_000, 768).map(is_paired), [false, true, true, false]);
        assert_eq!(layers(6304, 768).map(is_paired), [false; 4]);
    }

    /// Pairs have an even number of tiles side by side.
    #[test]
    fn pairs_need_two_tiles_of_columns() {
        let pairs = |n| sizes(1000, n, 64).kernels(&Limits::h200()).iter().filter(|of| of.tile.is_paired()).count();
        assert_eq!([128, 136, 256, 264].map(pairs), [0, 3, 3, 0]);
    }

    /// Each row of x and of w is copied again for every tile. If rows end within a step, larger tiles are faster.
    #[test]
    fn rows_that_end_within_a_step_have_large_tiles() {
        let rows = |m, n, k| sizes(m, n, k).kernel(&Limits::h200()).unwrap().tile.m;
        assert_eq!([rows(401_408, 96, 16), rows(25_088, 240, 40), rows(100_352, 144, 24)], [192; 3]);
        assert_eq!([rows(401_408, 96, 64), rows(6272, 672, 128)], [64; 2]);
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let h200 = Limits::h200();
        let refused = |sizes: ProductSizes| matches!(sizes.kernel(&h200), Err(Error::Unsupported { .. }));
        assert!(refused(sizes(1, 12, 8)) && refused(sizes(1, 8, 12)) && refused(sizes(0, 8, 8)));
        assert!(refused(sizes(1, 0, 8)) && refused(sizes(1, 8, 0)));
        assert!(sizes(1, 8, 8).kernel(&Limits::a100()).is_err());
        assert_eq!(sizes(1, 8, 8).kernels(&h200).len(), 9 + 2 * 3 + 1);
    }
}
