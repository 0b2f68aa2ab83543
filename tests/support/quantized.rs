//! Networks of bytes by plain loops in integers, with which every device has to agree in every byte, and problems for
//! them.

use std::collections::BTreeMap;

use trefoil::graph::{Conv2d, Graph, GraphBuilder, ValueId, ValueType};
use trefoil::model::images::{Linear, Network, NodeId, Op, Pad, Window, infer, optimize};
use trefoil::model::{Model, Preprocessing, Quantization, Weights};
use trefoil::plan::{ConvTile, Kernel, Limits, S8Kernel, Step, StepOp};
use trefoil::{Activation, Device, Engine, Error, InputFormat, OutputKind, Shape, Tuning};

use super::byte_rules::{Value, convolved, maxima, mean};
use super::random::Random;

/// A quantised network with random weights and rows. Scales are powers of two, so that halves hold all its values.
#[derive(Clone, Debug)]
pub struct Problem {
    pub name: String,
    graph: Graph,
    quantization: Quantization,
    /// The weights that the graph reads, by their names.
    tensors: BTreeMap<String, Vec<f32>>,
    /// The format of rows: photos in bytes, or floats.
    input: InputFormat,
    rows: Vec<Vec<f32>>,
}

/// Number of rows of a problem.
const ROWS: usize = 2;

/// All problems.
pub fn all() -> Vec<Problem> {
    let sizes = [([9, 11, 32], 48), ([10, 10, 64], 80), ([9, 11, 21], 37), ([5, 6, 130], 40)];
    let mut all = Vec::new();
    for ([height, width, channels], inside) in sizes {
        let input = Shape::new(height, width, channels);
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            all.extend([false, true].map(|behind| block(input, inside, behind, activation, 1.0 / 64.0)));
        }
        // Most results exceed the largest byte.
        all.push(block(input, inside, true, Activation::Relu, 1.0 / 1024.0));
    }
    for (size, stride, [height, width, channels], expanded) in
        [(3, 1, [9, 11, 24], 144), (3, 2, [30, 17, 16], 96), (5, 1, [14, 14, 40], 37), (5, 2, [15, 29, 32], 200)]
    {
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            all.push(mobile(Shape::new(height, width, channels), expanded, [size, stride], activation));
        }
    }
    let pad = Pad { top: 3, left: 2, bottom: 2, right: 4 };
    all.push(photos(64, Pad { top: 3, left: 3, bottom: 3, right: 3 }, true, 1.0 / 32.0));
    all.push(photos(16, pad, false, 1.0 / 64.0));
    all.push(photos(48, pad, true, 1.0 / 512.0)); // most results are beyond the largest byte
    all.extend([false, true].map(|relu| classes(pad, relu)));
    all
}

/// A network to which nodes are added one by one.
struct Growing {
    graph: GraphBuilder,
    scale: f32,
    quantization: Quantization,
}

impl Growing {
    fn new(scale: f32) -> Self {
        Self { graph: GraphBuilder::new(), scale, quantization: Quantization::default() }
    }

    /// Gives the value of a node a scale, so that it is kept in bytes.
    fn scaled(&mut self, name: &str, scale: f32) {
        self.quantization.scales.insert(name.into(), scale);
    }

    /// Gives a value a mean for each channel, some of which are beyond the range of its bytes.
    fn known(&mut self, name: &str, channels: usize) {
        let scale = self.quantization.scales[name];
        let means = Random::new(name).singles(channels, 300.0).into_iter().map(|steps| steps * scale).collect();
        self.quantization.means.insert(name.into(), means);
    }

    fn conv(&mut self, name: &str, x: ValueId, channels: usize, window: Window) -> ValueId {
        let conv = Conv2d { bias: Some(format!("{name}.bias")), ..Conv2d::named(name, channels, window) };
        self.graph.conv2d_with(name, x, conv)
    }

    fn depthwise(&mut self, name: &str, x: ValueId, channels: usize, window: Window) -> ValueId {
        let conv = Conv2d { bias: Some(format!("{name}.bias")), ..Conv2d::named(name, channels, window) };
        self.graph.conv2d_with(name, x, Conv2d { groups: channels, ..conv })
    }

    fn act(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        if activation == Activation::None {
            self.scaled(name, self.scale);
            return x;
        }
        let name = format!("{name}.act");
        self.scaled(&name, self.scale);
        self.graph.activation(&name, x, activation)
    }

