//! Which convolutions are computed by the one that adds their result: its sum goes on over their products.

use std::collections::BTreeMap;

use super::lower::not_a_choice;
use super::sm90::{self, ConvShape};
use super::{Kernel, Request, select};
use crate::error::Error;
use crate::model::{Conv2d, Graph, NodeId, Op};
use crate::tensor::{Activation, Shape};

/// The joined convolution of each node that has one. A convolution is joined to the one that adds its result if nothing
/// else reads it, if it has no activation or residual of its own, and if the sm90 kernel takes less time for the sum
/// than the better kernels take for each, or if it is chosen.
pub(super) fn joined(
    graph: &Graph,
    shapes: &[Shape],
    request: &Request<'_>,
) -> Result<BTreeMap<NodeId, NodeId>, Error> {
    let use_counts = graph.use_counts();
    let candidates = graph.nodes.iter().enumerate().filter_map(|(index, node)| match (&node.op, &node.inputs[..]) {
        (Op::Conv2d(conv), &[_, added]) if conv.groups == 1 => Some((NodeId(index), added)),
        _ => None,
    });
    let mut joined = BTreeMap::new();
    for (host, added) in candidates {
        let name = &graph.nodes[added.0].name;
        let chosen = request.choices.get(name);
        let sum = Sum { graph, shapes, request, host, added };
        let possible = request.limits.has_sm90_kernels() && use_counts[added.0] == 1 && sum.is_possible();
        let wanted = match chosen {
            Some(Kernel::Joined) if !possible => return Err(not_a_choice(name, Kernel::Joined)),
            Some(kernel) => *kernel == Kernel::Joined,
            None => possible && sum.pays(),
        };
        if wanted {
            joined.insert(host, added);
        }
    }
    Ok(joined)
}

/// A convolution and the node whose result it adds.
struct Sum<'a> {
    graph: &'a Graph,
    shapes: &'a [Shape],
    request: &'a Request<'a>,
    host: NodeId,
    added: NodeId,
}

impl Sum<'_> {
    fn is_possible(&self) -> bool {
        let node = &self.graph.nodes[self.added.0];
        let joins = matches!(&node.op, Op::Conv2d(conv) if conv.groups == 1 && conv.activation == Activation::None);
        let takes = |id: NodeId| sm90::check(&self.conv(id).0).is_ok();
        let host = self.request.choices.get(&self.graph.nodes[self.host.0].name);
        joins
            && node.inputs.len() == 1
            && matches!(host, None | Some(Kernel::Sm90Conv { .. } | Kernel::Sm90Chain(_)))
            && takes(self.host)
            && takes(self.added)
    }

    fn pays(&self) -> bool {
        let limits = self.request.limits;
        let [(host, host_mnk), (added, added_mnk)] = [self.host, self.added].map(|id| self.conv(id));
        let apart = select::conv_kernel(limits, &host, host_mnk).1 + select::conv_kernel(limits, &added, added_mnk).1;
        select::sm90_kernel(limits, &[host, added]).is_some_and(|(_, together)| together < apart)
    }

    /// The shape of a convolution, and its matrix product's.
    fn conv(&self, id: NodeId) -> (ConvShape, [usize; 3]) {
        let node = &self.graph.nodes[id.0];
        let Op::Conv2d(Conv2d { window, .. }) = node.op else { unreachable!("a convolution, as was just seen") };
        let [input, output] = [self.shapes[node.inputs[0].0], self.shapes[id.0]];
        let m_gemm = self.request.batch * output.pixels();
        let k_gemm = window.size.iter().product::<usize>() * input.channels;
        let shape = ConvShape::stored(self.request, input, output, window);
        (shape, [m_gemm, output.channels, k_gemm])
    }
}
