//! Operations that compute each element from one element of each operand.

use super::{Operation, wide};
use crate::graph::{Binary, Expr, Unary};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, TermId};
use crate::tensor::Dtype;

impl Operation<'_> {
    pub fn map(&self, expr: &Expr) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let args: Vec<TermId> =
            (0..self.inputs.len()).map(|number| self.broadcast_load(&mut b, number, &point)).collect();
        let result = expression(&mut b, expr, &args, &point);
        b.finish(result)
    }

    /// round(x / scale) + zero point, saturated. Sums that f32 cannot represent are in f64.
    pub fn quantize(&self, dtype: Dtype, axis: Option<usize>) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let inner = wide(&[self.operand(0).dtype, self.operand(1).dtype]);
        let x = b.load(0, &point);
        let scale = self.scaling(&mut b, 1, axis, &point);
        let [x, scale] = [x, scale].map(|term| b.cast(inner, term));
        let quotient = b.binary(Binary::Div, x, scale);
        let rounded = b.unary(Unary::Round, quotient);
        let sum = match self.input(2) {
            None => rounded,
            Some(_) => {
                let inner = if dtype.bytes() > 2 { Dtype::F64 } else { inner };
                let zero = self.scaling(&mut b, 2, axis, &point);
                let [rounded, zero] = [rounded, zero].map(|term| b.cast(inner, term));
                b.binary(Binary::Add, rounded, zero)
            }
        };
        let result = b.cast(dtype, sum);
        b.finish(result)
    }

    /// (x - zero point) x scale. The difference is computed in integers.
    pub fn dequantize(&self, axis: Option<usize>) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let x = b.load(0, &point);
        let difference = match self.input(2) {
            None => x,
            Some(zero) => {
                let whole = if zero.dtype.bytes() > 2 { Dtype::I64 } else { Dtype::I32 };
                let zero = self.scaling(&mut b, 2, axis, &point);
                let [x, zero] = [x, zero].map(|term| b.cast(whole, term));
                b.binary(Binary::Sub, x, zero)
            }
        };
        let inner = wide(&[self.to.dtype]);
        let scale = self.scaling(&mut b, 1, axis, &point);
        let [difference, scale] = [difference, scale].map(|term| b.cast(inner, term));
        let product = b.binary(Binary::Mul, difference, scale);
        let result = b.cast(self.to.dtype, product);
        b.finish(result)
    }

    /// The scale or zero point, operand `number`, at a point.
    fn scaling(&self, b: &mut LoopBuilder, number: usize, axis: Option<usize>, point: &[TermId]) -> TermId {
        let at: Vec<TermId> = axis.map(|axis| point[axis]).into_iter().collect();
        b.load(number, &at)
    }
}

fn expression(b: &mut LoopBuilder, expr: &Expr, args: &[TermId], point: &[TermId]) -> TermId {
    let mut part = |of: &Expr| expression(b, of, args, point);
    match expr {
        Expr::Arg(number) => args[*number],
        Expr::Axis(axis) => point[*axis],
        Expr::Const(dtype, number) => b.number(*dtype, *number),
        Expr::Cast(dtype, of) => {
            let of = part(of);
            b.cast(*dtype, of)
        }
        Expr::Unary(op, of) => {
            let of = part(of);
            b.unary(*op, of)
        }
        Expr::Binary(op, of) => {
            let [x, y] = [part(&of[0]), part(&of[1])];
            b.binary(*op, x, y)
        }
        Expr::Select(of) => {
            let [condition, then, otherwise] = [part(&of[0]), part(&of[1]), part(&of[2])];
            b.select(condition, then, otherwise)
        }
    }
}
