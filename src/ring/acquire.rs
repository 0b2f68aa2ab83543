//! Credits for producers: `acquire` takes free ones, or waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::credits::{CreditState, Lent, Upload};
use super::waiting::{FAULT_CHECK, Waiting, pause};
use super::{Batch, Core};
use crate::device::{Access, Event, Note};
use crate::error::Error;
use crate::sync::{after, lock, wait_until};

/// Whether this producer, of those that [`Waiting::Spin`], is the one that polls the oldest upload.
#[derive(Default)]
struct Spinner {
    /// Whether it is this producer.
    mine: bool,
    looks: u32,
}

impl Core {
    /// Takes a staging and a result credit, waiting for them until `limit` has passed.
    pub fn acquire(self: &Arc<Self>, limit: Duration) -> Result<Batch, Error> {
        let start = Instant::now();
        let deadline = after(limit);
        let (mut spinner, mut submits) = (Spinner::default(), None);
        let outcome = loop {
            if let Some(outcome) = self.take_now().transpose() {
                break outcome;
            }
            let submits = *submits.get_or_insert_with(|| self.order.underway());
            if Instant::now() >= deadline {
                break Err(self.late("acquire", start.elapsed(), self.order.call_of(submits)));
            }
            if let Some(outcome) = self.doze(deadline, &mut spinner).transpose() {
                break outcome;
            }
        };
        if spinner.mine {
            let mut state = lock(&self.state);
            state.uploads_watched = false;
            self.tell_one(&state); // somebody else may have to look
        }
        outcome.map(|lent| self.lend(lent))
    }

    /// Takes both credits if they are free now.
    pub fn try_acquire(self: &Arc<Self>) -> Result<Option<Batch>, Error> {
        let taken = self.take_now()?;
        Ok(taken.map(|lent| self.lend(lent)))
    }

    fn take_now(&self) -> Result<Option<(usize, Lent)>, Error> {
        loop {
            let taken = self.take_free(&mut lock(&self.state))?;
            if taken.is_some() || !self.reclaim_staging()? {
                return Ok(taken);
            }
        }
    }

    /// Takes both credits if they are known to be free, without a call of the device.
    fn take_free(&self, state: &mut CreditState) -> Result<Option<(usize, Lent)>, Error> {
        self.device.healthy()?;
        if state.closed.is_some() {
            return Err(Error::Closed);
        }
        Ok(state.take())
    }

    fn lend(self: &Arc<Self>, (staging, lent): (usize, Lent)) -> Batch {
        let (input, output) = (self.staging[staging].buffer.span(), self.results[lent.result].buffer.span());
        for note in [Note::Taken(input), Note::Taken(output), Note::Begin(input, Access::Write)] {
            self.device.note(note);
        }
        Batch::new(self.clone(), staging, lent)
    }

    /// Sleeps until a credit may be free again, or until it is time to look for a fault. If credits have become free
    /// since the last look, takes and returns them.
    fn doze(self: &Arc<Self>, deadline: Instant, spinner: &mut Spinner) -> Result<Option<(usize, Lent)>, Error> {
        let mut state = lock(&self.state);
        let taken = self.take_free(&mut state)?;
        if taken.is_some() {
            return Ok(taken);
        }
        if self.spec.waiting == Waiting::Spin {
            // One of the blocked producers watches the oldest upload; the others sleep until a credit is free.
            if spinner.mine != state.waits_for_upload() && (spinner.mine || !state.uploads_watched) {
                spinner.mine = !spinner.mine;
                state.uploads_watched = spinner.mine;
            }
            if spinner.mine {
                drop(state);
                pause(&mut spinner.looks);
                return Ok(None);
            }
        } else {
            self.watch_uploads(&mut state);
        }
        state.waiting += 1;
        let (mut state, _) = wait_until(&self.changed, state, deadline.min(Instant::now() + FAULT_CHECK));
        state.waiting -= 1;
        Ok(None)
    }

    /// Makes `trefoil-up-N` wait for uploads, if this would help a blocked producer and it does not wait already.
    fn watch_uploads(self: &Arc<Self>, state: &mut CreditState) {
        if state.waits_for_upload() && !state.uploads_watched {
            state.uploads_watched = true;
            self.completion.watch_uploads(self.clone());
        }
    }

