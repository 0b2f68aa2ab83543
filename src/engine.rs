//! Engines: an engine joins a model, a device and a ring.

mod budget;
mod builder;
mod finite;
mod fleet;
mod flow;
mod measured;
#[cfg(test)]
mod memory_tests;
mod pack;
mod packer;
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
#[cfg(any(feature = "ffi", test))]
use crate::tensor::RowPort;
use crate::tensor::{Element, RowSpec, Size};
use crate::trace::{Trace, TracedLayer, TracedModel, TracedProgram};
pub use builder::EngineBuilder;
pub use finite::NotFinite;
pub use fleet::Fleet;
pub use pack::{Pack, Packed};
pub use packer::{PackedRow, PackedTicket, Packer};

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
    /// - [`Error::Timeout`] if no batch becomes free within the limit. The error counts the batches that are being
    ///   filled, that are in flight, and that are finished but unread.
    /// - [`Error::Fault`] if the device has failed.
    /// - [`Error::Closed`] after [`Engine::close`].
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

    /// Lends a batch for rows of the dimensions in `size`. The batch has the dimensions of the smallest of the engine's
    /// sizes that holds such rows, and room for the largest batch of these dimensions. [`Batch::spec`] gives the ports
    /// of its rows.
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
    /// [`Error::Option`] if no size holds such rows, with a list of the sizes; otherwise as for [`Engine::acquire`].
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
    /// [`Error::Fault`] if the device has failed.
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

    /// The device that the engine runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Every size that the engine was built for. Sizes with the same free dimensions are neighbours, ascending by
    /// batch.
    pub fn sizes(&self) -> Vec<Size> {
        self.core.spec().buckets.sizes().collect()
    }

    /// The batch sizes that the engine was built for, ascending. If there are several sizes of free dimensions, these
    /// are the batch sizes of the first one.
    pub fn batch_sizes(&self) -> &[usize] {
        self.core.batch_sizes()
    }

    /// The number of rows in the largest batch, at the dimensions of the first size.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }

    /// The number of slots of the engine's ring.
    pub fn slots(&self) -> usize {
        self.core.slots()
    }

    /// The number of streams on which each model computes, see [`EngineBuilder::compute_streams`].
    pub fn compute_streams(&self) -> usize {
        self.core.compute_streams()
    }

    /// The layout of the rows that producers write, at the dimensions of the engine's first size.
    pub fn input(&self) -> &RowSpec {
        &self.core.bucket(0).input
    }

    /// The layout of the rows that consumers read, at the dimensions of the engine's first size. An engine of several
    /// models may have several outputs; this is the layout of the first one.
    pub fn output(&self) -> &RowSpec {
        &self.core.bucket(0).outputs[0]
    }

    /// The layouts of the rows that producers write and of the rows that consumers read, at the smallest of the
    /// engine's sizes that holds rows of `size`.
    ///
    /// # Errors
    /// [`Error::Option`] if no size holds such rows, with a list of the sizes.
    pub fn rows_for(&self, size: &Size) -> Result<(&RowSpec, &RowSpec), Error> {
        let bucket = self.core.bucket(self.core.spec().buckets.holding(size)?);
        Ok((&bucket.input, &bucket.outputs[0]))
    }

    /// The plans, one for each of the [sizes](Self::sizes) in their order; on a CPU, one plan of a single row for each
    /// set of free dimensions. For several models, the plans of one model follow those of the previous one.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Sets the states of the engine's models to zeros for the next batch, or for the next call that reads or writes a
    /// state. Returns at once.
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

    /// The elements of the state whose input has this name, after all batches and resets so far: the rows of the
    /// largest batch, one behind the other. Waits for these batches.
    ///
    /// # Errors
    /// [`Error::Option`] for a state that no model has, or elements of another type; [`Error::Fault`] if the device has
    /// failed.
    pub fn read_state<T: Element>(&self, name: &str) -> Result<Vec<T>, Error> {
        let (row, rows) = self.core.state(name)?;
        row.check::<T>()?;
        let mut elems = vec![T::zeroed(); row.elems() * rows];
        self.core.read_state(name, bytemuck::cast_slice_mut(&mut elems))?;
        Ok(elems)
    }

    /// Writes all elements of a state, for the batches that are submitted from now on. Waits for the batches that were
    /// submitted before.
    ///
    /// # Errors
    /// As for [`Engine::read_state`]; [`Error::Option`] for another number of elements.
    pub fn write_state<T: Element>(&self, name: &str, elems: &[T]) -> Result<(), Error> {
        self.core.state(name)?.0.check::<T>()?;
        self.core.write_state(name, bytemuck::cast_slice(elems))
    }

    /// The row of a state of one request. The name is that of the state's input.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn state(&self, name: &str) -> Result<&RowPort, Error> {
        self.core.state(name).map(|(row, _)| row)
    }

    /// All bytes of a state; `bytes` is their number, which is checked.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn read_state_bytes(&self, name: &str, bytes: usize) -> Result<Vec<u8>, Error> {
        self.core.check_state(name, bytes)?; // before as many are allocated
        let mut to = vec![0; bytes];
        self.core.read_state(name, &mut to).map(|()| to)
    }

    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn write_state_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.core.write_state(name, bytes)
    }

    /// The phases of building the engine, with their times, in order.
    pub fn building(&self) -> &[Phase] {
        &self.building
    }

    /// The state of the ring's credits.
    ///
    /// # Errors
    /// [`Error::Fault`] if the device has failed.
    pub fn credits(&self) -> Result<Credits, Error> {
        self.core.credits()
    }

    /// The state of the engine: its fault, if there is one, its credits, its quarantined buffers, and whether it is
    /// closed. Never fails, and never waits for the device.
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

    /// The recorded stages that have finished so far, of the batches that the engine remembers; `None` unless it was
    /// built with [`EngineBuilder::trace`].
    ///
    /// Never waits for the device, and does not stop batches. It allocates, and it asks the device for the times of
    /// events, so do not call it for every batch.
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
        // Each model has the same number of plans: one for each size, or, on a CPU, one for each bucket.
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

    /// Closes the engine to new work and waits, up to `limit`, until the device has finished the work in flight. From
    /// then on [`Engine::acquire`] and [`Batch::submit`] return [`Error::Closed`]; `how` says what happens to tickets.
    /// A second call waits again; [`Close::Abort`] overrules an earlier [`Close::Drain`].
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
    /// [`Error::Timeout`] past the limit, with what is still in flight; [`Error::Fault`] if the device has failed.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        self.core.close(how, limit)
    }

    /// The ring that the engine's tickets belong to.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn origin(&self) -> crate::ring::Origin {
        crate::ring::Origin::of_ring(&self.core)
    }

    /// Measures the driver calls of a batch without the code of the ring around them. The difference to the times of
    /// the same batches through the ring is the cost of the ring: see `examples/waiting.rs`.
    ///
    /// The calling thread makes the driver calls of `batches` batches of `batch` rows, and waits once for each batch,
    /// in the engine's way of [waiting](EngineBuilder::waiting). `batch` is one of [`Engine::batch_sizes`]. `ahead` is
    /// the number of batches in flight, at most as many as there are slots. Returns the seconds of each batch, from its
    /// first call to the end of its wait. Takes all credits while it runs. States are zeros afterwards.
    ///
    /// # Errors
    /// - [`Error::Option`] for another batch size, or for too many batches ahead.
    /// - [`Error::Timeout`] if other threads hold credits for longer than the limit.
    /// - [`Error::Fault`] if the device has failed.
    pub fn measure_calls(&self, batch: usize, batches: usize, ahead: usize) -> Result<Vec<f64>, Error> {
        self.core.measure_calls(batch, batches, ahead)
    }

    /// Times one stage of the ring alone, `repetitions` times back to back on its stream. Returns the seconds of each
    /// of these batches of `batch` rows, one of [`Engine::batch_sizes`]. The rows hold random numbers. Takes all
    /// credits while it runs. States are zeros afterwards.
    ///
    /// # Errors
    /// [`Error::Option`] for another batch size; [`Error::Timeout`] if credits are held elsewhere past the limit.
    pub fn measure(&self, stage: Stage, batch: usize, repetitions: usize) -> Result<Vec<f64>, Error> {
        self.core.measure(stage, batch, repetitions)
    }

    /// Times one stage of the ring, `repetitions` times back to back on its stream, while the other two stages run too:
    /// for each timed batch, the other stages process one batch. Returns the mean seconds of a batch. Takes all credits
    /// while it runs, and device memory for one more input and output. States are zeros afterwards.
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
