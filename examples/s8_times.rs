//! Times the layers of ResNet-50 in bytes with each of their kernels, and convolutions also with the f16 kernel.
//!
//! usage: s8_times [BATCH [ROUNDS [PART [bytes]]]]
//!
//! For each layer it prints the microseconds of the fastest kernel of bytes, of the fastest f16 kernel, and the lower
//! bound that memory and tensor cores set, then those of every kernel of bytes. A figure is the median of rounds in
//! which all kernels run in turn. The convolution of a shortcut is part of the sum to which it is added; such sums are
//! not timed in f16. The first layers follow, with each tile, and the mean. Operands are random (half of the pixels are
//! zero, and weights are normally distributed) and rotate over more memory than a GPU's L2 cache has. Some results of
//! the fastest kernel are compared with plain sums. The last lines add up the layers, each as often as the network has
//! it, without the last layer, which is in f16. PART selects convolutions whose name contains this text. `bytes` leaves
//! out f16.

use half::f16;
use trefoil::model::images::Window;
use trefoil::plan::{Limits, S8Conv, S8Kernel, S8Stem, Sm90Tile};
use trefoil::{ConvRun, Device, Error, HalfOperands, S8Operands, Shape, Target};
use trefoil::{S8MeanOperands, S8MeanRun, S8StemOperands, S8StemRun};

/// Number of such layers; input height, C, K, filter size, stride; and what follows the sums. The first and last layer
/// are left out.
const LAYERS: [(usize, [usize; 5], Kind); 23] = [
    (1, [56, 64, 64, 1, 1], Kind::Plain),
    (2, [56, 256, 64, 1, 1], Kind::Plain),
    (3, [56, 64, 64, 3, 1], Kind::Plain),
    (2, [56, 64, 256, 1, 1], Kind::Residual),
    (1, [56, 64, 256, 1, 1], Kind::Sum([56, 64, 1])),
    (1, [56, 256, 128, 1, 1], Kind::Plain),
    (1, [56, 128, 128, 3, 2], Kind::Plain),
    (3, [28, 128, 128, 3, 1], Kind::Plain),
    (3, [28, 512, 128, 1, 1], Kind::Plain),
    (3, [28, 128, 512, 1, 1], Kind::Residual),
    (1, [28, 128, 512, 1, 1], Kind::Sum([56, 256, 2])),
    (1, [28, 512, 256, 1, 1], Kind::Plain),
    (1, [28, 256, 256, 3, 2], Kind::Plain),
    (5, [14, 256, 256, 3, 1], Kind::Plain),
    (5, [14, 1024, 256, 1, 1], Kind::Plain),
    (5, [14, 256, 1024, 1, 1], Kind::Residual),
    (1, [14, 256, 1024, 1, 1], Kind::Sum([28, 512, 2])),
    (1, [14, 1024, 512, 1, 1], Kind::Plain),
    (1, [14, 512, 512, 3, 2], Kind::Plain),
    (2, [7, 512, 512, 3, 1], Kind::Plain),
    (2, [7, 2048, 512, 1, 1], Kind::Plain),
    (2, [7, 512, 2048, 1, 1], Kind::Residual),
    (1, [7, 512, 2048, 1, 1], Kind::Sum([14, 1024, 2])),
];

/// The operations of a layer: sums and a ReLU, a signed residual and a ReLU, or the sums of a second convolution, by
/// 1x1 windows of an input of this height and C at this stride, and a ReLU.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Residual,
    Sum([usize; 3]),
}

