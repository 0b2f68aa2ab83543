//! The values that are written directly into the result of a concatenation, so that it needs no step of its own.

use super::Family;
use crate::error::Error;
use crate::model::images::Network;
use crate::model::{NodeId, Op};
use crate::tensor::Shape;

/// The place of a value within a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConcatPart {
    /// The concatenation's node.
    pub of: NodeId,
    /// The first channel of the value in the concatenation.
    pub first_channel: usize,
}

/// For each node, the part of a concatenation that it writes; `None` if it writes a tensor of its own. A node writes a
/// part if no other node reads its value and its kernels can write some of a pixel's channels. Other operands are
/// copied.
///
/// # Errors
/// [`Error::Unsupported`] where an operand would begin between two channels that are stored together.
pub(super) fn parts(graph: &Network, shapes: &[Shape], family: Family) -> Result<Vec<Option<ConcatPart>>, Error> {
    let use_counts = graph.use_counts();
    let mut parts = vec![None; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op == Op::Concat) {
        for (input, first_channel) in node.inputs.iter().zip(first_channels(graph, shapes, index)) {
            let align = family.channel_align();
            if !first_channel.is_multiple_of(align) {
                return Err(Error::Unsupported {
                    what: format!("node `{}`: an operand that begins at channel {first_channel}", node.name),
                    instead: format!("let all operands but the last have a multiple of {align} channels"),
                });
            }
            if use_counts[input.0] == 1 && writes_parts(&graph.nodes[input.0].op) {
                parts[input.0] = Some(ConcatPart { of: NodeId(index), first_channel });
            }
        }
    }
    Ok(parts)
}

/// The channel at which each operand of a concatenation begins.
pub(super) fn first_channels(graph: &Network, shapes: &[Shape], concat: usize) -> Vec<usize> {
    let begins = graph.nodes[concat].inputs.iter().scan(0, |next, input| {
        let first = *next;
        *next += shapes[input.0].channels;
        Some(first)
    });
    begins.collect()
}

/// Whether the kernels of an operation can write pixels that have more channels than their own.
fn writes_parts(op: &Op) -> bool {
    match op {
        Op::Conv2d(conv) => conv.groups == 1,
        Op::MaxPool(_) | Op::AvgPool(_) | Op::Add(_) | Op::Activation(_) | Op::Concat => true,
        Op::Input | Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_) => false,
        Op::BatchNorm(_) | Op::GlobalAvgPool | Op::Linear(_) => false,
    }
}
