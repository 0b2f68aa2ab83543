//! Convolutions of images of few channels, which their kernel reads in their own layout, with the operations that
//! follow.

use std::collections::HashSet;

use super::product::behind;
use super::strided::Strided;
use super::{Context, Found, Read};
use crate::graph::{Graph, NodeId, Op, Origin, ValueId};
use crate::model::Conv2d;
use crate::plan::values::layers::{self, image, layer};
use crate::plan::{FewOp, ImagesAt, StepOp};
use crate::tensor::Dtype;

/// The convolution at node `at` together with the operations that follow it, and the last node, if the kernel for few
/// channels takes less time for it than a kernel for images.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Context { graph, dtype, limits, batch, .. } = *context;
    let node = &graph.nodes[at.0];
    let (Op::Conv(_), Some(conv)) = (&node.op, layer(graph, node)) else { return None };
    let (x, y) = (node.inputs[0]?, node.outputs[0]);
    let view = Strided::of(graph, x);
    let is_f32 = [x, y, view.root].iter().all(|&id| graph.value(id).dtype == Dtype::F32);
    let is_of_rows = [x, y].iter().all(|&id| graph.value(id).dims[0] == batch && graph.value(id).elems() > 0);
    if !is_f32 || !is_of_rows || is_of_layers(graph, view.root) {
        return None;
    }
    let [input, output] = [x, y].map(|id| image(&graph.value(id).dims));
    let own = node.inputs.get(2).copied().flatten();
    let (last, writes, epilogue) =
        behind(context, at, output.channels, own, |of, _| of.scale.is_none() && of.residual.is_none());
    let &[[_, image], [_, row], [_, column], [_, channel]] = &view.axes[..] else { return None };
    let of = FewOp {
        conv: Conv2d { bias: None, ..conv.clone() },
        input,
        output,
        x: ImagesAt { first: view.first, strides: [image, row, column, channel] },
        factor: view.factor as f32,
        activation: epilogue.activation,
        bias: epilogue.bias.is_some(),
    };
    let apart = layers::kernel(&conv, dtype, [input, output], batch, limits).and_then(|kernel| kernel.clocks);
    let apart = apart.zip(of.clocks_of_pixels(batch, dtype, limits)).map(|(kernel, pixels)| kernel + pixels);
    let is_sooner = || apart.zip(of.clocks(batch, limits)).is_none_or(|(apart, own)| own <= apart);
    if !of.has_kernel() || !is_sooner() {
        return None;
    }
    let reads = [view.root].into_iter().chain(epilogue.bias).map(Read::Own).collect();
    Some((last, Found { op: StepOp::Few(of), named: at, reads, writes, beside: None }))
}

