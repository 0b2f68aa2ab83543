//! Two pipelines: a backbone and its head, with results that stay on the device in between; and two models with a stage
//! on the host between them. In both, stages of successive batches overlap.
//!
//! ```sh
//! cargo run --release --example multi_stage
//! ```

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use trefoil::model::Model;
use trefoil::trace::TraceStage;
use trefoil::{Device, Engine, Error, InputFormat, OutputKind, Target, Ticket, prefetch_scoped};

const BATCHES: u8 = 12;

/// Runs both kinds of stages.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/efficientnet-lite0")?;
    let (backbone, head) = model.split_at("global_pool")?; // or two models that fit together
    let whole = Engine::builder(&model).output(OutputKind::Logits).build()?;
    let device = Device::open(Target::Auto)?;
    let staged = Engine::builder(&backbone).then(&head).on(&device).output(OutputKind::Logits).trace(true).build()?;
    let first = Engine::builder(&model).output(OutputKind::Features).build()?;
    let second = Engine::builder(&head).input(InputFormat::F32Nhwc).output(OutputKind::Logits).build()?;

    let on_device = (0..BATCHES).map(|number| submit(&staged, number)).collect::<Result<Vec<_>, _>>()?;
    let on_device = on_device.into_iter().map(Ticket::wait).collect::<Result<Vec<_>, _>>()?;
    let trace = staged.trace().expect("built to record");
    // Intervals are in the order of their begins: one that begins before the end of the previous one ran at the same
    // time.
    let computing: Vec<_> = trace.stage(TraceStage::Compute).collect();
    let overlap = computing.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
    // On the CPU both stages share the cores, and the system decides which of them runs.
    let on_gpu = device.info().memory_bytes > 0;
    assert!(overlap > 0 || !on_gpu, "no batch's first stage ran beside the second one of the batch before");

    // The host stage, on two threads: it takes one batch's features, could change them, and submits them to the second
    // engine, while other batches are in either engine.
    let (in_stages, most_in_stages) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let host_stage = |number: u8| -> Result<(u8, Ticket), Error> {
        most_in_stages.fetch_max(in_stages.fetch_add(1, SeqCst) + 1, SeqCst);
        let features = submit(&first, number)?.wait()?;
        let mut batch = second.acquire()?;
        batch.row_mut(0).copy_from_slice(features.row(0));
        Ok((number, batch.submit(1)?))
    };
    std::thread::scope(|scope| {
        for answer in prefetch_scoped(scope, 0..BATCHES, 2, 4, host_stage)? {
            let (number, ticket) = answer?;
            let by_host = ticket.wait()?;
            in_stages.fetch_sub(1, SeqCst);
            let expected = submit(&whole, number)?.wait()?;
            for class in 0..model.classes() {
                let [expected, found, other] =
                    [&expected, &on_device[usize::from(number)], &by_host].map(|output| output.values(0)[class]);
                // Features are f16 on a GPU, as all values between layers are.
                let most = 1e-2 * expected.abs().max(1.0);
                assert!((found - expected).abs() <= most && (other - expected).abs() <= most, "batch {number}");
            }
        }
        Ok::<_, Error>(())
    })?;
    let most = most_in_stages.into_inner();
    assert!(most > 1, "one batch at a time went through the host's stage");
    println!(
        "{BATCHES} batches through two stages give what the whole model gives. On the device {overlap} stages began beside"
    );
    println!("another one; with the host between the stages up to {most} batches were under way at once");
    Ok(())
}

fn submit(engine: &Engine, number: u8) -> Result<Ticket, Error> {
    let mut batch = engine.acquire()?;
    batch.row_mut(0).iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i as u8).wrapping_mul(number));
    batch.submit(1)
}
