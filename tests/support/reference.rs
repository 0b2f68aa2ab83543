//! Every operation by plain loops in f64, with the error that a device's rounding may cause.
//!
//! [`run_graph`] takes the graph as it was built, so that a device that runs a rewritten graph is compared with the
//! original. For a device that stores f16, whose results depend on the places of rounding, it rewrites the graph, folds
//! batch norms into filters and rounds those. For a device that rounds operands it keeps the graph, and rounds filters.

use half::{bf16, f16};
use trefoil::model::Weights;
use trefoil::model::images::{BatchNorm, Conv2d, Linear, Network, Op, Pool, Window, fold_conv, infer, optimize};
use trefoil::{Activation, Dtype, OutputKind, Shape};

use super::problem::joinable;
use super::product::{Gelu, normal_below};
use super::tolerance::{Expected, Growth, Storage, U32};

/// The arithmetic of a device.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    pub storage: Storage,
    pub growth: Growth,
}

/// The value of every node for one image: of the rewritten graph if f16 is stored, else of `graph` itself. The values
/// of the input have their own errors.
pub fn run_graph(graph: &Network, weights: &Weights, input: &Expected, how: Arithmetic) -> Vec<Expected> {
    let graph = match how.storage {
        Storage::F32 | Storage::Operands(_) => graph.clone(),
        Storage::F16 => optimize(graph),
    };
    let shapes = infer(&graph).expect("a test's graph is well-formed");
    let mut values: Vec<Expected> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let x = node.inputs.first().map_or(input, |id| &values[id.0]);
        let second = node.inputs.get(1).map(|id| &values[id.0]);
        let y = shapes[i];
        let mut value = match &node.op {
            Op::Input => input.clone(),
            Op::Conv2d(conv) => convolution(conv, weights, x, second, y, joined_terms(&graph, &shapes, i), how),
            Op::BatchNorm(norm) => {
                let terms = match &graph.nodes[node.inputs[0].0].op {
                    Op::Conv2d(conv) => terms(conv, values[graph.nodes[node.inputs[0].0].inputs[0].0].shape),
                    _ => 0,
                };
                batch_norm(norm, weights, x, terms, how)
            }
            Op::Activation(activation) => activate(*activation, x.clone(), how),
            Op::Add(activation) => add(*activation, x, second.expect("an addition has two operands"), how),
            Op::MaxPool(pool) => max_pool(pool, x, y),
            Op::AvgPool(pool) => avg_pool(pool, x, y, how),
            Op::GlobalAvgPool => global_avg_pool(x, how),
            Op::Linear(layer) => linear(layer, weights, x, how),
            Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_) => unreachable!("no model has one"),
            Op::Concat => concat(node.inputs.iter().map(|id| &values[id.0]).collect(), y),
        };
        if !matches!(node.op, Op::Linear(_)) {
            for (value, error) in value.values.iter().zip(&mut value.errors) {
                *error = how.growth.stored(how.storage, *value, *error);
            }
        }
        values.push(value);
    }
    values
}

/// The values that the last step writes, for outputs that are values.
pub fn emit(output: OutputKind, x: &Expected) -> Expected {
    match output {
        OutputKind::Logits | OutputKind::Features => x.clone(),
        OutputKind::Probabilities => softmax(x),
        OutputKind::TopK(_) => unreachable!("pairs are compared otherwise"),
    }
}

/// exp(x - max) / sum. With p_i the probabilities, d log p_i = d x_i - sum p_j d x_j, so an error e in every logit
/// changes a probability by a factor of exp(2 e) at most; the rest is the rounding of x - max (which the exponential
/// turns from absolute to relative), of the exponential (2 units), of n sums and of the quotient.
fn softmax(x: &Expected) -> Expected {
    let max = x.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let error = x.errors.iter().copied().fold(0.0, f64::max);
    let exps: Vec<f64> = x.values.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let spread = x.values.iter().map(|x| max - x).fold(0.0, f64::max);
    let rounding = U32 * (2.0 * spread + 8.0 + x.values.len() as f64);
    let values: Vec<f64> = exps.iter().map(|e| e / sum).collect();
    let errors = values.iter().map(|p| p * ((2.0 * error + rounding).exp() - 1.0) + f64::from(f32::MIN_POSITIVE));
    Expected { shape: x.shape, errors: errors.collect(), values }
}

