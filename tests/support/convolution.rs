//! Convolutions followed by an activation by plain loops in f64, with the error that a kernel of f16 or bf16 may have,
//! and problems for them, each a network of values.

use half::{bf16, f16};
use trefoil::graph::{Binary, Conv, Expr, Graph, GraphBuilder, Op, Unary, ValueId, Window};
use trefoil::model::{Model, Weights};
use trefoil::plan::{Choices, DepthwiseTile, Kernel, Limits, ProductActivation, Step};
use trefoil::{Device, Dtype, Engine, Error, Precision, Shape};

use super::halves::Half;
use super::product::{Gelu, finished};
use super::random::Random;
use super::tolerance::{Expected, Growth, Storage};

/// A convolution of random images, and the kernel for it.
#[derive(Clone, Debug)]
pub struct Problem {
    kernel: Kernel,
    precision: Precision,
    rows: usize,
    /// Height, width and channels of the input.
    input: [usize; 3],
    outputs: usize,
    window: Window,
    /// Whether each output reads one channel alone.
    is_depthwise: bool,
    /// The channels of the input of a 1x1 convolution in front, which SiLU follows, if there is one.
    expands: Option<usize>,
    /// Whether a row consists of planes, one for each channel, or of pixels.
    planes: bool,
    /// The factor that scales the input, if the network has one.
    factor: Option<f32>,
    bias: bool,
    activation: ProductActivation,
}

/// The first layer of YOLOv8n and similar networks, from which the other problems differ.
fn usual(precision: Precision) -> Problem {
    Problem {
        kernel: Kernel::Sm90Few,
        precision,
        rows: 3,
        input: [23, 37, 3],
        outputs: 16,
        window: window([3, 3], [2, 2], [[1, 1]; 2], [1, 1]),
        is_depthwise: false,
        expands: None,
        planes: true,
        factor: None,
        bias: true,
        activation: ProductActivation::Silu,
    }
}

fn window(size: [usize; 2], stride: [usize; 2], pad: [[usize; 2]; 2], dilation: [usize; 2]) -> Window {
    Window { size: size.into(), stride: stride.into(), dilation: dilation.into(), pad: pad.into() }
}

/// All problems of few channels in f16 or bf16.
pub fn of_few_channels(precision: Precision) -> Vec<Problem> {
    let usual = || usual(precision);
    let mut all = vec![usual(), Problem { planes: false, ..usual() }];
    // Tiles have 8 rows and 32 columns of the result.
    all.extend([[1, 1], [5, 3], [16, 64], [17, 65], [40, 67], [70, 131]].map(|[height, width]| Problem {
        input: [height, width, 3],
        rows: 2,
        ..usual()
    }));
    all.extend([8, 24, 32, 40, 64].map(|outputs| Problem { outputs, ..usual() }));
    all.extend([1, 2, 4].map(|channels| Problem { input: [19, 35, channels], ..usual() }));
    let windows = [
        window([1, 1], [1, 1], [[0, 0]; 2], [1, 1]),
        window([1, 1], [2, 2], [[0, 0]; 2], [1, 1]),
        window([3, 3], [1, 1], [[1, 1]; 2], [1, 1]),
        window([2, 3], [3, 1], [[0, 1], [2, 0]], [1, 1]),
        window([3, 4], [2, 2], [[0, 1], [0, 1]], [1, 1]),
        window([5, 5], [1, 2], [[2, 2]; 2], [1, 1]),
        window([3, 3], [1, 1], [[3, 3], [2, 2]], [3, 2]),
        window([7, 7], [2, 2], [[3, 3]; 2], [1, 1]),
        window([8, 8], [4, 3], [[2, 5], [4, 1]], [1, 1]),
        window([13, 1], [1, 1], [[6, 6], [0, 0]], [1, 1]),
    ];
    for window in windows {
        for outputs in [16, 32, 64] {
            all.push(Problem { window: window.clone(), outputs, input: [29, 41, 3], rows: 2, ..usual() });
        }
    }
    for activation in ProductActivation::ALL {
        all.push(Problem { activation, outputs: 24, ..usual() });
        all.push(Problem { activation, bias: false, planes: false, factor: Some(1.0 / 255.0), ..usual() });
    }
    all.extend([1, 5].map(|rows| Problem { rows, factor: Some(0.25), ..usual() }));
    all.push(Problem { input: [224, 224, 3], rows: 1, ..usual() });
    all
}