/// Bytes that the operands of a kernel rotate over.
const ROTATION_BYTES: usize = 200 << 20;
/// Number of launches between two marks.
const LAUNCHES: usize = 20;
/// Number of the fastest kernel's results that are compared.
const SAMPLES: usize = 509;
/// Measured rates of this kind of GPU: bytes a second from and to memory, operations a second of bytes and of halves.
const LIMITS: [f64; 3] = [4.35e12, 1.9e15, 0.8e15];

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, otherwise: usize| {
        arguments.get(index).map_or(otherwise, |number| number.parse().expect("BATCH and ROUNDS are numbers"))
    };
    let (batch, rounds) = (number(0, 256), number(1, 7));
    let part = arguments.get(2).map_or("", String::as_str);
    let with_halves = arguments.get(3).is_none_or(|only| only != "bytes");
    let device = Device::open(Target::Cuda(0))?;
    let mut sums = [0.0; 4];
    for (count, sizes, kind) in LAYERS {
        let layer = Layer::new(batch, sizes, kind);
        if !layer.name.contains(part) {
            continue;
        }
        let bytes = layer.time_bytes(&device, rounds)?;
        let limits = [layer.limit(1, LIMITS[1]), layer.limit(2, LIMITS[2])];
        let (best, fastest) = bytes[0];
        println!("{count} x {:<28} bytes {fastest:6.1} us ({best}), limit {:5.1}", layer.name, limits[0]);
        let mut of_halves = 0.0;
        if with_halves && layer.second.is_none() {
            let (tile, cluster, micros) = layer.time_halves(&device, rounds)?;
            println!("    halves {micros:6.1} us ({tile}, {cluster}), limit {:5.1}", limits[1]);
            of_halves = micros;
        }
        let all: Vec<_> = bytes
            .iter()
            .map(|(kernel, micros)| match kernel {
                S8Kernel::Tiled { tile, cluster } => format!("{tile} by {cluster} {micros:.1}"),
                S8Kernel::Halo => format!("halo {micros:.1}"),
                S8Kernel::Sm80Gemm(tile) => format!("sm80 {tile} {micros:.1}"),
            })
            .collect();
        println!("    {}", all.join("  "));
        for (sum, micros) in sums.iter_mut().zip([fastest, of_halves, limits[0], limits[1]]) {
            *sum += count as f64 * micros;
        }
    }
    for (name, micros) in [("first layers", stem(&device, batch, rounds)?), ("mean", mean(&device, batch, rounds)?)] {
        println!("{name}: {micros:.1} us");
        sums[0] += micros;
    }
    let totals = ["bytes", "halves, but for sums of two", "limit of bytes", "limit of halves"].into_iter().zip(sums);
    for (what, micros) in totals.filter(|(_, micros)| *micros > 0.0) {
        println!("{what}: {micros:.0} us, {:.0} images/s", 1e6 * batch as f64 / micros);
    }
    Ok(())
}

/// A layer, with operands as bytes.
struct Layer {
    name: String,
    conv: S8Conv,
    kind: Kind,
    x: Vec<u8>,
    filter: Vec<i8>,
    second: Option<(S8Conv, Vec<u8>, Vec<i8>)>,
    residual: Vec<u8>,
}

impl Layer {
    fn new(batch: usize, [height, channels, out_channels, size, stride]: [usize; 5], kind: Kind) -> Self {
        let (input, out) = (Shape::new(height, height, channels), height / stride);
        let window = Window::square(size, stride, size / 2);
        let conv = S8Conv { batch, input, output: Shape::new(out, out, out_channels), window };
        let mut random = Random(1);
        let residual_bytes = if kind == Kind::Residual { batch * conv.output.elems() } else { 0 };
        let second = match kind {
            Kind::Sum([height, channels, stride]) => {
                let (input, window) = (Shape::new(height, height, channels), Window::square(1, stride, 0));
                let (x, filter) = (random.pixels(batch * input.elems()), random.weights(out_channels * channels));
                Some((S8Conv { input, window, ..conv }, x, filter))
            }
            _ => None,
        };
        Self {
            name: format!("{channels}->{out_channels} {size}x{size}/{stride} {out}, {kind:?}"),
            conv,
            kind,
            x: random.pixels(batch * input.elems()),
            filter: random.weights(out_channels * size * size * channels),
            second,
            residual: random.bytes(residual_bytes, |four| bell(four) as u8),
        }
    }

    fn products(&self) -> usize {
        let second = self.second.as_ref().map_or(0, |(_, _, filter)| filter.len());
        (self.filter.len() + second) / self.conv.output.channels
    }

