//! Execution: a plan becomes a program that a device launches. Weights are folded, repacked and uploaded here.

mod audit;
mod calibrate;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod finite;
mod mean;
mod states;
mod step_times;
mod tuning;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::device::{Device, DeviceInfo, Inputs, Kind, Priority, Program};
use crate::error::Error;
use crate::graph::Graph;
use crate::model::{Model, Network, Shaped};
use crate::phases::Stopwatch;
use crate::plan::values::ValuesRequest;
use crate::plan::{self, Choices, Family, Limits, Plan, Request};
use crate::tensor::{Bucket, InputFormat, OutputKind, Precision, RowPort, RowSpec};

pub use audit::{Audit, NotHeld};
pub use calibrate::{CalibrationMethod, Calibrator, Sensitivity};
#[cfg(feature = "cuda")]
pub use cuda::{
    AttentionOperands, AttentionRun, ConvRun, DepthwiseRun, E4m3ProductOperands, E4m3ProductRun, HalfOperands,
    LoopModule, LoopRun, PackedAttentionOperands, PackedAttentionRun, ProductNormOperands, ProductOperands, ProductRun,
    RowNormCodes, RowNormOperands, RowNormRun, RowSumOperands, S8DepthwiseOperands, S8MeanOperands, S8MeanRun,
    S8Operands, S8StemOperands, S8StemRun,
};
pub(crate) use finite::not_finite;
pub use step_times::StepTimes;
pub(crate) use tuning::{GoesOn, Told, TuningSpec};
pub use tuning::{Tuning, TuningCache, TuningProgress};

/// The options of a program that is built.
#[derive(Clone, Debug)]
pub(crate) struct BuildSpec {
    /// The hardware to plan for.
    pub hardware: Hardware,
    /// The buckets, one or more. A bucket without batch sizes gets the device's default.
    pub buckets: Vec<Bucket>,
    /// The number of slots: each gets a device input and a device output.
    pub slots: usize,
    /// The number of compute streams, which slots take in turn: on a GPU each gets an arena.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU computes one batch at a time"))]
    pub streams: usize,
    /// The format of the input rows.
    pub input: InputFormat,
    /// The content of the output rows.
    pub output: OutputKind,
    /// The type in which layers read their operands.
    pub precision: Precision,
    /// Kernels that the program chose instead of the planner.
    pub choices: Choices,
    /// Whether independent branches run side by side; `None`: unless measurement found that slower.
    pub lanes: Option<bool>,
    /// Whether kernels are chosen by measurement, and where answers are kept.
    pub tuning: TuningSpec,
    /// The priority of the stream that graphs are captured on; the kernels in the graphs keep it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU captures no graphs"))]
    pub priority: Priority,
}

/// What plans are made for: a device, or hardware that need not be there.
#[derive(Clone, Debug)]
pub(crate) struct Hardware {
    /// The limits of the hardware.
    pub limits: Limits,
    /// The device, whose measurements say which kernels are fastest; `None` for hardware that need not be there.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing is measured"))]
    pub device: Option<DeviceInfo>,
}

impl Hardware {
    /// The hardware of a device.
    pub fn of(device: &Device) -> Self {
        let info = device.info();
        let limits = match device.kind() {
            Kind::Cpu(_) | Kind::Sim(_) => Limits::cpu(info.units),
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes),
        };
        Self { limits, device: Some(info.clone()) }
    }

    /// Hardware with these limits, which need not be there.
    pub fn with(limits: &Limits) -> Self {
        Self { limits: limits.clone(), device: None }
    }
}

