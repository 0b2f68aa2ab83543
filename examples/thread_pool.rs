//! A thread pool from a batcher and prefetch: a free worker takes the next job, rows of all workers share batches,
//! answers come in the order of the jobs, and no worker outlives the data that it borrows.
//!
//! ```sh
//! cargo run --release --example thread_pool
//! ```

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use trefoil::{Engine, Error, RowTicket, model::Model, prefetch_scoped};

/// Number of different pictures.
const KINDS: usize = 10;

/// Runs the jobs.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/convnet28")?;
    let engine = Engine::builder(&model).build()?;
    let batcher = engine.batcher().max_delay(Duration::from_millis(1)).build()?;
    let jobs: Vec<Vec<u8>> = (0..200).map(|job| vec![(job % KINDS * 20) as u8; engine.input().row_bytes]).collect();
    let workers = Mutex::new(HashSet::new());
    let work = |job: &Vec<u8>| -> Result<RowTicket, Error> {
        workers.lock().expect("no worker panics").insert(thread::current().id());
        batcher.submit(job) // copies the row into page-locked memory; a full batch goes at once
    };
    let answers = thread::scope(|scope| {
        let pool = prefetch_scoped(scope, &jobs, 4, 32, work)?; // borrows jobs, batcher and workers
        pool.map(|ticket| Ok(ticket?.wait()?.top_k(1)?[0].0)).collect::<Result<Vec<_>, Error>>()
    })?;
    for job in 0..jobs.len() - KINDS {
        assert_eq!(answers[job], answers[job + KINDS], "the same pixels");
    }
    let workers = workers.into_inner().expect("no worker panics").len();
    println!("{} jobs by {workers} workers: {:?}", jobs.len(), batcher.stats());
    assert_eq!((answers.len(), workers > 1), (jobs.len(), true));
    Ok(())
}
