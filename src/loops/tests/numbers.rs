//! Expressions and reductions with numbers of each type.

use half::{bf16, f16};

use super::{close, counted, elems, output, outputs, signed};
use crate::graph::{ArgReduce, Binary, Cumulate, Element, Expr, Norm, Op, Reduce, ReduceOp, Tensor, TopK, Unary};
use crate::loops::compute;
use crate::tensor::Dtype;

fn unary<T: Element>(op: Unary, x: &[T]) -> Vec<T> {
    elems(&Op::Map(Expr::arg(0).unary(op)), &[&Tensor::of(&[x.len()], x)])
}

fn binary_as<T: Element, U: Element>(op: Binary, a: &[T], b: &[T]) -> Vec<U> {
    elems(&Op::Map(Expr::arg(0).binary(op, Expr::arg(1))), &[&Tensor::of(&[a.len()], a), &Tensor::of(&[b.len()], b)])
}

fn binary<T: Element>(op: Binary, a: &[T], b: &[T]) -> Vec<T> {
    binary_as(op, a, b)
}

fn cast<T: Element, U: Element>(to: Dtype, x: &[T]) -> Vec<U> {
    elems(&Op::Map(Expr::arg(0).cast(to)), &[&Tensor::of(&[x.len()], x)])
}

fn reduce(op: ReduceOp, axes: &[usize]) -> Op {
    Op::Reduce(Reduce { op, axes: axes.to_vec(), keep: false })
}

#[test]
fn integers_wrap_around_and_divide_towards_zero() {
    assert_eq!(binary(Binary::Add, &[127_i8, -128], &[1, -1]), [-128, 127]);
    assert_eq!(binary(Binary::Mul, &[u64::MAX, 3], &[2, 5]), [u64::MAX - 1, 15]);
    assert_eq!(binary(Binary::Div, &[7_i32, -7, 7, 5, i32::MIN], &[2, 2, -2, 0, -1]), [3, -3, -3, 0, i32::MIN]);
    assert_eq!(binary(Binary::Rem, &[7_i32, -7, 7, 5, i32::MIN], &[3, 3, -3, 0, -1]), [1, -1, 1, 0, 0]);
    assert_eq!(binary(Binary::Mod, &[7_i32, -7, 7, 5, -6], &[3, 3, -3, 0, 3]), [1, 2, -2, 0, 0]);
    assert_eq!(
        binary(Binary::Pow, &[2_i32, -3, 2, 1, -1, -1, 0, 3], &[10, 3, -1, -5, -3, -4, 0, 0]),
        [1024, -27, 0, 1, -1, 1, 1, 1]
    );
    assert_eq!(binary(Binary::Pow, &[2_u8, 3], &[8, 5]), [0, 243]);
    assert_eq!(binary(Binary::ShiftLeft, &[1_u8, 1, 255], &[7, 8, 1]), [128, 0, 254]);
    assert_eq!(binary(Binary::ShiftRight, &[128_u8, 1, 255], &[7, 200, 1]), [1, 0, 127]);
    assert_eq!(unary(Unary::Abs, &[-128_i8, -3, 4]), [-128, 3, 4]);
    assert_eq!(unary(Unary::Neg, &[1_u8, 0]), [255, 0]);
    assert_eq!(unary(Unary::Sign, &[-7_i64, 0, 9]), [-1, 0, 1]);
    assert_eq!(unary(Unary::Not, &[0_u16, 0xff00]), [0xffff, 0x00ff]);
    assert_eq!(binary(Binary::Xor, &[0b1100_u8], &[0b1010]), [0b0110]);
    assert_eq!(binary_as::<_, u8>(Binary::Less, &[-1_i16, 3, 3], &[1, 3, 2]), [1, 0, 0]);
}