    /// A scale that leaves results well inside their range.
    fn scale(&self) -> f32 {
        40.0 / (self.products() as f32).sqrt() / (52.0 * 37.0)
    }

    fn values(&self) -> usize {
        self.conv.batch * self.conv.output.elems()
    }

    /// Number of copies of operands, with `bytes` bytes for a value, that together exceed the caches.
    fn copies(&self, bytes: usize) -> usize {
        (ROTATION_BYTES / (bytes * (self.x.len() + self.residual.len() + self.values()))).clamp(1, LAUNCHES)
    }

    /// A lower bound in microseconds: the time to move every operand once, or the time of the products.
    fn limit(&self, bytes: usize, operations: f64) -> f64 {
        let seen = |conv: &S8Conv, x: &[u8], filter: &[i8]| {
            let S8Conv { input, output, window, .. } = conv;
            let seen = if window.size == [1; 2] { output.pixels() as f64 / input.pixels() as f64 } else { 1.0 };
            x.len() as f64 * seen + filter.len() as f64
        };
        let second = self.second.as_ref().map_or(0.0, |(conv, x, filter)| seen(conv, x, filter));
        let results = (self.residual.len() + self.values()) as f64;
        let all = seen(&self.conv, &self.x, &self.filter) + second + results;
        let products = (self.values() * self.products()) as f64;
        1e6 * (bytes as f64 * all / LIMITS[0]).max(2.0 * products / operations)
    }

    /// Each kernel and its microseconds, the fastest first.
    fn time_bytes(&self, device: &Device, rounds: usize) -> Result<Vec<(S8Kernel, f64)>, Error> {
        let info = device.info();
        let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
        let takes = |kernel: &S8Kernel| self.second.as_ref().is_none_or(|(of, ..)| self.conv.adds(of, *kernel));
        let kernels: Vec<_> = self.conv.kernels(&limits).into_iter().filter(takes).collect();
        let bias: Vec<i32> = (0..self.conv.output.channels).map(|k| k as i32 * 7 - 300).collect();
        let scale = vec![self.scale(); self.conv.output.channels];
        let poison = vec![0xa5; self.values()];
        let operands = S8Operands {
            conv: self.conv,
            x: (&self.x, false),
            filter: &self.filter,
            second: self.second.as_ref().map(|(conv, x, filter)| (*conv, &x[..], &filter[..])),
            bias: &bias,
            scale: &scale,
            residual: (self.kind == Kind::Residual).then_some((&self.residual, true, 0.5)),
            result: (&poison, false),
            result_at: 0,
            relu: true,
            backward: false,
        };
        let mut run = ConvRun::of_bytes(device, &operands, &kernels, self.copies(1))?;
        let times = medians(|kernel| run.run(kernel, LAUNCHES), kernels.len(), rounds)?;
        let mut times: Vec<_> = kernels.into_iter().zip(times).enumerate().collect();
        times.sort_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b));
        run.run(times[0].0, LAUNCHES)?;
        self.check(&run.result()?, &bias);
        Ok(times.into_iter().map(|(_, time)| time).collect())
    }

    /// The fastest kernel of halves, the number of blocks of its clusters, and its microseconds.
    fn time_halves(&self, device: &Device, rounds: usize) -> Result<(Sm90Tile, usize, f64), Error> {
        let halves = |bytes: &[u8]| -> Vec<f16> {
            let table: Vec<f16> = (0..=255_u8).map(|byte| f16::from_f32(f32::from(byte as i8) / 64.0)).collect();
            bytes.iter().map(|byte| table[usize::from(*byte)]).collect()
        };
        let (x, filter) = (halves(&self.x), halves(bytemuck::cast_slice(&self.filter)));
        let (residual, result) = (halves(&self.residual), vec![f16::NAN; self.values()]);
        let bias: Vec<f32> = (0..self.conv.output.channels).map(|k| k as f32 / 100.0).collect();
        let operands = HalfOperands {
            conv: self.conv,
            x: &x,
            filter: &filter,
            bias: &bias,
            residual: (self.kind == Kind::Residual).then_some(&residual),
            result: &result,
            relu: true,
        };
        let kernels = Sm90Tile::ALL.into_iter().flat_map(|tile| [1, 2, 4].map(|cluster| (tile, cluster)));
        let kernels: Vec<_> = kernels.filter(|(tile, cluster)| tile.clusters().contains(cluster)).collect();
        let mut run = ConvRun::of_halves(device, &operands, &kernels, self.copies(2))?;
        let times = medians(|kernel| run.run(kernel, LAUNCHES), kernels.len(), rounds)?;
        let written = run.result()?;
        let is_finite = |half: &[u8]| f16::from_le_bytes([half[0], half[1]]).is_finite();
        assert!(written[..2 * self.values()].chunks_exact(2).step_by(97).all(is_finite), "a result was not written");
        let fastest = kernels.into_iter().zip(times).min_by(|(_, a), (_, b)| a.total_cmp(b));
        let ((tile, cluster), micros) = fastest.expect("there are kernels");
        Ok((tile, cluster, micros))
    }

    /// Compares some results with plain sums.
    fn check(&self, result: &[u8], bias: &[i32]) {
        let channels = self.conv.output.channels;
        for sample in 0..SAMPLES {
            let at = sample * (self.values() - 1) / (SAMPLES - 1);
            let (pixel, k) = (at / channels, at % channels);
            let second = self.second.as_ref().map_or(0, |(conv, x, filter)| sum_of(conv, x, filter, pixel, k));
            let sum = bias[k] + sum_of(&self.conv, &self.x, &self.filter, pixel, k) + second;
            let mut value = sum as f32 * self.scale();
            if self.kind == Kind::Residual {
                value = f32::from(self.residual[at] as i8).mul_add(0.5, value);
            }
            assert_eq!(result[at], byte_of(value), "{}: pixel {pixel}, channel {k}", self.name);
        }
    }
}

