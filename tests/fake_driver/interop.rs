//! Engines inside a program that uses CUDA itself: in its context, with its streams and its memory.

use std::fs;
use std::ptr::null_mut;
use std::thread;

use cudarc::driver::sys::CUstreamCaptureMode;
use trefoil::trace::TraceStage;
use trefoil::{CallerStream, Device, DeviceOutput, DeviceRows, Engine, Error, Target};

use crate::cuda::{Context, Memory, Primary, Stream, cuda};
use crate::engine::{compare_with_kept, fail_each_call_of, small_model};
use crate::harness::{Scenario, for_each_number, mark, wait_for_release};

/// Bytes of a row of pixels as the model reads it, and the distance of rows in the caller's memory, which in the
/// stand-in is host memory.
const ROW_BYTES: usize = 12 * 10 * 3;
const PITCH: usize = ROW_BYTES + 24;
const ROWS: usize = 3;

fn rows(memory: &Memory, stream: CallerStream) -> DeviceRows {
    DeviceRows { addr: memory.0, pitch: PITCH, stream }
}

fn build(device: &Device, results: usize) -> Result<Engine, Error> {
    let model = small_model();
    let builder = Engine::builder(&model).on(device).batch_sizes(&[1, 4]).slots(3).staging(2).results(results);
    builder.device_results(true).check(true).build()
}

/// Submits the rows of `memory`, and makes `reader` wait for the result.
fn submit(engine: &Engine, memory: &Memory, writer: &Stream, reader: &Stream) -> Result<DeviceOutput, Error> {
    let mut batch = engine.acquire()?;
    // SAFETY: the memory has so many rows, and is freed after all streams are done.
    unsafe { batch.read_from(rows(memory, writer.caller()))? };
    let mut output = batch.submit_to_device(ROWS)?;
    output.wait_on(reader.caller())?;
    Ok(output)
}

/// Runs four batches in a context that the program made, and copies each result on a stream of the program.
fn on_device(context: &Context) -> Result<(), Error> {
    let (writer, reader) = (Stream::new()?, Stream::new()?);
    let (memory, kept) = (Memory::new(ROWS * PITCH)?, Memory::new(4096)?);
    let device = context.device()?;
    let outcome = four_batches(&device, (&memory, &writer), (&kept, &reader));
    wait_until_unused(&device);
    if device.fault().is_some() {
        println!("faulted");
    }
    outcome
}

fn four_batches(
    device: &Device,
    (memory, writer): (&Memory, &Stream),
    (kept, reader): (&Memory, &Stream),
) -> Result<(), Error> {
    let engine = build(device, 3)?;
    for round in 0..4 {
        mark(&format!("submit {round}"));
        let mut output = submit(&engine, memory, writer, reader)?;
        let bytes = output.rows() * output.spec().row_pitch;
        cuda!(cuMemcpyDtoDAsync_v2(kept.0, output.addr(), bytes, reader.0))?;
        output.read_on(reader.caller())?;
        mark(&format!("drop {round}"));
        drop(output);
        mark(&format!("done {round}"));
    }
    mark("drop");
    reader.synchronize()
}

/// Waits until the context may be destroyed. After a fault the device stays in use, but the ring's threads end.
fn wait_until_unused(device: &Device) {
    while !device.is_unused() && (device.fault().is_none() || has_ring_threads()) {
        thread::yield_now();
    }
}

fn has_ring_threads() -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("comm"));
    let mut names = threads.filter_map(|comm| fs::read_to_string(comm).ok());
    names.any(|name| name.starts_with("trefoil-done") || name.starts_with("trefoil-up"))
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
    // The ring asks whether uploads are done while all its staging buffers are lent.
    let unwanted: Vec<_> = unwanted.filter(|call| !call.starts_with("cuEventQuery")).collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
    assert!(!report.log.iter().any(|call| call.contains("PrimaryCtx")), "{report}");
}

/// Every call may fail, including the program's own.
#[test]
fn every_call_of_an_engine_in_the_middle_may_fail() {
    for sticky in ["0", "1"] {
        fail_each_call_of("interop::every_call_of_an_engine_in_the_middle_may_fail", sticky, || {
            if let Err(error) = Context::new().and_then(|context| on_device(&context)) {
                println!("{error}");
            }
        });
    }
}

