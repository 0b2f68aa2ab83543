//! Infers the types of an operation's results from those of its operands, and checks its attributes.
//!
//! The file is long because it has one function for each operation, in the order of [`Op`], and little else.

use super::expr::Expr;
use super::op::{
    ArgReduce, Contract, Conv, Cumulate, Norm, Op, PackedAttention, Pad, PadMode, Pool, PoolOp, Recurrent,
    RecurrentCell, Reduce, ReduceOp, Resize, Scatter, Slice, TopK, Window,
};
use super::value::ValueType;
use crate::tensor::Dtype;

/// The most elements of a value: with elements of the largest type it still fits the address space.
const MOST_ELEMS: usize = isize::MAX as usize / 8;

impl Op {
    /// The types of the operation's outputs. `outputs` is the number of outputs that are wanted, for operations with a
    /// variable number of outputs.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::{Op, ValueType}};
    /// let x = ValueType::new(Dtype::F32, &[2, 3, 5]);
    /// let y = Op::Transpose(vec![2, 0, 1]).infer(&[Some(&x)], 1);
    /// assert_eq!(y, Ok(vec![ValueType::new(Dtype::F32, &[5, 2, 3])]));
    /// assert_eq!(Op::Concat(3).infer(&[Some(&x)], 1), Err("axis 3: expected below 3".to_owned()));
    /// ```
    ///
    /// # Errors
    /// The reason why the operands do not fit, as the end of a sentence: "axis 4: expected below 3".
    pub fn infer(&self, inputs: &[Option<&ValueType>], outputs: usize) -> Result<Vec<ValueType>, String> {
        infer(self, inputs, outputs)
    }
}

fn infer(op: &Op, inputs: &[Option<&ValueType>], outputs: usize) -> Result<Vec<ValueType>, String> {
    let written = match op {
        Op::Map(expr) => vec![map(expr, &all(inputs)?)?],
        Op::Reduce(of) => vec![reduce(of, one(inputs)?)?],
        Op::ArgReduce(of) => vec![arg_reduce(of, one(inputs)?)?],
        Op::Cumulate(of) => vec![cumulate(of, one(inputs)?)?],
        Op::Softmax { axis, .. } => vec![float_along(*axis, one(inputs)?)?],
        Op::Norm(of) => vec![norm(of, inputs)?],
        Op::Reshape(dims) => vec![reshape(dims, one(inputs)?)?],
        Op::Transpose(order) => vec![transpose(order, one(inputs)?)?],
        Op::Slice(of) => vec![slice(of, one(inputs)?)?],
        Op::Broadcast(dims) => vec![broadcast_to(dims, one(inputs)?)?],
        Op::Pad(of) => vec![pad(of, one(inputs)?)?],
        Op::Concat(axis) => vec![concat(*axis, &all(inputs)?)?],
        Op::Gather(axis) => vec![gather(*axis, two(inputs)?)?],
        Op::GatherElements(axis) => vec![gather_elements(*axis, two(inputs)?)?],
        Op::GatherNd(batch) => vec![gather_nd(*batch, two(inputs)?)?],
        Op::ScatterElements(axis, how) => vec![scatter_elements(*axis, *how, three(inputs)?)?],
        Op::ScatterNd(how) => vec![scatter_nd(*how, three(inputs)?)?],
        Op::TopK(of) => top_k(of, one(inputs)?)?,
        Op::Contract(of) => vec![contract(of, two(inputs)?)?],
        Op::PackedAttention(of) => vec![packed_attention(of, inputs)?],
        Op::Recurrent(of) => recurrent(of, inputs)?,
        Op::Conv(of) => vec![conv(of, inputs)?],
        Op::ConvTranspose(of, spatial) => vec![conv_transpose(of, spatial, inputs)?],
        Op::Pool(of) => pool(of, one(inputs)?, outputs)?,
        Op::Resize(of) => vec![resize(of, one(inputs)?)?],
        Op::Quantize { dtype, axis } => vec![quantize(*dtype, *axis, inputs)?],
        Op::Dequantize { axis } => vec![dequantize(*axis, inputs)?],
    };
    if written.len() != outputs {
        return Err(format!("expected {} outputs, found {outputs}", written.len()));
    }
    match written.iter().find(|of| !is_possible(&of.dims)) {
        Some(huge) => Err(format!("a value of {:?} elements overflows: expected {MOST_ELEMS} at most", huge.dims)),
        None => Ok(written),
    }
}

