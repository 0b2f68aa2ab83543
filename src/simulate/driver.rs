//! A host thread that plays all producers, and moves the virtual time from one event to the next.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::SimSpec;
use super::arrivals::{Arrivals, Request};
use crate::device::sim::{Picos, Sim, picos};
use crate::error::{Credits, Error};
use crate::ring::{Batch, Core, Ticket};

/// The events of a run.
#[derive(Default)]
pub(super) struct Log {
    /// The answers, in order: when each came, how long after its request, and its rows.
    pub answers: Vec<Answer>,
    /// The rows of each batch whose `submit` was called.
    pub submitted: Vec<usize>,
    /// The number of rows for which a batcher had no place.
    pub refused: usize,
    /// The number of rows that were in a batcher past their deadline.
    pub expired: usize,
    /// The number of submissions or rows that were answered with an error of the device.
    pub failed: usize,
    pub fault: Option<Error>,
    pub credits: Credits,
}

impl Log {
    /// The number of a batcher's rows that clients have an answer for.
    pub fn told(&self) -> usize {
        self.answers.len() + self.refused + self.expired
    }
}

pub(super) struct Answer {
    pub at: Picos,
    pub latency: Picos,
    pub rows: usize,
}

enum ProducerState {
    /// Looks for a request, and for answers meanwhile.
    Idle,
    /// Waits in the queue for credits.
    Acquiring(Request),
    Filling {
        request: Request,
        batch: Batch,
        until: Picos,
    },
    /// Waits until at most `ahead` of its submissions are unanswered.
    Waiting,
}

struct Flight {
    request: Request,
    ticket: Ticket,
    ready: bool,
}

struct Producer {
    state: ProducerState,
    /// The producer's unanswered submissions, oldest first.
    flights: VecDeque<Flight>,
}

/// The order of the producers' turns: by their numbers, again and again, without those that can do nothing until
/// something else has happened.
#[derive(Default)]
struct Turns {
    /// The producers that may be able to do something now.
    awake: BTreeSet<usize>,
    /// The number from which the next turn is looked for: one after that of the last turn.
    next: usize,
    /// The producers that wait for a request.
    idle: BTreeSet<usize>,
    /// The producers that fill a batch, with the time at which each has filled it.
    filling: BinaryHeap<Reverse<(Picos, usize)>>,
}

struct Driver<'a> {
    spec: &'a SimSpec,
    sim: &'a Sim,
    core: &'a Arc<Core>,
    producers: Vec<Producer>,
    turns: Turns,
    /// Producers that wait for credits, in the order in which they asked.
    blocked: VecDeque<usize>,
    /// The producer of each submission in flight, in the order of submission.
    order: VecDeque<usize>,
    arrivals: Arrivals<'a>,
    log: Log,
}

/// The bytes of host memory that [`run`] takes: for each producer, each submission in flight, and each answer.
pub(super) fn bytes(spec: &SimSpec) -> u64 {
    let flights = spec.ahead.saturating_add(1).saturating_mul(size_of::<Flight>());
    let producers = spec.producers.saturating_mul(flights.saturating_add(size_of::<Producer>()));
    producers.saturating_add(spec.batches.saturating_mul(size_of::<Answer>())) as u64
}

/// Plays the whole schedule.
pub(super) fn run(spec: &SimSpec, sim: &Sim, core: &Arc<Core>) -> Result<Log, Error> {
    let producer = || Producer { state: ProducerState::Idle, flights: VecDeque::new() };
    let mut driver = Driver {
        spec,
        sim,
        core,
        producers: (0..spec.producers).map(|_| producer()).collect(),
        turns: Turns { awake: (0..spec.producers).collect(), ..Turns::default() },
        blocked: VecDeque::new(),
        order: VecDeque::new(),
        arrivals: Arrivals::new(spec),
        log: Log::default(),
    };
    let ended = driver.play();
    if ended.is_err() {
        driver.give_up();
    }
    sim.drain();
    match ended {
        Err(error) if !matches!(error, Error::Driver { .. } | Error::Fault { .. }) => return Err(error),
        Err(error) => driver.log.fault = Some(error),
        Ok(()) => {}
    }
    driver.log.credits = core.credits()?;
    Ok(driver.log)
}

