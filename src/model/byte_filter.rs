//! Weights for the kernels of bytes: a scale for each output channel, and biases as integers.

use super::fold::{FoldedConv, fold_conv};
use super::images::Conv2d;
use super::weights::Weights;
use crate::error::Error;

/// The weights of a sum of convolutions in bytes, with their batch norms inside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByteFilter {
    /// For each convolution its filter `[K, C, R, S]`, S innermost.
    pub filters: Vec<Vec<i8>>,
    /// The biases `[K]`, which are added to the exact sums.
    pub bias: Vec<i32>,
    /// The scales `[K]`, by which sums with their biases are multiplied, in units of the result.
    pub scale: Vec<f32>,
}

/// A convolution whose products go into a sum, and its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSource<'a> {
    pub(crate) conv: &'a Conv2d,
    pub(crate) in_channels: usize,
    /// The number that 1 of the input stands for.
    pub(crate) scale: f32,
}

/// Reads the filters and biases of dense convolutions whose products go into one sum, or of a depthwise convolution, folds their batch norms into
/// them, and rounds the weights to whole numbers from -127 to 127. Each output channel has one unit for the weights of
/// all convolutions: the largest product of a weight and 1 of its input divided by 127, or more if the bias would
/// otherwise not fit 32 bits beside any sum. Where the means of inputs are known, biases contain the expected loss by
/// the rounding of weights.
///
/// # Errors
/// As [`fold_conv`]; [`Error::Unsupported`] if a scale exceeds f32.
pub(crate) fn byte_filter(
    weights: &Weights,
    sources: &[ByteSource<'_>],
    output_scale: f32,
) -> Result<ByteFilter, Error> {
    let terms = |of: &ByteSource<'_>| {
        let unit = f64::from(of.scale);
        let mean = |c: usize| of.conv.means.as_ref().map_or(0.0, |means| f64::from(means[c]) / unit);
        let byte = |c: usize| Byte { unit, zero: 0.0, mean: mean(c).clamp(-128.0, 255.0) };
        let bytes = (0..of.in_channels).map(byte).collect();
        Ok(Terms { folded: fold_conv(weights, of.conv, of.in_channels)?, bytes, groups: of.conv.groups })
    };
    let terms = sources.iter().map(terms).collect::<Result<Vec<_>, Error>>()?;
    rounded(&terms, sources[0].conv, output_scale)
}

/// The weights of a convolution that reads the bytes of photos. Weights and biases contain the normalisation, by a mean
/// from 0 to 1 and a deviation for each channel. Pixels outside of an image have the bytes of [`outside`].
pub(crate) fn byte_filter_of_photos(
    weights: &Weights,
    conv: &Conv2d,
    [mean, deviation]: [&[f32]; 2],
    output_scale: f32,
) -> Result<ByteFilter, Error> {
    let byte = |(mean, deviation): (&f32, &f32)| Byte {
        unit: 1.0 / (255.0 * f64::from(*deviation)),
        zero: 255.0 * f64::from(*mean),
        mean: 0.0,
    };
    let bytes: Vec<Byte> = mean.iter().zip(deviation).map(byte).collect();
    let terms = Terms { folded: fold_conv(weights, conv, bytes.len())?, bytes, groups: 1 };
    rounded(&[terms], conv, output_scale)
}

/// The byte of each channel that is nearest to 0 after normalisation by this mean.
pub(crate) fn outside(mean: [f32; 3]) -> [u8; 3] {
    mean.map(|mean| (255.0 * f64::from(mean)).round_ties_even() as u8)
}

/// The weights of a convolution, and the meaning of the bytes of each input channel.
struct Terms {
    folded: FoldedConv,
    bytes: Vec<Byte>,
    groups: usize,
}

/// The number that a byte stands for: `unit` times the difference between the byte and `zero`.
#[derive(Clone, Copy, Debug)]
struct Byte {
    unit: f64,
    zero: f64,
    /// The mean of the difference between the bytes and `zero`; 0 if it is not known.
    mean: f64,
}

impl Terms {
    /// The number of terms of an output channel.
    fn len(&self) -> usize {
        self.folded.filter.len() / self.folded.bias.len()
    }