/// Problems in f16 for every kernel that applies SiLU or GELU to a convolution of images.
pub fn with_activations(limits: &Limits) -> Vec<Problem> {
    let same = |size: usize, stride| window([size; 2], [stride; 2], [[size / 2; 2]; 2], [1, 1]);
    let of = |input, outputs, window, rows| Problem { input, outputs, window, rows, ..usual(Precision::F16) };
    let problems = [
        // A convolution of single pixels would be a product if the number of results were a multiple of eight.
        of([1, 1, 8], 12, same(1, 1), 1),
        of([17, 9, 24], 44, same(1, 1), 2),
        of([8, 8, 200], 260, same(1, 1), 3),
        of([14, 13, 64], 64, same(3, 1), 2),
        of([23, 37, 16], 72, same(3, 1), 3),
        of([40, 41, 64], 64, same(3, 1), 1),
        of([9, 11, 72], 136, same(3, 2), 2),
        of([21, 17, 40], 264, window([3, 3], [1, 1], [[6, 6]; 2], [6, 6]), 3),
        of([19, 6, 40], 32, window([2, 5], [1, 3], [[0, 1], [4, 2]], [2, 1]), 2),
        // Frames of sounds.
        of([1, 301, 80], 200, window([1, 3], [1, 1], [[0, 0], [1, 1]], [1, 1]), 3),
        of([1, 150, 192], 192, window([1, 3], [1, 2], [[0, 0], [1, 1]], [1, 1]), 2),
    ];
    let tiles: Vec<Kernel> = Kernel::of_convolutions(limits);
    let tiles = tiles.into_iter().filter(|kernel| matches!(kernel, Kernel::Sm90Conv { .. }));
    let of_kernel = |kernel: Kernel| {
        let is_computed =
            move |of: &Problem| kernel != Kernel::Sm90Halo || (of.window == same(3, 1) && of.input[2] <= 64);
        problems.clone().into_iter().filter(is_computed).map(move |of| Problem { kernel, ..of })
    };
    let of_tiles: Vec<Problem> = tiles.flat_map(of_kernel).collect();
    let with_gelu = of_tiles.iter().cloned().map(|of| Problem { activation: ProductActivation::Gelu, ..of });
    let with_silu = of_kernel(Kernel::Sm90Halo).chain(depthwise_with_silu());
    of_tiles.iter().cloned().chain(with_gelu).chain(with_silu).collect()
}

/// Problems in f16 of windows of a line that overlap, which are products of copied windows.
pub fn of_windows() -> Vec<Problem> {
    let along = |taps, stride, pad, dilation| window([1, taps], [1, stride], [[0, 0], pad], [1, dilation]);
    let of = |input, outputs, window, rows, activation| Problem {
        kernel: Kernel::Loop, // not chosen: the planner's product
        input,
        outputs,
        window,
        rows,
        activation,
        ..usual(Precision::F16)
    };
    let [gelu, tanh] = [ProductActivation::Gelu, ProductActivation::GeluTanh];
    vec![
        of([1, 3000, 40], 512, along(3, 1, [1, 1], 1), 4, gelu),
        of([1, 3001, 40], 512, along(3, 1, [2, 0], 1), 4, tanh),
        of([1, 6001, 16], 512, along(5, 2, [1, 3], 1), 4, gelu),
        of([1, 3003, 24], 512, along(3, 1, [0, 2], 2), 4, gelu),
        Problem { planes: false, ..of([3000, 1, 40], 512, window([3, 1], [1, 1], [[1, 1], [0, 0]], [1, 1]), 4, gelu) },
    ]
}

