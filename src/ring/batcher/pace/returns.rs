//! Clients that come back with their next row when they have the answer to the last one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::estimate::Estimate;

/// The batches that were answered last, and how many of their rows are not followed by another yet.
///
/// Of rows that come at random, as many come in the end as were answered, only later; then nobody waits for them, as
/// that does not pay.
pub(super) struct Returns {
    /// By batch size: from the answers until as many rows were committed.
    takes: Vec<Estimate>,
    /// Oldest first.
    answered: VecDeque<Answered>,
    /// Of them, those that are remembered.
    most: usize,
}

struct Answered {
    size: usize,
    /// Rows that nobody has followed yet.
    left: usize,
    since: Instant,
    /// Where that is not known, all are given up with the next answers.
    expected: Option<Expected>,
}

/// When clients are expected to be back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// When the last one usually is.
    pub usually: Instant,
    /// When few are later.
    pub latest: Instant,
    /// When those that are not back are given up.
    given_up: Instant,
}

impl Returns {
    /// Of so many batch sizes, and batches that may be answered at the same time.
    pub fn new(sizes: usize, most: usize) -> Self {
        Self { takes: vec![Estimate::default(); sizes], answered: VecDeque::with_capacity(most + 1), most }
    }

    /// The rows of a batch were answered.
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

    /// A row was committed. If all of the oldest answers are followed now, or given up: of which size they were, and how long
    /// that took.
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

    /// Rows that are expected to come, and when: those that few are later than by `now` are not expected any more.
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

    /// Rounds of 1 ms: 4 rows are answered, so many come 100 us later.
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
