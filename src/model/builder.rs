//! Building a graph in code.

use super::graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pool, Window};
use super::shape::infer;
use crate::error::Error;
use crate::tensor::{Activation, Shape};

/// Builds a [`Graph`] node by node.
///
/// Each method adds one node and returns its id. A node's name is also the prefix of its tensors' names, as in a
/// PyTorch state dict: node `fc` reads `fc.weight` and `fc.bias`. Mistakes are reported by [`finish`](Self::finish).
///
/// ```
/// use trefoil::{Shape, model::{GraphBuilder, Window}};
/// let mut g = GraphBuilder::new(Shape::new(28, 28, 1));
/// let x = g.conv2d("conv1", g.input(), 32, Window::square(3, 1, 1));
/// let x = g.batch_norm("bn1", x, 1e-5);
/// let x = g.relu("relu1", x);
/// let x = g.global_avg_pool("pool", x);
/// let x = g.linear("fc", x, 10);
/// let graph = g.finish(x)?;
/// assert_eq!(graph.nodes.len(), 6);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    nodes: Vec<Node>,
    input: Shape,
}

impl GraphBuilder {
    /// A graph of one node, called `input`, that reads images of this shape.
    pub fn new(input: Shape) -> Self {
        let node = Node { name: "input".into(), op: Op::Input, inputs: vec![], scale: None };
        Self { nodes: vec![node], input }
    }

    /// The input's node.
    pub const fn input(&self) -> NodeId {
        NodeId(0)
    }

    /// Adds any operation.
    pub fn node(&mut self, name: impl Into<String>, op: Op, inputs: &[NodeId]) -> NodeId {
        self.nodes.push(Node { name: name.into(), op, inputs: inputs.to_vec(), scale: None });
        NodeId(self.nodes.len() - 1)
    }

    /// Adds a dense convolution without bias.
    pub fn conv2d(&mut self, name: &str, x: NodeId, out_channels: usize, window: Window) -> NodeId {
        self.conv2d_with(name, x, Conv2d::named(name, out_channels, window))
    }

