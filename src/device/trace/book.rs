//! The recorder's data on each batch, as plain data. Every table has its final size before the first batch.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

use super::BatchPart;
use crate::device::Access;

/// Two looks at an event belong to the same wait if less than this time, in seconds, lies between them.
const POLLED_WITHIN: f64 = 1e-3;
/// The most threads that get a name of their own.
const MOST_THREADS: usize = 1024;
/// Stands for no batch.
const NONE: u64 = u64::MAX;

pub(super) struct Book {
    /// The batches. Batch `sequence` is at `sequence % entries.len()`, until a later one replaces it.
    entries: Vec<BookEntry>,
    /// The number of batches so far.
    next: u64,
    /// The batch that is being enqueued.
    current: Option<Current>,
    /// Page-locked buffers by address.
    buffers: HashMap<u64, Buffer>,
    /// The device's events, each with the batch whose last one it is.
    last_events: HashMap<u64, u64>,
    /// Names of the streams that are alive.
    streams: HashMap<u64, String>,
    /// The streams of the parts of a batch. The upload and the download have the stream that was used last; each
    /// program has all of its streams, in the order of their first use, which is that of the slots.
    part_streams: Vec<Vec<u64>>,
    threads: Threads,
    closed: bool,
}

/// The record of one batch.
#[derive(Clone, Copy)]
pub(super) struct BookEntry {
    pub sequence: u64,
    pub number: u64,
    pub slot: usize,
    pub size: usize,
    pub rows: usize,
    /// The number of recorded events of its place. They are recorded in order: begin and end of one part, then of the
    /// next.
    recorded: usize,
    pub fill: Option<Moments>,
    pub submit: Option<Moments>,
    pub wait: Option<Moments>,
    pub read: Option<Moments>,
    looks: Option<Moments>,
}

/// What a thread did: the thread's number, and when, in seconds on the clock.
#[derive(Clone, Copy)]
pub(super) struct Moments {
    pub thread: usize,
    pub begin: f64,
    pub end: f64,
}

struct Current {
    sequence: u64,
    /// The part that has begun and not ended, and its stream.
    open: Option<(usize, u64)>,
    /// The number of programs launched so far.
    launched: usize,
}

#[derive(Clone, Copy)]
struct Buffer {
    /// The time at which its credit holder began to write.
    writing_since: Option<f64>,
    filled: Option<Moments>,
    /// The batch whose result the buffer has.
    batch: u64,
    reading_since: Option<f64>,
}

impl Book {
    /// A book with room for `batches` batches, each of `programs` programs.
    pub fn new(batches: usize, programs: usize) -> Self {
        let empty = BookEntry {
            sequence: NONE,
            number: 0,
            slot: 0,
            size: 0,
            rows: 0,
            recorded: 0,
            fill: None,
            submit: None,
            wait: None,
            read: None,
            looks: None,
        };
        Self {
            entries: vec![empty; batches],
            next: 0,
            current: None,
            buffers: HashMap::new(),
            last_events: HashMap::new(),
            streams: HashMap::new(),
            part_streams: vec![Vec::new(); programs + 2],
            threads: Threads::default(),
            closed: false,
        }
    }

    pub fn add_buffer(&mut self, addr: u64) {
        let unused = Buffer { writing_since: None, filled: None, batch: NONE, reading_since: None };
        self.buffers.insert(addr, unused);
    }

    pub fn remove_buffer(&mut self, addr: u64) {
        self.buffers.remove(&addr);
    }

    pub fn add_event(&mut self, event: u64) {
        self.last_events.insert(event, NONE);
    }

    pub fn remove_event(&mut self, event: u64) {
        self.last_events.remove(&event);
    }

    pub fn add_stream(&mut self, stream: u64, name: &str) {
        self.streams.insert(stream, name.to_owned());
    }

