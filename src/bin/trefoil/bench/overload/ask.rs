//! The requests of a client, each at random.

use std::time::Duration;

use serde::Serialize;

use crate::bench::arrivals::Arrivals;
use crate::random::Random;

/// Parts of the requests.
const WITH_DEADLINE: f64 = 0.5;
const GIVEN_UP: f64 = 0.1;
const OF_HIGH_PRIORITY: f64 = 0.1;
/// The longest deadline and the longest patience of a client that gives up, in times of a full batch. A batcher that is
/// full lets a row wait for about four of them.
const LONGEST_DEADLINE: f64 = 12.0;
const LONGEST_PATIENCE: f64 = 8.0;

/// What clients ask for: all of them are equal.
#[derive(Serialize, Clone, Copy)]
pub struct Mix {
    /// The most rows of a request.
    pub most_rows: usize,
    /// The time of a full batch.
    pub batch_seconds: f64,
}

impl Mix {
    /// The mean number of rows of a request.
    pub fn mean_rows(&self) -> f64 {
        (1 + self.most_rows) as f64 / 2.0
    }
}

/// A request before it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    pub rows: usize,
    /// The number of the first row's image.
    pub image: usize,
    pub deadline: Option<Duration>,
    /// How long after the request the client drops the tickets that are not answered.
    pub given_up: Option<Duration>,
    pub is_high: bool,
}

/// A client: its seed decides what it asks for, and when.
pub struct Client {
    pub number: usize,
    random: Random,
    arrivals: Arrivals,
}

impl Client {
    /// A client that makes `rate` requests a second, in the mean.
    pub fn new(seed: u64, number: usize, rate: f64) -> Self {
        let mut seeds = Random::new(seed.wrapping_mul(1 << 16).wrapping_add(number as u64));
        let [random, arrivals] = [seeds.next(), seeds.next()].map(Random::new);
        Self { number, random, arrivals: Arrivals::new(arrivals, rate) }
    }

    /// When its next request is due, in seconds since the start.
    pub fn next_due(&mut self) -> f64 {
        self.arrivals.next().unwrap_or(f64::INFINITY)
    }

    pub fn ask(&mut self, mix: &Mix) -> Ask {
        let mut upto = |most: f64| Duration::from_secs_f64(self.random.positive() * most * mix.batch_seconds);
        let (deadline, given_up) = (upto(LONGEST_DEADLINE), upto(LONGEST_PATIENCE));
        let mut one_of = |part: f64| self.random.positive() <= part;
        let (deadline, given_up) = (one_of(WITH_DEADLINE).then_some(deadline), one_of(GIVEN_UP).then_some(given_up));
        let is_high = one_of(OF_HIGH_PRIORITY);
        let [rows, image] = [mix.most_rows as u64, 1 << 16].map(|most| (self.random.next() % most) as usize);
        Ask { rows: 1 + rows, image, deadline, given_up, is_high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_equal_and_do_not_ask_the_same() {
        let mix = Mix { most_rows: 4, batch_seconds: 0.01 };
        let asks = |number| {
            let mut client = Client::new(1, number, 1.0);
            (0..4_000).map(|_| client.ask(&mix)).collect::<Vec<_>>()
        };
        let (some, others) = (asks(1), asks(2));
        assert!(some == asks(1) && some != others);
        for asks in [some, others] {
            let part = |is: fn(&Ask) -> bool| asks.iter().filter(|ask| is(ask)).count() as f64 / asks.len() as f64;
            let parts =
                [part(|ask| ask.deadline.is_some()), part(|ask| ask.given_up.is_some()), part(|ask| ask.is_high)];
            for (part, meant) in parts.into_iter().zip([WITH_DEADLINE, GIVEN_UP, OF_HIGH_PRIORITY]) {
                assert!((part - meant).abs() < 0.03, "{part}, not {meant}");
            }
            let rows = asks.iter().map(|ask| ask.rows).sum::<usize>() as f64 / asks.len() as f64;
            assert!((rows - mix.mean_rows()).abs() < 0.1, "{rows}");
            let longest = Duration::from_secs_f64(LONGEST_DEADLINE * mix.batch_seconds);
            assert!(asks.iter().all(|ask| (1..=4).contains(&ask.rows) && ask.deadline <= Some(longest)));
        }
    }
}
