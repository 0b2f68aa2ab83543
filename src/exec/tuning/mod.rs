//! Kernels chosen by measurement: the candidates of a plan, timed on the device inside the whole graph, and kept on disk.
//!
//! The planner's tile model leaves a few candidates for each step. The tuner builds the graph with each of them in turn
//! and takes a candidate that is clearly faster than the planner's first choice. The answer is kept by shape, so that
//! it is valid for every model with a layer of that shape. `search.rs` decides, `cache.rs` keeps the answers; neither
//! calls CUDA.

#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod search;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use crate::device::DeviceInfo;
use crate::device::{Device, Kind};

/// Whether measurements choose kernels.
///
/// ```
/// use trefoil::Tuning;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// let builder = Engine::builder(&model).on(&cpu);
/// let chosen = builder.clone().tuning(Tuning::Cached).plans()?;
/// assert_eq!(chosen, builder.tuning(Tuning::Off).plans()?); // a CPU has nothing to choose
/// assert_eq!(Tuning::default(), Tuning::Cached);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tuning {
    /// No: the planner's first choices, the same on every machine.
    Off,
    /// Earlier measurements on a GPU of this kind, as far as there are any. Nothing is measured now.
    #[default]
    Cached,
    /// Missing measurements are made before the engine is built, and kept. That takes some seconds for each batch size;
    /// nothing else should use the GPU meanwhile.
    Full,
}

/// The progress of a measurement.
///
/// ```
/// use trefoil::{Tuning, TuningProgress};
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// let (tell, told) = std::sync::mpsc::channel::<TuningProgress>();
/// let tuned = Engine::builder(&model).on(&cpu).tuning(Tuning::Full);
/// tuned.on_tuning(move |progress| tell.send(progress.clone()).unwrap()).build()?;
/// for progress in told { // nothing on a CPU
///     assert!(progress.done <= progress.of);
/// }
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TuningProgress {
    /// Rows of the batch whose graph is tuned.
    pub batch: usize,
    /// The number of shapes that are done. At the end it is less than [`of`](Self::of) if the limit of one minute was
    /// reached, or if the measurement was [ended](crate::EngineBuilder::tune_while).
    pub done: usize,
    /// The number of all shapes.
    pub of: usize,
    /// The shape that is measured now; empty at the end.
    pub shape: String,
}

/// The answers that measurements for a GPU have left on disk, counted.
///
/// ```no_run
/// use trefoil::{Device, Target, TuningCache};
///
/// if let Some(cache) = TuningCache::of(&Device::open(Target::Auto)?) {
///     println!("{} answers in {:?}", cache.answers, cache.folder);
/// }
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TuningCache {
    /// The folder of the answers, unless [`EngineBuilder::tuning_folder`](crate::EngineBuilder::tuning_folder) names
    /// another one; `None` if no environment variable names a place.
    pub folder: Option<PathBuf>,
    /// The number of answers for this GPU, driver and library, which engines use.
    pub answers: usize,
    /// The number of answers for this GPU with another driver or other kernels, which engines ignore.
    pub outdated: usize,
    /// Files that engines ignore, because they cannot be read, or hold another key than their path says.
    pub unreadable: Vec<PathBuf>,
}

impl TuningCache {
    /// Counts the answers for `device`; `None` for a CPU, where nothing is tuned.
    pub fn of(device: &Device) -> Option<Self> {
        match device.kind() {
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => Some(on_gpus::kept(device.info(), cache::default_folder())),
            Kind::Cpu(_) | Kind::Sim(_) => None,
        }
    }

    /// Counts the answers below `folder` for a GPU with these attributes, which need not be there, and the driver of this
    /// machine.
    ///
    /// ```
    /// # use trefoil::{DeviceInfo, TuningCache};
    /// let (target, name) = ("cuda:0".into(), "NVIDIA H200".into());
    /// let (compute_capability, units, shared_bytes) = ([9, 0], 132, 232_448);
    /// let (memory_bytes, driver_version) = (0, 13_000);
    /// let gpu =
    ///     DeviceInfo { target, name, compute_capability, units, shared_bytes, memory_bytes, driver_version };
    /// assert_eq!(TuningCache::in_folder(&gpu, "/nowhere").answers, 0);
    /// ```
    #[cfg(feature = "cuda")]
    pub fn in_folder(gpu: &DeviceInfo, folder: impl Into<PathBuf>) -> Self {
        on_gpus::kept(gpu, Some(folder.into()))
    }
}

/// The program's callback for the progress of a measurement.
#[derive(Clone)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing is tuned"))]
pub(crate) struct Told(pub Arc<dyn Fn(&TuningProgress) + Send + Sync>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// The program's callback that says whether a measurement may go on; `None`: it always may.
#[derive(Clone, Default)]
pub(crate) struct GoesOn(pub Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl fmt::Debug for GoesOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GoesOn")
    }
}

