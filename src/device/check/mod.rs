//! A wrapper of any device that proves, on the schedule at hand, that no two conflicting accesses are unordered.
//!
//! The checker gets every operation with the bytes that it reads and writes, every event, and the host's turns at
//! page-locked memory ([`Note`]). Each stream and each host thread has a vector clock:
//! - work enqueued by a thread comes after what the thread knows, and after the stream's earlier work;
//! - an event takes its stream's clock when it is recorded, and a stream that waits for the event learns this clock;
//! - a thread learns the clock of an event when it has seen that the event is done;
//! - a credit of page-locked memory passes on what its holder knew, as the lock behind it does.
//!
//! An access that conflicts with an earlier one that its clock does not know is a hazard, even if nothing went wrong
//! this time: the call fails with [`Error::Hazard`], which puts the device out of use like any fault. When memory is
//! freed, all accesses to it must be over in the clock of some thread.

mod clock;
mod memory;

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::Arc;

use self::clock::{Actor, Clock, Identity, with_known};
use self::memory::{Credit, Memory, Record, Turn, offsets};
use super::{Access, Backend, DEVICE_MEMORY, HOST_MEMORY, Note, Priority, Program, RowCopy, Run, Signal, Span};
use crate::error::Error;
use crate::sync::{Mutex, lock};

/// The hazard checker: a wrapper of a device.
pub(crate) struct Checker {
    inner: Arc<dyn Backend>,
    identity: Identity,
    /// Locked during calls that enqueue, so that the books have the operations in the same order as the device.
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// The number of actors so far.
    actors: usize,
    streams: HashMap<u64, Stream>,
    /// The clock that each event recorded last; `None` before its first record.
    events: HashMap<u64, Option<Clock>>,
    /// Allocations by address.
    memory: BTreeMap<u64, Memory>,
    /// What every thread knows: threads join this clock.
    published: Clock,
    /// What at least one thread knows.
    seen: Clock,
}

struct Stream {
    name: String,
    actor: Actor,
    clock: Clock,
}

impl Checker {
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, identity: Identity::default(), books: Mutex::default() }
    }

    /// Calls `call` with the books and the clock of the calling thread.
    fn with<T>(&self, call: impl FnOnce(&mut Books, &mut Clock) -> T) -> T {
        let mut books = lock(&self.books);
        with_known(&self.identity, |known| {
            // A thread that has lost its clock is taken to know what any thread knows: a hazard may be missed here, and
            // none is made up.
            let mut seen;
            let known = match known {
                Some(known) => known,
                None => {
                    seen = books.seen.clone();
                    &mut seen
                }
            };
            known.join(&books.published);
            call(&mut books, known)
        })
    }

    /// Checks an operation, then enqueues it.
    fn enqueue(
        &self,
        stream: u64,
        what: &'static str,
        touches: &[(Span, Access)],
        call: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with(|books, known| {
            books.operate(stream, what, touches, known)?;
            call()
        })
    }
}

impl Books {
    fn actor(&mut self) -> Actor {
        self.actors += 1;
        Actor(self.actors - 1)
    }

    /// Adds a stream. The stream of a caller may be known already, or have the number of an earlier, destroyed one;
    /// then it continues the clock of that one.
    fn admit(&mut self, stream: u64, name: &str) {
        if !self.streams.contains_key(&stream) {
            let actor = self.actor();
            self.streams.insert(stream, Stream { name: name.into(), actor, clock: Clock::default() });
        }
    }

    fn stream(&mut self, stream: u64) -> Result<&mut Stream, Error> {
        self.streams.get_mut(&stream).ok_or_else(|| unknown("stream", stream))
    }

    /// Checks and records an operation on a stream.
    fn operate(
        &mut self,
        stream: u64,
        what: &'static str,
        touches: &[(Span, Access)],
        known: &Clock,
    ) -> Result<(), Error> {
        let Stream { name, actor, clock } = self.streams.get_mut(&stream).ok_or_else(|| unknown("stream", stream))?;
        clock.join(known);
        let step = clock.step(*actor);
        for &(span, access) in touches {
            let (start, memory) = find(&mut self.memory, span)?;
            let bytes = offsets(span, start);
            let by = || format!("{what} on {name}");
            if let Some(old) = memory.unordered(&bytes, access, clock) {
                return Err(hazard(memory, start, &bytes, &by(), access, old.what, old.access));
            }
            if let Some(turn) = memory.turn_at(&bytes, access) {
                return Err(hazard(
                    memory,
                    start,
                    &bytes,
                    &by(),
                    access,
                    "the host, whose access has not ended,",
                    turn.access,
                ));
            }
            memory.add(Record { bytes, access, actor: *actor, step, what }, clock);
        }
        Ok(())
    }

