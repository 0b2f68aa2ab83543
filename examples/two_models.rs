//! Three engines on one device: a bulk model, an urgent model with higher priority, and a second engine of the bulk
//! model, which shares the weights of the first. Each engine has streams of its own, so no engine waits for the batches
//! of another; all together keep within one budget of device memory.
//!
//! ```sh
//! cargo run --release --example two_models
//! ```

use trefoil::{Device, Engine, Error, Target, model::Model};

/// Runs the models.
pub fn main() -> Result<(), Error> {
    let device = Device::open(Target::Auto)?;
    device.limit_memory(4 << 30); // for all of them
    let (photos, digits) = (Model::open("weights/efficientnet-lite0")?, Model::open("weights/convnet28")?);
    let bulk = Engine::builder(&photos).on(&device).batch_sizes(&[4]).build()?;
    let held = || device.memory_use().device_bytes;
    let of_first = held();
    let urgent = Engine::builder(&digits).on(&device).batch_sizes(&[4]).high_priority().build()?;
    let both = held();
    let again = Engine::builder(&photos).on(&device).batch_sizes(&[4]).build()?;
    let of_again = held() - both;
    println!("{}: {of_first} bytes for a model, {of_again} for another engine of it", device.info().name);
    if device.info().memory_bytes > 0 {
        // On a GPU the weights exist once. The weights of a CPU device are host memory, which is not counted.
        let weights: u64 = again.plans()[0].steps.iter().map(|step| step.weight_bytes).sum();
        assert!(of_again + weights <= of_first, "the {weights} of weights are there twice");
    }
    // An engine that exceeds the budget is refused with the figures, and the other engines are unchanged.
    device.limit_memory(held());
    let refused = Engine::builder(&photos).on(&device).batch_sizes(&[4]).build();
    let Err(Error::OutOfMemory { needed_bytes, free_bytes: 0, .. }) = refused else { panic!("{refused:?}") };
    println!("a third engine needs {needed_bytes} bytes, and is refused");
    assert_eq!(held(), both + of_again);

    // Bulk work is in flight when the urgent work comes, and still is when that is answered.
    let mut bulky = Vec::new();
    for number in 0..6 {
        let engine = if number % 2 == 0 { &bulk } else { &again };
        let mut batch = engine.acquire()?;
        batch.rows_mut().for_each(|row| row.fill(100));
        bulky.push(batch.submit(4)?);
    }
    let mut batch = urgent.acquire()?;
    batch.rows_mut().for_each(|row| row.fill(200));
    let answer = batch.submit(4)?.wait()?;
    let left = bulky.iter().map(|ticket| ticket.is_ready()).filter(|ready| matches!(ready, Ok(false))).count();
    println!("urgent: {}, with {left} bulk batches left", digits.label(answer.top_k(0, 1)?[0].0));
    assert!(left > 0, "the urgent batch waited for all of the others");
    let answers = bulky.into_iter().map(|ticket| ticket.wait()).collect::<Result<Vec<_>, Error>>()?;
    assert!(answers.iter().all(|output| output.values(0) == answers[0].values(0)), "two engines of one model differ");
    Ok(())
}
