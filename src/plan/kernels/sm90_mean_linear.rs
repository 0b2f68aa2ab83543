//! The mean over pixels of few images and the linear layer that reads it, as one step on compute capability 9.0.

#[cfg(feature = "cuda")]
use super::sm90_tail::{TAIL_THREADS, mean_bytes};
use super::sm90_tail::{Tail, mean_and_layer};
use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::{NodeId, Op};
use crate::plan::context::{ALWAYS, CHOSEN, Context, Match};
use crate::plan::work::Work;
use crate::plan::{Limits, StepOp};
use crate::tensor::{Dtype, OutputKind, Shape};

/// The kernel in `kernels/sm90_mean_linear.cu`.
pub(super) struct Sm90MeanLinear;

impl KernelDef for Sm90MeanLinear {
    fn name(&self) -> &'static str {
        "sm90_mean_linear"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        MeanLinearShape::of(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90MeanLinear
    }

    fn variants(&self, _work: &Work<'_>, _limits: &Limits) -> Vec<Variant> {
        Vec::new()
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(find(context, at).into_iter().collect())
    }
}

/// The images, with their stored channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanLinearShape {
    pub batch: usize,
    pub input: Shape,
}

impl MeanLinearShape {
    /// The largest number of images.
    pub(crate) const IMAGES: usize = 8;
    /// The largest number of channels: what the registers of a block's threads hold of each output.
    pub(crate) const CHANNELS: usize = 2048;

    /// The mean and layer of a step; `None` unless the kernel computes them.
    fn of(work: &Work<'_>) -> Option<Self> {
        let StepOp::Tail(tail @ Tail { output: None | Some(OutputKind::Logits), .. }) = work.op else { return None };
        let shape = Self { batch: work.batch, input: work.inputs[0].stored() };
        (shape.is_few() && tail.reads(work.inputs[0]) && work.writes(Dtype::F32)).then_some(shape)
    }

    /// Whether there are few enough images and channels.
    pub(crate) const fn is_few(&self) -> bool {
        self.batch <= Self::IMAGES && self.input.channels <= Self::CHANNELS
    }
}

#[cfg(feature = "cuda")]
impl MeanLinearShape {
    /// The outputs of a block.
    pub(crate) const OUTPUTS: usize = 8;

    /// The blocks of a cluster: 16 on a whole GPU.
    pub(crate) const fn blocks(limits: &Limits) -> usize {
        limits.most_cluster_blocks()
    }

    /// Bytes of dynamic shared memory of a block: partial sums and means. It agrees with the kernel.
    pub(crate) const fn shared_bytes(&self) -> usize {
        TAIL_THREADS * 32 + mean_bytes(self.batch, self.input.channels)
    }
}

/// The largest batch whose mean and linear layer are this step by default. In measurements on an H200 this was faster
/// than the other kernels up to here.
const MOST_ROWS: usize = 4;

/// The match of a linear layer, or of rows of its logits, at node `at` with the mean that the layer reads. `None` if the
/// kernel does not compute them, if the program chose another kernel for the layer, or if the batch is too large for
/// this step by default.
fn find(context: &Context<'_>, at: NodeId) -> Option<Match> {
    let (layer, rows) = match (&context.node(at).op, &context.node(at).inputs[..]) {
        (&Op::Emit(OutputKind::Logits), &[layer]) => (layer, Some((at, OutputKind::Logits))),
        _ => (at, None),
    };
    let found = mean_and_layer(context, layer, rows)?;
    let shape = MeanLinearShape::of(&context.work(&found))?;
    let saved = match context.chosen(layer) {
        None if shape.batch <= MOST_ROWS => ALWAYS,
        Some(Kernel::Sm90MeanLinear) => CHOSEN,
        _ => return None,
    };
    // With the rows it comes first.
    let saved = if rows.is_some() { 2.0 * saved } else { saved };
    Some(Match { kernel: Some(Kernel::Sm90MeanLinear), saved, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Network;
    use crate::model::{Preprocessing, architecture};
    use crate::plan::{Choices, Request, plan};
    use crate::tensor::InputFormat;

    /// The last two steps of ResNet-50, with the kernel of its linear layer chosen or not.
    fn last_steps(
        batch: usize,
        output: OutputKind,
        limits: &Limits,
        chosen: Option<Kernel>,
    ) -> Result<Vec<String>, Error> {
        let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
        let layer = &graph.nodes.iter().rfind(|node| matches!(node.op, Op::Linear(_))).unwrap().name;
        let choices = chosen.map(|kernel| (layer.clone(), kernel)).into_iter().collect::<Choices>();
        let (input, preprocessing) = (InputFormat::U8Nhwc, &Preprocessing::new(graph.input));
        let plan = plan(&graph, &Request { limits, batch, input, preprocessing, output, choices: &choices })?;
        let steps = plan.steps.iter().rev().take(2).rev();
        Ok(steps.map(|step| format!("{}: {}", step.op.label(step.inputs.len()), step.kernel)).collect())
    }

    #[test]
    fn few_images_have_their_mean_and_linear_layer_in_one_step() {
        let (top, chosen) = (OutputKind::TopK(5), Some(Kernel::Sm90MeanLinear));
        let of = |batch, chosen| last_steps(batch, top, &Limits::h200(), chosen);
        let expected = ["mean+fc: sm90 mean linear", "topk(5): sm80"];
        for batch in [1, MOST_ROWS] {
            assert_eq!(of(batch, None).unwrap(), expected);
        }
        assert_ne!(of(MOST_ROWS + 1, None).unwrap()[0], expected[0]);
        assert_eq!(of(MeanLinearShape::IMAGES, chosen).unwrap(), expected);
        assert!(of(MeanLinearShape::IMAGES + 1, chosen).is_err());
        assert!(last_steps(1, top, &Limits::a100(), chosen).is_err());
    }

    #[test]
    fn logits_are_written_by_the_same_step() {
        for (batch, chosen) in [(1, None), (MeanLinearShape::IMAGES, Some(Kernel::Sm90MeanLinear))] {
            let steps = last_steps(batch, OutputKind::Logits, &Limits::h200(), chosen).unwrap();
            assert_eq!(steps[1], "mean+fc+logits: sm90 mean linear");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_part_of_a_gpu_has_clusters_of_eight() {
        assert_eq!(MeanLinearShape::blocks(&Limits::h200()), 16);
        assert_eq!(MeanLinearShape::blocks(&Limits { units: 60, ..Limits::h200() }), 8);
    }
}
