//! Whole engines: the calls of one batch, a failure of each call, late and reordered work, drops, too little memory.

use std::fs;
use std::path::Path;
use std::thread;

use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::Limits;
use trefoil::{Device, Engine, Error, Precision, Shape, Stage, Target};

use crate::harness::{Scenario, for_each_number, mark, wait_for_release};
use crate::support;

/// A model with one step of every kind: both convolutions, sum, two branches, pools, classifier.
pub fn small_model() -> Model {
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", Shape::new(12, 10, 3));
    let x = graph.conv2d("stem", image, 16, Window::square(3, 2, 1));
    let depthwise = Conv2d { groups: 16, ..Conv2d::named("depthwise", 16, Window::square(3, 1, 1)) };
    let y = graph.conv2d_with("depthwise", x, depthwise);
    let x = graph.add("sum", x, y);
    let left = graph.conv2d("left", x, 8, Window::square(1, 1, 0));
    let right = graph.conv2d("right", x, 8, Window::square(3, 1, 1));
    let x = graph.concat("both", &[left, right]);
    let x = graph.max_pool("pool", x, Window::square(2, 2, 0));
    let x = graph.global_avg_pool("mean", x);
    let x = graph.linear("classifier", x, 5);
    graph.output("y", x);
    let graph = graph.finish().unwrap();
    let weights = Weights::from_tensors([
        ("stem.weight", vec![16, 3, 3, 3], vec![0.5; 16 * 27]),
        ("depthwise.weight", vec![16, 1, 3, 3], vec![0.5; 16 * 9]),
        ("left.weight", vec![8, 16, 1, 1], vec![0.5; 8 * 16]),
        ("right.weight", vec![8, 16, 3, 3], vec![0.5; 8 * 16 * 9]),
        ("classifier.weight", vec![5, 16], vec![0.5; 5 * 16]),
        ("classifier.bias", vec![5], vec![0.5; 5]),
    ]);
    Model::new(graph, weights.unwrap(), Preprocessing::new(Shape::new(12, 10, 3)), Vec::new()).unwrap()
}

pub fn build(model: &Model, device: &Device) -> Result<Engine, Error> {
    Engine::builder(model).on(device).batch_sizes(&[1, 4]).slots(3).staging(2).results(3).check(true).build()
}

/// The value of device memory in the stand-in; kernels leave it unchanged.
pub const POISON: f32 = f32::from_bits(0xCDCD_CDCD);

/// Builds an engine and runs four batches.
pub fn one_batch(device: &Device) -> Result<(), Error> {
    let model = small_model();
    let engine = build(&model, device)?;
    let mut first = None;
    for round in 0..4 {
        mark(&format!("acquire {round}"));
        let mut batch = engine.acquire()?;
        if round == 0 {
            assert!(batch.rows_mut().all(|row| row.iter().all(|&byte| byte == 0)), "page-locked memory is not zeroed");
        }
        batch.row_mut(0).fill(round);
        mark(&format!("submit {round}"));
        let ticket = batch.submit(3)?;
        mark(&format!("wait {round}"));
        let output = ticket.wait()?;
        assert!((0..3).all(|row| output.values(row).iter().all(|&value| value == POISON)), "the download is missing");
        mark(&format!("done {round}"));
        first.get_or_insert(output);
    }
    mark("drop");
    drop((engine, first));
    Ok(())
}

fn one_clean_batch() {
    one_batch(&Device::open(Target::Cuda(0)).unwrap()).unwrap();
}

#[test]
fn the_calls_of_one_batch_are_as_kept() {
    let report = Scenario::new("engine::the_calls_of_one_batch_are_as_kept", one_clean_batch).run(&[]);
    report.assert_clean();
    let mut kept = String::new();
    // The fourth submission is the first to a slot that was used before; that slot's first result is still held.
    for (round, what) in [(0, "the first batch"), (3, "the first batch of a used slot")] {
        let submit = report.between(&format!("submit {round}"), &format!("wait {round}"));
        assert!(submit.len() <= 12, "{} driver calls in one submission", submit.len());
        kept.push_str(&format!("# {what}: submit\n{}\n", submit.join("\n")));
        let wait = report.between(&format!("wait {round}"), &format!("done {round}"));
        kept.push_str(&format!("# {what}: wait\n{}\n", wait.join("\n")));
    }
    compare_with_kept(&kept, "one_batch.log");
}

