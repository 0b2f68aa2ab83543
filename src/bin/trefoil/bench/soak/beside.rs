//! A model that is opened, run and closed over and over, each time on a device that is opened for it.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use trefoil::Close;

use crate::bench::sources::Images;
use crate::cli::Place;
use crate::setup::{self, Ring, Sizes};

/// Batch sizes in turn, so that what is allocated differs from what was freed.
const SIZES: [usize; 3] = [1, 5, 2];
/// Longest that a drained engine takes.
const LIMIT: Duration = Duration::from_secs(60);
/// From one closing to the next opening: the clients are what is measured.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Beside<'a> {
    place: &'a Place,
    images: &'a Images,
    /// The first answer at each of the sizes.
    first: [Option<Vec<u8>>; SIZES.len()],
    turn: usize,
}

impl<'a> Beside<'a> {
    pub fn new(place: &'a Place, images: &'a Images) -> Self {
        Self { place, images, first: Default::default(), turn: 0 }
    }

    /// One turn; the answer has to be that of the first turn of its size, bit for bit.
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
        let (model, _) = self.place.open()?;
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
