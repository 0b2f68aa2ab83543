//! Random arrivals.

use crate::random::Random;

/// The times of a Poisson process, in seconds since its start: an iterator without end.
pub struct Arrivals {
    random: Random,
    rate: f64,
    at: f64,
}

impl Arrivals {
    /// Arrivals of which `rate` are due in a second, in the mean.
    pub fn new(random: Random, rate: f64) -> Self {
        Self { random, rate, at: 0.0 }
    }
}

impl Iterator for Arrivals {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        self.at -= self.random.positive().ln() / self.rate;
        Some(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_due_as_the_rate_says() {
        let due = Arrivals::new(Random::new(1), 50.0).take_while(|at| *at < 200.0).count();
        assert!((9_700..10_300).contains(&due), "{due}"); // 10,000 in the mean, with a deviation of 100
    }
}