/// Work runs as late as possible, in many orders of the streams, with two results for all readers.
#[test]
fn late_readers_never_meet_the_next_result() {
    let scenario = Scenario::new("interop::late_readers_never_meet_the_next_result", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let context = Primary::of(&device);
                    let (writer, reader) = (Stream::new().unwrap(), Stream::new().unwrap());
                    let (memory, kept) = (Memory::new(ROWS * PITCH).unwrap(), Memory::new(4096).unwrap());
                    for _ in 0..12 {
                        let mut output = submit(&engine, &memory, &writer, &reader).unwrap();
                        cuda!(cuMemcpyDtoDAsync_v2(kept.0, output.addr(), 768, reader.0)).unwrap();
                        output.read_on(reader.caller()).unwrap();
                    }
                    writer.synchronize().unwrap();
                    reader.synchronize().unwrap();
                    drop((writer, reader, memory, kept, context));
                });
            }
        });
        // Results that were handed back keep the ring alive, even after the engine is dropped.
        let (memory, reader) = {
            let _context = Primary::of(&device);
            (Memory::new(ROWS * PITCH).unwrap(), Stream::new().unwrap())
        };
        let output = submit(&engine, &memory, &reader, &reader).unwrap();
        assert!(device.fault().is_none(), "{:?}", device.fault());
        drop(engine);
        drop(output);
        wait_until_unused(&device);
        drop((memory, reader, device));
        wait_for_release();
    });
    for_each_number(8, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// Streams and memory that the device cannot work with are refused, which is no fault.
#[test]
fn foreign_streams_and_memory_are_refused() {
    let scenario = Scenario::new("interop::foreign_streams_and_memory_are_refused", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        let current = Primary::of(&device);
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
        let good = rows(&memory, stream.caller());
        let of_host = DeviceRows { addr: ordinary.as_ptr() as u64, ..good };
        assert!(refused(of_host).contains("not memory of cuda:0"));
        let elsewhere = "stream: one of another CUDA context";
        assert_eq!(refused(DeviceRows { stream: foreign.caller(), ..good }), elsewhere);
        cuda!(cuStreamBeginCapture_v2(stream.0, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)).unwrap();
        // The call comes from another thread, because this one captures.
        let captures = thread::scope(|scope| scope.spawn(|| refused(good)).join().unwrap());
        assert_eq!(captures, "stream: one that captures a graph");
        let mut graph = null_mut();
        cuda!(cuStreamEndCapture(stream.0, &mut graph)).unwrap();
        cuda!(cuGraphDestroy(graph)).unwrap();
        // SAFETY: null is refused.
        let none = unsafe { Device::in_context(null_mut()) };
        assert!(matches!(none, Err(Error::Option { option: "context", .. })));

        // SAFETY: the memory has so many rows, and lives until the end.
        unsafe { batch.read_from(good).unwrap() };
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

/// The default stream is that of the device's context, whichever context is current.
#[test]
fn the_default_stream_is_the_devices() {
    let scenario = Scenario::new("interop::the_default_stream_is_the_devices", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&device, 2).unwrap();
        let memory = {
            let _current = Primary::of(&device);
            Memory::new(ROWS * PITCH).unwrap()
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                // Another context is current now.
                let context = Context::new().unwrap();
                let mut batch = engine.acquire().unwrap();
                // SAFETY: the memory has so many rows, and lives until the end.
                unsafe { batch.read_from(rows(&memory, CallerStream::DEFAULT)).unwrap() };
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

/// The copy of a caller's rows is recorded on the caller's stream, even if the stream is gone when times are read.
#[test]
fn what_is_done_on_a_callers_stream_is_recorded() {
    let scenario = Scenario::new("interop::what_is_done_on_a_callers_stream_is_recorded", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = small_model();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[4]).slots(2).staging(2).results(2);
        let engine = builder.device_results(true).check(true).trace(true).build().unwrap();
        {
            let _current = Primary::of(&device);
            let (writer, reader) = (Stream::new().unwrap(), Stream::new().unwrap());
            let memory = Memory::new(ROWS * PITCH).unwrap();
            for _ in 0..5 {
                submit(&engine, &memory, &writer, &reader).unwrap().read_on(reader.caller()).unwrap();
            }
            reader.synchronize().unwrap();
        }
        let trace = engine.trace().unwrap();
        for stage in TraceStage::DEVICE {
            let of_stage = trace.intervals().iter().filter(|interval| interval.stage == stage);
            assert_eq!(of_stage.count(), 5, "{stage}: {trace:?}");
        }
        drop((engine, device));
        wait_for_release();
    });
    scenario.run(&[]).assert_clean();
}
