//! Times loops that networks of images have between their convolutions, and large ones that only move memory, written out
//! for a GPU.
//!
//! usage: gpu_loop_times [ROUNDS [NAME]]
//!        gpu_loop_times modules
//!
//! For each loop whose name contains NAME, or for all, it prints the median microseconds of one launch at 1 and 32
//! rows, the ratio of that time to the time of its bytes at 4.8 TB/s, and the rate of its bytes. The names of the large
//! ones begin with `large`. Operands are random and rotate over more memory than a GPU's L2 cache has; each result is
//! compared with the CPU's.
//!
//! With `modules` it prints the seconds that the driver takes to compile 10, 50 and 200 of the loops: in one module, in a
//! module each, and in as many modules as the machine has cores, by as many threads. Set `CUDA_CACHE_DISABLE=1`, or the
//! driver may have kept them.

mod alone;

use std::thread;
use std::time::Instant;

use alone::{Random, assert_written, copies, medians};
use trefoil::graph::{Binary, Expr, Norm, Op, Resize, ResizeCoordinates, ResizeMode, Tensor, Unary, ValueType};
use trefoil::loops::{Loop, LoopBuilder, Lowered, Monoid, TermId, lower, run};
use trefoil::{Device, Dtype, Error, LoopModule, Target};

/// The rate of memory, in bytes a second.
const MEMORY: f64 = 4.8e12;

/// Functions that a loop applies before or after it moves or adds up elements.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    None,
    Silu,
    HardSwish,
}

struct Case {
    name: String,
    of: Loop,
    to: ValueType,
}

fn main() -> Result<(), Error> {
    let device = Device::open(Target::Cuda(0))?;
    if std::env::args().nth(1).is_some_and(|first| first == "modules") {
        return modules(&device);
    }
    let rounds = std::env::args().nth(1).map_or(7, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let name = std::env::args().nth(2).unwrap_or_default();
    for rows in [1, 32] {
        for case in cases(rows).into_iter().filter(|case| case.name.contains(&name)) {
            time(&device, &case, rounds)?;
        }
    }
    for case in large().into_iter().filter(|case| case.name.contains(&name)) {
        time(&device, &case, rounds)?;
    }
    Ok(())
}

/// Compiles loops at more and more rows, which are other kernels.
fn modules(device: &Device) -> Result<(), Error> {
    let cases: Vec<Case> = (1..=10).flat_map(cases).collect();
    let loops: Vec<&Loop> = cases.iter().map(|case| &case.of).collect();
    for count in [10, 50, 200] {
        let loops = loops.get(..count).expect("there are as many loops");
        let start = Instant::now();
        drop(LoopModule::new(device, loops)?);
        let one = start.elapsed();
        let start = Instant::now();
        let each: Vec<LoopModule> = loops.iter().map(|of| LoopModule::new(device, &[of])).collect::<Result<_, _>>()?;
        let each_took = start.elapsed();
        let start = Instant::now();
        let cores = thread::available_parallelism().map_or(1, Into::into);
        let shares: Vec<&[&Loop]> = loops.chunks(count.div_ceil(cores)).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = shares.iter().map(|share| scope.spawn(|| LoopModule::new(device, share))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic").map(drop))
        })?;
        let together = start.elapsed();
        println!(
            "{count:3} loops: {one:.2?} in one module, {each_took:.2?} in {}, {together:.2?} in {} by as many threads",
            each.len(),
            shares.len()
        );
    }
    Ok(())
}

