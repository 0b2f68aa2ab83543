//! Streams and events: work runs in stream order, at once or as late as it may.

use std::collections::VecDeque;

use crate::capture::Place;
use crate::driver::Driver;
use crate::ffi::*;
use crate::memory::Memory;
use crate::module::Node;
use crate::table::Table;

#[derive(Default)]
pub struct Stream {
    pub queue: VecDeque<Operation>,
    /// The context in which the stream was made.
    pub context: Handle,
    /// The nodes captured so far; `None` unless a capture began on this stream.
    pub captured: Option<Vec<Node>>,
    /// The stream's position in a capture; `None` if it does not capture.
    pub place: Option<Place>,
}

pub struct Event {
    pub timing: bool,
    /// The position of its last recording, if that was in a capture that goes on.
    pub place: Option<Place>,
    /// The number of recordings, and the number of the last one that is done.
    pub recorded: u64,
    pub done: u64,
    /// The time of the last finished recording, by the stand-in's clock.
    pub at_ms: f64,
}

pub enum Operation {
    Copy {
        dst: usize,
        src: usize,
        bytes: usize,
    },
    Record {
        event: Handle,
        recording: u64,
    },
    Wait {
        event: Handle,
        recording: u64,
    },
    Run(Vec<Node>),
    /// A host function and its argument, an address.
    Call {
        function: extern "C" fn(usize),
        data: usize,
    },
}

/// The time of a copy by the stand-in's clock.
const COPY_MS: f64 = 1.0;

impl Driver {
    /// Appends an operation to a stream, which must not be capturing.
    pub fn enqueue(&mut self, stream: Handle, operation: Operation) -> Result<(), Code> {
        let found = self.streams.get(stream).map(|stream| stream.place.is_some());
        if self.valid(found)? {
            return self.refuse("work that is not captured, on a capturing stream".into(), CAPTURE_UNSUPPORTED);
        }
        self.streams.get(stream).expect("just found").queue.push_back(operation);
        self.busy.insert(stream);
        while !self.config.held && self.step() {}
        Ok(())
    }

    /// Runs one operation of a stream that has one ready; returns whether there was one. After a fault there is none.
    pub fn step(&mut self) -> bool {
        if self.fault.is_some() {
            return false;
        }
        let stuck = self.config.stuck;
        let is_ready = |stream: &Stream, events: &mut Table<Event>| match stream.queue.front() {
            Some(Operation::Wait { event, recording }) => events.ever(*event).done >= *recording,
            Some(Operation::Run(_)) => !stuck,
            Some(_) => true,
            None => unreachable!("it is busy"),
        };
        let (streams, events) = (&mut self.streams, &mut self.events);
        let ready = self.busy.iter().copied().filter(|&handle| is_ready(streams.ever(handle), events));
        let ready: Vec<Handle> = ready.collect();
        if ready.is_empty() {
            return false;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chosen = ready[(self.random >> 33) as usize % ready.len()];
        let queue = &mut self.streams.ever(chosen).queue;
        let operation = queue.pop_front().expect("it is ready");
        if queue.is_empty() {
            self.busy.remove(&chosen);
        }
        self.run(operation);
        true
    }

    /// Runs work until `event` is done.
    pub fn finish(&mut self, event: Handle) -> Result<(), Code> {
        loop {
            let found = self.events.get(event).map(|event| event.done >= event.recorded);
            if self.valid(found)? {
                return Ok(());
            }
            if !self.step() {
                return self.never_ends();
            }
        }
    }

    /// The result of a wait for work that will not finish.
    pub fn never_ends<T>(&mut self) -> Result<T, Code> {
        match self.fault {
            Some(code) => Err(code),
            None => self.refuse("a wait that never ends".into(), ILLEGAL_ADDRESS),
        }
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Copy { dst, src, bytes } => {
                self.clock_ms += COPY_MS;
                // SAFETY: both ranges were found in live blocks when the copy was enqueued, and a block that pending
                // work names is not freed, see `check_idle`.
                unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) }
            }
            Operation::Record { event, recording } => {
                let event = self.events.ever(event);
                (event.done, event.at_ms) = (event.done.max(recording), self.clock_ms);
            }
            Operation::Wait { .. } => {}
            Operation::Run(nodes) => self.run_nodes(&nodes),
            // The driver's lock is held: a function that called the driver would never return.
            Operation::Call { function, data } => function(data),
        }
    }

    /// Refuses to free the block at `start` while enqueued work names it.
    pub fn check_idle(&mut self, start: usize) -> Result<(), Code> {
        let same = |address: usize| {
            let of = |memory: &Memory, address| memory.index_of(address);
            let (device, host) = (of(&self.device, start), of(&self.host, start));
            device.is_some() && of(&self.device, address) == device || host.is_some() && of(&self.host, address) == host
        };
        let names = |operation: &Operation| match operation {
            Operation::Copy { dst, src, .. } => same(*dst) || same(*src),
            _ => false,
        };
        let busy: Vec<Handle> = self.busy.iter().copied().collect();
        let is_named = busy.into_iter().any(|handle| self.streams.ever(handle).queue.iter().any(names));
        match is_named {
            true => self.refuse("memory freed while a copy of it is under way".into(), ILLEGAL_ADDRESS),
            false => Ok(()),
        }
    }
}
