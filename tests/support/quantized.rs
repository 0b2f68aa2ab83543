//! Networks of bytes by plain loops in integers, which every device has to equal in every byte, and problems of them.

use std::collections::BTreeMap;

use trefoil::model::{Conv2d, Graph, GraphBuilder, Model, NodeId, Op, Preprocessing, Weights, Window, infer, optimize};
use trefoil::{Activation, Device, Engine, InputFormat, OutputKind, Shape, Tuning};

use super::random::Random;

/// A quantised network on random weights and rows. Scales are powers of two, so that halves hold all its values.
#[derive(Clone, Debug)]
pub struct Problem {
    pub name: String,
    graph: Graph,
    tensors: BTreeMap<String, Vec<f32>>,
    rows: Vec<Vec<f32>>,
}

/// Rows of a problem.
const ROWS: usize = 2;

/// Every problem. Channels are multiples of 16, so that GPUs have kernels of bytes for them, where `for_gpus` says so.
pub fn all(for_gpus: bool) -> Vec<Problem> {
    let sizes: &[([usize; 3], usize)] =
        if for_gpus { &[([9, 11, 32], 48), ([10, 10, 64], 80)] } else { &[([9, 11, 21], 37), ([5, 6, 130], 40)] };
    let mut all = Vec::new();
    for &([height, width, channels], inside) in sizes {
        let input = Shape::new(height, width, channels);
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            all.push(block(input, inside, activation, 1.0 / 64.0));
        }
        all.push(block(input, inside, Activation::Relu, 1.0 / 1024.0)); // most results are beyond the largest byte
    }
    all
}

/// A block of a ResNet: 1x1, 3x3 at stride 2, 1x1 with a downsample added; then a 3x3 that adds what it reads, with a
/// residual after an activation.
fn block(input: Shape, inside: usize, activation: Activation, scale: f32) -> Problem {
    let name = format!("block of {input} by {inside}, {activation}, scale {scale}");
    let single = |stride| Window::square(1, stride, 0);
    let mut g = GraphBuilder::new(input);
    let image = g.input();
    g.scale(image, 1.0 / 128.0);
    let act = |g: &mut GraphBuilder, name: &str, x: NodeId, activation: Activation| {
        let y = if activation == Activation::None { x } else { g.activation(&format!("{name}.act"), x, activation) };
        g.scale(y, scale);
        y
    };
    let conv = |g: &mut GraphBuilder, name: &str, x: NodeId, channels: usize, window: Window| {
        let conv = Conv2d { bias: Some(format!("{name}.bias")), ..Conv2d::named(name, channels, window) };
        g.conv2d_with(name, x, conv)
    };
    let out = 2 * inside - inside % 2 * 5; // odd where `inside` is
    let down = conv(&mut g, "down", image, out, single(2));
    g.scale(down, 1.0 / 32.0);
    let x = conv(&mut g, "a", image, inside, single(1));
    let x = act(&mut g, "a", x, activation);
    let x = conv(&mut g, "b", x, inside, Window::square(3, 2, 1));
    let x = act(&mut g, "b", x, activation);
    let x = conv(&mut g, "c", x, out, single(1));
    let sum = g.add("sum", x, down);
    let x = act(&mut g, "sum", sum, activation);
    let y = conv(&mut g, "d", x, out, Window::square(3, 1, 1));
    let sum = g.add("last", y, x);
    let y = act(&mut g, "last", sum, Activation::Relu);
    let graph = g.finish(y).expect("a problem's graph is well-formed");
    let mut random = Random::new(&name);
    let tensors = trefoil::model::params(&graph).expect("as above").into_iter().map(|(name, dims)| {
        let terms = dims[1..].iter().product::<usize>();
        let values = random.singles(dims.iter().product(), if terms > 1 { (3.0 / terms as f64).sqrt() } else { 0.5 });
        (name.to_owned(), values)
    });
    let tensors = tensors.collect();
    let row = |_| (0..input.elems()).map(|_| random.between(0, 320) as f32 / 128.0 - 1.25).collect();
    let rows = (0..ROWS).map(row).collect();
    Problem { name, graph, tensors, rows }
}

impl Problem {
    /// Runs the network on a device, cut at each of its values in bytes, and compares all of them.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        let dims: BTreeMap<_, _> = trefoil::model::params(&self.graph).expect("well-formed").into_iter().collect();
        let tensors =
            self.tensors.iter().map(|(name, values)| (name.clone(), dims[name.as_str()].clone(), values.clone()));
        let weights = Weights::from_tensors(tensors).map_err(|error| error.to_string())?;
        let model = Model::new(self.graph.clone(), weights, Preprocessing::new(self.graph.input), Vec::new());
        let model = model.map_err(|error| error.to_string())?;
        for (index, node) in self.graph.nodes.iter().enumerate().skip(1) {
            let Some(scale) = node.scale else { continue };
            let cut = model.features_at(&node.name).map_err(|error| error.to_string())?;
            let results = self.results(&cut, device).map_err(|error| format!("at `{}`: {error}", node.name))?;
            for (row, found) in self.rows.iter().zip(&results) {
                let expected = evaluate(&self.graph.cut(NodeId(index)), &self.tensors, row);
                compare(found, &expected, scale).map_err(|error| format!("at `{}`: {error}", node.name))?;
            }
        }
        Ok(())
    }

    fn results(&self, model: &Model, device: &Device) -> Result<Vec<Vec<f32>>, trefoil::Error> {
        let engine = Engine::builder(model).on(device).input(InputFormat::F32Nhwc).output(OutputKind::Features);
        let engine = engine.tuning(Tuning::Off).batch(ROWS).build()?;
        let mut batch = engine.acquire()?;
        for (row, values) in self.rows.iter().enumerate() {
            batch.row_mut(row).copy_from_slice(bytemuck::cast_slice(values));
        }
        let output = batch.submit(ROWS)?.wait()?;
        Ok((0..ROWS).map(|row| output.values(row).to_vec()).collect())
    }
}

