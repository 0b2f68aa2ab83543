//! Activations of f32: as expressions, and as layers.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use crate::graph::builder::GraphBuilder;
use crate::graph::expr::{Binary, Expr, Unary};
use crate::graph::value::ValueId;
use crate::tensor::{Activation, Dtype};

/// Activations, of expressions of f32.
impl Expr {
    /// max(x, 0).
    pub fn relu(self) -> Self {
        self.binary(Binary::Max, number(0.0))
    }

    /// 1 / (1 + e^-x).
    ///
    /// ```
    /// use trefoil::{Dtype, graph::{Expr, GraphBuilder}};
    /// let mut g = GraphBuilder::new();
    /// let [x, gate] = ["x", "gate"].map(|name| g.input(name, Dtype::F32, &[4, 64]));
    /// let gated = g.map("gated", Expr::arg(0) * Expr::arg(1).sigmoid(), &[x, gate]);
    /// assert_eq!(g.value(gated).dims, [4, 64]);
    /// ```
    pub fn sigmoid(self) -> Self {
        number(1.0) / (number(1.0) + (-self).unary(Unary::Exp))
    }

    /// x sigmoid(x).
    pub fn silu(self) -> Self {
        self.clone() * self.sigmoid()
    }

    /// x sigmoid(1.702 x).
    pub fn quick_gelu(self) -> Self {
        self.clone() * (self * number(1.702)).sigmoid()
    }

    /// x / 2 (1 + erf(x / sqrt(2))).
    pub fn gelu(self) -> Self {
        let erf = (self.clone() * number(FRAC_1_SQRT_2)).unary(Unary::Erf);
        self * number(0.5) * (number(1.0) + erf)
    }

    /// GELU with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) in place of the error function.
    pub fn gelu_tanh(self) -> Self {
        let x = || self.clone();
        let inner = (x() + x() * x() * x() * number(0.044_715)) * number(FRAC_2_PI.sqrt());
        x() * number(0.5) * (number(1.0) + inner.unary(Unary::Tanh))
    }
}

/// A number of f32.
fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// Activations, of values of f32 of any rank.
impl GraphBuilder {
    /// Adds max(x, 0).
    pub fn relu(&mut self, name: &str, x: ValueId) -> ValueId {
        self.map(name, Expr::arg(0).relu(), &[x])
    }

    /// Adds min(max(x, 0), 6).
    pub fn relu6(&mut self, name: &str, x: ValueId) -> ValueId {
        let x = self.relu(&format!("{name}.relu"), x);
        self.map(name, Expr::arg(0).binary(Binary::Min, number(6.0)), &[x])
    }

    /// Adds an activation of the kernels for images.
    pub fn activation(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        match activation {
            Activation::None => self.map(name, Expr::arg(0), &[x]),
            Activation::Relu => self.relu(name, x),
            Activation::Relu6 => self.relu6(name, x),
            Activation::Silu => self.map(name, Expr::arg(0).silu(), &[x]),
            Activation::Gelu => self.gelu(name, x),
        }
    }

    /// Adds x / 2 (1 + erf(x / sqrt(2))); [`Expr`] has this and other activations as expressions.
    pub fn gelu(&mut self, name: &str, x: ValueId) -> ValueId {
        self.map(name, Expr::arg(0).gelu(), &[x])
    }
}
