//! Rows without an answer: a network overflows for white and not for black; each row that overflows is an error, and
//! the rows beside it are answered.

use trefoil::graph::GraphBuilder;
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Device, Engine, EngineBuilder, Error, OutputKind, Shape, Target};

/// One pixel, two classes: a white pixel makes the logits infinite, and their softmax not a number.
fn overflowing() -> Model {
    let input = Shape::new(1, 1, 1);
    let mut graph = GraphBuilder::new();
    let pixel = graph.image("image", input);
    let logits = graph.linear("fc", pixel, 2);
    let tensors =
        [("fc.weight".to_owned(), vec![2, 1], vec![3e38, -3e38]), ("fc.bias".to_owned(), vec![2], vec![0.0; 2])];
    let preprocessing = Preprocessing { std: vec![0.01], ..Preprocessing::new(input) };
    let weights = Weights::from_tensors(tensors).unwrap();
    graph.output("y", logits);
    Model::new(graph.finish().unwrap(), weights, preprocessing, Vec::new()).unwrap()
}

fn on_cpu(model: &Model, output: OutputKind) -> EngineBuilder<'_> {
    Engine::builder(model).on(&Device::open(Target::Cpu).unwrap()).batch(4).output(output)
}

fn refused(answer: Result<Vec<(usize, f32)>, Error>, bad_row: usize, part: &str) {
    match answer {
        Err(error @ Error::Output { row, .. }) if row == bad_row && error.to_string().contains(part) => {}
        other => panic!("`{part}` is expected of row {bad_row}: {other:?}"),
    }
}

#[test]
fn a_row_that_is_not_finite_is_an_error_of_that_row() {
    let model = overflowing();
    for (output, black, part) in [
        (OutputKind::Probabilities, 0.5, "the probability of class 0 is NaN"),
        (OutputKind::TopK(1), 0.5, "the probability of class 0 is NaN"),
        (OutputKind::Logits, 0.0, "value 0 is inf"),
    ] {
        let engine = on_cpu(&model, output).build().unwrap();
        let mut batch = engine.acquire().unwrap();
        for (row, pixel) in [0, 255, 0].into_iter().enumerate() {
            batch.row_mut(row).fill(pixel);
        }
        let answer = batch.submit(3).unwrap().wait().unwrap();
        for row in [0, 2] {
            assert_eq!(answer.top_k(row, 1).unwrap(), [(0, black)], "{output:?}");
        }
        refused(answer.top_k(1, 1), 1, part);
        refused(answer.part(0).top_k(1, 0), 1, part);
    }
}

#[test]
fn a_batchers_row_that_is_not_finite_is_an_error() {
    let model = overflowing();
    let batcher = on_cpu(&model, OutputKind::Probabilities).build().unwrap().batcher().build().unwrap();
    let [white, black] = [255, 0].map(|pixel| batcher.submit(&[pixel]).unwrap().wait().unwrap());
    refused(white.top_k(2), 0, "NaN; check the model's weights and preprocessing");
    assert_eq!(black.top_k(2).unwrap(), [(0, 0.5), (1, 0.5)]);
}
