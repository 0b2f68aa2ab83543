//! For whom: an engine joins a model, a device and a ring.

mod measured;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::trace::{self, Recorder};
use crate::device::{DEVICE_MEMORY, Device, Priority};
use crate::error::{Credits, Error};
use crate::exec::{self, BuildSpec, TuningSpec};
use crate::model::Model;
use crate::phases::{Phase, Stopwatch};
use crate::plan::{Choices, Plan, Step};
use crate::ring::{Batch, BatcherBuilder, Close, Core, Health, RingSpec, Stage, Waiting};
use crate::tensor::{InputFormat, OutputKind, TensorSpec};
use crate::trace::{Trace, TracedLayer, TracedModel, TracedProgram};

/// A model on a device behind a ring: many threads acquire, fill and submit batches; copies and compute overlap.
///
/// `Send` and `Sync`: share it by reference or in an `Arc`. Dropping it does not wait; what is in flight finishes,
/// and batches, tickets and outputs keep what they need alive.
///
/// ```no_run
/// use trefoil::{Engine, model::Model};
/// let model = Model::open("weights/efficientnet-lite0")?;
/// let engine = Engine::builder(&model).build()?; // a GPU if there is one, else the CPU
/// let mut batch = engine.acquire()?;
/// batch.row_mut(0).fill(127);
/// let best = batch.submit(1)?.wait()?.top_k(0, 1)[0];
/// println!("{} {:.3}", model.label(best.0), best.1);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub struct Engine {
    core: Arc<Core>,
    device: Device,
    plans: Vec<Plan>,
    recorder: Option<Arc<Recorder>>,
    building: Vec<Phase>,
    /// The model's name.
    model: String,
}

/// How an [`Engine`] is to be built.
#[derive(Clone, Debug)]
pub struct EngineBuilder<'a> {
    model: &'a Model,
    device: Option<Device>,
    batch_sizes: Option<Vec<usize>>,
    slots: usize,
    staging: Option<usize>,
    results: Option<usize>,
    input: InputFormat,
    output: OutputKind,
    priority: Priority,
    choices: Choices,
    acquire_limit: Duration,
    waiting: Waiting,
    /// Batches that a recorder remembers, if there is to be one.
    trace: Option<usize>,
    check: bool,
    tuning: TuningSpec,
}

/// Batches that a recorder remembers unless told otherwise.
const TRACED_BATCHES: usize = 4096;