/// The sum of products of a result.
fn sum_of(conv: &S8Conv, x: &[u8], filter: &[i8], pixel: usize, k: usize) -> i32 {
    let S8Conv { input, output, window, .. } = *conv;
    let [r, s] = window.size;
    let (image, p, q) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
    let of_tap = |tap: usize| {
        let h = (p * window.stride[0] + tap / s).wrapping_sub(window.pad.top);
        let w = (q * window.stride[1] + tap % s).wrapping_sub(window.pad.left);
        if h >= input.height || w >= input.width {
            return 0;
        }
        let x = &x[((image * input.height + h) * input.width + w) * input.channels..];
        let filter = &filter[(k * r * s + tap) * input.channels..][..input.channels];
        filter.iter().zip(x).map(|(f, x)| i32::from(*f) * i32::from(*x)).sum::<i32>()
    };
    (0..r * s).map(of_tap).sum()
}

fn byte_of(value: f32) -> u8 {
    value.round_ties_even().clamp(0.0, 255.0) as u8
}

/// Times the first layers by each kernel in each tile, compares some results with plain sums, and returns the microseconds
/// of the fastest.
fn stem(device: &Device, batch: usize, rounds: usize) -> Result<f64, Error> {
    let [input, conv, output] = [Shape::new(224, 224, 3), Shape::new(112, 112, 64), Shape::new(56, 56, 64)];
    let stem = S8Stem { batch, input, pad: [3, 3], conv, output };
    let info = device.info();
    let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
    let kernels = stem.kernels(&limits);
    let mut random = Random(2);
    let (x, filter) = (random.bytes(batch * input.elems(), |[byte, ..]| byte), random.weights(64 * 147));
    let bias: Vec<i32> = (0..64).map(|k| k * 700 - 30_000).collect();
    let (scale, poison) = (0.0012, vec![0xa5; batch * output.elems()]);
    let operands = S8StemOperands {
        stem,
        x: (&x, input.elems()),
        outside: [0; 3],
        filter: &filter,
        bias: &bias,
        scale: &[scale; 64],
        result: (&poison, false),
        result_at: 0,
        relu: true,
    };
    let mut run = S8StemRun::new(device, &operands, &kernels, 4)?;
    let times = medians(|kernel| run.run(kernel, LAUNCHES), kernels.len(), rounds)?;
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by(|a, b| times[*a].total_cmp(&times[*b]));
    println!(
        "    {}",
        order.iter().map(|&at| format!("{} {:.1}", kernels[at], times[at])).collect::<Vec<_>>().join("  ")
    );
    run.run(order[0], LAUNCHES)?;
    let (result, single) = (run.result()?, S8Conv { batch, input, output: conv, window: Window::square(7, 2, 3) });
    for sample in 0..SAMPLES {
        let at = sample * (poison.len() - 1) / (SAMPLES - 1);
        let (pixel, k) = (at / 64, at % 64);
        let (image, u, v) = (pixel / 3136, pixel % 3136 / 56, pixel % 56);
        let window = (0..9).map(|tap| ((2 * u + tap / 3).wrapping_sub(1), (2 * v + tap % 3).wrapping_sub(1)));
        let inside = window.filter(|(p, q)| *p < 112 && *q < 112);
        let sums = inside.map(|(p, q)| sum_of(&single, &x, &filter, (image * 112 + p) * 112 + q, k) + bias[k]);
        let largest = sums.max().expect("a window has a pixel");
        assert_eq!(result[at], byte_of(largest as f32 * scale), "first layers: pixel {pixel}, channel {k}");
    }
    Ok(times[order[0]])
}

