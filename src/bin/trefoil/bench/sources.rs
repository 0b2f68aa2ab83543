//! Random batches, with the answers that an idle engine gives: every timed answer is checked against them.

use std::collections::HashMap;

use anyhow::{Result, bail, ensure};
use trefoil::{Batch, Engine, Output, RowSpec};

use crate::{random, stop};

/// Batches in ordinary memory, with their answers from a run of one batch at a time.
pub struct Sources {
    rows: usize,
    row_bytes: usize,
    batches: Vec<Vec<u8>>,
    /// The number of each batch, by the batch's first bytes.
    numbers: HashMap<[u8; ID_BYTES], usize>,
    answers: Vec<Vec<u8>>,
}

/// Bytes that identify a batch: enough even if each element is 0 or 1.
const ID_BYTES: usize = 256;

impl Sources {
    /// Makes `count` batches of `rows` rows, runs them one at a time, and leaves every staging buffer of the engine
    /// holding one of them.
    pub fn learn(engine: &Engine, rows: usize, count: usize) -> Result<Self> {
        let input = with_bytes(engine.input())?;
        let batches: Vec<Vec<u8>> = (0..count).map(|number| random::batch(input, rows, number as u64 + 1)).collect();
        let id = |(number, batch): (usize, &Vec<u8>)| (first_bytes(batch), number);
        let numbers: HashMap<_, _> = batches.iter().enumerate().map(id).collect();
        ensure!(numbers.len() == count, "internal error, please report it: batches that begin alike");
        let mut sources = Self { rows, row_bytes: input.row_bytes, batches, numbers, answers: vec![Vec::new(); count] };
        let staging = engine.credits()?.staging;
        let mut held = (0..staging.max(count)).map(|number| (number, number % count)).peekable();
        while held.peek().is_some() {
            // All staging buffers are held at once; otherwise the same one would be lent again and again.
            let lent: Vec<_> = held.by_ref().take(staging).collect();
            let lent =
                lent.into_iter().map(|(_, number)| Ok((number, engine.acquire()?))).collect::<Result<Vec<_>>>()?;
            for (number, mut batch) in lent {
                stop::check()?;
                sources.fill(&mut batch, number);
                let output = batch.submit(rows)?.wait()?;
                let answer = (0..rows).flat_map(|row| output.row(row)).copied().collect::<Vec<u8>>();
                let known = &mut sources.answers[number];
                ensure!(known.is_empty() || *known == answer, "the same batch was answered in two ways, one at a time");
                *known = answer;
            }
        }
        let differ = sources.answers.windows(2).all(|pair| pair[0] != pair[1]);
        ensure!(differ, "wrong output: different batches have the same answer");
        Ok(sources)
    }

    /// Fills every staging buffer with one of the batches again.
    pub fn restore(&self, engine: &Engine) -> Result<()> {
        let staging = engine.credits()?.staging;
        let lent = (0..staging).map(|_| engine.acquire()).collect::<Result<Vec<_>, _>>()?;
        for (number, mut batch) in lent.into_iter().enumerate() {
            self.fill(&mut batch, number);
        }
        Ok(())
    }

    /// Copies batch `number` into page-locked memory.
    pub fn fill(&self, batch: &mut Batch, number: usize) {
        let source = &self.batches[number % self.batches.len()];
        for (row, pixels) in batch.rows_mut().zip(source.chunks_exact(self.row_bytes)) {
            row.copy_from_slice(pixels);
        }
    }

    /// The number of the batch that the memory holds, by its first bytes.
    pub fn number(&self, batch: &mut Batch) -> Result<usize> {
        let number = self.numbers.get(&first_bytes(batch.row_mut(0))).copied();
        number.map_or_else(|| bail!("internal error, please report it: page-locked memory with unknown pixels"), Ok)
    }

