//! Batches: rows of page-locked memory that `acquire` lends until they are submitted.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bucket::{Extent, RowBucket};
use super::credits::Lent;
use super::peers::Member;
use super::{Core, DeviceOutput, Ticket};
use crate::device::{DeviceBuffer, DeviceRows, HostBuffer, Note, Stream};
use crate::error::Error;
use crate::tensor::{Element, Packing, PortKey, RowSpec};

/// A batch that is being filled: exclusive access to rows of page-locked memory. If it is dropped without
/// [`Batch::submit`], its credits are free again and nothing is computed.
///
/// Pixels can be written only through a `&mut` borrowed from it, and submitting takes it by value, so nothing can be
/// written while the device reads:
/// ```compile_fail
/// # fn f(engine: trefoil::Engine) -> Result<(), trefoil::Error> {
/// let mut batch = engine.acquire()?;
/// let row = batch.row_mut(0);
/// let ticket = batch.submit(1)?; // moves the batch while `row` borrows it
/// row.fill(0);
/// # Ok(()) }
/// ```
/// In this order it is right:
/// ```no_run
/// # fn f(engine: trefoil::Engine) -> Result<(), trefoil::Error> {
/// let mut batch = engine.acquire()?;
/// let row = batch.row_mut(0);
/// row.fill(0);
/// let ticket = batch.submit(1)?;
/// # Ok(()) }
/// ```
/// It is `Send`, so it can be filled by another thread than the one that acquired it.
pub struct Batch {
    core: Arc<Core>,
    /// The credits; `None` once the batch is submitted.
    held: Option<(usize, Lent)>,
    /// The bucket of its rows.
    bucket: usize,
    /// The fleet's rings, if its ring is one of them.
    member: Option<Member>,
    /// The rows in device memory that are submitted instead of those in the batch.
    elsewhere: Option<DeviceRows>,
    /// Whether its run waits for that of the previous batch, even on another compute stream.
    in_turn: bool,
}

/// The largest pitch of a caller's rows, in bytes, that every GPU can copy.
const MOST_PITCH: usize = i32::MAX as usize;

/// The arguments of a submission.
pub(super) struct Submission<'a> {
    pub staging: usize,
    pub lent: Lent,
    pub extent: Extent,
    pub from: Source<'a>,
    /// Whether the result stays on the device.
    pub to_device: bool,
    /// Whether the run waits for that of the previous batch.
    pub in_turn: bool,
    /// The longest wait for other threads that submit.
    pub limit: Duration,
}

/// The place of a submission's rows.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// In its staging.
    Staging,
    /// Elsewhere in page-locked memory.
    Gathered(&'a Gathered<'a>),
    /// On the device.
    Device(DeviceRows),
}

impl Batch {
    pub(super) fn new(core: Arc<Core>, staging: usize, lent: Lent) -> Self {
        Self { core, held: Some((staging, lent)), bucket: 0, member: None, elsewhere: None, in_turn: false }
    }

    /// The batch with rows of another bucket.
    pub(crate) fn in_bucket(self, bucket: usize) -> Self {
        let mut this = self;
        this.bucket = bucket;
        this
    }

    fn rows_of(&self) -> &RowBucket {
        self.core.bucket(self.bucket)
    }

    /// The batch as one of a fleet's ring, which may run on another device after a fault.
    pub(super) fn of(self, member: Member) -> Self {
        let mut this = self;
        this.member = Some(member);
        this
    }

    /// The number of rows that fit.
    pub fn capacity(&self) -> usize {
        self.rows_of().capacity()
    }

    /// The layout of a row.
    pub fn spec(&self) -> &RowSpec {
        &self.rows_of().input
    }

