//! Which instructions loops become.

use crate::graph::{Expr, Op, Unary, ValueType};
use crate::loops::ptx::{Target, kernel};
use crate::loops::{Lowered, lower};
use crate::tensor::Dtype;

/// A function of few numbers, each of which a thread computes, as PTX.
fn text(of: Expr, dtypes: &[Dtype]) -> String {
    let types: Vec<ValueType> = dtypes.iter().map(|&dtype| ValueType::new(dtype, &[3])).collect();
    let inputs: Vec<Option<&ValueType>> = types.iter().map(Some).collect();
    let op = Op::Map(of);
    let to = op.infer(&inputs, 1).unwrap();
    let Lowered::Loops(loops) = lower(&op, &inputs, &to) else { panic!("{op:?} is a loop") };
    kernel(&loops[0], &Target::ANY).unwrap().text
}

/// How often these instructions are in a text.
fn counts<const N: usize>(text: &str, names: [&str; N]) -> [usize; N] {
    names.map(|name| text.matches(name).count())
}

fn exp(of: Expr) -> Expr {
    of.unary(Unary::Exp)
}

const DIVISIONS: [&str; 3] = ["rcp.approx.ftz.f32", "div.full.f32", "div.rn.f32"];

#[test]
fn reciprocals_are_of_divisors_from_one_on() {
    let by = |divisor: Expr| counts(&text(Expr::arg(0) / divisor, &[Dtype::F32]), DIVISIONS);
    let number = |x: f32| Expr::float(Dtype::F32, x.into());
    let sum = |x: f32| by(number(x) + exp(Expr::arg(0)));
    let (one, full) = ([1, 0, 0], [0, 1, 0]);
    assert_eq!([1.0, 1.5, f32::MAX, f32::INFINITY].map(sum), [one; 4]);
    // By small divisors dividends whose quarters lose bits would be far off; quarters of the least are flushed.
    let least = f32::MIN_POSITIVE;
    let below = [1.0_f32.next_down(), 4.0 * least, (4.0 * least).next_down(), least, 0.0, -1.0, f32::NAN];
    assert_eq!(below.map(sum), [full; 7]);
    assert_eq!(by(exp(Expr::arg(0)) + number(1.0)), one);
    assert_eq!(by(number(1.0) - exp(Expr::arg(0))), full);
    assert_eq!(by(number(1.0) + Expr::arg(0)), [0, 0, 1]);
}
