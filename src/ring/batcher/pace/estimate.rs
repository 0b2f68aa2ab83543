//! An estimate of a time, from recent measurements.

use std::time::Duration;

/// The mean of measurements, in which recent ones count most, and their mean deviation; `None` before the first one.
#[derive(Clone, Copy, Default)]
pub(super) struct Estimate(Option<(Duration, Duration)>);

impl Estimate {
    pub fn add(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or((value, Duration::ZERO), |(mean, deviation)| {
            ((mean * 7 + value) / 8, (deviation * 7 + value.abs_diff(mean)) / 8)
        }));
    }

    pub fn mean(&self) -> Option<Duration> {
        self.0.map(|(mean, _)| mean)
    }

    /// A time that few measurements are below.
    pub fn low(&self) -> Option<Duration> {
        self.0.map(|(mean, deviation)| mean.saturating_sub(deviation))
    }

    /// A time that few measurements are above.
    pub fn high(&self) -> Option<Duration> {
        self.0.map(|(mean, deviation)| mean + deviation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_follows_and_tells_the_usual_spread() {
        let us = Duration::from_micros;
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean(), None);
        (0..200).for_each(|number| estimate.add(us(if number % 2 == 0 { 90 } else { 110 })));
        let near = |found: Option<Duration>, wanted| found.unwrap().abs_diff(us(wanted)) < us(3);
        assert!(near(estimate.mean(), 100) && near(estimate.low(), 90) && near(estimate.high(), 110));
        (0..30).for_each(|_| estimate.add(us(400)));
        assert!(estimate.mean() > Some(us(390)) && estimate.low() > Some(us(370)));
    }
}
