//! The driver's state behind one lock, the path of every call through it, and the log.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::ffi::*;
use crate::memory::Memory;
use crate::module::{Function, Module, Node};
use crate::stream::{Event, Stream};
use crate::table::Table;

pub struct Driver {
    pub config: Config,
    pub started: bool,
    /// How often the primary context of each device is retained.
    pub retained: Vec<u32>,
    /// The contexts that a program made, each with its device.
    pub contexts: Table<i32>,
    /// The default stream, once it has been used; it is never destroyed.
    pub default_stream: Option<Handle>,
    pub streams: Table<Stream>,
    /// Streams with unfinished work, including destroyed ones.
    pub busy: BTreeSet<Handle>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub graphs: Table<Vec<Node>>,
    pub execs: Table<Vec<Node>>,
    pub device: Memory,
    pub host: Memory,
    /// Number of contexts that are current on all threads together.
    pub pushed: usize,
    /// The threads that capture, each with its stream.
    pub capturing: Vec<(ThreadId, Handle)>,
    pub random: u64,
    /// The time of all copies and kernels so far.
    pub clock_ms: f64,
    calls: usize,
    /// The number of calls by name.
    named: HashMap<&'static str, usize>,
    /// The last mark of the test, and the names called since.
    phase: (String, HashSet<&'static str>),
    /// The status of every call from now on: after an injected failure that lasts, or a kernel's fault.
    pub fault: Option<Code>,
    /// Whether a call has failed by injection.
    pub has_failed: bool,
    /// The status with which the current call ends, although it does its work.
    pub injected: Option<Code>,
    log: Option<File>,
}

pub struct Config {
    pub version: i32,
    pub devices: i32,
    pub capability: i32,
    pub memory: usize,
    /// Work is not finished when it is enqueued.
    pub held: bool,
    /// A thread of the driver does the work, one step at a time.
    pub own: bool,
    /// Kernels never end.
    pub stuck: bool,
    pub ptx_error: Option<String>,
    /// Kernels with this text in their names take ten times as long as others.
    pub slow: Option<String>,
    /// If set, branches of a graph run at the same time, and a kernel that joins another branch begins this much later.
    pub join_ms: Option<f64>,
    fail_call: Option<Which>,
    fail_code: Code,
    late_call: Option<Which>,
    late: Duration,
    sticky: bool,
}

/// Calls that fail or return late.
enum Which {
    /// Calls by their numbers.
    Numbers(Vec<usize>),
    /// Calls of this name, from this occurrence on.
    From(String, usize),
    /// The first call of a name after a mark: the mark, then the name.
    Behind(String, String),
}

impl Which {
    fn read(which: &str) -> Self {
        if let Ok(numbers) = which.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>() {
            return Self::Numbers(numbers);
        }
        match (which.split_once('#'), which.split_once(':')) {
            (Some((name, first)), _) => Self::From(name.into(), first.parse().expect("a number behind #")),
            (_, Some((mark, name))) => Self::Behind(mark.into(), name.into()),
            _ => Self::From(which.into(), 1),
        }
    }

    /// Whether a call is one of these, and whether no call by number is still to come.
    fn is(&self, call: &Counted) -> (bool, bool) {
        let is_of = |of: &str| short(of) == short(call.name);
        match self {
            Self::Numbers(all) => (all.contains(&call.number), all.iter().all(|one| *one <= call.number)),
            Self::From(of, first) => (is_of(of) && call.named >= *first, true),
            Self::Behind(mark, of) => (is_of(of) && call.first_behind.as_ref() == Some(mark), true),
        }
    }
}

/// A call in progress, with its counts.
struct Counted {
    name: &'static str,
    /// The number of this call, counted from 1 over all calls.
    number: usize,
    /// The number of this call among those of its name.
    named: usize,
    /// The last mark, if this is the first call of its name after it.
    first_behind: Option<String>,
}

/// The name of a call in the log.
fn short(name: &str) -> &str {
    name.trim_end_matches("_v2")
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new()));

