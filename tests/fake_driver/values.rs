//! A model of any values on a GPU: its loops are generated when it is built, and the stand-in computes them.

use trefoil::graph::{GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::{Choices, StepOp};
use trefoil::{Device, Engine, Error, OutputKind, Precision, Shape, Target};

use crate::engine::fail_each_call_of;
use crate::harness::{Scenario, for_each_number, mark, wait_for_release};
use crate::support::beyond_f16;
use crate::support::embedding::{kept, problems};
use crate::support::encoder::{Encoder, Style};
use crate::support::random::Random;
use crate::support::records::{check, fill, joined};
use crate::support::{joined, operations, precision, sizes, states, transformer};

/// Rows go through the ring in batches of several sizes, in two lanes, with the hazard checker.
#[test]
fn rows_are_computed_by_loops_alone() {
    let scenario = Scenario::new("values::rows_are_computed_by_loops_alone", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = joined();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 3]).check(true);
        let engine = builder.precision(Precision::F32).build().unwrap();
        for rows in [1, 2, 3] {
            let mut batch = engine.acquire().unwrap();
            (0..rows).for_each(|row| fill(&mut batch, row));
            let output = batch.submit(rows).unwrap().wait().unwrap();
            for row in 0..rows {
                check(output.port(row, "features").unwrap(), output.port(row, "best").unwrap(), row);
            }
        }
    });
    scenario.run(&[]).assert_clean();
}

/// Loops compute what has no kernel in these types: everything in f32, bf16 layers of images, and rows of transformers
/// that are no multiples of 8. The results equal those of plain loops.
#[test]
fn other_types_than_f16_are_computed_by_loops() {
    let scenario = Scenario::new("values::other_types_than_f16_are_computed_by_loops", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let types = [Precision::F32, Precision::Bf16];
        precision::layers_read_the_type_that_is_asked_for(&device, &types);
        precision::a_checkpoint_has_a_precision_of_its_own(&device);
        precision::nodes_in_f32_read_f32(&device);
        let networks = operations::networks();
        for (case, of) in networks.iter().zip(types.into_iter().cycle()).take(NETWORKS) {
            case.run_in(of, &device, Choices::new()).unwrap();
        }
        for problem in transformer::small(Precision::Bf16) {
            problem.run(&device).unwrap_or_else(|error| panic!("{problem}: {error}"));
        }
    });
    // A GPU without kernels of bf16, which the stand-in would not compute.
    scenario.run(&[("FAKE_CUDA_CAPABILITY", "80")]).assert_clean();
}

/// The second operand of a concatenation begins at a channel where kernels for images cannot write: a loop joins the
/// operands, and the kernels compute the convolutions.
#[test]
fn channels_that_lie_anywhere_are_joined_by_a_loop() {
    let scenario = Scenario::new("values::channels_that_lie_anywhere_are_joined_by_a_loop", || {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(12, 10, 8));
        let [left, right] =
            [("left", 12), ("right", 20)].map(|(name, k)| g.conv2d(name, image, k, Window::square(3, 1, 1)));
        let x = g.concat("both", &[left, right]);
        let x = g.global_avg_pool("mean", x);
        g.output("y", x);
        let weights = Weights::from_tensors([
            ("left.weight", vec![12, 8, 3, 3], vec![0.5; 12 * 72]),
            ("right.weight", vec![20, 8, 3, 3], vec![0.5; 20 * 72]),
        ]);
        let preprocessing = Preprocessing::new(Shape::new(12, 10, 8));
        let model = Model::new(g.finish().unwrap(), weights.unwrap(), preprocessing, Vec::new()).unwrap();
        let device = Device::open(Target::Cuda(0)).unwrap();
        let engine = Engine::builder(&model).on(&device).output(OutputKind::Features).batch_sizes(&[2]).check(true);
        let engine = engine.build().unwrap();
        let steps = |is: fn(&StepOp) -> bool| engine.plans()[0].steps.iter().filter(|step| is(&step.op)).count();
        assert_eq!(steps(|op| matches!(op, StepOp::Conv(_))), 2, "{}", engine.plans()[0]);
        assert!(steps(|op| matches!(op, StepOp::Loop(_))) > 0, "{}", engine.plans()[0]);
        assert_eq!(engine.acquire().unwrap().submit(2).unwrap().wait().unwrap().values(1).len(), 32);
    });
    scenario.run(&[]).assert_clean();
}

/// Number of networks, which the interpreter computes in seconds: they cover each format of rows and each kind of
/// output.
const NETWORKS: usize = 4;

