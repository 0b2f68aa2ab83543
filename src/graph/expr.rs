//! Expressions of one element: what a [`Map`](super::Op::Map) computes.

use std::ops;

use crate::tensor::Dtype;

/// The expression by which a map computes one element of its result from the elements of its operands at the same
/// place. It is typed: both sides of an operation have one type, and only [`cast`](Self::cast) converts.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, Unary}};
/// let x = || Expr::arg(0);
/// let swish = x() / (Expr::float(Dtype::F32, 1.0) + (-x()).unary(Unary::Exp));
/// assert_eq!(swish.dtype(&[Dtype::F32]), Ok(Dtype::F32));
/// assert!(swish.dtype(&[Dtype::F16]).unwrap_err().contains("f32 and f16"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// The element of the operand of this number.
    Arg(usize),
    /// The index along this axis of the result, i64.
    Axis(usize),
    /// A number of this type.
    Const(Dtype, Number),
    /// Conversion to another type: floats are rounded to the nearest, ties to even; to integers they are truncated, and
    /// saturate, NaN being 0; integers wrap around; `bool` is whether a number is not 0.
    Cast(Dtype, Box<Self>),
    /// A function of one number.
    Unary(Unary, Box<Self>),
    /// A function of two numbers.
    Binary(Binary, Box<[Self; 2]>),
    /// The second expression if the first, a bool, is true, else the third.
    Select(Box<[Self; 3]>),
}

/// A number in an expression. The expression gives its type beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A number of a floating-point type, to which it is rounded.
    Float(f64),
    /// A number of an integer type that holds it, or 0 and 1 for `bool`.
    Int(i128),
}

/// Functions of one number, of the argument's type. Transcendental ones take floats, and compute in f32 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// -x; integers wrap around.
    Neg,
    /// |x|; integers wrap around.
    Abs,
    /// -1, 0 or 1; NaN stays NaN.
    Sign,
    /// The largest integer that is not above x.
    Floor,
    /// The smallest integer that is not below x.
    Ceil,
    /// The nearest integer, ties to even.
    Round,
    /// The square root.
    Sqrt,
    /// e to the power of x.
    Exp,
    /// The natural logarithm.
    Log,
    /// Sine, of radians.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Arc sine.
    Asin,
    /// Arc cosine.
    Acos,
    /// Arc tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// The error function.
    Erf,
    /// The complement of every bit; for a bool the negation.
    Not,
    /// Whether x is NaN: a bool.
    IsNan,
    /// Whether x is infinite: a bool.
    IsInf,
    /// The code of the number of e4m3 nearest to x, which is f32: a byte with the sign, four bits of exponent with a bias
    /// of 7, and three of mantissa. Ties go to the even code; what is beyond 448 becomes 448 with its sign, NaN 0x7f.
    ToE4m3,
    /// The number of e4m3 in f32 whose code is the byte x; 0x7f and 0xff are NaN.
    OfE4m3,
}

/// Functions of two numbers of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b; integers wrap around, as for the next two.
    Add,
    /// a - b.
    Sub,
    /// a x b.
    Mul,
    /// a / b; for integers truncated towards 0, and 0 if b is 0.
    Div,
    /// The remainder of a / b truncated towards 0, with the sign of a; 0 for integers if b is 0.
    Rem,
    /// The remainder of a / b rounded down, with the sign of b; 0 for integers if b is 0.
    Mod,
    /// a to the power of b.
    Pow,
    /// The smaller; NaN if one is.
    Min,
    /// The larger; NaN if one is.
    Max,
    /// Whether a = b: a bool, as for the next two.
    Equal,
    /// Whether a < b.
    Less,
    /// Whether a <= b.
    LessEqual,
    /// Bitwise and; for bools whether both are true.
    And,
    /// Bitwise or; for bools whether at least one is true.
    Or,
    /// Bitwise exclusive or; for bools whether they differ.
    Xor,
    /// a shifted left by b bits, 0 where b is the type's width or more.
    ShiftLeft,
    /// a, unsigned, shifted right by b bits, 0 where b is the type's width or more.
    ShiftRight,
}

