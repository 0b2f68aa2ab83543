//! Convolutions followed by an activation other than a bound, which their kernels apply before they write.

use super::epilogue::Epilogue;
use super::product::{behind, pass_clocks};
use super::{Context, Found, Read};
use crate::graph::{NodeId, Op, ValueId};
use crate::model::Conv2d;
use crate::plan::values::layers::{self, image, layer};
use crate::plan::{ProductActivation, StepOp};
use crate::tensor::{Activation, Dtype};

/// The convolution at node `at` together with the activation that follows it, and the last node, if a kernel computes
/// both in less time than a kernel and a loop.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Activated { conv, clocks, last, writes } = Activated::of(context, at)?;
    let node = &context.graph.nodes[at.0];
    let plain = Conv2d { activation: Activation::None, ..conv.clone() };
    let apart = clocks_of(context, at, &plain).zip(pass_clocks(context.graph.value(writes).elems(), context.limits));
    let is_sooner = apart.is_none_or(|(kernel, pass)| clocks <= kernel + pass);
    let reads = vec![Read::Half(node.inputs[0]?)];
    is_sooner.then_some((last, Found { op: StepOp::Conv(conv), named: at, reads, writes, beside: None }))
}

/// Clocks of a kernel that computes a convolution and the activation that follows it; `None` if there is no such
/// kernel.
pub(super) fn clocks(context: &Context<'_>, at: NodeId) -> Option<f64> {
    Activated::of(context, at).map(|of| of.clocks)
}

/// A convolution with its activation, and the clocks of its kernel.
struct Activated {
    conv: Conv2d,
    clocks: f64,
    last: NodeId,
    writes: ValueId,
}

impl Activated {
    fn of(context: &Context<'_>, at: NodeId) -> Option<Self> {
        let Context { graph, dtype, batch, .. } = *context;
        let node = &graph.nodes[at.0];
        let (Op::Conv(_), Dtype::F16, Some(conv)) = (&node.op, dtype, layer(graph, node)) else { return None };
        let (x, y) = (node.inputs[0]?, node.outputs[0]);
        let is_of_rows = |id: ValueId| {
            let of = graph.value(id);
            of.dtype == Dtype::F32 && of.dims[0] == batch && of.elems() > 0
        };
        if ![x, y].into_iter().all(is_of_rows) {
            return None;
        }
        let own = node.inputs.get(2).copied().flatten();
        // If a reshape follows, its result may have other dimensions than the image of the convolution.
        let is_applied = |of: &Epilogue, value: ValueId| {
            let alone = Epilogue { activation: of.activation, ..Epilogue::default() };
            *of == alone && applied(of.activation).is_some() && graph.value(value).dims == graph.value(y).dims
        };
        let (last, writes, epilogue) = behind(context, at, conv.out_channels, own, is_applied);
        let conv = Conv2d { activation: applied(epilogue.activation)?, ..conv };
        let clocks = clocks_of(context, at, &conv)?;
        Some(Self { conv, clocks, last, writes })
    }
}

/// An activation other than a bound as kernels for images know it.
const fn applied(activation: ProductActivation) -> Option<Activation> {
    match activation {
        ProductActivation::Silu => Some(Activation::Silu),
        ProductActivation::Gelu => Some(Activation::Gelu),
        _ => None,
    }
}

/// Predicted clocks of the best kernel for a convolution of a node's images; `None` without a kernel or a prediction.
fn clocks_of(context: &Context<'_>, at: NodeId, conv: &Conv2d) -> Option<f64> {
    let Context { graph, dtype, limits, batch, .. } = *context;
    let node = &graph.nodes[at.0];
    let shapes = [node.inputs[0]?, node.outputs[0]].map(|id| image(&graph.value(id).dims));
    layers::kernel(conv, dtype, shapes, batch, limits)?.clocks
}
