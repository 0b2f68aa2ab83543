//! Operations that read elements at indices in another operand.

use super::Operation;
use crate::graph::Binary;
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, TermId};
use crate::tensor::Dtype;

impl Operation<'_> {
    pub fn gather(&self, axis: usize) -> Loop {
        let (x, at) = (self.operand(0), self.operand(1));
        let mut b = self.each();
        let point = b.point();
        let (before, rest) = point.split_at(axis);
        let (index, behind) = rest.split_at(at.rank());
        let index = place(&mut b, index, x.dims[axis]);
        let result = b.load(0, &[before, &[index], behind].concat());
        b.finish(result)
    }

    pub fn gather_elements(&self, axis: usize) -> Loop {
        let mut b = self.each();
        let mut point = b.point();
        point[axis] = place(&mut b, &point, self.operand(0).dims[axis]);
        let result = b.load(0, &point);
        b.finish(result)
    }

    pub fn gather_nd(&self, batch: usize) -> Loop {
        let (x, at) = (self.operand(0), self.operand(1));
        let mut b = self.each();
        let point = b.point();
        let (rows, behind) = point.split_at(at.rank() - 1);
        let len = at.dims[at.rank() - 1];
        let mut index = rows[..batch].to_vec();
        for column in 0..len {
            let number = b.index(column as i64);
            index.push(place(&mut b, &[rows, &[number]].concat(), x.dims[batch + column]));
        }
        let result = b.load(0, &[&index, behind].concat());
        b.finish(result)
    }
}

/// The index in the second operand at a point, for an axis of this size. A negative one counts from the end; the result
/// is within the axis.
fn place(b: &mut LoopBuilder, point: &[TermId], size: usize) -> TermId {
    let index = b.load(1, point);
    let index = b.cast(Dtype::I64, index);
    let zero = b.index(0);
    let negative = b.binary(Binary::Less, index, zero);
    let from_end = b.shifted(index, size as i64);
    let index = b.select(negative, from_end, index);
    b.clamped(index, size)
}
