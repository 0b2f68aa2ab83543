//! The device that a caller asks for, and the choice that `auto` makes.

use std::ffi::c_void;
use std::fmt;
use std::str::FromStr;

use super::Device;
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::phases::Stopwatch;

/// The device asked for: `auto`, `cpu` or `cuda:N`.
///
/// ```
/// use trefoil::Target;
/// assert_eq!("cuda:1".parse::<Target>()?, Target::Cuda(1));
/// assert!("gpu".parse::<Target>().is_err());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Target {
    /// The first GPU, or the CPU where there is no GPU.
    #[default]
    Auto,
    /// The host's CPU.
    Cpu,
    /// An NVIDIA GPU by its ordinal.
    Cuda(usize),
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::option("device", format!("`{text}`"), "`auto`, `cpu` or `cuda:N`");
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(Self::Cuda).ok_or_else(wrong),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Opens the first GPU; the CPU, with a warning, if there is no driver library or no device.
#[cfg(feature = "cuda")]
pub(super) fn open_auto() -> Result<Device, Error> {
    match open_cuda(0) {
        Err(Error::NoDevice { why, .. }) => {
            log::warn!("no GPU ({why}); running on the CPU");
            Device::open(Target::Cpu)
        }
        other => other,
    }
}

#[cfg(feature = "cuda")]
pub(super) fn open_cuda(ordinal: usize) -> Result<Device, Error> {
    let mut watch = Stopwatch::start();
    let (backend, info) = super::cuda::Cuda::open(ordinal, &mut watch)?;
    Ok(Device::opened(super::Kind::Cuda(std::sync::Arc::new(backend)), info, watch))
}

#[cfg(feature = "cuda")]
pub(super) fn gpus() -> Result<usize, Error> {
    super::cuda::Cuda::count()
}

/// # Safety
/// As for [`Device::in_context`].
#[cfg(feature = "cuda")]
pub(super) unsafe fn open_context(context: *mut c_void) -> Result<Device, Error> {
    let mut watch = Stopwatch::start();
    // SAFETY: by the caller.
    let (backend, info) = unsafe { super::cuda::Cuda::open_context(context, &mut watch)? };
    Ok(Device::opened(super::Kind::Cuda(std::sync::Arc::new(backend)), info, watch))
}

#[cfg(not(feature = "cuda"))]
pub(super) unsafe fn open_context(_context: *mut c_void) -> Result<Device, Error> {
    open_cuda(0)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn gpus() -> Result<usize, Error> {
    open_cuda(0).map(|_| 0)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn open_auto() -> Result<Device, Error> {
    Device::open(Target::Cpu)
}

#[cfg(not(feature = "cuda"))]
pub(super) fn open_cuda(ordinal: usize) -> Result<Device, Error> {
    Err(Error::NoDevice { target: format!("cuda:{ordinal}"), why: "built without the feature `cuda`".into() })
}
