//! A network's first layers, if they can be computed from the bytes of photos.

use super::images::{Network, NodeId, Op, Pad, Pool, Window};
use crate::tensor::Activation;

/// The convolution that reads the image, and the maximum over windows of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstLayers {
    pub(crate) conv: NodeId,
    pub(crate) pool: NodeId,
}

/// The first layers of a rewritten graph: a dense convolution of three channels with 7x7 windows and stride 2 to 16,
/// 32, 48 or 64 channels, and the maximum over 3x3 windows of its result with stride 2 and padding 1. `None` if there
/// are no such layers, or if another node reads the image or the convolution's result.
pub(crate) fn first_layers(graph: &Network) -> Option<FirstLayers> {
    let use_counts = graph.use_counts();
    let reader = |of: NodeId| {
        let index = graph.nodes.iter().position(|node| node.inputs == [of])?;
        (use_counts[of.0] == 1).then_some(NodeId(index))
    };
    let conv = reader(NodeId(0))?;
    let Op::Conv2d(attributes) = &graph.nodes[conv.0].op else { return None };
    let Window { size, stride, dilation, .. } = attributes.window;
    let channels = attributes.out_channels;
    let is_one = [size, stride, dilation] == [[7; 2], [2; 2], [1; 2]]
        && (graph.input.channels, attributes.groups) == (3, 1)
        && channels.is_multiple_of(16)
        && (16..=64).contains(&channels)
        && matches!(attributes.activation, Activation::None | Activation::Relu);
    let pool = reader(conv).filter(|_| is_one)?;
    match &graph.nodes[pool.0].op {
        Op::MaxPool(Pool { window, .. }) if overlaps_its_neighbour(*window) => Some(FirstLayers { conv, pool }),
        _ => None,
    }
}

/// Whether a pooling window is 3x3 with stride 2 and begins one pixel outside of the image.
pub(crate) fn overlaps_its_neighbour(window: Window) -> bool {
    let Window { size, stride, dilation, pad: Pad { top, left, bottom, right } } = window;
    size == [3; 2] && stride == [2; 2] && dilation == [1; 2] && [top, left] == [1; 2] && bottom.max(right) <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{self, GraphBuilder};
    use crate::model::optimize;
    use crate::tensor::Shape;

    /// Whether first layers are found in a graph with these windows, in which another node may read the image or the
    /// convolution.
    fn found(channels: [usize; 2], conv: &graph::Window, pool: &graph::Window, other_reads: Option<&str>) -> bool {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(32, 32, channels[0]));
        let x = g.conv2d("conv", image, channels[1], conv);
        let x = g.batch_norm("bn", x, 1e-5);
        let x = g.relu("relu", x);
        let y = g.max_pool("pool", x, pool);
        let other = match other_reads {
            Some("image") => g.conv2d("other", image, channels[1], graph::Window::square(4, 4, 0)),
            Some(_) => g.max_pool("other", x, graph::Window::square(2, 2, 0)),
            None => y,
        };
        let y = g.add("sum", y, other);
        g.output("y", y);
        first_layers(&optimize(&Network::of(&g.finish().unwrap()).unwrap())).is_some()
    }

    #[test]
    fn first_layers_are_those_of_a_resnet() {
        let (conv, pool) = (&graph::Window::square(7, 2, 3), &graph::Window::square(3, 2, 1));
        let network = optimize(&Network::of(&crate::model::architecture("resnet50", 1000, None).unwrap()).unwrap());
        let layers = first_layers(&network).unwrap();
        assert_eq!([layers.conv, layers.pool].map(|id| &*network.nodes[id.0].name), ["conv1", "maxpool"]);
        let is_so = |channels| found(channels, conv, pool, None);
        assert!(is_so([3, 64]) && is_so([3, 16]) && !is_so([3, 24]) && !is_so([3, 80]) && !is_so([1, 64]));
        assert!(!found([3, 64], &graph::Window::square(7, 2, 0), &graph::Window::square(2, 2, 0), None));
        let dilated = graph::Window { dilation: vec![2; 2], ..conv.clone() };
        assert!(!found([3, 64], &dilated, pool, None));
        assert!(!found([3, 64], conv, pool, Some("image")) && !found([3, 64], conv, pool, Some("conv")));
    }
}
