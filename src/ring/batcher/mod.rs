//! The batcher: forms batches of single rows from many threads.
//!
//! A batcher has rows of page-locked memory of its own. A producer claims one, writes it, and commits it to the queue;
//! there it waits until its batch closes. Nothing else about a row is fixed before that: the batch takes the rows that
//! are committed then, high priority first, sorts them by place in memory and uploads each run of neighbours by one
//! copy into the slot's rows 0, 1, …. So
//! - only committed rows are uploaded and computed, and none is ever moved on the host: a row that is claimed and not
//!   committed belongs to no batch, is not read by the device, stays writable by its owner and delays nobody;
//! - dropping it, also by a panic, only gives its memory back;
//! - the queue is here, not on the device, so deadlines and priorities count until a batch closes. At most
//!   `in_flight` batches are handed to the ring at once, for what is enqueued cannot be recalled.
//!
//! The batcher is work-conserving. While the device has nothing to do, what is queued leaves at once. While it is busy,
//! rows gather until it is about to be free: what uploads and runs of each batch size take is learnt from the batches
//! themselves ([`pace`]). Of several compute streams, one is free while another runs: a batch leaves for it at once where
//! both gain by being side by side, unless clients that were just answered are about to come back with rows that make it
//! better. A batch also leaves when it is full, `max_delay` after its first commit, or when half of the
//! time to a row's deadline is gone. A full batch waits for nothing but `in_flight`, any other for all but one of those
//! before it. Rows that would make a batch take the next size, and lower its rows a second, are left to the next batch.
//! What the device is done with is told by an event behind the batch's download: then its rows are free for new claims
//! and its tickets have their answers.
//!
//! If a batcher has nothing in flight, or a free compute stream and no client that is expected to come back, the thread
//! that commits a row submits the batch: no other thread has to wake for it. Two threads do the rest: `trefoil-batch-N`
//! submits all other batches and measures uploads, `trefoil-rows-N` waits for them in order; with `Waiting::Block` it
//! is awake when a batch is expected to be done.
//! One lock guards the books, for a few instructions at a time; pixels are written, wakers woken and outputs
//! dropped without it. In steady state the only allocation is one `Arc` a batch.

mod builder;
mod close;
mod line;
#[cfg(test)]
mod overload_tests;
mod pace;
mod places;
mod row;
mod serve;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod ticket;

use std::sync::Arc;
use std::time::Instant;

use super::{Close, Core};
use crate::device::{HostBuffer, Note, Span};
use crate::error::Error;
use crate::sync::{Condvar, Mutex, lock, thread};
use crate::tensor::RowSpec;

pub use builder::{BatcherBuilder, WhenFull};
pub use row::{Request, Row};
pub use state::RowPriority;
pub use stats::BatcherStats;
pub use ticket::{RowOutput, RowTicket};

pub(crate) use state::{BatcherState as Books, Bounds, News, Next, Queued, Wake};

use serve::Sender;
use state::BatcherState;

/// Takes single rows from any number of threads and runs them in batches; [`Engine::batcher`](crate::Engine::batcher)
/// builds it.
///
/// A batcher is `Send` and `Sync`. Dropping it does not wait: committed rows are still computed, and every ticket is
/// answered. [`Batcher::close`] waits for that.
///
/// ```no_run
/// use std::time::Duration;
/// use trefoil::{Engine, RowPriority, model::Model};
///
/// let model = Model::open("weights/efficientnet-lite0")?;
/// let engine = Engine::builder(&model).build()?;
/// let batcher = engine.batcher().max_delay(Duration::from_millis(2)).build()?;
///
/// let pixels = vec![127; batcher.input().row_bytes];
/// let best = batcher.submit(&pixels)?.wait()?.top_k(1)?; // copied once, into page-locked memory
///
/// let mut row = batcher.row()?; // or written there in the first place
/// row.bytes_mut().fill(127);
/// let ticket = row.deadline(Duration::from_millis(15)).priority(RowPriority::High).submit()?;
/// assert_eq!(ticket.wait()?.top_k(1)?, best);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// Rows with different dimensions, at different [sizes](crate::EngineBuilder::sizes) of the engine, do not share a
/// batch: each set of free dimensions has its own memory, queue and threads.
pub struct Batcher {
    /// The rows of each of the ring's buckets.
    shared: Vec<Arc<Shared>>,
}

