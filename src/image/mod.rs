//! Photos → rows of a batch: decode, turn upright, resize, crop.
//!
//! [`load`] writes what a model's [`Preprocessing`] asks for straight into the row that it is given, which may be
//! page-locked memory. Pixels are bytes, channels innermost; the device normalises them.
//!
//! | file | becomes |
//! |---|---|
//! | JPEG (baseline and progressive; gray, YCbCr, RGB, CMYK, YCCK) | RGB; inks are taken as Adobe stores them, inverted |
//! | PNG (any bit depth, palette, interlaced) | RGB; of 16 bits the upper 8 count; alpha is dropped, not blended |
//!
//! Pictures are turned by their EXIF orientation first. A model with one input channel gets the luma of ITU-R 601.
//! The format is told by the content, never by the name. A file that is cut off is an error, never a half-gray picture.

mod decode;
mod orientation;
mod resize;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::Error;
use crate::model::Preprocessing;
use crate::tensor::Shape;
use decode::{Format, HEAD_BYTES};

/// Larger files are refused before they are read.
///
/// ```
/// let photo = std::fs::metadata("tests/data/images/rgb.png").unwrap();
/// assert!(photo.len() <= trefoil::image::MAX_FILE_BYTES);
/// ```
pub const MAX_FILE_BYTES: u64 = 1 << 30;
/// Pictures of more pixels are refused before they are decoded.
///
/// ```
/// use trefoil::image::{MAX_PIXELS, MAX_SIDE};
/// assert_eq!(3 * MAX_PIXELS, 768 << 20); // bytes that the largest picture takes in RGB
/// assert!(MAX_SIDE * MAX_SIDE > MAX_PIXELS); // not both sides may be the longest
/// ```
pub const MAX_PIXELS: usize = 1 << 28;
/// Pictures with a longer side are refused before they are decoded.
///
/// ```
/// assert_eq!(trefoil::image::MAX_SIDE, usize::from(u16::MAX)); // the most that a JPEG can have
/// ```
pub const MAX_SIDE: usize = 65_535;

/// A decoded picture: 8 bits a value, channels innermost, rows without padding.
struct Picture {
    width: usize,
    height: usize,
    /// 1 or 3.
    channels: usize,
    /// height x width x channels.
    pixels: Vec<u8>,
}

/// Reads the photo at `path` into `row`: height x width x channels bytes of the model's input.
///
/// The shorter side is resized to `preprocessing.resize` with the model's interpolation, as Pillow does it
/// (antialiased, rounded to bytes), the longer one in proportion, rounded to nearest; then the centre is cropped,
/// offsets rounded down.
///
/// ```no_run
/// use trefoil::{image, model::Model};
/// let model = Model::open("weights/efficientnet-lite0")?;
/// let mut row = vec![0; model.preprocessing().input.elems()];
/// image::load("cat.jpg", model.preprocessing(), &mut row)?;
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Io`]; [`Error::Image`] for what is no whole, sound JPEG or PNG of at most [`MAX_PIXELS`];
/// [`Error::Option`] if `row` has another length, or the preprocessing resizes to less than it crops.
pub fn load(path: impl AsRef<Path>, preprocessing: &Preprocessing, row: &mut [u8]) -> Result<(), Error> {
    let path = path.as_ref();
    check(preprocessing, row)?;
    let (format, bytes) = read(path)?;
    fill(path, format, &bytes, preprocessing, row)
}

/// As [`load`], from a file's content; `name` stands in errors.
///
/// ```
/// use trefoil::{Shape, image, model::Preprocessing};
/// let preprocessing = Preprocessing::new(Shape::new(8, 8, 3));
/// let mut row = [0; 8 * 8 * 3];
/// # let upload = std::fs::read("tests/data/images/rgb.png").unwrap();
/// image::load_bytes("an upload", &upload, &preprocessing, &mut row)?;
/// assert!(row.iter().any(|&value| value > 0));
/// let error = image::load_bytes("another", b"not a photo", &preprocessing, &mut row).unwrap_err();
/// assert!(error.to_string().contains("another"), "{error}");
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// As [`load`], but for [`Error::Io`].
pub fn load_bytes(
    name: impl AsRef<Path>,
    bytes: &[u8],
    preprocessing: &Preprocessing,
    row: &mut [u8],
) -> Result<(), Error> {
    let name = name.as_ref();
    check(preprocessing, row)?;
    let format = Format::sniff(bytes).map_err(|what| wrong(name, what))?;
    fill(name, format, bytes, preprocessing, row)
}

