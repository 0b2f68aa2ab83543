//! The epilogue of a product in its kernel: biases, an activation, factors, a residual.

use super::expr::{args, size};
use crate::graph::{Binary, Expr, Graph, Op, Tensor, ValueId, ValueType};
use crate::loops;
use crate::plan::ProductActivation;
use crate::tensor::Dtype;

/// The operations that a kernel applies to the values of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Epilogue {
    pub bias: Option<ValueId>,
    pub activation: ProductActivation,
    pub scale: Option<ValueId>,
    pub residual: Option<ValueId>,
}

impl Epilogue {
    /// Whether only kernels for products can apply it. Kernels for images apply bounds and residuals only.
    pub fn is_of_products(&self) -> bool {
        self.scale.is_some() || !matches!(self.activation, ProductActivation::None | ProductActivation::Relu)
    }
}

/// The size of an expression above which it is not examined.
pub(super) const MOST_TERMS: usize = 256;

/// The expression that follows a product: `Arg(0)` is the product, the other operands are `others`.
pub(super) struct Following<'a> {
    pub graph: &'a Graph,
    pub others: &'a [ValueId],
    /// The number of elements of the product, and of a row.
    pub elems: usize,
    pub columns: usize,
}

impl Following<'_> {
    /// The expression as an epilogue; `None` if it is none.
    pub fn epilogue(&self, expr: &Expr) -> Option<Epilogue> {
        if size(expr) > MOST_TERMS || expr.axes() > 0 {
            return None;
        }
        let (expr, residual) = split(expr, Binary::Add, |id| self.is_whole(id) && !self.is_vector(id), self.others);
        let (expr, scale) = split(expr, Binary::Mul, |id| self.is_vector(id), self.others);
        let bias = match args(expr)[..] {
            [0] => None,
            [0, other] => Some(other).filter(|&other| self.is_vector(self.others[other - 1])),
            _ => return None,
        };
        let of_one = match bias {
            None => expr.clone(),
            Some(number) => with_bias(expr, number),
        };
        match args(&of_one)[..] {
            [0] => Some(Epilogue {
                bias: bias.map(|number| self.others[number - 1]),
                activation: activation(&of_one)?,
                scale,
                residual,
            }),
            _ => None,
        }
    }

    /// Whether a value is a constant with a number for each column.
    fn is_vector(&self, id: ValueId) -> bool {
        let of = self.graph.value(id);
        let is_row = of.elems() == self.columns && of.dims.last() == Some(&self.columns);
        is_row && of.dtype == Dtype::F32 && self.graph.constant(id).is_some()
    }

    /// Whether a value has the same number of elements and columns as the product.
    fn is_whole(&self, id: ValueId) -> bool {
        let of = self.graph.value(id);
        of.elems() == self.elems && of.dims.last() == Some(&self.columns) && of.dtype == Dtype::F32
    }
}

/// The side of a sum or product that reads the product's value, and the value of the other side, if `fits` holds for
/// it. The whole expression if `fits` holds for neither side.
fn split<'e>(
    expr: &'e Expr,
    op: Binary,
    fits: impl Fn(ValueId) -> bool,
    others: &[ValueId],
) -> (&'e Expr, Option<ValueId>) {
    let Expr::Binary(found, sides) = expr else { return (expr, None) };
    for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        if let Expr::Arg(number @ 1..) = *other
            && *found == op
            && fits(others[number - 1])
            && args(side).contains(&0)
            && !args(side).contains(&number)
        {
            return (side, Some(others[number - 1]));
        }
    }
    (expr, None)
}

/// The expression in which the sum of the product and operand `number` is replaced by the product.
fn with_bias(expr: &Expr, number: usize) -> Expr {
    let next = |of: &Expr| with_bias(of, number);
    let is_sum = |a: &Expr, b: &Expr| (a, b) == (&Expr::Arg(0), &Expr::Arg(number));
    match expr {
        Expr::Binary(Binary::Add, of) if is_sum(&of[0], &of[1]) || is_sum(&of[1], &of[0]) => Expr::Arg(0),
        Expr::Arg(_) | Expr::Axis(_) | Expr::Const(..) => expr.clone(),
        Expr::Cast(dtype, of) => next(of).cast(*dtype),
        Expr::Unary(op, of) => next(of).unary(*op),
        Expr::Binary(op, of) => next(&of[0]).binary(*op, next(&of[1])),
        Expr::Select(of) => next(&of[0]).select(next(&of[1]), next(&of[2])),
    }
}

/// The activation that an expression of one number computes, found by its values at samples. The values of any two
/// activations differ by 1e-4 or more at some samples; evaluated in f32, they are exact to 1e-6 of the number.
fn activation(expr: &Expr) -> Option<ProductActivation> {
    if *expr == Expr::Arg(0) {
        return Some(ProductActivation::None);
    }
    let samples: Vec<f32> =
        (-SAMPLES..=SAMPLES).map(|i| i as f32 / 8.0).chain([-60.0, -30.0, 30.0, 60.0, 1e3]).collect();
    let of = ValueType::new(Dtype::F32, &[samples.len()]);
    let x = Tensor::of(&of.dims, &samples);
    let y = loops::compute(&Op::Map(expr.clone()), &[Some(&x)], &[of]).ok()?.remove(0);
    let is_near = |activation: ProductActivation| {
        let near =
            |(&x, &y): (&f32, &f32)| (activation.of(x.into()) - f64::from(y)).abs() <= 4e-6 * f64::from(1.0 + x.abs());
        samples.iter().zip(y.elems::<f32>()).all(near)
    };
    ProductActivation::ALL.into_iter().skip(1).find(|&activation| is_near(activation))
}

/// The number of samples on either side of 0, eight for each unit.
const SAMPLES: i32 = 96;
