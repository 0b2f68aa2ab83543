//! The steps that graphs become. They have to give the same results as the operations one by one.

use super::super::{Kernel, Schedule, evaluate, schedule};
use super::{compute, counted, signed};
use crate::graph::{
    Binary, Constant, Contract, Conv, Expr, Graph, GraphBuilder, Nearest, Norm, Number, Op, Origin, Pad, PadMode, Pool,
    PoolOp, Reduce, ReduceOp, Resize, ResizeCoordinates, ResizeMode, Slice, Tensor, TopK, Unary, ValueId, ValueType,
    Window,
};
use crate::loops::TermKind;
use crate::tensor::Dtype;

/// Numbers from -1 to 1 in a type.
fn random(of: &ValueType, seed: u64) -> Tensor {
    let singles = signed(&of.dims, seed);
    let cast = Op::Map(Expr::arg(0).cast(of.dtype));
    compute(&cast, &[Some(&singles)], std::slice::from_ref(of)).unwrap().remove(0)
}

/// The outputs of a graph, computed operation by operation.
fn one_by_one(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let source = |(number, value): (usize, &crate::graph::Value)| match &value.origin {
        Origin::Input(input) => Some(inputs[*input].clone()),
        Origin::Constant(Constant::Bytes(bytes)) => Some(Tensor::from_bytes(value.of.clone(), bytes)),
        Origin::Constant(Constant::Weight(_)) => Some(random(&value.of, 1000 + number as u64)),
        Origin::Node(..) => None,
    };
    let mut values: Vec<Option<Tensor>> = graph.values.iter().enumerate().map(|(i, of)| source((i, of))).collect();
    for node in &graph.nodes {
        let operands: Vec<_> = node.inputs.iter().map(|id| id.and_then(|id| values[id.0].as_ref())).collect();
        let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| graph.value(id).clone()).collect();
        let written = compute(&node.op, &operands, &outputs).unwrap();
        node.outputs.iter().zip(written).for_each(|(id, value)| values[id.0] = Some(value));
    }
    graph.outputs.iter().map(|port| values[port.value.0].clone().unwrap()).collect()
}

/// The nodes of each step, by name.
fn names(graph: &Graph, of: &Schedule) -> Vec<String> {
    let names =
        |nodes: &[crate::graph::NodeId]| nodes.iter().map(|id| &*graph.nodes[id.0].name).collect::<Vec<_>>().join(" ");
    of.steps.iter().map(|step| names(&step.nodes)).collect()
}

/// Checks that the values that a step reads exist before it and have the types of its kernel's operands.
fn check_order(graph: &Graph, of: &Schedule) {
    let mut there: Vec<bool> = graph.values.iter().map(|value| !matches!(value.origin, Origin::Node(..))).collect();
    for step in &of.steps {
        assert!(step.reads.iter().all(|id| there[id.0] && of.view_of(*id) == *id), "{step:?}");
        if let Kernel::Loop(kernel) = &step.kernel {
            let types: Vec<&ValueType> = step.reads.iter().map(|&id| graph.value(id)).collect();
            assert!(kernel.operands.iter().eq(types), "{step:?}");
            let written = graph.value(step.writes[0]);
            assert_eq!((kernel.elems(), kernel.dtype()), (written.elems(), written.dtype));
        }
        step.writes.iter().for_each(|id| assert!(!std::mem::replace(&mut there[id.0], true), "{step:?}"));
    }
    assert!(graph.outputs.iter().all(|port| there[of.view_of(port.value).0]));
}

/// The names of a graph's steps. Checks that they give the same results as the operations one by one, up to a rounding
/// of these sizes.
fn steps_within(graph: &Graph, bound: impl Fn(Dtype) -> f64) -> Vec<String> {
    let inputs: Vec<Tensor> =
        graph.inputs.iter().enumerate().map(|(i, port)| random(graph.value(port.value), i as u64 + 1)).collect();
    let of = schedule(graph);
    check_order(graph, &of);
    let number = |name: &str| -> u64 { name.parse().expect("weights are called by their numbers") };
    let found = evaluate(graph, &mut |name, of| Ok(random(of, 1000 + number(name))), &inputs).unwrap();
    for (found, expected) in found.iter().zip(one_by_one(graph, &inputs)) {
        assert_eq!(found.value_type(), expected.value_type());
        let bound = bound(found.value_type().dtype);
        for (a, b) in found.to_f64s().into_iter().zip(expected.to_f64s()) {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= bound * (1.0 + b.abs());
            assert!(same, "{a}, one by one {b}: {:#?}", names(graph, &of));
        }
    }
    names(graph, &of)
}

