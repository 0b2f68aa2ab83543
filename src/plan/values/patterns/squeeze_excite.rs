//! Squeeze and excitation: means over the pixels of an image, two layers of them, and the image times the gates that come
//! out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::epilogue::{Following, MOST_TERMS, gate};
use super::expr::{args, inlined, replaced, size};
use super::few::is_of_layers;
use super::product::pass_clocks;
use super::{Context, Found, Read};
use crate::graph::{Binary, Expr, Graph, Node, NodeId, Op, Origin, Reduce, ReduceOp, ValueId};
use crate::model::{Conv2d, Window, name_of};
use crate::plan::values::layers::{self, layer};
use crate::plan::{Gate, Joined, ProductActivation, SqueezeExciteOp, StepOp};
use crate::tensor::{Dtype, Shape};

/// The largest number of nodes behind a vector that are examined.
const MOST_NODES: usize = 24;

/// The squeeze and excitation whose means node `at` computes, and its last node, if one kernel takes less time for it
/// than kernels and loops of its parts. `known` has the steps that are found already.
pub(super) fn find(context: &Context<'_>, at: NodeId, known: &HashMap<NodeId, Found>) -> Option<(NodeId, Found)> {
    let Context { graph, dtype, limits, batch, .. } = *context;
    let x = of_means(graph, &graph.nodes[at.0])?;
    let &[rows, height, width, channels] = &graph.value(x).dims[..] else { return None };
    let (first, means) = Behind::of(context, graph.nodes[at.0].outputs[0])?.layer(context, channels)?;
    (means.expr == Expr::Arg(0) && means.others.is_empty()).then_some(())?;
    let (squeeze, hidden) = (first.conv, Behind::of(context, first.y)?);
    let (bias, activation) = hidden.activation(context, squeeze.out_channels)?;
    let squeeze = with_bias(context, squeeze, bias)?;
    let (second, _) = hidden.layer(context, squeeze.out_channels)?;
    let (last, gate, bias) = Behind::of(context, second.y)?.gated(context, x)?;
    let excite = with_bias(context, second.conv, bias)?;
    let (root, of_pixels) = root(context, x, [at, last], known);
    let input = Shape::new(height, width, channels);
    let joined = |at: NodeId, conv| Joined { name: graph.nodes[at.0].name.clone(), conv };
    let of = SqueezeExciteOp {
        input,
        activation: of_pixels,
        squeeze: joined(first.at, squeeze),
        hidden: activation,
        excite: joined(second.at, excite),
        gate,
    };
    let apart = [&of.squeeze.conv, &of.excite.conv].into_iter().zip([channels, of.hidden_channels()]);
    let apart = apart.map(|(conv, from)| {
        let shapes = [from, conv.out_channels].map(Shape::vector);
        layers::kernel(conv, dtype, shapes, batch, limits)?.clocks
    });
    // The means, which read only; an activation that is no bound; the gates; the product with them.
    let elems = input.elems();
    let is_loop = !matches!(of.hidden, ProductActivation::None | ProductActivation::Relu);
    let passes = [elems / 2, channels, elems].into_iter().chain(is_loop.then_some(of.hidden_channels()));
    let apart = apart.chain(passes.map(|elems| pass_clocks(batch * elems, limits))).sum::<Option<f64>>();
    let is_sooner = || apart.zip(of.best_clocks(batch, limits)).is_none_or(|(apart, own)| own <= apart);
    let is_f32 = |id: ValueId| graph.value(id).dtype == Dtype::F32;
    let writes = graph.nodes[last.0].outputs[0];
    let is_of_rows = rows == batch && [x, root, writes].into_iter().all(is_f32) && is_of_layers(graph, root);
    if !is_of_rows || of.tiles(limits).is_empty() || !is_sooner() {
        return None;
    }
    Some((
        last,
        Found { op: StepOp::SqueezeExcite(of), named: last, reads: vec![Read::Half(root)], writes, beside: None },
    ))
}

/// The image whose means over all pixels a node computes.
fn of_means(graph: &Graph, node: &Node) -> Option<ValueId> {
    let x = node.inputs.first().copied().flatten()?;
    match &node.op {
        Op::Reduce(Reduce { op: ReduceOp::Mean, axes, .. }) => {
            (graph.value(x).rank() == 4 && *axes == [1, 2]).then_some(x)
        }
        _ => None,
    }
}

/// A layer of a vector.
struct Layer {
    at: NodeId,
    conv: Conv2d,
    y: ValueId,
}

