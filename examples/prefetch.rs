//! Loads inputs ahead on several threads while the device computes earlier batches, so that decoding takes no extra
//! time. The answers come in the order of the inputs.
//!
//! ```sh
//! cargo run --release --example prefetch
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trefoil::{Engine, Error, Ticket, model::Model, prefetch_scoped};

const BATCHES: u8 = 24;

/// Loads inputs ahead.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/convnet28")?;
    let engine = Engine::builder(&model).staging(8).build()?;
    let (loading, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // The loader threads run this: it fills page-locked memory in place and submits it.
    let load = |number: u8| -> Result<(u8, Ticket), Error> {
        most.fetch_max(loading.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut batch = engine.acquire()?;
        std::thread::sleep(Duration::from_millis(5)); // a slow source
        batch.rows_mut().for_each(|row| row.fill(number));
        loading.fetch_sub(1, Ordering::Relaxed);
        Ok((number, batch.submit(engine.capacity())?))
    };
    std::thread::scope(|scope| {
        let loaded = prefetch_scoped(scope, 0..BATCHES, 4, 6, load)?;
        for (expected, loaded) in (0..BATCHES).zip(loaded) {
            let (number, ticket) = loaded?;
            assert_eq!(number, expected, "out of order");
            let output = ticket.wait()?;
            println!("{number}: {}", model.label(output.top_k(0, 1)?[0].0));
        }
        Ok::<_, Error>(())
    })?;
    let most = most.into_inner();
    println!("up to {most} batches were being loaded at a time");
    assert!(most > 1, "nothing was loaded ahead");
    Ok(())
}
