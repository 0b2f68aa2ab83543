//! Histograms of a value's numbers, and the largest number that its bytes should stand for.

/// How the largest number that a byte stands for is chosen. Larger numbers are clipped to it.
///
/// ```
/// use trefoil::CalibrationMethod;
/// assert_eq!(CalibrationMethod::default(), CalibrationMethod::Mse);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum CalibrationMethod {
    /// The largest number that was seen.
    Max,
    /// The number that this percentage of the numbers do not exceed.
    Percentile(f64),
    /// The number for which the distribution of the rounded numbers has the least relative entropy to the original one.
    Entropy,
    /// The number for which the sum of squared errors is the smallest.
    #[default]
    Mse,
}

/// Counts of magnitudes. The range doubles when a number is beyond it, so that one pass sees them all. Bins are as wide as a
/// power of two, so that the counts are the same in whichever order, and however many histograms, numbers are counted.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    /// The width of a bin, a power of two; 0 while only zeros were seen.
    width: f32,
    largest: f32,
}

/// The number of bins. At least half of them are in use.
const BINS: usize = 4096;

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; BINS], width: 0.0, largest: 0.0 }
    }

    /// Counts some numbers, without those that are infinite or NaN.
    pub fn add(&mut self, values: &[f32]) {
        let largest = values.iter().map(|value| value.abs()).filter(|value| value.is_finite()).fold(0.0, f32::max);
        self.reach(largest);
        let scale = if self.width > 0.0 { 1.0 / self.width } else { 0.0 };
        for value in values.iter().filter(|value| value.is_finite()) {
            self.counts[((value.abs() * scale) as usize).min(BINS - 1)] += 1;
        }
    }

    /// Counts what another histogram has counted.
    pub fn merge(&mut self, mut other: Self) {
        let largest = self.largest.max(other.largest);
        [&mut *self, &mut other].into_iter().for_each(|of| of.reach(largest));
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }

    /// Widens the range until `largest` is in it.
    fn reach(&mut self, largest: f32) {
        self.largest = self.largest.max(largest);
        if self.width == 0.0 && largest > 0.0 {
            self.width = power_of_two_above(largest / BINS as f32);
        }
        while self.width > 0.0 && largest >= self.width * BINS as f32 {
            for bin in 0..BINS / 2 {
                self.counts[bin] = self.counts[2 * bin] + self.counts[2 * bin + 1];
            }
            self.counts[BINS / 2..].fill(0);
            self.width *= 2.0;
        }
    }

    /// The largest number that bytes of `steps` steps should stand for; 0 if only zeros were seen.
    pub fn limit(&self, method: CalibrationMethod, steps: usize) -> f32 {
        let bins = match method {
            CalibrationMethod::Max => BINS,
            CalibrationMethod::Percentile(percent) => self.percentile(percent),
            CalibrationMethod::Entropy => self.entropy(steps),
            CalibrationMethod::Mse => self.squared_error(steps),
        };
        (bins as f32 * self.width).min(self.largest)
    }

    /// The number of bins up to the last one with a count.
    fn used(&self) -> usize {
        self.counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1)
    }

    fn percentile(&self, percent: f64) -> usize {
        let all: u64 = self.counts.iter().sum();
        let mut above = (all as f64 * (1.0 - percent / 100.0)) as u64;
        let mut bins = self.used();
        while bins > 1 && self.counts[bins - 1] <= above {
            above -= self.counts[bins - 1];
            bins -= 1;
        }
        bins
    }

    /// The number of bins with the least sum of squared errors. Within the range, the squared error of rounding is a
    /// twelfth of a squared step; beyond it, the error is the distance to the range.
    fn squared_error(&self, steps: usize) -> usize {
        let error = |bins: usize| {
            let step = bins as f64 / steps as f64;
            let of = |(bin, &count): (usize, &u64)| {
                let beyond = (bin as f64 + 0.5 - bins as f64).max(0.0);
                count as f64 * if beyond > 0.0 { beyond * beyond } else { step * step / 12.0 }
            };
            self.counts.iter().enumerate().skip(1).map(of).sum::<f64>() // the first has zeros, which are exact
        };
        self.best(1, error)
    }

    /// The number of bins with the least relative entropy. Numbers beyond the range count in its last bin; rounding
    /// makes all numbers of a step equally frequent.
    fn entropy(&self, steps: usize) -> usize {
        let divergence = |bins: usize| {
            let beyond: u64 = self.counts[bins..].iter().sum();
            let all: u64 = self.counts[1..].iter().sum();
            let mut sum = 0.0;
            for step in 0..steps {
                let [first, last] = [step, step + 1].map(|step| (step * bins / steps).max(1));
                let inside = &self.counts[first..last.max(first)];
                let kept = inside.iter().sum::<u64>() as f64 / inside.iter().filter(|&&count| count > 0).count() as f64;
                for (bin, &count) in (first..).zip(inside).filter(|&(_, &count)| count > 0) {
                    let count = count + if bin + 1 == bins { beyond } else { 0 };
                    sum += count as f64 * (count as f64 / kept).ln();
                }
            }
            // If the last bin is empty, no step has the numbers beyond the range.
            let lost = if self.counts[bins - 1] == 0 { beyond as f64 * (all.max(1) as f64).ln() } else { 0.0 };
            sum + lost
        };
        self.best(steps, divergence) // a bin for each step
    }

    /// The number of bins, `least` or more, with the least error.
    fn best(&self, least: usize, error: impl Fn(usize) -> f64) -> usize {
        let used = self.used();
        let errors = (least.min(used)..=used).filter(|bins| *bins > 0).map(|bins| (bins, error(bins)));
        errors.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(bins, _)| bins)
    }
}

