//! Kernels: a module is loaded from PTX, which the driver compiles for the GPU and caches, or from a cubin.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Cuda;
use super::driver::{at_exit, cu};
use crate::error::Error;

/// A loaded module of kernels.
pub(crate) struct Module {
    raw: sys::CUmodule,
    name: String,
    cuda: Arc<Cuda>,
}

/// A kernel of a loaded module. It keeps the module loaded.
pub(crate) struct Function {
    raw: sys::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: module and function handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing changes them after they are made.
unsafe impl Sync for Module {}
// SAFETY: as for the module.
unsafe impl Send for Function {}
// SAFETY: as for the module; `prepare` is called before it is shared.
unsafe impl Sync for Function {}

/// Bytes of the buffer for the compiler's log.
const LOG_BYTES: usize = 4096;

impl Module {
    /// Loads PTX text or a cubin. `image` ends with a NUL.
    pub fn load(cuda: &Arc<Cuda>, name: &str, image: &[u8]) -> Result<Arc<Self>, Error> {
        assert_eq!(image.last(), Some(&0), "the driver reads PTX up to a NUL");
        let _entered = cuda.enter()?;
        let mut complaints = [0_u8; LOG_BYTES];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [complaints.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut raw = null_mut();
        // SAFETY: the image ends with a NUL; options and values are two each, the buffer as long as they say.
        let loaded = unsafe {
            cu!(
                cuda.call(),
                cuModuleLoadDataEx(&mut raw, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
            )
        };
        loaded.map_err(|error| with_log(error, name, &complaints))?;
        Ok(Arc::new(Self { raw, name: name.to_owned(), cuda: cuda.clone() }))
    }

    /// Finds a kernel, allows it `shared_bytes` of dynamic shared memory and clusters of `cluster` blocks, and loads
    /// its code now instead of at its first launch. If `prefers_shared_memory`, multiprocessors keep as much of their
    /// memory as they can for blocks' shared memory while the kernel is on them. Otherwise the driver decides by the
    /// kernel alone, and blocks of a kernel that needs more, launched before it or behind it, may have no room beside its
    /// blocks.
    pub fn function(
        self: &Arc<Self>,
        entry: &str,
        shared_bytes: u32,
        cluster: u32,
        prefers_shared_memory: bool,
    ) -> Result<Function, Error> {
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED_BYTES,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED as LARGE_CLUSTERS,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as PERCENT_SHARED,
        };
        let (call, _entered) = (self.cuda.call(), self.cuda.enter()?);
        let name = CString::new(entry).map_err(|_| Error::Internal { what: format!("entry name {entry:?}") })?;
        let mut raw = null_mut();
        // SAFETY: the module is loaded; the name ends with a NUL.
        unsafe { cu!(call, cuModuleGetFunction(&mut raw, self.raw, name.as_ptr())) }.map_err(|error| match error {
            Error::Driver { code, .. } if code == sys::CUresult::CUDA_ERROR_NOT_FOUND as i32 => {
                Error::Internal { what: format!("module {} has no kernel {entry}: {error}", self.name) }
            }
            other => other,
        })?;
        let attributes = [
            (shared_bytes > DEFAULT_SHARED_BYTES, SHARED_BYTES, shared_bytes as i32),
            (cluster > PORTABLE_CLUSTER, LARGE_CLUSTERS, 1),
            (prefers_shared_memory, PERCENT_SHARED, MOST_SHARED_MEMORY),
        ];
        for (_, attribute, value) in attributes.into_iter().filter(|(is_needed, ..)| *is_needed) {
            // SAFETY: the function was just found.
            unsafe { cu!(call, cuFuncSetAttribute(raw, attribute, value))? };
        }
        // SAFETY: the function was just found.
        unsafe { cu!(call, cuFuncLoad(raw))? };
        Ok(Function { raw, _module: self.clone() })
    }
}

/// Dynamic shared memory that a kernel may use without an attribute.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// As much shared memory as a multiprocessor can have, in percent of it.
const MOST_SHARED_MEMORY: i32 = 100;

/// Blocks of a cluster that a kernel may use without an attribute.
const PORTABLE_CLUSTER: u32 = 8;

/// Adds the compiler's log to the error.
fn with_log(error: Error, module: &str, log: &[u8]) -> Error {
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    match error {
        Error::Driver { device, operation, status, code, class } if !text.trim().is_empty() => {
            let status = format!("{status}, module {module}: {}", text.trim());
            Error::Driver { device, operation, status, code, class }
        }
        other => other,
    }
}

impl Function {
    pub(super) fn raw(&self) -> sys::CUfunction {
        self.raw
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; functions hold it, and graphs hold their functions' owner.
        if let Err(error) = at_exit(unsafe { cu!(self.cuda.call(), cuModuleUnload(self.raw)) }) {
            log::error!("unloading module {}: {error}", self.name);
        }
    }
}
