//! Markers, and the segments that they begin.

pub(super) const SOF0: u8 = 0xC0;
pub(super) const SOF2: u8 = 0xC2;
pub(super) const SOF3: u8 = 0xC3;
pub(super) const DHT: u8 = 0xC4;
pub(super) const SOF9: u8 = 0xC9;
pub(super) const SOF10: u8 = 0xCA;
pub(super) const SOF11: u8 = 0xCB;
pub(super) const DAC: u8 = 0xCC;
pub(super) const SOF15: u8 = 0xCF;
pub(super) const RST0: u8 = 0xD0;
pub(super) const RST7: u8 = 0xD7;
pub(super) const SOI: u8 = 0xD8;
pub(super) const EOI: u8 = 0xD9;
pub(super) const SOS: u8 = 0xDA;
pub(super) const DQT: u8 = 0xDB;
pub(super) const DNL: u8 = 0xDC;
pub(super) const DRI: u8 = 0xDD;
pub(super) const DHP: u8 = 0xDE;
pub(super) const EXP: u8 = 0xDF;
pub(super) const APP0: u8 = 0xE0;
pub(super) const APP1: u8 = 0xE1;
pub(super) const APP14: u8 = 0xEE;
const TEM: u8 = 0x01;

/// The segments of a file, one after the other.
pub(super) struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Segments<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The marker and content of the next segment; `None` at the end marker. Bytes between segments are skipped, and so
    /// are markers that stand alone.
    pub fn next(&mut self) -> Result<Option<(u8, &'a [u8])>, String> {
        loop {
            match self.next_marker()? {
                EOI => return Ok(None),
                0 | TEM | SOI | RST0..=RST7 => {}
                marker => return Ok(Some((marker, self.content()?))),
            }
        }
    }

    /// The data after a scan's header, up to the next marker that is no restart marker.
    pub fn entropy_coded(&mut self) -> &'a [u8] {
        let from = self.at;
        while let Some((at, marker)) = marker_in(self.bytes, self.at) {
            if !matches!(marker, 0 | RST0..=RST7) {
                self.at = at;
                return &self.bytes[from..at];
            }
            self.at = after_marker(self.bytes, at);
        }
        self.at = self.bytes.len();
        &self.bytes[from..]
    }

    fn next_marker(&mut self) -> Result<u8, String> {
        let (at, marker) = marker_in(self.bytes, self.at).ok_or_else(|| self.cut_off())?;
        self.at = after_marker(self.bytes, at);
        Ok(marker)
    }

    fn content(&mut self) -> Result<&'a [u8], String> {
        let length = self.bytes.get(self.at..self.at + 2).ok_or_else(|| self.cut_off())?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let content = self.bytes.get(self.at + 2..self.at + length.max(2)).ok_or_else(|| self.cut_off())?;
        self.at += length.max(2);
        Ok(content)
    }

    fn cut_off(&self) -> String {
        format!("the file is cut off: its {} bytes have no end-of-image marker", self.bytes.len())
    }
}

/// The position of the next FF, and the first byte after it that is no fill byte; 0 stands for a stuffed FF, not for a
/// marker.
pub(super) fn marker_in(bytes: &[u8], from: usize) -> Option<(usize, u8)> {
    let at = from + bytes.get(from..)?.iter().position(|&byte| byte == 0xFF)?;
    let marker = bytes[at..].iter().find(|&&byte| byte != 0xFF)?;
    Some((at, *marker))
}

/// The position after the marker whose first FF is at `at`.
pub(super) fn after_marker(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|&&byte| byte == 0xFF).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the end marker of a thumbnail within a segment, a stuffed FF, a restart marker, and fill bytes.
    const FILE: [u8; 24] = [
        0xFF, SOI, 0xFF, APP1, 0, 4, 0xFF, EOI, 0xFF, SOS, 0, 2, 1, 0xFF, 0, 2, 0xFF, RST0, 3, 0xFF, 0xFF, 0xFF, EOI, 7,
    ];

    fn walk(bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, String> {
        let (mut segments, mut found) = (Segments::new(bytes), Vec::new());
        while let Some((marker, content)) = segments.next()? {
            let data = if marker == SOS { segments.entropy_coded() } else { content };
            found.push((marker, data.to_vec()));
        }
        Ok(found)
    }

    #[test]
    fn segments_end_at_the_end_marker_behind_them() {
        let expected = vec![(APP1, vec![0xFF, EOI]), (SOS, FILE[12..19].to_vec())];
        assert_eq!(walk(&FILE), Ok(expected));
        for length in 0..FILE.len() - 1 {
            assert!(walk(&FILE[..length]).unwrap_err().contains("cut off"), "{length}");
        }
    }
}