/// The time that the driver's own thread takes for an operation.
const MOMENT: Duration = Duration::from_micros(20);

thread_local! {
    /// The stack of contexts that are current on this thread; the last one is in use.
    pub static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// Calls that do their work even when they fail, as the driver's do: they cannot be repeated.
const ENDINGS: [&str; 11] = [
    "cuCtxDestroy_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamEndCapture",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuModuleUnload",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuDevicePrimaryCtxRelease_v2",
];

/// Calls that make or load something in the current context. Other calls name an object and thereby its context; the
/// driver accepts them whichever context is current.
const IN_CURRENT_CONTEXT: [&str; 13] = [
    "cuCtxGetDevice",
    "cuStreamCreate",
    "cuCtxGetStreamPriorityRange",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemGetInfo_v2",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuFuncLoad",
    "cuStreamBeginCapture_v2",
];

/// Calls that a thread may make while it captures.
const CAPTURABLE: [&str; 5] =
    ["cuLaunchKernelEx", "cuEventRecord", "cuEventRecordWithFlags", "cuStreamWaitEvent", "cuStreamEndCapture"];

/// Runs one call: counts it, fails it if that is asked for, checks it, does its work and logs it. `body` returns the
/// rest of its line in the log.
pub fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<String, Code>) -> Code {
    let mut driver = DRIVER.lock().expect("no call panics");
    let call = driver.count(name);
    let late = driver.lateness(&call);
    let code = done(driver, &call, body);
    thread::sleep(late); // other threads' calls go on
    code
}

fn done(
    mut driver: MutexGuard<'_, Driver>,
    call: &Counted,
    body: impl FnOnce(&mut Driver) -> Result<String, Code>,
) -> Code {
    driver.injected = driver.injects(call);
    let (name, short) = (call.name, short(call.name));
    if let Some(code) = driver.injected.filter(|_| !ENDINGS.contains(&name)) {
        driver.write(&format!("{short} = {code} injected"));
        return code;
    }
    let done = driver.admits(name).and_then(|()| body(&mut driver));
    match (done, driver.injected.take()) {
        (Ok(line), None) => {
            driver.write(format!("{short} {line}").trim_end());
            driver.fault.unwrap_or(SUCCESS)
        }
        (Err(code), None) => {
            driver.write(&format!("{short} = {code}"));
            code
        }
        (done, Some(code)) => {
            driver.write(&format!("{short} {} = {code} injected", done.unwrap_or_default()));
            code
        }
    }
}

impl Driver {
    fn new() -> Self {
        let config = Config::read();
        let poison = env_number("FAKE_CUDA_POISON", 0xCD) as u8;
        let log = env::var_os("FAKE_CUDA_LOG").map(|path| {
            OpenOptions::new().create(true).append(true).open(path).expect("FAKE_CUDA_LOG names a file to append to")
        });
        Self {
            started: false,
            retained: vec![0; config.devices as usize],
            contexts: Table::new("context", 0x7000_0000),
            default_stream: None,
            streams: Table::new("stream", 0x1000_0000),
            busy: BTreeSet::new(),
            events: Table::new("event", 0x2000_0000),
            modules: Table::new("module", 0x3000_0000),
            functions: Table::new("function", 0x4000_0000),
            graphs: Table::new("graph", 0x5000_0000),
            execs: Table::new("exec", 0x6000_0000),
            device: Memory::new("device", 256, poison),
            host: Memory::new("host", 4096, poison),
            pushed: 0,
            capturing: Vec::new(),
            clock_ms: 0.0,
            random: env_number("FAKE_CUDA_SEED", 1) as u64,
            calls: 0,
            named: HashMap::new(),
            phase: Default::default(),
            fault: None,
            has_failed: false,
            injected: None,
            log,
            config,
        }
    }