/// Whether the extension is one of a format that [`load`] reads; for walks through folders.
///
/// ```
/// assert!(trefoil::image::is_image("holiday/IMG_0001.JPG"));
/// assert!(!trefoil::image::is_image("holiday/notes.txt"));
/// ```
pub fn is_image(path: impl AsRef<Path>) -> bool {
    const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "jpe", "jfif", "png"];
    let extension = path.as_ref().extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    extension.is_some_and(|e| EXTENSIONS.contains(&e.as_str()))
}

/// Refuses arguments that no photo could satisfy.
fn check(preprocessing: &Preprocessing, row: &[u8]) -> Result<(), Error> {
    let Shape { height, width, channels } = preprocessing.input;
    if !matches!(channels, 1 | 3) {
        return Err(Error::option("preprocessing.input.channels", channels, "1 (gray) or 3 (RGB) for photos"));
    }
    if preprocessing.resize < height.max(width) || height.min(width) == 0 {
        let expected = format!("at least 1, and no less than the crop of {height} x {width}");
        return Err(Error::option("preprocessing.resize", preprocessing.resize, expected));
    }
    if row.len() != preprocessing.input.elems() {
        let expected = format!("{} for an input of {}", preprocessing.input.elems(), preprocessing.input);
        return Err(Error::option("row.len()", row.len(), expected));
    }
    Ok(())
}

/// A file's format and content; what cannot be a photo is not read to its end.
fn read(path: &Path) -> Result<(Format, Vec<u8>), Error> {
    let read_error = |source| Error::io("read", path, source);
    let mut file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(read_error)?;
    let format = Format::sniff(&bytes).map_err(|what| wrong(path, what))?;
    let size = file.metadata().map_err(read_error)?.len();
    bytes.reserve_exact(size.min(MAX_FILE_BYTES) as usize);
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(path, format!("more than {MAX_FILE_BYTES} bytes, the limit for one photo")));
    }
    Ok((format, bytes))
}

fn fill(name: &Path, format: Format, bytes: &[u8], wanted: &Preprocessing, row: &mut [u8]) -> Result<(), Error> {
    let (picture, orientation) = decode::decode(format, bytes).map_err(|what| wrong(name, what))?;
    let picture = orientation.apply(picture).with_channels(wanted.input.channels);
    resize::resize_and_crop(&picture, wanted, row).map_err(|what| wrong(name, what))
}

fn wrong(path: &Path, what: String) -> Error {
    Error::Image { path: path.to_owned(), what }
}

impl Picture {
    /// The picture in RGB (3 channels) or gray (1), by the rounding that Pillow's `convert` has.
    fn with_channels(self, channels: usize) -> Self {
        let pixels = match (self.channels, channels) {
            (3, 1) => self.pixels.chunks_exact(3).map(|p| luma(p[0], p[1], p[2])).collect(),
            (1, 3) => self.pixels.iter().flat_map(|&v| [v; 3]).collect(),
            _ => return self,
        };
        Self { channels, pixels, ..self }
    }
}

/// ITU-R 601 luma: 0.299 R + 0.587 G + 0.114 B in 16 fractional bits.
fn luma(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_survives_the_way_through_rgb() {
        let gray = Picture { width: 256, height: 1, channels: 1, pixels: (0..=255).collect() };
        assert_eq!(gray.with_channels(3).with_channels(1).pixels, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn extensions_are_told_in_any_case() {
        assert!(["a.jpg", "a.JPEG", "b/c.Png"].iter().all(is_image));
        assert!(["jpg", "a.gif", "a.jpg.txt", ""].iter().all(|p| !is_image(p)));
    }
}
