//! Photos compared with Pillow: every unusual format decodes correctly or gives a clear error, and resizing and
//! cropping give Pillow's values.
#![cfg(feature = "image")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use trefoil::model::{Interpolation, Preprocessing};
use trefoil::{Error, Shape, image};

/// The largest difference of a value between JPEG decoders, which may round the transform and the colours differently.
const JPEG_VALUE: u8 = 3;
const JPEG_MEAN: f64 = 0.05;
/// The mean difference where chroma is stored at half size, which decoders also interpolate differently.
const JPEG_HALF_CHROMA_MEAN: f64 = 0.5;
/// The largest difference between two fixed-point filters: one step, and seldom.
const RESIZE_VALUE: u8 = 1;
const RESIZE_MEAN: f64 = 0.02;

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

fn data(folder: &str) -> PathBuf {
    root().join("tests/data").join(folder)
}

fn gunzip(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The lines of a cases.txt, split into words.
fn cases(folder: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(data(folder).join("cases.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn preprocessing(height: usize, width: usize, channels: usize, resize: usize) -> Preprocessing {
    Preprocessing {
        input: Shape::new(height, width, channels),
        mean: vec![0.0; channels],
        std: vec![1.0; channels],
        resize,
        interpolation: Interpolation::Bilinear,
    }
}

/// The pixels of a square picture, or those of the centre square of another one, without scaling.
fn load_unscaled(bytes: &[u8], name: &str, width: usize, height: usize, channels: usize) -> Result<Vec<u8>, Error> {
    let side = width.min(height);
    let mut row = vec![0xAA; side * side * channels];
    image::load_bytes(name, bytes, &preprocessing(side, side, channels, side), &mut row)?;
    Ok(row)
}

/// The centre square of RGB pixels.
fn centre(rgb: &[u8], width: usize, height: usize) -> Vec<u8> {
    let side = width.min(height);
    let (left, top) = ((width - side) / 2, (height - side) / 2);
    let row = |y: usize| &rgb[((top + y) * width + left) * 3..][..side * 3];
    (0..side).flat_map(row).copied().collect()
}

/// Compares RGB pixels; on failure names the first bad value and the worst error.
fn compare(name: &str, width: usize, got: &[u8], want: &[u8], value: u8, mean: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    let errors: Vec<u8> = got.iter().zip(want).map(|(g, w)| g.abs_diff(*w)).collect();
    let worst = *errors.iter().max().unwrap();
    let average = errors.iter().map(|&e| f64::from(e)).sum::<f64>() / errors.len() as f64;
    println!("{name}: worst {worst}, mean {average:.3}");
    if let Some(i) = errors.iter().position(|&e| e > value) {
        let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
        panic!("{name}: at ({x}, {y}) channel {c}: got {}, want {}; worst error {worst}", got[i], want[i]);
    }
    assert!(average <= mean, "{name}: mean error {average}, at most {mean}");
}

#[test]
fn every_format_decodes_as_pillow_does_or_says_why_not() {
    let cases = cases("images");
    assert!(cases.len() >= 29);
    for case in cases {
        let [name, width, height, kind] = &case[..] else { panic!("{case:?}") };
        let (width, height): (usize, usize) = (width.parse().unwrap(), height.parse().unwrap());
        let bytes = fs::read(data("images").join(name)).unwrap();
        let got = load_unscaled(&bytes, name, width, height, 3);
        if kind == "error" {
            let message = got.expect_err(name).to_string();
            assert!(message.starts_with(name.as_str()) && message.contains("cut off"), "{message}");
            continue;
        }
        let want = centre(&gunzip(&data("images").join(format!("{name}.rgb.gz"))), width, height);
        let (value, mean) = match (kind.as_str(), name.as_str()) {
            ("exact", _) => (0, 0.0),
            (_, "chroma420.jpg" | "chroma420_progressive.jpg") => (JPEG_VALUE, JPEG_HALF_CHROMA_MEAN),
            _ => (JPEG_VALUE, JPEG_MEAN),
        };
        compare(name, width.min(height), &got.unwrap(), &want, value, mean);
    }
}

#[test]
fn one_channel_gets_the_luma() {
    for name in ["gray.png", "gray16.png", "gray_alpha.png", "rgb.png"] {
        let bytes = fs::read(data("images").join(name)).unwrap();
        let want = centre(&gunzip(&data("images").join(format!("{name}.rgb.gz"))), 48, 40);
        let luma = |p: &[u8]| (19_595 * p[0] as u32 + 38_470 * p[1] as u32 + 7_471 * p[2] as u32 + 0x8000) >> 16;
        let want: Vec<u8> = want.chunks(3).map(|p| luma(p) as u8).collect();
        assert_eq!(load_unscaled(&bytes, name, 48, 40, 1).unwrap(), want, "{name}");
    }
}

#[test]
fn resize_and_crop_give_pillows_values() {
    let cases = cases("resize");
    assert!(cases.len() >= 6);
    for case in cases {
        let [name, picture, rectangle @ ..] = &case[..] else { panic!("{case:?}") };
        let rectangle: Vec<usize> = rectangle.iter().map(|n| n.parse().unwrap()).collect();
        let cut = cut_out(&root().join(picture), rectangle.try_into().unwrap());
        let mut row = vec![0; 224 * 224 * 3];
        image::load_bytes(name, &cut, &preprocessing(224, 224, 3, 256), &mut row).unwrap();
        let want = gunzip(&data("resize").join(format!("{name}.rgb.gz")));
        compare(name, 224, &row, &want, RESIZE_VALUE, RESIZE_MEAN);
    }
}

/// A rectangle (x, y, width, height) of an 8-bit RGB or RGBA PNG, as a PNG file.
fn cut_out(path: &Path, [x, y, width, height]: [usize; 4]) -> Vec<u8> {
    let mut decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap()));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let samples = info.color_type.samples();
    assert!(samples >= 3 && info.bit_depth == png::BitDepth::Eight, "{}", path.display());
    let row = |r: usize| pixels[(r * info.width as usize + x) * samples..][..width * samples].chunks(samples);
    let rgb: Vec<u8> = (y..y + height).flat_map(row).flat_map(|p| &p[..3]).copied().collect();
    encode_png(width, height, png::ColorType::Rgb, &rgb)
}

fn encode_png(width: usize, height: usize, color: png::ColorType, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(color);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(pixels).unwrap();
    writer.finish().unwrap();
    file
}

#[test]
fn a_png_is_turned_by_its_exif_chunk() {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(&[kind, data].concat());
        [&(data.len() as u32).to_be_bytes()[..], kind, data, &crc.sum().to_be_bytes()].concat()
    };
    let upside_down = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0\0\0\0\0";
    let plain = encode_png(2, 2, png::ColorType::Grayscale, &[1, 2, 3, 4]);
    let after_header = 8 + 12 + 13;
    let file = [&plain[..after_header], &chunk(b"eXIf", upside_down), &plain[after_header..]].concat();
    assert_eq!(load_unscaled(&plain, "plain", 2, 2, 1).unwrap(), [1, 2, 3, 4]);
    assert_eq!(load_unscaled(&file, "turned", 2, 2, 1).unwrap(), [4, 3, 2, 1]);
}