/// The state that the batcher, its threads, rows and tickets share, for the rows of one bucket.
struct Shared {
    core: Arc<Core>,
    /// The bucket of the rows.
    bucket: usize,
    /// Identifies the batcher; all its buckets share it.
    #[cfg_attr(
        not(any(feature = "ffi", test)),
        expect(dead_code, reason = "programs in C ask where a ticket is from")
    )]
    identity: Arc<()>,
    bounds: Bounds,
    when_full: WhenFull,
    /// The number of page-locked rows.
    places: usize,
    /// The page-locked rows. Each is accessed only by the [`Row`] that claimed it, and from commit to delivery only by
    /// the device. It is in an `Arc` so that it can be left to a failed device.
    rows: Arc<HostBuffer>,
    state: Mutex<BatcherState>,
    /// Locked by a thread that sends a batch until the batch is in the flights or taken back, so that these have the
    /// ring's order.
    sender: Mutex<Sender>,
    /// Wakes the batching thread for commits, delivered batches, and the end.
    work: Condvar,
    /// Wakes the delivering thread for submitted batches, and the end.
    flown: Condvar,
    /// Wakes threads that wait until nothing is queued or in flight.
    room: Condvar,
}

impl Batcher {
    /// Submits one row: a copy of `pixels` into page-locked memory, then [`Row::submit`].
    ///
    /// # Errors
    /// [`Error::Option`] if `pixels` is not one row long; else as for [`Batcher::row`].
    pub fn submit(&self, pixels: &[u8]) -> Result<RowTicket, Error> {
        self.request().submit(pixels)
    }

    /// Submits many rows in one call, in order, each as [`Batcher::submit`] does, but with the locks and the wake-up of
    /// a single row for up to a batch of rows. If no row is free, [`BatcherBuilder::when_full`] says what happens.
    ///
    /// A call that waits for free rows holds the answers to its earlier rows meanwhile, and with them result buffers of
    /// the engine. If such calls together hold all of them, rows fail with [`Error::Timeout`] after the engine's
    /// [`acquire_limit`](crate::EngineBuilder::acquire_limit): submit at most as many rows at once as the batcher has,
    /// or give the engine more [`results`](crate::EngineBuilder::results).
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// # let cpu = Device::open(Target::Cpu)?;
    /// # let engine = Engine::builder(&model).on(&cpu).build()?;
    /// let batcher = engine.batcher().build()?;
    /// let images = vec![vec![127; batcher.input().row_bytes]; 10];
    /// let rows: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    /// for ticket in batcher.submit_rows(&rows) {
    ///     println!("{:?}", ticket?.wait()?.top_k(1));
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// For each row, as for [`Batcher::submit`]; the error of one row does not affect the others.
    pub fn submit_rows(&self, rows: &[&[u8]]) -> Vec<Result<RowTicket, Error>> {
        self.request().submit_rows(rows)
    }

    /// Lends a row to be written in place. The row need not be committed soon, or at all: nothing waits for it.
    ///
    /// # Errors
    /// If no row is free, as [`BatcherBuilder::when_full`] says: [`Error::Full`], or [`Error::Timeout`] past the
    /// limit. [`Error::Closed`] if it was closed; [`Error::Fault`] if the device is out of use.
    pub fn row(&self) -> Result<Row, Error> {
        self.request().row()
    }

