//! Devices: one object-safe trait over streams, events, memory and copies, and owning handles on top of it.
//!
//! [`Backend`] is what a device has to do; [`Stream`], [`Event`], [`HostBuffer`] and [`DeviceBuffer`] own what it
//! gives out, free it once, and report every failed call to the device's fault latch. A ring uses only these and
//! [`Program`], which `exec` makes of a plan.
//!
//! The file is long because at least a third of it is the documentation of public items.

mod caller;
mod check;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod free;
mod handles;
mod held;
mod noise;
mod note;
mod program;
#[cfg(test)]
pub(crate) mod shortage;
mod signal;
pub(crate) mod sim;
#[cfg(feature = "cuda")]
mod streaming;
mod target;
pub(crate) mod trace;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};

use crate::error::Error;
use crate::phases::{Phase, Stopwatch};
use crate::sync::{Mutex, lock};

pub(crate) use caller::RowCopy;
pub use caller::{CallerStream, DeviceRows};
pub(crate) use free::{afford_on_host, free_on_host};
pub(crate) use handles::{DeviceBuffer, Event, HostBuffer, POLL, Stream};
use held::Held;
pub use held::MemoryUse;
pub(crate) use noise::Noise;
pub(crate) use note::{Access, Note, Span};
pub(crate) use program::{Inputs, Program, Run, StateBuffer};
pub(crate) use signal::Signal;
pub use target::Target;

/// A device on which engines run. Clones are handles of the same device.
///
/// ```
/// use trefoil::{Device, Target};
/// let device = Device::open(Target::Cpu)?;
/// assert_eq!(device.info().name, "CPU");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kind: Kind,
    /// The backend that gets every call: the device itself, or the outermost of its wrappers.
    backend: Arc<dyn Backend>,
    info: DeviceInfo,
    /// The first failed call after which the device's state is unknown. It is written once. A device and the same
    /// device behind wrappers share it.
    fault: Arc<OnceLock<Latched>>,
    held: Arc<Held>,
    /// The phases of opening the device.
    opening: Arc<[Phase]>,
    /// Objects that engines share, such as weights, for as long as one of them holds them. A wrapper has objects of its
    /// own, because it only knows the memory that was made through it.
    shared: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
    /// The same device behind the hazard checker, while an engine uses it, so that one checker sees all engines.
    checked: Mutex<Weak<Inner>>,
}

/// The latched fault of a device.
#[derive(Debug)]
struct Latched {
    cause: Arc<Error>,
    /// The batch that the thread was enqueuing or waiting for when it met the fault.
    batch: Option<u64>,
}

thread_local! {
    /// The batch that this thread is enqueuing or waiting for.
    static BATCH: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `f`. A fault that this thread meets meanwhile is attributed to `batch`.
pub(crate) fn during<T>(batch: u64, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<u64>);
    impl Drop for Restore {
        fn drop(&mut self) {
            BATCH.set(self.0);
        }
    }
    let _restore = Restore(BATCH.replace(Some(batch)));
    f()
}

/// The kinds of devices; `exec` makes a program for each.
#[derive(Clone)]
pub(crate) enum Kind {
    /// Host threads.
    Cpu(Arc<cpu::Cpu>),
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Cuda>),
    /// The simulated device, in virtual time.
    Sim(Arc<sim::Sim>),
}

/// A description of a device.
///
/// ```
/// use trefoil::{Device, Target};
/// let cpu = Device::open(Target::Cpu)?;
/// assert_eq!(cpu.info().target, "cpu");
/// assert!(cpu.info().units >= 1);
/// assert_eq!(cpu.info().compute_capability, [0, 0]); // of a GPU, say [9, 0]
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// `"cpu"` or `"cuda:0"`.
    pub target: String,
    /// The name, as the driver gives it.
    pub name: String,
    /// Major and minor compute capability; zeros for a CPU.
    pub compute_capability: [u32; 2],
    /// Streaming multiprocessors; for a CPU, compute threads.
    pub units: usize,
    /// Shared memory that one block may ask for, in bytes.
    pub shared_bytes: usize,
    /// The size of the device's memory, in bytes; 0 for a CPU.
    pub memory_bytes: u64,
    /// The driver's CUDA version, as 1000 x major + 10 x minor; 0 for a CPU.
    pub driver_version: u32,
}

/// The priority of a stream: which of the device's ready streams runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Priority {
    #[default]
    Normal,
    High,
}

