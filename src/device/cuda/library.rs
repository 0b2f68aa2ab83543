//! The driver library: loads it, and finds out why the loader does not load it.

use std::env;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cudarc::driver::sys;

use crate::error::Error;

/// The names of the library; drivers install the first.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Loads the library. If it is not found, there is no device; if it is found and cannot be loaded, that is an error of
/// the driver.
pub(super) fn load(target: &str) -> Result<(), Error> {
    // SAFETY: only looks for the library and loads it.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let refused = NAMES.iter().find_map(|name| refusal(OsStr::new(name)).map(|why| (PathBuf::from(name), why)));
    match refused.or_else(|| passed_over(&folders)) {
        Some((path, why)) => {
            let advice = "reinstall NVIDIA's driver for this machine, or use `--device cpu`";
            Err(Error::io("load the NVIDIA driver library", &path, io::Error::other(format!("{why}; {advice}"))))
        }
        None => {
            let why = "the NVIDIA driver library libcuda.so was not found".into();
            Err(Error::NoDevice { target: target.to_owned(), why })
        }
    }
}

/// The loader's reason not to load a library; `None` if the loader finds none.
fn refusal(name: &OsStr) -> Option<String> {
    let c_name = CString::new(name.as_bytes()).ok()?;
    // SAFETY: the name ends with a NUL. After a failure the loader has a text, which is this thread's until its next call.
    let text = unsafe {
        if !libc::dlopen(c_name.as_ptr(), libc::RTLD_LAZY).is_null() {
            return None;
        }
        CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned()
    };
    // The words of the C library, which may be in another language.
    let nothing = io::Error::from_raw_os_error(libc::ENOENT).to_string();
    let nothing = nothing.split(" (os error").next().unwrap_or_default();
    let is_missing = text.starts_with(&*name.to_string_lossy()) && text.ends_with(nothing);
    (!is_missing).then_some(text)
}

/// A library that the loader ignores because it is for another processor, in one of these folders, which are separated
/// by colons; with the loader's reason.
fn passed_over(folders: &OsStr) -> Option<(PathBuf, String)> {
    let folders = folders.as_bytes().split(|&byte| byte == b':').filter(|folder| !folder.is_empty());
    let paths = folders.flat_map(|folder| NAMES.map(|name| Path::new(OsStr::from_bytes(folder)).join(name)));
    let path = paths.into_iter().find(|path| path.exists())?;
    Some((path, "the loader ignores it, as it does libraries for another processor".into()))
}