    pub fn remove_stream(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    /// Ends the recording; the batch that is being enqueued is not recorded either.
    pub fn close(&mut self) {
        self.closed = true;
        if let Some(current) = self.current.take()
            && let Some(entry) = self.entry(current.sequence)
        {
            entry.recorded = 0;
        }
    }

    fn place(&self, sequence: u64) -> usize {
        (sequence % self.entries.len() as u64) as usize
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut BookEntry> {
        let place = self.place(sequence);
        Some(&mut self.entries[place]).filter(|entry| entry.sequence == sequence && sequence != NONE)
    }

    pub fn begin(&mut self, addr: u64, access: Access, now: f64) {
        let Some(buffer) = self.buffers.get_mut(&addr) else { return };
        match access {
            Access::Write => (buffer.writing_since, buffer.filled) = (Some(now), None),
            Access::Read => {
                buffer.reading_since = Some(now);
                let (batch, thread) = (buffer.batch, self.threads.current());
                let Some(entry) = self.entry(batch) else { return };
                let polled = entry.looks.filter(|look| look.thread == thread && now - look.end < POLLED_WITHIN);
                if let (None, Some(look)) = (entry.wait, polled) {
                    entry.wait = Some(Moments { end: now, ..look });
                }
            }
        }
    }

    pub fn end(&mut self, addr: u64, now: f64) {
        let Some(buffer) = self.buffers.get_mut(&addr) else { return };
        let thread = self.threads.current();
        if let Some(begin) = buffer.writing_since.take() {
            buffer.filled = Some(Moments { thread, begin, end: now });
        } else if let Some(begin) = buffer.reading_since.take() {
            let batch = buffer.batch;
            if let Some(entry) = self.entry(batch) {
                entry.read = Some(Moments { thread, begin, end: now });
            }
        }
    }

    /// Begins a batch, which is enqueued from now on and replaces the oldest one.
    pub fn batch(&mut self, number: u64, [slot, size, rows]: [usize; 3], [staging, result]: [u64; 2], now: f64) {
        if self.closed {
            return;
        }
        let (sequence, thread) = (self.next, self.threads.current());
        self.next += 1;
        let fill = self.buffers.get_mut(&staging).and_then(|buffer| buffer.filled.take());
        if let Some(buffer) = self.buffers.get_mut(&result) {
            (buffer.batch, buffer.reading_since) = (sequence, None);
        }
        let place = self.place(sequence);
        let begin = fill.map_or(now, |fill| fill.end);
        let submit = Some(Moments { thread, begin, end: now });
        self.entries[place] = BookEntry {
            sequence,
            number,
            slot,
            size,
            rows,
            recorded: 0,
            fill,
            submit,
            wait: None,
            read: None,
            looks: None,
        };
        self.current = Some(Current { sequence, open: None, launched: 0 });
    }

    pub fn enqueued(&mut self, now: f64) {
        let Some(current) = self.current.take() else { return };
        if let Some(submit) = self.entry(current.sequence).and_then(|entry| entry.submit.as_mut()) {
            submit.end = now;
        }
    }

    /// Called before a copy or launch on `stream`. If a part of the batch begins with it, returns the index of the
    /// recorder's event to record before it.
    pub fn part_begins(&mut self, part: BatchPart, stream: u64) -> Option<usize> {
        let last = self.part_streams.len() - 1;
        let current = self.current.as_mut().filter(|current| current.open.is_none())?;
        let part = match part {
            BatchPart::CopyIn => 0,
            BatchPart::Program => {
                current.launched += 1;
                current.launched
            }
            BatchPart::CopyOut => last,
        };
        current.open = Some((part, stream));
        let sequence = current.sequence;
        let streams = &mut self.part_streams[part];
        if part == 0 || part == last {
            streams.clear();
        }
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        self.next_mark(sequence, 2 * part)
    }

    /// Called before `event` is recorded on `stream`. If a part of the batch ends there, returns the index of the
    /// recorder's event to record before it.
    pub fn part_ends(&mut self, event: u64, stream: u64) -> Option<usize> {
        let last = self.part_streams.len() - 1;
        let current = self.current.as_mut()?;
        let (part, _) = current.open.take_if(|open| open.1 == stream)?;
        let sequence = current.sequence;
        if part == last
            && let Some(batch) = self.last_events.get_mut(&event)
        {
            *batch = sequence;
        }
        self.next_mark(sequence, 2 * part + 1)
    }

    fn next_mark(&mut self, sequence: u64, index: usize) -> Option<usize> {
        let entry = self.entry(sequence).filter(|entry| entry.recorded == index)?;
        entry.recorded += 1;
        Some(self.marks_at(sequence).start + index)
    }

    /// The number of the recorder's events for each batch.
    fn marks(&self) -> usize {
        2 * self.part_streams.len()
    }

    /// The indices of the recorder's events for a batch.
    fn marks_at(&self, sequence: u64) -> Range<usize> {
        let (place, each) = (self.place(sequence), self.marks());
        place * each..(place + 1) * each
    }

    /// The batch whose last event `event` is.
    pub fn ended_by(&self, event: u64) -> Option<u64> {
        self.last_events.get(&event).copied().filter(|&batch| batch != NONE)
    }

    /// Records that the thread looked at the batch's last event.
    pub fn looked(&mut self, batch: u64, before: f64, now: f64) {
        let thread = self.threads.current();
        let Some(entry) = self.entry(batch) else { return };
        let goes_on = entry.looks.filter(|look| look.thread == thread && before - look.end < POLLED_WITHIN);
        entry.looks = Some(Moments { thread, begin: goes_on.map_or(before, |look| look.begin), end: now });
    }

    /// Records that the thread blocked on the batch's last event.
    pub fn waited(&mut self, batch: u64, begin: f64, end: f64) {
        let thread = self.threads.current();
        if let Some(entry) = self.entry(batch) {
            entry.wait = Some(Moments { thread, begin, end });
        }
    }

    /// The batches whose events are all recorded, oldest first, each with the indices of its events.
    pub fn enqueued_batches(&self) -> Vec<(BookEntry, Range<usize>)> {
        let entries = (self.oldest()..self.next).map(|sequence| self.entries[self.place(sequence)]);
        let complete = entries.filter(|entry| entry.recorded == self.marks());
        complete.map(|entry| (entry, self.marks_at(entry.sequence))).collect()
    }

    /// The oldest batch that was not replaced.
    pub fn oldest(&self) -> u64 {
        self.next.saturating_sub(self.entries.len() as u64)
    }

    /// The names of the streams of each part.
    pub fn stream_names(&self) -> Vec<Vec<String>> {
        let name = |stream: &u64| self.streams.get(stream).cloned().unwrap_or_default();
        self.part_streams.iter().map(|streams| streams.iter().map(name).collect()).collect()
    }

    pub fn thread_names(&self) -> Vec<Arc<str>> {
        self.threads.names.clone()
    }
}

/// Threads in the order in which they were first seen.
#[derive(Default)]
struct Threads {
    numbers: HashMap<ThreadId, usize>,
    /// The names of the threads, all different.
    names: Vec<Arc<str>>,
    taken: HashSet<Arc<str>>,
}

impl Threads {
    /// The number of the calling thread.
    fn current(&mut self) -> usize {
        let thread = std::thread::current();
        if let Some(&number) = self.numbers.get(&thread.id()) {
            return number;
        }
        if self.names.len() >= MOST_THREADS {
            return self.names.len() - 1;
        }
        let number = self.names.len();
        let others = number + 1 == MOST_THREADS;
        let own = match thread.name() {
            _ if others => "other threads".to_owned(),
            Some(name) => name.to_owned(),
            None => format!("thread {number}"),
        };
        let mut name: Arc<str> = own.as_str().into();
        for again in 2.. {
            if self.taken.insert(name.clone()) {
                break;
            }
            name = format!("{own} #{again}").into();
        }
        self.names.push(name);
        if !others {
            self.numbers.insert(thread.id(), number);
        }
        number
    }
}