/// The operations of a device. Handles are plain numbers, so that a wrapper can pass them on: a wrapper that checks or
/// records sees every call and every [`Note`], and costs nothing where there is none.
///
/// # Safety of the calls
/// A raw handle is valid from the call that made it to the one that destroys it; [`handles`] owns each exactly once.
/// Memory named in a copy stays allocated, and is not touched by the host in conflict with the copy, until an event
/// recorded behind the copy is done.
pub(crate) trait Backend: Send + Sync {
    /// Makes a stream, whose work is in order, and not ordered with other streams. `name` is what profilers show.
    fn stream_create(&self, priority: Priority, name: &str) -> Result<u64, Error>;
    /// # Safety
    /// `stream` is valid and not used again. Work already enqueued still runs.
    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error>;

    /// Makes an event. Only an event with `timing` may be passed to [`Backend::elapsed_ms`].
    fn event_create(&self, timing: bool) -> Result<u64, Error>;
    /// # Safety
    /// `event` is valid and not used again.
    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error>;
    /// Records `event` behind the work enqueued on `stream` so far.
    /// # Safety
    /// Both are valid.
    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error>;
    /// Makes later work on `stream` wait for the last record of `event`; does nothing if it was never recorded.
    /// # Safety
    /// Both are valid.
    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error>;
    /// Whether the work that `event` recorded last is done (true if it never recorded).
    /// # Safety
    /// `event` is valid.
    unsafe fn event_query(&self, event: u64) -> Result<bool, Error>;
    /// Blocks the calling thread until the work that `event` recorded last is done.
    /// # Safety
    /// `event` is valid.
    unsafe fn event_wait(&self, event: u64) -> Result<(), Error>;
    /// Milliseconds between two timing events, both done.
    /// # Safety
    /// Both are valid and were made with timing.
    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error>;

    /// Allocates page-locked host memory, zeroed, aligned to [`crate::tensor::ROW_ALIGN`].
    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error>;
    /// # Safety
    /// `ptr` came from `host_alloc(bytes)` and nothing accesses it any more.
    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error>;
    /// Allocates device memory, aligned to 256 bytes, contents undefined.
    fn device_alloc(&self, bytes: usize) -> Result<u64, Error>;
    /// # Safety
    /// `addr` came from `device_alloc(bytes)` and nothing accesses it any more.
    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error>;

    /// Copies from host to device on `stream`.
    /// # Safety
    /// See the trait.
    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error>;
    /// Copies from device to host on `stream`.
    /// # Safety
    /// See the trait.
    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error>;

    /// Copies a caller's rows to `dst`, `dst_pitch` bytes apart, on the caller's stream.
    /// # Safety
    /// See the trait, except for the caller's memory, which the caller keeps until the stream has reached the copy.
    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error>;
    /// Copies from device to device on `stream`.
    /// # Safety
    /// See the trait; the ranges do not overlap.
    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error>;

    /// Checks that work can be put on a stream that the device did not make. A refusal is no fault.
    /// # Safety
    /// `stream` is a live stream, or stands for a default one.
    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error>;
    /// Checks that the device can read an address that a caller says is device memory, as far as the device can tell. A
    /// refusal is no fault.
    fn admit_memory(&self, addr: u64) -> Result<(), Error>;

    /// Fires `signal` when the work enqueued on `stream` so far is done, from a thread of the device's own; never after a
    /// fault. Later work on the stream may wait until that has happened.
    /// # Safety
    /// `stream` is valid.
    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error>;

    /// Enqueues one run of `program` on `stream`.
    /// # Safety
    /// `stream` is valid; other work on the memory that the run touches is ordered with it.
    unsafe fn launch(&self, program: &Arc<dyn Program>, run: Run, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { program.clone().launch(run, stream) }
    }

    /// Gets a report of what the host does. Devices ignore it; an error means that a rule was broken.
    fn note(&self, _note: Note) -> Result<(), Error> {
        Ok(())
    }
}

/// The name of device memory in [`Error::OutOfMemory`].
pub(crate) const DEVICE_MEMORY: &str = "device memory";
/// The name of host memory in the same error; on a GPU all of it is page-locked.
pub(crate) const HOST_MEMORY: &str = "host memory";

impl Device {
    /// Opens a device. [`Target::Auto`] takes the first GPU and falls back to the CPU, with one warning in the log,
    /// where there is no driver or no GPU; a driver that is there but too old or failing is an error.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Unsupported`] (driver or GPU too old), [`Error::Driver`].
    pub fn open(target: Target) -> Result<Self, Error> {
        match target {
            Target::Cpu => Ok(Self::cpu(cpu::default_threads())),
            Target::Auto => target::open_auto(),
            Target::Cuda(ordinal) => target::open_cuda(ordinal),
        }
    }

