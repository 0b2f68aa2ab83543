//! Runs the same batches repeatedly, with several in flight: every answer must equal the first one bit by bit.
//!
//! ```sh
//! replays weights/efficientnet-lite0 32 10000 cuda:0      # model, batch, batches, device (default auto)
//! ```

use std::collections::VecDeque;
use std::error::Error as StdError;

use trefoil::model::Model;
use trefoil::{Device, Engine, Error, Ticket};

fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, batches, device @ ..] = &arguments[..] else {
        return Err("usage: replays MODEL BATCH BATCHES [DEVICE]".into());
    };
    let device = Device::open(device.first().map_or("auto", String::as_str).parse()?)?;
    let (batch, batches) = (batch.parse()?, batches.parse()?);
    let engine = Engine::builder(&Model::open(model)?).on(&device).batch_sizes(&[batch]).build()?;
    let differing = replay(&engine, batches)?;
    println!("{batches} batches of {batch} on {}: {differing} unlike the first", device.info().name);
    if differing > 0 { Err("an answer changed".into()) } else { Ok(()) }
}

/// Runs `batches` batches of the same noise; returns how many answers differ from the first one.
pub fn replay(engine: &Engine, batches: usize) -> Result<usize, Error> {
    let rows = engine.capacity();
    let staging = engine.credits()?.staging;
    let mut state = 0x9E37_79B9_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(rows * engine.input().row_bytes)
    .collect();
    // The content of each staging buffer stays, because nothing else writes there.
    let mut lent = (0..staging).map(|_| engine.acquire()).collect::<Result<Vec<_>, _>>()?;
    for batch in &mut lent {
        batch
            .rows_mut()
            .zip(noise.chunks_exact(engine.input().row_bytes))
            .for_each(|(row, pixels)| row.copy_from_slice(pixels));
    }
    drop(lent);

    let mut first: Vec<Vec<u8>> = Vec::new();
    let mut differing = 0;
    let mut flying: VecDeque<Ticket> = VecDeque::new();
    for number in 0..batches {
        flying.push_back(engine.acquire()?.submit(rows)?);
        while flying.len() > engine.slots() || (number + 1 == batches && !flying.is_empty()) {
            let output = flying.pop_front().expect("not empty").wait()?;
            if first.is_empty() {
                first = (0..rows).map(|row| output.row(row).to_vec()).collect();
            }
            differing += usize::from((0..rows).any(|row| output.row(row) != first[row]));
        }
    }
    Ok(differing)
}