fn steps(graph: &Graph) -> Vec<String> {
    steps_within(graph, |_| 1e-5)
}

fn weight(g: &mut GraphBuilder, dtype: Dtype, dims: &[usize]) -> ValueId {
    let number = g.graph().values.len();
    g.weight(&number.to_string(), dtype, dims)
}

fn add() -> Op {
    Op::Map(Expr::arg(0) + Expr::arg(1))
}

fn relu() -> Op {
    Op::Map(Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, 0.0)))
}

fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

fn mean(axes: &[usize]) -> Op {
    Op::Reduce(Reduce { op: ReduceOp::Mean, axes: axes.to_vec(), keep: true })
}

fn conv(g: &mut GraphBuilder, name: &str, x: ValueId, [out, taps, groups]: [usize; 3]) -> ValueId {
    let channels = g.value(x).dims[3] / groups;
    let filter = weight(g, Dtype::F32, &[out, channels, taps, taps]);
    g.node(name, Op::Conv(Conv { window: Window::all(2, taps, 1, taps / 2), groups }), &[x, filter])
}

#[test]
fn what_follows_a_product_is_done_to_its_sums() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[2, 10, 24]);
    let [w, b] = [weight(&mut g, Dtype::F32, &[24, 36]), weight(&mut g, Dtype::F32, &[36])];
    let y = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
    let y = g.node("bias", add(), &[y, b]);
    let erf = g.map("erf", (Expr::arg(0) * number(0.7)).unary(Unary::Erf), &[y]);
    let y = g.map("gelu", Expr::arg(0) * (Expr::arg(1) + number(1.0)), &[y, erf]);
    let w = weight(&mut g, Dtype::F32, &[36, 24]);
    let y = g.node("second", Op::Contract(Contract::matmul(3, 2)), &[y, w]);
    let y = g.node("residual", add(), &[y, x]);
    g.output("y", y);
    assert_eq!(steps(&g.finish().unwrap()), ["product bias erf gelu", "second residual"]);
}

#[test]
fn attention_is_four_products_with_heads_moved_by_their_readers() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[2, 6, 32]);
    let mask = g.input("mask", Dtype::F32, &[2, 1, 1, 6]);
    let mut heads = |name: &str, order: [usize; 4]| {
        let [w, b] = [weight(&mut g, Dtype::F32, &[32, 32]), weight(&mut g, Dtype::F32, &[32])];
        let y = g.node(name, Op::Contract(Contract::matmul(3, 2)), &[x, w]);
        let y = g.node(&format!("{name}.bias"), add(), &[y, b]);
        let y = g.node(&format!("{name}.heads"), Op::Reshape(vec![2, 6, 4, 8]), &[y]);
        g.node(&format!("{name}.turn"), Op::Transpose(order.to_vec()), &[y])
    };
    let [q, k, v] =
        [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])].map(|(name, order)| heads(name, order));
    let scores = g.node("scores", Op::Contract(Contract::matmul(4, 4)), &[q, k]);
    let scaled = g.map("scale", Expr::arg(0) * number(0.35), &[scores]);
    let masked = g.node("mask", add(), &[scaled, mask]);
    let shares = g.node("softmax", Op::Softmax { axis: 3, log: false }, &[masked]);
    let y = g.node("mix", Op::Contract(Contract::matmul(4, 4)), &[shares, v]);
    let y = g.node("back", Op::Transpose(vec![0, 2, 1, 3]), &[y]);
    let y = g.node("tokens", Op::Reshape(vec![2, 6, 32]), &[y]);
    let w = weight(&mut g, Dtype::F32, &[32, 32]);
    let y = g.node("out", Op::Contract(Contract::matmul(3, 2)), &[y, w]);
    g.output("y", y);
    let expected = ["q q.bias", "k k.bias", "v v.bias", "q.turn k.turn scores scale mask", "softmax", "v.turn mix"];
    let found = steps(&g.finish().unwrap());
    assert_eq!(found[..6], expected);
    assert_eq!(found[6..], ["back out"]);
}

