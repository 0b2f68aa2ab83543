//! Runs many producers on one engine for a while, and derives rates from the times of answers.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use trefoil::{Engine, Output, Ticket};

use crate::threads::run_all;
use crate::{report, stop};

/// Threads that fill batches, submit them and wait.
pub struct Load<'a> {
    pub engine: &'a Engine,
    /// Rows that are copied into batches, over and over.
    pub rows: &'a [Vec<u8>],
    pub batch: usize,
    pub producers: usize,
    pub limit: Duration,
}

/// The times of answered batches, in seconds from the start, ascending.
#[derive(Debug)]
pub struct Run {
    answered: Vec<f64>,
    /// Batches in flight at once: this many answers at the start are not in the steady state.
    under_way: usize,
}

impl Load<'_> {
    /// Runs until the limit, and then waits for all batches in flight. Every probability is checked.
    pub fn run(&self, on_batch: impl Fn() + Sync) -> Result<Run> {
        let (start, answered) = (Instant::now(), Mutex::new(Vec::new()));
        let on_output = |output: &Output| -> Result<()> {
            answered.lock().map_err(|_| anyhow!("another producer panicked"))?.push(start.elapsed().as_secs_f64());
            on_batch();
            (0..output.rows()).try_for_each(|row| {
                let checked = report::check_probabilities(output.values(row));
                checked.map_err(|what| anyhow!("wrong output in row {row} of a batch: {what}"))
            })
        };
        run_all(self.producers, "trefoil-producer", |index| self.produce(index, start, on_output))?;
        let mut answered = answered.into_inner().map_err(|_| anyhow!("a producer panicked"))?;
        answered.sort_by(f64::total_cmp);
        Ok(Run { answered, under_way: self.engine.slots() + self.producers })
    }

    /// Runs one producer: it fills a batch while the one before it is computed.
    fn produce(&self, index: usize, start: Instant, on_output: impl Fn(&Output) -> Result<()>) -> Result<()> {
        let mut sources = self.rows.iter().cycle().skip(index);
        let mut last: Option<Ticket> = None;
        while start.elapsed() < self.limit && !stop::requested() {
            let mut batch = self.engine.acquire()?;
            for (row, source) in batch.rows_mut().zip(sources.by_ref()).take(self.batch) {
                row.copy_from_slice(source);
            }
            let ticket = batch.submit(self.batch)?;
            if let Some(before) = last.replace(ticket) {
                on_output(&before.wait()?)?;
            }
        }
        last.map_or(Ok(()), |ticket| on_output(&ticket.wait()?))
    }
}

impl Run {
    /// Number of answered batches.
    pub fn batches(&self) -> usize {
        self.answered.len()
    }

    /// Seconds of a batch in the steady state, from the answer after the first ones to the last; `None` with too few
    /// answers.
    pub fn batch_seconds(&self) -> Option<f64> {
        let steady = self.steady();
        let (first, last) = (steady.first()?, steady.last()?);
        (steady.len() > 1).then(|| (last - first) / (steady.len() - 1) as f64)
    }

    /// Seconds of a batch in each of up to twenty groups of consecutive batches, and the size of a group. A producer
    /// sees an answer only when it looks, so that the time between two answers says little.
    pub fn grouped(&self) -> (Vec<f64>, usize) {
        const GROUPS: usize = 20;
        let steady = self.steady();
        let group = (steady.len().saturating_sub(1) / GROUPS).max(1);
        let marks: Vec<f64> = steady.iter().step_by(group).copied().collect();
        (marks.windows(2).map(|pair| (pair[1] - pair[0]) / group as f64).collect(), group)
    }

    /// The times without the first ones, or all times if too few would be left.
    fn steady(&self) -> Vec<f64> {
        match self.answered.get(self.under_way..) {
            Some(steady) if steady.len() > self.under_way => steady.to_vec(),
            _ => [0.0].iter().chain(&self.answered).copied().collect(),
        }
    }
}

/// How much of the copies' time was hidden under compute, from 0 to 1: 1 − (T − compute) / (copy-in + copy-out).
///
/// T is the time of one batch end to end with everything overlapping; the others are the times of one batch of each
/// stage alone. Without overlap T is the sum of all three, which gives 0; where compute never waits, T is the compute
/// alone, which gives 1. It is an estimate from four separate runs: whatever else makes T longer, such as slow
/// producers or gaps between launches, counts as copies not hidden, and copies that take longer than the compute
/// cannot be hidden wholly. A profiler's timeline is the proof.
pub fn hidden_part(batch: f64, copy_in: f64, compute: f64, copy_out: f64) -> f64 {
    (1.0 - (batch - compute) / (copy_in + copy_out)).clamp(0.0, 1.0)
}

/// Rows of random bytes, the same in each run.
pub fn random_rows(count: usize, row_bytes: usize) -> Vec<Vec<u8>> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| (0..row_bytes).map(|_| next()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_part_has_the_right_ends() {
        assert_eq!(hidden_part(10.0, 2.0, 10.0, 1.0), 1.0);
        assert_eq!(hidden_part(13.0, 2.0, 10.0, 1.0), 0.0);
        assert_eq!(hidden_part(9.0, 2.0, 10.0, 1.0), 1.0);
        assert_eq!(hidden_part(50.0, 2.0, 10.0, 1.0), 0.0);
        assert!((hidden_part(10.3, 2.0, 10.0, 1.0) - 0.9).abs() < 1e-9);
    }

    #[test]
    fn the_first_batches_do_not_count() {
        // Two batches are in flight; the first answers come late, then one each half second.
        let answered: Vec<f64> = (0..10).map(|i| 5.0 + 0.5 * f64::from(i)).collect();
        let run = Run { answered, under_way: 2 };
        assert_eq!(run.batch_seconds(), Some(0.5));
        assert_eq!(run.grouped(), (vec![0.5; 7], 1));
        let few = Run { answered: vec![1.0, 2.0], under_way: 2 };
        assert_eq!(few.batch_seconds(), Some(1.0));
        let none = Run { answered: vec![], under_way: 2 };
        assert_eq!(none.batch_seconds(), None);
    }

    #[test]
    fn random_rows_differ_and_are_not_zeros() {
        let rows = random_rows(3, 1000);
        assert!(rows[0] != rows[1] && rows.iter().all(|row| row.iter().filter(|&&b| b == 0).count() < 50));
    }
}
