//! From a file's content to an 8-bit gray or RGB picture: recognises the format, reads the size, and decodes.

use super::jpeg::Jpeg;
use super::orientation::Orientation;
use super::png::Png;
use super::{MAX_PIXELS, MAX_SIDE, Picture};

/// The bytes that suffice to recognise a format.
pub(super) const HEAD_BYTES: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
}

impl Format {
    /// The format of a file that begins with `head`; the error describes what was found instead.
    pub(super) fn sniff(head: &[u8]) -> Result<Self, String> {
        match head {
            [0xFF, 0xD8, 0xFF, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Ok(Self::Png),
            [] => Err("the file is empty; supported are JPEG and PNG".into()),
            _ => Err(format!("the content is {}; supported are JPEG and PNG", foreign_format(head))),
        }
    }
}

/// A name for content that is not supported.
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

/// A file whose headers were read; no pixel of the picture is decoded yet.
pub(super) enum Photo<'a> {
    Jpeg(Box<Jpeg<'a>>),
    Png(Box<Png<'a>>),
}

impl<'a> Photo<'a> {
    pub fn read(format: Format, bytes: &'a [u8]) -> Result<Self, String> {
        Ok(match format {
            Format::Jpeg => Self::Jpeg(Box::new(Jpeg::read(bytes)?)),
            Format::Png => Self::Png(Box::new(Png::read(bytes)?)),
        })
    }

    /// The most bytes that decoding allocates.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Jpeg(jpeg) => jpeg.memory_bytes() as u64,
            Self::Png(png) => png.memory_bytes() as u64,
        }
    }

    /// The picture as stored, and the turn that makes it upright.
    pub fn decode(self) -> Result<(Picture, Orientation), String> {
        match self {
            Self::Jpeg(jpeg) => jpeg.decode(),
            Self::Png(png) => png.decode(),
        }
    }

    /// The format and size of the picture, for errors.
    pub fn describe(&self) -> String {
        let (width, height) = match self {
            Self::Jpeg(jpeg) => jpeg.size(),
            Self::Png(png) => png.size(),
        };
        format!("a picture of {width} x {height}")
    }
}

/// An error for a picture that is empty or larger than the limits.
pub(super) fn check_size(width: usize, height: usize) -> Result<(), String> {
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
}
