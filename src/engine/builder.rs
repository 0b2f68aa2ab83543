//! The options of an engine, and its build.
//!
//! The file is long because a third of it or more is the documentation of what is public.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::budget::{Budget, LeftMemory};
use super::flow::Flow;
use crate::device::trace;
use crate::device::{Device, Priority, Signal};
use crate::error::Error;
use crate::exec::{BuildSpec, Hardware, TuningSpec};
use crate::model::{Model, check_dims};
use crate::phases::Stopwatch;
use crate::plan::{Choices, Plan};
use crate::ring::{Core, RingSpec, Waiting};
use crate::tensor::{Bucket, Dims, InputFormat, OutputKind, Precision, Size};

/// The options of an [`Engine`], and the call that builds it.
///
/// ```
/// use trefoil::OutputKind;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// let engine = Engine::builder(&model).on(&cpu).batch(16).slots(2).output(OutputKind::Logits).build()?;
/// assert_eq!((engine.capacity(), engine.slots()), (16, 2));
/// assert!(Engine::builder(&model).on(&cpu).slots(0).build().is_err());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EngineBuilder<'a> {
    /// The models, one or more.
    pub(super) models: Vec<Member<'a>>,
    pub(super) options: Options,
}

/// The options of an engine, without its models.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) average: bool,
    pub(super) device: Option<Device>,
    /// The sizes; `None`: the device's default batch sizes.
    pub(super) sizes: Option<Vec<Size>>,
    pub(super) slots: Option<usize>,
    pub(super) compute_streams: usize,
    pub(super) staging: Option<usize>,
    pub(super) results: Option<usize>,
    pub(super) input: InputFormat,
    pub(super) output: OutputKind,
    pub(super) precision: Precision,
    pub(super) priority: Priority,
    pub(super) choices: Choices,
    pub(super) lanes: Option<bool>,
    pub(super) acquire_limit: Duration,
    pub(super) waiting: Waiting,
    /// The number of batches that a recorder remembers; `None`: no recorder.
    pub(super) trace: Option<usize>,
    pub(super) check: bool,
    pub(super) device_results: bool,
    pub(super) tuning: TuningSpec,
    /// The number of times that a fleet rebuilds an engine.
    pub(super) rebuild_on_fault: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            average: false,
            device: None,
            sizes: None,
            slots: None,
            compute_streams: 1,
            staging: None,
            results: None,
            input: InputFormat::default(),
            output: OutputKind::default(),
            precision: Precision::default(),
            priority: Priority::default(),
            choices: Choices::default(),
            lanes: None,
            acquire_limit: Duration::from_secs(10),
            waiting: Waiting::default(),
            trace: None,
            check: std::env::var_os("TREFOIL_CHECK").is_some_and(|value| value == "1"),
            device_results: false,
            tuning: TuningSpec::default(),
            rebuild_on_fault: 0,
        }
    }
}

/// One of an engine's models.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) model: &'a Model,
    /// The index of the earlier model whose result this one reads; `None`: it reads the input rows.
    pub(super) after: Option<usize>,
}

/// The number of batches that a recorder remembers by default.
const TRACED_BATCHES: usize = 4096;