#[test]
fn floats_follow_ieee_and_nan_wins_an_extreme() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for op in [Binary::Min, Binary::Max] {
        let both = binary(op, &[nan, 1.0], &[1.0, nan]);
        assert!(both.iter().all(|x| x.is_nan()), "{op:?}: {both:?}");
    }
    assert_eq!(binary(Binary::Max, &[1.0, -inf], &[2.0, 0.0_f32]), [2.0, 0.0]);
    assert_eq!(binary(Binary::Rem, &[7.5, -7.5, 7.5_f32], &[2.0, 2.0, -2.0]), [1.5, -1.5, 1.5]);
    assert_eq!(binary(Binary::Mod, &[7.5, -7.5, 7.5, -4.0_f32], &[2.0, 2.0, -2.0, 2.0]), [1.5, 0.5, -0.5, 0.0]);
    assert_eq!(binary(Binary::Div, &[1.0, -1.0_f64], &[0.0, 0.0]), [f64::INFINITY, f64::NEG_INFINITY]);
    assert_eq!(binary_as::<_, u8>(Binary::Equal, &[nan, 0.0], &[nan, -0.0]), [0, 1]);
    assert_eq!(binary_as::<_, u8>(Binary::LessEqual, &[nan, 1.0], &[1.0, 1.0]), [0, 1]);
    assert_eq!(unary(Unary::Round, &[0.5_f32, 1.5, 2.5, -0.5, -1.5]), [0.0, 2.0, 2.0, 0.0, -2.0]);
    assert_eq!(unary(Unary::Sign, &[-0.0_f32, 3.0, -inf]), [0.0, 1.0, -1.0]);
    assert!(unary(Unary::Sign, &[nan])[0].is_nan() && unary(Unary::Sqrt, &[-1.0_f32])[0].is_nan());
    assert_eq!(unary(Unary::Floor, &[-1.5_f32, 1.5]), [-2.0, 1.0]);
    assert_eq!(unary(Unary::Ceil, &[-1.5_f32, 1.5]), [-1.0, 2.0]);
    let tested = |op: Unary| elems::<u8>(&Op::Map(Expr::arg(0).unary(op)), &[&Tensor::of(&[3], &[nan, -inf, 1.0])]);
    assert_eq!((tested(Unary::IsNan), tested(Unary::IsInf)), (vec![1, 0, 0], vec![0, 1, 0]));
}

#[test]
fn transcendental_functions_are_those_of_doubles_rounded() {
    type Known = (Unary, fn(f64) -> f64);
    let of: [Known; 16] = [
        (Unary::Exp, f64::exp),
        (Unary::Log, f64::ln),
        (Unary::Sin, f64::sin),
        (Unary::Cos, f64::cos),
        (Unary::Tan, f64::tan),
        (Unary::Asin, f64::asin),
        (Unary::Acos, f64::acos),
        (Unary::Atan, f64::atan),
        (Unary::Sinh, f64::sinh),
        (Unary::Cosh, f64::cosh),
        (Unary::Tanh, f64::tanh),
        (Unary::Asinh, f64::asinh),
        (Unary::Acosh, |x| (x + (x * x - 1.0).sqrt()).ln()),
        (Unary::Atanh, f64::atanh),
        (Unary::Sqrt, f64::sqrt),
        (Unary::Erf, |x| {
            (0..60)
                .fold((x, x), |(sum, term), n| {
                    // the Taylor series
                    let term = -term * x * x / f64::from(n + 1);
                    (sum + term / f64::from(2 * n + 3), term)
                })
                .0
                * std::f64::consts::FRAC_2_SQRT_PI
        }),
    ];
    let x: Vec<f32> = (0..200).map(|i| i as f32 * 0.0049 + 0.001).collect();
    for (op, of) in of {
        let x: Vec<f32> = if op == Unary::Acosh { x.iter().map(|x| x + 1.0).collect() } else { x.clone() };
        for (found, x) in unary(op, &x).iter().zip(x) {
            let expected = of(f64::from(x));
            let error = (f64::from(*found) - expected).abs() / expected.abs().max(f64::from(f32::MIN_POSITIVE));
            assert!(error <= 2.0 * f64::from(f32::EPSILON), "{op:?}({x}) = {found}, expected {expected}");
        }
    }
    assert_eq!(unary(Unary::Erf, &[0.0_f64, 10.0, -10.0]), [0.0, 1.0, -1.0]);
}

