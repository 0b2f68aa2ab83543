//! timm's vision transformers. The architecture's name tells the sizes, and the tensors tell which parts there are.

use super::block::{Activation, Stack};
use super::dinov3;
use super::ends::{Ends, classes};
use super::families::biases_of;
use super::head::{self, Head};
use super::images::Images;
use super::names::{self, Names};
use super::options::{Embedding, Pooling};
use super::pixels::Pixels;
use super::settings::Settings;
use super::staged::timm_sides;
use crate::model::weights::Weights;

/// Width, layers and heads, by a part of the name. The first entry that a name contains counts.
const SIZES: [(&str, [usize; 3]); 10] = [
    ("tiny", [192, 12, 3]),
    ("small", [384, 12, 6]),
    ("medium", [512, 12, 8]),
    ("base", [768, 12, 12]),
    ("large", [1024, 24, 16]),
    ("huge_plus", [1280, 32, 20]),
    ("huge", [1280, 32, 16]),
    ("so400m", [1152, 27, 16]),
    ("giantopt", [1536, 40, 16]),
    ("7b", [4096, 40, 32]),
];

/// The beginnings of the names of SigLIP's encoders with GELU by tanh.
const GELU_TANH: [&str; 5] = [
    "vit_base_patch32_siglip",
    "vit_large_patch16_siglip_512",
    "vit_large_patch16_siglip_gap_512",
    "vit_so400m_patch16_siglip",
    "vit_giantopt_patch16_siglip",
];

pub(super) fn images(settings: &Settings, weights: &Weights, asked: &Embedding, name: &str) -> Images {
    let is_turned = is_turned(name);
    if name.split('_').any(|part| part == "rope") {
        settings.refuse(format!("`{name}`: queries and keys that are turned are supported as DINOv3 turns them"));
    }
    let stack = stack(settings, weights, name);
    let patch = settings.axis(weights, "patch_embed.proj.weight", 2).unwrap_or(16);
    let mut tokens = Vec::new();
    for token in ["cls_token", "dist_token", "reg_token"] {
        let is_there = weights.dims(token).is_some();
        let count = || settings.axis(weights, token, 1).unwrap_or(1);
        tokens.extend(is_there.then(|| (token, vec![1, count(), stack.width])));
    }
    let prefix: usize = tokens.iter().map(|(_, dims)| dims[1]).sum();
    let stored = settings.axis(weights, "pos_embed", 1).unwrap_or(prefix + 1);
    let sides = timm_sides(settings);
    let (placed, trained) = places(stored, prefix, sides.map(|side| side / patch)).unwrap_or_else(|| {
        if !is_turned {
            let [height, width] = sides;
            settings.refuse(format!(
                "`pos_embed`: expected the places of {height} x {width} pixels or of a square, found {stored}"
            ));
        }
        (0, [1; 2])
    });
    let size = if is_turned { sides } else { trained.map(|patches| patches * patch) };
    let has = |norm: &'static str| weights.dims(&format!("{norm}.weight")).map(|_| norm);
    let (pooling, head) = pooling(settings, is_turned);
    Images {
        pixels: Pixels { size: asked.image.unwrap_or(size), mean: [0.5; 3], std: [0.5; 3] },
        patch,
        filter: ("patch_embed.proj", weights.dims("patch_embed.proj.bias").is_some()),
        tokens,
        places: (!is_turned).then(|| ("pos_embed", vec![1, stored, stack.width])),
        placed: if is_turned { 0 } else { placed },
        trained,
        antialias: true,
        turning: is_turned.then_some(dinov3::BASE),
        first_norm: has("norm_pre"),
        last_norm: if has("fc_norm").is_some() { None } else { Some("norm") },
        head: head.filter(|_| asked.pooling.is_none()),
        ends: Ends {
            pooling: asked.pooling.unwrap_or(pooling),
            normalized: asked.normalized.unwrap_or(false),
            norm: has("fc_norm").map(|norm| (norm.to_owned(), stack.eps)),
            projection: None,
            // A model whose classes are the mean of two heads reads two tokens, and has no single classifier.
            classes: if weights.dims("dist_token").is_some() { None } else { classes(weights, "head", stack.width) },
        },
        stack,
    }
}