    /// The number of GPUs, which are `cuda:0` and so on.
    ///
    /// ```no_run
    /// use trefoil::{Device, Target};
    /// for number in 0..Device::gpus()? {
    ///     println!("{}", Device::open(Target::Cuda(number))?.info().name);
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::open`] for a driver that is not there, too old or failing.
    pub fn gpus() -> Result<usize, Error> {
        target::gpus()
    }

    /// The CPU with a number of compute threads.
    pub fn cpu(threads: usize) -> Self {
        let (backend, info) = cpu::Cpu::new(threads);
        Self::new(Kind::Cpu(Arc::new(backend)), info)
    }

    pub(crate) fn new(kind: Kind, info: DeviceInfo) -> Self {
        Self::opened(kind, info, Stopwatch::start())
    }

    /// Makes the opened device; `watch` has timed the opening.
    fn opened(kind: Kind, info: DeviceInfo, watch: Stopwatch) -> Self {
        log::info!("device {}: {}", info.target, info.name);
        let backend: Arc<dyn Backend> = match &kind {
            Kind::Cpu(cpu) => cpu.clone(),
            #[cfg(feature = "cuda")]
            Kind::Cuda(cuda) => cuda.clone(),
            Kind::Sim(sim) => sim.clone(),
        };
        Self::of(kind, backend, info, Arc::default(), Arc::default(), watch.phases().into())
    }

    fn of(
        kind: Kind,
        backend: Arc<dyn Backend>,
        info: DeviceInfo,
        fault: Arc<OnceLock<Latched>>,
        held: Arc<Held>,
        opening: Arc<[Phase]>,
    ) -> Self {
        let (shared, checked) = (Mutex::new(Vec::new()), Mutex::new(Weak::new()));
        Self(Arc::new(Inner { kind, backend, info, fault, held, opening, shared, checked }))
    }

    /// The same device behind a wrapper: objects made through the new handle go through the wrapper. The handles share
    /// faults.
    pub(crate) fn wrapped(&self, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        let Inner { kind, backend, info, fault, held, opening, .. } = &*self.0;
        let (kind, backend) = (kind.clone(), wrap(backend.clone()));
        Self::of(kind, backend, info.clone(), fault.clone(), held.clone(), opening.clone())
    }

    /// The same device behind the hazard checker. All callers get the same checker.
    pub(crate) fn checked(&self) -> Self {
        let mut checked = lock(&self.0.checked);
        if let Some(inner) = checked.upgrade() {
            return Self(inner);
        }
        let device = self.wrapped(|inner| Arc::new(check::Checker::new(inner)));
        *checked = Arc::downgrade(&device.0);
        device
    }

    /// The device opened again, without the fault. Both count their memory together, because the memory of a faulted
    /// device is not free.
    pub(crate) fn reopened(&self) -> Result<Self, Error> {
        self.can_be_reopened()?;
        let opened = match self.kind() {
            Kind::Cpu(_) => Self::cpu(self.info().units),
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => Self::open(self.info().target.parse()?)?,
            Kind::Sim(_) => Self::new(self.kind().clone(), self.info().clone()),
        };
        let Inner { kind, backend, info, opening, .. } = &*opened.0;
        let (kind, backend, held) = (kind.clone(), backend.clone(), self.0.held.clone());
        Ok(Self::of(kind, backend, info.clone(), Arc::default(), held, opening.clone()))
    }

    /// Refuses a device in a context that the program made, because only the program can make such a context again.
    pub(crate) fn can_be_reopened(&self) -> Result<(), Error> {
        match self.kind() {
            #[cfg(feature = "cuda")]
            Kind::Cuda(cuda) if cuda.is_in_context_of_caller() => Err(Error::Unsupported {
                what: "opening a device again that is in a context of the program".into(),
                instead: "open it by its number, or build a new engine in a new context".into(),
            }),
            _ => Ok(()),
        }
    }

    /// An object that engines on this device share: one that `fits`, if an engine has it, else the one that `make`
    /// makes. It is dropped with the last engine that holds it. Only one caller makes an object at a time.
    pub(crate) fn share<T: Any + Send + Sync>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        let mut shared = lock(&self.0.shared);
        shared.retain(|one| one.strong_count() > 0);
        if let Some(one) = find_shared(&shared, fits) {
            return Ok(one);
        }
        let made = Arc::new(make()?);
        self.note(Note::Published); // whoever shares it comes after what made it
        shared.push(Arc::downgrade(&made) as Weak<dyn Any + Send + Sync>);
        Ok(made)
    }

    /// Whether an engine holds an object that `fits`.
    pub(crate) fn shares<T: Any + Send + Sync>(&self, fits: impl Fn(&T) -> bool) -> bool {
        find_shared(&lock(&self.0.shared), fits).is_some()
    }

    /// A description of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The phases of opening the device with their times: for a GPU, starting the driver, making its context, and
    /// reading its attributes; none for a CPU.
    pub fn opening(&self) -> &[Phase] {
        &self.0.opening
    }

    /// The memory that all engines and batchers on this device hold now, over all handles of the device.
    ///
    /// ```
    /// use trefoil::{Device, Target};
    /// assert_eq!(Device::open(Target::Cpu)?.memory_use().page_locked_bytes, 0);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn memory_use(&self) -> MemoryUse {
        self.0.held.now()
    }

    /// Sets how much device memory the engines on this device may hold together, over all handles of the device. The
    /// build of an engine that does not fit fails with the figures. Without a call there is no limit. Existing engines
    /// keep their memory.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Error, Target, model::Model};
    /// let cpu = Device::open(Target::Cpu)?;
    /// cpu.limit_memory(1 << 20);
    /// # let model = Model::open("weights/convnet28")?;
    /// match Engine::builder(&model).on(&cpu).batch(4096).build() {
    ///     Err(Error::OutOfMemory { needed_bytes, free_bytes, .. }) => assert!(needed_bytes > free_bytes),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn limit_memory(&self, device_bytes: u64) {
        self.0.held.limit(device_bytes);
    }

    /// Keeps the calling thread, and the threads that it starts later, on the CPUs next to this device, if there are
    /// several NUMA nodes. Returns whether there was a choice. An engine's page-locked memory lies next to the thread
    /// that builds the engine, and threads that write or read much of it are faster nearby, such as producers for this
    /// device alone.
    ///
    /// ```
    /// use trefoil::{Device, Target};
    /// assert!(!Device::open(Target::Cpu)?.place_thread()); // all CPUs are next to it
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn place_thread(&self) -> bool {
        match &self.0.kind {
            #[cfg(feature = "cuda")]
            Kind::Cuda(cuda) => cuda.place_thread(),
            Kind::Cpu(_) | Kind::Sim(_) => false,
        }
    }

    /// The error that put the device out of use, if there was one.
    pub fn fault(&self) -> Option<Error> {
        self.0.fault.get().map(|latched| Error::Fault { cause: latched.cause.clone(), batch: latched.batch })
    }

    /// Copies `from` over a part of this device's page-locked memory that will be uploaded next: past the caches if the
    /// device reads the memory by itself.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn fill(&self, to: &mut [u8], from: &[u8]) {
        match self.kind() {
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => streaming::copy(to, from),
            Kind::Cpu(_) | Kind::Sim(_) => to.copy_from_slice(from),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Reports to the wrappers what the host does. An error of a wrapper is a fault.
    pub(crate) fn note(&self, note: Note) {
        let _latched = self.latch(self.backend().note(note));
    }

    /// Returns a result of enqueued work, and latches its error: after it the device's state is unknown.
    pub(crate) fn latch<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| {
            if self.0.fault.set(Latched { cause: Arc::new(error.clone()), batch: BATCH.get() }).is_ok() {
                log::error!("{}: fault, the device is out of use: {error}", self.0.info.target);
            }
        })
    }

    /// Fails a test whose device has met a fault. In a test that already panics it only prints the fault: a panic in a
    /// destructor during another panic would end the process, and with it all other tests.
    #[cfg(test)]
    pub(crate) fn assert_healthy(&self) {
        match self.fault() {
            Some(fault) if std::thread::panicking() => eprintln!("{fault}"),
            fault => assert!(fault.is_none(), "{fault:?}"),
        }
    }

    /// The latched fault as an error, if there is one.
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        self.fault().map_or(Ok(()), Err)
    }
}

/// The first shared object that fits.
fn find_shared<T: Any + Send + Sync>(
    shared: &[Weak<dyn Any + Send + Sync>],
    fits: impl Fn(&T) -> bool,
) -> Option<Arc<T>> {
    let found = shared.iter().filter_map(Weak::upgrade).filter_map(|one| one.downcast::<T>().ok());
    found.into_iter().find(|one| fits(one))
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.0.info).field("fault", &self.0.fault.get()).finish()
    }
}
