//! The problems of encoders.

use serde_json::{Value, json};
use trefoil::model::{Embedding, Pooling, Tower};

use super::folder::{Stored, bert, config, vit};
use super::loops::Net;
use super::references as by;
use super::style::{BERT, CLIP, DINO, DISTILBERT, MPNET, Style, TIMM, VIT};
use super::{Computed, HEADS, INNER, LAYERS, Problem, Reference, Row, SMALL, Shape, WIDTH, WORDS};

const TEXT: Shape = Shape::Text { tokens: 24, words: WORDS, has_mask: true, has_types: false };

/// All problems of encoders.
pub fn all() -> Vec<Problem> {
    [texts(), images(), of_timm(), towers()].concat()
}

fn problem(
    name: &'static str,
    (config, stored): (Value, Stored),
    asked: Embedding,
    shape: Shape,
    reference: fn(&Net<'_>, &Row) -> Computed,
) -> Problem {
    Problem {
        name,
        config,
        tensors: stored.tensors,
        asked,
        reference: Reference::Loops(reference),
        shape,
        layers: LAYERS,
    }
}

fn texts() -> Vec<Problem> {
    let typed = Shape::Text { tokens: 24, words: WORDS, has_mask: true, has_types: true };
    let asked = || Embedding::new().sequence(24);
    let of_bert = |prefix: &str| bert(SMALL, prefix, 40);
    let mut roberta = Stored::new("roberta", SMALL);
    roberta.text("", 42, 1).layers("encoder.layer", &BERT);
    let roberta_config = config("roberta", SMALL, json!({"max_position_embeddings": 42, "type_vocab_size": 1}));
    let mut distil = Stored::new("distilbert", SMALL);
    distil.text("distilbert.", 40, 0).layers("distilbert.transformer.layer", &DISTILBERT);
    let distil_config = json!({
        "model_type": "distilbert", "dim": WIDTH, "n_heads": HEADS, "n_layers": LAYERS, "hidden_dim": INNER,
        "activation": "gelu", "vocab_size": WORDS, "max_position_embeddings": 40,
    });
    let mut of_mpnet = Stored::new("mpnet", SMALL);
    of_mpnet.text("", 42, 0).layers("encoder.layer", &MPNET);
    of_mpnet.add("encoder.relative_attention_bias.weight", &[32, HEADS]);
    let mpnet_config =
        config("mpnet", SMALL, json!({"max_position_embeddings": 42, "relative_attention_num_buckets": 32}));
    let class = asked().pooling(Pooling::Class);
    vec![
        problem("BERT, mean, unit", of_bert(""), asked().normalized(true), typed, by::bert_mean),
        problem("BERT, first token", of_bert("bert."), class, typed, by::bert_first),
        problem("BERT, tokens", of_bert("bert."), asked().pooling(Pooling::Tokens), typed, by::bert_tokens),
        problem(
            "RoBERTa, last token",
            (roberta_config, roberta),
            asked().pooling(Pooling::Last),
            TEXT,
            by::roberta_last,
        ),
        problem("DistilBERT, mean", (distil_config, distil), asked(), TEXT, by::distilbert),
        problem("MPNet, mean, unit", (mpnet_config, of_mpnet), asked().normalized(true), TEXT, by::mpnet),
    ]
}

fn images() -> Vec<Problem> {
    let square = Shape::Image { height: 32, width: 32 };
    let mut of_deit = Stored::new("deit", SMALL);
    of_deit.image("deit.", &[("cls_token", 1), ("distillation_token", 1)], 18).layers("deit.encoder.layer", &VIT);
    let deit_config = config("deit", SMALL, json!({}));
    let dino = || {
        let mut stored = Stored::new("dinov2", SMALL);
        stored.image("", &[("cls_token", 1), ("register_tokens", 4)], 17).layers("encoder.layer", &DINO);
        stored.add("embeddings.mask_token", &[1, WIDTH]);
        let more = json!({"mlp_ratio": INNER / WIDTH, "num_register_tokens": 4, "layer_norm_eps": 1e-6});
        (config("dinov2_with_registers", SMALL, more), stored)
    };
    let higher = Shape::Image { height: 40, width: 48 };
    let (large, wide) = (Embedding::new().image(48, 56), Shape::Image { height: 48, width: 56 });
    let unit = Embedding::new().normalized(true);
    vec![
        problem("ViT, classes", vit(SMALL, 5), Embedding::new(), square, by::vit_classes),
        problem("ViT, 48 x 56", vit(SMALL, 5), large, wide, by::vit_classes),
        problem("DeiT, mean", (deit_config, of_deit), Embedding::new().pooling(Pooling::Mean), square, by::deit),
        problem("DINOv2 with registers, unit", dino(), unit.clone(), square, by::dino),
        problem("DINOv2 with registers, 40 x 48", dino(), unit.image(40, 48), higher, by::dino),
    ]
}

fn of_timm() -> Vec<Problem> {
    let square = Shape::Image { height: 32, width: 32 };
    let args = json!({"embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS, "mlp_ratio": INNER / WIDTH});
    let config = |name: &str, pool: &str| {
        json!({
            "architecture": name, "num_classes": 5, "global_pool": pool, "model_args": args,
            "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 0.9, "interpolation": "bicubic"},
        })
    };
    let start = |name: &str, tokens: &[(&str, usize)], places: usize| {
        let mut stored = Stored::new(name, SMALL);
        for (name, count) in tokens {
            stored.add(name, &[1, *count, WIDTH]);
        }
        stored.add("patch_embed.proj.weight", &[WIDTH, 3, 8, 8]).add("patch_embed.proj.bias", &[WIDTH]);
        stored.add("pos_embed", &[1, places, WIDTH]);
        stored
    };
    let classes = || {
        let mut stored = start("timm", &[("cls_token", 1)], 17);
        stored.layers("blocks", &TIMM).norm("norm").linear("head", 5, WIDTH);
        stored
    };
    let mut registers = start("timm registers", &[("cls_token", 1), ("reg_token", 4)], 16);
    registers.layers("blocks", &Style { scales: Some(["ls1.gamma", "ls2.gamma"]), ..TIMM }).norm("fc_norm");
    let (large, wide) = (Embedding::new().image(40, 48), Shape::Image { height: 40, width: 48 });
    let name = "vit_tiny_patch8_32";
    vec![
        problem("timm, classes", (config(name, "token"), classes()), Embedding::new(), square, by::timm_classes),
        problem("timm, 40 x 48", (config(name, "token"), classes()), large, wide, by::timm_classes),
        problem(
            "timm, registers, mean",
            (config("vit_small_patch8_reg4", "avg"), registers),
            Embedding::new(),
            square,
            by::timm_mean,
        ),
    ]
}

fn towers() -> Vec<Problem> {
    let stored = || {
        let mut stored = Stored::new("clip", SMALL);
        stored.add("text_model.embeddings.token_embedding.weight", &[WORDS, WIDTH]);
        stored.add("text_model.embeddings.position_embedding.weight", &[24, WIDTH]);
        stored.layers("text_model.encoder.layers", &CLIP).norm("text_model.final_layer_norm");
        stored.add("text_projection.weight", &[32, WIDTH]).add("logit_scale", &[]);
        stored.add("vision_model.embeddings.class_embedding", &[WIDTH]);
        stored.add("vision_model.embeddings.patch_embedding.weight", &[WIDTH, 3, 8, 8]);
        stored.add("vision_model.embeddings.position_embedding.weight", &[17, WIDTH]);
        stored.layers("vision_model.encoder.layers", &CLIP).norm("vision_model.pre_layrnorm");
        stored.norm("vision_model.post_layernorm").add("visual_projection.weight", &[32, WIDTH]);
        stored
    };
    let tower = json!({
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": INNER,
        "image_size": 32, "patch_size": 8, "vocab_size": WORDS, "max_position_embeddings": 24, "eos_token_id": WORDS - 1,
    });
    let config = json!({"model_type": "clip", "projection_dim": 32, "text_config": tower, "vision_config": tower});
    let texts = Embedding::new().tower(Tower::Texts).normalized(true);
    let square = Shape::Image { height: 32, width: 32 };
    vec![
        problem("CLIP, texts", (config.clone(), stored()), texts, TEXT, by::clip_text),
        problem("CLIP, images", (config, stored()), Embedding::new(), square, by::clip_image),
    ]
}