    fn finish(self, name: String, output: ValueId, input: InputFormat, row: impl FnMut(&mut Random) -> f32) -> Problem {
        let Self { graph: mut g, quantization, .. } = self;
        g.output("y", output);
        let graph = g.finish().expect("a problem's graph is well-formed");
        let mut random = Random::new(&name);
        let tensors = graph.weights().map(|(name, of)| {
            let terms = of.dims[1..].iter().product::<usize>();
            let values = random.singles(of.elems(), if terms > 1 { (3.0 / terms as f64).sqrt() } else { 0.5 });
            (name.to_owned(), values)
        });
        let tensors = tensors.collect();
        let mut value = row;
        let elems = graph.value(graph.inputs[0].value).elems();
        let rows = (0..ROWS).map(|_| (0..elems).map(|_| value(&mut random)).collect()).collect();
        Problem { name, graph, quantization, tensors, input, rows }
    }
}

/// A block of a ResNet, of the image or `behind` another layer: 1x1, 3x3 at stride 2, 1x1 with a downsample added; then
/// a 3x3 that adds its own input, with a residual after an activation. Behind a layer the downsample reads bytes
/// that are signed like those of the last 1x1, and is a part of its sums. The means of the inputs of the 1x1 and the
/// downsample are known.
fn block(input: Shape, inside: usize, behind: bool, activation: Activation, scale: f32) -> Problem {
    let place = if behind { "behind a layer" } else { "of the image" };
    let name = format!("block {place} of {input} by {inside}, {activation}, scale {scale}");
    let single = |stride| Window::square(1, stride, 0);
    let value = |layer: &str| if activation == Activation::None { layer.into() } else { format!("{layer}.act") };
    let mut g = Growing::new(scale);
    let mut image = g.graph.image("image", input);
    g.scaled("input", 1.0 / 128.0);
    g.known("input", input.channels);
    if behind {
        let x = g.conv("front", image, input.channels, single(1));
        image = g.act("front", x, activation);
        g.known(&value("front"), input.channels);
    }
    let out = 2 * inside - inside % 2 * 5; // odd where `inside` is
    let down = g.conv("down", image, out, if behind { Window::square(3, 2, 1) } else { single(2) });
    g.scaled("down", 1.0 / 32.0);
    let x = g.conv("a", image, inside, single(1));
    let x = g.act("a", x, activation);
    let x = g.conv("b", x, inside, Window::square(3, 2, 1));
    let x = g.act("b", x, activation);
    g.known(&value("b"), inside);
    let x = g.conv("c", x, out, single(1));
    let sum = g.graph.add("sum", x, down);
    let x = g.act("sum", sum, activation);
    let y = g.conv("d", x, out, Window::square(3, 1, 1));
    let sum = g.graph.add("last", y, x);
    let y = g.act("last", sum, Activation::Relu);
    g.finish(name, y, InputFormat::F32Nhwc, |random| random.between(0, 320) as f32 / 128.0 - 1.25)
}

/// Two blocks of a mobile network: a depthwise convolution of the image and a 1x1; then a 1x1 to more channels, a
/// depthwise convolution, and a 1x1 that adds its own input if the sizes are the same. The means of the inputs of the
/// second depthwise convolution and of the last 1x1 are known.
fn mobile(input: Shape, expanded: usize, [size, stride]: [usize; 2], activation: Activation) -> Problem {
    let name = format!("mobile block of {input} by {expanded}, {size}x{size}/{stride}, {activation}");
    let single = Window::square(1, 1, 0);
    let value = |layer: &str| if activation == Activation::None { layer.into() } else { format!("{layer}.act") };
    let mut g = Growing::new(1.0 / 64.0);
    let image = g.graph.image("image", input);
    g.scaled("input", 1.0 / 128.0);
    let x = g.depthwise("first", image, input.channels, Window::square(3, 1, 1));
    let x = g.act("first", x, activation);
    let x = g.conv("project", x, input.channels, single);
    g.scaled("project", 1.0 / 32.0);
    let y = g.conv("expand", x, expanded, single);
    let y = g.act("expand", y, activation);
    g.known(&value("expand"), expanded);
    let pad = Pad { top: size / 2, left: size / 2 - 1, bottom: size / 2, right: size / 2 + 1 };
    let y = g.depthwise("depthwise", y, expanded, Window { pad, ..Window::square(size, stride, 0) });
    let y = g.act("depthwise", y, activation);
    g.known(&value("depthwise"), expanded);
    let y = g.conv("last", y, input.channels, single);
    let y = if stride == 1 { g.graph.add("sum", y, x) } else { y };
    g.scaled(if stride == 1 { "sum" } else { "last" }, 1.0 / 16.0);
    g.finish(name, y, InputFormat::F32Nhwc, |random| random.between(0, 320) as f32 / 128.0 - 1.25)
}

