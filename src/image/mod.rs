//! Photos as rows of a batch: decoding, turning upright, resizing and cropping.
//!
//! [`load`] writes pixels as a model's [`Preprocessing`] describes them directly into a row, which may be page-locked
//! memory. Pixels are bytes, channels innermost; the device normalises them. [`Picture`] is for programs that use a
//! picture in another way: letterboxed, or in parts.
//!
//! | file | becomes |
//! |---|---|
//! | JPEG (baseline and progressive; gray, YCbCr, RGB, CMYK, YCCK) | RGB; inks are taken as Adobe stores them, inverted |
//! | PNG (any bit depth, palette, interlaced) | RGB; of 16 bits the upper 8 count; alpha is dropped, not blended |
//!
//! Pictures are turned by their EXIF orientation first. A model with one input channel gets the luma of ITU-R 601. The
//! content decides the format, never the name. A truncated file is an error, never a half-gray picture, also if an end
//! marker closes it: every block of a JPEG must be there, and nothing else. Two kinds of damage to a JPEG cannot be
//! detected: changed bytes that decode to as many blocks, and missing last scans of a progressive JPEG, which may lack
//! its finest detail. A PNG has checksums.
//!
//! # Memory
//!
//! All threads of a process decode within one memory budget: `TREFOIL_DECODE_MEMORY` in MiB, or by default half of the
//! memory that was free when the first photo was read, in the machine, its control group and the address space. The
//! budget is at most 7/8 of that memory, whatever the variable says. A photo
//! that does not fit beside the photos being decoded waits for them; a photo that does not fit alone is an error.

mod decode;
mod jpeg;
mod memory;
mod orientation;
mod picture;
mod png;
mod resize;

use std::ffi::OsStr;
use std::path::Path;

use crate::error::Error;
use crate::files::Opened;
use crate::model::Preprocessing;
use crate::tensor::Shape;
use decode::{Format, HEAD_BYTES, Photo};
use memory::BUDGET;
pub use picture::{Area, Picture};

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

/// Reads the photo at `path` into `row`: height x width x channels bytes of the model's input.
///
/// The shorter side is resized to `preprocessing.resize` with the model's interpolation, as Pillow does it
/// (antialiased, rounded to bytes), the longer one in proportion, rounded to nearest; then the centre is cropped,
/// offsets rounded down.
///
/// ```no_run
/// use trefoil::{image, model::Model};
/// let model = Model::open("weights/efficientnet-lite0")?;
/// let mut row = vec![0; model.preprocessing()?.input.elems()];
/// image::load("cat.jpg", model.preprocessing()?, &mut row)?;
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Io`], also for what is no regular file of at most [`MAX_FILE_BYTES`]; [`Error::Image`] for what is no whole,
/// sound JPEG or PNG of at most [`MAX_PIXELS`], or takes more memory than there is for all photos;
/// [`Error::Option`] if `row` has another length, or the preprocessing resizes to less than it crops.
pub fn load(path: impl AsRef<Path>, preprocessing: &Preprocessing, row: &mut [u8]) -> Result<(), Error> {
    let path = path.as_ref();
    check(preprocessing, row)?;
    read(path, |photo| fill(path, photo, preprocessing, row))
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
    let photo = Format::sniff(bytes).and_then(|format| Photo::read(format, bytes)).map_err(|what| wrong(name, what))?;
    let _claim = BUDGET.claim(photo.memory_bytes(), &photo.describe()).map_err(|what| wrong(name, what))?;
    fill(name, photo, preprocessing, row)
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

/// An error for arguments that no photo can satisfy.
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

/// Passes the photo at `path` to `decode`, with its memory claimed.
fn read<T>(path: &Path, decode: impl FnOnce(Photo<'_>) -> Result<T, Error>) -> Result<T, Error> {
    let wrong = |what| wrong(path, what);
    let mut file = Opened::new("open", path, MAX_FILE_BYTES)?;
    let format = Format::sniff(&file.read(HEAD_BYTES)?).map_err(wrong)?;
    let mut bytes = file.bytes;
    loop {
        let mut claim = BUDGET.claim(bytes, "the file").map_err(wrong)?;
        let content = file.read(MAX_FILE_BYTES)?;
        let photo = Photo::read(format, &content).map_err(wrong)?;
        bytes = file.bytes + photo.memory_bytes();
        BUDGET.check(bytes, &photo.describe()).map_err(wrong)?;
        if claim.grow(bytes) {
            return decode(photo);
        }
        // Other photos have the rest now: give up the claim, and wait for all of it at once.
    }
}

/// Decodes the photo into the row. The memory must be claimed.
fn fill(name: &Path, photo: Photo, wanted: &Preprocessing, row: &mut [u8]) -> Result<(), Error> {
    let picture = upright(photo, wanted.input.channels);
    picture.and_then(|picture| resize::resize_and_crop(&picture, wanted, row)).map_err(|what| wrong(name, what))
}

/// The photo turned upright, with this number of channels.
fn upright(photo: Photo, channels: usize) -> Result<Picture, String> {
    let (picture, orientation) = photo.decode()?;
    orientation.apply(picture)?.with_channels(channels)
}

fn wrong(path: &Path, what: String) -> Error {
    Error::Image { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_told_in_any_case() {
        assert!(["a.jpg", "a.JPEG", "b/c.Png"].iter().all(is_image));
        assert!(["jpg", "a.gif", "a.jpg.txt", ""].iter().all(|p| !is_image(p)));
    }
}