/// The least power of two that is above a positive number.
fn power_of_two_above(number: f32) -> f32 {
    const EXPONENT: u32 = 0xff << 23;
    f32::from_bits((number.max(f32::MIN_POSITIVE).to_bits() & EXPONENT) + (1 << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from 0 to 1, evenly, and a few far beyond.
    fn with_outliers(count: usize) -> Histogram {
        let mut histogram = Histogram::new();
        let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 100_000.0).collect();
        histogram.add(&values);
        histogram.add(&vec![-8.0; count]);
        histogram
    }

    #[test]
    fn a_range_that_grows_counts_the_same() {
        let histogram = with_outliers(3);
        assert_eq!((histogram.counts.iter().sum::<u64>(), histogram.largest), (100_003, 8.0));
        // The range ends at 16.
        let below: u64 = histogram.counts[..BINS / 32].iter().sum();
        assert!((49_000..51_000).contains(&below), "{below}");
        let mut zeros = Histogram::new();
        zeros.add(&[0.0, f32::NAN, f32::INFINITY]);
        assert_eq!((zeros.limit(CalibrationMethod::Mse, 255), zeros.counts[0]), (0.0, 1));
    }

    #[test]
    fn counts_are_the_same_in_any_order() {
        let numbers: Vec<f32> = (0..4_000).map(|i| ((i * 7_919 % 4_001) as f32 * 0.01).exp2() * 1e-7).collect();
        let of = |numbers: &[f32]| {
            let mut histogram = Histogram::new();
            numbers.chunks(7).for_each(|some| histogram.add(some));
            histogram
        };
        let whole = of(&numbers);
        for at in [0, 1, 1_999, 4_000] {
            let (front, behind) = numbers.split_at(at);
            let mut merged = of(behind);
            merged.merge(of(front));
            assert_eq!(
                (merged.counts, merged.width, merged.largest),
                (whole.counts.clone(), whole.width, whole.largest)
            );
        }
    }

    #[test]
    fn methods_differ_in_what_they_make_of_outliers() {
        let limit = |method| with_outliers(3).limit(method, 255);
        assert_eq!(limit(CalibrationMethod::Max), 8.0);
        assert!((0.9..1.1).contains(&limit(CalibrationMethod::Percentile(99.99))));
        // By hand: 1e5 * T^2 / (12 * 255^2) + 3 * (8 - T)^2 is least at T = 3 * 8 / (3 + 0.128).
        let best = 24.0 / (3.0 + 1e5 / (12.0 * 255.0 * 255.0));
        assert!((limit(CalibrationMethod::Mse) - best).abs() < 0.02, "{}", limit(CalibrationMethod::Mse));
        let even = with_outliers(0);
        assert!((0.99..=even.largest).contains(&even.limit(CalibrationMethod::Mse, 255)));
    }

    /// The larger the numbers, the rarer they are. If few steps covered them all, frequent numbers would become equal.
    #[test]
    fn entropy_keeps_the_frequent_numbers_apart() {
        let mut histogram = Histogram::new();
        for size in 0..200_u32 {
            let count = (100_000.0 * (-0.1 * f64::from(size)).exp()) as usize;
            histogram.add(&vec![size as f32 + 0.5; count]);
        }
        let [few, many] = [15, 255].map(|steps| histogram.limit(CalibrationMethod::Entropy, steps));
        assert!(few < histogram.largest && few <= many, "{few} {many}");
    }
}
