//! Which instructions loops become.

use crate::graph::{Binary, Conv, Expr, Op, Unary, ValueType, Window};
use crate::loops::ptx::{PtxTarget, kernel};
use crate::loops::{LoopBuilder, Lowered, TermId, lower};
use crate::tensor::Dtype;

/// A function of few numbers, each of which a thread computes, as PTX.
fn text(of: Expr, dtypes: &[Dtype]) -> String {
    let types: Vec<ValueType> = dtypes.iter().map(|&dtype| ValueType::new(dtype, &[3])).collect();
    let inputs: Vec<Option<&ValueType>> = types.iter().map(Some).collect();
    let op = Op::Map(of);
    let to = op.infer(&inputs, 1).unwrap();
    let Lowered::Loops(loops) = lower(&op, &inputs, &to) else { panic!("{op:?} is a loop") };
    kernel(&loops[0], &PtxTarget::ANY).unwrap().text
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

#[test]
fn quotients_of_exact_numbers_are_exact() {
    let [x, y, z] = [0, 1, 2].map(Expr::arg);
    let of = |dividend: Expr| counts(&text(dividend / Expr::arg(2), &[Dtype::F32; 3]), DIVISIONS);
    let (full, exact) = ([0, 1, 0], [0, 0, 1]);
    let one = || Expr::float(Dtype::F32, 1.0);
    let above = |of: Expr| one().binary(Binary::Less, of);
    assert_eq!(of(exp(x.clone())), full);
    assert_eq!(of(above(x.clone()).select(exp(y.clone()), z.clone())), full);
    assert_eq!(of(above(exp(x.clone())).select(y.clone(), z.clone())), exact);
    assert_eq!(of(above(exp(x.clone())).cast(Dtype::F32)), exact);
    // Powers of floats are a function like others, whatever the exponent; those of integers are not rounded.
    let squared = |of: Expr, two: Expr| of.binary(Binary::Pow, two);
    assert_eq!(of(squared(x.clone(), Expr::float(Dtype::F32, 2.0))), full);
    assert_eq!(of(squared(x.clone().cast(Dtype::I32), Expr::int(Dtype::I32, 2)).cast(Dtype::F32)), exact);
    assert_eq!(of(x.unary(Unary::Sqrt)), exact);
}

#[test]
fn what_an_index_or_a_guard_hangs_on_rounds_no_quotient() {
    let x = ValueType::new(Dtype::F32, &[3]);
    let divisions = |value: fn(&mut LoopBuilder, TermId, [TermId; 2]) -> TermId| {
        let mut b = LoopBuilder::new(&[x.clone(), x.clone(), x.clone()], &[3]);
        let i = b.axis(0);
        let (first, by) = (b.load(0, &[i]), b.load(2, &[i]));
        let power = b.unary(Unary::Exp, first);
        let value = value(&mut b, i, [first, power]);
        let root = b.binary(Binary::Div, value, by);
        counts(&kernel(&b.finish(root), &PtxTarget::ANY).unwrap().text, DIVISIONS)
    };
    let exact = [0, 0, 1];
    let of_index = divisions(|b, _, [_, power]| {
        let place = b.cast(Dtype::I64, power);
        b.load(1, &[place])
    });
    let of_condition = divisions(|b, i, [x, power]| {
        let condition = b.binary(Binary::Less, x, power);
        b.load_if(1, &[i], Some(condition), x)
    });
    let of_otherwise = divisions(|b, i, [x, power]| {
        let condition = b.binary(Binary::Less, x, x);
        b.load_if(1, &[i], Some(condition), power)
    });
    assert_eq!([of_index, of_condition, of_otherwise], [exact, exact, [0, 1, 0]]);
}

#[test]
fn choices_move_inside_dear_functions_and_no_further() {
    let [condition, a, b, c, d] = [0, 1, 2, 3, 4].map(Expr::arg);
    let dtypes = [Dtype::Bool, Dtype::F32, Dtype::F32, Dtype::F32, Dtype::F32];
    let of = |[first, second]: [Expr; 2]| {
        counts(&text(condition.clone().select(first, second), &dtypes), ["selp.b32", "ex2.approx", "div."])
    };
    let [ab, cd] = [[a.clone(), b.clone()], [c.clone(), d.clone()]];
    let linear = |[x, y]: [Expr; 2]| x * y + Expr::float(Dtype::F32, 0.5);
    assert_eq!(of([ab.clone(), cd.clone()].map(|of| exp(linear(of)))), [1, 1, 0]);
    assert_eq!(of([ab.clone(), cd.clone()].map(linear)), [1, 0, 0]);
    // Both factors choose where one of them is dear, so that it is computed once.
    assert_eq!(of([ab.clone(), cd.clone()].map(|[x, y]| exp(x) * y)), [2, 1, 0]);
    assert_eq!(of([ab, cd].map(|[x, y]| (x / y).unary(Unary::Abs))), [2, 0, 1]);
    let gated = |x: Expr| x.clone() * exp(-x);
    assert_eq!(of([gated(a.clone()), gated(c.clone())]), [1, 1, 0]);
    assert_eq!(of([exp(a.clone() * b.clone()), exp(a.clone() * c)]), [1, 1, 0]);
    assert_eq!(of([exp(a.clone()), b.unary(Unary::Sqrt)]), [1, 1, 0]);
    assert_eq!(of([a, d]), [1, 0, 0]);
}

#[test]
fn windows_that_overlap_are_read_once_and_their_filter_in_vectors() {
    let loads = |rows: usize, size: usize, stride: usize| {
        let [x, filter] = [[rows, 56, 56, 64], [64, 1, size, size]].map(|dims| ValueType::new(Dtype::F32, &dims));
        let op = Op::Conv(Conv { window: Window::square(size, stride, size / 2), groups: 64 });
        let inputs = [Some(&x), Some(&filter)];
        let to = op.infer(&inputs, 1).unwrap();
        let Lowered::Loops(loops) = lower(&op, &inputs, &to) else { panic!("{op:?} is a loop") };
        counts(&kernel(&loops[0], &PtxTarget::ANY).unwrap().text, ["ld.global.v4.b32", "ld.global.b32", "fma.rn.f32"])
    };
    // Of rows of 3 for 8 pixels 10 columns, of rows of 5 for every second of 14 pixels 17.
    assert_eq!(loads(8, 3, 1), [3 * 10 + 9, 0, 8 * 4 * 9]);
    assert_eq!(loads(8, 5, 2), [5 * 17 + 25, 0, 7 * 4 * 25]);
    // Windows that overlap by less; and of one image fewer channels and pixels, so that all units have threads.
    assert_eq!(loads(8, 3, 2), [9 + 9, 0, 4 * 9]);
    assert_eq!(loads(1, 7, 1), [0, 0, 7 * 2 * 49]);
}

/// Where all operands lie in another order, their sum goes through shared memory, and not each of them.
#[test]
fn a_sum_of_turned_operands_is_turned_once() {
    let of = |operands: usize, also_as_it_is: bool| {
        let [turned, straight] = [[64, 96], [96, 64]].map(|dims| ValueType::new(Dtype::F32, &dims));
        let types = [vec![turned; operands], vec![straight; usize::from(also_as_it_is)]].concat();
        let mut b = LoopBuilder::new(&types, &[96, 64]);
        let point = b.point();
        let loads: Vec<TermId> = (0..operands).map(|i| b.load(i, &[point[1], point[0]])).collect();
        let straight = also_as_it_is.then(|| b.load(operands, &point));
        let sum = loads.into_iter().chain(straight).reduce(|a, load| b.binary(Binary::Add, a, load)).unwrap();
        let text = kernel(&b.finish(sum), &PtxTarget::ANY).unwrap().text;
        counts(&text, ["st.shared.b32", "ld.shared.b32"])
    };
    assert_eq!([of(1, false), of(3, false)], [[4, 4]; 2]);
    assert_eq!([of(1, true), of(3, true)], [[4, 4], [12, 12]]);
}
