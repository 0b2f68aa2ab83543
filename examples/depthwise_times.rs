//! Times the depthwise layers of EfficientNet-Lite0 in bytes and in f16, each with the fastest of some tiles.
//!
//! usage: depthwise_times [BATCH [ROUNDS [TILES]]]
//!
//! For each layer it prints the microseconds of both, the tiles, the time that memory needs for the bytes, and the
//! predicted order of the fastest tile. A figure is the median of rounds in which all tiles run in turn; the TILES tiles
//! with the shortest predicted times are measured. Operands are random and rotate over more memory than a GPU's L2 cache
//! has. Some results in bytes are compared with plain sums.

use half::f16;
use trefoil::model::images::Window;
use trefoil::plan::{DepthwiseTile, Kernel, Limits, S8Conv};
use trefoil::{DepthwiseRun, Device, Error, HalfOperands, S8DepthwiseOperands, Shape, Target};

/// Number of such layers, input height, channels, size of the window, stride.
const LAYERS: [(usize, [usize; 4]); 11] = [
    (1, [112, 32, 3, 1]),
    (1, [112, 96, 3, 2]),
    (1, [56, 144, 3, 1]),
    (1, [56, 144, 5, 2]),
    (1, [28, 240, 5, 1]),
    (1, [28, 240, 3, 2]),
    (2, [14, 480, 3, 1]),
    (1, [14, 480, 5, 1]),
    (2, [14, 672, 5, 1]),
    (1, [14, 672, 5, 2]),
    (4, [7, 1152, 5, 1]),
];

/// Bytes that the operands of a kernel rotate over.
const ROTATION_BYTES: usize = 200 << 20;
/// Number of launches between two marks.
const LAUNCHES: usize = 20;
/// Number of results that are compared.
const SAMPLES: usize = 509;
/// Bytes a second from and to memory, as measured on an H200.
const MEMORY: f64 = 4.35e12;

fn main() -> Result<(), Error> {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|number| number.parse().expect("arguments are numbers")).collect();
    let number = |index: usize, otherwise: usize| arguments.get(index).copied().unwrap_or(otherwise);
    let (batch, rounds, tiles) = (number(0, 256), number(1, 5), number(2, 6));
    let device = Device::open(Target::Cuda(0))?;
    let mut all = [0.0; 3];
    for (count, sizes) in LAYERS {
        let layer = Layer::new(batch, sizes);
        let [bytes, halves] = [layer.bytes(&device, rounds, tiles)?, layer.halves(&device, rounds, tiles)?];
        let memory = (layer.x.len() + layer.values()) as f64 / MEMORY;
        let [height, channels, size, stride] = sizes;
        println!(
            "{count} x {height}x{height}x{channels} {size}x{size}/{stride}: bytes {:.2} us ({}, {}), f16 {:.2} us ({}, {}), \
             {:.2}x; memory {:.2} us",
            bytes.seconds * 1e6,
            bytes.tile,
            bytes.place,
            halves.seconds * 1e6,
            halves.tile,
            halves.place,
            halves.seconds / bytes.seconds,
            memory * 1e6
        );
        for (sum, of) in all.iter_mut().zip([bytes.seconds, halves.seconds, memory]) {
            *sum += of * 1e6 * count as f64;
        }
    }
    println!("all at batch {batch}: bytes {:.1} us, f16 {:.1} us, memory {:.1} us", all[0], all[1], all[2]);
    Ok(())
}

/// The fastest tile, its place in the predicted order, and its time.
struct Fastest {
    tile: DepthwiseTile,
    place: usize,
    seconds: f64,
}

/// A layer and its operands.
struct Layer {
    conv: S8Conv,
    x: Vec<u8>,
    filter: Vec<i8>,
    bias: Vec<i32>,
    scale: Vec<f32>,
}

