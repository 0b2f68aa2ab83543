//! Layers in f16 and bf16 on the CPU, compared with plain loops that round alike; `tests/gpu.rs` runs them on a GPU.

mod support;

use support::problem::Case;
use support::{operations, precision, transformer};
use trefoil::model::Model;
use trefoil::plan::Choices;
use trefoil::{Device, Engine, Error, OutputKind, Precision};

const HALVES: [Precision; 2] = [Precision::F16, Precision::Bf16];

/// Checks every `each`-th of the cases.
fn check(cases: Vec<Case>, each: usize) {
    let device = Device::cpu(2);
    let run = |case: &Case| HALVES.iter().filter_map(|&of| case.run_in(of, &device, Choices::new()).err()).collect();
    let wrong: Vec<String> = cases.iter().step_by(each).flat_map(|case| -> Vec<String> { run(case) }).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layers_read_the_type_that_is_asked_for() {
    precision::layers_read_the_type_that_is_asked_for(
        &Device::cpu(1),
        &[Precision::F16, Precision::Bf16, Precision::F32],
    );
}

#[test]
fn a_checkpoint_has_a_precision_of_its_own() {
    precision::a_checkpoint_has_a_precision_of_its_own(&Device::cpu(1));
}

#[test]
fn nodes_in_f32_read_f32() {
    precision::nodes_in_f32_read_f32(&Device::cpu(1));
}

/// A CPU computes recurrent layers step by step.
#[cfg(feature = "cuda")]
#[test]
fn recurrent_layers_are_those_of_plain_loops() {
    let device = Device::cpu(2);
    let problems = HALVES.into_iter().flat_map(support::recurrent::all).filter(|problem| problem.is_for_cpus());
    let wrong: Vec<String> = problems
        .filter_map(|problem| problem.run(&device).err().map(|error| format!("{problem:?}: {error}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// On a GPU with the kernel each problem runs it.
#[cfg(feature = "cuda")]
#[test]
fn problems_of_recurrent_layers_have_the_kernel() {
    let problems = HALVES.into_iter().flat_map(support::recurrent::all);
    let without: Vec<_> = problems.filter(|problem| !problem.is_in_kernel()).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn rows_of_every_format_are_read() {
    check(operations::normalize(), 1);
}

#[test]
fn convolutions() {
    check(operations::conv2d(), 7);
    check(operations::depthwise(), 7);
}

#[test]
fn linear_layers() {
    check(operations::linear(), 3);
}

#[test]
fn every_kind_of_output_is_given() {
    check(operations::outputs(), 1);
}

#[test]
fn networks_of_images() {
    check(operations::networks(), 1);
}

#[test]
fn transformers() {
    let device = Device::cpu(2);
    let all = HALVES.into_iter().flat_map(transformer::small);
    let wrong: Vec<String> =
        all.filter_map(|problem| Some(format!("{problem}: {}", problem.run(&device).err()?))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A trained network has the answers of f32, and probabilities that show the rounding.
#[test]
fn a_trained_network_answers_as_in_f32() {
    let model = Model::open("weights/convnet28").unwrap();
    let best = |precision| {
        let engine = Engine::builder(&model).on(&Device::cpu(2)).precision(precision).build().unwrap();
        let mut batch = engine.acquire().unwrap();
        batch.row_mut(0).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * i / 7) as u8);
        batch.submit(1).unwrap().wait().unwrap().top_k(0, 1).unwrap()[0]
    };
    let (class, exact) = best(Precision::F32);
    assert_eq!(best(Precision::Auto), (class, exact));
    for precision in HALVES {
        let (found, probability) = best(precision);
        assert!(found == class && probability != exact, "{precision:?}: {found} instead of {class}, {probability}");
    }
}

/// A network in bytes has its own type, so that a precision is refused.
#[test]
fn a_network_in_bytes_is_refused() {
    let model = support::quantized::all().swap_remove(0).model().unwrap();
    let builder = Engine::builder(&model).on(&Device::cpu(1)).output(OutputKind::Features);
    match builder.precision(Precision::Bf16).build() {
        Err(Error::Unsupported { what, .. }) => assert!(what.contains("in bytes"), "{what}"),
        other => panic!("{other:?}"),
    }
}
