//! The host side of the ring as plain data: the owner of each buffer. Every change is one method, under one lock.

use crate::sync::thread::Thread;
use std::collections::VecDeque;
use std::task::Waker;

use super::Close;
use crate::error::{Credits, Error};

/// The thread or task to wake for a result. Waking or dropping a waker is user code, so neither happens under the lock.
pub(super) enum Wake {
    Task(Waker),
    Thread(Thread),
}

impl Wake {
    pub fn wake(self) {
        match self {
            Self::Task(waker) => waker.wake(),
            Self::Thread(thread) => thread.unpark(),
        }
    }
}

/// One use of a result buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lent {
    /// The index of the result buffer.
    pub result: usize,
    /// The number of the use, counted for each buffer.
    pub generation: u64,
}

/// A staging buffer whose upload was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upload {
    pub staging: usize,
    /// The number of the submission.
    pub number: u64,
    /// The index of the submission's result buffer.
    pub result: usize,
}

/// The owner of a result buffer.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Owner {
    /// No owner.
    Free,
    /// A producer that fills a batch.
    Filling,
    /// A ticket; the device may still write it.
    InFlight,
    /// No owner any more; when the device has written it, it is free.
    Abandoned,
    /// An output, which the caller reads.
    Read,
    /// The device, perhaps for ever: after a fault.
    Quarantined,
}

struct ResultState {
    owner: Owner,
    generation: u64,
    /// The number of the last submission that it was for.
    number: u64,
    /// The thread or task to wake when the device is done.
    wake: Option<Wake>,
    /// Whether the completion thread watches it.
    watched: bool,
    /// Set when the result was handed back on the device, and the host has not seen that the device and the callers'
    /// streams are done with it. The buffer may be in use again.
    unseen: bool,
}

/// The state of a result at a look of the completion thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    owner: Owner,
    generation: u64,
    /// Whether the device may still be writing it.
    pub is_written: bool,
    /// Whether its submission is known to be done.
    pub is_known: bool,
    /// Whether the host has yet to see that callers have read it.
    pub is_unseen: bool,
}

/// The outcome of a look at a result.
pub(super) struct Seen {
    /// The thread or task to wake.
    pub wake: Option<Wake>,
    /// Whether it needs no more looks.
    pub is_settled: bool,
}

/// The credits of a ring.
pub(super) struct CreditState {
    staging: usize,
    free_staging: VecDeque<usize>,
    /// The uploads, oldest first.
    uploads: VecDeque<Upload>,
    /// The number of staging buffers of submissions that failed half-way.
    lost_staging: usize,
    /// The free results, oldest first, so that a buffer rests as long as possible.
    free_results: VecDeque<usize>,
    results: Vec<ResultState>,
    /// All submissions with a lower number are known to be done.
    pub done: u64,
    /// The number of producers that sleep until a credit is free.
    pub waiting: usize,
    /// Whether a thread watches the oldest upload for the blocked producers.
    pub uploads_watched: bool,
    /// Set once, when the ring takes no more work.
    pub closed: Option<Close>,
    /// Set once, when the engine is dropped. From then on only watches keep the ring until the host has seen the end of
    /// its work.
    left: bool,
}

impl CreditState {
    pub fn new(staging: usize, results: usize) -> Self {
        let fresh =
            || ResultState { owner: Owner::Free, generation: 0, number: 0, wake: None, watched: false, unseen: false };
        Self {
            staging,
            free_staging: (0..staging).collect(),
            uploads: VecDeque::with_capacity(staging),
            lost_staging: 0,
            free_results: (0..results).collect(),
            results: (0..results).map(|_| fresh()).collect(),
            done: 0,
            waiting: 0,
            uploads_watched: false,
            closed: None,
            left: false,
        }
    }

    /// Takes a staging and a result credit, both or none.
    pub fn take(&mut self) -> Option<(usize, Lent)> {
        if self.free_staging.is_empty() || self.free_results.is_empty() {
            return None;
        }
        let (staging, result) = (self.free_staging.pop_front()?, self.free_results.pop_front()?);
        let state = &mut self.results[result];
        state.owner = Owner::Filling;
        state.generation += 1;
        Some((staging, Lent { result, generation: state.generation }))
    }

    /// Whether the end of an upload would free the credit that producers wait for.
    pub fn waits_for_upload(&self) -> bool {
        self.free_staging.is_empty() && !self.uploads.is_empty() && !self.free_results.is_empty()
    }

    /// Frees the credits of a batch that was given up before it was submitted.
    pub fn returned(&mut self, staging: usize, lent: Lent) {
        self.free_staging.push_front(staging);
        let wake = self.free(lent.result);
        debug_assert!(wake.is_none(), "nobody awaits a batch that was not submitted");
    }

