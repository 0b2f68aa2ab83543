//! When: a ring of staging buffers, slots and results that keeps copy-in, compute and copy-out busy at once.
//!
//! Three things of separate count:
//! - **staging**: page-locked inputs that producers fill; free again when their upload is done;
//! - **slots**: device input, device output and one launchable program variant for each batch size; host code never
//!   holds one;
//! - **results**: page-locked outputs; free again when the [`Output`] is dropped.
//!
//! The calls of one batch, in order, all made by [`Core::enqueue`]:
//!
//! | stream | call | orders |
//! |---|---|---|
//! | copy-in | wait `computed` of the slot | the slot's last reader of the device input is done |
//! | copy-in | where downloads are large: wait `done` of the batch 2 × slots − 1 before, if its use has not ended | nothing: uploads keep step with downloads, see [`Core::build`] |
//! | copy-in | copy staging → slot input (from a batcher: each run of rows → slot input) | |
//! | copy-in | record `uploaded` of the staging | the staging is free after it |
//! | compute | wait `uploaded` of the staging | the input is there |
//! | compute | wait `done` of the slot's last result, if its use has not ended | the slot's device output has been read |
//! | compute | launch the program on the slot | |
//! | compute | record `computed` of the slot | |
//! | copy-out | wait `computed` of the slot | the output is there |
//! | copy-out | copy slot output → result | |
//! | copy-out | record `done` of the result | the ticket waits on this one |
//! | copy-out | with [`Waiting::Callback`] only: call back | whoever sleeps looks at `done` |
//!
//! An event belongs to the buffer whose use it ends, so nobody waits on an event that a later batch has recorded
//! again. The ring sees devices and programs only; it runs the same on every device.

mod acquire;
mod batch;
mod batcher;
mod completion;
mod credits;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod hazard_tests;
mod health;
mod measure;
mod measure_calls;
#[cfg(all(test, shuttle))]
mod model_check;
#[cfg(feature = "ffi")]
mod origin;
mod output;
mod prefetch;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod semantics_tests;
mod ticket;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Device, Event, HostBuffer, Note, POLL, Priority, Program, Run, Signal, Stream, during};
use crate::error::{Credits, Error};
use crate::sync::{Condvar, Mutex, lock, thread};
use crate::tensor::{OutputKind, TensorSpec};

pub use batch::Batch;
pub use batcher::{Batcher, BatcherBuilder, BatcherStats, Request, Row, RowOutput, RowPriority, RowTicket, WhenFull};
pub use health::Health;
pub use measure::Stage;
#[cfg(feature = "ffi")]
pub(crate) use origin::Origin;
pub use output::Output;
pub use prefetch::{Prefetch, prefetch, prefetch_scoped};
pub use ticket::Ticket;
pub use waiting::Waiting;

use batch::Gathered;
use completion::Completion;
use credits::{Lent, State};

/// What becomes of the work in flight when a ring is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// It is finished, and its tickets give their results.
    Drain,
    /// It is finished too, for the device cannot be stopped, but its tickets answer [`Error::Closed`].
    Abort,
}

/// What a ring is made of.
pub(crate) struct RingSpec {
    pub staging: usize,
    pub results: usize,
    pub priority: Priority,
    pub acquire_limit: Duration,
    pub waiting: Waiting,
    pub output_kind: OutputKind,
    /// Rows that producers write.
    pub input: TensorSpec,
    /// Rows that consumers read.
    pub output: TensorSpec,
}

/// The ring itself: shared by the engine and by every batch, ticket and output of it, dropped with the last of them.
pub(crate) struct Core {
    device: Device,
    program: Arc<dyn Program>,
    spec: RingSpec,
    copy_in: Stream,
    compute: Stream,
    copy_out: Stream,
    staging: Vec<Staging>,
    /// `computed` of each slot.
    slots: Vec<Event>,
    results: Vec<ResultBuffer>,
    /// Which buffers are whose. Held for a few instructions, never over a wait for the device.
    state: Mutex<State>,
    /// Told of each credit that comes free while producers sleep, of a fault, and of the end.
    changed: Condvar,
    /// Held while a batch is enqueued, so that batches are in the same order on all three streams.
    order: Mutex<Order>,
    completion: Completion,
    /// How many batches before it the download ended that an upload starts with, if it waits for one.
    abreast: Option<usize>,
}

/// A page-locked input. Written by the one producer that holds its credit, then read by the copy engine until
/// `uploaded`.
struct Staging {
    buffer: HostBuffer,
    uploaded: Event,
}

/// A page-locked output. Written by the copy engine until `done`, then read by the one holder of its ticket.
struct ResultBuffer {
    buffer: HostBuffer,
    done: Event,
    /// Fired behind `done`, where threads wait for that.
    signal: Arc<Signal>,
}