#[test]
fn halves_are_rounded_after_each_operation() {
    let half = |x: f64| f16::from_f64(x);
    let (a, b) = ([half(2048.0), half(1.0)], [half(1.0), half(0.0004883)]);
    assert_eq!(binary(Binary::Add, &a, &b), [half(2048.0), half(1.0)]);
    assert_eq!(binary(Binary::Mul, &[half(300.0)], &[half(300.0)]), [f16::INFINITY]);
    let brain = |x: f64| bf16::from_f64(x);
    assert_eq!(binary(Binary::Add, &[brain(256.0)], &[brain(1.0)]), [brain(256.0)]);
    let twice = Op::Map(Expr::arg(0) + Expr::arg(1) - Expr::arg(0));
    let zero = elems::<f16>(&twice, &[&Tensor::of(&[1], &[half(2048.0)]), &Tensor::of(&[1], &[half(1.0)])]);
    assert_eq!(zero, [half(0.0)], "the sum was rounded before the difference");
    assert_eq!(binary_as::<_, u8>(Binary::Less, &[half(1.0)], &[half(2.0)]), [1]);
}

#[test]
fn conversions_saturate_wrap_and_round() {
    assert_eq!(cast::<_, i8>(Dtype::I8, &[127.9_f32, 300.0, -300.0, f32::NAN, -1.9]), [127, 127, -128, 0, -1]);
    assert_eq!(cast::<_, u8>(Dtype::U8, &[-1.0_f64, 255.9, 256.0]), [0, 255, 255]);
    assert_eq!(cast::<_, i8>(Dtype::I8, &[200_i32, -129]), [-56, 127]);
    assert_eq!(cast::<_, u32>(Dtype::U32, &[-1_i64, 1 << 32]), [u32::MAX, 0]);
    assert_eq!(cast::<_, u8>(Dtype::Bool, &[0.0_f32, -0.0, f32::NAN, 0.1]), [0, 0, 1, 1]);
    assert_eq!(cast::<_, u8>(Dtype::Bool, &[1e-300_f64, 0.0]), [1, 0]);
    assert_eq!(cast::<_, u8>(Dtype::Bool, &[i64::MIN, 0, 256]), [1, 0, 1]);
    assert_eq!(cast::<_, f32>(Dtype::F32, &[(1_i64 << 24) + 1]), [16_777_216.0]);
    assert_eq!(cast::<_, f16>(Dtype::F16, &[65520.0_f32, 1e-8]), [f16::INFINITY, f16::ZERO]);
    assert_eq!(cast::<_, f64>(Dtype::F64, &[bf16::from_f32(1.5)]), [1.5]);
    assert_eq!(cast::<_, i64>(Dtype::I64, &[f16::NEG_INFINITY]), [i64::MIN]);
    let bools = Tensor::of(&[2], &[0_u8, 1]).cast(crate::graph::ValueType::new(Dtype::Bool, &[2]));
    assert_eq!(elems::<f32>(&Op::Map(Expr::arg(0).cast(Dtype::F32)), &[&bools]), [0.0, 1.0]);
}

#[test]
fn operands_are_broadcast_and_indices_read() {
    let (a, b) = (counted(&[2, 1, 3]), counted(&[4, 1]));
    let sum = output(&Op::Map(Expr::arg(0) * Expr::int(Dtype::I32, 10) + Expr::arg(1)), &[&a, &b]);
    assert_eq!(sum.value_type().dims, [2, 4, 3]);
    let expected: Vec<i32> = (0..24).map(|i| (i / 12 * 3 + i % 3) * 10 + i / 3 % 4).collect();
    assert_eq!(sum.elems::<i32>(), expected);
    let triangle =
        Expr::Axis(0).binary(Binary::LessEqual, Expr::Axis(1)).select(Expr::arg(0), Expr::int(Dtype::I32, -1));
    assert_eq!(elems::<i32>(&Op::Map(triangle), &[&counted(&[2, 3])]), [0, 1, 2, -1, 4, 5]);
    assert_eq!(elems::<i32>(&Op::Map(Expr::arg(0)), &[&counted(&[3, 0, 2])]), [0_i32; 0]);
    assert_eq!(elems::<f32>(&Op::Map(Expr::float(Dtype::F32, 2.5)), &[]), [2.5]);
    let large = elems::<i32>(&Op::Map(Expr::arg(0) + Expr::arg(1)), &[&counted(&[3, 1001]), &counted(&[1001])]);
    assert!(large.iter().enumerate().all(|(i, &x)| x == i as i32 + i as i32 % 1001));
}