fn read(weights: &Weights, name: &str) -> Vec<f64> {
    let dims = weights.dims(name).unwrap_or_else(|| panic!("no tensor {name}")).to_vec();
    let mut values = vec![0.0; dims.iter().product()];
    weights.read_f32(name, &dims, &mut values).expect("a test's weights can be read");
    values.into_iter().map(f64::from).collect()
}

fn round(storage: Storage, value: f64) -> f64 {
    match storage {
        Storage::F32 => value,
        // The value is rounded through f32, as on the device.
        Storage::Operands(Dtype::Bf16) => bf16::from_f32(value as f32).to_f64(),
        Storage::F16 | Storage::Operands(_) => f16::from_f32(value as f32).to_f64(),
    }
}

/// A value as a layer reads it, rounded; the errors grow by the rounding.
fn operand(x: &Expected, how: Arithmetic) -> Expected {
    let errors = x.values.iter().zip(&x.errors).map(|(&value, &error)| how.growth.read(how.storage, value, error));
    Expected { errors: errors.collect(), ..x.clone() }
}

/// Filter [K, C / groups, R, S], rounded as the device stores it, and bias [K]. Only for f16 a batch norm is part of
/// the filter; otherwise the caller applies it.
fn filter_and_bias(conv: &Conv2d, weights: &Weights, channels: usize, storage: Storage) -> (Vec<f64>, Vec<f64>) {
    match storage {
        Storage::F32 | Storage::Operands(_) => {
            let bias = conv.bias.as_ref().map_or_else(|| vec![0.0; conv.out_channels], |name| read(weights, name));
            (read(weights, &conv.filter).into_iter().map(|w| round(storage, w)).collect(), bias)
        }
        Storage::F16 => {
            let folded = fold_conv(weights, conv, channels).expect("a test's weights fold");
            let halves = folded.filter.iter().map(|&w| round(storage, f64::from(w)));
            (halves.collect(), folded.bias.iter().map(|&b| f64::from(b)).collect())
        }
    }
}

fn convolution(
    conv: &Conv2d,
    weights: &Weights,
    x: &Expected,
    residual: Option<&Expected>,
    y: Shape,
    more_terms: usize,
    how: Arithmetic,
) -> Expected {
    let x = &operand(x, how);
    let (filter, bias) = filter_and_bias(conv, weights, x.shape.channels, how.storage);
    let [r_size, s_size] = conv.window.size;
    let (group_in, group_out) = (x.shape.channels / conv.groups, y.channels / conv.groups);
    let mut result = Expected { shape: y, values: vec![0.0; y.elems()], errors: vec![0.0; y.elems()] };
    for p in 0..y.height {
        for q in 0..y.width {
            for k in 0..y.channels {
                let mut sum = bias[k];
                let mut magnitude = bias[k].abs();
                let mut inherited = Vec::new();
                for r in 0..r_size {
                    for s in 0..s_size {
                        let Some(pixel) = tap(&conv.window, x.shape, [p, q], [r, s]) else { continue };
                        for c in 0..group_in {
                            let from = pixel * x.shape.channels + k / group_out * group_in + c;
                            let weight = filter[((k * group_in + c) * r_size + r) * s_size + s];
                            sum += x.values[from] * weight;
                            magnitude += (x.values[from] * weight).abs();
                            inherited.push(x.errors[from] * weight.abs());
                        }
                    }
                }
                let at = (p * y.width + q) * y.channels + k;
                // There are two more roundings: of the bias, and of a filter into which a batch norm is folded.
                let own = how.growth.sum(how.storage, terms(conv, x.shape) + 2 + more_terms, magnitude);
                result.values[at] = sum;
                result.errors[at] = how.growth.join(inherited.into_iter().chain([own]));
            }
        }
    }
    if how.storage != Storage::F16
        && let Some(norm) = &conv.norm
    {
        result = batch_norm(norm, weights, &result, terms(conv, x.shape), how);
    }
    match residual {
        Some(residual) => add(conv.activation, &result, residual, how),
        None => activate(conv.activation, result, how),
    }
}

