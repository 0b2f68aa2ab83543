//! Tests of the types that operations write, and of the errors for operands that do not fit.

use std::slice::from_ref;

use crate::graph::{
    ArgReduce, Contract, Conv, Cumulate, Expr, Norm, Number, Op, PackedAttention, Pad, PadMode, Pool, PoolOp,
    Recurrent, RecurrentCell, Reduce, ReduceOp, Resize, ResizeCoordinates, ResizeMode, Scatter, Slice, TopK, ValueType,
    Window,
};
use crate::tensor::Dtype;

fn f32s(dims: &[usize]) -> ValueType {
    ValueType::new(Dtype::F32, dims)
}

fn i64s(dims: &[usize]) -> ValueType {
    ValueType::new(Dtype::I64, dims)
}

fn written(op: &Op, inputs: &[ValueType]) -> Vec<Vec<usize>> {
    let inputs: Vec<_> = inputs.iter().map(Some).collect();
    let outputs = if matches!(op, Op::TopK(_)) { 2 } else { 1 };
    let written = op.infer(&inputs, outputs).unwrap_or_else(|what| panic!("{op:?}: {what}"));
    written.into_iter().map(|of| of.dims).collect()
}

/// Checks that the error of a mistake contains all these parts, such as the axis and the sizes.
fn refused(op: &Op, inputs: &[ValueType], parts: &[&str]) {
    let inputs: Vec<_> = inputs.iter().map(Some).collect();
    let told = op.infer(&inputs, 1).unwrap_err();
    assert!(parts.iter().all(|part| told.contains(part)), "{op:?}: expected {parts:?} in: {told}");
}

fn reduce(axes: &[usize], keep: bool) -> Op {
    Op::Reduce(Reduce { op: ReduceOp::Sum, axes: axes.to_vec(), keep })
}

fn slice(start: usize, step: isize, dim: usize) -> Op {
    Op::Slice(Slice { start: vec![start], step: vec![step], dims: vec![dim] })
}

fn pad(before: isize, after: isize, mode: PadMode) -> Op {
    Op::Pad(Pad { before: vec![before], after: vec![after], mode })
}

fn conv(window: Window, groups: usize) -> Op {
    Op::Conv(Conv { window, groups })
}

#[test]
fn operations_write_what_they_say() {
    let x = f32s(&[2, 3, 4]);
    assert_eq!(written(&Op::Map(Expr::arg(0) + Expr::arg(1)), &[x.clone(), f32s(&[5, 1, 1, 4])]), [[5, 2, 3, 4]]);
    assert_eq!(written(&reduce(&[0, 2], false), from_ref(&x)), [[3]]);
    assert_eq!(written(&reduce(&[0, 2], true), from_ref(&x)), [[1, 3, 1]]);
    let arg = ArgReduce { largest: true, axis: 1, keep: false, last: false };
    assert_eq!(written(&Op::ArgReduce(arg), from_ref(&x)), [[2, 4]]);
    assert_eq!(written(&Op::Reshape(vec![24, 1]), from_ref(&x)), [[24, 1]]);
    assert_eq!(written(&Op::Concat(1), &[x.clone(), f32s(&[2, 0, 4]), x.clone()]), [[2, 6, 4]]);
    assert_eq!(written(&Op::Gather(1), &[x.clone(), i64s(&[7, 8])]), [[2, 7, 8, 4]]);
    assert_eq!(written(&Op::GatherNd(1), &[x.clone(), i64s(&[2, 5, 1])]), [[2, 5, 4]]);
    assert_eq!(written(&Op::TopK(TopK { axis: 2, k: 0, largest: true }), from_ref(&x)), [[2, 3, 0], [2, 3, 0]]);
    assert_eq!(written(&slice(3, -1, 4), &[f32s(&[4])]), [[4]]);
    assert_eq!(written(&slice(9, 5, 0), &[f32s(&[4])]), [[0]]);
    assert_eq!(written(&pad(-1, 3, PadMode::Reflect), &[f32s(&[4])]), [[6]]);
    let window = Window { size: vec![3], stride: vec![2], dilation: vec![2], pad: vec![[1, 2]] };
    assert_eq!(written(&conv(window.clone(), 2), &[f32s(&[1, 6, 4]), f32s(&[6, 2, 3])]), [[1, 3, 6]]);
    let transposed = Op::ConvTranspose(Conv { window: window.clone(), groups: 2 }, vec![11]);
    assert_eq!(written(&transposed, &[f32s(&[1, 6, 4]), f32s(&[4, 5, 3])]), [[1, 11, 10]]);
    let pool = Op::Pool(Pool { op: PoolOp::Max, window });
    let both = pool.infer(&[Some(&f32s(&[2, 6, 4]))], 2).unwrap();
    assert_eq!(both, [f32s(&[2, 3, 4]), i64s(&[2, 3, 4])]);
    let product = Op::Contract(Contract::matmul(4, 3));
    assert_eq!(written(&product, &[f32s(&[2, 1, 4, 5]), f32s(&[3, 5, 6])]), [[2, 3, 4, 6]]);
    let quantize = Op::Quantize { dtype: Dtype::I8, axis: Some(1) };
    assert_eq!(quantize.infer(&[Some(&x), Some(&f32s(&[3])), None], 1), Ok(vec![ValueType::new(Dtype::I8, &x.dims)]));
}

