//! With what: a plan becomes a program that a device launches. Weights are folded, repacked and uploaded here.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use std::sync::Arc;

use crate::device::{Device, DeviceInfo, Kind, Priority, Program};
use crate::error::Error;
use crate::model::Model;
use crate::phases::Stopwatch;
use crate::plan::{Choices, Limits, Plan, Request, plan};
use crate::tensor::{InputFormat, OutputKind, TensorSpec};

/// What to build.
#[derive(Clone, Debug)]
pub(crate) struct BuildSpec {
    /// Ascending and distinct; none: the device's default.
    pub batch_sizes: Vec<usize>,
    /// Slots: each gets a device input and a device output.
    pub slots: usize,
    /// What producers write.
    pub input: InputFormat,
    /// What they get.
    pub output: OutputKind,
    /// Kernels that overrule the planner's.
    pub choices: Choices,
    /// Of the stream that graphs are captured on, whose kernels keep it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU captures no graphs"))]
    pub priority: Priority,
}

impl BuildSpec {
    /// Fills in the batch sizes where the caller gave none.
    pub fn with_default_sizes(mut self, device: &Device) -> Self {
        if self.batch_sizes.is_empty() {
            self.batch_sizes = match device.kind() {
                Kind::Cpu(_) | Kind::Sim(_) => vec![8],
                #[cfg(feature = "cuda")]
                Kind::Cuda(_) => vec![1, 2, 4, 8, 16, 32],
            };
        }
        self
    }
}

/// Makes `model` ready to run on `device`; the plans are those of the batch sizes, in order. `watch` gets what each step
/// took.
pub(crate) fn build(
    model: &Model,
    device: &Device,
    spec: &BuildSpec,
    watch: &mut Stopwatch,
) -> Result<(Arc<dyn Program>, Vec<Plan>), Error> {
    match device.kind() {
        Kind::Cpu(cpu) => cpu::build(model, device, cpu, spec, watch),
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => cuda::build(model, device, cuda, spec, watch),
        Kind::Sim(_) => Err(Error::Unsupported {
            what: "a model on the simulated device".into(),
            instead: "use simulate, which takes the model's times".into(),
        }),
    }
}

/// Plans `model` for one batch size.
pub(crate) fn plan_batch(model: &Model, device: &Device, spec: &BuildSpec, batch: usize) -> Result<Plan, Error> {
    let request = Request {
        limits: &limits(device.info(), device.kind()),
        batch,
        input: spec.input,
        preprocessing: model.preprocessing(),
        output: spec.output,
        choices: &spec.choices,
    };
    plan(model.graph(), &request)
}

/// The rows that a plan reads and writes.
pub(crate) fn row_specs(plan: &Plan) -> (TensorSpec, TensorSpec) {
    let spec = |tensor: &crate::plan::Tensor| TensorSpec::new(tensor.dtype, tensor.shape);
    (spec(&plan.tensors[0]), spec(plan.tensors.last().expect("a plan has an output")))
}

/// The hardware limits that a device's plans keep to.
fn limits(info: &DeviceInfo, kind: &Kind) -> Limits {
    match kind {
        Kind::Cpu(_) | Kind::Sim(_) => Limits::cpu(info.units),
        #[cfg(feature = "cuda")]
        Kind::Cuda(_) => Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes),
    }
}