/// Number of products of other convolutions that a device may add in the same sum: of those whose results node `i`
/// adds, and of those that add node i's result.
fn joined_terms(graph: &Network, shapes: &[Shape], i: usize) -> usize {
    let of = |node: usize| match &graph.nodes[node].op {
        Op::Conv2d(conv) => terms(conv, shapes[graph.nodes[node].inputs[0].0]) + 2,
        _ => 0,
    };
    let both = |(host, added)| [(host, added), (added, host)];
    joinable(graph).into_iter().flat_map(both).filter(|(node, _)| *node == i).map(|(_, other)| of(other)).sum()
}

/// Number of products in one sum of a convolution.
fn terms(conv: &Conv2d, x: Shape) -> usize {
    conv.window.size[0] * conv.window.size[1] * x.channels / conv.groups
}

/// (x - mean) / sqrt(var + eps) * gamma + beta. Folded into a convolution of `terms` terms, it is a rounded factor, and
/// a rounded shift that takes part in all roundings of the sum if a device begins with it.
fn batch_norm(norm: &BatchNorm, weights: &Weights, x: &Expected, terms: usize, how: Arithmetic) -> Expected {
    let [gamma, beta, mean, var] = [&norm.gamma, &norm.beta, &norm.mean, &norm.var].map(|name| read(weights, name));
    let mut y = x.clone();
    for (i, (value, error)) in y.values.iter_mut().zip(&mut y.errors).enumerate() {
        let c = i % x.shape.channels;
        let scale = gamma[c] / (var[c] + norm.eps).sqrt();
        let shift = (mean[c] * scale).abs() + beta[c].abs();
        let own = 4.0 * U32 * (*value * scale).abs() + how.growth.sum(how.storage, terms + 3, shift);
        *value = (*value - mean[c]) * scale + beta[c];
        *error = *error * scale.abs() + own;
    }
    y
}

/// Applies an activation: errors do not grow, except by SiLU and GELU, whose slopes are at most 1.1 and 1.13. Kernels of f16
/// round to it before GELU, which they compute in f16.
fn activate(activation: Activation, mut x: Expected, how: Arithmetic) -> Expected {
    for (value, error) in x.values.iter_mut().zip(&mut x.errors) {
        *value = match activation {
            Activation::None => *value,
            Activation::Relu => value.max(0.0),
            Activation::Relu6 => value.clamp(0.0, 6.0),
            Activation::Silu => {
                *error *= 1.1;
                *value / (1.0 + (-*value).exp())
            }
            Activation::Gelu => {
                *error = 1.13 * how.growth.stored(how.storage, *value, *error);
                let active = *value * normal_below(*value);
                if how.storage == Storage::F16 {
                    let [of_itself, in_all] = Gelu::InF16.errors();
                    *error = how.growth.join([*error, of_itself * active.abs() + in_all].into_iter());
                }
                active
            }
        };
    }
    x
}

/// Adds two operands: their errors may depend on each other, so they add.
fn add(activation: Activation, a: &Expected, b: &Expected, how: Arithmetic) -> Expected {
    let mut sum = a.clone();
    for i in 0..sum.values.len() {
        sum.values[i] += b.values[i];
        sum.errors[i] += b.errors[i] + U32 * sum.values[i].abs();
    }
    activate(activation, sum, how)
}

/// Joins operands: each pixel has the channels of one operand after those of the other.
fn concat(operands: Vec<&Expected>, y: Shape) -> Expected {
    let of = |part: fn(&Expected) -> &[f64]| {
        let pixel =
            |pixel: usize| operands.iter().flat_map(move |x| &part(x)[pixel * x.shape.channels..][..x.shape.channels]);
        (0..y.pixels()).flat_map(pixel).copied().collect()
    };
    Expected { shape: y, values: of(|x| &x.values), errors: of(|x| &x.errors) }
}

