//! Whole graphs, and operations that are composed of others.

use super::{counted, output, outputs, signed};
use crate::error::Error;
use crate::graph::{
    Binary, Contract, Expr, GraphBuilder, Norm, Op, Reduce, ReduceOp, Slice, Tensor, TopK, Unary, ValueId, ValueType,
};
use crate::loops::evaluate;
use crate::tensor::Dtype;

pub(super) fn no_weight(name: &str, _: &ValueType) -> Result<Tensor, Error> {
    panic!("{name} is no weight of this graph")
}

/// Random numbers, the same in each run.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

fn random_expr(dice: &mut Dice, depth: usize) -> Expr {
    if depth == 0 {
        return Expr::arg(dice.below(3));
    }
    let mut part = || random_expr(dice, depth - 1);
    let [x, y] = [part(), part()];
    match dice.below(8) {
        0 => x.unary([Unary::Tanh, Unary::Neg, Unary::Abs, Unary::Floor, Unary::Erf][dice.below(5)]),
        1 => x.clone().binary(Binary::Less, y.clone()).select(y, x),
        2 => x.cast(Dtype::F16).cast(Dtype::F32),
        3 => x.binary([Binary::Max, Binary::Min, Binary::Mod][dice.below(3)], y),
        4 => Expr::Axis(dice.below(2)).cast(Dtype::F32) * x,
        5 => x - y,
        6 => x * y + Expr::float(Dtype::F32, 0.3),
        _ => x + y,
    }
}

/// An expression as a graph with a map for each of its operations. Axes are operands.
fn spread(g: &mut GraphBuilder, count: &mut usize, of: &Expr, args: &[ValueId]) -> ValueId {
    *count += 1;
    let name = format!("n{count}");
    let mut part = |of: &Expr| spread(g, count, of, args);
    let [a, b, c] = [0, 1, 2].map(Expr::arg);
    let (op, operands) = match of {
        Expr::Arg(number) => return args[*number],
        Expr::Axis(_) | Expr::Const(..) => (of.clone(), vec![]),
        Expr::Cast(dtype, x) => (a.cast(*dtype), vec![part(x)]),
        Expr::Unary(op, x) => (a.unary(*op), vec![part(x)]),
        Expr::Binary(op, of) => (a.binary(*op, b), vec![part(&of[0]), part(&of[1])]),
        Expr::Select(of) => (a.select(b, c), vec![part(&of[0]), part(&of[1]), part(&of[2])]),
    };
    if operands.is_empty() {
        let whole = Expr::float(Dtype::F32, 0.0).binary(Binary::Less, Expr::arg(0)).select(op.clone(), op);
        return g.map(&name, whole, &args[..1]);
    }
    g.map(&name, op, &operands)
}

#[test]
fn an_expression_is_the_composition_of_its_operations() {
    let args = [signed(&[5, 130], 1), signed(&[130], 2), signed(&[5, 1], 3)];
    for seed in 1..40 {
        let mut dice = Dice(seed * 7919);
        let depth = 1 + dice.below(4);
        let expr = Expr::arg(0) + random_expr(&mut dice, depth);
        let mut g = GraphBuilder::new();
        let ids: Vec<ValueId> =
            (0..3).map(|i| g.input(&format!("x{i}"), Dtype::F32, &args[i].value_type().dims)).collect();
        let at_once = g.map("at once", expr.clone(), &ids);
        let one_by_one = spread(&mut g, &mut 0, &expr, &ids);
        g.output("a", at_once);
        g.output("b", one_by_one);
        let both = evaluate(&g.finish().unwrap(), &mut no_weight, &args).unwrap();
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(both[0].elems().iter().zip(both[1].elems()).all(same), "seed {seed}: {expr:?}");
    }
}

