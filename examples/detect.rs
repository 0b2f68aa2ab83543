//! Finds objects in a photo with a YOLO network (YOLOv8 or later), as Ultralytics exports it to ONNX:
//!
//! ```sh
//! pip download nudenet==3.4.2 --no-deps && unzip -o nudenet-*.whl 'nudenet/320n.onnx'
//! cargo run --release --example detect -- nudenet/320n.onnx photo.jpg height=320 width=320
//! ```
//!
//! usage: detect MODEL.onnx PHOTO [NAME=SIZE...]
//!
//! NAME=SIZE gives the size of a free dimension of the file; `trefoil inspect` lists them. The photo is letterboxed
//! into the network's input. The network's result has a column for each place: centre and size of a box, and a score
//! for each class. Boxes that overlap a better one of their class are left out. `examples/cpp/detect.cpp` is the same
//! in C++.

use std::cmp::Ordering;

use trefoil::image::{Area, Picture};
use trefoil::model::{Interpolation, Model};
use trefoil::onnx::Sizes;
use trefoil::{Device, Engine, Error, Target};

/// Boxes with a lower score are left out.
const LEAST_SCORE: f32 = 0.25;
/// Two boxes of one class show the same object if their common area is more than this part of the area that they cover
/// together.
const MOST_IN_COMMON: f32 = 0.45;
/// The colour beside a letterboxed photo, as in the network's training.
const GRAY: [u8; 3] = [114; 3];

/// An object in a photo.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The number of the object's class.
    pub class: usize,
    /// The network's score for the class, from 0 to 1.
    pub score: f32,
    /// Left, top, right and bottom edge, in pixels of the photo.
    pub edges: [f32; 4],
}

#[allow(dead_code, reason = "a test calls what main calls")]
fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, photo, sizes @ ..] = &arguments[..] else {
        eprintln!("usage: detect MODEL.onnx PHOTO [NAME=SIZE...]");
        std::process::exit(64);
    };
    let sizes = sizes.iter().filter_map(|size| size.split_once('='));
    let sizes = sizes.fold(Sizes::new(), |all, (name, size)| all.dim(name, size.parse().expect("SIZE is a number")));
    let model = Model::open_at(model, &sizes)?;
    let engine = Engine::builder(&model).on(&Device::open(Target::Auto)?).batch(1).build()?;
    let names = class_names(model.metadata("names").unwrap_or_default());
    for Found { class, score, edges: [left, top, right, bottom] } in detect(&engine, &Picture::open(photo)?)? {
        let name = names.get(class).map_or("?", String::as_str);
        println!("{name} {score:.2} at {left:.0},{top:.0} to {right:.0},{bottom:.0}");
    }
    Ok(())
}

/// The objects that the network finds in a photo, with the best scores first.
pub fn detect(engine: &Engine, photo: &Picture) -> Result<Vec<Found>, Error> {
    let &[_, height, width] = &engine.input().ports()[0].dims[..] else {
        return Err(other("an input that is no image [3, height, width]"));
    };
    let scale = (width as f32 / photo.width() as f32).min(height as f32 / photo.height() as f32);
    let fit = |side: usize| ((side as f32 * scale).round() as usize).max(1);
    let (drawn_width, drawn_height) = (fit(photo.width()).min(width), fit(photo.height()).min(height));
    let (left, top) = ((width - drawn_width) / 2, (height - drawn_height) / 2);
    let mut canvas = Picture::filled(width, height, GRAY)?;
    let middle = Area { left, top, width: drawn_width, height: drawn_height };
    canvas.draw(middle, photo, photo.area(), Interpolation::Bilinear)?;

    let mut batch = engine.acquire()?;
    fill_planes(batch.port_mut::<f32>(0, 0)?, &canvas);
    let output = batch.submit(1)?.wait()?;
    let &[rows, places] = &output.spec().ports()[0].dims[..] else {
        return Err(other("an output that is not [4 + classes, places]"));
    };
    let in_photo = |x: f32, begin: usize, side: usize| ((x - begin as f32) / scale).clamp(0.0, side as f32);
    let mut found = boxes(output.port::<f32>(0, 0)?, rows, places);
    for Found { edges: [x1, y1, x2, y2], .. } in &mut found {
        (*x1, *x2) = (in_photo(*x1, left, photo.width()), in_photo(*x2, left, photo.width()));
        (*y1, *y2) = (in_photo(*y1, top, photo.height()), in_photo(*y2, top, photo.height()));
    }
    Ok(found)
}

/// The error for a file of another kind of network.
fn other(what: &str) -> Error {
    Error::Unsupported { what: what.into(), instead: "export a YOLO with `format=onnx`, without `nms`".into() }
}

/// Writes a picture's pixels as planes of red, green and blue, from 0 to 1.
fn fill_planes(planes: &mut [f32], picture: &Picture) {
    let size = picture.width() * picture.height();
    for (channel, plane) in planes.chunks_exact_mut(size).enumerate() {
        for (value, pixel) in plane.iter_mut().zip(picture.pixels().chunks_exact(3)) {
            *value = f32::from(pixel[channel]) / 255.0;
        }
    }
}

/// The boxes in `values`, rows of one number for each place: centre x and y, width, height, then a score for each
/// class. The best come first; boxes of the same object as a better one are left out.
fn boxes(values: &[f32], rows: usize, places: usize) -> Vec<Found> {
    let at = |row: usize, place: usize| values[row * places + place];
    let best_class = |place| {
        let scores = (4..rows).map(|row| (row - 4, at(row, place)));
        scores.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let mut all: Vec<Found> = (0..places)
        .filter_map(|place| best_class(place).map(|best| (place, best)))
        .filter(|(_, (_, score))| *score >= LEAST_SCORE)
        .map(|(place, (class, score))| {
            let [x, y, width, height] = [0, 1, 2, 3].map(|row| at(row, place));
            let edges = [x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0];
            Found { class, score, edges }
        })
        .collect();
    all.sort_by(|a, b| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal));
    let mut kept: Vec<Found> = Vec::new();
    for found in all {
        let is_new = |other: &Found| other.class != found.class || in_common(other, &found) <= MOST_IN_COMMON;
        if kept.iter().all(is_new) {
            kept.push(found);
        }
    }
    kept
}

/// The common area of two boxes, as a part of the area that they cover together.
fn in_common(a: &Found, b: &Found) -> f32 {
    let area = |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let ([l1, t1, r1, b1], [l2, t2, r2, b2]) = (a.edges, b.edges);
    let common = area([l1.max(l2), t1.max(t2), r1.min(r2), b1.min(b2)]);
    common / (area(a.edges) + area(b.edges) - common)
}

/// The names in a dictionary as Python prints it: `{0: 'person', 1: 'bicycle'}`.
fn class_names(dictionary: &str) -> Vec<String> {
    let entries = dictionary.trim_matches(['{', '}']).split(", ");
    entries.filter_map(|entry| entry.split_once(": ")).map(|(_, name)| name.trim_matches(['\'', '"']).into()).collect()
}
