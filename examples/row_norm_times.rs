//! Times LayerNorm alone, on the rows of known transformers.
//!
//! usage: row_norm_times [ROUNDS]
//!
//! It prints the median microseconds of one launch, and the rate of the bytes that it reads and writes. Operands are
//! random and rotate over more memory than a GPU's L2 cache has. `benches/peers/product.py` times PyTorch on the same
//! rows.

mod alone;

use alone::{Random, assert_written, copies, medians};
use half::f16;
use trefoil::plan::RowsAt;
use trefoil::{Device, Error, RowNormOperands, RowNormRun, Target};

/// Rows and columns: ViT-B/16 at batches 1, 8 and 128, BERT-large at 32 times 384 tokens.
const SIZES: [[usize; 2]; 4] = [[197, 768], [1576, 768], [25_216, 768], [12_288, 1024]];

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let device = Device::open(Target::Cuda(0))?;
    for sizes in SIZES {
        let [rows, columns] = sizes;
        let micros = time(&device, sizes, rounds)?;
        println!("{rows:5} x {columns}: {micros:.2} us, {:.2} TB/s", 4e-6 * (rows * columns) as f64 / micros);
    }
    Ok(())
}

/// Microseconds of a launch.
fn time(device: &Device, sizes: [usize; 2], rounds: usize) -> Result<f64, Error> {
    let [rows, columns] = sizes;
    let x = Random(1).halves(rows * columns, 2.0);
    let (weight, bias, result) = (vec![1.5; columns], vec![0.5; columns], vec![f16::NAN; rows * columns]);
    let at = RowsAt { first: 0, pitch: columns };
    let operands = RowNormOperands {
        sizes,
        centred: true,
        epsilon: 1e-6,
        x: (&x, at),
        weight: &weight,
        bias: Some(&bias),
        result: (&result, at),
        result_scale: None,
    };
    let mut run = RowNormRun::new(device, &operands, copies(4 * rows * columns))?;
    let micros = medians(1, rounds, |_, times| run.run(times))?;
    assert_written(&run.result()?, result.len());
    Ok(micros[0])
}