/// Whether memory could hold this many elements.
fn is_possible(dims: &[usize]) -> bool {
    dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim)).is_some_and(|n| n <= MOST_ELEMS)
}

fn all<'a>(inputs: &[Option<&'a ValueType>]) -> Result<Vec<&'a ValueType>, String> {
    let missing = || "a required operand is left out".to_owned();
    inputs.iter().map(|input| input.ok_or_else(missing)).collect()
}

fn exactly<'a, const N: usize>(inputs: &[Option<&'a ValueType>]) -> Result<[&'a ValueType; N], String> {
    let found = inputs.len();
    all(inputs)?.try_into().map_err(|_| format!("expected {N} operands, found {found}"))
}

fn one<'a>(inputs: &[Option<&'a ValueType>]) -> Result<&'a ValueType, String> {
    exactly::<1>(inputs).map(|[x]| x)
}

fn two<'a>(inputs: &[Option<&'a ValueType>]) -> Result<[&'a ValueType; 2], String> {
    exactly(inputs)
}

fn three<'a>(inputs: &[Option<&'a ValueType>]) -> Result<[&'a ValueType; 3], String> {
    exactly(inputs)
}

/// The first `needed` operands, which must be there, and the others, up to `most` in all, if they are there.
fn some<'a>(
    inputs: &[Option<&'a ValueType>],
    needed: usize,
    most: usize,
) -> Result<Vec<Option<&'a ValueType>>, String> {
    if !(needed..=most).contains(&inputs.len()) {
        return Err(format!("expected {needed} to {most} operands, found {}", inputs.len()));
    }
    all(&inputs[..needed])?;
    Ok((0..most).map(|i| inputs.get(i).copied().flatten()).collect())
}

fn check_axis(axis: usize, of: &ValueType) -> Result<usize, String> {
    of.dims.get(axis).copied().ok_or_else(|| format!("axis {axis}: expected below {}", of.rank()))
}

fn same_rank(what: &str, found: usize, of: &ValueType) -> Result<(), String> {
    if found == of.rank() {
        Ok(())
    } else {
        Err(format!("{what}: expected one for each of {} axes, found {found}", of.rank()))
    }
}

fn float(of: &ValueType) -> Result<(), String> {
    if of.dtype.is_float() { Ok(()) } else { Err(format!("expected floats, found {of}")) }
}

fn index(of: &ValueType) -> Result<(), String> {
    match of.dtype {
        Dtype::I32 | Dtype::I64 => Ok(()),
        _ => Err(format!("indices: expected i32 or i64, found {of}")),
    }
}

/// The dimensions that all operands are broadcast to.
pub(super) fn broadcast(all: &[&ValueType]) -> Result<Vec<usize>, String> {
    let rank = all.iter().map(|of| of.rank()).max().unwrap_or(0);
    let mut dims = vec![1; rank];
    for of in all {
        for (dim, &next) in dims[rank - of.rank()..].iter_mut().zip(&of.dims) {
            match (*dim, next) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *dim = b,
                _ => {
                    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                    return Err(format!("operands that cannot be broadcast to one shape: {}", all.join(", ")));
                }
            }
        }
    }
    Ok(dims)
}

fn map(expr: &Expr, inputs: &[&ValueType]) -> Result<ValueType, String> {
    let dims = broadcast(inputs)?;
    let dtypes: Vec<Dtype> = inputs.iter().map(|of| of.dtype).collect();
    let dtype = expr.dtype(&dtypes)?;
    if expr.axes() > dims.len() {
        return Err(format!("reads the index along axis {}: expected below {}", expr.axes() - 1, dims.len()));
    }
    Ok(ValueType { dtype, dims })
}

