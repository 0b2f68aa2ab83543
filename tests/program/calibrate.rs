//! `trefoil calibrate`: it writes a model, and checks its options first.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::embed::{TEXTS, lines, of_texts, path, problem, vectors};
use super::{Folder, expect_code, json_lines, program, run, stderr, stdout};

/// Adds this many photos to a folder, some of them twice.
fn photos(folder: &Folder, count: usize) {
    for number in 0..count {
        let photo = ["chelsea.png", "coffee.png", "rocket.jpg"][number % 3];
        let extension = photo.rsplit_once('.').unwrap().1;
        folder.copy(photo, &format!("{number:02}.{extension}"));
    }
}

#[test]
fn a_calibrated_model_is_a_model_in_bytes() {
    let (folder, out) = (Folder::new("calibrate"), Folder::new("calibrated"));
    photos(&folder, 16);
    let output = run(&["calibrate", "weights/convnet28", folder.path(), "-o", out.path(), "--most-error", "1"]);
    expect_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("4 layers in bytes after 16 photos (mse), 0 left in floats"), "{said}");
    let config = fs::read(out.0.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let quantization = &config["quantization"];
    assert_eq!(quantization["floats"], serde_json::json!(["conv1"]));
    assert_eq!(quantization["calibration"]["photos"], 16);
    assert!(quantization["scales"]["relu5"].as_f64().unwrap() > 0.0);
    assert!(!quantization["means"]["relu5"].as_array().unwrap().is_empty());
    let inspected = run(&["inspect", out.path(), "--device", "cpu"]);
    expect_code(&inspected, 0);
    assert_eq!(stdout(&inspected).matches("s8 conv3x3+relu").count(), 4, "{}", stdout(&inspected));
    let photo = folder.0.join("00.png");
    let classified = run(&["classify", photo.to_str().unwrap(), "--model", out.path(), "--device", "cpu"]);
    expect_code(&classified, 0);
}

/// As with `| head -1`: the model is written before anything is printed.
#[test]
fn a_reader_that_goes_away_does_not_cost_the_model() {
    let (folder, out) = (Folder::new("calibrate-unread"), Folder::new("calibrated-unread"));
    photos(&folder, 16);
    let args = ["calibrate", "weights/convnet28", folder.path(), "-o", out.path(), "--most-error", "1"];
    let mut child = program().args(args).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(out.0.join("config.json").exists() && out.0.join("model.safetensors").exists());
}

#[test]
fn layers_that_cost_too_much_stay_in_floats_and_are_told() {
    let (folder, out) = (Folder::new("calibrate-floats"), Folder::new("calibrated-floats"));
    photos(&folder, 16);
    let output = run(&["calibrate", "weights/convnet28", folder.path(), "-o", out.path(), "--most-error", "0"]);
    expect_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("0 layers in bytes") && said.matches("in floats: conv").count() == 4, "{said}");
}

#[test]
fn what_cannot_be_calibrated_is_said_before_anything_is_written() {
    let (folder, out) = (Folder::new("calibrate-few"), Folder::new("calibrated-few"));
    photos(&folder, 15);
    let few = run(&["calibrate", "weights/convnet28", folder.path(), "-o", out.path()]);
    expect_code(&few, 1);
    assert!(stderr(&few).contains("photos: 15; expected 16 or more"), "{}", stderr(&few));
    photos(&folder, 16);
    let onto_itself = run(&["calibrate", "weights/convnet28", folder.path(), "-o", "weights/convnet28"]);
    expect_code(&onto_itself, 1);
    let no_method = run(&["calibrate", "weights/convnet28", folder.path(), "-o", out.path(), "--method", "magic"]);
    expect_code(&no_method, 64);
    assert_eq!(fs::read_dir(&out.0).unwrap().count(), 0);
}

