//! Names for profilers: NVTX without its library.
//!
//! A profiler that wants names sets `NVTX_INJECTION64_PATH` to a library of its own. NVTX is a set of headers. It loads
//! this library and calls its `InitializeInjectionNvtx2` with a function that returns export tables. Through the table
//! for callbacks, the library finds a table of function pointers for each module and puts its own functions there. This
//! file does the same, with the numbers of NVTX 3's `nvtxTypes.h`. If the variable is not set, nothing is loaded,
//! formatted or called: [`attached`] returns `None`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A profiler that has put its functions into the tables.
pub(super) struct Nvtx {
    /// The profiler's handle of the domain `trefoil`.
    domain: usize,
}

/// A range of a profiler on one thread, which ends when this is dropped.
#[must_use]
pub(crate) struct Range(Option<&'static Nvtx>);

// The numbers of modules and callbacks, as NvtxCallbackModule and NvtxCallbackId* have them.
const CORE: usize = 1;
const NAME_OS_THREAD_A: usize = 14;
const CUDA: usize = 2;
const NAME_CU_STREAM_A: usize = 5;
const CORE2: usize = 5;
const DOMAIN_RANGE_PUSH_EX: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE_A: usize = 12;

/// The number of callbacks of each module, with the invalid callback 0: none, core, CUDA, OpenCL, CUDA runtime, core 2,
/// sync.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;

/// The addresses of the profiler's functions; 0 where it has none.
static FUNCTIONS: [[AtomicUsize; MOST]; SIZES.len()] = [const { [const { AtomicUsize::new(0) }; MOST] }; SIZES.len()];
/// The tables that the profiler gets: the address of each place in `FUNCTIONS`, ended by a null.
static TABLES: [[AtomicUsize; MOST + 1]; SIZES.len()] =
    [const { [const { AtomicUsize::new(0) }; MOST + 1] }; SIZES.len()];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table: extern "C" fn(u32, *mut *const AtomicUsize, *mut u32) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

const VERSION: u16 = 3;
static CALLBACKS: Callbacks =
    Callbacks { struct_size: size_of::<Callbacks>(), get_module_function_table: module_functions };
static VERSION_INFO: VersionInfo =
    VersionInfo { struct_size: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set_injection_version };

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn module_functions(module: u32, table: *mut *const AtomicUsize, size: *mut u32) -> c_int {
    let module = module as usize;
    let Some(&callbacks) = SIZES.get(module).filter(|&&size| size > 0) else { return 0 };
    // SAFETY: the protocol: each is null or points to where the profiler wants the answer.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = TABLES[module].as_ptr();
        }
        if let Some(size) = size.as_mut() {
            *size = callbacks as u32;
        }
    }
    1
}

extern "C" fn set_injection_version(_version: u32) {}

/// `nvtxEventAttributes_t` of version 2.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const _: () = assert!(size_of::<EventAttributes>() == 48 && std::mem::offset_of!(EventAttributes, message) == 40);

const MESSAGE_ASCII: i32 = 1;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_LAZY: c_int = 1;

/// The profiler, if there is one. The first call looks for it.
pub(super) fn attached() -> Option<&'static Nvtx> {
    static ATTACHED: OnceLock<Option<Nvtx>> = OnceLock::new();
    ATTACHED.get_or_init(attach).as_ref()
}

fn attach() -> Option<Nvtx> {
    let path = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty())?;
    let name = CString::new(path.as_encoded_bytes()).ok()?;
    // SAFETY: both strings end with a NUL. What the library does when it is loaded is up to who named it.
    let initialize = unsafe {
        let library = dlopen(name.as_ptr(), RTLD_LAZY);
        if library.is_null() {
            log::warn!("NVTX_INJECTION64_PATH: cannot load {}", path.display());
            return None;
        }
        dlsym(library, c"InitializeInjectionNvtx2".as_ptr())
    };
    if initialize.is_null() {
        log::warn!("NVTX_INJECTION64_PATH: {} is no NVTX injection library", path.display());
        return None;
    }
    for (module, &size) in SIZES.iter().enumerate() {
        for callback in 1..size {
            let place = &raw const FUNCTIONS[module][callback];
            TABLES[module][callback].store(place.expose_provenance(), Ordering::Relaxed);
        }
    }
    type Initialize = extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: the protocol gives the symbol this type.
    let initialize: Initialize = unsafe { std::mem::transmute(initialize) };
    if initialize(export_table) == 0 {
        log::warn!("NVTX_INJECTION64_PATH: {} does not start", path.display());
        return None;
    }
    let domain = function(CORE2, DOMAIN_CREATE_A).map_or(0, |create| {
        // SAFETY: `nvtxDomainCreateA` takes a string and gives a handle.
        let create: extern "C" fn(*const c_char) -> usize = unsafe { std::mem::transmute(create) };
        create(c"trefoil".as_ptr())
    });
    Some(Nvtx { domain })
}