/// The maximum over windows: its error is at most the largest error of a tap.
fn max_pool(pool: &Pool, x: &Expected, y: Shape) -> Expected {
    windows(pool, x, y, |taps| {
        let largest = |which: fn(&(f64, f64)) -> f64| taps.iter().map(which).fold(f64::NEG_INFINITY, f64::max);
        (largest(|tap| tap.0), largest(|tap| tap.1))
    })
}

fn avg_pool(pool: &Pool, x: &Expected, y: Shape, how: Arithmetic) -> Expected {
    let size = pool.window.size[0] * pool.window.size[1];
    windows(pool, x, y, |taps| mean(taps, if pool.count_pad { size } else { taps.len() }, how))
}

fn global_avg_pool(x: &Expected, how: Arithmetic) -> Expected {
    let channels = x.shape.channels;
    let of = |c: usize| {
        let taps: Vec<_> =
            (0..x.shape.pixels()).map(|p| p * channels + c).map(|i| (x.values[i], x.errors[i])).collect();
        mean(&taps, taps.len(), how)
    };
    let (values, errors) = (0..channels).map(of).unzip();
    Expected { shape: Shape::vector(channels), values, errors }
}

/// The sum over `count` with its error: neighbouring pixels' errors may depend on each other, so they add.
fn mean(taps: &[(f64, f64)], count: usize, how: Arithmetic) -> (f64, f64) {
    let [sum, magnitude, error] = taps.iter().fold([0.0; 3], |[s, m, e], (v, d)| [s + v, m + v.abs(), e + d]);
    let own = how.growth.sum(how.storage, taps.len() + 2, magnitude); // and the quotient, perhaps by a rounded reciprocal
    (sum / count as f64, (error + own) / count as f64)
}

/// Applies `reduce` to the (value, error) pairs of each window's taps in the image.
fn windows(pool: &Pool, x: &Expected, y: Shape, reduce: impl Fn(&[(f64, f64)]) -> (f64, f64)) -> Expected {
    let mut result = Expected { shape: y, values: Vec::new(), errors: Vec::new() };
    for p in 0..y.height {
        for q in 0..y.width {
            for c in 0..y.channels {
                let mut taps = Vec::new();
                for r in 0..pool.window.size[0] {
                    for s in 0..pool.window.size[1] {
                        if let Some(pixel) = tap(&pool.window, x.shape, [p, q], [r, s]) {
                            let at = pixel * x.shape.channels + c;
                            taps.push((x.values[at], x.errors[at]));
                        }
                    }
                }
                let (value, error) = reduce(&taps);
                result.values.push(value);
                result.errors.push(error);
            }
        }
    }
    result
}

fn linear(layer: &Linear, weights: &Weights, x: &Expected, how: Arithmetic) -> Expected {
    let x = &operand(x, how);
    let weight = read(weights, &layer.weight);
    let bias = layer.bias.as_ref().map(|name| read(weights, name));
    let mut result = Expected { shape: Shape::vector(layer.out_features), values: Vec::new(), errors: Vec::new() };
    for n in 0..layer.out_features {
        let mut sum = bias.as_ref().map_or(0.0, |bias| bias[n]);
        let mut magnitude = sum.abs();
        let mut inherited = Vec::new();
        for c in 0..x.values.len() {
            let weight = round(how.storage, weight[n * x.values.len() + c]);
            sum += x.values[c] * weight;
            magnitude += (x.values[c] * weight).abs();
            inherited.push(x.errors[c] * weight.abs());
        }
        let own = how.growth.sum(how.storage, x.values.len() + 1, magnitude);
        result.values.push(sum);
        result.errors.push(how.growth.join(inherited.into_iter().chain([own])));
    }
    result
}

/// The index of the pixel under tap [r, s] of the window for output [p, q]; `None` in the padding.
fn tap(window: &Window, x: Shape, [p, q]: [usize; 2], [r, s]: [usize; 2]) -> Option<usize> {
    let h = (p * window.stride[0] + r * window.dilation[0]).checked_sub(window.pad.top)?;
    let w = (q * window.stride[1] + s * window.dilation[1]).checked_sub(window.pad.left)?;
    (h < x.height && w < x.width).then_some(h * x.width + w)
}