#[test]
fn norms_in_pieces_are_one_loop_and_softmax_two() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[5, 40]);
    let centre = g.node("centre", mean(&[1]), &[x]);
    let below = g.map("below", Expr::arg(0) - Expr::arg(1), &[x, centre]);
    let square = g.map("square", Expr::arg(0) * Expr::arg(0), &[below]);
    let variance = g.node("variance", mean(&[1]), &[square]);
    let deviation = g.map("deviation", (Expr::arg(0) + number(1e-5)).unary(Unary::Sqrt), &[variance]);
    let y = g.map("norm", Expr::arg(0) / Expr::arg(1), &[below, deviation]);
    let scale = weight(&mut g, Dtype::F32, &[40]);
    let y = g.map("scale", Expr::arg(0) * Expr::arg(1), &[y, scale]);
    g.output("y", y);
    assert_eq!(steps(&g.finish().unwrap()), ["centre below square variance deviation norm scale"]);

    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[5, 40]);
    let most = g.node("most", Op::Reduce(Reduce { op: ReduceOp::Max, axes: vec![1], keep: true }), &[x]);
    let exp = g.map("exp", (Expr::arg(0) - Expr::arg(1)).unary(Unary::Exp), &[x, most]);
    let sum = g.node("sum", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: true }), &[exp]);
    let y = g.map("share", Expr::arg(0) / Expr::arg(1), &[exp, sum]);
    g.output("y", y);
    assert_eq!(steps(&g.finish().unwrap()), ["most exp", "sum share"]);
}

#[test]
fn blocks_of_convolutions_have_a_step_for_each() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[1, 8, 8, 6]);
    let y = conv(&mut g, "expand", x, [24, 1, 1]);
    let y = g.node("expand.relu", relu(), &[y]);
    let y = conv(&mut g, "depthwise", y, [24, 3, 24]);
    let b = weight(&mut g, Dtype::F32, &[24]);
    let y = g.node("depthwise.bias", add(), &[y, b]);
    let y = g.node("depthwise.relu", relu(), &[y]);
    let squeezed = g.node("squeeze", mean(&[1, 2]), &[y]);
    let gate = conv(&mut g, "gate", squeezed, [24, 1, 1]);
    let gate = g.map("tanh", Expr::arg(0).unary(Unary::Tanh), &[gate]);
    let y = g.map("gated", Expr::arg(0) * Expr::arg(1), &[y, gate]);
    let y = conv(&mut g, "project", y, [6, 1, 1]);
    let y = g.node("residual", add(), &[y, x]);
    g.output("y", y);
    let expected = [
        "expand expand.relu",
        "depthwise depthwise.bias depthwise.relu",
        "squeeze",
        "gate tanh",
        "gated",
        "project residual",
    ];
    assert_eq!(steps(&g.finish().unwrap()), expected);
}

#[test]
fn layout_changes_are_done_by_their_readers() {
    let mut g = GraphBuilder::new();
    let [x, z] = [g.input("x", Dtype::F32, &[4, 6, 10]), g.input("z", Dtype::F32, &[3, 3, 9])];
    let turned = g.node("turned", Op::Transpose(vec![2, 0, 1]), &[x]); // 10 x 4 x 6
    let slice = Slice { start: vec![9, 1, 0], step: vec![-1, 1, 2], dims: vec![8, 3, 3] };
    let sliced = g.node("sliced", Op::Slice(slice), &[turned]);
    let flat = g.node("flat", Op::Reshape(vec![8, 9]), &[sliced]);
    let wide = g.node("wide", Op::Broadcast(vec![2, 8, 9]), &[flat]);
    let pad = Pad { before: vec![0, 1, 0], after: vec![1, 0, 0], mode: PadMode::Constant(Number::Float(0.5)) };
    let padded = g.node("padded", Op::Pad(pad), &[wide]);
    let places = g.constant(Dtype::I64, &[3], [0_i64, -1, 2].map(i64::to_le_bytes).concat());
    let gathered = g.node("gathered", Op::Gather(1), &[padded, places]);
    let both = g.node("both", Op::Concat(2), &[gathered, z]);
    let y = g.map("twice", Expr::arg(0) + Expr::arg(0), &[both]);
    g.output("y", y);
    // Indices of a gather do not follow from axes, so its operand is a step of its own.
    assert_eq!(steps(&g.finish().unwrap()), ["turned sliced wide padded", "gathered both twice"]);
}