/// The dimensions without these axes, or with size 1 for each of them.
fn reduced(dims: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let at = |(axis, &dim): (usize, &usize)| if !axes.contains(&axis) { Some(dim) } else { keep.then_some(1) };
    dims.iter().enumerate().filter_map(at).collect()
}

fn reduce(of: &Reduce, x: &ValueType) -> Result<ValueType, String> {
    of.axes.iter().try_for_each(|&axis| check_axis(axis, x).map(drop))?;
    if of.axes.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("axes: expected ascending ones, found {:?}", of.axes));
    }
    match (of.op, x.dtype) {
        (ReduceOp::Min | ReduceOp::Max, _) => {}
        (_, Dtype::Bool) => return Err(format!("expected numbers, found {x}")),
        (ReduceOp::Sum | ReduceOp::Prod, _) => {}
        (ReduceOp::Mean, _) => float(x)?,
    }
    Ok(ValueType { dtype: x.dtype, dims: reduced(&x.dims, &of.axes, of.keep) })
}

fn arg_reduce(of: &ArgReduce, x: &ValueType) -> Result<ValueType, String> {
    if check_axis(of.axis, x)? == 0 {
        return Err(format!("axis {} of {x} is empty: it has no largest or smallest element", of.axis));
    }
    Ok(ValueType { dtype: Dtype::I64, dims: reduced(&x.dims, &[of.axis], of.keep) })
}

fn cumulate(of: &Cumulate, x: &ValueType) -> Result<ValueType, String> {
    check_axis(of.axis, x)?;
    match (of.op, x.dtype) {
        (_, Dtype::Bool) => Err(format!("expected numbers, found {x}")),
        (ReduceOp::Sum | ReduceOp::Prod, _) => Ok(x.clone()),
        (op, _) => Err(format!("expected a sum or a product, found {op:?}")),
    }
}

fn float_along(axis: usize, x: &ValueType) -> Result<ValueType, String> {
    check_axis(axis, x)?;
    float(x).map(|()| x.clone())
}

fn norm(of: &Norm, inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let inputs = some(inputs, 1, 3)?;
    let x = inputs[0].expect("checked to be there");
    float(x)?;
    check_axis(of.axis, x)?;
    if !(of.eps.is_finite() && of.eps >= 0.0) {
        return Err(format!("eps: expected a finite number from 0 up, found {}", of.eps));
    }
    for with in inputs[1..].iter().flatten() {
        float(with)?;
        if broadcast(&[x, with])? != x.dims {
            return Err(format!("scale and bias: expected dimensions that broadcast to {x}, found {with}"));
        }
    }
    Ok(x.clone())
}

fn reshape(dims: &[usize], x: &ValueType) -> Result<ValueType, String> {
    let elems = dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
    if elems != Some(x.elems()) {
        return Err(format!("to {dims:?}: expected {} elements, which {x} has", x.elems()));
    }
    Ok(ValueType::new(x.dtype, dims))
}

fn transpose(order: &[usize], x: &ValueType) -> Result<ValueType, String> {
    same_rank("order", order.len(), x)?;
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.rank()) {
        return Err(format!("order: expected each of {} axes once, found {order:?}", x.rank()));
    }
    Ok(ValueType { dtype: x.dtype, dims: order.iter().map(|&axis| x.dims[axis]).collect() })
}

fn slice(of: &Slice, x: &ValueType) -> Result<ValueType, String> {
    same_rank("start", of.start.len(), x)?;
    same_rank("step", of.step.len(), x)?;
    same_rank("dims", of.dims.len(), x)?;
    for (axis, &size) in x.dims.iter().enumerate() {
        let (start, step, dim) = (of.start[axis], of.step[axis], of.dims[axis]);
        let last = (dim as i128 - 1) * step as i128 + start as i128;
        if dim > 0 && !(start < size && (0..size as i128).contains(&last)) {
            return Err(format!("axis {axis}: {dim} indices from {start} by {step} leave its {size}"));
        }
    }
    Ok(ValueType::new(x.dtype, &of.dims))
}

