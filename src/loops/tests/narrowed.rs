//! Graphs whose products compute only the rows that are read: the same numbers.

use crate::graph::{
    Contract, Expr, Graph, GraphBuilder, Linear, Op, Slice, Tensor, TopK, ValueId, ValueType, narrowed, simplify,
};
use crate::loops;
use crate::tensor::Dtype;

const ROWS: usize = 2;
const TOKENS: usize = 5;
const HEADS: usize = 2;
const DIMS: usize = 4;
const WIDTH: usize = HEADS * DIMS;

fn linear(g: &mut GraphBuilder, name: &str, x: ValueId, columns: usize) -> ValueId {
    g.linear_with(name, x, Linear::named(name, columns))
}

/// A layer of a transformer as exporters write it: queries, keys and values cut out of one product.
fn layer(g: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
    let at = |part: &str| format!("{name}.{part}");
    let y = g.layer_norm(&at("norm1"), x, 1e-6);
    let qkv = linear(g, &at("qkv"), y, 3 * WIDTH);
    let apart = g.node(&at("apart"), Op::Reshape(vec![ROWS, TOKENS, 3, HEADS, DIMS]), &[qkv]);
    let turned = g.node(&at("turned"), Op::Transpose(vec![2, 0, 3, 1, 4]), &[apart]);
    let [q, k, v] = [0_i64, 1, 2].map(|part| {
        let index = g.constant(Dtype::I64, &[], part.to_le_bytes().to_vec());
        g.node(&at(&format!("part {part}")), Op::Gather(0), &[turned, index])
    });
    let scores = Contract { left: vec![0, 1, 2, 4], right: vec![0, 1, 3, 4], result: vec![0, 1, 2, 3] };
    let scores = g.node(&at("scores"), Op::Contract(scores), &[q, k]);
    let weights = g.node(&at("weights"), Op::Softmax { axis: 3, log: false }, &[scores]);
    let mixed = Contract { left: vec![0, 1, 2, 3], right: vec![0, 1, 3, 4], result: vec![0, 1, 2, 4] };
    let mixed = g.node(&at("mixed"), Op::Contract(mixed), &[weights, v]);
    let back = g.node(&at("back"), Op::Transpose(vec![0, 2, 1, 3]), &[mixed]);
    let together = g.node(&at("together"), Op::Reshape(vec![ROWS, TOKENS, WIDTH]), &[back]);
    let y = linear(g, &at("out"), together, WIDTH);
    let x = g.map(&at("sum1"), Expr::arg(0) + Expr::arg(1), &[x, y]);
    let y = g.layer_norm(&at("norm2"), x, 1e-6);
    let y = linear(g, &at("fc1"), y, 2 * WIDTH);
    let y = g.map(&at("gelu"), Expr::arg(0).gelu(), &[y]);
    let y = linear(g, &at("fc2"), y, WIDTH);
    g.map(&at("sum2"), Expr::arg(0) + Expr::arg(1), &[x, y])
}

/// Two layers, and what `read` makes of their result.
fn network(read: impl Fn(&mut GraphBuilder, ValueId)) -> Graph {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[ROWS, TOKENS, WIDTH]);
    let x = layer(&mut g, "first", x);
    let x = layer(&mut g, "last", x);
    read(&mut g, x);
    g.finish().unwrap()
}

/// The graph as it is planned.
fn small(graph: &Graph) -> Graph {
    let simple = simplify(graph);
    let small = narrowed(&simple).unwrap_or(simple);
    small.check().unwrap();
    small
}

fn token(g: &mut GraphBuilder, name: &str, x: ValueId, at: i64) -> ValueId {
    let index = g.constant(Dtype::I64, &[], at.to_le_bytes().to_vec());
    g.node(name, Op::Gather(1), &[x, index])
}

fn results(graph: &Graph) -> Vec<Vec<f32>> {
    let number = |seed: usize, i: usize| ((seed * 31 + i * 17) % 23) as f32 / 23.0 - 0.4;
    let elems = ROWS * TOKENS * WIDTH;
    let x: Vec<f32> = (0..elems).map(|i| number(7, i * i + i)).collect();
    let inputs = [Tensor::of(&[ROWS, TOKENS, WIDTH], &x)];
    let mut weight = |name: &str, of: &ValueType| {
        let seed = name.bytes().map(usize::from).sum();
        let all: Vec<f32> = (0..of.elems()).map(|i| number(seed, i)).collect();
        Ok(Tensor::of(&of.dims, &all))
    };
    let found = loops::evaluate(graph, &mut weight, &inputs).unwrap();
    found.iter().map(|tensor| tensor.elems::<f32>().to_vec()).collect()
}

