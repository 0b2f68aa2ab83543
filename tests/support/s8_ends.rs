//! The first layers of a network of bytes, and the mean behind its last convolution, by plain loops, with which a
//! kernel has to agree in every byte, and problems for both.

use half::f16;
use trefoil::plan::{Kernel, Limits, S8Stem};
use trefoil::{Device, S8MeanOperands, S8MeanRun, S8StemOperands, S8StemRun, Shape};

use super::conv_s8::{GUARD, POISON, Range, equal_between_guards, requantised};
use super::random::Random;

/// First layers on random operands.
#[derive(Clone, Copy, Debug)]
pub struct StemProblem {
    pub name: &'static str,
    pub stem: S8Stem,
    outside: [u8; 3],
    /// Number of bytes between images.
    gap: usize,
    y_signed: bool,
    relu: bool,
    /// A factor on the scales: with 1 most results are inside their range.
    factor: f32,
}

/// All problems of first layers.
pub fn stems() -> Vec<StemProblem> {
    let of = |name, batch, [height, width]: [usize; 2], channels, pad: [usize; 2]| {
        let conv = Shape::new((height + 2 * pad[0] - 7) / 2 + 1, (width + 2 * pad[1] - 7) / 2 + 1, channels);
        let output = Shape::new(conv.height.div_ceil(2), conv.width.div_ceil(2), channels);
        let stem = S8Stem { batch, input: Shape::new(height, width, 3), pad, conv, output };
        StemProblem { name, stem, outside: [124, 116, 104], gap: 0, y_signed: false, relu: true, factor: 1.0 }
    };
    let usual = of("first layers", 2, [224, 224], 64, [3, 3]);
    let odd = of("odd sizes", 3, [61, 83], 48, [3, 3]);
    let narrow = Shape { width: odd.stem.conv.width / 2, height: odd.stem.conv.height / 2, channels: 48 };
    let signed = StemProblem { y_signed: true, relu: false, ..of("signed results", 2, [70, 50], 32, [3, 3]) };
    vec![
        usual,
        StemProblem { factor: 60.0, ..usual },
        StemProblem { gap: 4 * 13, ..odd },
        StemProblem { name: "without the last windows", stem: S8Stem { output: narrow, ..odd.stem }, ..odd },
        of("one window", 1, [7, 7], 16, [0, 0]),
        of("one pixel", 1, [1, 1], 16, [3, 3]),
        of("a row of tiles", 1, [12, 600], 64, [3, 2]),
        of("a column", 2, [300, 9], 16, [1, 3]),
        of("pads larger than the image", 1, [5, 6], 16, [20, 30]),
        signed,
        StemProblem { factor: 30.0, ..signed },
        StemProblem { relu: true, name: "signed results, ReLU", factor: 3.0, ..signed },
        StemProblem { outside: [0, 255, 0], ..of("many images", 40, [34, 38], 64, [3, 3]) },
        StemProblem { gap: 16 * 3, ..of("runs over images", 500, [12, 16], 64, [3, 3]) },
        StemProblem { outside: [0, 255, 7], ..of("wide runs over images", 70, [28, 208], 64, [3, 3]) },
        StemProblem { y_signed: true, ..of("runs of signed results, ReLU", 3, [60, 96], 64, [3, 3]) },
        StemProblem { y_signed: true, relu: false, ..of("runs of signed results", 90, [27, 48], 64, [1, 3]) },
        of("runs with pads above the image", 2, [16, 224], 64, [9, 3]),
    ]
}

impl StemProblem {
    /// Kernels: of tiles those of few, of some and of all rows.
    pub fn kernels(&self, limits: &Limits) -> Vec<Kernel> {
        let wanted = |kernel: &Kernel| match kernel {
            Kernel::Sm90StemS8(tile) => [1, 2, self.stem.output.height].contains(&tile.rows) || tile.rows == 14,
            _ => true,
        };
        self.stem.kernels(limits).into_iter().filter(wanted).collect()
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.stem.batch * self.stem.output.elems()
    }

    /// Number of bytes from one image to the next.
    fn row_pitch(&self) -> usize {
        self.stem.input.elems().next_multiple_of(4) + self.gap
    }

