//! The examples that assert their claims, run on a GPU if there is one, else on the CPU. Each runs in a process of its
//! own, where `TREFOIL_CHECK` turns the hazard checker on in every engine.

#[path = "../examples/tokio.rs"]
mod awaited;
#[path = "../examples/branches.rs"]
mod branches;
#[cfg(feature = "image")]
#[path = "../examples/crops.rs"]
mod crops;
#[cfg(feature = "image")]
#[path = "../examples/detect.rs"]
mod detect;
#[path = "../examples/ensemble.rs"]
mod ensemble;
#[path = "../examples/multi_gpu.rs"]
mod multi_gpu;
#[path = "../examples/multi_stage.rs"]
mod multi_stage;
#[path = "../examples/overlap.rs"]
mod overlap;
#[path = "../examples/parallel_batches.rs"]
mod parallel_batches;
#[path = "../examples/prefetch.rs"]
mod prefetch;
#[cfg(feature = "image")]
#[path = "../examples/read_text.rs"]
mod read_text;
#[allow(dead_code, reason = "its main reads arguments")]
#[path = "../examples/replays.rs"]
mod replays;
#[path = "../examples/side_by_side.rs"]
mod side_by_side;
#[path = "../examples/thread_pool.rs"]
mod thread_pool;
#[path = "../examples/two_models.rs"]
mod two_models;
#[path = "../examples/waiting.rs"]
mod waiting;

use std::sync::{Mutex, PoisonError};

use trefoil::model::Model;
use trefoil::{Device, Engine, Target};

/// The lock that is held while an example runs: most examples assert an overlap, which another one beside it on few
/// cores would prevent.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the body of the test `name` in a process in which all engines are checked.
fn checked(name: &str, body: impl FnOnce()) {
    if std::env::var("TREFOIL_CHECK").is_ok_and(|value| value == "1") {
        let model = Model::open("weights/convnet28").unwrap();
        assert!(format!("{:?}", Engine::builder(&model)).contains("check: true"), "TREFOIL_CHECK is not heeded");
        return body();
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("TREFOIL_CHECK", "1")
        .output()
        .unwrap();
    let text = [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    print!("{text}");
    assert!(child.status.success() && text.contains("1 passed"), "{}", child.status);
}

#[test]
fn tickets_are_futures_under_tokio() {
    checked("tickets_are_futures_under_tokio", || awaited::main().unwrap());
}

#[test]
fn branches_run_side_by_side() {
    checked("branches_run_side_by_side", || branches::main().unwrap());
}

#[test]
fn one_input_goes_through_several_models() {
    checked("one_input_goes_through_several_models", || ensemble::main().unwrap());
}

#[test]
fn several_devices_are_one() {
    checked("several_devices_are_one", || multi_gpu::main().unwrap());
}

#[test]
fn stages_follow_each_other() {
    checked("stages_follow_each_other", || multi_stage::main().unwrap());
}

#[test]
fn copies_and_compute_overlap() {
    checked("copies_and_compute_overlap", || overlap::main().unwrap());
}

#[test]
fn batches_of_many_threads_are_kept_apart() {
    checked("batches_of_many_threads_are_kept_apart", || parallel_batches::main().unwrap());
}

#[test]
fn what_is_next_is_loaded_meanwhile() {
    checked("what_is_next_is_loaded_meanwhile", || prefetch::main().unwrap());
}

#[test]
fn engines_are_measured_side_by_side() {
    checked("engines_are_measured_side_by_side", || {
        let model = Model::open("weights/convnet28").unwrap();
        let time = std::time::Duration::from_millis(80); // for a busy machine to answer something
        let run = side_by_side::Run { model: &model, urgent: &model, time, batch: 8 };
        let device = Device::open(Target::Cpu).unwrap();
        run.fleets(&[Device::cpu(1), Device::cpu(1)]).unwrap();
        let [alone, first, plain] = run.urgent_beside_bulk(&device).unwrap();
        let (front, back) = model.split_at("pool2").unwrap();
        let pipeline = run.pipeline(&device, "cut at pool2", [&front, &back]).unwrap();
        let ratios = [run.two_rings(&device, [&model; 2]).unwrap(), pipeline, alone, first, plain];
        assert!(ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0), "{ratios:?}");
    });
}

#[test]
fn workers_share_batches() {
    checked("workers_share_batches", || thread_pool::main().unwrap());
}

#[test]
fn several_models_share_a_device() {
    checked("several_models_share_a_device", || two_models::main().unwrap());
}

/// The example runs in a process of its own, because it counts the CPU time of all rings' threads; and without the
/// checker, because it measures the cost of calls.
#[test]
fn waiting_is_measured() {
    const ALONE: &str = "TREFOIL_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["waiting_is_measured", "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        println!("{said}");
        return assert!(output.status.success(), "{}", output.status);
    }
    let device = Device::open(Target::Auto).unwrap();
    let is_gpu = device.info().compute_capability != [0, 0];
    let measured = waiting::measure(&device, if is_gpu { 20_000 } else { 200 }).unwrap();
    assert!(measured.ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0), "{:?}", measured.ratios);
    assert_eq!(measured.record["rows"].as_array().map(Vec::len), Some(6), "{}", measured.record);
    measured.check(&device);
}

