//! y[n] = sum over c of x[c] · weight[n][c] + bias[n], f32.

use super::conv2d_fprop::product;

/// A fully connected layer with packed weights.
pub(super) struct Dense {
    in_features: usize,
    /// [in][out]
    weight: Vec<f32>,
    /// [out]
    bias: Vec<f32>,
}

impl Dense {
    /// `weight` is [out][in].
    pub fn new(in_features: usize, weight: &[f32], bias: Vec<f32>) -> Self {
        let out = bias.len();
        let mut packed = vec![0.0; weight.len()];
        for (index, &value) in weight.iter().enumerate() {
            packed[index % in_features * out + index / in_features] = value;
        }
        Self { in_features, weight: packed, bias }
    }

    /// One image; `y` is apart from `x`.
    pub fn run(&self, x: &[f32], y: &mut [f32]) {
        product(1, self.bias.len(), self.in_features, x, &self.weight, y);
        y.iter_mut().zip(&self.bias).for_each(|(y, bias)| *y += bias);
    }
}