/// A folder that cannot be made is an error before the photos are read.
#[test]
fn a_folder_that_cannot_be_written_is_told_first() {
    let folder = Folder::new("calibrate-nowhere");
    photos(&folder, 16);
    let output = run(&["calibrate", "weights/convnet28", folder.path(), "-o", "/proc/nowhere"]);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("cannot create /proc/nowhere") && stdout(&output).is_empty(), "{output:?}");
}

/// The encoder's vectors are near those in floats, and not the same.
#[test]
fn an_encoder_in_e4m3_opens_like_any_other() {
    let (folder, out) = (of_texts(), Folder::new("calibrated-e4m3"));
    let texts = lines(&folder, &TEXTS);
    let output = run(&["calibrate", path(&folder), &texts, "-o", out.path(), "--precision", "e4m3"]);
    expect_code(&output, 0);
    assert!(stdout(&output).contains(" products in e4m3 after 5 rows\n"), "{}", stdout(&output));
    let config: Value = serde_json::from_slice(&fs::read(out.0.join("config.json")).unwrap()).unwrap();
    let scales = config["quantization"]["e4m3"].as_object().unwrap();
    assert!(scales.len() > 4 && scales.values().all(|scale| scale.as_f64().unwrap() > 0.0), "{scales:?}");
    let embedded = |folder: &str| {
        let output = run(&["embed", folder, &texts, "--device", "cpu"]);
        expect_code(&output, 0);
        vectors(&json_lines(&output))
    };
    for (floats, codes) in embedded(path(&folder)).iter().zip(embedded(out.path())) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let cosine = dot(floats, &codes) / (dot(floats, floats) * dot(&codes, &codes)).sqrt();
        assert!(*floats != codes && cosine > 0.98, "{cosine}");
    }
    let packed = run(&["embed", out.path(), &texts, "--device", "cpu", "--packed", "48"]);
    expect_code(&packed, 0);
}

#[test]
fn an_encoder_of_images_is_calibrated_on_photos() {
    let (folder, out) = (problem("ViT, classes").folder(), Folder::new("calibrated-e4m3-images"));
    fs::write(out.0.join("empty.png"), b"").unwrap();
    let empty = out.0.join("empty.png");
    let args = ["calibrate", path(&folder), "weights/photos", empty.to_str().unwrap(), "-o", out.path()];
    let output = run(&[&args[..], &["--precision", "e4m3"]].concat());
    expect_code(&output, 2);
    assert!(stderr(&output).contains("empty.png"), "{}", stderr(&output));
    assert!(stdout(&output).contains(" products in e4m3 after 3 rows\n"), "{}", stdout(&output));
    let embedded = run(&["embed", out.path(), "weights/photos", "--device", "cpu"]);
    expect_code(&embedded, 0);
}

#[test]
fn what_is_not_for_e4m3_is_told() {
    let (folder, out) = (of_texts(), Folder::new("calibrated-e4m3-not"));
    let texts = lines(&folder, &TEXTS);
    let ended = |code: i32, args: &[&str], part: &str| {
        let output = run(&[&["calibrate"], args, &["-o", out.path(), "--precision", "e4m3"]].concat());
        expect_code(&output, code);
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
        assert_eq!(fs::read_dir(&out.0).unwrap().count(), 0);
    };
    ended(64, &[path(&folder), &texts, "--method", "max"], "are for bytes");
    let refused = |args: &[&str], part: &str| ended(1, args, part);
    refused(&[path(&problem("CLIP, texts").folder()), "weights/photos"], "expected a model with one encoder");
    refused(&["weights/convnet28", "weights/photos"], "cannot use the model");
    let config = folder.0.join("config.json");
    let mut wrong: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    wrong["quantization"] = serde_json::json!({"e4m3": {"no such product": 0.5}});
    fs::write(&config, wrong.to_string()).unwrap();
    refused(&[path(&folder), &texts], "is calibrated already");
    let opened = run(&["embed", path(&folder), &texts, "--device", "cpu"]);
    expect_code(&opened, 1);
    assert!(stderr(&opened).contains("`no such product` is no product of several rows"), "{}", stderr(&opened));
}