#[test]
fn reductions_over_any_axes_are_those_of_plain_loops() {
    let dims = [3, 5, 2, 37];
    let x = signed(&dims, 1);
    let all = x.to_f64s();
    for axes in [vec![], vec![0], vec![3], vec![1, 3], vec![0, 1, 2, 3], vec![2], vec![0, 2]] {
        let kept: Vec<usize> = (0..4).filter(|axis| !axes.contains(axis)).collect();
        let count = kept.iter().map(|&axis| dims[axis]).product::<usize>();
        let (mut sum, mut most) = (vec![0.0; count], vec![f64::NEG_INFINITY; count]);
        for (i, x) in all.iter().enumerate() {
            let at = [i / 370, i / 74 % 5, i / 37 % 2, i % 37];
            let to = kept.iter().fold(0, |to, &axis| to * dims[axis] + at[axis]);
            (sum[to], most[to]) = (sum[to] + x, f64::max(most[to], *x));
        }
        let elems = (all.len() / count) as f64;
        close(&output(&reduce(ReduceOp::Sum, &axes), &[&x]), &sum, elems);
        close(&output(&reduce(ReduceOp::Mean, &axes), &[&x]), &sum.iter().map(|x| x / elems).collect::<Vec<_>>(), 1.0);
        assert_eq!(output(&reduce(ReduceOp::Max, &axes), &[&x]).to_f64s(), most);
    }
}

#[test]
fn reductions_of_nothing_and_of_nan() {
    let empty = Tensor::of::<f32>(&[2, 0], &[]);
    for (op, expected) in [
        (ReduceOp::Sum, 0.0),
        (ReduceOp::Prod, 1.0),
        (ReduceOp::Min, f32::INFINITY),
        (ReduceOp::Max, f32::NEG_INFINITY),
    ] {
        assert_eq!(elems::<f32>(&reduce(op, &[1]), &[&empty]), [expected; 2]);
    }
    assert!(elems::<f32>(&reduce(ReduceOp::Mean, &[1]), &[&empty])[0].is_nan());
    assert_eq!(elems::<u8>(&reduce(ReduceOp::Min, &[0]), &[&Tensor::of::<u8>(&[0], &[])]), [255]);
    assert_eq!(elems::<i32>(&reduce(ReduceOp::Sum, &[0]), &[&Tensor::of(&[3], &[i32::MAX, 1, 1])]), [i32::MIN + 1]);
    assert_eq!(elems::<i8>(&reduce(ReduceOp::Prod, &[0]), &[&Tensor::of(&[3], &[100_i8, 3, 1])]), [44]);
    for place in [0, 1, 20, 39] {
        let mut x = vec![1.0_f32; 40];
        x[place] = f32::NAN;
        for dims in [[1, 40], [40, 1]] {
            let x = Tensor::of(&dims, &x);
            assert!(elems::<f32>(&reduce(ReduceOp::Max, &[0, 1]), &[&x])[0].is_nan());
            assert!(output(&reduce(ReduceOp::Min, &[0]), &[&x]).elems::<f32>().iter().any(|x| x.is_nan()));
        }
    }
    let bools = |elems: &[u8]| {
        Tensor::of(&[elems.len()], elems).cast(crate::graph::ValueType::new(Dtype::Bool, &[elems.len()]))
    };
    assert_eq!(elems::<u8>(&reduce(ReduceOp::Min, &[0]), &[&bools(&[1, 1])]), [1]);
    assert_eq!(elems::<u8>(&reduce(ReduceOp::Min, &[0]), &[&bools(&[1, 0])]), [0]);
    assert_eq!(elems::<u8>(&reduce(ReduceOp::Max, &[0]), &[&bools(&[])]), [0]);
    assert_eq!(elems::<u8>(&reduce(ReduceOp::Min, &[0]), &[&bools(&[])]), [1]);
}

