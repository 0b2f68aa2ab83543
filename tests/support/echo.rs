//! A model that returns its input, so that a test of the ring sees whose row it got.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashSet;

use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Batch, Device, Engine, Error, Output, OutputKind, Shape, Target, Ticket};

const SIDE: usize = 4;

/// One convolution that multiplies by 255: with input bytes scaled to 0-1, outputs are the bytes that went in.
pub fn echo() -> Model {
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", Shape::new(SIDE, SIDE, 1));
    let x = graph.conv2d_with("echo", image, Conv2d::named("echo", 1, Window::square(1, 1, 0)));
    graph.output("y", x);
    let graph = graph.finish().unwrap();
    let weights = Weights::from_tensors([("echo.weight", vec![1, 1, 1, 1], vec![255.0])]).unwrap();
    let input = Shape::new(SIDE, SIDE, 1);
    let preprocessing = Preprocessing { mean: vec![0.0], std: vec![1.0], ..Preprocessing::new(input) };
    Model::new(graph, weights, preprocessing, Vec::new()).unwrap()
}

/// A builder of an engine of `model` on the CPU that gives features, with the hazard checker on. In
/// `tests/ring_traced.rs` the engine records.
pub fn builder_on_cpu(model: &Model) -> trefoil::EngineBuilder<'_> {
    let recorded = module_path!().starts_with("ring_traced");
    Engine::builder(model)
        .on(&Device::open(Target::Cpu).unwrap())
        .output(OutputKind::Features)
        .check(true)
        .trace(recorded)
}

/// Writes a number and its own index into every row.
pub fn fill(batch: &mut Batch, rows: usize, number: u32) {
    for (index, row) in batch.rows_mut().take(rows).enumerate() {
        row[..4].copy_from_slice(&number.to_le_bytes());
        row[4] = index as u8;
    }
}

/// Checks every row of the result, and returns the number that [`fill`] wrote.
pub fn read(output: &Output) -> u32 {
    let numbers: HashSet<u32> = (0..output.rows())
        .map(|index| {
            let bytes: Vec<u8> = output.values(index).iter().map(|v| v.round() as u8).collect();
            assert_eq!(bytes[4], index as u8, "rows changed places");
            u32::from_le_bytes(bytes[..4].try_into().unwrap())
        })
        .collect();
    assert_eq!(numbers.len(), 1, "rows of different submissions in one output: {numbers:?}");
    numbers.into_iter().next().unwrap()
}

/// Acquires, fills and submits a batch of `rows` rows that hold `number`.
pub fn submit(engine: &Engine, rows: usize, number: u32) -> Result<Ticket, Error> {
    let mut batch = engine.acquire()?;
    fill(&mut batch, rows, number);
    batch.submit(rows)
}
