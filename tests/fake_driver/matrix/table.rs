//! The table: what becomes of each driver call, by phase and name.
//!
//! A call that returns late changes nothing, whichever it is. A call that never returns holds no other call up that has a
//! limit, whichever it is.

use Fails::{Faults, Passes, Refuses};
use Hangs::{Alone, Ring};

use crate::what::What;

/// Calls of one phase with one outcome.
pub struct Row {
    pub phase: &'static str,
    /// What makes them.
    pub of: &'static [What],
    pub calls: &'static [&'static str],
    /// If the first of them fails.
    pub once: Fails,
    /// If from then on all calls fail.
    pub for_ever: Fails,
    /// If the first of them never returns.
    pub hangs: Hangs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// It is logged, and nobody gets an error.
    Passes,
    /// Whoever called gets an error that names it, what was made is freed, and the device goes on.
    Refuses,
    /// Everybody gets the fault, which names it; of a fleet the other device answers.
    Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangs {
    /// Nobody but the thread that called: all others are answered, but for rows of a batcher that reach their own limit.
    Alone,
    /// Who submits to the same ring or closes it, too, up to the limit, and with an error that names the call. Of a fleet the
    /// other ring answers who submits.
    Ring,
}

impl Row {
    pub fn outcome(&self) -> super::Outcome {
        (self.once, self.for_ever, self.hangs)
    }
}

const ANY: &[What] = &What::ALL;

/// Calls that a phase makes in some runs alone: whether callers have read a result on the device may be asked at the end.
pub const SOMETIMES: &[(&str, &str)] = &[("end", "cuEventQuery")];

pub const TABLE: &[Row] = &[
    Row {
        phase: "open",
        of: ANY,
        calls: &[
            "cuCtxGetStreamPriorityRange",
            "cuCtxPushCurrent",
            "cuDeviceGet",
            "cuDeviceGetAttribute",
            "cuDeviceGetCount",
            "cuDeviceGetName",
            "cuDevicePrimaryCtxRetain",
            "cuDeviceTotalMem",
            "cuDriverGetVersion",
            "cuInit",
        ],
        once: Refuses,
        for_ever: Refuses,
        hangs: Alone,
    },
    Row { phase: "open", of: ANY, calls: &["cuCtxPopCurrent"], once: Passes, for_ever: Refuses, hangs: Alone },
    Row {
        phase: "build",
        of: ANY,
        calls: &[
            "cuCtxPushCurrent",
            "cuEventCreate",
            "cuFuncLoad",
            "cuFuncSetAttribute",
            "cuGraphInstantiateWithFlags",
            "cuGraphUpload",
            "cuLaunchKernelEx",
            "cuMemAlloc",
            "cuMemGetInfo",
            "cuMemHostAlloc",
            "cuModuleGetFunction",
            "cuModuleLoadDataEx",
            "cuStreamBeginCapture",
            "cuStreamCreateWithPriority",
            "cuStreamEndCapture",
            "cuStreamWaitEvent",
            "cuTensorMapEncodeTiled",
        ],
        once: Refuses,
        for_ever: Refuses,
        hangs: Alone,
    },
    Row {
        phase: "build",
        of: ANY,
        calls: &[
            "cuCtxGetCurrent",
            "cuCtxSetCurrent",
            "cuEventQuery",
            "cuEventRecord",
            "cuEventSynchronize",
            "cuMemcpyHtoDAsync",
        ],
        once: Faults,
        for_ever: Faults,
        hangs: Alone,
    },
    Row {
        phase: "build",
        of: ANY,
        calls: &[
            "cuCtxPopCurrent",
            "cuDeviceGetPCIBusId",
            "cuEventDestroy",
            "cuGraphDestroy",
            "cuMemFreeHost",
            "cuStreamDestroy",
        ],
        once: Passes,
        for_ever: Refuses,
        hangs: Alone,
    },
    Row {
        phase: "use",
        of: ANY,
        calls: &["cuCtxPushCurrent", "cuStreamGetCtx", "cuStreamIsCapturing"],
        once: Refuses,
        for_ever: Faults,
        hangs: Alone,
    },
    Row {
        phase: "use",
        of: ANY,
        calls: &["cuEventQuery", "cuEventSynchronize"],
        once: Faults,
        for_ever: Faults,
        hangs: Alone,
    },
    Row {
        phase: "use",
        of: &[What::Fleet, What::OneModel, What::Values],
        calls: &["cuEventRecord"],
        once: Faults,
        for_ever: Faults,
        hangs: Ring,
    },
    Row {
        phase: "use",
        of: ANY,
        calls: &[
            "cuCtxGetCurrent",
            "cuCtxSetCurrent",
            "cuGraphLaunch",
            "cuLaunchHostFunc",
            "cuLaunchKernelEx",
            "cuMemcpyDtoDAsync",
            "cuMemcpyDtoHAsync",
            "cuMemcpyHtoDAsync",
            "cuStreamWaitEvent",
        ],
        once: Faults,
        for_ever: Faults,
        hangs: Ring,
    },
    Row {
        phase: "use",
        of: ANY,
        calls: &["cuCtxPopCurrent", "cuEventElapsedTime"],
        once: Passes,
        for_ever: Faults,
        hangs: Alone,
    },
    // The first is the recorder's, whose recording ends then.
    Row {
        phase: "use",
        of: &[What::SeveralModels],
        calls: &["cuEventRecord"],
        once: Passes,
        for_ever: Faults,
        hangs: Ring,
    },
    Row {
        phase: "end",
        of: ANY,
        calls: &[
            "cuDevicePrimaryCtxRelease",
            "cuEventDestroy",
            "cuGraphExecDestroy",
            "cuMemFree",
            "cuMemFreeHost",
            "cuModuleUnload",
            "cuStreamDestroy",
        ],
        once: Passes,
        for_ever: Passes,
        hangs: Alone,
    },
];