#[test]
fn sums_of_halves_are_in_singles() {
    let ones = Tensor::of(&[4096], &vec![f16::ONE; 4096]);
    assert_eq!(elems::<f16>(&reduce(ReduceOp::Sum, &[0]), &[&ones]), [f16::from_f32(4096.0)]);
    let large = Tensor::of(&[4], &[f16::MAX; 4]);
    assert_eq!(elems::<f16>(&reduce(ReduceOp::Mean, &[0]), &[&large]), [f16::MAX]);
}

#[test]
fn extremes_are_the_first_or_the_last_of_equal_ones() {
    let x = Tensor::of(&[2, 4], &[3.0_f32, 7.0, 7.0, 1.0, 1.0, f32::NAN, 0.0, f32::NAN]);
    let arg = |largest, axis, last| Op::ArgReduce(ArgReduce { largest, axis, keep: false, last });
    assert_eq!(elems::<i64>(&arg(true, 1, false), &[&x]), [1, 1]);
    assert_eq!(elems::<i64>(&arg(true, 1, true), &[&x]), [2, 3]);
    assert_eq!(elems::<i64>(&arg(false, 1, false), &[&x]), [3, 1]);
    assert_eq!(elems::<i64>(&arg(true, 0, false), &[&x]), [0, 1, 0, 1]);
    let long = counted(&[3, 700]);
    assert_eq!(elems::<i64>(&arg(true, 1, false), &[&long]), [699; 3]);
    assert_eq!(elems::<i64>(&arg(false, 0, false), &[&long]), [0; 700]);
    let equal = Tensor::of(&[1300], &[5_u8; 1300]);
    assert_eq!(
        (elems::<i64>(&arg(true, 0, false), &[&equal]), elems::<i64>(&arg(true, 0, true), &[&equal])),
        (vec![0], vec![1299])
    );
}

#[test]
fn softmax_and_norms_are_those_of_plain_loops() {
    let x = signed(&[4, 7, 33], 2);
    let all = x.to_f64s();
    for (axis, stride, size) in [(0, 231, 4), (1, 33, 7), (2, 1, 33)] {
        let mut soft = vec![0.0; all.len()];
        for (i, to) in soft.iter_mut().enumerate() {
            let first = i - i / stride % size * stride;
            let sum: f64 = (0..size).map(|k| all[first + k * stride].exp()).sum();
            *to = all[i].exp() / sum;
        }
        close(&output(&Op::Softmax { axis, log: false }, &[&x]), &soft, 1.0);
        let log: Vec<f64> = soft.iter().map(|x| x.ln()).collect();
        close(&output(&Op::Softmax { axis, log: true }, &[&x]), &log, 8.0);
    }
    let (scale, bias) = (signed(&[33], 3), signed(&[7, 33], 4));
    for (axis, elems, centred) in [(2, 33, true), (1, 231, true), (2, 33, false)] {
        let norm = Op::Norm(Norm { axis, eps: 1e-5, centred });
        let plain: Vec<f64> = (0..all.len())
            .map(|i| {
                let row = &all[i / elems * elems..][..elems];
                let mean = if centred { row.iter().sum::<f64>() / elems as f64 } else { 0.0 };
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / elems as f64;
                (all[i] - mean) / (variance + 1e-5).sqrt()
            })
            .collect();
        close(&output(&norm, &[&x]), &plain, 4.0);
        let with_bias = outputs(&norm, &[Some(&x), None, Some(&bias)], 1).remove(0);
        close(&with_bias, &plain.iter().enumerate().map(|(i, x)| x + bias.to_f64s()[i % 231]).collect::<Vec<_>>(), 8.0);
        let scaled = output(&norm, &[&x, &scale]);
        close(&scaled, &plain.iter().enumerate().map(|(i, x)| x * scale.to_f64s()[i % 33]).collect::<Vec<_>>(), 8.0);
    }
    let huge = Tensor::of(&[1, 2], &[f16::from_f32(60000.0), f16::from_f32(-60000.0)]);
    assert_eq!(elems::<f16>(&Op::Softmax { axis: 1, log: false }, &[&huge]), [f16::ONE, f16::ZERO]);
}