#[test]
fn a_reshape_is_a_view_and_axes_that_it_changes_are_split() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[4, 6, 10]);
    let y = g.map("exp", Expr::arg(0).unary(Unary::Exp), &[x]);
    let groups = g.node("groups", Op::Reshape(vec![2, 2, 3, 20]), &[y]);
    let sums = g.node("sums", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1, 3], keep: false }), &[groups]);
    let whole = g.node("whole", Op::Reshape(vec![6]), &[sums]);
    let same = g.node("same", Op::Transpose(vec![0]), &[whole]);
    let input = g.node("input", Op::Reshape(vec![240]), &[x]);
    g.output("sums", whole);
    g.output("same", same);
    g.output("input", input);
    g.output("input again", x);
    let graph = g.finish().unwrap();
    assert_eq!(steps(&graph), ["exp sums"]);
    let of = schedule(&graph);
    assert_eq!([groups, whole, same, input].map(|id| of.view_of(id)), [y, sums, sums, x]);
}

#[test]
fn values_that_are_shown_or_read_by_hand_exist() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[3, 16]);
    let a = g.map("a", Expr::arg(0) + number(1.0), &[x]);
    let b = g.map("b", Expr::arg(0) * number(3.0), &[a]);
    let turned = g.node("turned", Op::Transpose(vec![1, 0]), &[b]);
    let as_rows = g.node("rows", Op::Reshape(vec![4, 12]), &[turned]);
    let top = g.node_with("top", Op::TopK(TopK { axis: 1, k: 2, largest: true }), &[Some(as_rows)], 2);
    let last = g.map("last", Expr::arg(0) - number(1.0), &[top[0]]);
    let dead = Pool { op: PoolOp::Max, window: Window::all(1, 2, 2, 0) };
    let pixels = g.node("pixels", Op::Reshape(vec![1, 3, 16]), &[x]);
    let pooled = g.node_with("pooled", Op::Pool(dead), &[Some(pixels)], 2);
    g.output("a", a);
    g.output("last", last);
    g.output("indices", pooled[1]);
    let graph = g.finish().unwrap();
    assert_eq!(steps(&graph), ["a", "b turned", "top", "last", "pooled"]);
    let of = schedule(&graph);
    assert_eq!(of.steps[2].kernel, Kernel::Apart(graph.find("top").unwrap()));
    assert_eq!((&of.steps[2].reads[..], &of.steps[4].writes[..]), (&[turned][..], &pooled[1..]));
}

#[test]
fn what_is_cheap_is_computed_again_and_what_is_dear_is_kept() {
    for (op, expected) in [
        (Expr::arg(0) + Expr::Axis(0).cast(Dtype::F32), &["x sum", "x product"][..]),
        (Expr::arg(0).unary(Unary::Exp), &["x", "sum", "product"]),
    ] {
        let mut g = GraphBuilder::new();
        let [a, b] = [g.input("a", Dtype::F32, &[8, 8]), g.input("b", Dtype::F32, &[8, 8])];
        let x = g.map("x", op, &[a]);
        let sum = g.node("sum", add(), &[x, b]);
        let product = g.map("product", Expr::arg(0) * Expr::arg(1), &[x, b]);
        g.output("sum", sum);
        g.output("product", product);
        assert_eq!(steps(&g.finish().unwrap()), expected);
    }
}

#[test]
fn what_points_of_a_row_share_is_computed_once_for_the_row() {
    for (columns, rows, expected) in
        [([3, 200], [3, 1], &["root quotient"][..]), ([3, 200], [1, 200], &["root", "quotient"])]
    {
        let mut g = GraphBuilder::new();
        let [x, y] = [g.input("x", Dtype::F32, &columns), g.input("y", Dtype::F32, &rows)];
        let root = g.map("root", (Expr::arg(0) + number(2.0)).unary(Unary::Sqrt), &[y]);
        let quotient = g.map("quotient", Expr::arg(0) / Expr::arg(1), &[x, root]);
        g.output("y", quotient);
        assert_eq!(steps(&g.finish().unwrap()), expected);
    }
}

