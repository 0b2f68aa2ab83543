//! For tests: all operations as plain loops in f64, and random networks for tests of rewrites.

use std::collections::BTreeMap;

use super::images::{BatchNorm, Conv2d, Network, Node, NodeId, Op, Pad, Pool, Window};
use super::shape::{infer, params};
use crate::tensor::{Activation, Shape};

/// Tensors by name.
pub(super) type Tensors = BTreeMap<String, Vec<f64>>;

/// A small random number generator.
pub(super) struct Xorshift(pub u64);

impl Xorshift {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// A number from -1 to 1.
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

/// The values of all nodes for one image, in the order NHWC.
pub(super) fn evaluate(graph: &Network, weights: &Tensors, input: &[f64]) -> Vec<Vec<f64>> {
    let shapes = infer(graph).unwrap();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let x = node.inputs.first().map_or(input, |id| &values[id.0]);
        let x_shape = node.inputs.first().map_or(graph.input, |id| shapes[id.0]);
        let second = node.inputs.get(1).map(|id| &values[id.0]);
        values.push(match &node.op {
            Op::Input => input.to_vec(),
            Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_) => unreachable!("no random graph has one"),
            Op::Conv2d(conv) => convolve(conv, weights, x, x_shape, shapes[i], second),
            Op::BatchNorm(norm) => normalize(norm, weights, x),
            Op::Activation(activation) => activate(*activation, x),
            Op::Add(activation) => {
                let sum: Vec<f64> = x.iter().zip(second.unwrap()).map(|(a, b)| a + b).collect();
                activate(*activation, &sum)
            }
            Op::MaxPool(pool) => {
                windows(pool, x, x_shape, shapes[i], |taps, _| taps.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            }
            Op::AvgPool(pool) => windows(pool, x, x_shape, shapes[i], |taps, size| {
                taps.iter().sum::<f64>() / if pool.count_pad { size } else { taps.len() } as f64
            }),
            Op::GlobalAvgPool => {
                let mean = |c| x.iter().skip(c).step_by(x_shape.channels).sum::<f64>() / x_shape.pixels() as f64;
                (0..x_shape.channels).map(mean).collect()
            }
            Op::Concat => {
                let operand = |id: &NodeId| (&values[id.0], shapes[id.0].channels);
                let operands: Vec<_> = node.inputs.iter().map(operand).collect();
                let pixel = |pixel: usize| operands.iter().flat_map(move |(x, c)| x[pixel * c..][..*c].to_vec());
                (0..shapes[i].pixels()).flat_map(pixel).collect()
            }
            Op::Linear(linear) => {
                let rows = weights[&linear.weight].chunks(x.len());
                let bias = linear.bias.as_ref().map(|name| &weights[name]);
                rows.enumerate().map(|(k, row)| dot(row, x) + bias.map_or(0.0, |bias| bias[k])).collect()
            }
        });
    }
    values
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn activate(activation: Activation, x: &[f64]) -> Vec<f64> {
    let apply = |&x: &f64| match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
    };
    x.iter().map(apply).collect()
}

fn normalize(norm: &BatchNorm, weights: &Tensors, x: &[f64]) -> Vec<f64> {
    let [gamma, beta, mean, var] = [&norm.gamma, &norm.beta, &norm.mean, &norm.var].map(|name| &weights[name]);
    let at = |(i, x): (usize, &f64)| {
        let c = i % gamma.len();
        (x - mean[c]) / (var[c] + norm.eps).sqrt() * gamma[c] + beta[c]
    };
    x.iter().enumerate().map(at).collect()
}

fn convolve(
    conv: &Conv2d,
    weights: &Tensors,
    x: &[f64],
    xs: Shape,
    ys: Shape,
    residual: Option<&Vec<f64>>,
) -> Vec<f64> {
    let filter = &weights[&conv.filter]; // [K, C/groups, R, S]
    let [r_size, s_size] = conv.window.size;
    let (group_in, group_out) = (xs.channels / conv.groups, ys.channels / conv.groups);
    let mut y = vec![0.0; ys.elems()];
    for (i, y) in y.iter_mut().enumerate() {
        let (pixel, k) = (i / ys.channels, i % ys.channels);
        let (p, q) = (pixel / ys.width, pixel % ys.width);
        for (r, s) in (0..r_size).flat_map(|r| (0..s_size).map(move |s| (r, s))) {
            let Some((h, w)) = tap(&conv.window, xs, [p, q], [r, s]) else { continue };
            for c in 0..group_in {
                let from = (h * xs.width + w) * xs.channels + k / group_out * group_in + c;
                *y += x[from] * filter[((k * group_in + c) * r_size + r) * s_size + s];
            }
        }
        *y += conv.bias.as_ref().map_or(0.0, |name| weights[name][k]);
    }
    if let Some(norm) = &conv.norm {
        y = normalize(norm, weights, &y);
    }
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(y, residual)| *y += residual);
    }
    activate(conv.activation, &y)
}

