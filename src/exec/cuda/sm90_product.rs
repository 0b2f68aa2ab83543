//! Launches of `kernels/sm90_product.cu` and `kernels/sm90_product_few.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{
    ArgBytes, FastDivide, INDEX_LIMIT, Launch, Rows, aligned, chunks_of, in_range, kernel_args, pitch,
    positive_epsilon, product, unsupported,
};
use super::sm90_conv2d_fprop::MapBytes;
use super::steps::Operands;
use crate::device::cuda::TensorMap;
use crate::error::Error;
use crate::plan::{
    ActivationKind, CHUNK_ROWS, Kernel, ProductActivation, ProductKernel, ProductOp, ProductSizes, ProductTile,
    ProductWay, RowsAt, SLAB, STEP_K, StepOp,
};
use crate::tensor::Dtype;

kernel_args! {
    /// `Sm90ProductArgs`; the maps are encoded before the launch.
    Sm90ProductArgs, 640 bytes {
        w: MapBytes,
        x: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        bias: u64,
        scale: u64,
        unit: u64,
        residual_values: u64,
        y_values: u64,
        m: i32,
        n: i32,
        steps: i32,
        tiles: i32,
        n_tiles: i32,
        residual_pitch: i32,
        y_pitch: i32,
        activation_a: f32,
        activation_b: f32,
        by_n_tiles: FastDivide,
        factor: f32,
        result_factor: f32,
        first_m_tile: i32,
        statistics: u64,
        weight_sums: u64,
        normed: NormedRows,
    }
}

kernel_args! {
    /// `NormedRows`.
    NormedRows, 16 bytes {
        last: i32,
        centred: i32,
        epsilon: f32,
        per_column: f32,
    }
}

/// The modules of f16 and bf16, and those of tiles that blocks share.
const MODULES: [&str; 2] = ["sm90_product", "sm90_product_bf16"];
const MODULES_OF_FEW: [&str; 2] = ["sm90_product_few", "sm90_product_few_bf16"];

/// What a kernel does of norms of rows: nothing, or what [`ProductNorm`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norms {
    None,
    OfX,
    OfY,
}

