//! Times matrix products alone, with the epilogues that transformers need, by each kernel, in f16 and in e4m3.
//!
//! usage: product_times [ROUNDS|sustained [ROWS|ROWSxNxK[+ACTIVATION|+residual]...]]
//!
//! For each product of a known network, or for the given sizes, with `+silu` or another activation, it prints the
//! microseconds of the kernels that the planner predicts to be the fastest, sorted by time, as well as the TFLOP/s of
//! the fastest one, and marks the planner's choice. A figure is the median of rounds in which all kernels run in turn;
//! with `sustained` each kernel in f16 runs by itself for a quarter of a second, at the clock that its power leaves.
//! Operands are random and rotate over more memory than a GPU's L2 cache has. `benches/peers/product.py` times PyTorch
//! on the same products.

mod alone;

use alone::{Random, assert_written, copies, medians, sustained};
use half::f16;
use trefoil::plan::{Limits, ProductActivation, ProductKernel, ProductSizes, ProductTile, RowsAt};
use trefoil::{
    Device, E4m3ProductOperands, E4m3ProductRun, Error, ProductNormOperands, ProductOperands, ProductRun, Target,
};

/// Rows of ViT-B/16 at batches 1, 8, 32 and 128, and of BERT-base at 384 tokens; n, k, GELU and residual of its layers.
const ROWS: [usize; 5] = [197, 384, 1576, 6304, 25_216];
const LAYERS: [(usize, usize, ProductActivation, bool); 4] = [
    (2304, 768, ProductActivation::None, false),
    (768, 768, ProductActivation::None, true),
    (3072, 768, ProductActivation::Gelu, false),
    (768, 3072, ProductActivation::None, true),
];
/// The most kernels that are timed for a product, in turns and one after the other.
const KERNELS: usize = 6;
const KERNELS_SUSTAINED: usize = 8;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let rounds = match arguments.next().as_deref() {
        None => Some(7),
        Some("sustained") => None,
        Some(rounds) => Some(rounds.parse().expect("ROUNDS is a number")),
    };
    let asked: Vec<Vec<Problem>> = arguments.map(|argument| problems(&argument)).collect();
    let usual = || ROWS.into_iter().flat_map(of_rows).collect();
    let asked: Vec<Problem> = if asked.is_empty() { usual() } else { asked.into_iter().flatten().collect() };
    let device = Device::open(Target::Cuda(0))?;
    let info = device.info();
    let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
    for Problem { sizes, activation, residual } in asked {
        let ProductSizes { m, n, k } = sizes;
        let mut kernels = sizes.kernels(&limits);
        kernels.truncate(if rounds.is_some() { KERNELS } else { KERNELS_SUSTAINED });
        let mut times = time(&device, sizes, activation, residual, &kernels, rounds)?;
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let activated = if activation == ProductActivation::None { String::new() } else { format!(", {activation:?}") };
        let with = if residual { ", residual" } else { "" };
        print!("{m:5} x {n} x {k}, bias{activated}{with}: {:.0} TFLOP/s", 2e-6 * (m * n * k) as f64 / times[0].1);
        for (kernel, micros) in times {
            let mark = if kernel == kernels[0] { "*" } else { "" };
            print!("; {kernel} {micros:.1}{mark}");
        }
        println!();
        let Some(rounds) = rounds else { continue };
        for result_scale in [None, Some(0.01)].into_iter().filter(|scale| !(residual && scale.is_some())) {
            let tiles = ProductTile::of_e4m3(sizes, &limits);
            let times = time_e4m3(&device, sizes, activation, residual, result_scale, &tiles, rounds)?;
            print!("  e4m3{}:", if result_scale.is_some() { " to e4m3" } else { "" });
            for (tile, micros) in tiles.iter().zip(times) {
                let long = if *tile == ProductTile::OF_E4M3[0] { "" } else { ", long" };
                let rate = 2e-6 * (m * n * k) as f64 / micros;
                print!(" {}x{}{long} {micros:.1}, {rate:.0} TFLOP/s;", tile.n, tile.m);
            }
            println!();
        }
    }
    Ok(())
}

/// A product with its epilogue.
struct Problem {
    sizes: ProductSizes,
    activation: ProductActivation,
    residual: bool,
}

