//! What the fake driver knows: handles, allocations, streams as queues of operations, and the log.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{INVALID_VALUE, SUCCESS, Status};

/// What a handle or an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Context,
    Stream,
    Event,
    Module,
    Graph,
    GraphExec,
    Host,
    Device,
}

/// Work of a stream.
pub enum Op {
    Copy { dst: usize, src: usize, bytes: usize },
    Record { event: usize, sequence: u64 },
    Wait { event: usize, sequence: u64 },
    Launch,
}

/// Everything, behind one lock.
#[derive(Default)]
pub struct State {
    calls: u64,
    allocations: u64,
    current: usize,
    made: BTreeMap<Kind, usize>,
    /// Live handles and allocations, with their bytes.
    live: BTreeMap<usize, (Kind, usize)>,
    streams: BTreeMap<usize, VecDeque<Op>>,
    /// Events: how often recorded, and how far reached.
    events: BTreeMap<usize, (u64, u64)>,
    capturing: Option<usize>,
}

const ALIGN: usize = 256;

/// Names given to handles and allocations, kept after they are gone.
static NAMES: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());

/// The name of a handle, or of the allocation that holds an address.
pub fn name(handle: usize) -> String {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(&handle).cloned().unwrap_or_else(|| if handle == 0 { "null".into() } else { "unknown".into() })
}

/// A number from the environment.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs a call under the lock.
pub fn with<T>(call: impl FnOnce(&mut State) -> T) -> T {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    call(&mut STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner))
}

fn log(line: &str) {
    if let Ok(path) = std::env::var("FAKE_CUDA_LOG") {
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the log");
        writeln!(file, "{line}").expect("the log");
    }
}

impl State {
    /// Logs and counts a call; the status to give instead of doing it, if it is the one to fail.
    pub fn enter(&mut self, function: &str, words: &[String]) -> Option<Status> {
        self.calls += 1;
        let fails = self.calls == number("FAKE_CUDA_FAIL_CALL", 0);
        let failed = if fails { " FAILED" } else { "" };
        let line = [&[function.trim_end_matches("_v2").to_owned()], words].concat().join(" ");
        log(&format!("{line}{failed}"));
        fails.then(|| number("FAKE_CUDA_FAIL_STATUS", 719) as Status)
    }

    pub fn expect(&mut self, holds: bool, otherwise: &str) {
        if !holds {
            log(&format!("VIOLATION {otherwise}"));
        }
    }

