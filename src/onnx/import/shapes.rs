//! Operations that many operators need.

use super::context::{Context, Outcome, number};
use crate::graph::{Binary, Contract, Expr, Op, Reduce, ReduceOp, Slice, ValueId};
use crate::tensor::Dtype;

impl Context<'_> {
    pub fn reshape(&mut self, value: ValueId, dims: &[usize]) -> Outcome<ValueId> {
        self.op(Op::Reshape(dims.to_vec()), &[value])
    }

    pub fn transpose(&mut self, value: ValueId, order: &[usize]) -> Outcome<ValueId> {
        self.op(Op::Transpose(order.to_vec()), &[value])
    }

    pub fn broadcast(&mut self, value: ValueId, dims: &[usize]) -> Outcome<ValueId> {
        self.op(Op::Broadcast(dims.to_vec()), &[value])
    }

    pub fn concat(&mut self, values: &[ValueId], axis: usize) -> Outcome<ValueId> {
        self.op(Op::Concat(axis), values)
    }

    pub fn map(&mut self, expr: Expr, values: &[ValueId]) -> Outcome<ValueId> {
        self.op(Op::Map(expr), values)
    }

    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Outcome<ValueId> {
        self.map(Expr::arg(0).binary(op, Expr::arg(1)), &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Outcome<ValueId> {
        self.binary(Binary::Add, a, b)
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Outcome<ValueId> {
        self.binary(Binary::Mul, a, b)
    }

    /// A value times a number.
    pub fn scaled(&mut self, value: ValueId, by: f64) -> Outcome<ValueId> {
        let dtype = self.dtype(value);
        if by == 1.0 { Ok(value) } else { self.map(Expr::arg(0) * number(dtype, by), &[value]) }
    }

    pub fn cast(&mut self, value: ValueId, dtype: Dtype) -> Outcome<ValueId> {
        if self.dtype(value) == dtype { Ok(value) } else { self.map(Expr::arg(0).cast(dtype), &[value]) }
    }

    /// `len` indices along an axis, from `start`.
    pub fn slice(&mut self, value: ValueId, axis: usize, start: usize, len: usize) -> Outcome<ValueId> {
        self.stepped(value, axis, start, 1, len)
    }

    /// The number of elements along an axis.
    pub fn dim(&self, value: ValueId, axis: usize) -> Outcome<usize> {
        let of = self.of(value);
        of.dims.get(axis).copied().ok_or_else(|| format!("expected {} axes or more, found {of}", axis + 1))
    }

    /// `len` indices along an axis, from `start` in steps of `step`.
    pub fn stepped(&mut self, value: ValueId, axis: usize, start: usize, step: isize, len: usize) -> Outcome<ValueId> {
        self.dim(value, axis)?;
        let mut dims = self.dims(value);
        let rank = dims.len();
        let mut of = Slice { start: vec![0; rank], step: vec![1; rank], dims: dims.clone() };
        (of.start[axis], of.step[axis], dims[axis]) = (start, step, len);
        of.dims = dims;
        self.op(Op::Slice(of), &[value])
    }

    /// The elements at one index along an axis; the axis is removed.
    pub fn at(&mut self, value: ValueId, axis: usize, index: usize) -> Outcome<ValueId> {
        let one = self.slice(value, axis, index, 1)?;
        self.squeeze(one, axis)
    }

    /// A value without one of its axes, of size 1.
    pub fn squeeze(&mut self, value: ValueId, axis: usize) -> Outcome<ValueId> {
        self.dim(value, axis)?;
        let mut dims = self.dims(value);
        dims.remove(axis);
        self.reshape(value, &dims)
    }

    /// A value with a new axis of size 1.
    pub fn unsqueeze(&mut self, value: ValueId, axis: usize) -> Outcome<ValueId> {
        if axis > 0 {
            self.dim(value, axis - 1)?;
        }
        let mut dims = self.dims(value);
        dims.insert(axis, 1);
        self.reshape(value, &dims)
    }

    pub fn reduce(&mut self, value: ValueId, op: ReduceOp, axes: &[usize], keep: bool) -> Outcome<ValueId> {
        self.op(Op::Reduce(Reduce { op, axes: axes.to_vec(), keep }), &[value])
    }

    /// The product of the matrices in the last two axes.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Outcome<ValueId> {
        let contract = Contract::matmul(self.rank(a), self.rank(b));
        self.op(Op::Contract(contract), &[a, b])
    }

    /// `[N, C, spatial…]` as `[N, spatial…, C]`.
    pub fn channels_last(&mut self, value: ValueId) -> Outcome<ValueId> {
        let rank = self.rank(value);
        let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).take(rank).collect();
        self.transpose(value, &order)
    }

    /// `[N, spatial…, C]` as `[N, C, spatial…]`.
    pub fn channels_first(&mut self, value: ValueId) -> Outcome<ValueId> {
        let rank = self.rank(value);
        let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        self.transpose(value, &order)
    }

    /// A value of type i64 with these dimensions; each element is its index along an axis.
    pub fn indices(&mut self, dims: &[usize], axis: usize) -> Outcome<ValueId> {
        let zeros = self.filled(Dtype::I64, dims, 0.0)?;
        self.map(Expr::arg(0) + Expr::Axis(axis), &[zeros])
    }
}

/// An axis; a negative one counts from the end.
pub(in crate::onnx) fn axis_of(axis: i64, rank: usize) -> Outcome<usize> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| format!("axis {axis}: expected -{rank} to {}", rank as i64 - 1))
}

/// Axes in ascending order; negative ones count from the end.
pub(in crate::onnx) fn axes_of(axes: &[i64], rank: usize) -> Outcome<Vec<usize>> {
    let mut all = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Outcome<Vec<_>>>()?;
    all.sort_unstable();
    match all.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(format!("axes {axes:?}: expected each once")),
        false => Ok(all),
    }
}

/// A size that a tensor or an attribute gives as i64.
pub(in crate::onnx) fn size_of_dim(size: i64, what: &str) -> Outcome<usize> {
    let found = usize::try_from(size).map_err(|_| format!("{what}: expected 0 or more, found {size}"))?;
    match found <= MOST {
        true => Ok(found),
        false => Err(format!("{what}: {size} is larger than {MOST}")),
    }
}

/// The largest size: no larger one fits into memory, and products of two do not overflow.
const MOST: usize = 1 << 31;

/// The product of sizes.
pub(in crate::onnx) fn product(sizes: &[usize]) -> Outcome<usize> {
    let product = sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    product.ok_or_else(|| format!("the product of {sizes:?} overflows"))
}
