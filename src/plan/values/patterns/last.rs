//! The last layers of a network: the mean over all pixels, a linear layer, and the output, with or without a softmax.

use super::product::behind;
use super::{Context, Found, Read};
use crate::graph::{Constant, NodeId, Op, Reduce, ReduceOp};
use crate::model::Linear;
use crate::plan::values::layers::classifier;
use crate::plan::{ProductActivation, StepOp, Tail};
use crate::tensor::{Dtype, OutputKind};

/// The last node of the last layers whose mean is node `at`, and the step that computes them; `None` unless one step
/// can compute them and is faster than several.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Context { graph, dtype, batch, .. } = *context;
    let node = &graph.nodes[at.0];
    let Op::Reduce(Reduce { op: ReduceOp::Mean, axes, .. }) = &node.op else { return None };
    let x = node.inputs[0]?;
    let is_of_images = graph.value(x).rank() == 4 && axes[..] == [1, 2] && graph.value(x).dtype == Dtype::F32;
    if !is_of_images || dtype != Dtype::F16 || batch > Tail::MOST_ROWS {
        return None;
    }
    let mut layer = context.reader(node.outputs[0])?;
    while let Op::Reshape(_) = graph.nodes[layer.0].op {
        layer = context.reader(graph.nodes[layer.0].outputs[0])?;
    }
    let linear = classifier(graph, &graph.nodes[layer.0], batch, &context.readers)?;
    let is_bias = |of: &super::epilogue::Epilogue| {
        of.activation == ProductActivation::None && [of.scale, of.residual] == [None; 2]
    };
    let (last, value, epilogue) = behind(context, layer, linear.out_features, None, is_bias);
    let bias = match epilogue.bias {
        None => None,
        Some(id) => match graph.constant(id)? {
            Constant::Weight(name) if graph.value(id).dims == [linear.out_features] => Some(name.clone()),
            _ => return None,
        },
    };
    let softmax = context.reader(value).filter(|next| {
        let axis = graph.value(value).rank() - 1;
        graph.nodes[next.0].op == Op::Softmax { axis, log: false }
    });
    let (last, writes, output) = match softmax {
        Some(next) => (next, graph.nodes[next.0].outputs[0], OutputKind::Probabilities),
        None => (last, value, OutputKind::Logits),
    };
    let is_output = context.shown.contains(&writes) && context.readers[writes.0].is_empty();
    let op = StepOp::Tail(Tail { linear: Linear { bias, ..linear }, output, x_scale: None });
    is_output.then_some((last, Found { op, named: layer, reads: vec![Read::Half(x)], writes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Expr, ValueId};
    use crate::plan::values::images_tests::Network;
    use crate::plan::{Kernel, Limits, Plan};

    fn plan_of(batch: usize, limits: &Limits, also: impl Fn(&mut Network, [ValueId; 3]) -> Vec<ValueId>) -> Plan {
        let (mut g, x) = Network::new(batch, [8, 8, 16]);
        let x = g.conv("conv", x, [16, 64, 3]);
        let mean = g.mean("mean", x);
        let vector = g.0.node("vector", Op::Reshape(vec![batch, 64]), &[mean]);
        let y = g.linear("fc", vector, [64, 100]);
        let bias = g.0.weight("fc.bias", Dtype::F32, &[100]);
        let y = g.0.map("biased", Expr::arg(0) + Expr::arg(1), &[y, bias]);
        let outputs = also(&mut g, [x, mean, y]);
        g.planned(limits, &outputs)
    }

    fn softmax(g: &mut Network, y: ValueId) -> ValueId {
        g.0.node("softmax", Op::Softmax { axis: 1, log: false }, &[y])
    }

    fn tail(plan: &Plan) -> Option<&Tail> {
        plan.steps.iter().find_map(|step| match &step.op {
            StepOp::Tail(tail) => Some(tail),
            _ => None,
        })
    }

    #[test]
    fn one_row_has_its_last_layers_in_one_step() {
        for (outputs, kind) in [(false, OutputKind::Logits), (true, OutputKind::Probabilities)] {
            let plan = plan_of(1, &Limits::h200(), |g, [.., y]| vec![if outputs { softmax(g, y) } else { y }]);
            let tail = tail(&plan).unwrap_or_else(|| panic!("{plan}"));
            assert_eq!((tail.output, tail.linear.bias.as_deref()), (kind, Some("fc.bias")));
            let last = plan.steps.last().unwrap();
            assert!(matches!(last.kernel, Kernel::Sm90Tail(_)), "{plan}");
            let (read, written) = (&plan.tensors[last.inputs[0].0], &plan.tensors[last.outputs[0].0]);
            assert_eq!((read.shape.channels, read.shape.pixels(), read.dtype), (64, 64, Dtype::F16));
            assert_eq!(written.dtype, Dtype::F32);
        }
    }

    #[test]
    fn what_others_read_and_several_rows_have_steps_of_their_own() {
        let h200 = &Limits::h200();
        let apart = [
            plan_of(2, h200, |_, [.., y]| vec![y]),
            plan_of(1, &Limits::a100(), |_, [.., y]| vec![y]),
            plan_of(1, h200, |_, [_, mean, y]| vec![mean, y]),
            plan_of(1, h200, |g, [.., y]| vec![softmax(g, y), y]),
            plan_of(1, h200, |g, [.., y]| vec![g.tanh("tanh", y)]),
        ];
        apart.iter().for_each(|plan| assert_eq!(tail(plan), None, "{plan}"));
        // The input of the mean may also be an output.
        assert!(tail(&plan_of(1, h200, |_, [x, _, y]| vec![x, y])).is_some());
    }
}