/// The profiler's function at a place of the tables, if there is one.
fn function(module: usize, callback: usize) -> Option<*const c_void> {
    let address = FUNCTIONS[module][callback].load(Ordering::Relaxed);
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

impl Nvtx {
    /// Names a CUDA stream of the current context.
    pub fn name_stream(&self, stream: u64, name: &str) {
        let Some(function) = function(CUDA, NAME_CU_STREAM_A) else { return };
        // SAFETY: `nvtxNameCuStreamA` takes a stream and a string.
        let name_stream: extern "C" fn(*mut c_void, *const c_char) = unsafe { std::mem::transmute(function) };
        name_stream(stream as *mut c_void, Line::of(format_args!("{name}")).text().as_ptr());
    }

    /// Gives the calling thread the name that it has in Rust.
    pub fn name_thread(&self) {
        let Some(function) = function(CORE, NAME_OS_THREAD_A) else { return };
        let thread = std::thread::current();
        let (Some(name), Some(id)) = (thread.name(), thread_id()) else { return };
        // SAFETY: `nvtxNameOsThreadA` takes the system's number of a thread and a string.
        let name_thread: extern "C" fn(u32, *const c_char) = unsafe { std::mem::transmute(function) };
        name_thread(id, Line::of(format_args!("{name}")).text().as_ptr());
    }

    /// Begins a range of the domain on the calling thread. Formats without allocating.
    pub fn push(&self, name: fmt::Arguments<'_>) {
        let Some(function) = function(CORE2, DOMAIN_RANGE_PUSH_EX) else { return };
        let line = Line::of(name);
        let attributes = EventAttributes {
            version: VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: MESSAGE_ASCII,
            message: line.text().as_ptr(),
        };
        // SAFETY: `nvtxDomainRangePushEx` takes a domain and attributes, which it copies.
        let push: extern "C" fn(usize, *const EventAttributes) -> c_int = unsafe { std::mem::transmute(function) };
        push(self.domain, &attributes);
    }

    /// Ends the last range that the thread began.
    pub fn pop(&self) {
        let Some(function) = function(CORE2, DOMAIN_RANGE_POP) else { return };
        // SAFETY: `nvtxDomainRangePop` takes a domain.
        let pop: extern "C" fn(usize) -> c_int = unsafe { std::mem::transmute(function) };
        pop(self.domain);
    }
}

impl Range {
    /// Begins a range if there is a profiler; otherwise the name is not even formatted.
    pub(super) fn new(nvtx: Option<&'static Nvtx>, name: fmt::Arguments<'_>) -> Self {
        if let Some(nvtx) = nvtx {
            nvtx.push(name);
        }
        Self(nvtx)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.0 {
            nvtx.pop();
        }
    }
}

/// The system's number of the calling thread.
fn thread_id() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// Text on the stack that ends with a NUL; text that does not fit is cut off.
struct Line {
    bytes: [u8; 128],
    len: usize,
}

impl Line {
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self { bytes: [0; 128], len: 0 };
        let _full = line.write_fmt(text);
        line
    }

    fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written")
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let fits = (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.bytes[self.len..][..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_it_is_full_between_characters() {
        assert_eq!(Line::of(format_args!("batch {} ({})", 7, "slot 1")).text(), c"batch 7 (slot 1)");
        let long = Line::of(format_args!("{}\u{b7}{}", "x".repeat(126), "y"));
        assert_eq!(long.text().to_bytes(), "x".repeat(126).as_bytes());
    }

    #[test]
    fn the_tables_have_a_place_for_every_callback() {
        let (mut table, mut size) = (std::ptr::null(), 0);
        for (module, &callbacks) in SIZES.iter().enumerate() {
            assert_eq!(module_functions(module as u32, &mut table, &mut size), c_int::from(callbacks > 0));
            assert!(callbacks == 0 || size as usize == callbacks);
        }
        assert_eq!(module_functions(7, &mut table, &mut size), 0);
        assert!(export_table(0).is_null() && export_table(2).is_null());
    }
}
