//! SigLIP: towers of images and of texts. The model gives each pair of an image and a text a probability of its own.

use super::block::Activation;
use super::ends::Ends;
use super::families::tower;
use super::head::{self, Head};
use super::images::Images;
use super::options::{Embedding, Pooling};
use super::pixels::Pixels;
use super::settings::Settings;
use super::text::Text;

const STYLE: (Activation, f64) = (Activation::GeluTanh, 1e-6);

/// The encoder of SigLIP's texts. They are padded to their full length, and tokens also attend to the padding.
pub(super) fn texts(of: &Settings, asked: &Embedding) -> Text {
    let stack = tower(of, "text_model.", [768, 12, 3072], STYLE);
    let places = of.count(&["max_position_embeddings"], 64);
    Text {
        words: ("embeddings.token_embedding", of.count(&["vocab_size"], 32_000)),
        places: Some(("embeddings.position_embedding", places)),
        types: None,
        first_place: 0,
        norm: None,
        last_norm: Some("final_layer_norm"),
        distances: None,
        is_causal: false,
        spans: Vec::new(),
        end: None,
        sequence: asked.sequence.unwrap_or(places),
        most: places,
        pooling: asked.pooling.unwrap_or(Pooling::Last),
        normalized: asked.normalized.unwrap_or(false),
        projection: Some(("text_model.head", of.count(&["projection_size"], stack.width), true)),
        stack,
    }
}

/// The encoder of SigLIP's images.
pub(super) fn images(of: &Settings, asked: &Embedding) -> Images {
    let stack = tower(of, "vision_model.", [768, 12, 3072], STYLE);
    let (patch, size) = (of.count(&["patch_size"], 16), of.sides("image_size", 224));
    let trained = size.map(|side| side / patch);
    let places = trained.iter().product::<usize>();
    let has_head = of.flag("vision_use_head", true) && asked.pooling.is_none();
    Images {
        pixels: Pixels { size: asked.image.unwrap_or(size), mean: [0.5; 3], std: [0.5; 3] },
        patch,
        filter: ("embeddings.patch_embedding", true),
        tokens: Vec::new(),
        places: Some(("embeddings.position_embedding.weight", vec![places, stack.width])),
        placed: 0,
        trained,
        antialias: false,
        turning: None,
        first_norm: None,
        last_norm: Some("post_layernorm"),
        head: has_head.then(|| Head { name: stack.name("head"), names: &head::NAMES }),
        ends: Ends {
            pooling: asked.pooling.unwrap_or(Pooling::Mean),
            normalized: asked.normalized.unwrap_or(false),
            norm: None,
            projection: None,
            classes: None,
        },
        stack,
    }
}
