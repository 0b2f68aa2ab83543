//! The CPU as a device: a stream is a thread with a queue, an event is a counter with a condition variable.
//!
//! It has the semantics of CUDA's streams and events, so that a ring runs on it unchanged: copies, programs and records
//! run in stream order, and a wait takes the event as it was last recorded when the wait was enqueued. Stream 0 stands
//! for the thread that makes the call.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::{Backend, DeviceInfo, HOST_MEMORY, Priority, RowCopy, Run, Signal};
use crate::error::Error;
use crate::sync::{Condvar, Mutex, lock, spawn, wait};
use crate::tensor::ROW_ALIGN;

/// Work that a stream of the CPU runs: a program on one slot.
pub(crate) trait Work: Send + Sync {
    /// Runs the work, on the stream's thread.
    fn run(&self, run: Run);
}

/// The CPU device.
pub(crate) struct Cpu {
    streams: Mutex<HashMap<u64, Arc<Queue>>>,
    events: Mutex<HashMap<u64, Arc<EventState>>>,
    next: AtomicU64,
    /// The panic of the first program that panicked; no program runs after it.
    broken: Arc<OnceLock<Error>>,
}

/// The default number of compute threads: as many as the process may use.
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The handle of the stream that stands for the calling thread; handles of other streams are larger.
const CALLING_THREAD: u64 = 0;

/// A queue of a stream's operations, which the stream's thread and the device share.
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    ops: VecDeque<Op>,
    closed: bool,
}

enum Op {
    Copy { dst: usize, src: usize, bytes: usize },
    Record { event: Arc<EventState>, sequence: u64 },
    Wait { event: Arc<EventState>, sequence: u64 },
    Run { work: Arc<dyn Work>, run: Run },
    Notify(Arc<Signal>),
}

#[derive(Default)]
struct EventState {
    times: Mutex<Times>,
    changed: Condvar,
}

#[derive(Default)]
struct Times {
    /// The number of times that the event was recorded.
    recorded: u64,
    /// The number of the newest record that a stream has reached.
    reached: u64,
    at: Option<Instant>,
}

impl Cpu {
    pub fn new(threads: usize) -> (Self, DeviceInfo) {
        let info = DeviceInfo {
            target: "cpu".into(),
            name: "CPU".into(),
            compute_capability: [0, 0],
            units: threads.max(1),
            shared_bytes: 0,
            memory_bytes: 0,
            driver_version: 0,
        };
        let this = Self {
            streams: Mutex::default(),
            events: Mutex::default(),
            next: AtomicU64::new(1),
            broken: Arc::default(),
        };
        (this, info)
    }

