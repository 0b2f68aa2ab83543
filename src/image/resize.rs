//! Resizes and crops to the centre in one step, with the values of Pillow.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::{Area, Picture, memory};
use crate::model::{Interpolation, Preprocessing};
use crate::tensor::Shape;

/// Resizes the shorter side of `picture` to `wanted.resize`, the longer one in proportion, and writes the centre of
/// that to `row`. Only the centre is computed: memory does not grow with the picture's aspect ratio.
///
/// Columns are computed first, then rows, with bytes in between: the order in which Pillow rounds. `picture` has the
/// channels of `wanted.input`, which must fit into the resized picture.
pub(super) fn resize_and_crop(picture: &Picture, wanted: &Preprocessing, row: &mut [u8]) -> Result<(), String> {
    let Shape { height, width, channels } = wanted.input;
    let short = picture.width.min(picture.height);
    let [left, crop_width] = source_span(picture.width, short, wanted.resize, width);
    let [top, crop_height] = source_span(picture.height, short, wanted.resize, height);
    let [first, end] = rows_read(picture.height, top, crop_height, height);
    let rows = end - first;

    let pixels = &picture.pixels[first * picture.width * channels..end * picture.width * channels];
    let mut narrow = memory::zeros(rows * width * channels)?;
    let convert =
        |source, target: (usize, usize, &mut [u8]), span| resize(source, target, channels, wanted.interpolation, span);
    convert((picture.width, rows, pixels), (width, rows, &mut narrow), [left, 0.0, crop_width, rows as f64])?;
    let span = [0.0, top - first as f64, width as f64, crop_height];
    convert((width, rows, &narrow), (width, height, row), span)
}

/// The part `from` of `picture`, which must lie within it, resized to this many columns and rows. Pixels around the
/// part do not affect the result.
pub(super) fn resized(
    picture: &Picture,
    from: Area,
    [width, height]: [usize; 2],
    interpolation: Interpolation,
) -> Result<Vec<u8>, String> {
    let channels = picture.channels;
    let mut part = memory::reserved(from.width * from.height * channels)?;
    for row in picture.pixels.chunks_exact(picture.width * channels).skip(from.top).take(from.height) {
        part.extend_from_slice(&row[from.left * channels..][..from.width * channels]);
    }
    let mut narrow = memory::zeros(from.height * width * channels)?;
    let mut pixels = memory::zeros(height * width * channels)?;
    let span = [0, 0, from.width, from.height].map(|side| side as f64);
    resize((from.width, from.height, &part), (width, from.height, &mut narrow), channels, interpolation, span)?;
    let span = [0, 0, width, from.height].map(|side| side as f64);
    resize((width, from.height, &narrow), (width, height, &mut pixels), channels, interpolation, span)?;
    Ok(pixels)
}

/// The width, height and pixels of a picture.
type Side<'a> = (usize, usize, &'a [u8]);

/// Resizes the span [left, top, width, height] of one picture to another picture.
fn resize(
    source: Side,
    target: (usize, usize, &mut [u8]),
    channels: usize,
    interpolation: Interpolation,
    span: [f64; 4],
) -> Result<(), String> {
    let resized = match channels {
        1 => resize_typed::<U8>(source, target, interpolation, span),
        _ => resize_typed::<U8x3>(source, target, interpolation, span),
    };
    resized.map_err(|error| format!("cannot be resized: {error}"))
}

/// Resizes the span [left, top, width, height] of one picture to another, both of pixels of the type `P`. [`Resizer::resize`]
/// would be compiled for all 13 types of pixels, which was an eighth of this crate's code.
fn resize_typed<P: PixelTrait>(
    source: Side,
    target: (usize, usize, &mut [u8]),
    interpolation: Interpolation,
    [left, top, width, height]: [f64; 4],
) -> Result<(), Box<dyn std::error::Error>> {
    let options = ResizeOptions::new().resize_alg(algorithm(interpolation)).crop(left, top, width, height);
    let source = TypedImageRef::<P>::from_buffer(u32::try_from(source.0)?, u32::try_from(source.1)?, source.2)?;
    let mut target = TypedImage::<P>::from_buffer(u32::try_from(target.0)?, u32::try_from(target.1)?, target.2)?;
    Ok(Resizer::new().resize_typed(&source, &mut target, &options)?)
}

/// The span of the crop along one axis, in source pixels: its beginning and its length.
///
/// The axis of `length` would become `resized` pixels, of which `crop` are kept, beginning at the floor of half the
/// rest.
fn source_span(length: usize, short: usize, resize: usize, crop: usize) -> [f64; 2] {
    let resized = scaled(length, short, resize);
    let offset = (resized - crop) / 2;
    let in_source = |pixels: usize| pixels as f64 * length as f64 / resized as f64;
    let start = in_source(offset);
    [start, in_source(crop).min(length as f64 - start)]
}

/// The source rows that the filters of the kept rows may read: the first one, and the end.
fn rows_read(height: usize, top: f64, crop_height: f64, kept: usize) -> [usize; 2] {
    let widest_filter = 3.0 * (crop_height / kept as f64).max(1.0) + 2.0; // Lanczos reads 3 pixels to each side
    let first = (top - widest_filter).max(0.0) as usize;
    let end = (top + crop_height + widest_filter).ceil() as usize;
    [first, end.min(height)]
}

/// `length` x `resize` / `short`, rounded to nearest, halves up.
fn scaled(length: usize, short: usize, resize: usize) -> usize {
    (2 * length * resize + short) / (2 * short)
}

fn algorithm(interpolation: Interpolation) -> ResizeAlg {
    match interpolation {
        Interpolation::Nearest => ResizeAlg::Nearest,
        Interpolation::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
        Interpolation::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
        Interpolation::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        Interpolation::Box => ResizeAlg::Convolution(FilterType::Box),
        Interpolation::Hamming => ResizeAlg::Convolution(FilterType::Hamming),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preprocessing(height: usize, width: usize, channels: usize, resize: usize) -> Preprocessing {
        let (mean, std) = (vec![0.0; channels], vec![1.0; channels]);
        let input = Shape::new(height, width, channels);
        Preprocessing { input, mean, std, resize, interpolation: Interpolation::Bilinear }
    }

    #[test]
    fn long_side_is_rounded_to_nearest() {
        assert_eq!(scaled(451, 300, 256), 385); // 384.85
        assert_eq!(scaled(640, 427, 256), 384); // 383.70
        assert_eq!(scaled(301, 300, 256), 257); // 256.85
        assert_eq!(scaled(300, 300, 256), 256);
        assert_eq!(scaled(3, 2, 5), 8); // 7.5
    }

    #[test]
    fn unscaled_pictures_are_cropped_with_floored_offsets() {
        let pixels = (0..5 * 8).collect();
        let picture = Picture { width: 8, height: 5, channels: 1, pixels };
        let mut row = [0; 4 * 3];
        resize_and_crop(&picture, &preprocessing(4, 3, 1, 5), &mut row).unwrap();
        assert_eq!(row, [2, 3, 4, 10, 11, 12, 18, 19, 20, 26, 27, 28]); // from row (5-4)/2 = 0, column (8-3)/2 = 2
    }

    #[test]
    fn extreme_aspect_ratios_need_no_memory() {
        for (width, height) in [(65_535, 1), (1, 65_535)] {
            let picture = Picture { width, height, channels: 3, pixels: vec![77; width * height * 3] };
            let mut row = vec![0; 224 * 224 * 3];
            resize_and_crop(&picture, &preprocessing(224, 224, 3, 256), &mut row).unwrap();
            assert!(row.iter().all(|&v| v == 77));
        }
    }
}