    /// Runs the problem, into a longer buffer with other bytes, and compares.
    pub fn run(&self, device: &Device, kernel: Kernel) -> Result<(), String> {
        let mut random = Random::new(&format!("{self:?}"));
        let mut bytes = |count: usize| -> Vec<u8> { (0..count).map(|_| random.between(0, 255) as u8).collect() };
        let (channels, row_pitch) = (self.stem.output.channels, self.row_pitch());
        let (x, filter) = (bytes(self.stem.batch * row_pitch), bytes(channels * 147));
        let filter: Vec<i8> = filter.into_iter().map(|byte| byte as i8).collect();
        // The usual size of a sum of evenly distributed bytes.
        let usual = 147_f64.sqrt() * 74.0 * 148.0;
        let bias: Vec<i32> = (0..channels).map(|_| (usual * random.signed()) as i32).collect();
        let scale: Vec<f32> =
            (0..channels).map(|_| self.factor * (60.0 / usual * (1.0 + 0.5 * random.signed())) as f32).collect();
        let poisoned = vec![POISON; self.values() + 2 * GUARD];
        let operands = S8StemOperands {
            stem: self.stem,
            x: (&x, row_pitch),
            outside: self.outside,
            filter: &filter,
            bias: &bias,
            scale: &scale,
            result: (&poisoned, self.y_signed),
            result_at: GUARD,
            relu: self.relu,
        };
        let mut run = S8StemRun::new(device, &operands, &[kernel], 1).map_err(|error| error.to_string())?;
        run.run(0, 2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        let conv = self.convolved(&operands);
        equal_between_guards(&result, &self.pooled(&conv), channels)
    }

    /// The bytes of the convolution's results; signed bytes keep their sign.
    fn convolved(&self, operands: &S8StemOperands<'_>) -> Vec<i32> {
        let S8Stem { batch, input, pad, conv, .. } = self.stem;
        let low = if self.y_signed && !self.relu { -128.0 } else { 0.0 };
        let range = Range { lowest: low, highest: if self.y_signed { 127.0 } else { 255.0 } };
        let (x, row_pitch) = operands.x;
        let filter: Vec<i32> = operands.filter.iter().map(|weight| i32::from(*weight)).collect();
        let mut result = Vec::with_capacity(batch * conv.elems());
        for (image, pixel) in (0..batch).flat_map(|image| (0..conv.pixels()).map(move |pixel| (image, pixel))) {
            let [top, left] = [2 * (pixel / conv.width), 2 * (pixel % conv.width)];
            let seen: Vec<i32> = (0..147)
                .map(|tap| {
                    let (h, w) = ((top + tap / 21).wrapping_sub(pad[0]), (left + tap / 3 % 7).wrapping_sub(pad[1]));
                    let inside = h < input.height && w < input.width;
                    let byte = || x[image * row_pitch + (h * input.width + w) * 3 + tap % 3];
                    i32::from(if inside { byte() } else { self.outside[tap % 3] })
                })
                .collect();
            for (k, filter) in filter.chunks_exact(147).enumerate() {
                let sum = operands.bias[k] + filter.iter().zip(&seen).map(|(f, x)| f * x).sum::<i32>();
                let byte = requantised(i64::from(sum), operands.scale[k], None, range);
                result.push(if self.y_signed { i32::from(byte as i8) } else { i32::from(byte) });
            }
        }
        result
    }

    fn pooled(&self, x: &[i32]) -> Vec<u8> {
        let S8Stem { batch, conv, output, .. } = self.stem;
        let mut result = Vec::with_capacity(self.values());
        for at in 0..self.values() {
            let (pixel, k) = (at / output.channels, at % output.channels);
            let (image, u, v) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
            let window = (0..9).filter_map(|tap| {
                let (p, q) = ((2 * u + tap / 3).wrapping_sub(1), (2 * v + tap % 3).wrapping_sub(1));
                let value = || x[(image * conv.pixels() + p * conv.width + q) * conv.channels + k];
                (p < conv.height && q < conv.width).then(value)
            });
            result.push(window.max().expect("a window has a pixel") as u8);
        }
        assert_eq!(result.len(), batch * output.elems());
        result
    }
}

/// A mean on random operands.
#[derive(Clone, Copy, Debug)]
pub struct MeanProblem {
    pub batch: usize,
    pub input: Shape,
    signed: bool,
    /// Whether all bytes are the largest.
    largest: bool,
}

/// All problems of means.
pub fn means() -> Vec<MeanProblem> {
    let shapes = [(1, [1, 1, 16]), (3, [7, 7, 528]), (2, [5, 9, 2048]), (17, [3, 2, 112]), (1, [230, 190, 16])];
    let of = |(batch, [height, width, channels]): (usize, [usize; 3])| {
        let input = Shape::new(height, width, channels);
        [(false, false), (true, false), (false, true)].map(|(signed, largest)| MeanProblem {
            batch,
            input,
            signed,
            largest,
        })
    };
    shapes.into_iter().flat_map(of).collect()
}

impl MeanProblem {
    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.batch * self.input.channels
    }

    /// Runs the problem, and compares every bit.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        let Self { batch, input, signed, largest } = *self;
        let mut random = Random::new(&format!("{self:?}"));
        let lowest = if largest { 255 } else { 0 };
        let x: Vec<u8> = (0..batch * input.elems()).map(|_| random.between(lowest, 255) as u8).collect();
        let (scale, poisoned) = (0.037 / input.pixels() as f32, vec![f16::NAN; self.values() + GUARD]);
        let operands = S8MeanOperands { batch, input, x: (&x, signed), scale, result: &poisoned };
        let mut run = S8MeanRun::new(device, &operands, 1).map_err(|error| error.to_string())?;
        run.run(2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        if result[self.values()..self.values() + GUARD].iter().any(|value| !value.is_nan()) {
            return Err("values behind the result were written".into());
        }
        for (at, actual) in result[..self.values()].iter().enumerate() {
            let (image, channel) = (at / input.channels, at % input.channels);
            let bytes = (0..input.pixels()).map(|pixel| x[(image * input.pixels() + pixel) * input.channels + channel]);
            let sum: i32 = bytes.map(|byte| if signed { i32::from(byte as i8) } else { i32::from(byte) }).sum();
            let expected = f16::from_f32(sum as f32 * scale);
            if actual.to_bits() != expected.to_bits() {
                return Err(format!("image {image}, channel {channel}: {actual} instead of {expected}"));
            }
        }
        Ok(())
    }
}
