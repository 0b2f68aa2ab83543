//! Functions over values against the loops to which the operations are expanded.

use super::graphs::{Dice, no_weight};
use super::output;
use crate::graph::{
    Cumulate, Expr, Graph, GraphBuilder, Node, Op, Origin, ReduceOp, Scatter, Tensor, TopK, ValueId, ValueType, expand,
};
use crate::loops::{Lowered, evaluate, inline, lower};
use crate::tensor::Dtype;

/// The types of numbers.
fn numbers() -> impl Iterator<Item = Dtype> + Clone {
    Dtype::ALL.into_iter().filter(|&dtype| dtype != Dtype::Bool)
}

/// Elements of a type whose sums and products are exact in floats. Many of them are equal, and some are not finite.
fn random(dice: &mut Dice, dtype: Dtype, dims: &[usize]) -> Tensor {
    let mut elem = || match dice.below(24) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        _ => [-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0][dice.below(8)],
    };
    let elems: Vec<f64> = (0..dims.iter().product()).map(|_| elem()).collect();
    output(&Op::Map(Expr::arg(0).cast(dtype)), &[&Tensor::of(dims, &elems)])
}

/// Indices for axes of these sizes, some of them out of range.
fn indices(dice: &mut Dice, dims: &[usize], size: impl Fn(usize) -> usize) -> Tensor {
    let elems: Vec<i64> = (0..dims.iter().product())
        .map(|number| {
            let size = size(number) as i64;
            match dice.below(12) {
                0 => i64::MIN,
                1 => 2 * size,
                _ => dice.below(2 * size as usize) as i64 - size,
            }
        })
        .collect();
    match dice.below(2) {
        0 => Tensor::of(dims, &elems),
        _ => output(&Op::Map(Expr::arg(0).cast(Dtype::I32)), &[&Tensor::of(dims, &elems)]),
    }
}

fn dims(dice: &mut Dice, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| 1 + dice.below(4)).collect()
}

/// The graph of one operation whose operands are inputs or constants.
fn graph(op: &Op, operands: &[(&Tensor, bool)]) -> Graph {
    let mut g = GraphBuilder::new();
    let operand = |(number, (value, known)): (usize, &(&Tensor, bool))| {
        let of = value.value_type();
        match known {
            true => g.constant(of.dtype, &of.dims, value.bytes()),
            false => g.input(&format!("x{number}"), of.dtype, &of.dims),
        }
    };
    let ids: Vec<Option<ValueId>> = operands.iter().enumerate().map(operand).map(Some).collect();
    let outputs = if matches!(op, Op::TopK(_)) { 2 } else { 1 };
    let written = g.node_with("it", op.clone(), &ids, outputs);
    written.iter().enumerate().for_each(|(number, &value)| g.output(&format!("y{number}"), value));
    g.finish().unwrap()
}

/// Checks that a function over values and its loops give the same results; returns the number of comparisons of all
/// pairs in the loops. Each comparison is fused with its readers.
fn check(op: &Op, operands: &[(&Tensor, bool)]) -> usize {
    let by_hand = graph(op, operands);
    let expanded = expand(&by_hand);
    let inputs: Vec<Tensor> = operands.iter().filter(|(_, known)| !known).map(|(value, _)| (*value).clone()).collect();
    let [wanted, found] = [&by_hand, &expanded].map(|graph| evaluate(graph, &mut no_weight, &inputs).unwrap());
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(wanted.value_type(), found.value_type());
        let same = match wanted.value_type().dtype.is_float() {
            true => wanted.to_f64s().iter().zip(found.to_f64s()).all(|(a, b)| *a == b || (a.is_nan() && b.is_nan())),
            false => wanted.bytes() == found.bytes(),
        };
        assert!(same, "{op:?} of {operands:?}: {found:?}, by hand {wanted:?}");
    }
    expanded.nodes.iter().map(|node| fused(&expanded, node)).sum()
}

/// The number of an operation's operands that are maps and larger than what they read. Each is fused with the
/// operation.
fn fused(graph: &Graph, node: &Node) -> usize {
    let consumer = loop_of(graph, node);
    let grows = |operand: usize| {
        let id = node.inputs[operand].expect("no operation is expanded to one that leaves operands out");
        let Origin::Node(writer, _) = graph.values[id.0].origin else { return None };
        let writer = &graph.nodes[writer.0];
        let most = writer.inputs.iter().flatten().map(|id| graph.value(*id).elems()).max();
        (matches!(writer.op, Op::Map(_)) && most < Some(graph.value(id).elems())).then_some((operand, writer))
    };
    let all: Vec<(usize, &Node)> = (0..node.inputs.len()).filter_map(grows).collect();
    for (operand, writer) in &all {
        let both = inline(&consumer, *operand, &loop_of(graph, writer));
        assert!(both.is_some(), "{} and {} of {} are two loops", writer.name, node.name, graph.value(node.outputs[0]));
    }
    all.len()
}

fn loop_of(graph: &Graph, node: &Node) -> crate::loops::Loop {
    let inputs: Vec<Option<&ValueType>> = node.inputs.iter().map(|id| id.map(|id| graph.value(id))).collect();
    let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| graph.value(id).clone()).collect();
    match lower(&node.op, &inputs, &outputs) {
        Lowered::Loops(mut loops) => loops.remove(0),
        Lowered::ByHand => panic!("{} is by hand", node.op.kind()),
    }
}

