//! ModernBERT: tokens are turned by their places, most layers see only what is near, and first products are gated.

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
        end: End::Seen,
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
        absent: absent(settings),
    }
}

/// How the biases end that the configuration leaves out.
fn absent(settings: &Settings) -> Vec<String> {
    let parts = [
        ("attention_bias", "attn.Wqkv"),
        ("attention_bias", "attn.Wo"),
        ("mlp_bias", "mlp.Wi"),
        ("mlp_bias", "mlp.Wo"),
        ("norm_bias", "norm"),
    ];
    let left_out = parts.into_iter().filter(|(key, _)| !settings.flag(key, false));
    left_out.map(|(_, module)| format!("{module}.bias")).collect()
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// How far each layer sees: as it is listed, or every so many layers all.
fn spans(settings: &Settings) -> Vec<Span> {
    let rope = settings.inner("rope_parameters");
    let base = |kind: &str, key: &str, default: f64| {
        let of = rope.inner(kind);
        let base = of.number("rope_theta", settings.number(key, default));
        if !["", "default"].contains(&of.name("rope_type")) {
            of.refuse(format!("`rope_type` `{}` is not supported: `default` is", of.name("rope_type")));
        }
        rope.include(&of);
        base
    };
    let full = Span { base: base(FULL, "global_rope_theta", 160_000.0), reach: None };
    let reach = settings.count(&["local_attention"], 128) / 2;
    let sliding = Span { base: base(SLIDING, "local_rope_theta", 10_000.0), reach: Some(reach) };
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
