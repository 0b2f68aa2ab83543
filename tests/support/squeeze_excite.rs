//! Squeeze and excitation by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for
//! it, each a network of values.

use half::{bf16, f16};
use trefoil::graph::{Binary, Conv, Expr, Graph, GraphBuilder, Op, Reduce, ReduceOp, Unary, ValueId, Window};
use trefoil::model::{Model, Weights};
use trefoil::plan::{Choices, Gate, Kernel, ProductActivation, SqueezeTile};
use trefoil::{Device, Dtype, Engine, Error, Precision, Shape};

use super::convolution::{active, number};
use super::halves::Half;
use super::product::{Gelu, finished};
use super::random::Random;
use super::tolerance::{Expected, Growth, Storage, U32};

/// Random images, whose channels are squeezed and excited.
#[derive(Clone, Debug)]
pub struct Problem {
    precision: Precision,
    rows: usize,
    /// Height, width and channels.
    input: [usize; 3],
    hidden: usize,
    /// The activations of the image and of the hidden vector.
    activations: [ProductActivation; 2],
    gate: Gate,
    /// The kernel's tile; the planner chooses one if there is none.
    tile: Option<SqueezeTile>,
    /// The largest absolute value of the images.
    most: f64,
}

/// A block of EfficientNet, from which the other problems differ.
fn usual(precision: Precision) -> Problem {
    Problem {
        precision,
        rows: 2,
        input: [14, 13, 240],
        hidden: 10,
        activations: [ProductActivation::None, ProductActivation::Silu],
        gate: Gate::Sigmoid,
        tile: None,
        most: 4.0,
    }
}

/// All problems in f16 or bf16.
pub fn all(precision: Precision) -> Vec<Problem> {
    use ProductActivation as A;
    let usual = || usual(precision);
    let of = |rows, input, hidden| Problem { rows, input, hidden, ..usual() };
    let in_tile = |of: Problem, channel_parts, pixel_parts| Problem {
        tile: Some(SqueezeTile { channel_parts, pixel_parts }),
        ..of
    };
    let mut all = vec![usual()];
    // As in EfficientNet-B0, MobileNetV3-Large and RegNetY.
    all.extend([
        of(1, [112, 112, 32], 8),
        of(1, [56, 56, 96], 4),
        of(3, [28, 28, 144], 6),
        of(1, [7, 7, 1152], 48),
        of(33, [7, 7, 672], 28),
        of(2, [28, 28, 72], 24),
        of(1, [7, 7, 960], 240),
        of(1, [7, 7, 888], 222),
    ]);
    // One pixel, one group of channels, and sizes that no number of parts divides.
    all.extend([of(1, [1, 1, 8], 1), of(5, [1, 3, 16], 3), of(2, [13, 11, 8], 9), of(3, [9, 17, 104], 27)]);
    let odd = || of(3, [19, 11, 104], 27);
    for (channel_parts, pixel_parts) in
        [(1, 1), (1, 2), (2, 1), (1, 3), (5, 1), (7, 2), (13, 1), (1, 15), (3, 5), (4, 4), (2, 8), (5, 3)]
    {
        all.push(in_tile(odd(), channel_parts, pixel_parts));
    }
    // A cluster has several images, one after the other, and perhaps blocks without a part.
    all.extend([(4, 4), (3, 5), (1, 1)].map(|(channel_parts, pixel_parts)| {
        in_tile(Problem { rows: 300 / (channel_parts * pixel_parts), ..odd() }, channel_parts, pixel_parts)
    }));
    // Every number of pixels of a thread, whole and not; blocks of 64 groups of channels.
    for (height, pixel_parts) in
        [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1), (17, 2), (7, 3)]
    {
        all.push(in_tile(of(1, [height, 16, 256], 16), 1, pixel_parts));
    }
    all.extend([in_tile(of(2, [3, 3, 512], 32), 1, 1), in_tile(of(2, [3, 3, 1024], 40), 2, 3)]);
    all.push(in_tile(of(1, [2, 2, 64], 512), 1, 1));
    for activation in [A::None, A::Relu, A::QuickGelu, A::Silu, A::HardSwish] {
        all.push(Problem { activations: [activation, A::Relu], ..usual() });
        let activations = [A::HardSwish, activation];
        for gate in [Gate::HardSigmoid { slope: 1.0 / 6.0, offset: 0.5 }, Gate::HardSigmoid { slope: 0.2, offset: 0.5 }]
        {
            all.push(Problem { activations, gate, rows: 1, input: [5, 7, 40], hidden: 12, ..usual() });
        }
    }
    // Gates near both bounds.
    all.push(Problem { most: 200.0, ..usual() });
    all
}

