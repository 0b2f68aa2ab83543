//! The rules of `docs/quantization.md` for a layer in bytes, by plain loops in integers.

use std::collections::BTreeMap;
use std::ops::Range;

use trefoil::model::images::{Conv2d, Network, Node, Op, Window};
use trefoil::{Activation, Shape};

/// A value in bytes.
pub struct Value {
    pub shape: Shape,
    pub bytes: Vec<i32>,
    pub scale: f32,
    pub is_signed: bool,
    /// For each channel the number that a byte of 1 stands for, and the byte that stands for 0.
    pub channels: Vec<[f64; 2]>,
}

impl Value {
    pub fn new(shape: Shape, bytes: Vec<i32>, scale: f32, is_signed: bool) -> Self {
        Self { shape, bytes, scale, is_signed, channels: vec![[f64::from(scale), 0.0]; shape.channels] }
    }

    /// The byte of a channel in this row and column; outside of the image, the byte that stands for 0.
    fn at(&self, h: Option<usize>, w: Option<usize>, c: usize) -> i64 {
        match (h.filter(|h| *h < self.shape.height), w.filter(|w| *w < self.shape.width)) {
            (Some(h), Some(w)) => self.bytes[(h * self.shape.width + w) * self.shape.channels + c].into(),
            _ => self.channels[c][1].round_ties_even() as i64,
        }
    }
}

/// The result of a convolution's node; where possible, an added convolution is part of its sums.
pub fn convolved(
    graph: &Network,
    node: &Node,
    y: Shape,
    tensors: &BTreeMap<String, Vec<f32>>,
    values: &[Value],
) -> Value {
    let Op::Conv2d(conv) = &node.op else { panic!("no convolution") };
    let x = &values[node.inputs[0].0];
    let mut sources = vec![(conv, x)];
    let mut residual = None;
    if let Some(added) = node.inputs.get(1) {
        let Node { op, inputs, .. } = &graph.nodes[added.0];
        match op {
            Op::Conv2d(other)
                if inputs.len() == 1
                    && other.groups == 1
                    && other.activation == Activation::None
                    && graph.use_counts()[added.0] == 1
                    && values[inputs[0].0].is_signed == x.is_signed =>
            {
                sources.push((other, &values[inputs[0].0]));
            }
            _ => residual = Some(&values[added.0]),
        }
    }
    // First layers have the scale of the maxima behind them.
    let max = || graph.nodes.iter().find(|node| matches!(node.op, Op::MaxPool(_))).and_then(|node| node.scale);
    let scale = node.scale.or_else(max).expect("every layer of a problem has a scale");
    let bytes = convolution(&sources, tensors, residual, y, scale);
    Value::new(y, bytes, scale, conv.activation == Activation::None)
}

