//! The segments of a JPEG: the content of its headers, and the places of its entropy-coded data.
//!
//! All input here is untrusted. The memory for it is bounded: no metadata is kept, and at most [`MAX_SEGMENTS`]
//! segments.

use super::marker::{self, Segments};

/// The most segments besides metadata; sound files have some dozens.
const MAX_SEGMENTS: usize = 4096;
/// The most scans; each is one pass over the picture. A progressive file has about ten.
const MAX_SCANS: usize = 100;
/// The most blocks that an MCU of several components may have.
const MAX_MCU_BLOCKS: usize = 10;
const BLOCK: usize = 8;

/// A JPEG as its headers describe it.
#[derive(Debug)]
pub(super) struct Outline<'a> {
    pub frame: Frame,
    pub colours: Colours,
    /// The first EXIF block before the picture.
    pub exif: Option<&'a [u8]>,
    /// The segments that matter for decoding, in order.
    pub parts: Vec<Segment<'a>>,
}

/// The frame header.
#[derive(Debug)]
pub(super) struct Frame {
    pub is_progressive: bool,
    pub marker: u8,
    pub width: usize,
    pub height: usize,
    pub components: Vec<Component>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Component {
    id: u8,
    /// The number of blocks of an MCU beside each other, and below each other.
    pub across: usize,
    pub down: usize,
    pub quantisation: u8,
}

/// The meaning of the components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Gray,
    YCbCr,
    Rgb,
    Cmyk,
    Ycck,
}

/// A segment that matters for decoding.
#[derive(Debug)]
pub(super) enum Segment<'a> {
    /// Quantisation or Huffman tables, or a restart interval: the marker and the content.
    Table(u8, &'a [u8]),
    Scan(Scan<'a>),
}

/// A scan: its header, and its data up to the next marker that is no restart marker.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// The indices of its components in the frame, each with the numbers of its DC and AC tables in one byte.
    pub components: Vec<(usize, u8)>,
    /// The first and the last coefficient, in zigzag order.
    pub band: [u8; 2],
    /// The bit positions of successive approximation, in the high and the low nibble.
    pub approximation: u8,
    pub data: &'a [u8],
}

/// The metadata about the colours.
#[derive(Default)]
struct Hints {
    has_jfif: bool,
    adobe_transform: Option<u8>,
}

impl<'a> Outline<'a> {
    /// The segments of a file, up to its end marker.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut segments = Segments::new(bytes);
        let (mut frame, mut exif, mut hints, mut parts) = (None, None, Hints::default(), Vec::new());
        let mut scans = 0;
        while let Some((marker, content)) = segments.next()? {
            match marker {
                marker::SOF0..=marker::SOF2 if frame.is_some() => return Err("not a sound JPEG: two frames".into()),
                marker::SOF0..=marker::SOF2 => frame = Some(Frame::read(marker, content)?),
                marker::SOS => {
                    let frame = frame.as_ref().ok_or("not a sound JPEG: a scan before the frame")?;
                    parts.push(Segment::Scan(Scan::read(frame, content, segments.entropy_coded())?));
                    scans += 1;
                }
                marker::DHT | marker::DQT | marker::DRI => parts.push(Segment::Table(marker, content)),
                marker::SOF3..=marker::SOF15 | marker::DHP | marker::EXP => return Err(unsupported(marker)),
                marker::DNL => frame.iter_mut().try_for_each(|frame| frame.set_height(content))?,
                marker::APP0 if scans == 0 => hints.has_jfif |= content.starts_with(b"JFIF\0"),
                marker::APP1 if scans == 0 => exif = exif.or(content.strip_prefix(b"Exif\0\0")),
                marker::APP14 if scans == 0 && content.starts_with(b"Adobe") => {
                    hints.adobe_transform = content.get(11).copied().or(hints.adobe_transform);
                }
                _ => {}
            }
            if parts.len() > MAX_SEGMENTS || scans > MAX_SCANS {
                return Err(format!("not decoded: more than {MAX_SCANS} scans or {MAX_SEGMENTS} tables"));
            }
        }
        let frame = frame.filter(|_| scans > 0).ok_or("not a sound JPEG: no picture before its end marker")?;
        let colours = hints.colours(&frame)?;
        Ok(Self { frame, colours, exif, parts })
    }

    pub fn scans(&self) -> impl Iterator<Item = &Scan<'a>> {
        self.parts.iter().filter_map(|part| if let Segment::Scan(scan) = part { Some(scan) } else { None })
    }

    /// Whether the decoder keeps all coefficients until it has read the last scan.
    pub fn is_buffered(&self) -> bool {
        self.frame.is_progressive || self.scans().any(|scan| scan.components.len() < self.frame.components.len())
    }
}

/// The kind of frame, which is not supported, that a marker stands for.
fn unsupported(marker: u8) -> String {
    let kind = match marker {
        marker::SOF3 => "lossless",
        marker::DAC | marker::SOF9 | marker::SOF10 => "arithmetic-coded",
        marker::SOF11 => "lossless, arithmetic-coded",
        _ => "hierarchical",
    };
    format!("a JPEG that is {kind} is not supported; baseline and progressive with Huffman codes are")
}