fn broadcast_to(dims: &[usize], x: &ValueType) -> Result<ValueType, String> {
    let to = ValueType::new(x.dtype, dims);
    match broadcast(&[x, &to]) {
        Ok(found) if found == dims => Ok(to),
        _ => Err(format!("{x} cannot be broadcast to {dims:?}")),
    }
}

fn pad(of: &Pad, x: &ValueType) -> Result<ValueType, String> {
    same_rank("before", of.before.len(), x)?;
    same_rank("after", of.after.len(), x)?;
    let mut dims = Vec::with_capacity(x.rank());
    for (axis, &size) in x.dims.iter().enumerate() {
        let [before, after] = [of.before[axis], of.after[axis]];
        let padded = size as i128 + before as i128 + after as i128;
        let room = match of.mode {
            PadMode::Constant(_) => i128::MAX,
            PadMode::Reflect => size as i128 - 1,
            PadMode::Edge | PadMode::Wrap => {
                if size > 0 {
                    i128::MAX
                } else {
                    0
                }
            }
        };
        if padded < 0 || padded > MOST_ELEMS as i128 || before.max(after) as i128 > room {
            return Err(format!("axis {axis} of {x}: {before} before and {after} behind do not fit"));
        }
        dims.push(padded as usize);
    }
    if let PadMode::Constant(number) = of.mode {
        Expr::Const(x.dtype, number).dtype(&[])?;
    }
    Ok(ValueType { dtype: x.dtype, dims })
}

fn concat(axis: usize, inputs: &[&ValueType]) -> Result<ValueType, String> {
    let [first, rest @ ..] = inputs else { return Err("expected operands, found none".into()) };
    check_axis(axis, first)?;
    let mut dims = first.dims.clone();
    for of in rest {
        let others = |of: &ValueType| reduced(&of.dims, &[axis], false);
        if of.dtype != first.dtype || of.rank() != first.rank() || others(of) != others(first) {
            return Err(format!("expected operands that differ along axis {axis} alone, found {first} and {of}"));
        }
        dims[axis] = dims[axis].checked_add(of.dims[axis]).ok_or("the sum of sizes overflows")?;
    }
    Ok(ValueType { dtype: first.dtype, dims })
}

fn gather(axis: usize, [x, at]: [&ValueType; 2]) -> Result<ValueType, String> {
    index(at)?;
    if check_axis(axis, x)? == 0 && at.elems() > 0 {
        return Err(format!("axis {axis} of {x} is empty: nothing can be gathered"));
    }
    Ok(ValueType { dtype: x.dtype, dims: [&x.dims[..axis], &at.dims, &x.dims[axis + 1..]].concat() })
}

fn gather_elements(axis: usize, [x, at]: [&ValueType; 2]) -> Result<ValueType, String> {
    index(at)?;
    same_rank("indices", at.rank(), x)?;
    check_axis(axis, x)?;
    let fits = |(i, (a, b)): (usize, (&usize, &usize))| if i == axis { *a > 0 || *b == 0 } else { b <= a };
    if !x.dims.iter().zip(&at.dims).enumerate().all(fits) {
        return Err(format!("indices of {at} leave {x}"));
    }
    Ok(ValueType { dtype: x.dtype, dims: at.dims.clone() })
}

/// The number of axes of `x` that a row of `at` indexes.
fn row_len(batch: usize, x: &ValueType, at: &ValueType) -> Result<usize, String> {
    index(at)?;
    let len = at
        .dims
        .last()
        .copied()
        .filter(|_| at.rank() > batch)
        .ok_or_else(|| format!("indices: expected more than {batch} axes, found {at}"))?;
    let fits = batch + len <= x.rank() && at.dims[..batch] == x.dims[..batch.min(x.rank())];
    if fits { Ok(len) } else { Err(format!("indices of {at} do not fit {x} with a batch of {batch} axes")) }
}

