//! The loops of each operation.

mod index;
mod place;
mod pointwise;
mod resize;
mod rows;
mod window;

use super::build::LoopBuilder;
use super::ir::{Loop, TermId};
use crate::graph::{Number, Op, ValueType};
use crate::tensor::Dtype;

/// The way in which an operation is computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Lowered {
    /// One loop for each output. The operands of each loop are the present operands of the operation, in its order.
    Loops(Vec<Loop>),
    /// A function over values, because the operation is no loop: its elements are sorted, or written in an order that
    /// matters, or their number depends on values, or it is many loops. [`expand`](crate::graph::expand) replaces the
    /// operation by loops.
    ByHand,
}

/// The way in which an operation is computed that reads values of the types `inputs` and writes values of the types
/// `outputs`. The factors of a convolution or contraction may have fewer bits than the result; they are multiplied in
/// the result's type.
///
/// ```
/// use trefoil::{Dtype, graph::{Op, TopK, ValueType}, loops::{Lowered, lower}};
/// let [x, y] = [[2, 3], [3, 2]].map(|dims| ValueType::new(Dtype::U8, &dims));
/// let Lowered::Loops(loops) = lower(&Op::Transpose(vec![1, 0]), &[Some(&x)], &[y.clone()]) else { panic!() };
/// assert_eq!((&loops[0].operands[..], loops[0].elems()), (&[x.clone()][..], 6));
/// let outputs = [x.clone(), ValueType::new(Dtype::I64, &[2, 3])];
/// assert_eq!(lower(&Op::TopK(TopK { axis: 1, k: 3, largest: true }), &[Some(&x)], &outputs), Lowered::ByHand);
/// ```
///
/// # Panics
/// If the operation does not take these operands, or writes values of other types; [`Op::infer`] checks both.
pub fn lower(op: &Op, inputs: &[Option<&ValueType>], outputs: &[ValueType]) -> Lowered {
    let of = Operation { inputs, to: &outputs[0] };
    Lowered::Loops(vec![match op {
        Op::Cumulate(_)
        | Op::PackedAttention(_)
        | Op::Recurrent(_)
        | Op::ScatterElements(..)
        | Op::ScatterNd(_)
        | Op::TopK(_) => return Lowered::ByHand,
        Op::Pool(pool) => return Lowered::Loops(of.pool(pool, outputs.len() == 2)),
        Op::Map(expr) => of.map(expr),
        Op::Reduce(reduce) => of.reduce(reduce),
        Op::ArgReduce(reduce) => of.arg_reduce(reduce),
        Op::Softmax { axis, log } => of.softmax(*axis, *log),
        Op::Norm(norm) => of.norm(norm),
        Op::Reshape(_) => of.reshape(),
        Op::Transpose(order) => of.transpose(order),
        Op::Slice(slice) => of.slice(slice),
        Op::Broadcast(_) => of.broadcast(),
        Op::Pad(pad) => of.pad(pad),
        Op::Concat(axis) => of.concat(*axis),
        Op::Gather(axis) => of.gather(*axis),
        Op::GatherElements(axis) => of.gather_elements(*axis),
        Op::GatherNd(batch) => of.gather_nd(*batch),
        Op::Contract(contract) => of.contract(contract),
        Op::Conv(conv) => of.conv(conv),
        Op::ConvTranspose(conv, _) => of.conv_transpose(conv),
        Op::Resize(resize) => of.resize(resize),
        Op::Quantize { dtype, axis } => of.quantize(*dtype, *axis),
        Op::Dequantize { axis } => of.dequantize(*axis),
    }])
}

/// The types of an operation's operands and of its first output.
struct Operation<'a> {
    inputs: &'a [Option<&'a ValueType>],
    to: &'a ValueType,
}

impl<'a> Operation<'a> {
    fn input(&self, number: usize) -> Option<&'a ValueType> {
        self.inputs.get(number).copied().flatten()
    }

    /// The type of an operand that exists.
    fn operand(&self, number: usize) -> &'a ValueType {
        self.input(number).expect("an operand that was checked to be there")
    }

    /// A builder of a loop over these extents.
    fn over(&self, extents: &[usize]) -> LoopBuilder {
        let operands: Vec<ValueType> = self.inputs.iter().copied().flatten().cloned().collect();
        LoopBuilder::new(&operands, extents)
    }

    /// A builder of a loop over the elements of the first output.
    fn each(&self) -> LoopBuilder {
        self.over(&self.to.dims)
    }

    /// The element at a point of operand `number`, which is broadcast: its axes of size 1 have the index 0, and outer
    /// axes may be missing.
    fn broadcast_load(&self, b: &mut LoopBuilder, number: usize, point: &[TermId]) -> TermId {
        let dims = &self.operand(number).dims;
        let zero = b.index(0);
        let last = &point[point.len() - dims.len()..];
        let at: Vec<TermId> = dims.iter().zip(last).map(|(&dim, &i)| if dim == 1 { zero } else { i }).collect();
        let operand = self.inputs[..number].iter().flatten().count();
        b.load(operand, &at)
    }
}

/// The type in which floats of these types are combined.
fn wide(dtypes: &[Dtype]) -> Dtype {
    if dtypes.contains(&Dtype::F64) { Dtype::F64 } else { Dtype::F32 }
}

/// The lowest number of a type.
fn lowest(dtype: Dtype) -> Number {
    match dtype {
        _ if dtype.is_float() => Number::Float(f64::NEG_INFINITY),
        _ if dtype.is_signed() => Number::Int(-1 << (8 * dtype.bytes() - 1)),
        _ => Number::Int(0),
    }
}

/// The 0 of a type.
fn zero(dtype: Dtype) -> Number {
    if dtype.is_float() { Number::Float(0.0) } else { Number::Int(0) }
}
