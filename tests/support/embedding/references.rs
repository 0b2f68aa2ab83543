//! The result of each encoder for a row, by plain loops.

use super::loops::{Matrix, Net};
use super::style::{BERT, CLIP, DINO, DISTILBERT, MPNET, Style, TIMM, VIT};
use super::{Computed, HEADS, LAYERS, Row, WORDS};

/// The mean of the rows for which `counts` holds.
pub fn mean(x: &Matrix, counts: impl Fn(usize) -> bool) -> Matrix {
    let rows: Vec<usize> = (0..x.rows()).filter(|&row| counts(row)).collect();
    let value = |column: usize| rows.iter().map(|&row| x.row(row)[column]).sum::<f64>() / rows.len() as f64;
    Matrix { columns: x.columns, values: (0..x.columns).map(value).collect() }
}

pub fn only(x: &Matrix, row: usize) -> Matrix {
    Matrix { columns: x.columns, values: x.row(row).to_vec() }
}

/// The embedding divided by its length, and the size of the values it was computed from, divided by the same length.
pub fn unit(x: &Matrix, size: f64) -> Computed {
    let length = x.values.iter().map(|x| x * x).sum::<f64>().sqrt();
    let values = x.values.iter().map(|x| x / length).collect();
    Computed { ports: vec![("embedding", values)], scale: size / length }
}

pub fn plain(x: Matrix, size: f64) -> Computed {
    Computed { ports: vec![("embedding", x.values)], scale: size }
}

/// The values to add to scores so that keys that the mask hides are hidden.
pub fn seen(row: &Row) -> impl Fn(usize, usize, usize) -> f64 + '_ {
    |_, _, key| if row.mask[key] == 0 { f64::NEG_INFINITY } else { 0.0 }
}

/// The tokens that an encoder of texts gives for a row.
pub fn bert(net: &Net<'_>, row: &Row, prefix: &str, style: &Style, first_place: usize) -> Matrix {
    let at = |part: &str| format!("{prefix}{part}");
    let tables = ["word", "position", "token_type"].map(|kind| at(&format!("embeddings.{kind}_embeddings.weight")));
    let x = net.embedded(row, [&tables[0], &tables[1], &tables[2]], first_place);
    let x = net.norm(&x, &at("embeddings.LayerNorm"), style.eps);
    let layers = if style.out == DISTILBERT.out { "transformer.layer" } else { "encoder.layer" };
    (0..LAYERS).fold(x, |x, layer| net.layer(&at(&format!("{layers}.{layer}")), style, &x, &seen(row)))
}

pub fn bert_mean(net: &Net<'_>, row: &Row) -> Computed {
    let x = bert(net, row, "", &BERT, 0);
    unit(&mean(&x, |token| row.mask[token] != 0), x.size())
}

pub fn bert_first(net: &Net<'_>, row: &Row) -> Computed {
    let x = bert(net, row, "bert.", &BERT, 0);
    plain(only(&x, 0), x.size())
}

pub fn bert_tokens(net: &Net<'_>, row: &Row) -> Computed {
    let x = bert(net, row, "bert.", &BERT, 0);
    Computed { scale: x.size(), ports: vec![("tokens", x.values)] }
}

pub fn roberta_last(net: &Net<'_>, row: &Row) -> Computed {
    let x = bert(net, row, "", &Style { eps: 1e-5, ..BERT }, 2);
    let last = row.mask.iter().filter(|&&seen| seen != 0).count() - 1;
    plain(only(&x, last), x.size())
}

pub fn distilbert(net: &Net<'_>, row: &Row) -> Computed {
    let x = bert(net, row, "distilbert.", &DISTILBERT, 0);
    plain(mean(&x, |token| row.mask[token] != 0), x.size())
}

pub fn mpnet(net: &Net<'_>, row: &Row) -> Computed {
    let x = net.embedded(row, ["embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight", ""], 2);
    let x = net.norm(&x, "embeddings.LayerNorm", MPNET.eps);
    let biases = net.table("encoder.relative_attention_bias.weight", HEADS);
    let bucket = |token: usize, key: usize| {
        let far = key.abs_diff(token);
        let near = match far {
            0..8 => far,
            8..=11 => 8, // of 12 to 15, 16 to 22, … the logarithm grows by one
            12..=15 => 9,
            16..=22 => 10,
            _ => 11,
        };
        if key > token { 16 + near } else { near }
    };
    let added =
        |head: usize, token: usize, key: usize| seen(row)(head, token, key) + biases.row(bucket(token, key))[head];
    let x = (0..LAYERS).fold(x, |x, layer| net.layer(&format!("encoder.layer.{layer}"), &MPNET, &x, &added));
    unit(&mean(&x, |token| row.mask[token] != 0), x.size())
}

