//! The scales of a model's values, from a configuration or a calibration: their check, and their application to the
//! graph.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::first_layers::{FirstLayers, first_layers};
use super::images::{Network, Node, NodeId, Op};
use super::names::nearest;
use super::rewrite::optimize_of;
use super::shape::infer;
use crate::error::Error;
use crate::tensor::Activation;

/// The scales of a network in bytes: the values that are kept in bytes, and the layers that are computed in floats
/// nevertheless.
///
/// The name of a value is the name of its node in the model's graph. A dense convolution is computed in bytes, with
/// exact sums, unless it is among the `floats`. Its operands and its result need scales; the scale of the result is
/// that of the last node that is computed with the convolution, such as its ReLU. A depthwise convolution whose input
/// and result have scales is computed in bytes too, unless it is among the `floats`. First layers that read photos, a
/// convolution with 7x7 windows and a maximum over 3x3, need only the scale of the maxima.
///
/// ```
/// use trefoil::{Shape, graph::{GraphBuilder, Window}, model::{Model, Preprocessing, Quantization, Weights}};
/// let mut g = GraphBuilder::new();
/// let image = g.image("image", Shape::new(8, 8, 16));
/// let x = g.conv2d("conv", image, 16, Window::square(1, 1, 0));
/// let x = g.relu("relu", x);
/// g.output("y", x);
/// let weights = Weights::from_tensors([("conv.weight", vec![16, 16, 1, 1], vec![0.5; 256])])?;
/// let preprocessing = Preprocessing::new(Shape::new(8, 8, 16));
/// let model = Model::new(g.finish()?, weights, preprocessing, Vec::new())?;
/// let mut quantization = Quantization::default();
/// quantization.scales.insert("input".into(), 0.02);
/// let error = model.quantized(&quantization).unwrap_err().to_string();
/// assert!(error.contains("`conv`: no scale of `relu`"), "{error}");
/// quantization.scales.insert("relu".into(), 0.1);
/// assert_eq!(model.quantized(&quantization)?.image_network()?.nodes[0].scale, Some(0.02));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantization {
    /// The number that the byte 1 stands for, by the name of the value's node.
    pub scales: BTreeMap<String, f32>,
    /// The means of a value by channel, if they are known. A layer that reads the value adds the expected loss by the
    /// rounding of its weights to its biases.
    pub means: BTreeMap<String, Vec<f32>>,
    /// Layers that are computed in floats.
    pub floats: BTreeSet<String>,
}

/// The range of scales.
const SCALES: RangeInclusive<f32> = 1e-12..=1e12;

impl Quantization {
    /// `graph` with these scales and means.
    ///
    /// # Errors
    /// All problems, as texts.
    pub(super) fn apply(&self, graph: &Network) -> Result<Network, Vec<String>> {
        let mut problems = Vec::new();
        let mut graph = without_scales(graph);
        for (name, &scale) in &self.scales {
            match find(&graph, name) {
                Ok(id) => graph.nodes[id.0].scale = Some(scale),
                Err(problem) => problems.push(format!("`scales`: {problem}")),
            }
        }
        for name in &self.floats {
            match find(&graph, name) {
                Ok(id) => {
                    if let Op::Conv2d(conv) = &mut graph.nodes[id.0].op {
                        conv.in_floats = true;
                    }
                }
                Err(problem) => problems.push(format!("`floats`: {problem}")),
            }
        }
        problems.extend(self.add_means(&mut graph));
        let of_node = |node: &Node| check(node).err().map(|what| format!("`scales`: `{}`: {what}", node.name));
        problems.extend(graph.nodes.iter().filter_map(of_node));
        let lacks = |(layer, value)| format!("layer `{layer}`: no scale of `{value}`, and it is not among `floats`");
        problems.extend(missing(&graph).into_iter().map(lacks));
        if problems.is_empty() { Ok(graph) } else { Err(problems) }
    }

