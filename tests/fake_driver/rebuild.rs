//! A fleet of one device that is opened again after a fault: whichever call fails, every submission is answered, with a
//! result as long as an attempt is left.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil::{Device, Engine, Error, FaultClass, Fleet, RowTicket, Target, Waiting};

use crate::cuda::Context;
use crate::engine::{POISON, small_model};
use crate::harness::{ChildReport, Scenario, for_each_number, mark, wait_for_release};
use crate::many::head;
use crate::what::LONG;

/// The variable for a status whose class is device.
const CODE: (&str, &str) = ("FAKE_CUDA_FAIL_CODE", "999");
const BATCHES: usize = 6;

fn build(device: Device) -> Result<Fleet, Error> {
    let model = small_model();
    let (features, head) = (model.features()?, head(&model));
    let builder = match std::env::var("WHAT").unwrap().as_str() {
        "one model" => Engine::builder(&model),
        _ => Engine::builder(&features).then(&head).beside(&head).average(),
    };
    let waiting = [Waiting::Block, Waiting::Callback, Waiting::Spin];
    let waiting = waiting[std::env::var("WAITING").unwrap().parse::<usize>().unwrap()];
    let builder = builder.batch_sizes(&[4]).slots(2).staging(3).results(8).waiting(waiting).check(true);
    builder.acquire_limit(LONG).rebuild_on_fault(2).build_on(&[device])
}

/// In a child process: prints the outcome of each batch of a fleet, one on each line, and how often the fleet was
/// rebuilt.
fn tell() {
    println!(); // behind the name of the test
    let fleet = match Device::open(Target::Cuda(0)).and_then(build) {
        Ok(fleet) => fleet,
        Err(error) => return println!("error: {error}"),
    };
    mark("use");
    let tickets: Vec<_> = (0..BATCHES).map(|_| fleet.acquire()?.submit(3)).collect();
    for ticket in tickets {
        match ticket.and_then(trefoil::Ticket::wait) {
            Ok(output) => {
                assert!((0..3).all(|row| output.values(row).iter().all(|&value| value == POISON)), "not downloaded");
                println!("answered");
            }
            Err(error) => {
                assert_eq!(error.class(), FaultClass::Device, "{error}");
                println!("error: {error}");
            }
        }
    }
    let stats = &fleet.stats()[0];
    assert!(!stats.is_rebuilding && (stats.rebuilt > 0) == stats.last_fault.is_some(), "{stats:?}");
    println!("rebuilt {}", stats.rebuilt);
    mark("used");
    if stats.fault.is_none() && stats.rebuilt == 0 {
        drop(fleet);
        wait_for_release(); // its thread ends by itself
    }
}

/// Checks that each error line names a call that failed by injection.
fn check_named(report: &ChildReport) {
    let injected = report.log.iter().filter(|line| line.ends_with("injected"));
    let failed: BTreeSet<&str> = injected.filter_map(|line| line.split(' ').next()).collect();
    for line in report.stdout.lines().filter(|line| line.starts_with("error")) {
        let is_named = failed.iter().any(|name| line.contains(&format!("{name} failed with CUDA_ERROR_UNKNOWN")));
        assert!(is_named, "not one of {failed:?}: {line}\n{report}");
    }
}

/// Checks a run, in which the context of a failed ring may end while it has work; returns how many batches were
/// answered.
fn check_answered(what: &str, report: &ChildReport) -> usize {
    let violations: Vec<_> =
        report.violations.iter().filter(|what| !what.starts_with("the context ends with")).collect();
    assert!(report.status.success() && violations.is_empty(), "{what}: {violations:?}\n{report}");
    check_named(report);
    let count = |start: &str| report.stdout.lines().filter(|line| line.starts_with(start)).count();
    let (answered, errors) = (count("answered"), count("error"));
    assert_eq!(answered + errors, BATCHES, "{what}\n{report}");
    answered
}

fn is_call(line: &&String) -> bool {
    line.starts_with("cu")
}

/// Runs a fleet of one model or of several; the ways of waiting, and the times at which the device does its work,
/// alternate.
fn run(scenario: &Scenario, what: &str, number: usize, variables: &[(&str, &str)]) -> ChildReport {
    let (waiting, events) = (["0", "1", "2"][number % 3], ["instant", "own"][number / 3 % 2]);
    let turns = [("WHAT", what), ("WAITING", waiting), ("FAKE_CUDA_EVENTS", events), CODE];
    scenario.run(&[&turns[..], variables].concat())
}

/// The number of the last call before the phase of use, and the calls of that phase.
fn calls_of_use(scenario: &Scenario, what: &str) -> (usize, Vec<String>) {
    let report = run(scenario, what, 0, &[]);
    report.assert_clean();
    assert!(report.stdout.contains("rebuilt 0"), "{report}");
    let before = report.log.iter().take_while(|line| *line != "# use").filter(is_call).count();
    (before, report.between("use", "used").into_iter().map(str::to_owned).collect())
}

/// Checks that each call of the phase of use may fail, once and for good.
fn each_call_fails(name: &'static str, what: &'static str) {
    let scenario = Scenario::new(name, tell);
    let (before, in_use) = calls_of_use(&scenario, what);
    let rebuilt = AtomicUsize::new(0);
    let calls = for_each_number(in_use.len(), |number| {
        let call = (before + number).to_string();
        let report = run(&scenario, what, number, &[("FAKE_CUDA_FAIL_CALL", &call)]);
        assert_eq!(check_answered(&format!("call {call}"), &report), BATCHES, "call {call}\n{report}");
        rebuilt.fetch_add(usize::from(report.stdout.contains("rebuilt 1")), Ordering::Relaxed);
        let for_good = [("FAKE_CUDA_FAIL_CALL", &*call), ("FAKE_CUDA_FAIL_STICKY", "1")];
        let report = run(&scenario, what, number, &for_good);
        check_answered(&format!("call {call} and all later ones"), &report);
        assert!(report.stdout.contains("rebuilt 0"), "{report}");
    });
    assert!(rebuilt.into_inner() * 2 > calls, "most calls in use are a device's fault when they fail");
}