    /// Called after the submission of a batch: if a producer is blocked, the batch's upload may be the one that frees a
    /// credit.
    pub(super) fn upload_began(self: &Arc<Self>, state: &mut CreditState) {
        if state.waiting == 0 || !state.waits_for_upload() || state.uploads_watched {
            return;
        }
        match self.spec.waiting {
            Waiting::Spin => self.changed.notify_one(), // it has to look
            Waiting::Block | Waiting::Callback => self.watch_uploads(state),
        }
    }

    /// Runs on `trefoil-up-N`: while producers are blocked, waits for one upload after the other and frees its staging.
    pub(super) fn serve_uploads(&self) {
        loop {
            let reclaimed = self.device.healthy().and_then(|()| self.reclaim_staging());
            if reclaimed.is_err() {
                self.tell_all();
            }
            let mut state = lock(&self.state);
            let Some(upload) = state.upload_needed().filter(|_| reclaimed.is_ok()) else {
                state.uploads_watched = false;
                return;
            };
            drop(state);
            // An error is latched, and found above. If the upload ended meanwhile and its staging is in use again, this
            // waits for that use: blocked producers look for themselves every `FAULT_CHECK`.
            let _ = self.frees(upload).wait();
        }
    }

    /// Frees the staging of every upload that is done; returns whether there was any. Uploads finish in the order of
    /// their submission.
    fn reclaim_staging(&self) -> Result<bool, Error> {
        let mut freed = false;
        loop {
            let Some(upload) = self.oldest_upload() else { return Ok(freed) };
            if !self.frees(upload).is_done().map_err(|error| self.device.fault().unwrap_or(error))? {
                return Ok(freed);
            }
            let mut state = lock(&self.state);
            if state.oldest_upload() == Some(upload) {
                if self.spec.freed.is_some() {
                    state.done = state.done.max(upload.number + 1);
                }
                self.free_oldest_upload(&mut state);
            }
            freed = true; // by another thread, if it is not the oldest any more
        }
    }

    fn oldest_upload(&self) -> Option<Upload> {
        lock(&self.state).oldest_upload()
    }

    /// Records that submission `number` is done. All earlier ones and their uploads are then done too, which needs no
    /// call of the device.
    pub(super) fn done_through(&self, state: &mut CreditState, number: u64) {
        state.done = state.done.max(number + 1);
        while state.oldest_upload().is_some_and(|oldest| oldest.number <= number) {
            self.free_oldest_upload(state);
        }
    }

    fn free_oldest_upload(&self, state: &mut CreditState) {
        let Some(upload) = state.oldest_upload() else { return };
        self.device.note(Note::Freed(self.staging[upload.staging].buffer.span()));
        state.upload_done();
        self.tell_one(state);
    }

    /// The event after which the staging of an upload is free. This is the upload's event, or, in a ring of a fleet,
    /// the event of the answer: until then the rows may have to run on another device.
    fn frees(&self, upload: Upload) -> &Event {
        match self.spec.freed {
            None => &self.staging[upload.staging].uploaded,
            Some(_) => &self.results[upload.result].done,
        }
    }

    /// The number of batches in flight or being filled; an error after a fault.
    pub(super) fn load(&self) -> Result<usize, Error> {
        self.device.healthy()?;
        self.reclaim_staging()?;
        Ok(lock(&self.state).staging_in_use())
    }

    /// Whether the ring takes no more batches.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).closed.is_some()
    }

    /// Counts a producer that sleeps until this ring or another one has a free credit; see [`Core::sleeper_left`]. A
    /// ring whose device failed frees none: its thread would only report the fault again, and wake the producer each
    /// time.
    pub(super) fn sleeper_came(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        if self.spec.waiting != Waiting::Spin && self.device.healthy().is_ok() {
            self.watch_uploads(&mut state);
        }
    }

    /// Counts off a producer that no longer sleeps.
    pub(super) fn sleeper_left(&self) {
        lock(&self.state).waiting -= 1;
    }

    /// Wakes all sleeping producers, after a fault or when the ring is closed.
    pub(super) fn tell_all(&self) {
        self.changed.notify_all();
        if let Some(freed) = &self.spec.freed {
            freed.fire();
        }
    }

    /// Wakes one sleeping producer, after a credit became free.
    pub(super) fn tell_one(&self, state: &CreditState) {
        if let Some(freed) = &self.spec.freed {
            freed.fire();
        }
        if state.waiting > 0 {
            self.changed.notify_one();
        }
    }
}