    /// Gives the convolutions the means of their inputs; returns all problems with the means.
    fn add_means(&self, graph: &mut Network) -> Vec<String> {
        let unknown = self.means.keys().filter_map(|name| find(graph, name).err());
        let mut problems: Vec<String> = unknown.collect();
        let (optimized, values) = optimize_of(graph);
        let shapes = infer(&without_scales(&optimized)).expect("a model's graph is well-formed");
        let name = |value: NodeId| graph.nodes[values[value.0].0].name.clone();
        for value in (0..optimized.nodes.len()).map(NodeId) {
            let (name, channels) = (name(value), shapes[value.0].channels);
            let means = self.means.get(&name);
            if let Some(means) = means.filter(|of| of.len() != channels || of.iter().any(|mean| !mean.is_finite())) {
                let found =
                    format!("{} with {} that are finite", means.len(), means.iter().filter(|x| x.is_finite()).count());
                problems.push(format!("`{name}`: expected {channels} finite numbers, found {found}"));
            }
        }
        let has_bytes =
            |node: &&Node| matches!(&node.op, Op::Conv2d(of) if of.has_bytes(shapes[node.inputs[0].0].channels));
        let layers = optimized.nodes.iter().filter(has_bytes);
        let read: Vec<(String, String)> = layers.map(|node| (node.name.clone(), name(node.inputs[0]))).collect();
        for (layer, value) in read {
            let layer = graph.find(&layer).expect("a layer has the name of its convolution");
            if let Op::Conv2d(conv) = &mut graph.nodes[layer.0].op {
                conv.means = self.means.get(&value).map(|means| means[..].into());
            }
        }
        problems.into_iter().map(|problem| format!("`means`: {problem}")).collect()
    }
}

fn find(graph: &Network, name: &str) -> Result<NodeId, String> {
    graph.find(name).ok_or_else(|| {
        let near = nearest(name, graph.nodes.iter().map(|node| node.name.as_str()), 3);
        let near = if near.is_empty() { String::new() } else { format!(", only {}", near.join(", ")) };
        format!("no node is named `{}`{near}", crate::error::printable(name, MOST_OF_A_NAME))
    })
}

/// The largest number of characters of a name in a message.
const MOST_OF_A_NAME: usize = 80;

/// For each dense convolution in bytes and each of its values without a scale, the layer's name and the value's name. A
/// depthwise convolution without scales is computed in floats.
pub(super) fn missing(graph: &Network) -> Vec<(String, String)> {
    let (optimized, values) = optimize_of(graph);
    let first = first_layers(&optimized);
    let mut lacking = Vec::new();
    for (index, node) in optimized.nodes.iter().enumerate() {
        let Op::Conv2d(conv) = &node.op else { continue };
        if conv.groups > 1 || conv.in_floats {
            continue;
        }
        for id in kept_values(&optimized, first, NodeId(index)) {
            if optimized.nodes[id.0].scale.is_none() {
                lacking.push((node.name.clone(), graph.nodes[values[id.0].0].name.clone()));
            }
        }
    }
    lacking
}

/// The values that need a scale for a layer: its inputs and its result; for first layers only the maximum.
fn kept_values(graph: &Network, first: Option<FirstLayers>, layer: NodeId) -> Vec<NodeId> {
    match first {
        Some(first) if first.conv == layer => vec![first.pool],
        _ => graph.nodes[layer.0].inputs.iter().copied().chain([layer]).collect(),
    }
}

/// A layer that can be computed in bytes: a dense or depthwise convolution that does not read the image, or a network's
/// first layers.
#[derive(Clone)]
pub(crate) struct ByteLayer {
    pub(crate) name: String,
    /// The layer's inputs and its result.
    pub(crate) values: Vec<ByteValue>,
}

/// An input or result of a layer in bytes.
#[derive(Clone)]
pub(crate) struct ByteValue {
    /// The name of its node in the graph before rewrites.
    pub(crate) node: String,
    /// The names of the steps that compute it: several for a concatenation.
    pub(crate) steps: Vec<String>,
    /// Whether its bytes are unsigned.
    pub(crate) never_negative: bool,
}

/// The layers of a graph that can be computed in bytes.
pub(crate) fn byte_layers(graph: &Network) -> Vec<ByteLayer> {
    let (optimized, values) = optimize_of(graph);
    let (never_negative, first) = (never_negative(&optimized), first_layers(&optimized));
    let shapes = infer(&without_scales(&optimized)).expect("a model's graph is well-formed");
    let value = |id: NodeId| {
        let mut steps = Vec::new();
        collect_steps(&optimized, id, &mut steps);
        let node = graph.nodes[values[id.0].0].name.clone();
        ByteValue { node, steps, never_negative: never_negative[id.0] }
    };
    let is_first = |index: usize| first.is_some_and(|first| first.conv == NodeId(index));
    let layer = |(index, node): (usize, &Node)| match &node.op {
        Op::Conv2d(conv) => {
            let (x, id) = (node.inputs[0], NodeId(index));
            let is_one = conv.has_bytes(shapes[x.0].channels) && (x != NodeId(0) || is_first(index));
            let values = || kept_values(&optimized, first, id).into_iter().map(value).collect();
            is_one.then(|| ByteLayer { name: node.name.clone(), values: values() })
        }
        _ => None,
    };
    optimized.nodes.iter().enumerate().filter_map(layer).collect()
}

