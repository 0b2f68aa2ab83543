//! Launches of `kernels/sm90_product_e4m3.cu`, whose argument is that of `sm90_product.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, INDEX_LIMIT, Launch, Rows, aligned, in_range, pitch, product, to_codes, unsupported,
};
use super::sm90_product::{Sm90ProductArgs, boxes};
use super::steps::Operands;
use crate::device::cuda::TensorMap;
use crate::error::Error;
use crate::plan::{
    ActivationKind, CHUNK_ROWS, E4M3_STEP_K, E4m3ProductOp, Kernel, ProductActivation, ProductSizes, ProductTile,
    ProductWay, SLAB, StepOp,
};

const MODULE: &str = "sm90_product_e4m3";

/// The names of a tile's kernels: activations that clamp, sigmoid, ramp, and GELU by erf; results in f16 and in codes.
macro_rules! names {
    ($tile:literal) => {
        [names!($tile, ""), names!($tile, "_bytes")]
    };
    ($tile:literal, $of:literal) => {
        [
            concat!("sm90_product_e4m3_", $tile, "_clamped", $of),
            concat!("sm90_product_e4m3_", $tile, "_sigmoid", $of),
            concat!("sm90_product_e4m3_", $tile, "_ramp", $of),
            concat!("sm90_product_e4m3_", $tile, "_erf", $of),
        ]
    };
}

/// The kernels of each tile.
const ENTRIES: [(ProductTile, [[&str; 4]; 2]); ProductTile::OF_E4M3.len()] = [
    (ProductTile { n: 128, m: 192, way: ProductWay::InTurns }, names!("Tile128x192")),
    (ProductTile { n: 128, m: 192, way: ProductWay::Together }, names!("Long128x192")),
    (ProductTile { n: 128, m: 64, way: ProductWay::InTurns }, names!("Long128x64")),
];

/// The launcher of products of e4m3.
pub(super) struct Sm90ProductE4m3;

impl Launcher for Sm90ProductE4m3 {
    fn name(&self) -> &'static str {
        "sm90_product_e4m3"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of_tile = |(tile, names): (ProductTile, [[&'static str; 4]; 2])| {
            let (threads, shared_bytes) = (tile.threads() as u32, tile.shared_bytes() as u32);
            let names = names.into_iter().flatten();
            names.map(move |name| EntryPoint { module: MODULE, name, threads, shared_bytes, cluster: 1 })
        };
        ENTRIES.into_iter().flat_map(of_tile).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::E4m3Product(of), Kernel::Sm90ProductE4m3(tile)) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        launch(&E4m3Problem::of(of, step), tile, step.limits().units)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90ProductArgs>("sm90_product.cuh", "Sm90ProductArgs", Sm90ProductArgs::FIELDS)]
    }
}

/// A product of e4m3 and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct E4m3Problem {
    /// The sizes of the operands.
    pub(crate) sizes: ProductSizes,
    /// The activation of the sums with their biases.
    pub(crate) activation: ProductActivation,
    /// Address of the codes of the left operand, [m][k].
    pub(crate) x: u64,
    /// Address of the codes of the right operand, [n][k].
    pub(crate) w: u64,
    /// What all sums are multiplied by.
    pub(crate) factor: f32,
    /// Address of n floats that sums are multiplied by too, if any.
    pub(crate) unit: Option<u64>,
    /// Address of n floats that are added to the sums, if any.
    pub(crate) bias: Option<u64>,
    /// Address of n floats that the activations are multiplied by, if any.
    pub(crate) scale: Option<u64>,
    /// Address of f16 values [m][n] that are added last, if any.
    pub(crate) residual: Option<u64>,
    /// Address of the result, [m][n]; overlaps nothing.
    pub(crate) y: u64,
    /// The scale of the result if it is codes; else it is f16.
    pub(crate) result: Option<f32>,
    /// Whether the last rows are computed first.
    pub(crate) backward: bool,
}

