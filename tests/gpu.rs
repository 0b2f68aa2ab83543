//! Every operation on a GPU against plain loops in f64, with every kernel and tile; models of any values; several
//! models; the times of a recorded run; a tuned engine compared with one that is not tuned.
//!
//! Without a GPU each case is reported as ignored, and a last line says so; with `TREFOIL_REQUIRE_GPU=1` that is a
//! failure. `TREFOIL_SAMPLE=N` runs each kernel on only N of its cases, which compute-sanitizer has time for, and
//! `TREFOIL_PART=I/N` runs part I, from 0, of N parts of all cases, for which its memory suffices. `TREFOIL_EXCEPT=FILE`
//! leaves out the cases that FILE names, one a line: those that an earlier run has done. With `TREFOIL_ONCE` layers run
//! once, not on other rows before and again for the same bits, and an engine is tuned for one row, for tools that are slow.

#[cfg(feature = "cuda")]
#[path = "support/cuda.rs"]
mod cuda;
#[path = "support/echo.rs"]
mod echo;
mod support;

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
#[cfg(feature = "cuda")]
use support::halves::HALVES;
use support::operations;
use support::problem::Case;
use support::random::Random;
use trefoil::Tuning;
use trefoil::graph::{GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::{Choices, Kernel, Limits};
use trefoil::trace::{TraceInterval, TraceStage};
use trefoil::{Device, Engine, EngineBuilder, Error, InputFormat, OutputKind, Precision, Shape, Target};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A case is a whole engine; four at a time fill the GPU and leave some of its memory free.
    arguments.test_threads.get_or_insert(4);
    let required =
        std::env::var("TREFOIL_REQUIRE_GPU").is_ok_and(|value| value.parse().is_ok_and(|gpus: u32| gpus > 0));
    let (device, why) = match Device::open(Target::Cuda(0)) {
        Ok(device) => (Some(device), String::new()),
        Err(Error::NoDevice { why, .. }) if !required => (None, why),
        Err(error) => {
            eprintln!("cuda:0 cannot be used: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (part, done) = match (part(), except()) {
        (Ok(part), Ok(done)) => (part, done),
        (Err(what), _) | (_, Err(what)) => {
            eprintln!("{what}");
            return ExitCode::FAILURE;
        }
    };
    let left = trials(device.as_ref()).into_iter().filter(|trial| !done.contains(trial.name()));
    let trials = part.of(left.collect());
    let count = trials.len();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if device.is_none() && !arguments.list {
        println!("no GPU: {why}");
        println!("skipped: no CUDA device ({count} GPU tests)");
    }
    conclusion.exit_code()
}

/// One of several equal parts of the cases.
struct Part {
    index: usize,
    parts: usize,
}

/// The part that the variable selects; all cases without it.
fn part() -> Result<Part, String> {
    let Ok(asked) = std::env::var("TREFOIL_PART") else { return Ok(Part { index: 0, parts: 1 }) };
    let wrong = || format!("TREFOIL_PART: expected I/N with I below N, found `{asked}`");
    let numbers = asked.split_once('/').and_then(|(index, parts)| Some((index.parse().ok()?, parts.parse().ok()?)));
    let part = numbers.map(|(index, parts)| Part { index, parts });
    part.filter(|part| part.index < part.parts).ok_or_else(wrong)
}

/// The names of the cases that are left out: the lines of a file.
fn except() -> Result<HashSet<String>, String> {
    let Ok(file) = std::env::var("TREFOIL_EXCEPT") else { return Ok(HashSet::new()) };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("TREFOIL_EXCEPT: `{file}`: {error}"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

impl Part {
    /// Every `parts`-th case, so that similar neighbours are in different parts.
    fn of(&self, trials: Vec<Trial>) -> Vec<Trial> {
        trials.into_iter().skip(self.index).step_by(self.parts).collect()
    }
}

/// Every case with the planner's kernels, and cases with a choice with each kernel that the device has.
fn trials(device: Option<&Device>) -> Vec<Trial> {
    let limits = device.map_or_else(Limits::h200, |device| {
        let info = device.info();
        Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes)
    });
    let mut trials = vec![recorded(device), several(device), tuned(device)];
    let of_values = support::values::ALL.into_iter().chain(support::sizes::ALL).chain(support::states::ALL);
    let of_values = of_values.chain(support::image_sizes::ALL).chain(support::joined::ALL);
    trials.extend(of_values.map(|(name, case)| {
        on_device(format!("values, {name}"), device, move |device| {
            case(device);
            Ok(())
        })
    }));
    for on_any_gpu in [false, true] {
        let kernels = if on_any_gpu { ", kernels of any GPU" } else { "" };
        trials.extend(support::quantized::all().into_iter().map(|problem| {
            let name = format!("network of bytes, {}{kernels}", problem.name);
            on_device(name, device, move |device| problem.run(device, on_any_gpu))
        }));
    }
    trials.extend(in_other_types(device));
    trials.extend(in_e4m3(device));
    for of in [Precision::F16, Precision::Bf16] {
        trials.extend(
            support::transformer::all(of)
                .into_iter()
                .map(|problem| on_device(format!("transformer, {problem}"), device, move |device| problem.run(device))),
        );
        let encoders = support::embedding::problems::all().into_iter().chain(support::embedding::kept::all());
        trials.extend(encoders.map(|problem| {
            on_device(format!("encoder in {of:?}, {problem}"), device, move |device| problem.run(device, of))
        }));
    }
    trials.extend(
        support::embedding::problems::all()
            .into_iter()
            .chain(support::embedding::kept::all())
            .filter(support::embedding::Problem::is_packed)
            .map(|problem| {
                on_device(format!("packed texts, {problem}"), device, move |device| {
                    problem.run_packed(device, Precision::F32)?;
                    problem.run_packed(device, Precision::Bf16)?;
                    problem.run_packed(device, Precision::F16)?;
                    problem.has_one_answer_in_every_pack(device, Precision::F16)
                })
            }),
    );
    #[cfg(feature = "cuda")]
    trials.push(in_the_middle(device));
    let mut of_kernels = BTreeMap::<String, Vec<(usize, Trial)>>::new();
    for case in operations::all() {
        let case = std::sync::Arc::new(case);
        for (chosen, choices) in case.all_choices(&limits) {
            let values = case.rows.iter().map(Vec::len).sum();
            let trial = trial(format!("{}{chosen}", case.name), case.clone(), choices, device);
            of_kernels.entry(chosen).or_default().push((values, trial));
        }
    }
    #[cfg(feature = "cuda")]
    alone(device, &limits, &mut of_kernels);
    let sample = std::env::var("TREFOIL_SAMPLE").ok().and_then(|count| count.parse().ok());
    for (_, cases) in of_kernels {
        match sample {
            Some(count) => trials.extend(sampled(cases, count)),
            None => trials.extend(cases.into_iter().map(|(_, trial)| trial)),
        }
    }
    trials
}

/// Networks of images and transformers that loops compute, in the types of the loops.
fn in_other_types(device: Option<&Device>) -> Vec<Trial> {
    let types = [Precision::F32, Precision::Bf16];
    let mut trials = vec![on_device("layers in the type that is asked for".into(), device, move |device| {
        support::precision::layers_read_the_type_that_is_asked_for(device, &types);
        support::precision::a_checkpoint_has_a_precision_of_its_own(device);
        support::precision::nodes_in_f32_read_f32(device);
        Ok(())
    })];
    for of in types {
        let networks = operations::networks().into_iter().map(|case| {
            on_device(format!("{} in {of:?}", case.name), device, move |device| case.run_in(of, device, Choices::new()))
        });
        trials.extend(networks);
    }
    let small = support::transformer::small(Precision::Bf16).into_iter();
    trials
        .extend(small.map(|problem| on_device(format!("small, {problem}"), device, move |device| problem.run(device))));
    trials
}

/// Encoders with products of e4m3.
fn in_e4m3(device: Option<&Device>) -> Vec<Trial> {
    let problems = support::transformer::in_e4m3().into_iter();
    let of = |problem: support::transformer::Problem| {
        on_device(format!("in e4m3, {problem}"), device, move |device| problem.run_in_e4m3(device))
    };
    let file = on_device("in e4m3, a file".into(), device, support::transformer::file_in_e4m3);
    problems.map(of).chain([file]).collect()
}

/// Number of loops in a module.
#[cfg(feature = "cuda")]
const LOOPS: usize = 50;

/// Attention, also within packed rows, matrix products, norms of rows and layers of bytes, each outside of a network,
/// with each kernel; loops as PTX.
#[cfg(feature = "cuda")]
fn alone(device: Option<&Device>, limits: &Limits, of_kernels: &mut BTreeMap<String, Vec<(usize, Trial)>>) {
    for problem in HALVES.into_iter().flat_map(support::attention::all) {
        for kernel in problem.kernels(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let name = format!("attention, {problem}, {kernel}");
            let of = format!("attention {}, {}", kernel.tile, problem.dtype);
            let trial = on_device(name, device, move |device| problem.run(device, kernel));
            of_kernels.entry(of).or_default().push((values, trial));
        }
    }
    for (problem, scale) in support::attention::to_codes() {
        for kernel in problem.kernels(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let name = format!("attention to e4m3, {problem}, {scale}, {kernel}");
            let trial = on_device(name, device, move |device| problem.run_to_codes(device, kernel, scale));
            of_kernels.entry(format!("attention to e4m3 {}", kernel.tile)).or_default().push((values, trial));
        }
    }
    for dtype in HALVES {
        for problem in support::packed_attention::all() {
            let (of, values) = (format!("packed attention, {dtype}"), problem.values());
            let trial = on_device(format!("{of}, {problem}"), device, move |device| problem.run(device, dtype));
            of_kernels.entry(of).or_default().push((values, trial));
        }
    }
    for problem in HALVES.into_iter().flat_map(support::product::all) {
        for kernel in problem.kernels(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let (name, of) = (format!("product, {problem}, {kernel}"), format!("{kernel}, {}", problem.dtype));
            let trial = on_device(name, device, move |device| problem.run(device, kernel));
            of_kernels.entry(of).or_default().push((values, trial));
        }
    }
    for problem in support::product_e4m3::all() {
        for tile in problem.tiles(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let (name, of) = (format!("product of {problem}, {tile:?}"), format!("e4m3 {tile:?}"));
            let trial = on_device(name, device, move |device| problem.run(device, tile));
            of_kernels.entry(of).or_default().push((values, trial));
        }
    }
    for problem in HALVES.into_iter().filter(|_| limits.has_sm90_kernels()).flat_map(support::row_norm::all) {
        let (of, values) = (format!("norm of rows, {}", problem.dtype), problem.values());
        let name = format!("{of}, {problem:?}");
        let trial = on_device(name, device, move |device| problem.run(device));
        of_kernels.entry(of).or_default().push((values, trial));
    }
    for problem in HALVES.into_iter().filter(|_| limits.has_sm90_kernels()).flat_map(support::row_norm::sums) {
        let (of, values) = ("norm of a sum of rows".to_owned(), problem.values());
        let name = format!("{of}, {problem:?}");
        let trial = on_device(name, device, move |device| problem.run(device));
        of_kernels.entry(of).or_default().push((values, trial));
    }
    for problem in HALVES.into_iter().filter(|_| limits.has_sm90_kernels()).flat_map(support::row_norm::all) {
        let (of, values) = (format!("norm of rows to f32, {}", problem.dtype), problem.values());
        let name = format!("{of}, {problem:?}");
        let trial = on_device(name, device, move |device| problem.run_to_f32(device));
        of_kernels.entry(of).or_default().push((values, trial));
    }
    for (problem, scale) in support::row_norm::to_codes().into_iter().filter(|_| limits.has_sm90_kernels()) {
        let (of, values) = ("norm of rows to e4m3".to_owned(), problem.values());
        let name = format!("{of}, {problem:?}, {scale}");
        let trial = on_device(name, device, move |device| problem.run_to_codes(device, scale));
        of_kernels.entry(of).or_default().push((values, trial));
    }
    for of in [Precision::F16, Precision::Bf16].into_iter().filter(|_| limits.has_sm90_kernels()) {
        for problem in support::convolution::of_few_channels(of) {
            let (name, values) = (format!("few channels, {problem:?}"), problem.values());
            let trial = on_device(name, device, move |device| problem.run(device));
            of_kernels.entry(format!("few channels in {of:?}")).or_default().push((values, trial));
        }
    }
    for of in [Precision::F16, Precision::Bf16].into_iter().filter(|_| limits.has_sm90_kernels()) {
        for problem in support::squeeze_excite::all(of) {
            let (name, values) = (format!("squeeze and excitation, {problem:?}"), problem.values());
            let trial = on_device(name, device, move |device| problem.run(device));
            of_kernels.entry(format!("squeeze and excitation in {of:?}")).or_default().push((values, trial));
        }
    }
    for of in [Precision::F16, Precision::Bf16].into_iter().filter(|_| limits.has_sm90_kernels()) {
        for problem in support::class_attention::all(of) {
            let (name, values) = (format!("class attention, {problem:?}"), problem.values());
            let trial = on_device(name, device, move |device| problem.run(device));
            of_kernels.entry(format!("class attention in {of:?}")).or_default().push((values, trial));
        }
    }
    for of in [Precision::F16, Precision::Bf16].into_iter().filter(|_| limits.has_sm90_kernels()) {
        for problem in support::recurrent::all(of) {
            let (name, values) = (format!("recurrent layer, {problem:?}"), problem.values());
            let trial = on_device(name, device, move |device| problem.run(device));
            of_kernels.entry(format!("recurrent layer in {of:?}")).or_default().push((values, trial));
        }
    }
    if limits.has_sm90_kernels() {
        for problem in support::convolution::with_activations(limits) {
            let (of, values) = (format!("{}, {}", problem.activation_name(), problem.kernel()), problem.values());
            let trial = on_device(format!("{of}, {problem:?}"), device, move |device| problem.run(device));
            of_kernels.entry(of).or_default().push((values, trial));
        }
    }
    for problem in support::convolution::of_windows().into_iter().filter(|_| limits.has_sm90_kernels()) {
        let (name, values) = (format!("windows, {problem:?}"), problem.values());
        let trial = on_device(name, device, move |device| problem.run(device));
        of_kernels.entry("windows".to_owned()).or_default().push((values, trial));
    }
    let loops = support::loops::all().into_iter().chain(support::loops_on_gpu::of_nodes());
    for cases in loops.collect::<Vec<_>>().chunks(LOOPS) {
        let (cases, values) = (cases.to_vec(), cases.iter().map(|case| case.of.elems()).sum());
        let name = format!("{} loops from {} on", cases.len(), cases[0].name);
        let trial = on_device(name, device, move |device| support::loops_on_gpu::run(device, &cases));
        of_kernels.entry("loops".into()).or_default().push((values, trial));
    }
    for problem in support::s8_ends::stems() {
        for kernel in problem.kernels(limits) {
            let name = format!("first layers of bytes, {problem:?}, {kernel}");
            let trial = on_device(name, device, move |device| problem.run(device, kernel));
            let runs = matches!(kernel, Kernel::Sm90StemS8Runs);
            let of = format!("first layers of bytes{}", if runs { " in runs" } else { "" });
            of_kernels.entry(of).or_default().push((problem.values(), trial));
        }
    }
    for problem in support::s8_ends::means() {
        let trial = on_device(format!("mean of bytes, {problem:?}"), device, move |device| problem.run(device));
        of_kernels.entry("mean of bytes".into()).or_default().push((problem.values(), trial));
    }
    for problem in support::depthwise_s8::all() {
        for kernel in problem.kernels(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let name = format!("bytes, depthwise, {}, {kernel}", problem.describe());
            let of = if kernel == Kernel::Sm80 { "depthwise of bytes on any GPU" } else { "depthwise of bytes" };
            let trial = on_device(name, device, move |device| problem.run(device, kernel));
            of_kernels.entry(of.into()).or_default().push((values, trial));
        }
    }
    for problem in support::conv_s8::all() {
        for kernel in problem.kernels(limits) {
            let (problem, values) = (problem.clone(), problem.values());
            let name = format!("bytes, {}, {}, {kernel}", problem.name, problem.describe());
            let trial = on_device(name, device, move |device| problem.run(device, kernel));
            of_kernels.entry(kernel.to_string()).or_default().push((values, trial));
        }
    }
}

/// A sample of the cases, evenly from the smaller two thirds, whose largest case is included.
fn sampled(mut cases: Vec<(usize, Trial)>, count: usize) -> impl Iterator<Item = Trial> {
    cases.sort_by_key(|(values, _)| *values);
    let small = (cases.len() * 2).div_ceil(3);
    let count = count.clamp(1, small);
    let taken: Vec<usize> = (1..=count).map(|i| i * small / count - 1).collect();
    cases.into_iter().enumerate().filter(move |(index, _)| taken.contains(index)).map(|(_, (_, trial))| trial)
}

fn trial(name: String, case: std::sync::Arc<Case>, choices: Choices, device: Option<&Device>) -> Trial {
    on_device(name, device, move |device| case.run(device, choices))
}

/// A test that needs a device; it is ignored without one.
fn on_device(
    name: String,
    device: Option<&Device>,
    run: impl FnOnce(&Device) -> Result<(), String> + Send + 'static,
) -> Trial {
    let ignored = device.is_none();
    let device = device.cloned();
    let test = move || match device {
        Some(device) => run(&device).map_err(Failed::from),
        None => Err("no CUDA device".into()),
    };
    Trial::test(name, test).with_ignored_flag(ignored)
}

/// A recorded run of four threads: each batch's stages are in order, none begins before its submission, and no wait
/// ends too early.
fn recorded(device: Option<&Device>) -> Trial {
    let ignored = device.is_none();
    let device = device.cloned();
    let test = move || {
        let device = device.ok_or("no CUDA device")?;
        let model = echo::echo();
        let builder = Engine::builder(&model).on(&device).output(OutputKind::Features);
        let engine = builder.batch_sizes(&[1, 8]).check(true).trace(true).build()?;
        thread::scope(|scope| {
            let produce = |producer: u32| {
                let engine = &engine;
                move || -> Result<(), Error> {
                    for number in 100 * producer..100 * (producer + 1) {
                        let ticket = echo::submit(engine, 1 + number as usize % 8, number)?;
                        assert_eq!(echo::read(&ticket.wait()?), number);
                    }
                    Ok(())
                }
            };
            let producers: Vec<_> = (0..4).map(|producer| scope.spawn(produce(producer))).collect();
            producers.into_iter().try_for_each(|producer| producer.join().expect("a producer panicked"))
        })?;
        let trace = engine.trace().ok_or("an engine without its recorder")?;
        check_times(trace.intervals()).map_err(Failed::from)
    };
    Trial::test("a recorded run", test).with_ignored_flag(ignored)
}

/// Four threads with streams and memory of their own share two result buffers: each gets the values of its input.
#[cfg(feature = "cuda")]
fn in_the_middle(device: Option<&Device>) -> Trial {
    use cuda::{Memory, Primary, Stream, cuda};
    use trefoil::DeviceRows;
    const ROWS: usize = 8;
    const PITCH: usize = 20; // of rows of 16 bytes
    const BATCHES: usize = 50;
    let ignored = device.is_none();
    let device = device.cloned();
    let test = move || {
        let device = device.ok_or("no CUDA device")?;
        let model = echo::echo();
        let builder = Engine::builder(&model).on(&device).output(OutputKind::Features).batch_sizes(&[1, ROWS]);
        let engine = builder.staging(3).results(2).device_results(true).check(true).trace(true).build()?;
        let pitch = engine.output().row_pitch;
        let produce = |producer: usize| -> Result<(), Error> {
            let _current = Primary::of(&device);
            let (writer, reader) = (Stream::new()?, Stream::new()?);
            let (pixels, kept) = (Memory::new(ROWS * PITCH)?, Memory::new(BATCHES * ROWS * pitch)?);
            let byte = |batch: usize, at: usize| (batch * 37 + at * 11 + producer * 101) as u8;
            for batch in 0..BATCHES {
                let rows = 1 + batch % ROWS;
                let bytes: Vec<u8> = (0..ROWS * PITCH).map(|at| byte(batch, at)).collect();
                cuda!(cuMemcpyHtoDAsync_v2(pixels.0, bytes.as_ptr().cast(), bytes.len(), writer.0))?;
                let mut lent = engine.acquire()?;
                // SAFETY: the pixels are there in the writer's order, and freed when it is through.
                unsafe { lent.read_from(DeviceRows { addr: pixels.0, pitch: PITCH, stream: writer.caller() })? };
                let mut output = lent.submit_to_device(rows)?;
                output.wait_on(reader.caller())?;
                let to = kept.0 + (batch * ROWS * pitch) as u64;
                cuda!(cuMemcpyDtoDAsync_v2(to, output.addr(), rows * pitch, reader.0))?;
                output.read_on(reader.caller())?;
            }
            writer.synchronize()?;
            reader.synchronize()?;
            let mut back = vec![0_u8; BATCHES * ROWS * pitch];
            cuda!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), kept.0, back.len()))?;
            for (at, row) in back.chunks_exact(pitch).enumerate() {
                let (batch, index) = (at / ROWS, at % ROWS);
                if index <= batch % ROWS {
                    let values =
                        row[..64].as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes).round() as u8);
                    let expected = (0..16).map(|i| byte(batch, index * PITCH + i));
                    assert!(values.eq(expected), "producer {producer}, batch {batch}, row {index}");
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let producers: Vec<_> = (0..4).map(|producer| scope.spawn(move || produce(producer))).collect();
            producers.into_iter().try_for_each(|producer| producer.join().expect("a producer panicked"))
        })?;
        let trace = engine.trace().ok_or("an engine without its recorder")?;
        let copied = trace.intervals().iter().filter(|interval| interval.stage == TraceStage::CopyOut).count();
        device.fault().map_or(Ok(()), Err)?;
        if copied == 4 * BATCHES { Ok(()) } else { Err(format!("{copied} batches were recorded").into()) }
    };
    Trial::test("in the middle of other CUDA", test).with_ignored_flag(ignored)
}

