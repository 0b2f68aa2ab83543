//! Rows that are being written, and the options of a row before it is submitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{News, RowPriority};
use super::{RowTicket, Shared};
use crate::device::{Access, Note};
use crate::error::Error;
use crate::sync::lock;
use crate::tensor::{Element, PortKey, RowSpec, Size};

/// A row of page-locked memory that is being written. If it is dropped without [`Row::submit`], its memory is free
/// again and nothing is computed. A row delays no other row, however long it is held.
///
/// Submitting takes it by value, so nothing can be written while the device reads:
/// ```compile_fail
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let pixels = row.bytes_mut();
/// let ticket = row.submit()?; // moves the row while `pixels` borrows it
/// pixels.fill(0);
/// # Ok(()) }
/// ```
/// ```compile_fail
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let ticket = row.submit()?;
/// row.bytes_mut().fill(0); // moved
/// # Ok(()) }
/// ```
/// In this order it is right:
/// ```no_run
/// # fn f(batcher: trefoil::Batcher) -> Result<(), trefoil::Error> {
/// let mut row = batcher.row()?;
/// let pixels = row.bytes_mut();
/// pixels.fill(0);
/// row.bytes_mut().fill(0);
/// let ticket = row.submit()?;
/// # Ok(()) }
/// ```
/// Nor is it `Clone`: nobody else can write it. It can be given away.
/// ```compile_fail
/// # fn f(row: trefoil::Row) {
/// let other = row.clone();
/// # }
/// ```
/// ```no_run
/// # fn f(row: trefoil::Row) {
/// let other = row;
/// # }
/// ```
/// It is `Send`, so another thread than the one that claimed it can write it.
pub struct Row {
    shared: Arc<Shared>,
    /// The index of its page-locked row; `None` once committed.
    row: Option<usize>,
    priority: RowPriority,
    deadline: Deadline,
}

#[derive(Clone, Copy)]
enum Deadline {
    None,
    At(Instant),
    AfterSubmit(Duration),
}

impl Row {
    /// The bytes, to be written. They hold what an earlier row left there, zeros at first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let row = self.place();
        let &RowSpec { row_bytes, row_pitch, .. } = self.spec();
        // SAFETY: self holds the claim of this row, which no other Row and no batch has; the borrow of self makes the
        // slice unique.
        unsafe { self.shared.rows.range_mut(row * row_pitch, row_bytes) }
    }

    /// The elements of one of its ports, by its name or its number, see [`RowSpec`].
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such port, or its elements are of another type.
    pub fn port_mut<T: Element>(&mut self, port: impl PortKey) -> Result<&mut [T], Error> {
        let shared = self.shared.clone();
        shared.input().port(port)?.elems_of_mut(self.bytes_mut())
    }

    /// Copies `elems` to one of its ports, and adds padding if there are fewer elements, as
    /// [`Batch::write_port`](crate::Batch::write_port) does.
    ///
    /// # Errors
    /// As there.
    pub fn write_port<T: Element>(&mut self, port: impl PortKey, elems: &[T]) -> Result<(), Error> {
        let shared = self.shared.clone();
        shared.input().port(port)?.write(self.bytes_mut(), elems)
    }

    /// The index of its page-locked row.
    fn place(&self) -> usize {
        self.row.expect("held until submitted or dropped")
    }

    /// Copies the bytes of one row into it.
    fn fill(&mut self, pixels: &[u8]) {
        let shared = self.shared.clone();
        shared.core.device.fill(self.bytes_mut(), pixels);
    }

    /// The layout of the row.
    pub fn spec(&self) -> &RowSpec {
        self.shared.input()
    }

    /// Sets how long after [`Row::submit`] the row may be in the queue; past that it is answered with
    /// [`Error::Deadline`] and not uploaded.
    pub fn deadline(mut self, after_submit: Duration) -> Self {
        self.deadline = Deadline::AfterSubmit(after_submit);
        self
    }

    /// Sets the priority of the row in the queue.
    pub fn priority(mut self, priority: RowPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Commits the row to the queue. Never waits for the device. If nothing is in flight, or a compute stream is
    /// free for the batch, the calling thread may submit it itself, which takes the time of some driver calls.
    ///
    /// # Errors
    /// [`Error::Closed`] if the batcher was dropped; [`Error::Fault`] if the device is out of use.
    pub fn submit(mut self) -> Result<RowTicket, Error> {
        let shared = self.shared.clone();
        let mut answer = None;
        shared.submit(std::slice::from_mut(&mut self), |told| answer = Some(told));
        answer.expect("an answer for each row")
    }
}

impl Shared {
    /// Commits rows to the queue, in order, under one lock. A row that is refused is freed when it is dropped.
    fn submit(self: &Arc<Self>, rows: &mut [Row], mut answer: impl FnMut(Result<RowTicket, Error>)) {
        let (healthy, now) = (self.core.device.healthy(), Instant::now());
        for row in rows.iter() {
            self.note_row(row.place(), Note::End);
        }
        let mut state = lock(&self.state);
        let before = state.queued();
        for row in rows.iter_mut() {
            let open = healthy.clone().and_then(|()| state.open());
            answer(open.map(|()| {
                let entry = state.commit(row.place(), row.priority, row.deadline.at(now), now);
                row.row = None;
                RowTicket::new(self.clone(), entry)
            }));
        }
        let has_deadline = rows.iter().any(|row| !matches!(row.deadline, Deadline::None));
        let news = state.news(before, has_deadline, &self.bounds, now);
        drop(state);
        if news == News::Look || (news == News::Leave && !self.send_at_once()) {
            self.work.notify_one();
        }
    }
}

