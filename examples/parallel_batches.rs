//! Many threads, each with batches of its own, on one engine: each waits for its own answers and for nothing else, and
//! the device always has the next batch.
//!
//! ```sh
//! cargo run --release --example parallel_batches
//! ```

use std::thread;

use trefoil::{Engine, Error, Ticket, model::Model};

const THREADS: u8 = 4;
const BATCHES: u8 = 10;

/// Runs the threads.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/convnet28")?;
    let engine = Engine::builder(&model).staging(usize::from(THREADS) + 3).build()?;
    // The expected answer of each picture, computed one at a time.
    let alone = (0..THREADS * BATCHES)
        .map(|number| submit(&engine, number, 1)?.wait())
        .map(|output| output.map(|output| output.values(0).to_vec()));
    let alone: Vec<Vec<f32>> = alone.collect::<Result<_, Error>>()?;

    let produce = |thread: u8| -> Result<(), Error> {
        let mut last: Option<(u8, Ticket)> = None;
        for number in (0..BATCHES).map(|batch| thread * BATCHES + batch).map(Some).chain([None]) {
            let next = number.map(|number| Ok::<_, Error>((number, submit(&engine, number, engine.capacity())?)));
            if let Some((number, ticket)) = std::mem::replace(&mut last, next.transpose()?) {
                let output = ticket.wait()?; // of the batch before
                for row in 0..output.rows() {
                    close(output.values(row), &alone[usize::from(number)]);
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let produce = &produce;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || produce(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    println!("{} batches of {} rows from {THREADS} threads, each answered right", THREADS * BATCHES, engine.capacity());
    Ok(())
}

/// Submits a batch of equal rows.
fn submit(engine: &Engine, number: u8, rows: usize) -> Result<Ticket, Error> {
    let mut batch = engine.acquire()?;
    for row in batch.rows_mut().take(rows) {
        row.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i as u8).wrapping_mul(number));
    }
    batch.submit(rows)
}

/// Checks that two answers are close: kernels differ with the batch size, and so do the last bits of f16.
fn close(found: &[f32], expected: &[f32]) {
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-2, "another batch's answer: {found:?}, expected {expected:?}");
}