pub fn clip_text(net: &Net<'_>, row: &Row) -> Computed {
    let tables = ["token", "position"].map(|kind| format!("text_model.embeddings.{kind}_embedding.weight"));
    let x = net.embedded(row, [&tables[0], &tables[1], ""], 0);
    let added = |head: usize, token: usize, key: usize| {
        if key > token { f64::NEG_INFINITY } else { seen(row)(head, token, key) }
    };
    let x = (0..LAYERS).fold(x, |x, layer| net.layer(&format!("text_model.encoder.layers.{layer}"), &CLIP, &x, &added));
    let x = net.norm(&x, "text_model.final_layer_norm", CLIP.eps);
    let end = row.ids.iter().position(|&id| id == WORDS as i64 - 1).expect("an end");
    let x = net.linear(&only(&x, end), "text_projection");
    unit(&x, x.size())
}

pub fn clip_image(net: &Net<'_>, row: &Row) -> Computed {
    let [mean, std] = [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]];
    let x = net.patches(row, "vision_model.embeddings.patch_embedding", 8, mean, std);
    let places = "vision_model.embeddings.position_embedding.weight";
    let x = net.tokens(&["vision_model.embeddings.class_embedding"], (places, false), 1, &x, [4, 4]);
    let x = net.norm(&x, "vision_model.pre_layrnorm", CLIP.eps);
    let free = |_: usize, _: usize, _: usize| 0.0;
    let x =
        (0..LAYERS).fold(x, |x, layer| net.layer(&format!("vision_model.encoder.layers.{layer}"), &CLIP, &x, &free));
    let x = net.norm(&only(&x, 0), "vision_model.post_layernorm", CLIP.eps);
    let x = net.linear(&x, "visual_projection");
    plain(x.clone(), x.size())
}

/// The normalised tokens of an encoder of images in the form of `transformers`.
pub fn vit(
    net: &Net<'_>,
    row: &Row,
    prefix: &str,
    before: &[&str],
    placed: usize,
    style: &Style,
    [mean, std]: [[f64; 3]; 2],
) -> Matrix {
    let at = |part: &str| format!("{prefix}{part}");
    let x = net.patches(row, &at("embeddings.patch_embeddings.projection"), 8, mean, std);
    let before: Vec<String> = before.iter().map(|name| at(&format!("embeddings.{name}"))).collect();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let places = at("embeddings.position_embeddings");
    let grid = row.sides.map(|side| side / 8);
    let x = net.tokens(&before, (&places[..], style.scales.is_some()), placed, &x, grid);
    let free = |_: usize, _: usize, _: usize| 0.0;
    let x = (0..LAYERS).fold(x, |x, layer| net.layer(&at(&format!("encoder.layer.{layer}")), style, &x, &free));
    net.norm(&x, &at("layernorm"), style.eps)
}

const HALF: [[f64; 3]; 2] = [[0.5; 3]; 2];

pub fn vit_classes(net: &Net<'_>, row: &Row) -> Computed {
    let x = only(&vit(net, row, "vit.", &["cls_token"], 1, &VIT, HALF), 0);
    let logits = net.linear(&x, "classifier");
    let scale = x.size().max(logits.size());
    Computed { ports: vec![("embedding", x.values), ("logits", logits.values)], scale }
}

pub fn deit(net: &Net<'_>, row: &Row) -> Computed {
    let x = vit(net, row, "deit.", &["cls_token", "distillation_token"], 2, &VIT, HALF);
    plain(mean(&x, |token| token >= 2), x.size())
}

pub fn dino(net: &Net<'_>, row: &Row) -> Computed {
    let x = vit(net, row, "", &["cls_token", "register_tokens"], 1, &DINO, HALF);
    unit(&only(&x, 0), x.size())
}

/// The tokens of a vision transformer of timm.
pub fn timm(net: &Net<'_>, row: &Row, before: &[&str], placed: usize, style: &Style) -> Matrix {
    let x = net.patches(row, "patch_embed.proj", 8, HALF[0], HALF[1]);
    let x = net.tokens(before, ("pos_embed", true), placed, &x, row.sides.map(|side| side / 8));
    let free = |_: usize, _: usize, _: usize| 0.0;
    (0..LAYERS).fold(x, |x, layer| net.layer(&format!("blocks.{layer}"), style, &x, &free))
}

pub fn timm_classes(net: &Net<'_>, row: &Row) -> Computed {
    let x = net.norm(&only(&timm(net, row, &["cls_token"], 1, &TIMM), 0), "norm", TIMM.eps);
    let logits = net.linear(&x, "head");
    let scale = x.size().max(logits.size());
    Computed { ports: vec![("embedding", x.values), ("logits", logits.values)], scale }
}

pub fn timm_mean(net: &Net<'_>, row: &Row) -> Computed {
    let style = Style { scales: Some(["ls1.gamma", "ls2.gamma"]), ..TIMM };
    let x = timm(net, row, &["cls_token", "reg_token"], 0, &style);
    let x = net.norm(&mean(&x, |token| token >= 5), "fc_norm", TIMM.eps);
    plain(x.clone(), x.size())
}
