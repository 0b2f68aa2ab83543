//! Several models, stages and devices: what they share, which results come together, and that each answer is that of
//! the models alone. The hazard checker is always on.

use std::time::Duration;

use trefoil::graph::GraphBuilder;
use trefoil::model::{Model, Preprocessing, architecture};
use trefoil::{CallerStream, Close, Device, DeviceRows, Engine, EngineBuilder, Error, InputFormat, OutputKind, Target};

const ROWS: usize = 5;

fn model() -> Model {
    Model::open("weights/convnet28").unwrap()
}

fn cpu() -> Device {
    Device::open(Target::Cpu).unwrap()
}

/// Writes the pixels of the row with this number.
fn pixels(number: usize, row: &mut [u8]) {
    row.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 31 + number * 97) % 251) as u8);
}

fn checked<'a>(builder: EngineBuilder<'a>, device: &Device) -> EngineBuilder<'a> {
    builder.on(device).batch_sizes(&[1, ROWS]).output(OutputKind::Logits).check(true)
}

/// For each part of the output, the values of ten batches with different rows.
fn answers(engine: &Engine) -> Vec<Vec<Vec<f32>>> {
    let submit = |batch: usize| {
        let mut rows = engine.acquire()?;
        (0..ROWS).for_each(|row| pixels(batch * ROWS + row, rows.row_mut(row)));
        rows.submit(ROWS - batch % 2)
    };
    let tickets: Result<Vec<_>, Error> = (0..10).map(submit).collect();
    let mut answers = Vec::new();
    for ticket in tickets.unwrap() {
        let output = ticket.wait().unwrap();
        for row in 0..output.rows() {
            answers.push((0..output.parts()).map(|part| output.part(part).values(row).to_vec()).collect());
        }
    }
    assert!(engine.device().fault().is_none(), "{:?}", engine.device().fault());
    answers
}

fn parts(answers: &[Vec<Vec<f32>>], part: usize) -> Vec<Vec<f32>> {
    answers.iter().map(|row| row[part].clone()).collect()
}

#[test]
fn a_model_in_two_stages_is_the_model() {
    let (model, device) = (model(), cpu());
    let whole = answers(&checked(Engine::builder(&model), &device).build().unwrap());
    let (front, back) = model.split_at("pool2").unwrap();
    let staged = checked(Engine::builder(&front).then(&back), &device).build().unwrap();
    assert_eq!(answers(&staged), whole, "f32 from end to end: not one bit differs");
    assert_eq!(staged.plans().len(), 2);
    let vector = model.features().unwrap();
    let mut g = GraphBuilder::new();
    let image = g.image("image", vector.output().unwrap());
    let x = g.linear("fc", image, 10);
    g.output("logits", x);
    let classifier =
        Model::new(g.finish().unwrap(), model.weights().clone(), Preprocessing::new(vector.output().unwrap()), vec![]);
    let classifier = classifier.unwrap();
    let staged = checked(Engine::builder(&vector).then(&classifier), &device).build().unwrap();
    assert_eq!(answers(&staged), whole);
}

#[test]
fn two_heads_read_one_backbone() {
    let (model, device) = (model(), cpu());
    let whole = answers(&checked(Engine::builder(&model), &device).build().unwrap());
    let (front, back) = model.split_at("pool2").unwrap();
    let pooled = back.features().unwrap();
    let engine = checked(Engine::builder(&front).then(&back).beside(&pooled), &device).build().unwrap();
    let both = answers(&engine);
    assert_eq!(parts(&both, 0), parts(&whole, 0));
    assert_eq!(both[0][1].len(), 128);
    let alone = checked(Engine::builder(&front).then(&pooled), &device).build().unwrap();
    assert_eq!(parts(&both, 1), parts(&answers(&alone), 0));
}

