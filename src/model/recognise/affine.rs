//! Expressions that are an affine function of one operand.

use crate::graph::{Binary, Expr, Unary};
use crate::tensor::Dtype;

/// The slope and the offset of an expression that is slope * x + offset, where x is operand `at` and the other operands
/// are constants. Both are expressions of these constants in f64. `None` for any other expression.
pub(super) fn affine(expr: &Expr, at: usize) -> Option<(Expr, Expr)> {
    let number = |value| Expr::float(Dtype::F64, value);
    if !reads(expr, at) {
        return Some((number(0.0), wide(expr)?));
    }
    match expr {
        Expr::Arg(_) => Some((number(1.0), number(0.0))),
        Expr::Cast(dtype, of) if dtype.is_float() => affine(of, at),
        Expr::Unary(Unary::Neg, of) => affine(of, at).map(|(slope, offset)| (-slope, -offset)),
        Expr::Binary(op @ (Binary::Add | Binary::Sub), of) => {
            let ((a, b), (c, d)) = (affine(&of[0], at)?, affine(&of[1], at)?);
            Some((a.binary(*op, c), b.binary(*op, d)))
        }
        Expr::Binary(Binary::Mul, of) => {
            let (varies, factor) = if reads(&of[0], at) { (&of[0], &of[1]) } else { (&of[1], &of[0]) };
            let factor = wide(factor).filter(|_| !reads(factor, at))?;
            affine(varies, at).map(|(slope, offset)| (slope * factor.clone(), offset * factor))
        }
        Expr::Binary(Binary::Div, of) if !reads(&of[1], at) => {
            let divisor = wide(&of[1])?;
            affine(&of[0], at).map(|(slope, offset)| (slope / divisor.clone(), offset / divisor))
        }
        _ => None,
    }
}

fn reads(expr: &Expr, at: usize) -> bool {
    match expr {
        Expr::Arg(number) => *number == at,
        Expr::Axis(_) | Expr::Const(..) => false,
        Expr::Cast(_, of) | Expr::Unary(_, of) => reads(of, at),
        Expr::Binary(_, of) => of.iter().any(|of| reads(of, at)),
        Expr::Select(of) => of.iter().any(|of| reads(of, at)),
    }
}

/// An expression of floats, computed in f64; `None` if it depends on integers or places.
fn wide(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Arg(number) => Some(Expr::arg(*number).cast(Dtype::F64)),
        Expr::Const(dtype, number) if dtype.is_float() => Some(Expr::Const(Dtype::F64, *number)),
        Expr::Cast(dtype, of) if dtype.is_float() => wide(of),
        Expr::Unary(op, of) => Some(wide(of)?.unary(*op)),
        Expr::Binary(op, of) => Some(wide(&of[0])?.binary(*op, wide(&of[1])?)),
        Expr::Axis(_) | Expr::Const(..) | Expr::Cast(..) | Expr::Select(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_norm_is_affine_and_a_square_is_not() {
        let [x, mean, var, gamma, beta] = [0, 1, 2, 3, 4].map(Expr::arg);
        let spread = (var + Expr::float(Dtype::F32, 1e-5)).unary(Unary::Sqrt);
        let norm = (x - mean) / spread * gamma + beta;
        let (slope, offset) = affine(&norm, 0).unwrap();
        assert!(!reads(&slope, 0) && !reads(&offset, 0));
        assert_eq!(slope.dtype(&[Dtype::F32; 5]), Ok(Dtype::F64));
        assert_eq!(offset.dtype(&[Dtype::F32; 5]), Ok(Dtype::F64));
        assert_eq!(affine(&(Expr::arg(0) * Expr::arg(0)), 0), None);
        assert_eq!(affine(&(Expr::arg(1) / Expr::arg(0)), 0), None);
    }
}