    /// Begins the host's turn at some memory.
    fn begin(&mut self, span: Span, access: Access, known: &Clock) -> Result<(), Error> {
        let (start, memory) = find(&mut self.memory, span)?;
        let bytes = offsets(span, start);
        if let Some(old) = memory.unordered(&bytes, access, known) {
            return Err(hazard(memory, start, &bytes, "the host", access, old.what, old.access));
        }
        if let Some(turn) = memory.turn_at(&bytes, access) {
            return Err(hazard(memory, start, &bytes, "the host", access, "another thread", turn.access));
        }
        memory.turns.push(Turn { bytes, access, known: known.clone() });
        Ok(())
    }

    /// Ends the host's turn at some memory. The turn is recorded as an access, and the memory's credit learns the
    /// thread's clock.
    fn end(&mut self, span: Span, known: &mut Clock) -> Result<(), Error> {
        let (start, memory) = find(&mut self.memory, span)?;
        let bytes = offsets(span, start);
        if let Some(turn) = memory.end_turn(&bytes) {
            let actor = self.credit(span)?.actor;
            known.join(&turn.known);
            let step = known.step(actor);
            let (_, memory) = find(&mut self.memory, span)?;
            memory.add(Record { bytes, access: turn.access, actor, step, what: "the host" }, known);
        }
        self.credit(span)?.known.join(known);
        self.seen.join(known);
        Ok(())
    }

    /// The credit of some memory, made if it is new.
    fn credit(&mut self, span: Span) -> Result<&mut Credit, Error> {
        let next = Actor(self.actors);
        let (start, memory) = find(&mut self.memory, span)?;
        let at = offsets(span, start).start;
        let index = memory.credits.iter().position(|credit| credit.at == at).unwrap_or_else(|| {
            self.actors += 1;
            memory.credits.push(Credit { at, actor: next, known: Clock::default() });
            memory.credits.len() - 1
        });
        Ok(&mut memory.credits[index])
    }

    /// Checks that all accesses to freed memory are over, as far as any thread has seen, and forgets the memory.
    fn free(&mut self, addr: u64) -> Result<(), Error> {
        let memory = self.memory.remove(&addr).ok_or_else(|| unknown("memory", addr))?;
        let bytes = 0..memory.bytes;
        if let Some(old) = memory.unordered(&bytes, Access::Write, &self.seen) {
            return Err(hazard(&memory, addr, &bytes, "freeing it", Access::Write, old.what, old.access));
        }
        if let Some(turn) = memory.turns.first() {
            return Err(hazard(&memory, addr, &bytes, "freeing it", Access::Write, "the host", turn.access));
        }
        Ok(())
    }
}

/// The allocation that contains `span`, with its address.
fn find(memory: &mut BTreeMap<u64, Memory>, span: Span) -> Result<(u64, &mut Memory), Error> {
    let found = memory.range_mut(..=span.addr).next_back();
    let found = found.filter(|(start, memory)| span.addr - *start + span.bytes as u64 <= memory.bytes as u64);
    found.map(|(start, memory)| (*start, memory)).ok_or_else(|| unknown("memory", span.addr))
}

fn unknown(what: &str, handle: u64) -> Error {
    Error::Hazard { what: format!("{what} {handle:#x} is used, and is not alive") }
}

fn hazard(
    memory: &Memory,
    start: u64,
    bytes: &std::ops::Range<usize>,
    by: &str,
    access: Access,
    other: &str,
    other_access: Access,
) -> Error {
    let verb = |access| if access == Access::Write { "write" } else { "read" };
    let what = format!(
        "{} {start:#x}, bytes {} to {} of {}: nothing orders a {} by {by} after a {} by {other}",
        memory.kind,
        bytes.start,
        bytes.end,
        memory.bytes,
        verb(access),
        verb(other_access),
    );
    Error::Hazard { what }
}

impl Backend for Checker {
    fn stream_create(&self, priority: Priority, name: &str) -> Result<u64, Error> {
        let raw = self.inner.stream_create(priority, name)?;
        self.with(|books, _| {
            books.streams.remove(&raw);
            books.admit(raw, name);
        });
        Ok(raw)
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        self.with(|books, _| books.streams.remove(&stream));
        // SAFETY: by the caller.
        unsafe { self.inner.stream_destroy(stream) }
    }