#[test]
fn an_ensemble_gives_what_its_models_give_and_their_mean() {
    let (model, device) = (model(), cpu());
    let features = model.features().unwrap();
    let alone = [&model, &features].map(|one| answers(&checked(Engine::builder(one), &device).build().unwrap()));
    let both = answers(&checked(Engine::builder(&model).beside(&features), &device).build().unwrap());
    assert_eq!([0, 1].map(|part| parts(&both, part)), [0, 1].map(|one: usize| parts(&alone[one], 0)));

    // A model whose classes are rotated by one, so that the mean equals neither model's answer.
    let weights = {
        let read = |name: &str, dims: &[usize]| {
            let mut values = vec![0.0; dims.iter().product()];
            model.weights().read_f32(name, dims, &mut values).unwrap();
            values
        };
        let tensors = model.weights().names().filter(|name| !name.ends_with("num_batches_tracked")).map(|name| {
            let dims = model.weights().dims(name).unwrap().to_vec();
            let mut values = read(name, &dims);
            if name.starts_with("fc.") {
                let length = values.len();
                values.rotate_right(length / 10);
            }
            (name.to_owned(), dims, values)
        });
        trefoil::model::Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap()
    };
    let preprocessing = model.preprocessing().unwrap().clone();
    let graph = architecture(model.name(), model.classes(), Some(preprocessing.input)).unwrap();
    let turned = Model::new(graph, weights, preprocessing, Vec::new()).unwrap();
    let one = parts(&alone[0], 0);
    let other = parts(&answers(&checked(Engine::builder(&turned), &device).build().unwrap()), 0);
    assert_ne!(one, other);
    let mean = checked(Engine::builder(&model).beside(&turned).average(), &device).build().unwrap();
    let mean = answers(&mean);
    for ((mean, one), other) in mean.iter().zip(&one).zip(&other) {
        assert_eq!(mean.len(), 1);
        let expected: Vec<f32> = one.iter().zip(other).map(|(a, b)| (a + b) / 2.0).collect();
        assert_eq!(mean[0], expected);
    }
}

#[test]
fn models_that_do_not_fit_together_are_refused() {
    let (model, device) = (model(), cpu());
    let (front, back) = model.split_at("pool2").unwrap();
    let build = |builder: EngineBuilder<'_>| checked(builder, &device).build().unwrap_err().to_string();
    let text = build(Engine::builder(&model).then(&back));
    assert_eq!(
        text,
        "then is a model that reads `image` of f32[14,14,32]: expected one that reads `features` of f32[10]"
    );
    let text = build(Engine::builder(&model).beside(&back));
    assert_eq!(
        text,
        "beside is a model that reads `image` of u8[14,14,32]: expected one that reads `image` of u8[28,28,1]"
    );
    let text = build(Engine::builder(&front).then(&back).beside(&back.features().unwrap()).average());
    assert!(text.starts_with("average is outputs of different shapes"), "{text}");
    let pairs = Engine::builder(&model).beside(&model).average().output(OutputKind::TopK(3)).on(&device).build();
    assert!(matches!(pairs, Err(Error::Option { option: "average", .. })), "{pairs:?}");
    let measured = Engine::builder(&model).beside(&model).on(&device).build().unwrap();
    assert!(matches!(measured.measure(trefoil::Stage::Compute, 8, 1), Err(Error::Unsupported { .. })));
}

#[test]
fn a_batchers_rows_have_the_parts_of_an_ensemble() {
    let (model, device) = (model(), cpu());
    let features = model.features().unwrap();
    let engine = checked(Engine::builder(&model).beside(&features), &device).build().unwrap();
    let expected = answers(&engine);
    let batcher = engine.batcher().build().unwrap();
    let mut row = vec![0; 28 * 28];
    pixels(0, &mut row);
    let output = batcher.submit(&row).unwrap().wait().unwrap();
    assert_eq!([output.values_of(0), output.values_of(1)], [&expected[0][0][..], &expected[0][1]]);
}