/// What maps and reshapes make of a vector, up to the only other node that reads it.
struct Behind {
    /// The vector.
    from: ValueId,
    /// The value that the other node reads.
    value: ValueId,
    /// That value's expression of the vector, which is `Arg(0)`, and of `others`.
    expr: Expr,
    others: Vec<ValueId>,
    reader: NodeId,
}

impl Behind {
    fn of(context: &Context<'_>, from: ValueId) -> Option<Self> {
        let graph = context.graph;
        let mut known = BTreeMap::from([(from, Expr::arg(0))]);
        let (mut others, mut readers) = (Vec::new(), BTreeSet::new());
        let mut ahead: BTreeSet<NodeId> = context.readers[from.0].iter().copied().collect();
        for _ in 0..MOST_NODES {
            let Some(next) = ahead.pop_first() else { break };
            let node = &graph.nodes[next.0];
            let y = node.outputs[0];
            let is_like = graph.value(y).elems() == graph.value(from).elems();
            let expr = match &node.op {
                Op::Reshape(_) => node.inputs[0].and_then(|id| known.get(&id).cloned()),
                Op::Map(_) if is_like => composed(context, node, &known, &mut others),
                _ => None,
            };
            match expr.filter(|expr| size(expr) <= MOST_TERMS) {
                Some(expr) => {
                    known.insert(y, expr);
                    ahead.extend(&context.readers[y.0]);
                }
                None => _ = readers.insert(next),
            }
        }
        let mut readers = readers.into_iter();
        let (Some(reader), None, true) = (readers.next(), readers.next(), ahead.is_empty()) else { return None };
        let mut read = graph.nodes[reader.0].inputs.iter().flatten().filter(|id| known.contains_key(id));
        let (&value, None) = (read.next()?, read.next()) else { return None };
        let expr = known[&value].clone();
        known.keys().all(|id| !context.shown.contains(id)).then_some(Self { from, value, expr, others, reader })
    }

    /// The layer that reads the vector of so many channels.
    fn layer(self, context: &Context<'_>, channels: usize) -> Option<(Layer, Self)> {
        let graph = context.graph;
        let node = &graph.nodes[self.reader.0];
        let dims = &graph.value(self.value).dims;
        let is_vector = dims.last() == Some(&channels) && dims.iter().product::<usize>() == context.batch * channels;
        let reads_it = node.inputs[0] == Some(self.value);
        let conv = layer(graph, node).filter(|_| is_vector && reads_it)?;
        let is_plain = conv.window == Window { stride: conv.window.stride, ..Window::square(1, 1, 0) };
        let y = node.outputs[0];
        let is_one = graph.value(y).elems() == context.batch * conv.out_channels;
        (is_plain && conv.groups == 1 && is_one).then_some((Layer { at: self.reader, conv, y }, self))
    }

    /// The bias and the activation of a layer with so many results.
    fn activation(&self, context: &Context<'_>, columns: usize) -> Option<(Option<ValueId>, ProductActivation)> {
        let epilogue = self.following(context, columns).epilogue(&self.expr)?;
        let is_one = epilogue.scale.is_none() && epilogue.residual.is_none();
        is_one.then_some((epilogue.bias, epilogue.activation))
    }

    /// The node that multiplies an image by the gates of its channels, the gate, and the bias of the layer before it.
    fn gated(self, context: &Context<'_>, x: ValueId) -> Option<(NodeId, Gate, Option<ValueId>)> {
        let graph = context.graph;
        let node = &graph.nodes[self.reader.0];
        let Expr::Binary(Binary::Mul, of) = inlined(graph, node)? else { return None };
        let known = BTreeMap::from([(self.value, self.expr.clone())]);
        let mut others = self.others.clone();
        let [a, b] = [0, 1].map(|side| replaced(&of[side], node, &known, &mut others));
        let image = Expr::arg(1 + others.iter().position(|&other| other == x)?);
        let of_gate = match [a?, b?] {
            [of_image, gate] | [gate, of_image] if of_image == image => gate,
            _ => return None,
        };
        let of = graph.value(x);
        let [rows, .., channels] = of.dims[..] else { return None };
        let of_all = Self { others, ..self };
        let (of_one, bias) = of_all.following(context, channels).biased(&of_gate)?;
        let is_of_channels = graph.value(of_all.value).dims == [rows, 1, 1, channels];
        let is_of_pixels = graph.value(node.outputs[0]).dims == of.dims && is_of_channels;
        is_of_pixels.then_some((of_all.reader, gate(&of_one)?, bias))
    }

