//! Measurements at the build: the choice of kernels, and the time of each step.

use std::path::PathBuf;
use std::sync::Arc;

use super::EngineBuilder;
use super::builder::within;
use super::flow::Flow;
use crate::device::{Device, Target};
use crate::error::Error;
use crate::exec::{self, GoesOn, Hardware, StepTimes, Told, Tuning, TuningProgress};
use crate::plan::{Limits, Plan};

impl EngineBuilder<'_> {
    /// Sets whether kernels are chosen by measurement. Default [`Tuning::Cached`]: the engine uses earlier
    /// measurements, and measures nothing. On the CPU there is nothing to choose.
    ///
    /// ```no_run
    /// # use trefoil::{Engine, Tuning, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let engine = Engine::builder(&model)
    ///     .tuning(Tuning::Full)
    ///     .on_tuning(|progress| println!("{} of {} shapes", progress.done, progress.of))
    ///     .build()?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.options.tuning.mode = tuning;
        self
    }

    /// Sets the folder for measurements. Default: `TREFOIL_CACHE`, else `trefoil` in `XDG_CACHE_HOME` or in `~/.cache`.
    pub fn tuning_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.tuning.folder = Some(folder.into());
        self
    }

    /// Sets a function that is called with the progress of a measurement, on the thread that builds. Default: none.
    pub fn on_tuning(mut self, told: impl Fn(&TuningProgress) + Send + Sync + 'static) -> Self {
        self.options.tuning.told = Some(Told(Arc::new(told)));
        self
    }

    /// Sets a function that is called before each shape is measured. Once it returns false, the measurement ends, and
    /// the build continues with the answers found until then, which are kept. Default: the measurement is never ended.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use trefoil::{Engine, Tuning, model::Model};
    /// # use trefoil::{Device, Target};
    ///
    /// static STOP: AtomicBool = AtomicBool::new(false);
    /// let model = Model::open("weights/convnet28")?;
    /// let builder = Engine::builder(&model).tuning(Tuning::Full).tune_while(|| !STOP.load(Ordering::Relaxed));
    /// # builder.on(&Device::open(Target::Cpu)?).build()?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn tune_while(mut self, goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.options.tuning.goes_on = GoesOn(Some(Arc::new(goes_on)));
        self
    }

    /// The plans that an engine would be built with, in the order of [`Engine::plans`](crate::Engine::plans). Nothing
    /// is built, loaded or measured.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let cpu = Device::open(Target::Cpu)?;
    /// println!("{}", Engine::builder(&model).on(&cpu).plans()?[0]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`EngineBuilder::build`], except that memory is not checked.
    pub fn plans(self) -> Result<Vec<Plan>, Error> {
        let hardware = Hardware::of(&self.device_or_default()?);
        self.plans_on(hardware)
    }

    /// The plans that an engine would be built with on hardware that need not be there, by predicted times: no measurement
    /// is read. Otherwise as [`EngineBuilder::plans`]; the builder's device is not used.
    ///
    /// ```
    /// # use trefoil::{Engine, model::Model, plan::Limits};
    /// # let model = Model::open("weights/convnet28")?;
    /// let plans = Engine::builder(&model).batch_sizes(&[1, 32]).plans_for(&Limits::h200())?;
    /// assert_eq!([plans[0].batch, plans[1].batch], [1, 32]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`EngineBuilder::plans`], except those of a device.
    pub fn plans_for(self, limits: &Limits) -> Result<Vec<Plan>, Error> {
        self.plans_on(Hardware::with(limits))
    }

    fn plans_on(self, hardware: Hardware) -> Result<Vec<Plan>, Error> {
        let flow = Flow::new(&self, self.build_spec(hardware)?)?;
        Ok(flow.plans(flow.sizes())?.concat())
    }

    /// Times each step of the plan for the largest batch, at the dimensions of the first size. A step is timed inside
    /// the whole graph, over `runs` runs on random rows; the call frees all memory that it took. [`StepTimes`] says
    /// what is measured. After [`EngineBuilder::tune_while`] has ended the measurement, no step is timed.
    ///
    /// ```no_run
    /// # use trefoil::{Engine, model::Model};
    /// # let model = Model::open("weights/efficientnet-lite0")?;
    /// let times = Engine::builder(&model).batch_sizes(&[128]).measure_steps(50)?;
    /// for (step, seconds) in times.plan.steps.iter().zip(&times.steps) {
    ///     println!("{:30} {:7.1} us", step.name, 1e6 * seconds);
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`EngineBuilder::build`]; [`Error::Unsupported`] for the CPU and for several models; [`Error::Option`] for no run.
    pub fn measure_steps(self, runs: usize) -> Result<StepTimes, Error> {
        within("runs", runs, 1 << 20)?;
        let device = self.device_or_default()?;
        device.healthy()?;
        let flow = Flow::new(&self, self.build_spec(Hardware::of(&device))?)?;
        let (models, spec) = flow.only()?;
        if spec.tuning.mode == Tuning::Full {
            exec::tune(models, &device, spec)?;
        }
        let model = &models[0];
        let plan = exec::plan_batch(model, spec, flow.sizes()[0].most())?;
        if !spec.tuning.goes_on() {
            return Ok(StepTimes::none(plan));
        }
        exec::time_steps(model, &device, spec, plan, runs)
    }

    pub(super) fn device_or_default(&self) -> Result<Device, Error> {
        self.options.device.clone().map_or_else(|| Device::open(Target::Auto), Ok)
    }
}