/// The products of the layers with `m` rows.
fn of_rows(m: usize) -> impl Iterator<Item = Problem> {
    let of = move |(n, k, activation, residual)| Problem { sizes: ProductSizes { m, n, k }, activation, residual };
    LAYERS.into_iter().map(of)
}

/// The products that an argument selects.
fn problems(argument: &str) -> Vec<Problem> {
    let (sizes, name) = argument.split_once('+').unwrap_or((argument, "none"));
    let residual = name == "residual";
    let name = if residual { "none" } else { name };
    let is_named = |of: &ProductActivation| format!("{of:?}").eq_ignore_ascii_case(name);
    let activation = ProductActivation::ALL.into_iter().find(is_named).expect("the name of an activation");
    let numbers: Vec<usize> = sizes.split('x').map(|number| number.parse().expect("numbers")).collect();
    match numbers[..] {
        [m] => of_rows(m).collect(),
        [m, n, k] => vec![Problem { sizes: ProductSizes { m, n, k }, activation, residual }],
        _ => panic!("expected ROWS or ROWSxNxK, found `{argument}`"),
    }
}

/// Microseconds of each tile's kernel of e4m3.
fn time_e4m3(
    device: &Device,
    sizes: ProductSizes,
    activation: ProductActivation,
    has_residual: bool,
    result_scale: Option<f32>,
    tiles: &[ProductTile],
    rounds: usize,
) -> Result<Vec<f64>, Error> {
    let ProductSizes { m, n, k } = sizes;
    let mut random = Random(1);
    let [x, w] = [m * k, n * k].map(|count| random.codes(count));
    let residual = if has_residual { random.halves(m * n, 2.0) } else { Vec::new() };
    let width = if result_scale.is_some() { 1 } else { 2 };
    let (bias, unit, result) = (vec![0.5; n], vec![0.25 / k as f32; n], vec![0x7f; m * n * width]);
    let operands = E4m3ProductOperands {
        sizes,
        activation,
        x: &x,
        w: &w,
        factor: 0.5,
        unit: Some(&unit),
        bias: Some(&bias),
        scale: None,
        residual: has_residual.then_some(&residual),
        result_scale,
        result: &result,
        first: 0,
        backward: false,
    };
    let copies = copies(m * k + n * k + 3 * m * n);
    let runs = tiles.iter().map(|&tile| E4m3ProductRun::new(device, &operands, tile, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let micros = medians(runs.len(), rounds, |index, times| runs[index].run(times))?;
    for run in &runs {
        let result = run.result()?;
        let is_nan = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0x7f);
        assert!(!result[..m * n * width].chunks(width).any(is_nan), "a result was not written");
    }
    Ok(micros)
}

/// Microseconds of each kernel.
fn time(
    device: &Device,
    sizes: ProductSizes,
    activation: ProductActivation,
    has_residual: bool,
    kernels: &[ProductKernel],
    rounds: Option<usize>,
) -> Result<Vec<(ProductKernel, f64)>, Error> {
    let ProductSizes { m, n, k } = sizes;
    let mut random = Random(1);
    let (x, w) = (random.halves(m * k, 2.0), random.halves(n * k, (k as f32).sqrt().recip()));
    let residual = if has_residual { random.halves(m * n, 2.0) } else { Vec::new() };
    let (bias, result) = (vec![0.5; n], vec![f16::NAN; m * n]);
    let rows = |pitch: usize| RowsAt { first: 0, pitch };
    let operands = ProductOperands {
        sizes,
        activation,
        x: (&x, rows(k)),
        w: &w,
        bias: Some(&bias),
        scale: None,
        residual: has_residual.then_some((&residual, rows(n))),
        result: (&result, rows(n)),
        backward: false,
        norm: ProductNormOperands::None,
    };
    let copies = copies(2 * (m * k + n * k + 2 * m * n));
    let runs = kernels.iter().map(|&kernel| ProductRun::new(device, &operands, kernel, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let run = |index: usize, times| -> Result<f64, Error> { runs[index].run(times) };
    let micros = match rounds {
        Some(rounds) => medians(kernels.len(), rounds, run)?,
        None => sustained(kernels.len(), run)?,
    };
    for run in &runs {
        assert_written(&run.result()?, result.len());
    }
    Ok(kernels.iter().copied().zip(micros).collect())
}
