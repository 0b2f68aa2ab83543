//! Calls into the driver: each status becomes an error that names the call, and the library is looked for first.

use cudarc::driver::sys;

use crate::error::Error;

/// Who is called, for errors.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// `"cuda:0"`.
    pub device: &'a str,
}

impl Call<'_> {
    /// Turns a status into a result.
    pub fn check(self, operation: &'static str, status: sys::CUresult) -> Result<(), Error> {
        match status {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            status => Err(Error::Driver {
                device: self.device.to_owned(),
                operation: operation.trim_end_matches("_v2"),
                status: format!("{status:?}"),
                code: status as i32,
            }),
        }
    }
}

/// Calls a driver function by name and checks its status: `cu!(call, cuInit(0))`.
macro_rules! cu {
    ($call:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $call.check(stringify!($function), cudarc::driver::sys::$function($($argument),*))
    };
}
pub(super) use cu;

/// A handle that outlives the driver, because the process is ending, needs no freeing.
pub(super) fn at_exit(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Driver { code, .. }) if code == sys::CUresult::CUDA_ERROR_DEINITIALIZED as i32 => Ok(()),
        other => other,
    }
}

/// The oldest driver that takes the kept kernels: PTX 9.0 came with CUDA 13.0.
const NEEDED: u32 = 13000;

/// Finds the driver library, checks its version, and starts it; gives the version. A symbol that an old driver lacks
/// would panic inside `cudarc`, so nothing newer than these three calls is made before the check.
pub(super) fn start(ordinal: usize) -> Result<u32, Error> {
    let target = format!("cuda:{ordinal}");
    // SAFETY: only looks for the library and loads it.
    if !unsafe { sys::is_culib_present() } {
        let why = "the NVIDIA driver library libcuda.so was not found".into();
        return Err(Error::NoDevice { target, why });
    }
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
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            Err(Error::NoDevice { target, why: "the NVIDIA driver finds no GPU".into() })
        }
        status => call.check("cuInit", status).map(|()| version),
    }
}