#[test]
fn messages_name_axes_and_sizes() {
    let x = f32s(&[2, 3, 4]);
    let one = |op: &Op, parts: &[&str]| refused(op, from_ref(&x), parts);
    one(&Op::Map(Expr::Axis(3).cast(Dtype::F32) + Expr::arg(0)), &["axis 3", "below 3"]);
    one(&reduce(&[3], false), &["axis 3", "below 3"]);
    one(&reduce(&[1, 1], false), &["ascending", "[1, 1]"]);
    one(&Op::Softmax { axis: 5, log: true }, &["axis 5", "below 3"]);
    one(&Op::Reshape(vec![5, 5]), &["[5, 5]", "24"]);
    one(&Op::Reshape(vec![usize::MAX, 2]), &["24"]);
    one(&Op::Transpose(vec![0, 1, 1]), &["each of 3 axes once", "[0, 1, 1]"]);
    one(&Op::Transpose(vec![0, 1]), &["3 axes", "found 2"]);
    one(&Op::Broadcast(vec![2, 3, 5]), &["f32[2,3,4]", "[2, 3, 5]"]);
    one(&Op::Norm(Norm { axis: 3, eps: 0.0, centred: true }), &["axis 3"]);
    one(&Op::Norm(Norm { axis: 2, eps: f64::NAN, centred: true }), &["eps", "NaN"]);
    one(&Op::Cumulate(Cumulate { op: ReduceOp::Max, axis: 0, exclusive: false, reverse: false }), &["Max"]);
    one(&Op::TopK(TopK { axis: 1, k: 4, largest: true }), &["first 4", "axis 1", "3 at most"]);
    refused(&slice(2, 1, 3), &[f32s(&[4])], &["axis 0", "3 indices from 2 by 1", "4"]);
    refused(&slice(1, -1, 3), &[f32s(&[4])], &["axis 0", "by -1"]);
    refused(&pad(4, 0, PadMode::Reflect), &[f32s(&[4])], &["axis 0", "4 before"]);
    refused(&pad(1, 0, PadMode::Edge), &[f32s(&[0])], &["axis 0"]);
    refused(&pad(-3, -2, PadMode::Constant(Number::Float(0.0))), &[f32s(&[4])], &["-3 before", "-2 behind"]);
    refused(&pad(1, 0, PadMode::Constant(Number::Int(0))), &[f32s(&[4])], &["expected a float"]);
    refused(&Op::Concat(0), &[f32s(&[2, 3]), f32s(&[2, 4])], &["axis 0", "f32[2,3]", "f32[2,4]"]);
    refused(&Op::Concat(0), &[f32s(&[2]), i64s(&[2])], &["f32[2]", "i64[2]"]);
    refused(&Op::Map(Expr::arg(0)), &[f32s(&[2]), f32s(&[3])], &["f32[2]", "f32[3]"]);
}