#[test]
fn a_half_of_each_row_turned_is_one_loop_with_what_reads_it() {
    let mut g = GraphBuilder::new();
    let (x, sin) = (g.input("x", Dtype::F32, &[2, 5, 8]), g.input("sin", Dtype::F32, &[5, 8]));
    let half = |start| Op::Slice(Slice { start: vec![0, 0, start], step: vec![1; 3], dims: vec![2, 5, 4] });
    let (first, second) = (g.node("first", half(0), &[x]), g.node("second", half(4), &[x]));
    let negative = g.map("negative", -Expr::arg(0), &[second]);
    let turned = g.node("turned", Op::Concat(2), &[negative, first]);
    let part = g.map("part", Expr::arg(0) * Expr::arg(1), &[turned, sin]);
    let y = g.node("sum", add(), &[part, x]);
    g.output("y", y);
    assert_eq!(steps(&g.finish().unwrap()), ["first second negative turned part sum"]);
}

#[test]
fn a_loop_takes_in_no_more_than_its_bounds() {
    let mut g = GraphBuilder::new();
    let mut y = g.input("x0", Dtype::F32, &[4]);
    for i in 1..40 {
        let x = g.input(&format!("x{i}"), Dtype::F32, &[4]);
        y = g.node(&format!("sum{i}"), add(), &[y, x]);
    }
    for i in 0..400 {
        y = g.map(&format!("more{i}"), Expr::arg(0) * number(0.5 + f64::from(i) / 400.0), &[y]);
    }
    g.output("y", y);
    let graph = g.finish().unwrap();
    let found = steps(&graph);
    assert!((3..=8).contains(&found.len()), "{found:#?}");
    for step in schedule(&graph).steps {
        let Kernel::Loop(of) = step.kernel else { panic!("no loop") };
        assert!(of.terms.len() <= 300 && of.operands.len() <= 16, "{} {}", of.terms.len(), of.operands.len());
    }
}

#[test]
fn empty_values_are_steps_that_write_nothing() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[3, 0]);
    let y = g.map("y", Expr::arg(0) + number(1.0), &[x]);
    let sum = g.node("sum", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false }), &[y]);
    let both = g.node("both", Op::Concat(1), &[y, y]); // the other operand is empty: a view
    g.output("sum", sum);
    g.output("both", both);
    assert_eq!(steps(&g.finish().unwrap()), ["y", "sum"]);
}

#[test]
fn halves_between_fused_operations_are_rounded() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F16, &[6, 50]);
    let big = g.map("big", Expr::arg(0) * Expr::float(Dtype::F16, 3000.0), &[x]);
    let near = g.map("near", Expr::arg(0) + Expr::float(Dtype::F16, 0.3), &[big]);
    let sum = g.node("sum", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: true }), &[near]);
    let y = g.map("y", Expr::arg(0) - Expr::arg(1), &[near, sum]);
    g.output("y", y);
    let graph = g.finish().unwrap();
    assert_eq!(steps_within(&graph, |_| 0.0), ["big near sum y"]);
    let of = schedule(&graph);
    let Kernel::Loop(of) = &of.steps[0].kernel else { panic!("no loop") };
    let rounded = of.terms.iter().filter(|term| term.dtype == Dtype::F16 && matches!(term.kind, TermKind::Cast(_)));
    assert!(rounded.count() >= 4, "{of:?}");
}

