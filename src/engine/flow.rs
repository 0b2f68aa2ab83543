//! The models of one engine: who reads what, and the programs that it takes.

use std::sync::Arc;

use super::EngineBuilder;
use super::builder::Member;
use crate::device::{DEVICE_MEMORY, Device, Inputs, Program};
use crate::error::Error;
use crate::exec::{self, BuildSpec};
use crate::model::Model;
use crate::phases::Stopwatch;
use crate::plan::Plan;
use crate::ring::Node;
use crate::tensor::{InputFormat, OutputKind, TensorSpec};

/// Models on a device, checked to fit together.
pub(super) struct Flow<'a> {
    device: &'a Device,
    stages: Vec<Stage>,
    average: bool,
}

/// A model and what it is built for.
struct Stage {
    model: Model,
    spec: BuildSpec,
    after: Option<usize>,
    /// Whether no other reads its output.
    is_last: bool,
    input: TensorSpec,
    output: TensorSpec,
}

impl<'a> Flow<'a> {
    pub fn new(builder: &EngineBuilder<'_>, device: &'a Device, spec: BuildSpec) -> Result<Self, Error> {
        let mut stages: Vec<Stage> = Vec::with_capacity(builder.models.len());
        for (index, &Member { model, after }) in builder.models.iter().enumerate() {
            let is_last = builder.models.iter().all(|other| other.after != Some(index));
            let spec = BuildSpec {
                input: if after.is_some() { InputFormat::F32Nhwc } else { spec.input },
                output: if is_last { spec.output } else { OutputKind::Features },
                ..spec.clone()
            };
            let model = match spec.output {
                OutputKind::Features if is_last => model.features()?,
                _ => model.clone(),
            };
            let (input, output) = exec::rows(&model, device, &spec)?;
            let given =
                after.map_or_else(|| stages.first().map(|first| first.input), |before| Some(stages[before].output));
            if let Some(given) = given.filter(|given| *given != input) {
                let option = if after.is_some() { "then" } else { "beside" };
                let reads = format!("a model that reads {} of {}", input.shape, input.dtype);
                return Err(Error::option(option, reads, format!("one that reads {} of {}", given.shape, given.dtype)));
            }
            stages.push(Stage { model, spec, after, is_last, input, output });
        }
        let this = Self { device, stages, average: builder.average };
        this.check_average()?;
        Ok(this)
    }

    fn check_average(&self) -> Result<(), Error> {
        let mut last = self.last();
        let first = last.next().expect("one model is the last");
        let is_pairs = matches!(first.spec.output, OutputKind::TopK(_));
        if !self.average || (!is_pairs && last.all(|other| other.output == first.output)) {
            return Ok(());
        }
        let what = if is_pairs { "pairs of the most probable classes" } else { "outputs of different shapes" };
        Err(Error::option("average", what, "models that all give as many probabilities, logits or features"))
    }

    fn last(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|stage| stage.is_last)
    }

    /// The largest batch.
    pub fn largest(&self) -> usize {
        *self.stages[0].spec.batch_sizes.last().expect("a spec has a batch size")
    }

    /// Rows that producers write.
    pub fn input(&self) -> TensorSpec {
        self.stages[0].input
    }

    /// Rows that consumers read.
    pub fn outputs(&self) -> Vec<TensorSpec> {
        let outputs = self.last().map(|stage| stage.output);
        if self.average { outputs.take(1).collect() } else { outputs.collect() }
    }

    /// Classes of the models whose output each of them is.
    pub fn classes(&self) -> Vec<usize> {
        self.last().map(|stage| stage.model.classes()).collect()
    }

    /// Bytes that a build for a batch takes of a kind of memory, weights that others have too counted in, with so many
    /// inputs and results on the host, and results on the device.
    pub fn needed(&self, what: &str, batch: usize, [staging, results, on_device]: [usize; 3]) -> Option<u64> {
        let outputs: usize = self.outputs().iter().map(|output| output.row_pitch).sum();
        if what != DEVICE_MEMORY {
            return Some((batch * (staging * self.input().row_pitch + results * outputs)) as u64);
        }
        let of = |stage: &Stage| {
            let plan = exec::plan_batch(&stage.model, self.device, &stage.spec, batch).ok()?;
            Some(exec::device_bytes(&plan, self.device, stage.spec.slots))
        };
        let programs: u64 = self.stages.iter().map(of).sum::<Option<u64>>()?;
        Some(programs + (batch * on_device * outputs) as u64)
    }

    /// The plans of all models, those of one after the other.
    pub fn plans(&self) -> Result<Vec<Plan>, Error> {
        let is_cpu = self.device.info().compute_capability == [0, 0];
        let of = |stage: &Stage| {
            let sizes = if is_cpu { &[1] } else { &stage.spec.batch_sizes[..] };
            let plan = |&batch: &usize| exec::plan_batch(&stage.model, self.device, &stage.spec, batch);
            sizes.iter().map(plan).collect::<Result<Vec<_>, _>>()
        };
        Ok(self.stages.iter().map(of).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The model, if it is the only one, and what it is built for.
    pub fn only(&self) -> Result<(&Model, &BuildSpec), Error> {
        match &self.stages[..] {
            [only] => Ok((&only.model, &only.spec)),
            several => Err(Error::Unsupported {
                what: format!("timing the steps of an engine of {} models", several.len()),
                instead: "time those of each".into(),
            }),
        }
    }

    /// The programs, in an order in which each comes after what it reads, and all plans.
    pub fn build(&self, watch: &mut Stopwatch) -> Result<(Vec<Node>, Vec<Plan>), Error> {
        let (mut nodes, mut plans) = (Vec::<Node>::new(), Vec::new());
        for stage in &self.stages {
            let program = |index: usize| nodes[index].program.clone();
            let inputs = match stage.after {
                Some(before) => Some(Inputs::After(program(before))),
                None if nodes.is_empty() => None,
                None => Some(Inputs::Beside(program(0))),
            };
            let (program, of_stage) = exec::build(&stage.model, self.device, &stage.spec, inputs, watch)?;
            nodes.push(Node { program, reads: stage.after.into_iter().collect() });
            plans.extend(of_stage);
        }
        if self.average {
            let reads: Vec<usize> = (0..nodes.len()).filter(|&index| self.stages[index].is_last).collect();
            let programs: Vec<Arc<dyn Program>> = reads.iter().map(|&index| nodes[index].program.clone()).collect();
            let program = exec::mean(self.device, programs, self.outputs()[0])?;
            nodes.push(Node { program, reads });
        }
        Ok((nodes, plans))
    }
}
