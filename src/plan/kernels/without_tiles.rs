//! Kernels without tiles or predictions: those of the CPU, and those of a GPU that only pass over memory.

use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::model::NodeId;
use crate::plan::context::{Context, Match};
#[cfg(feature = "cuda")]
use crate::plan::packing::{self, FilterOrder, PackedSum};
use crate::plan::work::{Operand, Work};
use crate::plan::{Family, Limits, StepOp, bytes};
use crate::tensor::Dtype;

/// The CPU's one kernel of each operation.
pub(super) struct Cpu;

impl KernelDef for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.family == Family::Cpu
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        work.op.is_for_cpus()
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Cpu
    }

    fn variants(&self, _work: &Work<'_>, _limits: &Limits) -> Vec<Variant> {
        vec![Variant { kernel: Kernel::Cpu, clocks: None }]
    }

    fn matches(&self, context: &Context<'_>, at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(bytes::joined(context, at)?.into_iter().chain(bytes::first(context, at)).collect())
    }
}

/// The kernels of graphs of values: loops on any device, and functions over values on a CPU.
pub(super) struct Loops;

impl KernelDef for Loops {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn runs_on(&self, _limits: &Limits) -> bool {
        true
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::Loop(_) | StepOp::Hand(_))
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Loop | Kernel::Hand)
    }

    fn variants(&self, work: &Work<'_>, _limits: &Limits) -> Vec<Variant> {
        let kernel = if matches!(work.op, StepOp::Loop(_)) { Kernel::Loop } else { Kernel::Hand };
        vec![Variant { kernel, clocks: None }]
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, _work: &Work<'a>) -> Vec<PackedSum<'a>> {
        Vec::new()
    }
}

/// A kernel that runs on any GPU.
pub(super) struct AnyGpu {
    name: &'static str,
    takes: fn(&Work<'_>) -> bool,
}

pub(super) const NORMALIZE: AnyGpu =
    AnyGpu { name: "normalize", takes: |work| matches!(work.op, StepOp::Normalize { .. }) && work.writes(Dtype::F16) };
pub(super) const CONV2D_DEPTHWISE: AnyGpu = AnyGpu {
    name: "conv2d_depthwise",
    takes: |work| matches!(work.op, StepOp::Depthwise(_)) && work.is_in(Dtype::F16, Dtype::F16),
};
pub(super) const CONV2D_DEPTHWISE_S8: AnyGpu = AnyGpu {
    name: "conv2d_depthwise_s8",
    takes: |work| {
        let is_in_bytes = |operand: &Operand| matches!(operand.dtype, Dtype::U8 | Dtype::I8);
        matches!(work.op, StepOp::QuantizedDepthwise(_)) && work.inputs.iter().chain(&work.outputs).all(is_in_bytes)
    },
};
pub(super) const POOL2D: AnyGpu = AnyGpu {
    name: "pool2d",
    takes: |work| matches!(work.op, StepOp::MaxPool(_) | StepOp::AvgPool(_)) && work.is_in(Dtype::F16, Dtype::F16),
};
pub(super) const GLOBAL_AVG_POOL: AnyGpu = AnyGpu {
    name: "global_avg_pool",
    takes: |work| matches!(work.op, StepOp::GlobalAvgPool) && work.is_in(Dtype::F16, Dtype::F16),
};
pub(super) const MEAN_S8: AnyGpu = AnyGpu {
    name: "mean_s8",
    takes: |work| match work.op {
        StepOp::QuantizedMean(_) => work.is_in(Dtype::U8, Dtype::F16) || work.is_in(Dtype::I8, Dtype::F16),
        _ => false,
    },
};
pub(super) const ADD: AnyGpu =
    AnyGpu { name: "add", takes: |work| matches!(work.op, StepOp::Add(_)) && work.is_in(Dtype::F16, Dtype::F16) };
pub(super) const CONVERT: AnyGpu = AnyGpu {
    name: "convert",
    takes: |work| match work.op {
        StepOp::Quantize(_) => work.is_in(Dtype::F16, Dtype::U8) || work.is_in(Dtype::F16, Dtype::I8),
        StepOp::Dequantize(_) => work.is_in(Dtype::U8, Dtype::F16) || work.is_in(Dtype::I8, Dtype::F16),
        _ => false,
    },
};
pub(super) const EMIT: AnyGpu =
    AnyGpu { name: "emit", takes: |work| matches!(work.op, StepOp::Emit(_)) && work.writes(Dtype::F32) };

impl KernelDef for AnyGpu {
    fn name(&self) -> &'static str {
        self.name
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.family == Family::Sm80
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        (self.takes)(work)
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm80
    }

    fn variants(&self, _work: &Work<'_>, _limits: &Limits) -> Vec<Variant> {
        vec![Variant { kernel: Kernel::Sm80, clocks: None }]
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        match work.op {
            StepOp::QuantizedDepthwise(_) => packing::in_bytes(work, FilterOrder::DepthwiseBytes),
            _ => packing::usual(work),
        }
    }
}
