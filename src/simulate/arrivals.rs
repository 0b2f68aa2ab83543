//! The arrival times of requests.

use super::random::Random;
use super::{Arrival, SimSpec};
use crate::device::sim::{Picos, picos};

/// A request for a batch: its number, and the time at which it came.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub number: usize,
    pub asked: Picos,
}

/// Hands out the requests, in order.
pub(super) struct Arrivals<'a> {
    spec: &'a SimSpec,
    /// The number of the next request.
    number: usize,
    /// The time of the next request in seconds; in a closed loop, requests come when a producer is free.
    at: f64,
    random: Random,
}

impl<'a> Arrivals<'a> {
    pub fn new(spec: &'a SimSpec) -> Self {
        let seed = if let Arrival::Poisson { seed, .. } = spec.arrival { seed } else { 0 };
        let mut this = Self { spec, number: 0, at: 0.0, random: Random::new(seed) };
        this.at = this.distance();
        this
    }

    /// The time of the next request, if it lies in the future.
    pub fn next(&self, now: Picos) -> Option<Picos> {
        let next = self.peek(now).filter(|request| request.asked > now);
        next.map(|request| request.asked)
    }

    /// Whether a request has come that was not taken.
    pub fn is_there(&self, now: Picos) -> bool {
        self.peek(now).is_some_and(|request| request.asked <= now)
    }

    /// Takes the next request, if it has come.
    pub fn take(&mut self, now: Picos) -> Option<Request> {
        let request = self.peek(now).filter(|request| request.asked <= now)?;
        self.number += 1;
        self.at += self.distance();
        Some(request)
    }

    fn peek(&self, now: Picos) -> Option<Request> {
        let asked = if self.spec.arrival == Arrival::Closed { now } else { picos(self.at) };
        (self.number < self.spec.batches).then_some(Request { number: self.number, asked })
    }

    /// The time from the previous request to the next one, in seconds.
    fn distance(&mut self) -> f64 {
        let rows = self.spec.rows_of(self.number) as f64;
        match self.spec.arrival {
            Arrival::Closed => 0.0,
            Arrival::Periodic { images_per_s } => rows / images_per_s,
            Arrival::Poisson { images_per_s, .. } => self.random.seconds(rows / images_per_s),
        }
    }
}