/// First layers from photos, a convolution of their maxima, and the mean of its results, of so few pixels that halves
/// hold it.
fn photos(channels: usize, pad: Pad, relu: bool, scale: f32) -> Problem {
    let name = format!("photos to {channels} channels, {pad:?}, ReLU {relu}, scale {scale}");
    let (g, mean) = means(channels, pad, relu, scale);
    g.finish(name, mean, InputFormat::U8Nhwc, |random| random.between(0, 255) as f32)
}

/// The layers of `photos` and a linear layer, whose weights have so few bits that halves and sums of floats hold all
/// values.
fn classes(pad: Pad, relu: bool) -> Problem {
    let name = format!("photos to classes, ReLU {relu}");
    let (mut g, mean) = means(32, pad, relu, 1.0 / 32.0);
    let y = g.graph.linear("classes", mean, 37);
    let mut problem = g.finish(name, y, InputFormat::U8Nhwc, |random| random.between(0, 255) as f32);
    for (name, values) in &mut problem.tensors {
        if name.starts_with("classes") {
            values.iter_mut().for_each(|value| *value = (*value * 16.0).round() / 16.0);
        }
    }
    problem
}

fn means(channels: usize, pad: Pad, relu: bool, scale: f32) -> (Growing, ValueId) {
    let activation = if relu { Activation::Relu } else { Activation::None };
    let mut g = Growing::new(scale);
    let image = g.graph.image("image", Shape::new(39, 47, 3));
    let mut x = g.conv("first", image, channels, Window { pad, ..Window::square(7, 2, 0) });
    if relu {
        x = g.graph.relu("first.act", x);
    }
    let x = g.graph.max_pool("max", x, Window::square(3, 2, 1));
    g.scaled("max", scale);
    let across = Window { size: [5, 3], stride: [5, 3], ..Window::square(1, 1, 0) };
    let x = g.conv("a", x, 32, across);
    let x = g.act("a", x, activation);
    let mean = g.graph.global_avg_pool("mean", x);
    (g, mean)
}

impl Problem {
    /// Runs the network on a device, cut at each of its values in bytes and at its last node, and compares all values:
    /// with the kernels of the plan, or its convolutions with those of any GPU.
    pub fn run(&self, device: &Device, on_any_gpu: bool) -> Result<(), String> {
        let model = self.model().map_err(|error| error.to_string())?;
        let network = model.image_network().map_err(|error| error.to_string())?;
        for (index, node) in network.nodes.iter().enumerate().skip(1) {
            if node.scale.is_none() && NodeId(index) != network.output {
                continue;
            }
            // A mean and the classes behind it are one step for single rows.
            let (cut, output, batch) = match node.op {
                Op::Linear(_) => (Ok(model.clone()), OutputKind::Logits, 1),
                _ => (model.features_at(&node.name), OutputKind::Features, ROWS),
            };
            let cut = cut.map_err(|error| error.to_string())?;
            let results = self
                .results(&cut, output, batch, (device, on_any_gpu))
                .map_err(|error| format!("at `{}`: {error}", node.name))?;
            for (row, found) in self.rows.iter().zip(&results) {
                let expected = self.evaluate(&network.cut(NodeId(index)), row);
                compare(found, &expected).map_err(|error| format!("at `{}`: {error}", node.name))?;
            }
        }
        Ok(())
    }

    /// The model of the network in bytes.
    pub fn model(&self) -> Result<Model, Error> {
        let tensor = |(name, of): (&str, &ValueType)| (name.to_owned(), of.dims.clone(), self.tensors[name].clone());
        let weights = Weights::from_tensors(self.graph.weights().map(tensor))?;
        Model::new(self.graph.clone(), weights, self.preprocessing(), Vec::new())?.quantized(&self.quantization)
    }

    /// The shape of the image that the network reads.
    fn image(&self) -> Shape {
        match self.graph.value(self.graph.inputs[0].value).dims[..] {
            [1, height, width, channels] => Shape::new(height, width, channels),
            _ => panic!("a problem is of one image"),
        }
    }

