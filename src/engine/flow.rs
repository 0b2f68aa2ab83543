//! The models of one engine, what each of them reads, and their programs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::EngineBuilder;
use super::builder::Member;
use crate::device::{Device, Inputs, Program};
use crate::error::Error;
use crate::exec::{self, BuildSpec, Needs, Planned, Tuning};
use crate::model::{Model, Network};
use crate::phases::Stopwatch;
use crate::plan::Plan;
use crate::ring::{Buckets, Node, RowBucket};
use crate::tensor::{Bucket, Dims, InputFormat, OutputKind, RowSpec};

/// The models of an engine for some hardware, checked to fit together.
pub(super) struct Flow {
    stages: Vec<Stage>,
    average: bool,
}

/// A model and the options that its program is built with.
struct Stage {
    /// The model at each bucket's dimensions.
    models: Vec<Model>,
    spec: BuildSpec,
    after: Option<usize>,
    /// Whether no other model reads its output.
    is_last: bool,
    /// The rows that it reads, for each bucket.
    inputs: Vec<RowSpec>,
    /// The rows that it writes, for each bucket.
    outputs: Vec<RowSpec>,
}

impl Flow {
    pub fn new(builder: &EngineBuilder<'_>, spec: BuildSpec) -> Result<Self, Error> {
        let spec = spec.with_default_sizes(builder.models.iter().map(|member| member.model))?;
        let mut stages: Vec<Stage> = Vec::with_capacity(builder.models.len());
        for (index, &Member { model, after }) in builder.models.iter().enumerate() {
            let is_last = builder.models.iter().all(|other| other.after != Some(index));
            let is_images = matches!(model.network(), Network::Images(_));
            let spec = BuildSpec {
                input: if after.is_some() { InputFormat::F32Nhwc } else { spec.input },
                output: if is_last && is_images { spec.output } else { OutputKind::Features },
                ..spec.clone()
            };
            let model = match spec.output {
                OutputKind::Features if is_last && is_images => model.features()?,
                _ => model.clone(),
            };
            let dims: Vec<Dims> = spec.buckets.iter().map(|bucket| bucket.dims.clone()).collect();
            let models = model.at_each(&dims)?;
            let rows = models.iter().map(|model| exec::rows(model, &spec)).collect::<Result<Vec<_>, _>>()?;
            let (inputs, outputs): (Vec<RowSpec>, Vec<RowSpec>) = rows.into_iter().unzip();
            let given = match after {
                Some(before) => Some(&stages[before].outputs),
                None => stages.first().map(|first| &first.inputs),
            };
            let mut pairs = given.into_iter().flatten().zip(&inputs);
            if let Some((given, input)) = pairs.find(|(given, input)| !given.is_like(input)) {
                let option = if after.is_some() { "then" } else { "beside" };
                return Err(Error::option(
                    option,
                    format!("a model that reads {input}"),
                    format!("one that reads {given}"),
                ));
            }
            check_states(&models, &stages)?;
            stages.push(Stage { models, spec, after, is_last, inputs, outputs });
        }
        let this = Self { stages, average: builder.options.average };
        this.check_average()?;
        Ok(this)
    }

    fn check_average(&self) -> Result<(), Error> {
        let mut last = self.last();
        let first = last.next().expect("one model is the last");
        let is_pairs = matches!(first.spec.output, OutputKind::TopK(_));
        if !self.average
            || (!is_pairs && last.all(|other| first.outputs.iter().zip(&other.outputs).all(|(a, b)| a.is_like(b))))
        {
            return Ok(());
        }
        let what = if is_pairs { "pairs of the most probable classes" } else { "outputs of different shapes" };
        Err(Error::option("average", what, "models that all give as many probabilities, logits or features"))
    }

