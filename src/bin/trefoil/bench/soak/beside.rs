//! A model that is opened, run and closed repeatedly, each time on a newly opened device.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use trefoil::Close;

use crate::bench::sources::Images;
use crate::cli::Place;
use crate::setup::{self, Ring, Sizes};

/// Batch sizes in turn, so that allocations differ from those freed before.
const SIZES: [usize; 3] = [1, 5, 2];
/// The longest time that draining an engine may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between a closing and the next opening: the clients are measured, not the openings.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Beside<'a> {
    place: &'a Place,
    images: &'a Images,
    /// The first answer of each size.
    first: [Option<Vec<u8>>; SIZES.len()],
    turn: usize,
}

impl<'a> Beside<'a> {
    pub fn new(place: &'a Place, images: &'a Images) -> Self {
        Self { place, images, first: Default::default(), turn: 0 }
    }

    /// Opens, runs and closes the model once; the answer has to equal the first answer of its size, bit for bit.
    pub fn open_run_close(&mut self) -> Result<()> {
        let turn = self.turn % SIZES.len();
        self.turn += 1;
        let answer = self.answer(SIZES[turn])?;
        let first = self.first[turn].get_or_insert_with(|| answer.clone());
        ensure!(
            *first == answer,
            "wrong output: a model that was opened again gives another answer at turn {}",
            self.turn
        );
        thread::sleep(PAUSE);
        Ok(())
    }

    fn answer(&self, size: usize) -> Result<Vec<u8>> {
        let (model, _) = self.place.open_images()?;
        let device = setup::open_device(self.place.device)?;
        let ring = Ring { slots: 2, ..Ring::new(Sizes::Exactly(vec![size]), self.place.kernels) };
        let engine = setup::engine_builder(&model, &device, &ring).build()?;
        let mut batch = engine.acquire()?;
        batch.rows_mut().zip(self.images.all()).for_each(|(row, pixels)| row.copy_from_slice(pixels));
        let output = batch.submit(size)?.wait()?;
        let answer = (0..size).flat_map(|row| output.row(row)).copied().collect();
        drop(output);
        engine.close(Close::Drain, LIMIT)?;
        Ok(answer)
    }
}