/// Depthwise convolutions with SiLU, by every window and unit of their kernel.
fn depthwise_with_silu() -> Vec<Problem> {
    let windows = [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)];
    let tiles = [([2, 7], 4, 14), ([1, 4], 3, 8)];
    let of = |(size, stride): (usize, usize), (unit, rows, columns), channels| Problem {
        kernel: Kernel::Sm90Depthwise(DepthwiseTile { rows, columns, unit }),
        input: [19, 23, channels],
        outputs: channels,
        window: window([size; 2], [stride; 2], [[size / 2; 2]; 2], [1, 1]),
        is_depthwise: true,
        ..usual(Precision::F16)
    };
    let of_window =
        |window| tiles.into_iter().flat_map(move |tile| [8, 40, 100].map(|channels| of(window, tile, channels)));
    // A 1x1 convolution in front would be a product if the number of its results were a multiple of eight.
    let expanded = |(window, tile): ((usize, usize), _)| {
        let of = of(window, tile, 44);
        let Kernel::Sm90Depthwise(tile) = of.kernel else { unreachable!("as made") };
        Problem { kernel: Kernel::Sm90Expand(tile), expands: Some(24), ..of }
    };
    let expanded = windows.into_iter().flat_map(|window| tiles.map(|tile| (window, tile))).map(expanded);
    windows.into_iter().flat_map(of_window).chain(expanded).collect()
}

impl Problem {
    /// The kernel of the problem.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The name of the activation, which is SiLU or GELU if a kernel for images applies it.
    pub fn activation_name(&self) -> String {
        format!("{:?}", self.activation).to_lowercase()
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        let [height, width] = self.output();
        self.rows * height * width * self.outputs
    }

