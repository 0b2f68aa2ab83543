//! Writes a JPEG with only the parts that matter: no metadata, no fill bytes, no height after the picture.

use super::marker;
use super::outline::{Colours, Outline, Scan, Segment};
use super::standard;

/// The file for the decoder. `bytes` is the size of the original file, which is about that of this one.
pub(super) fn file(outline: &Outline, bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    out.try_reserve(bytes).map_err(|error| format!("no memory to decode it: {error}"))?;
    out.extend([0xFF, marker::SOI]);
    put_colours(&mut out, outline.colours);
    for (class, tables) in (0..).zip(standard::tables()) {
        for (place, (counts, symbols)) in (0..).zip(tables) {
            put(&mut out, marker::DHT, &[&[class << 4 | place], &counts[..], symbols].concat());
        }
    }
    put_frame(&mut out, outline);
    for part in &outline.parts {
        match part {
            Segment::Table(marker, content) => put(&mut out, *marker, content),
            Segment::Scan(scan) => put_scan(&mut out, scan),
        }
    }
    out.extend([0xFF, marker::EOI]);
    Ok(out)
}

fn put(out: &mut Vec<u8>, marker: u8, content: &[u8]) {
    out.extend([0xFF, marker]);
    out.extend((content.len() as u16 + 2).to_be_bytes()); // content came from a segment, or is short
    out.extend(content);
}

/// Writes Adobe's segment, which decides about the colours in the decoder, whatever else the file has.
fn put_colours(out: &mut Vec<u8>, colours: Colours) {
    let transform = match colours {
        Colours::Gray => return,
        Colours::Rgb | Colours::Cmyk => 0,
        Colours::YCbCr => 1,
        Colours::Ycck => 2,
    };
    put(out, marker::APP14, &[&b"Adobe\0\x64\0\0\0\0"[..], &[transform]].concat());
}

/// Writes the frame header, with components numbered from 1, because their names could stand for colours.
fn put_frame(out: &mut Vec<u8>, outline: &Outline) {
    let frame = &outline.frame;
    let [[y1, y0], [x1, x0]] = [frame.height, frame.width].map(|side| (side as u16).to_be_bytes());
    let mut content = vec![8, y1, y0, x1, x0, frame.components.len() as u8];
    for (number, of) in (1..).zip(&frame.components) {
        content.extend([number, (of.across << 4 | of.down) as u8, of.quantisation]);
    }
    put(out, frame.marker, &content);
}

fn put_scan(out: &mut Vec<u8>, scan: &Scan) {
    let mut content = vec![scan.components.len() as u8];
    content.extend(scan.components.iter().flat_map(|&(place, tables)| [place as u8 + 1, tables]));
    content.extend(scan.band);
    content.push(scan.approximation);
    put(out, marker::SOS, &content);
    out.extend(scan.data);
}