fn time(device: &Device, case: &Case, rounds: usize) -> Result<(), Error> {
    let mut random = Random(1);
    let operand = |of: &ValueType| {
        let halves = random.halves(of.elems(), 4.0);
        match of.dtype {
            Dtype::F32 => Tensor::of(&of.dims, &halves.iter().map(|x| x.to_f32()).collect::<Vec<_>>()),
            _ => Tensor::from_bytes(of.clone(), bytemuck::cast_slice(&halves)),
        }
    };
    let operands: Vec<Tensor> = case.of.operands.iter().map(operand).collect();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let bytes = case.to.bytes() + operands.iter().map(|of| of.bytes().len()).sum::<usize>();
    let module = LoopModule::new(device, &[&case.of])?;
    let mut on_gpu = module.run(0, &case.of, &operands, &case.to, copies(bytes))?;
    let micros = medians(1, rounds, |_, times| on_gpu.run(times))?[0];
    let result = on_gpu.result()?;
    let (found, wanted) = (result.to_f64s(), run(&case.of, &operands, case.to.clone())?.to_f64s());
    assert_written(&found, found.len());
    let off = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs() / b.abs().max(0.1)).fold(0.0, f64::max);
    assert!(off < 2e-3 && found.len() == wanted.len(), "{}: off by {off:.1e}", case.name);
    let floor = 1e6 * bytes as f64 / MEMORY;
    let rate = 1e-6 * bytes as f64 / micros;
    println!("{:40} {micros:8.2} us, {:5.1} x {floor:.2}, {rate:.2} TB/s, off by {off:.0e}", case.name, micros / floor);
    Ok(())
}

fn cases(rows: usize) -> Vec<Case> {
    let mut all = Vec::new();
    // Squeeze and excitation of EfficientNet-B0, RegNetY-1.6 and PP-OCRv4.
    for (side, channels) in [(112, 32), (56, 96), (56, 144), (28, 240), (14, 480), (14, 672), (7, 1152)] {
        all.push(mean(rows, side * side, channels, Act::Silu));
    }
    for (side, channels) in [(56, 48), (28, 120), (14, 336), (7, 888)] {
        all.push(mean(rows, side * side, channels, Act::None));
    }
    if rows == 1 {
        all.push(mean(rows, 240 * 240, 24, Act::HardSwish));
        all.push(mean(rows, 60 * 60, 96, Act::HardSwish));
    }
    for (side, channels) in [(112, 32), (56, 144), (28, 240), (14, 672)] {
        all.push(gated(rows, side * side, channels));
    }
    all.push(map(rows, 112 * 112, 96, Act::Silu));
    all.push(map(rows, 112 * 112, 96, Act::HardSwish));
    // The blocks of YOLOv8n, and its boxes.
    for (side, parts) in
        [(160, &[16, 16, 16][..]), (80, &[32, 32, 32, 32]), (40, &[64, 64, 64]), (20, &[128, 128, 128])]
    {
        all.push(joined(rows, side * side, parts));
    }
    all.push(boxes(rows, &[6400, 1600, 400]));
    // What DeepLabV3 ends with.
    all.push(resized(rows, 21, 65, 8));
    all
}

/// Loops of 32 MB and more: what they take is what memory takes.
fn large() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [Dtype::F32, Dtype::F16] {
        let of = |dims: &[usize]| ValueType::new(dtype, dims);
        let mut put = |what: &str, op: &Op, operands: &[ValueType], to: &[usize]| {
            all.push(lowered(format!("large {what}, {dtype} {to:?}"), op, operands, of(to)));
        };
        let number = |value| Expr::float(Dtype::F32, value);
        let x = || Expr::arg(0).cast(Dtype::F32);
        let chain = (x() * number(0.5) + number(0.25)).unary(Unary::Tanh).cast(dtype);
        put("chain", &Op::Map(chain), &[of(&[8192, 4096])], &[8192, 4096]);
        let scaled = (x() * Expr::arg(1).cast(Dtype::F32) + Expr::arg(2).cast(Dtype::F32)).cast(dtype);
        let operands = [of(&[32, 1024, 1024]), of(&[1024]), of(&[32, 1, 1])];
        put("broadcasts", &Op::Map(scaled), &operands, &[32, 1024, 1024]);
        put("softmax", &Op::Softmax { axis: 1, log: false }, &[of(&[32768, 1024])], &[32768, 1024]);
        for columns in [768, 1024] {
            let norm = Op::Norm(Norm { axis: 1, eps: 1e-5, centred: true });
            put("layer norm", &norm, &[of(&[32768, columns]), of(&[columns]), of(&[columns])], &[32768, columns]);
        }
        for (from, order) in [
            (&[4096, 8192][..], &[1, 0][..]),
            (&[32, 3136, 256], &[0, 2, 1]),
            (&[32, 128, 6400], &[0, 2, 1]),
            (&[64, 512, 12, 64], &[0, 2, 1, 3]),
        ] {
            let to: Vec<usize> = order.iter().map(|&axis| from[axis]).collect();
            put("transpose", &Op::Transpose(order.to_vec()), &[of(from)], &to);
        }
    }
    all
}