impl Driver<'_> {
    fn play(&mut self) -> Result<(), Error> {
        loop {
            self.look()?;
            // The producers do in turn everything that takes no time, until none can do more now.
            while let Some(index) = self.turns.take() {
                if self.turn(index)? {
                    self.turns.awake.insert(index);
                    self.wake();
                } else {
                    self.turns.rest(index, &self.producers[index].state);
                }
            }
            if self.log.answers.len() == self.spec.batches && self.producers.iter().all(|p| p.flights.is_empty()) {
                return Ok(());
            }
            let filled = self.turns.filling.peek().map(|Reverse((until, _))| *until);
            let next = filled.into_iter().chain(self.sim.next_step()).chain(self.arrivals.next(self.sim.now())).min();
            let Some(next) = next else {
                return Err(Error::Internal { what: format!("deadlock at {} ps: nothing can happen", self.sim.now()) });
            };
            self.sim.advance_to(next);
            self.turns.filled(next);
            self.turns.next = 0;
            self.wake();
        }
    }

    /// Called after a step of any producer or of the time: wakes the next producer in the queue for credits, and, if
    /// there is a request, an idle producer.
    fn wake(&mut self) {
        self.turns.awake.extend(self.blocked.front());
        if self.arrivals.is_there(self.sim.now()) {
            self.turns.awake.extend(self.turns.idle.pop_first());
        }
    }

    /// Records the answers that are there now, in the order of submission.
    fn look(&mut self) -> Result<(), Error> {
        let now = self.sim.now();
        while let Some(&first) = self.order.front() {
            let flight = self.producers[first].oldest_unready();
            if !flight.ticket.is_ready()? {
                break;
            }
            flight.ready = true;
            self.turns.awake.insert(first);
            let (request, rows) = (flight.request, flight.ticket.rows());
            self.log.answers.push(Answer { at: now, latency: now - request.asked, rows });
            self.order.pop_front();
        }
        let Some(&second) = self.order.get(1).filter(|second| **second != self.order[0]) else { return Ok(()) };
        let flight = self.producers[second].oldest_unready();
        if flight.ticket.is_ready()? {
            return Err(Error::Internal { what: format!("submission {} was ready too early", flight.request.number) });
        }
        Ok(())
    }

    /// Makes the next step of one producer, if it can make one now.
    fn turn(&mut self, index: usize) -> Result<bool, Error> {
        let now = self.sim.now();
        let producer = &mut self.producers[index];
        match std::mem::replace(&mut producer.state, ProducerState::Idle) {
            ProducerState::Idle => match self.arrivals.take(now) {
                Some(request) => {
                    producer.state = ProducerState::Acquiring(request);
                    self.blocked.push_back(index);
                    Ok(true)
                }
                None => self.consume(index),
            },
            ProducerState::Acquiring(request) => {
                let mine = self.blocked.front() == Some(&index);
                let Some(mut batch) = (if mine { self.core.try_acquire()? } else { None }) else {
                    self.producers[index].state = ProducerState::Acquiring(request);
                    return Ok(false);
                };
                self.blocked.pop_front();
                for row in [0, self.spec.rows_of(request.number) - 1] {
                    stamp(batch.row_mut(row), request.number);
                }
                let until = now + picos(self.spec.fill_us * 1e-6);
                self.producers[index].state = ProducerState::Filling { request, batch, until };
                Ok(true)
            }
            ProducerState::Filling { request, batch, until } if until <= now => {
                let rows = self.spec.rows_of(request.number);
                self.log.submitted.push(rows);
                let ticket = batch.submit(rows).inspect_err(|_| self.log.failed += 1)?;
                producer.flights.push_back(Flight { request, ticket, ready: false });
                producer.state = ProducerState::Waiting;
                self.order.push_back(index);
                Ok(true)
            }
            filling @ ProducerState::Filling { .. } => {
                producer.state = filling;
                Ok(false)
            }
            ProducerState::Waiting if producer.flights.len() <= self.spec.ahead => Ok(true),
            ProducerState::Waiting => {
                producer.state = ProducerState::Waiting;
                self.consume(index)
            }
        }
    }

    /// Reads and drops the producer's oldest answer, if it is there.
    fn consume(&mut self, index: usize) -> Result<bool, Error> {
        let flights = &mut self.producers[index].flights;
        if !flights.front().is_some_and(|flight| flight.ready) {
            return Ok(false);
        }
        let Some(Flight { request, ticket, .. }) = flights.pop_front() else { return Ok(false) };
        let output = ticket.wait()?;
        if ![0, output.rows() - 1].into_iter().all(|row| is_stamped(output.row(row), request.number)) {
            return Err(Error::Internal { what: format!("submission {} was answered with another's", request.number) });
        }
        Ok(true)
    }

    /// After an error: waits for every ticket and submits every batch, so that each is answered with the fault.
    fn give_up(&mut self) {
        for producer in &mut self.producers {
            if let ProducerState::Filling { request, batch, .. } =
                std::mem::replace(&mut producer.state, ProducerState::Idle)
            {
                let rows = self.spec.rows_of(request.number);
                self.log.submitted.push(rows);
                match batch.submit(rows) {
                    Ok(ticket) => producer.flights.push_back(Flight { request, ticket, ready: false }),
                    Err(_) => self.log.failed += 1,
                }
            }
            for flight in producer.flights.drain(..) {
                let answered = flight.ticket.wait();
                self.log.failed += usize::from(answered.is_err() && !flight.ready);
            }
        }
    }
}

impl Turns {
    /// The next producer that is awake; `None` if none is.
    fn take(&mut self) -> Option<usize> {
        let index = self.awake.range(self.next..).next().or_else(|| self.awake.first()).copied()?;
        self.awake.remove(&index);
        self.idle.remove(&index);
        self.next = index + 1;
        Some(index)
    }

    /// Puts a producer in this state to rest, because it can do nothing now.
    fn rest(&mut self, index: usize, state: &ProducerState) {
        match state {
            ProducerState::Idle => {
                self.idle.insert(index);
            }
            ProducerState::Filling { until, .. } => self.filling.push(Reverse((*until, index))),
            ProducerState::Acquiring(_) | ProducerState::Waiting => {} // woken by a credit or an answer
        }
    }

    /// Wakes the producers that have filled their batch by now.
    fn filled(&mut self, now: Picos) {
        while self.filling.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            self.awake.extend(self.filling.pop().map(|Reverse((_, index))| index));
        }
    }
}

impl Producer {
    fn oldest_unready(&mut self) -> &mut Flight {
        self.flights.iter_mut().find(|flight| !flight.ready).expect("it has a submission in flight")
    }
}

/// Writes a number to both ends of a row, so that each half of a copy moves one of them.
pub(super) fn stamp(row: &mut [u8], number: usize) {
    let number = (number as u64).to_le_bytes();
    let end = row.len() - number.len();
    row[..number.len()].copy_from_slice(&number);
    row[end..].copy_from_slice(&number);
}

pub(super) fn is_stamped(row: &[u8], number: usize) -> bool {
    let number = (number as u64).to_le_bytes();
    row.starts_with(&number) && row.ends_with(&number)
}
