//! Times networks in the CPU's loops: as they are scheduled, and one operation after the other.
//!
//! `cargo run --release --example loop_times [TIMES]`

use std::time::{Duration, Instant};

use trefoil::graph::{Binary, Contract, Conv, Expr, Graph, GraphBuilder, Norm, Op, Reduce, ReduceOp, Tensor, Unary};
use trefoil::graph::{Origin, ValueId, ValueType, Window};
use trefoil::loops::{self, schedule};
use trefoil::{Dtype, Error};

fn main() -> Result<(), Error> {
    let times = std::env::args().nth(1).map_or(5, |times| times.parse().expect("a number of times"));
    for (name, graph) in [("MobileNetV2 block", mobile()), ("BERT layer", bert(1)), ("SE block", squeezed())] {
        compare(name, &graph?, times)?;
    }
    let deep = bert(52)?;
    let start = Instant::now();
    let steps = schedule(&deep).steps.len();
    println!("52 BERT layers: {} nodes are {steps} steps, decided in {:.2?}", deep.nodes.len(), start.elapsed());
    Ok(())
}

fn compare(name: &str, graph: &Graph, times: usize) -> Result<(), Error> {
    let inputs: Vec<Tensor> = graph.inputs.iter().map(|port| random(graph.value(port.value), 1)).collect();
    let mut best = [Duration::MAX; 2];
    for _ in 0..times {
        let start = Instant::now();
        let scheduled = loops::evaluate(graph, &mut weight, &inputs)?;
        best[0] = best[0].min(start.elapsed());
        let start = Instant::now();
        let one_by_one = one_by_one(graph, &inputs)?;
        best[1] = best[1].min(start.elapsed());
        let pairs = scheduled[0].to_f64s().into_iter().zip(one_by_one[0].to_f64s());
        assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) < 1e-3, "{name} is computed otherwise");
    }
    let [nodes, steps] = [graph.nodes.len(), schedule(graph).steps.len()];
    println!("{name}: {nodes} nodes in {:.2?}, {steps} steps in {:.2?}", best[1], best[0]);
    Ok(())
}

/// The outputs of a graph, each operation computed separately.
fn one_by_one(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (value, of) in values.iter_mut().zip(&graph.values) {
        *value = match &of.origin {
            Origin::Input(number) => Some(inputs[*number].clone()),
            Origin::Constant(_) => Some(weight("", &of.of)?),
            Origin::Node(..) => None,
        };
    }
    for node in &graph.nodes {
        let operands: Vec<_> = node.inputs.iter().map(|id| id.and_then(|id| values[id.0].as_ref())).collect();
        let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| graph.value(id).clone()).collect();
        let written = loops::compute(&node.op, &operands, &outputs)?;
        node.outputs.iter().zip(written).for_each(|(id, value)| values[id.0] = Some(value));
    }
    Ok(graph.outputs.iter().map(|port| values[port.value.0].clone().expect("it was written")).collect())
}

fn weight(_: &str, of: &ValueType) -> Result<Tensor, Error> {
    Ok(random(of, 7))
}

/// A tensor of numbers from -0.1 to 0.1.
fn random(of: &ValueType, mut state: u64) -> Tensor {
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.2
    };
    Tensor::of(&of.dims, &(0..of.elems()).map(|_| next()).collect::<Vec<f32>>())
}

/// A graph whose nodes get distinct names, with helpers that add nodes.
struct Net {
    g: GraphBuilder,
    count: usize,
}

impl Net {
    fn new() -> Self {
        Self { g: GraphBuilder::new(), count: 0 }
    }

    fn node(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.count += 1;
        self.g.node(&format!("n{}", self.count), op, inputs)
    }

    fn map(&mut self, expr: Expr, inputs: &[ValueId]) -> ValueId {
        self.node(Op::Map(expr), inputs)
    }

    fn weight(&mut self, dims: &[usize]) -> ValueId {
        self.g.weight("w", Dtype::F32, dims)
    }

    fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.map(Expr::arg(0) + Expr::arg(1), &[x, y])
    }

    fn relu6(&mut self, x: ValueId) -> ValueId {
        let number = |value| Expr::float(Dtype::F32, value);
        let x = self.map(Expr::arg(0).binary(Binary::Max, number(0.0)), &[x]);
        self.map(Expr::arg(0).binary(Binary::Min, number(6.0)), &[x])
    }

    /// Adds a convolution, followed by a scale and a bias for each channel.
    fn conv(&mut self, x: ValueId, [out, taps, stride, groups]: [usize; 4]) -> ValueId {
        let channels = self.g.value(x).dims[3] / groups;
        let filter = self.weight(&[out, channels, taps, taps]);
        let conv = Conv { window: Window::all(2, taps, stride, taps / 2), groups };
        let y = self.node(Op::Conv(conv), &[x, filter]);
        let [scale, bias] = [self.weight(&[out]), self.weight(&[out])];
        let y = self.map(Expr::arg(0) * Expr::arg(1), &[y, scale]);
        self.add(y, bias)
    }

    fn linear(&mut self, x: ValueId, out: usize) -> ValueId {
        let of = self.g.value(x).dims.clone();
        let [w, b] = [self.weight(&[*of.last().expect("an axis"), out]), self.weight(&[out])];
        let y = self.node(Op::Contract(Contract::matmul(of.len(), 2)), &[x, w]);
        self.add(y, b)
    }

    fn finish(mut self, y: ValueId) -> Result<Graph, Error> {
        self.g.output("y", y);
        self.g.finish()
    }
}

