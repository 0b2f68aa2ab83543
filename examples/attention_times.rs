//! Times each attention kernel alone, on queries, keys and values that one layer has written into one buffer.
//!
//! usage: attention_times [ROUNDS] [packed|masked]
//!
//! For each size of a known network it prints the microseconds of each kernel and the TFLOP/s of the fastest one, and
//! marks the planner's choice. A figure is the median of rounds in which all kernels run in turn. Operands are random
//! and rotate over more memory than a GPU's L2 cache has. `benches/peers/attention.py` times PyTorch on the same sizes.
//! Then come texts with different values added to their scores: nothing; zeros for every key, as for texts without
//! padding; a value that hides the padding of texts of half the length on average; a value for each pair of tokens.
//! `masked` prints only these. The last lines are of texts with lengths like those of SQuAD: end to end, and padded
//! with their lengths given; `packed` prints only these.

mod alone;

use alone::{Random, assert_written, copies, medians};
use half::f16;
use trefoil::plan::{AttentionKernel, AttentionSizes, HeadsAt, Limits, PackedSizes};
use trefoil::{AttentionOperands, AttentionRun, Device, Error, PackedAttentionOperands, PackedAttentionRun, Target};

const LENGTHS: &str = include_str!("../benches/data/squad_lengths.txt");
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
/// Images, heads, rows and values of a head for texts: BERT-large, BERT-base.
const MASKED: [[usize; 4]; 3] = [[32, 16, 384, 64], [32, 12, 128, 64], [1, 12, 128, 64]];

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let device = Device::open(Target::Cuda(0))?;
    let info = device.info();
    let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
    let only = std::env::args().nth(2);
    let prints = |part: &str| only.as_ref().is_none_or(|only| only == part);
    for &[images, heads, rows, dims] in if only.is_none() { &SIZES[..] } else { &[] } {
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
    for &[images, heads, rows, dims] in if prints("masked") { &MASKED[..] } else { &[] } {
        let sizes = AttentionSizes { images, heads, rows, keys: rows, dims };
        for kernel in sizes.kernels(&limits) {
            time_masked(&device, &sizes, kernel, rounds)?;
        }
    }
    for (heads, texts) in if prints("packed") { &[(16, 46), (12, 46), (12, 8)][..] } else { &[] } {
        time_packed(&device, &limits, *heads, *texts, rounds)?;
    }
    Ok(())
}

/// Prints the microseconds of a kernel without a mask and with each of several masks; the variants run in turn.
fn time_masked(device: &Device, sizes: &AttentionSizes, kernel: AttentionKernel, rounds: usize) -> Result<(), Error> {
    let &AttentionSizes { images, heads, rows, keys, dims } = sizes;
    let width = heads * dims;
    let values = Random(1).halves(images * rows * 3 * width, 2.0);
    let result = vec![f16::NAN; images * rows * width];
    let zeros = vec![f16::ZERO; images * keys];
    let is_padding = |i: usize| i % keys >= (i / keys + 1) * keys / (images + 1);
    let padding: Vec<_> = (0..images * keys).map(|i| if is_padding(i) { f16::MIN } else { f16::ZERO }).collect();
    let pairs = Random(2).halves(heads * rows * keys, 1.0);
    let masks = [
        ("no mask", None),
        ("zeros", Some((&zeros[..], [0, 0, keys]))),
        ("padding", Some((&padding[..], [0, 0, keys]))),
        ("pairs", Some((&pairs[..], [rows * keys, keys, 0]))),
    ];
    let at = |which: usize| HeadsAt { first: which * width, pitches: [dims, 3 * width, 3 * width * rows] };
    let operands = |mask| AttentionOperands {
        sizes: *sizes,
        scale: (dims as f32).sqrt().recip(),
        ahead: None,
        values: &values,
        qkv: [at(0), at(1), at(2)],
        lengths: None,
        mask,
        result: &result,
        out: HeadsAt { first: 0, pitches: [dims, width, width * rows] },
        result_scale: None,
        backward: false,
    };
    let copies = copies(8 * images * rows * width);
    let runs = masks.iter().map(|(_, mask)| AttentionRun::new(device, &operands(*mask), kernel, copies));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    let micros = medians(runs.len(), rounds, |index, times| runs[index].run(times))?;
    print!("{images:4} x {heads} x {rows} x {dims}, {kernel}:");
    for ((name, _), (run, micros)) in masks.iter().zip(runs.iter().zip(micros)) {
        assert_written(&run.result()?, result.len());
        print!(" {name} {micros:.1};");
    }
    println!();
    Ok(())
}

/// Prints the microseconds for texts end to end and padded, which run in turn, and the TFLOP/s without padding.
fn time_packed(device: &Device, limits: &Limits, heads: usize, texts: usize, rounds: usize) -> Result<(), Error> {
    let lengths: Vec<usize> = LENGTHS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|length| length.parse().expect("a length"))
        .take(texts)
        .collect();
    let mut starts = vec![0];
    lengths.iter().for_each(|&length| starts.push(starts[starts.len() - 1] + length as i64));
    let (tokens, dims, longest) = (lengths.iter().sum::<usize>(), 64, 384);
    let width = heads * dims;
    let values = Random(1).halves(texts * longest * 3 * width, 2.0);
    let at = |which: usize, rows: usize| HeadsAt { first: which * width, pitches: [dims, 3 * width, 3 * width * rows] };
    let result = vec![f16::NAN; texts * longest * width];
    let operands = PackedAttentionOperands {
        sizes: PackedSizes { tokens, rows: texts, longest, heads, dims },
        scale: (dims as f32).sqrt().recip(),
        values: &values[..tokens * 3 * width],
        qkv: [0, 1, 2].map(|which| at(which, tokens)),
        starts: &starts,
        result: &result[..tokens * width],
        out: HeadsAt { first: 0, pitches: [dims, width, width * tokens] },
    };
    let mut packed = PackedAttentionRun::new(device, &operands, copies(8 * tokens * width))?;
    let counts: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
    let sizes = AttentionSizes { images: texts, heads, rows: longest, keys: longest, dims };
    let padded = AttentionOperands {
        sizes,
        scale: operands.scale,
        ahead: None,
        values: &values,
        qkv: [0, 1, 2].map(|which| at(which, longest)),
        lengths: Some(&counts),
        mask: None,
        result: &result,
        out: HeadsAt { first: 0, pitches: [dims, width, width * longest] },
        result_scale: None,
        backward: false,
    };
    let mut padded = AttentionRun::new(device, &padded, sizes.kernel(limits)?, copies(8 * texts * longest * width))?;
    let micros = medians(2, rounds, |index, times| if index == 0 { packed.run(times) } else { padded.run(times) })?;
    assert_written(&packed.result()?, tokens * width);
    assert_written(&padded.result()?, texts * longest * width);
    let flops = lengths.iter().map(|length| 4 * heads * length * length * dims).sum::<usize>() as f64;
    let [rate, rate_padded] = [micros[0], micros[1]].map(|micros| 1e-6 * flops / micros);
    println!(
        "{texts} texts, {tokens} tokens, {heads} heads: end to end {:.1} us, {rate:.0} TFLOP/s; padded {:.1}, {rate_padded:.0}",
        micros[0], micros[1]
    );
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
        result_scale: None,
        backward: false,
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
