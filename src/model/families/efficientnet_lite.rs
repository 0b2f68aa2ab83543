//! EfficientNet-Lite: MobileNet blocks with ReLU6 and without squeeze-and-excitation, by timm's names.
//!
//! The `tf_` variants carry TensorFlow's weights: "SAME" padding, which depends on the image's size and is one pixel
//! more below and to the right where it is odd, and an eps of 1e-3.

use super::Architecture;
use crate::error::Error;
use crate::graph::{Conv2d, Graph, GraphBuilder, ValueId, Window};
use crate::tensor::{Activation, Shape};

/// The members of the family: the side of the input, and the multipliers of width and depth.
pub(super) static ALL: [EfficientNetLite; 10] = [
    EfficientNetLite { name: "tf_efficientnet_lite0", side: 224, width: 1.0, depth: 1.0, same_pad: true },
    EfficientNetLite { name: "tf_efficientnet_lite1", side: 240, width: 1.0, depth: 1.1, same_pad: true },
    EfficientNetLite { name: "tf_efficientnet_lite2", side: 260, width: 1.1, depth: 1.2, same_pad: true },
    EfficientNetLite { name: "tf_efficientnet_lite3", side: 300, width: 1.2, depth: 1.4, same_pad: true },
    EfficientNetLite { name: "tf_efficientnet_lite4", side: 380, width: 1.4, depth: 1.8, same_pad: true },
    EfficientNetLite { name: "efficientnet_lite0", side: 224, width: 1.0, depth: 1.0, same_pad: false },
    EfficientNetLite { name: "efficientnet_lite1", side: 240, width: 1.0, depth: 1.1, same_pad: false },
    EfficientNetLite { name: "efficientnet_lite2", side: 260, width: 1.1, depth: 1.2, same_pad: false },
    EfficientNetLite { name: "efficientnet_lite3", side: 300, width: 1.2, depth: 1.4, same_pad: false },
    EfficientNetLite { name: "efficientnet_lite4", side: 380, width: 1.4, depth: 1.8, same_pad: false },
];

pub(super) struct EfficientNetLite {
    name: &'static str,
    side: usize,
    width: f64,
    depth: f64,
    /// Whether padding and eps are those of TensorFlow.
    same_pad: bool,
}

/// A row of the paper's table: blocks of one kind.
struct Stage {
    kernel: usize,
    stride: usize,
    expansion: usize,
    channels: usize,
    repeats: usize,
}

const STAGES: [Stage; 7] = [
    Stage { kernel: 3, stride: 1, expansion: 1, channels: 16, repeats: 1 },
    Stage { kernel: 3, stride: 2, expansion: 6, channels: 24, repeats: 2 },
    Stage { kernel: 5, stride: 2, expansion: 6, channels: 40, repeats: 2 },
    Stage { kernel: 3, stride: 2, expansion: 6, channels: 80, repeats: 3 },
    Stage { kernel: 5, stride: 1, expansion: 6, channels: 112, repeats: 3 },
    Stage { kernel: 5, stride: 2, expansion: 6, channels: 192, repeats: 4 },
    Stage { kernel: 3, stride: 1, expansion: 6, channels: 320, repeats: 1 },
];
/// The channels of stem and head, which are the same in all variants.
const STEM: usize = 32;
const HEAD: usize = 1280;

impl Architecture for EfficientNetLite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn default_input(&self) -> Shape {
        Shape::new(self.side, self.side, 3)
    }

    fn classifier(&self) -> &'static str {
        "classifier"
    }

    fn graph(&self, num_classes: usize, input: Shape) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let mut net = Net { x: g.image("image", input), g, shape: input, same_pad: self.same_pad };
        net.conv("conv_stem", STEM, 3, 2, false);
        net.norm("bn1", Activation::Relu6);
        for (i, stage) in STAGES.iter().enumerate() {
            let out_channels = round_to_8(self.width * stage.channels as f64);
            for block in 0..self.repeats(i) {
                let stride = if block == 0 { stage.stride } else { 1 };
                net.block(&format!("blocks.{i}.{block}"), stage, stride, out_channels);
            }
        }
        net.conv("conv_head", HEAD, 1, 1, false);
        net.norm("bn2", Activation::Relu6);
        let Net { mut g, x, .. } = net;
        let x = g.global_avg_pool("global_pool", x);
        let x = g.linear("classifier", x, num_classes);
        g.output("logits", x);
        g.finish()
    }
}

impl EfficientNetLite {
    /// The number of blocks of a stage. The first and the last stage do not grow with the depth.
    fn repeats(&self, stage: usize) -> usize {
        let plain = STAGES[stage].repeats;
        if stage == 0 || stage == STAGES.len() - 1 { plain } else { (self.depth * plain as f64).ceil() as usize }
    }
}