    /// Checks a part of the answer, cheaply: the first, the last and one other row, a part of each that moves with
    /// `turn`.
    pub fn check_some(&self, number: usize, output: &Output, turn: usize) -> Result<()> {
        const PART: usize = 512;
        for row in [0, turn % self.rows, self.rows - 1] {
            let bytes = output.row(row);
            let parts = bytes.len().div_ceil(PART);
            let at = turn % parts * PART;
            let part = at..(at + PART).min(bytes.len());
            self.compare(number, row, &bytes[part.clone()], part.start)?;
        }
        Ok(())
    }

    /// Checks the whole answer.
    pub fn check_all(&self, number: usize, output: &Output) -> Result<()> {
        (0..self.rows).try_for_each(|row| self.compare(number, row, output.row(row), 0))
    }

    fn compare(&self, number: usize, row: usize, bytes: &[u8], at: usize) -> Result<()> {
        let answer = &self.answers[number % self.answers.len()];
        let row_bytes = answer.len() / self.rows;
        let expected = &answer[row * row_bytes + at..][..bytes.len()];
        if bytes != expected {
            let off = bytes.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            let word = (at + off) / 4;
            bail!(
                "wrong output: row {row} of batch {number}, word {word}, is not that of a run of one batch at a time"
            );
        }
        Ok(())
    }
}

/// Rows that have bytes, by which they are told apart.
fn with_bytes(input: &RowSpec) -> Result<&RowSpec> {
    ensure!(input.row_bytes > 0, "a row of this model's inputs has no bytes: there is nothing to copy or to measure");
    Ok(input)
}

/// Images in ordinary memory, with their answers in a batch of each size, one batch at a time.
pub struct Images {
    pixels: Vec<Vec<u8>>,
    /// Answers by image, then by batch size: the kernels of different sizes round differently.
    answers: Vec<Vec<Vec<u8>>>,
}

impl Images {
    /// Makes `count` images and runs them in batches of each of the engine's sizes.
    pub fn learn(engine: &Engine, count: usize) -> Result<Self> {
        let input = with_bytes(engine.input())?;
        let pixels: Vec<_> = (0..count).map(|number| random::batch(input, 1, number as u64 + 1)).collect();
        let mut answers = vec![Vec::new(); count];
        for &size in engine.batch_sizes() {
            for first in (0..count).step_by(size) {
                stop::check()?;
                let numbers: Vec<usize> = (first..first + size).map(|number| number % count).collect();
                let mut batch = engine.acquire()?;
                for (row, number) in batch.rows_mut().zip(&numbers) {
                    row.copy_from_slice(&pixels[*number]);
                }
                let output = batch.submit(size)?.wait()?;
                for (row, number) in numbers.into_iter().enumerate() {
                    let known: &mut Vec<Vec<u8>> = &mut answers[number];
                    if !known.iter().any(|answer| answer == output.row(row)) {
                        known.push(output.row(row).to_vec());
                    }
                }
            }
        }
        let differ = answers.windows(2).all(|pair| !pair[0].iter().any(|answer| pair[1].contains(answer)));
        ensure!(differ, "wrong output: different images have the same answer");
        Ok(Self { pixels, answers })
    }

    /// The pixels of image `number`.
    pub fn pixels(&self, number: usize) -> &[u8] {
        &self.pixels[number % self.pixels.len()]
    }

    /// All images, as rows.
    pub fn all(&self) -> &[Vec<u8>] {
        &self.pixels
    }

    /// Checks that an answer is the image's answer in a batch of some size.
    pub fn check(&self, number: usize, answer: &[u8]) -> Result<()> {
        let known = &self.answers[number % self.answers.len()];
        ensure!(
            known.iter().any(|known| known == answer),
            "wrong output: the answer to image {number} is none that it has in batches run one at a time"
        );
        Ok(())
    }
}

fn first_bytes(bytes: &[u8]) -> [u8; ID_BYTES] {
    let mut first = [0; ID_BYTES];
    let length = bytes.len().min(ID_BYTES);
    first[..length].copy_from_slice(&bytes[..length]);
    first
}
