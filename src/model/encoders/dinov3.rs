//! DINOv3's vision transformers: rotary position embeddings of queries and keys, and no table of positions.

use super::block::{Activation, Stack};
use super::ends::Ends;
use super::families::{prefix, tower};
use super::images::Images;
use super::names;
use super::options::{Embedding, Pooling};
use super::pixels::Pixels;
use super::settings::Settings;
use crate::model::weights::Weights;

/// The mean and deviation of ImageNet's pixels.
pub(super) const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
pub(super) const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// The default base of the angles by which queries and keys are turned.
pub(super) const BASE: f64 = 100.0;
/// The keys of biases, whether these biases exist by default, and the modules that have them.
const BIASES: [(&str, bool, &str); 7] = [
    ("query_bias", true, "attention.q_proj"),
    ("key_bias", false, "attention.k_proj"),
    ("value_bias", true, "attention.v_proj"),
    ("proj_bias", true, "attention.o_proj"),
    ("mlp_bias", true, "mlp.gate_proj"),
    ("mlp_bias", true, "mlp.up_proj"),
    ("mlp_bias", true, "mlp.down_proj"),
];

pub(super) fn images(settings: &Settings, weights: &Weights, asked: &Embedding) -> Images {
    let beginning = prefix(weights, &["", "dinov3_vit."], "embeddings.cls_token");
    let stack = tower(settings, &beginning, [384, 6, 1536], (Activation::Gelu, 1e-5));
    let stack = Stack {
        names: &names::DINOV3,
        gated: settings.flag("use_gated_mlp", false),
        absent: settings.without_biases(&BIASES),
        ..stack
    };
    check_heads(settings, &stack);
    let mut tokens = vec![("embeddings.cls_token", vec![1, 1, stack.width])];
    if settings.has("num_register_tokens") {
        let registers = settings.count(&["num_register_tokens"], 4);
        tokens.push(("embeddings.register_tokens", vec![1, registers, stack.width]));
    }
    Images {
        pixels: Pixels {
            size: asked.image.unwrap_or(settings.sides("image_size", 224)),
            mean: IMAGENET_MEAN,
            std: IMAGENET_STD,
        },
        patch: settings.count(&["patch_size"], 16),
        filter: ("embeddings.patch_embeddings", true),
        tokens,
        places: None,
        placed: 0,
        trained: [0; 2],
        antialias: false,
        turning: Some(settings.positive("rope_theta", BASE)),
        first_norm: None,
        last_norm: Some("norm"),
        head: None,
        ends: Ends {
            pooling: asked.pooling.unwrap_or(Pooling::Class),
            normalized: asked.normalized.unwrap_or(false),
            norm: None,
            projection: None,
            classes: None,
        },
        stack,
    }
}

/// Records an error for heads that cannot be divided equally between height and width.
pub(super) fn check_heads(settings: &Settings, of: &Stack) {
    if !(of.width / of.heads).is_multiple_of(4) {
        settings.refuse(format!("heads of {} values: expected a multiple of 4", of.width / of.heads));
    }
}