/// Bytes in ordinary memory are copied into page-locked memory by the CPU, and are uploaded as bytes. The stand-in
/// refuses copies between the device and memory that is not page-locked.
#[test]
fn bytes_go_up_as_bytes_from_page_locked_memory() {
    let scenario = Scenario::new("engine::bytes_go_up_as_bytes_from_page_locked_memory", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&small_model(), &device).unwrap();
        let batcher = engine.batcher().rows(4).build().unwrap();
        let input = engine.input();
        assert_eq!((input.row_bytes, input.row_pitch), (12 * 10 * 3, 512));
        let pixels = vec![7; input.row_bytes];
        mark("submit");
        let row = batcher.submit(&pixels).unwrap().wait().unwrap();
        mark("answered");
        drop((row, batcher, engine, device));
        wait_for_release();
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let copies = report.between("submit", "answered").into_iter().filter(|call| call.starts_with("cuMemcpy"));
    let copies: Vec<&str> = copies.collect();
    let [up, down] = copies[..] else { panic!("not one copy each way: {copies:?}") };
    assert!(up.starts_with("cuMemcpyHtoDAsync host") && up.contains(" 512 bytes "), "{up}");
    assert!(down.starts_with("cuMemcpyDtoHAsync"), "{down}");
}

/// Networks of images at several sizes, with the hazard checker. Kernels do nothing.
#[test]
fn images_of_several_sizes_have_graphs_of_their_own() {
    let scenario = Scenario::new("engine::images_of_several_sizes_have_graphs_of_their_own", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        for (name, case) in support::image_sizes::ALL {
            println!("{name}");
            case(&device);
        }
    });
    scenario.run(&[]).assert_clean();
}

