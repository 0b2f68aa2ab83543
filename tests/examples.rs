//! The examples that assert what they claim, run on the CPU.

#[path = "../examples/tokio.rs"]
mod awaited;
#[allow(dead_code, reason = "its main reads arguments")]
#[path = "../examples/replays.rs"]
mod replays;
#[path = "../examples/waiting.rs"]
mod waiting;

use trefoil::model::Model;
use trefoil::{Device, Engine, Target};

#[test]
fn tickets_are_futures_under_tokio() {
    awaited::main().unwrap();
}

#[test]
fn waiting_is_measured() {
    let ratios = waiting::measure(&Device::open(Target::Cpu).unwrap(), 200).unwrap();
    assert!(ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0), "{ratios:?}");
}

#[test]
fn replays_are_alike() {
    let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/weights/convnet28")).unwrap();
    let engine = Engine::builder(&model).on(&Device::open(Target::Cpu).unwrap()).batch_sizes(&[3]).build().unwrap();
    assert_eq!(replays::replay(&engine, 50).unwrap(), 0);
}
