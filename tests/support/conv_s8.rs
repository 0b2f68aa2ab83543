//! Convolutions of bytes by plain loops, with which a kernel has to agree in every byte, and problems for them.

use std::sync::{Arc, OnceLock};

use trefoil::model::images::{Pad, Window};
use trefoil::plan::{Limits, S8Conv, S8Kernel};
use trefoil::{ConvRun, Device, S8Operands, Shape};

use super::random::Random;

/// One convolution on random operands.
#[derive(Clone, Debug)]
pub struct Problem {
    pub name: &'static str,
    pub conv: S8Conv,
    /// A second convolution, whose sums are added.
    second: Option<S8Conv>,
    x_signed: bool,
    /// Whether the residual is signed; `None` without one.
    residual: Option<bool>,
    y_signed: bool,
    relu: bool,
    values: Values,
    /// The expected bytes, computed by the first kernel that is compared.
    expected: Arc<OnceLock<Vec<u8>>>,
}

/// The kind of values that operands and results have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    /// Operands are any bytes, and scales leave most results inside their range.
    All,
    /// Results are far outside of their range, in both directions.
    Saturating,
    /// Sums exceed 2^24, from where f32 rounds integers.
    Large,
    /// Half of the results lie exactly between two integers.
    Ties,
}

/// The range of results.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub lowest: f32,
    pub highest: f32,
}

/// All problems.
pub fn all() -> Vec<Problem> {
    let (single, three) = (Window::square(1, 1, 0), Window::square(3, 1, 1));
    let pad = Pad { top: 1, left: 0, bottom: 2, right: 3 };
    let odd = Window { size: [3, 5], stride: [2, 3], pad, dilation: [2, 1] };
    let dilated = Window { dilation: [2; 2], ..Window::square(3, 1, 2) };
    let of = |name, batch, [height, width, channels]: [usize; 3], out_channels, window| {
        let input = Shape::new(height, width, channels);
        let conv = S8Conv { batch, input, output: output(input, out_channels, &window), window };
        let expected = Arc::default();
        let values = Values::All;
        let (second, residual) = (None, None);
        Problem { name, conv, second, x_signed: false, residual, y_signed: false, relu: true, values, expected }
    };
    let mut all = vec![
        of("one pixel", 1, [1, 1, 16], 16, single),
        of("a matrix", 2, [14, 14, 64], 256, single),
        of("tails everywhere", 3, [13, 11, 80], 272, single),
        of("a matrix of many steps", 1, [7, 9, 1040], 144, single),
        of("3x3 of many steps", 1, [7, 7, 512], 144, three),
        of("3x3", 2, [14, 13, 64], 64, three),
        of("3x3 of few channels, tails", 3, [37, 61, 48], 144, Window { pad, ..three }),
        of("3x3, wide", 2, [10, 130, 64], 64, three),
        of("3x3, many tiles", 20, [56, 56, 64], 64, three),
        of("3x3 of 128 channels", 3, [9, 10, 128], 128, three),
        of("3x3 of 128 channels, whole tiles", 2, [28, 28, 128], 128, three),
        of("3x3 of 128 channels, wide", 1, [13, 130, 128], 64, three),
        of("3x3 of 128 channels, many tiles", 300, [14, 5, 128], 80, three),
        of("3x3 of 80 channels, tails", 2, [37, 61, 80], 144, Window { pad, ..three }),
        of("3x3, tails in channels", 2, [11, 12, 144], 208, three),
        of("3x3, stride 2", 3, [15, 18, 96], 96, Window::square(3, 2, 1)),
        of("1x1, stride 2", 2, [17, 16, 112], 256, Window::square(1, 2, 0)),
        of("dilation 2", 2, [12, 15, 48], 80, dilated),
        of("all sides apart", 2, [21, 25, 32], 48, odd),
        of("7x7, stride 2", 1, [30, 28, 16], 64, Window::square(7, 2, 3)),
        of("pads larger than the image", 2, [3, 2, 32], 32, Window::square(5, 1, 4)),
        of("many tiles", 4, [97, 95, 16], 64, single),
        of("many tiles of several steps", 2, [130, 128, 16], 48, three),
        of("many tiles in both directions", 1, [60, 59, 32], 1040, single),
    ];
    for x_signed in [false, true] {
        for y_signed in [false, true] {
            for relu in [false, true] {
                for residual in [None, Some(false), Some(true)] {
                    let problem = of("types", 2, [9, 15, 80], 176, three);
                    all.push(Problem { x_signed, y_signed, relu, residual, ..problem });
                }
            }
        }
    }
    for values in [Values::Saturating, Values::Large, Values::Ties] {
        for y_signed in [false, true] {
            for residual in [None, Some(!y_signed)] {
                let problem = of("values", 2, [10, 12, 144], 96, three);
                all.push(Problem { x_signed: y_signed, y_signed, relu: false, residual, values, ..problem });
            }
        }
    }
    let many = of("many tiles and a residual", 3, [97, 95, 16], 80, single);
    all.push(Problem { residual: Some(true), relu: true, ..many });
    for (x_signed, y_signed) in [(false, false), (true, false), (false, true), (true, true)] {
        for (residual, relu) in [(None, false), (Some(false), true), (Some(true), false)] {
            let problem = of("types of few channels", 9, [57, 56, 64], 80, three);
            all.push(Problem { x_signed, y_signed, relu, residual, ..problem });
        }
    }
    for (x_signed, residual) in [(false, false), (true, true)] {
        let problem = of("3x3 of 128 channels, many tiles and a residual", 300, [14, 5, 128], 80, three);
        all.push(Problem { x_signed, residual: Some(residual), ..problem });
    }
    all.extend(of_few_steps(of));
    all.extend(sums(of));
    all
}

