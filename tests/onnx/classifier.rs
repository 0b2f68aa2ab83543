//! A network of images in an ONNX file, computed by an engine and by its own graph.

use trefoil::graph::Tensor;
use trefoil::model::Model;
use trefoil::onnx::{File, Sizes};
use trefoil::plan::Limits;
use trefoil::{Device, Engine, Error, InputFormat, OutputKind, Shape, Target, loops};

use super::graphs::{Dim, FLOAT, file, input, node, output};
use super::write::{attribute, bytes, initializer, int};
use super::{Folder, data};

/// Images of 20 x 16 as planes, from -1 to 1.
fn planes(images: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
    (0..images * 3 * 20 * 16).map(value).collect()
}

#[test]
fn an_engine_computes_what_the_graph_of_the_file_does() {
    const IMAGES: usize = 3;
    let path = data("images.onnx");
    let (file, planes) = (File::open(&path).unwrap(), planes(IMAGES));
    let graph = file.graph(&Sizes::new().dim("batch", IMAGES)).unwrap();
    let input = Tensor::of(&[IMAGES, 3, 20, 16], &planes);
    let expected = loops::evaluate(&graph, &mut |name, _| file.weight(name), &[input]).unwrap();

    let model = Model::open(&path).unwrap();
    assert_eq!(
        (model.name(), model.classes(), model.image_network().unwrap().input),
        ("images", 10, Shape::new(20, 16, 3))
    );
    let device = Device::open(Target::Cpu).unwrap();
    let builder = Engine::builder(&model).on(&device).input(InputFormat::F32Nchw).output(OutputKind::Probabilities);
    let engine = builder.batch(IMAGES).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    for (index, image) in planes.chunks(3 * 20 * 16).enumerate() {
        batch.row_mut(index).copy_from_slice(bytemuck::cast_slice(image));
    }
    let output = batch.submit(IMAGES).unwrap().wait().unwrap();
    for (row, expected) in expected[0].elems::<f32>().chunks(10).enumerate() {
        let found: &[f32] = bytemuck::cast_slice(output.row(row));
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "row {row}: {found:?}, expected {expected:?}");
        assert!(expected.iter().any(|&p| (p - 0.1).abs() > 0.01), "the classes differ: {expected:?}");
    }
}

#[test]
fn labels_and_preprocessing_are_those_of_the_configuration_beside_it() {
    let folder = Folder::new();
    let path = folder.write("images.onnx", std::fs::read(data("images.onnx")).unwrap());
    let labels: Vec<String> = (0..10).map(|class| format!("\"class of {class}\"")).collect();
    let config = format!(
        r#"{{"architecture": "own", "label_names": [{}], "input_size": [3, 20, 16], "mean": [0.5, 0.5, 0.5],
            "std": [0.25, 0.25, 0.25], "crop_pct": 1.0}}"#,
        labels.join(", ")
    );
    folder.write("config.json", config);
    let model = Model::open(&path).unwrap();
    assert_eq!(model.label(3), "class of 3");
    assert_eq!(model.preprocessing().unwrap().mean, [0.5; 3]);
}

#[test]
fn a_network_of_something_else_is_refused_with_its_nodes() {
    let error = Model::open(data("graph.onnx")).unwrap_err();
    assert!(matches!(error, Error::Import { .. } | Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("every") || error.to_string().contains("Every"), "{error}");
}

/// Scores of classes need no linear layer, but they are a vector for each image.
#[test]
fn a_classifier_ends_in_a_vector() {
    let folder = Folder::new();
    let opened = |nodes: &[Vec<u8>]| {
        let weights = initializer(FLOAT, &[5, 3, 1, 1], &[bytes(9, [0; 60])]);
        let image = input("x", FLOAT, &[Dim::Named("N"), Dim::Fixed(3), Dim::Fixed(8), Dim::Fixed(8)]);
        let conv = node("Conv", &["x", "w"], &["conv"], &[]);
        let graph = [&[weights, image, conv, output("y")], nodes].concat();
        Model::open(folder.write("ends.onnx", file(&graph, &[]))).unwrap()
    };
    let mean = node("GlobalAveragePool", &["conv"], &["mean"], &[]);
    let flat = node("Flatten", &["mean"], &["flat"], &[]);
    let softmax = node("Softmax", &["flat"], &["y"], &[]);
    let to_y = node("Identity", &["flat"], &["y"], &[]);
    for end in [to_y, softmax] {
        let model = opened(&[mean.clone(), flat.clone(), end]);
        assert!(model.image_network().is_ok() && model.classes() == 5);
        for output in [OutputKind::Probabilities, OutputKind::TopK(2), OutputKind::Logits] {
            Engine::builder(&model).batch_sizes(&[4]).output(output).plans_for(&Limits::h200()).unwrap();
        }
    }
    let order = attribute("perm", &[int(20, 7), [0, 2, 3, 1].map(|axis| int(8, axis)).concat()]);
    let image = opened(&[node("Transpose", &["conv"], &["y"], &[order])]);
    assert!(image.image_network().is_err() && image.classes() == 0);
}
