//! Layers: operations together with their weights, which are named by the module as in a PyTorch state dict.
//!
//! `images.rs` has layers of images, `tokens.rs` layers of values of any rank.

mod activations;
mod images;
#[cfg(test)]
mod tests;
mod tokens;

use super::builder::GraphBuilder;
use super::expr::{Expr, Number, Unary};
use super::op::Window;
use super::value::ValueId;
use crate::tensor::Dtype;

/// Attributes and weights of a convolution of images. The filter is a tensor `[K, C / groups, R, S]`, as PyTorch stores it.
///
/// ```
/// use trefoil::graph::{Conv2d, Window};
/// let conv = Conv2d::named("conv1", 64, Window::square(7, 2, 3));
/// let with_bias = Conv2d { bias: Some("conv1.bias".into()), ..conv.clone() };
/// assert_eq!((with_bias.filter, conv.bias), ("conv1.weight".to_string(), None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// K.
    pub out_channels: usize,
    /// The window over height and width; padding is zeros.
    pub window: Window,
    /// The number of groups. C and K are divided into that many parts, and an output channel reads only input channels
    /// of its own part; with C groups every output channel reads one input channel.
    pub groups: usize,
    /// Name of the filter.
    pub filter: String,
    /// Name of the bias `[K]`, if there is one.
    pub bias: Option<String>,
}

/// Names of a batch norm's tensors, each `[C]`.
///
/// ```
/// use trefoil::graph::BatchNorm;
/// let keras = BatchNorm { gamma: "bn1/gamma".into(), ..BatchNorm::named("bn1", 1e-3) };
/// assert_eq!((&*keras.gamma, &*keras.var), ("bn1/gamma", "bn1.running_var"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Scale.
    pub gamma: String,
    /// Shift.
    pub beta: String,
    /// Running mean.
    pub mean: String,
    /// Running variance.
    pub var: String,
    /// Added to the variance.
    pub eps: f64,
}

/// Weights of a fully connected layer: weight `[out, in]`, bias `[out]`.
///
/// ```
/// use trefoil::graph::Linear;
/// let fc = Linear::named("fc", 1000);
/// assert_eq!((&*fc.weight, fc.bias.as_deref()), ("fc.weight", Some("fc.bias")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Length of the result.
    pub out_features: usize,
    /// Name of the weight tensor.
    pub weight: String,
    /// Name of the bias tensor, if there is one.
    pub bias: Option<String>,
}

impl Conv2d {
    /// A dense convolution without bias whose filter is `{module}.weight`, as PyTorch names it.
    pub fn named(module: &str, out_channels: usize, window: impl Into<Window>) -> Self {
        Self { out_channels, window: window.into(), groups: 1, filter: format!("{module}.weight"), bias: None }
    }
}

impl BatchNorm {
    /// The batch norm whose tensors PyTorch names `{module}.weight`, `.bias`, `.running_mean` and `.running_var`.
    pub fn named(module: &str, eps: f64) -> Self {
        Self {
            gamma: format!("{module}.weight"),
            beta: format!("{module}.bias"),
            mean: format!("{module}.running_mean"),
            var: format!("{module}.running_var"),
            eps,
        }
    }
}

impl Linear {
    /// The layer whose tensors PyTorch names `{module}.weight` and `{module}.bias`.
    pub fn named(module: &str, out_features: usize) -> Self {
        Self { out_features, weight: format!("{module}.weight"), bias: Some(format!("{module}.bias")) }
    }
}

/// A batch norm of the operands x, gamma, beta, mean and variance.
pub(crate) fn batch_norm(eps: f64) -> Expr {
    let [x, gamma, beta, mean, var] = [0, 1, 2, 3, 4].map(Expr::arg);
    let spread = (var + Expr::float(Dtype::F32, eps)).unary(Unary::Sqrt);
    (x - mean) / spread * gamma + beta
}

/// The eps of a batch norm, if the expression is one as [`batch_norm`] writes it.
pub(crate) fn eps_of_batch_norm(expr: &Expr) -> Option<f64> {
    let Expr::Binary(_, sum) = expr else { return None };
    let Expr::Binary(_, product) = &sum[0] else { return None };
    let Expr::Binary(_, quotient) = &product[0] else { return None };
    let Expr::Unary(Unary::Sqrt, spread) = &quotient[1] else { return None };
    let Expr::Binary(_, spread) = &**spread else { return None };
    let Expr::Const(Dtype::F32, Number::Float(eps)) = spread[1] else { return None };
    (*expr == batch_norm(eps)).then_some(eps)
}

impl GraphBuilder {
    /// The size of the last axis of a layer's operand; for an operand that does not fit, the error is the value that
    /// stands for the layer's result.
    fn channels(&mut self, name: &str, x: ValueId) -> Result<usize, ValueId> {
        if !self.is_known(x) {
            return Err(self.map(name, Expr::arg(0), &[x])); // which tells what is wrong with it
        }
        match (self.value(x).dtype, self.value(x).dims.last()) {
            (Dtype::F32, Some(&channels)) => Ok(channels),
            _ => Err(self.refused(name, &format!("expected f32 along an axis or more, found {}", self.value(x)))),
        }
    }

    /// Adds a weight of f32.
    fn parameter(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.weight(name, Dtype::F32, dims)
    }
}
