//! ModernBERT: rotary position embeddings, local attention in most layers, and gated first products.

use super::block::{Activation, Stack};
use super::families::prefix;
use super::names;
use super::options::{Embedding, Pooling};
use super::settings::Settings;
use super::spans::Span;
use super::text::{End, Text};
use crate::model::weights::Weights;

pub(super) fn texts(settings: &Settings, weights: &Weights, asked: &Embedding, longest: usize) -> Text {
    let most = settings.count(&["max_position_embeddings"], 8192);
    Text {
        stack: stack(settings, prefix(weights, &["", "model."], "embeddings.tok_embeddings.weight")),
        words: ("embeddings.tok_embeddings", settings.count(&["vocab_size"], 50_368)),
        places: None,
        types: None,
        first_place: 0,
        norm: Some("embeddings.norm"),
        last_norm: Some("final_norm"),
        distances: None,
        is_causal: false,
        spans: spans(settings),
        end: Some(End::Seen),
        sequence: asked.sequence.unwrap_or(longest.min(most)),
        most,
        pooling: asked.pooling.unwrap_or(Pooling::Mean),
        normalized: asked.normalized.unwrap_or(false),
        projection: None,
    }
}

fn stack(settings: &Settings, prefix: String) -> Stack {
    let width = settings.count(&["hidden_size"], 768);
    let heads = settings.count(&["num_attention_heads"], 12);
    if !width.is_multiple_of(2 * heads) {
        settings.refuse(format!("{width} values of a token for {heads} heads: expected an even number for each"));
    }
    Stack {
        names: &names::MODERNBERT,
        prefix,
        width,
        heads,
        layers: settings.count(&["num_hidden_layers"], 22),
        inner: settings.count(&["intermediate_size"], 1152),
        eps: settings.fraction("norm_eps", 1e-5),
        activation: settings.activation(&["hidden_activation"], Activation::Gelu),
        gated: true,
        bare_first: true,
        absent: settings.without_biases(&BIASES),
    }
}

/// The keys of biases, which do not exist by default, and the modules that have them.
const BIASES: [(&str, bool, &str); 5] = [
    ("attention_bias", false, "attn.Wqkv"),
    ("attention_bias", false, "attn.Wo"),
    ("mlp_bias", false, "mlp.Wi"),
    ("mlp_bias", false, "mlp.Wo"),
    ("norm_bias", false, "norm"),
];

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The span of each layer's attention: as listed, or with all tokens in every n-th layer.
fn spans(settings: &Settings) -> Vec<Span> {
    let rope = settings.inner("rope_parameters");
    let base = |kind: &str, key: &str, default: f64| {
        let of = rope.inner(kind);
        let base = of.positive("rope_theta", settings.positive(key, default));
        if !["", "default"].contains(&of.name("rope_type")) {
            of.refuse(format!("`rope_type` `{}` is not supported: `default` is", of.name("rope_type")));
        }
        rope.include(&of);
        base
    };
    let full = Span { base: base(FULL, "global_rope_theta", 160_000.0), reach: None };
    let reach = settings.count(&["local_attention"], 128) / 2;
    // Null stands for the base of the layers with full attention.
    let is_null = settings.is_null("local_rope_theta") || rope.inner(SLIDING).is_null("rope_theta");
    let default = if is_null { full.base } else { 10_000.0 };
    let sliding = Span { base: base(SLIDING, "local_rope_theta", default), reach: Some(reach) };
    settings.include(&rope);
    let Some(kinds) = settings.names("layer_types") else {
        let every = settings.count(&["global_attn_every_n_layers"], 3).min(1 << 10); // no model has more layers
        return (0..every).map(|layer| if layer == 0 { full } else { sliding }).collect();
    };
    let of_kind = |kind: &String| match kind.as_str() {
        FULL => full,
        SLIDING => sliding,
        other => {
            settings.refuse(format!("`layer_types`: expected `{FULL}` or `{SLIDING}`, found `{other}`"));
            full
        }
    };
    let layers = settings.count(&["num_hidden_layers"], 22);
    if kinds.len() != layers {
        settings.refuse(format!("`layer_types`: expected {layers}, one for each layer, found {}", kinds.len()));
    }
    kinds.iter().map(of_kind).collect()
}