/// The loop of an operation that is one.
fn lowered(name: String, op: &Op, operands: &[ValueType], to: ValueType) -> Case {
    let operands: Vec<Option<&ValueType>> = operands.iter().map(Some).collect();
    let Lowered::Loops(mut loops) = lower(op, &operands, std::slice::from_ref(&to)) else {
        unreachable!("{name} is a loop")
    };
    Case { name, of: loops.remove(0), to }
}

fn half(dims: &[usize]) -> ValueType {
    ValueType::new(Dtype::F16, dims)
}

fn finished(name: String, b: LoopBuilder, result: TermId, dims: &[usize]) -> Case {
    let mut b = b;
    let result = b.cast(Dtype::F16, result);
    Case { name, of: b.finish(result), to: half(dims) }
}

/// An activation computed in f32 and rounded to f16, as f32.
fn activated(b: &mut LoopBuilder, x: TermId, act: Act) -> TermId {
    let number = |b: &mut LoopBuilder, value| b.float(Dtype::F32, value);
    let x = b.cast(Dtype::F32, x);
    match act {
        Act::None => x,
        Act::Silu => {
            let below = b.unary(Unary::Neg, x);
            let exp = b.unary(Unary::Exp, below);
            let one = number(b, 1.0);
            let under = b.binary(Binary::Add, one, exp);
            b.binary(Binary::Div, x, under)
        }
        Act::HardSwish => {
            let [three, six, none] = [3.0, 6.0, 0.0].map(|value| number(b, value));
            let above = b.binary(Binary::Add, x, three);
            let above = b.binary(Binary::Max, above, none);
            let share = b.binary(Binary::Min, above, six);
            let share = b.binary(Binary::Div, share, six);
            b.binary(Binary::Mul, x, share)
        }
    }
}

fn mean(rows: usize, pixels: usize, channels: usize, act: Act) -> Case {
    let mut b = LoopBuilder::new(&[half(&[rows, pixels, channels])], &[rows, channels]);
    let point = b.point();
    let sum = b.reduce(Monoid::Sum, &[pixels], |b, at| {
        let x = b.load(0, &[point[0], at[0], point[1]]);
        activated(b, x, act)
    });
    let count = b.float(Dtype::F32, pixels as f64);
    let mean = b.binary(Binary::Div, sum, count);
    finished(format!("mean{} of {rows}x{pixels}x{channels}", what(act)), b, mean, &[rows, channels])
}

fn gated(rows: usize, pixels: usize, channels: usize) -> Case {
    let dims = [rows, pixels, channels];
    let mut b = LoopBuilder::new(&[half(&dims), half(&[rows, channels])], &dims);
    let point = b.point();
    let x = b.load(0, &point);
    let x = activated(&mut b, x, Act::Silu);
    let gate = b.load(1, &[point[0], point[2]]);
    let gate = b.cast(Dtype::F32, gate);
    let result = b.binary(Binary::Mul, x, gate);
    finished(format!("silu and gate of {rows}x{pixels}x{channels}"), b, result, &dims)
}

fn map(rows: usize, pixels: usize, channels: usize, act: Act) -> Case {
    let dims = [rows, pixels, channels];
    let mut b = LoopBuilder::new(&[half(&dims)], &dims);
    let point = b.point();
    let x = b.load(0, &point);
    let result = activated(&mut b, x, act);
    finished(format!("map{} of {rows}x{pixels}x{channels}", what(act)), b, result, &dims)
}