/// Adds the names of the steps that compute a node's value to `steps`. A concatenation has no step of its own.
fn collect_steps(graph: &Network, id: NodeId, steps: &mut Vec<String>) {
    let node = &graph.nodes[id.0];
    match node.op {
        Op::Concat => node.inputs.iter().for_each(|&input| collect_steps(graph, input, steps)),
        _ => steps.push(node.name.clone()),
    }
}

/// The graph without scales, means and layers in floats.
pub(super) fn without_scales(graph: &Network) -> Network {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        node.scale = None;
        if let Op::Conv2d(conv) = &mut node.op {
            (conv.in_floats, conv.means) = (false, None);
        }
    }
    graph
}

/// Checks the scale of a node; returns the problem as a text.
pub(super) fn check(node: &Node) -> Result<(), String> {
    let Some(scale) = node.scale else { return Ok(()) };
    if !SCALES.contains(&scale) {
        return Err(format!("expected a scale from {:e} to {:e}, found {scale}", SCALES.start(), SCALES.end()));
    }
    let most = 6.0 / 255.0;
    match activation(&node.op) {
        Activation::Relu6 if scale > most => {
            Err(format!("expected a scale of {most} at most, since values above 6 are cut off, found {scale}"))
        }
        _ => Ok(()),
    }
}

/// The activation that an operation applies last.
fn activation(op: &Op) -> Activation {
    match op {
        Op::Conv2d(conv) => conv.activation,
        Op::Activation(activation) | Op::Add(activation) => *activation,
        Op::Input | Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_) => Activation::None,
        Op::BatchNorm(_) | Op::MaxPool(_) | Op::AvgPool(_) => Activation::None,
        Op::GlobalAvgPool | Op::Linear(_) | Op::Concat => Activation::None,
    }
}

/// For each node, whether its value is never negative, so that its bytes are unsigned.
pub(crate) fn never_negative(graph: &Network) -> Vec<bool> {
    let mut never: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let is_so = match &node.op {
            Op::Activation(Activation::None) | Op::MaxPool(_) | Op::AvgPool(_) | Op::GlobalAvgPool | Op::Concat => {
                node.inputs.iter().all(|input| never[input.0])
            }
            op => match activation(op) {
                Activation::Relu | Activation::Relu6 => true,
                Activation::None | Activation::Silu | Activation::Gelu => false,
            },
        };
        never.push(is_so);
    }
    never
}