/// A kernel: its tile, what it does of norms, its activation, and its names in the modules of f16 and bf16.
type Named = (ProductTile, Norms, ActivationKind, [&'static str; 2]);

macro_rules! kernel {
    ($tile:expr, $norms:ident, $kind:ident, $stem:expr) => {
        ($tile, Norms::$norms, ActivationKind::$kind, [$stem, concat!($stem, "_bf16")])
    };
}

/// The kernels of a tile without norms, one for each activation.
macro_rules! plain {
    ($n:literal, $m:literal, $way:ident, $name:literal) => {{
        const TILE: ProductTile = ProductTile { n: $n, m: $m, way: ProductWay::$way };
        [
            kernel!(TILE, None, Clamped, concat!("sm90_product_", $name, "_clamped")),
            kernel!(TILE, None, Sigmoid, concat!("sm90_product_", $name, "_sigmoid")),
            kernel!(TILE, None, Ramp, concat!("sm90_product_", $name, "_ramp")),
            kernel!(TILE, None, Erf, concat!("sm90_product_", $name, "_erf")),
        ]
    }};
}

/// The kernels of a split tile with norms: of the rows that they read one for each activation but ramps, and one that writes
/// statistics.
macro_rules! normed {
    ($n:literal, $m:literal, $name:literal) => {{
        const TILE: ProductTile = ProductTile { n: $n, m: $m, way: ProductWay::Split };
        [
            kernel!(TILE, OfX, Clamped, concat!("sm90_product_of_norm_", $name, "_clamped")),
            kernel!(TILE, OfX, Sigmoid, concat!("sm90_product_of_norm_", $name, "_sigmoid")),
            kernel!(TILE, OfX, Erf, concat!("sm90_product_of_norm_", $name, "_erf")),
            kernel!(TILE, OfY, Clamped, concat!("sm90_product_for_norm_", $name, "_clamped")),
        ]
    }};
}

/// The kernels of each tile, then those with norms.
const KERNELS: [[Named; 4]; ProductTile::ALL.len() + 3] = [
    plain!(128, 192, InTurns, "128x192"),
    plain!(128, 184, InTurns, "128x184"),
    plain!(128, 176, InTurns, "128x176"),
    plain!(128, 168, InTurns, "128x168"),
    plain!(128, 144, InTurns, "128x144"),
    plain!(128, 128, InTurns, "128x128"),
    plain!(128, 64, InTurns, "128x64"),
    plain!(192, 192, Together, "192x192"),
    plain!(128, 256, Together, "128x256"),
    plain!(128, 192, InPairs, "pair_128x192"),
    plain!(128, 184, InPairs, "pair_128x184"),
    plain!(128, 168, InPairs, "pair_128x168"),
    plain!(64, 32, Split, "split_64x32"),
    plain!(64, 40, Split, "split_64x40"),
    plain!(64, 72, Split, "split_64x72"),
    normed!(64, 32, "split_64x32"),
    normed!(64, 40, "split_64x40"),
    normed!(64, 72, "split_64x72"),
];

/// The launcher of products of rows with matrices.
pub(super) struct Sm90Product;

impl Launcher for Sm90Product {
    fn name(&self) -> &'static str {
        "sm90_product"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_kernel = |&(tile, norms, _, names): &Named| {
            let (threads, shared_bytes) = block(tile, norms == Norms::OfX);
            let parts = tile.part_counts().iter().fold(1, |most, &parts| most.max(parts as u32));
            let cluster = if tile.is_paired() { 2 } else { parts };
            let modules = if tile.is_split() { MODULES_OF_FEW } else { MODULES };
            let of_type = move |(module, name)| EntryPoint { module, name, threads, shared_bytes, cluster };
            modules.into_iter().zip(names).map(of_type)
        };
        KERNELS.as_flattened().iter().flat_map(of_kernel).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::Product(of), Kernel::Sm90Product(kernel)) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        launch(&ProductProblem::of(of, step), kernel, step.limits().units)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![
            Arguments::of::<Sm90ProductArgs>("sm90_product.cuh", "Sm90ProductArgs", Sm90ProductArgs::FIELDS),
            Arguments::of::<NormedRows>("sm90_product_norm.cuh", "NormedRows", NormedRows::FIELDS).part(),
        ]
    }
}

/// A product and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductProblem {
    /// The type of x, w, residual and y: f16 or bf16.
    pub(crate) dtype: Dtype,
    /// The sizes of the operands.
    pub(crate) sizes: ProductSizes,
    /// The activation of the sums with their biases.
    pub(crate) activation: ProductActivation,
    /// The left operand.
    pub(crate) x: Rows,
    /// Address of the right operand, [n][k].
    pub(crate) w: u64,
    /// Address of n floats that are added to the sums, if any.
    pub(crate) bias: Option<u64>,
    /// Address of n floats that the activations are multiplied by, if any.
    pub(crate) scale: Option<u64>,
    /// Values that are added last, if any.
    pub(crate) residual: Option<Rows>,
    /// The result; overlaps nothing.
    pub(crate) y: Rows,
    /// Whether the last rows are computed first, where a block has several tiles.
    pub(crate) backward: bool,
    /// What is done of norms of rows, if anything is.
    pub(crate) norm: Option<ProductNorm>,
}

/// What a product does of a norm of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProductNorm {
    /// It norms the rows of x, whose statistics are at this address.
    OfX {
        /// Address of the statistics: a mean and a sum of squares for each row of each part.
        statistics: u64,
        /// Address of the sum of each row of w.
        weight_sums: u64,
        /// Whether the mean is subtracted: LayerNorm.
        centred: bool,
        /// The positive number that is added to the variance.
        epsilon: f32,
    },
    /// It writes the statistics of the rows of y to this address.
    OfY(u64),
}

