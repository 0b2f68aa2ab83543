//! The builder of loops.

use std::collections::HashMap;

use super::affine::{Affine, bounds, term_as_sum};
use super::ir::{Guard, Loop, Monoid, Term, TermId, TermKind};
use super::scalar;
use crate::graph::{Binary, Number, Unary, ValueType};
use crate::tensor::Dtype;

/// Builds a [`Loop`] term by term. Equal terms are added only once, and arithmetic on indices is simplified. Arithmetic
/// on f16 and bf16 is in f32 and rounded after each operation; reductions of them are in f32 and rounded at the end.
///
/// ```
/// use trefoil::{Dtype, graph::ValueType, loops::{LoopBuilder, Monoid}};
/// let x = ValueType::new(Dtype::F16, &[8, 16]);
/// let mut b = LoopBuilder::new(&[x], &[8]); // the sums of its rows
/// let row = b.axis(0);
/// let sum = b.reduce(Monoid::Sum, &[16], |b, at| b.load(0, &[row, at[0]]));
/// let of = b.finish(sum);
/// assert_eq!((of.dtype(), of.elems()), (Dtype::F16, 8));
/// ```
#[derive(Debug)]
pub struct LoopBuilder {
    of: Loop,
    known: HashMap<Term, TermId>,
    /// Each term as a sum of multiples of axes; `None` for a term that is none.
    sums: Vec<Option<Affine>>,
}

impl LoopBuilder {
    /// A loop over these extents that reads these operands.
    pub fn new(operands: &[ValueType], extents: &[usize]) -> Self {
        let (operands, axes, rank) = (operands.to_vec(), extents.to_vec(), extents.len());
        let of = Loop { operands, axes, rank, terms: Vec::new(), result: TermId(0) };
        Self { of, known: HashMap::new(), sums: Vec::new() }
    }

    /// The loop that writes this term. Terms that the result does not need are removed.
    pub fn finish(mut self, result: TermId) -> Loop {
        let terms = std::mem::take(&mut self.of.terms);
        let mut needed = vec![false; terms.len()];
        needed[result.0] = true;
        for (id, term) in terms.iter().enumerate().rev() {
            if needed[id] {
                term.reads().iter().for_each(|read| needed[read.0] = true);
            }
        }
        let mut numbers = vec![TermId(0); terms.len()];
        for (id, term) in terms.into_iter().enumerate().filter(|(id, _)| needed[*id]) {
            numbers[id] = TermId(self.of.terms.len());
            self.of.terms.push(term.with_reads(|read| numbers[read.0]));
        }
        self.of.result = numbers[result.0];
        self.of
    }

    /// The index along an axis.
    pub fn axis(&mut self, axis: usize) -> TermId {
        match self.of.axes[axis] {
            1 => self.index(0),
            _ => self.term(Dtype::I64, TermKind::Axis(axis)),
        }
    }

    /// The indices along all axes of the result.
    pub fn point(&mut self) -> Vec<TermId> {
        (0..self.of.rank).map(|axis| self.axis(axis)).collect()
    }

    /// A constant.
    pub fn number(&mut self, dtype: Dtype, number: Number) -> TermId {
        self.term(dtype, TermKind::Const(scalar::bits(dtype, number)))
    }

    /// A constant of a floating-point type.
    pub fn float(&mut self, dtype: Dtype, value: f64) -> TermId {
        self.number(dtype, Number::Float(value))
    }

    /// An integer constant of type i64.
    pub fn index(&mut self, value: i64) -> TermId {
        self.term(Dtype::I64, TermKind::Const(value as u64))
    }

    /// The element of an operand at these indices, one for each of its axes.
    pub fn load(&mut self, operand: usize, at: &[TermId]) -> TermId {
        let index = self.flat(operand, at);
        self.load_flat(operand, index, None)
    }

    /// The element of an operand at these indices if a condition is true, else another term. Without a condition it is
    /// always loaded.
    pub fn load_if(&mut self, operand: usize, at: &[TermId], condition: Option<TermId>, otherwise: TermId) -> TermId {
        let index = self.flat(operand, at);
        self.load_flat(operand, index, condition.map(|condition| Guard { condition, otherwise }))
    }

    /// The element of an operand at an index in row-major order.
    pub fn load_flat(&mut self, operand: usize, index: TermId, guard: Option<Guard>) -> TermId {
        let dtype = self.of.operands[operand].dtype;
        let index = self.sums[index.0].clone().map_or(index, |sum| self.sum(&sum)); // equal ones are one term
        self.term(dtype, TermKind::Load { operand, index, guard })
    }

