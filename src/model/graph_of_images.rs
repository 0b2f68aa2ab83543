//! A network of images as a graph of values for several rows, from the elements of input rows to those of output rows.
//!
//! Loops compute this graph in types for which there are no kernels for images.

use std::sync::Arc;

use super::fold::{FoldedConv, fold_conv};
use super::images::{Conv2d, Network, Node, Op};
use super::preprocessing::Preprocessing;
use super::rewrite::optimize;
use super::shape::infer;
use super::shaped::Shaped;
use super::weights::Weights;
use crate::error::Error;
use crate::graph::{self, Expr, Graph, GraphBuilder, Tensor, TopK, ValueId};
use crate::tensor::{Activation, Dtype, InputFormat, OutputKind, Shape};

impl Shaped {
    /// The graph for `rows` rows. Its only input and its only output are the network's rows.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network in bytes; [`Error::Graph`] for one that is not well-formed.
    pub fn graph(&self, rows: usize, input: InputFormat, output: OutputKind) -> Result<Graph, Error> {
        let network: &Network = &self.network;
        if let Some(node) = network.nodes.iter().find(|node| node.scale.is_some()) {
            return Err(Error::Unsupported {
                what: format!("a precision for a network in bytes (node `{}`)", node.name),
                instead: "leave `precision` at `auto`".into(),
            });
        }
        let mut writer = Writer { g: GraphBuilder::new(), values: Vec::new() };
        for node in &network.nodes {
            let value = match &node.op {
                Op::Input => writer.pixels(rows, input, &self.preprocessing),
                _ => writer.node(node),
            };
            writer.values.push(value);
        }
        writer.result(network.output.0, output);
        writer.g.finish()
    }

    /// The network with its batch norms folded into filters and biases, and the weights with these.
    ///
    /// # Errors
    /// The errors of [`fold_conv`]; [`Error::Graph`] for a network that is not well-formed.
    pub fn folded(&self, weights: &Arc<Weights>) -> Result<(Self, Arc<Weights>), Error> {
        let mut network = optimize(&self.network);
        let shapes = infer(&network)?;
        let mut tensors = Vec::new();
        for Node { name, inputs, op, .. } in &mut network.nodes {
            let Op::Conv2d(conv @ Conv2d { norm: Some(_), .. }) = op else { continue };
            let channels = shapes[inputs[0].0].channels;
            let FoldedConv { filter, bias } = fold_conv(weights, conv, channels)?;
            let [r, s] = conv.window.size;
            let of_filter = Tensor::of(&[conv.out_channels, channels / conv.groups, r, s], &filter);
            let [filter, of_bias] = ["filter", "bias"].map(|what| format!("{name} ({what}, with the norm)"));
            tensors.push((filter.clone(), of_filter));
            tensors.push((of_bias.clone(), Tensor::of(&[conv.out_channels], &bias)));
            *conv = Conv2d { filter, bias: Some(of_bias), norm: None, ..conv.clone() };
        }
        let weights = if tensors.is_empty() { weights.clone() } else { weights.with(tensors)?.into() };
        Ok((Self { network: network.into(), ..self.clone() }, weights))
    }
}

/// A graph in the making.
struct Writer {
    g: GraphBuilder,
    /// The values of the network's nodes that are added already.
    values: Vec<ValueId>,
}

impl Writer {
    /// The normalised pixels of images, `[rows, height, width, channels]` of f32.
    fn pixels(&mut self, rows: usize, format: InputFormat, preprocessing: &Preprocessing) -> ValueId {
        let Shape { height, width, channels } = preprocessing.input;
        let dims = match format {
            InputFormat::F32Nchw => [rows, channels, height, width],
            InputFormat::U8Nhwc | InputFormat::F16Nhwc | InputFormat::F32Nhwc => [rows, height, width, channels],
        };
        let x = self.g.input("image", format.dtype(), &dims);
        match format {
            InputFormat::U8Nhwc => self.normalised(x, preprocessing),
            InputFormat::F32Nchw => self.g.node("image (pixels)", graph::Op::Transpose(vec![0, 2, 3, 1]), &[x]),
            InputFormat::F16Nhwc => self.g.map("image (f32)", Expr::arg(0).cast(Dtype::F32), &[x]),
            InputFormat::F32Nhwc => x,
        }
    }

