//! The counts of a batcher.

use std::time::Duration;

/// Counts of a [`Batcher`](crate::Batcher)'s work since it was built.
///
/// ```no_run
/// # fn f(batcher: trefoil::Batcher) {
/// let stats = batcher.stats();
/// println!("{} rows in {} batches, p99 in the queue {:?}", stats.rows(), stats.batches(), stats.queue_time(0.99));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatcherStats {
    /// The number of batches by their rows: `batch_sizes[n]` batches had n rows.
    pub batch_sizes: Vec<u64>,
    /// Rows that were refused because no row was free, at once or after the limit.
    pub rejected: u64,
    /// Rows that were answered with [`Error::Deadline`](crate::Error::Deadline) and not uploaded.
    pub expired: u64,
    /// The number of upload copies: one for each run of neighbouring rows. The host moves no row to make runs longer.
    pub runs: u64,
    /// The numbers of rows by the time from commit to upload, see [`bin`].
    queue_times: Vec<u64>,
}

impl BatcherStats {
    /// Batches submitted. One whose rows got an error because its submission failed or timed out does not count.
    pub fn batches(&self) -> u64 {
        self.batch_sizes.iter().sum()
    }

    /// Rows submitted in all batches.
    pub fn rows(&self) -> u64 {
        self.batch_sizes.iter().zip(0..).map(|(count, rows)| count * rows).sum()
    }

    /// A quantile of the time between commit and upload: `fraction` (0 to 1) of the rows took no longer. The result is
    /// at most a quarter too large; it is zero before the first batch.
    pub fn queue_time(&self, fraction: f64) -> Duration {
        let total: u64 = self.queue_times.iter().sum();
        let wanted = ((total as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bin, count) in self.queue_times.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(bin);
            }
        }
        Duration::ZERO
    }
}

/// The counters behind the statistics, of fixed size.
#[derive(Clone)]
pub(super) struct Counters {
    pub rejected: u64,
    pub expired: u64,
    pub runs: u64,
    batch_sizes: Vec<u64>,
    queue_times: Vec<u64>,
}

impl Counters {
    pub fn new(capacity: usize) -> Self {
        Self { rejected: 0, expired: 0, runs: 0, batch_sizes: vec![0; capacity + 1], queue_times: vec![0; BINS] }
    }

    /// Counts a batch that left, with the waiting times of its rows.
    pub fn left(&mut self, waited: impl ExactSizeIterator<Item = Duration>, runs: usize) {
        self.batch_sizes[waited.len()] += 1;
        self.runs += runs as u64;
        waited.for_each(|time| self.queue_times[bin(time)] += 1);
    }

    /// Adds the counts of another bucket.
    pub fn add(&mut self, other: &Self) {
        let Self { rejected, expired, runs, batch_sizes, queue_times } = self;
        *rejected += other.rejected;
        *expired += other.expired;
        *runs += other.runs;
        batch_sizes.resize(batch_sizes.len().max(other.batch_sizes.len()), 0);
        for (all, more) in [(batch_sizes, &other.batch_sizes), (queue_times, &other.queue_times)] {
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
    }

    pub fn stats(&self) -> BatcherStats {
        BatcherStats {
            batch_sizes: self.batch_sizes.clone(),
            rejected: self.rejected,
            expired: self.expired,
            runs: self.runs,
            queue_times: self.queue_times.clone(),
        }
    }
}

/// The number of bins: four for each power of two of nanoseconds.
const BINS: usize = 256;

/// The bin of a time, by its leading bit and the two bits below.
fn bin(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(4);
    let log = nanos.ilog2() as usize;
    4 * log + (nanos >> (log - 2)) as usize % 4
}

/// The least time above bin `index`.
fn upper(index: usize) -> Duration {
    let (log, quarter) = (index / 4, index as u128 % 4);
    Duration::from_nanos(u64::try_from(((5 + quarter) << log) / 4).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_what_is_below_their_bound() {
        for nanos in (4..5000).chain([u64::MAX / 3, u64::MAX - 1]) {
            let index = bin(Duration::from_nanos(nanos));
            assert!(upper(index) > Duration::from_nanos(nanos), "{nanos}");
            assert!(upper(index).as_nanos() * 4 <= u128::from(nanos) * 5 + 4, "{nanos}");
        }
        assert!(bin(Duration::MAX) < BINS);
    }

    #[test]
    fn percentiles_are_of_rows() {
        let mut counters = Counters::new(4);
        let ms = Duration::from_millis;
        counters.left([ms(1), ms(1), ms(1), ms(100)].into_iter(), 2);
        let stats = counters.stats();
        assert_eq!((stats.batches(), stats.rows(), stats.runs), (1, 4, 2));
        assert!(stats.queue_time(0.75) < ms(2), "{:?}", stats.queue_time(0.75));
        assert!(stats.queue_time(0.76) >= ms(100));
        assert_eq!(Counters::new(1).stats().queue_time(0.5), Duration::ZERO);
        let mut all = Counters::new(1);
        all.left([ms(3)].into_iter(), 1);
        all.add(&counters);
        let stats = all.stats();
        assert_eq!((&stats.batch_sizes[..], stats.rows(), stats.runs), (&[0, 1, 0, 0, 1][..], 5, 3));
        assert!(stats.queue_time(0.79) < ms(4) && stats.queue_time(0.81) >= ms(100));
    }
}