/// Microseconds of the mean over the last convolution's pixels; some results are compared.
fn mean(device: &Device, batch: usize, rounds: usize) -> Result<f64, Error> {
    let input = Shape::new(7, 7, 2048);
    let (x, poison) = (Random(3).pixels(batch * input.elems()), vec![f16::NAN; batch * input.channels]);
    let operands = S8MeanOperands { batch, input, x: (&x, false), scale: 0.001, result: &poison };
    let mut run = S8MeanRun::new(device, &operands, 8)?;
    let micros = medians(|_| run.run(LAUNCHES), 1, rounds)?[0];
    for (at, mean) in run.result()?.iter().enumerate().take(poison.len()).step_by(997) {
        let (image, channel) = (at / input.channels, at % input.channels);
        let sum: i32 = (0..49).map(|pixel| i32::from(x[(image * 49 + pixel) * input.channels + channel])).sum();
        assert_eq!(*mean, f16::from_f32(sum as f32 * 0.001), "mean: image {image}, channel {channel}");
    }
    Ok(micros)
}

/// The median microseconds of each kernel, over rounds in which all run in turn.
fn medians(mut run: impl FnMut(usize) -> Result<f64, Error>, kernels: usize, rounds: usize) -> Result<Vec<f64>, Error> {
    let mut micros = vec![Vec::new(); kernels];
    for round in 0..rounds + 1 {
        for (kernel, micros) in micros.iter_mut().enumerate() {
            let seconds = run(kernel)?;
            if round > 0 {
                micros.push(1e6 * seconds / LAUNCHES as f64); // the first is for the caches
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(micros.into_iter().map(median).collect())
}

/// The xorshift64* generator.
struct Random(u64);

impl Random {
    /// Random values, each computed from four random bytes.
    fn bytes(&mut self, count: usize, of: impl Fn([u8; 4]) -> u8) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            of(((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32).to_le_bytes())
        };
        (0..count).map(|_| next()).collect()
    }

    /// Random bytes like those after a ReLU: half of them are 0.
    fn pixels(&mut self, count: usize) -> Vec<u8> {
        self.bytes(count, |[byte, ..]| (byte as i8).max(0) as u8)
    }

    fn weights(&mut self, count: usize) -> Vec<i8> {
        self.bytes(count, |four| bell(four) as u8).into_iter().map(|byte| byte as i8).collect()
    }
}

/// A weight from four random bytes, around 0 with a deviation of 37.
fn bell(four: [u8; 4]) -> i8 {
    ((four.iter().map(|byte| i32::from(*byte)).sum::<i32>() - 510) / 4) as i8
}
