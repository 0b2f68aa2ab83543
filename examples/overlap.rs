//! Copies and compute overlap by default: while one batch is computed, others are uploaded and downloaded. The example
//! prints the figures of the timeline; `trefoil trace` writes the timeline itself.
//!
//! ```sh
//! cargo run --release --example overlap
//! ```

use trefoil::model::Model;
use trefoil::trace::TraceStage;
use trefoil::{Device, Engine, Error, Target};

/// Runs batches and prints how their copies and compute overlapped.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/convnet28")?;
    let device = Device::open(Target::Auto)?;
    let engine = Engine::builder(&model).on(&device).trace(true).build()?;
    // Each batch is waited for when the next three are in flight.
    let mut tickets = std::collections::VecDeque::new();
    for number in 0..100 {
        let mut batch = engine.acquire()?;
        batch.rows_mut().for_each(|row| row.fill(number));
        tickets.push_back(batch.submit(engine.capacity())?);
        if tickets.len() > 3 {
            tickets.pop_front().expect("just counted").wait()?;
        }
    }
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;

    let trace = engine.trace().expect("built to record");
    println!("{}", trace.report());
    let computing: Vec<_> = trace.stage(TraceStage::Compute).collect();
    let under_another = trace.stage(TraceStage::CopyIn).filter(|copy| {
        computing.iter().any(|other| other.batch != copy.batch && other.begin < copy.end && copy.begin < other.end)
    });
    let copies = under_another.count();
    println!("{copies} of {} uploads were under way while another batch was computed", computing.len());
    // On the CPU the system decides whether a copy gets a core beside a computation.
    assert!(copies > 0 || device.info().memory_bytes == 0, "no upload overlapped with a computation");
    Ok(())
}