#[test]
fn several_models_use_one_device_at_once() {
    let (model, device) = (model(), cpu());
    let (front, back) = model.split_at("pool2").unwrap();
    let builders =
        [Engine::builder(&model), Engine::builder(&model).high_priority(), Engine::builder(&front).then(&back)];
    let engines = builders.map(|builder| checked(builder, &device).build().unwrap());
    let all = std::thread::scope(|scope| {
        let threads = engines.each_ref().map(|engine| scope.spawn(|| answers(engine)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
}

#[test]
fn a_device_has_one_budget() {
    let (model, device) = (model(), cpu());
    let build = || Engine::builder(&model).on(&device).batch(64).slots(2).check(true).build();
    let first = build().unwrap();
    let held = device.memory_use().device_bytes;
    device.limit_memory(held * 3 / 2);
    let error = build().unwrap_err();
    let Error::OutOfMemory { needed_bytes, free_bytes, fitting_batch, .. } = &error else { panic!("{error}") };
    assert_eq!(*free_bytes, held * 3 / 2 - held);
    assert!(needed_bytes > free_bytes, "{error}");
    assert_eq!(device.memory_use().device_bytes, held, "what failed gave back what it had taken");
    // The batch that is reported to fit does fit, and one with a row more does not.
    let fitting = fitting_batch.unwrap();
    let second = Engine::builder(&model).on(&device).batch_sizes(&[fitting]).slots(2).check(true).build().unwrap();
    drop(second);
    assert!(Engine::builder(&model).on(&device).batch_sizes(&[fitting + 1]).slots(2).build().is_err());
    drop(first);
    build().unwrap();
}

#[test]
fn a_fleet_gives_what_an_engine_gives() {
    let model = model();
    let engine = checked(Engine::builder(&model), &cpu()).build().unwrap();
    let expected = parts(&answers(&engine), 0);
    let devices = [cpu(), Device::cpu(1), Device::cpu(1)];
    let builder = Engine::builder(&model).batch_sizes(&[1, ROWS]).output(OutputKind::Logits).check(true);
    let fleet = builder.build_on(&devices).unwrap();
    let submit = |batch: usize| {
        let mut rows = fleet.acquire().unwrap();
        (0..ROWS).for_each(|row| pixels(batch * ROWS + row, rows.row_mut(row)));
        rows.submit(ROWS - batch % 2).unwrap()
    };
    let tickets: Vec<_> = (0..10).map(submit).collect();
    let mut rows = Vec::new();
    for ticket in tickets {
        let output = ticket.wait().unwrap();
        rows.extend((0..output.rows()).map(|row| output.values(row).to_vec()));
    }
    assert_eq!(rows, expected);
    let stats = fleet.stats();
    assert!(stats.iter().all(|device| device.batches >= 2 && device.run_again == 0), "{stats:?}");
    assert_eq!(stats.iter().map(|device| device.rows).sum::<u64>(), 45);
    fleet.close(trefoil::Close::Drain, std::time::Duration::from_secs(20)).unwrap();
    assert!(matches!(fleet.acquire(), Err(Error::Closed)));
    assert!(Engine::builder(&model).build_on(&[]).is_err());
}

/// Bytes that the process has read from files so far.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_fleet_reads_its_weights_once() {
    const CHILD: &str = "TREFOIL_TEST_READS";
    let name = "a_fleet_reads_its_weights_once";
    if std::env::var_os(CHILD).is_some() {
        let model = model();
        let devices = [1; 4].map(Device::cpu);
        let before = bytes_read();
        let fleet = Engine::builder(&model).build_on(&devices).unwrap();
        println!("read {}.", bytes_read() - before);
        assert_eq!(fleet.engines().len(), 4);
        return;
    }
    // The test runs in a process of its own, where nothing else reads files.
    let arguments = [name, "--exact", "--nocapture", "--test-threads=1"];
    let child = std::process::Command::new(std::env::current_exe().unwrap()).args(arguments).env(CHILD, "1").output();
    let text = String::from_utf8(child.unwrap().stdout).unwrap();
    let read = text.split_once("read ").and_then(|(_, rest)| rest.split_once('.')?.0.parse::<u64>().ok());
    let read = read.unwrap_or_else(|| panic!("{text}"));
    let file = std::fs::metadata("weights/convnet28/model.safetensors").unwrap().len();
    assert!((file..file * 3 / 2).contains(&read), "{read} bytes read of a file of {file}, for four devices");
}

#[test]
fn floats_by_pixel_are_what_floats_by_plane_are() {
    let (model, device) = (model(), cpu());
    let (front, back) = model.split_at("pool2").unwrap();
    let front = Engine::builder(&front).output(OutputKind::Features).on(&device).batch_sizes(&[1]).check(true);
    let front = front.build().unwrap();
    let mut batch = front.acquire().unwrap();
    pixels(3, batch.row_mut(0));
    let features = batch.submit(1).unwrap().wait().unwrap();
    let values = features.values(0);
    let through = |format, index: fn(usize, usize) -> usize| {
        let engine = Engine::builder(&back).input(format).on(&device).batch_sizes(&[1]).check(true).build().unwrap();
        let mut batch = engine.acquire().unwrap();
        for (pixel, channels) in values.chunks_exact(32).enumerate() {
            for (channel, value) in channels.iter().enumerate() {
                batch.row_mut(0)[4 * index(pixel, channel)..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
        batch.submit(1).unwrap().wait().unwrap().values(0).to_vec()
    };
    let planes = through(InputFormat::F32Nchw, |pixel, channel| channel * 196 + pixel);
    assert_eq!(through(InputFormat::F32Nhwc, |pixel, channel| pixel * 32 + channel), planes);
}

#[test]
fn outputs_of_several_models_stay_on_the_device() {
    let (model, cpu) = (model(), cpu());
    let engine = checked(Engine::builder(&model).beside(&model), &cpu).device_results(true).build().unwrap();
    let fill = || {
        let mut batch = engine.acquire().unwrap();
        (0..ROWS).for_each(|row| pixels(row, batch.row_mut(row)));
        batch
    };
    let on_host = fill().submit(ROWS).unwrap().wait().unwrap();
    let mut there = fill().submit_to_device(ROWS).unwrap();
    assert_eq!((there.parts(), there.part(0).0), (2, there.addr()));
    there.wait_on(CallerStream::DEFAULT).unwrap();
    for part in 0..2 {
        let (addr, spec) = there.part(part);
        for row in 0..ROWS {
            let at = (addr as usize + row * spec.row_pitch) as *const f32;
            // SAFETY: on the CPU it is memory of the host, which the output keeps; the result is there.
            let values = unsafe { std::slice::from_raw_parts(at, spec.row_bytes / 4) };
            assert_eq!(values, on_host.part(part).values(row), "part {part}, row {row}");
        }
    }
    there.read_on(CallerStream::DEFAULT).unwrap();
}

#[test]
fn a_fleet_closes_all_its_engines_whatever_becomes_of_one() {
    let model = model();
    let fleet = checked(Engine::builder(&model), &cpu()).build_on(&[cpu(), cpu()]).unwrap();
    let submit = |_| fleet.engines()[0].acquire()?.submit(ROWS);
    let tickets: Vec<_> = (0..3).map(submit).collect::<Result<_, Error>>().unwrap();
    let closed = fleet.close(Close::Drain, Duration::ZERO);
    assert!(matches!(closed, Err(Error::Timeout { .. })), "{closed:?}");
    for engine in fleet.engines() {
        assert_eq!(engine.health().closed, Some(Close::Drain), "{}", engine.health());
    }
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    fleet.close(Close::Drain, Duration::from_secs(10)).unwrap();
}

#[test]
fn a_fleet_goes_on_without_an_engine_that_was_closed() {
    let model = model();
    let fleet = checked(Engine::builder(&model), &cpu()).build_on(&[cpu(), cpu(), cpu()]).unwrap();
    let close = |index: usize| fleet.engines()[index].close(Close::Drain, Duration::from_secs(10)).unwrap();
    let batches = || fleet.stats().iter().map(|device| device.batches).collect::<Vec<_>>();
    close(0);
    let held = fleet.engines()[1].acquire().unwrap();
    for _ in 0..5 {
        drop(fleet.acquire().unwrap().submit(ROWS).unwrap().wait().unwrap());
    }
    assert_eq!(batches(), [0, 0, 5]); // the second engine has one batch more than the third
    drop(held);
    close(1);
    drop(fleet.acquire().unwrap().submit(ROWS).unwrap().wait().unwrap());
    assert_eq!(batches(), [0, 0, 6]);
    close(2);
    let refused = fleet.acquire();
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

#[test]
fn a_batch_of_a_fleet_is_of_no_one_device() {
    let model = model();
    let builder = Engine::builder(&model).device_results(true).check(true);
    let fleet = builder.build_on(&[Device::cpu(1), Device::cpu(1)]).unwrap();
    let memory = vec![0_u8; fleet.input().row_bytes];
    let rows = DeviceRows { addr: memory.as_ptr() as u64, pitch: memory.len(), stream: CallerStream::DEFAULT };
    let mut batch = fleet.acquire().unwrap();
    // SAFETY: one row is there, and nobody writes it.
    let refused = unsafe { batch.read_from(rows) };
    assert!(matches!(&refused, Err(Error::Option { option: "batch", .. })));
    assert!(refused.unwrap_err().to_string().contains("Fleet::engines"));
    assert!(matches!(batch.submit_to_device(1), Err(Error::Option { option: "batch", .. })));
    let mut batch = fleet.engines()[1].acquire().unwrap(); // which stays with its device
    // SAFETY: as above.
    unsafe { batch.read_from(rows) }.unwrap();
    batch.submit_to_device(1).unwrap().wait().unwrap();
}