/// The number of `prefix` tokens that have a position in a table of `stored` rows, and the patches along each side of
/// the image for which the other rows were made: the image `told`, or else a square one. `None` if no such image has
/// that number.
fn places(stored: usize, prefix: usize, told: [usize; 2]) -> Option<(usize, [usize; 2])> {
    let grids = |count: usize| [told, [count.isqrt(); 2]].into_iter().find(|[height, width]| height * width == count);
    let placed = [prefix, 0].into_iter().filter(|placed| stored > *placed);
    placed.filter_map(|placed| Some((placed, grids(stored - placed)?))).next()
}

/// Whether queries and keys are turned by the positions of patches.
fn is_turned(name: &str) -> bool {
    name.contains("_dinov3")
}

fn stack(settings: &Settings, weights: &Weights, name: &str) -> Stack {
    let model = settings.inner("model_args"); // only the values that differ from those of the name
    let found = SIZES.iter().find(|(size, _)| format!("{name}_").contains(&format!("_{size}_")));
    if found.is_none() {
        settings.refuse(format!("`{name}`: expected a name with one of {}", SIZES.map(|(size, _)| size).join(", ")));
    }
    let [width, layers, heads] = found.map_or([768, 12, 12], |(_, sizes)| *sizes);
    let width = model.count(&["embed_dim"], width);
    let names = names(weights, name);
    let stack = Stack {
        names,
        prefix: String::new(),
        width,
        layers: model.count(&["depth"], layers),
        heads: model.count(&["num_heads"], heads),
        inner: settings.axis(weights, "blocks.0.mlp.fc2.weight", 1).unwrap_or(4 * width),
        eps: if name.contains("clip") || is_turned(name) { 1e-5 } else { 1e-6 },
        activation: model.activation(&["act_layer"], activation(names, name)),
        gated: names.gate.is_some(),
        bare_first: false,
        absent: absent(weights, names),
    };
    if is_turned(name) {
        dinov3::check_heads(&model, &stack);
    }
    settings.include(&model);
    stack
}

fn names(weights: &Weights, name: &str) -> &'static Names {
    let has = |tensor: &str| weights.dims(&format!("blocks.0.{tensor}")).is_some();
    match is_turned(name) {
        true if has("mlp.fc1_g.weight") => &names::TIMM_DINOV3_GATED,
        true => &names::TIMM_DINOV3,
        false if has("ls1.gamma") => &names::TIMM_SCALED,
        false => &names::TIMM,
    }
}

fn activation(of: &Names, name: &str) -> Activation {
    match of.gate {
        Some(_) => Activation::Silu,
        None if name.contains("quickgelu") => Activation::QuickGelu,
        None if GELU_TANH.iter().any(|beginning| name.starts_with(beginning)) => Activation::GeluTanh,
        None => Activation::Gelu,
    }
}

/// The ends of the names of the biases of queries, keys and values that the first layer does not have.
fn absent(weights: &Weights, of: &Names) -> Vec<String> {
    let biases = of.biases.map_or_else(|| biases_of(of.qkv), |biases| biases.map(str::to_owned).to_vec());
    biases.into_iter().filter(|bias| weights.dims(&format!("{}0.{bias}", of.layers)).is_none()).collect()
}

/// The pooling, and the head if it pools by attention.
fn pooling(settings: &Settings, is_turned: bool) -> (Pooling, Option<Head>) {
    match settings.name("global_pool") {
        "avg" => (Pooling::Mean, None),
        "" if is_turned => (Pooling::Mean, None),
        "" | "token" => (Pooling::Class, None),
        "map" => (Pooling::Mean, Some(Head { name: "attn_pool".into(), names: &head::TIMM })),
        other => {
            settings.refuse(format!("`global_pool`: expected `token`, `avg` or `map`, found `{other}`"));
            (Pooling::Tokens, None)
        }
    }
}