fn gather_nd(batch: usize, [x, at]: [&ValueType; 2]) -> Result<ValueType, String> {
    let len = row_len(batch, x, at)?;
    if let Some(axis) = (batch..batch + len).find(|&axis| x.dims[axis] == 0).filter(|_| at.elems() > 0) {
        return Err(format!("axis {axis} of {x} is empty: nothing can be gathered"));
    }
    Ok(ValueType { dtype: x.dtype, dims: [&at.dims[..at.rank() - 1], &x.dims[batch + len..]].concat() })
}

fn scatter_elements(axis: usize, how: Scatter, [x, at, from]: [&ValueType; 3]) -> Result<ValueType, String> {
    gather_elements(axis, [x, at])?;
    if from.dims != at.dims || from.dtype != x.dtype {
        return Err(format!("updates: expected {} of {:?}, found {from}", x.dtype, at.dims));
    }
    scattered(how, x)
}

fn scatter_nd(how: Scatter, [x, at, from]: [&ValueType; 3]) -> Result<ValueType, String> {
    let expected = gather_nd(0, [x, at])?;
    if *from != expected {
        return Err(format!("updates: expected {expected}, found {from}"));
    }
    scattered(how, x)
}

fn scattered(how: Scatter, x: &ValueType) -> Result<ValueType, String> {
    match (how, x.dtype) {
        (Scatter::Add | Scatter::Mul, Dtype::Bool) => Err(format!("expected numbers, found {x}")),
        _ => Ok(x.clone()),
    }
}

fn top_k(of: &TopK, x: &ValueType) -> Result<Vec<ValueType>, String> {
    let size = check_axis(of.axis, x)?;
    if of.k > size || x.dtype == Dtype::Bool {
        return Err(format!("the first {} along axis {} of {x}: expected numbers, and {size} at most", of.k, of.axis));
    }
    let mut dims = x.dims.clone();
    dims[of.axis] = of.k;
    Ok([x.dtype, Dtype::I64].map(|dtype| ValueType::new(dtype, &dims)).to_vec())
}

fn contract(of: &Contract, [left, right]: [&ValueType; 2]) -> Result<ValueType, String> {
    same_rank("labels", of.left.len(), left)?;
    same_rank("labels", of.right.len(), right)?;
    if left.dtype != right.dtype || left.dtype == Dtype::Bool {
        return Err(format!("expected operands of one type of numbers, found {left} and {right}"));
    }
    let unique = |labels: &[usize]| (1..labels.len()).all(|i| !labels[..i].contains(&labels[i]));
    if ![&of.left, &of.right, &of.result].into_iter().all(|labels| unique(labels)) {
        return Err(format!("labels: expected each once, found {:?}, {:?} and {:?}", of.left, of.right, of.result));
    }
    let size = |label: &usize| {
        let at = |labels: &[usize], of: &ValueType| labels.iter().position(|l| l == label).map(|axis| of.dims[axis]);
        match (at(&of.left, left), at(&of.right, right)) {
            (None, None) => Err(format!("label {label} is on no operand")),
            (Some(a), Some(b)) if a != b && a != 1 && b != 1 => {
                Err(format!("sizes {a} and {b} of one label: {left} and {right}"))
            }
            (Some(a), Some(1)) => Ok(a),
            (_, Some(b)) => Ok(b),
            (Some(a), None) => Ok(a),
        }
    };
    of.left.iter().chain(&of.right).try_for_each(|label| size(label).map(drop))?;
    Ok(ValueType { dtype: left.dtype, dims: of.result.iter().map(size).collect::<Result<_, _>>()? })
}

