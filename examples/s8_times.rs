//! Times convolutions of bytes by each of their kernels, beside the kernel of halves, on the layers of ResNet-50.
//!
//! usage: s8_times [BATCH [ROUNDS [PART [bytes]]]]
//!
//! For each layer prints microseconds, the median of rounds in which all kernels run in turn: of the fastest kernel of bytes,
//! of the fastest of halves, and what neither the memory nor the tensor cores could do faster; then of every kernel of
//! bytes. Operands are random, pixels half zeros and weights bell-shaped, and rotate over more memory than a GPU's L2
//! cache has; some of the fastest kernel's results are compared with plain sums. The last lines add the layers up as
//! often as the network has them. PART: only layers whose name has this text. bytes: leaves halves out.

use half::f16;
use trefoil::model::Window;
use trefoil::plan::{Limits, S8Conv, S8Kernel, Sm90Tile};
use trefoil::{ConvRun, Device, Error, HalfOperands, S8Operands, Shape, Target};

/// How many there are; input height, C, K, filter size, stride; what follows the sums. All but the first and last layer.
const LAYERS: [(usize, [usize; 5], Kind); 23] = [
    (1, [56, 64, 64, 1, 1], Kind::Plain),
    (2, [56, 256, 64, 1, 1], Kind::Plain),
    (3, [56, 64, 64, 3, 1], Kind::Plain),
    (3, [56, 64, 256, 1, 1], Kind::Residual),
    (1, [56, 64, 256, 1, 1], Kind::Downsample),
    (1, [56, 256, 128, 1, 1], Kind::Plain),
    (1, [56, 128, 128, 3, 2], Kind::Plain),
    (3, [28, 128, 128, 3, 1], Kind::Plain),
    (3, [28, 512, 128, 1, 1], Kind::Plain),
    (4, [28, 128, 512, 1, 1], Kind::Residual),
    (1, [56, 256, 512, 1, 2], Kind::Downsample),
    (1, [28, 512, 256, 1, 1], Kind::Plain),
    (1, [28, 256, 256, 3, 2], Kind::Plain),
    (5, [14, 256, 256, 3, 1], Kind::Plain),
    (5, [14, 1024, 256, 1, 1], Kind::Plain),
    (6, [14, 256, 1024, 1, 1], Kind::Residual),
    (1, [28, 512, 1024, 1, 2], Kind::Downsample),
    (1, [14, 1024, 512, 1, 1], Kind::Plain),
    (1, [14, 512, 512, 3, 2], Kind::Plain),
    (2, [7, 512, 512, 3, 1], Kind::Plain),
    (2, [7, 2048, 512, 1, 1], Kind::Plain),
    (3, [7, 512, 2048, 1, 1], Kind::Residual),
    (1, [14, 1024, 2048, 1, 2], Kind::Downsample),
];

/// What follows a layer's sums: a ReLU, a signed residual and a ReLU, or nothing, so that its results are signed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Residual,
    Downsample,
}

/// Bytes that the operands of a kernel rotate over.
const ROTATION_BYTES: usize = 200 << 20;
/// Launches between two marks.
const LAUNCHES: usize = 20;
/// Of the fastest kernel's results, those that are compared.
const SAMPLES: usize = 509;
/// Bytes a second from and to memory, and operations a second of bytes and of halves, that this kind of GPU was measured at.
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
        if with_halves {
            let (tile, cluster, micros) = layer.time_halves(&device, rounds)?;
            println!("    halves {micros:6.1} us ({tile}, {cluster}), limit {:5.1}", limits[1]);
            of_halves = micros;
        }
        let all: Vec<_> = bytes
            .iter()
            .map(|(kernel, micros)| match kernel {
                S8Kernel::Tiled { tile, pair } => format!("{tile}{} {micros:.1}", if *pair { "p" } else { "" }),
                S8Kernel::Halo => format!("halo {micros:.1}"),
            })
            .collect();
        println!("    {}", all.join("  "));
        for (sum, micros) in sums.iter_mut().zip([fastest, of_halves, limits[0], limits[1]]) {
            *sum += count as f64 * micros;
        }
    }
    let totals = ["bytes", "halves", "limit of bytes", "limit of halves"].into_iter().zip(sums);
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
    residual: Vec<u8>,
}

impl Layer {
    fn new(batch: usize, [height, channels, out_channels, size, stride]: [usize; 5], kind: Kind) -> Self {
        let (input, out) = (Shape::new(height, height, channels), height / stride);
        let window = Window::square(size, stride, size / 2);
        let conv = S8Conv { batch, input, output: Shape::new(out, out, out_channels), window };
        let mut random = Random(1);
        let residual_bytes = if kind == Kind::Residual { batch * conv.output.elems() } else { 0 };
        Self {
            name: format!("{channels}->{out_channels} {size}x{size}/{stride} {out}, {kind:?}"),
            conv,
            kind,
            // After a ReLU.
            x: random.bytes(batch * input.elems(), |[byte, ..]| (byte as i8).max(0) as u8),
            filter: random
                .bytes(out_channels * size * size * channels, |four| bell(four) as u8)
                .into_iter()
                .map(|byte| byte as i8)
                .collect(),
            residual: random.bytes(residual_bytes, |four| bell(four) as u8),
        }
    }

    fn products(&self) -> usize {
        self.filter.len() / self.conv.output.channels
    }

    /// What leaves results well inside their range.
    fn scale(&self) -> f32 {
        40.0 / (self.products() as f32).sqrt() / (52.0 * 37.0)
    }

    fn values(&self) -> usize {
        self.conv.batch * self.conv.output.elems()
    }

