//! How far a failure reaches.

use std::fmt;

use super::Error;

/// How far a failure reaches, which decides how to recover from it; [`Error::class`] gives the class of an error. The
/// classes are in ascending order.
///
/// | class | variants of [`Error`] |
/// |---|---|
/// | request | `Io`, `Format`, `Tensor`, `UnknownArchitecture`, `Graph`, `Import`, `Option`, `Unsupported`, `OutOfMemory`, `Thread`, `Timeout`, `Deadline`, `Full`, `Output`, `Image`, `Closed` |
/// | device | `NoDevice`, `Hazard`, `Internal` |
/// | by the driver's status | `Driver`, see below |
/// | its cause's, at least device | `Fault` |
///
/// The CUDA driver's statuses, by number:
///
/// | class | statuses |
/// |---|---|
/// | process | those of which CUDA's documentation says that the process must be terminated and relaunched, or that the context cannot be used any more (it is the primary one, which the whole process shares): CONTAINED 226, ILLEGAL_ADDRESS 700, LAUNCH_TIMEOUT 702, ASSERT 710, HARDWARE_STACK_ERROR 714, ILLEGAL_INSTRUCTION 715, MISALIGNED_ADDRESS 716, INVALID_ADDRESS_SPACE 717, INVALID_PC 718, LAUNCH_FAILED 719, TENSOR_MEMORY_LEAK 721, MPS_CLIENT_TERMINATED 810, EXTERNAL_DEVICE 911; the hardware's own, of which it says nothing: ECC_UNCORRECTABLE 214, NVLINK_UNCORRECTABLE 220; and DEINITIALIZED 4, the driver's end |
/// | device | the driver, the device or the context is not there or not in order: NOT_INITIALIZED 3, DEVICE_UNAVAILABLE 46, NO_DEVICE 100, DEVICE_NOT_LICENSED 102, INVALID_CONTEXT 201, OPERATING_SYSTEM 304, ILLEGAL_STATE 401, CONTEXT_IS_DESTROYED 709, SYSTEM_NOT_READY 802 to MPS_MAX_CONNECTIONS_REACHED 809, TIMEOUT 909, UNKNOWN 999 |
/// | request | all others, such as OUT_OF_MEMORY or INVALID_VALUE |
///
/// If enqueued work fails, its status is the cause of an [`Error::Fault`]. The class of that error is at least device,
/// because the state of all enqueued work is then unknown.
///
/// ```
/// use trefoil::{Error, FaultClass};
/// fn what_to_do(error: &Error) -> &'static str {
///     match error.class() {
///         FaultClass::Request => "answer this request with the error and go on",
///         FaultClass::Device => "open the device anew and build the engines on it",
///         FaultClass::Process => "end the process and start another",
///     }
/// }
/// assert_eq!(what_to_do(&Error::Closed), "answer this request with the error and go on");
/// assert!(FaultClass::Request < FaultClass::Device && FaultClass::Device < FaultClass::Process);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultClass {
    /// Only this call or this request failed; everything else continues.
    Request,
    /// Every handle of the device is out of use. Opening the device again and rebuilding the engine may work;
    /// [`EngineBuilder::rebuild_on_fault`](crate::EngineBuilder::rebuild_on_fault) makes a fleet do so.
    Device,
    /// No GPU works in this process any more; the process must be restarted. On a machine with two H200s, after a bad
    /// address on one GPU the driver refused the other GPU's calls with the same status.
    Process,
}

impl FaultClass {
    /// The word for it: `"request"`, `"device"`, `"process"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Device => "device",
            Self::Process => "process",
        }
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// How far the failure reaches: see [`FaultClass`].
    pub fn class(&self) -> FaultClass {
        match self {
            Self::Driver { class, .. } => *class,
            Self::Fault { cause, .. } => match cause.class() {
                FaultClass::Request => FaultClass::Device,
                class => class,
            },
            Self::NoDevice { .. } | Self::Hazard { .. } | Self::Internal { .. } => FaultClass::Device,
            Self::Io { .. }
            | Self::Format { .. }
            | Self::Tensor { .. }
            | Self::UnknownArchitecture { .. }
            | Self::Graph { .. }
            | Self::Import { .. }
            | Self::Option { .. }
            | Self::Unsupported { .. }
            | Self::OutOfMemory { .. }
            | Self::Thread { .. }
            | Self::Timeout { .. }
            | Self::Deadline { .. }
            | Self::Full { .. }
            | Self::Output { .. }
            | Self::Image { .. }
            | Self::Closed => FaultClass::Request,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_fault_is_of_its_cause_and_at_least_the_devices() {
        let driver = |class| Error::Driver {
            device: "cuda:0".into(),
            operation: "cuGraphLaunch",
            status: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
            code: 700,
            class,
        };
        let fault = |class| Error::Fault { cause: Arc::new(driver(class)), batch: Some(17) };
        for (class, latched) in [
            (FaultClass::Request, FaultClass::Device),
            (FaultClass::Device, FaultClass::Device),
            (FaultClass::Process, FaultClass::Process),
        ] {
            assert_eq!(driver(class).class(), class);
            assert_eq!(fault(class).class(), latched);
        }
        let text = fault(FaultClass::Process).to_string();
        for part in ["batch 17", "cuda:0: cuGraphLaunch failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
