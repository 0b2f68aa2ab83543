//! Engines in the middle of a program with CUDA of its own: its context, its streams, its memory.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::thread;

use cudarc::driver::sys;
use trefoil::{CallerStream, Device, DeviceOutput, DeviceRows, Engine, Error, Target};

use crate::engine::{compare_with_kept, fail_each_call_of, small_model};
use crate::harness::{Scenario, for_each_number, mark, wait_for_release};

/// Bytes of a row of pixels, as the model reads them, and of rows in the caller's memory.
const ROW_BYTES: usize = 12 * 10 * 3;
const PITCH: usize = ROW_BYTES + 24;
const ROWS: usize = 3;

/// A call of the program's own. A failed one is told as trefoil tells of its own.
fn cuda(name: &'static str, status: sys::CUresult) -> Result<(), Error> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(Error::Internal { what: format!("{name} failed with {status:?}") }),
    }
}

macro_rules! cuda {
    ($function:ident($($argument:expr),*)) => {
        // SAFETY: each use passes live handles, memory and places for results, as the driver's documentation asks.
        cuda(stringify!($function).trim_end_matches("_v2"), unsafe { sys::$function($($argument),*) })
    };
}

/// A context of the program's own.
struct Context(sys::CUcontext);

impl Context {
    fn new() -> Result<Self, Error> {
        let mut context = null_mut();
        cuda!(cuInit(0))?;
        cuda!(cuCtxCreate_v4(&mut context, null_mut(), 0, 0))?;
        Ok(Self(context))
    }