struct Order {
    /// Batches enqueued so far.
    number: u64,
    next_slot: usize,
    /// The submissions that came last, oldest first: their results and those results' uses.
    recent: VecDeque<Lent>,
}

impl Order {
    /// The submission so many batches before the next one.
    fn before(&self, batches: usize) -> Option<Lent> {
        self.recent.len().checked_sub(batches).map(|index| self.recent[index])
    }
}

impl Core {
    /// Allocates streams, events and page-locked memory for `program`.
    ///
    /// A download that ends while an upload is under way is told of late, for its last writes queue behind the reads of
    /// the upload: some 10 us on a PCIe 5 link, in which nothing is downloaded. Where downloads may be what bounds the
    /// ring, an upload therefore starts with a download: when the one 2 × slots − 1 batches before its own has ended.
    /// Left alone, a bounded ring settles with its uploads starting in the middle of downloads, one batch earlier, so
    /// that nothing is lost by the wait.
    pub fn build(device: &Device, program: Arc<dyn Program>, spec: RingSpec) -> Result<Arc<Self>, Error> {
        let completion = Completion::start(spec.results, spec.waiting)?;
        Self::build_with(device, program, spec, completion)
    }

    fn build_with(
        device: &Device,
        program: Arc<dyn Program>,
        spec: RingSpec,
        completion: Completion,
    ) -> Result<Arc<Self>, Error> {
        let rows = *program.batch_sizes().last().expect("a program has a batch size");
        let stream = |what| Stream::new(device, spec.priority, what);
        let staging = (0..spec.staging)
            .map(|_| {
                let buffer = HostBuffer::new(device, rows * spec.input.row_pitch)?;
                Ok(Staging { buffer, uploaded: Event::new(device)? })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let results = (0..spec.results)
            .map(|_| {
                let buffer = HostBuffer::new(device, rows * spec.output.row_pitch)?;
                Ok(ResultBuffer { buffer, done: Event::new(device)?, signal: Arc::default() })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let slots = (0..program.slots()).map(|_| Event::new(device)).collect::<Result<Vec<_>, _>>()?;
        let keep = 2 * slots.len() - 1;
        let order = Order { number: 0, next_slot: 0, recent: VecDeque::with_capacity(keep + 1) };
        let downloads_are_large = 2 * spec.output.row_pitch >= spec.input.row_pitch;
        device.note(Note::Published);
        Ok(Arc::new(Self {
            device: device.clone(),
            copy_in: stream("trefoil-copy-in")?,
            compute: stream("trefoil-compute")?,
            copy_out: stream("trefoil-copy-out")?,
            state: Mutex::new(State::new(spec.staging, spec.results)),
            changed: Condvar::new(),
            order: Mutex::new(order),
            completion,
            abreast: (slots.len() > 1 && downloads_are_large).then_some(keep),
            program,
            spec,
            staging,
            slots,
            results,
        }))
    }

    /// The largest batch.
    pub fn capacity(&self) -> usize {
        *self.program.batch_sizes().last().expect("a program has a batch size")
    }

    /// The batch sizes, ascending.
    pub fn batch_sizes(&self) -> &[usize] {
        self.program.batch_sizes()
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What it is made of.
    pub fn spec(&self) -> &RingSpec {
        &self.spec
    }

    /// Takes no more work, and waits until the device has finished what is in flight, up to `limit`.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        {
            let closed = &mut lock(&self.state).closed;
            *closed = if how == Close::Abort { Some(how) } else { closed.or(Some(how)) };
        }
        drop(lock(&self.order)); // a submit that saw the ring open has enqueued by now, and is counted below
        self.changed.notify_all();
        loop {
            self.device.healthy()?;
            let credits = self.credits()?;
            if credits.in_flight == 0 {
                return Ok(());
            }
            if start.elapsed() >= limit {
                return Err(Error::Timeout { operation: "close", waited: start.elapsed(), credits });
            }
            thread::sleep(POLL);
        }
    }

    /// Enqueues a filled batch of `rows`: the calls of the table above. Never waits for the device.
    fn submit(
        self: &Arc<Self>,
        staging: usize,
        lent: Lent,
        rows: usize,
        gathered: Option<&Gathered<'_>>,
    ) -> Result<Ticket, Error> {
        self.device.note(Note::End(self.staging[staging].buffer.span()));
        let mut order = lock(&self.order);
        let number = order.number;
        if self.is_closed(staging, lent) {
            return Err(Error::Closed);
        }
        let healthy = self.device.healthy();
        let enqueue = || self.enqueue_noted(&mut order, staging, lent, rows, gathered);
        let enqueued = healthy.and_then(|()| during(number, enqueue));
        let mut state = lock(&self.state);
        match enqueued {
            Ok(()) => {
                state.submitted(staging, lent, number);
                self.upload_began(&mut state);
                drop((state, order));
                Ok(Ticket::new(self.clone(), lent, number, rows))
            }
            Err(error) => {
                state.lost(lent);
                drop((state, order));
                self.changed.notify_all(); // a fault to hear of
                Err(self.device.fault().unwrap_or(error))
            }
        }
    }

    /// Whether the ring takes no more work; then the credits of the batch that came too late are free again.
    fn is_closed(&self, staging: usize, lent: Lent) -> bool {
        let mut state = lock(&self.state);
        let closed = state.closed.is_some();
        if closed {
            state.returned(staging, lent);
        }
        closed
    }

    /// Tells the device's wrappers which batch it is that is enqueued.
    fn enqueue_noted(
        &self,
        order: &mut Order,
        staging: usize,
        lent: Lent,
        rows: usize,
        gathered: Option<&Gathered<'_>>,
    ) -> Result<(), Error> {
        let (number, slot) = (order.number, order.next_slot);
        let (input, output) = (self.staging[staging].buffer.span(), self.results[lent.result].buffer.span());
        self.device.note(Note::Batch { number, slot, rows, staging: input, result: output });
        let enqueued = self.enqueue(order, staging, lent, rows, gathered);
        self.device.note(Note::Enqueued);
        enqueued
    }

    fn enqueue(
        &self,
        order: &mut Order,
        staging: usize,
        lent: Lent,
        rows: usize,
        gathered: Option<&Gathered<'_>>,
    ) -> Result<(), Error> {
        let slot = order.next_slot;
        let abreast = self.abreast.and_then(|batches| order.before(batches));
        let abreast = abreast.filter(|before| lock(&self.state).is_current(*before));
        let last = order.before(self.slots.len()).filter(|last| {
            let current = lock(&self.state).is_current(*last);
            if !current {
                // Its reader has seen `done` and given the credit back, under the lock just held.
                self.device.note(Note::Taken(self.results[last.result].buffer.span()));
            }
            current
        });
        let size = self.program.batch_sizes().partition_point(|&size| size < rows);
        let (staging, computed, result) = (&self.staging[staging], &self.slots[slot], &self.results[lent.result]);
        let bytes_in = rows * self.spec.input.row_pitch;
        let bytes_out = rows * self.spec.output.row_pitch;

        self.copy_in.wait(computed)?;
        if let Some(before) = abreast {
            self.copy_in.wait(&self.results[before.result].done)?;
        }
        // SAFETY: both buffers live as long as self, which the ticket holds until `done`; the staging's credit is
        // held until `uploaded`; the slot input's last reader is ordered before by `computed`.
        // Gathered rows are kept alive and unwritten by the caller of `Batch::submit_gathered`.
        unsafe {
            match gathered {
                None => self.copy_in.copy_in(self.program.input(slot), &staging.buffer, bytes_in)?,
                Some(gathered) => {
                    gathered.upload(&self.copy_in, self.program.input(slot), self.spec.input.row_pitch)?
                }
            }
        };
        staging.uploaded.record(&self.copy_in)?;

        self.compute.wait(&staging.uploaded)?;
        if let Some(last) = last {
            self.compute.wait(&self.results[last.result].done)?;
        }
        self.compute.launch(&self.program, Run { slot, size, rows })?;
        computed.record(&self.compute)?;

        self.copy_out.wait(computed)?;
        // SAFETY: both buffers live as long as self, which the ticket holds until `done`; the result's credit is held
        // until its output is dropped; the slot output's writer is ordered before by `computed`.
        unsafe { self.copy_out.copy_out(&result.buffer, self.program.output(slot), bytes_out)? };
        result.done.record(&self.copy_out)?;
        if self.spec.waiting == Waiting::Callback {
            self.copy_out.notify(&result.signal)?;
        }

        order.number += 1;
        if order.recent.len() == 2 * self.slots.len() - 1 {
            order.recent.pop_front();
        }
        order.recent.push_back(lent);
        order.next_slot = (slot + 1) % self.slots.len();
        Ok(())
    }

    /// What is where, asking the device which of the submissions have finished.
    pub fn credits(&self) -> Result<Credits, Error> {
        self.count(&mut lock(&self.state))
    }

    fn count(&self, state: &mut State) -> Result<Credits, Error> {
        let mut credits = state.count();
        for result in state.in_flight() {
            if self.results[result].done.is_done()? {
                credits.in_flight -= 1;
                credits.unread += 1;
            }
        }
        Ok(credits)
    }
}