/// Products, attention and norms use their own kernels: the stand-in compares each launch with its kernel.
#[test]
fn encoders_are_launched_as_their_kernels_are() {
    let scenario = Scenario::new("values::encoders_are_launched_as_their_kernels_are", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let both = [Precision::F16, Precision::Bf16].map(|of| [(of, Style::Images(8)), (of, Style::Text)]);
        for (precision, style) in both.into_iter().flatten() {
            let model = Encoder { tokens: 17, heads: 2, dims: 32, layers: 2, style }.model().unwrap();
            let engine = Engine::builder(&model).on(&device).precision(precision).batch_sizes(&[1, 3]);
            let engine = engine.check(true).build().unwrap();
            for rows in [1, 3] {
                engine.acquire().unwrap().submit(rows).unwrap().wait().unwrap();
            }
        }
    });
    scenario.run(&[]).assert_clean();
}

/// Engines of several sizes, as loops, with the hazard checker; means have no kernel.
#[test]
fn sizes_are_computed_by_loops_alone() {
    let scenario = Scenario::new("values::sizes_are_computed_by_loops_alone", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        for (name, case) in sizes::ALL.into_iter().filter(|(name, _)| *name != "a_mean_is_there_at_every_size") {
            println!("{name}");
            case(&device);
        }
    });
    scenario.run(&[]).assert_clean();
}

/// Texts end to end, with positions, distances, rotations and causal attention: loops read keys by the starts of rows.
#[test]
fn packed_texts_are_computed_by_loops_alone() {
    let scenario = Scenario::new("values::packed_texts_are_computed_by_loops_alone", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let names = ["BERT, mean, unit", "MPNet, mean, unit", "CLIP, texts", "modernbert"];
        let all = problems::all().into_iter().chain(kept::all());
        for problem in all.filter(|problem| names.contains(&problem.name)) {
            problem.run_packed(&device, Precision::F32).unwrap_or_else(|what| panic!("{problem}: {what}"));
            let engine = problem.packed(&device, Precision::F32, 30, 3).unwrap();
            let text = problem.text(5);
            let alone = engine.bits(&[&text]);
            engine.hostile(&mut Random::new(problem.name)).submit(1).unwrap().wait().unwrap();
            assert!(engine.bits(&[&problem.text(7), &text])[1] == alone[0], "{problem}");
        }
    });
    scenario.run(&[]).assert_clean();
}

/// State stays on the device; the hazard checker is on.
#[test]
fn states_stay_on_the_device() {
    let scenario = Scenario::new("values::states_stay_on_the_device", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        for (name, case) in states::ALL {
            println!("{name}");
            case(&device);
        }
    });
    scenario.run(&[]).assert_clean();
}

/// A batch with state makes the same calls as one without: no copy of the state and no waits. A reset is one copy, on
/// the stream of the next batch.
#[test]
fn a_batch_with_state_makes_no_other_calls() {
    let scenario = Scenario::new("values::a_batch_with_state_makes_no_other_calls", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = states::running_sum();
        let engine = Engine::builder(&model).on(&device).precision(Precision::F32).build().unwrap();
        let next = || drop(engine.acquire().unwrap().submit(1).unwrap().wait().unwrap());
        (0..8).for_each(|_| next());
        mark("steady");
        next();
        mark("reset");
        engine.reset_states();
        mark("next");
        next();
        mark("end");
        drop((engine, device));
        wait_for_release();
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let kinds = |from: &str, to: &str| -> Vec<String> {
        let name = |call: &str| call.split_whitespace().next().unwrap_or_default().to_owned();
        report.between(from, to).into_iter().map(name).filter(|name| name != "cuEventQuery").collect()
    };
    let steady = kinds("steady", "reset");
    let copies = |kinds: &[String]| kinds.iter().filter(|kind| kind.starts_with("cuMemcpy")).count();
    assert_eq!((copies(&steady), steady.iter().filter(|kind| *kind == "cuGraphLaunch").count()), (2, 1), "{steady:?}");
    assert!(steady.iter().all(|kind| !kind.contains("Alloc") && !kind.contains("StreamSynchronize")), "{steady:?}");
    assert_eq!(kinds("reset", "next"), Vec::<String>::new());
    let behind = kinds("next", "end");
    assert_eq!((copies(&behind), behind.len()), (3, steady.len() + 1), "{behind:?}");
}

/// Joined models, and flows of parts; the hazard checker is on.
#[test]
fn models_are_made_of_several() {
    let scenario = Scenario::new("values::models_are_made_of_several", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        // The stand-in runs generated kernels only.
        let in_loops =
            joined::ALL.into_iter().filter(|(name, _)| *name != "networks_of_images_become_models_of_values");
        for (name, case) in in_loops {
            println!("{name}");
            case(&device);
        }
    });
    scenario.run(&[]).assert_clean();
}

