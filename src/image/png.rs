//! Decodes PNG files to 8-bit gray or RGB pictures.

use std::io::Cursor;

use png::{ColorType, Decoder, Info, Limits, Reader, Transformations};

use super::decode::check_size;
use super::orientation::Orientation;
use super::{Picture, memory};

/// The most bytes that the decoder may allocate besides the picture.
const MAX_METADATA_BYTES: usize = 64 << 20;

/// A PNG whose headers were read, up to the picture's data.
pub(super) struct Png<'a> {
    bytes: &'a [u8],
    reader: Reader<Cursor<&'a [u8]>>,
    /// The bytes that the decoder writes, with alpha.
    stored_bytes: usize,
}

impl<'a> Png<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_METADATA_BYTES });
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.ignore_checksums(false);
        let reader = decoder.read_info().map_err(|error| wrong(error, bytes))?;
        let (width, height) = (reader.info().width as usize, reader.info().height as usize);
        check_size(width, height)?;
        check_palette(reader.info())?;
        // Deflate packs at most 1032 bytes into one byte.
        if reader.info().raw_bytes() > 1032 * bytes.len() {
            return Err(format!("the file is cut off: {} bytes cannot hold {width} x {height} pixels", bytes.len()));
        }
        let stored_bytes = reader.output_buffer_size().ok_or("the picture is too large")?;
        Ok(Self { bytes, reader, stored_bytes })
    }

    pub fn size(&self) -> (usize, usize) {
        (self.reader.info().width as usize, self.reader.info().height as usize)
    }

    /// The most bytes that decoding allocates: the picture as stored, and the turned picture.
    pub fn memory_bytes(&self) -> usize {
        let (width, height) = self.size();
        self.stored_bytes + 3 * width * height
    }

    pub fn decode(mut self) -> Result<(Picture, Orientation), String> {
        let (width, height) = self.size();
        let mut stored = memory::zeros(self.stored_bytes)?;
        let frame = self.reader.next_frame(&mut stored).map_err(|error| wrong(error, self.bytes))?;
        self.reader.finish().map_err(|error| wrong(error, self.bytes))?;
        stored.truncate(frame.buffer_size());
        let (channels, pixels) = match frame.color_type {
            ColorType::Grayscale => (1, stored),
            ColorType::GrayscaleAlpha => (1, keep_first::<2, 1>(stored)),
            ColorType::Rgb => (3, stored),
            ColorType::Rgba => (3, keep_first::<4, 3>(stored)),
            ColorType::Indexed => return Err("not a sound PNG: a palette picture without a palette".into()),
        };
        if (frame.width as usize, frame.height as usize) != (width, height) || pixels.len() != width * height * channels
        {
            return Err(format!("not a sound PNG: its first frame is not {width} x {height}"));
        }
        let orientation = self.reader.info().exif_metadata.as_deref().map(Orientation::from_exif).unwrap_or_default();
        Ok((Picture { width, height, channels, pixels }, orientation))
    }
}

/// An error for a palette that ends within a colour, on which the decoder would panic. The decoder itself refuses other
/// wrong lengths.
fn check_palette(info: &Info<'_>) -> Result<(), String> {
    let bytes = info.palette.as_deref().map_or(0, <[u8]>::len);
    if info.color_type == ColorType::Indexed && !bytes.is_multiple_of(3) {
        return Err(format!("not a sound PNG: a palette of {bytes} bytes, expected 3 for each colour"));
    }
    Ok(())
}

fn wrong(error: png::DecodingError, bytes: &[u8]) -> String {
    match error {
        png::DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            format!("the file is cut off: a PNG of {} bytes without its end", bytes.len())
        }
        other => format!("not a sound PNG: {other}"),
    }
}

/// Keeps the first KEPT of every STORED values, in place.
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

    /// A PNG of one pixel, with the first colour of this palette.
    fn with_palette(palette: Vec<u8>) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 1, 1);
        encoder.set_color(ColorType::Indexed);
        encoder.set_palette(palette);
        encoder.write_header().unwrap().write_image_data(&[0]).unwrap();
        file
    }

    #[test]
    fn palettes_that_are_no_list_of_colours_are_refused() {
        for bytes in [3, 6, 768] {
            let file = with_palette((1..=3).cycle().take(bytes).collect());
            let (picture, _) = Png::read(&file).unwrap().decode().unwrap();
            assert_eq!(picture.pixels, [1, 2, 3]);
        }
        for bytes in [4, 5, 49, 767] {
            let error = Png::read(&with_palette(vec![1; bytes])).map(drop).unwrap_err();
            assert!(error.contains(&format!("a palette of {bytes} bytes")), "{error}");
        }
        for bytes in [1, 2, 769, 3000] {
            assert!(Png::read(&with_palette(vec![1; bytes])).is_err(), "{bytes}");
        }
    }

    #[test]
    fn alpha_is_dropped_in_place() {
        assert_eq!(keep_first::<4, 3>(vec![1, 2, 3, 9, 4, 5, 6, 9]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(keep_first::<2, 1>(vec![1, 9, 2, 9]), [1, 2]);
    }
}
