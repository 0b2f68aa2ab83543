//! The recorder: a wrapper of a device that notes when each stage of each batch ran.
//!
//! The recorder passes every call on. Around the copies and the launches of a batch it records events with timing on
//! the same streams, two for each copy and each program. It gets the host's accesses as [`Note`]s, and sees waits as
//! waits for the batch's last event. Events and tables are made when the recorder is installed, for the number of
//! batches that it remembers. Afterwards it makes nothing and waits for nothing, and it holds none of its own locks
//! over a call of the device. Only a new thread adds an entry to a table.
//!
//! A failed call of the recorder's own ends the recording and is logged; the ring never gets the error.

mod book;
mod clock;
mod read;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Backend, Device, Note, Priority, Program, RowCopy, Run, Signal};
use crate::error::Error;
use crate::sync::{Mutex, lock};
use book::Book;
use clock::Clock;

/// The recorder of one ring: a wrapper of its device.
pub(crate) struct Recorder {
    inner: Arc<dyn Backend>,
    target: String,
    clock: Clock,
    /// The names of the programs, if there are several.
    programs: Vec<Arc<str>>,
    /// The recorder's events, the same number for each place of a batch in the book.
    marks: Vec<u64>,
    book: Mutex<Book>,
    /// The event that device times count from.
    base: u64,
    /// The time at which the base event was reached, in seconds on the clock.
    base_at: f64,
    /// Set when one of the recorder's own calls has failed.
    broken: AtomicBool,
}

/// A part of a batch that the device does.
#[derive(Clone, Copy)]
enum BatchPart {
    CopyIn,
    /// The next program of the batch.
    Program,
    CopyOut,
}

/// Wraps `device` in a recorder that remembers the last `batches` batches. It records what is made through the new
/// handle, which is for one ring. `programs` has the names of several programs, or none.
pub(crate) fn install(
    device: &Device,
    batches: usize,
    programs: Vec<Arc<str>>,
) -> Result<(Device, Arc<Recorder>), Error> {
    let recorder = Arc::new(Recorder::new(device, batches.max(1), programs)?);
    Ok((device.wrapped(|_| recorder.clone()), recorder))
}

impl Recorder {
    fn new(device: &Device, batches: usize, programs: Vec<Arc<str>>) -> Result<Self, Error> {
        let count = programs.len().max(1);
        let marks = batches * 2 * (count + 2);
        let clock = Clock::of(device);
        let inner = device.0.backend.clone();
        let mut events = Events { inner: &*inner, made: Vec::with_capacity(marks + 1) };
        for _ in 0..marks {
            events.add()?;
        }
        let (base, base_at) = clock.set_base(device, &mut events)?;
        let marks = std::mem::take(&mut events.made).into_iter().filter(|&event| event != base).collect();
        drop(events);
        let target = device.info().target.clone();
        let book = Mutex::new(Book::new(batches, count));
        Ok(Self { inner, target, clock, programs, marks, book, base, base_at, broken: AtomicBool::new(false) })
    }

    /// Records one of the recorder's events, if there is an index.
    fn mark(&self, event: Option<usize>, stream: u64) {
        let Some(event) = event.map(|index| self.marks[index]) else { return };
        // SAFETY: the event is the recorder's until it is dropped; the stream is the caller's, who is using it now.
        if let Err(error) = unsafe { self.inner.event_record(event, stream) } {
            self.give_up(&error);
        }
    }

    fn give_up(&self, error: &Error) {
        if !self.broken.swap(true, Ordering::Relaxed) {
            log::warn!("{}: the recording ends: {error}", self.target);
        }
        lock(&self.book).close();
    }

    /// Reports to the book what the host does, and when.
    fn enter(&self, note: Note) {
        let now = self.clock.now();
        let mut book = lock(&self.book);
        match note {
            Note::Begin(span, access) => book.begin(span.addr, access, now),
            Note::End(span) => book.end(span.addr, now),
            Note::Batch { number, slot, size, rows, staging, result } => {
                book.batch(number, [slot, size, rows], [staging.addr, result.addr], now);
            }
            Note::Enqueued => book.enqueued(now),
            Note::Taken(_) | Note::Freed(_) | Note::ReadOn(..) | Note::Published => {}
        }
    }
}

/// Events that are being made; the drop destroys those that are still in it.
struct Events<'a> {
    inner: &'a dyn Backend,
    made: Vec<u64>,
}

