//! Learns when clients come back with their next row after the answer to the last one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::estimate::Estimate;

/// The batches that were answered last, each with the number of its rows that no new row has followed yet.
///
/// If rows come at random, as many come in the end as were answered, only later. Then no batch waits for them, because
/// that does not pay.
pub(super) struct Returns {
    /// For each batch size, the time from the answers until the same number of rows was committed.
    takes: Vec<Estimate>,
    /// The answered batches, oldest first.
    answered: VecDeque<Answered>,
    /// The most answered batches that are remembered.
    most: usize,
}

struct Answered {
    size: usize,
    /// The number of rows that no new row has followed yet.
    left: usize,
    since: Instant,
    /// The times at which clients are expected back. If `None`, the entry is dropped at the next answers.
    expected: Option<Expected>,
}

/// The times at which clients are expected back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The time at which the last client is usually back.
    pub usually: Instant,
    /// The time after which few clients come back.
    pub latest: Instant,
    /// The time at which clients that are not back are given up.
    given_up: Instant,
}

impl Returns {
    /// An empty record for `sizes` batch sizes; `most` batches may be answered at the same time.
    pub fn new(sizes: usize, most: usize) -> Self {
        Self { takes: vec![Estimate::default(); sizes], answered: VecDeque::with_capacity(most + 1), most }
    }

    /// Records that the rows of a batch were answered.
    pub fn answered(&mut self, size: usize, rows: usize, now: Instant) {
        let takes = &self.takes[size];
        let expected = takes.high().zip(takes.mean()).map(|(high, mean)| Expected {
            usually: now + mean,
            latest: now + 2 * high - mean,
            given_up: now + 2 * high,
        });
        self.answered.retain(|before| before.expected.is_some());
        self.answered.push_back(Answered { size, left: rows, since: now, expected });
        if self.answered.len() > self.most {
            self.answered.pop_front();
        }
    }

    /// Records that a row was committed. If the oldest batch's rows are now all followed, or given up, returns the
    /// batch's size and the time that this took.
    pub fn came(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let first = self.answered.front_mut()?;
        let late = first.expected.map(|expected| expected.given_up).filter(|&end| end < now);
        first.left -= usize::from(late.is_none());
        if late.is_none() && first.left > 0 {
            return None;
        }
        let Answered { size, since, .. } = self.answered.pop_front()?;
        let took = late.unwrap_or(now).saturating_duration_since(since);
        self.takes[size].add(took);
        if late.is_some() {
            self.came(now);
        }
        Some((size, took))
    }

    /// The numbers of expected rows, with their times. Rows are no longer expected when few would come later than
    /// `now`.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = (usize, Expected)> {
        let soon = |answered: &Answered| Some((answered.left, answered.expected?));
        self.answered.iter().filter_map(soon).filter(move |(_, expected)| expected.latest > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn due(returns: &Returns, now: Instant) -> Vec<(usize, Duration)> {
        returns.due(now).map(|(rows, expected)| (rows, expected.latest - now)).collect()
    }

    #[test]
    fn clients_are_expected_when_as_many_came_back_before() {
        let (mut returns, mut at) = (Returns::new(1, 2), Instant::now());
        returns.answered(0, 4, at);
        assert_eq!(due(&returns, at), [], "nothing is known");
        for _ in 0..50 {
            for row in 0..4 {
                returns.came(at + US(60 + 10 * row));
            }
            at += US(1_000);
            returns.answered(0, 4, at);
        }
        assert_eq!(returns.takes[0].mean(), Some(US(90)));
        assert_eq!(due(&returns, at), [(4, US(90))]);
        returns.came(at + US(60));
        assert_eq!(due(&returns, at + US(70)), [(3, US(20))]);
        assert_eq!(due(&returns, at + US(91)), [], "three are late");
    }

    /// Plays rounds of 1 ms: 4 rows are answered, and this many come 100 us later.
    fn rounds(returns: &mut Returns, mut at: Instant, rows: &[usize]) -> Instant {
        for &rows in rows {
            returns.answered(0, 4, at);
            for _ in 0..rows {
                returns.came(at + US(100));
            }
            at += US(1_000);
        }
        at
    }

    #[test]
    fn who_does_not_come_back_is_given_up() {
        let mut returns = Returns::new(1, 2);
        let at = rounds(&mut returns, Instant::now(), &[4; 50]);
        let at = rounds(&mut returns, at, &[3, 4, 4]);
        assert!(returns.takes[0].mean().unwrap() < US(120), "{:?}: one is gone", returns.takes[0].mean());
        rounds(&mut returns, at, &[1; 50]);
        assert!(returns.takes[0].mean().unwrap() > US(200), "{:?}: few come, and late", returns.takes[0].mean());
    }
}
