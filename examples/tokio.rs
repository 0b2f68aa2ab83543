//! Tickets of batches and of rows under tokio: both are futures, for any executor.
//!
//! ```sh
//! cargo run --release --example tokio
//! ```
//!
//! The ring's completion thread, or the batcher's, wakes a task; a driver callback never does. Acquiring a batch may
//! block. A task that must not block calls `try_acquire`, or submits single rows to a batcher built with
//! `WhenFull::Reject`; committing a row never blocks.

use std::time::Duration;

use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Batcher, Device, Engine, Error, OutputKind, Shape, Target, WhenFull};

/// One convolution that gives back the bytes that go in, so that a task sees whose result it got.
fn echo() -> Result<Model, Error> {
    let input = Shape::new(4, 4, 1);
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", input);
    let x = graph.conv2d_with("echo", image, Conv2d::named("echo", 1, Window::square(1, 1, 0)));
    let weights = Weights::from_tensors([("echo.weight", vec![1, 1, 1, 1], vec![255.0])])?;
    let preprocessing = Preprocessing { mean: vec![0.0], std: vec![1.0], ..Preprocessing::new(input) };
    graph.output("y", x);
    Model::new(graph.finish()?, weights, preprocessing, Vec::new())
}

/// Submits a batch of one row and awaits it.
async fn one_batch(engine: &Engine, number: u8) -> Result<u8, Error> {
    let mut batch = loop {
        match engine.try_acquire()? {
            Some(batch) => break batch,
            None => tokio::task::yield_now().await,
        }
    };
    batch.row_mut(0).fill(number);
    let output = batch.submit(1)?.await?;
    Ok(output.values(0)[0].round() as u8)
}

/// Submits a row, repeatedly while there is no room, and awaits its answer.
async fn one_row(batcher: &Batcher, number: u8) -> Result<u8, Error> {
    let ticket = loop {
        match batcher.submit(&[number; 16]) {
            Err(Error::Full { .. }) => tokio::task::yield_now().await,
            ticket => break ticket?,
        }
    };
    Ok(ticket.await?.values()[0].round() as u8)
}

/// Submits two hundred batches and two hundred rows, in tasks on one thread.
async fn serve(engine: Engine) -> Result<(), Error> {
    let engine = std::sync::Arc::new(engine);
    let batcher = engine.batcher().max_delay(Duration::from_micros(200)).when_full(WhenFull::Reject).build()?;
    let batcher = std::sync::Arc::new(batcher);
    let mut tasks = Vec::new();
    for number in 0..200 {
        let (engine, batcher) = (engine.clone(), batcher.clone());
        tasks.push(tokio::spawn(async move { one_batch(&engine, number).await.map(|seen| (number, seen)) }));
        tasks.push(tokio::spawn(async move { one_row(&batcher, number).await.map(|seen| (number, seen)) }));
    }
    let mut answered = 0;
    for task in tasks {
        let (number, seen) = task.await.expect("no task panics")?;
        assert_eq!(number, seen, "a task got another's result");
        answered += 1;
    }
    assert_eq!(answered, 400);
    let stats = batcher.stats();
    assert_eq!(stats.rows(), 200);
    // An awaited ticket that is dropped returns its buffers.
    if let Some(batch) = engine.try_acquire()? {
        drop(batch.submit(1)?);
    }
    batcher.close(trefoil::Close::Drain, Duration::from_secs(10))?;
    engine.close(trefoil::Close::Drain, Duration::from_secs(10))?;
    let credits = engine.health().credits;
    assert_eq!((credits.filling, credits.in_flight), (0, 0));
    println!("200 batches and 200 rows (in {} batches) answered on one thread", stats.batches());
    Ok(())
}

/// Runs on the CPU, so that it can be tried anywhere.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (model, cpu) = (echo()?, Device::open(Target::Cpu)?);
    let engine = Engine::builder(&model).on(&cpu).batch_sizes(&[1, 8]).output(OutputKind::Features).build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(serve(engine))?;
    Ok(())
}
