//! JPEG and PNG → 8-bit gray or RGB.
//!
//! Both decoders are told to be strict, and what they would let pass is checked here: a JPEG must reach its end
//! marker, and a header must not announce more pixels than its file can hold.

use std::io::Cursor;

use png::{ColorType, Limits, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::orientation::Orientation;
use super::{MAX_PIXELS, MAX_SIDE, Picture};

/// Bytes that are enough to tell a format.
pub(super) const HEAD_BYTES: usize = 16;

/// What the decoders may allocate beside the picture: EXIF and colour profiles.
const MAX_METADATA_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
}

impl Format {
    /// The format of a file that begins with `head`, else what was found instead.
    pub(super) fn sniff(head: &[u8]) -> Result<Self, String> {
        match head {
            [0xFF, 0xD8, 0xFF, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Ok(Self::Png),
            [] => Err("the file is empty; supported are JPEG and PNG".into()),
            _ => Err(format!("the content is {}; supported are JPEG and PNG", foreign_format(head))),
        }
    }
}

/// A name for what is not supported.
fn foreign_format(head: &[u8]) -> String {
    let name = match head {
        [b'G', b'I', b'F', b'8', ..] => "GIF",
        [b'B', b'M', ..] => "BMP",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "WebP",
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => "TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', b'e' | b'i', ..] => "HEIC",
        [0xFF, 0x0A, ..] | [0, 0, 0, 0x0C, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0, 0, 0, 0x0C, b'j', b'P', b' ', b' ', ..] | [0xFF, 0x4F, 0xFF, 0x51, ..] => "JPEG 2000",
        [b'%', b'P', b'D', b'F', ..] => "PDF",
        _ => {
            let bytes: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
            return format!("of no known format (it begins with the bytes {})", bytes.join(" "));
        }
    };
    name.into()
}

/// The picture in a file's content, as stored, and how to turn it.
pub(super) fn decode(format: Format, bytes: &[u8]) -> Result<(Picture, Orientation), String> {
    match format {
        Format::Jpeg => jpeg(bytes),
        Format::Png => png(bytes),
    }
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    if width == 0 || height == 0 {
        return Err(format!("a picture of {width} x {height} has no pixels"));
    }
    if width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_PIXELS {
        return Err(format!(
            "{width} x {height} is too large: at most {MAX_SIDE} pixels a side and {MAX_PIXELS} in all are decoded"
        ));
    }
    Ok(())
}

fn jpeg(bytes: &[u8]) -> Result<(Picture, Orientation), String> {
    let wrong = |error: zune_jpeg::errors::DecodeErrors| format!("not a sound JPEG: {error}");
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(wrong)?;
    let (width, height) = decoder.dimensions().ok_or("not a sound JPEG: no frame header")?;
    check_size(width, height)?;
    check_jpeg_length(bytes, width, height)?;
    if !matches!(
        decoder.input_colorspace(),
        Some(ColorSpace::Luma | ColorSpace::YCbCr | ColorSpace::RGB | ColorSpace::CMYK | ColorSpace::YCCK)
    ) {
        return Err("a JPEG with this number of components is not supported; gray, RGB and CMYK are".into());
    }
    let gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    if gray {
        decoder.set_options(options.jpeg_set_out_colorspace(ColorSpace::Luma));
    }
    let channels = if gray { 1 } else { 3 };
    let mut pixels = vec![0; width * height * channels];
    if decoder.output_buffer_size() != Some(pixels.len()) {
        return Err(format!("not a sound JPEG: its frame header does not give {} bytes", pixels.len()));
    }
    decoder.decode_into(&mut pixels).map_err(wrong)?;
    let orientation = decoder.exif().map_or_else(Orientation::default, |exif| Orientation::from_exif(exif));
    Ok((Picture { width, height, channels, pixels }, orientation))
}

/// Refuses a file that announces more than it holds, or that is cut off: the decoder paints the rest of a last row of
/// blocks gray and says nothing.
fn check_jpeg_length(bytes: &[u8], width: usize, height: usize) -> Result<(), String> {
    // A block of 8 x 8 takes a bit at least, and one component has as many blocks as the picture.
    if width.div_ceil(8) * height.div_ceil(8) > 8 * bytes.len() {
        return Err(format!("the file is cut off: {} bytes cannot hold {width} x {height} pixels", bytes.len()));
    }
    if !reaches_end_of_image(bytes) {
        return Err(format!("the file is cut off: its {} bytes have no end-of-image marker", bytes.len()));
    }
    Ok(())
}

/// Walks the segments of a JPEG to its end marker, past thumbnails, which have markers of their own.
fn reaches_end_of_image(bytes: &[u8]) -> bool {
    const SOI: u8 = 0xD8;
    const EOI: u8 = 0xD9;
    const TEM: u8 = 0x01;
    let mut at = 0;
    loop {
        // To the next marker: in a scan past stuffed bytes (FF 00) and restarts, between segments past fill bytes.
        let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|&b| b == 0xFF)) else { return false };
        at += found + 1;
        match bytes.get(at) {
            None => return false,
            Some(&EOI) => return true,
            Some(&0xFF) => {}
            Some(&(0 | TEM | SOI | 0xD0..=0xD7)) => at += 1,
            Some(_) => match bytes.get(at + 1..at + 3) {
                Some(&[high, low]) => at += 1 + usize::from(u16::from_be_bytes([high, low])),
                _ => return false,
            },
        }
    }
}