    fn following<'a>(&'a self, context: &Context<'a>, columns: usize) -> Following<'a> {
        let elems = context.graph.value(self.from).elems();
        Following { graph: context.graph, others: &self.others, elems, columns }
    }
}

/// A map as an expression of known values and of constants in `others`; `None` if it reads any other value.
fn composed(
    context: &Context<'_>,
    node: &Node,
    known: &BTreeMap<ValueId, Expr>,
    others: &mut Vec<ValueId>,
) -> Option<Expr> {
    let graph = context.graph;
    let is_read = |id: &ValueId| known.contains_key(id) || graph.constant(*id).is_some();
    if !node.inputs.iter().flatten().all(is_read) {
        return None;
    }
    replaced(&inlined(graph, node)?, node, known, others)
}

/// A layer with a bias that another node adds; `None` if it has two, or one in other dimensions.
fn with_bias(context: &Context<'_>, conv: Conv2d, bias: Option<ValueId>) -> Option<Conv2d> {
    let Some(bias) = bias else { return Some(conv) };
    let of = context.graph.value(bias);
    let constant = context.graph.constant(bias).filter(|_| conv.bias.is_none() && of.dims == [conv.out_channels])?;
    Some(Conv2d { bias: Some(name_of(constant, of)), ..conv })
}

/// The value that a kernel reads in the place of the image `x`, and the activation that makes `x` of it. It is another
/// value if only the nodes `of` read `x`, and no kernel applies the activation.
fn root(
    context: &Context<'_>,
    x: ValueId,
    of: [NodeId; 2],
    known: &HashMap<NodeId, Found>,
) -> (ValueId, ProductActivation) {
    let plain = (x, ProductActivation::None);
    if known.values().any(|found| found.writes == x) {
        return plain;
    }
    unactivated(context, x, of).unwrap_or(plain)
}

