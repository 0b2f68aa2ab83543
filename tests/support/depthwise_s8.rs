//! Depthwise convolutions of bytes by plain loops, with which each kernel has to agree in every byte, and problems for
//! them.

use std::sync::{Arc, OnceLock};

use trefoil::model::images::{Pad, Window};
use trefoil::plan::{DepthwiseTile, Kernel, Limits, S8Conv};
use trefoil::{DepthwiseRun, Device, S8DepthwiseOperands, Shape};

use super::conv_s8::{GUARD, POISON, Range, equal_between_guards, output, requantised, value_of};
use super::random::Random;

/// One convolution on random operands.
#[derive(Clone, Debug)]
pub struct Problem {
    name: &'static str,
    conv: S8Conv,
    x_signed: bool,
    y_signed: bool,
    relu: bool,
    values: Values,
    /// The expected bytes, computed for the first tile that is compared.
    expected: Arc<OnceLock<Vec<u8>>>,
}

/// The kind of values that operands and results have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    /// Operands are any bytes, and scales leave most results inside their range.
    All,
    /// Results are far outside of their range, in both directions.
    Saturating,
    /// Operands are the least and the greatest bytes, and biases reach from the least to the greatest number that leaves
    /// room for any sum.
    Extreme,
    /// Half of the results lie exactly between two integers.
    Ties,
}

/// All problems.
pub fn all() -> Vec<Problem> {
    let of = |name, batch, [height, width, channels]: [usize; 3], window| {
        let input = Shape::new(height, width, channels);
        let conv = S8Conv { batch, input, output: output(input, channels, &window), window };
        let (values, expected) = (Values::All, Arc::default());
        Problem { name, conv, x_signed: false, y_signed: false, relu: true, values, expected }
    };
    let mut all = Vec::new();
    for (size, stride) in [(3, 1), (3, 2), (5, 1), (5, 2)] {
        let window = Window::square(size, stride, size / 2);
        let pad = Pad { top: 1, left: 0, bottom: 2, right: 3 };
        all.extend([
            of("one pixel", 1, [1, 1, 16], window),
            of("a few pixels", 3, [7, 7, 192], window),
            of("odd sizes", 2, [13, 31, 80], window),
            of("sides apart", 2, [17, 15, 112], Window { pad, ..window }),
            of("pads larger than the image", 2, [2, 3, 32], Window { pad: Pad { top: 4, left: 4, ..pad }, ..window }),
            of("many channels", 1, [14, 14, 1152], window),
            of("many tiles", 9, [56, 57, 96], window),
            of("wide", 1, [5, 300, 48], window),
        ]);
        let types = [
            (false, false, false),
            (false, true, false),
            (false, true, true),
            (true, false, true),
            (true, true, false),
        ];
        for (x_signed, y_signed, relu) in types {
            all.push(Problem { x_signed, y_signed, relu, ..of("types", 2, [15, 18, 144], window) });
        }
        for values in [Values::Saturating, Values::Extreme, Values::Ties] {
            for signed in [false, true] {
                let problem = of("values", 2, [11, 16, 240], window);
                all.push(Problem { x_signed: signed, y_signed: signed, relu: false, values, ..problem });
            }
        }
    }
    let (odd, dilated) = ([7, 4], Window { dilation: [2, 3], ..Window::square(3, 1, 2) });
    let odd = Window { size: odd, stride: [3, 2], pad: Pad { top: 3, left: 2, bottom: 1, right: 4 }, dilation: [1, 1] };
    for (x_signed, window) in [(false, odd), (true, odd), (false, dilated), (true, Window::square(7, 1, 3))] {
        all.push(Problem { x_signed, y_signed: x_signed, relu: false, ..of("any window", 2, [19, 23, 48], window) });
    }
    all
}

/// The operands of a problem, with bytes as they lie in memory.
struct Operands {
    x: Vec<u8>,
    filter: Vec<i8>, // [R][S][C]
    bias: Vec<i32>,
    scale: Vec<f32>,
}

impl Problem {
    /// The kernels that compute the problem: that of any GPU, and for each unit of tiles the tile with the shortest
    /// predicted time, a single unit, and several units in both directions.
    pub fn kernels(&self, limits: &Limits) -> Vec<Kernel> {
        let all = DepthwiseTile::of(&self.conv, true, limits);
        let mut some: Vec<DepthwiseTile> = Vec::new();
        for unit in DepthwiseTile::UNITS {
            let of_unit = || all.iter().filter(|tile| tile.unit == unit);
            some.extend(of_unit().next());
            some.extend(of_unit().find(|tile| [tile.rows, tile.columns] == unit));
            some.extend(of_unit().find(|tile| tile.rows == 3 * unit[0] && tile.columns == 2 * unit[1]));
        }
        some.sort_unstable();
        some.dedup();
        [Kernel::Sm80].into_iter().chain(some.into_iter().map(Kernel::Sm90DepthwiseS8)).collect()
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.conv.batch * self.conv.output.elems()
    }

