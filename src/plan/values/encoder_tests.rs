//! Encoders as libraries describe them, in their real sizes: which of their steps special kernels compute, and which
//! loops.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::{env, fs};

use serde_json::{Value, json};

use super::*;
use crate::model::{Embedding, Tower, network_of_encoder};
use crate::plan::{ProductSizes, Rates, RowNormResult};

/// The number of rows of a batch; packed texts are one row.
const ROWS: usize = 32;
/// The file in which the plans are kept.
const KEPT: &str = "tests/golden/plans-of-encoders-h200.txt";

/// Names of models, their configurations where these differ from the defaults, and the requested embeddings.
fn encoders() -> Vec<(&'static str, Value, Embedding)> {
    let plain = Embedding::new;
    let clip = json!({"model_type": "clip", "projection_dim": 512, "text_config": {"eos_token_id": 49407}, "vision_config": {"patch_size": 16}});
    let siglip = json!({"model_type": "siglip", "text_config": {}, "vision_config": {}});
    vec![
        ("ViT-B/16", json!({"model_type": "vit"}), plain()),
        ("DINOv2-B/14", json!({"model_type": "dinov2", "image_size": 224}), plain()),
        (
            "DINOv3-B/16",
            json!({"model_type": "dinov3_vit", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
                "num_register_tokens": 4}),
            plain(),
        ),
        ("CLIP-B/16, images", clip.clone(), plain()),
        ("CLIP-B/16, texts", clip, plain().tower(Tower::Texts)),
        ("SigLIP-B/16, images", siglip.clone(), plain()),
        ("SigLIP-B/16, texts", siglip, plain().tower(Tower::Texts)),
        ("BERT-base, 128 tokens", json!({"model_type": "bert"}), plain().sequence(128)),
        (
            "BERT-large, 64 packed texts of up to 384 tokens",
            json!({"model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24,
                "intermediate_size": 4096}),
            plain().sequence(384).packed(8192, 64),
        ),
        ("ModernBERT-base, 512 tokens", json!({"model_type": "modernbert"}), plain().sequence(512)),
        (
            "Whisper-base",
            json!({"model_type": "whisper", "d_model": 512, "encoder_attention_heads": 8, "encoder_layers": 6, "encoder_ffn_dim": 2048}),
            plain(),
        ),
        ("Swin-T", json!({"model_type": "swin"}), plain()),
        ("ConvNeXt-T", json!({"model_type": "convnext"}), plain()),
    ]
}

fn plan_of(config: &Value, asked: &Embedding, precision: Dtype) -> Plan {
    plan_of_rows(config, asked, precision, ROWS)
}

/// A plan for so many rows, if the model has several.
fn plan_of_rows(config: &Value, asked: &Embedding, precision: Dtype, rows: usize) -> Plan {
    let of = network_of_encoder(config, asked);
    let (rows, batch) = ([of.input(), of.output()], if of.is_batched() { rows } else { 1 });
    let plan = tests::planned(&of.graph(batch).unwrap(), &Limits::h200(), batch, rows, precision);
    plan.check().unwrap();
    plan
}

/// A text for each kind of step: the number of steps, their rooflines in all, and for loops the first step's name.
fn kinds(name: &str, plan: &Plan) -> String {
    let rates = Rates::of(&plan.limits).unwrap();
    let mut kinds = BTreeMap::<(bool, String), (usize, f64, &str)>::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let key = (step.kernel == Kernel::Loop, step.op.label(step.inputs.len()));
        let kind = kinds.entry(key).or_insert((0, 0.0, &step.name));
        (kind.0, kind.1) = (kind.0 + 1, kind.1 + 1e6 * plan.roofline(index, &rates).seconds());
    }
    let all: f64 = kinds.values().map(|(_, microseconds, _)| microseconds).sum();
    let loops = plan.steps.iter().filter(|step| step.kernel == Kernel::Loop).count();
    let mut text = format!("{name}: {} steps, {loops} of them loops, {all:.0} us\n", plan.steps.len());
    for ((is_loop, label), (count, microseconds, first)) in kinds {
        let first = if is_loop { format!(" ({first})") } else { String::new() };
        writeln!(text, "{count:5} x {label}{first}: {microseconds:.1} us").unwrap();
    }
    text
}

#[test]
fn encoders_are_the_kernels_that_are_kept() {
    let all = encoders().into_iter().map(|(name, config, asked)| kinds(name, &plan_of(&config, &asked, Dtype::F16)));
    let printed = all.collect::<Vec<_>>().join("\n");
    if env::var("TREFOIL_BLESS").is_ok_and(|v| v == "1") {
        fs::write(KEPT, &printed).unwrap();
    }
    let expected = fs::read_to_string(KEPT).unwrap_or_default();
    assert!(printed == expected, "the plans are not as kept in {KEPT}:\n{printed}");
}