    /// For each weight of an output channel, its product with one unit of the input, and the meaning of the input's
    /// bytes.
    fn products(&self, k_out: usize) -> impl Iterator<Item = (f64, Byte)> {
        let (bytes, taps) = (self.bytes_of(k_out), self.taps());
        let weights = self.folded.filter[k_out * self.len()..][..self.len()].iter().enumerate();
        weights.map(move |(at, weight)| {
            let byte = bytes[at / taps];
            (f64::from(*weight) * byte.unit, byte)
        })
    }

    /// The input channels that an output channel reads.
    fn bytes_of(&self, k_out: usize) -> &[Byte] {
        let [of_group, outputs] = [self.bytes.len(), self.folded.bias.len()].map(|channels| channels / self.groups);
        &self.bytes[k_out / outputs * of_group..][..of_group]
    }

    /// The number of weights of an output channel for each input channel that it reads.
    fn taps(&self) -> usize {
        self.len() * self.groups / self.bytes.len()
    }

    /// The largest magnitude that the products of an output channel, and the part of the bias for `zero`, can have
    /// together.
    fn most(&self, k_out: usize) -> f64 {
        self.bytes_of(k_out).iter().map(|byte| self.taps() as f64 * 128.0 * (255.0 + byte.zero)).sum()
    }
}

fn rounded(terms: &[Terms], conv: &Conv2d, output_scale: f32) -> Result<ByteFilter, Error> {
    let filters = terms.iter().map(|of| Vec::with_capacity(of.folded.filter.len())).collect();
    let mut bytes = ByteFilter { filters, bias: Vec::new(), scale: Vec::new() };
    for k_out in 0..conv.out_channels {
        let most_bias = f64::from(i32::MAX) - terms.iter().map(|of| of.most(k_out)).sum::<f64>();
        let products = terms.iter().flat_map(|of| of.products(k_out));
        let largest = products.fold(0.0_f64, |largest, (product, _)| largest.max(product.abs()));
        let bias: f64 = terms.iter().map(|of| f64::from(of.folded.bias[k_out])).sum();
        let least = (largest / 127.0).max(bias.abs() / most_bias);
        let unit = if least > 0.0 { least } else { 1.0 }; // a channel of zeros
        let [mut of_zeros, mut lost] = [0.0; 2];
        for (of, filter) in terms.iter().zip(&mut bytes.filters) {
            let quotients: Vec<f64> = of.products(k_out).map(|(product, _)| product / unit).collect();
            // The pixels under a window are much alike, so that what a depthwise channel loses is about the same for each
            // of its taps.
            let weights = if of.groups > 1 { with_nearest_sum(&quotients) } else { nearest(&quotients) };
            for ((product, byte), weight) in of.products(k_out).zip(weights) {
                of_zeros += weight * byte.zero;
                lost += (product - weight * unit) * byte.mean;
                filter.push(weight as i8);
            }
        }
        bytes.bias.push(((bias + lost) / unit - of_zeros).round_ties_even() as i32);
        bytes.scale.push(finite(unit / f64::from(output_scale), conv, k_out)?);
    }
    Ok(bytes)
}

/// The nearest integers, the even one of two.
fn nearest(quotients: &[f64]) -> Vec<f64> {
    quotients.iter().map(|quotient| quotient.round_ties_even()).collect()
}