    fn device(&self) -> Result<Device, Error> {
        // SAFETY: the context is destroyed when the engines in it are gone.
        unsafe { Device::in_context(self.0.cast()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = cuda!(cuCtxDestroy_v2(self.0));
    }
}

/// A stream of the program's own, in the context that is current.
struct Stream(sys::CUstream);

impl Stream {
    fn new() -> Result<Self, Error> {
        let mut stream = null_mut();
        cuda!(cuStreamCreate(&mut stream, 1))?;
        Ok(Self(stream))
    }

    fn caller(&self) -> CallerStream {
        // SAFETY: destroyed after all that it is passed to.
        unsafe { CallerStream::from_raw(self.0.cast::<c_void>()) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = cuda!(cuStreamDestroy_v2(self.0));
    }
}

/// Memory of the program's own, in the context that is current. The stand-in's is the host's.
struct Memory(u64);

impl Memory {
    fn new(bytes: usize) -> Result<Self, Error> {
        let mut addr = 0;
        cuda!(cuMemAlloc_v2(&mut addr, bytes))?;
        Ok(Self(addr))
    }

    fn rows(&self, stream: CallerStream) -> DeviceRows {
        DeviceRows { addr: self.0, pitch: PITCH, stream }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = cuda!(cuMemFree_v2(self.0));
    }
}

fn build(device: &Device, results: usize) -> Result<Engine, Error> {
    let model = small_model();
    let builder = Engine::builder(&model).on(device).batch_sizes(&[1, 4]).slots(3).staging(2).results(results);
    builder.device_results(true).check(true).build()
}

/// Submits the rows of `memory`, and has `reader` wait for the result.
fn submit(engine: &Engine, memory: &Memory, writer: &Stream, reader: &Stream) -> Result<DeviceOutput, Error> {
    let mut batch = engine.acquire()?;
    // SAFETY: the memory has so many rows, and is freed after all streams are done.
    unsafe { batch.read_from(memory.rows(writer.caller()))? };
    let mut output = batch.submit_to_device(ROWS)?;
    output.wait_on(reader.caller())?;
    Ok(output)
}

/// Four batches in a context of the program's own, each result copied by a stream of the program's.
fn on_device(context: &Context) -> Result<(), Error> {
    let (writer, reader) = (Stream::new()?, Stream::new()?);
    let (memory, kept) = (Memory::new(ROWS * PITCH)?, Memory::new(4096)?);
    let device = context.device()?;
    let engine = build(&device, 3)?;
    for round in 0..4 {
        mark(&format!("submit {round}"));
        let mut output = submit(&engine, &memory, &writer, &reader)?;
        let bytes = output.rows() * output.spec().row_pitch;
        cuda!(cuMemcpyDtoDAsync_v2(kept.0, output.addr(), bytes, reader.0))?;
        output.read_on(reader.caller())?;
        mark(&format!("drop {round}"));
        drop(output);
        mark(&format!("done {round}"));
    }
    mark("drop");
    cuda!(cuStreamSynchronize(reader.0))?;
    drop(engine);
    wait_until_empty(&device);
    Ok(())
}

/// The context may be destroyed when nothing is left in it, but for what a fault leaves.
fn wait_until_empty(device: &Device) {
    while device.memory_use().device_bytes > 0 && device.fault().is_none() {
        thread::yield_now();
    }
}

fn one_run() {
    on_device(&Context::new().unwrap()).unwrap();
}

#[test]
fn the_calls_of_a_batch_on_the_device_are_as_kept() {
    let report = Scenario::new("interop::the_calls_of_a_batch_on_the_device_are_as_kept", one_run).run(&[]);
    report.assert_clean();
    let mut kept = String::new();
    for (round, what) in [(0, "the first batch"), (3, "the first batch of a used slot and result")] {
        let calls = report.between(&format!("submit {round}"), &format!("drop {round}"));
        kept.push_str(&format!("# {what}, with the caller's copy of the result\n{}\n", calls.join("\n")));
        let dropped = report.between(&format!("drop {round}"), &format!("done {round}"));
        assert_eq!(dropped, [""; 0], "to drop an output is no call");
    }
    compare_with_kept(&kept, "on_device.log");
    let steady = report.between("submit 0", "done 3");
    let foreign = ["HtoD", "DtoH", "Synchronize", "cuMemAlloc", "cuMemHostAlloc", "Create", "cuEventQuery"];
    let unwanted = steady.iter().filter(|call| foreign.iter().any(|name| call.contains(name)));
    // The ring looks whether uploads are done, where it has lent all its staging.
    let unwanted: Vec<_> = unwanted.filter(|call| !call.starts_with("cuEventQuery")).collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
    assert!(!report.log.iter().any(|call| call.contains("PrimaryCtx")), "{report}");
}

/// Of the program's own calls as well as of trefoil's.
fn one_run_that_may_fail() -> Result<Option<Error>, Error> {
    let context = Context::new()?;
    let outcome = on_device(&context);
    Ok(outcome.err())
}

#[test]
fn every_call_of_an_engine_in_the_middle_may_fail() {
    for sticky in ["0", "1"] {
        fail_each_call_of("interop::every_call_of_an_engine_in_the_middle_may_fail", sticky, || {
            match one_run_that_may_fail() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => {
                    println!("{error}");
                    if matches!(error, Error::Fault { .. }) {
                        println!("faulted");
                    }
                }
            }
        });
    }
}

/// Work that runs as late as it may, in many orders of the streams, with two results for all.
#[test]
fn late_readers_never_meet_the_next_result() {
    let scenario = Scenario::new("interop::late_readers_never_meet_the_next_result", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let context = Current::of(&device);
                    let (writer, reader) = (Stream::new().unwrap(), Stream::new().unwrap());
                    let (memory, kept) = (Memory::new(ROWS * PITCH).unwrap(), Memory::new(4096).unwrap());
                    for _ in 0..12 {
                        let mut output = submit(&engine, &memory, &writer, &reader).unwrap();
                        cuda!(cuMemcpyDtoDAsync_v2(kept.0, output.addr(), 768, reader.0)).unwrap();
                        output.read_on(reader.caller()).unwrap();
                    }
                    cuda!(cuStreamSynchronize(writer.0)).unwrap();
                    cuda!(cuStreamSynchronize(reader.0)).unwrap();
                    drop((writer, reader, memory, kept, context));
                });
            }
        });
        // What is handed back keeps the ring, also when the engine is gone.
        let (memory, reader) = {
            let _context = Current::of(&device);
            (Memory::new(ROWS * PITCH).unwrap(), Stream::new().unwrap())
        };
        let output = submit(&engine, &memory, &reader, &reader).unwrap();
        assert!(device.fault().is_none(), "{:?}", device.fault());
        drop(engine);
        drop(output);
        wait_until_empty(&device);
        drop((memory, reader, device));
        wait_for_release();
    });
    for_each_number(8, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// The device's primary context, current on this thread.
struct Current;

impl Current {
    fn of(_open: &Device) -> Self {
        let mut context = null_mut();
        cuda!(cuDevicePrimaryCtxRetain(&mut context, 0)).unwrap();
        cuda!(cuCtxPushCurrent_v2(context)).unwrap();
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = null_mut();
        cuda!(cuCtxPopCurrent_v2(&mut context)).unwrap();
        cuda!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    }
}

/// What the device cannot work with is refused, and is no fault.
#[test]
fn foreign_streams_and_memory_are_refused() {
    let scenario = Scenario::new("interop::foreign_streams_and_memory_are_refused", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        let current = Current::of(&device);
        let (stream, memory) = (Stream::new().unwrap(), Memory::new(ROWS * PITCH).unwrap());
        let context = Context::new().unwrap();
        let foreign = Stream::new().unwrap();
        let ordinary = [0_u8; ROWS * PITCH];
        let mut batch = engine.acquire().unwrap();
        // SAFETY: what is refused is not read.
        let mut refused = |rows: DeviceRows| match unsafe { batch.read_from(rows) } {
            Err(Error::Option { option, value, .. }) => format!("{option}: {value}"),
            other => panic!("{other:?}"),
        };
        let rows = memory.rows(stream.caller());
        let of_host = DeviceRows { addr: ordinary.as_ptr() as u64, ..rows };
        assert!(refused(of_host).contains("not memory of cuda:0"));
        let elsewhere = "stream: one of another CUDA context";
        assert_eq!(refused(DeviceRows { stream: foreign.caller(), ..rows }), elsewhere);
        cuda!(cuStreamBeginCapture_v2(stream.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)).unwrap();
        // Asked from another thread: this one captures.
        let captures = thread::scope(|scope| scope.spawn(|| refused(rows)).join().unwrap());
        assert_eq!(captures, "stream: one that captures a graph");
        let mut graph = null_mut();
        cuda!(cuStreamEndCapture(stream.0, &mut graph)).unwrap();
        cuda!(cuGraphDestroy(graph)).unwrap();
        assert!(unsafe { Device::in_context(null_mut()) }.is_err_and(|e| matches!(e, Error::Option { .. })));

        // SAFETY: the memory has so many rows, and lives until the end.
        unsafe { batch.read_from(rows).unwrap() };
        let mut output = batch.submit_to_device(ROWS).unwrap();
        assert!(matches!(output.wait_on(foreign.caller()), Err(Error::Option { option: "stream", .. })));
        assert!(matches!(output.read_on(foreign.caller()), Err(Error::Option { option: "stream", .. })));
        output.wait().unwrap();
        assert!(device.fault().is_none(), "{:?}", device.fault());
        drop((output, engine, foreign, context, stream, memory, current));
        drop(device);
        wait_for_release();
    });
    scenario.run(&[]).assert_clean();
}

/// The default stream is that of the device's context, whichever is current.
#[test]
fn the_default_stream_is_the_devices() {
    let scenario = Scenario::new("interop::the_default_stream_is_the_devices", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        let memory = {
            let _current = Current::of(&device);
            Memory::new(ROWS * PITCH).unwrap()
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                // Another context is current.
                let context = Context::new().unwrap();
                let mut batch = engine.acquire().unwrap();
                // SAFETY: the memory has so many rows, and lives until the end.
                unsafe { batch.read_from(memory.rows(CallerStream::DEFAULT)).unwrap() };
                let mut output = batch.submit_to_device(ROWS).unwrap();
                output.wait_on(CallerStream::DEFAULT).unwrap();
                output.read_on(CallerStream::DEFAULT).unwrap();
                drop((output, context));
            });
        });
        drop((memory, engine, device));
        wait_for_release();
    });
    scenario.run(&[]).assert_clean();
}
