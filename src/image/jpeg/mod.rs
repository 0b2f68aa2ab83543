//! Decodes JPEG files to 8-bit gray or RGB pictures.
//!
//! The decoder `zune-jpeg` fills up missing data without an error, and finds out the colours by other markers than
//! other decoders do. So the file is first checked here: its headers ([`outline`]), and whether its data is complete
//! ([`scan`]). The decoder then gets only the parts that it needs ([`plain`]), with the colours given in the way that
//! it knows.

mod huffman;
mod marker;
mod outline;
mod plain;
mod scan;
mod standard;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::decode::check_size;
use super::orientation::Orientation;
use super::{MAX_SIDE, Picture, memory};
use outline::{Colours, Outline};

/// The bytes of a block of 64 coefficients in the decoder.
const BLOCK_BYTES: usize = 64 * 2;

/// A JPEG whose headers were read.
pub(super) struct Jpeg<'a> {
    bytes: &'a [u8],
    outline: Outline<'a>,
}

impl<'a> Jpeg<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let outline = Outline::read(bytes)?;
        let (width, height) = (outline.frame.width, outline.frame.height);
        check_size(width, height)?;
        // A block of 8 x 8 pixels takes at least one bit, and one of the components has as many blocks as the picture.
        if width.div_ceil(8) * height.div_ceil(8) > 8 * bytes.len() {
            return Err(format!("the file is cut off: {} bytes cannot hold {width} x {height} pixels", bytes.len()));
        }
        Ok(Self { bytes, outline })
    }

    pub fn size(&self) -> (usize, usize) {
        (self.outline.frame.width, self.outline.frame.height)
    }

    /// The most bytes that decoding allocates: the file in plain form, the picture, and its coefficients or the turned
    /// picture.
    pub fn memory_bytes(&self) -> usize {
        let picture = self.picture_bytes();
        self.bytes.len() + picture + picture.max(self.coefficient_bytes())
    }

    pub fn decode(&self) -> Result<(Picture, Orientation), String> {
        scan::check(&self.outline)?;
        let ((width, height), plain) = (self.size(), plain::file(&self.outline, self.bytes.len())?);
        let wrong = |error: zune_jpeg::errors::DecodeErrors| format!("not a sound JPEG: {error}");
        memory::probe(self.coefficient_bytes())?; // for these the decoder does not ask
        let mut pixels = memory::zeros(self.picture_bytes())?;
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&plain), self.options());
        decoder.decode_headers().map_err(wrong)?;
        if decoder.output_buffer_size() != Some(pixels.len()) {
            return Err(format!("not a sound JPEG: its frame header does not give {} bytes", pixels.len()));
        }
        decoder.decode_into(&mut pixels).map_err(wrong)?;
        let orientation = self.outline.exif.map(Orientation::from_exif).unwrap_or_default();
        Ok((Picture { width, height, channels: self.channels(), pixels }, orientation))
    }

    fn options(&self) -> DecoderOptions {
        let colours = if self.channels() == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
        DecoderOptions::default()
            .set_strict_mode(true)
            .set_max_width(MAX_SIDE)
            .set_max_height(MAX_SIDE)
            .jpeg_set_out_colorspace(colours)
    }

    fn channels(&self) -> usize {
        if self.outline.colours == Colours::Gray { 1 } else { 3 }
    }

    fn picture_bytes(&self) -> usize {
        self.outline.frame.width * self.outline.frame.height * self.channels()
    }

    fn coefficient_bytes(&self) -> usize {
        if self.outline.is_buffered() { self.outline.frame.padded_blocks() * BLOCK_BYTES } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a file of 16384 x 16384 pixels with halved chroma along both axes, and data of a size that could
    /// hold all blocks.
    fn large(frame: u8, scan_components: u8) -> Vec<u8> {
        let mut file = vec![0xFF, marker::SOI, 0xFF, frame, 0, 17, 8, 64, 0, 64, 0, 3];
        file.extend([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0]);
        file.extend([0xFF, marker::SOS, 0, 6 + 2 * scan_components, scan_components]);
        file.extend((1..=scan_components).flat_map(|id| [id, 0]));
        file.extend([0, 0, 0]);
        file.extend(vec![0; 1 << 20]);
        file.extend([0xFF, marker::EOI]);
        file
    }

    #[test]
    fn what_decoding_takes_is_known_before() {
        let bytes = |file: &[u8]| Jpeg::read(file).unwrap().memory_bytes() - file.len();
        let (picture, coefficients) = (3 << 28, (3 << 27) * 2);
        assert_eq!(bytes(&large(marker::SOF0, 3)), 2 * picture, "as stored, and turned");
        assert_eq!(bytes(&large(marker::SOF2, 3)), picture + coefficients);
        assert_eq!(bytes(&large(marker::SOF0, 1)), picture + coefficients, "scans of one component each");
    }
}
