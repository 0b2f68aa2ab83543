//! Loops that a team computes give the same bits as loops that one thread computes.

use super::signed;
use crate::graph::{Contract, Conv, Expr, Number, Op, Pad, PadMode, Pool, PoolOp, Tensor, Unary, Window};
use crate::loops::evaluate::run_by;
use crate::loops::team::{Alone, Backwards};
use crate::loops::{Lowered, lower};

fn square(size: usize, stride: usize, pad: usize) -> Window {
    Window { size: vec![size; 2], stride: vec![stride; 2], dilation: vec![1; 2], pad: vec![[pad; 2]; 2] }
}

fn compare(op: &Op, inputs: &[&Tensor]) {
    let types: Vec<_> = inputs.iter().map(|input| Some(input.value_type())).collect();
    let written = op.infer(&types, 1).unwrap();
    let Lowered::Loops(loops) = lower(op, &types, &written) else { panic!("{op:?} is computed by hand") };
    let alone = run_by(&Alone(0), &loops[0], inputs, written[0].clone()).unwrap();
    for workers in [2, 3, 7] {
        let shared = run_by(&Backwards(workers), &loops[0], inputs, written[0].clone()).unwrap();
        assert!(alone.bytes() == shared.bytes(), "{op:?} by {workers}");
    }
}

#[test]
fn a_team_gives_the_bits_of_one_thread() {
    let x = signed(&[1, 40, 37, 24], 1);
    let conv = |groups: usize| Op::Conv(Conv { window: square(3, 1, 1), groups });
    compare(&conv(1), &[&x, &signed(&[21, 24, 3, 3], 2), &signed(&[21], 3)]);
    compare(&conv(24), &[&x, &signed(&[24, 1, 3, 3], 2), &signed(&[24], 3)]);
    compare(&conv(3), &[&x, &signed(&[12, 8, 3, 3], 2)]);
    let up = Op::ConvTranspose(Conv { window: square(2, 2, 0), groups: 1 }, vec![80, 74]);
    compare(&up, &[&x, &signed(&[24, 9, 2, 2], 4), &signed(&[9], 5)]);
    compare(&Op::Contract(Contract::matmul(3, 3)), &[&signed(&[3, 70, 65], 6), &signed(&[3, 65, 90], 7)]);
    compare(&Op::Pool(Pool { window: square(3, 2, 1), op: PoolOp::Mean }), &[&x]);
    compare(&Op::Softmax { axis: 2, log: false }, &[&signed(&[2, 300, 200], 8)]);
    let smooth = Expr::arg(0).unary(Unary::Tanh) * Expr::arg(1);
    compare(&Op::Map(smooth), &[&signed(&[30, 50, 64], 9), &signed(&[50, 1], 10)]);
    let pad = Pad { before: vec![1, 0], after: vec![2, 3], mode: PadMode::Constant(Number::Float(0.5)) };
    compare(&Op::Pad(pad), &[&signed(&[300, 500], 11)]);
}