impl<'a> EngineBuilder<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self { models: vec![Member { model, after: None }], options: Options::default() }
    }

    /// Adds a model that reads the result of the model that was named last. The result stays on the device. Each model
    /// has a stream of its own, so the models compute successive batches at the same time.
    ///
    /// The added model reads the whole result, without softmax. If it is to read what the first model's classifier
    /// reads, cut the first model with [`Model::features`]. The engine does not hand out a result that a model reads.
    ///
    /// ```no_run
    /// # use trefoil::{Engine, model::Model};
    /// # fn f(backbone: &Model, head: &Model) -> Result<(), trefoil::Error> {
    /// let engine = Engine::builder(&backbone.features()?).then(head).build()?;
    /// # Ok(()) }
    /// ```
    pub fn then(mut self, model: &'a Model) -> Self {
        let after = Some(self.models.len() - 1);
        self.models.push(Member { model, after });
        self
    }

    /// Adds a model that reads the same input as the model that was named last. The input is uploaded once, and the
    /// models run at the same time, each on a stream of its own. [`Output::part`](crate::Output::part) gives the output
    /// of each model. After [`EngineBuilder::then`], the added model is a second head on the same backbone.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// # let cpu = Device::open(Target::Cpu)?;
    /// let ensemble = Engine::builder(&model).beside(&model).average().on(&cpu).build()?;
    /// assert_eq!(ensemble.acquire()?.submit(1)?.wait()?.parts(), 1);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn beside(mut self, model: &'a Model) -> Self {
        let after = self.models.last().expect("at least one").after;
        self.models.push(Member { model, after });
        self
    }

    /// Hands out the mean of the models' outputs, which the device computes, in place of the outputs.
    pub fn average(mut self) -> Self {
        self.options.average = true;
        self
    }

    /// Sets the device. Default: the first GPU, or the CPU if there is no GPU.
    pub fn on(mut self, device: &Device) -> Self {
        self.options.device = Some(device.clone());
        self
    }

    /// Sets the largest batch. For a GPU the engine also has a captured graph for each smaller power of two, so that a
    /// small submission does not compute a large batch. Default: 32 on a GPU, 8 on the CPU.
    pub fn batch(mut self, rows: usize) -> Self {
        let below = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&size| size < rows);
        self.options.sizes = Some(below.chain([rows]).map(Size::new).collect());
        self
    }

    /// Sets the batch sizes, exactly these.
    pub fn batch_sizes(mut self, sizes: &[usize]) -> Self {
        self.options.sizes = Some(sizes.iter().copied().map(Size::new).collect());
        self
    }

    /// Sets the sizes, exactly these: each is a number of rows, and sizes of the model's free dimensions. All sizes
    /// share weights and memory for activations; each has its own plan and captured graph.
    ///
    /// All rows of a batch have the same dimensions. [`Engine::acquire_for`] and
    /// [`Request::size`](crate::Request::size) ask for a size; calls without a size get the dimensions of the first
    /// one. A submission takes the smallest batch that holds its rows. The other dimensions match exactly, unless the
    /// model declares that rows may be [padded](Model::padded) along them: then the smallest size that holds the row is
    /// taken. If several models of the engine have a dimension of the same name, it has the same size in all of them;
    /// parts of a model have the dimensions of the whole model.
    ///
    /// ```
    /// use trefoil::{Engine, Size, model::Model};
    /// # use trefoil::{Device, Target};
    /// let model = Model::open("weights/convnet28")?; // of images of any height and width
    /// let sizes = [(4, 28), (1, 20)].map(|(rows, side)| Size::new(rows).dim("height", side).dim("width", side));
    /// let engine = Engine::builder(&model).sizes(&sizes).on(&Device::open(Target::Cpu)?).build()?;
    /// let batch = engine.acquire_for(&sizes[1])?;
    /// assert_eq!(batch.spec().row_bytes, 20 * 20);
    /// assert_eq!(model.at(&sizes[1])?.preprocessing()?.input.to_string(), "20x20x1");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// ```no_run
    /// use trefoil::{Engine, Size, model::Model, onnx::Sizes};
    /// let model = Model::open_at("bert.onnx", &Sizes::new().dim("sequence", 128))?;
    /// let sizes = [(8, 128), (1, 64), (8, 384)].map(|(rows, length)| Size::new(rows).dim("sequence", length));
    /// let engine = Engine::builder(&model).sizes(&sizes).build()?;
    /// let batch = engine.acquire_for(&Size::new(5).dim("sequence", 384))?;
    /// assert_eq!(batch.spec().port("input_ids")?.dims, [384]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn sizes(mut self, sizes: &[Size]) -> Self {
        self.options.sizes = Some(sizes.to_vec());
        self
    }

    /// Sets the number of slots: batches that are on the device at the same time. Default 3; with several compute
    /// streams, the smallest multiple of their number that exceeds it by two or more. With 1 slot only copies overlap.
    pub fn slots(mut self, slots: usize) -> Self {
        self.options.slots = Some(slots);
        self
    }

    /// Sets the number of streams on which each model computes. Default 1. With n streams up to n batches are computed
    /// side by side, because the slots use the streams in turn.
    ///
    /// Several streams help if a batch is so small that it leaves much of the GPU idle. If one batch fills the GPU, two
    /// batches side by side gain nothing, and each takes longer. A [`Batcher`](crate::Batcher) computes batches side by
    /// side only at sizes that gain by it. Results do not change by a bit, and they become ready in the order of
    /// submission.
    ///
    /// The number of slots must be a multiple of the number of streams. Each stream has its own memory for activations.
    /// A model [with state](Model::with_state) can have one stream only. A CPU always uses one stream, because a batch
    /// keeps all threads of the CPU busy.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// # let cpu = Device::open(Target::Cpu)?;
    /// let engine = Engine::builder(&model).on(&cpu).compute_streams(2).build()?;
    /// assert_eq!(engine.slots(), 4);
    /// assert!(Engine::builder(&model).on(&cpu).compute_streams(2).slots(3).build().is_err());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn compute_streams(mut self, streams: usize) -> Self {
        self.options.compute_streams = streams;
        self
    }

    /// Sets the number of staging buffers. Default: slots + 3. Recommended: producers + slots.
    pub fn staging(mut self, buffers: usize) -> Self {
        self.options.staging = Some(buffers);
        self
    }

    /// Sets the number of result buffers. Default: 4 x staging.
    pub fn results(mut self, buffers: usize) -> Self {
        self.options.results = Some(buffers);
        self
    }

    /// Sets the format of the rows that producers write. Default [`InputFormat::U8Nhwc`].
    pub fn input(mut self, format: InputFormat) -> Self {
        self.options.input = format;
        self
    }

    /// Sets the kind of result that consumers read. Default [`OutputKind::Probabilities`]. A network whose result has
    /// several pixels gives features alone; [`build`](Self::build) refuses the others.
    pub fn output(mut self, kind: OutputKind) -> Self {
        self.options.output = kind;
        self
    }

    /// Sets the type in which layers read their operands. Default [`Precision::Auto`]: f16 on a GPU, f32 on the CPU.
    /// [`build`](Self::build) refuses any other for a network in bytes.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.precision = precision;
        self
    }

    /// Gives this engine's streams priority over streams of normal priority.
    pub fn high_priority(mut self) -> Self {
        self.options.priority = Priority::High;
        self
    }

    /// Sets kernels by step name, which overrule the planner's choice. With several models, a choice applies to each
    /// model that has a step of this name.
    pub fn choices(mut self, choices: Choices) -> Self {
        self.options.choices = choices;
        self
    }

    /// Sets whether independent branches of a model run side by side on a GPU. Default: yes, unless a measurement has
    /// found that to be slower, see [`EngineBuilder::tuning`]. Results do not change by a bit.
    pub fn lanes(mut self, several: bool) -> Self {
        self.options.lanes = Some(several);
        self
    }

    /// Sets how long [`Engine::acquire`] waits for a free batch. Default 10 s.
    ///
    /// The limit also holds for a submission that waits until the submissions of other threads have returned from the
    /// driver. Such a submission waits up to 0.1 s even if the limit is shorter.
    pub fn acquire_limit(mut self, limit: Duration) -> Self {
        self.options.acquire_limit = limit;
        self
    }

    /// Sets whether the hazard checker checks every access: streams, events and credits must order each copy, each run
    /// of the model and each access of the host to page-locked memory after every earlier access that it conflicts
    /// with. A violation is a bug in trefoil and faults the device with [`Error::Hazard`]. For steps that run side by
    /// side within a run of the model, the build calls [`Plan::check`](crate::plan::Plan::check) once. The checker is
    /// for tests: each call takes a lock and some microseconds, but no driver call. Default: off, without cost; the
    /// environment variable `TREFOIL_CHECK=1` turns it on.
    pub fn check(mut self, on: bool) -> Self {
        self.options.check = on;
        self
    }

    /// Sets whether the engine has buffers for results that stay on the device, as many as there are result buffers,
    /// for [`Batch::submit_to_device`](crate::Batch::submit_to_device). Default false. A [`Fleet`](crate::Fleet) has
    /// these buffers on each device, for batches that are acquired from one of its engines; batches acquired from the
    /// fleet run on any device and cannot use them.
    pub fn device_results(mut self, on: bool) -> Self {
        self.options.device_results = on;
        self
    }

    /// Sets how threads learn that the device is done. Default [`Waiting::Block`].
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.options.waiting = waiting;
        self
    }

    /// Sets whether the engine records when each stage of each batch ran, for [`Engine::trace`]. Default false.
    ///
    /// The engine remembers the last 4096 batches, or as many as [`EngineBuilder::trace_batches`] says. Recording adds
    /// two events for each copy and each model to the operations of a batch; the build makes all of them. An engine
    /// that does not record has no such events. With several models, each model has an interval of its own.
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
        self.options.trace = on.then_some(self.options.trace.unwrap_or(TRACED_BATCHES));
        self
    }

    /// Makes the engine record, and remember the last `batches` batches, or as many as there are result buffers if that
    /// is more. Older batches are forgotten, and counted. Each batch needs four events of the device, and two more for
    /// each model.
    pub fn trace_batches(mut self, batches: usize) -> Self {
        self.options.trace = Some(batches);
        self
    }

    /// Builds the engine: opens the device if none was given, plans, checks that there is enough memory, uploads
    /// weights, allocates all buffers and captures every graph. After the build nothing is allocated or loaded.
    ///
    /// # Errors
    /// - [`Error::Option`] if a number is zero or too large, or if slots are no multiple of the compute streams.
    /// - [`Error::Option`] if a model cannot have some of the sizes. The error lists all of these with the reasons.
    /// - [`Error::Option`] if a model with state has several compute streams, or sizes whose states differ.
    /// - [`Error::Option`] if [`EngineBuilder::rebuild_on_fault`] is set, because only a fleet rebuilds engines.
    /// - The errors of [`Device::open`] if no device was given, and those of reading the model's weights.
    /// - [`Error::OutOfMemory`] with the bytes that are needed and that are free, and the largest batch that fits.
    /// - [`Error::Thread`] if a thread of the engine cannot be started.
    /// - [`Error::Fault`] if the device has failed.
    pub fn build(self) -> Result<Engine, Error> {
        if self.options.rebuild_on_fault > 0 {
            let fleets = "0, or a fleet from `build_on`, which may have one device: only fleets rebuild engines";
            return Err(Error::option("rebuild_on_fault", self.options.rebuild_on_fault, fleets));
        }
        self.build_ring(&self.device_or_default()?, 1, None, &LeftMemory::default())
    }

    /// Builds an engine on a device. `left` is the memory that builds at the same time leave each other. `freed` is
    /// given for one of the rings of a fleet of `peers` devices.
    pub(super) fn build_ring(
        &self,
        device: &Device,
        peers: usize,
        freed: Option<Arc<Signal>>,
        left: &LeftMemory,
    ) -> Result<Engine, Error> {
        let spec = self.build_spec(Hardware::of(device))?;
        // In a fleet, staging is kept until the answer is there, so that every batch on the device has a staging
        // buffer.
        let on_device = if freed.is_some() { spec.slots } else { 0 };
        let staging = self.options.staging.unwrap_or(spec.slots + on_device + 3);
        // If all other devices of a fleet fail, this one holds the results of all.
        let results = self.options.results.unwrap_or(staging.saturating_mul(4).saturating_mul(peers));
        within("staging", staging, 1 << 16)?;
        within("results", results, 1 << 16)?;
        if let Some(batches) = self.options.trace {
            within("trace_batches", batches, 1 << 20)?;
        }
        device.healthy()?;
        let device = if self.options.check { device.checked() } else { device.clone() };
        let mut watch = Stopwatch::start();
        let flow = Flow::new(self, spec)?;
        let kept = if self.options.device_results { results } else { 0 };
        let budget = Budget { flow: &flow, device: &device, staging, results, kept, left, taken: Cell::default() };
        let mut plans = budget.plans()?;
        watch.lap("plans");
        if flow.tune(&device)? {
            watch.lap("tuning");
            plans = budget.plans()?;
            watch.lap("plans");
        }
        let nodes = flow.build(&device, &plans, &mut watch).map_err(|error| budget.explain(error))?;
        let plans = plans.concat();
        if self.options.check {
            plans.iter().try_for_each(Plan::check)?;
        }
        let ring = RingSpec {
            staging,
            results,
            priority: self.options.priority,
            acquire_limit: self.options.acquire_limit,
            waiting: self.options.waiting,
            output_kind: flow.output_kind(),
            buckets: flow.rows(),
            classes: flow.classes(),
            device_results: self.options.device_results,
            freed,
        };
        let names = self.names();
        let models = names[..self.models.len()].to_vec();
        let programs = if names.len() > 1 { names } else { Vec::new() };
        let install = |batches: usize| trace::install(&device, batches.max(results), programs);
        let (on, recorder) = self.options.trace.map(install).transpose()?.unzip();
        let core =
            Core::build_flow(on.as_ref().unwrap_or(&device), nodes, ring).map_err(|error| budget.explain(error))?;
        watch.lap("ring");
        Ok(Engine { core, device, plans, recorder, building: watch.phases(), models })
    }

    /// The names of the programs: those of the models, then that of the mean. A repeated name gets a number.
    fn names(&self) -> Vec<Arc<str>> {
        let models = self.models.iter().map(|member| member.model.name());
        let names: Vec<&str> = models.chain(self.options.average.then_some("mean")).collect();
        let name = |(index, name): (usize, &&str)| match names[..index].iter().filter(|other| *other == name).count() {
            0 => Arc::from(*name),
            before => format!("{name} #{}", before + 1).into(),
        };
        names.iter().enumerate().map(name).collect()
    }

    fn checked_slots(&self) -> Result<usize, Error> {
        let streams = self.options.compute_streams;
        within("compute_streams", streams, 1 << 6)?;
        let slots = self.options.slots.unwrap_or((streams + 2).next_multiple_of(streams));
        within("slots", slots, 1 << 10)?;
        if streams > 1 && self.has_states() {
            return Err(Error::option(
                "compute_streams",
                streams,
                "1, because batches of a model with state are computed one after the other",
            ));
        }
        if !slots.is_multiple_of(streams) {
            return Err(Error::option("slots", slots, format!("a multiple of the {streams} compute streams")));
        }
        Ok(slots)
    }

    /// Whether any of the models has states.
    pub(super) fn has_states(&self) -> bool {
        self.models.iter().any(|member| !member.model.states().is_empty())
    }

    /// The sizes by their free dimensions. A dimension that the sizes do not name is as the models have it.
    fn buckets(&self) -> Result<Vec<Bucket>, Error> {
        let own = self.own_dims()?;
        let Some(sizes) = &self.options.sizes else { return Ok(vec![Bucket { dims: own, batch_sizes: Vec::new() }]) };
        if sizes.is_empty() {
            return Err(Error::option("batch", "empty", "at least one batch size"));
        }
        // The largest size is checked first, so that the error has the number that `batch` was given.
        within("batch", sizes.iter().map(Size::batch).max().unwrap_or(0), 1 << 20)?;
        let whole = |size: &Size| {
            within("batch", size.batch(), 1 << 20)?;
            check_dims(&own, size)?;
            let dims = own.iter().chain(size.dims()).map(|(name, &size)| (name.clone(), size)).collect();
            Ok(Size::of(size.batch(), dims))
        };
        Ok(Bucket::all(&sizes.iter().map(whole).collect::<Result<Vec<_>, _>>()?))
    }

    /// The free dimensions of all models. If models differ in one, the sizes must name it.
    fn own_dims(&self) -> Result<Dims, Error> {
        let mut own = Dims::new();
        let is_named = |name: &str| self.options.sizes.iter().flatten().any(|size| size.dims().contains_key(name));
        for (name, size) in self.models.iter().flat_map(|member| member.model.dims()) {
            match own.get(&name) {
                Some(&other) if other != size && !is_named(&name) => {
                    let expected = format!("one size of `{name}` for all models: they have {other} and {size}");
                    return Err(Error::option("sizes", "of neither", expected));
                }
                Some(_) => {}
                None => _ = own.insert(name, size),
            }
        }
        Ok(own)
    }

    pub(super) fn build_spec(&self, hardware: Hardware) -> Result<BuildSpec, Error> {
        let slots = self.checked_slots()?;
        Ok(BuildSpec {
            hardware,
            buckets: self.buckets()?,
            slots,
            streams: self.options.compute_streams,
            input: self.options.input,
            output: self.options.output,
            precision: self.options.precision,
            choices: self.options.choices.clone(),
            lanes: self.options.lanes,
            tuning: self.options.tuning.anew(),
            priority: self.options.priority,
        })
    }
}

pub(super) fn within(option: &'static str, value: usize, most: usize) -> Result<(), Error> {
    if !(1..=most).contains(&value) {
        return Err(Error::option(option, value, format!("1 to {most}")));
    }
    Ok(())
}