impl ProductProblem {
    /// The problem of a step. The operation says which operands follow the first.
    fn of(of: &ProductOp, step: &Operands<'_>) -> Self {
        let sizes = of.sizes(step.images());
        let dense = |address| RowsAt { first: 0, pitch: sizes.n }.on(address);
        let mut others = 1..;
        let mut next =
            |is_there: bool| is_there.then(|| others.next().map(|index| step.input_address(index))).flatten();
        let (x, _, y) = step.pointers();
        let w = step.filter(step.name());
        // What a norm leaves of the weights lies behind the matrix: their sums, then what is added.
        let weight_sums = w + (sizes.n * sizes.k * step.x().dtype.bytes()) as u64;
        let added = weight_sums + (sizes.n * size_of::<f32>()) as u64;
        let norm = match &of.norm {
            Some(norm) => next(true).map(|statistics| ProductNorm::OfX {
                statistics,
                weight_sums,
                centred: norm.centred,
                epsilon: norm.epsilon,
            }),
            None => of.statistics.then(|| ProductNorm::OfY(step.output_address(1))),
        };
        Self {
            dtype: step.x().dtype,
            sizes,
            activation: of.activation,
            x: of.x.on(x),
            w,
            norm,
            bias: next(of.bias).or_else(|| of.norm.as_ref().map(|_| added)),
            scale: next(of.scale),
            residual: of.residual.zip(next(of.residual.is_some())).map(|(at, address)| at.on(address)),
            y: dense(y),
            backward: step.backward,
        }
    }
}

