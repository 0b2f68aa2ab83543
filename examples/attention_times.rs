//! Times each attention kernel alone, on queries, keys and values that one layer has written into one buffer.
//!
//! usage: attention_times [ROUNDS]
//!
//! For each size of a known network it prints the microseconds of each kernel and the TFLOP/s of the fastest one, and
//! marks the planner's choice. A figure is the median of rounds in which all kernels run in turn. Operands are random
//! and rotate over more memory than a GPU's L2 cache has. `benches/peers/attention.py` times PyTorch on the same sizes.

mod alone;

use alone::{Random, assert_written, copies, medians};
use half::f16;
use trefoil::plan::{AttentionKernel, AttentionSizes, HeadsAt, Limits};
use trefoil::{AttentionOperands, AttentionRun, Device, Error, Target};

/// Images, heads, rows and values of a head: ViT-B/16, CLIP ViT-L/14, BERT-large, Whisper small, heads of 128.
const SIZES: [[usize; 4]; 7] = [
    [1, 12, 197, 64],
    [32, 12, 197, 64],
    [128, 12, 197, 64],
    [64, 16, 257, 64],
    [32, 16, 384, 64],
    [8, 12, 1500, 64],
    [16, 16, 577, 128],
];

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let device = Device::open(Target::Cuda(0))?;
    let info = device.info();
    let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
    for [images, heads, rows, dims] in SIZES {
        let sizes = AttentionSizes { images, heads, rows, keys: rows, dims };
        let chosen = sizes.kernel(&limits)?;
        let mut times = time(&device, &sizes, &sizes.kernels(&limits), rounds)?;
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let flops = (4 * images * heads * rows * rows * dims) as f64;
        print!("{images:4} x {heads} x {rows} x {dims}: {:.0} TFLOP/s", 1e-6 * flops / times[0].1);
        for (kernel, micros) in times {
            let mark = if kernel == chosen { "*" } else { "" };
            let tails = if kernel.tails { ", tails" } else { "" };
            print!("; {}, {} tiles{tails} {micros:.1}{mark}", kernel.tile, kernel.block_tiles);
        }
        println!();
    }
    Ok(())
}

/// Microseconds of each kernel.
fn time(
    device: &Device,
    sizes: &AttentionSizes,
    kernels: &[AttentionKernel],
    rounds: usize,
) -> Result<Vec<(AttentionKernel, f64)>, Error> {
    let &AttentionSizes { images, heads, rows, dims, .. } = sizes;
    let width = heads * dims;
    let values = Random(1).halves(images * rows * 3 * width, 2.0);
    let result = vec![f16::NAN; images * rows * width];
    let at = |which: usize| HeadsAt { first: which * width, pitches: [dims, 3 * width, 3 * width * rows] };
    let operands = AttentionOperands {
        sizes: *sizes,
        scale: (dims as f32).sqrt().recip(),
        ahead: None,
        values: &values,
        qkv: [at(0), at(1), at(2)],
        lengths: None,
        mask: None,
        result: &result,
        out: HeadsAt { first: 0, pitches: [dims, width, width * rows] },
    };
    let copies = copies(8 * images * rows * width);
    let runs = kernels.iter().map(|&kernel| AttentionRun::new(device, &operands, kernel, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let micros = medians(runs.len(), rounds, |index, times| runs[index].run(times))?;
    for run in &runs {
        assert_written(&run.result()?, result.len());
    }
    Ok(kernels.iter().copied().zip(micros).collect())
}
