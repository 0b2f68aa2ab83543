//! Encoders by their configuration.

use super::block::{Activation, Stack};
use super::ends::{Ends, classes};
use super::images::Images;
use super::names::{self, Names};
use super::options::{Embedding, Pooling};
use super::pixels::Pixels;
use super::settings::Settings;
use super::text::{End, Text};
use crate::model::weights::Weights;

/// The values of `model_type` for the supported families. timm's vision transformers are found by their architecture.
pub(super) const FAMILIES: [&str; 15] = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "mpnet",
    "vit",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "modernbert",
    "whisper",
    "swin",
    "convnext",
];
/// The families of models with two towers.
pub(super) const TOWERS: [&str; 2] = ["clip", "siglip"];
/// The beginnings of timm's architecture names.
pub(super) const TIMM: [&str; 4] = ["vit_", "deit_", "swin_", "convnext_"];

/// The wrong `eos_token_id` in old configurations of CLIP.
const LEGACY_END: usize = 2;
/// CLIP's mean and deviation of pixels.
pub(super) const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
pub(super) const CLIP_STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// The first of some prefixes of tensor names for which the tensor `shown` exists; otherwise empty.
pub(super) fn prefix(weights: &Weights, of: &[&str], shown: &str) -> String {
    let found = of.iter().find(|prefix| weights.dims(&format!("{prefix}{shown}")).is_some());
    (*found.unwrap_or(&"")).to_owned()
}

/// The layers as most configurations describe them.
fn stack(settings: &Settings, names: &'static Names, prefix: String, eps: f64) -> Stack {
    let width = settings.count(&["hidden_size", "dim"], 768);
    let heads = settings.count(&["num_attention_heads", "n_heads"], 12);
    if !width.is_multiple_of(heads) {
        settings.refuse(format!("{width} values of a token for {heads} heads: expected as many for each"));
    }
    Stack {
        names,
        prefix,
        width,
        heads,
        layers: settings.count(&["num_hidden_layers", "n_layers"], 12),
        inner: settings.count(&["intermediate_size", "hidden_dim"], 4 * width),
        eps: settings.fraction("layer_norm_eps", eps),
        activation: settings.activation(&["hidden_act", "activation"], Activation::Gelu),
        gated: false,
        bare_first: false,
        absent: if settings.flag("qkv_bias", true) { Vec::new() } else { biases_of(names.qkv) },
    }
}

/// The ends of the names of the biases of some modules.
pub(super) fn biases_of(modules: &[&str]) -> Vec<String> {
    modules.iter().map(|module| format!("{module}.bias")).collect()
}

/// BERT, or another model of the same structure.
pub(super) fn bert(settings: &Settings, weights: &Weights, asked: &Embedding, kind: &str, longest: usize) -> Text {
    let (names, beginnings) = match kind {
        "distilbert" => (&names::DISTILBERT, ["", "distilbert."]),
        "mpnet" => (&names::MPNET, ["", "mpnet."]),
        "bert" => (&names::BERT, ["", "bert."]),
        _ => (&names::BERT, ["", "roberta."]),
    };
    let prefix = prefix(weights, &beginnings, "embeddings.word_embeddings.weight");
    let style = settings.name("position_embedding_type");
    if !["", "absolute"].contains(&style) {
        settings.refuse(format!("`position_embedding_type` `{style}` is not supported: `absolute` is"));
    }
    // The rows of the table up to the row for padding are no positions.
    let first_place = match kind {
        "bert" | "distilbert" => 0,
        _ => settings.count(&["pad_token_id"], 1) + 1,
    };
    let places = settings.count(&["max_position_embeddings"], 512);
    let most = places.saturating_sub(first_place);
    let has_types = !["distilbert", "mpnet"].contains(&kind);
    Text {
        stack: stack(settings, names, prefix, if kind == "roberta" { 1e-5 } else { 1e-12 }),
        words: ("embeddings.word_embeddings", settings.count(&["vocab_size"], 30_522)),
        places: Some(("embeddings.position_embeddings", places)),
        types: has_types.then(|| ("embeddings.token_type_embeddings", settings.count(&["type_vocab_size"], 2))),
        first_place,
        norm: Some("embeddings.LayerNorm"),
        last_norm: None,
        distances: (kind == "mpnet")
            .then(|| ("encoder.relative_attention_bias", settings.count(&["relative_attention_num_buckets"], 32))),
        is_causal: false,
        spans: Vec::new(),
        end: Some(End::Seen),
        sequence: asked.sequence.unwrap_or(longest.min(most)),
        most,
        pooling: asked.pooling.unwrap_or(Pooling::Mean),
        normalized: asked.normalized.unwrap_or(false),
        projection: None,
    }
}

const CLIP_STYLE: (Activation, f64) = (Activation::QuickGelu, 1e-5);

/// The encoder of CLIP's texts.
pub(super) fn clip_texts(settings: &Settings, of: &Settings, asked: &Embedding) -> Text {
    let stack = tower(of, "text_model.", [512, 8, 2048], CLIP_STYLE);
    let places = of.count(&["max_position_embeddings"], 77);
    let end = match of.get("eos_token_id").and_then(serde_json::Value::as_i64) {
        None => End::Largest,
        Some(id) if id == LEGACY_END as i64 => End::Largest,
        Some(id) => End::Id(id),
    };
    Text {
        stack,
        words: ("embeddings.token_embedding", of.count(&["vocab_size"], 49_408)),
        places: Some(("embeddings.position_embedding", places)),
        types: None,
        first_place: 0,
        norm: None,
        last_norm: Some("final_layer_norm"),
        distances: None,
        is_causal: true,
        spans: Vec::new(),
        end: Some(end),
        sequence: asked.sequence.unwrap_or(places),
        most: places,
        pooling: asked.pooling.unwrap_or(Pooling::Last),
        normalized: asked.normalized.unwrap_or(false),
        projection: Some(("text_projection", settings.count(&["projection_dim"], 512), false)),
    }
}