/// Of one row of ViT, a layer is four products and attention: all norms but the first and the last are within the products.
/// Norms of BERT are residuals too, and steps.
#[test]
fn norms_of_one_row_are_within_the_products() {
    let [vit, bert] = [json!({"model_type": "vit"}), json!({"model_type": "bert"})];
    for (config, asked, within) in [(vit, Embedding::new(), 23), (bert, Embedding::new().sequence(128), 0)] {
        let plan = plan_of_rows(&config, &asked, Dtype::F16, 1);
        let count = |is_one: fn(&StepOp) -> bool| plan.steps.iter().filter(|step| is_one(&step.op)).count();
        assert_eq!(count(|op| matches!(op, StepOp::RowNorm(_))), 25 - within, "{plan}");
        assert_eq!(count(|op| matches!(op, StepOp::Product(of) if of.norm.is_some())), within, "{plan}");
    }
}

/// Products of one row in front of others leave places on multiprocessors: k of projections in fewer parts and larger tiles
/// for fc1 than alone. Behind queries, keys and values is attention, behind fc2 what few blocks do not gain.
#[test]
fn products_of_one_row_leave_places() {
    let [vit, bert] = [json!({"model_type": "vit"}), json!({"model_type": "bert"})];
    let layers = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
    for (config, asked, m, tile) in
        [(vit, Embedding::new(), 197, "64x40"), (bert, Embedding::new().sequence(128), 128, "64x32")]
    {
        let plan = plan_of_rows(&config, &asked, Dtype::F16, 1);
        let kernels = layers.map(|(n, k)| {
            let is_one =
                |step: &&Step| matches!(&step.op, StepOp::Product(of) if of.sizes(1) == ProductSizes { m, n, k });
            plan.steps.iter().filter(is_one).map(|step| step.kernel.to_string()).collect::<BTreeSet<_>>()
        });
        let expected = [(tile, 1), (tile, 2), ("64x72", 1), (tile, 4)];
        let expected = expected.map(|(tile, parts)| BTreeSet::from([format!("sm90 product {tile}, k in {parts}")]));
        assert_eq!(kernels, expected, "{plan}");
    }
}

/// In bf16, the same products, attentions and norms have kernels as in f16, each with values and weights in bf16. Other
/// layers are loops that read bf16, but that a convolution of frames is a product of copied windows where f16 has a kernel
/// for images. Each kernel has a predicted time of its own.
#[test]
fn encoders_in_bf16_are_the_same_kernels() {
    let is_packed = |step: &&Step| matches!(step.op, StepOp::PackedAttention(_));
    let is_fused = |step: &&Step| {
        is_packed(step)
            || matches!(
                step.op,
                StepOp::Product(_) | StepOp::Attention(_) | StepOp::ClassAttention(_) | StepOp::RowNorm(_)
            )
    };
    for (name, config, asked) in encoders() {
        let [of_f16, of_bf16] = [Dtype::F16, Dtype::Bf16].map(|precision| plan_of(&config, &asked, precision));
        let fused = |plan: &Plan| -> Vec<_> {
            let steps = plan.steps.iter().filter(is_fused);
            steps.map(|step| (step.name.clone(), step.op.clone(), step.kernel, step.weight_bytes)).collect()
        };
        let is_image =
            |name: &str| of_f16.steps.iter().any(|step| step.name == name && matches!(step.op, StepOp::Conv(_)));
        let same: Vec<_> = fused(&of_bf16).into_iter().filter(|(name, ..)| !is_image(name)).collect();
        assert!(fused(&of_f16).len() > 10 && fused(&of_f16) == same, "{name}\n{of_f16}\n{of_bf16}");
        let packed = of_bf16.steps.iter().filter(is_packed).count();
        assert_eq!(packed, if name.contains("packed") { 24 } else { 0 }, "{name}");
        assert!(of_bf16.tensors.iter().all(|tensor| tensor.dtype != Dtype::F16), "{name}\n{of_bf16}");
        let key = |plan: &Plan, step: &Step| {
            let index = plan.steps.iter().position(|of| of.name == step.name && of.op == step.op).unwrap();
            plan.shape_of(index)
        };
        for step in &of_bf16.steps {
            match is_fused(&step) {
                true => {
                    let work = of_bf16.work(step);
                    let is_last = matches!(step.op, StepOp::RowNorm(of) if of.result == RowNormResult::F32);
                    let written = if is_last { Dtype::F32 } else { Dtype::Bf16 };
                    let types = [work.inputs[0].dtype, work.outputs[0].dtype];
                    assert_eq!(types, [Dtype::Bf16, written], "{name}, {}", step.name);
                    if !is_image(&step.name) {
                        assert_eq!(key(&of_bf16, step), key(&of_f16, step).replace("f16", "bf16"));
                    }
                    #[cfg(feature = "cuda")]
                    for filter in
                        kernels::of(&work, step.kernel).unwrap().packing(&work).iter().flat_map(|of| &of.filters)
                    {
                        assert_eq!(filter.dtype, Dtype::Bf16, "{name}, {}", step.name);
                    }
                }
                false => assert_eq!(step.kernel, Kernel::Loop, "{name}, {}", step.name),
            }
        }
        // On hardware without kernels for bf16, no step uses a kernel for f16 instead.
        let loops = tests::planned(
            &network_of_encoder(&config, &asked).graph(1).unwrap(),
            &Limits::a100(),
            1,
            [&of_bf16.input, &of_bf16.output],
            Dtype::Bf16,
        );
        assert!(loops.is_of_values(), "{name}\n{loops}");
    }
}
