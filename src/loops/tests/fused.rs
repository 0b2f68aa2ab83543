//! Fused loops against two loops one after the other.

use super::{close, signed};
use crate::graph::{Contract, Expr, Norm, Number, Op, Pad, PadMode, Reduce, ReduceOp, Slice, Tensor, Unary, ValueType};
use crate::loops::{Loop, Lowered, inline, lower, run};
use crate::tensor::Dtype;

fn lowered(op: &Op, inputs: &[&ValueType]) -> (Loop, ValueType) {
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    let outputs = op.infer(&inputs, 1).unwrap();
    match lower(op, &inputs, &outputs) {
        Lowered::Loops(mut loops) => (loops.remove(0), outputs[0].clone()),
        Lowered::ByHand => panic!("{op:?} is no loop"),
    }
}

/// Whether the loop of the second operation is fused with that of the first. If it is, checks that the result is the
/// same.
fn fused(first: &Op, second: &Op, x: &Tensor) -> bool {
    let (producer, between) = lowered(first, &[x.value_type()]);
    let (consumer, to) = lowered(second, &[&between]);
    let y = run(&producer, &[x], between).unwrap();
    let expected = run(&consumer, &[&y], to.clone()).unwrap();
    let Some(both) = inline(&consumer, 0, &producer) else { return false };
    let found = run(&both, &[&y, x], to).unwrap();
    close(&found, &expected.to_f64s(), 64.0);
    let reads_it = |term: &crate::loops::Term| matches!(term.kind, crate::loops::TermKind::Load { operand: 0, .. });
    assert!(!both.terms.iter().any(reads_it), "{first:?} before {second:?} is read still");
    true
}

fn all() -> Vec<Op> {
    let reduce = |op, axes: &[usize], keep| Op::Reduce(Reduce { op, axes: axes.to_vec(), keep });
    vec![
        Op::Map(Expr::arg(0).unary(Unary::Exp)),
        Op::Map(Expr::arg(0) * Expr::arg(0) + Expr::Axis(1).cast(Dtype::F32)),
        Op::Transpose(vec![1, 0, 2]),
        Op::Slice(Slice { start: vec![0, 7, 1], step: vec![1, -1, 1], dims: vec![4, 5, 8] }),
        Op::Broadcast(vec![3, 4, 8, 10]),
        Op::Pad(Pad { before: vec![0, 1, 0], after: vec![1, 0, 2], mode: PadMode::Constant(Number::Float(0.5)) }),
        Op::Pad(Pad { before: vec![0, 2, 0], after: vec![0, 0, 1], mode: PadMode::Edge }),
        Op::Softmax { axis: 1, log: false },
        Op::Norm(Norm { axis: 2, eps: 1e-3, centred: true }),
        reduce(ReduceOp::Sum, &[1], true),
        reduce(ReduceOp::Max, &[0, 1, 2], false),
        reduce(ReduceOp::Mean, &[2], false),
    ]
}

#[test]
fn what_is_fused_computes_the_same() {
    let x = signed(&[4, 8, 10], 1);
    let fits = |of: &ValueType, op: &Op| op.infer(&[Some(of)], 1).is_ok();
    let mut count = 0;
    for first in all() {
        let between = first.infer(&[Some(x.value_type())], 1).unwrap().remove(0);
        for second in all().into_iter().filter(|second| fits(&between, second)) {
            count += usize::from(fused(&first, &second, &x));
        }
    }
    assert!(count >= 20, "only {count} were fused");
}

#[test]
fn what_is_expensive_is_computed_once() {
    let x = signed(&[4, 8, 10], 2);
    let exp = Op::Map(Expr::arg(0).unary(Unary::Exp));
    let double = Op::Map(Expr::arg(0) + Expr::arg(0));
    assert!(fused(&exp, &double, &x), "each is read once");
    assert!(!fused(&exp, &Op::Broadcast(vec![3, 4, 8, 10]), &signed(&[1, 8, 10], 3)), "each would be computed often");
    assert!(fused(&double, &Op::Broadcast(vec![3, 4, 8, 10]), &signed(&[1, 8, 10], 3)), "a sum is cheap");
    let soft = Op::Softmax { axis: 1, log: false };
    assert!(!fused(&sum_of_last(true), &soft, &x), "each sum would be computed three times");
    assert!(!fused(&exp, &Op::Softmax { axis: 2, log: false }, &x), "it is read three times");
    assert!(fused(&exp, &sum_of_last(false), &x), "each is read by one sum");
    assert!(fused(&sum_of_last(false), &exp, &x), "each sum is read once");
    let rows = Op::Broadcast(vec![4, 8, 10]);
    assert!(fused(&sum_of_last(true), &rows, &x), "each sum is computed once for its row");
}

fn sum_of_last(keep: bool) -> Op {
    Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![2], keep })
}

#[test]
fn a_product_takes_what_is_after_it() {
    let (x, y) = (signed(&[9, 40], 4), signed(&[40, 21], 5));
    let (product, between) = lowered(&Op::Contract(Contract::matmul(2, 2)), &[x.value_type(), y.value_type()]);
    let (gelu, to) = lowered(&Op::Map(Expr::arg(0) * Expr::arg(0).unary(Unary::Erf)), &[&between]);
    let both = inline(&gelu, 0, &product).expect("each product is read once");
    let sums = run(&product, &[&x, &y], between).unwrap();
    let expected = run(&gelu, &[&sums], to.clone()).unwrap();
    assert_eq!(run(&both, &[&sums, &x, &y], to).unwrap().bytes(), expected.bytes());
}