    /// The bytes of row `index`. They hold what an earlier batch left there, zeros at first.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let &RowSpec { row_bytes, row_pitch, .. } = self.spec();
        assert!(index < self.capacity(), "row {index} of a batch of {}", self.capacity());
        &mut self.bytes_mut()[index * row_pitch..][..row_bytes]
    }

    /// The elements of one port of row `index`, by its name or its number, see [`RowSpec`].
    ///
    /// ```no_run
    /// # fn f(engine: trefoil::Engine, tokens: &[i64]) -> Result<(), trefoil::Error> {
    /// let mut batch = engine.acquire()?;
    /// batch.port_mut::<i64>(0, "input_ids")?.copy_from_slice(tokens);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such port, or its elements are of another type.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn port_mut<T: Element>(&mut self, index: usize, port: impl PortKey) -> Result<&mut [T], Error> {
        let core = self.core.clone();
        core.bucket(self.bucket).input.port(port)?.elems_of_mut(self.row_mut(index))
    }

    /// Copies `elems` to one port of row `index`. There may be fewer elements than the port has, if rows may be
    /// [padded](crate::model::Model::padded) along one of its dimensions: then `elems` is a value that is shorter along
    /// this dimension, and the call adds the padding.
    ///
    /// ```
    /// # use trefoil::{Device, Dtype, Engine, Size, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// # let build = |size: &Size| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let x = g.input("ids", Dtype::I64, &[size.batch(), size.get("length").unwrap()]);
    /// #     let next = g.map("next", Expr::arg(0) + Expr::int(Dtype::I64, 1), &[x]);
    /// #     g.output("next", next);
    /// #     g.finish()
    /// # };
    /// # let none = Weights::from_tensors::<String>([])?;
    /// let model = Model::of_sizes(none, &Size::new(1).dim("length", 4), build)?.padded("length", &[("ids", 9.0)])?;
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).build()?;
    /// let mut batch = engine.acquire()?;
    /// batch.write_port(0, "ids", &[1_i64, 2])?;
    /// assert_eq!(batch.submit(1)?.wait()?.port::<i64>(0, "next")?, [2, 3, 10, 10]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Batch::port_mut`]; [`Error::Option`] also if `elems` is neither as long as the port nor such a shorter
    /// value.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn write_port<T: Element>(&mut self, index: usize, port: impl PortKey, elems: &[T]) -> Result<(), Error> {
        let core = self.core.clone();
        core.bucket(self.bucket).input.port(port)?.write(self.row_mut(index), elems)
    }

    /// All rows, in order; disjoint, so they can be filled by several threads.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (&RowSpec { row_bytes, row_pitch, .. }, capacity) = (self.spec(), self.capacity());
        let mut rest = self.bytes_mut();
        (0..capacity).map(move |_| {
            let (row, behind) = std::mem::take(&mut rest).split_at_mut(row_pitch); // a row may have no bytes
            rest = behind;
            &mut row[..row_bytes]
        })
    }

    /// The address of row 0, for callers that cannot borrow; the other rows follow at the spec's pitch. It may be used
    /// until the batch is submitted or dropped, and not together with a borrow of its rows.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes_mut().as_mut_ptr()
    }

    /// The index of the batch's staging buffer.
    pub(crate) fn staging(&self) -> usize {
        self.buffers().0
    }

    /// The indices of the batch's staging and result buffers.
    pub(super) fn buffers(&self) -> (usize, usize) {
        let (staging, lent) = self.held.expect("held until submitted or dropped");
        (staging, lent.result)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let (staging, _) = self.buffers();
        let bytes = self.capacity() * self.spec().row_pitch;
        // SAFETY: self holds the staging's credit, so no other Batch and no enqueued copy refers to the buffer; the
        // borrow of self makes the slice unique.
        unsafe { &mut self.core.staging[staging].buffer.bytes_mut()[..bytes] }
    }

    /// Enqueues upload, compute and download of the first `rows` rows. Returns at once: it never waits for the
    /// device, but may wait for other threads that submit.
    ///
    /// Only those rows are uploaded. The smallest batch size that holds them runs.
    ///
    /// # Errors
    /// [`Error::Option`] if `rows` is 0 or above the capacity, or no batch size of a model [with
    /// state](crate::model::Model::with_state): the batch's credits are free again.
    /// [`Error::Fault`] if the device failed; it is out of use then, and a [`Fleet`](crate::Fleet) submits to another, for
    /// whose batch it may wait: [`Error::Timeout`] if none came free within the limit of
    /// [`EngineBuilder::acquire_limit`](crate::EngineBuilder::acquire_limit), or if another thread's submission has not
    /// returned from the driver for as long: then the batch's credits are free again. [`Error::Closed`] if the engine was
    /// closed.
    pub fn submit(self, rows: usize) -> Result<Ticket, Error> {
        self.submit_until(rows, None)
    }

    /// Submits the batch. If its device fails, waits for a batch of another device until the deadline, if there is one.
    pub(super) fn submit_until(mut self, rows: usize, deadline: Option<Instant>) -> Result<Ticket, Error> {
        let (Submission { staging, lent, extent, .. }, submitted) = self.enqueue(rows, false, deadline)?;
        let ticket = submitted.map(|number| Ticket::new(self.core.clone(), lent, number, extent));
        match self.member.take() {
            None => ticket,
            Some(member) => member.submitted(&self.core, staging, extent, ticket, deadline),
        }
    }

    /// Like [`Batch::submit`], but the result stays on the device, for the caller's own work there. There is no ticket
    /// to wait for: the returned output gives at once the address at which the result will be.
    ///
    /// ```
    /// # use trefoil::{CallerStream, Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// # let device = Device::open(Target::Cpu)?;
    /// # let stream = CallerStream::DEFAULT;
    /// let engine = Engine::builder(&model).on(&device).device_results(true).build()?;
    /// let mut output = engine.acquire()?.submit_to_device(1)?;
    /// output.wait_on(stream)?; // what is enqueued there from now on finds the result
    /// println!("{} floats at {:#x}", output.spec().row_bytes / 4, output.addr());
    /// output.read_on(stream)?; // what was enqueued there reads it: it is not overwritten before that is done
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Batch::submit`], and [`Error::Option`] if the engine was not built with
    /// [`EngineBuilder::device_results`](crate::EngineBuilder::device_results) or the batch is a
    /// [`Fleet`](crate::Fleet)'s: then its credits are free again.
    pub fn submit_to_device(mut self, rows: usize) -> Result<DeviceOutput, Error> {
        self.may_stay_on_device()?;
        let (Submission { lent, extent, .. }, submitted) = self.enqueue(rows, true, None)?;
        submitted.map(|number| DeviceOutput::new(self.core.clone(), lent, number, extent))
    }

    /// Makes the batch take its rows from device memory; rows that were written into the batch itself are ignored. The
    /// submission enqueues a copy of the rows, from device memory to device memory, on the caller's stream: after all
    /// work that is already on this stream, and before its later work, which may overwrite the rows. The submission
    /// never waits for the stream.
    ///
    /// The copy, and so the stream, waits until the previous input of the slot has been read. If a stream must not
    /// wait, enqueue the copy on another stream that waits for it by an event. Batches of a ring are computed in the
    /// order of their submission, so a stream with much earlier work delays the batches submitted later.
    ///
    /// On the CPU, where the stream stands for the calling thread, the submission copies the rows before it returns.
    ///
    /// ```
    /// # use trefoil::{CallerStream, Device, DeviceRows, Engine, Target, model::Model};
    /// # fn f(engine: &Engine, addr: u64, stream: CallerStream) -> Result<(), trefoil::Error> {
    /// let mut batch = engine.acquire()?;
    /// let rows = DeviceRows { addr, pitch: engine.input().row_bytes, stream };
    /// // SAFETY: the stream writes as many rows there, and the memory is freed in its order.
    /// unsafe { batch.read_from(rows)? };
    /// println!("{:?}", batch.submit(8)?.wait()?.top_k(0, 5)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// While the stream runs the copy (on the CPU: during the submission), the memory has as many rows as are
    /// submitted, and nothing writes them.
    ///
    /// # Errors
    /// [`Error::Option`] for a null address, a pitch below the input's `row_bytes`, a stream of another CUDA context or one
    /// that captures, memory that is not the device's, or a batch of a [`Fleet`](crate::Fleet), which runs on any of its
    /// devices. The batch stays as it was.
    pub unsafe fn read_from(&mut self, rows: DeviceRows) -> Result<(), Error> {
        let DeviceRows { addr, pitch, stream } = rows;
        let row_bytes = self.spec().row_bytes;
        self.is_of_one_device()?;
        if addr == 0 {
            return Err(Error::option("rows", "a null address", "where the first row begins"));
        }
        if !(row_bytes..=MOST_PITCH).contains(&pitch) {
            return Err(Error::option("pitch", pitch, format!("{row_bytes}, the bytes of a row, to {MOST_PITCH}")));
        }
        let device = &self.core.device;
        device.healthy()?;
        stream.admit(device)?;
        device.backend().admit_memory(addr)?;
        self.elsewhere = Some(rows);
        Ok(())
    }

    /// Checks that the result may stay on the device.
    pub(crate) fn may_stay_on_device(&self) -> Result<(), Error> {
        if !self.core.spec.device_results {
            return Err(Error::option("device_results", "off", "on, to leave results on the device"));
        }
        self.is_of_one_device()
    }

    /// Refuses a batch of a fleet, which may run again on another device.
    fn is_of_one_device(&self) -> Result<(), Error> {
        match self.member {
            None => Ok(()),
            Some(_) => {
                let own = "one of an engine, say of `Fleet::engines`: device memory is one device's";
                Err(Error::option("batch", "one of a fleet", own))
            }
        }
    }

    /// Checks that so many rows may be submitted.
    pub(crate) fn may_submit(&self, rows: usize) -> Result<(), Error> {
        if !(1..=self.capacity()).contains(&rows) {
            return Err(Error::option("rows", rows, format!("1 to {}, the batch's capacity", self.capacity())));
        }
        self.core.keeps_states(self.bucket, rows)?;
        match self.elsewhere {
            Some(there) => there.stream.admit(&self.core.device), // once more: it may capture by now
            None => Ok(()),
        }
    }

    /// Gives the credits up and enqueues the batch; returns the submission and its number.
    fn enqueue(
        &mut self,
        rows: usize,
        to_device: bool,
        deadline: Option<Instant>,
    ) -> Result<(Submission<'static>, Result<u64, Error>), Error> {
        self.may_submit(rows)?;
        let from = match self.elsewhere.take() {
            None => Source::Staging,
            Some(there) if self.core.device.is_calling_thread(there.stream) => {
                // SAFETY: by the contract of `read_from`.
                unsafe { self.copy_here(there, rows) };
                Source::Staging
            }
            Some(there) => Source::Device(there),
        };
        let (staging, lent) = self.held.take().expect("held until submitted or dropped");
        let extent = Extent { bucket: self.bucket, rows };
        let limit = deadline.map_or(self.core.spec.acquire_limit, |by| by.saturating_duration_since(Instant::now()));
        let submission = Submission { staging, lent, extent, from, to_device, in_turn: self.in_turn, limit };
        let submitted = self.core.submit(&submission);
        Ok((submission, submitted))
    }

    /// Copies a caller's rows into the batch's own.
    ///
    /// # Safety
    /// The rows are in host memory, and nobody writes them meanwhile.
    unsafe fn copy_here(&mut self, there: DeviceRows, rows: usize) {
        let row_bytes = self.spec().row_bytes;
        for (index, row) in self.rows_mut().take(rows).enumerate() {
            let from = (there.addr as usize + index * there.pitch) as *const u8;
            // SAFETY: `row_bytes` are there by the caller.
            row.copy_from_slice(unsafe { std::slice::from_raw_parts(from, row_bytes) });
        }
    }

    /// The size of its packed rows; `None` if its engine has no packed rows.
    pub(crate) fn packing(&self) -> Option<Packing> {
        Packing::of(&self.core.bucket(self.bucket).sizes.dims)
    }

    /// Sets whether the run waits for that of the previous batch even if there are several compute streams. Batches
    /// that fill the device gain nothing side by side: both would take longer.
    pub(crate) fn compute_in_turn(&mut self, in_turn: bool) {
        self.in_turn = in_turn;
    }

    /// Submits like [`Batch::submit`], with rows that are uploaded from elsewhere. The batch's staging buffer is not
    /// used; its credit bounds the number of uploads.
    ///
    /// # Safety
    /// Until the ticket's result is there, `from.buffer` lives and nobody writes the rows of its runs; for ever if
    /// the device faults.
    pub(super) unsafe fn submit_gathered(mut self, from: &Gathered<'_>) -> Result<Ticket, Error> {
        let rows = from.runs.iter().map(ExactSizeIterator::len).sum();
        assert!((1..=self.capacity()).contains(&rows), "{rows} rows gathered for a batch of {}", self.capacity());
        let (staging, lent) = self.held.take().expect("held until submitted or dropped");
        let (from, in_turn) = (Source::Gathered(from), self.in_turn);
        let extent = Extent { bucket: self.bucket, rows };
        let limit = self.core.spec.acquire_limit;
        let submission = Submission { staging, lent, extent, from, to_device: false, in_turn, limit };
        let number = self.core.submit(&submission)?;
        Ok(Ticket::new(self.core.clone(), lent, number, extent))
    }
}

/// Rows in page-locked memory that are uploaded as one batch.
pub(super) struct Gathered<'a> {
    /// The memory, in which rows lie at the input spec's pitch.
    pub buffer: &'a HostBuffer,
    /// Runs of neighbouring rows, in the order of the batch.
    pub runs: &'a [Range<usize>],
}

impl Gathered<'_> {
    /// Enqueues one copy for each run.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`], for the rows of the runs and for `input`.
    pub unsafe fn upload(&self, stream: &Stream, input: &DeviceBuffer, row_pitch: usize) -> Result<(), Error> {
        let mut at = 0;
        for run in self.runs {
            let bytes = run.len() * row_pitch;
            // SAFETY: by the caller.
            unsafe { stream.copy_in_at(input, at, self.buffer, run.start * row_pitch, bytes)? };
            at += bytes;
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some((staging, lent)) = self.held.take() {
            self.core.device.note(Note::End(self.core.staging[staging].buffer.span()));
            self.core.give_back(staging, lent);
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("capacity", &self.capacity()).field("spec", &self.spec()).finish()
    }
}