/// The image of which maps compute `x` by an activation other than a bound, which convolutions apply. Only the nodes
/// `readers` read `x`.
fn unactivated(context: &Context<'_>, x: ValueId, readers: [NodeId; 2]) -> Option<(ValueId, ProductActivation)> {
    let graph = context.graph;
    let mut inner = BTreeSet::from(readers);
    // The image as an expression of `operands`, of which `Arg(1)` is the first.
    let (mut expr, mut operands) = (Expr::arg(1), vec![x]);
    for _ in 0..MOST_NODES {
        let written = |number: usize| match graph.values[operands[number - 1].0].origin {
            Origin::Node(id, 0) => Some((id, number)),
            _ => None,
        };
        let (id, number) = args(&expr).into_iter().filter_map(written).max()?;
        let (node, value) = (&graph.nodes[id.0], operands[number - 1]);
        let is_inner = context.readers[value.0].iter().all(|reader| inner.contains(reader));
        if !is_inner || context.shown.contains(&value) {
            return None;
        }
        inner.insert(id);
        let of_node = replaced(&inlined(graph, node)?, node, &BTreeMap::new(), &mut operands)?;
        let with = |at| if at == number { of_node.clone() } else { Expr::arg(at) };
        expr = expr.with_args(&(0..=operands.len()).map(with).collect::<Vec<_>>());
        if size(&expr) > MOST_TERMS {
            return None;
        }
        if let [only] = args(&expr)[..] {
            let root = graph.value(operands[only - 1]);
            let of_one = expr.clone().with_args(&vec![Expr::arg(0); operands.len() + 1]);
            let following = Following { graph, others: &[], elems: root.elems(), columns: *root.dims.last()? };
            let found = following.epilogue(&of_one).map(|epilogue| epilogue.activation);
            match found.filter(|_| root == graph.value(x)) {
                Some(ProductActivation::None | ProductActivation::Relu) => return None,
                Some(activation) if SqueezeExciteOp::applies(activation) => {
                    return Some((operands[only - 1], activation));
                }
                Some(_) => return None,
                None => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Conv, GraphBuilder, Unary};
    use crate::plan::values::images_tests::Network;
    use crate::plan::{Kernel, Limits, Plan};

    /// Shapes, sizes and functions of a block with squeeze and excitation.
    #[derive(Clone, Copy)]
    struct Block {
        batch: usize,
        side: usize,
        channels: usize,
        hidden: usize,
        /// The activation of the depthwise convolution, of the hidden vector, and the gate.
        functions: [Function; 3],
        /// Whether the vectors have the dimensions of planes for a while, as after an import.
        planes: bool,
        /// Whether an output of the graph has the image that the gates multiply.
        is_shown: bool,
    }

    #[derive(Clone, Copy)]
    enum Function {
        None,
        Relu,
        Silu,
        HardSwish,
        Sigmoid,
        HardSigmoid,
    }

    const MOBILE: Block = Block {
        batch: 1,
        side: 14,
        channels: 480,
        hidden: 20,
        functions: [Function::Silu, Function::Silu, Function::Sigmoid],
        planes: true,
        is_shown: false,
    };

    fn number(value: f64) -> Expr {
        Expr::float(Dtype::F32, value)
    }

    /// Adds a function in the nodes that exporters write.
    fn function(g: &mut GraphBuilder, name: &str, of: Function, x: ValueId) -> ValueId {
        let sigmoid = || number(1.0) / (number(1.0) + (-Expr::arg(0)).unary(Unary::Exp));
        let ramp = || {
            let ramp = Expr::arg(0) * number(1.0 / 6.0) + number(0.5);
            ramp.binary(Binary::Max, number(0.0)).binary(Binary::Min, number(1.0))
        };
        let mut gated = |gate: Expr| {
            let gate = g.map(&format!("{name}.gate"), gate, &[x]);
            g.map(name, Expr::arg(0) * Expr::arg(1), &[x, gate])
        };
        match of {
            Function::None => x,
            Function::Silu => gated(sigmoid()),
            Function::HardSwish => gated(ramp()),
            Function::Relu => g.map(name, Expr::arg(0).binary(Binary::Max, number(0.0)), &[x]),
            Function::Sigmoid => g.map(name, sigmoid(), &[x]),
            Function::HardSigmoid => g.map(name, ramp(), &[x]),
        }
    }

    impl Block {
        fn planned(self, limits: &Limits) -> Plan {
            let Self { batch, side, channels, hidden, functions: [of_pixels, of_hidden, gate], planes, .. } = self;
            let (mut g, x) = Network::new(batch, [side, side, 16]);
            let x = g.conv("first", x, [16, channels, 1]);
            let x = g.depthwise("depthwise", x, [channels, 3]);
            let x = function(&mut g.0, "depthwise.act", of_pixels, x);
            let mean = g.mean("mean", x);
            let layer = |g: &mut Network, name: &str, x, [from, to]: [usize; 2]| {
                let filter = g.0.weight(&format!("{name}.weight"), Dtype::F32, &[to, from, 1, 1]);
                let bias = g.0.weight(&format!("{name}.bias"), Dtype::F32, &[to]);
                let conv = Conv { window: crate::graph::Window::all(2, 1, 1, 0), groups: 1 };
                g.0.node(name, Op::Conv(conv), &[x, filter, bias])
            };
            let shown = |g: &mut Network, name: &str, x, dims: [usize; 4]| match planes {
                true => g.0.node(name, Op::Reshape(dims.to_vec()), &[x]),
                false => x,
            };
            let h = layer(&mut g, "squeeze", mean, [channels, hidden]);
            let h = shown(&mut g, "hidden.planes", h, [batch, hidden, 1, 1]);
            let h = function(&mut g.0, "hidden", of_hidden, h);
            let h = shown(&mut g, "hidden.pixels", h, [batch, 1, 1, hidden]);
            let s = layer(&mut g, "excite", h, [hidden, channels]);
            let s = shown(&mut g, "gate.planes", s, [batch, channels, 1, 1]);
            let s = function(&mut g.0, "gate", gate, s);
            let s = shown(&mut g, "gate.pixels", s, [batch, 1, 1, channels]);
            let y = g.0.map("gated", Expr::arg(0) * Expr::arg(1), &[s, x]);
            let y = g.conv("last", y, [channels, 24, 1]);
            let outputs = if self.is_shown { vec![y, x] } else { vec![y] };
            g.planned(limits, &outputs)
        }
    }

    fn found(plan: &Plan) -> Option<&SqueezeExciteOp> {
        plan.steps.iter().find_map(|step| match &step.op {
            StepOp::SqueezeExcite(of) => Some(of),
            _ => None,
        })
    }

    #[test]
    fn blocks_of_known_networks_have_one_step() {
        use Function as F;
        for limits in [Limits::h100(), Limits::h200()] {
            for (functions, planes) in [
                ([F::Silu, F::Silu, F::Sigmoid], true),
                ([F::Silu, F::Silu, F::Sigmoid], false),
                ([F::HardSwish, F::Relu, F::HardSigmoid], true),
                ([F::Relu, F::Relu, F::Sigmoid], true),
                ([F::None, F::None, F::HardSigmoid], false),
            ] {
                let plan = Block { functions, planes, ..MOBILE }.planned(&limits);
                let of = found(&plan).unwrap_or_else(|| panic!("{plan}"));
                assert_eq!((of.input, of.hidden_channels()), (Shape::new(14, 14, 480), 20));
                assert_eq!((of.squeeze.name.as_str(), of.excite.name.as_str()), ("squeeze", "excite"));
                let hidden = match functions[1] {
                    F::Silu => ProductActivation::Silu,
                    F::Relu => ProductActivation::Relu,
                    _ => ProductActivation::None,
                };
                assert_eq!(of.hidden, hidden, "{plan}");
                match of.gate {
                    Gate::Sigmoid => assert!(matches!(functions[2], F::Sigmoid)),
                    Gate::HardSigmoid { slope, offset } => {
                        assert!(matches!(functions[2], F::HardSigmoid));
                        assert!((slope - 1.0 / 6.0).abs() < 1e-6 && offset == 0.5, "{slope} {offset}");
                    }
                }
                let named = plan.steps.iter().find(|step| matches!(step.op, StepOp::SqueezeExcite(_))).unwrap();
                assert_eq!((named.name.as_str(), named.inputs.len(), named.outputs.len()), ("gated", 1, 1));
                assert!(matches!(named.kernel, Kernel::Sm90SqueezeExcite(_)));
                // The loops convert a row's input and output.
                let loops = plan.steps.iter().filter(|step| step.kernel == Kernel::Loop).count();
                assert_eq!(loops, 2, "{plan}");
            }
        }
    }

    /// Hard swish is applied by the step, since convolutions apply bounds and SiLU alone.
    #[test]
    fn the_step_applies_what_convolutions_do_not() {
        use Function as F;
        let of = |first, is_shown| {
            let functions = [first, F::Relu, F::HardSigmoid];
            let plan = Block { functions, is_shown, ..MOBILE }.planned(&Limits::h200());
            found(&plan).unwrap_or_else(|| panic!("{plan}")).activation
        };
        assert_eq!(of(F::HardSwish, false), ProductActivation::HardSwish);
        assert_eq!([of(F::HardSwish, true), of(F::Relu, false), of(F::None, false)], [ProductActivation::None; 3]);
    }

    #[test]
    fn many_rows_and_small_images_have_the_step_too() {
        for (batch, side, channels, hidden) in
            [(1, 112, 32, 8), (32, 112, 32, 8), (1, 7, 1152, 48), (32, 7, 1152, 48), (1, 7, 960, 240)]
        {
            let plan = Block { batch, side, channels, hidden, ..MOBILE }.planned(&Limits::h100());
            assert!(found(&plan).is_some(), "{plan}");
        }
    }

    #[test]
    fn a_part_of_a_gpu_has_clusters_of_up_to_eight_blocks() {
        let part = Limits { units: 60, ..Limits::h200() };
        for (limits, has_sixteen) in [(Limits::h200(), true), (part, false)] {
            let plan = MOBILE.planned(&limits);
            let of = found(&plan).unwrap_or_else(|| panic!("{plan}"));
            let clusters = of.tiles(&limits).into_iter().filter_map(|tile| Some(of.layout(tile, &limits)?.cluster));
            assert_eq!(clusters.max(), Some(if has_sixteen { 16 } else { 8 }));
        }
    }

    #[test]
    fn what_is_none_or_has_no_kernel_stays_as_it_is() {
        let without = |of: Block, limits: &Limits| {
            let plan = of.planned(limits);
            assert!(found(&plan).is_none(), "{plan}");
        };
        without(MOBILE, &Limits::a100());
        // Large filters of many rows take longer than further steps do.
        without(Block { batch: 128, side: 7, channels: 960, hidden: 240, ..MOBILE }, &Limits::h100());
        without(Block { channels: 484, ..MOBILE }, &Limits::h200());
        without(Block { hidden: 520, ..MOBILE }, &Limits::h200());
        without(Block { side: 200, ..MOBILE }, &Limits::h200()); // it does not fit into the registers of a cluster
        let functions = [Function::Silu, Function::Sigmoid, Function::Sigmoid];
        without(Block { functions, ..MOBILE }, &Limits::h200());
        without(Block { functions: [Function::Silu, Function::Silu, Function::Silu], ..MOBILE }, &Limits::h200());
    }
}
