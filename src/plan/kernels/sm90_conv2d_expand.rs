//! The sm90 kernel of a 1x1 convolution and the depthwise convolution that reads its result. Memory never holds that
//! result.

use super::sm90_conv2d_depthwise::{DepthwiseShape, variants};
use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::{NodeId, Pad};
use crate::plan::context::{CHOSEN, Context, Match};
use crate::plan::work::Work;
use crate::plan::{Joined, Limits, StepOp};
use crate::tensor::Activation;

/// The kernel in `kernels/sm90_conv2d_depthwise.cu`, for both convolutions.
pub(super) struct Sm90Conv2dExpand;

impl KernelDef for Sm90Conv2dExpand {
    fn name(&self) -> &'static str {
        "sm90_conv2d_depthwise"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::ExpandDepthwise { .. }) && DepthwiseShape::of(work).is_some()
    }

    fn applies(&self, activation: Activation) -> bool {
        activation != Activation::Gelu
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Expand(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        variants(work, limits, Kernel::Sm90Expand)
    }

    /// The pair of convolutions whose second one is node `at`, if the 1x1 convolution reads one tensor, pixel by pixel.
    /// It is a match if the kernel for both takes less time than the best kernels for each, or if it is chosen.
    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        let Some(both) = pair(context, at) else { return Ok(Vec::new()) };
        let chosen = [both.covers[0], both.covers[1]].map(|id| context.chosen(id));
        let found = match chosen {
            [Some(kernel @ Kernel::Sm90Expand(tile)), None] => {
                let shape = DepthwiseShape::of(&context.work(&both));
                shape.and_then(|shape| shape.grid(tile, context.limits())).map(|_| (kernel, CHOSEN))
            }
            [None, None] => context.saved(&both)?,
            _ => None,
        };
        Ok(found.map(|(kernel, saved)| Match { kernel: Some(kernel), saved, ..both }).into_iter().collect())
    }
}

/// The depthwise convolution at node `depthwise` together with the 1x1 convolution whose result it reads.
fn pair(context: &Context<'_>, depthwise: NodeId) -> Option<Match> {
    let (conv, &[first]) = context.depthwise(depthwise)? else { return None };
    let (expand, &[x]) = context.dense(first)? else { return None };
    let none = Pad { top: 0, left: 0, bottom: 0, right: 0 };
    let is_single = expand.window.size == [1; 2] && expand.window.stride == [1; 2] && expand.window.pad == none;
    let [name, of_first] = [depthwise, first].map(|id| context.graph.nodes[id.0].name.clone());
    let expand = Box::new(Joined { name: of_first, conv: expand.clone() });
    is_single.then(|| Match {
        name,
        op: StepOp::ExpandDepthwise { expand, conv: conv.clone() },
        kernel: None,
        place: depthwise,
        covers: vec![depthwise, first],
        reads: vec![x],
        writes: vec![depthwise],
        saved: 0.0,
    })
}
