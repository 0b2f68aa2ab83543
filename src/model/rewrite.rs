//! Rewrites: functions from network to network that leave the computed values unchanged.
//!
//! Each fusion puts the combined node where the *later* of its parts stood, so that the order stays topological
//! without a search: everything that either part reads comes before. The earlier part is then dead.

use super::images::{Conv2d, Network, Node, NodeId, Op};
use crate::tensor::Activation;

/// The network with batch norms, activations and residual additions moved into the convolutions, where that is possible
/// without changing a value, and without the nodes that the result does not need.
///
/// A convolution keeps its name. What is fused: a batch norm into a convolution that nothing else reads; an activation
/// into a convolution or addition that nothing else reads; an addition into a dense convolution without activation
/// that nothing else reads, the other operand becoming its second input. If both operands would do, the later one
/// takes it.
///
/// The network must be well-formed ([`infer`](super::images::infer) accepts it), and so is the result.
///
/// ```
/// use trefoil::{Activation, Shape, graph::{GraphBuilder, Window}, model::images::{Network, Op, optimize}};
/// let mut g = GraphBuilder::new();
/// let image = g.image("image", Shape::new(8, 8, 16));
/// let x = g.conv2d("conv", image, 16, Window::square(3, 1, 1));
/// let x = g.batch_norm("bn", x, 1e-5);
/// let x = g.add("add", x, image);
/// let x = g.relu("relu", x);
/// g.output("y", x);
/// let network = optimize(&Network::of(&g.finish()?)?);
/// let Op::Conv2d(conv) = &network.nodes[1].op else { panic!() };
/// assert!(network.nodes.len() == 2 && network.nodes[1].inputs.len() == 2);
/// assert!(conv.norm.is_some() && conv.activation == Activation::Relu);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn optimize(graph: &Network) -> Network {
    optimize_of(graph).0
}

/// Rewrites `graph` like `optimize`; returns also, for each node of the result, the node of `graph` that has its value.
pub(super) fn optimize_of(graph: &Network) -> (Network, Vec<NodeId>) {
    let (mut graph, mut values) = graph.cut_of(graph.output);
    for fuse in [skip_identity, fold_batch_norm, fuse_activation, fuse_residual] {
        let (rewritten, kept) = rewrite(&graph, fuse);
        values = kept.into_iter().map(|id| values[id.0]).collect();
        graph = rewritten;
    }
    (graph, values)
}

/// The change of a node by a fusion.
enum Change {
    /// The node has the same value as this earlier one.
    Same(NodeId),
    /// The node becomes this one.
    Become(Box<Node>),
}

/// A graph being rewritten, front to back.
struct Rewriter {
    graph: Network,
    use_counts: Vec<usize>,
}

/// Offers each node in turn to `fuse`, then removes the nodes that no other node reads. Returns also, for each
/// remaining node, its node in `graph`.
fn rewrite(graph: &Network, fuse: fn(&Rewriter, &Node) -> Option<Change>) -> (Network, Vec<NodeId>) {
    let mut rewriter = Rewriter { use_counts: graph.use_counts(), graph: graph.clone() };
    let mut stands_for: Vec<NodeId> = (0..graph.nodes.len()).map(NodeId).collect();
    for i in 0..graph.nodes.len() {
        for input in &mut rewriter.graph.nodes[i].inputs {
            *input = stands_for[input.0];
        }
        match fuse(&rewriter, &rewriter.graph.nodes[i]) {
            Some(Change::Become(node)) => {
                let scale = rewriter.graph.nodes[i].scale;
                rewriter.graph.nodes[i] = Node { scale, ..*node };
            }
            Some(Change::Same(earlier)) => {
                rewriter.use_counts[earlier.0] += rewriter.use_counts[i] - 1;
                stands_for[i] = earlier;
            }
            None => {}
        }
    }
    let output = stands_for[rewriter.graph.output.0];
    rewriter.graph.cut_of(output)
}

/// Removes an activation that does nothing.
fn skip_identity(_: &Rewriter, node: &Node) -> Option<Change> {
    (node.op == Op::Activation(Activation::None)).then(|| Change::Same(node.inputs[0]))
}

/// Fuses a convolution and a batch norm into a convolution with a norm.
fn fold_batch_norm(rewriter: &Rewriter, node: &Node) -> Option<Change> {
    let Op::BatchNorm(norm) = &node.op else { return None };
    let (before, conv) = rewriter.sole_conv(node.inputs[0])?;
    if conv.norm.is_some() || before.inputs.len() != 1 {
        return None;
    }
    let conv = Conv2d { norm: Some(norm.clone()), ..conv.clone() };
    Some(Change::Become(Box::new(Node { op: Op::Conv2d(conv), ..before.clone() })))
}

