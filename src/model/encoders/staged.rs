//! Swin and ConvNeXt: sizes of the library `transformers` are in the configuration, those of timm in the tensors'
//! shapes.

use super::block::{Activation, Stack};
use super::convnext::{self, ConvNext};
use super::dinov3::{IMAGENET_MEAN, IMAGENET_STD};
use super::ends::{Ends, classes};
use super::families::{biases_of, prefix};
use super::names;
use super::options::{Embedding, Pooling};
use super::pixels::Pixels;
use super::settings::Settings;
use super::swin::Swin;
use crate::model::weights::Weights;

/// Swin in the format of the library `transformers`.
pub(super) fn swin(settings: &Settings, weights: &Weights, asked: &Embedding) -> Swin {
    let prefix = prefix(weights, &["", "swin."], "embeddings.patch_embeddings.projection.weight");
    let first = settings.count(&["embed_dim"], 96);
    let depths = settings.counts("depths", &[2, 2, 6, 2]);
    let heads = settings.counts("num_heads", &[3, 6, 12, 24]);
    if depths.len() != heads.len() {
        settings.refuse(format!("`num_heads`: expected {}, one for each stage, found {}", depths.len(), heads.len()));
    }
    if settings.flag("use_absolute_embeddings", false) {
        settings.refuse("`use_absolute_embeddings` is not supported: distances in windows are".into());
    }
    let eps = settings.fraction("layer_norm_eps", 1e-5);
    let ratio = settings.positive("mlp_ratio", 4.0);
    let absent = if settings.flag("qkv_bias", true) { Vec::new() } else { biases_of(names::SWIN.qkv) };
    let stage = |(index, (&layers, &heads)): (usize, (&usize, &usize))| {
        let width = first << index;
        if !width.is_multiple_of(heads) {
            settings.refuse(format!("{width} values of a token for {heads} heads: expected as many for each"));
        }
        Stack {
            names: &names::SWIN,
            prefix: format!("{prefix}encoder.layers.{index}."),
            width,
            heads,
            layers,
            inner: (ratio * width as f64) as usize,
            eps,
            activation: settings.activation(&["hidden_act"], Activation::Gelu),
            gated: false,
            bare_first: false,
            absent: absent.clone(),
        }
    };
    let stages: Vec<Stack> = depths.iter().zip(&heads).enumerate().map(stage).collect();
    Swin {
        pixels: pixels(settings.sides("image_size", 224), asked),
        patch: settings.count(&["patch_size"], 4),
        window: settings.count(&["window_size"], 7),
        moves_one_side: false,
        filter: "embeddings.patch_embeddings.projection",
        first_norm: "embeddings.norm",
        distances: "attention.self.relative_position_bias_table",
        merged_by: |stage| stage,
        last_norm: "layernorm",
        layers: "encoder.layers.",
        eps,
        ends: ends(weights, asked, "classifier", first << (depths.len() - 1), None),
        prefix,
        stages,
    }
}

/// Swin in the format of timm.
pub(super) fn timm_swin(settings: &Settings, weights: &Weights, asked: &Embedding) -> Swin {
    const DISTANCES: &str = "attn.relative_position_bias_table";
    let dims = |name: &str, axis: usize| settings.axis(weights, name, axis);
    let first = dims("patch_embed.proj.weight", 0).unwrap_or(96);
    let depths = depths(weights, |stage, layer| format!("layers.{stage}.blocks.{layer}.norm1.weight"));
    let stage = |(index, &layers): (usize, &usize)| Stack {
        names: &names::TIMM,
        prefix: format!("layers.{index}."),
        width: first << index,
        heads: dims(&format!("layers.{index}.blocks.0.{DISTANCES}"), 1).unwrap_or(1),
        layers,
        inner: dims(&format!("layers.{index}.blocks.0.mlp.fc1.weight"), 0).unwrap_or(4 * (first << index)),
        eps: 1e-5,
        activation: Activation::Gelu,
        gated: false,
        bare_first: false,
        absent: Vec::new(),
    };
    let distances = dims(&format!("layers.0.blocks.0.{DISTANCES}"), 0).unwrap_or(169);
    Swin {
        pixels: pixels(timm_sides(settings), asked),
        patch: dims("patch_embed.proj.weight", 2).unwrap_or(4),
        window: distances.isqrt().div_ceil(2),
        moves_one_side: true,
        filter: "patch_embed.proj",
        first_norm: "patch_embed.norm",
        distances: DISTANCES,
        merged_by: |stage| stage + 1,
        last_norm: "norm",
        layers: "layers.",
        eps: 1e-5,
        ends: ends(weights, asked, "head.fc", first << (depths.len() - 1), None),
        prefix: String::new(),
        stages: depths.iter().enumerate().map(stage).collect(),
    }
}