/// The launch of `problem` by `kernel` on a GPU of `units` multiprocessors.
pub(crate) fn launch(problem: &ProductProblem, kernel: ProductKernel, units: usize) -> Result<Launch, Error> {
    let ProductProblem { dtype, sizes, activation, x, w, bias, scale, residual, y, backward, norm } = *problem;
    let ProductSizes { m, n, k } = sizes;
    let ProductKernel { tile, parts } = kernel;
    sizes.check(kernel)?;
    let (kind, [activation_a, activation_b]) = activation.kind();
    let entry = entry(dtype, tile, kind, norm)?;
    let (n_tiles, m_tiles, steps) = (n.div_ceil(tile.n), m.div_ceil(tile.m), k.div_ceil(STEP_K));
    let tiles = product("tiles", &[n_tiles, m_tiles])?;
    product("steps of all tiles", &[tiles as usize, steps])?;
    let args = Sm90ProductArgs {
        bias: bias.map_or(Ok(0), |address| aligned("bias", address, 4))?,
        scale: scale.map_or(Ok(0), |address| aligned("scale", address, 4))?,
        residual_values: residual.map_or(0, |residual| residual.address),
        y_values: y.address,
        m: in_range("rows", m, 1, INDEX_LIMIT - 256)?,
        n: in_range("columns", n, 1, INDEX_LIMIT - 256)?,
        steps: steps as i32,
        tiles: tiles as i32,
        n_tiles: n_tiles as i32,
        residual_pitch: residual.map_or(Ok(0), |residual| pitch(residual.pitch, n))?,
        y_pitch: pitch(y.pitch, n)?,
        activation_a,
        activation_b,
        by_n_tiles: FastDivide::by(n_tiles as u32),
        first_m_tile: if backward && !tile.is_split() { m_tiles as i32 - 1 } else { 0 },
        ..with_norm(norm, sizes)?
    };
    let (threads, shared_bytes) = block(tile, matches!(norm, Some(ProductNorm::OfX { .. })));
    let residual_rows = if tile.is_split() { tile.part_rows(parts) } else { CHUNK_ROWS };
    // Without a residual its map is still encoded; the kernel does not use it.
    let maps = vec![
        boxes("w", Rows { address: w, pitch: k }, [k, n], [SLAB, tile.n])?,
        boxes("x", x, [k, m], [SLAB, tile.copied_rows()])?,
        boxes("residual", residual.unwrap_or(y), [n, m], [SLAB, residual_rows])?,
        boxes("y", y, [n, m], [SLAB, CHUNK_ROWS])?,
    ];
    let at_once = units.max(1) as u32;
    let (grid, cluster) = match tile.way {
        ProductWay::Split => (product("blocks", &[tiles as usize, parts])?, parts as u32),
        ProductWay::InPairs => (tiles.min(at_once.next_multiple_of(2)), 2),
        ProductWay::InTurns | ProductWay::Together => (tiles.min(at_once), 1),
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [grid, 1, 1],
        cluster,
        block: [threads, 1, 1],
        shared_bytes,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// Threads and bytes of shared memory of a block; where it norms the rows that it reads, a warp makes the norms.
fn block(tile: ProductTile, norms: bool) -> (u32, u32) {
    let (threads, bytes) = if norms { (32, tile.norm_bytes()) } else { (0, 0) };
    ((tile.threads() + threads) as u32, (tile.shared_bytes() + bytes) as u32)
}

/// Arguments of which only those of a norm are set.
fn with_norm(norm: Option<ProductNorm>, sizes: ProductSizes) -> Result<Sm90ProductArgs, Error> {
    let none = Sm90ProductArgs::zeroed();
    match norm {
        None => Ok(none),
        Some(ProductNorm::OfY(statistics)) => {
            Ok(Sm90ProductArgs { statistics: aligned("statistics", statistics, 16)?, ..none })
        }
        Some(ProductNorm::OfX { statistics, weight_sums, centred, epsilon }) => {
            let normed = NormedRows {
                last: ((sizes.k - 1) % SLAB + 1) as i32,
                centred: i32::from(centred),
                epsilon: positive_epsilon(epsilon)?,
                per_column: (sizes.k as f32).recip(),
            };
            let statistics = aligned("statistics", statistics, 16)?;
            let weight_sums = aligned("sums of weights", weight_sums, 4)?;
            Ok(Sm90ProductArgs { normed, statistics, weight_sums, ..none })
        }
    }
}

/// The kernel of a tile that computes this kind of activation, and what is done of norms, on values of this type.
fn entry(
    dtype: Dtype,
    tile: ProductTile,
    kind: ActivationKind,
    norm: Option<ProductNorm>,
) -> Result<&'static str, Error> {
    let norms = match norm {
        None => Norms::None,
        Some(ProductNorm::OfX { .. }) => Norms::OfX,
        Some(ProductNorm::OfY(_)) => Norms::OfY,
    };
    let is_one = |&&(of, does, activation, _): &&Named| (of, does, activation) == (tile, norms, kind);
    match KERNELS.as_flattened().iter().find(is_one) {
        Some((.., names)) => of_half(dtype, *names),
        None => Err(unsupported("product tile", format!("{tile:?}"), "use one of ProductTile::ALL")),
    }
}

/// The tensor map of a matrix of [columns, rows], with boxes of such dimensions.
pub(super) fn boxes(what: &'static str, at: Rows, dims: [usize; 2], box_dims: [usize; 2]) -> Result<TensorMap, Error> {
    chunks_of("columns of an operand", dims[0])?;
    pitch(at.pitch, dims[0])?;
    Ok(TensorMap::Matrix {
        address: aligned(what, at.address, 16)?,
        dims: dims.map(|dim| dim as u64),
        pitch: at.pitch as u64,
        box_dims: box_dims.map(|dim| dim as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const SIZES: ProductSizes = ProductSizes { m: 1000, n: 328, k: 136 };
    const PROBLEM: ProductProblem = ProductProblem {
        dtype: Dtype::F16,
        sizes: SIZES,
        activation: ProductActivation::Silu,
        x: Rows { address: 0x100, pitch: 144 },
        w: 0x200,
        bias: Some(0x304),
        scale: Some(0x408),
        residual: Some(Rows { address: 0x500, pitch: 336 }),
        y: Rows { address: 0x600, pitch: 344 },
        backward: false,
        norm: None,
    };
    const IN_TURNS: ProductKernel =
        ProductKernel { tile: ProductTile { n: 128, m: 192, way: ProductWay::InTurns }, parts: 1 };
    const SPLIT: ProductKernel = ProductKernel { tile: ProductTile { n: 64, m: 32, way: ProductWay::Split }, parts: 4 };

    #[test]
    fn kernels_agree_with_the_source() {
        let source = [read("sm90_product.cu"), read("sm90_product_few.cu")].concat();
        let found = source.lines().filter_map(|line| line.strip_prefix("using ")?.strip_suffix(">;"));
        let (plain, normed) = KERNELS.split_at(ProductTile::ALL.len());
        let kinds = [
            (ActivationKind::Clamped, "clamped"),
            (ActivationKind::Sigmoid, "sigmoid"),
            (ActivationKind::Ramp, "ramp"),
            (ActivationKind::Erf, "erf"),
        ];
        let named = |tile: ProductTile, norms: Norms, stem: String, kinds: &[(ActivationKind, &str)]| {
            let names = |kind: &str| ["", "_bf16"].map(|of| format!("sm90_product_{stem}_{kind}{of}"));
            kinds.iter().map(|&(kind, name)| (tile, norms, kind, names(name))).collect::<Vec<_>>()
        };
        let owned = |kernels: &[Named]| -> Vec<_> {
            kernels.iter().map(|&(tile, norms, kind, names)| (tile, norms, kind, names.map(str::to_owned))).collect()
        };
        let listed = plain.iter().zip(ProductTile::ALL).map(|(kernels, tile)| {
            let (ProductTile { n, m, way }, stages, buffers) = (tile, tile.stages(), tile.buffers());
            let in_turns = way == ProductWay::InTurns;
            let (stem, line) = match way {
                ProductWay::Split => {
                    let most_parts = tile.part_counts().iter().max().unwrap();
                    ("split_", format!("Split{n}x{m} = SplitTile<{m}, {stages}, {most_parts}"))
                }
                ProductWay::InPairs => {
                    ("pair_", format!("Pair{n}x{m} = ProductPair<true, {n}, {m}, {stages}, {buffers}"))
                }
                _ => ("", format!("Tile{n}x{m} = ProductTile<{in_turns}, {n}, {m}, {stages}, {buffers}")),
            };
            assert_eq!(owned(kernels), named(tile, Norms::None, format!("{stem}{n}x{m}"), &kinds));
            line
        });
        assert!(found.eq(listed));
        let split = ProductTile::ALL.into_iter().filter(|tile| tile.is_split());
        let listed: Vec<_> = split
            .flat_map(|tile| {
                let name = format!("split_{}x{}", tile.n, tile.m);
                let of_x = named(tile, Norms::OfX, format!("of_norm_{name}"), &[kinds[0], kinds[1], kinds[3]]);
                [of_x, named(tile, Norms::OfY, format!("for_norm_{name}"), &kinds[..1])].concat()
            })
            .collect();
        assert_eq!(owned(normed.as_flattened()), listed);
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&PROBLEM, IN_TURNS, 13).unwrap();
        let args: Sm90ProductArgs = of.args.read();
        assert_eq!([args.bias, args.scale, args.residual_values, args.y_values], [0x304, 0x408, 0x500, 0x600]);
        assert_eq!([args.m, args.n, args.steps, args.tiles, args.n_tiles], [1000, 328, 3, 18, 3]);
        assert_eq!([args.residual_pitch, args.y_pitch, args.first_m_tile], [336, 344, 0]);
        let first = |kernel| {
            let of = launch(&ProductProblem { backward: true, ..PROBLEM }, kernel, 13).unwrap();
            of.args.read::<Sm90ProductArgs>().first_m_tile
        };
        assert_eq!([first(IN_TURNS), first(SPLIT)], [5, 0]);
        assert_eq!([args.activation_a, args.activation_b], [-std::f32::consts::LOG2_E, -0.0]);
        assert_eq!(args.by_n_tiles.divide(17), 5);
        let map = |address, dims, pitch, box_rows| TensorMap::Matrix { address, dims, pitch, box_dims: [64, box_rows] };
        let maps = [
            map(0x200, [136, 328], 136, 128),
            map(0x100, [136, 1000], 144, 192),
            map(0x500, [328, 1000], 336, 64),
            map(0x600, [328, 1000], 344, 64),
        ];
        assert_eq!(of.maps, maps);
        assert_eq!((&*of.entry, of.grid, of.cluster), ("sm90_product_128x192_sigmoid", [13, 1, 1], 1));
        assert_eq!((of.block, of.shared_bytes, of.waits_itself), ([384, 1, 1], 213_296, true));
        let of = launch(&PROBLEM, SPLIT, 13).unwrap();
        assert_eq!((&*of.entry, of.grid, of.cluster), ("sm90_product_split_64x32_sigmoid", [768, 1, 1], 4));
        assert_eq!((of.block, of.shared_bytes), ([160, 1, 1], 110_736));
        assert_eq!(of.maps[2], map(0x500, [328, 1000], 336, 8));
    }

    #[test]
    fn blocks_of_a_pair_copy_a_half_of_the_rows_each() {
        let pair = |m| ProductKernel { tile: ProductTile { n: 128, m, way: ProductWay::InPairs }, parts: 1 };
        let (sizes, y) = (ProductSizes { n: 512, ..SIZES }, Rows { pitch: 512, ..PROBLEM.y });
        let problem = ProductProblem { sizes, residual: None, y, ..PROBLEM };
        for (m, copied) in [(192, 96), (184, 96), (168, 88)] {
            let of = launch(&problem, pair(m), 13).unwrap();
            assert_eq!(
                (&*of.entry, of.grid, of.cluster),
                (&*format!("sm90_product_pair_128x{m}_sigmoid"), [14, 1, 1], 2)
            );
            assert!(matches!(of.maps[1], TensorMap::Matrix { box_dims, .. } if box_dims == [64, copied]));
        }
        assert!(launch(&PROBLEM, pair(192), 13).is_err());
    }

    #[test]
    fn a_product_of_bf16_is_the_same_launch_of_another_kernel() {
        for kernel in [IN_TURNS, SPLIT] {
            let [of_f16, of_bf16] = [Dtype::F16, Dtype::Bf16]
                .map(|dtype| launch(&ProductProblem { dtype, ..PROBLEM }, kernel, 132).unwrap());
            assert_eq!(of_bf16.entry, format!("{}_bf16", of_f16.entry));
            assert_eq!((of_bf16.args.as_bytes(), &of_bf16.maps), (of_f16.args.as_bytes(), &of_f16.maps));
        }
        assert!(launch(&ProductProblem { dtype: Dtype::F32, ..PROBLEM }, IN_TURNS, 132).is_err());
    }

    #[test]
    fn without_bias_scale_and_residual() {
        let problem = ProductProblem { bias: None, scale: None, residual: None, ..PROBLEM };
        let args: Sm90ProductArgs = launch(&problem, IN_TURNS, 132).unwrap().args.read();
        assert_eq!([args.bias, args.scale, args.residual_values], [0; 3]);
    }

    #[test]
    fn norms_have_their_kernels_and_numbers() {
        let of_x = ProductNorm::OfX { statistics: 0x710, weight_sums: 0x80c, centred: true, epsilon: 1e-6 };
        let of = |norm, kernel| {
            let of = launch(&ProductProblem { norm: Some(norm), ..PROBLEM }, kernel, 13).unwrap();
            (of.args.read::<Sm90ProductArgs>(), of.entry.into_owned(), of.shared_bytes)
        };
        let (args, entry, shared_bytes) = of(of_x, SPLIT);
        let normed = NormedRows { last: 8, centred: 1, epsilon: 1e-6, per_column: 1.0 / 136.0 };
        assert_eq!((args.normed, args.statistics, args.weight_sums), (normed, 0x710, 0x80c));
        assert_eq!((&*entry, shared_bytes), ("sm90_product_of_norm_split_64x32_sigmoid", 110_736 + 32 * 8 + 16));
        let clamped = ProductProblem { activation: ProductActivation::None, ..PROBLEM };
        let of_y = ProductProblem { norm: Some(ProductNorm::OfY(0x710)), ..clamped };
        let found = launch(&of_y, SPLIT, 13).unwrap();
        let args: Sm90ProductArgs = found.args.read();
        assert_eq!((args.statistics, args.weight_sums, args.normed.last), (0x710, 0, 0));
        assert_eq!((&*found.entry, found.shared_bytes), ("sm90_product_for_norm_split_64x32_clamped", 110_736));
        // Ramps are not behind norms, statistics behind activations that are clamped only.
        let refused = |problem: ProductProblem, kernel| launch(&problem, kernel, 13).is_err();
        assert!(refused(
            ProductProblem { norm: Some(of_x), activation: ProductActivation::HardSwish, ..PROBLEM },
            SPLIT
        ));
        assert!(refused(ProductProblem { norm: of_y.norm, ..PROBLEM }, SPLIT));
        // Only kernels for few rows do either.
        assert!(refused(ProductProblem { norm: Some(of_x), ..clamped }, IN_TURNS) && refused(of_y, IN_TURNS));
        let flat = ProductNorm::OfX { statistics: 0x710, weight_sums: 0x80c, centred: true, epsilon: 0.0 };
        assert!(refused(ProductProblem { norm: Some(flat), ..clamped }, SPLIT));
    }

    #[test]
    fn every_activation_has_its_kernel_and_numbers() {
        let of = |activation| {
            let launch = launch(&ProductProblem { activation, ..PROBLEM }, IN_TURNS, 132).unwrap();
            let args: Sm90ProductArgs = launch.args.read();
            (launch.entry.into_owned(), args.activation_a, args.activation_b)
        };
        assert_eq!(of(ProductActivation::None), ("sm90_product_128x192_clamped".into(), f32::NEG_INFINITY, 0.0));
        assert_eq!(of(ProductActivation::Relu), ("sm90_product_128x192_clamped".into(), 0.0, 0.0));
        assert_eq!(of(ProductActivation::Gelu).0, "sm90_product_128x192_erf");
        // 2 sqrt(2 / pi) log2(e), and 0.044715 times that.
        assert_eq!(
            of(ProductActivation::GeluTanh),
            ("sm90_product_128x192_sigmoid".into(), -2.302_208_3, -0.102_943_24)
        );
        assert_eq!(of(ProductActivation::QuickGelu).1, -2.455_467);
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |problem: ProductProblem| launch(&problem, IN_TURNS, 132).is_err();
        let sized = |sizes: ProductSizes| refused(ProductProblem { sizes, ..PROBLEM });
        assert!(!refused(PROBLEM));
        assert!(sized(ProductSizes { m: 0, ..SIZES }) && sized(ProductSizes { m: 1 << 31, ..SIZES }));
        assert!(sized(ProductSizes { n: 324, ..SIZES }) && sized(ProductSizes { n: 0, ..SIZES }));
        assert!(sized(ProductSizes { k: 132, ..SIZES }) && sized(ProductSizes { k: 0, ..SIZES }));
        assert!(sized(ProductSizes { m: 1 << 30, n: 128, k: 1 << 20 }));
        assert!(refused(ProductProblem { x: Rows { address: 0x108, pitch: 144 }, ..PROBLEM }));
        assert!(refused(ProductProblem { x: Rows { address: 0x100, pitch: 140 }, ..PROBLEM }));
        assert!(refused(ProductProblem { w: 0x204, ..PROBLEM }));
        assert!(refused(ProductProblem { bias: Some(0x302), ..PROBLEM }));
        assert!(refused(ProductProblem { residual: Some(Rows { address: 0x500, pitch: 320 }), ..PROBLEM }));
        assert!(refused(ProductProblem { y: Rows { address: 0, pitch: 344 }, ..PROBLEM }));
        let by = |kernel| launch(&PROBLEM, kernel, 132).is_ok();
        assert!(by(SPLIT) && !by(ProductKernel { parts: 3, ..SPLIT }) && !by(ProductKernel { parts: 2, ..IN_TURNS }));
    }
}