/// Whether a value depends on a layer's results, which kernels store in their own type.
pub(super) fn is_of_layers(graph: &Graph, of: ValueId) -> bool {
    let (mut ahead, mut seen) = (vec![of], HashSet::new());
    while let Some(value) = ahead.pop() {
        if let Origin::Node(id, _) = graph.values[value.0].origin
            && seen.insert(id)
        {
            let node = &graph.nodes[id.0];
            if matches!(node.op, Op::Conv(_) | Op::Contract(_)) {
                return true;
            }
            ahead.extend(node.inputs.iter().flatten());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, Conv, Expr, GraphBuilder, Port, Unary, Window};
    use crate::plan::values::tests::planned;
    use crate::plan::{Kernel, Limits, Plan, ProductActivation};
    use crate::tensor::RowSpec;

    /// The plan of images of channel planes, of a 3x3 convolution with a bias between these numbers of channels, and of
    /// an expression that follows.
    fn plan_of(batch: usize, channels: [usize; 2], then: Option<Expr>, limits: &Limits) -> Plan {
        plan_by([batch, 64, 96], channels, Window::all(2, 3, 2, 1), then, limits)
    }

    /// The plan of such a convolution with images of another size and with another window.
    fn plan_by(
        [batch, height, width]: [usize; 3],
        channels: [usize; 2],
        window: Window,
        then: Option<Expr>,
        limits: &Limits,
    ) -> Plan {
        let [taps_high, taps_wide] = [window.size[0], window.size[1]];
        let mut g = GraphBuilder::new();
        let planes = g.input("x", Dtype::F32, &[batch, channels[0], height, width]);
        let x = g.node("pixels", Op::Transpose(vec![0, 2, 3, 1]), &[planes]);
        let x = g.map("scaled", Expr::arg(0) * Expr::float(Dtype::F32, 0.5), &[x]);
        let filter = g.weight("filter", Dtype::F32, &[channels[1], channels[0], taps_high, taps_wide]);
        let bias = g.weight("bias", Dtype::F32, &[channels[1]]);
        let conv = Conv { window, groups: 1 };
        let mut y = g.node("first", Op::Conv(conv), &[x, filter, bias]);
        if let Some(then) = then {
            y = g.map("then", then, &[y]);
        }
        g.output("y", y);
        let graph = g.finish().unwrap();
        let rows = |port: &Port| RowSpec::new([("x", Dtype::F32, graph.value(port.value).dims[1..].to_vec())]);
        let rows = [rows(&graph.inputs[0]), rows(&graph.outputs[0])];
        let plan = planned(&graph, limits, batch, [&rows[0], &rows[1]], Dtype::F16);
        plan.check().unwrap();
        plan
    }

    fn few(plan: &Plan) -> Option<&FewOp> {
        plan.steps.iter().find_map(|step| match &step.op {
            StepOp::Few(of) => Some(of),
            _ => None,
        })
    }

    fn silu() -> Expr {
        let one = || Expr::float(Dtype::F32, 1.0);
        Expr::arg(0) * (one() / (one() + (-Expr::arg(0)).unary(Unary::Exp)))
    }

    /// One step applies the factor, the convolution, the bias and the activation; a loop converts the result to f32.
    #[test]
    fn a_network_begins_with_one_step() {
        let plan = plan_of(2, [3, 16], Some(silu()), &Limits::h200());
        let of = few(&plan).unwrap_or_else(|| panic!("{plan}"));
        assert_eq!((of.x.first, of.x.strides), (0, [3 * 64 * 96, 96, 1, 64 * 96]));
        assert_eq!((of.factor, of.activation, of.bias), (0.5, ProductActivation::Silu, true));
        assert_eq!((plan.steps.len(), plan.steps[0].kernel, plan.steps[1].kernel), (2, Kernel::Sm90Few, Kernel::Loop));
        assert_eq!((plan.steps[0].name.as_str(), plan.steps[0].inputs.len()), ("first", 2));
        assert_eq!(plan.steps[0].flops, 2 * 2 * 32 * 48 * 16 * 27);
    }

    #[test]
    fn what_the_kernel_does_not_apply_is_a_loop_behind_it() {
        let bound = |of: Expr, op, limit| of.binary(op, Expr::float(Dtype::F32, limit));
        let relu6 = bound(bound(Expr::arg(0), Binary::Max, 0.0), Binary::Min, 6.0);
        let plan = plan_of(1, [3, 32], Some(relu6), &Limits::h200());
        assert_eq!(few(&plan).map(|of| of.activation), Some(ProductActivation::None), "{plan}");
    }

    /// Few blocks of large windows into many channels take as long as many small tiles do, but need no conversion to
    /// pixels.
    #[test]
    fn small_images_have_the_kernel_too() {
        for (taps, stride) in [([1, 1], 1), ([3, 3], 2), ([5, 5], 1), ([7, 7], 2), ([8, 8], 3), ([13, 1], 1)] {
            for (outputs, limits) in
                [16, 32, 64].into_iter().flat_map(|outputs| [(outputs, Limits::h100()), (outputs, Limits::h200())])
            {
                let pad = taps.map(|taps| [taps / 2, taps / 2]);
                let window =
                    Window { size: taps.into(), stride: vec![stride; 2], dilation: vec![1, 1], pad: pad.into() };
                let plan = plan_by([2, 29, 41], [3, outputs], window, Some(silu()), &limits);
                assert!(few(&plan).is_some(), "{taps:?} taps: {plan}");
            }
        }
    }

    #[test]
    fn other_channels_and_other_hardware_have_other_kernels() {
        for (channels, limits) in
            [([5, 16], Limits::h200()), ([3, 12], Limits::h200()), ([3, 72], Limits::h200()), ([3, 16], Limits::a100())]
        {
            let plan = plan_of(2, channels, None, &limits);
            assert!(few(&plan).is_none(), "{plan}");
        }
    }
}