fn packed_attention(of: &PackedAttention, inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let inputs = some(inputs, 4, 5)?;
    let [q, k, v, starts] = [0, 1, 2, 3].map(|number| inputs[number].expect("checked to be there"));
    let is_one = |of: &ValueType| of.dtype == Dtype::F32 && of.rank() == 3 && of.dims[2] > 0;
    if ![q, k, v].into_iter().all(is_one) || k != q || v.dims[..2] != q.dims[..2] {
        return Err(format!("expected f32 of [tokens, heads, features] three times, found {q}, {k} and {v}"));
    }
    index(starts)?;
    if starts.rank() != 1 {
        return Err(format!("starts: expected them along one axis, found {starts}"));
    }
    let [tokens, heads, values] = v.dims[..] else { unreachable!("checked to be three axes") };
    let of_keys = [tokens, of.longest, heads, values.max(q.dims[2])]; // what loops read for each token
    if !(1..=tokens.max(1)).contains(&of.longest) || !is_possible(&of_keys) || !of.scale.is_finite() {
        return Err(format!("expected a longest row of 1 to {tokens} tokens, and a finite scale, found {of:?}"));
    }
    let places = 2 * of.longest - 1;
    let fits = |bias: &ValueType| bias.dims == [1, places] || bias.dims == [heads, places];
    match inputs[4] {
        Some(bias) if bias.dtype != Dtype::F32 || !fits(bias) => {
            Err(format!("bias: expected f32[{heads},{places}] or f32[1,{places}], found {bias}"))
        }
        _ => Ok(v.clone()),
    }
}

fn recurrent(of: &Recurrent, inputs: &[Option<&ValueType>]) -> Result<Vec<ValueType>, String> {
    let Recurrent { cell, backwards, activations } = of;
    let directions = backwards.len();
    let inputs = some(inputs, 2, 7)?;
    let [x, weights] = [0, 1].map(|number| inputs[number].expect("checked to be there"));
    float(x)?;
    let ([steps, batch, columns], [rows, hidden]) = (&x.dims[..], &weights.dims[..]) else {
        return Err(format!("expected inputs of three axes and weights of two, found {x} and {weights}"));
    };
    let (steps, batch, hidden) = (*steps, *batch, *hidden);
    let all = directions.checked_mul(cell.gates()).and_then(|gates| gates.checked_mul(hidden));
    if !(1..=2).contains(&directions) || steps == 0 || Some(*rows) != all || columns != rows || weights.dtype != x.dtype
    {
        return Err(format!(
            "expected a step or more, and weights of as many rows as inputs have columns, found {x} and {weights}"
        ));
    }
    let arities: Vec<usize> = activations.iter().map(Vec::len).collect();
    if arities != vec![cell.activations(); directions] {
        return Err(format!("activations: expected {} for each direction, found {arities:?}", cell.activations()));
    }
    for expr in activations.iter().flatten() {
        if expr.axes() > 0 || expr.dtype(&[x.dtype])? != x.dtype {
            return Err(format!("an activation: expected a function from {} to itself, found {expr:?}", x.dtype));
        }
    }
    let (is_gru, is_lstm) = (matches!(cell, RecurrentCell::Gru { .. }), matches!(cell, RecurrentCell::Lstm { .. }));
    let state = [directions, batch, hidden];
    let operands: [(&str, usize, &[usize], bool); 4] = [
        ("bias", 2, &[directions, hidden], is_gru),
        ("first h", 3, &state, true),
        ("first c", 4, &state, is_lstm),
        ("weights of c", 5, &[directions, 3 * hidden], is_lstm),
    ];
    for (what, number, dims, may_be) in operands {
        match inputs[number] {
            Some(found) if !may_be => return Err(format!("{what}: expected none, found {found}")),
            Some(found) if found.dims != dims || found.dtype != x.dtype => {
                return Err(format!("{what}: expected {}, found {found}", ValueType::new(x.dtype, dims)));
            }
            _ => {}
        }
    }
    if is_gru && inputs[2].is_none() {
        return Err("bias: expected one for a GRU".into());
    }
    if let Some(lengths) = inputs[6] {
        index(lengths)?;
        if lengths.dims != [batch] {
            return Err(format!("lengths: expected one for each of {batch} sequences, found {lengths}"));
        }
    }
    let of = |dims: &[usize]| ValueType::new(x.dtype, dims);
    Ok([of(&[steps, batch, directions * hidden])].into_iter().chain(vec![of(&state); cell.states()]).collect())
}

