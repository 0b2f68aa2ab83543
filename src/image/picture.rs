//! Decoded pictures: opening, cutting, resizing and combining.

use std::path::Path;

use super::{decode, memory, read, resize, wrong};
use crate::error::Error;
use crate::model::Interpolation;

/// A decoded picture: bytes, rows without padding, channels innermost.
///
/// A picture that a program opens or makes is in RGB. [`Picture::draw`] resizes any part of one picture into any part of
/// another, which is letterboxing, cropping and padding:
///
/// ```
/// use trefoil::image::{Area, Picture};
/// use trefoil::model::Interpolation;
///
/// let photo = Picture::open("tests/data/images/rgb.png")?;
/// let mut square = Picture::filled(64, 64, [114; 3])?;
/// let height = 64 * photo.height() / photo.width();
/// let middle = Area { left: 0, top: (64 - height) / 2, width: 64, height };
/// square.draw(middle, &photo, photo.area(), Interpolation::Bilinear)?;
/// assert_eq!(square.pixels().len(), 64 * 64 * 3);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(super) width: usize,
    pub(super) height: usize,
    /// The number of channels: 1 or 3.
    pub(super) channels: usize,
    /// The bytes of height x width x channels.
    pub(super) pixels: Vec<u8>,
}

/// A part of a picture, in pixels from its upper left corner.
///
/// ```
/// use trefoil::image::{Area, Picture};
/// let whole = Picture::filled(8, 5, [0; 3])?.area();
/// assert_eq!(whole, Area { left: 0, top: 0, width: 8, height: 5 });
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Columns to the left of the area.
    pub left: usize,
    /// Rows above the area.
    pub top: usize,
    /// Columns of the area.
    pub width: usize,
    /// Rows of the area.
    pub height: usize,
}

/// The number of channels of an RGB picture.
const RGB: usize = 3;

impl Picture {
    /// Opens the photo at `path`, turned upright, in RGB. The picture takes 3 bytes for each pixel; decoding takes a
    /// part of the [memory](crate::image#memory) that photos share.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Image`], as [`load`](crate::image::load).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        read(path, |photo| super::upright(photo, RGB).map_err(|what| wrong(path, what)))
    }

    /// A picture of one colour: red, green and blue.
    ///
    /// # Errors
    /// [`Error::Option`] for a picture without pixels, or with more than [`MAX_PIXELS`](crate::image::MAX_PIXELS).
    pub fn filled(width: usize, height: usize, colour: [u8; 3]) -> Result<Self, Error> {
        decode::check_size(width, height)
            .map_err(|what| Error::option("picture", format!("{width} x {height}"), what))?;
        Ok(Self { width, height, channels: RGB, pixels: colour.repeat(width * height) })
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Height x width x 3 bytes: red, green and blue of each pixel.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The area of the whole picture.
    pub fn area(&self) -> Area {
        Area { left: 0, top: 0, width: self.width, height: self.height }
    }

    /// Resizes the part `from` of `source` and writes it to the part `to` of this picture, with the values that Pillow
    /// has for `source.crop(from).resize(to)`.
    ///
    /// # Errors
    /// [`Error::Option`] for a part that is empty or not within its picture.
    pub fn draw(&mut self, to: Area, source: &Self, from: Area, interpolation: Interpolation) -> Result<(), Error> {
        to.check("to", self)?;
        from.check("from", source)?;
        let pixels = resize::resized(source, from, [to.width, to.height], interpolation)
            .map_err(|what| Error::option("from", format!("{from:?}"), what))?;
        let row = to.width * RGB;
        for (line, drawn) in pixels.chunks_exact(row).enumerate() {
            let at = ((to.top + line) * self.width + to.left) * RGB;
            self.pixels[at..at + row].copy_from_slice(drawn);
        }
        Ok(())
    }

    /// The picture in RGB (3 channels) or gray (1), rounded as by Pillow's `convert`.
    pub(super) fn with_channels(self, channels: usize) -> Result<Self, String> {
        if self.channels == channels {
            return Ok(self);
        }
        let mut pixels = memory::reserved(self.width * self.height * channels)?;
        match channels {
            1 => pixels.extend(self.pixels.chunks_exact(3).map(|p| luma(p[0], p[1], p[2]))),
            _ => pixels.extend(self.pixels.iter().flat_map(|&v| [v; 3])),
        }
        Ok(Self { channels, pixels, ..self })
    }
}

impl Area {
    /// An error for an area that is empty or not within `picture`; `name` is for the error.
    fn check(self, name: &'static str, picture: &Picture) -> Result<(), Error> {
        let Self { left, top, width, height } = self;
        let fits = |from: usize, length: usize, of| length > 0 && from.checked_add(length).is_some_and(|end| end <= of);
        if fits(left, width, picture.width) && fits(top, height, picture.height) {
            return Ok(());
        }
        let expected = format!("a part of a picture of {} x {}", picture.width, picture.height);
        Err(Error::option(name, format!("{self:?}"), expected))
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
        assert_eq!(
            gray.with_channels(3).and_then(|rgb| rgb.with_channels(1)).unwrap().pixels,
            (0..=255).collect::<Vec<u8>>()
        );
    }

    #[test]
    fn a_part_is_drawn_where_it_belongs() {
        let mut source = Picture::filled(4, 4, [0; 3]).unwrap();
        source.pixels[(4 + 2) * 3..(4 + 4) * 3].fill(200); // the right half of row 1
        let mut target = Picture::filled(6, 5, [9; 3]).unwrap();
        let to = Area { left: 1, top: 2, width: 4, height: 2 };
        let from = Area { left: 2, top: 1, width: 2, height: 1 };
        target.draw(to, &source, from, Interpolation::Bilinear).unwrap();
        let seen: Vec<u8> = target.pixels().chunks_exact(3).map(|pixel| pixel[0]).collect();
        let [n, o] = [9, 200];
        let rows = [[n; 6], [n; 6], [n, o, o, o, o, n], [n, o, o, o, o, n], [n; 6]];
        assert_eq!(seen, rows.concat());
    }

    #[test]
    fn parts_outside_are_named() {
        let picture = Picture::filled(4, 3, [0; 3]).unwrap();
        let whole = picture.area();
        for part in [
            Area { left: 1, ..whole },
            Area { top: usize::MAX, ..whole },
            Area { width: 0, ..whole },
            Area { height: 4, ..whole },
        ] {
            let drawn = [(part, whole, "to"), (whole, part, "from")];
            for (to, from, name) in drawn {
                match picture.clone().draw(to, &picture, from, Interpolation::Box) {
                    Err(Error::Option { option, .. }) => assert_eq!(option, name),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(matches!(Picture::filled(0, 4, [0; 3]), Err(Error::Option { .. })));
        assert!(matches!(Picture::filled(usize::MAX, 4, [0; 3]), Err(Error::Option { .. })));
    }
}
