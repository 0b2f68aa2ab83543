//! Reads the characters in a picture of a line of text, with a recogniser of PaddleOCR in ONNX:
//!
//! ```sh
//! pip download rapidocr-onnxruntime==1.4.4 --no-deps
//! unzip -o rapidocr_onnxruntime-*.whl 'rapidocr_onnxruntime/models/*'
//! cargo run --release --example read_text -- rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx line.png \
//!     x:2=48 p2o.DynamicDimension.1=320
//! ```
//!
//! usage: read_text MODEL.onnx PICTURE [NAME=SIZE...]
//!
//! NAME=SIZE: free dimensions of the file, which `trefoil inspect` lists. The line is resized to the input's height and laid
//! at its left; the network answers with a probability of each character for each place along the line, and the best ones are
//! the text, without repetitions and blanks (CTC). `examples/cpp/read_text.cpp` is the same in C++.

use trefoil::image::Picture;
use trefoil::model::{Interpolation, Model};
use trefoil::onnx::Sizes;
use trefoil::{Device, Engine, Error, Target};

/// The text of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// The characters of the text.
    pub characters: String,
    /// The mean of the characters' probabilities.
    pub probability: f32,
}

#[allow(dead_code, reason = "a test calls what main calls")]
fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, picture, sizes @ ..] = &arguments[..] else {
        eprintln!("usage: read_text MODEL.onnx PICTURE [NAME=SIZE...]");
        std::process::exit(64);
    };
    let sizes = sizes.iter().filter_map(|size| size.split_once('='));
    let sizes = sizes.fold(Sizes::new(), |all, (name, size)| all.dim(name, size.parse().expect("SIZE is a number")));
    let model = Model::open_at(model, &sizes)?;
    let engine = Engine::builder(&model).on(&Device::open(Target::Auto)?).batch(1).build()?;
    let Text { characters, probability } = read(&engine, &characters(&model), &Picture::open(picture)?)?;
    println!("{characters} ({probability:.2})");
    Ok(())
}

/// The characters that the network recognises, by class: the blank between two characters, those that the file lists,
/// and a space.
pub fn characters(model: &Model) -> Vec<&str> {
    let listed = model.metadata("character").unwrap_or_default().lines();
    [""].into_iter().chain(listed).chain([" "]).collect()
}

/// Reads the text of a line.
pub fn read(engine: &Engine, characters: &[&str], line: &Picture) -> Result<Text, Error> {
    let &[_, height, width] = &engine.input().ports()[0].dims[..] else {
        return Err(other("an input that is no image [3, height, width]"));
    };
    let drawn_width = (line.width() * height).div_ceil(line.height()).min(width);
    let mut canvas = Picture::filled(drawn_width, height, [0; 3])?;
    canvas.draw(canvas.area(), line, line.area(), Interpolation::Bilinear)?;

    let mut batch = engine.acquire()?;
    let planes = batch.port_mut::<f32>(0, 0)?;
    planes.fill(0.0); // behind the line
    for (y, pixels) in canvas.pixels().chunks_exact(3 * drawn_width).enumerate() {
        for (x, pixel) in pixels.chunks_exact(3).enumerate() {
            for (channel, &value) in pixel.iter().rev().enumerate() {
                planes[(channel * height + y) * width + x] = f32::from(value) / 127.5 - 1.0; // blue, green, red
            }
        }
    }
    let output = batch.submit(1)?.wait()?;
    let &[_, classes] = &output.spec().ports()[0].dims[..] else {
        return Err(other("an output that is not [places, characters]"));
    };
    Ok(decode(output.port::<f32>(0, 0)?, classes, characters))
}

/// The error for a file of another kind of network.
fn other(what: &str) -> Error {
    Error::Unsupported { what: what.into(), instead: "take a recogniser of PaddleOCR, of single lines".into() }
}

/// The text in rows of `classes` probabilities, one row for each place: the most probable character of each place, once
/// for a run of equal ones, without blanks.
fn decode(probabilities: &[f32], classes: usize, characters: &[&str]) -> Text {
    let best = probabilities.chunks_exact(classes).filter_map(|place| {
        let (class, &probability) = place.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some((class, probability))
    });
    let (mut text, mut sum, mut count, mut last) = (String::new(), 0.0, 0, 0);
    for (class, probability) in best {
        if class != last && class != 0 {
            text.push_str(characters.get(class).copied().unwrap_or("\u{fffd}"));
            (sum, count) = (sum + probability, count + 1);
        }
        last = class;
    }
    Text { characters: text, probability: sum / count.max(1) as f32 }
}