/// Fuses a convolution or an addition and an activation into one operation with an activation.
fn fuse_activation(rewriter: &Rewriter, node: &Node) -> Option<Change> {
    let Op::Activation(activation) = node.op else { return None };
    let before = rewriter.sole(node.inputs[0])?;
    let op = match &before.op {
        Op::Conv2d(conv) if conv.activation == Activation::None => Op::Conv2d(Conv2d { activation, ..conv.clone() }),
        Op::Add(Activation::None) => Op::Add(activation),
        _ => return None,
    };
    Some(Change::Become(Box::new(Node { op, ..before.clone() })))
}

/// Fuses a convolution and an addition into a convolution with a residual and the addition's activation.
fn fuse_residual(rewriter: &Rewriter, node: &Node) -> Option<Change> {
    let Op::Add(activation) = node.op else { return None };
    let [a, b] = node.inputs[..] else { return None };
    let (later, earlier) = (a.max(b), a.min(b));
    [(later, earlier), (earlier, later)].into_iter().find_map(|(conv, residual)| {
        let (before, conv) = rewriter.sole_conv(conv)?;
        if conv.groups != 1 || before.inputs.len() != 1 {
            return None;
        }
        let op = Op::Conv2d(Conv2d { activation, ..conv.clone() });
        Some(Change::Become(Box::new(Node { op, inputs: vec![before.inputs[0], residual], ..before.clone() })))
    })
}

impl Rewriter {
    /// The node, if it is read only once.
    fn sole(&self, id: NodeId) -> Option<&Node> {
        (self.use_counts[id.0] == 1).then(|| &self.graph.nodes[id.0])
    }

    /// The node and its attributes, if it is a convolution without an activation and is read only once.
    fn sole_conv(&self, id: NodeId) -> Option<(&Node, &Conv2d)> {
        let node = self.sole(id)?;
        match &node.op {
            Op::Conv2d(conv) if conv.activation == Activation::None => Some((node, conv)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{self, GraphBuilder, ValueId, Window};
    use crate::model::interpreter::{Xorshift, evaluate, random_network, random_weights};
    use crate::model::shape::infer;
    use crate::tensor::Shape;

    fn names(graph: &Network) -> Vec<&str> {
        graph.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    fn conv_of<'a>(graph: &'a Network, name: &str) -> (&'a Node, &'a Conv2d) {
        let node = &graph.nodes[graph.find(name).unwrap().0];
        match &node.op {
            Op::Conv2d(conv) => (node, conv),
            other => panic!("{name} is {}", other.kind()),
        }
    }

    fn found(mut g: GraphBuilder, y: ValueId) -> Network {
        g.output("y", y);
        Network::of(&g.finish().unwrap()).unwrap()
    }

    /// The block of a ResNet: conv1 bn1 relu1, conv2 bn2 | down downbn, add, relu2.
    fn block(down_first: bool) -> Network {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(6, 6, 3));
        let window = &Window::square(3, 1, 1);
        let shortcut = |g: &mut GraphBuilder| {
            let x = g.conv2d("down", image, 4, Window::square(1, 1, 0));
            g.batch_norm("downbn", x, 1e-5)
        };
        let main = |g: &mut GraphBuilder| {
            let x = g.conv2d("conv1", image, 4, window);
            let x = g.batch_norm("bn1", x, 1e-5);
            let x = g.relu("relu1", x);
            let x = g.conv2d("conv2", x, 4, window);
            g.batch_norm("bn2", x, 1e-5)
        };
        let (a, b) = if down_first {
            let b = shortcut(&mut g);
            (main(&mut g), b)
        } else {
            (main(&mut g), shortcut(&mut g))
        };
        let x = g.add("add", a, b);
        let x = g.relu("relu2", x);
        found(g, x)
    }

    #[test]
    fn a_residual_block_becomes_its_convolutions() {
        let graph = optimize(&block(true));
        assert_eq!(names(&graph), ["input", "down", "conv1", "conv2"]);
        let (node, conv) = conv_of(&graph, "conv2");
        assert_eq!(node.inputs, [NodeId(2), NodeId(1)]);
        assert!(conv.norm.is_some() && conv.activation == Activation::Relu);
        let (node, conv) = conv_of(&graph, "down");
        assert!(node.inputs.len() == 1 && conv.norm.is_some() && conv.activation == Activation::None);
        let graph = optimize(&block(false));
        assert_eq!(names(&graph), ["input", "conv1", "conv2", "down"]);
        assert_eq!(conv_of(&graph, "down").0.inputs, [NodeId(0), NodeId(2)]);
        assert_eq!(optimize(&graph), graph);
    }

    #[test]
    fn a_cut_keeps_the_value_it_was_cut_at() {
        let graph = block(true);
        let cut = |name| optimize(&graph.cut(graph.find(name).unwrap()));
        assert!(conv_of(&cut("conv2"), "conv2").1.norm.is_none());
        assert_eq!(conv_of(&cut("bn2"), "conv2").1.activation, Activation::None);
        assert_eq!(conv_of(&cut("add"), "conv2").1.activation, Activation::None);
        assert_eq!(cut("input").nodes.len(), 1);
    }

    #[test]
    fn what_somebody_else_reads_stays() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(4, 4, 2));
        let conv = g.conv2d("conv", image, 2, Window::square(1, 1, 0));
        let relu = g.relu("relu", conv);
        let twice = g.add("twice", conv, conv);
        let sum = g.add("sum", relu, twice);
        let network = found(g, sum);
        assert_eq!(network.nodes.len(), 5);
        assert_eq!(optimize(&network), network);
    }