    /// Height and width of the result.
    fn output(&self) -> [usize; 2] {
        let Window { size, stride, dilation, pad } = &self.window;
        [0, 1].map(|axis| {
            let padded = self.input[axis] + pad[axis][0] + pad[axis][1];
            (padded - (size[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1
        })
    }

    /// Runs the problem on a device of compute capability 9.0, with its kernel, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.precision {
            Precision::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let (images, filter, bias) = self.operands();
        let (filter_dims, own) = (self.filter_dims(), self.clone());
        let tensors = [("bias", vec![self.outputs], bias.clone()), ("filter", filter_dims.to_vec(), filter.clone())];
        let (expand, expand_dims) = (self.expand(), [self.input[2], self.read_channels(), 1, 1]);
        let expand = [("expand", expand_dims.to_vec(), expand)].into_iter().filter(|_| self.expands.is_some());
        let tensors = tensors.into_iter().skip(usize::from(!self.bias)).chain(expand);
        let weights = Weights::from_tensors(tensors);
        let told = |error: Error| error.to_string();
        let model = weights.and_then(|weights| Model::of_graphs(weights, move |rows| own.graph(rows))).map_err(told)?;
        let mut engine = Engine::builder(&model).on(device).precision(self.precision).batch_sizes(&[self.rows]);
        if !matches!(self.kernel, Kernel::Sm90Few | Kernel::Loop) {
            engine = engine.choices(Choices::from([("first".into(), self.kernel)]));
        }
        let engine = engine.check(true).build().map_err(told)?;
        let plan = &engine.plans()[0];
        let applies = format!("+{}", self.activation_name());
        let is_whole = |step: &Step| match self.kernel {
            Kernel::Loop => step.name == "first" && step.op.label(2).starts_with("product+gelu"),
            Kernel::Sm90Few => step.kernel == self.kernel,
            kernel => step.kernel == kernel && step.op.label(1).ends_with(&applies),
        };
        if !plan.steps.iter().any(is_whole) {
            return Err(format!("the kernel is not in the plan:\n{plan}"));
        }
        let mut batch = engine.acquire().map_err(told)?;
        for (row, image) in images.iter().enumerate() {
            batch.port_mut::<f32>(row, "x").map_err(told)?.copy_from_slice(image);
        }
        let output = batch.submit(self.rows).and_then(|ticket| ticket.wait()).map_err(told)?;
        for (row, image) in images.iter().enumerate() {
            let expected = self.expected::<T>(image, &filter, &bias);
            let actual = output.port::<f32>(row, "y").map_err(told)?;
            expected.check(Growth::Worst, actual).map_err(|error| format!("row {row}: {error}"))?;
        }
        Ok(())
    }

    fn filter_dims(&self) -> [usize; 4] {
        let channels = if self.is_depthwise { 1 } else { self.input[2] };
        [self.outputs, channels, self.window.size[0], self.window.size[1]]
    }

    /// The rows, the filter and the biases of the problem.
    fn operands(&self) -> (Vec<Vec<f32>>, Vec<f32>, Vec<f32>) {
        let mut random = Random::new(&format!("{self:?}"));
        let most = 2.0 / f64::from(self.factor.unwrap_or(1.0));
        let elems = self.input[0] * self.input[1] * self.read_channels();
        let images = (0..self.rows).map(|_| random.singles(elems, most)).collect();
        let filter = random.singles(self.filter_dims().iter().product(), 0.5);
        (images, filter, random.singles(self.outputs, 1.0))
    }

    /// The filter of the 1x1 convolution in front.
    fn expand(&self) -> Vec<f32> {
        Random::new(&format!("expand {self:?}")).singles(self.input[2] * self.read_channels(), 0.5)
    }

    /// The number of channels of the rows.
    fn read_channels(&self) -> usize {
        self.expands.unwrap_or(self.input[2])
    }

    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let ([height, width, _], channels) = (self.input, self.read_channels());
        let mut x = if self.planes {
            let planes = g.input("x", Dtype::F32, &[rows, channels, height, width]);
            g.node("pixels", Op::Transpose(vec![0, 2, 3, 1]), &[planes])
        } else {
            g.input("x", Dtype::F32, &[rows, height, width, channels])
        };
        if let Some(factor) = self.factor {
            x = g.map("scaled", Expr::arg(0) * number(factor.into()), &[x]);
        }
        if self.expands.is_some() {
            let filter = g.weight("expand", Dtype::F32, &[self.input[2], channels, 1, 1]);
            let conv = Conv { window: window([1, 1], [1, 1], [[0, 0]; 2], [1, 1]), groups: 1 };
            let wide = g.node("wide", Op::Conv(conv), &[x, filter]);
            x = active(&mut g, "wide.silu", ProductActivation::Silu, wide);
        }
        let mut reads = vec![x, g.weight("filter", Dtype::F32, &self.filter_dims())];
        if self.bias {
            reads.push(g.weight("bias", Dtype::F32, &[self.outputs]));
        }
        let y = g.node(
            "first",
            Op::Conv(Conv { window: self.window.clone(), groups: if self.is_depthwise { self.outputs } else { 1 } }),
            &reads,
        );
        let y = active(&mut g, "activation", self.activation, y);
        g.output("y", y);
        g.finish()
    }

    /// The expected result of a row, with the error of each value.
    fn expected<T: Half>(&self, image: &[f32], filter: &[f32], bias: &[f32]) -> Expected {
        let ([height, width, _], [out_height, out_width]) = (self.input, self.output());
        let channels = self.read_channels();
        let place = |h: usize, w: usize, c: usize| match self.planes {
            true => (c * height + h) * width + w,
            false => (h * width + w) * channels + c,
        };
        let read = |x: &f32| T::of((x * self.factor.unwrap_or(1.0)).into()).value();
        let pixels: Vec<f64> = image.iter().map(read).collect();
        let expand: Vec<f64> = self.expand().iter().map(|&w| T::of(w.into()).value()).collect();
        // A pixel that the windows read, with its error.
        let pixel = |h: usize, w: usize, c: usize| {
            if self.expands.is_none() {
                return (pixels[place(h, w, c)], 0.0);
            }
            let terms = || (0..channels).map(|from| pixels[place(h, w, from)] * expand[c * channels + from]);
            let magnitude = terms().map(f64::abs).sum();
            let error = Growth::Worst.sum(Storage::F16, channels + 1, magnitude);
            finished((ProductActivation::Silu, Gelu::InF32), terms().sum(), error, 1.0, 0.0, T::ROUNDING)
        };
        let wide: Vec<(f64, f64)> = (0..height * width * self.input[2])
            .map(|at| pixel(at / self.input[2] / width, at / self.input[2] % width, at % self.input[2]))
            .collect();
        let filter: Vec<f64> = filter.iter().map(|&w| T::of(w.into()).value()).collect();
        let value = |p: usize, q: usize, k: usize| {
            let start = if self.bias { f64::from(bias[k]) } else { 0.0 };
            let (mut sum, mut magnitude, mut read_error) = (start, start.abs(), 0.0);
            for (r, s) in (0..self.window.size[0]).flat_map(|r| (0..self.window.size[1]).map(move |s| (r, s))) {
                let [h, w] = [self.seen(0, p, r), self.seen(1, q, s)];
                let (Some(h), Some(w)) = (h, w) else { continue };
                for c in 0..self.filter_dims()[1] {
                    let at = ((k * self.filter_dims()[1] + c) * self.window.size[0] + r) * self.window.size[1] + s;
                    let read = if self.is_depthwise { k } else { c };
                    let (x, error) = wide[(h * width + w) * self.input[2] + read];
                    let (term, moved) = (x * filter[at], error * filter[at].abs());
                    (sum, magnitude) = (sum + term, magnitude + term.abs() + moved);
                    read_error += moved;
                }
            }
            let terms = self.filter_dims()[1..].iter().product::<usize>();
            // Tensor cores make the sums, whatever the type.
            let error = read_error + Growth::Worst.sum(Storage::F16, terms + 1, magnitude);
            finished((self.activation, Gelu::of(T::ROUNDING)), sum, error, 1.0, 0.0, T::ROUNDING)
        };
        let pixels = (0..out_height).flat_map(|p| (0..out_width).map(move |q| (p, q)));
        let all = pixels.flat_map(|(p, q)| (0..self.outputs).map(move |k| (p, q, k)));
        let (values, errors) = all.map(|(p, q, k)| value(p, q, k)).unzip();
        Expected { shape: Shape::new(out_height, out_width, self.outputs), values, errors }
    }

    /// The position along an axis that an output's tap reads; `None` if it lies outside of the image.
    fn seen(&self, axis: usize, output: usize, tap: usize) -> Option<usize> {
        let Window { stride, dilation, pad, .. } = &self.window;
        let at = (output * stride[axis] + tap * dilation[axis]).checked_sub(pad[axis][0])?;
        (at < self.input[axis]).then_some(at)
    }
}

/// A constant of an expression.
pub fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// Adds an activation to the network in the form that exporters write.
pub fn active(g: &mut GraphBuilder, name: &str, activation: ProductActivation, y: ValueId) -> ValueId {
    let x = || Expr::arg(0);
    let sigmoid = |of: Expr| number(1.0) / (number(1.0) + (-of).unary(Unary::Exp));
    let inner = || (x() + x() * x() * x() * number(0.044_715)) * number(0.797_884_56);
    let expr = match activation {
        ProductActivation::None => return y,
        ProductActivation::Relu => x().binary(Binary::Max, number(0.0)),
        ProductActivation::Gelu => x() * number(0.5) * (number(1.0) + (x() * number(0.707_106_77)).unary(Unary::Erf)),
        ProductActivation::GeluTanh => x() * number(0.5) * (inner().unary(Unary::Tanh) + number(1.0)),
        ProductActivation::QuickGelu => x() * sigmoid(x() * number(1.702)),
        ProductActivation::Silu => x() * sigmoid(x()),
        ProductActivation::HardSwish => {
            let ramp = x() * number(1.0 / 6.0) + number(0.5);
            x() * ramp.binary(Binary::Max, number(0.0)).binary(Binary::Min, number(1.0))
        }
    };
    g.map(name, expr, &[y])
}
