//! With what: a plan becomes a program that a device launches. Weights are folded, repacked and uploaded here.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use std::sync::Arc;

use crate::device::{Device, Kind, Program};
use crate::error::Error;
use crate::model::Model;
use crate::plan::{Choices, Plan};
use crate::tensor::{InputFormat, OutputKind};

/// What to build.
#[derive(Clone, Debug)]
pub(crate) struct BuildSpec {
    /// Ascending and distinct.
    pub batch_sizes: Vec<usize>,
    /// Slots: each gets a device input and a device output.
    pub slots: usize,
    /// What producers write.
    pub input: InputFormat,
    /// What they get.
    pub output: OutputKind,
    /// Tiles that overrule the planner's.
    pub choices: Choices,
}

/// Makes `model` ready to run on `device`; the plans are those of the batch sizes, in order.
pub(crate) fn build(model: &Model, device: &Device, spec: &BuildSpec) -> Result<(Arc<dyn Program>, Vec<Plan>), Error> {
    match device.kind() {
        Kind::Cpu(cpu) => cpu::build(model, device, cpu, spec),
        #[cfg(feature = "cuda")]
        Kind::Cuda(cuda) => cuda::build(model, device, cuda, spec),
    }
}
