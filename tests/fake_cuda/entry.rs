//! The driver's functions, in one list, which makes the file long. Each checks its handles, does its work, and returns
//! its line for the log.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use crate::driver::{CURRENT, Driver, call};
use crate::ffi::*;
use crate::module::{Function, Module, Node};
use crate::stream::{Event, Operation, Stream};
use crate::tensor::{HALVES, HALVES_OTHERWISE, Tensor};

// Devices and contexts ---------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    call("cuDriverGetVersion", |driver| {
        version.set(driver.config.version);
        Ok(format!("-> {}", driver.config.version))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: u32) -> Code {
    call("cuInit", |driver| {
        if driver.config.own && !driver.started {
            crate::driver::start_own_thread();
        }
        driver.started = true;
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    call("cuDeviceGetCount", |driver| {
        count.set(driver.config.devices);
        Ok(format!("-> {}", driver.config.devices))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> Code {
    call("cuDeviceGet", |driver| {
        if !(0..driver.config.devices).contains(&ordinal) {
            return driver.refuse(format!("device {ordinal} of {}", driver.config.devices), INVALID_DEVICE);
        }
        device.set(ordinal);
        Ok(format!("{ordinal}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, bytes: c_int, _device: c_int) -> Code {
    call("cuDeviceGetName", |driver| {
        let text = c"Fake GPU".to_bytes_with_nul();
        if (bytes as usize) < text.len() {
            return driver.refuse(format!("{bytes} bytes for a name"), INVALID_VALUE);
        }
        // SAFETY: the driver's contract: `name` has room for `bytes`, and the text is no longer, just checked.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, _device: c_int) -> Code {
    call("cuDeviceGetPCIBusId", |driver| {
        let none = c"ffff:ff:ff.f".to_bytes_with_nul();
        if (bytes as usize) < none.len() {
            return driver.refuse(format!("{bytes} bytes for an address"), INVALID_VALUE);
        }
        // SAFETY: the driver's contract: `text` has room for `bytes`, and the address is no longer, just checked.
        unsafe { text.copy_from_nonoverlapping(none.as_ptr().cast(), none.len()) };
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: u32, _device: c_int) -> Code {
    call("cuDeviceGetAttribute", |driver| {
        let found = match attribute {
            16 => 8,                             // multiprocessors
            75 => driver.config.capability / 10, // major
            76 => driver.config.capability % 10, // minor
            97 => 227 << 10,                     // shared memory that a block may ask for
            _ => return driver.refuse(format!("attribute {attribute}, which the fake does not know"), INVALID_VALUE),
        };
        value.set(found);
        Ok(format!("{attribute} -> {found}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, _device: c_int) -> Code {
    call("cuDeviceTotalMem_v2", |driver| {
        bytes.set(driver.config.memory);
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> Code {
    unsafe extern "C" {
        safe fn atexit(callback: extern "C" fn()) -> c_int;
    }
    static LOOK_AT_EXIT: Once = Once::new();
    LOOK_AT_EXIT.call_once(|| assert_eq!(atexit(crate::driver::at_exit), 0));
    call("cuDevicePrimaryCtxRetain", |driver| {
        driver.retained[device as usize] += 1;
        context.set(device as usize + 1);
        Ok(format!("{device}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", |driver| {
        if !driver.is_retained(device as usize + 1) {
            return driver.refuse(format!("context {device} released more often than retained"), INVALID_CONTEXT);
        }
        driver.retained[device as usize] -= 1;
        if driver.retained.iter().all(|&times| times == 0) {
            driver.report_leaks();
        }
        Ok(format!("{device}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> Code {
    call("cuCtxPushCurrent_v2", |driver| {
        if !driver.is_retained(context) {
            return driver.refuse(format!("context {context} made current, which is not retained"), INVALID_CONTEXT);
        }
        CURRENT.with_borrow_mut(|pushed| pushed.push(context));
        driver.pushed += 1;
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> Code {
    call("cuCtxGetCurrent", |_| {
        context.set(Driver::current());
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    call("cuCtxSetCurrent", |driver| {
        if !driver.is_retained(context) {
            return driver.refuse(format!("context {context} made current, which is not retained"), INVALID_CONTEXT);
        }
        // The context replaces the top one; it need not be popped.
        CURRENT.with_borrow_mut(|pushed| {
            pushed.pop();
            pushed.push(context);
        });
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<Handle>) -> Code {
    call("cuCtxPopCurrent_v2", |driver| {
        let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else {
            return driver.refuse("no context is current".into(), INVALID_CONTEXT);
        };
        driver.pushed -= 1;
        context.set(popped);
        Ok(String::new())
    })
}

/// Creates a context that belongs to the program, and makes it current.
#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(context: Out<Handle>, _how: *const c_void, _flags: u32, device: c_int) -> Code {
    call("cuCtxCreate_v4", |driver| {
        let handle = driver.contexts.add(device);
        context.set(handle);
        CURRENT.with_borrow_mut(|pushed| pushed.push(handle));
        driver.pushed += 1;
        Ok(format!("{device} -> {}", driver.contexts.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Handle) -> Code {
    call("cuCtxDestroy_v2", |driver| {
        let ended = driver.contexts.end(context).map(|_| ());
        driver.valid(ended)?;
        let popped = CURRENT.with_borrow_mut(|pushed| pushed.pop_if(|top| *top == context).is_some());
        driver.pushed -= usize::from(popped);
        if driver.contexts.live().next().is_none() && driver.retained.iter().all(|&times| times == 0) {
            driver.report_leaks();
        }
        Ok(driver.contexts.name(context))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> Code {
    call("cuCtxGetDevice", |driver| {
        let current = Driver::current();
        let found = driver.contexts.get(current).map_or(current as c_int - 1, |device| *device);
        device.set(found);
        Ok(format!("-> {found}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Code {
    call("cuCtxGetStreamPriorityRange", |_| {
        least.set(0);
        greatest.set(-5);
        Ok(String::new())
    })
}

// Memory -----------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) -> Code {
    call("cuMemAlloc_v2", |driver| {
        if bytes == 0 {
            return driver.refuse("an allocation of nothing".into(), INVALID_VALUE);
        }
        if bytes > driver.config.memory - driver.device.used() {
            return Err(OUT_OF_MEMORY);
        }
        let (start, name) = driver.device.allocate(bytes);
        address.set(start as u64);
        Ok(format!("{bytes} -> {name}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call("cuMemFree_v2", |driver| {
        let address = address as usize;
        driver.check_idle(address)?;
        let freed = driver.device.free(address);
        driver.valid(freed)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call("cuMemGetInfo_v2", |driver| {
        free.set(driver.config.memory - driver.device.used());
        total.set(driver.config.memory);
        Ok(String::new())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: Out<usize>, bytes: usize, flags: u32) -> Code {
    call("cuMemHostAlloc", |driver| {
        if bytes == 0 {
            return driver.refuse("an allocation of nothing".into(), INVALID_VALUE);
        }
        let (start, name) = driver.host.allocate(bytes);
        address.set(start);
        Ok(format!("{bytes} flags {flags} -> {name}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> Code {
    call("cuMemFreeHost", |driver| {
        driver.check_idle(address)?;
        let freed = driver.host.free(address);
        driver.valid(freed)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(dst: u64, src: usize, bytes: usize, stream: Handle) -> Code {
    call("cuMemcpyHtoDAsync_v2", |driver| {
        let dst = dst as usize;
        let (to, from) = (driver.device.find(dst, bytes), driver.host.find(src, bytes));
        let (to, from) = (driver.valid(to)?, driver.valid(from)?);
        driver.enqueue(stream, Operation::Copy { dst, src, bytes })?;
        Ok(format!("{from} -> {to} {bytes} bytes {}", driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(dst: usize, src: u64, bytes: usize, stream: Handle) -> Code {
    call("cuMemcpyDtoHAsync_v2", |driver| {
        let src = src as usize;
        let (to, from) = (driver.host.find(dst, bytes), driver.device.find(src, bytes));
        let (to, from) = (driver.valid(to)?, driver.valid(from)?);
        driver.enqueue(stream, Operation::Copy { dst, src, bytes })?;
        Ok(format!("{from} -> {to} {bytes} bytes {}", driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle) -> Code {
    call("cuMemcpyDtoDAsync_v2", |driver| {
        let (dst, src, stream) = (dst as usize, src as usize, driver.stream(stream)?);
        let (to, from) = (driver.device.find(dst, bytes), driver.device.find(src, bytes));
        let (to, from) = (driver.valid(to)?, driver.valid(from)?);
        driver.enqueue(stream, Operation::Copy { dst, src, bytes })?;
        Ok(format!("{from} -> {to} {bytes} bytes {}", driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Handle) -> Code {
    call("cuMemcpy2DAsync_v2", |driver| {
        let stream = driver.stream(stream)?;
        // SAFETY: the driver's contract: the struct is live.
        let Some(rows) = unsafe { &*copy }.rows() else {
            return driver.refuse("a copy of rows that is not on the device".into(), INVALID_VALUE);
        };
        let mut copied = Vec::new();
        for (dst, src, bytes) in rows {
            let (to, from) = (driver.device.find(dst, bytes), driver.device.find(src, bytes));
            copied.push(format!("{} -> {} {bytes} bytes", driver.valid(from)?, driver.valid(to)?));
            driver.enqueue(stream, Operation::Copy { dst, src, bytes })?;
        }
        Ok(format!("{} {}", copied.join(", "), driver.streams.name(stream)))
    })
}

/// Answers for the kind of memory and its device; ordinary memory is unknown, which is no error.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *const u32,
    values: *const Out<c_int>,
    address: u64,
) -> Code {
    const KIND_AND_DEVICE: [u32; 2] = [2, 9];
    call("cuPointerGetAttributes", |driver| {
        // SAFETY: the driver's contract: there are `count` of both.
        let (attributes, values) = unsafe {
            (std::slice::from_raw_parts(attributes, count as usize), std::slice::from_raw_parts(values, count as usize))
        };
        if attributes != KIND_AND_DEVICE {
            return driver.refuse(format!("attributes {attributes:?}, which the fake does not know"), INVALID_VALUE);
        }
        let of = |memory: &crate::memory::Memory| memory.find(address as usize, 1);
        let (kind, name) = match (of(&driver.device), of(&driver.host)) {
            (Ok(name), _) => (2, name),
            (_, Ok(name)) => (1, name),
            _ => (0, "ordinary memory".into()),
        };
        values[0].set(kind);
        values[1].set(if kind == 0 { -2 } else { 0 });
        Ok(name)
    })
}

// Streams and events -----------------------------------------------------------------------------------------------

/// Creates a stream that belongs to the program.
#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: u32) -> Code {
    call("cuStreamCreate", |driver| {
        let handle = driver.streams.add(Stream { context: Driver::current(), ..Stream::default() });
        stream.set(handle);
        Ok(format!("flags {flags} -> {}", driver.streams.name(handle)))
    })
}

/// Returns the stream's context: for a default stream the current context.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> Code {
    call("cuStreamGetCtx", |driver| {
        let stream = driver.stream(stream)?;
        if Some(stream) == driver.default_stream {
            context.set(Driver::current());
            return Ok("of the default stream".into());
        }
        let found = driver.streams.get(stream).map(|stream| stream.context);
        context.set(driver.valid(found)?);
        Ok(driver.streams.name(stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) -> Code {
    call("cuStreamIsCapturing", |driver| {
        let stream = driver.stream(stream)?;
        let found = driver.streams.get(stream).map(|stream| stream.place.is_some());
        status.set(driver.valid(found)?.into());
        Ok(driver.streams.name(stream))
    })
}

/// Waits for a stream. Only programs call it: trefoil waits for events.
#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call("cuStreamSynchronize", |driver| {
        let stream = driver.stream(stream)?;
        loop {
            let found = driver.streams.get(stream).map(|stream| stream.queue.is_empty());
            if driver.valid(found)? {
                return Ok(driver.streams.name(stream));
            }
            if !driver.step() {
                return driver.never_ends();
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: c_int) -> Code {
    call("cuStreamCreateWithPriority", |driver| {
        let handle = driver.streams.add(Stream { context: Driver::current(), ..Stream::default() });
        stream.set(handle);
        Ok(format!("flags {flags} priority {priority} -> {}", driver.streams.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call("cuStreamDestroy_v2", |driver| {
        let ended = driver.streams.end(stream).map(|_| ());
        driver.valid(ended)?;
        Ok(driver.streams.name(stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> Code {
    call("cuStreamWaitEvent", |driver| {
        let stream = driver.stream(stream)?;
        let found = driver.events.get(event).map(|event| (event.recorded, event.place.clone()));
        match driver.valid(found)? {
            (_, Some(place)) => driver.join_capture(stream, place)?,
            (recording, None) => driver.enqueue(stream, Operation::Wait { event, recording })?,
        }
        Ok(format!("{} {}", driver.streams.name(stream), driver.events.name(event)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<Handle>, flags: u32) -> Code {
    call("cuEventCreate", |driver| {
        let handle = driver.events.add(Event { timing: flags & 2 == 0, place: None, recorded: 0, done: 0, at_ms: 0.0 });
        event.set(handle);
        Ok(format!("flags {flags} -> {}", driver.events.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call("cuEventDestroy_v2", |driver| {
        let ended = driver.events.end(event).map(|_| ());
        driver.valid(ended)?;
        Ok(driver.events.name(event))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call("cuEventRecord", |driver| {
        let stream = driver.stream(stream)?;
        let place = driver.place(stream)?;
        let captured = place.is_some();
        let found = driver.events.get(event).map(|event| {
            event.recorded += u64::from(!captured);
            event.place = place;
            event.recorded
        });
        let recording = driver.valid(found)?;
        if !captured {
            driver.enqueue(stream, Operation::Record { event, recording })?;
        }
        Ok(format!("{} {}", driver.events.name(event), driver.streams.name(stream)))
    })
}

/// Records an event as a node of a captured graph, so that the event can be queried after each run: no other use is
/// allowed.
#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) -> Code {
    const EXTERNAL: u32 = 1;
    call("cuEventRecordWithFlags", |driver| {
        let found = driver.events.get(event).map(|event| event.timing);
        let timing = driver.valid(found)?;
        if driver.place(stream)?.is_none() || flags != EXTERNAL || !timing {
            return driver.refuse("a record with flags that is no timing event in a graph".into(), INVALID_VALUE);
        }
        driver.capture(stream, Node::Record(event), false)?;
        Ok(format!("{} {}", driver.events.name(event), driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Code {
    call("cuEventQuery", |driver| {
        if !driver.config.own {
            driver.step();
        }
        let found = driver.events.get(event).map(|event| event.done >= event.recorded);
        match driver.valid(found)? {
            true => Ok(driver.events.name(event)),
            false => Err(NOT_READY),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    crate::driver::sleep_until_done(event);
    call("cuEventSynchronize", |driver| {
        driver.finish(event)?;
        Ok(driver.events.name(event))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(ms: Out<f32>, start: Handle, end: Handle) -> Code {
    call("cuEventElapsedTime_v2", |driver| {
        for event in [start, end] {
            let found = driver.events.get(event).map(|event| (event.timing, event.done == event.recorded));
            match driver.valid(found)? {
                (true, true) => {}
                (false, _) => return driver.refuse("the time of an event without timing".into(), INVALID_HANDLE),
                (_, false) => return Err(NOT_READY),
            }
        }
        let [start_ms, end_ms] = [start, end].map(|event| driver.events.ever(event).at_ms);
        // The time is never 0: two events are never recorded at the same moment.
        ms.set((end_ms - start_ms) as f32 + 0.001);
        Ok(format!("{} {}", driver.events.name(start), driver.events.name(end)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(usize), data: usize) -> Code {
    call("cuLaunchHostFunc", |driver| {
        driver.enqueue(stream, Operation::Call { function, data })?;
        Ok(driver.streams.name(stream))
    })
}

// Modules and launches ---------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: *const c_char,
    count: u32,
    options: *const u32,
    values: *const *mut c_void,
) -> Code {
    /// CU_JIT_ERROR_LOG_BUFFER, followed by its size.
    const ERROR_LOG: [u32; 2] = [5, 6];
    call("cuModuleLoadDataEx", |driver| {
        // SAFETY: the driver's contract: a cubin is whole, PTX ends with a NUL; there are `count` options and values.
        let (read, options, values) =
            unsafe { (Module::read(image.cast()), list(options, count), list(values, count)) };
        let complaint = driver.config.ptx_error.clone();
        let read = match complaint.map_or(read, Err) {
            Ok(read) => read,
            Err(complaint) => {
                if options == ERROR_LOG {
                    // SAFETY: the second value is the size of the buffer that the first points to.
                    unsafe { write_text(&complaint, values[0].cast(), values[1].addr()) };
                }
                return Err(INVALID_PTX);
            }
        };
        if read.capability.is_some_and(|only| only != driver.config.capability) {
            return Err(NO_BINARY_FOR_GPU);
        }
        let kernels = read.kernels.len();
        let handle = driver.modules.add(read);
        module.set(handle);
        Ok(format!("{kernels} kernels -> {}", driver.modules.name(handle)))
    })
}

/// Writes as much of a text as there is room for, and a NUL.
///
/// # Safety
/// There are as many bytes that may be written.
unsafe fn write_text(text: &str, to: *mut u8, bytes: usize) {
    let Some(most) = bytes.checked_sub(1) else { return };
    let len = text.len().min(most);
    // SAFETY: by the caller; the text and its NUL are no longer.
    unsafe {
        to.copy_from(text.as_ptr(), len);
        to.add(len).write(0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call("cuModuleUnload", |driver| {
        let ended = driver.modules.end(module).map(|_| ());
        driver.valid(ended)?;
        Ok(driver.modules.name(module))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: *const c_char) -> Code {
    call("cuModuleGetFunction", |driver| {
        // SAFETY: the driver's contract: the name ends with a NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let found = driver.modules.get(module).map(|m| m.kernels.iter().find(|k| k.name == name).cloned());
        let kernel = driver.valid(found)?.ok_or(NOT_FOUND)?;
        let handle =
            driver.functions.add(Function { module, kernel, shared_bytes: 48 << 10, most_cluster: 8, loaded: false });
        function.set(handle);
        Ok(format!("{} {name} -> {}", driver.modules.name(module), driver.functions.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: c_int) -> Code {
    call("cuFuncSetAttribute", |driver| {
        let refused = format!("attribute {attribute} of a function set to {value}");
        let what = match attribute {
            8 if (0..=227 << 10).contains(&value) => "shared",
            9 if (-1..=100).contains(&value) => "percent for shared memory",
            14 if value == 1 => "large clusters",
            _ => return driver.refuse(refused, INVALID_VALUE),
        };
        let set = |function: &mut Function| match attribute {
            8 => function.shared_bytes = value as u32,
            9 => {}
            _ => function.most_cluster = 16,
        };
        let found = driver.functions.get(function).map(set);
        driver.valid(found)?;
        Ok(format!("{} {what} {value}", driver.functions.name(function)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(function: Handle) -> Code {
    call("cuFuncLoad", |driver| {
        let found = driver.functions.get(function).map(|function| function.loaded = true);
        driver.valid(found)?;
        Ok(driver.functions.name(function))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    parameters: *const *const u8,
    _extra: *const c_void,
) -> Code {
    call("cuLaunchKernelEx", |driver| {
        // SAFETY: the driver's contract: the configuration is live.
        let config = unsafe { &*config };
        // SAFETY: the driver's contract: there is a pointer to each of the kernel's parameters.
        let node = unsafe { driver.node(config, function, parameters)? };
        let line = format!(
            "{} {:?} {:?} {}",
            driver.functions.ever(function).kernel.name,
            config.grid,
            config.block,
            config.shared_bytes
        );
        let me = std::thread::current().id();
        match driver.place(config.stream)? {
            Some(place) if driver.capturing.contains(&(me, place.origin)) => {
                driver.capture(config.stream, node, config.is_early())?;
            }
            None if driver.capturing.iter().all(|(thread, _)| *thread != me) => {
                driver.enqueue(config.stream, Operation::Run(vec![node]))?;
            }
            _ => return driver.refuse("a launch past the capture".into(), CAPTURE_INVALIDATED),
        }
        Ok(format!("{line} {}", driver.streams.name(config.stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeTiled(
    map: Out<TensorMap>,
    data_type: u32,
    rank: u32,
    address: usize,
    dims: *const u64,
    strides: *const u64,
    box_dims: *const u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    _promotion: u32,
    fill: u32,
) -> Code {
    call("cuTensorMapEncodeTiled", |driver| {
        // SAFETY: the driver's contract: as many elements as the rank says, and one stride less.
        let tensor = unsafe { Tensor::read(address, rank, dims, strides, steps) };
        // SAFETY: as above.
        let box_dims = unsafe { std::slice::from_raw_parts(box_dims, rank as usize) };
        let how = [data_type, interleave, swizzle, fill];
        let most = [(HALVES, 128)].into_iter().chain(HALVES_OTHERWISE).find(|(known, _)| *known == how);
        let most = most.map_or(0, |(_, bytes)| bytes); // none of a map that is not known
        let fits = box_dims.iter().all(|dim| (1..=256).contains(dim));
        if !fits || !(1..=5).contains(&rank) || !(box_dims[0] * 2).is_multiple_of(16) || box_dims[0] * 2 > most {
            return driver.refuse(format!("a tensor map with boxes of {box_dims:?}"), INVALID_VALUE);
        }
        let block = driver.tensor(&tensor)?;
        map.set(tensor.map());
        Ok(format!("{block} {:?} boxes {box_dims:?}", tensor.dims))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2col(
    map: Out<TensorMap>,
    data_type: u32,
    rank: u32,
    address: usize,
    dims: *const u64,
    strides: *const u64,
    lower: *const c_int,
    upper: *const c_int,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    _promotion: u32,
    fill: u32,
) -> Code {
    call("cuTensorMapEncodeIm2col", |driver| {
        if rank != 4 {
            return driver.refuse(format!("an im2col map of rank {rank}"), INVALID_VALUE);
        }
        // SAFETY: the driver's contract: four dimensions and steps, three strides, two coordinates of each corner.
        let (tensor, lower, upper) = unsafe {
            let corner = |corner| std::slice::from_raw_parts::<c_int>(corner, 2);
            (Tensor::read(address, rank, dims, strides, steps), corner(lower), corner(upper))
        };
        let corners = lower.iter().chain(upper).all(|corner| (-128..=127).contains(corner));
        let columns = channels * 2 <= 128 && (channels * 2).is_multiple_of(16) && (1..=256).contains(&pixels);
        // Each dimension needs room for at least one window.
        let room = (0..2).all(|axis| tensor.dims[1 + axis] as i64 + i64::from(upper[axis] - lower[axis]) > 0);
        if !corners || !columns || !room || [data_type, interleave, swizzle, fill] != HALVES {
            let what = format!("an im2col map of {:?}, corners {lower:?} {upper:?}", tensor.dims);
            return driver.refuse(what, INVALID_VALUE);
        }
        let block = driver.tensor(&tensor)?;
        map.set(tensor.map());
        Ok(format!("{block} {:?} corners {lower:?} {upper:?} steps {:?}", tensor.dims, tensor.steps))
    })
}

// Graphs -----------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> Code {
    const THREAD_LOCAL: u32 = 1;
    call("cuStreamBeginCapture_v2", |driver| {
        if mode != THREAD_LOCAL {
            return driver.refuse(format!("capture mode {mode}, which stops other threads' calls"), INVALID_VALUE);
        }
        driver.begin_capture(stream)?;
        Ok(format!("{} thread-local", driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Code {
    call("cuStreamEndCapture", |driver| {
        let nodes = driver.end_capture(stream)?;
        if driver.injected.is_some() {
            graph.set(0);
            return Err(CAPTURE_INVALIDATED);
        }
        let count = nodes.len();
        let handle = driver.graphs.add(nodes);
        graph.set(handle);
        Ok(format!("{} -> {} of {count}", driver.streams.name(stream), driver.graphs.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: u64) -> Code {
    call("cuGraphInstantiateWithFlags", |driver| {
        let found = driver.graphs.get(graph).cloned();
        let nodes = driver.valid(found)?;
        let handle = driver.execs.add(nodes);
        exec.set(handle);
        Ok(format!("{} -> {}", driver.graphs.name(graph), driver.execs.name(handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> Code {
    call("cuGraphUpload", |driver| {
        let found = driver.execs.get(exec).map(|_| ()).and(driver.streams.get(stream).map(|_| ()));
        driver.valid(found)?;
        Ok(format!("{} {}", driver.execs.name(exec), driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> Code {
    call("cuGraphLaunch", |driver| {
        let found = driver.execs.get(exec).cloned();
        let nodes = driver.valid(found)?;
        driver.enqueue(stream, Operation::Run(nodes))?;
        Ok(format!("{} {}", driver.execs.name(exec), driver.streams.name(stream)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> Code {
    call("cuGraphDestroy", |driver| {
        let ended = driver.graphs.end(graph).map(|_| ());
        driver.valid(ended)?;
        Ok(driver.graphs.name(graph))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: Handle) -> Code {
    call("cuGraphExecDestroy", |driver| {
        let ended = driver.execs.end(exec).map(|_| ());
        driver.valid(ended)?;
        Ok(driver.execs.name(exec))
    })
}
