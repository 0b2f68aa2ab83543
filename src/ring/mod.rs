//! The ring: staging buffers, slots and results that keep copy-in, compute and copy-out busy at the same time.
//!
//! A ring has three kinds of buffers, each with a number of its own:
//! - **staging**: page-locked inputs that producers fill; free again when their upload is done;
//! - **slots**: device input, device output and one launchable program variant for each size; host code never
//!   holds one;
//! - **results**: page-locked outputs; free again when the [`Output`] is dropped.
//!
//! The calls of one batch, in order, all made by [`Core::enqueue`]:
//!
//! | stream | call | orders |
//! |---|---|---|
//! | copy-in | wait `computed` of the slot, of each program that reads the upload | the slot's last reader of the device input is done |
//! | copy-in | where downloads are large: wait `done` of the batch 2 × slots − 1 before, if its use has not ended | nothing: uploads keep step with downloads, see [`Core::build`] |
//! | copy-in | copy staging → slot input (from a batcher: each run of rows → slot input) | |
//! | copy-in | record `uploaded` of the staging | the staging is free after it |
//! | compute | wait `uploaded` of the staging, or `computed` of the slot of each program that it reads | the input is there |
//! | compute | wait `computed` of the slot of each program that reads it | the slot's last reader of its output is done |
//! | compute | wait `done` of the slot's last result, if its use has not ended, unless programs read it | the slot's device output has been read |
//! | compute | on several compute streams, for a batch in turn: wait `computed` of the slot before | nothing: see [`Batch::compute_in_turn`] |
//! | compute | where states are due to be zeros: copy zeros → state, of each | |
//! | compute | launch the program on the slot | |
//! | compute | record `computed` of the slot | |
//! | copy-out | wait `computed` of the slot, of each program that no other reads | the output is there |
//! | copy-out | copy slot output → result, of each of these | |
//! | copy-out | record `done` of the result | the ticket waits on this one |
//! | copy-out | with [`Waiting::Callback`] only: call back | whoever sleeps looks at `done` |
//!
//! With rows that are in device memory already, and results that stay there, a caller's stream takes the place of copy-in,
//! and the last copy is one on the device:
//!
//! | stream | call | orders |
//! |---|---|---|
//! | the caller's | wait `computed` of the slot, of each program that reads the upload | as above |
//! | the caller's | copy the caller's rows → slot input | the caller's own work, before and after |
//! | the caller's | record `uploaded` of the staging, which is not used | |
//! | compute | as above | |
//! | copy-out | wait `read` of the result | whoever read the last result there is done |
//! | copy-out | wait `computed` of the slot; copy slot output → result on the device; record `done` | |
//! | a caller's | wait `done` of the result | [`DeviceOutput::wait_on`]: the result is there |
//! | a caller's | record `read` of the result | [`DeviceOutput::read_on`]: see above |
//!
//! Each event belongs to the buffer whose use it ends, so nothing waits on an event that a later batch has recorded
//! again. There is one exception: if results stay on the device, a result may be in use again while compute waits for
//! its `done`. Such a wait follows the order of copy-out, so it never ends too early; with fewer results than slots it
//! may end later than necessary. The ring knows only devices and programs, and runs the same on every device.
//!
//! A program may have several compute streams, which the slots use in turn: slot i computes on stream i modulo their
//! number, and uses only the part of the program's memory that belongs to that stream. So no further ordering edge is
//! needed: two batches are ordered by their slot or by the copies, which have one stream in each direction, and
//! downloads stay in the order of submission.
//!
//! A program may keep states from one run to the next ([`Program::states`]). Such a program has one compute stream,
//! which orders its runs, the copies of zeros to its states, and the host's copies from and to the states
//! ([`Core::read_state`]), so no further ordering edge is needed.
//!
//! A ring has one program, or several ([`Node`]). With several, it makes the calls on the compute stream for each
//! program, in order, on streams of the program's own, and successive batches overlap there too.
//!
//! The file is long because it has the table of all that waits for something, and builds the ring by it.