    /// Copies that together are larger than a cache, of operands of so many bytes a value.
    fn copies(&self, bytes: usize) -> usize {
        (ROTATION_BYTES / (bytes * (self.x.len() + self.residual.len() + self.values()))).clamp(1, LAUNCHES)
    }

    /// Microseconds that it cannot be faster than: every operand once from or to memory, or its products.
    fn limit(&self, bytes: usize, operations: f64) -> f64 {
        let S8Conv { input, output, window, .. } = self.conv;
        let seen = if window.size == [1; 2] { output.pixels() as f64 / input.pixels() as f64 } else { 1.0 };
        let all = self.x.len() as f64 * seen + (self.filter.len() + self.residual.len() + self.values()) as f64;
        let products = (self.values() * self.products()) as f64;
        1e6 * (bytes as f64 * all / LIMITS[0]).max(2.0 * products / operations)
    }

    /// Each kernel and its microseconds, the fastest first.
    fn time_bytes(&self, device: &Device, rounds: usize) -> Result<Vec<(S8Kernel, f64)>, Error> {
        let info = device.info();
        let kernels =
            self.conv.kernels(&Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes));
        let bias: Vec<i32> = (0..self.conv.output.channels).map(|k| k as i32 * 7 - 300).collect();
        let scale = vec![self.scale(); self.conv.output.channels];
        let poison = vec![0xa5; self.values()];
        let operands = S8Operands {
            conv: self.conv,
            x: (&self.x, false),
            filter: &self.filter,
            bias: &bias,
            scale: &scale,
            residual: (self.kind == Kind::Residual).then_some((&self.residual, true, 0.5)),
            result: (&poison, self.kind == Kind::Downsample),
            result_at: 0,
            relu: self.kind != Kind::Downsample,
        };
        let mut run = ConvRun::of_bytes(device, &operands, &kernels, self.copies(1))?;
        let times = medians(&mut run, kernels.len(), rounds)?;
        let mut times: Vec<_> = kernels.into_iter().zip(times).enumerate().collect();
        times.sort_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b));
        run.run(times[0].0, LAUNCHES)?;
        self.check(&run.result()?, &bias);
        Ok(times.into_iter().map(|(_, time)| time).collect())
    }

    /// The fastest kernel of halves, blocks of its clusters, and its microseconds.
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
            relu: self.kind != Kind::Downsample,
        };
        let kernels = Sm90Tile::ALL.into_iter().flat_map(|tile| [1, 2].map(|cluster| (tile, cluster)));
        let kernels: Vec<_> = kernels.filter(|(tile, cluster)| tile.clusters().contains(cluster)).collect();
        let mut run = ConvRun::of_halves(device, &operands, &kernels, self.copies(2))?;
        let times = medians(&mut run, kernels.len(), rounds)?;
        let written = run.result()?;
        let is_finite = |half: &[u8]| f16::from_le_bytes([half[0], half[1]]).is_finite();
        assert!(written[..2 * self.values()].chunks_exact(2).step_by(97).all(is_finite), "a result was not written");
        let fastest = kernels.into_iter().zip(times).min_by(|(_, a), (_, b)| a.total_cmp(b));
        let ((tile, cluster), micros) = fastest.expect("there are kernels");
        Ok((tile, cluster, micros))
    }

    /// Compares some results with plain sums.
    fn check(&self, result: &[u8], bias: &[i32]) {
        let S8Conv { input, output, window, .. } = self.conv;
        let [r, s] = window.size;
        for sample in 0..SAMPLES {
            let at = sample * (self.values() - 1) / (SAMPLES - 1);
            let (pixel, k) = (at / output.channels, at % output.channels);
            let (image, p, q) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
            let mut sum = bias[k];
            for tap in 0..r * s {
                let h = (p * window.stride[0] + tap / s).wrapping_sub(window.pad.top);
                let w = (q * window.stride[1] + tap % s).wrapping_sub(window.pad.left);
                if h < input.height && w < input.width {
                    let x = &self.x[((image * input.height + h) * input.width + w) * input.channels..];
                    let filter = &self.filter[(k * r * s + tap) * input.channels..][..input.channels];
                    sum += filter.iter().zip(x).map(|(f, x)| i32::from(*f) * i32::from(*x)).sum::<i32>();
                }
            }
            let mut value = sum as f32 * self.scale();
            if self.kind == Kind::Residual {
                value = f32::from(self.residual[at] as i8).mul_add(0.5, value);
            }
            let [low, high] = if self.kind == Kind::Downsample { [-128.0, 127.0] } else { [0.0, 255.0] };
            let expected = value.round_ties_even().clamp(low, high) as i32 as u8;
            assert_eq!(result[at], expected, "{}: pixel {pixel}, channel {k}", self.name);
        }
    }
}

/// Median microseconds of each kernel, of rounds in which all run in turn.
fn medians(run: &mut ConvRun, kernels: usize, rounds: usize) -> Result<Vec<f64>, Error> {
    let mut micros = vec![Vec::new(); kernels];
    for round in 0..rounds + 1 {
        for (kernel, micros) in micros.iter_mut().enumerate() {
            let seconds = run.run(kernel, LAUNCHES)?;
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

/// Xorshift64*.
struct Random(u64);

impl Random {
    /// Values, each of four even bytes.
    fn bytes(&mut self, count: usize, of: impl Fn([u8; 4]) -> u8) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            of(((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32).to_le_bytes())
        };
        (0..count).map(|_| next()).collect()
    }
}

/// Around 0, with a deviation of 37.
fn bell(four: [u8; 4]) -> i8 {
    ((four.iter().map(|byte| i32::from(*byte)).sum::<i32>() - 510) / 4) as i8
}