/// The encoder of CLIP's images.
pub(super) fn clip_images(settings: &Settings, of: &Settings, asked: &Embedding) -> Images {
    let stack = tower(of, "vision_model.", [768, 12, 3072], CLIP_STYLE);
    let (patch, size) = (of.count(&["patch_size"], 32), of.sides("image_size", 224));
    let trained = size.map(|side| side / patch);
    let places = trained.iter().product::<usize>() + 1;
    Images {
        pixels: Pixels { size: asked.image.unwrap_or(size), mean: CLIP_MEAN, std: CLIP_STD },
        patch,
        filter: ("embeddings.patch_embedding", false),
        tokens: vec![("embeddings.class_embedding", vec![stack.width])],
        places: Some(("embeddings.position_embedding.weight", vec![places, stack.width])),
        placed: 1,
        trained,
        antialias: false,
        turning: None,
        first_norm: Some("pre_layrnorm"),
        last_norm: None,
        head: None,
        ends: Ends {
            pooling: asked.pooling.unwrap_or(Pooling::Class),
            normalized: asked.normalized.unwrap_or(false),
            norm: Some((stack.name("post_layernorm"), stack.eps)),
            projection: Some(("visual_projection", settings.count(&["projection_dim"], 512))),
            classes: None,
        },
        stack,
    }
}

/// The layers of a tower. Absent keys of its configuration have these defaults: width, heads, inner values.
pub(super) fn tower(
    of: &Settings,
    prefix: &str,
    [width, heads, inner]: [usize; 3],
    (activation, eps): (Activation, f64),
) -> Stack {
    let (width, heads) = (of.count(&["hidden_size"], width), of.count(&["num_attention_heads"], heads));
    if !width.is_multiple_of(heads) {
        of.refuse(format!("{width} values of a token for {heads} heads: expected as many for each"));
    }
    Stack {
        names: &names::CLIP,
        prefix: prefix.to_owned(),
        width,
        heads,
        layers: of.count(&["num_hidden_layers"], 12),
        inner: of.count(&["intermediate_size"], inner),
        eps: of.fraction("layer_norm_eps", eps),
        activation: of.activation(&["hidden_act"], activation),
        gated: false,
        bare_first: false,
        absent: Vec::new(),
    }
}

/// ViT, DeiT and DINOv2 as in the library `transformers`.
pub(super) fn vit(settings: &Settings, weights: &Weights, asked: &Embedding, kind: &str) -> Images {
    let is_dino = kind.starts_with("dinov2");
    let (names, beginnings) = match kind {
        "vit" => (&names::VIT, ["", "vit."]),
        "deit" => (&names::VIT, ["", "deit."]),
        "dinov2" => (&names::DINOV2, ["", "dinov2."]),
        _ => (&names::DINOV2, ["", "dinov2_with_registers."]),
    };
    let prefix = prefix(weights, &beginnings, "embeddings.cls_token");
    let mut stack = stack(settings, names, prefix, if is_dino { 1e-6 } else { 1e-12 });
    if is_dino {
        stack.inner = stack.width * settings.count(&["mlp_ratio"], 4);
        if settings.flag("use_swiglu_ffn", false) {
            stack = Stack {
                names: &names::DINOV2_GATED,
                inner: (stack.inner * 2 / 3).next_multiple_of(8),
                activation: Activation::Silu,
                gated: true,
                ..stack
            };
        }
    }
    let channels = settings.count(&["num_channels"], 3);
    if channels != 3 {
        settings.refuse(format!("images of {channels} channels are not supported: those of 3 are"));
    }
    let patch = settings.count(&["patch_size"], if is_dino { 14 } else { 16 });
    let size = settings.sides("image_size", 224);
    let mut tokens = vec![("embeddings.cls_token", vec![1, 1, stack.width])];
    if kind == "deit" {
        tokens.push(("embeddings.distillation_token", vec![1, 1, stack.width]));
    }
    let placed = tokens.len();
    if kind == "dinov2_with_registers" {
        tokens.push(("embeddings.register_tokens", vec![1, settings.count(&["num_register_tokens"], 4), stack.width]));
    }
    let trained = size.map(|side| side / patch);
    let places = trained.iter().product::<usize>() + placed;
    Images {
        pixels: Pixels { size: asked.image.unwrap_or(size), mean: [0.5; 3], std: [0.5; 3] },
        patch,
        filter: ("embeddings.patch_embeddings.projection", true),
        tokens,
        places: Some(("embeddings.position_embeddings", vec![1, places, stack.width])),
        placed,
        trained,
        antialias: kind == "dinov2_with_registers",
        turning: None,
        first_norm: None,
        last_norm: Some("layernorm"),
        head: None,
        ends: Ends {
            pooling: asked.pooling.unwrap_or(Pooling::Class),
            normalized: asked.normalized.unwrap_or(false),
            norm: None,
            projection: None,
            classes: classes(weights, "classifier", stack.width),
        },
        stack,
    }
}