/// A batch of a flow of two models is copied in and out once, and is nothing else but the two graphs.
#[test]
fn a_flow_of_two_models_copies_nothing_in_between() {
    let scenario = Scenario::new("values::a_flow_of_two_models_copies_nothing_in_between", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let flow = joined::flow(&device);
        let next = || drop(flow.acquire().unwrap().submit(1).unwrap().wait().unwrap());
        (0..8).for_each(|_| next());
        mark("steady");
        next();
        mark("end");
        drop((flow, device));
        wait_for_release();
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let calls = report.between("steady", "end");
    let count = |begin: &str| calls.iter().filter(|call| call.starts_with(begin)).count();
    assert_eq!((count("cuMemcpy"), count("cuGraphLaunch")), (2, 2), "{calls:?}");
    assert_eq!((count("cuMemset"), count("cuLaunch"), count("cuStreamSynchronize")), (0, 0, 0), "{calls:?}");
}

/// Work runs as late as possible, in many orders of the streams: a state is neither read nor written out of turn.
#[test]
fn late_work_leaves_states_in_order() {
    let scenario = Scenario::new("values::late_work_leaves_states_in_order", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        states::a_batch_goes_on_where_the_one_before_ended(&device);
        states::each_row_has_a_state_of_its_own(&device);
    });
    for_each_number(8, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// Runs two batches with a reset in between; the state is written before them and read after them.
fn two_steps(device: &Device) -> Result<(), Error> {
    let model = states::running_sum();
    let engine = Engine::builder(&model).on(device).precision(Precision::F32).build()?;
    engine.write_state("before", &[3])?;
    engine.acquire()?.submit(1)?.wait()?;
    engine.reset_states();
    engine.acquire()?.submit(1)?.wait()?;
    engine.read_state::<i32>("before")?;
    mark("drop");
    drop(engine);
    Ok(())
}

#[test]
fn every_call_of_a_model_with_state_may_fail() {
    for sticky in ["0", "1"] {
        fail_each_call_of("values::every_call_of_a_model_with_state_may_fail", sticky, || {
            let opened = Device::open(Target::Cuda(0));
            if let Err(error) = opened.as_ref().map_err(Error::clone).and_then(two_steps) {
                println!("{error}");
            }
            if opened.is_ok_and(|device| device.fault().is_some()) {
                println!("faulted");
            }
        });
    }
}

/// Layers in f32 are loops, whose values can be handed out, too.
#[test]
fn nodes_in_f32_are_computed_by_loops() {
    let scenario = Scenario::new("values::nodes_in_f32_are_computed_by_loops", || {
        beyond_f16::loops_hold_what_f16_does_not(&Device::open(Target::Cuda(0)).unwrap());
    });
    scenario.run(&[]).assert_clean();
}

/// Networks of images that are planned as graphs of values, because of a chosen type or of one layer: their last layer
/// is then a convolution of one tap, whose filter is a matrix of the file.
#[test]
fn networks_of_images_are_computed_beside_loops() {
    const PATHS: [&str; 2] = ["tests/data/onnx/images.onnx", "weights/convnet28"];
    let scenario = Scenario::new("values::networks_of_images_are_computed_beside_loops", || {
        let probabilities = |path: &str, device: &Device, precision: Precision| {
            let model = Model::open(path).unwrap();
            let engine = Engine::builder(&model).on(device).precision(precision).batch_sizes(&[1]).build().unwrap();
            let mut batch = engine.acquire().unwrap();
            let pixels = batch.row_mut(0).iter_mut().enumerate();
            pixels.for_each(|(index, byte)| *byte = (index * 31 % 251) as u8);
            batch.submit(1).unwrap().wait().unwrap().values(0).to_vec()
        };
        let [cpu, gpu] = [Target::Cpu, Target::Cuda(0)].map(|target| Device::open(target).unwrap());
        for path in PATHS {
            assert!(!probabilities(path, &gpu, Precision::Auto).is_empty()); // which the stand-in does not compute
            let (found, expected) =
                (probabilities(path, &gpu, Precision::Bf16), probabilities(path, &cpu, Precision::Auto));
            let off = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 3e-2 && found.len() == expected.len(), "{path}: off by {off}");
        }
    });
    // A GPU without kernels of bf16, which the stand-in would not compute.
    scenario.run(&[("FAKE_CUDA_CAPABILITY", "80")]).assert_clean();
}
