//! Log messages contain nothing of rows, results and weights, and no path of a model.

#[path = "../onnx/write.rs"]
#[allow(dead_code, reason = "tests of the reader use all of it")]
mod write;

use std::fs;
use std::path::PathBuf;

use log::{LevelFilter, Log, Metadata, Record};
use trefoil::model::Model;
use trefoil::{Device, Engine, Target};

use crate::harness::Scenario;
use write::{bytes, int, message, model, node};

/// A text in a folder's name, and a value of pixels: neither may be logged.
const SECRET: &str = "behind-closed-doors";
const PIXEL: u8 = 211;

/// Prints every log record, of every level.
struct Printer;

impl Log for Printer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        println!("LOGGED {} {} {}", record.level(), record.target(), record.args());
    }

    fn flush(&self) {}
}

/// A folder of this process whose name must not be logged.
fn secret_folder() -> PathBuf {
    std::env::temp_dir().join(format!("trefoil-{SECRET}-{}", std::process::id()))
}

/// A file whose output `y` is `x` twice, three numbers each: it is no network of images.
fn twice() -> Vec<u8> {
    let three = message(2, &[message(1, &[int(1, 3)])]);
    let port = |field, name| message(field, &[bytes(1, name), message(2, &[message(1, &[int(1, 1), three.clone()])])]);
    let add = node("Add", &[bytes(1, "x"), bytes(1, "x"), bytes(2, "y")]);
    [model(&[port(11, "x"), add, port(12, "y")]), message(8, &[int(2, 18)])].concat()
}

/// Opens models of both kinds, builds for a GPU, and uses the engine and its batcher until the device fails.
fn use_and_fail() {
    log::set_logger(&Printer).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let folder = secret_folder();
    fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(format!("weights/convnet28/{name}"), folder.join(name)).unwrap();
    }
    let file = folder.join("values.onnx");
    fs::write(&file, twice()).unwrap();
    drop(Model::open(&file).unwrap());
    drop(Device::open(Target::Auto).unwrap());
    let (model, device) = (Model::open(&folder).unwrap(), Device::open(Target::Cuda(0)).unwrap());
    let engine = Engine::builder(&model).on(&device).batch(2).build().unwrap();
    let batcher = engine.batcher().build().unwrap();
    let row = vec![PIXEL; engine.input().row_bytes];
    let failed = (0..20).find_map(|_| batcher.submit(&row).and_then(|ticket| ticket.wait()).err());
    println!("failed: {}", failed.expect("the driver was told to fail"));
    drop((batcher, engine));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn logs_show_no_data_and_no_path_of_a_model() {
    let scenario = Scenario::new("logs::logs_show_no_data_and_no_path_of_a_model", use_and_fail);
    let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", "cuGraphLaunch#4"), ("FAKE_CUDA_FAIL_STICKY", "1")]);
    report.assert_sound();
    let logged: Vec<&str> = report.stdout.lines().filter(|line| line.contains("LOGGED ")).collect();
    for part in ["INFO trefoil", "ERROR trefoil", "values: no network of images"] {
        assert!(logged.iter().any(|line| line.contains(part)), "no `{part}`: {report}");
    }
    let pixels = format!("{PIXEL}, {PIXEL}");
    for line in logged {
        assert!(!line.contains(SECRET), "a path: {line}");
        assert!(!line.contains(&pixels) && !has_float(line), "data: {line}");
    }
}

/// Whether a line contains a number with three or more decimal places, as weights and results are printed.
fn has_float(line: &str) -> bool {
    line.split('.').skip(1).any(|rest| rest.chars().take_while(char::is_ascii_digit).count() >= 3)
}