mod acquire;
mod batch;
mod batcher;
mod bucket;
mod completion;
mod credits;
#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod faults;
mod flow;
#[cfg(test)]
mod hazard_tests;
mod health;
mod measure;
mod measure_calls;
#[cfg(all(test, shuttle))]
mod model_check;
mod on_device;
#[cfg(any(feature = "ffi", test))]
mod origin;
mod output;
mod peers;
mod prefetch;
mod rings;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod semantics_tests;
#[cfg(test)]
mod sizes_tests;
mod states;
mod ticket;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Device, Event, HostBuffer, Note, POLL, Priority, Program, Run, Signal, Stream, during};
use crate::error::{Credits, Error};
use crate::sync::{Condvar, Mutex, Turns, lock, thread};
use crate::tensor::OutputKind;

/// The least limit for which a submission waits for other threads' submissions, which take microseconds unless a driver
/// call hangs.
const LEAST_LIMIT: Duration = Duration::from_millis(100);

pub use batch::Batch;
pub use batcher::{Batcher, BatcherBuilder, BatcherStats, Request, Row, RowOutput, RowPriority, RowTicket, WhenFull};
pub(crate) use batcher::{Books, Bounds, News, Next, Queued, Wake};
pub(crate) use bucket::{Buckets, RowBucket};
pub(crate) use flow::Node;
pub use health::Health;
pub use measure::Stage;
pub use on_device::DeviceOutput;
#[cfg(any(feature = "ffi", test))]
pub(crate) use origin::Origin;
pub use output::{Output, OutputPart};
pub use peers::DeviceStats;
pub(crate) use peers::Peers;
pub use prefetch::{Prefetch, prefetch, prefetch_scoped};
pub(crate) use rings::Rings;
pub use ticket::Ticket;
pub use waiting::Waiting;

use batch::{Source, Submission};
use bucket::Extent;
use completion::Completion;
use credits::{CreditState, Lent};
use flow::Runner;
use on_device::OnDevice;
use states::States;

/// What happens to the tickets of work in flight when an engine or batcher is closed.
///
/// ```
/// use trefoil::{Close, Error};
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let limit = std::time::Duration::from_secs(60);
/// let engine = Engine::builder(&model).on(&cpu).build()?;
/// let ticket = engine.acquire()?.submit(1)?;
/// engine.close(Close::Abort, limit)?; // `Close::Drain` would leave the ticket its result
/// assert!(matches!(ticket.wait(), Err(Error::Closed)));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The device finishes the work, and tickets give their results.
    Drain,
    /// The device finishes the work too, because it cannot be stopped, but tickets return [`Error::Closed`].
    Abort,
}

/// The options of a ring.
pub(crate) struct RingSpec {
    pub staging: usize,
    pub results: usize,
    pub priority: Priority,
    pub acquire_limit: Duration,
    pub waiting: Waiting,
    pub output_kind: OutputKind,
    /// The rows that producers write and that consumers read, for each bucket.
    pub buckets: Buckets,
    /// The number of classes of each output, for the checks of results.
    pub classes: Vec<usize>,
    /// Whether results can stay on the device.
    pub device_results: bool,
    /// Set for a ring of a fleet: the signal to fire for each credit that becomes free. Such a ring keeps staging until
    /// the answer is there.
    pub freed: Option<Arc<Signal>>,
}

/// The ring itself. The engine and all its batches, tickets and outputs share it; it is dropped with the last of them.
pub(crate) struct Core {
    device: Device,
    spec: RingSpec,
    copy_in: Stream,
    /// The programs, in the order of their calls.
    runners: Vec<Runner>,
    copy_out: Stream,
    staging: Vec<Staging>,
    results: Vec<ResultBuffer>,
    /// The states of the programs; `None` if no program has states.
    states: Option<States>,
    /// The owners of all buffers. Locked for a few instructions, never during a call of the device.
    state: Mutex<CreditState>,
    /// Notified of each credit that becomes free while producers sleep, of a fault, and of the end.
    changed: Condvar,
    /// Held by a thread that enqueues a batch, so that batches are in the same order on all three streams. It is held
    /// during calls of the device, of which one may never return.
    order: Turns<Submitted>,
    completion: Completion,
    /// If uploads wait for downloads: how many batches earlier the batch is whose download an upload waits for.
    abreast: Option<usize>,
}

/// A page-locked input buffer. The producer that holds its credit writes it; then the copy engine reads it until
/// `uploaded`.
/// `uploaded`.
struct Staging {
    buffer: HostBuffer,
    uploaded: Event,
}

/// A page-locked output buffer. The copy engine writes it until `done`; then the holder of its ticket reads it.
struct ResultBuffer {
    buffer: HostBuffer,
    done: Event,
    /// The signal that is fired after `done`, if threads wait for a callback.
    signal: Arc<Signal>,
    /// The device buffer for results that stay on the device, if the ring was built for that.
    device: Option<OnDevice>,
}