    /// Enqueues a run of `work` on `stream`.
    pub fn enqueue(&self, stream: u64, work: Arc<dyn Work>, run: Run) -> Result<(), Error> {
        self.healthy()?;
        self.push(stream, "launch", Op::Run { work, run })
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn push(&self, stream: u64, operation: &'static str, op: Op) -> Result<(), Error> {
        let queue = find(&self.streams, stream, operation)?;
        lock(&queue.state).ops.push_back(op);
        queue.changed.notify_one();
        Ok(())
    }

    fn event(&self, event: u64, operation: &'static str) -> Result<Arc<EventState>, Error> {
        find(&self.events, event, operation)
    }

    fn healthy(&self) -> Result<(), Error> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// The state behind a handle.
fn find<T>(map: &Mutex<HashMap<u64, Arc<T>>>, handle: u64, operation: &'static str) -> Result<Arc<T>, Error> {
    lock(map)
        .get(&handle)
        .cloned()
        .ok_or_else(|| Error::Internal { what: format!("{operation} on handle {handle}, which is not alive") })
}

/// A stream's thread: runs operations in order until the stream is destroyed and its queue is empty.
fn serve(queue: &Queue, broken: &OnceLock<Error>) {
    loop {
        let op = {
            let mut state = lock(&queue.state);
            loop {
                if let Some(op) = state.ops.pop_front() {
                    break op;
                }
                if state.closed {
                    return;
                }
                state = wait(&queue.changed, state);
            }
        };
        match op {
            Op::Copy { dst, src, bytes } => {
                // SAFETY: the caller of `copy_in` or `copy_out` keeps both ranges alive and unshared until an event
                // behind this copy is done; they are different allocations.
                unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, bytes) }
            }
            Op::Record { event, sequence } => event.reach(sequence),
            Op::Wait { event, sequence } => event.wait_for(sequence),
            Op::Notify(signal) => {
                if broken.get().is_none() {
                    signal.fire(); // after a fault a GPU would not either
                }
            }
            Op::Run { work, run } => {
                if broken.get().is_none()
                    && let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.run(run)))
                {
                    let what = format!("a program on the CPU panicked: {}", message(&*panic));
                    let _ = broken.set(Error::Internal { what });
                }
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl EventState {
    fn reach(&self, sequence: u64) {
        let mut times = lock(&self.times);
        times.reached = times.reached.max(sequence);
        times.at = Some(Instant::now());
        drop(times);
        self.changed.notify_all();
    }

    fn wait_for(&self, sequence: u64) {
        let mut times = lock(&self.times);
        while times.reached < sequence {
            times = wait(&self.changed, times);
        }
    }
}

impl Backend for Cpu {
    fn stream_create(&self, _priority: Priority, name: &str) -> Result<u64, Error> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let (served, broken) = (queue.clone(), self.broken.clone());
        spawn(name, move || serve(&served, &broken))?;
        let id = self.id();
        lock(&self.streams).insert(id, queue);
        Ok(id)
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        let queue = find(&self.streams, stream, "stream_destroy")?;
        lock(&self.streams).remove(&stream);
        lock(&queue.state).closed = true;
        queue.changed.notify_one();
        Ok(())
    }

    fn event_create(&self, _timing: bool) -> Result<u64, Error> {
        let id = self.id();
        lock(&self.events).insert(id, Arc::default());
        Ok(id)
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        self.event(event, "event_destroy")?;
        lock(&self.events).remove(&event);
        Ok(())
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        let event = self.event(event, "event_record")?;
        let sequence = {
            let mut times = lock(&event.times);
            times.recorded += 1;
            times.recorded
        };
        if stream == CALLING_THREAD {
            event.reach(sequence);
            return Ok(());
        }
        self.push(stream, "event_record", Op::Record { event, sequence })
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        let event = self.event(event, "stream_wait")?;
        let Times { recorded: sequence, reached, .. } = *lock(&event.times);
        if stream == CALLING_THREAD {
            event.wait_for(sequence);
            return self.healthy();
        }
        if reached >= sequence {
            return Ok(());
        }
        self.push(stream, "stream_wait", Op::Wait { event, sequence })
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        let event = self.event(event, "event_query")?;
        let Times { recorded, reached, .. } = *lock(&event.times);
        self.healthy()?;
        Ok(reached >= recorded)
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        let event = self.event(event, "event_wait")?;
        let recorded = lock(&event.times).recorded;
        event.wait_for(recorded);
        self.healthy()
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        let at = |event| {
            let event = self.event(event, "elapsed_ms")?;
            let at = lock(&event.times).at;
            at.ok_or_else(|| Error::Internal { what: "elapsed_ms of an event never reached".into() })
        };
        let (start, end) = (at(start)?, at(end)?);
        Ok(end.saturating_duration_since(start).as_secs_f32() * 1e3)
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        self.healthy()?;
        self.push(stream, "notify", Op::Notify(signal.clone()))
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        alloc("cpu", bytes)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller passes what `host_alloc` returned for `bytes`, once.
        unsafe { free(ptr, bytes) };
        Ok(())
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        Ok(self.host_alloc(bytes)?.as_ptr() as u64)
    }

    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error> {
        let ptr = NonNull::new(addr as *mut u8).expect("device_alloc returns no null");
        // SAFETY: the caller passes what `device_alloc`, and so `host_alloc`, returned for `bytes`, once.
        unsafe { self.host_free(ptr, bytes) }
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        self.healthy()?;
        self.push(stream, "copy_in", Op::Copy { dst: dst as usize, src: src as usize, bytes })
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.healthy()?;
        self.push(stream, "copy_out", Op::Copy { dst: dst as usize, src: src as usize, bytes })
    }

    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        self.healthy()?;
        let RowCopy { from, row_bytes: bytes, rows } = *rows;
        (0..rows).try_for_each(|row| {
            let (dst, src) = (dst as usize + row * dst_pitch, from.addr as usize + row * from.pitch);
            self.push(from.stream.raw(), "copy_rows", Op::Copy { dst, src, bytes })
        })
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.healthy()?;
        self.push(stream, "copy_on_device", Op::Copy { dst: dst as usize, src: src as usize, bytes })
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        if stream != CALLING_THREAD && !lock(&self.streams).contains_key(&stream) {
            return Err(Error::option("stream", format!("{stream:#x}"), "the default stream: the CPU has no other"));
        }
        Ok(())
    }

