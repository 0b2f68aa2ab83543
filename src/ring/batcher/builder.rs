//! The options of a batcher, and its build.

use crate::sync::{Condvar, Mutex, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::state::{BatcherState, Bounds};
use super::{Batcher, Shared, serve};
use crate::device::{HOST_MEMORY, HostBuffer};
use crate::error::Error;
use crate::ring::{Core, RowBucket};

/// What a submission does when no row is free.
///
/// ```
/// use trefoil::{Error, WhenFull};
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let batcher = engine.batcher().rows(1).when_full(WhenFull::Reject).build()?;
/// let row = batcher.row()?;
/// assert!(matches!(batcher.row(), Err(Error::Full { rows: 1 })));
/// drop(row);
/// assert!(batcher.row().is_ok());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// It waits for a free row. Those who wait get rows in turn, high priority first.
    #[default]
    Wait,
    /// It waits for a free row up to this limit, then fails with [`Error::Timeout`].
    WaitFor(Duration),
    /// It fails at once with [`Error::Full`].
    Reject,
}

/// The options of a [`Batcher`], and the call that builds it. [`Engine::batcher`](crate::Engine::batcher) makes one.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// use std::time::Duration;
/// let engine = Engine::builder(&model).on(&cpu).batch(8).build()?;
/// let batcher = engine.batcher().max_delay(Duration::from_micros(500)).rows(64).in_flight(2).build()?;
/// assert_eq!(batcher.capacity(), 8);
/// assert!(engine.batcher().rows(0).build().is_err());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone)]
pub struct BatcherBuilder {
    core: Arc<Core>,
    max_delay: Duration,
    rows: Option<usize>,
    in_flight: Option<usize>,
    when_full: WhenFull,
}

impl BatcherBuilder {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        let (max_delay, when_full) = (Duration::from_millis(5), WhenFull::default());
        Self { core: core.clone(), max_delay, rows: None, in_flight: None, when_full }
    }

    /// Sets how long a batch that is not full waits for more rows after its first commit while the device is busy.
    /// Default 5 ms.
    ///
    /// A batch leaves at once while the device is idle, and as soon as the device is about to become idle. So the delay
    /// only bounds the cost of a wrong prediction.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = delay;
        self
    }

    /// Sets the number of page-locked rows for each set of free dimensions. It bounds the rows that are being written,
    /// queued and in flight together. Default: as many as may be in flight, and four batches more.
    pub fn rows(mut self, rows: usize) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Sets how many batches the ring has at the same time. With fewer batches, rows stay longer in the queue, where
    /// deadlines and priorities count; with fewer than the engine's slots, the device may become idle. Independent of
    /// this option, a batch that is not full leaves when at most one earlier batch is in flight. Default: the slots and
    /// one.
    pub fn in_flight(mut self, batches: usize) -> Self {
        self.in_flight = Some(batches);
        self
    }

    /// Sets what a submission does when no row is free. Default: it waits.
    pub fn when_full(mut self, then: WhenFull) -> Self {
        self.when_full = then;
        self
    }

    /// Allocates the rows and starts the threads `trefoil-batch-N` and `trefoil-rows-N`; if the engine has several
    /// sizes of free dimensions, each has rows and threads of its own.
    ///
    /// # Errors
    /// [`Error::Option`] for a count of zero or one that no machine holds, [`Error::OutOfMemory`], [`Error::Thread`],
    /// [`Error::Fault`] if the device is out of use; [`Error::Unsupported`] for a model [with
    /// state](crate::model::Model::with_state).
    pub fn build(self) -> Result<Batcher, Error> {
        self.core.has_no_states("a batcher")?;
        self.core.device.healthy()?;
        let identity = Arc::default();
        let mut batcher = Batcher { shared: Vec::new() }; // closes what has started if the rest cannot start
        for bucket in 0..self.core.spec.buckets.len() {
            let shared = self.shared(bucket, &identity)?;
            batcher.shared.push(shared.clone());
            static BATCHERS: AtomicUsize = AtomicUsize::new(0);
            let number = BATCHERS.fetch_add(1, Ordering::Relaxed);
            start(format!("trefoil-batch-{number}"), &shared, serve::batch)?;
            start(format!("trefoil-rows-{number}"), &shared, serve::deliver)?;
        }
        Ok(batcher)
    }

    /// The state that the threads for the rows of a bucket share.
    fn shared(&self, bucket: usize, identity: &Arc<()>) -> Result<Arc<Shared>, Error> {
        let RowBucket { sizes, input, .. } = self.core.bucket(bucket);
        let in_flight = within("in_flight", self.in_flight.unwrap_or(self.core.slots() + 1), 1 << 16)?;
        let rows = within("rows", self.rows.unwrap_or((in_flight + 4) * sizes.most()), 1 << 36)?;
        afford(&self.core, rows, input.row_pitch)?;
        let full = sizes.most().min(rows);
        Ok(Arc::new(Shared {
            bucket,
            identity: identity.clone(),
            bounds: Bounds { full, in_flight, max_delay: self.max_delay.min(LONGEST) },
            when_full: self.when_full,
            places: rows,
            rows: Arc::new(HostBuffer::new(&self.core.device, rows.saturating_mul(input.row_pitch))?),
            state: Mutex::new(BatcherState::new(rows, &sizes.batch_sizes, self.core.compute_streams())),
            sender: Mutex::default(),
            work: Condvar::new(),
            flown: Condvar::new(),
            room: Condvar::new(),
            core: self.core.clone(),
        }))
    }
}

/// An error if there is not enough memory for the rows and the books for them.
fn afford(core: &Core, rows: usize, row_pitch: usize) -> Result<(), Error> {
    let row_bytes = (row_pitch + BatcherState::ROW_BYTES) as u64;
    core.device.afford(HOST_MEMORY, row_bytes.saturating_mul(rows as u64)).map_err(|error| match error {
        Error::OutOfMemory { device, needed_bytes, free_bytes, fitting_batch, .. } => {
            let what = format!("{rows} rows of a batcher, of which {} would fit", free_bytes / row_bytes);
            Error::OutOfMemory { device, what, needed_bytes, free_bytes, fitting_batch }
        }
        other => other,
    })
}

/// The longest delay: decades, which can be added to any time without overflow.
const LONGEST: Duration = Duration::from_secs(1 << 30);

fn within(option: &'static str, value: usize, most: usize) -> Result<usize, Error> {
    if !(1..=most).contains(&value) {
        return Err(Error::option(option, value, format!("1 to {most}")));
    }
    Ok(value)
}

fn start(name: String, shared: &Arc<Shared>, serve: fn(&Shared)) -> Result<(), Error> {
    let shared = shared.clone();
    spawn(name, move || serve(&shared)).map(drop)
}

impl std::fmt::Debug for BatcherBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { max_delay, rows, in_flight, when_full, .. } = self;
        f.debug_struct("BatcherBuilder")
            .field("max_delay", max_delay)
            .field("rows", rows)
            .field("in_flight", in_flight)
            .field("when_full", when_full)
            .finish_non_exhaustive()
    }
}