/// The error for scales that are given in code.
pub(super) fn refused(problems: &[String]) -> Error {
    Error::option("quantization", problems.join("; "), "scales of all that its layers read and write")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Window};
    use crate::tensor::Shape;

    /// A convolution with ReLU, one that adds its input, a depthwise one, and a pool.
    fn graph() -> Network {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 16));
        let x = g.conv2d("a", image, 16, Window::square(3, 1, 1));
        let x = g.relu("relu", x);
        let y = g.conv2d("b", x, 16, Window::square(1, 1, 0));
        let y = g.batch_norm("bn", y, 1e-5);
        let sum = g.add("sum", y, x);
        let sum = g.relu6("relu6", sum);
        let pool = g.max_pool("pool", sum, Window::square(2, 2, 0));
        g.output("y", pool);
        Network::of(&g.finish().unwrap()).unwrap()
    }

    fn of(scales: &[(&str, f32)], floats: &[&str]) -> Quantization {
        let scales = scales.iter().map(|(name, scale)| ((*name).to_owned(), *scale)).collect();
        Quantization { scales, means: BTreeMap::new(), floats: floats.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn scales_reach_the_values_of_fused_layers() {
        let all = of(&[("input", 0.5), ("relu", 0.25), ("relu6", 0.02)], &[]);
        let graph = optimize_of(&all.apply(&graph()).unwrap()).0;
        let scales: Vec<_> = graph.nodes.iter().map(|node| (node.name.as_str(), node.scale)).collect();
        assert_eq!(scales, [("input", Some(0.5)), ("a", Some(0.25)), ("b", Some(0.02)), ("pool", None)]);
        assert_eq!(never_negative(&graph), [false, true, true, true]);
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let bad = [("input", f32::NAN), ("rleu", 0.25), ("relu6", 0.024), ("sum", 0.0), ("pool", -1.0)];
        let problems = of(&bad, &["c"]).apply(&graph()).unwrap_err();
        let expected = [
            "`scales`: no node is named `rleu`, only `relu`",
            "`floats`: no node is named `c`",
            "`input`: expected a scale from 1e-12 to 1e12, found NaN",
            "`sum`: expected a scale from 1e-12 to 1e12, found 0",
            "`relu6`: expected a scale of 0.023529412 at most",
            "`pool`: expected a scale from 1e-12 to 1e12, found -1",
            "layer `a`: no scale of `relu`, and it is not among `floats`",
            "layer `b`: no scale of `relu`",
        ];
        for part in expected {
            assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:#?}");
        }
    }

    #[test]
    fn means_reach_the_layers_that_read_the_value() {
        let all = [("input", 0.5), ("relu", 0.25), ("relu6", 0.02)];
        let means = |name: &str, means: &[f32]| Quantization {
            means: BTreeMap::from([(name.to_owned(), means.to_vec())]),
            ..of(&all, &[])
        };
        let applied = means("relu", &[0.5; 16]).apply(&graph()).unwrap();
        let of_layer = |name: &str| match &applied.nodes[applied.find(name).unwrap().0].op {
            Op::Conv2d(conv) => conv.means.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((of_layer("a"), of_layer("b")), (None, Some([0.5; 16].into())));
        assert_eq!(without_scales(&applied), graph());
        let cases: [(&str, &[f32], &str); 3] = [
            ("relu", &[0.5; 15], "`means`: `relu`: expected 16 finite numbers, found 15 with 15 that are finite"),
            ("relu6", &[f32::NAN; 16], "`means`: `relu6`: expected 16 finite numbers, found 16 with 0 that are finite"),
            ("rleu", &[], "`means`: no node is named `rleu`, only `relu`"),
        ];
        for (name, wrong, expected) in cases {
            assert_eq!(means(name, wrong).apply(&graph()).unwrap_err(), [expected]);
        }
    }

    /// Scales that were found when depthwise layers were computed in floats are still accepted.
    #[test]
    fn a_depthwise_layer_without_scales_is_in_floats() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 16));
        let x = g.conv2d("stem", image, 16, Window::square(3, 1, 1));
        let depthwise = crate::graph::Conv2d::named("dw", 16, Window::square(3, 1, 1));
        let x = g.conv2d_with("dw", x, crate::graph::Conv2d { groups: 16, ..depthwise });
        let x = g.conv2d("project", x, 16, Window::square(1, 1, 0));
        g.output("y", x);
        let graph = Network::of(&g.finish().unwrap()).unwrap();
        let names: Vec<String> = byte_layers(&graph).into_iter().map(|layer| layer.name).collect();
        assert_eq!(names, ["dw", "project"]);
        let old = of(&[("dw", 0.25), ("project", 0.5)], &["stem"]).apply(&graph).unwrap();
        let shapes = infer(&without_scales(&graph)).unwrap();
        let in_bytes = |graph: &Network| {
            let graph = crate::model::in_bytes(graph, &shapes, |_| true);
            let scaled = graph.nodes.into_iter().filter(|node| node.scale.is_some());
            scaled.map(|node| node.name).collect::<Vec<_>>()
        };
        assert_eq!(in_bytes(&old), ["dw.quantize", "project"]);
        let new = of(&[("stem", 1.0), ("dw", 0.25), ("project", 0.5)], &["stem"]).apply(&graph).unwrap();
        assert_eq!(in_bytes(&new), ["stem.quantize", "dw", "project"]);
    }

    #[test]
    fn layers_in_floats_need_no_scales() {
        let some = of(&[("relu", 0.25), ("relu6", 0.02)], &["a", "pool"]);
        assert!(some.apply(&graph()).is_ok());
        assert!(of(&[], &["a", "b"]).apply(&graph()).is_ok());
    }
}