#[test]
fn replays_are_alike() {
    checked("replays_are_alike", || {
        let model = Model::open("weights/convnet28").unwrap();
        let engine = Engine::builder(&model).on(&Device::open(Target::Cpu).unwrap()).batch_sizes(&[3]).build().unwrap();
        assert_eq!(replays::replay(&engine, 50).unwrap(), 0);
    });
}

/// An engine for a file of tests/data/onnx.
#[cfg(feature = "image")]
fn engine(file: &str, sizes: &trefoil::onnx::Sizes) -> (Model, Engine) {
    let model = Model::open_at(format!("tests/data/onnx/{file}.onnx"), sizes).unwrap();
    let engine = Engine::builder(&model).on(&Device::open(Target::Auto).unwrap()).batch(1).build().unwrap();
    (model, engine)
}

#[cfg(feature = "image")]
#[test]
fn things_in_a_photo_are_found() {
    use trefoil::image::{Area, Picture};
    use trefoil::model::Interpolation;

    checked("things_in_a_photo_are_found", || {
        let (_, engine) = engine("boxes", &trefoil::onnx::Sizes::new());
        let mut photo = Picture::filled(128, 64, [0; 3]).unwrap();
        let mut paint = |left, top, colour| {
            let thing = Picture::filled(16, 16, colour).unwrap();
            let to = Area { left, top, width: 16, height: 16 };
            photo.draw(to, &thing, thing.area(), Interpolation::Nearest).unwrap();
        };
        paint(32, 16, [255; 3]);
        paint(48, 16, [250; 3]); // the same thing
        paint(96, 32, [255, 0, 0]);
        // The photo at half the size, with 16 rows of gray above: boxes of 64 around cells of 16, cut at the photo's
        // border.
        let found = detect::detect(&engine, &photo).unwrap();
        let seen: Vec<_> = found.iter().map(|one| (one.class, one.edges)).collect();
        assert_eq!(seen, [(1, [72.0, 8.0, 128.0, 64.0]), (0, [8.0, 0.0, 72.0, 56.0])], "{found:?}");
        assert!(found.iter().all(|one| one.score > 0.95), "{found:?}");
    });
}

#[cfg(feature = "image")]
#[test]
fn a_line_of_text_is_read() {
    use trefoil::image::{Area, Picture};
    use trefoil::model::Interpolation;

    checked("a_line_of_text_is_read", || {
        let (model, engine) = engine("text", &trefoil::onnx::Sizes::new().dim("width", 192));
        let mut line = Picture::filled(80, 24, [255; 3]).unwrap(); // white is a space
        for (place, letter) in [0, 1, 2, 3, 4, 5, 6, 7, 0, 5].into_iter().enumerate() {
            let bit = |n: u8| 255 * (letter >> n & 1);
            let thing = Picture::filled(8, 24, [bit(0), bit(1), bit(2)]).unwrap();
            let to = Area { left: 8 * place, top: 0, width: 8, height: 24 };
            line.draw(to, &thing, thing.area(), Interpolation::Nearest).unwrap();
        }
        let text = read_text::read(&engine, &read_text::characters(&model), &line).unwrap();
        assert_eq!(text.characters, "trefoil ti");
        assert!(text.probability > 0.9, "{text:?}");
    });
}