    fn count(&mut self, name: &'static str) -> Counted {
        self.calls += 1;
        let named = self.named.entry(name).or_default();
        *named += 1;
        let first_behind = self.phase.1.insert(name).then(|| self.phase.0.clone());
        Counted { name, number: self.calls, named: *named, first_behind }
    }

    /// How much later a call is to return.
    fn lateness(&mut self, call: &Counted) -> Duration {
        if !self.config.late_call.as_ref().is_some_and(|which| which.is(call).0) {
            return Duration::ZERO;
        }
        self.write(&format!("late {}", short(call.name)));
        self.config.late
    }

    /// Whether a call is to fail.
    fn injects(&mut self, call: &Counted) -> Option<Code> {
        let which = self.config.fail_call.as_ref().map(|which| which.is(call));
        let (due, is_last) = which.unwrap_or_default();
        self.has_failed |= due;
        let code = due.then_some(self.config.fail_code);
        if self.config.sticky && is_last {
            self.fault = self.fault.or(code);
        }
        self.fault.or(code)
    }

    /// Whether the device does no more work, or the current call fails.
    fn is_failing(&self) -> bool {
        self.fault.is_some() || self.injected.is_some()
    }

    /// Checks the conditions for any call but the first ones.
    fn admits(&mut self, name: &str) -> Result<(), Code> {
        if !self.started && !["cuDriverGetVersion", "cuInit"].contains(&name) {
            return self.refuse(format!("{name} before cuInit"), NOT_INITIALIZED);
        }
        let current = Self::current();
        if IN_CURRENT_CONTEXT.contains(&name) && !self.is_retained(current) {
            return self.refuse(format!("{name} without a current context"), INVALID_CONTEXT);
        }
        let me = std::thread::current().id();
        if self.capturing.iter().any(|(thread, _)| *thread == me) && !CAPTURABLE.contains(&name) {
            return self.refuse(format!("{name} while the thread captures"), CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// Whether `context` is alive: the primary one of a device, numbered from 1, or one that a program made.
    pub fn is_retained(&self, context: Handle) -> bool {
        context != 0 && self.retained.get(context - 1).is_some_and(|&times| times > 0)
            || self.contexts.live().any(|(made, _)| made == context)
    }

    /// The context that is current on the thread, or 0.
    pub fn current() -> Handle {
        CURRENT.with_borrow(|pushed| pushed.last().copied().unwrap_or(0))
    }

    /// The stream of a handle; the default stream needs a current context.
    pub fn stream(&mut self, stream: Handle) -> Result<Handle, Code> {
        if stream > 2 {
            return Ok(stream);
        }
        if !self.is_retained(Self::current()) {
            return self.refuse("the default stream without a current context".into(), INVALID_CONTEXT);
        }
        let context = Self::current();
        Ok(*self.default_stream.get_or_insert_with(|| self.streams.add(Stream { context, ..Stream::default() })))
    }

    /// Reports a violation and returns the status with which the call ends.
    pub fn refuse<T>(&mut self, what: String, code: Code) -> Result<T, Code> {
        self.write(&format!("VIOLATION {what}"));
        Err(code)
    }

    /// Returns the result of a look-up; a failed one is a violation.
    pub fn valid<T>(&mut self, found: Result<T, String>) -> Result<T, Code> {
        found.or_else(|what| self.refuse(what, INVALID_HANDLE))
    }

    pub fn write(&mut self, line: &str) {
        if let Some(log) = &mut self.log {
            log.write_all(format!("{line}\n").as_bytes()).expect("the log can be written");
        }
    }

    /// Reports all that is still alive when the last reference to the last context is dropped.
    pub fn report_leaks(&mut self) {
        let mut lines = Vec::new();
        let pending: usize = self.busy.iter().map(|&handle| self.streams.ever(handle).queue.len()).sum();
        if pending > 0 && !self.is_failing() {
            lines.push(format!("VIOLATION the context ends with {pending} operations under way"));
        }
        if self.pushed > 0 {
            lines.push(format!("VIOLATION {} threads still have a context current", self.pushed));
        }
        let streams = self.streams.live().filter(|(handle, _)| Some(*handle) != self.default_stream);
        lines.extend(streams.map(|(handle, _)| format!("LEAK {}", self.streams.name(handle))));
        lines.extend(self.contexts.live().map(|(handle, _)| format!("LEAK {}", self.contexts.name(handle))));
        lines.extend(self.events.live().map(|(handle, _)| format!("LEAK {}", self.events.name(handle))));
        lines.extend(self.modules.live().map(|(handle, _)| format!("LEAK {}", self.modules.name(handle))));
        lines.extend(self.graphs.live().map(|(handle, _)| format!("LEAK {}", self.graphs.name(handle))));
        lines.extend(self.execs.live().map(|(handle, _)| format!("LEAK {}", self.execs.name(handle))));
        lines.extend(self.device.live().chain(self.host.live()).map(|name| format!("LEAK {name}")));
        lines.iter().for_each(|line| self.write(line));
    }
}

impl Config {
    fn read() -> Self {
        let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
        Self {
            version: env_number("FAKE_CUDA_VERSION", 13000) as i32,
            devices: env_number("FAKE_CUDA_DEVICES", 1) as i32,
            capability: env_number("FAKE_CUDA_CAPABILITY", 90) as i32,
            memory: env_number("FAKE_CUDA_MEMORY", 1 << 30),
            held: is("FAKE_CUDA_EVENTS", "held") || is("FAKE_CUDA_EVENTS", "own"),
            own: is("FAKE_CUDA_EVENTS", "own"),
            stuck: is("FAKE_CUDA_EVENTS", "stuck"),
            slow: env::var("FAKE_CUDA_SLOW").ok(),
            join_ms: env::var_os("FAKE_CUDA_JOIN_US").map(|_| 1e-3 * env_number("FAKE_CUDA_JOIN_US", 0) as f64),
            ptx_error: env::var("FAKE_CUDA_PTX_ERROR").ok(),
            fail_call: env::var("FAKE_CUDA_FAIL_CALL").ok().map(|which| Which::read(&which)),
            late_call: env::var("FAKE_CUDA_LATE_CALL").ok().map(|which| Which::read(&which)),
            late: Duration::from_millis(env_number("FAKE_CUDA_LATE_MS", 30) as u64),
            fail_code: env_number("FAKE_CUDA_FAIL_CODE", 719) as Code,
            sticky: is("FAKE_CUDA_FAIL_STICKY", "1"),
        }
    }
}

fn env_number(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// The test marks where it is.
///
/// # Safety
/// The text ends with a NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_mark(name: *const std::ffi::c_char) {
    // SAFETY: by the caller.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut driver = DRIVER.lock().expect("no call panics");
    driver.write(&format!("# {name}"));
    driver.phase = (name, HashSet::new());
}

/// Starts the thread that does the work, if it is to be the driver's own. After a fault it does nothing more, like a
/// real device.
pub fn start_own_thread() {
    thread::spawn(|| {
        loop {
            thread::sleep(MOMENT);
            let mut driver = DRIVER.lock().expect("no call panics");
            if !driver.is_failing() {
                driver.step();
            }
        }
    });
}

/// Waits until `event` is done or all calls fail, if the driver's own thread does the work.
pub fn sleep_until_done(event: Handle) {
    loop {
        let mut driver = DRIVER.lock().expect("no call panics");
        let waits = (driver.config.own || driver.config.stuck) && !driver.is_failing();
        if !waits || !driver.events.get(event).is_ok_and(|event| event.done < event.recorded) {
            return;
        }
        drop(driver);
        thread::sleep(MOMENT);
    }
}

/// A context that is never released is a leak as well.
pub extern "C" fn at_exit() {
    let mut driver = DRIVER.lock().expect("no call panics");
    if driver.retained.iter().any(|&times| times > 0) {
        driver.write("LEAK context");
        driver.report_leaks();
    }
}
