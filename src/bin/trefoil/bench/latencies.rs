//! Latencies of any number of answers, in memory of one size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of each power of two: a percentile is too long by at most a 32nd.
const PARTS: u64 = 32;
const BUCKETS: usize = (64 * PARTS) as usize;

/// Counts of answers by their latency; many threads may add to them.
pub struct Latencies(Vec<AtomicU64>);

/// Numbers of answers in each bucket of latencies.
pub struct Counted(Vec<u64>);

impl Latencies {
    pub fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn add(&self, latency: Duration) {
        self.0[bucket(latency)].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the answers that were added since the last call.
    pub fn take(&self) -> Counted {
        Counted(self.0.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect())
    }
}

impl Counted {
    pub fn answers(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Seconds within which at least this part of the answers came; 0 without answers.
    pub fn percentile(&self, part: f64) -> f64 {
        let wanted = ((self.answers() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0.0, upper)
    }
}

fn bucket(latency: Duration) -> usize {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(PARTS);
    let log = u64::from(nanos.ilog2());
    (log * PARTS + (nanos >> (log - u64::from(PARTS.ilog2()))) % PARTS) as usize
}

/// The upper bound of a bucket, in seconds.
fn upper(bucket: usize) -> f64 {
    let (log, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    (log as f64).exp2() * (PARTS + part + 1) as f64 / PARTS as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_a_little_above_what_was_added() {
        let latencies = Latencies::new();
        (1..=1000).for_each(|ms| latencies.add(Duration::from_millis(ms)));
        let counted = latencies.take();
        assert_eq!(counted.answers(), 1000);
        for (part, exact) in [(0.001, 1e-3), (0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let found = counted.percentile(part);
            assert!(found > exact && found <= exact * (1.0 + 1.0 / PARTS as f64) + 1e-9, "{part}: {found}");
        }
        assert_eq!((latencies.take().answers(), latencies.take().percentile(0.5)), (0, 0.0));
        latencies.add(Duration::ZERO);
        latencies.add(Duration::MAX);
        assert_eq!(latencies.take().answers(), 2);
    }
}