/// A file that is cut at any length is an error; only the last bytes of a JPEG may be missing, because bytes after the
/// end marker do not count.
#[test]
fn cut_files_are_errors_at_every_length() {
    for (name, step) in [("rgb.jpg", 1), ("progressive.jpg", 1), ("cmyk.jpg", 7), ("rgb.png", 7), ("interlaced.png", 7)]
    {
        let bytes = fs::read(data("images").join(name)).unwrap();
        for length in (0..bytes.len()).step_by(step) {
            let result = load_unscaled(&bytes[..length], name, 48, 40, 3);
            assert!(matches!(result, Err(Error::Image { .. })), "{name} cut to {length}: {result:?}");
        }
    }
}

/// The range from the data of a JPEG's first scan to its end marker.
fn entropy_coded(bytes: &[u8]) -> std::ops::Range<usize> {
    let mut at = 2;
    while bytes[at + 1] != 0xDA {
        at += 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    }
    let header = 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    let end = bytes.windows(2).rposition(|pair| pair == [0xFF, 0xD9]).unwrap();
    at + header..end
}

/// A scan that an end marker closes too early is an error at every length. A progressive file may lack whole scans at
/// its end: it may leave out the finest detail.
#[test]
fn cut_files_that_are_closed_are_errors_too() {
    let names = ["rgb.jpg", "gray.jpg", "cmyk.jpg", "chroma420.jpg", "restarts.jpg", "no_tables.jpg"];
    for name in names.into_iter().chain(["progressive.jpg", "chroma420_progressive.jpg"]) {
        let bytes = fs::read(data("images").join(name)).unwrap();
        let mut whole = 0;
        for length in entropy_coded(&bytes) {
            // The cut is in front of a segment, or within its marker: the first of two FF is then a fill byte.
            let is_segment = matches!(bytes[length - 1..=length + 1], [_, 0xFF, 0xC4 | 0xDA] | [0xFF, 0xC4 | 0xDA, _]);
            match load_unscaled(&[&bytes[..length], &[0xFF, 0xD9]].concat(), name, 48, 40, 3) {
                Ok(_) if is_segment => whole += 1,
                Err(Error::Image { .. }) if !is_segment => {}
                other => panic!("{name} closed at {length}: {:?}", other.map(|_| "a picture")),
            }
        }
        assert_eq!(whole > 0, name.contains("progressive"), "{name}: {whole} lengths give a picture");
    }
}

/// A file that lacks bytes in the middle has too few or too many blocks, or an invalid code: here at every place tried.
/// In a picture of few blocks the rest may by chance give the right number.
#[test]
fn files_with_a_hole_are_errors() {
    let files = [("weights/photos/rocket.jpg", 4096), ("tests/data/images/restarts.jpg", 200)];
    for (name, hole) in files {
        let bytes = fs::read(root().join(name)).unwrap();
        let scan = entropy_coded(&bytes);
        for at in scan.clone().step_by(scan.len() / 50).filter(|at| at + hole < scan.end) {
            let result = load_unscaled(&[&bytes[..at], &bytes[at + hole..]].concat(), name, 8, 8, 3);
            assert!(matches!(&result, Err(Error::Image { .. })), "{name} without {hole} bytes from {at} on");
        }
    }
}

