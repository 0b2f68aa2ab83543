//! GoogLeNet: blocks of four branches whose channels are put side by side, by torchvision's names.
//!
//! As in torchvision, each convolution has a batch norm, and the window of the third branch is 3x3 where the paper has
//! 5x5.

use super::Architecture;
use crate::error::Error;
use crate::graph::{Graph, GraphBuilder, ValueId, Window};
use crate::tensor::Shape;

/// The family's only member.
pub(super) static ALL: [GoogLeNet; 1] = [GoogLeNet];

pub(super) struct GoogLeNet;

const EPS: f64 = 1e-3;

/// A block: the end of its name, and the output channels of its convolutions: 1x1 | 1x1, 3x3 | 1x1, 3x3 | maximum, 1x1.
type Block = (&'static str, [usize; 6]);

/// The blocks between two maxima.
const STAGES: [&[Block]; 3] = [
    &[("3a", [64, 96, 128, 16, 32, 32]), ("3b", [128, 128, 192, 32, 96, 64])],
    &[
        ("4a", [192, 96, 208, 16, 48, 64]),
        ("4b", [160, 112, 224, 24, 64, 64]),
        ("4c", [128, 128, 256, 24, 64, 64]),
        ("4d", [112, 144, 288, 32, 64, 64]),
        ("4e", [256, 160, 320, 32, 128, 128]),
    ],
    &[("5a", [256, 160, 320, 32, 128, 128]), ("5b", [384, 192, 384, 48, 128, 128])],
];

impl Architecture for GoogLeNet {
    fn name(&self) -> &'static str {
        "googlenet"
    }

    fn default_input(&self) -> Shape {
        Shape::new(224, 224, 3)
    }

    fn classifier(&self) -> &'static str {
        "fc"
    }

    fn training_only(&self) -> &'static [&'static str] {
        &["aux1.", "aux2."]
    }

    fn graph(&self, num_classes: usize, input: Shape) -> Result<Graph, Error> {
        let mut net = Net { g: GraphBuilder::new(), sides: [input.height, input.width] };
        let x = net.g.image("image", input);
        let x = net.conv("conv1", x, 64, &Window::square(7, 2, 3));
        let x = net.max_pool("maxpool1", x, 3);
        let x = net.conv("conv2", x, 64, &Window::square(1, 1, 0));
        let x = net.conv("conv3", x, 192, &Window::square(3, 1, 1));
        let mut x = net.max_pool("maxpool2", x, 3);
        for ((blocks, number), pool) in STAGES.into_iter().zip(3..).zip([Some(3), Some(2), None]) {
            for (name, channels) in blocks {
                x = net.inception(&format!("inception{name}"), x, channels);
            }
            if let Some(size) = pool {
                x = net.max_pool(&format!("maxpool{number}"), x, size);
            }
        }
        let x = net.g.global_avg_pool("avgpool", x);
        let x = net.g.linear("fc", x, num_classes);
        net.g.output("logits", x);
        net.g.finish()
    }
}

/// A network in the making, with the height and width of its last value.
struct Net {
    g: GraphBuilder,
    sides: [usize; 2],
}

impl Net {
    fn inception(&mut self, name: &str, x: ValueId, channels: &[usize; 6]) -> ValueId {
        let branch = |part: &str| format!("{name}.branch{part}");
        let (one, three) = (&Window::square(1, 1, 0), &Window::square(3, 1, 1));
        let first = self.conv(&branch("1"), x, channels[0], one);
        let second = self.conv(&branch("2.0"), x, channels[1], one);
        let second = self.conv(&branch("2.1"), second, channels[2], three);
        let third = self.conv(&branch("3.0"), x, channels[3], one);
        let third = self.conv(&branch("3.1"), third, channels[4], three);
        let fourth = self.g.max_pool(&branch("4.0"), x, three);
        let fourth = self.conv(&branch("4.1"), fourth, channels[5], one);
        self.g.concat(name, &[first, second, third, fourth])
    }

    fn conv(&mut self, name: &str, x: ValueId, out_channels: usize, window: &Window) -> ValueId {
        if window.stride[0] == 2 {
            self.sides = self.sides.map(|pixels| pixels.div_ceil(2));
        }
        let x = self.g.conv2d(&format!("{name}.conv"), x, out_channels, window);
        let x = self.g.batch_norm(&format!("{name}.bn"), x, EPS);
        self.g.relu(&format!("{name}.relu"), x)
    }

    /// The maximum over windows with stride 2. The last window may begin in the image and end beyond it.
    fn max_pool(&mut self, name: &str, x: ValueId, size: usize) -> ValueId {
        let windows = self.sides.map(|pixels| pixels.saturating_sub(size).div_ceil(2) + 1);
        let beyond = |axis: usize| ((windows[axis] - 1) * 2 + size).saturating_sub(self.sides[axis]);
        let pad = vec![[0, beyond(0)], [0, beyond(1)]];
        self.sides = windows;
        self.g.max_pool(name, x, Window { pad, ..Window::square(size, 2, 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::{Network, Op};
    use crate::model::shape::infer;

    #[test]
    fn blocks_have_the_shapes_of_the_paper() {
        let graph = Network::of(&GoogLeNet.graph(1000, Shape::new(224, 224, 3)).unwrap()).unwrap();
        let shapes = infer(&graph).unwrap();
        let shape = |name: &str| shapes[graph.find(name).unwrap().0];
        for (name, expected) in [
            ("maxpool1", Shape::new(56, 56, 64)),
            ("maxpool2", Shape::new(28, 28, 192)),
            ("inception3b", Shape::new(28, 28, 480)),
            ("inception4a", Shape::new(14, 14, 512)),
            ("inception4e", Shape::new(14, 14, 832)),
            ("inception5b", Shape::new(7, 7, 1024)),
        ] {
            assert_eq!(shape(name), expected, "{name}");
        }
    }

    /// The expected sides are computed by hand from torch's formula for `ceil_mode`.
    #[test]
    fn the_last_window_may_end_beyond_the_image() {
        for (side, sides) in [(224, [56, 28, 14, 7]), (97, [24, 12, 6, 3]), (15, [4, 2, 1, 1])] {
            let graph = Network::of(&GoogLeNet.graph(10, Shape::new(side, side, 3)).unwrap()).unwrap();
            let shapes = infer(&graph).unwrap();
            let pools = (1..).map(|i| format!("maxpool{i}")).take(4);
            let found: Vec<usize> = pools.map(|name| shapes[graph.find(&name).unwrap().0].height).collect();
            assert_eq!(found, sides, "{side}");
        }
    }

    #[test]
    fn branches_are_read_by_their_block_alone() {
        let graph = crate::model::rewrite::optimize(
            &Network::of(&GoogLeNet.graph(1000, Shape::new(224, 224, 3)).unwrap()).unwrap(),
        );
        let uses = graph.use_counts();
        let blocks: Vec<_> = graph.nodes.iter().filter(|node| node.op == Op::Concat).collect();
        assert_eq!(blocks.len(), 9);
        for branch in blocks.iter().flat_map(|block| &block.inputs) {
            assert!(matches!(graph.nodes[branch.0].op, Op::Conv2d(_)) && uses[branch.0] == 1);
        }
    }
}
