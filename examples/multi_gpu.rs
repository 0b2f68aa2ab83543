//! Runs the same model on every GPU as one engine: each batch goes to the least loaded GPU. Without GPUs it uses two
//! CPU devices. (The example `side_by_side` puts a GPU out of use on purpose, and no batch is lost.)
//!
//! ```sh
//! cargo run --release --example multi_gpu -- [BATCHES]
//! ```

use std::collections::VecDeque;

use trefoil::{Close, Device, Engine, Error, Target, Ticket, model::Model};

/// Runs batches on all GPUs.
pub fn main() -> Result<(), Error> {
    let mut devices: Vec<Device> = (0..).map_while(|gpu| Device::open(Target::Cuda(gpu)).ok()).collect();
    if devices.is_empty() {
        devices = vec![Device::cpu(1), Device::cpu(1)];
    }
    let model = Model::open("weights/convnet28")?;
    let fleet = Engine::builder(&model).build_on(&devices)?;
    let batches = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200);
    let mut tickets: VecDeque<(usize, Ticket)> = VecDeque::new();
    let mut answers: Vec<Vec<f32>> = vec![Vec::new(); 50]; // of each kind of picture
    let mut answer = |(number, ticket): (usize, Ticket)| -> Result<(), Error> {
        let output = ticket.wait()?;
        let first = &mut answers[number % 50];
        if first.is_empty() {
            *first = output.values(0).to_vec();
        }
        assert_eq!(output.values(0), &first[..], "two devices, or two batches, differ");
        Ok(())
    };
    for number in 0..batches {
        let mut batch = fleet.acquire()?;
        batch.row_mut(0).iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i * (number % 50)) as u8);
        tickets.push_back((number, batch.submit(1)?));
        if tickets.len() > 3 * devices.len() {
            answer(tickets.pop_front().expect("just counted"))?;
        }
    }
    tickets.into_iter().try_for_each(answer)?;
    let stats = fleet.stats();
    for device in &stats {
        println!("{}: {} batches, {} run again for others", device.target, device.batches, device.run_again);
    }
    assert!(stats.iter().all(|device| device.batches > 0), "a device had nothing to do");
    fleet.close(Close::Drain, std::time::Duration::from_secs(10))
}
