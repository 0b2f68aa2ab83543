//! The ticket of a row, and its result.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Shared;
use super::state::Wake;
use crate::error::Error;
use crate::ring::Output;
use crate::sync::{lock, thread};
#[cfg(any(feature = "ffi", test))]
use crate::tensor::OutputKind;
use crate::tensor::{Element, PortKey, RowSpec};

/// A row that is queued or in flight. Block until it is answered, ask whether it is, or await it as a future.
///
/// Dropping it abandons the result; a row still in the queue is then not uploaded.
///
/// ```no_run
/// # async fn f(batcher: trefoil::Batcher, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
/// let output = batcher.submit(&pixels)?.await?;
/// println!("{:?}", output.top_k(5)?);
/// # Ok(()) }
/// ```
/// It is not `Clone`, so each result has one reader:
/// ```compile_fail
/// # fn f(ticket: trefoil::RowTicket) -> Result<(), trefoil::Error> {
/// let output = ticket.wait()?;
/// ticket.wait()?; // `wait` took it
/// # Ok(()) }
/// ```
/// ```no_run
/// # fn f(ticket: trefoil::RowTicket) -> Result<(), trefoil::Error> {
/// let output = ticket.wait()?;
/// # Ok(()) }
/// ```
#[must_use = "a dropped ticket abandons its result"]
pub struct RowTicket {
    shared: Arc<Shared>,
    entry: usize,
    /// Whether the answer was taken, which also frees the entry.
    settled: bool,
}

impl RowTicket {
    pub(super) fn new(shared: Arc<Shared>, entry: usize) -> Self {
        Self { shared, entry, settled: false }
    }

    /// Blocks until the result is there.
    ///
    /// # Errors
    /// [`Error::Deadline`] if the deadline passed in the queue; [`Error::Timeout`] if the ring had no free credit for
    /// as long as the engine's `acquire_limit`; [`Error::Driver`] or [`Error::Fault`] if the device failed.
    pub fn wait(mut self) -> Result<RowOutput, Error> {
        self.wait_until(None).expect("no limit")
    }

    /// Blocks until the result is there or `limit` has passed; after the limit it returns the ticket.
    ///
    /// # Errors
    /// As for [`RowTicket::wait`].
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<RowOutput, Self>, Error> {
        match self.wait_until(Instant::now().checked_add(limit)) {
            Some(answer) => answer.map(Ok),
            None => Ok(Err(self)),
        }
    }

    /// Whether there is an answer, a result or an error; never blocks.
    pub fn is_ready(&self) -> bool {
        lock(&self.shared.state).is_done(self.entry)
    }

    /// The batcher that the ticket belongs to.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn origin(&self) -> crate::ring::Origin {
        crate::ring::Origin::of_batcher(&self.shared.core, &self.shared.identity)
    }

    fn wait_until(&mut self, limit: Option<Instant>) -> Option<Result<RowOutput, Error>> {
        loop {
            if let Some(answer) = self.take(Wake::Thread(thread::current())) {
                return Some(answer);
            }
            match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                // This thread is not asleep any more, so no other thread may rely on it to wake others.
                Some(Duration::ZERO) => return self.take(Wake::Nobody),
                Some(left) => thread::park_timeout(left),
            }
        }
    }

    /// The answer, if it is there; otherwise stores `wake` for it. A thread that has its answer wakes two others that
    /// have theirs: for one thread alone it would take as long to wake all threads of a batch as a round of the batch
    /// takes.
    fn take(&mut self, wake: Wake) -> Option<Result<RowOutput, Error>> {
        let mut state = lock(&self.shared.state);
        let (answer, unused) = state.take(self.entry, wake);
        self.settled = answer.is_some();
        let others = if self.settled { [state.next_asleep(), state.next_asleep()] } else { [None, None] };
        drop(state);
        others.into_iter().flatten().for_each(|thread| thread.unpark());
        drop(unused); // a waker's drop is user code, so without the lock
        answer
    }
}

impl Future for RowTicket {
    type Output = Result<RowOutput, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.settled, "a row's ticket polled after it gave its result");
        match self.take(Wake::Task(context.waker().clone())) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for RowTicket {
    fn drop(&mut self) {
        if !self.settled {
            let left = lock(&self.shared.state).abandon(self.entry);
            drop(left); // without the lock: it may be a waker, or the last view of an output
        }
    }
}

impl std::fmt::Debug for RowTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowTicket").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// The result of one row: a view of page-locked memory that it shares with the other rows of its batch. The memory is
/// free for a later batch when the last of them is dropped.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let batcher = engine.batcher().build()?;
/// let output = batcher.submit(&vec![127; batcher.input().row_bytes])?.wait()?;
/// assert_eq!(output.values().len(), model.classes());
/// let (class, probability) = output.top_k(1)?[0];
/// assert_eq!(output.values()[class], probability);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RowOutput {
    output: Arc<Output>,
    index: usize,
}

impl RowOutput {
    pub(super) fn new(output: Arc<Output>, index: usize) -> Self {
        Self { output, index }
    }

    /// The row's values, as [`Output::values`] gives them.
    ///
    /// # Panics
    /// As for [`Output::values`].
    pub fn values(&self) -> &[f32] {
        self.output.values(self.index)
    }

    /// The `k` largest values as pairs (class, value), as [`Output::top_k`] gives them.
    ///
    /// # Errors
    /// As there.
    pub fn top_k(&self, k: usize) -> Result<Vec<(usize, f32)>, Error> {
        self.output.top_k(self.index, k)
    }

    /// The classes with their values, see [`OutputPart::scored`].
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn scored(&self) -> Result<impl Iterator<Item = (usize, f32)>, Error> {
        self.output.part(0).scored(self.index)
    }

    /// The row's values from one of the engine's outputs, numbered as in [`Output::part`].
    ///
    /// # Panics
    /// As for [`Output::part`] and [`Output::values`].
    pub fn values_of(&self, part: usize) -> &[f32] {
        self.output.part(part).values(self.index)
    }

    /// The content of the row.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn kind(&self) -> OutputKind {
        self.output.kind()
    }

    /// The row's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.output.row(self.index)
    }

    /// The elements of one of its ports, by its name or its number, see [`RowSpec`].
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such port, or its elements are of another type.
    pub fn port<T: Element>(&self, port: impl PortKey) -> Result<&[T], Error> {
        self.output.port(self.index, port)
    }

    /// The layout of the row.
    pub fn spec(&self) -> &RowSpec {
        self.output.spec()
    }
}