struct Submitted {
    /// The number of batches enqueued so far.
    number: u64,
    next_slot: usize,
    /// Whether the states have to be set to zeros for the next batch.
    zeros_are_due: bool,
    /// The last submissions, oldest first.
    recent: VecDeque<Recent>,
}

/// A submission that was enqueued.
#[derive(Clone, Copy)]
struct Recent {
    /// The submission's result buffer, and the use of the buffer.
    lent: Lent,
    /// Whether the result stays on the device. Then the host may not know that it is done when its use has ended.
    to_device: bool,
}

impl Submitted {
    /// The submission that is `batches` before the next one.
    fn before(&self, batches: usize) -> Option<Recent> {
        self.recent.len().checked_sub(batches).map(|index| self.recent[index])
    }
}

impl Core {
    /// Builds a ring: allocates its streams, events and page-locked memory. The spec has the outputs of the programs
    /// whose outputs no other program reads, in order.
    ///
    /// The host learns late of a download that ends while an upload runs, because the last writes of the download queue
    /// behind the reads of the upload: some 10 us on a PCIe 5 link, in which nothing is downloaded. Where downloads may
    /// bound the ring, an upload therefore starts together with a download: when the download of the batch 2 × slots −
    /// 1 before its own has ended. Without this wait, a ring that downloads bound settles with uploads that start in
    /// the middle of downloads, one batch earlier, so that the wait loses nothing.
    pub fn build_flow(device: &Device, nodes: Vec<Node>, spec: RingSpec) -> Result<Arc<Self>, Error> {
        let completion = Completion::start(spec.results, spec.waiting)?;
        Self::build_with(device, nodes, spec, completion)
    }

    /// Builds a ring of one program.
    pub fn build(device: &Device, program: Arc<dyn Program>, spec: RingSpec) -> Result<Arc<Self>, Error> {
        Self::build_flow(device, vec![Node { program, reads: Vec::new() }], spec)
    }

