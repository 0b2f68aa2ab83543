//! Networks of bytes on the CPU: compared with plain loops in integers, equal in every byte; and a trained network
//! compared with itself in floats.

mod support;

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use support::quantized;
use trefoil::model::{Model, Quantization};
use trefoil::{CalibrationMethod, Calibrator, Device, Engine, OutputKind};

#[test]
fn every_byte_is_that_of_the_contract() {
    let device = Device::cpu(2);
    let problems = quantized::all();
    let run = |problem: &quantized::Problem| {
        problem.run(&device, false).err().map(|error| format!("{}: {error}", problem.name))
    };
    let wrong: Vec<String> = problems.iter().filter_map(run).collect();
    assert!(wrong.is_empty(), "{} of {} problems:\n{}", wrong.len(), problems.len(), wrong.join("\n"));
}

/// Number of test images, of the thousand that there are: each is a fifth of a percent of them, and a percent may be
/// lost.
const IMAGES: usize = 500;
const PIXELS: usize = 28 * 28;

/// The bytes behind an IDX header of `header` bytes.
fn idx(path: &str, header: usize) -> Vec<u8> {
    let mut all = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut all).unwrap();
    all.split_off(header)
}

/// The class of each image.
fn classes(model: &Model, images: &[u8]) -> Vec<usize> {
    let engine = Engine::builder(model).on(&Device::cpu(2)).batch(50).output(OutputKind::TopK(1)).build().unwrap();
    let of_batch = |images: &[u8]| {
        let mut batch = engine.acquire().unwrap();
        for (row, image) in batch.rows_mut().zip(images.chunks(PIXELS)) {
            row.copy_from_slice(image);
        }
        let output = batch.submit(images.len() / PIXELS).unwrap().wait().unwrap();
        (0..images.len() / PIXELS).map(|row| output.top_k(row, 1).unwrap()[0].0).collect::<Vec<_>>()
    };
    images.chunks(50 * PIXELS).flat_map(of_batch).collect()
}

/// The bar of MLPerf for its easier class: 99 % of the correct answers of the floats.
#[test]
fn a_trained_network_in_bytes_is_right_as_often() {
    let images = idx("tests/data/fashion-mnist-1000.idx3.gz", 16);
    let labels = idx("tests/data/fashion-mnist-1000.labels.idx1.gz", 8);
    let model = Model::open("weights/convnet28").unwrap();
    let right =
        |found: &[usize]| found.iter().zip(&labels).filter(|(found, label)| **found == usize::from(**label)).count();
    let (images, others) = images.split_at(IMAGES * PIXELS);
    let floats = classes(&model, images);
    let mut calibrator = Calibrator::new(&model).unwrap();
    assert!(calibrator.quantization(CalibrationMethod::Max).is_err(), "of no photo");
    others.chunks(PIXELS).take(50).for_each(|image| calibrator.observe(image).unwrap());
    let quantized = model.quantized(&calibrator.quantization(CalibrationMethod::default()).unwrap()).unwrap();
    let bytes = classes(&quantized, images);
    let same = floats.iter().zip(&bytes).filter(|(a, b)| a == b).count();
    let [of_floats, of_bytes] = [&floats, &bytes].map(|found| right(found));
    println!("{of_bytes} of {IMAGES} right, {of_floats} in floats, {same} the same");
    assert!(100 * of_bytes >= 99 * of_floats);
    let error = calibrator.error(&quantized).unwrap();
    assert!(error > 0.0 && error < 0.01, "{error}");
}

#[test]
fn layers_are_told_by_what_they_cost() {
    let images = idx("tests/data/fashion-mnist-1000.idx3.gz", 16);
    let model = Model::open("weights/convnet28").unwrap();
    let mut calibrator = Calibrator::new(&model).unwrap();
    images.chunks(PIXELS).take(Calibrator::FEWEST_ROWS).for_each(|image| calibrator.observe(image).unwrap());
    let mut quantization = calibrator.quantization(CalibrationMethod::Max).unwrap();
    let layers = |quantization: &Quantization| calibrator.sensitivities(quantization, |_, _| true).unwrap();
    let before = layers(&quantization);
    assert!(before.len() > 1 && before.is_sorted_by(|a, b| a.error >= b.error), "{before:?}");
    // A value whose scale clips most of its numbers makes its layers the worst.
    let last = before.last().unwrap().layer.clone();
    let graph = model.quantized(&quantization).unwrap();
    let graph = graph.image_network().unwrap();
    let optimized = trefoil::model::images::optimize(graph);
    let scale = optimized.nodes[optimized.find(&last).unwrap().0].scale.unwrap();
    let node = graph.nodes.iter().find(|node| node.scale == Some(scale)).unwrap().name.clone();
    *quantization.scales.get_mut(&node).unwrap() /= 50.0;
    let after = layers(&quantization);
    let error = |of: &[trefoil::Sensitivity]| of.iter().find(|of| of.layer == last).unwrap().error;
    assert!(error(&after) > 10.0 * error(&before), "{before:?} {after:?}");
    assert_eq!(calibrator.sensitivities(&quantization, |done, _| done < 1).unwrap().len(), 1);
}