#[test]
fn messages_of_indices_windows_and_products() {
    refused(&Op::Gather(0), &[f32s(&[0, 2]), i64s(&[1])], &["axis 0", "f32[0,2]", "empty"]);
    refused(&Op::Gather(0), &[f32s(&[2]), f32s(&[1])], &["i32 or i64", "f32[1]"]);
    refused(&Op::GatherElements(0), &[f32s(&[2, 2]), i64s(&[5, 3])], &["i64[5,3]", "f32[2,2]"]);
    refused(&Op::GatherNd(0), &[f32s(&[2, 2]), i64s(&[1, 3])], &["i64[1,3]", "f32[2,2]"]);
    refused(&Op::GatherNd(0), &[f32s(&[2, 0]), i64s(&[1, 2])], &["axis 1", "empty"]);
    refused(&Op::ScatterNd(Scatter::Add), &[f32s(&[4, 2]), i64s(&[3, 1]), f32s(&[3])], &["f32[3,2]", "f32[3]"]);
    refused(&Op::ScatterElements(0, Scatter::Add), &[f32s(&[4]), i64s(&[3]), i64s(&[3])], &["f32", "i64[3]"]);
    let x = f32s(&[1, 4, 6]);
    refused(
        &conv(Window::all(1, 5, 1, 0), 1),
        &[x.clone(), f32s(&[2, 6, 5])],
        &["spatial axis 0", "4 at most", "found 5"],
    );
    refused(&conv(Window::all(1, 3, 0, 0), 1), &[x.clone(), f32s(&[2, 6, 3])], &["strides", "from 1 up"]);
    refused(&conv(Window::all(2, 3, 1, 0), 1), &[x.clone(), f32s(&[2, 6, 3, 3])], &["filter", "3 axes"]);
    refused(&conv(Window::all(1, 3, 1, 0), 4), &[x.clone(), f32s(&[4, 1, 3])], &["4 groups", "6 channels"]);
    refused(&conv(Window::all(1, 3, 1, 0), 0), &[x.clone(), f32s(&[4, 1, 3])], &["groups", "found 0"]);
    refused(
        &conv(Window::all(1, 3, 1, 0), 1),
        &[x.clone(), f32s(&[4, 6, 3]), f32s(&[5])],
        &["bias", "f32[4]", "f32[5]"],
    );
    refused(&conv(Window::all(1, usize::MAX, 2, 0), 1), &[x.clone(), f32s(&[4, 6, 3])], &["taps"]);
    let mean = Op::Pool(Pool { op: PoolOp::Mean, window: Window::all(1, 2, 1, 0) });
    refused(&mean, &[i64s(&[1, 4, 2])], &["floats", "i64[1,4,2]"]);
    let huge = Window { dilation: vec![usize::MAX], ..Window::all(1, 3, 1, 0) };
    refused(&Op::Pool(Pool { op: PoolOp::Max, window: huge }), from_ref(&x), &["axis 0", "overflows"]);
    let product = Op::Contract(Contract::matmul(2, 2));
    refused(&product, &[f32s(&[2, 3]), f32s(&[4, 5])], &["3 and 4", "f32[2,3]", "f32[4,5]"]);
    refused(&product, &[f32s(&[2, 3]), i64s(&[3, 5])], &["f32[2,3]", "i64[3,5]"]);
    let stray = Contract { left: vec![0], right: vec![1], result: vec![2] };
    refused(&Op::Contract(stray), &[f32s(&[2]), f32s(&[2])], &["label 2"]);
    refused(&Op::Dequantize { axis: None }, &[f32s(&[2]), f32s(&[])], &["whole numbers", "f32[2]"]);
    refused(&Op::Quantize { dtype: Dtype::I8, axis: Some(0) }, &[x.clone(), f32s(&[2])], &["[1]", "f32[2]"]);
    refused(&Op::Broadcast(vec![1 << 40, 1 << 40]), &[f32s(&[1])], &["overflows"]);
    let resize = Resize {
        mode: ResizeMode::Linear,
        coordinates: ResizeCoordinates::HalfPixel,
        dims: vec![8],
        scales: vec![f64::NAN],
        crop: vec![[0.0, 1.0]],
        antialias: false,
        exclude_outside: false,
        outside: None,
    };
    refused(&Op::Resize(resize.clone()), &[f32s(&[4])], &["scales", "NaN"]);
    refused(&Op::Resize(Resize { scales: vec![2.0], ..resize }), &[f32s(&[0])], &["empty"]);
    assert!(product.infer(&[Some(&x), None], 1).unwrap_err().contains("left out"));
    assert!(product.infer(&[Some(&x)], 1).unwrap_err().contains("expected 2 operands, found 1"));
    assert!(reduce(&[0], false).infer(&[Some(&x)], 2).unwrap_err().contains("1 outputs, found 2"));
}