/// See [`Tuning`].
#[derive(Clone, Debug, Default)]
pub(crate) struct TuningSpec {
    pub mode: Tuning,
    /// The folder of answers; `None`: the default folder.
    pub folder: Option<PathBuf>,
    /// The callback for progress, if there is one.
    pub told: Option<Told>,
    /// The callback that may end a measurement.
    pub goes_on: GoesOn,
    /// The answers for the device that the engine is built for, read the first time they are asked for.
    #[cfg(feature = "cuda")]
    answers: Arc<OnceLock<on_gpus::Answers>>,
}

impl TuningSpec {
    /// Whether a measurement may go on.
    pub fn goes_on(&self) -> bool {
        self.goes_on.0.as_ref().is_none_or(|goes_on| goes_on())
    }

    /// These options for another build, which may be for another device, without the answers that were read.
    pub fn anew(&self) -> Self {
        Self {
            #[cfg(feature = "cuda")]
            answers: Arc::default(),
            ..self.clone()
        }
    }
}

#[cfg(feature = "cuda")]
pub(super) use on_gpus::tune;

#[cfg(feature = "cuda")]
mod on_gpus {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::cache::{Answer, Cache, Census, Key, default_folder};
    use super::search::{self, Group, search};
    use super::{Told, TuningCache, TuningProgress, TuningSpec};
    use crate::device::cuda::Cuda;
    use crate::device::{Device, DeviceInfo};
    use crate::error::Error;
    use crate::exec::{BuildSpec, cuda, plan_batch, plan_predicted};
    use crate::fnv::fnv1a64;
    use crate::model::Model;
    use crate::plan::{Choices, Plan, Rates};

    /// The answers of measurements on a device.
    #[derive(Debug)]
    pub(in crate::exec) struct Answers(Cache);

    /// The most time that the search for one batch size may take.
    const LIMIT: Duration = Duration::from_secs(60);

    /// The clock rate that is assumed for a GPU whose rate is not known, in Hz. It only has to tell much work from
    /// little.
    const CLOCK_HZ: f64 = 1.5e9;

    /// Counts the answers on disk for a device.
    pub(super) fn kept(info: &DeviceInfo, folder: Option<PathBuf>) -> TuningCache {
        let census = Cache::new(Key::new(info, cuda::KERNELS_HASH), folder.as_deref()).census();
        let Census { answers, outdated, unreadable } = census;
        TuningCache { folder: folder.map(|folder| folder.join("tuning")), answers, outdated, unreadable }
    }

    impl TuningSpec {
        /// The answers for a device, read once.
        pub(in crate::exec) fn answers(&self, info: &DeviceInfo) -> &Answers {
            self.answers.get_or_init(|| {
                let folder = self.folder.clone().or_else(default_folder);
                Answers(Cache::new(Key::new(info, cuda::KERNELS_HASH), folder.as_deref()))
            })
        }
    }

    impl Answers {
        /// The plan with the kernels and lanes that were found for it, as far as the spec leaves them open.
        pub fn applied(&self, planned: Plan, spec: &BuildSpec) -> Plan {
            let choices = self.choices(&planned, &spec.choices);
            let planned = if choices.is_empty() { planned } else { planned.with_kernels(&choices) };
            match self.lanes(&planned) {
                Some(several) if spec.lanes.is_none() => planned.with_lanes(several),
                _ => planned,
            }
        }

        /// The kernels for a plan that differ from the planner's first choices.
        fn choices(&self, plan: &Plan, chosen: &Choices) -> Choices {
            if self.0.is_empty() {
                return Choices::new(); // no candidates need be looked for
            }
            let groups = groups(plan, chosen).into_iter().map(|group| self.answered(group).0);
            let changed = groups.filter(|group| group.kernel != group.candidates[0].kernel);
            changed.flat_map(|group| group.steps.into_iter().map(move |step| (step, group.kernel))).collect()
        }

        /// Whether a plan's branches were found to be faster side by side; `None` if that is not known.
        fn lanes(&self, plan: &Plan) -> Option<bool> {
            if self.0.is_empty() {
                return None;
            }
            let answer = self.0.get(&branches(plan)?)?;
            [true, false].into_iter().find(|&several| lanes_named(several) == answer.kernel)
        }

        /// The group with the kernel of its answer, and whether there is an answer. An answer whose kernel is no
        /// candidate any more counts as none.
        fn answered(&self, group: Group) -> (Group, bool) {
            let answer = self.0.get(&group.shape);
            let is_it = |answer: &Answer| {
                group.candidates.iter().map(|c| c.kernel).find(|kernel| kernel.to_string() == answer.kernel)
            };
            match answer.as_ref().and_then(is_it) {
                Some(kernel) => (Group { kernel, ..group }, true),
                None => (group, false),
            }
        }
    }

    /// The steps of `plan` that have several candidates, by shape, without the steps that `chosen` names.
    fn groups(plan: &Plan, chosen: &Choices) -> Vec<Group> {
        let mut groups = BTreeMap::<String, Group>::new();
        for (index, step) in plan.steps.iter().enumerate() {
            let candidates = plan.candidates(index);
            if candidates.len() < 2 || chosen.contains_key(&step.name) {
                continue;
            }
            let shape = plan.shape_of(index);
            let of_shape =
                || Group { shape: shape.clone(), steps: Vec::new(), kernel: candidates[0].kernel, candidates };
            groups.entry(shape.clone()).or_insert_with(of_shape).steps.push(step.name.clone());
        }
        groups.into_values().collect()
    }

