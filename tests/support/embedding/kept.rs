//! Encoders of the libraries `transformers` and `timm`, with the results of the libraries:
//! `tests/data/make_encoders.py`.

use std::fs;

use serde_json::Value;
use trefoil::model::{Embedding, Tower};

use super::super::random::Random;
use super::folder::Tensors;
use super::{Computed, Problem, Reference, Shape, WORDS};

/// The names of the files, without extensions.
pub const NAMES: [&str; 26] = [
    "clip images",
    "clip texts",
    "siglip images",
    "siglip larger",
    "siglip texts",
    "dinov2 registers",
    "dinov2 gated",
    "dinov3",
    "dinov3 wider",
    "dinov3 gated",
    "modernbert",
    "modernbert null",
    "whisper",
    "swin",
    "timm swin",
    "timm swin lower",
    "timm swin narrower",
    "convnext",
    "timm convnext",
    "timm convnext of filters",
    "timm dinov3",
    "timm dinov3 biased",
    "timm dinov3 gated",
    "timm siglip",
    "timm siglip tanh",
    "timm siglip mean",
];

/// All kept problems.
pub fn all() -> Vec<Problem> {
    NAMES.into_iter().map(problem).collect()
}

fn problem(name: &'static str) -> Problem {
    let path = format!("tests/data/encoders/{}.json", name.replace(' ', "-"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let kept: Value = serde_json::from_str(&text).unwrap();
    let tensors = kept["tensors"].as_object().unwrap();
    let tensor = |(name, dims): (&String, &Value)| (name.clone(), tensor(name, &sizes(dims)));
    Problem {
        name,
        config: kept["config"].clone(),
        tensors: tensors.iter().map(tensor).collect::<Tensors>(),
        asked: asked(&kept["asked"]),
        reference: Reference::Kept(kept["rows"].as_array().unwrap().iter().map(row).collect()),
        shape: shape(&kept["shape"]),
        layers: kept["layers"].as_u64().unwrap() as usize,
    }
}

/// A tensor by the formula of the script.
fn tensor(name: &str, dims: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let (elems, mut random) = (dims.iter().product(), Random::new(name));
    let is_factor = name.to_lowercase().contains("norm") && name.ends_with("weight");
    let values = match dims {
        [first, _, ..] if *first > 1 => {
            random.singles(elems, (3.0 / dims[1..].iter().product::<usize>() as f64).sqrt())
        }
        _ if is_factor => random.singles(elems, 0.5).iter().map(|x| 1.0 + x).collect(),
        _ => random.singles(elems, 0.5),
    };
    (dims.to_vec(), values)
}

fn sizes(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
}

fn asked(kept: &Value) -> Embedding {
    let mut asked = Embedding::new();
    if kept["image"].is_array() {
        let sides = sizes(&kept["image"]);
        asked = asked.image(sides[0], sides[1]);
    }
    if let Some(tokens) = kept["sequence"].as_u64() {
        asked = asked.sequence(tokens as usize);
    }
    if kept["tower"] == "texts" { asked.tower(Tower::Texts) } else { asked }
}

fn shape(kept: &Value) -> Shape {
    if let Some(tokens) = kept["text"].as_u64() {
        let has_mask = kept["mask"].as_bool().unwrap();
        return Shape::Text { tokens: tokens as usize, words: WORDS, has_mask, has_types: false };
    }
    match (kept.get("image").map(sizes), kept.get("sound").map(sizes)) {
        (Some(sides), _) => Shape::Image { height: sides[0], width: sides[1] },
        (None, sides) => sides.map(|sides| Shape::Sound { bands: sides[0], frames: sides[1] }).unwrap(),
    }
}

fn row(kept: &Value) -> Computed {
    let number = |value: &Value| value.as_f64().unwrap();
    let port = |name: &'static str| {
        let values = kept["ports"].get(name)?.as_array().unwrap();
        Some((name, values.iter().map(number).collect()))
    };
    Computed {
        ports: ["embedding", "logits", "tokens"].into_iter().filter_map(port).collect(),
        scale: number(&kept["scale"]),
    }
}
