//! Operations that move elements to places that do not depend on values.

use super::{Operation, zero};
use crate::graph::{Binary, Pad, PadMode, Slice, Unary};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, TermId};

impl Operation<'_> {
    pub fn reshape(&self) -> Loop {
        let mut b = self.over(&[self.to.elems()]);
        let index = b.axis(0);
        let result = b.load_flat(0, index, None);
        b.finish(result)
    }

    pub fn transpose(&self, order: &[usize]) -> Loop {
        let mut b = self.each();
        let mut at = b.point();
        for (axis, &of) in order.iter().enumerate() {
            at[of] = b.axis(axis);
        }
        let result = b.load(0, &at);
        b.finish(result)
    }

    pub fn slice(&self, of: &Slice) -> Loop {
        let mut b = self.each();
        let at: Vec<TermId> = (0..self.to.rank())
            .map(|axis| {
                let index = b.axis(axis);
                let steps = b.scaled(index, of.step[axis] as i64);
                b.shifted(steps, of.start[axis] as i64)
            })
            .collect();
        let result = b.load(0, &at);
        b.finish(result)
    }

    pub fn broadcast(&self) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let result = self.broadcast_load(&mut b, 0, &point);
        b.finish(result)
    }

    pub fn pad(&self, of: &Pad) -> Loop {
        let mut b = self.each();
        let dims = &self.operand(0).dims;
        let (mut at, mut inside) = (Vec::new(), Vec::new());
        for (axis, &size) in dims.iter().enumerate() {
            let index = b.axis(axis);
            let index = b.shifted(index, -(of.before[axis] as i64));
            inside.push(b.within(index, size));
            at.push(if inside[axis].is_some() { padded(&mut b, of.mode, index, size) } else { index });
        }
        let result = match of.mode {
            PadMode::Constant(number) => {
                let otherwise = b.number(self.to.dtype, number);
                let inside = b.all(inside);
                b.load_if(0, &at, inside, otherwise)
            }
            PadMode::Reflect | PadMode::Edge | PadMode::Wrap => b.load(0, &at),
        };
        b.finish(result)
    }

    pub fn concat(&self, axis: usize) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let mut behind = self.to.dims[axis];
        let mut result = b.number(self.to.dtype, zero(self.to.dtype));
        for operand in (0..self.inputs.len()).rev() {
            let size = self.operand(operand).dims[axis];
            behind -= size;
            let mut at = point.clone();
            at[axis] = b.shifted(point[axis], -(behind as i64));
            let inside = b.within(at[axis], size);
            result = b.load_if(operand, &at, inside, result);
        }
        b.finish(result)
    }
}

/// The index of the element that replaces one at an index outside of an axis of this size.
fn padded(b: &mut LoopBuilder, mode: PadMode, index: TermId, size: usize) -> TermId {
    let last = b.index(size as i64 - 1);
    match mode {
        PadMode::Constant(_) => index,
        PadMode::Reflect => {
            let index = b.unary(Unary::Abs, index);
            let beyond = b.binary(Binary::Sub, last, index);
            let beyond = b.unary(Unary::Abs, beyond);
            b.binary(Binary::Sub, last, beyond)
        }
        PadMode::Edge => b.clamped(index, size),
        PadMode::Wrap => {
            let size = b.index(size as i64);
            b.binary(Binary::Mod, index, size)
        }
    }
}