/// Problems whose filters a block can keep, from problems that `of` makes: of one to four steps of 128 channels, of one
/// tile to several for each block.
fn of_few_steps(of: impl Fn(&'static str, usize, [usize; 3], usize, Window) -> Problem) -> Vec<Problem> {
    let single = Window::square(1, 1, 0);
    let mut all = vec![
        of("a matrix of four steps", 2, [14, 14, 512], 512, single),
        of("three steps, tails", 3, [9, 13, 272], 400, single),
        of("four steps of every other pixel", 2, [17, 20, 400], 272, Window::square(1, 2, 0)),
        of("taps of a row", 1, [9, 11, 80], 144, Window { size: [1, 3], ..single }),
        of("many tiles of one step", 1, [151, 149, 64], 272, single),
        of("many tiles of four steps", 1, [190, 180, 400], 144, single),
    ];
    for x_signed in [false, true] {
        for y_signed in [false, true] {
            for residual in [None, Some(false), Some(true)] {
                let problem = of("types of a matrix", 2, [25, 26, 144], 272, single);
                all.push(Problem { x_signed, y_signed, relu: residual.is_some(), residual, ..problem });
            }
        }
    }
    for values in [Values::Saturating, Values::Large, Values::Ties] {
        let problem = of("values of a matrix", 2, [20, 22, 208], 304, single);
        all.push(Problem { residual: Some(values != Values::Large), relu: false, y_signed: true, values, ..problem });
    }
    let many = of("many tiles of two steps and a residual", 3, [131, 127, 144], 208, single);
    all.push(Problem { residual: Some(true), ..many });
    all
}

/// Problems with a second convolution, from problems that `of` makes.
fn sums(of: impl Fn(&'static str, usize, [usize; 3], usize, Window) -> Problem) -> Vec<Problem> {
    let (single, three) = (Window::square(1, 1, 0), Window::square(3, 1, 1));
    let and = |first: Problem, [height, width, channels]: [usize; 3], window| {
        let input = Shape::new(height, width, channels);
        assert_eq!(output(input, first.conv.output.channels, &window), first.conv.output, "{}", first.name);
        Problem { second: Some(S8Conv { input, window, ..first.conv }), expected: Arc::default(), ..first }
    };
    let strided = Window::square(1, 2, 0);
    let mut all = vec![
        and(of("a sum of matrices", 2, [14, 13, 64], 256, single), [14, 13, 64], single),
        and(of("a matrix and every other pixel", 3, [9, 11, 48], 144, single), [17, 22, 112], strided),
        and(of("many tiles of two sources", 4, [57, 55, 16], 80, single), [114, 109, 32], strided),
        and(of("3x3 and 1x1, tails", 2, [11, 13, 80], 272, three), [11, 13, 144], single),
        and(of("1x1 and 3x3", 1, [7, 9, 272], 64, single), [7, 9, 32], three),
        and(of("a sum of many steps", 1, [7, 7, 512], 144, single), [14, 13, 1024], strided),
        and(of("a sum of one pixel", 1, [1, 1, 16], 16, single), [1, 1, 16], single),
        and(of("a sum of four steps", 2, [14, 13, 128], 528, single), [28, 25, 272], strided),
        and(of("many tiles of two sources of two steps", 1, [180, 170, 80], 272, single), [359, 339, 64], strided),
    ];
    for (x_signed, y_signed, residual) in [(true, false, None), (false, true, Some(false)), (true, true, Some(true))] {
        let problem = and(of("types of a sum", 2, [10, 12, 96], 176, single), [19, 24, 80], strided);
        all.push(Problem { x_signed, y_signed, residual, relu: false, ..problem });
    }
    for values in [Values::Saturating, Values::Large, Values::Ties] {
        let problem = and(of("values of a sum", 2, [10, 12, 144], 96, single), [20, 23, 208], strided);
        all.push(Problem { values, ..problem });
    }
    all
}

/// The shape of the result of a window over an image.
pub fn output(input: Shape, channels: usize, window: &Window) -> Shape {
    let Window { size, stride, pad, dilation } = *window;
    let along = |axis: usize, length: usize, pads: usize| {
        (length + pads - (size[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1
    };
    Shape::new(along(0, input.height, pad.top + pad.bottom), along(1, input.width, pad.left + pad.right), channels)
}

/// The input and the filter of a convolution, with bytes as they lie in memory.
struct Source {
    conv: S8Conv,
    x: Vec<u8>,
    filter: Vec<i8>,
}

/// The operands of a problem.
struct Operands {
    sources: Vec<Source>,
    bias: Vec<i32>,
    scale: Vec<f32>,
    residual: Option<(Vec<u8>, bool, f32)>,
}

impl Problem {
    /// The kernels that can compute the problem on `limits`.
    pub fn kernels(&self, limits: &Limits) -> Vec<S8Kernel> {
        let takes = |kernel: &S8Kernel| self.second.is_none_or(|second| self.conv.adds(&second, *kernel));
        self.conv.kernels(limits).into_iter().filter(takes).collect()
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.conv.batch * self.conv.output.elems()
    }

    /// Sizes and types of the problem.
    pub fn describe(&self) -> String {
        let S8Conv { batch, input, output, window } = self.conv;
        let [x, y] = [self.x_signed, self.y_signed].map(kind);
        let residual = self.residual.map_or(String::new(), |signed| format!(" + {}", kind(signed)));
        let relu = if self.relu { ", ReLU" } else { "" };
        let Window { size: [r, s], stride: [down, right], .. } = window;
        let second =
            self.second.map_or(String::new(), |second| format!(" + {} {:?}", second.input, second.window.size));
        format!(
            "{batch} x {input} {x} {r}x{s}/{down}x{right}{second}{residual} -> {output} {y}{relu}, {:?}",
            self.values
        )
    }

    /// Runs the problem, into a longer buffer with other bytes, and compares: with the first pixels first, then with the
    /// last ones first.
    pub fn run(&self, device: &Device, kernel: S8Kernel) -> Result<(), String> {
        let operands = self.operands();
        self.run_in_order(device, kernel, &operands, false)?;
        let backward = self.run_in_order(device, kernel, &operands, true);
        backward.map_err(|error| format!("the last pixels first: {error}"))
    }

    fn run_in_order(
        &self,
        device: &Device,
        kernel: S8Kernel,
        operands: &Operands,
        backward: bool,
    ) -> Result<(), String> {
        let poisoned = vec![POISON; self.values() + 2 * GUARD];
        let [first, second @ ..] = &operands.sources[..] else { return Err("a problem has a source".into()) };
        let brought = S8Operands {
            conv: self.conv,
            x: (&first.x, self.x_signed),
            filter: &first.filter,
            second: second.first().map(|second| (second.conv, &second.x[..], &second.filter[..])),
            bias: &operands.bias,
            scale: &operands.scale,
            residual: operands.residual.as_ref().map(|(values, signed, scale)| (&values[..], *signed, *scale)),
            result: (&poisoned, self.y_signed),
            result_at: GUARD,
            relu: self.relu,
            backward,
        };
        let mut run = ConvRun::of_bytes(device, &brought, &[kernel], 1).map_err(|error| error.to_string())?;
        run.run(0, 2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        let expected = self.expected.get_or_init(|| self.expected(operands));
        equal_between_guards(&result, expected, self.conv.output.channels)
    }

    fn operands(&self) -> Operands {
        let mut random = Random::new(&format!("{} {}", self.name, self.describe()));
        let convs: Vec<S8Conv> = [self.conv].into_iter().chain(self.second).collect();
        let products_of = |conv: &S8Conv| conv.window.size.iter().product::<usize>() * conv.input.channels;
        let products = convs.iter().map(products_of).sum::<usize>();
        let mut bytes = |count: usize, low: i32, high: i32| -> Vec<u8> {
            let span = (high - low) as usize;
            (0..count).map(|_| (low + random.between(0, span) as i32) as u8).collect()
        };
        let lowest = if self.x_signed { -128 } else { 0 };
        let sources = convs.iter().map(|&conv| {
            let (pixels, weights) = (conv.batch * conv.input.elems(), conv.output.channels * products_of(&conv));
            let (x, filter) = match self.values {
                Values::All | Values::Saturating => (bytes(pixels, lowest, lowest + 255), bytes(weights, -128, 127)),
                Values::Large => (bytes(pixels, lowest + 245, lowest + 255), bytes(weights, 110, 127)),
                Values::Ties => (bytes(pixels, 0, 2), bytes(weights, -1, 1)),
            };
            Source { conv, x, filter: filter.into_iter().map(|byte| byte as i8).collect() }
        });
        let sources = sources.collect();
        let residual = self.residual.map(|signed| {
            let low = if signed { -128 } else { 0 };
            (bytes(self.values(), low, low + 255), signed, if self.values == Values::Ties { 0.5 } else { 0.37 })
        });
        // The usual size of a sum: evenly distributed bytes have a deviation of 74, unsigned ones of 148 around 0.
        let usual = (products as f64).sqrt() * 74.0 * if self.x_signed { 74.0 } else { 148.0 };
        let largest = products as f64 * f64::from(lowest + 255) * 127.0;
        let (scale, most_bias) = match self.values {
            Values::All => (60.0 / usual, usual as usize),
            Values::Saturating => (4000.0 / usual, usual as usize),
            Values::Large => (140.0 / largest, 1000),
            Values::Ties => (0.5, 20),
        };
        let channels = self.conv.output.channels;
        let bias = (0..channels).map(|_| random.between(0, 2 * most_bias) as i32 - most_bias as i32).collect();
        let mut of_channel = |_| match self.values {
            Values::Ties => scale as f32,
            _ => (scale * (1.0 + 0.5 * random.signed())) as f32,
        };
        let scale = (0..channels).map(&mut of_channel).collect();
        Operands { sources, bias, scale, residual }
    }

    fn expected(&self, operands: &Operands) -> Vec<u8> {
        let Operands { sources, bias, scale, residual } = operands;
        let S8Conv { batch, output, .. } = self.conv;
        let low = if self.y_signed && !self.relu { -128.0 } else { 0.0 };
        let range = Range { lowest: low, highest: if self.y_signed { 127.0 } else { 255.0 } };
        let x_of =
            |source: &Source| -> Vec<i32> { source.x.iter().map(|byte| value_of(*byte, self.x_signed)).collect() };
        let sources: Vec<(&Source, Vec<i32>)> = sources.iter().map(|source| (source, x_of(source))).collect();
        let mut result = Vec::with_capacity(self.values());
        for pixel in 0..batch * output.pixels() {
            let seen: Vec<_> = sources.iter().flat_map(|(source, x)| source.seen(x, pixel)).collect();
            for k in 0..output.channels {
                let of_tap = |(source, tap, x): &(&Source, usize, &[i32])| -> i64 {
                    let filter = &source.filter[(k * source.taps() + tap) * x.len()..][..x.len()];
                    x.iter().zip(filter).map(|(x, f)| i64::from(*x) * i64::from(*f)).sum()
                };
                let sum = i64::from(bias[k]) + seen.iter().map(of_tap).sum::<i64>();
                let add =
                    residual.as_ref().map(|(values, signed, scale)| (value_of(values[result.len()], *signed), *scale));
                result.push(requantised(sum, scale[k], add, range));
            }
        }
        result
    }
}

impl Source {
    fn taps(&self) -> usize {
        self.conv.window.size.iter().product()
    }

    /// The taps of a result's pixel inside the image, each with the channels of its pixel of `x`.
    fn seen<'a>(&'a self, x: &'a [i32], pixel: usize) -> impl Iterator<Item = (&'a Self, usize, &'a [i32])> {
        let S8Conv { input, output, window, .. } = self.conv;
        let (image, p, q) = (pixel / output.pixels(), pixel % output.pixels() / output.width, pixel % output.width);
        (0..self.taps()).filter_map(move |tap| {
            let (r, s) = (tap / window.size[1], tap % window.size[1]);
            let h = (p * window.stride[0] + r * window.dilation[0]).checked_sub(window.pad.top)?;
            let w = (q * window.stride[1] + s * window.dilation[1]).checked_sub(window.pad.left)?;
            let at = ((image * input.height + h) * input.width + w) * input.channels;
            (h < input.height && w < input.width).then(|| (self, tap, &x[at..at + input.channels]))
        })
    }
}

fn kind(signed: bool) -> &'static str {
    if signed { "s8" } else { "u8" }
}

/// The number that a byte in memory is.
pub fn value_of(byte: u8, signed: bool) -> i32 {
    if signed { i32::from(byte as i8) } else { i32::from(byte) }
}

/// A sum with its bias as a byte: each step is rounded to f32, then the result to the nearest integer, ties to even.
pub fn requantised(sum: i64, scale: f32, residual: Option<(i32, f32)>, range: Range) -> u8 {
    let sum = i32::try_from(sum).expect("problems stay inside 32 bits");
    let scaled = sum as f32 * scale;
    let value = residual.map_or(scaled, |(value, scale)| (value as f32).mul_add(scale, scaled));
    value.round_ties_even().clamp(range.lowest, range.highest) as i32 as u8
}

/// Fails unless a buffer has these bytes, of pixels with this many channels, between guards that are unchanged.
pub fn equal_between_guards(result: &[u8], expected: &[u8], channels: usize) -> Result<(), String> {
    assert_eq!(result.len(), expected.len() + 2 * GUARD);
    let (before, rest) = result.split_at(GUARD);
    let (actual, after) = rest.split_at(expected.len());
    if before.iter().chain(&after[..GUARD]).any(|byte| *byte != POISON) {
        return Err("bytes outside of the result were written".into());
    }
    let wrong = |at: &usize| actual[*at] != expected[*at];
    let Some(first) = (0..expected.len()).find(wrong) else { return Ok(()) };
    let (pixel, channel) = (first / channels, first % channels);
    let count = (first..expected.len()).filter(wrong).count();
    let [is, should_be] = [actual[first], expected[first]];
    Err(format!("{count} values are wrong; the first, pixel {pixel}, channel {channel}: {is} instead of {should_be}"))
}

/// Number of bytes or values before and behind a result that no kernel may write.
pub const GUARD: usize = 1024;
/// The content of the buffer before a kernel runs.
pub const POISON: u8 = 0xa5;