#[test]
fn a_graph_is_its_operations_one_after_the_other() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[6, 20]);
    let w = g.weight("w", Dtype::F32, &[20, 9]);
    let three = g.constant(Dtype::F32, &[], 3_f32.to_le_bytes());
    let (product, norm) = (Op::Contract(Contract::matmul(2, 2)), Op::Norm(Norm { axis: 1, eps: 1e-6, centred: true }));
    let (add, top) = (Op::Map(Expr::arg(0) + Expr::arg(1)), Op::TopK(TopK { axis: 1, k: 4, largest: true }));
    let y = g.node("product", product.clone(), &[x, w]);
    let y = g.node("norm", norm.clone(), &[y]);
    let sum = g.node("sum", add.clone(), &[y, three]);
    let tops = g.node_with("top", top.clone(), &[Some(sum)], 2);
    g.output("indices", tops[1]);
    g.output("norm", y);
    g.output("three", three);
    g.output("x", x);
    let graph = g.finish().unwrap();
    let (x, w) = (signed(&[6, 20], 4), signed(&[20, 9], 5));
    let found = evaluate(
        &graph,
        &mut |name, of| {
            assert_eq!((name, of.to_string().as_str()), ("w", "f32[20,9]"));
            Ok(w.clone())
        },
        std::slice::from_ref(&x),
    )
    .unwrap();
    let y = output(&norm, &[&output(&product, &[&x, &w])]);
    let three = Tensor::of(&[], &[3_f32]);
    let tops = outputs(&top, &[Some(&output(&add, &[&y, &three]))], 2);
    assert!(found == [tops[1].clone(), y, three, x], "{found:?}");
}

#[test]
fn what_a_graph_is_given_is_checked() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[2]);
    let w = g.weight("layer.weight", Dtype::F32, &[2]);
    let y = g.map("y", Expr::arg(0) + Expr::arg(1), &[x, w]);
    g.output("y", y);
    let graph = g.finish().unwrap();
    let told = evaluate(&graph, &mut no_weight, &[signed(&[3], 1)]).unwrap_err().to_string();
    assert!(told.contains("f32[3]") && told.contains("f32[2]"), "{told}");
    let told = evaluate(&graph, &mut |_, _| Ok(signed(&[4], 1)), &[signed(&[2], 1)]).unwrap_err().to_string();
    assert!(told.contains("layer.weight") && told.contains("f32[4]"), "{told}");
}

#[test]
fn views_in_any_order_move_each_element_once() {
    for seed in 1..30 {
        let mut dice = Dice(seed * 104_729);
        let mut x = counted(&[4, 6, 10]);
        let mut expected: Vec<i32> = x.elems().to_vec();
        for _ in 0..5 {
            let dims = x.value_type().dims.clone();
            let (op, dims) = match dice.below(3) {
                0 => {
                    let flat = dims.iter().product::<usize>();
                    let by = [1, 2].into_iter().rfind(|by| flat % by == 0).unwrap();
                    (Op::Reshape(vec![by, flat / by, 1]), vec![by, flat / by, 1])
                }
                1 => {
                    let to = vec![dims[2], dims[0], dims[1]];
                    let place = |i: usize| (i / to[2] % to[1] * dims[1] + i % to[2]) * dims[2] + i / (to[2] * to[1]);
                    expected = (0..expected.len()).map(|i| expected[place(i)]).collect();
                    (Op::Transpose(vec![2, 0, 1]), to)
                }
                _ => {
                    let (outer, last) = (dims[0] * dims[1], dims[2]);
                    expected = (0..outer * last).map(|i| expected[i / last * last + last - 1 - i % last]).collect();
                    let slice = Slice { start: vec![0, 0, last - 1], step: vec![1, 1, -1], dims: dims.clone() };
                    (Op::Slice(slice), dims)
                }
            };
            x = output(&op, &[&x]);
            assert_eq!(x.value_type().dims, dims);
        }
        assert_eq!(x.elems::<i32>(), expected, "seed {seed}");
    }
}

#[test]
fn reductions_of_parts_are_those_of_the_whole() {
    let x = signed(&[3, 8, 50], 6);
    let max = |axes: &[usize]| Op::Reduce(Reduce { op: ReduceOp::Max, axes: axes.to_vec(), keep: false });
    let whole = output(&max(&[0, 1, 2]), &[&x]);
    for [first, second, third] in [[0, 0, 0], [2, 1, 0], [1, 0, 0], [0, 1, 0]] {
        let parts = [first, second, third].iter().fold(x.clone(), |x, &axis| output(&max(&[axis]), &[&x]));
        assert_eq!(parts.bytes(), whole.bytes());
    }
}