    fn event_create(&self, timing: bool) -> Result<u64, Error> {
        let raw = self.inner.event_create(timing)?;
        self.with(|books, _| books.events.insert(raw, None));
        Ok(raw)
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        self.with(|books, _| books.events.remove(&event));
        // SAFETY: by the caller.
        unsafe { self.inner.event_destroy(event) }
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        self.with(|books, known| {
            let clock = &mut books.stream(stream)?.clock;
            clock.join(known);
            let recorded = books.events.get_mut(&event).ok_or_else(|| unknown("event", event))?;
            recorded.get_or_insert_default().clone_from(&books.streams[&stream].clock);
            // SAFETY: by the caller.
            unsafe { self.inner.event_record(event, stream) }
        })
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        self.with(|books, known| {
            let recorded = books.events.get(&event).ok_or_else(|| unknown("event", event))?;
            let clock = &mut books.streams.get_mut(&stream).ok_or_else(|| unknown("stream", stream))?.clock;
            clock.join(known);
            if let Some(recorded) = recorded {
                clock.join(recorded);
            }
            // SAFETY: by the caller.
            unsafe { self.inner.stream_wait(stream, event) }
        })
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        self.with(|books, known| {
            // SAFETY: by the caller.
            let done = unsafe { self.inner.event_query(event)? };
            let recorded = books.events.get(&event).ok_or_else(|| unknown("event", event))?;
            if let Some(recorded) = recorded.as_ref().filter(|_| done) {
                known.join(recorded);
                books.seen.join(recorded);
            }
            Ok(done)
        })
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        let recorded = self.with(|books, _| books.events.get(&event).cloned());
        let recorded = recorded.ok_or_else(|| unknown("event", event))?;
        // SAFETY: by the caller.
        unsafe { self.inner.event_wait(event)? };
        self.with(|books, known| {
            if let Some(recorded) = recorded {
                known.join(&recorded);
                books.seen.join(&recorded);
            }
        });
        Ok(())
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.elapsed_ms(start, end) }
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        // A thread learns nothing by it: it has to look at an event all the same.
        // SAFETY: by the caller.
        unsafe { self.inner.notify(stream, signal) }
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let ptr = self.inner.host_alloc(bytes)?;
        self.with(|books, _| books.memory.insert(ptr.as_ptr() as u64, Memory::new(HOST_MEMORY, bytes)));
        Ok(ptr)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        let checked = self.with(|books, _| books.free(ptr.as_ptr() as u64));
        // SAFETY: by the caller.
        unsafe { self.inner.host_free(ptr, bytes)? };
        checked
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        let addr = self.inner.device_alloc(bytes)?;
        self.with(|books, _| books.memory.insert(addr, Memory::new(DEVICE_MEMORY, bytes)));
        Ok(addr)
    }

    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error> {
        let checked = self.with(|books, _| books.free(addr));
        // SAFETY: by the caller.
        unsafe { self.inner.device_free(addr, bytes)? };
        checked
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        let touches = [(Span { addr: src as u64, bytes }, Access::Read), (Span { addr: dst, bytes }, Access::Write)];
        // SAFETY: by the caller.
        self.enqueue(stream, "copy_in", &touches, || unsafe { self.inner.copy_in(dst, src, bytes, stream) })
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        let touches = [(Span { addr: src, bytes }, Access::Read), (Span { addr: dst as u64, bytes }, Access::Write)];
        // SAFETY: by the caller.
        self.enqueue(stream, "copy_out", &touches, || unsafe { self.inner.copy_out(dst, src, bytes, stream) })
    }

    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        // The caller's rows are read in the order of the caller's stream; the caller is responsible for them.
        let touches = [(Span { addr: dst, bytes: rows.bytes(dst_pitch) }, Access::Write)];
        // SAFETY: by the caller.
        let call = || unsafe { self.inner.copy_rows(dst, dst_pitch, rows) };
        self.enqueue(rows.from.stream.raw(), "copy_rows", &touches, call)
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        let touches = [(Span { addr: src, bytes }, Access::Read), (Span { addr: dst, bytes }, Access::Write)];
        // SAFETY: by the caller.
        let call = || unsafe { self.inner.copy_on_device(dst, src, bytes, stream) };
        self.enqueue(stream, "copy_on_device", &touches, call)
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.admit_stream(stream)? };
        self.with(|books, _| books.admit(stream, "a caller's stream"));
        Ok(())
    }

    fn admit_memory(&self, addr: u64) -> Result<(), Error> {
        self.inner.admit_memory(addr)
    }

    unsafe fn launch(&self, program: &Arc<dyn Program>, run: Run, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        self.enqueue(stream, "launch", &program.touches(run), || unsafe { self.inner.launch(program, run, stream) })
    }

    fn note(&self, note: Note) -> Result<(), Error> {
        self.with(|books, known| match note {
            Note::Taken(span) => {
                known.join(&books.credit(span)?.known);
                Ok(())
            }
            Note::Begin(span, access) => books.begin(span, access, known),
            Note::End(span) => books.end(span, known),
            Note::Freed(span) => {
                books.credit(span)?.known.join(known);
                Ok(())
            }
            Note::Published => {
                books.published.join(known);
                Ok(())
            }
            Note::ReadOn(span, stream) => books.operate(stream.raw(), "a caller", &[(span, Access::Read)], known),
            Note::Batch { .. } | Note::Enqueued => Ok(()),
        })?;
        self.inner.note(note)
    }
}
