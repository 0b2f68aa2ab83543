//! For whom: an engine joins a model, a device and a ring.

mod budget;
mod builder;
mod finite;
mod fleet;
mod flow;
mod measured;
mod rebuild;
#[cfg(test)]
mod thread_tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::device::trace::Recorder;
use crate::error::{Credits, Error};
use crate::model::Model;
use crate::phases::Phase;
use crate::plan::{Plan, Step};
use crate::ring::{Batch, BatcherBuilder, Close, Core, Health, Stage};
#[cfg(feature = "ffi")]
use crate::tensor::RowPort;
use crate::tensor::{Element, RowSpec, Size};
use crate::trace::{Trace, TracedLayer, TracedModel, TracedProgram};
pub use builder::EngineBuilder;
pub use finite::NotFinite;
pub use fleet::Fleet;

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
/// let best = batch.submit(1)?.wait()?.top_k(0, 1)?[0];
/// println!("{} {:.3}", model.label(best.0), best.1);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub struct Engine {
    core: Arc<Core>,
    device: Device,
    plans: Vec<Plan>,
    recorder: Option<Arc<Recorder>>,
    building: Vec<Phase>,
    /// The models' names, all different.
    models: Vec<Arc<str>>,
}

impl Engine {
    /// Starts a builder for `model`.
    pub fn builder(model: &Model) -> EngineBuilder<'_> {
        EngineBuilder::new(model)
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