/// A lane's stream joins the capture by a wait for an event, and at the end the first lane waits for an event of each
/// other lane. The stand-in refuses a capture that a stream does not join, and a kernel that may begin before what its
/// stream waits for.
#[test]
fn lanes_fork_and_join_in_the_capture() {
    let scenario = Scenario::new("engine::lanes_fork_and_join_in_the_capture", || {
        let (device, model) = (Device::open(Target::Cuda(0)).unwrap(), small_model());
        for (name, several) in [("several", true), ("one", false)] {
            mark(name);
            let engine = Engine::builder(&model).on(&device).batch_sizes(&[1]).slots(1).lanes(several).build().unwrap();
            println!("{name}: {} lanes", engine.plans()[0].lanes());
        }
        mark("end");
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    assert!(report.stdout.contains("several: 2 lanes") && report.stdout.contains("one: 1 lanes"), "{report}");
    let of_capture = |start: &str, end: &str| -> Vec<String> {
        let calls = report.between(start, end).into_iter();
        let capture = calls.skip_while(|call| !call.starts_with("cuStreamBeginCapture"));
        let capture = capture.take_while(|call| !call.starts_with("cuStreamEndCapture")).skip(1);
        capture.map(|call| call.split(' ').next().unwrap().to_owned()).collect()
    };
    let (several, one) = (of_capture("several", "one"), of_capture("one", "end"));
    let count = |calls: &[String], name: &str| calls.iter().filter(|call| *call == name).count();
    let launches = count(&one, "cuLaunchKernelEx");
    assert_eq!((one.len(), count(&several, "cuLaunchKernelEx")), (launches, launches), "{one:?} {several:?}");
    assert_eq!([count(&several, "cuEventRecord"), count(&several, "cuStreamWaitEvent")], [2, 2], "{several:?}");
}

#[test]
fn steady_state_makes_and_loads_nothing() {
    let report = Scenario::new("engine::steady_state_makes_and_loads_nothing", one_clean_batch).run(&[]);
    report.assert_clean();
    let steady = report.between("acquire 0", "done 3");
    let made = steady.iter().filter(|call| call.contains("->") && !call.starts_with("cuMemcpy"));
    assert_eq!(made.count(), 0, "{report}");
    let synchronous = ["cuStreamSynchronize", "cuCtxSynchronize", "cuFuncLoad", "cuMemGetInfo"];
    assert!(!steady.iter().any(|call| synchronous.iter().any(|name| call.starts_with(name))), "{report}");
}

#[test]
fn every_call_may_fail_once() {
    fail_each_call("engine::every_call_may_fail_once", "0");
}

#[test]
fn every_call_may_be_the_devices_last() {
    fail_each_call("engine::every_call_may_be_the_devices_last", "1");
}

/// Checks that a failed call gives an error with its name, or is harmless if it frees something; that nothing panics,
/// and nothing is used or freed twice; and that everything is freed. After a fault nothing proves that the device has
/// finished with memory, graphs and code: these are then left to it.
fn fail_each_call(name: &'static str, sticky: &str) {
    fail_each_call_of(name, sticky, || {
        let opened = Device::open(Target::Cuda(0));
        match opened.as_ref().map_err(Error::clone).and_then(one_batch) {
            Ok(()) => {}
            Err(error @ (Error::Driver { .. } | Error::Internal { .. } | Error::Fault { .. })) => println!("{error}"),
            Err(error) => panic!("{error:?}"),
        }
        if opened.is_ok_and(|device| device.fault().is_some()) {
            println!("faulted");
        }
    });
}

/// Checks each failing call of a body that prints its error, and `faulted` after a fault.
pub fn fail_each_call_of(name: &'static str, sticky: &str, body: impl FnOnce()) {
    let scenario = Scenario::new(name, body);
    let report = scenario.run(&[]);
    let is_call = |line: &&String| line.starts_with("cu");
    let operations: Vec<&String> = report.assert_clean().log.iter().filter(is_call).collect();
    let before_drop = report.log.iter().take_while(|line| *line != "# drop").filter(is_call).count();
    assert!(before_drop > 150, "only {before_drop} calls");
    for_each_number(operations.len(), |call| {
        let number = call.to_string();
        let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", &number), ("FAKE_CUDA_FAIL_STICKY", sticky)]);
        report.assert_sound();
        let operation = operations[call - 1].split(' ').next().unwrap();
        let frees = ["Destroy", "Free", "Unload", "Pop", "Release"].iter().any(|word| operation.contains(word));
        let said = report.stdout.contains(&format!("{operation} failed with CUDA_ERROR_LAUNCH_FAILED"));
        assert!(said || frees || call > before_drop, "call {call}, {operation}: {report}");
        let faulted = report.stdout.contains("faulted");
        let left = ["device", "host", "exec", "module", "context"];
        let may_stay = |leak: &&String| faulted && left.iter().any(|kind| leak.starts_with(kind));
        assert!(
            report.leaks.iter().all(|leak| may_stay(&leak)),
            "call {call}, {operation}: {:?}\n{report}",
            report.leaks
        );
    });
}

/// Work runs as late as possible, in many orders of the streams, while threads submit, wait, and drop tickets.
#[test]
fn late_work_never_meets_freed_memory() {
    let scenario = Scenario::new("engine::late_work_never_meets_freed_memory", || {
        let model = small_model();
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&model, &device).unwrap();
        thread::scope(|scope| {
            for producer in 0..3 {
                let engine = &engine;
                scope.spawn(move || {
                    for round in 0..20 {
                        let ticket = engine.acquire().unwrap().submit(1 + (producer + round) % 4).unwrap();
                        if round % 3 != 0 {
                            assert_eq!(ticket.wait().unwrap().values(0)[0], POISON);
                        }
                    }
                });
            }
        });
        let last = engine.acquire().unwrap().submit(4).unwrap();
        drop((engine, device));
        // The engine is dropped neither by the thread that built it nor by the ring's thread.
        thread::spawn(move || drop(last.wait().unwrap())).join().unwrap();
        wait_for_release();
    });
    for_each_number(8, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

#[test]
fn memory_that_runs_out_says_what_would_fit() {
    let scenario = Scenario::new("engine::memory_that_runs_out_says_what_would_fit", || {
        let model = small_model();
        let device = Device::open(Target::Cuda(0)).unwrap();
        mark("build");
        let Err(Error::OutOfMemory { needed_bytes, free_bytes, fitting_batch, .. }) =
            Engine::builder(&model).on(&device).batch_sizes(&[2048]).build()
        else {
            panic!("2 MiB are not enough")
        };
        mark("refused");
        assert!(needed_bytes > 2 << 20 && free_bytes <= 2 << 20, "{needed_bytes} needed, {free_bytes} free");
        assert!(device.fault().is_none(), "running out of memory is no fault");
        let fitting = fitting_batch.expect("a smaller batch fits");
        let build = |batch| Engine::builder(&model).on(&device).batch_sizes(&[batch]).build();
        drop(build(fitting).unwrap());
        match build(fitting + 1) {
            Err(Error::OutOfMemory { fitting_batch: Some(again), .. }) => assert_eq!(again, fitting),
            other => panic!("{other:?}"),
        }
        // Weights that are already on the device are not counted, so that the same engine fits beside the first.
        let small = build(1).unwrap();
        let of_first = device.memory_use().device_bytes;
        let second = build(1).unwrap();
        device.limit_memory(2 * device.memory_use().device_bytes - of_first);
        let third = build(1).unwrap();
        assert!(build(1).is_err());
        drop([small, second, third]);
        // Weights of a model that is twice in the engine are counted once.
        let both = || Engine::builder(&model).beside(&model).on(&device).batch_sizes(&[1]).build();
        device.limit_memory(u64::MAX);
        let engine = both().unwrap();
        device.limit_memory(device.memory_use().device_bytes);
        drop(engine);
        drop(both().unwrap());
        device.limit_memory(1000);
        assert!(both().is_err());
    });
    let report = scenario.run(&[("FAKE_CUDA_MEMORY", "2097152")]);
    report.assert_clean();
    let calls = report.between("build", "refused");
    assert!(calls.iter().all(|call| !call.contains("Alloc")), "refused before anything is allocated: {calls:?}");
}

/// Successive batches run on two streams in turn; the arenas of both are counted before they are allocated.
#[test]
fn two_compute_streams_take_turns_and_have_memory_each() {
    let scenario = Scenario::new("engine::two_compute_streams_take_turns_and_have_memory_each", || {
        let (device, model) = (Device::open(Target::Cuda(0)).unwrap(), small_model());
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).slots(4).check(true);
        let build = |streams| builder.clone().compute_streams(streams).build();
        let one = build(1).unwrap();
        let (of_one, arena) = (device.memory_use().device_bytes, one.plans().last().unwrap().arena_bytes as u64);
        drop(one);
        device.limit_memory(of_one + arena - 1);
        assert!(matches!(build(2), Err(Error::OutOfMemory { .. })));
        device.limit_memory(of_one + arena);
        let two = build(2).unwrap();
        assert_eq!((device.memory_use().device_bytes, two.compute_streams()), (of_one + arena, 2));
        mark("batches");
        for rows in [3, 1, 4, 1] {
            let output = two.acquire().unwrap().submit(rows).unwrap().wait().unwrap();
            assert!(output.values(0).iter().all(|&value| value == POISON));
        }
        mark("end");
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let launches = report.between("batches", "end").into_iter().filter(|call| call.starts_with("cuGraphLaunch"));
    let streams: Vec<&str> = launches.filter_map(|call| call.split(' ').next_back()).collect();
    assert!(matches!(streams[..], [a, b, c, d] if a == c && b == d && a != b), "{streams:?}");
}

/// A batcher whose rows are refused: by the budget, where the error says how many rows would fit, and by the driver,
/// whose reasons are its own.
#[test]
fn rows_of_a_batcher_that_are_refused_say_why() {
    let scenario = Scenario::new("engine::rows_of_a_batcher_that_are_refused_say_why", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&small_model(), &device).unwrap();
        let error = engine.batcher().rows(1 << 36).build().map(drop).unwrap_err();
        let Error::OutOfMemory { needed_bytes, free_bytes, .. } = error else { panic!("{error}") };
        let (pitch, row_bytes) = (engine.input().row_pitch as u64, needed_bytes >> 36);
        assert!((pitch + 64..pitch + 512).contains(&row_bytes), "books beside {pitch} bytes: {row_bytes}");
        let text = format!("{} rows of a batcher, of which {} would fit", 1_u64 << 36, free_bytes / row_bytes);
        assert!(error.to_string().contains(&text) && !error.to_string().contains("no batch"), "{error}");
        mark("rows");
        if let Err(error) = engine.batcher().rows(100).build() {
            println!("refused: {error}");
        }
        drop((engine, device));
        wait_for_release();
    });
    let report = scenario.run(&[]);
    let log = &report.assert_clean().log;
    let calls = |until: &str| log.iter().take_while(|line| *line != until).filter(|l| l.starts_with("cu")).count();
    let first = log.iter().skip_while(|line| *line != "# rows").position(|line| line.starts_with("cuMemHostAlloc"));
    let call = (calls("# rows") + first.expect("its rows are page-locked")).to_string();
    let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", &call), ("FAKE_CUDA_FAIL_CODE", "2")]);
    report.assert_clean();
    for part in
        ["refused: cuda:0: out of memory for host memory: ", " MiB needed, ", "another limit refused the memory"]
    {
        assert!(report.stdout.contains(part) && !report.stdout.contains(" 0.0 MiB free"), "{part}: {report}");
    }
}

#[test]
fn a_kernel_that_does_not_compile_shows_the_compilers_log() {
    let scenario = Scenario::new("engine::a_kernel_that_does_not_compile_shows_the_compilers_log", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let error = build(&small_model(), &device).unwrap_err().to_string();
        for part in ["cuModuleLoadDataEx", "CUDA_ERROR_INVALID_PTX", "line 7: no such thing"] {
            assert!(error.contains(part), "{error}");
        }
    });
    scenario.run(&[("FAKE_CUDA_PTX_ERROR", "line 7: no such thing")]).assert_clean();
}

/// Two devices are used in turn on the same threads: each call runs in the context of its device.
#[test]
fn two_devices_share_threads() {
    let scenario = Scenario::new("engine::two_devices_share_threads", || {
        let model = small_model();
        let devices = [0, 1].map(|ordinal| Device::open(Target::Cuda(ordinal)).unwrap());
        let engines = devices.map(|device| build(&model, &device).unwrap());
        for _ in 0..3 {
            let tickets = engines.each_ref().map(|engine| engine.acquire().unwrap().submit(2).unwrap());
            tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
        }
        let [first, second] = engines;
        drop(first);
        drop(second.acquire().unwrap().submit(1).unwrap().wait().unwrap());
    });
    scenario.run(&[("FAKE_CUDA_DEVICES", "2")]).assert_clean();
}

#[test]
fn stages_are_timed_by_events() {
    let scenario = Scenario::new("engine::stages_are_timed_by_events", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = build(&small_model(), &device).unwrap();
        let kernels = engine.plans()[1].steps.len() as f64;
        for (stage, expected) in [(Stage::CopyIn, 1e-3), (Stage::Compute, 1e-5 * kernels), (Stage::CopyOut, 1e-3)] {
            let seconds = engine.measure(stage, 4, 3).unwrap();
            assert!(
                seconds.len() == 3 && seconds.iter().all(|s| (s - expected).abs() < 2e-6),
                "{stage:?}: {seconds:?}"
            );
        }
    });
    scenario.run(&[("FAKE_CUDA_EVENTS", "held")]).assert_clean();
}

/// The stand-in compares each launch with its kernel's PTX or cubin: argument size, threads, shared memory, live buffers.
#[test]
fn every_operation_launches_within_its_kernels_limits() {
    let scenario = Scenario::new("engine::every_operation_launches_within_its_kernels_limits", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let mut engines = 0;
        for case in support::operations::all() {
            for (_, choices) in case.all_choices(&Limits::h200()) {
                let engine = case
                    .build(Precision::Auto, &device, choices)
                    .unwrap_or_else(|error| panic!("{}: {error}", case.name));
                drop(engine.acquire().unwrap().submit(case.rows.len()).unwrap().wait().unwrap());
                engines += 1;
            }
        }
        assert!(engines > 100, "only {engines} engines");
    });
    scenario.run(&[]).assert_clean();
}

pub fn compare_with_kept(text: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var("TREFOIL_BLESS").is_ok_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the calls are not as kept in {}:\n{text}", path.display());
}