impl Expr {
    /// The element of an operand.
    pub const fn arg(number: usize) -> Self {
        Self::Arg(number)
    }

    /// A number of a floating-point type.
    pub const fn float(dtype: Dtype, value: f64) -> Self {
        Self::Const(dtype, Number::Float(value))
    }

    /// A number of an integer type, or of `bool`.
    pub const fn int(dtype: Dtype, value: i128) -> Self {
        Self::Const(dtype, Number::Int(value))
    }

    /// This expression, converted to another type.
    pub fn cast(self, dtype: Dtype) -> Self {
        Self::Cast(dtype, Box::new(self))
    }

    /// A function of this expression.
    pub fn unary(self, op: Unary) -> Self {
        Self::Unary(op, Box::new(self))
    }

    /// A function of this expression and another one.
    pub fn binary(self, op: Binary, other: Self) -> Self {
        Self::Binary(op, Box::new([self, other]))
    }

    /// `then` if this expression is true, else `otherwise`.
    pub fn select(self, then: Self, otherwise: Self) -> Self {
        Self::Select(Box::new([self, then, otherwise]))
    }

    /// This expression with its operands replaced by `args`.
    ///
    /// # Panics
    /// If the expression reads an operand that is not among them.
    pub fn with_args(self, args: &[Self]) -> Self {
        let each = |of: Self| of.with_args(args);
        match self {
            Self::Arg(number) => args[number].clone(),
            Self::Axis(_) | Self::Const(..) => self,
            Self::Cast(dtype, of) => each(*of).cast(dtype),
            Self::Unary(op, of) => each(*of).unary(op),
            Self::Binary(op, of) => Self::Binary(op, Box::new((*of).map(each))),
            Self::Select(of) => Self::Select(Box::new((*of).map(each))),
        }
    }

    /// The type of the expression for operands of these types.
    ///
    /// # Errors
    /// The reason why the types do not fit: a missing operand, two sides of different types, a function that does not
    /// take the type, or a number that the type does not hold.
    pub fn dtype(&self, args: &[Dtype]) -> Result<Dtype, String> {
        match self {
            Self::Arg(number) => {
                args.get(*number).copied().ok_or_else(|| format!("reads operand {number} of {}", args.len()))
            }
            Self::Axis(_) => Ok(Dtype::I64),
            Self::Const(dtype, number) => number.check(*dtype).map(|()| *dtype),
            Self::Cast(dtype, of) => of.dtype(args).map(|_| *dtype),
            Self::Unary(op, of) => op.dtype(of.dtype(args)?),
            Self::Binary(op, of) => {
                let [a, b] = [of[0].dtype(args)?, of[1].dtype(args)?];
                if a != b {
                    return Err(format!("{op:?}: expected operands of one type, found {a} and {b}"));
                }
                op.dtype(a)
            }
            Self::Select(of) => match [of[0].dtype(args)?, of[1].dtype(args)?, of[2].dtype(args)?] {
                [Dtype::Bool, a, b] if a == b => Ok(a),
                [condition, a, b] => {
                    Err(format!("select: expected a bool and one type, found {condition}, {a} and {b}"))
                }
            },
        }
    }

    /// The number of axes that the result must have at least: one more than the highest axis whose index the expression
    /// reads.
    pub fn axes(&self) -> usize {
        match self {
            Self::Arg(_) | Self::Const(..) => 0,
            Self::Axis(axis) => axis + 1,
            Self::Cast(_, of) | Self::Unary(_, of) => of.axes(),
            Self::Binary(_, of) => of.iter().map(Self::axes).max().unwrap_or(0),
            Self::Select(of) => of.iter().map(Self::axes).max().unwrap_or(0),
        }
    }