    /// The name under which the answer about a plan's lanes is kept, made of all its shapes; `None` if no two steps can
    /// run side by side.
    fn branches(plan: &Plan) -> Option<String> {
        let can_branch = plan.clone().with_lanes(true).lanes() > 1;
        let shapes = (0..plan.steps.len()).map(|step| plan.shape_of(step)).collect::<Vec<_>>().join("\n");
        can_branch.then(|| format!("lanes of {} steps {}", plan.steps.len(), fnv1a64(shapes.as_bytes())))
    }

    /// The name of an answer about lanes.
    fn lanes_named(several: bool) -> &'static str {
        if several { "several lanes" } else { "one lane" }
    }

    /// Measures whether the branches of the plans for `spec` should run side by side, as far as this is not known yet,
    /// and keeps the answer.
    fn tune_lanes(model: &Model, device: &Device, cuda: &Arc<Cuda>, spec: &BuildSpec) -> Result<(), Error> {
        let answers = spec.tuning.answers(device.info());
        for batch in spec.batch_sizes() {
            let planned = plan_batch(model, spec, batch)?;
            let Some(branches) = branches(&planned) else { continue };
            if spec.lanes.is_some() || answers.lanes(&planned).is_some() || !spec.tuning.goes_on() {
                continue;
            }
            // The planner's choice comes first.
            let choices = [true, false];
            let plans = choices.map(|several| planned.clone().with_lanes(several));
            let mut trial = cuda::Trial::new(model, device, cuda, spec, &plans)?;
            let (fastest, gain) = search::fastest(&trial.rounds(&plans, search::ROUNDS[1])?);
            let [kernel, planned] = [choices[fastest], choices[0]].map(|several| lanes_named(several).to_owned());
            log::info!("tuning: {branches}: {kernel}");
            answers.0.put(&branches, Answer { kernel, planned, gain_us: 1e6 * gain });
        }
        Ok(())
    }

    /// Measures all that is not known yet of the plans for `spec`, and keeps it: first kernels, then lanes with these
    /// kernels.
    pub(in crate::exec) fn tune(
        model: &Model,
        device: &Device,
        cuda: &Arc<Cuda>,
        spec: &BuildSpec,
    ) -> Result<(), Error> {
        let answers = spec.tuning.answers(device.info());
        for batch in spec.batch_sizes() {
            let planned = plan_predicted(model, spec, batch)?;
            let (known, unknown): (Vec<_>, Vec<_>) = groups(&planned, &spec.choices)
                .into_iter()
                .map(|group| answers.answered(group))
                .partition(|(_, known)| *known);
            if unknown.is_empty() || !spec.tuning.goes_on() {
                continue;
            }
            let chosen = |group: Group| group.steps.into_iter().map(move |step| (step, group.kernel));
            let base = known.into_iter().flat_map(|(group, _)| chosen(group)).collect();
            let base = planned.clone().with_kernels(&base);
            // Candidates for a step may read its filter in different orders. Together these plans have each candidate,
            // so that the buffer of weights has each order.
            let most = unknown.iter().map(|(group, _)| group.candidates.len()).max().unwrap_or(0);
            let with_candidate = |index: usize| {
                let mut choices = Choices::new();
                for (Group { steps, candidates, .. }, _) in &unknown {
                    let kernel = candidates[index % candidates.len()].kernel;
                    choices.extend(steps.iter().map(|step| (step.clone(), kernel)));
                }
                base.clone().with_kernels(&choices)
            };
            let plans: Vec<Plan> = [planned.clone()].into_iter().chain((0..most).map(with_candidate)).collect();
            let mut trial = cuda::Trial::new(model, device, cuda, spec, &plans)?;
            let time = |sets: &[Choices], rounds| {
                trial.rounds(&sets.iter().map(|set| base.clone().with_kernels(set)).collect::<Vec<_>>(), rounds)
            };
            let told = |done: usize, of: usize, shape: &str| {
                if let Some(Told(told)) = &spec.tuning.told {
                    told(&TuningProgress { batch, done, of, shape: shape.to_owned() });
                }
            };
            let unknown = unknown.into_iter().map(|(group, _)| group).collect();
            let clock_hz = Rates::of(&planned.limits).map_or(CLOCK_HZ, |rates| rates.clock_hz);
            let deadline = Instant::now() + LIMIT;
            let goes_on = || Instant::now() < deadline && spec.tuning.goes_on();
            for found in search(unknown, clock_hz, goes_on, time, told)? {
                log::info!("tuning: {}: {} instead of {}", found.shape, found.kernel, found.planned);
                let (kernel, planned) = (found.kernel.to_string(), found.planned.to_string());
                answers.0.put(&found.shape, Answer { kernel, planned, gain_us: 1e6 * found.gain });
            }
        }
        tune_lanes(model, device, cuda, spec)
    }
}