/// Random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A random operation on some of these values, which have one type; `None` if the values do not fit the random choice.
fn thrown(dice: &mut Dice, g: &GraphBuilder, values: &[ValueId]) -> Option<(Op, Vec<ValueId>)> {
    let x = values[dice.below(values.len())];
    let of = g.value(x).clone();
    let (dims, rank, a) = (of.dims.clone(), of.rank(), Expr::arg(0));
    let axis = dice.below(rank.max(1));
    let like = values.iter().copied().filter(|&id| *g.value(id) == of).collect::<Vec<_>>();
    let other = like[dice.below(like.len())];
    let reduce = |op, keep| Op::Reduce(Reduce { op, axes: vec![axis], keep });
    let one = |op: Op| Some((op, vec![x]));
    let float = of.dtype.is_float();
    match dice.below(16) {
        0 | 1 => Some((Op::Map(a + Expr::arg(1)), vec![x, other])),
        2 => Some((Op::Map(a * Expr::arg(1)), vec![x, other])),
        3 if float => one(Op::Map(a.unary([Unary::Tanh, Unary::Abs, Unary::Sqrt, Unary::Neg][dice.below(4)]))),
        4 => one(Op::Map(a.cast([Dtype::F32, Dtype::F16, Dtype::I32, Dtype::Bf16][dice.below(4)]))),
        5 if rank > 0 => one(reduce([ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][dice.below(3)], dice.below(2) == 0)),
        6 if rank > 0 && float => one(Op::Softmax { axis, log: false }),
        7 if rank > 0 && float => one(Op::Norm(Norm { axis, eps: 1e-2, centred: dice.below(2) == 0 })),
        8 if rank > 0 => {
            let mut order: Vec<usize> = (0..rank).collect();
            order.rotate_left(axis);
            one(Op::Transpose(order))
        }
        9 => {
            let split = dims.iter().position(|dim| dim % 2 == 0 && *dim > 2);
            let split = split.map(|at| [&dims[..at], &[dims[at] / 2, 2], &dims[at + 1..]].concat());
            one(Op::Reshape(split.filter(|_| rank < 5).unwrap_or_else(|| vec![of.elems()])))
        }
        10 if rank > 0 && dims[axis] > 1 => {
            let (mut start, mut step, mut dims) = (vec![0; rank], vec![1; rank], dims);
            (start[axis], step[axis], dims[axis]) = (dims[axis] - 1, -1, dims[axis] - 1);
            one(Op::Slice(Slice { start, step, dims }))
        }
        11 if rank > 0 && rank < 4 => {
            let mut pad = Pad { before: vec![0; rank], after: vec![0; rank], mode: PadMode::Edge };
            (pad.before[axis], pad.after[axis]) = (1, dice.below(2) as isize);
            if dice.below(2) == 0 {
                pad.mode = PadMode::Constant(if float { Number::Float(0.5) } else { Number::Int(3) });
            }
            one(Op::Pad(pad))
        }
        12 if rank > 0 => Some((Op::Concat(axis), vec![x, other])),
        13 if rank > 0 && rank < 4 => one(Op::Broadcast([&[2], &dims[..]].concat())),
        14 if rank == 2 => {
            let fits = |&id: &ValueId| g.value(id).dtype == of.dtype && g.value(id).dims[..].first() == dims.get(1);
            let other = values.iter().copied().filter(|&id| g.value(id).rank() == 2).find(fits)?;
            Some((Op::Contract(Contract::matmul(2, 2)), vec![x, other]))
        }
        15 if rank > 0 => {
            one(Op::Cumulate(crate::graph::Cumulate { op: ReduceOp::Sum, axis, exclusive: false, reverse: true }))
        }
        _ => None,
    }
}

/// A graph of random operations.
fn thrown_graph(seed: u64) -> Graph {
    let (mut dice, mut g) = (Dice(seed), GraphBuilder::new());
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32];
    let mut values: Vec<ValueId> = vec![g.input("x", dtypes[dice.below(2)], &[4, 6])];
    values.push(weight(&mut g, dtypes[dice.below(4)], &[4, 6]));
    values.push(weight(&mut g, Dtype::F32, &[2, 3, 4]));
    values.push(weight(&mut g, dtypes[dice.below(2)], &[6]));
    let wanted = values.len() + 12;
    while values.len() < wanted {
        let Some((op, operands)) = thrown(&mut dice, &g, &values) else { continue };
        let types: Vec<Option<&ValueType>> = operands.iter().map(|&id| Some(g.value(id))).collect();
        let small = op.infer(&types, 1).is_ok_and(|written| written[0].elems() <= 2000 && written[0].rank() < 6);
        if small {
            values.push(g.node(&format!("n{}", values.len()), op, &operands));
        }
    }
    for i in 0..1 + dice.below(3) {
        let shown = values[values.len() - 1 - dice.below(6)];
        g.output(&format!("y{i}"), shown);
    }
    g.output("last", values[wanted - 1]);
    g.finish().unwrap()
}