/// The nearest multiple of 8, or the next larger one if that is more than a tenth below `channels`.
fn round_to_8(channels: f64) -> usize {
    let rounded = ((channels + 4.0) as usize / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * channels { rounded + 8 } else { rounded }
}

/// A network in the making, with its last value and that value's shape.
struct Net {
    g: GraphBuilder,
    x: ValueId,
    shape: Shape,
    same_pad: bool,
}

impl Net {
    /// A depthwise separable block without expansion, otherwise an inverted residual block.
    fn block(&mut self, prefix: &str, stage: &Stage, stride: usize, out_channels: usize) {
        let (before, before_shape) = (self.x, self.shape);
        let name = |part: &str| format!("{prefix}.{part}");
        if stage.expansion == 1 {
            self.conv(&name("conv_dw"), before_shape.channels, stage.kernel, stride, true);
            self.norm(&name("bn1"), Activation::Relu6);
            self.conv(&name("conv_pw"), out_channels, 1, 1, false);
            self.norm(&name("bn2"), Activation::None);
        } else {
            let expanded = before_shape.channels * stage.expansion;
            self.conv(&name("conv_pw"), expanded, 1, 1, false);
            self.norm(&name("bn1"), Activation::Relu6);
            self.conv(&name("conv_dw"), expanded, stage.kernel, stride, true);
            self.norm(&name("bn2"), Activation::Relu6);
            self.conv(&name("conv_pwl"), out_channels, 1, 1, false);
            self.norm(&name("bn3"), Activation::None);
        }
        if stride == 1 && before_shape.channels == out_channels {
            self.x = self.g.add(&name("add"), self.x, before);
        }
    }

    fn conv(&mut self, name: &str, out_channels: usize, kernel: usize, stride: usize, depthwise: bool) {
        let Shape { height, width, .. } = self.shape;
        let pad = match self.same_pad {
            true => vec![same_pad(height, kernel, stride), same_pad(width, kernel, stride)],
            false => vec![[kernel / 2; 2]; 2],
        };
        let groups = if depthwise { out_channels } else { 1 };
        let window = Window { pad, ..Window::square(kernel, stride, 0) };
        self.x = self.g.conv2d_with(name, self.x, Conv2d { groups, ..Conv2d::named(name, out_channels, window) });
        // With an odd kernel, both kinds of padding give this size.
        self.shape = Shape::new(height.div_ceil(stride), width.div_ceil(stride), out_channels);
    }

    fn norm(&mut self, name: &str, activation: Activation) {
        let eps = if self.same_pad { 1e-3 } else { 1e-5 };
        self.x = self.g.batch_norm(name, self.x, eps);
        if activation != Activation::None {
            self.x = self.g.activation(&format!("{name}.act"), self.x, activation);
        }
    }
}

/// TensorFlow's "SAME" padding before and after: as much as ceil(pixels / stride) windows need.
fn same_pad(pixels: usize, kernel: usize, stride: usize) -> [usize; 2] {
    let last_window = pixels.div_ceil(stride).saturating_sub(1) * stride;
    let total = (last_window + kernel).saturating_sub(pixels);
    [total / 2, total - total / 2]
}

#[cfg(test)]
mod tests {
    use super::{ALL, Architecture, HEAD, Shape, round_to_8, same_pad};
    use crate::model::images::{Network, Op, Pad};
    use crate::model::shape::infer;

    fn graph(name: &str, input: Shape) -> Network {
        Network::of(&ALL.iter().find(|net| net.name == name).unwrap().graph(1000, input).unwrap()).unwrap()
    }

    fn pad(graph: &Network, name: &str) -> Pad {
        match &graph.nodes[graph.find(name).unwrap().0].op {
            Op::Conv2d(conv) => conv.window.pad,
            op => panic!("{}", op.kind()),
        }
    }

    #[test]
    fn same_padding_depends_on_the_size() {
        // The expected values are computed by hand from TensorFlow's formula.
        assert_eq!(same_pad(224, 3, 2), [0, 1]);
        assert_eq!(same_pad(225, 3, 2), [1, 1]);
        assert_eq!(same_pad(56, 5, 2), [1, 2]);
        assert_eq!(same_pad(7, 3, 1), [1, 1]);
        assert_eq!(same_pad(7, 1, 2), [0, 0]);
        assert_eq!(same_pad(1, 5, 2), [2, 2]);
        assert_eq!(same_pad(0, 3, 2), [1, 2]);
        let graph = graph("tf_efficientnet_lite0", Shape::new(224, 225, 3));
        assert_eq!(pad(&graph, "conv_stem"), Pad { top: 0, bottom: 1, left: 1, right: 1 });
    }

    #[test]
    fn tracked_sizes_are_the_inferred_ones() {
        for (name, input) in
            [("tf_efficientnet_lite2", Shape::new(97, 130, 3)), ("efficientnet_lite0", Shape::new(75, 64, 3))]
        {
            let graph = graph(name, input);
            let shapes = infer(&graph).unwrap();
            let shape = shapes[graph.find("conv_head").unwrap().0];
            assert_eq!(shape, Shape::new(input.height.div_ceil(32), input.width.div_ceil(32), HEAD), "{name}");
        }
    }

    #[test]
    fn blocks_of_lite0() {
        let graph = graph("tf_efficientnet_lite0", Shape::new(224, 224, 3));
        let shapes = infer(&graph).unwrap();
        let shape = |name: &str| shapes[graph.find(name).unwrap().0];
        assert_eq!(shape("blocks.0.0.conv_pw"), Shape::new(112, 112, 16));
        assert_eq!(shape("blocks.2.1.add"), Shape::new(28, 28, 40));
        assert_eq!(shape("blocks.5.3.conv_dw"), Shape::new(7, 7, 1152));
        assert_eq!(shape("blocks.6.0.bn3"), Shape::new(7, 7, 320));
        assert!(graph.find("blocks.6.1.conv_pw").is_none() && graph.find("blocks.6.0.add").is_none());
        assert!(graph.find("blocks.0.0.bn2.act").is_none() && graph.find("blocks.1.0.bn3.act").is_none());
        assert_eq!(graph.nodes.iter().filter(|node| node.op.kind() == "add").count(), 9);
        assert_eq!(pad(&self::graph("efficientnet_lite0", Shape::new(224, 224, 3)), "conv_stem"), Pad::all(1));
    }

    #[test]
    fn widths_are_rounded_as_in_timm() {
        let rounded = [16, 24, 40, 80, 112, 192, 320].map(|channels| round_to_8(1.4 * f64::from(channels)));
        assert_eq!(rounded, [24, 32, 56, 112, 160, 272, 448]);
        assert_eq!(round_to_8(1.1 * 24.0), 24);
    }
}