impl Problem {
    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.rows * self.input.iter().product::<usize>()
    }

    /// Runs the problem on a device of compute capability 9.0, with its kernel, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.precision {
            Precision::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let operands = self.operands::<T>();
        let ([_, _, channels], own) = (self.input, self.clone());
        // The image goes through a convolution that leaves it as it is, since layers come first in networks.
        let mut centre = vec![0.0; 9 * channels];
        centre.iter_mut().skip(4).step_by(9).for_each(|tap| *tap = 1.0);
        let hidden = self.hidden;
        let tensors = [
            ("first.filter", vec![channels, 1, 3, 3], centre),
            ("squeeze.filter", vec![hidden, channels, 1, 1], operands.squeeze.clone()),
            ("squeeze.bias", vec![hidden], operands.squeeze_bias.clone()),
            ("excite.filter", vec![channels, hidden, 1, 1], operands.excite.clone()),
            ("excite.bias", vec![channels], operands.excite_bias.clone()),
        ];
        let told = |error: Error| error.to_string();
        let weights = Weights::from_tensors(tensors);
        let model = weights.and_then(|weights| Model::of_graphs(weights, move |rows| own.graph(rows))).map_err(told)?;
        let mut engine = Engine::builder(&model).on(device).precision(self.precision).batch_sizes(&[self.rows]);
        if let Some(tile) = self.tile {
            engine = engine.choices(Choices::from([("gated".into(), Kernel::Sm90SqueezeExcite(tile))]));
        }
        let engine = engine.check(true).build().map_err(told)?;
        let plan = &engine.plans()[0];
        let is_chosen = |kernel| match (kernel, self.tile) {
            (Kernel::Sm90SqueezeExcite(tile), Some(chosen)) => tile == chosen,
            (kernel, _) => matches!(kernel, Kernel::Sm90SqueezeExcite(_)),
        };
        if !plan.steps.iter().any(|step| is_chosen(step.kernel)) {
            return Err(format!("the kernel is not in the plan:\n{plan}"));
        }
        let mut batch = engine.acquire().map_err(told)?;
        for (row, image) in operands.images.iter().enumerate() {
            batch.port_mut::<f32>(row, "x").map_err(told)?.copy_from_slice(image);
        }
        let output = batch.submit(self.rows).and_then(|ticket| ticket.wait()).map_err(told)?;
        for (row, image) in operands.images.iter().enumerate() {
            let expected = self.expected::<T>(image, &operands);
            let actual = output.port::<f32>(row, "y").map_err(told)?;
            expected.check(Growth::Worst, actual).map_err(|error| format!("row {row}: {error}"))?;
        }
        Ok(())
    }

    /// Images and filters are values of the type; so their conversion is exact.
    fn operands<T: Half>(&self) -> Operands {
        let mut random = Random::new(&format!("{:?} {} {:?}", self.input, self.hidden, self.activations));
        let [_, _, channels] = self.input;
        let hidden = self.hidden;
        let mut singles = |count: usize, most: f64| {
            let values = random.singles(count, most);
            values.into_iter().map(|value| T::of(value.into()).value() as f32).collect::<Vec<f32>>()
        };
        let elems = self.input.iter().product();
        // Means of many pixels are small: each channel has one of its own.
        let images = (0..self.rows).map(|_| {
            let means = singles(channels, self.most / 2.0);
            let image = singles(elems, self.most / 2.0).into_iter().enumerate();
            image.map(|(at, value)| T::of((value + means[at % channels]).into()).value() as f32).collect()
        });
        let images = images.collect();
        let most = 3.0 / (channels as f64).sqrt();
        Operands {
            images,
            squeeze: singles(hidden * channels, most),
            squeeze_bias: singles(hidden, 1.0),
            excite: singles(channels * hidden, 3.0 / (hidden as f64).sqrt()),
            excite_bias: singles(channels, 1.0),
        }
    }

    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let [height, width, channels] = self.input;
        let x = g.input("x", Dtype::F32, &[rows, height, width, channels]);
        let layer = |g: &mut GraphBuilder, name: &str, x, [from, to]: [usize; 2], size: usize, has_bias: bool| {
            let groups = if size == 1 { 1 } else { from };
            let mut reads = vec![x, g.weight(&format!("{name}.filter"), Dtype::F32, &[to, from / groups, size, size])];
            if has_bias {
                reads.push(g.weight(&format!("{name}.bias"), Dtype::F32, &[to]));
            }
            g.node(name, Op::Conv(Conv { window: Window::all(2, size, 1, size / 2), groups }), &reads)
        };
        let x = layer(&mut g, "first", x, [channels, channels], 3, false);
        let x = active(&mut g, "pixels", self.activations[0], x);
        let mean = Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: true };
        let mean = g.node("mean", Op::Reduce(mean), &[x]);
        let h = layer(&mut g, "squeeze", mean, [channels, self.hidden], 1, true);
        let h = active(&mut g, "hidden", self.activations[1], h);
        let s = layer(&mut g, "excite", h, [self.hidden, channels], 1, true);
        let s = gate(&mut g, self.gate, s);
        let y = g.map("gated", Expr::arg(0) * Expr::arg(1), &[s, x]);
        g.output("y", y);
        g.finish()
    }

    /// The expected result of a row, with the error of each value.
    fn expected<T: Half>(&self, image: &[f32], operands: &Operands) -> Expected {
        let [height, width, channels] = self.input;
        let pixels = height * width;
        let [of_pixels, of_hidden] = self.activations;
        let all: Vec<(f64, f64)> = match of_pixels {
            ProductActivation::None => image.iter().map(|&x| (x.into(), 0.0)).collect(),
            of => image.iter().map(|&x| finished((of, Gelu::InF32), x.into(), 0.0, 1.0, 0.0, T::ROUNDING)).collect(),
        };
        // The sums of the kernel are of f32: those of pixels have a term each, and a factor behind them.
        let mean = |channel: usize| {
            let of_channel = || all.iter().skip(channel).step_by(channels);
            let sum: f64 = of_channel().map(|(value, _)| value).sum();
            let errors: f64 = of_channel().map(|(_, error)| error).sum();
            let magnitude: f64 = of_channel().map(|(value, error)| value.abs() + error).sum();
            let error = errors + Growth::Worst.sum(Storage::F32, pixels + 2, magnitude);
            (sum / pixels as f64, error / pixels as f64)
        };
        let means: Vec<(f64, f64)> = (0..channels).map(mean).collect();
        let product = |filter: &[f32], bias: f32, of: &[(f64, f64)]| {
            let bias = f64::from(bias);
            let terms = || filter.iter().zip(of).map(|(&w, &(value, error))| (f64::from(w), value, error));
            let sum: f64 = terms().map(|(w, value, _)| w * value).sum();
            let error: f64 = terms().map(|(w, _, error)| w.abs() * error).sum();
            let magnitude: f64 = terms().map(|(w, value, error)| w.abs() * (value.abs() + error)).sum();
            let own = Growth::Worst.sum(Storage::F32, filter.len() + 2, magnitude + bias.abs());
            (sum + bias, error + own)
        };
        let hidden: Vec<(f64, f64)> = (0..self.hidden)
            .map(|h| {
                let (sum, error) =
                    product(&operands.squeeze[h * channels..][..channels], operands.squeeze_bias[h], &means);
                finished((of_hidden, Gelu::InF32), sum, error, 1.0, 0.0, F32)
            })
            .collect();
        let gates: Vec<(f64, f64)> = (0..channels)
            .map(|c| {
                let row = &operands.excite[c * self.hidden..][..self.hidden];
                let (sum, error) = product(row, operands.excite_bias[c], &hidden);
                gated(self.gate, sum, error)
            })
            .collect();
        let value = |(at, &(value, error)): (usize, &(f64, f64))| {
            let (gate, of_gate) = gates[at % channels];
            let exact = value * gate;
            let magnitude = (value.abs() + error) * (gate + of_gate);
            let error = value.abs() * of_gate + error * (gate + of_gate) + U32 * magnitude;
            (exact, T::ROUNDING.rounded(exact, error))
        };
        let (values, errors) = all.iter().enumerate().map(value).unzip();
        Expected { shape: Shape::new(height, width, channels), values, errors }
    }
}