impl E4m3Problem {
    /// The problem of a step. The operation says which operands follow the first.
    fn of(E4m3ProductOp { product, factor, has_units, result }: &E4m3ProductOp, step: &Operands<'_>) -> Self {
        let mut others = 1..;
        let mut next =
            |is_there: bool| is_there.then(|| others.next().map(|index| step.input_address(index))).flatten();
        let (x, _, y) = step.pointers();
        Self {
            sizes: product.sizes(step.images()),
            activation: product.activation,
            x,
            w: step.filter(step.name()),
            factor: *factor,
            unit: next(*has_units),
            bias: next(product.bias),
            scale: next(product.scale),
            residual: next(product.residual.is_some()),
            y,
            result: *result,
            backward: step.backward,
        }
    }
}

/// The launch of `problem` by the kernels of `tile` on a GPU of `units` multiprocessors.
pub(crate) fn launch(problem: &E4m3Problem, tile: ProductTile, units: usize) -> Result<Launch, Error> {
    let E4m3Problem { sizes, activation, x, w, factor, unit, bias, scale, residual, y, result, backward } = *problem;
    let ProductSizes { m, n, k } = sizes;
    if n % 16 != 0 || k % 16 != 0 || n == 0 || k == 0 {
        return Err(unsupported("columns of a product of e4m3", format!("{n} of {k}"), "they are multiples of 16"));
    }
    if result.is_some() && residual.is_some() {
        return Err(unsupported("a residual of codes", "one", "a result in codes has none"));
    }
    let (kind, [activation_a, activation_b]) = activation.kind();
    let entry = entry(tile, kind, result.is_some())?;
    let (n_tiles, m_tiles, steps) = (n.div_ceil(tile.n), m.div_ceil(tile.m), k.div_ceil(E4M3_STEP_K));
    let tiles = product("tiles", &[n_tiles, m_tiles])?;
    product("steps of all tiles", &[tiles as usize, steps])?;
    let floats = |what, address: Option<u64>| address.map_or(Ok(0), |address| aligned(what, address, 4));
    let args = Sm90ProductArgs {
        bias: floats("bias", bias)?,
        scale: floats("scale", scale)?,
        unit: floats("unit", unit)?,
        residual_values: residual.unwrap_or(0),
        y_values: y,
        m: in_range("rows", m, 1, INDEX_LIMIT - 256)?,
        n: in_range("columns", n, 1, INDEX_LIMIT - 256)?,
        steps: steps as i32,
        tiles: tiles as i32,
        n_tiles: n_tiles as i32,
        residual_pitch: pitch(n, n)?,
        y_pitch: pitch(n, n)?,
        activation_a,
        activation_b,
        by_n_tiles: FastDivide::by(n_tiles as u32),
        factor,
        result_factor: to_codes(result)?,
        first_m_tile: if backward { m_tiles as i32 - 1 } else { 0 },
        ..Zeroable::zeroed()
    };
    // Maps have pairs of codes as elements.
    let pairs =
        |what, address, rows, box_rows| boxes(what, Rows { address, pitch: k / 2 }, [k / 2, rows], [SLAB, box_rows]);
    let halves = |what, address| boxes(what, Rows { address, pitch: n }, [n, m], [SLAB, CHUNK_ROWS]);
    let written: TensorMap = match result {
        Some(_) => boxes("y", Rows { address: y, pitch: n / 2 }, [n / 2, m], [SLAB / 2, CHUNK_ROWS])?,
        None => halves("y", y)?,
    };
    // Without a residual its map is still encoded; the kernel does not use it.
    let added = residual.map_or(Ok(written.clone()), |residual| halves("residual", residual))?;
    let maps = vec![pairs("w", w, n, tile.n)?, pairs("x", x, m, tile.m)?, added, written];
    Ok(Launch {
        entry: entry.into(),
        grid: [tiles.min(units.max(1) as u32), 1, 1],
        cluster: 1,
        block: [tile.threads() as u32, 1, 1],
        shared_bytes: tile.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// The kernel of a tile that computes this kind of activation, with a result in codes or not.
fn entry(tile: ProductTile, kind: ActivationKind, to_codes: bool) -> Result<&'static str, Error> {
    let names = ENTRIES.iter().find(|(of, _)| *of == tile).map(|(_, names)| names[usize::from(to_codes)]);
    let [clamped, sigmoid, ramp, erf] =
        names.ok_or_else(|| unsupported("tile of e4m3", format!("{tile:?}"), "use one of ProductTile::OF_E4M3"))?;
    Ok(match kind {
        ActivationKind::Clamped => clamped,
        ActivationKind::Sigmoid => sigmoid,
        ActivationKind::Ramp => ramp,
        ActivationKind::Erf => erf,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const PROBLEM: E4m3Problem = E4m3Problem {
        sizes: ProductSizes { m: 1000, n: 336, k: 272 },
        activation: ProductActivation::Gelu,
        x: 0x100,
        w: 0x200,
        factor: 0.5,
        unit: Some(0x704),
        bias: Some(0x304),
        scale: Some(0x408),
        residual: None,
        y: 0x600,
        result: Some(0.25),
        backward: false,
    };

    #[test]
    fn the_tiles_are_those_of_the_source() {
        let source = read("sm90_product_e4m3.cu");
        for (tile, [f16, codes]) in ENTRIES {
            let ProductTile { n, m, way } = tile;
            let (name, promotes) = if tile.adds_up() { ("Long", true) } else { ("Tile", false) };
            let (in_turns, stages, buffers) = (way == ProductWay::InTurns, tile.stages(), tile.buffers());
            let line = format!(
                "{name}{n}x{m} = ProductTile<{in_turns}, {n}, {m}, {stages}, {buffers}, ProductOfE4m3<{promotes}, kBytes>>;"
            );
            assert!(source.contains(&line), "{line}");
            let of = |suffix: &str| {
                ["clamped", "sigmoid", "ramp", "erf"]
                    .map(|kind| format!("sm90_product_e4m3_{name}{n}x{m}_{kind}{suffix}"))
            };
            assert_eq!([f16, codes].map(|names| names.map(str::to_owned)), [of(""), of("_bytes")]);
        }
        assert_eq!(ENTRIES.map(|(tile, _)| tile), ProductTile::OF_E4M3);
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&PROBLEM, ProductTile::OF_E4M3[1], 13).unwrap();
        let args: Sm90ProductArgs = of.args.read();
        assert_eq!(
            [args.bias, args.scale, args.unit, args.residual_values, args.y_values],
            [0x304, 0x408, 0x704, 0, 0x600]
        );
        assert_eq!([args.m, args.n, args.steps, args.tiles, args.n_tiles], [1000, 336, 3, 18, 3]);
        assert_eq!([args.factor, args.result_factor], [0.5, 4.0]);
        let map = |address, dims, pitch, box_dims| TensorMap::Matrix { address, dims, pitch, box_dims };
        let y = map(0x600, [168, 1000], 168, [32, 64]);
        let [w, x] = [map(0x200, [136, 336], 136, [64, 128]), map(0x100, [136, 1000], 136, [64, 192])];
        assert_eq!(of.maps, [w, x, y.clone(), y]);
        assert_eq!(
            (&*of.entry, of.grid, of.block),
            ("sm90_product_e4m3_Long128x192_erf_bytes", [13, 1, 1], [384, 1, 1])
        );
        let of = launch(&E4m3Problem { result: None, residual: Some(0x500), ..PROBLEM }, ProductTile::OF_E4M3[0], 13);
        let maps = of.unwrap().maps;
        assert_eq!(maps[2..], [map(0x500, [336, 1000], 336, [64, 64]), map(0x600, [336, 1000], 336, [64, 64])]);
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |problem: E4m3Problem| launch(&problem, ProductTile::OF_E4M3[0], 132).is_err();
        assert!(!refused(PROBLEM));
        assert!(refused(E4m3Problem { sizes: ProductSizes { n: 328, ..PROBLEM.sizes }, ..PROBLEM }));
        assert!(refused(E4m3Problem { sizes: ProductSizes { k: 264, ..PROBLEM.sizes }, ..PROBLEM }));
        assert!(refused(E4m3Problem { sizes: ProductSizes { m: 0, ..PROBLEM.sizes }, ..PROBLEM }));
        assert!(refused(E4m3Problem { residual: Some(0x500), ..PROBLEM }));
        assert!([0.0, -1.0, f32::NAN, f32::MAX].iter().all(|&of| refused(E4m3Problem { result: Some(of), ..PROBLEM })));
        assert!(refused(E4m3Problem { x: 0x108, ..PROBLEM }) && refused(E4m3Problem { unit: Some(0x702), ..PROBLEM }));
        assert!(launch(&PROBLEM, ProductTile::ALL[5], 132).is_err());
    }
}