impl Engine {
    /// Starts a builder for `model`.
    pub fn builder(model: &Model) -> EngineBuilder<'_> {
        EngineBuilder {
            model,
            device: None,
            batch_sizes: None,
            slots: 3,
            staging: None,
            results: None,
            input: InputFormat::default(),
            output: OutputKind::default(),
            priority: Priority::default(),
            choices: Choices::default(),
            acquire_limit: Duration::from_secs(10),
            waiting: Waiting::default(),
            trace: None,
            check: false,
            tuning: TuningSpec::default(),
        }
    }

    /// Lends a batch to fill, waiting for a free one up to the builder's limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] past the limit, with the counts of what is being filled, in flight, and finished but unread;
    /// [`Error::Fault`] if the device is out of use.
    pub fn acquire(&self) -> Result<Batch, Error> {
        self.core.acquire(self.core.spec().acquire_limit)
    }

    /// Like [`Engine::acquire`] with a limit of its own.
    ///
    /// # Errors
    /// As for [`Engine::acquire`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Batch, Error> {
        self.core.acquire(limit)
    }

    /// Lends a batch if one is free now.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device is out of use.
    pub fn try_acquire(&self) -> Result<Option<Batch>, Error> {
        match self.core.acquire(Duration::ZERO) {
            Ok(batch) => Ok(Some(batch)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Starts a builder for a batcher: single rows from many threads become this engine's batches.
    ///
    /// ```no_run
    /// # fn f(engine: trefoil::Engine, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
    /// let batcher = engine.batcher().max_delay(std::time::Duration::from_millis(2)).build()?;
    /// println!("{:?}", batcher.submit(&pixels)?.wait()?.top_k(5));
    /// # Ok(()) }
    /// ```
    pub fn batcher(&self) -> BatcherBuilder {
        BatcherBuilder::new(&self.core)
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The batch sizes it was built for, ascending.
    pub fn batch_sizes(&self) -> &[usize] {
        self.core.batch_sizes()
    }

    /// Rows of the largest batch.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }

    /// Slots of its ring.
    pub fn slots(&self) -> usize {
        self.core.slots()
    }

    /// Rows that producers write.
    pub fn input(&self) -> TensorSpec {
        self.core.spec().input
    }

    /// Rows that consumers read.
    pub fn output(&self) -> TensorSpec {
        self.core.spec().output
    }

    /// The plans, one for each batch size in order; a CPU has one, for an image.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// What building it took, phase after phase.
    pub fn building(&self) -> &[Phase] {
        &self.building
    }

    /// What the ring's credits are doing.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device is out of use.
    pub fn credits(&self) -> Result<Credits, Error> {
        self.core.credits()
    }

    /// What state it is in: the fault, if there is one, the credits, what is quarantined, and whether it is closed. Never
    /// fails, and never waits for the device.
    ///
    /// ```
    /// # fn f(engine: trefoil::Engine) {
    /// let health = engine.health();
    /// assert!(health.is_ok(), "{health}");
    /// # }
    /// ```
    pub fn health(&self) -> Health {
        self.core.health()
    }

    /// What has finished so far of the batches that it remembers, if it was built with [`EngineBuilder::trace`].
    ///
    /// Never waits for the device, and batches go on meanwhile; it allocates and asks the device for the times, so it
    /// is for now and then.
    pub fn trace(&self) -> Option<Trace> {
        self.recorder.as_ref().map(|recorder| recorder.trace().of(self.traced_model()))
    }

    fn traced_model(&self) -> TracedModel {
        let layers = |plan: &Plan| {
            let layer = |step: &Step| TracedLayer {
                name: step.name.clone(),
                operation: step.op.label(step.inputs.len()),
                kernel: plan.kernel_name(step.kernel, &step.op),
                flops: step.flops,
                bytes: step.bytes,
            };
            plan.steps.iter().map(layer).collect()
        };
        let program = |plan: &Plan| TracedProgram { batch: plan.batch, layers: layers(plan) };
        TracedModel {
            name: self.model.clone(),
            device_name: self.device.info().name.clone(),
            row_bytes: [self.input().row_pitch, self.output().row_pitch],
            programs: self.plans.iter().map(program).collect(),
        }
    }

    /// Takes no more work and waits, up to `limit`, until the device has finished what is in flight. Afterwards
    /// [`Engine::acquire`] and [`Batch::submit`] answer [`Error::Closed`]; tickets are dealt with as `how` says. A
    /// second call waits again; an abort overrules an earlier drain.
    ///
    /// ```
    /// # fn f(engine: trefoil::Engine) -> Result<(), trefoil::Error> {
    /// use std::time::Duration;
    /// engine.close(trefoil::Close::Drain, Duration::from_secs(5))?;
    /// assert!(matches!(engine.acquire(), Err(trefoil::Error::Closed)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] past the limit, with what is still in flight; [`Error::Fault`] if the device is out of use.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        self.core.close(how, limit)
    }

    /// Which ring its tickets are of.
    #[cfg(feature = "ffi")]
    pub(crate) fn origin(&self) -> crate::ring::Origin {
        crate::ring::Origin::of_ring(&self.core)
    }

    /// Makes the driver calls of `batches` batches of `batch` rows, one of [`Engine::batch_sizes`], with nothing of the
    /// ring around them, on this thread: the calls and one wait of each, `ahead` batches in flight (at most the
    /// slots), in the engine's way of [waiting](EngineBuilder::waiting). Seconds of each batch, from its first call to
    /// the end of its wait. What the ring itself costs is measured against this: see `examples/waiting.rs`. Takes all
    /// credits while it runs.
    ///
    /// # Errors
    /// [`Error::Option`] for another batch size or too many ahead; [`Error::Timeout`] if credits are held elsewhere past
    /// the limit; [`Error::Fault`] if the device is out of use.
    pub fn measure_calls(&self, batch: usize, batches: usize, ahead: usize) -> Result<Vec<f64>, Error> {
        self.core.measure_calls(batch, batches, ahead)
    }

    /// Times one stage of the ring alone, back to back on its stream: seconds for each of `repetitions` batches of
    /// `batch` rows, one of [`Engine::batch_sizes`]. The rows hold random numbers. Takes all credits while it runs.
    ///
    /// # Errors
    /// [`Error::Option`] for another batch size; [`Error::Timeout`] if credits are held elsewhere past the limit.
    pub fn measure(&self, stage: Stage, batch: usize, repetitions: usize) -> Result<Vec<f64>, Error> {
        self.core.measure(stage, batch, repetitions)
    }

    /// Times one stage of the ring back to back on its stream, with the other two stages loaded as in a run: copies
    /// with the other direction and compute running beside them, compute with copies beside it, one batch of each for
    /// each batch timed. Mean seconds of a batch over `repetitions`. Takes all credits while it runs, and device memory
    /// for one more input and output.
    ///
    /// ```no_run
    /// # fn f(engine: trefoil::Engine) -> Result<(), trefoil::Error> {
    /// use trefoil::Stage;
    /// let slowest = [Stage::CopyIn, Stage::Compute, Stage::CopyOut]
    ///     .map(|stage| engine.measure_loaded(stage, engine.capacity(), 200).unwrap_or(f64::NAN))
    ///     .into_iter()
    ///     .fold(0.0, f64::max);
    /// println!("a ring does {:.0} images/s at best", engine.capacity() as f64 / slowest);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`Engine::measure`], [`Error::Option`] for no repetition, and [`Error::OutOfMemory`].
    pub fn measure_loaded(&self, stage: Stage, batch: usize, repetitions: usize) -> Result<f64, Error> {
        self.core.measure_loaded(stage, batch, repetitions)
    }
}

impl EngineBuilder<'_> {
    /// The device; without it a GPU if there is one, else the CPU.
    pub fn on(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// The largest batch. A GPU gets a graph for each power of two below it as well, so that a small submission does
    /// not compute a large batch. Default: 32 on a GPU, 8 on the CPU.
    pub fn batch(mut self, rows: usize) -> Self {
        let below = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&size| size < rows);
        self.batch_sizes = Some(below.chain([rows]).collect());
        self
    }

    /// Exactly these batch sizes.
    pub fn batch_sizes(mut self, sizes: &[usize]) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        self.batch_sizes = Some(sizes);
        self
    }

    /// Slots: batches on the device at once. Default 3; 1 is the serial baseline.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Staging buffers. Default slots + 3; advised: producers + slots.
    pub fn staging(mut self, buffers: usize) -> Self {
        self.staging = Some(buffers);
        self
    }

    /// Result buffers. Default 4 x staging.
    pub fn results(mut self, buffers: usize) -> Self {
        self.results = Some(buffers);
        self
    }

    /// What producers write. Default [`InputFormat::U8Nhwc`].
    pub fn input(mut self, format: InputFormat) -> Self {
        self.input = format;
        self
    }

    /// What consumers read. Default [`OutputKind::Probabilities`].
    pub fn output(mut self, kind: OutputKind) -> Self {
        self.output = kind;
        self
    }

    /// Puts this engine's streams before those of normal priority.
    pub fn high_priority(mut self) -> Self {
        self.priority = Priority::High;
        self
    }

    /// Kernels that overrule the planner's, by step name.
    pub fn choices(mut self, choices: Choices) -> Self {
        self.choices = choices;
        self
    }

    /// How long [`Engine::acquire`] waits for a free batch. Default 10 s.
    pub fn acquire_limit(mut self, limit: Duration) -> Self {
        self.acquire_limit = limit;
        self
    }

    /// Has every access checked: each copy, each run of the model and each turn of the host at page-locked memory must
    /// be ordered after every earlier one that it conflicts with, by streams, events and credits, not by luck. A
    /// violation is a bug in trefoil and faults the device with [`Error::Hazard`]. For tests: it takes a lock and some
    /// microseconds a call, and no driver call. Default: off, and then it costs nothing.
    pub fn check(mut self, on: bool) -> Self {
        self.check = on;
        self
    }

    /// How threads learn that the device is done. Default [`Waiting::Block`].
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Whether to record when each stage of each batch ran, for [`Engine::trace`]. Default false.
    ///
    /// The last 4096 batches are remembered, or as many as [`EngineBuilder::trace_batches`] says. Recording adds six
    /// events to the operations of a batch, all made here; an engine that does not record has none of it.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// # let cpu = Device::open(Target::Cpu)?;
    /// let engine = Engine::builder(&model).on(&cpu).trace(true).build()?;
    /// drop(engine.acquire()?.submit(1)?.wait()?);
    /// println!("{}", engine.trace().unwrap().report());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn trace(mut self, on: bool) -> Self {
        self.trace = on.then_some(self.trace.unwrap_or(TRACED_BATCHES));
        self
    }

    /// Records, and remembers the last so many batches, or as many as there are result buffers if that is more. Older
    /// ones are forgotten and counted. A batch takes six events of the device.
    pub fn trace_batches(mut self, batches: usize) -> Self {
        self.trace = Some(batches);
        self
    }

    /// Builds: opens the device if none was given, plans, uploads weights, allocates everything and captures every
    /// graph. Nothing is allocated or loaded after it.
    ///
    /// # Errors
    /// [`Error::Option`] for a zero count; what [`Device::open`] and the model's weights give;
    /// [`Error::OutOfMemory`] with the bytes needed and free and the batch that would fit.
    pub fn build(self) -> Result<Engine, Error> {
        let model = self.model_of_output()?;
        let spec = self.build_spec()?;
        let staging = self.staging.unwrap_or(self.slots + 3);
        let results = self.results.unwrap_or(staging.saturating_mul(4));
        within("staging", staging, 1 << 16)?;
        within("results", results, 1 << 16)?;
        if let Some(batches) = self.trace {
            within("trace_batches", batches, 1 << 20)?;
        }
        let device = self.device_or_default()?;
        device.healthy()?;
        let device = if self.check { device.checked() } else { device };
        let spec = spec.with_default_sizes(&device);
        let needed = |what: &str, batch| {
            let plan = exec::plan_batch(&model, &device, &spec, batch).ok()?;
            let (input, output) = exec::row_specs(&plan);
            Some(match what {
                DEVICE_MEMORY => plan.device_bytes(spec.slots),
                _ => (batch * (staging * input.row_pitch + results * output.row_pitch)) as u64,
            })
        };
        let mut watch = Stopwatch::start();
        let largest = *spec.batch_sizes.last().expect("a spec has a batch size");
        let advise = |error| what_fits(error, largest, &device, needed);
        let (program, plans) = exec::build(&model, &device, &spec, &mut watch).map_err(advise)?;
        let (input, output) = exec::row_specs(&plans[0]);
        let ring = RingSpec {
            staging,
            results,
            priority: self.priority,
            acquire_limit: self.acquire_limit,
            waiting: self.waiting,
            output_kind: self.output,
            input,
            output,
        };
        let recorded = self.trace.map(|batches| trace::install(&device, batches.max(results))).transpose()?;
        let (on, recorder) = recorded.unzip();
        let core = Core::build(on.as_ref().unwrap_or(&device), program, ring).map_err(advise)?;
        watch.lap("ring");
        let model = model.name().to_owned();
        Ok(Engine { core, device, plans, recorder, building: watch.phases(), model })
    }

    /// The model, cut to its features if they are asked for.
    fn model_of_output(&self) -> Result<Model, Error> {
        match self.output {
            OutputKind::Features => self.model.features(),
            _ => Ok(self.model.clone()),
        }
    }

    fn build_spec(&self) -> Result<BuildSpec, Error> {
        within("slots", self.slots, 1 << 10)?;
        if let Some(sizes) = &self.batch_sizes {
            if sizes.is_empty() {
                return Err(Error::option("batch", "empty", "at least one batch size"));
            }
            for &size in sizes {
                within("batch", size, 1 << 20)?;
            }
        }
        Ok(BuildSpec {
            batch_sizes: self.batch_sizes.clone().unwrap_or_default(),
            slots: self.slots,
            input: self.input,
            output: self.output,
            choices: self.choices.clone(),
            tuning: self.tuning.anew(),
            priority: self.priority,
        })
    }
}

