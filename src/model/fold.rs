//! Weights as kernels need them: batch norms are folded into filters and biases, in f64.

use super::images::{BatchNorm, Conv2d, Linear};
use super::weights::Weights;
use crate::error::Error;

/// The weights of a convolution with its batch norm folded in.
///
/// ```
/// use trefoil::model::Weights;
/// use trefoil::model::images::{Conv2d, FoldedConv, Window, fold_conv};
/// let weights = Weights::from_tensors([("conv.weight", vec![2, 1, 1, 1], vec![3.0, -1.0])])?;
/// let folded = fold_conv(&weights, &Conv2d::named("conv", 2, Window::square(1, 1, 0)), 1)?;
/// assert_eq!(folded, FoldedConv { filter: vec![3.0, -1.0], bias: vec![0.0; 2] });
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedConv {
    /// The filter `[K, C / groups, R, S]`, S innermost.
    pub filter: Vec<f32>,
    /// The bias `[K]`; zeros if the convolution has neither a bias nor a batch norm.
    pub bias: Vec<f32>,
}

/// Reads a convolution's filter and bias and folds its batch norm into them.
///
/// With scale = gamma / sqrt(var + eps) for each output channel: filter · scale, and (bias − mean) · scale + beta.
///
/// # Errors
///
/// [`Error::Tensor`] if a tensor is missing, or of the wrong shape or type, or holds a NaN or infinity, if a variance
/// plus eps is not positive, or if a folded value exceeds f32. [`Error::Io`] if the file cannot be read.
///
/// ```
/// use trefoil::model::Weights;
/// use trefoil::model::images::{BatchNorm, Conv2d, Window, fold_conv};
/// let weights = Weights::from_tensors([
///     ("conv.weight", vec![1, 1, 1, 1], vec![3.0]),
///     ("bn.weight", vec![1], vec![2.0]),
///     ("bn.bias", vec![1], vec![0.5]),
///     ("bn.running_mean", vec![1], vec![1.0]),
///     ("bn.running_var", vec![1], vec![4.0]),
/// ])?;
/// let norm = Some(BatchNorm::named("bn", 0.0));
/// let conv = Conv2d { norm, ..Conv2d::named("conv", 1, Window::square(1, 1, 0)) };
/// let folded = fold_conv(&weights, &conv, 1)?;
/// assert_eq!((folded.filter, folded.bias), (vec![3.0], vec![-0.5]));
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn fold_conv(weights: &Weights, conv: &Conv2d, in_channels: usize) -> Result<FoldedConv, Error> {
    let [r, s] = conv.window.size;
    let group_channels = in_channels.checked_div(conv.groups).unwrap_or(0);
    let mut filter = read(weights, &conv.filter, &[conv.out_channels, group_channels, r, s])?; // [K, C/groups, R, S]
    let mut bias = match &conv.bias {
        Some(name) => read(weights, name, &[conv.out_channels])?, // [K]
        None => vec![0.0; conv.out_channels],
    };
    if let Some(norm) = &conv.norm {
        fold_norm(weights, norm, &conv.filter, &mut filter, &mut bias)?;
    }
    Ok(FoldedConv { filter, bias })
}

/// Reads a fully connected layer: weight `[out, in]` and bias `[out]`. The bias is zeros if the layer has none.
pub(crate) fn read_linear(
    weights: &Weights,
    linear: &Linear,
    in_features: usize,
) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let weight = read(weights, &linear.weight, &[linear.out_features, in_features])?;
    let bias = match &linear.bias {
        Some(name) => read(weights, name, &[linear.out_features])?,
        None => vec![0.0; linear.out_features],
    };
    Ok((weight, bias))
}

/// Multiplies `filter` [K, C] by the factors of a norm of the rows that it multiplies, in place. Returns what is added to
/// the products: their own biases, and the products of the filter with the norm's biases. The names are those of the
/// factors, of the norm's biases and of the products' biases.
#[cfg(feature = "cuda")]
pub(crate) fn fold_norm_of_rows(
    weights: &Weights,
    names: [Option<&str>; 3],
    filter: &mut [f32],
    [k, c]: [usize; 2],
) -> Result<Vec<f32>, Error> {
    let vector = |name: Option<&str>, len: usize| name.map(|name| read(weights, name, &[len])).transpose();
    let [gamma, beta, bias] = [vector(names[0], c)?, vector(names[1], c)?, vector(names[2], k)?];
    let name = names.iter().flatten().last().copied().unwrap_or_default();
    let mut added = vec![0.0; k];
    for (k_out, row) in filter.chunks_exact_mut(c).enumerate() {
        let own = bias.as_ref().map_or(0.0, |bias| f64::from(bias[k_out]));
        let terms = row.iter().zip(beta.iter().flatten()).map(|(w, beta)| f64::from(*w) * f64::from(*beta));
        added[k_out] = narrow(weights, name, k_out, own + terms.sum::<f64>())?;
        for (w, gamma) in row.iter_mut().zip(gamma.iter().flatten()) {
            *w = narrow(weights, name, k_out, f64::from(*w) * f64::from(*gamma))?;
        }
    }
    Ok(added)
}