    fn admit_memory(&self, _addr: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// Allocates zeroed host memory, aligned to [`ROW_ALIGN`], for devices that have no memory of their own.
pub(super) fn alloc(device: &str, bytes: usize) -> Result<NonNull<u8>, Error> {
    let out_of_memory = || Error::OutOfMemory {
        device: device.into(),
        what: HOST_MEMORY.into(),
        needed_bytes: bytes as u64,
        free_bytes: 0,
        fitting_batch: None,
    };
    let layout = Layout::from_size_align(bytes, ROW_ALIGN).map_err(|_| out_of_memory())?;
    assert!(layout.size() > 0, "an empty buffer");
    // SAFETY: the layout has a non-zero size.
    NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)
}

/// Frees memory of `alloc`.
///
/// # Safety
/// `ptr` came from `alloc` for `bytes`, and nothing accesses it any more.
pub(super) unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
    let layout = Layout::from_size_align(bytes, ROW_ALIGN).expect("it was allocated with this layout");
    // SAFETY: the caller passes what `alloc` returned for `bytes`, once.
    unsafe { dealloc(ptr.as_ptr(), layout) };
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // Streams own the device through their handles, so that none is left here; close those that a failed build
        // leaked.
        for queue in lock(&self.streams).values() {
            lock(&queue.state).closed = true;
            queue.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Event, HostBuffer, Stream, Target};
    use super::*;

    #[test]
    fn a_wait_takes_the_record_that_was_last_when_it_was_enqueued() {
        let device = Device::open(Target::Cpu).unwrap();
        let (a, b) = (stream(&device, "a"), stream(&device, "b"));
        let (first, second) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
        b.wait(&first).unwrap(); // never recorded: no wait
        second.record(&b).unwrap();
        second.wait().unwrap();
        first.record(&a).unwrap();
        b.wait(&first).unwrap();
        second.record(&b).unwrap();
        second.wait().unwrap();
        assert!(first.is_done().unwrap());
    }

    #[test]
    fn copies_run_in_stream_order() {
        let device = Device::open(Target::Cpu).unwrap();
        let stream = stream(&device, "copies");
        let host = HostBuffer::new(&device, 256).unwrap();
        let back = HostBuffer::new(&device, 256).unwrap();
        let there = crate::device::DeviceBuffer::new(&device, 256).unwrap();
        let done = Event::new(&device).unwrap();
        // SAFETY: nothing else accesses the three buffers; the event is waited for before `back` is read.
        let seen = unsafe {
            host.bytes_mut().fill(7);
            stream.copy_in(&there, &host, 256).unwrap();
            stream.copy_out(&back, &there, 256).unwrap();
            done.record(&stream).unwrap();
            done.wait().unwrap();
            back.bytes()
        };
        assert!(seen.iter().all(|&b| b == 7));
    }

    fn stream(device: &Device, name: &str) -> Stream {
        Stream::new(device, Priority::Normal, name).unwrap()
    }
}
