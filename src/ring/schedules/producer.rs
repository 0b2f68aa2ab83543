//! A producer that makes one step at a time, as the dice say.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::world::Scene;
use crate::error::Error;
use crate::ring::{Batch, Output, Ticket, Waiting};

/// The most unread tickets that it has.
const TICKETS: usize = 3;

#[derive(Debug)]
pub(super) struct Producer {
    id: u64,
    /// The index of its ring in the world.
    pub ring: usize,
    /// The number of submissions left to make.
    left: usize,
    /// The number of tickets that it leaves unread.
    ahead: usize,
    filling: Option<Batch>,
    flights: VecDeque<Flight>,
    /// An output that it has not dropped yet.
    reading: Option<(u64, Output)>,
}

#[derive(Debug)]
struct Flight {
    /// The number of the submission in its ring.
    number: u64,
    ticket: Ticket,
}

/// The kind of a step, for the hash.
type Did = u64;

impl Producer {
    pub fn new(id: u64, ring: usize, left: usize, ahead: usize) -> Self {
        let ahead = ahead.min(TICKETS - 1);
        Self { id, ring, left, ahead, filling: None, flights: VecDeque::new(), reading: None }
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && self.filling.is_none() && self.flights.is_empty() && self.reading.is_none()
    }

    /// Makes a step; `None` if the producer has to wait.
    pub fn step(&mut self, mut scene: Scene<'_>) -> Option<Did> {
        if let Some((number, output)) = self.reading.take() {
            check(number, &output); // again: nobody may have written it meanwhile
            if scene.dice.once_in(3) {
                self.reading = Some((number, output));
            }
            return Some(1);
        }
        if self.filling.is_some() {
            return Some(self.fill(&mut scene));
        }
        let may_submit = self.left > 0 && self.flights.len() <= self.ahead;
        if !may_submit || (!self.flights.is_empty() && scene.dice.once_in(3)) {
            return self.look(&mut scene);
        }
        match scene.core.acquire(Duration::ZERO) {
            Ok(batch) => {
                self.filling = Some(batch);
                Some(2)
            }
            Err(Error::Timeout { .. }) => {
                scene.outcome.timeouts += 1;
                self.look(&mut scene)
            }
            Err(error) => {
                assert!(scene.faults, "{error}");
                self.left = 0; // a faulted device takes nothing more
                Some(3)
            }
        }
    }

    /// Submits the batch, or gives it back.
    fn fill(&mut self, scene: &mut Scene<'_>) -> Did {
        let mut batch = self.filling.take().expect("it is filling");
        if scene.dice.once_in(16) {
            scene.outcome.given_back += 1;
            return 4;
        }
        if scene.dice.once_in(32) {
            assert!(matches!(batch.submit(0), Err(Error::Option { option: "rows", .. })));
            scene.outcome.given_back += 1;
            return 5;
        }
        let rows = 1 + scene.dice.roll(batch.capacity() as u64) as usize;
        let number = *scene.next;
        for (index, row) in batch.rows_mut().take(rows).enumerate() {
            let stamp = stamp(number, index).to_le_bytes();
            row.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp));
        }
        self.left -= 1;
        scene.outcome.submitted += 1;
        match batch.submit(rows) {
            Ok(ticket) => {
                *scene.next += 1;
                self.flights.push_back(Flight { number, ticket });
                6 | self.id << 8
            }
            Err(error) => {
                assert!(scene.faults, "{error}");
                scene.outcome.errors += 1;
                7
            }
        }
    }

    /// Looks at one of its tickets in a random way.
    fn look(&mut self, scene: &mut Scene<'_>) -> Option<Did> {
        if self.flights.is_empty() {
            return None;
        }
        let index = scene.dice.roll(self.flights.len() as u64) as usize;
        let mut flight = self.flights.remove(index)?;
        match scene.dice.roll(16) {
            0 => {
                scene.outcome.abandoned += 1;
                return Some(8); // drops the ticket
            }
            1 | 2 if scene.core.spec().waiting == Waiting::Block => {
                scene.outcome.blocked += 1;
                let answer = flight.ticket.wait();
                return Some(self.read(flight.number, answer, scene));
            }
            3..6 => match flight.ticket.wait_for(Duration::ZERO) {
                Ok(Ok(output)) => return Some(self.read(flight.number, Ok(output), scene)),
                Ok(Err(again)) => {
                    scene.outcome.timeouts += 1;
                    flight.ticket = again;
                }
                Err(error) => return Some(self.read(flight.number, Err(error), scene)),
            },
            6..10 => match Pin::new(&mut flight.ticket).poll(&mut Context::from_waker(scene.waker)) {
                Poll::Ready(answer) => return Some(self.read(flight.number, answer, scene)),
                Poll::Pending => {}
            },
            _ => match flight.ticket.is_ready() {
                Ok(false) => {}
                Ok(true) => {
                    let answer = flight.ticket.wait();
                    return Some(self.read(flight.number, answer, scene));
                }
                Err(error) => {
                    drop(flight);
                    assert!(scene.faults, "{error}");
                    scene.outcome.errors += 1;
                    return Some(9);
                }
            },
        }
        self.flights.insert(index, flight);
        None
    }

    /// Checks an answer.
    fn read(&mut self, number: u64, answer: Result<Output, Error>, scene: &mut Scene<'_>) -> Did {
        match answer {
            Ok(output) => {
                assert!(scene.core.device.fault().is_none(), "data was handed out after a fault");
                check(number, &output);
                let earlier = self.flights.iter().filter(|flight| flight.number < number);
                earlier.for_each(|flight| assert!(flight.ticket.is_ready().unwrap(), "ready before an earlier one"));
                scene.outcome.answered += 1;
                self.reading = Some((number, output));
                10 | number << 8
            }
            Err(error) => {
                assert!(scene.faults, "{error}");
                scene.outcome.errors += 1;
                11 | number << 8
            }
        }
    }
}

fn stamp(number: u64, row: usize) -> u64 {
    (number << 8 | row as u64) + 1
}

/// Checks that every word of every row is that of the submission.
fn check(number: u64, output: &Output) {
    for row in 0..output.rows() {
        let stamp = stamp(number, row).to_le_bytes();
        let right = output.row(row).chunks_exact(8).all(|word| word == stamp);
        assert!(right, "row {row} of submission {number} is another's");
    }
}