/// As [`nearest`], but as many integers as necessary, those with the most to gain, are the next ones instead, so that their
/// sum is the integer nearest to the sum of the quotients. None is beyond the largest magnitude of the quotients.
fn with_nearest_sum(quotients: &[f64]) -> Vec<f64> {
    let mut weights = nearest(quotients);
    let left: Vec<f64> = quotients.iter().zip(&weights).map(|(quotient, weight)| quotient - weight).collect();
    let missing = left.iter().sum::<f64>().round_ties_even();
    let mut order: Vec<usize> = (0..left.len()).collect();
    order.sort_by(|&a, &b| (left[b] * missing.signum()).total_cmp(&(left[a] * missing.signum())));
    order.iter().take(missing.abs() as usize).for_each(|&at| weights[at] += missing.signum());
    weights
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

    /// The number that 1 of a result stands for.
    const RESULT: f32 = 0.25;

    /// 1x1 convolutions with `channels` output channels, given by their filters, their biases and the scales of their
    /// inputs.
    fn of(channels: usize, sources: &[(Vec<f32>, Vec<f32>, f32)]) -> Result<ByteFilter, Error> {
        let mut tensors = Vec::new();
        let mut convs = Vec::new();
        for (at, (filter, bias, scale)) in sources.iter().enumerate() {
            let (name, terms) = (format!("c{at}"), filter.len() / channels);
            tensors.push((format!("{name}.weight"), vec![channels, terms, 1, 1], filter.clone()));
            tensors.push((format!("{name}.bias"), vec![channels], bias.clone()));
            let conv = Conv2d::named(&name, channels, Window::square(1, 1, 0));
            convs.push((Conv2d { bias: Some(format!("{name}.bias")), ..conv }, terms, *scale));
        }
        let weights = Weights::from_tensors(tensors)?;
        let sources: Vec<_> =
            convs.iter().map(|&(ref conv, in_channels, scale)| ByteSource { conv, in_channels, scale }).collect();
        byte_filter(&weights, &sources, RESULT)
    }

    fn near(found: &[f32], expected: &[f32]) {
        let is_near = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-6;
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_near), "{found:?}");
    }

    #[test]
    fn each_channel_has_the_scale_of_its_largest_weight() {
        let bytes = of(2, &[(vec![1.27, -0.64, 0.0, 25.4, 0.09, -0.11], vec![0.1, -3.0], 0.5)]).unwrap();
        assert_eq!(bytes.filters, [[127, -64, 0, 127, 0, -1]]);
        assert_eq!(bytes.bias, [20, -30]); // in units of 0.5 * 0.01 and 0.5 * 0.2
        near(&bytes.scale, &[0.02, 0.4]);
    }

    #[test]
    fn convolutions_of_one_sum_share_the_larger_unit() {
        let first = (vec![1.27, -0.64, 0.48, 0.0], vec![0.1, 0.0], 0.5);
        let bytes = of(2, &[first, (vec![0.127, -2.54], vec![0.2, 1.0], 1.0)]).unwrap();
        // The units are 0.5 * 0.01 and 1.0 * 0.02.
        assert_eq!(bytes.filters, [vec![127, -64, 12, 0], vec![25, -127]]);
        assert_eq!(bytes.bias, [60, 50]);
        near(&bytes.scale, &[0.02, 0.08]);
    }

    /// An input at its mean gives the same result as with unrounded weights; no byte exceeds 255.
    #[test]
    fn what_rounding_is_expected_to_take_is_in_the_bias() {
        let (filter, scale) = ([1.0_f32, 0.303, -0.098, 0.2041], 0.5_f32);
        let (means, bytes) = ([12.0_f32, 30.0, -5.0, 1e9], [24.0_f64, 60.0, -10.0, 255.0]);
        let weights = Weights::from_tensors([("c.weight", vec![1, 4, 1, 1], filter.to_vec())]).unwrap();
        let plain = Conv2d::named("c", 1, Window::square(1, 1, 0));
        let with_means = Conv2d { means: Some(means.into()), ..plain.clone() };
        let exact: f64 = filter.iter().zip(bytes).map(|(w, x)| f64::from(*w) * f64::from(scale) * x).sum();
        let found = [&plain, &with_means].map(|conv| {
            let of = byte_filter(&weights, &[ByteSource { conv, in_channels: 4, scale }], RESULT).unwrap();
            let products: f64 = of.filters[0].iter().zip(bytes).map(|(w, x)| f64::from(*w) * x).sum();
            let unit = f64::from(of.scale[0]) * f64::from(RESULT);
            (of.filters[0].clone(), ((products + f64::from(of.bias[0])) * unit - exact).abs() / unit)
        });
        assert_eq!(found[0].0, found[1].0);
        assert!(found[0].1 > 10.0 && found[1].1 < 0.51, "off by so many units: {found:?}");
    }

    /// Each channel has the mean and the bytes of its own input channel.
    #[test]
    fn a_depthwise_channel_reads_one_channel() {
        let filter = vec![1.27, -0.64, 0.304, 12.7, 0.0, 6.43];
        let tensors = [("c.weight", vec![2, 1, 1, 3], filter), ("c.bias", vec![2], vec![0.1, 2000.0])];
        let weights = Weights::from_tensors(tensors).unwrap();
        let window = Window { size: [1, 3], ..Window::square(1, 1, 0) };
        let conv = Conv2d { groups: 2, bias: Some("c.bias".into()), ..Conv2d::named("c", 2, window) };
        let known = Conv2d { means: Some([10.0, 20.0].into()), ..conv.clone() };
        let of = |conv| byte_filter(&weights, &[ByteSource { conv, in_channels: 2, scale: 0.5 }], RESULT).unwrap();
        let bytes = of(&conv);
        // The units are 0.5 * 0.01 and 0.5 * 0.1.
        assert_eq!((&bytes.filters[0][..], &bytes.bias[..]), (&[127, -64, 30, 127, 0, 64][..], &[20, 40_000][..]));
        near(&bytes.scale, &[0.02, 0.2]);
        // Of the last weights 0.4 and 0.3 units are lost, for each of the 20 and 40 that the means are in bytes.
        assert_eq!(of(&known).bias, [28, 40_012]);
    }

    #[test]
    fn depthwise_weights_keep_their_sum() {
        assert_eq!(with_nearest_sum(&[127.0, 0.3, 0.4, 0.4]), [127.0, 0.0, 1.0, 0.0]);
        assert_eq!(with_nearest_sum(&[-127.0, 0.6, 0.6, 0.7, -3.3]), [-127.0, 0.0, 1.0, 1.0, -3.0]);
        assert_eq!(with_nearest_sum(&[-127.0, 0.5, -0.5, 2.5]), [-127.0, 0.0, 0.0, 2.0]);
        let quotients: Vec<f64> = (0..25).map(|tap| (f64::from(tap) * 37.7).sin() * 127.0).collect();
        let sums = [with_nearest_sum(&quotients), quotients].map(|of| of.iter().sum::<f64>());
        assert!((sums[0] - sums[1]).abs() <= 0.5, "{sums:?}");
    }

    #[test]
    fn a_large_bias_takes_part_of_the_precision() {
        let bytes = of(2, &[(vec![1e-9, 1e-9, 0.0, 0.0], vec![1000.0, 0.0], 0.5)]).unwrap();
        let most = i32::MAX - 2 * 255 * 128;
        assert!((bytes.bias[0] - most).abs() <= 1 && bytes.filters[0][..2] == [0, 0], "{bytes:?}");
        let result = f64::from(bytes.bias[0]) * f64::from(bytes.scale[0]) * f64::from(RESULT);
        assert!((result - 1000.0).abs() < 1e-3, "{result}");
        assert_eq!((bytes.bias[1], bytes.scale[1]), (0, 4.0));
    }

    /// A photo of one grey gives its normalised value times the sum of the weights, within half a unit for each
    /// rounding.
    #[test]
    fn normalisation_is_in_weights_and_biases() {
        let conv = Conv2d { bias: Some("c.bias".into()), ..Conv2d::named("c", 1, Window::square(1, 1, 0)) };
        let filter = vec![0.5, -0.25, 0.125];
        let tensors = [("c.weight", vec![1, 3, 1, 1], filter.clone()), ("c.bias", vec![1], vec![0.75])];
        let weights = Weights::from_tensors(tensors).unwrap();
        let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let bytes = byte_filter_of_photos(&weights, &conv, [&mean, &deviation], RESULT).unwrap();
        assert_eq!((outside(mean), bytes.filters[0][0]), ([124, 116, 104], 127));
        for grey in [0, 100, 255] {
            let sum = bytes.bias[0] + bytes.filters[0].iter().map(|weight| i32::from(*weight) * grey).sum::<i32>();
            let found = f64::from(sum) * f64::from(bytes.scale[0]) * f64::from(RESULT);
            let expected: f64 = (0..3)
                .map(|c| {
                    (f64::from(grey) / 255.0 - f64::from(mean[c])) / f64::from(deviation[c]) * f64::from(filter[c])
                })
                .sum();
            let unit = f64::from(bytes.scale[0]) * f64::from(RESULT);
            assert!((found - expected - 0.75).abs() < unit * (0.5 + 3.0 * 0.5 * 151.0), "{grey}: {found} {expected}");
        }
    }

    #[test]
    fn a_scale_beyond_f32_is_an_error() {
        let weights = Weights::from_tensors([("c.weight", vec![1, 1, 1, 1], vec![1e20])]).unwrap();
        let conv = Conv2d::named("c", 1, Window::square(1, 1, 0));
        let source = ByteSource { conv: &conv, in_channels: 1, scale: 1e12 };
        let error = byte_filter(&weights, &[source], 1e-12).unwrap_err().to_string();
        assert!(error.contains("`c.weight`") && error.contains("channel 0"), "{error}");
    }
}
