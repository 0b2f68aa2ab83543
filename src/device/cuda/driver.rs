//! Calls into the driver: each status becomes an error that names the call, and the library is looked for first.

use cudarc::driver::sys;

use super::library;
use crate::error::{Error, FaultClass};
use crate::sync::unversioned;

/// The device that a call is for, named in errors.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// The device's name, such as `"cuda:0"`.
    pub device: &'a str,
}

impl Call<'_> {
    /// Turns a status into a result.
    pub fn check(self, operation: &'static str, status: sys::CUresult) -> Result<(), Error> {
        match status {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            status => Err(Error::Driver {
                device: self.device.to_owned(),
                operation: unversioned(operation),
                status: words(status),
                code: status as i32,
                class: class(status),
            }),
        }
    }
}

/// The name of a status, with what is known of its cause.
fn words(status: sys::CUresult) -> String {
    match status {
        sys::CUresult::CUDA_ERROR_OPERATING_SYSTEM => format!("{status:?}, {}", open_files()),
        _ => format!("{status:?}"),
    }
}

/// The numbers of open files and of files that may be open: a driver opens some dozens, and reports the limit as a
/// failure of the operating system.
fn open_files() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live struct; the other call only looks whether a number is that of an open file.
    let open = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        (0..limit.rlim_cur.min(1 << 16) as i32).filter(|&file| libc::fcntl(file, libc::F_GETFD) != -1).count()
    };
    format!("{open} of at most {} files are open (`ulimit -n`)", limit.rlim_cur)
}

/// The fault class of a status, as the driver's documentation gives it; the documentation of [`FaultClass`] lists all.
fn class(status: sys::CUresult) -> FaultClass {
    match status as i32 {
        4 | 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911 => FaultClass::Process,
        3 | 46 | 100 | 102 | 201 | 304 | 401 | 709 | 802..=809 | 909 | 999 => FaultClass::Device,
        _ => FaultClass::Request,
    }
}

/// Calls a driver function by its name, which other threads can read meanwhile; returns its status.
macro_rules! status {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let _calling = $crate::sync::calling(&stringify!($function));
        cudarc::driver::sys::$function($($argument),*)
    }};
}
pub(super) use status;

/// Calls a driver function and checks the status: `cu!(call, cuInit(0))`.
macro_rules! cu {
    ($call:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $call.check(stringify!($function), $crate::device::cuda::driver::status!($function($($argument),*)))
    };
}
pub(super) use cu;

/// Ignores an error of a free that comes after the driver was shut down because the process ends.
pub(super) fn at_exit(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Driver { code, .. }) if code == sys::CUresult::CUDA_ERROR_DEINITIALIZED as i32 => Ok(()),
        other => other,
    }
}

/// The oldest driver that accepts the kept kernels: PTX 9.0 came with CUDA 13.0.
const NEEDED: u32 = 13000;

/// Finds the driver library, checks its version, and starts it; returns the version. A symbol that an old driver lacks
/// would cause a panic in `cudarc`, so that only these three calls come before the check.
pub(super) fn start(target: &str) -> Result<u32, Error> {
    library::load(target)?;
    let target = target.to_owned();
    let call = Call { device: &target };
    let mut version = 0;
    // SAFETY: the pointer is to a live integer; the call needs no started driver.
    unsafe { cu!(call, cuDriverGetVersion(&mut version))? };
    let version = version as u32;
    if version < NEEDED {
        let text = |v: u32| format!("{}.{}", v / 1000, v % 1000 / 10);
        return Err(Error::Unsupported {
            what: format!("{target}: an NVIDIA driver for CUDA {}", text(version)),
            instead: format!(
                "the kernels need a driver for CUDA {} (580 or newer); update it, or use `--device cpu`",
                text(NEEDED)
            ),
        });
    }
    // SAFETY: no arguments but the flags, which must be 0.
    match unsafe { status!(cuInit(0)) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            Err(Error::NoDevice { target, why: "the NVIDIA driver finds no GPU".into() })
        }
        status => call.check("cuInit", status).map(|()| version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the numbers have the names that the documentation of [`FaultClass`] gives.
    #[test]
    fn statuses_are_of_their_class() {
        use sys::CUresult as S;
        for status in [
            S::CUDA_ERROR_DEINITIALIZED,
            S::CUDA_ERROR_ECC_UNCORRECTABLE,
            S::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            S::CUDA_ERROR_CONTAINED,
            S::CUDA_ERROR_ILLEGAL_ADDRESS,
            S::CUDA_ERROR_LAUNCH_TIMEOUT,
            S::CUDA_ERROR_ASSERT,
            S::CUDA_ERROR_HARDWARE_STACK_ERROR,
            S::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            S::CUDA_ERROR_MISALIGNED_ADDRESS,
            S::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            S::CUDA_ERROR_INVALID_PC,
            S::CUDA_ERROR_LAUNCH_FAILED,
            S::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            S::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            S::CUDA_ERROR_EXTERNAL_DEVICE,
        ] {
            assert_eq!(class(status), FaultClass::Process, "{status:?}");
        }
        for status in [
            S::CUDA_ERROR_NOT_INITIALIZED,
            S::CUDA_ERROR_DEVICE_UNAVAILABLE,
            S::CUDA_ERROR_NO_DEVICE,
            S::CUDA_ERROR_DEVICE_NOT_LICENSED,
            S::CUDA_ERROR_INVALID_CONTEXT,
            S::CUDA_ERROR_OPERATING_SYSTEM,
            S::CUDA_ERROR_ILLEGAL_STATE,
            S::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            S::CUDA_ERROR_SYSTEM_NOT_READY,
            S::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            S::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
            S::CUDA_ERROR_TIMEOUT,
            S::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(class(status), FaultClass::Device, "{status:?}");
        }
        for status in [S::CUDA_ERROR_OUT_OF_MEMORY, S::CUDA_ERROR_INVALID_VALUE, S::CUDA_ERROR_INVALID_PTX] {
            assert_eq!(class(status), FaultClass::Request, "{status:?}");
        }
    }
}