impl Frame {
    fn read(marker: u8, content: &[u8]) -> Result<Self, String> {
        let &[precision, y1, y0, x1, x0, count, ref rest @ ..] = content else {
            return Err("not a sound JPEG: its frame header is too short".into());
        };
        if precision != 8 {
            return Err(format!("a JPEG of {precision} bits a sample is not supported; 8 are"));
        }
        if !matches!(count, 1 | 3 | 4) {
            return Err(format!("a JPEG of {count} components is not supported; gray, RGB and CMYK are"));
        }
        if rest.len() != 3 * usize::from(count) {
            return Err(format!("not a sound JPEG: a frame header of {} bytes for {count} components", content.len()));
        }
        let component = |c: &[u8]| Component {
            id: c[0],
            across: usize::from(c[1] >> 4),
            down: usize::from(c[1] & 15),
            quantisation: c[2],
        };
        let components: Vec<Component> = rest.chunks_exact(3).map(component).collect();
        if components.iter().any(|c| !matches!((c.across, c.down), (1..=4, 1..=4))) {
            return Err("not a sound JPEG: a sampling factor that is not 1 to 4".into());
        }
        let [height, width] = [[y1, y0], [x1, x0]].map(|side| usize::from(u16::from_be_bytes(side)));
        Ok(Self { is_progressive: marker == marker::SOF2, marker, width, height, components })
    }

    /// Sets the height from a segment after the first scan, if the frame header left it open.
    fn set_height(&mut self, content: &[u8]) -> Result<(), String> {
        if let ([high, low], 0) = (content, self.height) {
            self.height = usize::from(u16::from_be_bytes([*high, *low]));
        }
        Ok(())
    }

    /// The number of MCUs of several components, across and down.
    pub fn mcus(&self) -> [usize; 2] {
        let [across, down] = self.most_blocks();
        [self.width.div_ceil(BLOCK * across), self.height.div_ceil(BLOCK * down)]
    }

    /// The number of blocks of a component in a scan of its own, across and down.
    pub fn blocks(&self, component: usize) -> [usize; 2] {
        let [across, down] = self.most_blocks();
        let of = &self.components[component];
        let blocks = |side: usize, part: usize, all: usize| (side * part).div_ceil(all).div_ceil(BLOCK);
        [blocks(self.width, of.across, across), blocks(self.height, of.down, down)]
    }

    /// The number of blocks of all components, filled up to whole MCUs.
    pub fn padded_blocks(&self) -> usize {
        let [across, down] = self.mcus();
        across * down * self.components.iter().map(|c| c.across * c.down).sum::<usize>()
    }

    fn most_blocks(&self) -> [usize; 2] {
        let most = |of: fn(&Component) -> usize| self.components.iter().map(of).max().unwrap_or(1);
        [most(|c| c.across), most(|c| c.down)]
    }
}

impl<'a> Scan<'a> {
    fn read(frame: &Frame, content: &[u8], data: &'a [u8]) -> Result<Self, String> {
        let wrong = || "not a sound JPEG: a scan header that does not fit its frame".to_owned();
        let (&count, rest) = content.split_first().ok_or_else(wrong)?;
        let (chosen, rest) = rest.split_at_checked(2 * usize::from(count)).ok_or_else(wrong)?;
        let &[first, last, approximation] = rest else { return Err(wrong()) };
        let place = |c: &[u8]| Some((frame.components.iter().position(|known| known.id == c[0])?, c[1]));
        let components: Vec<_> = chosen.chunks_exact(2).map(place).collect::<Option<_>>().ok_or_else(wrong)?;
        let is_repeated = |i: usize| components[..i].iter().any(|known| known.0 == components[i].0);
        let blocks = |&(place, _): &(usize, u8)| frame.components[place].across * frame.components[place].down;
        let is_too_much = components.len() > 1 && components.iter().map(blocks).sum::<usize>() > MAX_MCU_BLOCKS;
        if components.is_empty() || is_too_much || (0..components.len()).any(is_repeated) || last > 63 {
            return Err(wrong());
        }
        Ok(Self { components, band: [first, last], approximation, data })
    }
}

impl Hints {
    /// The colours, by the rules of libjpeg: a file with JFIF is YCbCr; otherwise Adobe's segment decides, then the
    /// names of the components.
    fn colours(&self, frame: &Frame) -> Result<Colours, String> {
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        Ok(match (frame.components.len(), self.adobe_transform) {
            (1, _) => Colours::Gray,
            (3, _) if self.has_jfif => Colours::YCbCr,
            (3, Some(0)) => Colours::Rgb,
            (3, None) if ids == b"RGB" => Colours::Rgb,
            (3, _) => Colours::YCbCr,
            (_, None | Some(0)) => Colours::Cmyk,
            (_, Some(_)) => Colours::Ycck,
        })
    }
}