/// ConvNeXt in the format of the library `transformers`.
pub(super) fn convnext(settings: &Settings, weights: &Weights, asked: &Embedding) -> ConvNext {
    let prefix = prefix(weights, &["", "convnext."], "embeddings.patch_embeddings.weight");
    let channels = settings.counts("hidden_sizes", &[96, 192, 384, 768]);
    let depths = settings.counts("depths", &[3, 3, 9, 3]);
    if depths.len() != channels.len() {
        settings.refuse(format!("`depths`: expected {}, one for each stage, found {}", channels.len(), depths.len()));
    }
    let norm = (format!("{prefix}layernorm"), settings.fraction("layer_norm_eps", 1e-12));
    ConvNext {
        pixels: pixels(settings.sides("image_size", 224), asked),
        patch: settings.count(&["patch_size"], 4),
        names: &convnext::NAMES,
        prefix,
        activation: settings.activation(&["hidden_act"], Activation::Gelu),
        has_filters: false,
        ends: ends(weights, asked, "classifier", channels[channels.len() - 1], Some(norm)),
        stages: channels.into_iter().zip(depths).collect(),
    }
}

/// ConvNeXt in the format of timm.
pub(super) fn timm_convnext(settings: &Settings, weights: &Weights, asked: &Embedding) -> ConvNext {
    let depths = depths(weights, |stage, layer| format!("stages.{stage}.blocks.{layer}.norm.weight"));
    let width = |stage: usize| settings.axis(weights, &format!("stages.{stage}.blocks.0.norm.weight"), 0).unwrap_or(1);
    let norm = ("head.norm".to_owned(), 1e-6);
    ConvNext {
        pixels: pixels(timm_sides(settings), asked),
        patch: settings.axis(weights, "stem.0.weight", 2).unwrap_or(4),
        names: &convnext::TIMM,
        prefix: String::new(),
        activation: Activation::Gelu,
        has_filters: weights.dims("stages.0.blocks.0.mlp.fc1.weight").is_some_and(|dims| dims.len() == 4),
        ends: ends(weights, asked, "head.fc", width(depths.len() - 1), Some(norm)),
        stages: depths.iter().enumerate().map(|(stage, &layers)| (width(stage), layers)).collect(),
    }
}

fn pixels(size: [usize; 2], asked: &Embedding) -> Pixels {
    Pixels { size: asked.image.unwrap_or(size), mean: IMAGENET_MEAN, std: IMAGENET_STD }
}

fn ends(
    weights: &Weights,
    asked: &Embedding,
    classifier: &'static str,
    width: usize,
    norm: Option<(String, f64)>,
) -> Ends {
    Ends {
        pooling: asked.pooling.unwrap_or(Pooling::Mean),
        normalized: asked.normalized.unwrap_or(false),
        norm,
        projection: None,
        classes: classes(weights, classifier, width),
    }
}

/// The largest number of stages.
const MOST_STAGES: usize = 8;

/// The number of layers of each stage, found by the tensor `shown` of each layer; at least one.
fn depths(weights: &Weights, shown: impl Fn(usize, usize) -> String) -> Vec<usize> {
    let has = |stage: usize, layer: usize| stage < MOST_STAGES && weights.dims(&shown(stage, layer)).is_some();
    let layers = |stage: usize| (0..).take_while(|&layer| has(stage, layer)).count().max(1);
    let stages = (0..).take_while(|&stage| has(stage, 0)).count().max(1);
    (0..stages).map(layers).collect()
}

/// The size of the images with which a model of timm was trained.
pub(super) fn timm_sides(settings: &Settings) -> [usize; 2] {
    let args = settings.inner("model_args");
    let pretrained = settings.inner("pretrained_cfg");
    let default = match pretrained.counts("input_size", &[3, 224, 224])[..] {
        [_, height, width] => [height, width],
        _ => [224; 2],
    };
    let sides = if args.has("img_size") { args.sides("img_size", 224) } else { default };
    settings.include(&args);
    settings.include(&pretrained);
    sides
}