/// Completes an out-of-memory error: what the whole build needs of that memory, and the largest batch whose build
/// would fit. `needed` gives the bytes that a build for a batch takes of a kind of memory.
fn what_fits(error: Error, largest: usize, device: &Device, needed: impl Fn(&str, usize) -> Option<u64>) -> Error {
    let Error::OutOfMemory { device: name, what, needed_bytes, .. } = error else { return error };
    // Asked anew: the failed build has given back what it had taken.
    let free_bytes = device.free_bytes(&what);
    let fits = |batch: &usize| needed(&what, *batch).is_some_and(|bytes| bytes <= free_bytes);
    let halved = std::iter::successors(Some(largest / 2), |batch| Some(batch / 2));
    let fitting_batch = halved.take_while(|&batch| batch > 0).find(fits);
    let needed_bytes = needed(&what, largest).map_or(needed_bytes, |bytes| bytes.max(needed_bytes));
    Error::OutOfMemory { device: name, what, needed_bytes, free_bytes, fitting_batch }
}

fn within(option: &'static str, value: usize, most: usize) -> Result<(), Error> {
    if !(1..=most).contains(&value) {
        return Err(Error::option(option, value, format!("1 to {most}")));
    }
    Ok(())
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device)
            .field("batch_sizes", &self.batch_sizes())
            .field("slots", &self.slots())
            .finish_non_exhaustive()
    }
}
