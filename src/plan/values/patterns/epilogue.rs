//! The epilogue of a product in its kernel: biases, an activation, factors, a residual.

use super::expr::{args, size};
use crate::graph::{Binary, Expr, Graph, Number, Op, Tensor, Unary, ValueId, ValueType};
use crate::loops;
use crate::plan::{Gate, ProductActivation};
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
        let (of_one, bias) = self.biased(expr)?;
        Some(Epilogue { bias, activation: activation(&of_one)?, scale, residual })
    }

    /// The expression as one of the product's value with its bias, which it has if the expression adds one; `None` if the
    /// expression reads anything else.
    pub fn biased(&self, expr: &Expr) -> Option<(Expr, Option<ValueId>)> {
        let bias = match args(expr)[..] {
            [0] => None,
            [0, other] => Some(other).filter(|&other| self.is_vector(self.others[other - 1])),
            _ => return None,
        };
        let of_one = match bias {
            None => expr.clone(),
            Some(number) => with_bias(expr, number),
        };
        (args(&of_one) == [0]).then(|| (of_one, bias.map(|number| self.others[number - 1])))
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

/// The activation that an expression of one number computes, found by its values at samples: the expression has no steps
/// but those of comparisons, and samples lie on both sides of each of its constants. The values of any two activations
/// differ by 1e-4 or more at some samples; evaluated in f32, they are exact to 1e-6 of the number.
fn activation(expr: &Expr) -> Option<ProductActivation> {
    if *expr == Expr::Arg(0) {
        return Some(ProductActivation::None);
    }
    let samples = Samples::of(expr)?;
    ProductActivation::ALL.into_iter().skip(1).find(|activation| samples.are_of(|x| activation.of(x)))
}

/// The gate that an expression of one number computes, found in the same way.
pub(super) fn gate(expr: &Expr) -> Option<Gate> {
    let samples = Samples::of(expr)?;
    let ramp = |x: f32| {
        let slope = (samples.at(x)? - samples.at(-x)?) / (2.0 * x);
        Some(Gate::HardSigmoid { slope, offset: samples.at(0.0)? })
    };
    // The farther apart the samples, the more exact is the slope; but none may be beyond a bound.
    let all = [Some(Gate::Sigmoid), ramp(2.0), ramp(0.5)];
    all.into_iter().flatten().find(|gate| samples.are_of(|x| gate.of(x)))
}

/// The values of an expression of one number at samples.
struct Samples {
    x: Vec<f32>,
    y: Tensor,
}

impl Samples {
    /// The values of an expression; `None` for one that has steps, which may lie between samples.
    fn of(expr: &Expr) -> Option<Self> {
        if has_steps(expr) {
            return None;
        }
        let small = (-SAMPLES..=SAMPLES).map(|i| i as f32 / 8.0);
        let magnitudes = (-20..=20).flat_map(|power| [1.0, 1.37].map(|of| of * 2_f32.powi(power)));
        let large = [30.0, 60.0, 1e3, 65_504.0, 1e6, 1e30];
        let around = constants(expr).into_iter().flat_map(|at| BESIDE.map(|beside| at * beside));
        let either = magnitudes.chain(large).chain(around).flat_map(|x| [x, -x]);
        let x: Vec<f32> = small.chain(either).filter(|x| x.is_finite()).collect();
        let of = ValueType::new(Dtype::F32, &[x.len()]);
        let operand = Tensor::of(&of.dims, &x);
        let y = loops::compute(&Op::Map(expr.clone()), &[Some(&operand)], &[of]).ok()?.remove(0);
        Some(Self { x, y })
    }

    /// The value at a sample.
    fn at(&self, x: f32) -> Option<f32> {
        self.x.iter().position(|&sample| sample == x).map(|index| self.y.elems::<f32>()[index])
    }

    /// Whether the values are those of a function.
    fn are_of(&self, function: impl Fn(f64) -> f64) -> bool {
        let near =
            |(&x, &y): (&f32, &f32)| (function(x.into()) - f64::from(y)).abs() <= 4e-6 * f64::from(1.0 + x.abs());
        self.x.iter().zip(self.y.elems::<f32>()).all(near)
    }
}

/// The number of samples on either side of 0, eight for each unit.
const SAMPLES: i32 = 96;
/// Factors of a number that lead to it and to its neighbourhood.
const BESIDE: [f32; 3] = [1.0 - 1.0 / 256.0, 1.0, 1.0 + 1.0 / 256.0];
/// The number of constants whose products and quotients are samples too.
const MOST_CONSTANTS: usize = 16;

/// Whether an expression rounds, counts, or does anything else that leaves a number as it is at most samples.
pub(super) fn has_steps(expr: &Expr) -> bool {
    match expr {
        Expr::Arg(_) | Expr::Axis(_) | Expr::Const(..) => false,
        Expr::Cast(dtype, of) => !dtype.is_float() || has_steps(of),
        Expr::Unary(Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round, _) => true,
        Expr::Unary(_, of) => has_steps(of),
        Expr::Binary(Binary::Rem | Binary::Mod | Binary::Equal, _) => true,
        Expr::Binary(_, of) => of.iter().any(has_steps),
        Expr::Select(of) => of.iter().any(has_steps),
    }
}

/// The numbers in an expression, and their products and quotients: where it may compare its operand with something.
fn constants(expr: &Expr) -> Vec<f32> {
    fn add(expr: &Expr, to: &mut Vec<f32>) {
        match expr {
            Expr::Const(_, Number::Float(number)) => to.push(*number as f32),
            Expr::Const(_, Number::Int(_)) | Expr::Arg(_) | Expr::Axis(_) => {}
            Expr::Cast(_, of) | Expr::Unary(_, of) => add(of, to),
            Expr::Binary(_, of) => of.iter().for_each(|of| add(of, to)),
            Expr::Select(of) => of.iter().for_each(|of| add(of, to)),
        }
    }
    let mut all = Vec::new();
    add(expr, &mut all);
    let few = all[..all.len().min(MOST_CONSTANTS)].to_vec();
    all.extend(few.iter().flat_map(|a| few.iter().flat_map(move |b| [a * b, a / b])));
    all
}