    /// Starts a submission with a deadline or a priority.
    pub fn request(&self) -> Request<'_> {
        Request::new(&self.shared)
    }

    /// The layout of a row; if there are several sizes, that of the first size.
    pub fn input(&self) -> &RowSpec {
        self.shared[0].input()
    }

    /// The number of rows in the largest batch; if there are several sizes, at the dimensions of the first one.
    pub fn capacity(&self) -> usize {
        self.shared[0].bounds.full
    }

    /// The number of committed rows that are not yet in a batch.
    pub fn queued(&self) -> usize {
        self.shared.iter().map(|shared| lock(&shared.state).queued()).sum()
    }

    /// The batcher that its tickets belong to.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn origin(&self) -> super::Origin {
        super::Origin::of_batcher(&self.shared[0].core, &self.shared[0].identity)
    }

    /// Stops accepting rows, as if the batcher were dropped.
    pub(crate) fn stop(&self) {
        self.shared.iter().for_each(|shared| shared.stop(Close::Drain));
    }

    /// Counts of the batcher's work so far.
    pub fn stats(&self) -> BatcherStats {
        let mut all = lock(&self.shared[0].state).counters.clone();
        self.shared[1..].iter().for_each(|shared| all.add(&lock(&shared.state).counters));
        all.stats()
    }
}

impl Shared {
    /// Takes a free row. If there is none, waits for one as the options say, at most until `deadline`, or not at all if
    /// `at_once`.
    fn claim(&self, priority: RowPriority, deadline: Option<Instant>, at_once: bool) -> Result<usize, Error> {
        let start = Instant::now();
        let limit = match self.when_full {
            _ if at_once => Some(start),
            WhenFull::Wait => None,
            WhenFull::WaitFor(limit) => start.checked_add(limit),
            WhenFull::Reject => Some(start),
        };
        let until = [limit, deadline].into_iter().flatten().min();
        self.core.device.healthy()?;
        let mut state = lock(&self.state);
        let (mut submits, mut in_line) = (None, None);
        let claimed = loop {
            if let Err(error) = state.open() {
                break Err(error);
            }
            let row = match in_line {
                None => state.claim(),
                Some(number) => state.claim_kept(number),
            };
            if row.is_some() {
                break Ok(row);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                break Ok(None);
            }
            submits.get_or_insert_with(|| self.core.order.underway());
            in_line.get_or_insert_with(|| state.wait_in_line(priority, thread::current()));
            drop(state);
            match until {
                None => thread::park(),
                Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
            }
            state = lock(&self.state);
        };
        if let Some(number) = in_line
            && !matches!(claimed, Ok(Some(_)))
        {
            state.leave_line(number);
        }
        if let Some(row) = claimed? {
            return Ok(row);
        }
        let late = deadline.and_then(|deadline| Instant::now().checked_duration_since(deadline));
        *(if late.is_some() { &mut state.counters.expired } else { &mut state.counters.rejected }) += 1;
        drop(state);
        Err(match (late, self.when_full) {
            (Some(late), _) => Error::Deadline { late },
            (None, WhenFull::Reject) => Error::Full { rows: self.places },
            (None, _) => {
                let behind = submits.and_then(|submits| self.core.order.call_of(submits));
                self.core.late("row", start.elapsed(), behind)
            }
        })
    }
}

impl Shared {
    /// The layout of its rows.
    fn input(&self) -> &RowSpec {
        &self.core.bucket(self.bucket).input
    }

    /// Takes up to `count` free rows.
    fn claim_more(&self, count: usize) -> Vec<usize> {
        let mut state = lock(&self.state);
        std::iter::from_fn(|| state.claim()).take(count).collect()
    }

    /// Reports to the device's wrappers what is done with a page-locked row.
    fn note_row(&self, row: usize, note: impl FnOnce(Span) -> Note) {
        let pitch = self.input().row_pitch;
        self.core.device.note(note(self.rows.span_of(row * pitch, pitch)));
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if lock(&self.state).in_flight() > 0 {
            // This happens only after a fault or because of a bug: nothing proves that the device has stopped using the
            // rows.
            std::mem::forget(self.rows.clone());
        }
    }
}

impl std::fmt::Debug for Batcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batcher").field("bounds", &self.shared[0].bounds).field("input", &self.input()).finish()
    }
}