    /// The term for a sum of multiples of axes.
    pub(super) fn sum(&mut self, of: &Affine) -> TermId {
        let base = self.index(of.base);
        of.strides.iter().fold(base, |sum, (&axis, &by)| {
            let index = self.axis(axis);
            let part = self.scaled(index, by);
            self.binary(Binary::Add, sum, part)
        })
    }

    /// A term as a sum of multiples of axes; `None` if it is none.
    pub(super) fn as_sum(&self, of: TermId) -> Option<&Affine> {
        self.sums[of.0].as_ref()
    }

    /// The first and the last index along each axis for which a condition can hold, as far as it bounds them.
    pub(super) fn bounds(&self, condition: Option<TermId>) -> Vec<[i64; 2]> {
        bounds(&self.of.terms, &self.sums, &self.of.axes, condition)
    }

    /// The extents of all axes that there are so far.
    pub(super) fn extents(&self) -> &[usize] {
        &self.of.axes
    }

    /// The row-major index of the element of an operand at these indices.
    fn flat(&mut self, operand: usize, at: &[TermId]) -> TermId {
        let dims = self.of.operands[operand].dims.clone();
        debug_assert_eq!(dims.len(), at.len());
        at.iter().zip(dims).fold(self.index(0), |flat, (&index, dim)| {
            let outer = self.scaled(flat, dim as i64);
            self.binary(Binary::Add, outer, index)
        })
    }

    /// An index times a constant.
    pub fn scaled(&mut self, index: TermId, by: i64) -> TermId {
        let by = self.index(by);
        self.binary(Binary::Mul, index, by)
    }

    /// An index plus a constant.
    pub fn shifted(&mut self, index: TermId, by: i64) -> TermId {
        let by = self.index(by);
        self.binary(Binary::Add, index, by)
    }

    /// The number converted to another type.
    pub fn cast(&mut self, dtype: Dtype, of: TermId) -> TermId {
        if self.dtype(of) == dtype { of } else { self.term(dtype, TermKind::Cast(of)) }
    }

    /// A function of one number.
    ///
    /// # Panics
    /// If the function does not take the type.
    pub fn unary(&mut self, op: Unary, of: TermId) -> TermId {
        let from = self.dtype(of);
        let dtype = op.dtype(from).expect("a function of a type that it takes");
        let of = self.widened(of);
        let inner = if dtype == from { self.dtype(of) } else { dtype };
        let result = self.term(inner, TermKind::Unary(op, of));
        self.cast(dtype, result)
    }

    /// A function of two numbers of one type.
    ///
    /// # Panics
    /// If the function does not take the type, or the numbers have different types.
    pub fn binary(&mut self, op: Binary, a: TermId, b: TermId) -> TermId {
        let from = self.dtype(a);
        assert_eq!(from, self.dtype(b), "both sides of {op:?}");
        if let Some(simple) = self.simplified(op, a, b) {
            return simple;
        }
        let dtype = op.dtype(from).expect("a function of a type that it takes");
        let [a, b] = [a, b].map(|of| self.widened(of));
        let inner = if dtype == from { self.dtype(a) } else { dtype };
        let result = self.term(inner, TermKind::Binary(op, [a, b]));
        self.cast(dtype, result)
    }

    /// `then` if the condition is true, else `otherwise`.
    pub fn select(&mut self, condition: TermId, then: TermId, otherwise: TermId) -> TermId {
        let dtype = self.dtype(then);
        if then == otherwise { then } else { self.term(dtype, TermKind::Select([condition, then, otherwise])) }
    }

    /// The values of `body`, combined over new axes of these extents; the body gets the indices along these axes.
    pub fn reduce(
        &mut self,
        op: Monoid,
        extents: &[usize],
        body: impl FnOnce(&mut Self, &[TermId]) -> TermId,
    ) -> TermId {
        let (axes, at) = self.run(extents);
        let body = body(self, &at);
        let (dtype, body) = (self.dtype(body), self.widened(body));
        let inner = self.dtype(body);
        let result = self.term(inner, TermKind::Reduce { op, axes, body: vec![body] });
        self.cast(dtype, result)
    }

    /// The index that `body` gives together with the largest or smallest of its values, over new axes of these extents.
    pub fn arg_reduce(
        &mut self,
        [largest, last]: [bool; 2],
        extents: &[usize],
        body: impl FnOnce(&mut Self, &[TermId]) -> [TermId; 2],
    ) -> TermId {
        let (axes, at) = self.run(extents);
        let [value, index] = body(self, &at);
        let value = self.widened(value);
        let op = Monoid::Arg { largest, last };
        self.term(Dtype::I64, TermKind::Reduce { op, axes, body: vec![value, index] })
    }