#[test]
fn sums_so_far_go_either_way() {
    let x = Tensor::of(&[2, 3], &[1_i32, 2, 3, 4, 5, 6]);
    let of =
        |op, axis, exclusive, reverse| elems::<i32>(&Op::Cumulate(Cumulate { op, axis, exclusive, reverse }), &[&x]);
    assert_eq!(of(ReduceOp::Sum, 1, false, false), [1, 3, 6, 4, 9, 15]);
    assert_eq!(of(ReduceOp::Sum, 1, true, false), [0, 1, 3, 0, 4, 9]);
    assert_eq!(of(ReduceOp::Sum, 1, true, true), [5, 3, 0, 11, 6, 0]);
    assert_eq!(of(ReduceOp::Prod, 0, false, true), [4, 10, 18, 4, 5, 6]);
}

#[test]
fn the_most_extreme_comes_first_and_nan_is_the_largest() {
    let x = Tensor::of(&[2, 4], &[1.0_f32, 3.0, 3.0, 2.0, 0.0, f32::NAN, 5.0, -1.0]);
    let of = |k, largest, axis| {
        let mut both = outputs(&Op::TopK(TopK { axis, k, largest }), &[Some(&x)], 2);
        (both.pop().unwrap().elems::<i64>().to_vec(), both.pop().unwrap())
    };
    let (indices, values) = of(3, true, 1);
    assert_eq!((indices, &values.elems::<f32>()[..3]), (vec![1, 2, 3, 1, 2, 0], &[3.0, 3.0, 2.0][..]));
    assert_eq!(of(2, false, 1).0, [0, 3, 3, 0]);
    assert_eq!(of(1, true, 0).0, [0, 1, 1, 0]);
    assert_eq!(of(0, true, 1).0, [0_i64; 0]);
}

#[test]
fn numbers_are_quantized_and_back() {
    let x = Tensor::of(&[2, 3], &[0.5_f32, 1.5, -1.0, 100.0, -100.0, f32::NAN]);
    let scale = Tensor::of(&[2], &[1.0_f32, 0.5]);
    let zero = Tensor::of(&[2], &[10_i8, -3]);
    let quantize = Op::Quantize { dtype: Dtype::I8, axis: Some(0) };
    assert_eq!(elems::<i8>(&quantize, &[&x, &scale, &zero]), [10, 12, 9, 127, -128, 0]);
    assert_eq!(
        elems::<u8>(&Op::Quantize { dtype: Dtype::U8, axis: None }, &[&x, &Tensor::of(&[], &[1.0_f32])]),
        [0, 2, 0, 100, 0, 0]
    );
    let q = Tensor::of(&[2, 2], &[-128_i8, 127, 0, -3]);
    assert_eq!(elems::<f32>(&Op::Dequantize { axis: Some(0) }, &[&q, &scale, &zero]), [-138.0, 117.0, 1.5, 0.0]);
    let wide = Tensor::of(&[1], &[i32::MIN]);
    let one = Tensor::of(&[], &[1.0_f32]);
    assert_eq!(
        elems::<f32>(&Op::Dequantize { axis: None }, &[&wide, &one, &Tensor::of(&[], &[1_i32])]),
        [i32::MIN as f32]
    );
}

#[test]
fn what_does_not_fit_is_an_error() {
    let x = Tensor::of(&[2], &[1.0_f32, 2.0]);
    let wrong = compute(&Op::Concat(1), &[Some(&x)], &[x.value_type().clone()]).unwrap_err().to_string();
    assert!(wrong.contains("concat") && wrong.contains("axis 1"), "{wrong}");
    let wrong = compute(&Op::Concat(0), &[Some(&x)], &[counted(&[2]).value_type().clone()]).unwrap_err().to_string();
    assert!(wrong.contains("f32") && wrong.contains("i32"), "{wrong}");
}
