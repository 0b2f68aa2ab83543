//! EXIF orientation: a small parser for its tag, and the eight ways to turn a picture.

use super::{Picture, memory};

/// How a stored picture must be turned to stand upright; the numbers are those of EXIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Orientation {
    #[default]
    Upright = 1,
    MirroredLeftRight = 2,
    UpsideDown = 3,
    MirroredTopBottom = 4,
    /// Mirror along the main diagonal.
    Transposed = 5,
    /// Turn by 90 degrees clockwise.
    TurnRight = 6,
    /// Mirror along the other diagonal.
    Transversed = 7,
    /// Turn by 90 degrees counter-clockwise.
    TurnLeft = 8,
}

/// The number of output rows that are written side by side when columns become rows, so that each cache line that is
/// read is used completely.
const TILE_ROWS: usize = 16;

impl Orientation {
    /// The orientation tag in an EXIF block, which begins with a TIFF header; upright if the block is damaged or has no
    /// such tag.
    pub(super) fn from_exif(exif: &[u8]) -> Self {
        orientation_tag(exif).and_then(Self::from_number).unwrap_or_default()
    }

    fn from_number(n: u16) -> Option<Self> {
        use Orientation::*;
        let all =
            [Upright, MirroredLeftRight, UpsideDown, MirroredTopBottom, Transposed, TurnRight, Transversed, TurnLeft];
        all.get(usize::from(n).checked_sub(1)?).copied()
    }

    /// The picture turned upright.
    pub(super) fn apply(self, picture: Picture) -> Result<Picture, String> {
        if self == Self::Upright {
            return Ok(picture);
        }
        let (w, h) = (picture.width as isize, picture.height as isize);
        let (last_column, last_row) = (w - 1, (h - 1) * w);
        // Source pixel of output (x, y): origin + x * step_x + y * step_y.
        let (origin, step_x, step_y) = match self {
            Self::Upright => (0, 1, w),
            Self::MirroredLeftRight => (last_column, -1, w),
            Self::UpsideDown => (last_row + last_column, -1, -w),
            Self::MirroredTopBottom => (last_row, 1, -w),
            Self::Transposed => (0, w, 1),
            Self::TurnRight => (last_row, -w, 1),
            Self::Transversed => (last_row + last_column, -w, -1),
            Self::TurnLeft => (last_column, w, -1),
        };
        let (width, height) = match (self as u8) < Self::Transposed as u8 {
            true => (picture.width, picture.height),
            false => (picture.height, picture.width),
        };
        let source = |x: usize, y: usize| (origin + x as isize * step_x + y as isize * step_y) as usize;
        let pixels = match picture.channels {
            1 => gather::<1>(&picture.pixels, width, height, source)?,
            _ => gather::<3>(&picture.pixels, width, height, source)?,
        };
        Ok(Picture { width, height, pixels, ..picture })
    }
}

/// width x height pixels of C values, each from the source pixel that `source(x, y)` names.
fn gather<const C: usize>(
    pixels: &[u8],
    width: usize,
    height: usize,
    source: impl Fn(usize, usize) -> usize,
) -> Result<Vec<u8>, String> {
    let mut out = memory::zeros(width * height * C)?;
    for (tile, rows) in out.chunks_mut(TILE_ROWS * width * C).enumerate() {
        let tile_rows = rows.len() / (width * C);
        for x in 0..width {
            for y in 0..tile_rows {
                let from = source(x, tile * TILE_ROWS + y) * C;
                let to = (y * width + x) * C;
                rows[to..to + C].copy_from_slice(&pixels[from..from + C]);
            }
        }
    }
    Ok(out)
}