    #[test]
    fn an_activated_or_depthwise_convolution_takes_no_residual() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(4, 4, 2));
        let depthwise = graph::Conv2d { groups: 2, ..graph::Conv2d::named("dw", 2, Window::square(3, 1, 1)) };
        let dw = g.conv2d_with("dw", image, depthwise);
        let conv = g.conv2d("conv", image, 2, Window::square(1, 1, 0));
        let relu = g.relu("relu", conv);
        let sum = g.add("sum", dw, relu);
        let graph = optimize(&found(g, sum));
        assert_eq!(names(&graph), ["input", "dw", "conv", "sum"]);
    }

    #[test]
    fn an_earlier_convolution_moves_to_the_addition() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(4, 4, 2));
        let conv = g.conv2d("conv", image, 2, Window::square(1, 1, 0));
        let pool = g.max_pool("pool", image, Window::square(3, 1, 1));
        let sum = g.add("sum", pool, conv);
        let graph = optimize(&found(g, sum));
        assert_eq!(names(&graph), ["input", "pool", "conv"]);
        assert_eq!(graph.nodes[2].inputs, [NodeId(0), NodeId(1)]);
    }

    #[test]
    fn identities_vanish() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(4, 4, 2));
        let conv = g.conv2d("conv", image, 2, Window::square(1, 1, 0));
        let same = g.relu("same", conv);
        let again = g.relu("again", same);
        let relu = g.relu("relu", again);
        let sum = g.add("sum", relu, same);
        let mut network = found(g, sum);
        let [same, again] = ["same", "again"].map(|name| network.find(name).unwrap());
        for id in [same, again] {
            network.nodes[id.0].op = Op::Activation(Activation::None);
        }
        assert_eq!(names(&optimize(&network)), ["input", "conv", "relu", "sum"]);
        assert_eq!(names(&optimize(&network.cut(again))), ["input", "conv"]);
    }

    /// Random graphs, cut at every node: the rewritten graph has the same value within rounding and is well-formed, and
    /// a second rewrite changes nothing.
    #[test]
    fn values_are_unchanged() {
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        let (mut norms, mut activations, mut residuals) = (0, 0, 0);
        for _ in 0..300 {
            let graph = random_network(&mut random);
            let weights = random_weights(&graph, &mut random);
            let input: Vec<f64> = (0..graph.input.elems()).map(|_| random.signed()).collect();
            let values = evaluate(&graph, &weights, &input);
            for at in (0..graph.nodes.len()).map(NodeId) {
                let cut = graph.cut(at);
                let optimized = optimize(&cut);
                let shapes = infer(&optimized).unwrap();
                assert_eq!(shapes[optimized.output.0], infer(&cut).unwrap()[cut.output.0]);
                assert_eq!(optimize(&optimized), optimized, "a second go changed something");
                for node in &optimized.nodes {
                    if let Op::Conv2d(conv) = &node.op {
                        norms += usize::from(conv.norm.is_some());
                        activations += usize::from(conv.activation != Activation::None);
                        residuals += usize::from(node.inputs.len() == 2);
                    }
                }
                let found = &evaluate(&optimized, &weights, &input)[optimized.output.0];
                let expected = &values[at.0];
                // The fused graph does the same f64 operations in another grouping.
                let scale = expected.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let close = (found - expected).abs() <= 1e-9 * scale;
                    assert!(close, "element {i} of {at:?}: {found} instead of {expected}\n{graph:#?}");
                }
            }
        }
        let fused = [norms, activations, residuals];
        assert!(fused.into_iter().all(|count| count > 50), "{fused:?} fusions: the graphs are too dull");
    }
}