/// Images and weights of a problem.
struct Operands {
    images: Vec<Vec<f32>>,
    squeeze: Vec<f32>,
    squeeze_bias: Vec<f32>,
    excite: Vec<f32>,
    excite_bias: Vec<f32>,
}

/// The rounding of values that are not stored.
const F32: super::tolerance::Rounding = super::tolerance::Rounding { unit: U32, tiny: f32::MIN_POSITIVE as f64 };

/// The gate of a sum with this error, and the gate's error: a sigmoid is off by 2^-16 of itself, or 2^-30, as the kernel's
/// contract says, and no gate is steeper than 1/4.
fn gated(gate: Gate, sum: f64, error: f64) -> (f64, f64) {
    match gate {
        Gate::Sigmoid => {
            let exact = 1.0 / (1.0 + (-sum).exp());
            let moved = error / 4.0;
            (exact, moved + (exact + moved) / f64::from(1 << 16) + 1.0 / f64::from(1 << 30))
        }
        Gate::HardSigmoid { slope, offset } => {
            let exact = f64::from(slope) * sum + f64::from(offset);
            let moved = f64::from(slope) * error;
            // The slope is found from two rounded gates.
            (exact.clamp(0.0, 1.0), moved + 4.0 * U32 * (exact.abs() + moved))
        }
    }
}

/// Adds a gate in the form that exporters write.
fn gate(g: &mut GraphBuilder, gate: Gate, x: ValueId) -> ValueId {
    let expr = match gate {
        Gate::Sigmoid => number(1.0) / (number(1.0) + (-Expr::arg(0)).unary(Unary::Exp)),
        Gate::HardSigmoid { slope, offset } => {
            let ramp = Expr::arg(0) * number(slope.into()) + number(offset.into());
            ramp.binary(Binary::Max, number(0.0)).binary(Binary::Min, number(1.0))
        }
    };
    g.map("gate", expr, &[x])
}
