//! Photos classified by texts: probabilities follow from the model's vectors, and unsuitable models are refused.

use std::fs;

use serde_json::Value;
use trefoil::model::{Embedding, Model, Tower};
use trefoil::{Device, Engine, Target, image};

use super::embed::{add_tokenizer, path, problem};
use super::embedding::folder::Folder;
use super::{expect_code, json_lines, program, root, run, stderr, stdout};

const PHOTO: &str = "weights/photos/rocket.jpg";
/// The number of the token that ends a text.
const END: usize = 59;

fn clip() -> Folder {
    let folder = problem("CLIP, images").folder();
    add_tokenizer(&folder, END);
    folder
}

/// The vector of one row, which `fill` writes.
fn vector(folder: &Folder, tower: Tower, fill: impl FnOnce(&Model, &mut trefoil::Batch)) -> Vec<f32> {
    let model = Model::open_encoder(&folder.0, &Embedding::new().tower(tower).normalized(true)).unwrap();
    let engine = Engine::builder(&model).on(&Device::open(Target::Cpu).unwrap()).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.row_mut(0).fill(0);
    fill(&model, &mut batch);
    batch.submit(1).unwrap().wait().unwrap().port::<f32>(0, "embedding").unwrap().to_vec()
}

fn of_text(folder: &Folder, ids: &[i64]) -> Vec<f32> {
    vector(folder, Tower::Texts, |_, batch| {
        batch.port_mut::<i64>(0, "input_ids").unwrap()[..ids.len()].copy_from_slice(ids);
        batch.port_mut::<i64>(0, "attention_mask").unwrap()[..ids.len()].fill(1);
    })
}

fn of_photo(folder: &Folder) -> Vec<f32> {
    vector(folder, Tower::Images, |model, batch| {
        let pixels = batch.port_mut::<u8>(0, "pixels").unwrap();
        image::load(root().join(PHOTO), model.preprocessing().unwrap(), pixels).unwrap();
    })
}

fn probabilities(line: &Value) -> Vec<(u64, String, f64)> {
    let class = |class: &Value| {
        let label = class["label"].as_str().unwrap().to_owned();
        (class["index"].as_u64().unwrap(), label, class["probability"].as_f64().unwrap())
    };
    line["top"].as_array().unwrap().iter().map(class).collect()
}

#[test]
fn photos_have_the_labels_that_they_are_most_like() {
    let folder = clip();
    let scale = Model::open_encoder(&folder.0, &Embedding::new()).unwrap();
    let scale = f64::from(scale.weights().read("logit_scale").unwrap().elems::<f32>()[0]).exp();
    let photo = of_photo(&folder);
    let end = END as i64;
    let logit = |ids: &[i64]| {
        let cosine: f64 = of_text(&folder, ids).iter().zip(&photo).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        (scale * cosine).exp()
    };
    let weights = [logit(&[2, 4, 5, end]), logit(&[2, 6, 5, end])];
    let args = ["classify", PHOTO, "--device", "cpu", "--model", path(&folder), "--labels-from-text"];
    let output = run(&[&args[..], &["cats, dogs", "--template", "{} purr", "--json"]].concat());
    expect_code(&output, 0);
    let found = probabilities(&json_lines(&output)[0]);
    assert_eq!(found.len(), 2);
    assert!(found[0].2 >= found[1].2);
    for (index, label, probability) in &found {
        assert_eq!(label, ["cats", "dogs"][*index as usize]);
        let wanted = weights[*index as usize] / (weights[0] + weights[1]);
        assert!((probability - wanted).abs() < 1e-5, "{label}: {probability} instead of {wanted}");
    }
    let file = folder.0.join("labels.txt");
    fs::write(&file, "\u{feff}cats\ndogs\n").unwrap(); // with a byte order mark
    let of_file = run(&[&args[..], &[file.to_str().unwrap(), "--template", "{} purr", "--json"]].concat());
    assert_eq!(stdout(&of_file), stdout(&output));
    let one = run(&[&args[..], &["cats,dogs", "--template", "{} purr", "--top", "1"]].concat());
    expect_code(&one, 0);
    assert!(stdout(&one).contains(&found[0].1) && !stdout(&one).contains(&found[1].1), "{}", stdout(&one));
}

/// A scale or a vector that is not finite is an error, not a probability.
#[test]
fn what_is_not_finite_has_no_probabilities() {
    let spoilt = |tensor: &str, value: f32| {
        let mut problem = problem("CLIP, images");
        problem.tensors.get_mut(tensor).unwrap_or_else(|| panic!("no {tensor}")).1.fill(value);
        let folder = problem.folder();
        add_tokenizer(&folder, END);
        let labels = ["--labels-from-text", "cats,dogs", "--json"];
        run(&[&["classify", PHOTO, "--device", "cpu", "--model", path(&folder)], &labels[..]].concat())
    };
    let output = spoilt("logit_scale", 1000.0);
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("`logit_scale` is 1000, and its exponential is not finite"),
        "{}",
        stderr(&output)
    );
    let output = spoilt("text_projection.weight", f32::MAX);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("the vector of text 1 is not finite"), "{}", stderr(&output));
    let output = spoilt("visual_projection.weight", f32::MAX);
    expect_code(&output, 1);
    let line = &json_lines(&output)[0];
    assert!(line["error"].as_str().is_some_and(|error| error.contains("its vector is not finite")), "{line}");
}

/// A file of labels is read like any other: a file without an end is refused.
#[test]
fn labels_that_are_no_regular_file_are_refused() {
    let folder = clip();
    for labels in ["/proc/kmsg", "/proc/self/mem"] {
        let mut command = program();
        command.args(["classify", PHOTO, "--device", "cpu", "--model", path(&folder), "--labels-from-text", labels]);
        let output = command.output().unwrap();
        expect_code(&output, 1);
        assert!(stderr(&output).contains(labels), "{}", stderr(&output));
    }
}

#[test]
fn labels_need_a_model_of_images_and_texts_and_its_tokenizer() {
    let ends = |code: i32, folder: &Folder, more: &[&str], part: &str| {
        let args = ["classify", PHOTO, "--device", "cpu", "--model", path(folder)];
        let output = run(&[&args[..], more].concat());
        expect_code(&output, code);
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    };
    let refused = |folder: &Folder, more: &[&str], part: &str| ends(1, folder, more, part);
    let labels = ["--labels-from-text", "cats,dogs"];
    for name in ["BERT, mean, unit", "ViT, classes"] {
        refused(&problem(name).folder(), &labels, "CLIP or SigLIP");
    }
    refused(&problem("CLIP, images").folder(), &labels, "tokenizer.json");
    refused(&clip(), &["--labels-from-text", "cats,,dogs"], "label 2 is empty");
    for (wrong, part) in
        [(["--template", "a photo"], "expected {} in it"), (["--size", "batch=2"], "not together with")]
    {
        ends(64, &clip(), &[&labels[..], &wrong].concat(), part);
    }
    let output = run(&["classify", PHOTO, "--template", "a {}"]);
    expect_code(&output, 64);
    assert!(stderr(&output).contains("--labels-from-text"), "{}", stderr(&output));
}
