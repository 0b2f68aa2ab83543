//! Weights as the kernels of bytes want them: a scale for each output channel, biases as whole numbers.

use super::fold::fold_conv;
use super::graph::Conv2d;
use super::weights::Weights;
use crate::error::Error;

/// A convolution's weights in bytes, with its batch norm inside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByteFilter {
    /// `[K, C, R, S]`, S innermost.
    pub filter: Vec<i8>,
    /// `[K]`, added to the exact sums.
    pub bias: Vec<i32>,
    /// `[K]`: what these are multiplied by, in units of the result.
    pub scale: Vec<f32>,
}

/// Scales of what a convolution of bytes reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ConvScales {
    pub(crate) input: f32,
    pub(crate) output: f32,
}

/// Reads a dense convolution's filter and bias, folds its batch norm into them, and rounds each output channel to whole
/// numbers from -127 to 127 of its own scale: the largest weight by 127, or more where its bias would not fit 32 bits beside
/// any sum.
///
/// # Errors
/// As [`fold_conv`]; [`Error::Unsupported`] if a scale exceeds f32.
pub(crate) fn byte_filter(
    weights: &Weights,
    conv: &Conv2d,
    in_channels: usize,
    scales: ConvScales,
) -> Result<ByteFilter, Error> {
    let folded = fold_conv(weights, conv, in_channels)?;
    let terms = folded.filter.len() / conv.out_channels;
    let most_bias = f64::from(i32::MAX) - (terms * 255 * 128) as f64;
    let [x, y] = [scales.input, scales.output].map(f64::from);
    let mut bytes = ByteFilter { filter: Vec::with_capacity(folded.filter.len()), bias: Vec::new(), scale: Vec::new() };
    for (k_out, (taps, &bias)) in folded.filter.chunks_exact(terms).zip(&folded.bias).enumerate() {
        let largest = taps.iter().fold(0.0_f32, |largest, tap| largest.max(tap.abs()));
        let least = (f64::from(largest) / 127.0).max(f64::from(bias).abs() / (x * most_bias));
        let step = if least > 0.0 { least } else { 1.0 }; // a channel of zeros
        bytes.filter.extend(taps.iter().map(|&tap| (f64::from(tap) / step).round_ties_even() as i8));
        bytes.bias.push((f64::from(bias) / (x * step)).round_ties_even() as i32);
        bytes.scale.push(finite(x * step / y, conv, k_out)?);
    }
    Ok(bytes)
}

fn finite(scale: f64, conv: &Conv2d, k_out: usize) -> Result<f32, Error> {
    let narrowed = scale as f32;
    if narrowed.is_finite() {
        return Ok(narrowed);
    }
    Err(Error::Unsupported {
        what: format!("`{}`: a scale of {scale:e} of channel {k_out}, beyond the range of f32,", conv.filter),
        instead: "compute the layer in floats".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Window;

    const SCALES: ConvScales = ConvScales { input: 0.5, output: 0.25 };

    fn of(filter: Vec<f32>, bias: Vec<f32>) -> Result<ByteFilter, Error> {
        let (channels, terms) = (bias.len(), filter.len() / bias.len());
        let weights = Weights::from_tensors([
            ("c.weight", vec![channels, terms, 1, 1], filter),
            ("c.bias", vec![channels], bias),
        ])?;
        let conv = Conv2d { bias: Some("c.bias".into()), ..Conv2d::named("c", channels, Window::square(1, 1, 0)) };
        byte_filter(&weights, &conv, terms, SCALES)
    }

    #[test]
    fn each_channel_has_the_scale_of_its_largest_weight() {
        let bytes = of(vec![1.27, -0.64, 0.0, 25.4, 0.09, -0.11], vec![0.1, -3.0]).unwrap();
        assert_eq!(bytes.filter, [127, -64, 0, 127, 0, -1]);
        assert_eq!(bytes.bias, [20, -30]); // in steps of 0.5 * 0.01 and 0.5 * 0.2
        for (scale, expected) in bytes.scale.iter().zip([0.02, 0.4]) {
            assert!((scale - expected).abs() < 1e-6, "{scale}");
        }
    }

    #[test]
    fn a_large_bias_takes_part_of_the_precision() {
        let bytes = of(vec![1e-9, 1e-9, 0.0, 0.0], vec![1000.0, 0.0]).unwrap();
        let most = i32::MAX - 2 * 255 * 128;
        assert!((bytes.bias[0] - most).abs() <= 1 && bytes.filter[..2] == [0, 0], "{bytes:?}");
        let result = f64::from(bytes.bias[0]) * f64::from(bytes.scale[0]) * f64::from(SCALES.output);
        assert!((result - 1000.0).abs() < 1e-3, "{result}");
        assert_eq!((bytes.bias[1], bytes.scale[1]), (0, 2.0));
    }

    #[test]
    fn a_scale_beyond_f32_is_an_error() {
        let tiny = ConvScales { input: 1e12, output: 1e-12 };
        let weights = Weights::from_tensors([("c.weight", vec![1, 1, 1, 1], vec![1e20])]).unwrap();
        let conv = Conv2d::named("c", 1, Window::square(1, 1, 0));
        let error = byte_filter(&weights, &conv, 1, tiny).unwrap_err().to_string();
        assert!(error.contains("`c.weight`") && error.contains("channel 0"), "{error}");
    }
}