#[cfg(feature = "image")]
#[test]
fn crops_of_what_is_found_are_recognised_on_the_device() {
    use trefoil::image::{Area, Picture};
    use trefoil::model::Interpolation;
    use trefoil::trace::TraceStage;

    checked("crops_of_what_is_found_are_recognised_on_the_device", || {
        let open =
            |file: &str, sizes: &trefoil::onnx::Sizes| Model::open_at(format!("tests/data/onnx/{file}.onnx"), sizes);
        let detector = open("boxes", &trefoil::onnx::Sizes::new()).unwrap();
        let model = open("text", &trefoil::onnx::Sizes::new().dim("width", 32)).unwrap();
        let recogniser = crops::Recogniser { model, mean: [0.5; 3], std: [0.5; 3], reversed: true };
        let flow = crops::flow(&detector, &recogniser, 2).unwrap();
        let device = Device::open(Target::Auto).unwrap();
        let build = |builder: trefoil::EngineBuilder<'_>| builder.on(&device).batch_sizes(&[1, 3]).trace(true).build();
        let engine = build(Engine::builder(&flow.detector).then(&flow.recogniser)).unwrap();

        // Things of 24 x 24 pixels, each the brightest in a cell of 8 x 8 in its middle.
        let thing = |photo: &mut Picture, [left, top]: [usize; 2], colour: [u8; 3]| {
            for (inside, part) in [(0, 0.6), (8, 1.0)] {
                let side = 24 - 2 * inside;
                let thing = Picture::filled(side, side, colour.map(|of| (f32::from(of) * part) as u8)).unwrap();
                let to = Area { left: left + inside, top: top + inside, width: side, height: side };
                photo.draw(to, &thing, thing.area(), Interpolation::Nearest).unwrap();
            }
        };
        let photo = |white: [usize; 2], red: [usize; 2]| {
            let mut photo = Picture::filled(64, 64, [20; 3]).unwrap();
            thing(&mut photo, white, [255; 3]);
            thing(&mut photo, red, [255, 0, 0]);
            photo
        };
        let photos = [photo([8, 8], [32, 40]), photo([40, 0], [0, 24]), photo([16, 32], [40, 8])];
        let answers = crops::answers(&engine, &photos).unwrap();
        for (answer, [white, red]) in answers.iter().zip([[[8, 8], [32, 40]], [[40, 0], [0, 24]], [[16, 32], [40, 8]]])
        {
            // A box of 32 around the middle of the red thing, then one of the white thing.
            let around =
                |[left, top]: [usize; 2]| [left as f32 - 4.0, top as f32 - 4.0, left as f32 + 28.0, top as f32 + 28.0];
            assert_eq!(
                (&answer.classes, &answer.boxes),
                (&vec![1, 0], &vec![around(red), around(white)]),
                "{answer:?}"
            );
            assert!(answer.scores[0] > answer.scores[1] && answer.scores[1] > 0.9, "{answer:?}");
            assert!(answer.results[0] != answer.results[1], "both crops are the same: {answer:?}");
        }
        crops::check(&device, &flow, &recogniser, &photos, &answers).unwrap();
        let whole = build(Engine::builder(&flow.whole)).unwrap();
        let in_one = crops::answers(&whole, &photos).unwrap();
        for (one, other) in in_one.iter().zip(&answers) {
            assert_eq!((&one.boxes, &one.classes), (&other.boxes, &other.classes));
        }
        assert_eq!(crops::answers(&engine, &photos[..1]).unwrap()[0].boxes, answers[0].boxes);

        // Two batches, each copied in and out once, and computed twice.
        let trace = engine.trace().unwrap();
        let stages =
            [TraceStage::CopyIn, TraceStage::Compute, TraceStage::CopyOut].map(|stage| trace.stage(stage).count());
        assert_eq!(stages, [2, 4, 2]);
    });
}