fn png(bytes: &[u8]) -> Result<(Picture, Orientation), String> {
    let wrong = |error: png::DecodingError| match error {
        png::DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            format!("the file is cut off: a PNG of {} bytes without its end", bytes.len())
        }
        other => format!("not a sound PNG: {other}"),
    };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_METADATA_BYTES });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.ignore_checksums(false);
    let mut reader = decoder.read_info().map_err(wrong)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    check_png_length(bytes, reader.info().raw_bytes(), width, height)?;

    let stored_bytes = reader.output_buffer_size().ok_or("the picture is too large")?;
    let mut stored = vec![0; stored_bytes];
    let frame = reader.next_frame(&mut stored).map_err(wrong)?;
    reader.finish().map_err(wrong)?;
    stored.truncate(frame.buffer_size());
    let (channels, pixels) = match frame.color_type {
        ColorType::Grayscale => (1, stored),
        ColorType::GrayscaleAlpha => (1, keep_first::<2, 1>(stored)),
        ColorType::Rgb => (3, stored),
        ColorType::Rgba => (3, keep_first::<4, 3>(stored)),
        ColorType::Indexed => return Err("not a sound PNG: a palette picture without a palette".into()),
    };
    if (frame.width as usize, frame.height as usize) != (width, height) || pixels.len() != width * height * channels {
        return Err(format!("not a sound PNG: its first frame is not {width} x {height}"));
    }
    let orientation = reader.info().exif_metadata.as_deref().map_or_else(Orientation::default, Orientation::from_exif);
    Ok((Picture { width, height, channels, pixels }, orientation))
}

/// Refuses a file that announces more than it holds: deflate packs at most 1032 bytes into one.
fn check_png_length(bytes: &[u8], raw_bytes: usize, width: usize, height: usize) -> Result<(), String> {
    if raw_bytes > 1032 * bytes.len() {
        return Err(format!("the file is cut off: {} bytes cannot hold {width} x {height} pixels", bytes.len()));
    }
    Ok(())
}

/// The first KEPT of every STORED values, in place.
fn keep_first<const STORED: usize, const KEPT: usize>(mut pixels: Vec<u8>) -> Vec<u8> {
    let count = pixels.len() / STORED;
    for i in 0..count {
        pixels.copy_within(i * STORED..i * STORED + KEPT, i * KEPT);
    }
    pixels.truncate(count * KEPT);
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_content() {
        assert_eq!(Format::sniff(&[0xFF, 0xD8, 0xFF, 0xE0]), Ok(Format::Jpeg));
        assert_eq!(Format::sniff(b"\x89PNG\r\n\x1a\n"), Ok(Format::Png));
        let refused = |head: &[u8]| Format::sniff(head).unwrap_err();
        assert!(refused(b"GIF89a").contains("GIF"));
        assert!(refused(b"RIFF\x10\0\0\0WEBPVP8 ").contains("WebP"));
        assert!(refused(b"\0\0\0\x18ftypheic").contains("HEIC"));
        assert!(refused(b"<html>").contains("3c 68 74"));
        assert!(refused(b"").contains("empty"));
    }

    #[test]
    fn sizes_have_limits() {
        assert!(check_size(16_384, 16_384).is_ok());
        assert!(check_size(65_535, 4_096).is_ok());
        assert!(check_size(16_384, 16_385).is_err());
        assert!(check_size(65_536, 1).is_err());
        assert!(check_size(0, 5).is_err());
        assert!(check_size(u32::MAX as usize, u32::MAX as usize).is_err());
    }

    #[test]
    fn the_end_marker_is_found_behind_segments_only() {
        let file =
            [0xFF, 0xD8, 0xFF, 0xE1, 0, 4, 0xFF, 0xD9, 0xFF, 0xDA, 0, 2, 1, 0xFF, 0, 2, 0xFF, 0xD0, 3, 0xFF, 0xD9];
        assert!(reaches_end_of_image(&file));
        for length in 0..file.len() {
            assert!(!reaches_end_of_image(&file[..length]), "{length}");
        }
    }

    #[test]
    fn alpha_is_dropped_in_place() {
        assert_eq!(keep_first::<4, 3>(vec![1, 2, 3, 9, 4, 5, 6, 9]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(keep_first::<2, 1>(vec![1, 9, 2, 9]), [1, 2]);
    }
}
