//! The preprocessing of pictures for an encoder's pixels.

use serde_json::Value;

use super::pixels::Pixels;
use super::settings::Settings;
use crate::error::Error;
use crate::model::preprocessing::{Interpolation, Preprocessing};
use crate::tensor::Shape;

/// The default of timm's models for the part of a resized picture's side that is cut out.
const TIMM_SHARE: f64 = 0.9;
/// The smallest part of a picture's side that can be cut out.
const LEAST_SHARE: f64 = 0.1;

/// The preprocessing in timm's `pretrained_cfg`. The graph applies the mean and deviation, because pixels stay bytes.
///
/// # Errors
/// [`Error::Format`] or [`Error::Option`] for impossible values.
pub(super) fn by_timm(settings: &Settings, pixels: &mut Pixels) -> Result<Preprocessing, Error> {
    let interpolation = match settings.name("interpolation") {
        "" => Some(Interpolation::Bicubic),
        name => Interpolation::from_name(name),
    };
    let share = settings.fraction("crop_pct", TIMM_SHARE);
    described(settings, ["mean", "std"], share, interpolation, pixels)
}

/// The preprocessing in the `preprocessor_config.json` of the library `transformers`.
///
/// # Errors
/// As [`by_timm`].
pub(super) fn by_transformers(settings: &Settings, pixels: &mut Pixels) -> Result<Preprocessing, Error> {
    let side = |key: &str| {
        let value = settings.get(key)?;
        value.as_u64().or_else(|| value.get("shortest_edge")?.as_u64()).or_else(|| value.get("height")?.as_u64())
    };
    let share = match (side("size"), side("crop_size")) {
        // ConvNeXt crops pictures only below this size.
        (Some(size), None) if settings.get("crop_pct").is_some() && size < 384 => settings.fraction("crop_pct", 0.875),
        (Some(size), Some(crop)) if crop <= size && settings.flag("do_center_crop", true) => crop as f64 / size as f64,
        _ => 1.0,
    };
    // The numbers are those of Pillow.
    let interpolation = match settings.get("resample").and_then(Value::as_u64) {
        Some(0) => Some(Interpolation::Nearest),
        Some(1) => Some(Interpolation::Lanczos),
        None | Some(2) => Some(Interpolation::Bilinear),
        Some(3) => Some(Interpolation::Bicubic),
        Some(4) => Some(Interpolation::Box),
        Some(5) => Some(Interpolation::Hamming),
        Some(_) => None,
    };
    described(settings, ["image_mean", "image_std"], share, interpolation, pixels)
}

fn described(
    settings: &Settings,
    [mean, std]: [&str; 2],
    share: f64,
    interpolation: Option<Interpolation>,
    pixels: &mut Pixels,
) -> Result<Preprocessing, Error> {
    pixels.mean = settings.channels(mean, pixels.mean);
    pixels.std = settings.channels(std, pixels.std);
    if interpolation.is_none() {
        settings.refuse("the way to resize pictures is not known".into());
    }
    settings.check()?;
    let [height, width] = pixels.size;
    let (side, input) = (height.max(width), Shape { height, width, channels: pixels.mean.len() });
    let resize = (side as f64 / share.max(LEAST_SHARE)).floor() as usize;
    let plain = Preprocessing { resize, interpolation: interpolation.unwrap_or_default(), ..Preprocessing::new(input) };
    Preprocessing { mean: pixels.mean.to_vec(), std: pixels.std.to_vec(), ..plain.clone() }.check(input)?;
    Ok(plain)
}
