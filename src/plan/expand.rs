//! Which 1x1 convolutions are computed by the depthwise one that reads their result.

use std::collections::BTreeMap;

use super::depthwise::{self, DepthwiseShape, DepthwiseTile};
use super::sm90::ConvShape;
use super::{Kernel, Request, select};
use crate::model::{Conv2d, Graph, NodeId, Op, Pad};
use crate::tensor::Shape;

/// The 1x1 convolution of each depthwise one that computes it too, and the tile. A convolution is, if nothing else reads
/// its result, if it reads one tensor, pixel by pixel, and if the kernel for both takes less time than the better kernels
/// for each, or if it is chosen.
pub(super) fn expanded(
    graph: &Graph,
    shapes: &[Shape],
    request: &Request<'_>,
) -> BTreeMap<NodeId, (NodeId, DepthwiseTile)> {
    if !request.limits.has_sm90_kernels() {
        return BTreeMap::new();
    }
    let use_counts = graph.use_counts();
    let candidates = graph.nodes.iter().enumerate().filter_map(|(index, node)| match (&node.op, &node.inputs[..]) {
        (Op::Conv2d(conv), &[expand]) if is_depthwise(conv, shapes[expand.0]) && use_counts[expand.0] == 1 => {
            Some(Pair { graph, shapes, request, depthwise: NodeId(index), expand })
        }
        _ => None,
    });
    candidates
        .filter(Pair::is_possible)
        .filter_map(|pair| Some((pair.depthwise, (pair.expand, pair.tile()?))))
        .collect()
}

fn is_depthwise(conv: &Conv2d, input: Shape) -> bool {
    conv.groups > 1 && conv.groups == input.channels && conv.out_channels == input.channels
}

/// A depthwise convolution and the node whose result it reads.
struct Pair<'a> {
    graph: &'a Graph,
    shapes: &'a [Shape],
    request: &'a Request<'a>,
    depthwise: NodeId,
    expand: NodeId,
}

impl Pair<'_> {
    fn is_possible(&self) -> bool {
        let node = &self.graph.nodes[self.expand.0];
        let Op::Conv2d(Conv2d { window, groups: 1, .. }) = node.op else { return false };
        let none = Pad { top: 0, left: 0, bottom: 0, right: 0 };
        node.inputs.len() == 1 && window.size == [1; 2] && window.stride == [1; 2] && window.pad == none
    }

    /// The tile in which one kernel computes both, if it is chosen or pays.
    fn tile(&self) -> Option<DepthwiseTile> {
        let Request { limits, choices, .. } = *self.request;
        let both = self.shape(true);
        let chosen = [self.depthwise, self.expand].map(|id| choices.get(&self.graph.nodes[id.0].name));
        match chosen {
            [Some(&Kernel::Sm90Expand(tile)), None] => both.grid(tile, limits).map(|_| tile),
            [None, None] => {
                let (tile, together) = depthwise::tile(&both, limits)?;
                let (_, depthwise) = depthwise::tile(&self.shape(false), limits)?;
                (together < depthwise + self.expand_clocks()).then_some(tile)
            }
            _ => None,
        }
    }

    fn shape(&self, expands: bool) -> DepthwiseShape {
        let Op::Conv2d(Conv2d { window, .. }) = self.graph.nodes[self.depthwise.0].op else {
            unreachable!("a convolution, as was just seen")
        };
        let reads = if expands { self.graph.nodes[self.expand.0].inputs[0] } else { self.expand };
        let [input, output] = [reads, self.depthwise].map(|id| self.shapes[id.0]);
        DepthwiseShape::stored(self.request, input, output, window, expands)
    }

    /// Clocks of the 1x1 convolution by itself.
    fn expand_clocks(&self) -> f64 {
        let node = &self.graph.nodes[self.expand.0];
        let Op::Conv2d(Conv2d { window, .. }) = node.op else { unreachable!("a convolution, as was just seen") };
        let [input, output] = [node.inputs[0], self.expand].map(|id| self.shapes[id.0]);
        let shape = ConvShape::stored(self.request, input, output, window);
        let mnk = [self.request.batch * output.pixels(), output.channels, input.channels];
        select::conv_kernel(self.request.limits, &shape, mnk).1
    }
}