    /// (x / 255 - mean) / std of bytes, as one factor and one summand for each channel.
    fn normalised(&mut self, x: ValueId, Preprocessing { mean, std, .. }: &Preprocessing) -> ValueId {
        let both = mean.iter().zip(std).map(|(&mean, &std)| [mean, std].map(f64::from));
        let (factors, summands): (Vec<f64>, Vec<f64>) =
            both.map(|[mean, std]| (1.0 / (255.0 * std), -mean / std)).unzip();
        let [factors, summands] = [factors, summands].map(|of| {
            let bytes: Vec<u8> = of.iter().flat_map(|&number| (number as f32).to_le_bytes()).collect();
            self.g.constant(Dtype::F32, &[of.len()], bytes)
        });
        let pixel = Expr::arg(0).cast(Dtype::F32) * Expr::arg(1) + Expr::arg(2);
        self.g.map("image (normalised)", pixel, &[x, factors, summands])
    }

    /// Adds the operation of a node; returns its value.
    fn node(&mut self, node: &Node) -> ValueId {
        let (name, reads) = (&node.name, node.inputs.iter().map(|id| self.values[id.0]).collect::<Vec<_>>());
        let x = reads.first().copied().unwrap_or(ValueId(0));
        match &node.op {
            Op::Input | Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_) => {
                unreachable!("the input is the first node, and no model has nodes of plans")
            }
            Op::Conv2d(conv) => self.convolution(name, conv, &reads),
            Op::BatchNorm(norm) => self.g.batch_norm_with(name, x, norm.clone()),
            Op::Activation(activation) => self.g.activation(name, x, *activation),
            Op::Add(activation) => {
                let sum = self.g.add(name, x, reads[1]);
                self.activated(name, sum, *activation)
            }
            Op::MaxPool(pool) => self.g.max_pool(name, x, pool.window),
            Op::AvgPool(pool) => self.g.avg_pool(name, x, pool.window, pool.count_pad),
            Op::GlobalAvgPool => self.g.global_avg_pool(name, x),
            Op::Linear(linear) => self.g.linear_with(name, x, linear.clone()),
            Op::Concat => self.g.concat(name, &reads),
        }
    }

    /// Adds a convolution with the operations that are fused into it.
    fn convolution(&mut self, name: &str, conv: &Conv2d, reads: &[ValueId]) -> ValueId {
        let Conv2d { out_channels, window, groups, filter, bias, norm, activation, in_floats: _, means: _ } =
            conv.clone();
        let layer = graph::Conv2d { out_channels, window: window.into(), groups, filter, bias };
        let mut y = self.g.conv2d_with(name, reads[0], layer);
        if let Some(norm) = norm {
            y = self.g.batch_norm_with(&format!("{name} (norm)"), y, norm);
        }
        if let Some(&residual) = reads.get(1) {
            y = self.g.add(&format!("{name} (sum)"), y, residual);
        }
        self.activated(name, y, activation)
    }

    fn activated(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        match activation {
            Activation::None => x,
            Activation::Relu | Activation::Relu6 | Activation::Silu | Activation::Gelu => {
                self.g.activation(&format!("{name} (activation)"), x, activation)
            }
        }
    }

    /// Makes the requested output of a node's value the output of the graph.
    fn result(&mut self, node: usize, kind: OutputKind) {
        let x = self.values[node];
        let result = match kind {
            OutputKind::Logits | OutputKind::Features => x,
            OutputKind::Probabilities => self.probabilities(x),
            OutputKind::TopK(k) => self.top_k(x, k),
        };
        self.g.output("result", result);
    }

    fn probabilities(&mut self, x: ValueId) -> ValueId {
        let axis = self.channels(x);
        self.g.node("result (probabilities)", graph::Op::Softmax { axis, log: false }, &[x])
    }

    /// Pairs of the probabilities and indices of the k best classes. An index is stored as the f32 with its bits, a
    /// subnormal number: the bits of n are those of n times the smallest one.
    fn top_k(&mut self, x: ValueId, k: usize) -> ValueId {
        let (probabilities, axis) = (self.probabilities(x), self.channels(x));
        let best =
            self.g.node_with("result (best)", graph::Op::TopK(TopK { axis, k, largest: true }), &[Some(x)], 2)[1];
        let of_best = self.g.node("result (of the best)", graph::Op::GatherElements(axis), &[probabilities, best]);
        let smallest = Expr::float(Dtype::F64, f64::from(f32::from_bits(1)));
        let index = (Expr::arg(0).cast(Dtype::F64) * smallest).cast(Dtype::F32);
        let index = self.g.map("result (indices)", index, &[best]);
        let pairs = [(of_best, "values"), (index, "bits")].map(|(part, name)| {
            let dims = [&self.g.value(part).dims[..], &[1]].concat();
            self.g.node(&format!("result ({name})"), graph::Op::Reshape(dims), &[part])
        });
        self.g.node("result (pairs)", graph::Op::Concat(axis + 1), &pairs)
    }

    /// The axis of the channels, which is the last one.
    fn channels(&self, x: ValueId) -> usize {
        self.g.value(x).rank() - 1
    }
}