/// How far the results of two graphs are apart.
fn off(of: &Graph, other: &Graph) -> f32 {
    let [of, other] = [of, other].map(results);
    let lengths = |all: &[Vec<f32>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&of), lengths(&other));
    of.iter().flatten().zip(other.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The second dimension of what a node writes.
fn rows(graph: &Graph, name: &str) -> usize {
    let node = graph.nodes.iter().find(|node| node.name == name).unwrap();
    graph.value(node.outputs[0]).dims[1]
}

#[test]
fn the_last_layer_computes_the_token_that_is_asked_for() {
    for at in [0, 3, -1] {
        let graph = network(|g, x| {
            let one = token(g, "one", x, at);
            let y = g.layer_norm("norm", one, 1e-6);
            let y = linear(g, "head", y, 3);
            g.output("logits", y);
        });
        let simple = small(&graph);
        assert_eq!(["last.qkv", "last.out", "last.fc1", "last.fc2"].map(|name| rows(&simple, name)), [5, 1, 1, 1]);
        assert_eq!(["first.qkv", "first.fc2"].map(|name| rows(&simple, name)), [5, 5]);
        let scores = simple.nodes.iter().find(|node| node.name == "last.scores").unwrap();
        assert_eq!(simple.value(scores.outputs[0]).dims, [ROWS, HEADS, 1, TOKENS]);
        assert!(off(&graph, &simple) < 1e-5, "token {at}");
        assert!(narrowed(&simple).is_none());
    }
}

#[test]
fn rows_that_others_read_stay() {
    let both = network(|g, x| {
        let one = token(g, "one", x, 0);
        g.output("one", one);
        g.output("all", x);
    });
    assert_eq!(rows(&small(&both), "last.fc2"), TOKENS);
    // Two tokens that are no neighbours: all rows are computed.
    let two = network(|g, x| {
        for (name, at) in [("one", 0), ("other", 2)] {
            let one = token(g, name, x, at);
            g.output(name, one);
        }
    });
    assert_eq!(rows(&small(&two), "last.fc2"), TOKENS);
}

#[test]
fn slices_of_neighbours_are_rows_too() {
    let graph = network(|g, x| {
        let cut = Slice { start: vec![0, 1, 0], step: vec![1; 3], dims: vec![ROWS, 3, WIDTH] };
        let some = g.node("some", Op::Slice(cut), &[x]);
        g.output("some", some);
    });
    let simple = small(&graph);
    assert_eq!(["last.out", "last.fc2"].map(|name| rows(&simple, name)), [3, 3]);
    assert!(off(&graph, &simple) < 1e-5);
}

#[test]
fn rows_are_left_out_through_codes() {
    let graph = |axis: Option<usize>| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[ROWS, TOKENS, WIDTH]);
        let y = linear(&mut g, "product", x, WIDTH);
        let count = axis.map_or(1, |axis| [ROWS, TOKENS, WIDTH][axis]);
        let dims = axis.map_or(vec![], |_| vec![count]);
        let scale = g.constant(Dtype::F32, &dims, [0.1_f32.to_le_bytes(); WIDTH][..count].concat());
        let codes = g.node("codes", Op::Quantize { dtype: Dtype::I8, axis }, &[y, scale]);
        let back = g.node("back", Op::Dequantize { axis }, &[codes, scale]);
        let one = token(&mut g, "one", back, 1);
        g.output("one", one);
        g.finish().unwrap()
    };
    for (axis, left) in [(None, 1), (Some(2), 1), (Some(1), TOKENS)] {
        let graph = graph(axis);
        let simple = small(&graph);
        assert_eq!(rows(&simple, "product"), left, "{axis:?}");
        assert!(off(&graph, &simple) < 0.11, "{axis:?}: a code at most");
    }
}

/// A node with several results computes all of them.
#[test]
fn nodes_with_several_results_stay_whole() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[ROWS, TOKENS, WIDTH]);
    let y = linear(&mut g, "product", x, WIDTH);
    let one = token(&mut g, "one", y, 0);
    let of = TopK { axis: 2, k: 3, largest: true };
    let top = g.node_with("top", Op::TopK(of), &[Some(x)], 2);
    let of_one = token(&mut g, "top of one", top[0], 0);
    let scaled = linear(&mut g, "behind", top[0], 4);
    let last = token(&mut g, "last", scaled, -1);
    for (name, value) in [("one", one), ("top", of_one), ("last", last)] {
        g.output(name, value);
    }
    let graph = g.finish().unwrap();
    let simple = small(&graph);
    assert_eq!(["product", "top", "behind"].map(|name| rows(&simple, name)), [1, TOKENS, 1]);
    assert!(off(&graph, &simple) < 1e-5);
}

/// Channels are not cut: a product's matrix stays a constant.
#[test]
fn channels_are_no_rows() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[ROWS, TOKENS, WIDTH]);
    let y = linear(&mut g, "product", x, WIDTH);
    let turned = g.node("turned", Op::Transpose(vec![0, 2, 1]), &[y]);
    let one = token(&mut g, "channel", turned, 2);
    g.output("channel", one);
    let simple = simplify(&g.finish().unwrap());
    assert!(narrowed(&simple).is_none());
}
