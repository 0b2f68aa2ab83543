//! Bytes as a photo: JPEG or PNG, into a row of either number of channels.

use trefoil::Shape;
use trefoil::image;
use trefoil::model::Preprocessing;

use super::check_error;

/// The largest number of pixels of a photo that is decoded. Larger photos take long, as their size lets expect.
const MOST_PIXELS: u32 = 1 << 16;

pub fn run(bytes: &[u8]) {
    if is_large(bytes) {
        return;
    }
    for channels in [1, 3] {
        let preprocessing = Preprocessing::new(Shape::new(8, 8, channels));
        let mut row = vec![0; preprocessing.input.elems()];
        if let Err(error) = image::load_bytes("photo", bytes, &preprocessing, &mut row) {
            check_error(&error);
        }
    }
}

/// Whether a header gives a large size: that of a PNG, or of any frame of a JPEG.
fn is_large(bytes: &[u8]) -> bool {
    let of = |sides: Option<[u32; 2]>| sides.is_some_and(|[a, b]| a.saturating_mul(b) > MOST_PIXELS);
    if bytes.starts_with(b"\x89PNG") {
        let side = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        return of(side(16).zip(side(20)).map(|(a, b)| [a, b]));
    }
    let side = |at: usize| Some(u32::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let frames = bytes.windows(2).enumerate().filter(|(_, pair)| pair[0] == 0xFF && (0xC0..0xD0).contains(&pair[1]));
    frames.map(|(at, _)| side(at + 5).zip(side(at + 7)).map(|(a, b)| [a, b])).any(of)
}