fn convolution(
    sources: &[(&Conv2d, &Value)],
    tensors: &BTreeMap<String, Vec<f32>>,
    residual: Option<&Value>,
    y: Shape,
    scale: f32,
) -> Vec<i32> {
    let bias = |k: usize| {
        let of = |(conv, _): &(&Conv2d, _)| f64::from(tensors[conv.bias.as_ref().expect("problems have biases")][k]);
        sources.iter().map(of).sum::<f64>()
    };
    let taps = |conv: &Conv2d| conv.window.size.iter().product::<usize>();
    // The input channels that an output channel reads: all of them, or one if the convolution is depthwise.
    let read = |conv: &Conv2d, x: &Value, k: usize| {
        let count = x.shape.channels / conv.groups;
        let first = k / (y.channels / conv.groups) * count;
        first..first + count
    };
    let [lowest, highest] = if sources[0].0.activation == Activation::None { [-128, 127] } else { [0, 255] };
    let mut result = vec![0; y.elems()];
    for k in 0..y.channels {
        let most = |(conv, x): &(&Conv2d, &Value)| -> f64 {
            x.channels[read(conv, x, k)].iter().map(|[_, zero]| taps(conv) as f64 * 128.0 * (255.0 + zero)).sum()
        };
        let most = f64::from(i32::MAX) - sources.iter().map(most).sum::<f64>();
        // The product of each weight with a byte of 1, [C][R][S].
        let products = sources.iter().map(|(conv, x)| {
            let (channels, terms) = (&x.channels[read(conv, x, k)], taps(conv) * read(conv, x, k).len());
            let weights = tensors[&conv.filter][k * terms..][..terms].iter().enumerate();
            weights.map(|(at, w)| f64::from(*w) * channels[at / taps(conv)][0]).collect::<Vec<f64>>()
        });
        let products: Vec<Vec<f64>> = products.collect();
        let largest = products.iter().flatten().fold(0.0_f64, |most, product| most.max(product.abs()));
        let unit = (largest / 127.0).max(bias(k).abs() / most);
        let weights = |((conv, _), products): (&(&Conv2d, &Value), &Vec<f64>)| {
            let quotients: Vec<f64> = products.iter().map(|w| w / unit).collect();
            if conv.groups > 1 { with_nearest_sum(&quotients) } else { nearest(&quotients) }
        };
        let filters: Vec<Vec<i64>> = sources.iter().zip(&products).map(weights).collect();
        let [mut of_zeros, mut lost] = [0.0; 2];
        for (((conv, x), filter), products) in sources.iter().zip(&filters).zip(&products) {
            let channels = read(conv, x, k);
            if let Some(means) = &conv.means {
                for (at, (product, weight)) in products.iter().zip(filter).enumerate() {
                    let mean = f64::from(means[channels.start + at / taps(conv)]) / f64::from(x.scale);
                    lost += (product - *weight as f64 * unit) * mean.clamp(-128.0, 255.0);
                }
            }
            let zero = |at: usize| x.channels[channels.start + at / taps(conv)][1];
            of_zeros += filter.iter().enumerate().map(|(at, w)| *w as f64 * zero(at)).sum::<f64>();
        }
        let bias = ((bias(k) + lost) / unit - of_zeros).round_ties_even() as i64;
        let factor = (unit / f64::from(scale)) as f32;
        for pixel in 0..y.pixels() {
            let seen = |((conv, x), filter): (&(&Conv2d, &Value), &Vec<i64>)| {
                sum_of(conv, x, read(conv, x, k), filter, [pixel, y.width])
            };
            let sum = bias + sources.iter().zip(&filters).map(seen).sum::<i64>();
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

fn nearest(quotients: &[f64]) -> Vec<i64> {
    quotients.iter().map(|quotient| quotient.round_ties_even() as i64).collect()
}

/// The nearest integers, of which one after the other that has the most to gain is changed by one until the sum is right.
fn with_nearest_sum(quotients: &[f64]) -> Vec<i64> {
    let mut weights = nearest(quotients);
    let left: Vec<f64> = quotients.iter().zip(&weights).map(|(quotient, weight)| quotient - *weight as f64).collect();
    let missing = left.iter().sum::<f64>().round_ties_even() as i64;
    let mut is_changed = vec![false; weights.len()];
    for _ in 0..missing.abs() {
        let mut best: Option<usize> = None;
        for at in (0..weights.len()).filter(|at| !is_changed[*at]) {
            let gain = |at: usize| left[at] * missing.signum() as f64;
            if best.is_none_or(|best| gain(at) > gain(best)) {
                best = Some(at);
            }
        }
        let best = best.expect("fewer are missing than there are weights");
        weights[best] += missing.signum();
        is_changed[best] = true;
    }
    weights
}

/// The sum of products of some channels under a convolution's window for an output pixel, of rows of `width` pixels.
fn sum_of(conv: &Conv2d, x: &Value, channels: Range<usize>, filter: &[i64], [pixel, width]: [usize; 2]) -> i64 {
    let Window { size: [r_size, s_size], stride, pad, .. } = conv.window;
    let mut sum = 0;
    let count = channels.len();
    for (c, tap) in (0..count).flat_map(|c| (0..r_size * s_size).map(move |tap| (c, tap))) {
        let h = (pixel / width * stride[0] + tap / s_size).checked_sub(pad.top);
        let w = (pixel % width * stride[1] + tap % s_size).checked_sub(pad.left);
        sum += x.at(h, w, channels.start + c) * filter[c * r_size * s_size + tap];
    }
    sum
}

/// The maxima over 3x3 windows with a stride of 2 and a padding of 1.
pub fn maxima(x: &Value, y: Shape) -> Value {
    let at = |i: usize| {
        let (pixel, c) = (i / y.channels, i % y.channels);
        let window = (0..9).filter_map(|tap| {
            let h = (2 * (pixel / y.width) + tap / 3).checked_sub(1).filter(|h| *h < x.shape.height)?;
            let w = (2 * (pixel % y.width) + tap % 3).checked_sub(1).filter(|w| *w < x.shape.width)?;
            Some(x.bytes[(h * x.shape.width + w) * x.shape.channels + c])
        });
        window.max().expect("a window has a pixel")
    };
    Value::new(y, (0..y.elems()).map(at).collect(), x.scale, x.is_signed)
}

/// The mean of each channel over all pixels.
pub fn mean(x: &Value) -> Vec<f32> {
    let sum = |c: usize| x.bytes.iter().skip(c).step_by(x.shape.channels).sum::<i32>();
    let factor = (f64::from(x.scale) / x.shape.pixels() as f64) as f32;
    (0..x.shape.channels).map(|c| sum(c) as f32 * factor).collect()
}
