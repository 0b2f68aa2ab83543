//! A quantised graph as it is computed: values in bytes or in floats, and conversions between them.

use super::graph::{Conv2d, Graph, Node, NodeId, Op};
use crate::tensor::{Activation, Shape};

/// The graph whose nodes with a scale are kept in bytes: the dense convolutions whose operands and result have scales and
/// which the device `takes`. Everything else is in floats. A node between the two has its value in the other form: an
/// activation that does nothing.
///
/// `graph` is rewritten, and `shapes` are those of its nodes.
pub(crate) fn in_bytes(graph: &Graph, shapes: &[Shape], takes: impl Fn(&Conv2d, Shape, Shape) -> bool) -> Graph {
    let has_scale = |id: &NodeId| graph.nodes[id.0].scale.is_some();
    let mut kept = Kept { graph, nodes: Vec::new(), ids: vec![[None; 2]; graph.nodes.len()] };
    for (index, node) in graph.nodes.iter().enumerate() {
        let is_in_bytes = match &node.op {
            Op::Conv2d(conv) => {
                let has_scales = node.inputs.iter().chain([&NodeId(index)]).all(has_scale);
                let is_one = conv.groups == 1 && !conv.in_floats && has_scales;
                is_one && takes(conv, shapes[node.inputs[0].0], shapes[index])
            }
            _ => false,
        };
        let inputs = node.inputs.iter().map(|&input| kept.get(input, is_in_bytes)).collect();
        kept.ids[index][usize::from(is_in_bytes)] = Some(NodeId(kept.nodes.len()));
        let mut op = node.op.clone();
        if let Op::Conv2d(conv) = &mut op {
            conv.in_floats = false; // it is decided
        }
        let (name, scale) = (node.name.clone(), node.scale.filter(|_| is_in_bytes));
        kept.nodes.push(Node { name, op, inputs, scale });
    }
    let output = kept.get(graph.output, false);
    Graph { nodes: kept.nodes, output, input: graph.input }
}

/// Nodes of a graph in both forms.
struct Kept<'a> {
    graph: &'a Graph,
    nodes: Vec<Node>,
    /// In floats, and in bytes, as far as something needs them.
    ids: Vec<[Option<NodeId>; 2]>,
}

impl Kept<'_> {
    /// A value in one of the forms.
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
    use crate::model::{GraphBuilder, Window, infer, optimize};

    /// A stem, a block with a residual, a pool of the sum: the value of the stem is read in both forms.
    fn graph() -> Graph {
        let single = Window::square(1, 1, 0);
        let mut g = GraphBuilder::new(Shape::new(8, 8, 3));
        let x = g.conv2d("stem", g.input(), 16, Window::square(3, 1, 1));
        let x = g.relu("relu", x);
        let a = g.conv2d("a", x, 16, single);
        let b = g.conv2d("b", a, 16, single);
        let sum = g.add("sum", b, x);
        let out = g.relu("out", sum);
        let both = g.concat("both", &[out, x]);
        for (id, scale) in [(x, 0.5), (a, 0.25), (out, 0.125)] {
            g.scale(id, scale);
        }
        g.finish(both).unwrap()
    }

    fn told(graph: &Graph) -> Vec<String> {
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
        let all = in_bytes(&graph, &shapes, |_, _, _| true);
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
        let none = in_bytes(&graph, &shapes, |_, _, _| false);
        assert!(none.nodes.iter().all(|node| node.scale.is_none()) && none.nodes.len() == graph.nodes.len());
        let one = in_bytes(&graph, &shapes, |conv, _, _| conv.filter == "b.weight");
        let expected = ["stem.quantize(stem) Some(0.5)", "a.quantize(a) Some(0.25)", "b.dequantize(b) None"];
        let told = told(&one);
        assert!(expected.iter().all(|part| told.iter().any(|node| node == part)), "{told:?}");
    }
}