#[test]
fn messages_of_packed_attention() {
    let of = |longest, scale| Op::PackedAttention(PackedAttention { longest, scale });
    let (x, starts) = (f32s(&[6, 2, 4]), i64s(&[3]));
    let with = |bias: &[usize]| [x.clone(), x.clone(), x.clone(), starts.clone(), f32s(bias)];
    assert_eq!(written(&of(5, 0.5), &with(&[2, 9])), [[6, 2, 4]]);
    assert_eq!(written(&of(5, 0.5), &[x.clone(), x.clone(), f32s(&[6, 2, 7]), i64s(&[0])]), [[6, 2, 7]]);
    refused(&of(5, 0.5), &with(&[2, 10]), &["bias", "f32[2,9] or f32[1,9]", "f32[2,10]"]);
    refused(&of(0, 0.5), &with(&[1, 1]), &["1 to 6 tokens", "longest: 0"]);
    refused(&of(7, 0.5), &with(&[1, 13]), &["1 to 6 tokens", "longest: 7"]);
    refused(&of(5, f64::NAN), &with(&[1, 9]), &["finite scale", "NaN"]);
    refused(&of(5, 0.5), &[x.clone(), x.clone(), x.clone()], &["4 to 5 operands", "found 3"]);
    refused(&of(5, 0.5), &[x.clone(), x.clone(), x.clone(), f32s(&[3])], &["i32 or i64", "f32[3]"]);
    refused(&of(5, 0.5), &[x.clone(), x.clone(), x.clone(), i64s(&[3, 1])], &["starts", "i64[3,1]"]);
    refused(&of(5, 0.5), &[x.clone(), f32s(&[6, 2, 3]), x.clone(), starts.clone()], &["three times", "f32[6,2,3]"]);
    refused(&of(5, 0.5), &[f32s(&[6, 8]), f32s(&[6, 8]), f32s(&[6, 8]), starts], &["[tokens, heads, features]"]);
    let far = [f32s(&[1 << 40, 1, 1]), f32s(&[1 << 40, 1, 1]), f32s(&[1 << 40, 1, 1]), i64s(&[3])];
    refused(&of(1 << 30, 0.5), &far, &["longest: 1073741824"]);
}

#[test]
fn messages_of_recurrent_layers() {
    let tanh = || Expr::arg(0).unary(crate::graph::Unary::Tanh);
    let of = |cell: RecurrentCell, directions: usize| {
        let (backwards, activations) = (vec![false; directions], vec![vec![tanh(); cell.activations()]; directions]);
        Recurrent { cell, backwards, activations }
    };
    let lstm = || of(RecurrentCell::Lstm { coupled: false }, 2);
    let (x, weights) = (f32s(&[5, 3, 64]), f32s(&[64, 8]));
    let state = || f32s(&[2, 3, 8]);
    let results = Op::Recurrent(lstm()).infer(&[Some(&x), Some(&weights), None, Some(&state())], 3).unwrap();
    assert_eq!(results, [f32s(&[5, 3, 16]), state(), state()]);
    let told = |of: Recurrent, operands: &[Option<ValueType>], outputs: usize, what: &[&str]| {
        let operands: Vec<Option<&ValueType>> = operands.iter().map(Option::as_ref).collect();
        let error = Op::Recurrent(of).infer(&operands, outputs).unwrap_err();
        assert!(what.iter().all(|part| error.contains(part)), "{error}");
    };
    let both = || vec![Some(x.clone()), Some(weights.clone())];
    let with = |number: usize, operand: ValueType| {
        let mut all = both();
        all.resize(number, None);
        all.push(Some(operand));
        all
    };
    told(lstm(), &both(), 2, &["3 outputs, found 2"]);
    told(lstm(), &[Some(f32s(&[0, 3, 64])), Some(weights.clone())], 3, &["a step or more"]);
    told(lstm(), &[Some(x.clone()), Some(f32s(&[32, 8]))], 3, &["as many rows", "f32[32,8]"]);
    told(lstm(), &[Some(i64s(&[5, 3, 64])), Some(weights.clone())], 3, &["floats"]);
    told(lstm(), &with(2, f32s(&[2, 8])), 3, &["bias: expected none"]);
    told(lstm(), &with(3, f32s(&[3, 2, 8])), 3, &["first h: expected f32[2,3,8]"]);
    told(lstm(), &with(5, f32s(&[2, 32])), 3, &["weights of c: expected f32[2,24]"]);
    told(lstm(), &with(6, i64s(&[2])), 3, &["lengths", "3 sequences"]);
    told(Recurrent { activations: vec![vec![tanh()]; 2], ..lstm() }, &both(), 3, &["activations: expected 3"]);
    let axis = Expr::Axis(0).cast(Dtype::F32);
    told(Recurrent { activations: vec![vec![axis; 3]; 2], ..lstm() }, &both(), 3, &["a function from f32"]);
    let (x, weights) = (f32s(&[5, 3, 24]), f32s(&[24, 8]));
    let gru = || of(RecurrentCell::Gru { reset_after: true }, 1);
    told(gru(), &[Some(x.clone()), Some(weights.clone())], 2, &["bias: expected one for a GRU"]);
    let bias = Some(f32s(&[1, 8]));
    told(gru(), &[Some(x), Some(weights), bias, None, Some(f32s(&[1, 3, 8]))], 2, &["first c: expected none"]);
}