impl Layer {
    fn new(batch: usize, [height, channels, size, stride]: [usize; 4]) -> Self {
        let input = Shape::new(height, height, channels);
        let output = Shape::new(height / stride, height / stride, channels);
        let conv = S8Conv { batch, input, output, window: Window::square(size, stride, size / 2) };
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        };
        let x = (0..batch * input.elems()).map(|_| random()).collect();
        let filter = (0..size * size * channels).map(|_| random() as i8).collect();
        let bias = (0..channels).map(|_| i32::from(random()) * 10).collect();
        let scale = (0..channels).map(|_| 0.004 + f32::from(random()) * 1e-5).collect();
        Self { conv, x, filter, bias, scale }
    }

    fn values(&self) -> usize {
        self.conv.batch * self.conv.output.elems()
    }

    fn bytes(&self, device: &Device, rounds: usize, count: usize) -> Result<Fastest, Error> {
        let tiles = self.tiles(true, count);
        let result = vec![0xa5; self.values()];
        let operands = S8DepthwiseOperands {
            conv: self.conv,
            x: (&self.x, false),
            filter: &self.filter,
            bias: &self.bias,
            scale: &self.scale,
            result: (&result, false),
            result_at: 0,
            relu: true,
        };
        let copies = (ROTATION_BYTES / (self.x.len() + result.len())).max(2);
        let kernels: Vec<Kernel> = tiles.iter().map(|&tile| Kernel::Sm90DepthwiseS8(tile)).collect();
        let mut run = DepthwiseRun::of_bytes(device, &operands, &kernels, copies)?;
        let fastest = fastest(&mut run, &tiles, rounds)?;
        self.compare(&run.result()?);
        Ok(fastest)
    }

    fn halves(&self, device: &Device, rounds: usize, count: usize) -> Result<Fastest, Error> {
        let tiles = self.tiles(false, count);
        let x: Vec<f16> = self.x.iter().map(|byte| f16::from_f32(f32::from(*byte) / 64.0)).collect();
        let filter: Vec<f16> = self.filter.iter().map(|byte| f16::from_f32(f32::from(*byte) / 256.0)).collect();
        let (bias, result) = (vec![0.25; self.bias.len()], vec![f16::ZERO; self.values()]);
        let (conv, relu) = (self.conv, true);
        let operands =
            HalfOperands { conv, x: &x, filter: &filter, bias: &bias, residual: None, result: &result, relu };
        let copies = (ROTATION_BYTES / (2 * (x.len() + result.len()))).max(2);
        fastest(&mut DepthwiseRun::of_halves(device, &operands, &tiles, copies)?, &tiles, rounds)
    }

    fn tiles(&self, in_bytes: bool, count: usize) -> Vec<DepthwiseTile> {
        let mut tiles = DepthwiseTile::of(&self.conv, in_bytes, &Limits::h200());
        tiles.truncate(count);
        tiles
    }

    /// Compares some results with plain sums.
    ///
    /// # Panics
    /// If one is another.
    fn compare(&self, found: &[u8]) {
        let S8Conv { input, output, window, .. } = self.conv;
        let (channels, size) = (output.channels, window.size[0]);
        for at in (0..SAMPLES).map(|sample| sample * (found.len() - 1) / (SAMPLES - 1)) {
            let (pixel, c) = (at / channels, at % channels);
            let (image, p, q) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
            let product = |tap: usize| {
                let h =
                    (p * window.stride[0] + tap / size).checked_sub(window.pad.top).filter(|h| *h < input.height)?;
                let w =
                    (q * window.stride[1] + tap % size).checked_sub(window.pad.left).filter(|w| *w < input.width)?;
                let x = self.x[((image * input.height + h) * input.width + w) * channels + c];
                Some(i32::from(x) * i32::from(self.filter[tap * channels + c]))
            };
            let sum = self.bias[c] + (0..size * size).filter_map(product).sum::<i32>();
            let expected = (sum as f32 * self.scale[c]).round_ties_even().clamp(0.0, 255.0) as u8;
            assert_eq!(found[at], expected, "value {at} of {:?}", self.conv);
        }
    }
}

/// Times every tile in rounds.
fn fastest(run: &mut DepthwiseRun, tiles: &[DepthwiseTile], rounds: usize) -> Result<Fastest, Error> {
    let mut times = vec![Vec::new(); tiles.len()];
    for _ in 0..=rounds {
        for (tile, times) in times.iter_mut().enumerate() {
            times.push(run.run(tile, LAUNCHES)? / LAUNCHES as f64);
        }
    }
    let median = |times: &Vec<f64>| {
        let mut rest = times[1..].to_vec(); // the first round warms up
        rest.sort_by(f64::total_cmp);
        rest[rest.len() / 2]
    };
    let medians = times.iter().map(median).enumerate();
    let (place, seconds) = medians.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a layer has a tile");
    Ok(Fastest { tile: tiles[place], place, seconds })
}
