//! Faults of the simulated device: each operation in turn is refused, or fails while it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::device::Kind;
use crate::device::sim::{Effect, Injection, Link, SideBySide, Sim, SimOptions, SimProgram, Unit};

/// Uses a ring in every way with these injections. A thread moves the time on while all others sleep.
fn play(injections: Vec<Injection>, waiting: Waiting) -> (Arc<Core>, Vec<Error>) {
    let rate = 1e9;
    let link = Link { in_alone: rate, in_duplex: rate, out_alone: rate, out_duplex: rate, overhead: 1000 };
    let (sim, info) =
        Sim::new(SimOptions { link, side_by_side: SideBySide::default(), injections, polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let program = SimProgram::new(&device, &sim, &[(1, 1_000_000), (ROWS, 2_000_000)], ROW_ALIGN, SLOTS).unwrap();
    let core = ring(&device, Arc::new(program), waiting);
    let over = AtomicBool::new(false);
    let errors = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                sim.drain();
                thread::sleep(Duration::from_micros(200));
            }
        });
        let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_up(&core, 4)));
        let errors = used.and_then(|mut errors| {
            let check = || {
                // If a batch whose ticket was dropped is the one that fails, only the closing call gets the error.
                if errors.is_empty() {
                    errors.extend(core.close(Close::Drain, LONG).err());
                }
                if errors.is_empty() {
                    check_clean(&core, &errors);
                }
                errors
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(check))
        });
        over.store(true, Ordering::Relaxed);
        errors.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    (core, errors)
}

#[test]
fn nothing_fails_where_nothing_is_injected() {
    for waiting in WAYS {
        let (core, errors) = in_time("a clean run", move || play(Vec::new(), waiting));
        assert!(errors.is_empty(), "{errors:?}");
        drop(core);
    }
}

#[test]
fn every_operation_may_be_refused_or_fail() {
    for (unit, operation) in [(Unit::CopyIn, "copy_in"), (Unit::Compute, "launch"), (Unit::CopyOut, "copy_out")] {
        for effect in [Effect::RefuseCall, Effect::FailRun] {
            for nth in 1..=12 {
                let waiting = WAYS[nth % WAYS.len()];
                let injections = vec![Injection { unit, nth, effect }];
                in_time("a fault", move || {
                    let (core, errors) = play(injections, waiting);
                    check_faulted(&core, &errors, operation, FaultClass::Device);
                    if let Effect::RefuseCall = effect {
                        let Error::Fault { batch, .. } = &errors[0] else { unreachable!("checked") };
                        assert!(batch.is_some(), "{waiting:?}, refused call {nth}: {}", errors[0]);
                    }
                    drop(core);
                });
            }
        }
    }
}