    /// Lends a batch for rows of a size: of the smallest size that holds them. It takes as many rows as that size's
    /// dimensions have in their largest batch; what a row holds, [`Batch::spec`] tells.
    ///
    /// ```
    /// # use trefoil::{Device, Dtype, Engine, Size, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// # let build = |size: &Size| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let x = g.input("x", Dtype::F32, &[size.batch(), size.get("length").unwrap()]);
    /// #     let twice = g.map("twice", Expr::arg(0) + Expr::arg(0), &[x]);
    /// #     g.output("twice", twice);
    /// #     g.finish()
    /// # };
    /// # let model = Model::of_sizes(Weights::from_tensors::<String>([])?, &Size::new(1).dim("length", 4), build)?;
    /// let sizes = [Size::new(8).dim("length", 4), Size::new(1).dim("length", 16)];
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).sizes(&sizes).build()?;
    /// assert_eq!(engine.acquire_for(&Size::new(3).dim("length", 4))?.capacity(), 8);
    /// let refused = engine.acquire_for(&Size::new(3).dim("length", 16)).unwrap_err().to_string();
    /// assert!(refused.contains("batch=8,length=4; batch=1,length=16"), "{refused}");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if no size holds such rows, with those that there are; as for [`Engine::acquire`].
    pub fn acquire_for(&self, size: &Size) -> Result<Batch, Error> {
        self.acquire_for_within(size, self.core.spec().acquire_limit)
    }

    /// Like [`Engine::acquire_for`] with a limit of its own.
    ///
    /// # Errors
    /// As for [`Engine::acquire_for`].
    pub fn acquire_for_within(&self, size: &Size, limit: Duration) -> Result<Batch, Error> {
        let bucket = self.core.spec().buckets.holding(size)?;
        Ok(self.core.acquire(limit)?.in_bucket(bucket))
    }

    /// Lends a batch if one is free now.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device is out of use.
    pub fn try_acquire(&self) -> Result<Option<Batch>, Error> {
        self.core.try_acquire()
    }

    /// Starts a builder for a batcher: single rows from many threads become this engine's batches.
    ///
    /// ```no_run
    /// # fn f(engine: trefoil::Engine, pixels: Vec<u8>) -> Result<(), trefoil::Error> {
    /// let batcher = engine.batcher().max_delay(std::time::Duration::from_millis(2)).build()?;
    /// println!("{:?}", batcher.submit(&pixels)?.wait()?.top_k(5)?);
    /// # Ok(()) }
    /// ```
    pub fn batcher(&self) -> BatcherBuilder {
        BatcherBuilder::new(&self.core)
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Every size that it was built for. Those of the same free dimensions are together, ascending.
    pub fn sizes(&self) -> Vec<Size> {
        self.core.spec().buckets.sizes().collect()
    }

    /// The batch sizes that it was built for, ascending; where there are several sizes of free dimensions, those of the
    /// first one's.
    pub fn batch_sizes(&self) -> &[usize] {
        self.core.batch_sizes()
    }

    /// Rows of the largest batch, at the first size's dimensions.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }

    /// Slots of its ring.
    pub fn slots(&self) -> usize {
        self.core.slots()
    }

    /// Streams that each model computes on, which [`EngineBuilder::compute_streams`] asks for.
    pub fn compute_streams(&self) -> usize {
        self.core.compute_streams()
    }

    /// Rows that producers write, at the first size's dimensions.
    pub fn input(&self) -> &RowSpec {
        &self.core.bucket(0).input
    }

    /// Rows that consumers read, at the first size's dimensions; of an engine of several models, those of its first output.
    pub fn output(&self) -> &RowSpec {
        &self.core.bucket(0).outputs[0]
    }

    /// Rows that producers write and consumers read at the smallest size that holds rows of the one given.
    ///
    /// # Errors
    /// [`Error::Option`] if there is none, with those that there are.
    pub fn rows_for(&self, size: &Size) -> Result<(&RowSpec, &RowSpec), Error> {
        let bucket = self.core.bucket(self.core.spec().buckets.holding(size)?);
        Ok((&bucket.input, &bucket.outputs[0]))
    }

    /// The plans, one for each of the [sizes](Self::sizes) in order; a CPU has one for a row, of each kind of rows. Those of
    /// several models follow one another.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Has the states of its models be zeros from the next batch on, or from the next call that reads or writes a state.
    /// Returns at once.
    ///
    /// ```
    /// # use trefoil::{Device, Dtype, Engine, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// # let model = Model::of_graphs(Weights::from_tensors::<String>([])?, |rows| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let [x, before] = ["x", "before"].map(|name| g.input(name, Dtype::F32, &[rows, 1]));
    /// #     let sum = g.map("add", Expr::arg(0) + Expr::arg(1), &[x, before]);
    /// #     g.output("sum", sum);
    /// #     g.output("after", sum);
    /// #     g.finish()
    /// # })?;
    /// let model = model.with_state("before", "after")?; // a running sum
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).build()?;
    /// let next = |x: f32| -> Result<f32, trefoil::Error> {
    ///     let mut batch = engine.acquire()?;
    ///     batch.port_mut::<f32>(0, "x")?.fill(x);
    ///     Ok(batch.submit(1)?.wait()?.port::<f32>(0, "sum")?[0])
    /// };
    /// assert_eq!([next(1.0)?, next(2.0)?], [1.0, 3.0]);
    /// engine.reset_states();
    /// assert_eq!([next(4.0)?, next(8.0)?], [4.0, 12.0]);
    /// engine.write_state("before", &[100.0_f32])?;
    /// assert_eq!(next(1.0)?, 101.0);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn reset_states(&self) {
        self.core.reset_states();
    }

    /// The elements of a state, known by the name of its input, as the batches and resets so far leave it: the rows of the
    /// largest batch, one behind the other. Waits for those batches.
    ///
    /// # Errors
    /// [`Error::Option`] for a state that no model has, or elements of another type; [`Error::Fault`] if the device is out of
    /// use.
    pub fn read_state<T: Element>(&self, name: &str) -> Result<Vec<T>, Error> {
        let (row, rows) = self.core.state(name)?;
        row.check::<T>()?;
        let mut elems = vec![T::zeroed(); row.elems() * rows];
        self.core.read_state(name, bytemuck::cast_slice_mut(&mut elems))?;
        Ok(elems)
    }

    /// Writes all elements of a state for the batches that are submitted from now on. Waits for those that were before.
    ///
    /// # Errors
    /// As for [`Engine::read_state`]; [`Error::Option`] for another number of elements.
    pub fn write_state<T: Element>(&self, name: &str, elems: &[T]) -> Result<(), Error> {
        self.core.state(name)?.0.check::<T>()?;
        self.core.write_state(name, bytemuck::cast_slice(elems))
    }

    /// What a row of a state is, alone.
    #[cfg(feature = "ffi")]
    pub(crate) fn state(&self, name: &str) -> Result<&RowPort, Error> {
        self.core.state(name).map(|(row, _)| row)
    }

    /// So many bytes of a state, which are all.
    #[cfg(feature = "ffi")]
    pub(crate) fn read_state_bytes(&self, name: &str, bytes: usize) -> Result<Vec<u8>, Error> {
        self.core.check_state(name, bytes)?; // before as many are allocated
        let mut to = vec![0; bytes];
        self.core.read_state(name, &mut to).map(|()| to)
    }

    #[cfg(feature = "ffi")]
    pub(crate) fn write_state_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.core.write_state(name, bytes)
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
        let layers = |plan: &Plan, model: &Option<String>| -> Vec<TracedLayer> {
            let layer = |step: &Step| TracedLayer {
                model: model.clone(),
                name: step.name.clone(),
                operation: step.op.label(step.inputs.len()),
                kernel: plan.kernel_name(step.kernel, &step.op),
                flops: step.flops,
                bytes: step.bytes,
            };
            plan.steps.iter().map(layer).collect()
        };
        // Several models have as many plans each: one for each size, or, on a CPU, for each bucket.
        let each = self.plans.len() / self.models.len();
        let buckets = &self.core.spec().buckets;
        let program = |(size, bucket): (usize, usize)| {
            let plan = if each == buckets.len() { bucket } else { size };
            let of_models = self.plans.chunks(each).zip(&self.models).flat_map(|(plans, model)| {
                let model = (self.models.len() > 1).then(|| model.to_string());
                layers(&plans[plan], &model)
            });
            TracedProgram {
                batch: self.plans[plan].batch,
                row_bytes: buckets.at(bucket).row_bytes(),
                layers: of_models.collect(),
            }
        };
        TracedModel {
            name: self.models.join(" + "),
            device_name: self.device.info().name.clone(),
            programs: buckets.of_sizes().enumerate().map(program).collect(),
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
    /// credits while it runs. States are zeros afterwards.
    ///
    /// # Errors
    /// [`Error::Option`] for another batch size or too many ahead; [`Error::Timeout`] if credits are held elsewhere past
    /// the limit; [`Error::Fault`] if the device is out of use.
    pub fn measure_calls(&self, batch: usize, batches: usize, ahead: usize) -> Result<Vec<f64>, Error> {
        self.core.measure_calls(batch, batches, ahead)
    }

    /// Times one stage of the ring alone, back to back on its stream: seconds for each of `repetitions` batches of
    /// `batch` rows, one of [`Engine::batch_sizes`]. The rows hold random numbers. Takes all credits while it runs.
    /// States are zeros afterwards.
    ///
    /// # Errors
    /// [`Error::Option`] for another batch size; [`Error::Timeout`] if credits are held elsewhere past the limit.
    pub fn measure(&self, stage: Stage, batch: usize, repetitions: usize) -> Result<Vec<f64>, Error> {
        self.core.measure(stage, batch, repetitions)
    }

    /// Times one stage of the ring back to back on its stream, with the other two stages loaded as in a run: copies
    /// with the other direction and compute running beside them, compute with copies beside it, one batch of each for
    /// each batch timed. Mean seconds of a batch over `repetitions`. Takes all credits while it runs, and device memory
    /// for one more input and output. States are zeros afterwards.
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

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.leave();
    }
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
