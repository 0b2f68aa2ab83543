//! The graph of a network in bytes as devices compute it: values in bytes or in floats, and conversions between them.

use super::first_layers::{FirstLayers, first_layers};
use super::images::{Conv2d, Network, Node, NodeId, Op, Pool};
use crate::tensor::{Activation, Shape};

/// Layers that a device may be able to compute in bytes.
pub(crate) enum ByteWork<'a> {
    /// A dense or depthwise convolution, from one shape to another.
    Conv(&'a Conv2d, [Shape; 2]),
    /// A network's first layers from photos. The shapes are those of the photo, the convolution's result and the
    /// maximum.
    First { conv: &'a Conv2d, pool: &'a Pool, shapes: [Shape; 3] },
}

/// The graph in which some nodes are computed in bytes: dense and depthwise convolutions whose operands and results have
/// scales and which the device `takes`, and the first layers. Besides these, a mean over all pixels reads bytes if the value
/// exists only in bytes. All other nodes read and write floats. Where a node reads the other form of a value, a
/// conversion is inserted: an activation that does nothing.
///
/// `graph` has been rewritten, and `shapes` are those of its nodes.
pub(crate) fn in_bytes(graph: &Network, shapes: &[Shape], takes: impl Fn(&ByteWork<'_>) -> bool) -> Network {
    let first = first_layers(graph).filter(|first| is_in_bytes(graph, shapes, *first, &takes));
    let mut kept = Kept { graph, nodes: Vec::new(), ids: vec![[None; 2]; graph.nodes.len()], made: Vec::new() };
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index);
        let [reads, writes] = match &node.op {
            Op::Conv2d(_) if first.is_some_and(|first| first.conv == id) => [false, true],
            Op::MaxPool(_) if first.is_some_and(|first| first.pool == id) => [true; 2],
            Op::Conv2d(conv) => {
                let has_scales = node.inputs.iter().chain([&id]).all(|id| graph.nodes[id.0].scale.is_some());
                let x = shapes[node.inputs[0].0];
                let is_one = conv.has_bytes(x.channels) && !conv.in_floats && has_scales;
                [is_one && takes(&ByteWork::Conv(conv, [x, shapes[index]])); 2]
            }
            Op::GlobalAvgPool => [kept.made[node.inputs[0].0], false],
            _ => [false; 2],
        };
        let scale = match first {
            Some(first) if first.conv == id => graph.nodes[first.pool.0].scale,
            _ => node.scale.filter(|_| writes),
        };
        kept.push(node, scale, reads);
    }
    let output = kept.get(graph.output, false);
    Network { nodes: kept.nodes, output, input: graph.input }
}

/// Whether first layers have the scale of their maximum and the device `takes` them.
fn is_in_bytes(
    graph: &Network,
    shapes: &[Shape],
    FirstLayers { conv, pool }: FirstLayers,
    takes: impl Fn(&ByteWork<'_>) -> bool,
) -> bool {
    match (&graph.nodes[conv.0].op, &graph.nodes[pool.0]) {
        (Op::Conv2d(of), Node { op: Op::MaxPool(max), scale: Some(_), .. }) if !of.in_floats => {
            takes(&ByteWork::First { conv: of, pool: max, shapes: [NodeId(0), conv, pool].map(|id| shapes[id.0]) })
        }
        _ => false,
    }
}

/// The graph in the making, with the nodes that exist in bytes, in floats or in both.
struct Kept<'a> {
    graph: &'a Network,
    nodes: Vec<Node>,
    /// For each node, its floats and its bytes in the new graph, as far as a node needs them.
    ids: Vec<[Option<NodeId>; 2]>,
    /// For each node, whether it is computed in bytes.
    made: Vec<bool>,
}