#[test]
fn restart_markers_have_an_order() {
    let bytes = fs::read(data("images/restarts.jpg")).unwrap();
    let restarts: Vec<usize> =
        (0..bytes.len() - 1).filter(|&at| bytes[at] == 0xFF && bytes[at + 1] & 0xF8 == 0xD0).collect();
    assert!(restarts.len() > 6);
    let without_one = [&bytes[..restarts[2]], &bytes[restarts[3]..]].concat();
    let mut swapped = bytes.clone();
    (swapped[restarts[2] + 1], swapped[restarts[3] + 1]) = (bytes[restarts[3] + 1], bytes[restarts[2] + 1]);
    for damaged in [without_one, swapped] {
        let message = load_unscaled(&damaged, "x.jpg", 48, 40, 3).unwrap_err().to_string();
        assert!(message.contains("restart marker") && message.contains("scan 1 of 1"), "{message}");
    }
}

/// Kinds of JPEG that other decoders read and this one does not are refused by name.
#[test]
fn other_kinds_of_jpeg_are_named() {
    let bytes = fs::read(data("images/rgb.jpg")).unwrap();
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    let cases = [
        (1, 0xC9, "arithmetic-coded is not supported; baseline and progressive with Huffman codes are"),
        (1, 0xC3, "lossless is not supported"),
        (1, 0xC5, "hierarchical is not supported"),
        (4, 12, "12 bits a sample is not supported; 8 are"),
        (9, 2, "2 components is not supported; gray, RGB and CMYK are"),
    ];
    for (at, value, part) in cases {
        let mut other = bytes.clone();
        other[frame + at] = value;
        let message = load_unscaled(&other, "x.jpg", 48, 40, 3).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

/// Damaged files give a picture or an error; they never panic, and never write past the row.
#[test]
fn damaged_files_do_not_panic() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let rounds: usize = std::env::var("TREFOIL_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    for case in cases("images") {
        let bytes = fs::read(data("images").join(&case[0])).unwrap();
        for _ in 0..rounds {
            let mut damaged = bytes.clone();
            for _ in 0..1 + next() % 6 {
                let at = if next() % 2 == 0 { next() % damaged.len() } else { next() % damaged.len().min(700) };
                damaged[at] = [0, 0xFF, next() as u8, damaged[at] ^ (1 << (next() % 8))][next() % 4];
            }
            let mut row = vec![0; 8 * 8 * 3];
            let _ = image::load_bytes(&case[0], &damaged, &preprocessing(8, 8, 3, 8), &mut row);
        }
    }
}

#[test]
fn what_is_no_photo_is_named() {
    let mut row = vec![0; 4 * 4 * 3];
    let wanted = preprocessing(4, 4, 3, 4);
    let mut message =
        |bytes: &[u8]| image::load_bytes("holiday/x.jpg", bytes, &wanted, &mut row).unwrap_err().to_string();
    assert_eq!(message(b"GIF89a...."), "holiday/x.jpg: the content is GIF; supported are JPEG and PNG");
    assert!(message(b"").contains("empty"));
    assert!(message(b"hello").contains("68 65 6c 6c 6f"));
    // A header that announces 60,000 x 60,000 pixels, and one that announces more than the file can hold.
    let bomb = |width: u16, height: u16| {
        let [h, w] = [height.to_be_bytes(), width.to_be_bytes()];
        let frame = [0xFF, 0xC0, 0, 11, 8, h[0], h[1], w[0], w[1], 1, 1, 0x11, 0];
        let scan = [0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0, 0xFF, 0xD9];
        [&[0xFF, 0xD8][..], &frame, &scan].concat()
    };
    assert!(message(&bomb(60_000, 60_000)).contains("too large"));
    assert!(message(&bomb(10_000, 10_000)).contains("cannot hold"));
}

#[test]
fn missing_files_and_wrong_arguments_are_errors() {
    let mut row = vec![0; 4 * 4 * 3];
    let missing = image::load("no/such.jpg", &preprocessing(4, 4, 3, 4), &mut row).unwrap_err();
    assert!(matches!(&missing, Error::Io { path, .. } if path == Path::new("no/such.jpg")), "{missing}");
    let rgb = data("images").join("rgb.png");
    for wrong in
        [preprocessing(4, 4, 3, 3), preprocessing(4, 4, 2, 4), preprocessing(4, 5, 3, 5), preprocessing(0, 0, 3, 4)]
    {
        let error = image::load(&rgb, &wrong, &mut row).unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
    }
    let folder = image::load(data("images"), &preprocessing(4, 4, 3, 4), &mut row).unwrap_err();
    assert!(matches!(folder, Error::Io { .. }), "{folder}");
}
