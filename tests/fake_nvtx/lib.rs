//! A profiler for tests: an NVTX injection library that writes the ranges and names that it gets into the log of the
//! stand-in driver, between the driver's calls. It follows the protocol's headers, not trefoil's code.
//!
//! Lines: `nvtx domain NAME`, `nvtx stream NAME`, `nvtx thread TID NAME`, `nvtx push NAME`, `nvtx pop`; and `VIOLATION
//! ...` for calls that break the protocol.

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::io::Write;

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table: extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

#[repr(C)]
struct Attributes {
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

const DOMAIN: usize = 0xD0;

thread_local! {
    static DEPTH: Cell<i32> = const { Cell::new(0) };
}

fn say(line: &str) {
    let Some(path) = env::var_os("FAKE_CUDA_LOG") else { return };
    let mut log = OpenOptions::new().create(true).append(true).open(path).expect("the log can be opened");
    log.write_all(format!("{line}\n").as_bytes()).expect("the log can be written");
}

fn text(name: *const c_char) -> String {
    // SAFETY: the protocol: names end with a NUL.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

extern "C" fn create_domain(name: *const c_char) -> usize {
    say(&format!("nvtx domain {}", text(name)));
    DOMAIN
}

extern "C" fn name_stream(stream: *mut c_void, name: *const c_char) {
    if stream.is_null() {
        say("VIOLATION a name for the default stream");
    }
    say(&format!("nvtx stream {}", text(name)));
}

extern "C" fn name_thread(id: u32, name: *const c_char) {
    let tasks = std::fs::read_link("/proc/thread-self").expect("Linux has it");
    if !tasks.ends_with(id.to_string()) {
        say(&format!("VIOLATION thread {id} is not {}", tasks.display()));
    }
    say(&format!("nvtx thread {}", text(name)));
}

extern "C" fn push(domain: usize, attributes: *const Attributes) -> c_int {
    // SAFETY: the protocol: live attributes of the size that they name.
    let attributes = unsafe { &*attributes };
    let Attributes { version, size, message_type, message, .. } = *attributes;
    if (domain, version, size as usize, message_type) != (DOMAIN, 3, size_of::<Attributes>(), 1) {
        say(&format!("VIOLATION push of {domain} version {version} size {size} message type {message_type}"));
    }
    say(&format!("nvtx push {}", text(message)));
    DEPTH.set(DEPTH.get() + 1);
    DEPTH.get() - 1
}

extern "C" fn pop(domain: usize) -> c_int {
    if domain != DOMAIN || DEPTH.get() == 0 {
        say(&format!("VIOLATION pop of {domain} at depth {}", DEPTH.get()));
    }
    say("nvtx pop");
    DEPTH.set(DEPTH.get() - 1);
    DEPTH.get()
}

/// The place of a function: module, callback, and the least number of callbacks of the module.
type Place = (u32, usize, u32);
const THREADS: Place = (1, 14, 16);
const STREAMS: Place = (2, 5, 9);
const PUSH: Place = (5, 4, 16);
const POP: Place = (5, 5, 16);
const CREATE: Place = (5, 12, 16);

#[unsafe(no_mangle)]
extern "C" fn InitializeInjectionNvtx2(export_table: extern "C" fn(u32) -> *const c_void) -> c_int {
    if env::var("FAKE_NVTX").is_ok_and(|value| value == "refuse") {
        return 0;
    }
    let (callbacks, version) = (export_table(1).cast::<Callbacks>(), export_table(3).cast::<VersionInfo>());
    // SAFETY: the protocol: tables 1 and 3 are these, and stay.
    let (callbacks, version) = unsafe { (&*callbacks, &*version) };
    if callbacks.struct_size < size_of::<Callbacks>() || version.struct_size < size_of::<VersionInfo>() {
        say("VIOLATION a table is too small");
    }
    if version.version != 3 || !export_table(9).is_null() {
        say("VIOLATION of version or unknown tables");
    }
    (version.set_injection_version)(3);
    let functions: [(Place, *const c_void); 5] = [
        (THREADS, name_thread as *const c_void),
        (STREAMS, name_stream as *const c_void),
        (PUSH, push as *const c_void),
        (POP, pop as *const c_void),
        (CREATE, create_domain as *const c_void),
    ];
    for ((module, callback, least), function) in functions {
        let (mut table, mut size) = (std::ptr::null_mut(), 0);
        if (callbacks.get_module_function_table)(module, &mut table, &mut size) != 1 || size < least {
            say(&format!("VIOLATION module {module} has {size} callbacks"));
            return 0;
        }
        // SAFETY: the protocol: the table has `size` places, each but the first the address of a function pointer.
        unsafe { **table.add(callback) = function };
    }
    1
}