impl Deadline {
    /// The time of the deadline, for a row that is submitted at `now`.
    fn at(self, now: Instant) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::At(instant) => Some(instant),
            Self::AfterSubmit(time) => now.checked_add(time),
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if let Some(row) = self.row {
            self.shared.note_row(row, Note::End);
            self.shared.told(|state, _| state.unclaim(row));
        }
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("spec", &self.spec()).field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// A submission with a deadline or a priority, which also apply while the submission waits for a free row.
///
/// ```no_run
/// # fn f(batcher: trefoil::Batcher, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
/// use std::time::Duration;
/// use trefoil::RowPriority;
/// let ticket = batcher.request().deadline(Duration::from_millis(15)).priority(RowPriority::High).submit(&pixels)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
#[must_use = "a request does nothing before `submit` or `row`"]
pub struct Request<'a> {
    /// The state for each of the ring's buckets.
    all: &'a [Arc<Shared>],
    /// The state for the bucket of its rows.
    shared: &'a Arc<Shared>,
    priority: RowPriority,
    deadline: Option<Duration>,
    at_once: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(all: &'a [Arc<Shared>]) -> Self {
        Self { all, shared: &all[0], priority: RowPriority::Normal, deadline: None, at_once: false }
    }

    /// Sets how long after [`Request::submit`] or [`Request::row`] the row may wait to be uploaded; past that it is
    /// answered with [`Error::Deadline`].
    pub fn deadline(mut self, after_start: Duration) -> Self {
        self.deadline = Some(after_start);
        self
    }

    /// Sets the priority of the row, in the queue and while it waits for memory.
    pub fn priority(mut self, priority: RowPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the dimensions of the row: it gets the smallest size of the engine that holds them, as in
    /// [`Engine::acquire_for`](crate::Engine::acquire_for). Without a call the row has the dimensions of the first
    /// size.
    ///
    /// ```no_run
    /// # fn f(batcher: trefoil::Batcher, ids: &[i64]) -> Result<(), trefoil::Error> {
    /// use trefoil::Size;
    /// let mut row = batcher.request().size(&Size::new(1).dim("sequence", ids.len()))?.row()?;
    /// row.write_port("input_ids", ids)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if no size holds such a row, with a list of the sizes.
    pub fn size(mut self, size: &Size) -> Result<Self, Error> {
        self.shared = &self.all[self.shared.core.spec.buckets.holding(size)?];
        Ok(self)
    }

    /// The layout of its rows.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn input(self) -> &'a RowSpec {
        self.shared.input()
    }

    /// Makes it fail with [`Error::Timeout`] instead of waiting for a free row, whatever `WhenFull` says.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// See [`Batcher::submit`](super::Batcher::submit).
    ///
    /// # Errors
    /// As there, and [`Error::Deadline`].
    pub fn submit(self, pixels: &[u8]) -> Result<RowTicket, Error> {
        self.admits(pixels)?;
        let mut row = self.row()?;
        row.fill(pixels);
        row.submit()
    }

    /// See [`Batcher::submit_rows`](super::Batcher::submit_rows).
    ///
    /// # Errors
    /// Those of `Batcher::submit_rows` for each row, and [`Error::Deadline`].
    pub fn submit_rows(self, rows: &[&[u8]]) -> Vec<Result<RowTicket, Error>> {
        let (mut answers, deadline) = (Vec::with_capacity(rows.len()), self.until());
        while let Some(pixels) = rows.get(answers.len()) {
            match self.admits(pixels).and_then(|()| self.row_until(deadline)) {
                Ok(first) => self.submit_some(first, &rows[answers.len()..], &mut answers),
                Err(error) => answers.push(Err(error)),
            }
        }
        answers
    }

    /// Submits those of the first `rows` that have a free place now, at least one and at most a batch. `first` is the
    /// place of the first.
    fn submit_some(self, first: Row, rows: &[&[u8]], answers: &mut Vec<Result<RowTicket, Error>>) {
        let most = rows.len().min(self.shared.bounds.full);
        let count = rows[..most].iter().take_while(|pixels| self.admits(pixels).is_ok()).count();
        let places = self.shared.claim_more(count - 1);
        let deadline = first.deadline;
        let mut lent = vec![first];
        lent.extend(places.into_iter().map(|place| self.lend(place, deadline)));
        lent.iter_mut().zip(rows).for_each(|(row, pixels)| row.fill(pixels));
        self.shared.submit(&mut lent, |answer| answers.push(answer));
    }

    /// Checks that `pixels` are one row.
    fn admits(self, pixels: &[u8]) -> Result<(), Error> {
        let expected = self.shared.input().row_bytes;
        if pixels.len() != expected {
            let found = format!("{} bytes long", pixels.len());
            return Err(Error::option("pixels", found, format!("{expected} bytes, one row")));
        }
        Ok(())
    }

    /// See [`Batcher::row`](super::Batcher::row).
    ///
    /// # Errors
    /// As there, and [`Error::Deadline`].
    pub fn row(self) -> Result<Row, Error> {
        self.row_until(self.until())
    }

    /// The time of the deadline, counted from now.
    fn until(self) -> Option<Instant> {
        self.deadline.and_then(|time| Instant::now().checked_add(time))
    }

    fn row_until(self, deadline: Option<Instant>) -> Result<Row, Error> {
        let place = self.shared.claim(self.priority, deadline, self.at_once)?;
        Ok(self.lend(place, deadline.map_or(Deadline::None, Deadline::At)))
    }

    /// The row at a claimed place.
    fn lend(self, place: usize, deadline: Deadline) -> Row {
        self.shared.note_row(place, Note::Taken);
        self.shared.note_row(place, |span| Note::Begin(span, Access::Write));
        Row { shared: self.shared.clone(), row: Some(place), priority: self.priority, deadline }
    }
}