    /// Records that a batch was enqueued.
    pub fn submitted(&mut self, staging: usize, lent: Lent, number: u64) {
        self.uploads.push_back(Upload { staging, number, result: lent.result });
        let state = &mut self.results[lent.result];
        (state.owner, state.number) = (Owner::InFlight, number);
    }

    /// Takes the buffers of a batch that failed half-way out of use: the device may still access them.
    pub fn lost(&mut self, lent: Lent) {
        self.lost_staging += 1;
        self.results[lent.result].owner = Owner::Quarantined;
    }

    /// After a fault, gives the caller the staging of a submission that is not known to be done: it is not lent again.
    pub fn keep_staging(&mut self, staging: usize) {
        self.uploads.retain(|upload| upload.staging != staging);
        self.lost_staging += 1;
    }

    /// The number of staging buffers that are not free.
    pub fn staging_in_use(&self) -> usize {
        self.staging - self.free_staging.len()
    }

    pub fn oldest_upload(&self) -> Option<Upload> {
        self.uploads.front().copied()
    }

    /// The oldest upload, if more producers sleep than there are free buffers.
    pub fn upload_needed(&self) -> Option<Upload> {
        self.oldest_upload().filter(|_| self.waiting > self.free_staging.len().min(self.free_results.len()))
    }

    pub fn upload_done(&mut self) {
        self.free_staging.extend(self.uploads.pop_front().map(|upload| upload.staging));
    }

    /// The number of staging buffers out of use; after a fault, those whose upload is not known to be done count too.
    pub fn quarantined_staging(&self, faulted: bool) -> usize {
        self.lost_staging + if faulted { self.uploads.len() } else { 0 }
    }

    /// Whether the buffer is still in the use that `lent` names; otherwise that use has ended.
    pub fn is_current(&self, lent: Lent) -> bool {
        let state = &self.results[lent.result];
        state.generation == lent.generation && !matches!(state.owner, Owner::Free)
    }

    /// Gives the finished result to its reader.
    #[must_use = "it is dropped with no lock held"]
    pub fn read(&mut self, result: usize) -> Option<Wake> {
        self.hand_over(result, Owner::Read)
    }

    /// Puts the result into quarantine: the device may still access it.
    #[must_use = "it is dropped with no lock held"]
    pub fn quarantine(&mut self, result: usize) -> Option<Wake> {
        self.hand_over(result, Owner::Quarantined)
    }

    /// Frees the result.
    #[must_use = "it is dropped with no lock held"]
    pub fn free(&mut self, result: usize) -> Option<Wake> {
        self.free_results.push_back(result);
        self.hand_over(result, Owner::Free)
    }

    /// Frees a result that stayed on the device; the stream of its next use waits for the callers' streams. Returns
    /// whether to set a watch, so that the ring is kept until the device is done.
    pub fn hand_back(&mut self, result: usize) -> bool {
        let wake = self.free(result);
        debug_assert!(wake.is_none(), "nobody awaits what stays on the device");
        self.results[result].unseen = true;
        self.left && self.watch(result)
    }

    /// After a fault, quarantines results that were handed back on the device and are not known to be done.
    pub fn quarantine_unseen(&mut self) {
        for result in self.results.iter_mut().filter(|result| result.unseen && result.number >= self.done) {
            result.unseen = false;
            if result.owner == Owner::Free {
                result.owner = Owner::Quarantined;
            }
        }
        self.free_results.retain(|&result| self.results[result].owner == Owner::Free);
    }

    /// Records that the engine was dropped; returns the results to watch.
    pub fn leave(&mut self) -> Vec<usize> {
        self.left = true;
        (0..self.results.len()).filter(|&result| self.results[result].unseen && self.watch(result)).collect()
    }

    /// Gives up a result that nobody will read: it is freed when the device is done. Returns whether to set a watch.
    #[must_use = "it is dropped with no lock held"]
    pub fn abandon(&mut self, result: usize) -> (bool, Option<Wake>) {
        let wake = self.hand_over(result, Owner::Abandoned);
        (self.watch(result), wake)
    }

    /// Stores the thread or task to wake when the result is there. Returns whether to set a watch, and the previous one
    /// to wake.
    #[must_use = "it is dropped with no lock held"]
    pub fn set_wake(&mut self, result: usize, wake: Wake) -> (bool, Option<Wake>) {
        let old = self.results[result].wake.replace(wake);
        (self.watch(result), old)
    }

    /// What to ask the device about a watched result.
    pub fn look(&self, result: usize) -> Look {
        let &ResultState { owner, generation, number, unseen, .. } = &self.results[result];
        let is_written = matches!(owner, Owner::InFlight | Owner::Abandoned);
        Look { owner, generation, is_written, is_known: number < self.done, is_unseen: unseen }
    }

