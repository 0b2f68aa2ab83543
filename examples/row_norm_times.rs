//! Times LayerNorm alone, on the rows of known transformers: with its result in f16, in codes of e4m3, in both,
//! and in f32.
//!
//! usage: row_norm_times [ROUNDS]
//!
//! It prints the median microseconds of one launch, and the rate of the bytes that it reads and writes. They run in turn.
//! Operands are random and rotate over more memory than a GPU's L2 cache has. `benches/peers/product.py` times PyTorch on the
//! same rows.

mod alone;

use alone::{Random, assert_written, copies, medians};
use half::f16;
use trefoil::plan::RowsAt;
use trefoil::{Device, Error, RowNormCodes, RowNormOperands, RowNormRun, Target};

/// Rows and columns: ViT-B/16 at batches 1, 8 and 128, BERT-large at 32 times 384 tokens.
const SIZES: [[usize; 2]; 4] = [[197, 768], [1576, 768], [25_216, 768], [12_288, 1024]];

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let device = Device::open(Target::Cuda(0))?;
    for sizes in SIZES {
        let [rows, columns] = sizes;
        let micros = time(&device, sizes, rounds)?;
        let variants = WRITTEN.iter().zip(micros).map(|((name, written), micros)| {
            let bytes = (2 + written) * rows * columns;
            format!("{name} {micros:.2} us, {:.2} TB/s", 1e-6 * bytes as f64 / micros)
        });
        println!("{rows:5} x {columns}: {}", variants.collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

/// What a norm writes, with the bytes of a value.
const WRITTEN: [(&str, usize); 4] = [("f16", 2), ("e4m3", 1), ("both", 3), ("f32", 4)];

/// Microseconds of a launch of each variant.
fn time(device: &Device, sizes: [usize; 2], rounds: usize) -> Result<Vec<f64>, Error> {
    let [rows, columns] = sizes;
    let x = Random(1).halves(rows * columns, 2.0);
    let (weight, bias, result) = (vec![1.5; columns], vec![0.5; columns], vec![f16::NAN; rows * columns]);
    let at = RowsAt { first: 0, pitch: columns };
    let unwritten = vec![NAN; rows * columns];
    let codes = |alone| Some(RowNormCodes { values: (&unwritten, at), scale: 0.02, alone });
    let of = |codes, floats| {
        let operands = RowNormOperands {
            sizes,
            centred: true,
            epsilon: 1e-6,
            x: (&x, at),
            weight: &weight,
            bias: Some(&bias),
            result: (&result, at),
            codes,
            floats,
            backward: false,
            sum: None,
        };
        RowNormRun::new(device, &operands, copies(4 * rows * columns))
    };
    let singles = vec![f32::NAN; rows * columns];
    let mut runs = [of(None, None)?, of(codes(true), None)?, of(codes(false), None)?, of(None, Some((&singles, at)))?];
    let micros = medians(runs.len(), rounds, |index, times| runs[index].run(times))?;
    let [rows, codes, both, floats] = runs;
    assert_written(&rows.result()?, result.len());
    assert_written(&both.result()?, result.len());
    let all = [codes.codes()?, both.codes()?];
    assert!(all[0] == all[1] && !all[0].contains(&NAN));
    assert!(floats.floats()?.iter().all(|value| !value.is_nan()));
    Ok(micros)
}

/// A code of NaN.
const NAN: u8 = 0xff;