#[test]
fn a_fleet_of_one_outlives_each_call_that_fails() {
    each_call_fails("rebuild::a_fleet_of_one_outlives_each_call_that_fails", "one model");
}

#[test]
fn a_fleet_of_several_models_outlives_each_call_that_fails() {
    each_call_fails("rebuild::a_fleet_of_several_models_outlives_each_call_that_fails", "several models");
}

/// A launch fails, and then each later call, once and for good: the first of these open and build again.
#[test]
fn each_call_of_rebuilding_may_fail() {
    let scenario = Scenario::new("rebuild::each_call_of_rebuilding_may_fail", tell);
    let what = "one model";
    let (before, in_use) = calls_of_use(&scenario, what);
    let launch = before + 1 + in_use.iter().position(|call| call.starts_with("cuGraphLaunch")).unwrap();
    let report = run(&scenario, what, 0, &[("FAKE_CUDA_FAIL_CALL", &launch.to_string())]);
    let all = report.log.iter().take_while(|line| *line != "# used").filter(is_call).count();
    assert!(all > launch + 100, "{all} calls in all: nothing was rebuilt\n{report}");
    for_each_number(all - launch, |number| {
        let calls = format!("{launch},{}", launch + number);
        let report = run(&scenario, what, number, &[("FAKE_CUDA_FAIL_CALL", &calls)]);
        assert_eq!(check_answered(&format!("calls {calls}"), &report), BATCHES, "calls {calls}\n{report}");
        let for_good = [("FAKE_CUDA_FAIL_CALL", &*calls), ("FAKE_CUDA_FAIL_STICKY", "1")];
        check_answered(&format!("calls {calls} and all later ones"), &run(&scenario, what, number, &for_good));
    });
}

/// A batcher belongs to one engine: its rows get the fault, and rows of a batcher of the next engine are computed.
#[test]
fn rows_of_a_batcher_are_answered_before_and_after_a_rebuild() {
    let scenario = Scenario::new("rebuild::rows_of_a_batcher_are_answered_before_and_after_a_rebuild", || {
        let fleet = build(Device::open(Target::Cuda(0)).unwrap()).unwrap();
        let ask = || -> Vec<Result<(), Error>> {
            let batcher = fleet.engines()[0].batcher().rows(4).build().unwrap();
            let pixels = vec![7; batcher.input().row_bytes];
            let tickets: Vec<_> = (0..BATCHES).map(|_| batcher.submit(&pixels)).collect();
            let answer = |ticket: RowTicket| ticket.wait_for(LONG).map(|answer| drop(answer.expect("never answered")));
            tickets.into_iter().map(|ticket| ticket.and_then(answer)).collect()
        };
        mark("use");
        let heard: Vec<Error> = ask().into_iter().filter_map(Result::err).collect();
        assert!(!heard.is_empty(), "nobody heard of the fault");
        assert!(heard.iter().all(|error| error.to_string().contains("cuGraphLaunch failed")), "{heard:?}");
        drop(fleet.acquire().unwrap().submit(1).unwrap().wait().unwrap()); // by the next engine
        assert!(ask().into_iter().all(|answer| answer.inspect_err(|error| println!("{error}")).is_ok()));
        assert_eq!(fleet.stats()[0].rebuilt, 1);
    });
    for waiting in ["0", "1", "2"] {
        let fails = [("FAKE_CUDA_FAIL_CALL", "use:cuGraphLaunch"), CODE];
        let report = scenario.run(&[&fails[..], &[("WHAT", "one model"), ("WAITING", waiting)]].concat());
        assert!(report.status.success(), "{report}");
    }
}

/// A sticky error of the context makes the fault one of the process: nothing is rebuilt.
#[test]
fn a_fault_of_the_process_is_not_rebuilt() {
    let scenario = Scenario::new("rebuild::a_fault_of_the_process_is_not_rebuilt", || {
        let fleet = build(Device::open(Target::Cuda(0)).unwrap()).unwrap();
        let fault = (0..4).find_map(|_| fleet.acquire().and_then(|batch| batch.submit(1)?.wait()).err()).unwrap();
        assert_eq!(fault.class(), FaultClass::Process, "{fault}");
        assert!(matches!(fleet.acquire(), Err(Error::Fault { .. })));
        let stats = &fleet.stats()[0];
        assert!(stats.rebuilt == 0 && !stats.is_rebuilding && stats.fault.is_some(), "{stats:?}");
    });
    let fails = [("FAKE_CUDA_FAIL_CALL", "cuGraphLaunch"), ("FAKE_CUDA_FAIL_CODE", "700")];
    let report = scenario.run(&[&fails[..], &[("WHAT", "one model"), ("WAITING", "0")]].concat());
    assert!(report.status.success(), "{report}");
}

/// A device in a context of the program is not opened again.
#[test]
fn a_context_of_the_program_is_refused() {
    let scenario = Scenario::new("rebuild::a_context_of_the_program_is_refused", || {
        let context = Context::new().unwrap();
        let device = context.device().unwrap();
        let refused = build(device).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    });
    scenario.run(&[("WHAT", "one model"), ("WAITING", "0")]).assert_sound();
}