    /// Adds a convolution with any attributes: a bias, groups, other tensor names.
    ///
    /// ```
    /// use trefoil::{Shape, model::{Conv2d, GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new(Shape::new(8, 8, 16));
    /// let depthwise = Conv2d { groups: 16, ..Conv2d::named("dw", 16, Window::square(3, 1, 1)) };
    /// let x = g.conv2d_with("dw", g.input(), depthwise);
    /// g.finish(x)?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn conv2d_with(&mut self, name: &str, x: NodeId, conv: Conv2d) -> NodeId {
        self.node(name, Op::Conv2d(conv), &[x])
    }

    /// Adds an inference-mode batch normalisation.
    pub fn batch_norm(&mut self, name: &str, x: NodeId, eps: f64) -> NodeId {
        self.node(name, Op::BatchNorm(BatchNorm::named(name, eps)), &[x])
    }

    /// Adds an elementwise activation.
    pub fn activation(&mut self, name: &str, x: NodeId, activation: Activation) -> NodeId {
        self.node(name, Op::Activation(activation), &[x])
    }

    /// Adds max(x, 0).
    pub fn relu(&mut self, name: &str, x: NodeId) -> NodeId {
        self.activation(name, x, Activation::Relu)
    }

    /// Adds min(max(x, 0), 6).
    pub fn relu6(&mut self, name: &str, x: NodeId) -> NodeId {
        self.activation(name, x, Activation::Relu6)
    }

    /// Adds the elementwise sum of two values of one shape.
    pub fn add(&mut self, name: &str, a: NodeId, b: NodeId) -> NodeId {
        self.node(name, Op::Add(Activation::None), &[a, b])
    }

    /// Adds the maximum over windows; padding never wins.
    pub fn max_pool(&mut self, name: &str, x: NodeId, window: Window) -> NodeId {
        self.node(name, Op::MaxPool(Pool { window, count_pad: false }), &[x])
    }

    /// Adds the mean over windows; `count_pad` says whether padded pixels count in the divisor.
    pub fn avg_pool(&mut self, name: &str, x: NodeId, window: Window, count_pad: bool) -> NodeId {
        self.node(name, Op::AvgPool(Pool { window, count_pad }), &[x])
    }

    /// Adds the mean over all pixels.
    pub fn global_avg_pool(&mut self, name: &str, x: NodeId) -> NodeId {
        self.node(name, Op::GlobalAvgPool, &[x])
    }

    /// Adds the channels of several values of one height and width, one after the other.
    ///
    /// ```
    /// use trefoil::{Shape, model::{GraphBuilder, Window, infer}};
    /// let mut g = GraphBuilder::new(Shape::new(8, 8, 16));
    /// let a = g.conv2d("a", g.input(), 24, Window::square(1, 1, 0));
    /// let b = g.conv2d("b", g.input(), 8, Window::square(3, 1, 1));
    /// let both = g.concat("both", &[a, b]);
    /// assert_eq!(infer(&g.finish(both)?)?[both.0], Shape::new(8, 8, 32));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn concat(&mut self, name: &str, values: &[NodeId]) -> NodeId {
        self.node(name, Op::Concat, values)
    }

    /// Adds a fully connected layer with bias.
    pub fn linear(&mut self, name: &str, x: NodeId, out_features: usize) -> NodeId {
        self.node(name, Op::Linear(Linear::named(name, out_features)), &[x])
    }

    /// Lets a node's value be kept in bytes of this scale, where what reads it is computed in bytes.
    ///
    /// ```
    /// use trefoil::{Shape, model::{GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new(Shape::new(8, 8, 16));
    /// g.scale(g.input(), 0.02);
    /// let x = g.conv2d("conv", g.input(), 32, Window::square(3, 1, 1));
    /// let x = g.relu("relu", x);
    /// g.scale(x, 0.05); // 255 steps of it are 12.75
    /// g.finish(x)?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such node.
    pub fn scale(&mut self, node: NodeId, scale: f32) {
        self.nodes[node.0].scale = Some(scale);
    }

    /// The graph whose result is `output`.
    ///
    /// # Errors
    ///
    /// [`Error::Graph`] with the node's name if the graph is not well-formed; see [`infer`].
    pub fn finish(self, output: NodeId) -> Result<Graph, Error> {
        let graph = Graph { nodes: self.nodes, output, input: self.input };
        infer(&graph)?;
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_surface_in_finish() {
        let mut g = GraphBuilder::new(Shape::new(4, 4, 2));
        let a = g.conv2d("a", g.input(), 3, Window::square(1, 1, 0));
        let sum = g.add("sum", a, g.input());
        match g.finish(sum) {
            Err(Error::Graph { node, what }) => assert!(node == "sum" && what.contains("4x4x3 and 4x4x2"), "{what}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_id_of_another_builder_is_an_error() {
        let mut g = GraphBuilder::new(Shape::new(4, 4, 2));
        let x = g.relu("relu", NodeId(7));
        assert!(matches!(g.finish(x), Err(Error::Graph { node, .. }) if node == "relu"));
        assert!(matches!(GraphBuilder::new(Shape::vector(1)).finish(NodeId(3)), Err(Error::Graph { .. })));
    }

    #[test]
    fn names_follow_the_module() {
        let mut g = GraphBuilder::new(Shape::new(4, 4, 2));
        let x = g.conv2d("layer1.0.conv1", g.input(), 3, Window::square(1, 1, 0));
        let x = g.batch_norm("layer1.0.bn1", x, 1e-5);
        let graph = g.finish(x).unwrap();
        let names: Vec<_> = super::super::shape::params(&graph).unwrap().into_iter().map(|(name, _)| name).collect();
        let expected = ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"];
        assert_eq!(names, expected.map(|name| format!("layer1.0.{name}")));
    }
}