/// Sums of products may be added in another order, so that values that depend on them are rounded differently; all
/// other values are the same.
#[test]
fn any_graph_computes_what_its_operations_do() {
    let (mut nodes, mut fused) = (0, 0);
    for seed in 1..400 {
        let graph = thrown_graph(seed);
        let of = steps_within(&graph, |dtype| match dtype {
            Dtype::Bf16 => 2e-2,
            Dtype::F16 => 4e-3,
            _ => 1e-4,
        });
        (nodes, fused) = (nodes + graph.nodes.len(), fused + of.len());
    }
    assert!(fused * 3 < nodes * 2, "{nodes} nodes are {fused} steps");
}

#[test]
fn counted_elements_keep_their_places_through_views() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::I32, &[4, 6]);
    let y = g.node("turned", Op::Transpose(vec![1, 0]), &[x]);
    let y = g.node("rows", Op::Reshape(vec![3, 8]), &[y]);
    g.output("y", y);
    let found = evaluate(&g.finish().unwrap(), &mut |_, _| unreachable!(), &[counted(&[4, 6])]).unwrap();
    assert_eq!(found[0].elems::<i32>()[..8], [0, 6, 12, 18, 1, 7, 13, 19]);
}

/// Maps of different sizes, times gates of their channels, are enlarged and joined by channels, as a detector of text does.
/// Blocks end within runs of channels, and conditions on channels are the same in all blocks.
#[test]
fn enlarged_maps_are_joined_in_blocks_that_end_anywhere() {
    for channels in [3, 24, 200, 700] {
        let mut g = GraphBuilder::new();
        let mut parts = Vec::new();
        for (number, scale) in [4, 2, 1].into_iter().enumerate() {
            let (height, width) = (12 / scale, 20 / scale);
            let x = g.input(&format!("x{number}"), Dtype::F32, &[1, height, width, channels]);
            let gate = g.input(&format!("gate{number}"), Dtype::F32, &[1, 1, 1, channels]);
            let y = g.map(&format!("times{number}"), Expr::arg(0) + Expr::arg(0) * Expr::arg(1), &[x, gate]);
            let scale = scale as f64;
            let larger = Op::Resize(Resize {
                mode: ResizeMode::Nearest(Nearest::Floor),
                coordinates: ResizeCoordinates::Asymmetric,
                dims: vec![1, 12, 20, channels],
                scales: vec![1.0, scale, scale, 1.0],
                crop: vec![[0.0, 1.0]; 4],
                antialias: false,
                exclude_outside: false,
                outside: None,
            });
            parts.push(g.node(&format!("larger{number}"), larger, &[y]));
        }
        let joined = g.node("joined", Op::Concat(3), &parts);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[parts[0], parts[2]]);
        g.output("joined", joined);
        g.output("sum", sum);
        assert!(!steps_within(&g.finish().unwrap(), |_| 0.0).is_empty());
    }
}

/// More functions in a chain than a core has room for, some of them read again much later, of values and of constants.
#[test]
fn values_that_nobody_reads_any_more_give_their_place_to_others() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[3, 700]);
    let bias = g.input("bias", Dtype::F32, &[700]);
    let (mut values, mut y) = (vec![x], x);
    for i in 0..40 {
        let by = number(0.9 + 0.01 * f64::from(i));
        let all = match i % 4 {
            0 => (Expr::arg(0) * by, vec![y]),
            1 => (by - Expr::arg(0), vec![y]),
            2 => (Expr::arg(0) * number(0.5) + Expr::arg(1) * number(0.25), vec![y, values[values.len() / 2]]),
            _ => ((Expr::arg(0) + Expr::arg(1)).binary(Binary::Min, by), vec![y, bias]),
        };
        y = g.map(&format!("{i}"), all.0, &all.1);
        values.push(y);
    }
    g.output("y", y);
    assert_eq!(steps_within(&g.finish().unwrap(), |_| 0.0).len(), 1);
}