fn windows(pool: &Pool, x: &[f64], xs: Shape, ys: Shape, reduce: impl Fn(&[f64], usize) -> f64) -> Vec<f64> {
    let [r_size, s_size] = pool.window.size;
    let at = |i: usize| {
        let (pixel, c) = (i / ys.channels, i % ys.channels);
        let position = [pixel / ys.width, pixel % ys.width];
        let taps: Vec<f64> = (0..r_size * s_size)
            .filter_map(|t| tap(&pool.window, xs, position, [t / s_size, t % s_size]))
            .map(|(h, w)| x[(h * xs.width + w) * xs.channels + c])
            .collect();
        assert!(!taps.is_empty(), "a window lies in the padding alone");
        reduce(&taps, r_size * s_size)
    };
    (0..ys.elems()).map(at).collect()
}

/// The pixel under tap [r, s] of the window for output [p, q]; `None` in the padding.
fn tap(window: &Window, xs: Shape, [p, q]: [usize; 2], [r, s]: [usize; 2]) -> Option<(usize, usize)> {
    let Window { stride, pad, dilation, .. } = window;
    let h = (p * stride[0] + r * dilation[0]).checked_sub(pad.top)?;
    let w = (q * stride[1] + s * dilation[1]).checked_sub(pad.left)?;
    (h < xs.height && w < xs.width).then_some((h, w))
}

/// Random values for every tensor that the graph reads. Variances are positive.
pub(super) fn random_weights(graph: &Network, random: &mut Xorshift) -> Tensors {
    let value = |name: &str, dims: Vec<usize>, random: &mut Xorshift| {
        let var = name.ends_with("running_var");
        (0..dims.iter().product()).map(|_| if var { random.signed().abs() + 0.1 } else { random.signed() }).collect()
    };
    let params = params(graph).unwrap();
    params.into_iter().map(|(name, dims)| (name.to_owned(), value(name, dims, random))).collect()
}

/// A network of up to 14 random nodes whose operands are mostly recent values, so that chains to fuse are common.
pub(super) fn random_network(random: &mut Xorshift) -> Network {
    let channels = 2 * (1 + random.below(2));
    let input = Shape::new(3 + random.below(4), 3 + random.below(4), channels);
    let first = Node { name: "input".into(), op: Op::Input, inputs: Vec::new(), scale: None };
    let mut network = Network { nodes: vec![first], output: NodeId(0), input };
    let mut shapes = infer(&network).unwrap();
    for i in 1..=4 + random.below(10) {
        let x = NodeId(shapes.len() - 1 - random.below(shapes.len()).min(random.below(3)));
        let name = format!("n{i}");
        let (op, inputs) = random_op(&name, x, &shapes, random);
        let mut next = network.clone();
        next.output = NodeId(next.nodes.len());
        next.nodes.push(Node { name, op, inputs, scale: None });
        // A node whose window does not fit is left out.
        if let Ok(all) = infer(&next) {
            (network, shapes) = (next, all);
        }
    }
    network
}

/// A random operation that reads x, and its inputs, which are nodes with these shapes.
fn random_op(name: &str, x: NodeId, shapes: &[Shape], random: &mut Xorshift) -> (Op, Vec<NodeId>) {
    let op = match random.below(10) {
        0..=2 => {
            let groups = [1, 1, 2][random.below(3)];
            let bias = (random.below(2) == 0).then(|| format!("{name}.bias"));
            let out = if random.below(3) == 0 { 2 * (1 + random.below(2)) } else { shapes[x.0].channels };
            Op::Conv2d(Conv2d { groups, bias, ..Conv2d::named(name, out, random_window(random)) })
        }
        3 | 4 => Op::BatchNorm(BatchNorm::named(name, 1e-5)),
        5 => Op::Activation(Activation::Relu),
        6 => Op::Activation([Activation::None, Activation::Relu6][random.below(2)]),
        7 => Op::MaxPool(Pool { window: random_window(random), count_pad: false }),
        8 if random.below(3) == 1 => {
            let same_size = (0..shapes.len()).rev().filter(|&i| shapes[i].pixels() == shapes[x.0].pixels());
            return (Op::Concat, same_size.take(1 + random.below(3)).map(NodeId).collect());
        }
        8 if random.below(3) == 0 => {
            Op::AvgPool(Pool { window: random_window(random), count_pad: random.below(2) == 0 })
        }
        _ => {
            let other = (0..shapes.len()).rev().filter(|&i| shapes[i] == shapes[x.0] && i != x.0);
            let other = other.take(1 + random.below(3)).last().map_or(x, NodeId);
            return (Op::Add(Activation::None), vec![x, other]);
        }
    };
    (op, vec![x])
}

fn random_window(random: &mut Xorshift) -> Window {
    if random.below(2) == 0 {
        return Window::square(3, 1, 1);
    }
    Window {
        size: [1 + random.below(3), 1 + random.below(3)],
        stride: [1 + random.below(2), 1 + random.below(2)],
        pad: Pad { top: random.below(2), left: random.below(2), bottom: random.below(2), right: random.below(2) },
        dilation: [1 + random.below(2), 1],
    }
}
