//! `trefoil calibrate`: it writes a model, and checks its options first.

use std::fs;

use serde_json::Value;

use super::{Folder, expect_code, run, stderr, stdout};

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
    assert!(stderr(&few).contains("15 photos: expected 16 or more"), "{}", stderr(&few));
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