/// An inverted residual of 56 x 56 pixels and 24 channels.
fn mobile() -> Result<Graph, Error> {
    let mut net = Net::new();
    let x = net.g.input("x", Dtype::F32, &[1, 56, 56, 24]);
    let y = net.conv(x, [144, 1, 1, 1]);
    let y = net.relu6(y);
    let y = net.conv(y, [144, 3, 1, 144]);
    let y = net.relu6(y);
    let y = net.conv(y, [24, 1, 1, 1]);
    let y = net.add(y, x);
    net.finish(y)
}

/// Layers of 128 tokens and 768 channels.
fn bert(layers: usize) -> Result<Graph, Error> {
    let mut net = Net::new();
    let x = net.g.input("x", Dtype::F32, &[1, 128, 768]);
    let y = (0..layers).fold(x, |x, _| layer(&mut net, x));
    net.finish(y)
}

/// Attention and two products, with GELU and a normalisation in pieces.
fn layer(net: &mut Net, x: ValueId) -> ValueId {
    let heads = |net: &mut Net, order: [usize; 4]| {
        let y = net.linear(x, 768);
        let y = net.node(Op::Reshape(vec![1, 128, 12, 64]), &[y]);
        net.node(Op::Transpose(order.to_vec()), &[y])
    };
    let [q, k, v] = [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]].map(|order| heads(net, order));
    let scores = net.node(Op::Contract(Contract::matmul(4, 4)), &[q, k]);
    let scores = net.map(Expr::arg(0) / Expr::float(Dtype::F32, 8.0), &[scores]);
    let shares = net.node(Op::Softmax { axis: 3, log: false }, &[scores]);
    let y = net.node(Op::Contract(Contract::matmul(4, 4)), &[shares, v]);
    let y = net.node(Op::Transpose(vec![0, 2, 1, 3]), &[y]);
    let y = net.node(Op::Reshape(vec![1, 128, 768]), &[y]);
    let y = net.linear(y, 768);
    let y = net.add(y, x);
    let y = layer_norm(net, y);
    let inner = net.linear(y, 3072);
    let number = |value| Expr::float(Dtype::F32, value);
    let erf = net.map((Expr::arg(0) * number(0.5_f64.sqrt())).unary(Unary::Erf), &[inner]);
    let half = net.map(Expr::arg(0) * (Expr::arg(1) + number(1.0)), &[inner, erf]);
    let gelu = net.map(Expr::arg(0) * number(0.5), &[half]);
    let outer = net.linear(gelu, 768);
    let y = net.add(outer, y);
    let (scale, bias) = (net.weight(&[768]), net.weight(&[768]));
    net.node(Op::Norm(Norm { axis: 2, eps: 1e-5, centred: true }), &[y, scale, bias])
}

fn layer_norm(net: &mut Net, x: ValueId) -> ValueId {
    let mean = |net: &mut Net, x| net.node(Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![2], keep: true }), &[x]);
    let centre = mean(net, x);
    let centred = net.map(Expr::arg(0) - Expr::arg(1), &[x, centre]);
    let square = net.map(Expr::arg(0) * Expr::arg(0), &[centred]);
    let variance = mean(net, square);
    let deviation = net.map((Expr::arg(0) + Expr::float(Dtype::F32, 1e-5)).unary(Unary::Sqrt), &[variance]);
    let y = net.map(Expr::arg(0) / Expr::arg(1), &[centred, deviation]);
    let (scale, bias) = (net.weight(&[768]), net.weight(&[768]));
    let y = net.map(Expr::arg(0) * Expr::arg(1), &[y, scale]);
    net.add(y, bias)
}

/// Squeeze and excitation behind a convolution of 28 x 28 pixels and 120 channels, hard swish, and one more convolution.
fn squeezed() -> Result<Graph, Error> {
    let mut net = Net::new();
    let number = |value| Expr::float(Dtype::F32, value);
    let hard = |x: Expr| (x + number(3.0)).binary(Binary::Max, number(0.0)).binary(Binary::Min, number(6.0));
    let x = net.g.input("x", Dtype::F32, &[1, 28, 28, 40]);
    let y = net.conv(x, [120, 1, 1, 1]);
    let y = net.map(Expr::arg(0) * hard(Expr::arg(0)) / number(6.0), &[y]);
    let y = net.conv(y, [120, 5, 1, 120]);
    let y = net.map(Expr::arg(0) * hard(Expr::arg(0)) / number(6.0), &[y]);
    let mean = net.node(Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: true }), &[y]);
    let few = net.conv(mean, [32, 1, 1, 1]);
    let few = net.map(Expr::arg(0).binary(Binary::Max, number(0.0)), &[few]);
    let gate = net.conv(few, [120, 1, 1, 1]);
    let gate = net.map(hard(Expr::arg(0)) / number(6.0), &[gate]);
    let y = net.map(Expr::arg(0) * Expr::arg(1), &[y, gate]);
    let y = net.conv(y, [40, 1, 1, 1]);
    let y = net.add(y, x);
    net.finish(y)
}