    /// The condition 0 <= index < size; `None` if it is always true.
    pub fn within(&mut self, index: TermId, size: usize) -> Option<TermId> {
        if self.range(index).is_some_and(|[low, high]| low >= 0 && high < size as i128) {
            return None;
        }
        let unsigned = self.cast(Dtype::U64, index); // negative ones are large
        let size = self.number(Dtype::U64, Number::Int(size as i128));
        Some(self.binary(Binary::Less, unsigned, size))
    }

    /// The index of an axis of this size that is nearest to `index`.
    pub fn clamped(&mut self, index: TermId, size: usize) -> TermId {
        let [first, last] = [0, size as i64 - 1].map(|bound| self.index(bound));
        let index = self.binary(Binary::Max, index, first);
        self.binary(Binary::Min, index, last)
    }

    /// The condition that all of these hold; `None` if all of them are always true.
    pub fn all(&mut self, conditions: impl IntoIterator<Item = Option<TermId>>) -> Option<TermId> {
        conditions.into_iter().flatten().reduce(|a, b| self.binary(Binary::And, a, b))
    }

    /// The type of a term.
    pub fn dtype(&self, of: TermId) -> Dtype {
        self.of.term(of).dtype
    }

    /// Adds axes; returns their numbers and the indices along them.
    pub(super) fn run(&mut self, extents: &[usize]) -> (Vec<usize>, Vec<TermId>) {
        let axes: Vec<usize> = (self.of.axes.len()..).take(extents.len()).collect();
        self.of.axes.extend(extents);
        let at = axes.iter().map(|&axis| self.axis(axis)).collect();
        (axes, at)
    }

    /// The number converted to f32 if it is f16 or bf16.
    fn widened(&mut self, of: TermId) -> TermId {
        match self.dtype(of) {
            Dtype::F16 | Dtype::Bf16 => self.cast(Dtype::F32, of),
            _ => of,
        }
    }

    pub(super) fn term(&mut self, dtype: Dtype, kind: TermKind) -> TermId {
        let term = Term { dtype, kind };
        if let Some(&known) = self.known.get(&term) {
            return known;
        }
        let id = TermId(self.of.terms.len());
        self.sums.push(term_as_sum(&term, &self.sums));
        self.of.terms.push(term.clone());
        self.known.insert(term, id);
        id
    }

    /// The value of an index that is a constant; `None` for any other index.
    fn constant(&self, of: TermId) -> Option<i64> {
        match self.of.term(of) {
            Term { dtype: Dtype::I64, kind: TermKind::Const(bits) } => Some(*bits as i64),
            _ => None,
        }
    }

    /// Simplifies arithmetic on an index with constants; `None` if there is nothing to simplify.
    fn simplified(&mut self, op: Binary, a: TermId, b: TermId) -> Option<TermId> {
        match (op, self.constant(a), self.constant(b)) {
            (Binary::Add, Some(x), Some(y)) => Some(self.index(x.wrapping_add(y))),
            (Binary::Mul, Some(x), Some(y)) => Some(self.index(x.wrapping_mul(y))),
            (Binary::Add, Some(0), _) | (Binary::Mul, Some(1), _) => Some(b),
            (Binary::Add | Binary::Sub, _, Some(0)) | (Binary::Mul | Binary::Div, _, Some(1)) => Some(a),
            (Binary::Mul, Some(0), _) | (Binary::Mul, _, Some(0)) | (Binary::Rem | Binary::Mod, _, Some(1)) => {
                Some(self.index(0))
            }
            _ => None,
        }
    }

    /// The smallest and the largest value that an index can have; `None` if they are not known.
    fn range(&self, of: TermId) -> Option<[i128; 2]> {
        match &self.of.term(of).kind {
            TermKind::Axis(axis) => Some([0, self.of.axes[*axis] as i128 - 1]),
            TermKind::Const(_) => self.constant(of).map(|x| [i128::from(x); 2]),
            TermKind::Binary(op, [a, b]) => {
                let ([a, b], [c, d]) = (self.range(*a)?, self.range(*b)?);
                match op {
                    Binary::Add => Some([a.checked_add(c)?, b.checked_add(d)?]),
                    Binary::Sub => Some([a.checked_sub(d)?, b.checked_sub(c)?]),
                    Binary::Mul => {
                        let products = [a.checked_mul(c)?, a.checked_mul(d)?, b.checked_mul(c)?, b.checked_mul(d)?];
                        Some([*products.iter().min()?, *products.iter().max()?])
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}
