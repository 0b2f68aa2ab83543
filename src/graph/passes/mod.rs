//! Rewrites: functions from graph to graph that leave the computed values unchanged.

mod batch;
mod expand;
mod layout;
mod narrow;
mod parts;
mod rebuild;
mod views;

pub(crate) use self::batch::batch_first;
pub use self::expand::expand;
pub(crate) use self::expand::{expand_but, unrolled};
pub(crate) use self::narrow::narrowed;
pub(crate) use self::parts::{Names, computing, cut, joined, up_to};
use self::rebuild::{Rebuild, needed};
use super::value::Graph;

/// The graph without operations that do nothing, and with transposes moved towards the outputs until they meet
/// transposes that undo them. Nodes that no output needs are removed, and equal nodes are merged.
///
/// Importers of networks whose channels are not innermost add transposes around each convolution; this pass removes
/// nearly all of them.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, GraphBuilder, Op, simplify}};
/// let mut g = GraphBuilder::new();
/// let x = g.input("x", Dtype::F32, &[1, 8, 8, 3]);
/// let planes = g.node("planes", Op::Transpose(vec![0, 3, 1, 2]), &[x]);
/// let doubled = g.map("doubled", Expr::arg(0) + Expr::arg(0), &[planes]);
/// let pixels = g.node("pixels", Op::Transpose(vec![0, 2, 3, 1]), &[doubled]);
/// g.output("y", pixels);
/// let graph = simplify(&g.finish()?);
/// assert_eq!(graph.nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["doubled"]);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn simplify(graph: &Graph) -> Graph {
    let rewritten = Rebuild::new(graph).with(|rebuild, node| {
        let mut node = node;
        while let Some(change) = views::simplify(rebuild, &node).or_else(|| layout::sink_transpose(rebuild, &node)) {
            match change {
                rebuild::Change::Same(values) => return values,
                rebuild::Change::Become(next) => node = *next,
            }
        }
        rebuild.add(node)
    });
    needed(&rewritten, &rewritten.inputs, &rewritten.outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Conv, Expr, GraphBuilder, Op, Reduce, ReduceOp, Unary, ValueId, Window};
    use crate::tensor::Dtype;

    const TO_PIXELS: [usize; 4] = [0, 2, 3, 1];
    const TO_PLANES: [usize; 4] = [0, 3, 1, 2];

    /// Adds a convolution as importers of planes write it.
    fn conv(g: &mut GraphBuilder, name: &str, x: ValueId, [k, c, r]: [usize; 3]) -> ValueId {
        let filter = g.weight(&format!("{name}.weight"), Dtype::F32, &[k, c, r, r]);
        let pixels = g.node(&format!("{name}.in"), Op::Transpose(TO_PIXELS.to_vec()), &[x]);
        let conv = Conv { window: Window::all(2, r, 1, r / 2), groups: 1 };
        let y = g.node(name, Op::Conv(conv), &[pixels, filter]);
        g.node(&format!("{name}.out"), Op::Transpose(TO_PLANES.to_vec()), &[y])
    }

    fn relu() -> Expr {
        Expr::arg(0).binary(crate::graph::Binary::Max, Expr::float(Dtype::F32, 0.0))
    }

    fn transposes(graph: &Graph) -> Vec<&str> {
        let moves = graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose(_)));
        moves.map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn a_network_of_planes_becomes_one_of_pixels() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 3, 8, 8]);
        let a = conv(&mut g, "a", x, [16, 3, 3]);
        let scale = g.weight("scale", Dtype::F32, &[16, 1, 1]);
        let a = g.map("scaled", Expr::arg(0) * Expr::arg(1), &[a, scale]);
        let a = g.map("relu", relu(), &[a]);
        let squeezed = Reduce { op: ReduceOp::Mean, axes: vec![2, 3], keep: true };
        let s = g.node("squeeze", Op::Reduce(squeezed.clone()), &[a]);
        let s = conv(&mut g, "excite", s, [16, 16, 1]);
        let s = g.map("gate", Expr::arg(0).unary(Unary::Tanh), &[s]);
        let gated = g.map("gated", Expr::arg(0) * Expr::arg(1), &[a, s]);
        let b = conv(&mut g, "b", gated, [16, 16, 3]);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[b, a]);
        let both = g.node("both", Op::Concat(1), &[sum, a]);
        let mean = g.node("mean", Op::Reduce(Reduce { keep: false, ..squeezed }), &[both]);
        g.output("features", mean);
        let graph = simplify(&g.finish().unwrap());
        assert_eq!(transposes(&graph), ["a.in"], "{:#?}", graph.nodes);
        let of = |name| graph.value(graph.nodes[graph.find(name).unwrap().0].outputs[0]).to_string();
        assert_eq!(
            (of("gated"), of("both"), of("mean")),
            ("f32[2,8,8,16]".into(), "f32[2,8,8,32]".into(), "f32[2,32]".into())
        );
    }

    /// The pixels of planes become one axis, which then moves to the front: this is how exports of vision transformers
    /// write patches.
    #[test]
    fn pixels_are_joined_before_they_are_transposed() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 4, 5, 8]);
        let planes = g.node("planes", Op::Transpose(TO_PLANES.to_vec()), &[x]);
        let flat = g.node("flat", Op::Reshape(vec![2, 8, 20]), &[planes]);
        let tokens = g.node("tokens", Op::Transpose(vec![0, 2, 1]), &[flat]);
        let mixed = g.node("mixed", Op::Reshape(vec![2, 160]), &[planes]);
        g.output("tokens", tokens);
        g.output("mixed", mixed);
        let graph = simplify(&g.finish().unwrap());
        assert_eq!(transposes(&graph), ["planes"], "{:#?}", graph.nodes);
        assert_eq!(graph.value(graph.outputs[0].value).dims, [2, 20, 8]);
        assert_eq!(graph.nodes.len(), 3);
    }

    #[test]
    fn what_would_have_to_be_transposed_back_stays() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 3, 4]);
        let y = g.input("y", Dtype::F32, &[2, 4, 3]);
        let turned = g.node("turned", Op::Transpose(vec![0, 2, 1]), &[x]);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[turned, y]);
        g.output("sum", sum);
        let graph = simplify(&g.finish().unwrap());
        assert_eq!(transposes(&graph), ["turned"]);
        assert_eq!(graph.nodes.len(), 2);
    }

    #[test]
    fn a_convolution_pads_by_itself() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[1, 8, 8, 3]);
        let pad = |after: &[isize]| {
            Op::Pad(crate::graph::Pad {
                before: vec![0; 4],
                after: after.to_vec(),
                mode: crate::graph::PadMode::Constant(crate::graph::Number::Float(0.0)),
            })
        };
        let filter = g.weight("w", Dtype::F32, &[4, 3, 3, 3]);
        let wider = g.weight("v", Dtype::F32, &[4, 4, 3, 3]);
        let conv = |g: &mut GraphBuilder, name: &str, x, filter| {
            g.node(name, Op::Conv(Conv { window: Window::all(2, 3, 2, 0), groups: 1 }), &[x, filter])
        };
        let around = g.node("around", pad(&[0, 1, 1, 0]), &[x]);
        let channels = g.node("channels", pad(&[0, 1, 1, 1]), &[x]);
        let (a, b) = (conv(&mut g, "a", around, filter), conv(&mut g, "b", channels, wider));
        g.output("a", a);
        g.output("b", b);
        let graph = simplify(&g.finish().unwrap());
        assert_eq!(graph.nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["channels", "a", "b"]);
        let Op::Conv(conv) = &graph.nodes[1].op else { panic!("{:?}", graph.nodes[1]) };
        assert_eq!(conv.window.pad, [[0, 1]; 2]);
    }

    #[test]
    fn what_no_output_needs_is_gone_and_equal_nodes_are_one() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[4]);
        g.input("unused", Dtype::F32, &[1]);
        let [a, b] = ["a", "b"].map(|name| g.map(name, Expr::arg(0) + Expr::arg(0), &[x]));
        g.map("dead", Expr::arg(0), &[a]);
        let same = g.node("same", Op::Reshape(vec![4]), &[b]);
        let sum = g.map("sum", Expr::arg(0) * Expr::arg(1), &[a, same]);
        g.output("y", sum);
        let graph = simplify(&g.finish().unwrap());
        assert_eq!(graph.nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["a", "sum"]);
        assert_eq!(graph.inputs.len(), 2);
    }
}