fn check_window(window: &Window, axes: usize) -> Result<(), String> {
    let Window { size, stride, dilation, pad } = window;
    if [size.len(), stride.len(), dilation.len(), pad.len()] != [axes; 4] {
        return Err(format!("window: expected {axes} spatial axes, found {window:?}"));
    }
    match size.iter().chain(stride).chain(dilation).all(|&n| n > 0) {
        true => Ok(()),
        false => Err(format!("window: expected sizes, strides and dilations from 1 up, found {window:?}")),
    }
}

/// The number of positions of a window along each axis.
pub(crate) fn slide(window: &Window, spatial: &[usize]) -> Result<Vec<usize>, String> {
    check_window(window, spatial.len())?;
    let along = |(axis, &size): (usize, &usize)| {
        let overflow = || format!("window along axis {axis} overflows");
        let [before, behind] = window.pad[axis];
        let reach = (window.size[axis] - 1)
            .checked_mul(window.dilation[axis])
            .and_then(|n| n.checked_add(1))
            .ok_or_else(overflow)?;
        let padded = size.checked_add(before).and_then(|n| n.checked_add(behind)).ok_or_else(overflow)?;
        match padded.checked_sub(reach) {
            Some(room) => Ok(room / window.stride[axis] + 1),
            None => Err(format!(
                "window along spatial axis {axis}: expected {padded} at most (with padding), found {reach}"
            )),
        }
    };
    spatial.iter().enumerate().map(along).collect()
}

/// The spatial dimensions of `[N, spatial…, C]`.
fn spatial(x: &ValueType) -> Result<&[usize], String> {
    match &x.dims[..] {
        [_, spatial @ .., _] => Ok(spatial),
        _ => Err(format!("expected [N, spatial…, C], found {x}")),
    }
}

/// The operands of a convolution. Its filter must have `channels` along its `axis`, for all groups together.
fn conv_operands<'a>(of: &Conv, inputs: &[Option<&'a ValueType>]) -> Result<[&'a ValueType; 2], String> {
    let inputs = some(inputs, 2, 3)?;
    let [x, filter] = [inputs[0], inputs[1]].map(|input| input.expect("checked to be there"));
    let axes = spatial(x)?.len();
    if filter.rank() != axes + 2 || filter.dtype != x.dtype || x.dtype == Dtype::Bool {
        return Err(format!("filter: expected {} of {} axes, found {filter}", x.dtype, axes + 2));
    }
    if filter.dims[2..] != of.window.size {
        return Err(format!("filter: expected taps of {:?}, found {filter}", of.window.size));
    }
    if of.groups == 0 {
        return Err("groups: expected 1 or more, found 0".into());
    }
    Ok([x, filter])
}

fn conv_result(
    x: &ValueType,
    spatial: &[usize],
    channels: usize,
    bias: Option<&ValueType>,
) -> Result<ValueType, String> {
    if let Some(bias) = bias.filter(|bias| bias.dims != [channels] || bias.dtype != x.dtype) {
        return Err(format!("bias: expected {}[{channels}], found {bias}", x.dtype));
    }
    Ok(ValueType { dtype: x.dtype, dims: [&[x.dims[0]], spatial, &[channels]].concat() })
}

fn conv(of: &Conv, inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let [x, filter] = conv_operands(of, inputs)?;
    let (channels, k) = (x.dims[x.rank() - 1], filter.dims[0]);
    if filter.dims[1].checked_mul(of.groups) != Some(channels) || !k.is_multiple_of(of.groups) {
        return Err(format!("{} groups of {channels} channels do not fit the filter {filter}", of.groups));
    }
    conv_result(x, &slide(&of.window, spatial(x)?)?, k, inputs.get(2).copied().flatten())
}

