//! A CUDA driver library without a GPU: device memory is host memory, streams are queues, kernels compute nothing.
//!
//! It exports what `src/device/cuda` calls, so the real device layer and ring run on it, found as `libcuda.so` on
//! `LD_LIBRARY_PATH`. Every call is a line in a log; every misuse of a handle, an allocation or a capture is a
//! `VIOLATION` line. Environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `FAKE_CUDA_LOG` | file that calls are appended to |
//! | `FAKE_CUDA_HELD` | work waits until somebody asks for an event, instead of running when it is enqueued |
//! | `FAKE_CUDA_FAIL_CALL`, `FAKE_CUDA_FAIL_STATUS` | the call of this number, from 1, does nothing and gives this status |
//! | `FAKE_CUDA_FAIL_ALLOC` | the allocation of this number, from 1, is out of memory |
//! | `FAKE_CUDA_VERSION`, `FAKE_CUDA_DEVICES`, `FAKE_CUDA_MAJOR`, `FAKE_CUDA_INIT` | driver version, GPUs, compute capability, status of `cuInit` |

#![allow(non_snake_case, clippy::missing_safety_doc, reason = "the driver's names; its header is the contract")]

mod state;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use state::{Kind, Op, State, number, with};

type Status = c_uint;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const INVALID_DEVICE: Status = 101;
const NOT_READY: Status = 600;

/// Writes through an out-pointer of the caller.
///
/// # Safety
/// `out` is valid for a write.
unsafe fn give<T>(out: *mut T, value: T) -> Status {
    // SAFETY: by the caller.
    unsafe { out.write(value) };
    SUCCESS
}

/// Defines exported functions: each is logged, counted, and may be the one that fails.
macro_rules! driver {
    ($($name:ident($state:ident $(, $arg:ident: $ty:ty)*) [$($logged:expr),*] $body:block)*) => {$(
        /// As in the driver's header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> Status {
            with(|$state: &mut State| {
                let words: Vec<String> = vec![$($logged.to_string()),*];
                match $state.enter(stringify!($name), &words) {
                    Some(status) => status,
                    None => $body,
                }
            })
        }
    )*};
}