/// Folds a batch norm into `filter` [K, …] and `bias` [K] in place.
fn fold_norm(
    weights: &Weights,
    norm: &BatchNorm,
    filter_name: &str,
    filter: &mut [f32],
    bias: &mut [f32],
) -> Result<(), Error> {
    let out_channels = bias.len();
    let vector = |name: &str| read(weights, name, &[out_channels]);
    let (gamma, beta) = (vector(&norm.gamma)?, vector(&norm.beta)?);
    let (mean, var) = (vector(&norm.mean)?, vector(&norm.var)?);
    let channel_elems = filter.len() / out_channels.max(1);
    for k_out in 0..out_channels {
        let spread = f64::from(var[k_out]) + norm.eps;
        if spread.is_nan() || spread <= 0.0 {
            let found = format!("{} + {} in channel {k_out}", var[k_out], norm.eps);
            return Err(weights.error(&norm.var, "variance + eps above 0", found));
        }
        let scale = f64::from(gamma[k_out]) / spread.sqrt();
        let shifted = (f64::from(bias[k_out]) - f64::from(mean[k_out])) * scale + f64::from(beta[k_out]);
        bias[k_out] = narrow(weights, &norm.beta, k_out, shifted)?;
        for value in &mut filter[k_out * channel_elems..][..channel_elems] {
            *value = narrow(weights, filter_name, k_out, f64::from(*value) * scale)?;
        }
    }
    Ok(())
}

/// The f32 that is nearest to `value`; an error if it is infinite. The value belongs to channel `k_out` of `tensor`.
fn narrow(weights: &Weights, tensor: &str, k_out: usize, value: f64) -> Result<f32, Error> {
    let narrowed = value as f32;
    if narrowed.is_finite() {
        return Ok(narrowed);
    }
    let found = format!("{value:e} in channel {k_out}");
    Err(weights.error(tensor, "finite f32 values after folding the norm", found))
}

fn read(weights: &Weights, name: &str, dims: &[usize]) -> Result<Vec<f32>, Error> {
    weights.check(name, dims)?; // before the allocation, so that the dimensions are known to be those of stored data
    let mut values = vec![0.0; dims.iter().product()];
    weights.read_f32(name, dims, &mut values)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Window;

    /// A 1x2 grouped convolution: 4 channels in 2 groups → 2 channels.
    fn conv() -> Conv2d {
        Conv2d {
            groups: 2,
            bias: Some("conv.bias".into()),
            norm: Some(BatchNorm::named("bn", 1e-5)),
            ..Conv2d::named("conv", 2, Window { size: [1, 2], ..Window::square(1, 1, 0) })
        }
    }

    fn weights(gamma: [f32; 2], var: [f32; 2]) -> Weights {
        let vector = |name: &str, values: [f32; 2]| (name.to_owned(), vec![2], values.to_vec());
        Weights::from_tensors([
            ("conv.weight".to_owned(), vec![2, 2, 1, 2], vec![1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0]),
            vector("conv.bias", [0.25, -0.75]),
            vector("bn.weight", gamma),
            vector("bn.bias", [0.125, -3.0]),
            vector("bn.running_mean", [1.5, -2.5]),
            vector("bn.running_var", var),
        ])
        .unwrap()
    }

    #[test]
    fn folding_equals_convolution_then_norm() {
        let (gamma, var) = ([0.7, -1.3], [0.01, 90.0]);
        let weights = weights(gamma, var);
        let folded = fold_conv(&weights, &conv(), 4).unwrap();
        let plain = fold_conv(&weights, &Conv2d { norm: None, ..conv() }, 4).unwrap();
        let x = [0.5_f64, -1.25, 2.0, 0.75]; // one group's taps
        for k_out in 0..2 {
            let sum = |conv: &FoldedConv| {
                let taps = &conv.filter[4 * k_out..][..4];
                f64::from(conv.bias[k_out]) + taps.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>()
            };
            let (mean, beta) = ([1.5, -2.5][k_out], [0.125, -3.0][k_out]);
            let scale = f64::from(gamma[k_out]) / (f64::from(var[k_out]) + 1e-5).sqrt();
            let expected = (sum(&plain) - mean) * scale + beta;
            // Five products and sums of f32-rounded weights, each relative 2^-24 of a term below 100 * scale.
            let limit = 10.0 * 100.0 * scale.abs().max(1.0) * 2f64.powi(-24);
            assert!((sum(&folded) - expected).abs() <= limit, "{} instead of {expected}", sum(&folded));
        }
    }

    #[test]
    fn impossible_variances_are_named() {
        for bad in [-1.0, -2e-5] {
            let error = fold_conv(&weights([1.0; 2], [1.0, bad]), &conv(), 4).unwrap_err().to_string();
            assert!(error.contains("`bn.running_var`") && error.contains("channel 1"), "{error}");
        }
        let zero = Conv2d { norm: Some(BatchNorm::named("bn", 0.0)), ..conv() };
        assert!(fold_conv(&weights([1.0; 2], [0.0, 1.0]), &zero, 4).is_err());
    }

    #[test]
    fn a_fold_beyond_f32_is_an_error() {
        let error = fold_conv(&weights([3e38, 1.0], [1e-10, 1.0]), &conv(), 4).unwrap_err().to_string();
        assert!(error.contains("after folding"), "{error}");
    }

    #[test]
    fn shapes_are_checked() {
        let weights = weights([1.0; 2], [1.0; 2]);
        let error = fold_conv(&weights, &conv(), 6).unwrap_err().to_string();
        assert!(error.ends_with("expected [2, 3, 1, 2], found [2, 2, 1, 2]"), "{error}");
        assert!(fold_conv(&weights, &Conv2d { groups: 0, ..conv() }, 4).is_err());
        assert!(fold_conv(&weights, &Conv2d { out_channels: usize::MAX, ..conv() }, 4).is_err());
        assert!(read_linear(&weights, &Linear::named("bn", usize::MAX), usize::MAX).is_err());
    }
}