    fn adopt(&mut self, handle: usize, kind: Kind, bytes: usize) {
        let index = self.made.entry(kind).or_default();
        let name = format!("{kind:?}{index}").to_lowercase();
        *index += 1;
        NAMES.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, name);
        self.live.insert(handle, (kind, bytes));
    }

    pub fn create(&mut self, kind: Kind) -> *mut c_void {
        // Numbers that no address has: they are never dereferenced.
        let handle = 0x1000 + 16 * self.made.values().sum::<usize>();
        self.adopt(handle, kind, 0);
        match kind {
            Kind::Stream => drop(self.streams.insert(handle, VecDeque::new())),
            Kind::Event => drop(self.events.insert(handle, (0, 0))),
            _ => {}
        }
        handle as *mut c_void
    }

    pub fn check(&mut self, handle: *mut c_void, kind: Kind) -> Status {
        let alive = self.live.get(&(handle as usize)).is_some_and(|(k, _)| *k == kind);
        self.expect(alive, &format!("use of {} as a live {kind:?}", name(handle as usize)));
        if alive { SUCCESS } else { INVALID_VALUE }
    }

    pub fn destroy(&mut self, handle: *mut c_void, kind: Kind) -> Status {
        let status = self.check(handle, kind);
        self.live.remove(&(handle as usize));
        status
    }

    pub fn current(&self) -> *mut c_void {
        self.current as *mut c_void
    }

    pub fn set_current(&mut self, context: *mut c_void) -> Status {
        self.current = context as usize;
        self.check(context, Kind::Context)
    }

    /// The last reference to the primary context goes: logs what is still alive.
    pub fn release_context(&mut self) -> Status {
        self.live.retain(|_, (kind, _)| *kind != Kind::Context);
        let alive: Vec<String> = self.live.keys().map(|&handle| name(handle)).collect();
        log(&format!("LIVE {}", alive.join(" ")));
        SUCCESS
    }

    pub fn allocate(&mut self, kind: Kind, bytes: usize) -> Option<usize> {
        self.allocations += 1;
        if self.allocations == number("FAKE_CUDA_FAIL_ALLOC", 0) {
            return None;
        }
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the size is not zero; the bytes are poisoned before anybody sees them.
        let memory = unsafe {
            let memory = alloc(layout);
            memory.write_bytes(0xCD, bytes);
            memory as usize
        };
        self.adopt(memory, kind, bytes);
        Some(memory)
    }

    pub fn free(&mut self, memory: usize, kind: Kind) -> Status {
        let bytes = self.live.get(&memory).map(|(_, bytes)| *bytes);
        if self.check(memory as *mut c_void, kind) != SUCCESS {
            return INVALID_VALUE;
        }
        let bytes = bytes.expect("checked");
        let inside = |address: usize| (memory..memory + bytes).contains(&address);
        let pending = self.streams.values().flatten().any(|op| match op {
            Op::Copy { dst, src, .. } => inside(*dst) || inside(*src),
            _ => false,
        });
        self.expect(!pending, &format!("{} freed under a pending copy", name(memory)));
        self.live.remove(&memory);
        // SAFETY: allocated with this layout, and live until now.
        unsafe { dealloc(memory as *mut u8, Layout::from_size_align(bytes.max(1), ALIGN).expect("as allocated")) };
        SUCCESS
    }

    pub fn copy(&mut self, stream: *mut c_void, dst: (usize, Kind), src: (usize, Kind), bytes: usize) -> Status {
        for (address, kind) in [dst, src] {
            let fits = self.live.get(&address).is_some_and(|(k, size)| *k == kind && bytes <= *size);
            self.expect(fits, &format!("copy of {bytes} bytes outside of {kind:?} memory {}", name(address)));
            if !fits {
                return INVALID_VALUE;
            }
        }
        self.enqueue(stream, Op::Copy { dst: dst.0, src: src.0, bytes })
    }

    pub fn record(&mut self, event: *mut c_void, stream: *mut c_void) -> Status {
        if self.check(event, Kind::Event) != SUCCESS {
            return INVALID_VALUE;
        }
        let event = event as usize;
        let (recorded, _) = self.events.get_mut(&event).expect("checked");
        *recorded += 1;
        let sequence = *recorded;
        self.enqueue(stream, Op::Record { event, sequence })
    }

    pub fn wait(&mut self, stream: *mut c_void, event: *mut c_void) -> Status {
        if self.check(event, Kind::Event) != SUCCESS {
            return INVALID_VALUE;
        }
        let (sequence, _) = self.events[&(event as usize)];
        self.enqueue(stream, Op::Wait { event: event as usize, sequence })
    }

    pub fn reached(&self, event: *mut c_void) -> bool {
        self.events.get(&(event as usize)).is_some_and(|(recorded, reached)| reached >= recorded)
    }

    pub fn enqueue(&mut self, stream: *mut c_void, op: Op) -> Status {
        if self.check(stream, Kind::Stream) != SUCCESS {
            return INVALID_VALUE;
        }
        self.expect(self.capturing != Some(stream as usize), "work other than kernels in a capture");
        self.streams.get_mut(&(stream as usize)).expect("checked").push_back(op);
        if number("FAKE_CUDA_HELD", 0) == 0 {
            while self.step() {}
        }
        SUCCESS
    }

    /// Runs one operation whose waits are over; whether there was one.
    pub fn step(&mut self) -> bool {
        for queue in self.streams.values_mut() {
            match queue.front() {
                None => continue,
                Some(Op::Wait { event, sequence }) if self.events[event].1 < *sequence => continue,
                Some(_) => {}
            }
            match queue.pop_front().expect("it has a front") {
                // SAFETY: in bounds of live allocations when enqueued; freeing one with a copy pending is a violation
                // that the test sees, and host and device allocations are apart.
                Op::Copy { dst, src, bytes } => unsafe {
                    std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, bytes);
                },
                Op::Record { event, sequence } => {
                    let (_, reached) = self.events.get_mut(&event).expect("events are kept");
                    *reached = (*reached).max(sequence);
                }
                Op::Wait { .. } | Op::Launch => {}
            }
            return true;
        }
        false
    }

    pub fn begin_capture(&mut self, stream: *mut c_void) -> Status {
        self.expect(self.capturing.is_none(), "a capture inside a capture");
        self.capturing = Some(stream as usize);
        self.check(stream, Kind::Stream)
    }

    pub fn capture_launch(&mut self, function: *mut c_void) -> Status {
        self.expect(self.capturing.is_some(), "a kernel launched outside of a graph");
        self.check(function, Kind::Module)
    }

    pub fn end_capture(&mut self, stream: *mut c_void) -> *mut c_void {
        self.expect(self.capturing == Some(stream as usize), "the end of a capture that was not begun");
        self.capturing = None;
        self.create(Kind::Graph)
    }
}
