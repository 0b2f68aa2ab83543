//! Every operation on a GPU against plain loops in f64, with every kernel and tile.
//!
//! Without a GPU each case is reported as ignored and a last line says so; with `TREFOIL_REQUIRE_GPU=1` that is a
//! failure.

mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use support::operations;
use support::problem::Case;
use trefoil::plan::{Choices, Kernel, Limits};
use trefoil::{Device, Error, Target};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A case is a whole engine; a few at a time fill the GPU and leave its memory free.
    arguments.test_threads.get_or_insert(4);
    let required = std::env::var("TREFOIL_REQUIRE_GPU").is_ok_and(|value| value == "1");
    let (device, why) = match Device::open(Target::Cuda(0)) {
        Ok(device) => (Some(device), String::new()),
        Err(Error::NoDevice { why, .. }) if !required => (None, why),
        Err(error) => {
            eprintln!("cuda:0 cannot be used: {error}");
            return ExitCode::FAILURE;
        }
    };
    let trials = trials(device.as_ref());
    let count = trials.len();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if device.is_none() && !arguments.list {
        println!("no GPU: {why}");
        println!("skipped: no CUDA device ({count} GPU tests)");
    }
    conclusion.exit_code()
}

/// Each case with the planner's kernels, and those that have a choice with each kernel that the device has.
fn trials(device: Option<&Device>) -> Vec<Trial> {
    let limits = device.map_or_else(Limits::h200, |device| {
        let info = device.info();
        Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes)
    });
    let mut trials = Vec::new();
    for case in operations::all() {
        let case = std::sync::Arc::new(case);
        trials.push(trial(case.name.clone(), case.clone(), Choices::new(), device));
        for kernel in Kernel::of_convolutions(&limits) {
            if let Some(choices) = case.choices(kernel) {
                trials.push(trial(format!("{}, kernel {kernel}", case.name), case.clone(), choices, device));
            }
        }
    }
    trials
}

fn trial(name: String, case: std::sync::Arc<Case>, choices: Choices, device: Option<&Device>) -> Trial {
    let ignored = device.is_none();
    let device = device.cloned();
    let test = move || match device {
        Some(device) => case.run(&device, choices).map_err(Failed::from),
        None => Err("no CUDA device".into()),
    };
    Trial::test(name, test).with_ignored_flag(ignored)
}