/// The value of tag 0x0112 in the first directory of a TIFF structure.
fn orientation_tag(tiff: &[u8]) -> Option<u16> {
    const TAG: u16 = 0x0112;
    const SHORT: u16 = 3;
    const LONG: u16 = 4;
    const ENTRY_BYTES: usize = 12;
    let big_endian = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let u32_at = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let directory = usize::try_from(u32_at(4)?).ok()?;
    let entries = usize::from(u16_at(directory)?);
    let first = directory.checked_add(2)?;
    (0..entries)
        .map(|i| first.saturating_add(i * ENTRY_BYTES))
        .find(|&entry| u16_at(entry) == Some(TAG))
        .filter(|&entry| u32_at(entry + 4) == Some(1))
        .and_then(|entry| match u16_at(entry + 2)? {
            SHORT => u16_at(entry + 8),
            LONG => u32_at(entry + 8)?.try_into().ok(),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TIFF block with one entry, the orientation in two bytes or in four.
    fn exif(n: u32, is_long: bool, big_endian: bool) -> Vec<u8> {
        let mut block = if big_endian { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
        let mut put = |bytes: &[u8]| match big_endian {
            true => block.extend(bytes.iter().rev()),
            false => block.extend(bytes),
        };
        put(&8u32.to_le_bytes());
        put(&1u16.to_le_bytes());
        put(&0x0112u16.to_le_bytes());
        put(&(3 + u16::from(is_long)).to_le_bytes());
        put(&1u32.to_le_bytes());
        if is_long {
            put(&n.to_le_bytes());
        } else {
            put(&(n as u16).to_le_bytes());
            put(&[0, 0]);
        }
        put(&0u32.to_le_bytes());
        block
    }

    #[test]
    fn reads_both_byte_orders_and_ignores_nonsense() {
        for (big_endian, is_long) in [(false, false), (false, true), (true, false), (true, true)] {
            let of = |n| Orientation::from_exif(&exif(n, is_long, big_endian));
            assert_eq!((of(6), of(9), of(0)), (Orientation::TurnRight, Orientation::Upright, Orientation::Upright));
            let whole = exif(8, is_long, big_endian);
            for length in 0..whole.len() {
                Orientation::from_exif(&whole[..length]); // must not panic
            }
        }
        assert_eq!(Orientation::from_exif(&exif(0x1_0006, true, false)), Orientation::Upright);
        let far = [b"II*\0".as_slice(), &u32::MAX.to_le_bytes()].concat();
        assert_eq!(Orientation::from_exif(&far), Orientation::Upright);
    }

    #[test]
    fn turns_a_small_picture() {
        // 1 2 3
        // 4 5 6
        let turned = |n: u16| {
            let picture = Picture { width: 3, height: 2, channels: 1, pixels: vec![1, 2, 3, 4, 5, 6] };
            let out = Orientation::from_number(n).unwrap().apply(picture).unwrap();
            (out.width, out.pixels)
        };
        assert_eq!(turned(1), (3, vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(turned(2), (3, vec![3, 2, 1, 6, 5, 4]));
        assert_eq!(turned(3), (3, vec![6, 5, 4, 3, 2, 1]));
        assert_eq!(turned(4), (3, vec![4, 5, 6, 1, 2, 3]));
        assert_eq!(turned(5), (2, vec![1, 4, 2, 5, 3, 6]));
        assert_eq!(turned(6), (2, vec![4, 1, 5, 2, 6, 3]));
        assert_eq!(turned(7), (2, vec![6, 3, 5, 2, 4, 1]));
        assert_eq!(turned(8), (2, vec![3, 6, 2, 5, 1, 4]));
    }

    #[test]
    fn eight_turns_to_the_right_change_nothing() {
        let (width, height) = (37, 41); // more than two tiles, no multiple of one
        let pixels: Vec<u8> = (0..width * height * 3).map(|i| (i * 31 % 251) as u8).collect();
        let mut picture = Picture { width, height, channels: 3, pixels: pixels.clone() };
        for _ in 0..8 {
            picture = Orientation::TurnRight.apply(picture).unwrap();
        }
        assert!((picture.width, picture.height) == (width, height) && picture.pixels == pixels);
    }
}
