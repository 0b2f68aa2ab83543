//! The report and the timeline of the recorder.

use std::ffi::c_char;
use std::sync::Arc;

use super::handles::{shared, trefoil_engine};
use super::pointers::{self, copy_text};
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::engine::Engine;
use crate::files;
use crate::trace::Trace;

/// Writes the timeline of the batches that the recorder remembers. If the path ends in `.html`, in lower case, the file
/// is a page for any browser; otherwise it is a file for Perfetto and chrome://tracing. An existing file is replaced as
/// a whole. The engine must be built with `trace_batches`; batches continue meanwhile. The path is any bytes on Unix,
/// and UTF-8 elsewhere.
///
/// # Safety
/// `path` is a C string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_trace_write(engine: trefoil_engine, path: *const c_char) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let path = unsafe { pointers::path(path, "path")? };
        let trace = trace(engine)?;
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        let text = if is_page { trace.to_html() } else { trace.to_chrome_json() };
        Ok(files::write(path, text)?)
    })
}

/// Copies the recorder's report on the overlap of copies and compute into `text`, cut to `capacity` bytes with its
/// final NUL. `length` is null, or gets the length of the whole report in bytes, without NUL.
///
/// # Safety
/// `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_trace_report(
    engine: trefoil_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trefoil_status {
    guard(|| {
        let report = trace(engine)?.report().to_string();
        // SAFETY: by the caller.
        unsafe { copy_text(&report, text, capacity, length) }
    })
}

fn trace(engine: trefoil_engine) -> Answer<Trace> {
    let without = || Failure::argument("the engine does not record: build it with `trace_batches`");
    shared::<Arc<Engine>>(engine)?.trace().ok_or_else(without)
}
