//! Encoders of texts and images from folders, on the CPU, beside plain loops; and what is said of folders that do not fit.

mod support;

use std::fs;

use serde_json::json;
use support::embedding::Problem;
use support::embedding::folder::Folder;
use support::embedding::kept;
use support::embedding::problems::all;
use trefoil::model::{Embedding, Model, Pooling};
use trefoil::{Device, Error, Target};

fn named(name: &str) -> Problem {
    all().into_iter().find(|problem| problem.name == name).expect("a problem of this name")
}

#[test]
fn encoders_compute_what_plain_loops_do() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> =
        all().iter().filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, false).err()?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `tests/data/make_encoders.py` has what the libraries computed.
#[test]
fn encoders_compute_what_the_libraries_do() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> = kept::all()
        .iter()
        .filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, false).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Queries, keys and values are one product of a matrix that is read in three parts.
#[test]
fn queries_keys_and_values_are_one_product() {
    for problem in all() {
        let graph = problem.open().unwrap().graph(2).unwrap();
        let products = graph.nodes.iter().filter(|node| {
            node.op.kind() == "contract" && node.inputs.iter().flatten().any(|id| graph.constant(*id).is_some())
        });
        let of_layer = products.filter(|node| node.name.contains("layer") || node.name.contains("blocks")).count();
        assert_eq!(of_layer, 2 * 4, "{problem}");
    }
}

/// Everything that is missing or misshapen is one error.
#[test]
fn all_tensors_that_do_not_fit_are_told_at_once() {
    let mut problem = named("BERT, mean, unit");
    problem.tensors.remove("encoder.layer.1.attention.self.key.bias");
    problem.tensors.remove("embeddings.LayerNorm.weight");
    problem.tensors.get_mut("encoder.layer.0.output.dense.weight").unwrap().0.reverse();
    problem.tensors.insert("encoder.layer.2.output.dense.bias".into(), (vec![1], vec![0.0]));
    let told = problem.open().unwrap_err().to_string();
    for part in [
        "4 tensors",
        "`encoder.layer.1.attention.self.key.bias`: expected [64]",
        "`embeddings.LayerNorm.weight`",
        "`encoder.layer.0.output.dense.weight`: expected [64, 128], found [128, 64]",
        "`encoder.layer.2.output.dense.bias`",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn all_settings_that_are_wrong_are_told_at_once() {
    let mut problem = named("BERT, mean, unit");
    let config = problem.config.as_object_mut().unwrap();
    config.insert("hidden_act".into(), json!("mish"));
    config.insert("num_hidden_layers".into(), json!("two"));
    config.insert("position_embedding_type".into(), json!("relative_key"));
    let told = problem.open().unwrap_err().to_string();
    for part in ["`hidden_act`", "\"mish\"", "`num_hidden_layers`", "\"two\"", "`relative_key`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn sizes_that_an_encoder_cannot_have_are_refused() {
    let refused = |name: &str, asked: Embedding| {
        let mut problem = named(name);
        problem.asked = asked;
        match problem.open() {
            Err(Error::Option { option, expected, .. }) => format!("{option}: {expected}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused("BERT, mean, unit", Embedding::new().sequence(41)), "sequence: 1 to 40 tokens");
    assert_eq!(refused("RoBERTa, last token", Embedding::new().sequence(0)), "sequence: 1 to 40 tokens");
    assert!(refused("BERT, mean, unit", Embedding::new().image(32, 32)).contains("texts"));
    assert!(refused("ViT, classes", Embedding::new().image(32, 33)).contains("multiples of the patches' 8"));
    assert!(refused("ViT, classes", Embedding::new().sequence(8)).contains("images"));
    assert!(refused("ViT, classes", Embedding::new().pooling(Pooling::Last)).contains("Mean, Class or Tokens"));
}

/// Old checkpoints call the factors and biases of norms gamma and beta.
#[test]
fn norms_may_have_their_old_names() {
    let problem = named("BERT, mean, unit");
    let old =
        |name: &str| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    let mut renamed = problem.clone();
    renamed.tensors = problem.tensors.iter().map(|(name, of)| (old(name), of.clone())).collect();
    let (today, before) = (problem.open().unwrap(), renamed.open().unwrap());
    assert_eq!(before.graph(1).unwrap(), today.graph(1).unwrap());
    let of = |model: &Model| model.weights().read("embeddings.LayerNorm.weight").unwrap().elems::<f32>().to_vec();
    assert_eq!(of(&before), of(&today));
}

/// What sentence-transformers writes beside a model decides where nothing is asked for.
#[test]
fn modules_beside_a_model_say_how_it_pools() {
    let problem = named("BERT, first token");
    let Folder(path) = &problem.folder();
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    fs::create_dir(path.join("1_Pooling")).unwrap();
    let pooling = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    fs::write(path.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    fs::write(path.join("sentence_bert_config.json"), json!({"max_seq_length": 16}).to_string()).unwrap();
    let with = |modules: serde_json::Value, asked: Embedding| {
        fs::write(path.join("modules.json"), modules.to_string()).unwrap();
        Model::open_encoder(path, &asked)
    };
    let modules =
        json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]);
    let model = with(modules.clone(), Embedding::new()).unwrap();
    let graph = model.graph(1).unwrap();
    assert_eq!(graph.value(graph.inputs[0].value).dims, [1, 16]);
    assert!(graph.find("seen.count").is_none() && graph.find("unit").is_some());
    let asked = Embedding::new().pooling(Pooling::Mean).normalized(false);
    let graph = with(modules, asked).unwrap().graph(1).unwrap();
    assert!(graph.find("seen.count").is_some() && graph.find("unit").is_none());
    let told = with(json!([module("Dense", "2_Dense")]), Embedding::new()).unwrap_err();
    assert!(matches!(&told, Error::Unsupported { what, .. } if what.contains("Dense")), "{told}");
    let told = with(json!([module("Pooling", "../1_Pooling")]), Embedding::new()).unwrap_err().to_string();
    assert!(told.contains("`../1_Pooling`"), "{told}");
    let both = json!({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true});
    fs::write(path.join("1_Pooling/config.json"), both.to_string()).unwrap();
    let told = with(json!([module("Pooling", "1_Pooling")]), Embedding::new()).unwrap_err().to_string();
    assert!(told.contains("one way to pool"), "{told}");
}

/// A folder opens without options, and by the names of its sizes.
#[test]
fn folders_open_as_other_models_do() {
    let Folder(path) = &named("BERT, mean, unit").folder();
    let of = |model: Model| model.graph(1).unwrap();
    let whole = of(Model::open(path).unwrap());
    assert_eq!(whole.value(whole.inputs[0].value).dims, [1, 40]);
    let short = of(Model::open_at(path, &trefoil::onnx::Sizes::new().dim("sequence", 8)).unwrap());
    assert_eq!(short.value(short.inputs[0].value).dims, [1, 8]);
    let told = Model::open_at(path, &trefoil::onnx::Sizes::new().dim("tokens", 8)).unwrap_err().to_string();
    assert!(told.contains("`tokens`") && told.contains("`sequence`"), "{told}");
    let Folder(path) = &named("ViT, classes").folder();
    let model = Model::open(path).unwrap();
    assert_eq!(model.preprocessing().unwrap().input.to_string(), "32x32x3");
    assert!(model.image_network().is_err());
}
