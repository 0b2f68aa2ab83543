//! Files as onnxruntime's quantizer writes them: an engine gives the answers of onnxruntime.

use std::fs;

use serde_json::Value;
use trefoil::model::Model;
use trefoil::{Device, Engine};

use super::data;

/// The number and the size of the rows in tests/data/make_quantised.py.
const ROWS: usize = 16;
const ROW: usize = 3 * 12 * 12;

/// The image of a row, as in tests/data/make_quantised.py.
fn image(row: usize) -> Vec<f32> {
    let number = |at: usize| (at * 2_654_435_761 % 1009) as f64 / 504.5 - 1.0;
    (row * ROW..(row + 1) * ROW).map(|at| number(at) as f32).collect()
}

/// The difference of each answer between the engine and onnxruntime, in steps of the scale.
fn differences(name: &str) -> Vec<f64> {
    let model = Model::open(data(&format!("{name}.onnx"))).unwrap();
    let engine = Engine::builder(&model).on(&Device::cpu(1)).batch(ROWS).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    for row in 0..ROWS {
        batch.port_mut::<f32>(row, "image").unwrap().copy_from_slice(&image(row));
    }
    let output = batch.submit(ROWS).unwrap().wait().unwrap();
    let expected = fs::read(data(&format!("{name}.json"))).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let scale = expected["scale"].as_f64().unwrap();
    let of_row = |row: usize| {
        let found = output.port::<f32>(row, "scores").unwrap();
        let steps = expected["steps"][row].as_array().unwrap();
        assert_eq!(found.len(), steps.len());
        found.iter().zip(steps).map(|(a, b)| (f64::from(*a) / scale - b.as_f64().unwrap()).abs()).collect::<Vec<_>>()
    };
    (0..ROWS).flat_map(of_row).collect()
}

/// A sum in another order may move a quotient near a half to its other side: a step, which later layers may pass on.
#[test]
fn answers_are_those_of_onnxruntime() {
    for name in ["pairs-u8", "pairs-s8", "operators-u8", "operators-s8"] {
        let steps = differences(&format!("quantised-{name}"));
        let other = steps.iter().filter(|steps| **steps > 0.01).count();
        let largest = steps.iter().copied().fold(0.0, f64::max);
        println!("{name}: {other} of {} differ, by {largest} steps at most", steps.len());
        assert!(largest < 1.01 && 20 * other <= steps.len(), "{name}: {other} differ, by {largest} steps at most");
    }
}
