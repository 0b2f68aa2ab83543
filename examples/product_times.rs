//! Times matrix products alone, with the epilogues that transformers need, by each kernel.
//!
//! usage: product_times [ROUNDS [ROWS...]]
//!
//! For each product of a known network it prints the microseconds of the kernels that the planner predicts to be the
//! fastest, sorted by time, and the TFLOP/s of the fastest one, and marks the planner's choice. A figure is the median
//! of rounds in which all kernels run in turn. Operands are random and rotate over more memory than a GPU's L2 cache
//! has. `benches/peers/product.py` times PyTorch on the same products.

mod alone;

use alone::{Random, assert_written, copies, medians};
use half::f16;
use trefoil::plan::{Limits, ProductActivation, ProductKernel, ProductSizes, RowsAt};
use trefoil::{Device, Error, ProductOperands, ProductRun, Target};

/// Rows of ViT-B/16 at batches 1, 8, 32 and 128, and of BERT-base at 384 tokens; n, k, GELU and residual of its layers.
const ROWS: [usize; 5] = [197, 384, 1576, 6304, 25_216];
const LAYERS: [(usize, usize, bool, bool); 4] =
    [(2304, 768, false, false), (768, 768, false, true), (3072, 768, true, false), (768, 3072, false, true)];
/// Kernels that are timed.
const KERNELS: usize = 6;

fn main() -> Result<(), Error> {
    let arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("ROUNDS and ROWS are numbers"));
    let arguments: Vec<usize> = arguments.collect();
    let rounds = arguments.first().copied().unwrap_or(7);
    let rows = arguments.get(1..).filter(|rows| !rows.is_empty()).unwrap_or(&ROWS);
    let device = Device::open(Target::Cuda(0))?;
    let info = device.info();
    let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
    for &m in rows {
        for (n, k, gelu, residual) in LAYERS {
            let sizes = ProductSizes { m, n, k };
            let activation = if gelu { ProductActivation::Gelu } else { ProductActivation::None };
            let mut kernels = sizes.kernels(&limits);
            kernels.truncate(KERNELS);
            let mut times = time(&device, sizes, activation, residual, &kernels, rounds)?;
            times.sort_by(|a, b| a.1.total_cmp(&b.1));
            let with = [("", true), (", GELU", gelu), (", residual", residual)];
            let with: String = with.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
            print!("{m:5} x {n} x {k}, bias{with}: {:.0} TFLOP/s", 2e-6 * (m * n * k) as f64 / times[0].1);
            for (kernel, micros) in times {
                let mark = if kernel == kernels[0] { "*" } else { "" };
                print!("; {kernel} {micros:.1}{mark}");
            }
            println!();
        }
    }
    Ok(())
}

/// Microseconds of each kernel.
fn time(
    device: &Device,
    sizes: ProductSizes,
    activation: ProductActivation,
    has_residual: bool,
    kernels: &[ProductKernel],
    rounds: usize,
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
    };
    let copies = copies(2 * (m * k + n * k + 2 * m * n));
    let runs = kernels.iter().map(|&kernel| ProductRun::new(device, &operands, kernel, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let micros = medians(runs.len(), rounds, |index, times| runs[index].run(times))?;
    for run in &runs {
        assert_written(&run.result()?, result.len());
    }
    Ok(kernels.iter().copied().zip(micros).collect())
}
