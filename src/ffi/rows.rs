//! Rows of a batcher that were submitted in one call, with one ticket and one output.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::ring::{Origin, RowOutput, RowTicket};

/// The answers to the rows, in order.
pub(super) type Answers = Vec<Result<RowOutput, Error>>;

/// The rows of one call, in flight.
pub(super) struct Rows {
    origin: Origin,
    answers: Answers,
    /// The tickets of the rows without an answer yet, in the order of submission.
    rest: VecDeque<Result<RowTicket, Error>>,
}

impl Rows {
    pub fn new(origin: Origin, tickets: Vec<Result<RowTicket, Error>>) -> Self {
        Self { origin, answers: Vec::with_capacity(tickets.len()), rest: tickets.into() }
    }

    /// The batcher that the rows belong to.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Waits until all answers are there, and returns them.
    ///
    /// # Errors
    /// The error of the first row, if no row has a result.
    pub fn wait(mut self) -> Result<Answers, Error> {
        while let Some(next) = self.rest.pop_front() {
            self.answers.push(next.and_then(RowTicket::wait));
        }
        settled(self.answers)
    }

    /// Waits like `wait` until `limit` has passed; then returns the rows, so that the wait can continue.
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

    /// The answers, if all are there; otherwise wakes the waker of `context` when another answer is there.
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

/// The answers; an error if none of them is a result.
fn settled(answers: Answers) -> Result<Answers, Error> {
    match answers.first() {
        Some(Err(first)) if answers.iter().all(Result::is_err) => Err(first.clone()),
        _ => Ok(answers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Target};
    use crate::engine::Engine;
    use crate::ffi::handles::insert;
    use crate::ffi::output::{Landed, trefoil_output_copy, trefoil_output_row, trefoil_output_rows};
    use crate::ffi::status::trefoil_status;
    use crate::model::Model;
    use crate::ring::Batcher;

    fn batcher() -> Batcher {
        let (model, cpu) = (Model::open("weights/convnet28").unwrap(), Device::open(Target::Cpu).unwrap());
        Engine::builder(&model).on(&cpu).build().unwrap().batcher().build().unwrap()
    }

    fn full() -> Result<RowTicket, Error> {
        Err(Error::Full { rows: 1 })
    }

    #[test]
    fn a_row_without_a_result_has_its_failure_and_the_others_their_values() {
        let batcher = batcher();
        let pixels = vec![127; batcher.input().row_bytes];
        let rows = || Rows::new(batcher.origin(), vec![full(), batcher.submit(&pixels), full()]);
        let answers = rows().wait().unwrap();
        let values = answers[1].as_ref().unwrap().bytes().to_vec();
        let output = insert(Landed::Rows(answers)).unwrap();
        let (mut at, mut count, mut bytes) = (std::ptr::null(), 0, 0);
        let mut copied = vec![0_u8; values.len()];
        // SAFETY: all of it can be written, and `copied` is as long as is said.
        unsafe {
            assert_eq!(trefoil_output_rows(output, &raw mut count), trefoil_status::Ok);
            for (index, expected) in [trefoil_status::Full, trefoil_status::Ok, trefoil_status::Full].iter().enumerate()
            {
                assert_eq!(trefoil_output_row(output, index, &raw mut at, &raw mut bytes), *expected);
            }
            let mut copy =
                |first, count, bytes| trefoil_output_copy(output, first, count, copied.as_mut_ptr().cast(), bytes);
            assert_eq!(copy(1, 1, values.len()), trefoil_status::Ok);
            assert_eq!(copy(1, 1, values.len() - 1), trefoil_status::InvalidArgument);
            assert_eq!(copy(0, 2, 2 * values.len()), trefoil_status::Full);
            assert_eq!(copy(2, 2, values.len()), trefoil_status::Full);
        }
        assert_eq!((count, bytes, copied), (3, values.len(), values));
    }

    #[test]
    fn rows_are_waited_for_a_while_looked_at_and_polled() {
        let batcher = batcher();
        let pixels = vec![127; batcher.input().row_bytes];
        let mut rows = Rows::new(batcher.origin(), batcher.submit_rows(&[pixels.as_slice(); 9]));
        let answers = loop {
            match rows.wait_for(Duration::ZERO).unwrap() {
                Ok(answers) => break answers,
                Err(again) => rows = again,
            }
        };
        assert_eq!(answers.iter().flatten().count(), 9);
        let mut rows = Rows::new(batcher.origin(), batcher.submit_rows(&[pixels.as_slice(); 9]));
        while !rows.is_ready() {
            std::thread::yield_now();
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(rows.poll(&mut context), Poll::Ready(Ok(answers)) if answers.len() == 9));
    }

    #[test]
    fn rows_of_which_none_has_a_result_are_the_first_ones_failure() {
        let batcher = batcher();
        let rows = || Rows::new(batcher.origin(), vec![full(), Err(Error::Closed)]);
        assert!(matches!(rows().wait(), Err(Error::Full { rows: 1 })));
        assert!(matches!(rows().wait_for(Duration::ZERO), Err(Error::Full { rows: 1 })));
    }
}
