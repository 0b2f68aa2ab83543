//! Threads that load an engine, and figures from the times of the answers.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use trefoil::{Engine, Output, Ticket};

use super::sources::Sources;
use crate::threads::run_all;

/// Runs `work` on `threads` threads; when all have ended, returns the first error.
pub fn on_threads(threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    run_all(threads, "trefoil-load", work)
}

/// The ring alone: producers submit batches from page-locked memory, each several batches ahead.
pub struct RingLoad<'a> {
    pub engine: &'a Engine,
    pub sources: &'a Sources,
    pub rows: usize,
    pub producers: usize,
    /// Submissions that each producer leaves unanswered while it takes the next batch.
    pub ahead: usize,
}

impl RingLoad<'_> {
    /// Number of answers that do not count at the start, while the ring fills, and at the end, while it runs empty.
    pub fn under_way(&self) -> usize {
        self.engine.slots() + (self.ahead + 1) * self.producers
    }

    /// Seconds of a batch end to end, over `batches` batches in the steady state. A part of every answer is checked
    /// while the clock runs; each producer's last answer is checked completely afterwards.
    pub fn seconds_a_batch(&self, batches: usize) -> Result<f64> {
        let total = batches + 2 * self.under_way() + 1;
        let (next, answered) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(total)));
        let start = Instant::now();
        on_threads(self.producers, |_| {
            let mut unanswered = VecDeque::<(usize, Ticket)>::with_capacity(self.ahead + 1);
            let mut kept: Option<(usize, Output)> = None;
            let wait = |(number, ticket): (usize, Ticket), turn: usize| -> Result<(usize, Output)> {
                let output = ticket.wait()?;
                answered.lock().map_err(|_| anyhow!("another thread panicked"))?.push(start.elapsed().as_secs_f64());
                self.sources.check_some(number, &output, turn)?;
                Ok((number, output))
            };
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= total {
                    break;
                }
                let mut batch = self.engine.acquire()?;
                let number = self.sources.number(&mut batch)?;
                unanswered.push_back((number, batch.submit(self.rows)?));
                if unanswered.len() > self.ahead
                    && let Some(oldest) = unanswered.pop_front()
                {
                    drop(wait(oldest, turn)?);
                }
            }
            for ticket in unanswered {
                kept = Some(wait(ticket, total)?);
            }
            kept.map_or(Ok(()), |(number, output)| self.sources.check_all(number, &output))
        })?;
        let answered = answered.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
        steady(answered, self.under_way())
    }
}

/// Mean seconds from one answer to the next, without the first and last `under_way` answers.
pub fn steady(mut answered: Vec<f64>, under_way: usize) -> Result<f64> {
    answered.sort_by(f64::total_cmp);
    let end = answered.len().saturating_sub(under_way);
    ensure!(end > under_way + 1, "only {} batches were answered: measure longer", answered.len());
    let took = answered[end - 1] - answered[under_way];
    ensure!(took > 0.0, "the batches took no measurable time: measure larger ones");
    Ok(took / (end - 1 - under_way) as f64)
}

/// The median; of an even number of values, the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    crate::report::Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// The smallest value that at least this part of the values does not exceed; `sorted` ascends.
pub fn percentile(sorted: &[f32], part: f64) -> f64 {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.max(1) - 1).map_or(f64::NAN, |value| f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_do_not_count() {
        let answered = [[0.0, 5.0].as_slice(), &[6.0, 7.0, 8.0, 9.0], &[9.1, 9.2]].concat();
        assert_eq!(steady(answered.clone(), 2).unwrap(), 1.0);
        assert!(steady(answered, 4).is_err());
    }

    #[test]
    fn percentiles_are_values() {
        let sorted: Vec<f32> = (1..=200).map(|i| i as f32).collect();
        assert_eq!([0.5, 0.99, 1.0, 0.0].map(|part| percentile(&sorted, part)), [100.0, 198.0, 200.0, 1.0]);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
