//! Times attention alone, on queries, keys and values that one layer has written side by side, by each kernel.
//!
//! usage: attention_times [ROUNDS]
//!
//! For each size of a known network prints the microseconds of each kernel, the median of rounds in which all run in
//! turn, and what the fastest does in TFLOP/s; the planner's choice is marked. Operands are random and rotate over more
//! memory than a GPU's L2 cache has. `benches/peers/attention.py` times PyTorch on the same sizes.

use half::f16;
use trefoil::plan::{AttentionKernel, AttentionSizes, Limits};
use trefoil::{AttentionOperands, AttentionRun, Device, Error, HeadsAt, Target};

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
/// Bytes that the operands of a kernel rotate over.
const ROTATION_BYTES: usize = 200 << 20;
/// Launches between two marks.
const LAUNCHES: usize = 12;

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
            print!("; {}, {} tiles {micros:.1}{mark}", kernel.tile, kernel.block_tiles);
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
    let mut noise = 1_u32;
    let mut random = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f16::from_f32((noise >> 8) as f32 / (1 << 22) as f32 - 2.0)
    };
    let values: Vec<f16> = (0..images * rows * 3 * width).map(|_| random()).collect();
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
    let copies = (ROTATION_BYTES / (8 * images * rows * width)).clamp(2, LAUNCHES);
    let runs = kernels.iter().map(|&kernel| AttentionRun::new(device, &operands, kernel, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let mut micros = vec![Vec::new(); runs.len()];
    for round in 0..rounds + 1 {
        for (run, micros) in runs.iter_mut().zip(&mut micros) {
            let seconds = run.run(LAUNCHES)?;
            if round > 0 {
                micros.push(1e6 * seconds / LAUNCHES as f64); // the first is for the caches
            }
        }
    }
    for run in &runs {
        assert!(run.result()?[..result.len()].iter().all(|value| value.is_finite()), "a result was not written");
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(kernels.iter().copied().zip(micros.into_iter().map(median)).collect())
}