fn conv_transpose(of: &Conv, result: &[usize], inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let [x, filter] = conv_operands(of, inputs)?;
    let channels = x.dims[x.rank() - 1];
    check_window(&of.window, spatial(x)?.len())?;
    if filter.dims[0] != channels || !channels.is_multiple_of(of.groups) || result.len() != spatial(x)?.len() {
        return Err(format!("{} groups of {channels} channels do not fit the filter {filter}", of.groups));
    }
    let k = filter.dims[1].checked_mul(of.groups).ok_or("the product of channels and groups overflows")?;
    conv_result(x, result, k, inputs.get(2).copied().flatten())
}

fn pool(of: &Pool, x: &ValueType, outputs: usize) -> Result<Vec<ValueType>, String> {
    let spatial = slide(&of.window, spatial(x)?)?;
    match of.op {
        _ if x.dtype == Dtype::Bool => return Err(format!("expected numbers, found {x}")),
        PoolOp::Max | PoolOp::Sum => {}
        PoolOp::Mean | PoolOp::MeanOfTaps => float(x)?,
    }
    let dims = [&x.dims[..1], &spatial, &x.dims[x.rank() - 1..]].concat();
    let all = [x.dtype, Dtype::I64].map(|dtype| ValueType::new(dtype, &dims));
    Ok(all[..if of.op == PoolOp::Max { outputs.clamp(1, 2) } else { 1 }].to_vec())
}

fn resize(of: &Resize, x: &ValueType) -> Result<ValueType, String> {
    same_rank("dims", of.dims.len(), x)?;
    same_rank("scales", of.scales.len(), x)?;
    same_rank("crop", of.crop.len(), x)?;
    if !of.scales.iter().all(|scale| scale.is_finite() && *scale > 0.0) {
        return Err(format!("scales: expected finite numbers above 0, found {:?}", of.scales));
    }
    if x.elems() == 0 && of.dims.iter().all(|&dim| dim > 0) {
        return Err(format!("{x} is empty: nothing can be interpolated"));
    }
    Ok(ValueType::new(x.dtype, &of.dims))
}

/// The operands x, scale and zero point; the latter two are scalars, or vectors along an axis.
fn scaled<'a>(
    axis: Option<usize>,
    inputs: &[Option<&'a ValueType>],
) -> Result<(&'a ValueType, &'a ValueType, Option<&'a ValueType>), String> {
    let inputs = some(inputs, 2, 3)?;
    let [x, scale] = [inputs[0], inputs[1]].map(|input| input.expect("checked to be there"));
    float(scale)?;
    let expected = axis.map(|axis| check_axis(axis, x)).transpose()?;
    for of in [Some(scale), inputs[2]].into_iter().flatten() {
        if of.dims != expected.as_slice() {
            return Err(format!("scale and zero point: expected dimensions {:?}, found {of}", expected.as_slice()));
        }
    }
    Ok((x, scale, inputs[2]))
}

fn quantize(dtype: Dtype, axis: Option<usize>, inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let (x, _, zero_point) = scaled(axis, inputs)?;
    float(x)?;
    match zero_point {
        Some(zero) if zero.dtype != dtype => Err(format!("zero point: expected {dtype}, found {zero}")),
        _ if !dtype.is_integer() => Err(format!("to {dtype}: expected whole numbers")),
        _ => Ok(ValueType::new(dtype, &x.dims)),
    }
}

fn dequantize(axis: Option<usize>, inputs: &[Option<&ValueType>]) -> Result<ValueType, String> {
    let (x, scale, zero_point) = scaled(axis, inputs)?;
    match zero_point {
        Some(zero) if zero.dtype != x.dtype => Err(format!("zero point: expected {}, found {zero}", x.dtype)),
        _ if !x.dtype.is_integer() => Err(format!("expected whole numbers, found {x}")),
        _ => Ok(ValueType::new(scale.dtype, &x.dims)),
    }
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;