impl Kept<'_> {
    /// Adds a node. It writes bytes if it has a scale, and reads bytes or floats.
    fn push(&mut self, node: &Node, scale: Option<f32>, reads_bytes: bool) {
        let inputs = node.inputs.iter().map(|&input| self.get(input, reads_bytes)).collect();
        let mut op = node.op.clone();
        if let Op::Conv2d(conv) = &mut op {
            conv.in_floats = false; // decided by now
            conv.means = conv.means.take().filter(|_| reads_bytes);
        }
        self.ids[self.made.len()][usize::from(scale.is_some())] = Some(NodeId(self.nodes.len()));
        self.made.push(scale.is_some());
        self.nodes.push(Node { name: node.name.clone(), op, inputs, scale });
    }

    /// The node that has a value in bytes or floats. A conversion is added if it is needed.
    fn get(&mut self, id: NodeId, in_bytes: bool) -> NodeId {
        let form = usize::from(in_bytes);
        if let Some(there) = self.ids[id.0][form] {
            return there;
        }
        let other = self.ids[id.0][1 - form].expect("a node comes before those that read it");
        let Node { name, scale, .. } = &self.graph.nodes[id.0];
        let suffix = if in_bytes { "quantize" } else { "dequantize" };
        self.nodes.push(Node {
            name: format!("{name}.{suffix}"),
            op: Op::Activation(Activation::None),
            inputs: vec![other],
            scale: scale.filter(|_| in_bytes),
        });
        let converted = NodeId(self.nodes.len() - 1);
        self.ids[id.0][form] = Some(converted);
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Window};
    use crate::model::{infer, optimize};

    /// A stem, a block with a residual, and a pool of the sum. The stem's value is read in bytes and in floats.
    fn graph() -> Network {
        let single = &Window::square(1, 1, 0);
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 3));
        let x = g.conv2d("stem", image, 16, Window::square(3, 1, 1));
        let x = g.relu("relu", x);
        let a = g.conv2d("a", x, 16, single);
        let b = g.conv2d("b", a, 16, single);
        let sum = g.add("sum", b, x);
        let out = g.relu("out", sum);
        let both = g.concat("both", &[out, x]);
        g.output("y", both);
        Network::of(&g.finish().unwrap()).unwrap().scaled(&[("relu", 0.5), ("a", 0.25), ("out", 0.125)])
    }

    fn told(graph: &Network) -> Vec<String> {
        let one = |node: &Node| {
            let inputs: Vec<_> = node.inputs.iter().map(|id| graph.nodes[id.0].name.as_str()).collect();
            format!("{}({}) {:?}", node.name, inputs.join(", "), node.scale)
        };
        graph.nodes.iter().map(one).collect()
    }

    #[test]
    fn values_are_converted_once_where_the_form_changes() {
        let graph = optimize(&graph());
        let shapes = infer(&graph).unwrap();
        let all = in_bytes(&graph, &shapes, |_| true);
        infer(&all).unwrap();
        assert_eq!(
            told(&all),
            [
                "input() None",
                "stem(input) None",
                "stem.quantize(stem) Some(0.5)",
                "a(stem.quantize) Some(0.25)",
                "b(a, stem.quantize) Some(0.125)",
                "b.dequantize(b) None",
                "both(b.dequantize, stem) None",
            ]
        );
    }

    #[test]
    fn what_the_device_does_not_take_is_as_without_scales() {
        let graph = optimize(&graph());
        let shapes = infer(&graph).unwrap();
        let none = in_bytes(&graph, &shapes, |_| false);
        assert!(none.nodes.iter().all(|node| node.scale.is_none()) && none.nodes.len() == graph.nodes.len());
        let one = in_bytes(&graph, &shapes, |of| matches!(of, ByteWork::Conv(conv, _) if conv.filter == "b.weight"));
        let expected = ["stem.quantize(stem) Some(0.5)", "a.quantize(a) Some(0.25)", "b.dequantize(b) None"];
        let told = told(&one);
        assert!(expected.iter().all(|part| told.iter().any(|node| node == part)), "{told:?}");
    }

    /// First layers, a convolution of their result, and the mean of the convolution's result.
    #[test]
    fn photos_become_bytes_and_bytes_a_mean_without_conversions() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(32, 32, 3));
        let x = g.conv2d("conv", image, 16, Window::square(7, 2, 3));
        let x = g.relu("relu", x);
        let pool = g.max_pool("pool", x, Window::square(3, 2, 1));
        let a = g.conv2d("a", pool, 16, Window::square(1, 1, 0));
        let mean = g.global_avg_pool("mean", a);
        g.output("y", mean);
        let network = Network::of(&g.finish().unwrap()).unwrap();
        let mut graph = optimize(&network.scaled(&[("pool", 0.5), ("a", 0.25)]));
        let shapes = infer(&graph).unwrap();
        let all = in_bytes(&graph, &shapes, |_| true);
        let expected = ["input() None", "conv(input) Some(0.5)", "pool(conv) Some(0.5)", "a(pool) Some(0.25)"];
        assert_eq!(told(&all), [expected.as_slice(), &["mean(a) None"]].concat());
        let apart = ["conv(input) None", "pool(conv) None", "pool.quantize(pool) Some(0.5)", "mean(a) None"];
        let has_all = |graph: &Network| apart.iter().all(|part| told(graph).iter().any(|node| node == part));
        assert!(has_all(&in_bytes(&graph, &shapes, |of| matches!(of, ByteWork::Conv(..)))));
        let Op::Conv2d(conv) = &mut graph.nodes[1].op else { panic!("no convolution") };
        conv.in_floats = true;
        assert!(has_all(&in_bytes(&graph, &shapes, |_| true)));
    }
}