/// Several models in one engine give the bits that they give alone, and their mean; in stages they give the results of
/// a run by way of the host. Engines of one model share its weights.
fn several(device: Option<&Device>) -> Trial {
    let ignored = device.is_none();
    let test = move || {
        // The device is opened anew, so that its memory use includes no other case's engines.
        let device = Device::open(Target::Cuda(0))?;
        let model = Model::open("weights/convnet28")?;
        let (front, back) = model.split_at("pool2")?;
        let build_for =
            |kind, builder: EngineBuilder<'_>| builder.output(kind).on(&device).batch_sizes(&[4]).check(true).build();
        let build = |builder| build_for(OutputKind::Logits, builder);
        let whole = build(Engine::builder(&model))?;
        let held = device.memory_use().device_bytes;
        let alone = [answers(&whole)?.remove(0), answers(&build(Engine::builder(&model))?)?.remove(0)];
        let both = answers(&build(Engine::builder(&model).beside(&model))?)?;
        let mean = answers(&build(Engine::builder(&model).beside(&model).average())?)?.remove(0);
        if device.memory_use().device_bytes != held {
            return Err("engines that are gone still hold memory".into());
        }
        let by_host = {
            let first = build_for(OutputKind::Features, Engine::builder(&front))?;
            let second = build(Engine::builder(&back).input(InputFormat::F32Nhwc))?;
            let features = answers(&first)?.remove(0);
            let mut rows = Vec::new();
            for batch in features.chunks(4) {
                let mut next = second.acquire()?;
                for (row, values) in next.rows_mut().zip(batch) {
                    row.copy_from_slice(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
                }
                let output = next.submit(batch.len())?.wait()?;
                rows.extend((0..batch.len()).map(|row| output.values(row).to_vec()));
            }
            rows
        };
        let staged = answers(&build(Engine::builder(&front).then(&back))?)?.remove(0);
        let same = [
            ("two engines of a model", alone[0] == alone[1]),
            ("an ensemble's first", both[0] == alone[0]),
            ("its second", both[1] == alone[0]),
            ("the mean of two equal ones", mean == alone[0]),
            ("stages on the device and by the host", staged == by_host),
        ];
        match same.iter().find(|(_, same)| !same) {
            Some((what, _)) => Err(format!("not the same: {what}").into()),
            None => Ok(()),
        }
    };
    Trial::test("several models", test).with_ignored_flag(ignored)
}

/// For each part of the output, the values of all rows of ten batches.
fn answers(engine: &Engine) -> Result<Vec<Vec<Vec<f32>>>, Error> {
    let submit = |number: usize| {
        let mut batch = engine.acquire()?;
        for (index, row) in batch.rows_mut().enumerate() {
            row.iter_mut().enumerate().for_each(|(i, pixel)| *pixel = (i * 31 + (number * 4 + index) * 97) as u8);
        }
        batch.submit(4)
    };
    let tickets = (0..10).map(submit).collect::<Result<Vec<_>, _>>()?;
    let mut parts = Vec::new();
    for ticket in tickets {
        let output = ticket.wait()?;
        parts.resize(output.parts(), Vec::new());
        for (part, rows) in parts.iter_mut().enumerate() {
            rows.extend((0..4).map(|row| output.part(part).values(row).to_vec()));
        }
    }
    engine.device().fault().map_or(Ok(parts), Err)
}

/// An engine whose kernels were chosen by measurement gives the results of the planner's choice, also when it is built
/// again from kept measurements; and the steps are timed.
fn tuned(device: Option<&Device>) -> Trial {
    let ignored = device.is_none();
    let device = device.cloned();
    let test = move || {
        let device = device.ok_or("no CUDA device")?;
        let (model, folder) =
            (convolutions()?, std::env::temp_dir().join(format!("trefoil-gpu-{}", std::process::id())));
        let rows = if support::problem::runs_once() { 1 } else { 16 };
        let builder = Engine::builder(&model).on(&device).output(OutputKind::Features).batch_sizes(&[rows]);
        let builder = builder.tuning_folder(&folder);
        let values = |tuning| -> Result<Vec<f32>, Error> {
            let engine = builder.clone().tuning(tuning).build()?;
            let mut batch = engine.acquire()?;
            for (row, bytes) in batch.rows_mut().enumerate() {
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i + 7 * row) * 89 % 251) as u8);
            }
            let output = batch.submit(rows)?.wait()?;
            Ok((0..rows).flat_map(|row| output.values(row).to_vec()).collect())
        };
        let [planned, tuned, cached] = [values(Tuning::Off)?, values(Tuning::Full)?, values(Tuning::Cached)?];
        let times = builder.clone().measure_steps(20)?;
        let _ = std::fs::remove_dir_all(&folder);
        if tuned != cached {
            return Err("an engine from what was kept gives other bits".into());
        }
        // Three layers are each rounded to f16: sums in another order may round to a neighbouring value.
        let most = planned.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let worst = planned.iter().zip(&tuned).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if !(most > 0.1 && worst <= 8.0 * f32::powi(2.0, -11) * most) {
            return Err(format!("they differ by {worst}, values are up to {most}").into());
        }
        // Other cases run on the GPU at the same time, so times are only checked to be positive.
        if !(times.graph > 0.0 && times.steps.iter().all(|&step| step > 0.0)) {
            return Err(format!("steps and graph that take no time: {times:?}").into());
        }
        Ok(())
    };
    Trial::test("a tuned engine", test).with_ignored_flag(ignored)
}