impl Events<'_> {
    fn add(&mut self) -> Result<u64, Error> {
        let event = self.inner.event_create(true)?;
        self.made.push(event);
        Ok(event)
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        destroy(self.inner, self.made.drain(..));
    }
}

fn destroy(inner: &dyn Backend, events: impl Iterator<Item = u64>) {
    // SAFETY: made by the recorder, destroyed once; nothing refers to them any more.
    let failed = events.map(|event| unsafe { inner.event_destroy(event) }).filter_map(Result::err).last();
    if let Some(error) = failed {
        log::warn!("dropping the events of a recorder: {error}");
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        destroy(&*self.inner, std::mem::take(&mut self.marks).into_iter().chain([self.base]));
    }
}

impl Backend for Recorder {
    fn stream_create(&self, priority: Priority, name: &str) -> Result<u64, Error> {
        let stream = self.inner.stream_create(priority, name)?;
        lock(&self.book).add_stream(stream, name);
        Ok(stream)
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        lock(&self.book).remove_stream(stream);
        // SAFETY: by the caller.
        unsafe { self.inner.stream_destroy(stream) }
    }

    fn event_create(&self, timing: bool) -> Result<u64, Error> {
        let event = self.inner.event_create(timing)?;
        lock(&self.book).add_event(event);
        Ok(event)
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        lock(&self.book).remove_event(event);
        // SAFETY: by the caller.
        unsafe { self.inner.event_destroy(event) }
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        let end = lock(&self.book).part_ends(event, stream);
        self.mark(end, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.event_record(event, stream) }
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.stream_wait(stream, event) }
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        let batch = lock(&self.book).ended_by(event);
        let before = batch.map(|_| self.clock.now());
        // SAFETY: by the caller.
        let done = unsafe { self.inner.event_query(event) };
        if let (Some(batch), Some(before)) = (batch, before) {
            let now = self.clock.now();
            lock(&self.book).looked(batch, before, now);
        }
        done
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        let batch = lock(&self.book).ended_by(event);
        let before = batch.map(|_| self.clock.now());
        // SAFETY: by the caller.
        let done = unsafe { self.inner.event_wait(event) };
        if let (Some(batch), Some(before), true) = (batch, before, done.is_ok()) {
            let now = self.clock.now();
            lock(&self.book).waited(batch, before, now);
        }
        done
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.elapsed_ms(start, end) }
    }
    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let ptr = self.inner.host_alloc(bytes)?;
        lock(&self.book).add_buffer(ptr.as_ptr() as u64);
        Ok(ptr)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        lock(&self.book).remove_buffer(ptr.as_ptr() as u64);
        // SAFETY: by the caller.
        unsafe { self.inner.host_free(ptr, bytes) }
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        self.inner.device_alloc(bytes)
    }

    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.device_free(addr, bytes) }
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        let begin = lock(&self.book).part_begins(BatchPart::CopyIn, stream);
        self.mark(begin, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.copy_in(dst, src, bytes, stream) }
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        let begin = lock(&self.book).part_begins(BatchPart::CopyOut, stream);
        self.mark(begin, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.copy_out(dst, src, bytes, stream) }
    }

    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        let stream = rows.from.stream.raw();
        let begin = lock(&self.book).part_begins(BatchPart::CopyIn, stream);
        self.mark(begin, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.copy_rows(dst, dst_pitch, rows) }
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        let begin = lock(&self.book).part_begins(BatchPart::CopyOut, stream);
        self.mark(begin, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.copy_on_device(dst, src, bytes, stream) }
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.admit_stream(stream)? };
        lock(&self.book).add_stream(stream, "a caller's stream");
        Ok(())
    }

    fn admit_memory(&self, addr: u64) -> Result<(), Error> {
        self.inner.admit_memory(addr)
    }

    unsafe fn launch(&self, program: &Arc<dyn Program>, run: Run, stream: u64) -> Result<(), Error> {
        let begin = lock(&self.book).part_begins(BatchPart::Program, stream);
        self.mark(begin, stream);
        // SAFETY: by the caller.
        unsafe { self.inner.launch(program, run, stream) }
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.notify(stream, signal) }
    }

    fn note(&self, note: Note) -> Result<(), Error> {
        self.enter(note);
        self.inner.note(note)
    }
}

#[cfg(test)]
mod tests;
