//! Many rows of a batcher that were submitted in one call: one ticket, one output.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::ring::{Origin, RowOutput, RowTicket};

/// The answer to each row.
pub(super) type Answers = Vec<Result<RowOutput, Error>>;

/// Rows of one call, in flight.
pub(super) struct Rows {
    origin: Origin,
    answers: Answers,
    /// Those behind the answers, in the order of submission.
    rest: VecDeque<Result<RowTicket, Error>>,
}

impl Rows {
    pub fn new(origin: Origin, tickets: Vec<Result<RowTicket, Error>>) -> Self {
        Self { origin, answers: Vec::with_capacity(tickets.len()), rest: tickets.into() }
    }

    /// Where they are from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The answers when all are there.
    ///
    /// # Errors
    /// The first row's, if none has a result.
    pub fn wait(mut self) -> Result<Answers, Error> {
        while let Some(next) = self.rest.pop_front() {
            self.answers.push(next.and_then(RowTicket::wait));
        }
        settled(self.answers)
    }

    /// The same until `limit` has passed; then what is missing is still waited for.
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<Answers, Self>, Error> {
        let start = Instant::now();
        while let Some(next) = self.rest.pop_front() {
            let answer = match next.map(|ticket| ticket.wait_for(limit.saturating_sub(start.elapsed()))) {
                Ok(Ok(Err(ticket))) => {
                    self.rest.push_front(Ok(ticket));
                    return Ok(Err(self));
                }
                Ok(Ok(Ok(output))) => Ok(output),
                Ok(Err(error)) | Err(error) => Err(error),
            };
            self.answers.push(answer);
        }
        settled(self.answers).map(Ok)
    }

    /// Whether all answers are there.
    pub fn is_ready(&self) -> bool {
        self.rest.iter().flatten().all(RowTicket::is_ready)
    }

    /// The answers if all are there; else `context` has its waker woken when another one is.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Answers, Error>> {
        while let Some(next) = self.rest.front_mut() {
            let answer = match next {
                Ok(ticket) => match Pin::new(ticket).poll(context) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return Poll::Pending,
                },
                Err(error) => Err(error.clone()),
            };
            self.rest.pop_front();
            self.answers.push(answer);
        }
        Poll::Ready(settled(std::mem::take(&mut self.answers)))
    }
}

/// The answers, unless none is a result.
fn settled(answers: Answers) -> Result<Answers, Error> {
    match answers.first() {
        Some(Err(first)) if answers.iter().all(Result::is_err) => Err(first.clone()),
        _ => Ok(answers),
    }
}
