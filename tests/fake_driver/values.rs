//! A model of any values on a GPU: loops that are written when it is built, which the stand-in computes.

use trefoil::{Device, Engine, Precision, Target};

use crate::harness::Scenario;
use crate::support::beyond_f16;
use crate::support::encoder::{Encoder, Style};
use crate::support::records::{check, fill, joined};
use crate::support::sizes;

/// Through the ring in batches of several sizes, in two lanes, behind the hazard checker.
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

/// Products, attention and norms by their own kernels: the stand-in compares each launch with its kernel.
#[test]
fn encoders_are_launched_as_their_kernels_are() {
    let scenario = Scenario::new("values::encoders_are_launched_as_their_kernels_are", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        for style in [Style::Images(8), Style::Text] {
            let model = Encoder { tokens: 17, heads: 2, dims: 32, layers: 2, style }.model().unwrap();
            let engine = Engine::builder(&model).on(&device).batch_sizes(&[1, 3]).check(true).build().unwrap();
            for rows in [1, 3] {
                engine.acquire().unwrap().submit(rows).unwrap().wait().unwrap();
            }
        }
    });
    scenario.run(&[]).assert_clean();
}

/// Cases of engines of several sizes, as loops; behind the hazard checker. The kernel of means is none.
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

/// Layers in f32 are loops, whose values are handed out too.
#[test]
fn nodes_in_f32_are_computed_by_loops() {
    let scenario = Scenario::new("values::nodes_in_f32_are_computed_by_loops", || {
        beyond_f16::loops_hold_what_f16_does_not(&Device::open(Target::Cuda(0)).unwrap());
    });
    scenario.run(&[]).assert_clean();
}