/// Channels of several images joined, of which the first two come from one image.
fn joined(rows: usize, pixels: usize, parts: &[usize]) -> Case {
    let operands: Vec<ValueType> = [&[parts[0] + parts[1]], &parts[2..]]
        .concat()
        .iter()
        .map(|&channels| half(&[rows, pixels, channels]))
        .collect();
    let all = parts.iter().sum();
    let mut b = LoopBuilder::new(&operands, &[rows, pixels, all]);
    let point = b.point();
    let zero = b.float(Dtype::F16, 0.0);
    let (mut result, mut behind) = (zero, all);
    for (number, &channels) in parts.iter().enumerate().rev() {
        behind -= channels;
        let at = b.shifted(point[2], -(behind as i64));
        let inside = b.within(at, channels);
        let first = if number == 1 { b.shifted(at, parts[0] as i64) } else { at };
        let x = b.load_if(number.saturating_sub(1), &[point[0], point[1], first], inside, zero);
        let x = activated(&mut b, x, Act::Silu);
        let x = b.cast(Dtype::F16, x);
        result = b.select(inside.expect("several parts"), x, result);
    }
    finished(format!("silu and concat of {rows}x{pixels}x{parts:?}"), b, result, &[rows, pixels, all])
}

/// Softmax over the 16 bins of the four sides of boxes, joined from several images.
fn boxes(rows: usize, images: &[usize]) -> Case {
    let operands: Vec<ValueType> = images.iter().map(|&pixels| half(&[rows, pixels, 64])).collect();
    let all: usize = images.iter().sum();
    let mut b = LoopBuilder::new(&operands, &[rows, 4, all, 16]);
    let point = b.point();
    let load = |b: &mut LoopBuilder, bin: TermId| {
        let mut result = b.float(Dtype::F16, 0.0);
        let mut behind = all;
        for (number, &pixels) in images.iter().enumerate().rev() {
            behind -= pixels;
            let at = b.shifted(point[2], -(behind as i64));
            let inside = b.within(at, pixels);
            let side = b.scaled(point[1], 16);
            let channel = b.binary(Binary::Add, side, bin);
            result = b.load_if(number, &[point[0], at, channel], inside, result);
        }
        b.cast(Dtype::F32, result)
    };
    let most = b.reduce(Monoid::Max, &[16], |b, at| load(b, at[0]));
    let exp = |b: &mut LoopBuilder, bin: TermId| {
        let x = load(b, bin);
        let below = b.binary(Binary::Sub, x, most);
        b.unary(Unary::Exp, below)
    };
    let sum = b.reduce(Monoid::Sum, &[16], |b, at| exp(b, at[0]));
    let exp = exp(&mut b, point[3]);
    let result = b.binary(Binary::Div, exp, sum);
    finished(format!("softmax of boxes of {rows}x{images:?}"), b, result, &[rows, 4, all, 16])
}

/// Planes of `side` by `side` pixels, interpolated linearly to `times` as many on each side.
fn resized(rows: usize, planes: usize, side: usize, times: usize) -> Case {
    let (from, to) = (half(&[rows, planes, side, side]), half(&[rows, planes, side * times, side * times]));
    let scale = times as f64;
    let op = Op::Resize(Resize {
        mode: ResizeMode::Linear,
        coordinates: ResizeCoordinates::PytorchHalfPixel,
        dims: to.dims.clone(),
        scales: vec![1.0, 1.0, scale, scale],
        crop: vec![[0.0, 1.0]; 4],
        antialias: false,
        exclude_outside: false,
        outside: None,
    });
    lowered(format!("resize of {rows}x{planes}x{side}x{side} by {times}"), &op, &[from], to)
}

fn what(act: Act) -> &'static str {
    match act {
        Act::None => "",
        Act::Silu => " with silu",
        Act::HardSwish => " with hard swish",
    }
}