/// Three convolutions with random weights.
fn convolutions() -> Result<Model, Error> {
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", Shape::new(28, 28, 3));
    let x = graph.conv2d("first", image, 64, Window::square(3, 1, 1));
    let x = graph.relu("relu", x);
    let x = graph.conv2d("second", x, 128, Window::square(3, 2, 1));
    let x = graph.conv2d("third", x, 64, Window::square(1, 1, 0));
    graph.output("y", x);
    let graph = graph.finish()?;
    let mut random = Random::new("a tuned engine");
    let tensors = graph.weights().map(|(name, of)| {
        let taps: usize = of.dims[1..].iter().product();
        let values = random.singles(of.elems(), (3.0 / taps as f64).sqrt());
        (name.to_owned(), of.dims.clone(), values)
    });
    let weights = Weights::from_tensors(tensors.collect::<Vec<_>>())?;
    Model::new(graph, weights, Preprocessing::new(Shape::new(28, 28, 3)), Vec::new())
}

/// Error of times that a device's timer gives, in seconds.
const RESOLUTION: f64 = 2e-6;
/// Error between the clocks of device and host, in seconds, at any time of a short run.
const CLOCKS: f64 = 50e-6;
/// What they drift apart, in seconds of a second: a run that other processes hold up may last many.
const DRIFT: f64 = 20e-6;

fn check_times(intervals: &[TraceInterval]) -> Result<(), String> {
    let batches: Vec<&[TraceInterval]> = intervals.chunk_by(|a, b| a.batch == b.batch).collect();
    if batches.len() != 400 {
        return Err(format!("{} batches of 400", batches.len()));
    }
    for batch in batches {
        let stages: Vec<TraceStage> = batch.iter().map(|interval| interval.stage).collect();
        if stages != TraceStage::ALL {
            return Err(format!("batch {} has {stages:?}", batch[0].batch));
        }
        let [_, submit, copy_in, compute, copy_out, wait, _] = batch else { unreachable!("all seven, just compared") };
        let clocks = CLOCKS + DRIFT * wait.end;
        let in_order = [
            submit.begin <= copy_in.begin + RESOLUTION,
            copy_in.begin <= copy_in.end && copy_in.end <= compute.begin + RESOLUTION,
            compute.begin <= compute.end && compute.end <= copy_out.begin + RESOLUTION,
            copy_out.begin <= copy_out.end && copy_out.end <= wait.end + clocks,
        ];
        if in_order.contains(&false) {
            return Err(format!("{in_order:?} of {batch:#?}"));
        }
    }
    Ok(())
}