fn compare(found: &[f32], expected: &[i32], scale: f32) -> Result<(), String> {
    assert_eq!(found.len(), expected.len());
    let wrong = |at: &usize| found[*at] != expected[*at] as f32 * scale;
    let Some(first) = (0..found.len()).find(wrong) else { return Ok(()) };
    let count = (first..found.len()).filter(wrong).count();
    Err(format!(
        "{count} values are wrong; the first, {first}: {} instead of {} steps of {scale}",
        found[first], expected[first]
    ))
}

/// A value in bytes.
struct Value {
    shape: Shape,
    bytes: Vec<i32>,
    scale: f32,
}

/// The result in bytes, by the rules of `docs/quantization.md`.
fn evaluate(graph: &Graph, tensors: &BTreeMap<String, Vec<f32>>, row: &[f32]) -> Vec<i32> {
    let graph = optimize(graph);
    let shapes = infer(&graph).expect("well-formed");
    let mut values: Vec<Value> = Vec::new();
    for (node, &shape) in graph.nodes.iter().zip(&shapes) {
        let scale = node.scale.expect("every value of a problem has a scale");
        let bytes = match &node.op {
            Op::Input => {
                row.iter().map(|x| (x * (1.0 / scale)).round_ties_even().clamp(-128.0, 127.0) as i32).collect()
            }
            Op::Conv2d(conv) => {
                let residual = node.inputs.get(1).map(|id| &values[id.0]);
                convolution(conv, tensors, &values[node.inputs[0].0], residual, shape, scale)
            }
            other => panic!("no problem has {}", other.kind()),
        };
        values.push(Value { shape, bytes, scale });
    }
    values.pop().expect("a graph has a node").bytes
}

fn convolution(
    conv: &Conv2d,
    tensors: &BTreeMap<String, Vec<f32>>,
    x: &Value,
    residual: Option<&Value>,
    y: Shape,
    scale: f32,
) -> Vec<i32> {
    let Window { size: [r_size, s_size], stride, pad, .. } = conv.window;
    let (taps, terms) = (r_size * s_size, r_size * s_size * x.shape.channels);
    let (filter, bias) = (&tensors[&conv.filter], &tensors[conv.bias.as_ref().expect("problems have biases")]);
    let [lowest, highest] = if conv.activation == Activation::None { [-128, 127] } else { [0, 255] };
    let mut result = vec![0; y.elems()];
    for k in 0..y.channels {
        let filter = &filter[k * terms..][..terms]; // [C][R][S]
        let largest = filter.iter().fold(0.0_f64, |most, weight| most.max(f64::from(weight.abs())));
        let of_bias =
            f64::from(bias[k].abs()) / (f64::from(x.scale) * (f64::from(i32::MAX) - (terms * 255 * 128) as f64));
        let step = (largest / 127.0).max(of_bias);
        let filter: Vec<i64> = filter.iter().map(|w| (f64::from(*w) / step).round_ties_even() as i64).collect();
        let bias = (f64::from(bias[k]) / (f64::from(x.scale) * step)).round_ties_even() as i64;
        let factor = (f64::from(x.scale) * step / f64::from(scale)) as f32;
        for pixel in 0..y.pixels() {
            let mut sum = bias;
            for tap in 0..taps {
                let h = (pixel / y.width * stride[0] + tap / s_size).checked_sub(pad.top);
                let w = (pixel % y.width * stride[1] + tap % s_size).checked_sub(pad.left);
                let (Some(h), Some(w)) = (h, w) else { continue };
                if h < x.shape.height && w < x.shape.width {
                    let x = &x.bytes[(h * x.shape.width + w) * x.shape.channels..][..x.shape.channels];
                    sum += x.iter().enumerate().map(|(c, x)| i64::from(*x) * filter[c * taps + tap]).sum::<i64>();
                }
            }
            let scaled = i32::try_from(sum).expect("problems stay inside 32 bits") as f32 * factor;
            let at = pixel * y.channels + k;
            let value = residual.map_or(scaled, |of| {
                let factor = (f64::from(of.scale) / f64::from(scale)) as f32;
                (of.bytes[at] as f32).mul_add(factor, scaled)
            });
            result[at] = value.round_ties_even().clamp(lowest as f32, highest as f32) as i32;
        }
    }
    result
}
