//! ResNet (arXiv:1512.03385) as torchvision has it: in a bottleneck the 3x3 convolution strides ("v1.5").

use super::Architecture;
use crate::error::Error;
use crate::graph::{Graph, GraphBuilder, ValueId, Window};
use crate::tensor::Shape;

/// The members of the family.
pub(super) static ALL: [ResNet; 5] = [
    ResNet { name: "resnet18", blocks: [2, 2, 2, 2], bottleneck: false },
    ResNet { name: "resnet34", blocks: [3, 4, 6, 3], bottleneck: false },
    ResNet { name: "resnet50", blocks: [3, 4, 6, 3], bottleneck: true },
    ResNet { name: "resnet101", blocks: [3, 4, 23, 3], bottleneck: true },
    ResNet { name: "resnet152", blocks: [3, 8, 36, 3], bottleneck: true },
];

pub(super) struct ResNet {
    name: &'static str,
    /// The number of blocks in each of the four layers.
    blocks: [usize; 4],
    /// Whether blocks have convolutions of 1x1, 3x3, 1x1 instead of 3x3, 3x3.
    bottleneck: bool,
}

const EPS: f64 = 1e-5;

impl Architecture for ResNet {
    fn name(&self) -> &'static str {
        self.name
    }

    fn default_input(&self) -> Shape {
        Shape::new(224, 224, 3)
    }

    fn classifier(&self) -> &'static str {
        "fc"
    }

    fn graph(&self, num_classes: usize, input: Shape) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let x = g.image("image", input);
        let x = g.conv2d("conv1", x, 64, Window::square(7, 2, 3));
        let x = g.batch_norm("bn1", x, EPS);
        let x = g.relu("relu", x);
        let mut x = g.max_pool("maxpool", x, Window::square(3, 2, 1));
        let mut channels = 64;
        for (layer, blocks) in self.blocks.into_iter().enumerate() {
            let width = 64 << layer;
            for block in 0..blocks {
                let stride = if layer > 0 && block == 0 { 2 } else { 1 };
                let mut block = Block { g: &mut g, prefix: format!("layer{}.{block}", layer + 1), channels, stride };
                x = if self.bottleneck { block.bottleneck(x, width) } else { block.basic(x, width) };
                channels = if self.bottleneck { 4 * width } else { width };
            }
        }
        let x = g.global_avg_pool("avgpool", x);
        let x = g.linear("fc", x, num_classes);
        g.output("logits", x);
        g.finish()
    }
}

/// A block in the making.
struct Block<'a> {
    g: &'a mut GraphBuilder,
    prefix: String,
    /// The number of input channels.
    channels: usize,
    stride: usize,
}

impl Block<'_> {
    fn basic(&mut self, x: ValueId, width: usize) -> ValueId {
        let shortcut = self.shortcut(x, width);
        let y = self.conv_norm("1", x, width, Window::square(3, self.stride, 1));
        let y = self.relu("relu1", y);
        let y = self.conv_norm("2", y, width, Window::square(3, 1, 1));
        let sum = self.add(y, shortcut);
        self.relu("relu2", sum)
    }

    fn bottleneck(&mut self, x: ValueId, width: usize) -> ValueId {
        let shortcut = self.shortcut(x, 4 * width);
        let y = self.conv_norm("1", x, width, Window::square(1, 1, 0));
        let y = self.relu("relu1", y);
        let y = self.conv_norm("2", y, width, Window::square(3, self.stride, 1));
        let y = self.relu("relu2", y);
        let y = self.conv_norm("3", y, 4 * width, Window::square(1, 1, 0));
        let sum = self.add(y, shortcut);
        self.relu("relu3", sum)
    }

    /// The block's input, or its projection. It is computed first, so that the input's memory is free after the first
    /// convolution of the main path, and the last convolution of the main path can add it.
    fn shortcut(&mut self, x: ValueId, out_channels: usize) -> ValueId {
        if self.stride == 1 && self.channels == out_channels {
            return x;
        }
        let name = |part| format!("{}.downsample.{part}", self.prefix);
        let x = self.g.conv2d(&name(0), x, out_channels, Window::square(1, self.stride, 0));
        self.g.batch_norm(&name(1), x, EPS)
    }

    fn conv_norm(&mut self, number: &str, x: ValueId, out_channels: usize, window: Window) -> ValueId {
        let x = self.g.conv2d(&format!("{}.conv{number}", self.prefix), x, out_channels, window);
        self.g.batch_norm(&format!("{}.bn{number}", self.prefix), x, EPS)
    }

    fn relu(&mut self, name: &str, x: ValueId) -> ValueId {
        self.g.relu(&format!("{}.{name}", self.prefix), x)
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.g.add(&format!("{}.add", self.prefix), a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL, Architecture, Shape};
    use crate::model::images::{Network, Op, Window};
    use crate::model::rewrite::optimize;
    use crate::model::shape::infer;

    fn graph(name: &str) -> Network {
        let member = ALL.iter().find(|net| net.name == name).unwrap();
        Network::of(&member.graph(1000, Shape::new(224, 224, 3)).unwrap()).unwrap()
    }

    #[test]
    fn layers_have_the_shapes_of_the_paper() {
        for (name, expansion) in [("resnet34", 1), ("resnet152", 4)] {
            let graph = graph(name);
            let shapes = infer(&graph).unwrap();
            let shape = |name: &str| shapes[graph.find(name).unwrap().0];
            assert_eq!(shape("maxpool"), Shape::new(56, 56, 64));
            for (layer, side) in [(1, 56), (2, 28), (3, 14), (4, 7)] {
                let expected = Shape::new(side, side, expansion * (32 << layer));
                assert_eq!(shape(&format!("layer{layer}.1.add")), expected, "{name}");
            }
        }
    }

    #[test]
    fn fused_it_is_convolutions_two_pools_and_a_classifier() {
        let optimized = optimize(&graph("resnet50"));
        let count = |kind| optimized.nodes.iter().filter(|node| node.op.kind() == kind).count();
        assert_eq!((count("conv2d"), optimized.nodes.len()), (53, 53 + 4));
        let residuals: Vec<&str> =
            optimized.nodes.iter().filter(|node| node.inputs.len() == 2).map(|node| node.name.as_str()).collect();
        assert_eq!(residuals.len(), 16);
        assert!(residuals.iter().all(|name| name.ends_with(".conv3")), "{residuals:?}");
        assert!(!optimized.nodes.iter().any(|node| matches!(node.op, Op::Add(_))));
    }

    #[test]
    fn the_three_by_three_strides() {
        let graph = graph("resnet50");
        let window = |name: &str| match &graph.nodes[graph.find(name).unwrap().0].op {
            Op::Conv2d(conv) => conv.window,
            op => panic!("{}", op.kind()),
        };
        assert_eq!(window("layer2.0.conv1"), Window::square(1, 1, 0));
        assert_eq!(window("layer2.0.conv2"), Window::square(3, 2, 1));
        assert_eq!(window("layer2.0.downsample.0"), Window::square(1, 2, 0));
        assert!(graph.find("layer1.0.downsample.0").is_some() && graph.find("layer1.1.downsample.0").is_none());
    }
}
