//! The table: the outcome of each driver call, by phase and name.
//!
//! A call that returns late changes nothing, whichever it is. A call that never returns does not hold up other calls
//! that have a limit, whichever it is.

use Fails::{Faults, Passes, Refuses};
use Hangs::{Alone, Ring};

use crate::what::What;

/// Calls of one phase with one outcome.
pub struct Row {
    pub phase: &'static str,
    /// The kinds of engines that make the calls.
    pub of: &'static [What],
    pub calls: &'static [&'static str],
    /// The outcome if the first call of the name fails.
    pub once: Fails,
    /// The outcome if all calls from the first one of the name on fail.
    pub for_ever: Fails,
    /// The outcome if the first call of the name never returns.
    pub hangs: Hangs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// The failure is logged, and no operation gets an error.
    Passes,
    /// The caller gets an error that names the call, the objects made so far are freed, and the device goes on.
    Refuses,
    /// Everyone gets the fault, which names the call; in a fleet the other device answers.
    Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangs {
    /// Only the calling thread is held up: all others are answered, except rows of a batcher that reach their own
    /// limit.
    Alone,
    /// Everyone who submits to the ring or closes it is held up to the limit, and gets an error that names the call. In
    /// a fleet the other ring answers submissions.
    Ring,
}

impl Row {
    pub fn outcome(&self) -> super::Outcome {
        (self.once, self.for_ever, self.hangs)
    }
}

const ANY: &[What] = &What::ALL;

/// Calls that a phase makes only in some runs: the end may ask whether callers have read a result on the device.
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
    // The first call is the recorder's, whose recording then ends.
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