#[test]
fn the_extremes_are_those_with_the_fewest_before_them() {
    let (mut dice, mut fused) = (Dice(7), 0);
    for (round, dtype) in numbers().cycle().take(96).enumerate() {
        let mut dims = {
            let rank = 1 + dice.below(5);
            dims(&mut dice, rank)
        };
        let axis = dice.below(dims.len());
        dims[axis] = [0, 1, 2, 7, 19][dice.below(5)];
        let k = [0, dims[axis] / 2, dims[axis]][dice.below(3)];
        let x = random(&mut dice, dtype, &dims);
        fused += check(&Op::TopK(TopK { axis, k, largest: round % 2 == 0 }), &[(&x, false)]);
    }
    for (round, dtype) in numbers().enumerate() {
        let x = random(&mut dice, dtype, &[2, 600, 2]);
        let k = [1, 3, 70, 150][round % 4];
        fused += check(&Op::TopK(TopK { axis: 1, k, largest: dice.below(2) == 0 }), &[(&x, false)]);
    }
    let x = random(&mut dice, Dtype::U8, &[5000]);
    fused += check(&Op::TopK(TopK { axis: 0, k: 40, largest: false }), &[(&x, false)]);
    assert!(fused > 0, "no comparison of all pairs");
}

#[test]
fn sums_so_far_are_sums_of_blocks_and_within_them() {
    let (mut dice, mut fused) = (Dice(11), 0);
    for (round, dtype) in numbers().cycle().take(96).enumerate() {
        let mut dims = {
            let rank = 1 + dice.below(5);
            dims(&mut dice, rank)
        };
        let axis = dice.below(dims.len());
        dims[axis] = [0, 1, 5, 32, 33, 70, 64][dice.below(7)];
        let x = random(&mut dice, dtype, &dims);
        let op = if round % 3 == 0 { ReduceOp::Prod } else { ReduceOp::Sum };
        let [exclusive, reverse] = [dice.below(2) == 0, dice.below(2) == 0];
        fused += check(&Op::Cumulate(Cumulate { op, axis, exclusive, reverse }), &[(&x, false)]);
    }
    assert!(fused > 0, "no comparison of all pairs");
    let long = random(&mut dice, Dtype::I8, &[1500]);
    let of = Cumulate { op: ReduceOp::Sum, axis: 0, exclusive: true, reverse: true };
    check(&Op::Cumulate(of), &[(&long, false)]);
}

#[test]
fn places_find_the_elements_that_are_scattered_to_them() {
    let (mut dice, mut fused) = (Dice(13), 0);
    let all = [Scatter::Replace, Scatter::Add, Scatter::Mul, Scatter::Min, Scatter::Max];
    for (how, dtype) in all.into_iter().flat_map(|how| numbers().chain([Dtype::Bool]).map(move |of| (how, of))) {
        if dtype == Dtype::Bool && matches!(how, Scatter::Add | Scatter::Mul) {
            continue;
        }
        for known in [false, true, true] {
            let to = {
                let rank = 1 + dice.below(5);
                dims(&mut dice, rank)
            };
            let axis = dice.below(to.len());
            let mut from: Vec<usize> = to.iter().map(|&dim| 1 + dice.below(dim)).collect();
            from[axis] = dice.below(7);
            let [x, updates] = [&to, &from].map(|dims| random(&mut dice, dtype, dims));
            let at = indices(&mut dice, &from, |_| to[axis]);
            let operands = [(&x, false), (&at, known), (&updates, false)];
            fused += check(&Op::ScatterElements(axis, how), &operands);
        }
    }
    assert!(fused > 0, "no comparison of all pairs");
}

#[test]
fn places_find_the_slices_that_are_scattered_to_them() {
    let (mut dice, mut fused) = (Dice(17), 0);
    let all = [Scatter::Replace, Scatter::Add, Scatter::Mul, Scatter::Min, Scatter::Max];
    for (how, dtype) in all.into_iter().flat_map(|how| numbers().map(move |of| (how, of))) {
        for known in [false, true, true] {
            let to = {
                let rank = dice.below(6);
                dims(&mut dice, rank)
            };
            let len = dice.below(to.len() + 1);
            let outer = [vec![], vec![dice.below(6)], vec![2, 3]][dice.below(3)].clone();
            let at = indices(&mut dice, &[&outer[..], &[len]].concat(), |number| to[number % len]);
            let x = random(&mut dice, dtype, &to);
            let updates = random(&mut dice, dtype, &[&outer[..], &to[len..]].concat());
            fused += check(&Op::ScatterNd(how), &[(&x, false), (&at, known), (&updates, false)]);
        }
    }
    assert!(fused > 0, "no comparison of all pairs");
}

#[test]
fn halves_that_are_scattered_are_rounded_once() {
    let x = Tensor::of(&[1], &[half::f16::from_f32(2048.0)]);
    let updates = Tensor::of(&[3], &[half::f16::from_f32(1.0); 3]);
    let at = Tensor::of(&[3], &[0_i64; 3]);
    let op = Op::ScatterElements(0, Scatter::Add);
    assert_eq!(output(&op, &[&x, &at, &updates]).to_f64s(), [2052.0]); // 2051 lies between 2050 and 2052 in f16
    check(&op, &[(&x, false), (&at, false), (&updates, false)]);
}