    /// Applies the device's answers to `look`: whether it is done with the result, and whether callers have read it.
    /// Returns `None` if the result has changed hands since.
    pub fn seen(
        &mut self,
        result: usize,
        look: Look,
        done: Result<bool, Error>,
        read: Result<bool, Error>,
    ) -> Option<Seen> {
        if self.look(result) != look {
            return None;
        }
        let mut wake = None;
        if look.is_written {
            match done {
                Ok(false) => return Some(Seen { wake: None, is_settled: false }),
                Ok(true) if look.owner == Owner::Abandoned => wake = self.free(result),
                Ok(true) => wake = self.results[result].wake.take(),
                // The device has failed: the thread or task that waits for the result is woken to learn of it.
                Err(_) if look.owner == Owner::Abandoned => wake = self.quarantine(result),
                Err(_) => wake = self.results[result].wake.take(),
            }
        }
        let state = &mut self.results[result];
        // After a fault the host sees no more of it.
        state.unseen = look.is_unseen && read.is_ok_and(|read| !(look.is_known && read));
        state.watched = state.unseen;
        Some(Seen { wake, is_settled: !state.unseen })
    }

    fn hand_over(&mut self, result: usize, owner: Owner) -> Option<Wake> {
        self.results[result].owner = owner;
        self.results[result].wake.take()
    }

    fn watch(&mut self, result: usize) -> bool {
        !std::mem::replace(&mut self.results[result].watched, true)
    }

    /// The result and the number of the oldest submission that is not known to be done, if there is one.
    pub fn oldest_in_flight(&self) -> Option<(usize, u64)> {
        let unknown = self.in_flight().map(|result| (result, self.results[result].number));
        unknown.filter(|(_, number)| *number >= self.done).min_by_key(|(_, number)| *number)
    }

    /// The results that the device may still be writing.
    pub fn in_flight(&self) -> impl Iterator<Item = usize> {
        let in_flight = |r: &ResultState| match r.owner {
            Owner::InFlight | Owner::Abandoned => true,
            Owner::Free | Owner::Filling => r.unseen && r.number >= self.done,
            Owner::Read | Owner::Quarantined => false,
        };
        self.results.iter().enumerate().filter(move |(_, r)| in_flight(r)).map(|(i, _)| i)
    }

    /// The numbers of results by owner, with all unfinished submissions as in flight. Also, for each of these, its
    /// result and whether it still has an owner.
    pub fn count(&self) -> (Credits, Vec<(usize, bool)>) {
        let of = |owner| self.results.iter().filter(|r| r.owner == owner).count();
        let is_held = |result: usize| !matches!(self.results[result].owner, Owner::Free | Owner::Filling);
        let in_flight: Vec<_> = self.in_flight().map(|result| (result, is_held(result))).collect();
        let credits = Credits {
            filling: of(Owner::Filling),
            in_flight: in_flight.len(),
            unread: of(Owner::Read),
            quarantined: of(Owner::Quarantined),
            staging: self.staging,
            results: self.results.len(),
        };
        (credits, in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_credits_or_none() {
        let mut state = CreditState::new(2, 1);
        let (staging, lent) = state.take().unwrap();
        assert!(state.take().is_none());
        assert_eq!(state.count().0, Credits { filling: 1, staging: 2, results: 1, ..Credits::default() });
        state.returned(staging, lent);
        assert_eq!(state.take().unwrap().1.generation, 2);
    }

    #[test]
    fn what_was_handed_back_is_not_in_flight_after_a_fault() {
        let mut state = CreditState::new(2, 3);
        let [first, second] = [0, 1].map(|number| {
            let (staging, lent) = state.take().unwrap();
            state.submitted(staging, lent, number);
            lent
        });
        state.done = 1;
        assert!(!state.hand_back(first.result) && !state.hand_back(second.result));
        assert_eq!(state.count().0.in_flight, 1, "the first is known to be done");
        state.quarantine_unseen();
        let credits = state.count().0;
        assert_eq!((credits.in_flight, credits.quarantined), (0, 1));
        assert_eq!(state.free_results, [2, 0]);
    }

    #[test]
    fn a_freed_use_is_not_current() {
        let mut state = CreditState::new(1, 2);
        let (staging, lent) = state.take().unwrap();
        state.submitted(staging, lent, 0);
        assert!(state.is_current(lent));
        assert!(state.abandon(lent.result).0);
        assert_eq!(state.oldest_in_flight(), Some((lent.result, 0)));
        let look = state.look(lent.result);
        assert!(!state.seen(lent.result, look, Ok(false), Ok(true)).unwrap().is_settled);
        assert!(state.is_current(lent));
        state.done = 1;
        assert_eq!(state.oldest_in_flight(), None);
        assert!(state.seen(lent.result, look, Ok(true), Ok(true)).is_none(), "it was not known to be done then");
        let look = state.look(lent.result);
        assert!(state.seen(lent.result, look, Ok(true), Ok(true)).unwrap().is_settled);
        assert!(!state.is_current(lent));
    }
}