    /// Sizes and types of the problem.
    pub fn describe(&self) -> String {
        let S8Conv { batch, input, output, window } = self.conv;
        let [x, y] = [self.x_signed, self.y_signed].map(|signed| if signed { "s8" } else { "u8" });
        let (relu, [r, s], [down, right]) = (if self.relu { ", ReLU" } else { "" }, window.size, window.stride);
        let (name, values) = (self.name, self.values);
        format!("{name}, {batch} x {input} {x} {r}x{s}/{down}x{right} -> {output} {y}{relu}, {values:?}")
    }

    /// Runs the problem, into a longer buffer with other bytes, and compares.
    pub fn run(&self, device: &Device, kernel: Kernel) -> Result<(), String> {
        let operands = self.operands();
        let poisoned = vec![POISON; self.values() + 2 * GUARD];
        let brought = S8DepthwiseOperands {
            conv: self.conv,
            x: (&operands.x, self.x_signed),
            filter: &operands.filter,
            bias: &operands.bias,
            scale: &operands.scale,
            result: (&poisoned, self.y_signed),
            result_at: GUARD,
            relu: self.relu,
        };
        let mut run = DepthwiseRun::of_bytes(device, &brought, &[kernel], 1).map_err(|error| error.to_string())?;
        run.run(0, 2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        let expected = self.expected.get_or_init(|| self.expected(&operands));
        equal_between_guards(&result, expected, self.conv.output.channels)
    }

    fn operands(&self) -> Operands {
        let mut random = Random::new(&self.describe());
        let (taps, channels) = (self.conv.window.size.iter().product::<usize>(), self.conv.output.channels);
        let lowest = if self.x_signed { -128 } else { 0 };
        let (x_range, filter_range) = match self.values {
            Values::Ties => ([0, 2], [-1, 1]),
            Values::All | Values::Saturating | Values::Extreme => ([lowest, lowest + 255], [-128, 127]),
        };
        let mut byte = |[low, high]: [i32; 2]| match self.values {
            Values::Extreme => [low, high][random.between(0, 1)] as u8,
            _ => (low + random.between(0, (high - low) as usize) as i32) as u8,
        };
        let x = (0..self.conv.batch * self.conv.input.elems()).map(|_| byte(x_range)).collect();
        let filter = (0..taps * channels).map(|_| byte(filter_range) as i8).collect();
        // The usual size of a sum: evenly distributed bytes have a deviation of 74, unsigned ones of 148 around 0.
        let usual = (taps as f64).sqrt() * 74.0 * if self.x_signed { 74.0 } else { 148.0 };
        let room = i32::MAX as usize - 255 * 128 * taps;
        let (scale, most_bias) = match self.values {
            Values::All => (60.0 / usual, usual as usize),
            Values::Saturating => (4000.0 / usual, usual as usize),
            Values::Extreme => (100.0 / room as f64, room),
            Values::Ties => (0.5, 20),
        };
        let bias = (0..channels).map(|_| (random.between(0, 2 * most_bias) as i64 - most_bias as i64) as i32).collect();
        let mut of_channel = |_| match self.values {
            Values::Ties => scale as f32,
            _ => (scale * (1.0 + 0.5 * random.signed())) as f32,
        };
        let scale = (0..channels).map(&mut of_channel).collect();
        Operands { x, filter, bias, scale }
    }

    fn expected(&self, operands: &Operands) -> Vec<u8> {
        let S8Conv { batch, input, output, window } = self.conv;
        let lowest = if self.y_signed && !self.relu { -128.0 } else { 0.0 };
        let range = Range { lowest, highest: if self.y_signed { 127.0 } else { 255.0 } };
        let channels = output.channels;
        let mut result = Vec::with_capacity(self.values());
        for pixel in 0..batch * output.pixels() {
            let (image, p, q) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
            let taps = (0..window.size[0] * window.size[1]).filter_map(|tap| {
                let [r, s] = [tap / window.size[1] * window.dilation[0], tap % window.size[1] * window.dilation[1]];
                let h = (p * window.stride[0] + r).checked_sub(window.pad.top)?;
                let w = (q * window.stride[1] + s).checked_sub(window.pad.left)?;
                let at = ((image * input.height + h) * input.width + w) * channels;
                (h < input.height && w < input.width).then_some((tap * channels, at))
            });
            let taps: Vec<(usize, usize)> = taps.collect();
            for c in 0..channels {
                let product = |&(tap, at): &(usize, usize)| {
                    i64::from(value_of(operands.x[at + c], self.x_signed)) * i64::from(operands.filter[tap + c])
                };
                let sum = i64::from(operands.bias[c]) + taps.iter().map(product).sum::<i64>();
                result.push(requantised(sum, operands.scale[c], None, range));
            }
        }
        result
    }
}