    /// Whether the expression reads the index along this axis.
    pub(crate) fn reads_index(&self, axis: usize) -> bool {
        match self {
            Self::Arg(_) | Self::Const(..) => false,
            Self::Axis(read) => *read == axis,
            Self::Cast(_, of) | Self::Unary(_, of) => of.reads_index(axis),
            Self::Binary(_, of) => of.iter().any(|of| of.reads_index(axis)),
            Self::Select(of) => of.iter().any(|of| of.reads_index(axis)),
        }
    }
}

impl Number {
    fn check(self, dtype: Dtype) -> Result<(), String> {
        let (low, high) = match dtype {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => {
                return match self {
                    Self::Float(_) => Ok(()),
                    Self::Int(value) => Err(format!("{value} as a constant of {dtype}: expected a float")),
                };
            }
            Dtype::Bool => (0, 1),
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => (0, (1_i128 << (8 * dtype.bytes())) - 1),
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => {
                let half = 1_i128 << (8 * dtype.bytes() - 1);
                (-half, half - 1)
            }
        };
        match self {
            Self::Int(value) if (low..=high).contains(&value) => Ok(()),
            Self::Int(value) => Err(format!("{value} as a constant of {dtype}: expected {low} to {high}")),
            Self::Float(value) => Err(format!("{value} as a constant of {dtype}: expected a whole number")),
        }
    }
}

impl Unary {
    /// The type of the result for an argument of this type.
    ///
    /// # Errors
    /// What it takes, where it does not take this type.
    pub fn dtype(self, of: Dtype) -> Result<Dtype, String> {
        let refused = |takes: &str| Err(format!("{self:?} of {of}: it takes {takes}"));
        match self {
            Self::Neg | Self::Abs | Self::Sign if of == Dtype::Bool => refused("numbers"),
            Self::Neg | Self::Abs | Self::Sign => Ok(of),
            Self::Not if of.is_float() => refused("bools and integers"),
            Self::Not => Ok(of),
            Self::OfE4m3 if of == Dtype::U8 => Ok(Dtype::F32),
            Self::OfE4m3 => refused("u8"),
            Self::ToE4m3 if of == Dtype::F32 => Ok(Dtype::U8),
            Self::ToE4m3 => refused("f32"),
            _ if !of.is_float() => refused("floats"),
            Self::IsNan | Self::IsInf => Ok(Dtype::Bool),
            _ => Ok(of),
        }
    }
}

impl Binary {
    /// The type of the result for two arguments of this type.
    ///
    /// # Errors
    /// What it takes, where it does not take this type.
    pub fn dtype(self, of: Dtype) -> Result<Dtype, String> {
        let refused = |takes: &str| Err(format!("{self:?} of {of}: it takes {takes}"));
        match self {
            Self::Equal => Ok(Dtype::Bool),
            Self::And | Self::Or | Self::Xor if of.is_float() => refused("bools and integers"),
            Self::And | Self::Or | Self::Xor => Ok(of),
            Self::ShiftLeft | Self::ShiftRight if !of.is_integer() || of.is_signed() => refused("unsigned integers"),
            Self::ShiftLeft | Self::ShiftRight => Ok(of),
            _ if of == Dtype::Bool => refused("numbers"),
            Self::Less | Self::LessEqual => Ok(Dtype::Bool),
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Rem
            | Self::Mod
            | Self::Pow
            | Self::Min
            | Self::Max => Ok(of),
        }
    }
}

macro_rules! operators {
    ($($trait:ident::$method:ident => $op:ident),*) => {$(
        impl ops::$trait for Expr {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                self.binary(Binary::$op, other)
            }
        }
    )*};
}

operators!(Add::add => Add, Sub::sub => Sub, Mul::mul => Mul, Div::div => Div);

impl ops::Neg for Expr {
    type Output = Self;

    fn neg(self) -> Self {
        self.unary(Unary::Neg)
    }
}