    fn build_with(
        device: &Device,
        nodes: Vec<Node>,
        spec: RingSpec,
        completion: Completion,
    ) -> Result<Arc<Self>, Error> {
        let [input_bytes, output_bytes] =
            spec.buckets.bytes().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let sizes: Vec<usize> = spec.buckets.sizes().map(|size| size.batch()).collect();
        assert!(
            nodes.iter().all(|node| node.program.batch_sizes() == sizes),
            "programs of other sizes than the ring's"
        );
        let slots = nodes[0].program.slots();
        let stream = |what| Stream::new(device, spec.priority, what);
        let staging = (0..spec.staging)
            .map(|_| {
                let buffer = HostBuffer::new(device, input_bytes)?;
                Ok(Staging { buffer, uploaded: Event::new(device)? })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let results = (0..spec.results)
            .map(|_| {
                let buffer = HostBuffer::new(device, output_bytes)?;
                let on_device = spec.device_results.then(|| OnDevice::new(device, output_bytes)).transpose()?;
                Ok(ResultBuffer { buffer, done: Event::new(device)?, signal: Arc::default(), device: on_device })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let copy_in = stream("trefoil-copy-in")?;
        let runners = Runner::all(device, spec.priority, nodes)?;
        let downloaded = runners.iter().filter(|runner| runner.is_downloaded()).count();
        assert_eq!(downloaded, spec.buckets.first().outputs.len(), "programs that no other reads, and outputs");
        let keep = 2 * slots - 1;
        let order =
            Submitted { number: 0, next_slot: 0, zeros_are_due: true, recent: VecDeque::with_capacity(keep + 1) };
        let states = States::new(device, &runners)?;
        let downloads_are_large = 2 * output_bytes >= input_bytes;
        device.note(Note::Published);
        Ok(Arc::new(Self {
            device: device.clone(),
            copy_in,
            runners,
            copy_out: stream("trefoil-copy-out")?,
            state: Mutex::new(CreditState::new(spec.staging, spec.results)),
            changed: Condvar::new(),
            order: Turns::new(order),
            completion,
            abreast: (slots > 1 && downloads_are_large).then_some(keep),
            spec,
            staging,
            results,
            states,
        }))
    }

    /// The largest batch of the first bucket.
    pub fn capacity(&self) -> usize {
        self.bucket(0).capacity()
    }

    /// The batch sizes of the first bucket, ascending.
    pub fn batch_sizes(&self) -> &[usize] {
        &self.bucket(0).sizes.batch_sizes
    }

    /// The rows of a bucket.
    pub fn bucket(&self, index: usize) -> &RowBucket {
        self.spec.buckets.at(index)
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.runners[0].program.slots()
    }

    /// The number of streams on which batches are computed in turn.
    pub fn compute_streams(&self) -> usize {
        self.runners[0].streams()
    }

    /// The options of the ring.
    pub fn spec(&self) -> &RingSpec {
        &self.spec
    }

    /// Stops accepting work, and waits until the device has finished all work in flight, up to `limit`.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        {
            let closed = &mut lock(&self.state).closed;
            *closed = if how == Close::Abort { Some(how) } else { closed.or(Some(how)) };
        }
        self.tell_all();
        // A submission that found the ring open has been enqueued before this returns, and is counted below.
        self.order.take_within(limit).map_err(|behind| self.late("close", start.elapsed(), behind))?;
        loop {
            self.device.healthy()?;
            if self.credits()?.in_flight == 0 {
                return Ok(());
            }
            if start.elapsed() >= limit {
                return Err(self.late("close", start.elapsed(), None));
            }
            thread::sleep(POLL);
        }
    }

    /// The error of a wait that reached its limit: with the state of the credits, and the call of another thread's
    /// submission that it waited for.
    fn late(&self, operation: &'static str, waited: Duration, behind: Option<&'static str>) -> Error {
        match self.credits() {
            Ok(credits) => Error::Timeout { operation, waited, behind, credits },
            Err(fault) => fault,
        }
    }

    /// Enqueues a batch by the calls of the table above; returns its number. Never waits for the device. Waits for
    /// other threads' submissions for [`LEAST_LIMIT`] or longer.
    fn submit(self: &Arc<Self>, submission: &Submission<'_>) -> Result<u64, Error> {
        let &Submission { staging, lent, limit, .. } = submission;
        self.device.note(Note::End(self.staging[staging].buffer.span()));
        let mut order = self.order.take_within(limit.max(LEAST_LIMIT)).map_err(|behind| {
            let error = self.late("submit", limit.max(LEAST_LIMIT), behind);
            match error {
                Error::Fault { .. } => {
                    lock(&self.state).lost(lent); // a fleet runs the rows again, from the staging
                    self.tell_all();
                }
                _ => self.give_back(staging, lent),
            }
            error
        })?;
        let number = order.number;
        if self.is_closed() {
            self.give_back(staging, lent);
            return Err(Error::Closed);
        }
        let healthy = self.device.healthy();
        let enqueue = || {
            self.zero_states(&mut order)?;
            self.enqueue_noted(&mut order, submission)
        };
        let enqueued = healthy.and_then(|()| during(number, enqueue));
        let mut state = lock(&self.state);
        match enqueued {
            Ok(()) => {
                state.submitted(staging, lent, number);
                self.upload_began(&mut state);
                Ok(number)
            }
            Err(error) => {
                state.lost(lent);
                drop((state, order));
                self.tell_all(); // a fault to hear of
                Err(self.device.fault().unwrap_or(error))
            }
        }
    }

    /// Frees the credits of a batch that is not submitted.
    fn give_back(&self, staging: usize, lent: Lent) {
        let mut state = lock(&self.state);
        state.returned(staging, lent);
        self.tell_one(&state);
    }

    /// Enqueues a batch, and reports to the device's wrappers which batch it is.
    fn enqueue_noted(&self, order: &mut Submitted, submission: &Submission<'_>) -> Result<(), Error> {
        let &Submission { staging, lent, extent, .. } = submission;
        let (number, slot, rows) = (order.number, order.next_slot, extent.rows);
        let (input, output) = (self.staging[staging].buffer.span(), self.results[lent.result].buffer.span());
        let size = self.spec.buckets.size_for(extent);
        self.device.note(Note::Batch { number, slot, size, rows, staging: input, result: output });
        let enqueued = self.enqueue(order, submission);
        self.device.note(Note::Enqueued);
        enqueued
    }

    fn enqueue(&self, order: &mut Submitted, submission: &Submission<'_>) -> Result<(), Error> {
        let &Submission { staging, lent, extent, to_device, in_turn, .. } = submission;
        let (slot, rows, bucket) = (order.next_slot, extent.rows, self.bucket(extent.bucket));
        let last = order.before(self.slots()).filter(|last| {
            let current = last.to_device || lock(&self.state).is_current(last.lent);
            if !current {
                // Its reader has seen `done` and given the credit back, under the lock just held.
                self.device.note(Note::Taken(self.results[last.lent.result].buffer.span()));
            }
            current
        });
        let size = self.spec.buckets.size_for(extent);
        let (staging, result) = (&self.staging[staging], &self.results[lent.result]);

        match submission.from {
            Source::Device(from) => self.copy_from_device(from, extent, slot, &staging.uploaded)?,
            _ => self.upload(order, submission, slot)?,
        }

        let last = last.map(|last| &self.results[last.lent.result].done);
        for runner in &self.runners {
            if in_turn {
                runner.wait_for_turn(slot)?;
            }
            runner.enqueue(&self.runners, Run { slot, size, rows }, &staging.uploaded, last)?;
        }

        if let Some(there) = result.device.as_ref().filter(|_| to_device) {
            self.copy_out.wait(&there.read)?;
        }
        for (part, runner) in self.downloaded().enumerate() {
            let at = self.spec.buckets.output_at(part);
            let bytes = rows * bucket.outputs[part].row_pitch;
            self.copy_out.wait(&runner.computed[slot])?;
            let output = runner.program.output(slot);
            // SAFETY: both buffers live as long as self, which the ticket holds until `done`; the result's credit is
            // held until its output is dropped; the slot output's writer is ordered before by `computed`, and callers
            // that read a result on the device by `read`.
            unsafe {
                match result.device.as_ref().filter(|_| to_device) {
                    None => self.copy_out.copy_out_to(&result.buffer, at, output, bytes)?,
                    Some(there) => self.copy_out.copy_on_device(&there.buffer, at, output, bytes)?,
                }
            };
        }
        result.done.record(&self.copy_out)?;
        if self.spec.waiting == Waiting::Callback {
            self.copy_out.notify(&result.signal)?;
        }

        order.number += 1;
        if order.recent.len() == 2 * self.slots() - 1 {
            order.recent.pop_front();
        }
        order.recent.push_back(Recent { lent, to_device });
        order.next_slot = (slot + 1) % self.slots();
        Ok(())
    }

    /// Enqueues the upload of rows that are in page-locked memory.
    fn upload(&self, order: &Submitted, submission: &Submission<'_>, slot: usize) -> Result<(), Error> {
        let staging = &self.staging[submission.staging];
        let input = self.runners[0].program.input(slot);
        let Extent { bucket, rows } = submission.extent;
        let row_pitch = self.bucket(bucket).input.row_pitch;
        let abreast = self.abreast.and_then(|batches| order.before(batches));
        let abreast = abreast.filter(|before| lock(&self.state).is_current(before.lent));
        for runner in self.runners.iter().filter(|runner| runner.reads_upload()) {
            self.copy_in.wait(&runner.computed[slot])?;
        }
        if let Some(before) = abreast {
            self.copy_in.wait(&self.results[before.lent.result].done)?;
        }
        // SAFETY: both buffers live as long as self, which the ticket holds until `done`; the staging's credit is
        // held until `uploaded`; the slot input's last reader is ordered before by `computed`.
        // Gathered rows are kept alive and unwritten by the caller of `Batch::submit_gathered`.
        unsafe {
            match submission.from {
                Source::Gathered(gathered) => gathered.upload(&self.copy_in, input, row_pitch)?,
                _ => self.copy_in.copy_in(input, &staging.buffer, rows * row_pitch)?,
            }
        };
        staging.uploaded.record(&self.copy_in)
    }

    /// The programs whose outputs are downloaded, in order.
    fn downloaded(&self) -> impl Iterator<Item = &Runner> {
        self.runners.iter().filter(|runner| runner.is_downloaded())
    }

    /// The state of the credits. Asks the device which submissions have finished.
    pub fn credits(&self) -> Result<Credits, Error> {
        let (mut credits, in_flight) = lock(&self.state).count();
        for (result, is_held) in in_flight {
            if self.results[result].done.is_done().map_err(|error| self.device.fault().unwrap_or(error))? {
                credits.in_flight -= 1;
                credits.unread += usize::from(is_held);
            }
        }
        Ok(credits)
    }
}
