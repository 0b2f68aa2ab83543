//! Many decoder threads share one GPU: each thread decodes into page-locked memory, submits the batch, and reads the
//! result of its previous batch, while copies and compute of all threads overlap. The program has no locks, streams or
//! synchronisation of its own.
//!
//! ```sh
//! cargo run --release --example decoder_threads -- weights/efficientnet-lite0 8 weights/photos/*.{jpg,png}
//! ```
//! `examples/cpp/decoder_threads.cpp` is the same in C++.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use trefoil::model::Model;
use trefoil::{Engine, Error, Ticket, image};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(threads)) = (arguments.next(), arguments.next()) else {
        return Err("usage: decoder_threads MODEL THREADS PHOTO...".into());
    };
    let (threads, photos): (usize, Vec<String>) = (threads.parse()?, arguments.collect());
    let model = Model::open(model)?;
    // The number of staging buffers is that of producers and slots together.
    let engine = Engine::builder(&model).batch(8).staging(threads + 3).build()?;

    let next = AtomicUsize::new(0);
    let decoder = || -> Result<(), Error> {
        let mut last: Option<(Ticket, &[String])> = None;
        loop {
            let rest = photos.get(next.fetch_add(engine.capacity(), Ordering::Relaxed)..).unwrap_or_default();
            let photos = &rest[..rest.len().min(engine.capacity())];
            let ticket = if photos.is_empty() {
                None
            } else {
                let mut batch = engine.acquire()?; // page-locked memory
                for (pixels, photo) in batch.rows_mut().zip(photos) {
                    image::load(photo, model.preprocessing()?, pixels)?;
                }
                Some((batch.submit(photos.len())?, photos)) // never waits for the GPU
            };
            let done = ticket.is_none();
            if let Some((ticket, photos)) = std::mem::replace(&mut last, ticket) {
                let output = ticket.wait()?; // the batch before: waits for it and for nothing else
                for (row, photo) in photos.iter().enumerate() {
                    let (class, value) = output.top_k(row, 1)?[0];
                    println!("{photo}: {class} {} {value}", model.label(class));
                }
            }
            if done {
                return Ok(());
            }
        }
    };
    thread::scope(|scope| {
        let decoders: Vec<_> = (0..threads).map(|_| scope.spawn(decoder)).collect();
        decoders.into_iter().try_for_each(|thread| thread.join().expect("no decoder panics"))
    })?;
    Ok(())
}