/// A name that the caller passes.
fn text(name: *const c_char) -> String {
    // SAFETY: it ends with a NUL, by the header.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The symbolic name of a handle, for the log.
fn named(handle: *mut c_void) -> String {
    state::name(handle as usize)
}

driver! {
    cuDriverGetVersion(_s, out: *mut c_int) [] {
        // SAFETY: the header says that the pointer is valid; so below.
        unsafe { give(out, number("FAKE_CUDA_VERSION", 13000) as c_int) }
    }
    cuInit(_s, _flags: c_uint) [] { number("FAKE_CUDA_INIT", 0) as Status }
    cuDeviceGetCount(_s, out: *mut c_int) [] {
        // SAFETY: as above.
        unsafe { give(out, number("FAKE_CUDA_DEVICES", 1) as c_int) }
    }
    cuDeviceGet(_s, out: *mut c_int, ordinal: c_int) [ordinal] {
        // SAFETY: as above.
        if ordinal == 0 { unsafe { give(out, 0) } } else { INVALID_DEVICE }
    }
    cuDeviceGetName(_s, out: *mut c_char, length: c_int, _device: c_int) [] {
        let text = c"Fake GPU".to_bytes_with_nul();
        assert!(text.len() <= length as usize);
        // SAFETY: the buffer has `length` bytes by the header.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
        SUCCESS
    }
    cuDeviceGetAttribute(_s, out: *mut c_int, attribute: c_uint, _device: c_int) [attribute] {
        let value = match attribute {
            16 => 132,                                   // multiprocessors
            75 => number("FAKE_CUDA_MAJOR", 9) as c_int, // compute capability, major
            76 => 0,                                     // and minor
            97 => 232_448,                               // shared memory of a block, opt-in
            _ => return INVALID_VALUE,
        };
        // SAFETY: as above.
        unsafe { give(out, value) }
    }
    // SAFETY: as above.
    cuDeviceTotalMem_v2(_s, out: *mut usize, _device: c_int) [] { unsafe { give(out, 1 << 34) } }
    cuDevicePrimaryCtxRetain(s, out: *mut *mut c_void, _device: c_int) [] {
        let context = s.create(Kind::Context);
        // SAFETY: as above.
        unsafe { give(out, context) }
    }
    cuDevicePrimaryCtxRelease_v2(s, _device: c_int) [] { s.release_context() }
    // SAFETY: as above.
    cuCtxGetCurrent(s, out: *mut *mut c_void) [] { unsafe { give(out, s.current()) } }
    cuCtxSetCurrent(s, context: *mut c_void) [named(context)] { s.set_current(context) }
    cuCtxGetStreamPriorityRange(_s, low: *mut c_int, high: *mut c_int) [] {
        // SAFETY: as above.
        unsafe { give(low, 0); give(high, -5) }
    }

    cuStreamCreateWithPriority(s, out: *mut *mut c_void, flags: c_uint, priority: c_int) [flags, priority] {
        s.expect(flags == 1, "a stream that synchronises with the default stream");
        let stream = s.create(Kind::Stream);
        // SAFETY: as above.
        unsafe { give(out, stream) }
    }
    cuStreamDestroy_v2(s, stream: *mut c_void) [named(stream)] { s.destroy(stream, Kind::Stream) }
    cuStreamWaitEvent(s, stream: *mut c_void, event: *mut c_void, _flags: c_uint) [named(stream), named(event)] {
        s.wait(stream, event)
    }
    cuEventCreate(s, out: *mut *mut c_void, flags: c_uint) [flags] {
        let event = s.create(Kind::Event);
        // SAFETY: as above.
        unsafe { give(out, event) }
    }
    cuEventDestroy_v2(s, event: *mut c_void) [named(event)] { s.destroy(event, Kind::Event) }
    cuEventRecord(s, event: *mut c_void, stream: *mut c_void) [named(event), named(stream)] { s.record(event, stream) }
    cuEventQuery(s, event: *mut c_void) [named(event)] {
        s.step();
        if s.reached(event) { SUCCESS } else { NOT_READY }
    }
    cuEventSynchronize(s, event: *mut c_void) [named(event)] {
        while !s.reached(event) {
            if !s.step() {
                s.expect(false, "a wait for an event that nothing will reach");
                return INVALID_VALUE;
            }
        }
        SUCCESS
    }
    // SAFETY: as above.
    cuEventElapsedTime_v2(_s, out: *mut f32, _start: *mut c_void, _end: *mut c_void) [] { unsafe { give(out, 1.0) } }

    cuMemHostAlloc(s, out: *mut *mut c_void, bytes: usize, flags: c_uint) [bytes] {
        s.expect(flags & 4 == 0, "write-combined memory, which is slow to read");
        let Some(memory) = s.allocate(Kind::Host, bytes) else { return OUT_OF_MEMORY };
        // SAFETY: as above.
        unsafe { give(out, memory as *mut c_void) }
    }
    cuMemFreeHost(s, memory: *mut c_void) [named(memory)] { s.free(memory as usize, Kind::Host) }
    cuMemAlloc_v2(s, out: *mut u64, bytes: usize) [bytes] {
        let Some(memory) = s.allocate(Kind::Device, bytes) else { return OUT_OF_MEMORY };
        // SAFETY: as above.
        unsafe { give(out, memory as u64) }
    }
    cuMemFree_v2(s, memory: u64) [state::name(memory as usize)] { s.free(memory as usize, Kind::Device) }
    // SAFETY: as above.
    cuMemGetInfo_v2(_s, free: *mut usize, total: *mut usize) [] { unsafe { give(free, 1 << 16); give(total, 1 << 34) } }
    cuMemcpyHtoDAsync_v2(s, dst: u64, src: *const c_void, bytes: usize, stream: *mut c_void)
        [state::name(dst as usize), state::name(src as usize), bytes, named(stream)] {
        s.copy(stream, (dst as usize, Kind::Device), (src as usize, Kind::Host), bytes)
    }
    cuMemcpyDtoHAsync_v2(s, dst: *mut c_void, src: u64, bytes: usize, stream: *mut c_void)
        [state::name(dst as usize), state::name(src as usize), bytes, named(stream)] {
        s.copy(stream, (dst as usize, Kind::Host), (src as usize, Kind::Device), bytes)
    }

    cuModuleLoadDataEx(s, out: *mut *mut c_void, image: *const c_void, _n: c_uint, _o: *mut c_uint, _v: *mut *mut c_void) [] {
        let ptx = text(image.cast());
        s.expect(ptx.contains(".target sm_80"), "a module that is no PTX for sm_80");
        let module = s.create(Kind::Module);
        // SAFETY: as above.
        unsafe { give(out, module) }
    }
    cuModuleUnload(s, module: *mut c_void) [named(module)] { s.destroy(module, Kind::Module) }
    cuModuleGetFunction(s, out: *mut *mut c_void, module: *mut c_void, name: *const c_char)
        [named(module), text(name)] {
        // A function lives as long as its module; one handle stands for both.
        s.check(module, Kind::Module);
        // SAFETY: as above.
        unsafe { give(out, module) }
    }
    cuFuncSetAttribute(s, function: *mut c_void, _attribute: c_uint, value: c_int) [value] {
        s.check(function, Kind::Module)
    }
    cuFuncLoad(s, function: *mut c_void) [] { s.check(function, Kind::Module) }
    cuLaunchKernelEx(s, config: *const c_void, function: *mut c_void, _params: *mut *mut c_void, _extra: *mut *mut c_void) [] {
        let _ = config;
        s.capture_launch(function)
    }

    cuStreamBeginCapture_v2(s, stream: *mut c_void, mode: c_uint) [named(stream), mode] {
        s.expect(mode == 1, "a capture that is not thread-local");
        s.begin_capture(stream)
    }
    cuStreamEndCapture(s, stream: *mut c_void, out: *mut *mut c_void) [named(stream)] {
        let graph = s.end_capture(stream);
        // SAFETY: as above.
        unsafe { give(out, graph) }
    }
    cuGraphInstantiateWithFlags(s, out: *mut *mut c_void, graph: *mut c_void, _flags: u64) [named(graph)] {
        s.check(graph, Kind::Graph);
        let exec = s.create(Kind::GraphExec);
        // SAFETY: as above.
        unsafe { give(out, exec) }
    }
    cuGraphDestroy(s, graph: *mut c_void) [named(graph)] { s.destroy(graph, Kind::Graph) }
    cuGraphExecDestroy(s, graph: *mut c_void) [named(graph)] { s.destroy(graph, Kind::GraphExec) }
    cuGraphUpload(s, graph: *mut c_void, stream: *mut c_void) [named(graph), named(stream)] {
        s.check(stream, Kind::Stream);
        s.check(graph, Kind::GraphExec)
    }
    cuGraphLaunch(s, graph: *mut c_void, stream: *mut c_void) [named(graph), named(stream)] {
        s.check(graph, Kind::GraphExec);
        s.enqueue(stream, Op::Launch)
    }
}
