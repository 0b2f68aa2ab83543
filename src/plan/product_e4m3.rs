//! Products of rows and matrices of e4m3: the operation, its kernels, and the choice among them.

use super::transformer::to_e4m3;
use super::{Limits, ProductOp, ProductSizes, ProductTile, ProductWay};

/// A product of rows and a matrix that are codes of e4m3, and its epilogue. The step reads the rows, then units, biases,
/// factors and residual, if there are any.
///
/// ```
/// use trefoil::plan::{E4m3ProductOp, ProductActivation, ProductOp, RowsAt, StepOp};
/// use trefoil::model::images::{Conv2d, Window};
/// let product = ProductOp {
///     weights: Conv2d::named("fc1", 3072, Window::square(1, 1, 0)),
///     rows: 197,
///     terms: 768,
///     x: RowsAt { first: 0, pitch: 768 },
///     activation: ProductActivation::Gelu,
///     bias: true,
///     scale: false,
///     residual: None,
///     norm: None,
///     statistics: false,
/// };
/// let of = E4m3ProductOp { product, factor: 0.01, has_units: true, result: Some(0.02) };
/// assert_eq!(StepOp::E4m3Product(of).label(3), "e4m3 product+gelu to e4m3");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct E4m3ProductOp {
    /// The product, of values that codes stand for.
    pub product: ProductOp,
    /// The number that all sums of products of codes are multiplied by.
    pub factor: f32,
    /// Whether the sums of each column are multiplied by a unit too.
    pub has_units: bool,
    /// The scale of the result if it is codes; `None` if it is f16. A result in codes has no residual.
    pub result: Option<f32>,
}

/// Codes of K in a stage of shared memory.
#[cfg(feature = "cuda")]
pub(crate) const E4M3_STEP_K: usize = STEP_K;
const STEP_K: usize = 128;
/// The largest K whose sums may stay in the tensor core.
const MOST_IN_CORE: usize = 1024;
/// Rows and columns are multiples of 16 bytes.
const ALIGN: usize = 16;
/// The clocks that a block takes to store a value of its tile.
const STORE: f64 = 0.15;
/// The factor of a step's clocks where its sums are added up outside the tensor core: with two warpgroups together, and
/// with one.
const ADDED_TOGETHER: f64 = 1.1;
const ADDED_ALONE: f64 = 1.6;

impl E4m3ProductOp {
    /// A short text of the operation.
    pub(super) fn label(&self) -> String {
        format!("e4m3 {}{}", self.product.label(), to_e4m3(self.result))
    }
}

impl ProductTile {
    /// Every tile of products of e4m3.
    pub const OF_E4M3: [Self; 3] = [
        Self { n: 128, m: 192, way: ProductWay::InTurns },
        Self { n: 128, m: 192, way: ProductWay::Together },
        Self { n: 128, m: 64, way: ProductWay::InTurns },
    ];

    /// The tiles that compute a product of e4m3, in the order of predicted time.
    ///
    /// ```
    /// use trefoil::plan::{Limits, ProductSizes, ProductTile, ProductWay};
    /// let fc2 = ProductTile::of_e4m3(ProductSizes { m: 25_216, n: 768, k: 3072 }, &Limits::h200());
    /// assert_eq!(fc2[0], ProductTile { n: 128, m: 192, way: ProductWay::Together });
    /// ```
    pub fn of_e4m3(sizes: ProductSizes, limits: &Limits) -> Vec<Self> {
        let ProductSizes { m, n, k } = sizes;
        let is_aligned = m > 0 && [n, k].iter().all(|&of| of > 0 && of.is_multiple_of(ALIGN));
        let fits = |tile: &Self| tile.shared_bytes() <= limits.shared_bytes && (tile.adds_up() || k <= MOST_IN_CORE);
        let all = Self::OF_E4M3.into_iter().filter(|tile| limits.has_sm90_kernels() && is_aligned && fits(tile));
        let mut all: Vec<Self> = all.collect();
        all.sort_by(|a, b| a.e4m3_clocks(sizes, limits).total_cmp(&b.e4m3_clocks(sizes, limits)));
        all
    }

    /// Whether the kernel of e4m3 adds up the sums of each stage outside the tensor core.
    pub(crate) fn adds_up(self) -> bool {
        self != Self::OF_E4M3[0]
    }

    /// Predicted clocks of the multiprocessor with the most tiles.
    pub(super) fn e4m3_clocks(self, ProductSizes { m, n, k }: ProductSizes, limits: &Limits) -> f64 {
        let rounds = (n.div_ceil(self.n) * m.div_ceil(self.m)).div_ceil(limits.units.max(1)) as f64;
        let products = k.div_ceil(STEP_K) as f64 * self.step_clocks();
        let store = STORE * (self.n * self.m) as f64;
        match self.way {
            ProductWay::Together => rounds * (ADDED_TOGETHER * products + store),
            _ if self.adds_up() => rounds * (ADDED_ALONE * products).max(store / 2.0) + store,
            _ => rounds * products.max(store / 2.0) + store,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_are_added_up_outside_the_tensor_core() {
        let tiles = |m, n, k| ProductTile::of_e4m3(ProductSizes { m, n, k }, &Limits::h200());
        assert_eq!(tiles(25_216, 3072, 768)[0], ProductTile::OF_E4M3[0]);
        assert_eq!((tiles(64, 768, 768).len(), tiles(64, 768, 3072).len()), (3, 2));
        assert!(tiles(64, 768, 3072).iter().all(|tile| tile.adds_up()));
        assert!(tiles(64, 72, 64).is_empty() && tiles(64, 64, 72).is_empty() && tiles(0, 64, 64).is_empty());
        let sizes = ProductSizes { m: 64, n: 64, k: 64 };
        assert!(ProductTile::of_e4m3(sizes, &Limits::a100()).is_empty());
    }

    #[test]
    fn shared_memory_is_what_the_source_takes() {
        assert_eq!(ProductTile::OF_E4M3.map(|tile| tile.shared_bytes()), [213_296, 163_904, 196_816]);
    }
}
