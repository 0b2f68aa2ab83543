//! The preprocessing of pictures.

use std::fmt;
use std::ops::RangeInclusive;

use crate::error::Error;
use crate::tensor::Shape;

/// How a picture becomes a model's input: it is resized so that its shorter side has `resize` pixels, its centre is
/// cropped, and each channel becomes (value / 255 − mean) / std.
///
/// ```
/// use trefoil::{Shape, model::Preprocessing};
/// let plain = Preprocessing::new(Shape::new(28, 28, 1));
/// let normalized = Preprocessing { mean: vec![0.286], std: vec![0.353], ..plain };
/// assert_eq!(normalized.resize, 28);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessing {
    /// The model's input.
    pub input: Shape,
    /// Subtracted from each channel, in units of the full scale (0-1): from -16 to 16.
    pub mean: Vec<f32>,
    /// Divides each channel after the mean is subtracted: from 0.001 to 1000.
    pub std: Vec<f32>,
    /// The shorter side after resizing and before the crop, in pixels.
    pub resize: usize,
    /// The filter of the resize.
    pub interpolation: Interpolation,
}

/// How a picture is resized, by Pillow's names.
///
/// ```
/// use trefoil::{Shape, model::{Interpolation, Preprocessing}};
/// let plain = Preprocessing::new(Shape::new(224, 224, 3));
/// assert_eq!(plain.interpolation, Interpolation::Bilinear);
/// let timm = Preprocessing { interpolation: Interpolation::Bicubic, ..plain };
/// assert_ne!(timm, Preprocessing::new(timm.input));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Mean of the pixels under the new one.
    Box,
    /// Triangle filter.
    #[default]
    Bilinear,
    /// Hamming-windowed sinc of radius 1.
    Hamming,
    /// Cubic filter with a = -0.5.
    Bicubic,
    /// Lanczos-windowed sinc of radius 3.
    Lanczos,
}

/// The range of means. Together with [`STD`] it keeps every normalised byte a finite half, far from the largest one.
pub(super) const MEAN: RangeInclusive<f32> = -16.0..=16.0;
/// The range of deviations.
pub(super) const STD: RangeInclusive<f32> = 1e-3..=1e3;

impl Preprocessing {
    /// The preprocessing without a margin, and without normalisation except to the range 0-1: mean 0, std 1, bilinear.
    pub fn new(input: Shape) -> Self {
        Self {
            input,
            mean: vec![0.0; input.channels],
            std: vec![1.0; input.channels],
            resize: input.height.max(input.width),
            interpolation: Interpolation::default(),
        }
    }

    /// The preprocessing for an input of another size: the crop takes the same part of the picture.
    ///
    /// ```
    /// use trefoil::{Shape, model::Preprocessing};
    /// let usual = Preprocessing { resize: 256, ..Preprocessing::new(Shape::new(224, 224, 3)) };
    /// let small = usual.for_input(Shape::new(112, 112, 3));
    /// assert_eq!((small.input, small.resize), (Shape::new(112, 112, 3), 128));
    /// ```
    #[must_use]
    pub fn for_input(&self, input: Shape) -> Self {
        let [own, side] = [self.input, input].map(|shape| shape.height.max(shape.width));
        let resize = self.resize.saturating_mul(side).checked_div(own).unwrap_or(side).max(side);
        Self { input, resize, ..self.clone() }
    }

    /// Checks the preprocessing against the shape of a graph's input.
    pub(super) fn check(&self, input: Shape) -> Result<(), Error> {
        let channels = input.channels;
        if self.input != input {
            return Err(Error::option("preprocessing.input", self.input, format!("the graph's input, {input}")));
        }
        for (option, values, range) in
            [("preprocessing.mean", &self.mean, &MEAN), ("preprocessing.std", &self.std, &STD)]
        {
            if values.len() != channels || !values.iter().all(|value| range.contains(value)) {
                return Err(Error::option(option, format!("{values:?}"), one_for_each(channels, range)));
            }
        }
        let least = input.height.max(input.width);
        if self.resize < least {
            return Err(Error::option("preprocessing.resize", self.resize, format!("at least the input's {least}")));
        }
        Ok(())
    }
}

/// The expected means or deviations of an input, as text for errors.
pub(super) fn one_for_each(channels: usize, range: &RangeInclusive<f32>) -> String {
    let (least, most) = (range.start(), range.end());
    format!("a number from {least} to {most}, in units of the full scale, for each of {channels} channels")
}

impl Interpolation {
    /// Every way to resize.
    pub const ALL: [Self; 6] = [Self::Nearest, Self::Box, Self::Bilinear, Self::Hamming, Self::Bicubic, Self::Lanczos];

    /// The interpolation of this name, as in a `config.json`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|interpolation| interpolation.name() == name)
    }

    /// The method's name, as in a `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Box => "box",
            Self::Bilinear => "bilinear",
            Self::Hamming => "hamming",
            Self::Bicubic => "bicubic",
            Self::Lanczos => "lanczos",
        }
    }
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_the_graph_is_named() {
        let input = Shape::new(4, 6, 2);
        let plain = Preprocessing::new(input);
        plain.check(input).unwrap();
        let cases = [
            (Preprocessing { input: Shape::new(6, 4, 2), ..plain.clone() }, "input"),
            (Preprocessing { mean: vec![0.0], ..plain.clone() }, "mean"),
            (Preprocessing { mean: vec![0.0, f32::NAN], ..plain.clone() }, "mean"),
            (Preprocessing { mean: vec![0.0, 123.675], ..plain.clone() }, "mean"),
            (Preprocessing { std: vec![1.0, 0.0], ..plain.clone() }, "std"),
            (Preprocessing { std: vec![1.0; 3], ..plain.clone() }, "std"),
            (Preprocessing { std: vec![1.0, 1e-38], ..plain.clone() }, "std"),
            (Preprocessing { std: vec![1.0, 1e38], ..plain.clone() }, "std"),
            (Preprocessing { resize: 5, ..plain }, "resize"),
        ];
        for (preprocessing, name) in cases {
            match preprocessing.check(input) {
                Err(Error::Option { option, .. }) => assert_eq!(option, format!("preprocessing.{name}")),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn every_normalised_byte_is_a_finite_half() {
        let ends = [*MEAN.start(), *MEAN.end()].map(|mean| [0.0, 1.0].map(|byte| (byte - mean) / STD.start()));
        assert!(ends.as_flattened().iter().all(|&end| half::f16::from_f32(end).is_finite()), "{ends:?}");
    }

    #[test]
    fn interpolations_have_names() {
        for interpolation in Interpolation::ALL {
            assert_eq!(Interpolation::from_name(interpolation.name()), Some(interpolation));
        }
        assert_eq!(Interpolation::from_name("Bilinear"), None);
    }
}