    fn last(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|stage| stage.is_last)
    }

    /// The sizes of the engine, by bucket.
    pub fn sizes(&self) -> &[Bucket] {
        &self.stages[0].spec.buckets
    }

    /// The rows that producers write and that consumers read, for each bucket.
    pub fn rows(&self) -> Buckets {
        let bucket = |(index, sizes): (usize, &Bucket)| {
            let input = self.stages[0].inputs[index].clone();
            RowBucket { sizes: sizes.clone(), input, outputs: self.outputs(index) }
        };
        Buckets::new(self.sizes().iter().enumerate().map(bucket).collect(), self.neutral_dims())
    }

    /// The dimensions along which rows may be padded: all models that read the rows allow it.
    fn neutral_dims(&self) -> BTreeSet<String> {
        let models = || self.stages.iter().filter(|stage| stage.after.is_none()).map(|stage| &stage.models[0]);
        let is_neutral = |name: &String| {
            models().all(|model| model.neutral_dims().contains(name) || !model.dims().contains_key(name))
        };
        models().flat_map(Model::neutral_dims).filter(is_neutral).collect()
    }

    /// The rows of a bucket that consumers read, one layout for each output.
    fn outputs(&self, bucket: usize) -> Vec<RowSpec> {
        let outputs = self.last().map(|stage| stage.outputs[bucket].clone());
        if self.average { outputs.take(1).collect() } else { outputs.collect() }
    }

    /// The kind of result that consumers read.
    pub fn output_kind(&self) -> OutputKind {
        self.last().next().expect("one model is the last").spec.output
    }

    /// The number of classes of each model whose output is handed out.
    pub fn classes(&self) -> Vec<usize> {
        self.last().map(|stage| stage.models[0].classes()).collect()
    }

    /// The memory that all programs of a build on `device` with these sizes and [`plans`](Self::plans) take.
    pub fn needs(&self, device: &Device, sizes: &[Bucket], plans: &[Vec<Plan>]) -> Result<Needs, Error> {
        let mut all = Needs::default();
        let planned: Vec<Planned<'_>> =
            self.stages.iter().map(|stage| &stage.models[0]).zip(plans.iter().map(|p| &p[..])).collect();
        for (index, stage) in self.stages.iter().enumerate() {
            let needs = exec::needs(planned[index], &planned[..index], device, &stage.sized(sizes))?;
            all = all.with(&needs);
        }
        if self.average {
            let bytes = |(index, bucket): (usize, &Bucket)| {
                (self.outputs(index)[0].row_pitch as u64).saturating_mul(bucket.most() as u64)
            };
            let largest = sizes.iter().enumerate().map(bytes).max().unwrap_or(0);
            all.device = all.device.saturating_add((self.stages[0].spec.slots as u64).saturating_mul(largest));
        }
        Ok(all)
    }

    /// The plans of each model for these sizes.
    pub fn plans(&self, sizes: &[Bucket]) -> Result<Vec<Vec<Plan>>, Error> {
        self.stages.iter().map(|stage| exec::plan_all(&stage.models, &stage.sized(sizes))).collect()
    }

    /// Measures which kernels are the fastest, if tuning asks for it. Returns whether it was asked for; then plans may
    /// have changed.
    pub fn tune(&self, device: &Device) -> Result<bool, Error> {
        let is_asked = self.stages[0].spec.tuning.mode == Tuning::Full;
        let mut asked = self.stages.iter().filter(|_| is_asked);
        asked.try_for_each(|stage| exec::tune(&stage.models, device, &stage.spec))?;
        Ok(is_asked)
    }

    /// The only model, at each bucket's dimensions, and the options of its program; an error if there are several
    /// models.
    pub fn only(&self) -> Result<(&[Model], &BuildSpec), Error> {
        match &self.stages[..] {
            [only] => Ok((&only.models, &only.spec)),
            several => Err(Error::Unsupported {
                what: format!("timing the steps of an engine of {} models", several.len()),
                instead: "time the steps of an engine of each model".into(),
            }),
        }
    }

    /// Builds the programs for these plans. Each program comes after those that it reads from.
    pub fn build(&self, device: &Device, plans: &[Vec<Plan>], watch: &mut Stopwatch) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::<Node>::new();
        for (stage, plans) in self.stages.iter().zip(plans) {
            let program = |index: usize| nodes[index].program.clone();
            let inputs = match stage.after {
                Some(before) => Some(Inputs::OutputOf(program(before))),
                None if nodes.is_empty() => None,
                None => Some(Inputs::InputOf(program(0))),
            };
            let program = exec::build(&stage.models[0], device, &stage.spec, plans, inputs, watch)?;
            nodes.push(Node { program, reads: stage.after.into_iter().collect() });
        }
        if self.average {
            let reads: Vec<usize> = (0..nodes.len()).filter(|&index| self.stages[index].is_last).collect();
            let programs: Vec<Arc<dyn Program>> = reads.iter().map(|&index| nodes[index].program.clone()).collect();
            let pitches =
                |(index, bucket): (usize, &Bucket)| vec![self.outputs(index)[0].row_pitch; bucket.batch_sizes.len()];
            let pitches = self.sizes().iter().enumerate().flat_map(pitches).collect();
            let program = exec::mean(device, programs, pitches)?;
            nodes.push(Node { program, reads });
        }
        Ok(nodes)
    }
}

/// Checks that a model has the same states at every size, and that no earlier model of the engine has a state of the
/// same name.
fn check_states(models: &[Model], before: &[Stage]) -> Result<(), Error> {
    let states = models[0].states();
    if let Some(other) = models.iter().find(|other| other.states() != states) {
        let [found, expected] =
            [other.states(), states].map(|rows| rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        return Err(Error::option("sizes", format!("one with states {found}"), format!("states {expected} at each")));
    }
    let is_taken =
        |name: &str| before.iter().any(|stage| stage.models[0].states().iter().any(|row| &*row.name == name));
    match states.iter().find(|row| is_taken(&row.name)) {
        Some(row) => Err(Error::option("state", row, "a name that no state of the engine's other models has")),
        None => Ok(()),
    }
}

impl Stage {
    /// The options of the model's program with other batch sizes.
    fn sized(&self, sizes: &[Bucket]) -> BuildSpec {
        BuildSpec { buckets: sizes.to_vec(), ..self.spec.clone() }
    }
}
