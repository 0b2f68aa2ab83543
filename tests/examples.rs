//! The examples that assert what they claim, run on the CPU.

#[path = "../examples/tokio.rs"]
mod awaited;
#[path = "../examples/waiting.rs"]
mod waiting;

use trefoil::{Device, Target};

#[test]
fn tickets_are_futures_under_tokio() {
    awaited::main().unwrap();
}

#[test]
fn waiting_is_measured() {
    let ratios = waiting::measure(&Device::open(Target::Cpu).unwrap(), 200).unwrap();
    assert!(ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0), "{ratios:?}");
}