    fn preprocessing(&self) -> Preprocessing {
        let plain = Preprocessing::new(self.image());
        match self.input {
            InputFormat::U8Nhwc => {
                Preprocessing { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225], ..plain }
            }
            _ => plain,
        }
    }

    /// The results of all rows, submitted `batch` at a time.
    fn results(
        &self,
        model: &Model,
        output: OutputKind,
        batch: usize,
        (device, on_any_gpu): (&Device, bool),
    ) -> Result<Vec<Vec<f32>>, Error> {
        let builder = || Engine::builder(model).on(device).input(self.input).output(output).tuning(Tuning::Off);
        let mut engine = builder().batch(batch);
        if on_any_gpu {
            let info = device.info();
            let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
            let plans = builder().batch(batch).plans_for(&limits)?;
            let chosen = |step: &Step| of_any_gpu(&step.op).map(|kernel| (step.name.clone(), kernel));
            engine = engine.choices(plans.iter().flat_map(|plan| &plan.steps).filter_map(chosen).collect());
        }
        let engine = engine.build()?;
        let mut results = Vec::new();
        for rows in self.rows.chunks(batch) {
            let mut batch = engine.acquire()?;
            for (row, values) in rows.iter().enumerate() {
                match self.input {
                    InputFormat::U8Nhwc => {
                        batch.row_mut(row).iter_mut().zip(values).for_each(|(byte, value)| *byte = *value as u8);
                    }
                    _ => batch.row_mut(row).copy_from_slice(bytemuck::cast_slice(values)),
                }
            }
            let output = batch.submit(rows.len())?.wait()?;
            results.extend((0..rows.len()).map(|row| output.values(row).to_vec()));
        }
        Ok(results)
    }

    /// The network's result by the rules of `docs/quantization.md`.
    fn evaluate(&self, graph: &Network, row: &[f32]) -> Vec<f32> {
        let graph = optimize(graph);
        let shapes = infer(&graph).expect("well-formed");
        let mut values: Vec<Value> = Vec::new();
        for (node, &shape) in graph.nodes.iter().zip(&shapes) {
            let value = match (&node.op, node.scale) {
                (Op::Input, Some(scale)) => {
                    let byte = |x: &f32| (x * (1.0 / scale)).round_ties_even().clamp(-128.0, 127.0) as i32;
                    Value::new(shape, row.iter().map(byte).collect(), scale, true)
                }
                (Op::Input, None) => self.photo(row),
                (Op::Conv2d(_), _) => convolved(&graph, node, shape, &self.tensors, &values),
                (Op::MaxPool(_), Some(_)) => maxima(&values[node.inputs[0].0], shape),
                (Op::GlobalAvgPool, None) => {
                    let mean = mean(&values[node.inputs[0].0]);
                    let linear = graph.nodes.iter().find_map(|node| match &node.op {
                        Op::Linear(linear) => Some(linear),
                        _ => None,
                    });
                    return linear.map_or_else(|| mean.clone(), |linear| self.logits(linear, &mean));
                }
                (other, _) => panic!("no problem has {} here", other.kind()),
            };
            values.push(value);
        }
        let result = values.pop().expect("a graph has a node");
        result.bytes.iter().map(|byte| *byte as f32 * result.scale).collect()
    }

    fn logits(&self, linear: &Linear, mean: &[f32]) -> Vec<f32> {
        let bias = linear.bias.as_ref().map(|name| &self.tensors[name]).expect("a problem's layers have biases");
        let of = |(weights, bias): (&[f32], &f32)| mean.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>() + bias;
        self.tensors[&linear.weight].chunks(mean.len()).zip(bias).map(of).collect()
    }

    /// The bytes of a photo, with the normalised values that they stand for.
    fn photo(&self, row: &[f32]) -> Value {
        let Preprocessing { mean, std, .. } = self.preprocessing();
        let channel = |(mean, std): (&f32, &f32)| [1.0 / (255.0 * f64::from(*std)), 255.0 * f64::from(*mean)];
        let channels = mean.iter().zip(&std).map(channel).collect();
        let bytes = row.iter().map(|x| *x as i32).collect();
        Value { channels, ..Value::new(self.image(), bytes, 1.0, false) }
    }
}

/// The kernel of any GPU for a convolution of bytes.
fn of_any_gpu(op: &StepOp) -> Option<Kernel> {
    match op {
        StepOp::QuantizedConv(_) => Some(Kernel::S8(S8Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 }))),
        StepOp::QuantizedDepthwise(_) => Some(Kernel::Sm80),
        _ => None,
    }
}

fn compare(found: &[f32], expected: &[f32]) -> Result<(), String> {
    assert_eq!(found.len(), expected.len());
    let wrong = |at: &usize| found[*at] != expected[*at];
    let Some(first) = (0..found.len()).find(wrong) else { return Ok(()) };
    let count = (first..found.len()).filter(wrong).count();
    Err(format!("{count} values are wrong; the first, {first}: {} instead of {}", found[first], expected[first]))
}