impl BuildSpec {
    /// Fills in the batch sizes where the caller gave none.
    ///
    /// # Errors
    /// [`Error::Option`] for more than one row of a model that computes one at a time.
    pub fn with_default_sizes<'m>(mut self, models: impl Iterator<Item = &'m Model>) -> Result<Self, Error> {
        let (mut is_batched, mut has_state) = (true, false);
        for model in models {
            is_batched &= match model.network() {
                Network::Images(_) => true,
                Network::Values(values) => values.is_batched(),
            };
            has_state |= !model.states().is_empty();
        }
        for bucket in self.buckets.iter_mut().filter(|bucket| bucket.batch_sizes.is_empty()) {
            bucket.batch_sizes = match self.hardware.limits.family {
                _ if !is_batched || has_state => vec![1],
                Family::Cpu => vec![8],
                Family::Sm80 => vec![1, 2, 4, 8, 16, 32],
            };
        }
        match self.buckets.iter().map(Bucket::most).max() {
            Some(most) if most > 1 && !is_batched => {
                let why = "1: no dimension is free in all of the model's inputs and outputs";
                Err(Error::option("batch", most, why))
            }
            _ => Ok(self),
        }
    }

    /// All batch sizes: those of the first bucket, then those of the next.
    pub fn batch_sizes(&self) -> Vec<usize> {
        self.buckets.iter().flat_map(|bucket| &bucket.batch_sizes).copied().collect()
    }
}

/// Makes `model` ready to run on `device` by the plans of [`plan_all`], on input buffers of its own or on `inputs`.
/// `watch` records the time of each step of the build.
pub(crate) fn build(
    model: &Model,
    device: &Device,
    spec: &BuildSpec,
    plans: &[Plan],
    inputs: Option<Inputs>,
    watch: &mut Stopwatch,
) -> Result<Arc<dyn Program>, Error> {
    match device.kind() {
        Kind::Cpu(cpu) => cpu::build(model, device, cpu, spec, plans, inputs, watch),
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => cuda::build(model, device, cuda, spec, plans, inputs, watch),
        Kind::Sim(_) => Err(no_models()),
    }
}

/// A program that gives the mean of the outputs of `programs`, whose rows have these pitches at each size.
pub(crate) fn mean(
    device: &Device,
    programs: Vec<Arc<dyn Program>>,
    pitches: Vec<usize>,
) -> Result<Arc<dyn Program>, Error> {
    match device.kind() {
        Kind::Cpu(cpu) => cpu::mean(device, cpu, programs, pitches),
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => cuda::mean(device, cuda, programs, pitches),
        Kind::Sim(_) => Err(no_models()),
    }
}

fn no_models() -> Error {
    Error::Unsupported {
        what: "a model on the simulated device".into(),
        instead: "use simulate, which takes the model's times".into(),
    }
}

/// For a model at each bucket's dimensions, measures which kernels are the fastest, as far as this is not known yet.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "nothing is tuned"))]
pub(crate) fn tune(models: &[Model], device: &Device, spec: &BuildSpec) -> Result<(), Error> {
    match device.kind() {
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => {
            let mut each = models.iter().zip(&spec.buckets);
            each.try_for_each(|(model, bucket)| {
                tuning::tune(model, device, cuda, &BuildSpec { buckets: vec![bucket.clone()], ..spec.clone() })
            })
        }
        _ => {
            log::warn!("{}: nothing to tune, every operation has one kernel", device.info().target);
            Ok(())
        }
    }
}

/// Times each step of `plan`, which `plan_batch` made, inside the whole graph, over `runs` runs.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "nothing is timed"))]
pub(crate) fn time_steps(
    model: &Model,
    device: &Device,
    spec: &BuildSpec,
    plan: Plan,
    runs: usize,
) -> Result<StepTimes, Error> {
    match device.kind() {
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => {
            let mut trial = cuda::Trial::new(model, device, cuda, spec, std::slice::from_ref(&plan))?;
            let graph = trial.rounds(std::slice::from_ref(&plan), runs)?.swap_remove(0);
            Ok(StepTimes::new(trial.steps(&plan, runs)?, graph, plan))
        }
        _ => Err(Error::Unsupported {
            what: format!("timing single steps on {}", device.info().target),
            instead: "time them on a GPU, or all together with `Engine::measure`".into(),
        }),
    }
}

/// Plans a model, at each bucket's dimensions, for all batch sizes in order; for a CPU once for each bucket, for one
/// row.
pub(crate) fn plan_all(models: &[Model], spec: &BuildSpec) -> Result<Vec<Plan>, Error> {
    let sizes = |bucket: &Bucket| match spec.hardware.limits.family {
        Family::Cpu => vec![1],
        Family::Sm80 => bucket.batch_sizes.clone(),
    };
    let each = models.iter().zip(&spec.buckets);
    let all = each.flat_map(|(model, bucket)| sizes(bucket).into_iter().map(move |batch| (model, batch)));
    all.map(|(model, batch)| plan_batch(model, spec, batch)).collect()
}

/// Plans `model` for one batch size, with the kernels that were measured to be the fastest if the spec says so.
pub(crate) fn plan_batch(model: &Model, spec: &BuildSpec, batch: usize) -> Result<Plan, Error> {
    let planned = plan_predicted(model, spec, batch)?;
    #[cfg(feature = "cuda")]
    if let (Some(info), Family::Sm80, Tuning::Cached | Tuning::Full) =
        (&spec.hardware.device, spec.hardware.limits.family, spec.tuning.mode)
    {
        return Ok(spec.tuning.answers(info).applied(planned, spec));
    }
    Ok(planned)
}

/// Plans `model` for one batch size, with the kernels that are predicted to be the fastest.
fn plan_predicted(model: &Model, spec: &BuildSpec, batch: usize) -> Result<Plan, Error> {
    let BuildSpec { input, output, choices, hardware: Hardware { limits, .. }, .. } = spec;
    let (input, output, own) = (*input, *output, limits.family.dtype());
    let precision = spec.precision.dtype(own, model.weights().most_stored());
    let of_values = |graph: &Graph, states: &[RowPort], in_f32: &BTreeSet<String>| {
        let (from, to) = rows(model, spec)?;
        let rows = [&from, &to];
        plan::values::plan(graph, &ValuesRequest { limits, batch, rows, states, precision, in_f32, choices })
    };
    let of_images = |graph: &Graph| of_values(graph, &[], &BTreeSet::new());
    let planned = match model.network() {
        Network::Images(images) if precision == own => {
            let Shaped { network: graph, preprocessing, .. } = images.shaped();
            let planned = plan::plan(graph, &Request { limits, batch, input, preprocessing, output, choices });
            // A network that the kernels for images do not compute as a whole is planned as a model of values, with
            // loops.
            match planned {
                Err(refused @ Error::Unsupported { .. }) => {
                    of_images(&images.shaped().graph(batch, input, output).map_err(|_| refused)?)?
                }
                planned => planned?,
            }
        }
        Network::Images(images) => of_images(&images.shaped().graph(batch, input, output)?)?,
        Network::Values(values) => of_values(&values.graph(batch)?, values.states(), values.in_f32())?,
    };
    Ok(if spec.lanes == Some(false) { planned.with_lanes(false) } else { planned })
}

/// Bytes that a program takes, without the memory that it shares with programs that already exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Device memory. On a CPU only rows and states count as such.
    pub device: u64,
    /// Other host memory.
    pub host: u64,
    /// Host memory that is needed only during the build.
    pub passing: u64,
}

impl Needs {
    /// The memory for two programs that are built one after the other.
    pub fn with(self, other: &Self) -> Self {
        Self {
            device: self.device.saturating_add(other.device),
            host: self.host.saturating_add(other.host),
            passing: self.passing.max(other.passing),
        }
    }
}

/// A model, and its plans for all sizes.
pub(crate) type Planned<'a> = (&'a Model, &'a [Plan]);

/// The memory that [`build`] will take for a program that comes after those `before` it in an engine. The first program
/// has input rows of its own; the others read the same rows, and share its weights if they are the same.
pub(crate) fn needs(
    planned: Planned<'_>,
    before: &[Planned<'_>],
    device: &Device,
    spec: &BuildSpec,
) -> Result<Needs, Error> {
    let program = match device.kind() {
        Kind::Cpu(_) => cpu::needs(planned, before, device, spec),
        #[cfg(feature = "cuda")]
        Kind::Cuda(_) => cuda::needs(planned, before, device, spec)?,
        Kind::Sim(_) => return Err(no_models()),
    };
    Ok(program.with(&states::needs(planned.1, spec)))
}

/// The rows that `model` reads and writes, which do not depend on the batch size or the kernels.
pub(crate) fn rows(model: &Model, spec: &BuildSpec) -> Result<(RowSpec, RowSpec), Error> {
    match model.network() {
        Network::Images(images) => plan::rows::specs(&images.shaped().network, (spec.input, spec.output)),
        Network::Values(values) => Ok((values.input().clone(), values.output().clone())),
    }
}
