//! Several devices, some of which fail: nothing is lost, nothing answered twice or wrongly, while one is left.

use std::collections::VecDeque;

use super::*;
use crate::device::sim::{Effect, Injection, Link, Sim, SimOptions, SimProgram, Unit};
use crate::device::{Kind, Target};
use crate::ring::Peers;

/// Rings as one, on checked devices.
pub(super) fn peers(devices: Vec<(Device, Arc<dyn Program>)>, waiting: Waiting) -> Arc<Peers> {
    let freed = Arc::default();
    // As many results as there are tickets at most: one device may have to hold all of them.
    let results = usize::from(PRODUCERS) * 4;
    let core = |(device, program): (Device, Arc<dyn Program>)| {
        let spec = RingSpec { results, freed: Some(Arc::clone(&freed)), ..spec(waiting) };
        Core::build(&device, program, spec).unwrap()
    };
    let cores = devices.into_iter().map(core).collect();
    Peers::new(cores, freed)
}

/// A CPU whose program panics in one run.
fn cpu(panics_at: usize) -> (Device, Arc<dyn Program>) {
    let device = Device::open(Target::Cpu).unwrap().checked();
    let program = super::cpu::program(&device, panics_at);
    (device, program)
}

/// A simulated device to which something happens.
fn sim(injections: Vec<Injection>) -> (Device, Arc<dyn Program>) {
    let link = Link { in_alone: 1e9, in_duplex: 1e9, out_alone: 1e9, out_duplex: 1e9, overhead: 1000 };
    let (sim, info) = Sim::new(SimOptions { link, injections, polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let program = SimProgram::new(&device, &sim, &[(ROWS, 1_000_000)], ROW_ALIGN, SLOTS).unwrap();
    (device, Arc::new(program))
}

const PRODUCERS: u8 = 3;
const BATCHES: u8 = 12;

/// Producers that each wait for their batches in order, one for one, each in another way; the errors that this gave.
/// Every answer is compared with the rows that it is for.
pub(super) fn use_peers(peers: &Arc<Peers>) -> Vec<Error> {
    let produce = |producer: u8| {
        let wait = |ticket: Ticket| match producer {
            0 => ticket.wait(),
            1 => ticket.wait_for(LONG).map(|answer| answer.expect("it is never answered")),
            _ => block_on(ticket),
        };
        let answer = |(number, ticket): (u8, Ticket)| {
            let rows = ticket.rows();
            let output = wait(ticket)?;
            assert_eq!(output.rows(), rows);
            assert!((0..rows).all(|row| output.row(row).iter().all(|&byte| byte == number)), "another batch's answer");
            Ok(())
        };
        let (mut tickets, mut errors) = (VecDeque::new(), Vec::new());
        for batch in 0..BATCHES {
            let number = producer * BATCHES + batch;
            let rows = 1 + usize::from(number) % ROWS;
            let submitted = peers.acquire(LONG).and_then(|mut batch| {
                batch.rows_mut().take(rows).for_each(|row| row.fill(number));
                batch.submit(rows)
            });
            match submitted {
                Ok(ticket) => tickets.push_back((number, ticket)),
                Err(error) => errors.push(error),
            }
            if tickets.len() > 2 {
                errors.extend(tickets.pop_front().map(answer).and_then(Result::err));
            }
        }
        errors.extend(tickets.into_iter().map(answer).filter_map(Result::err));
        errors
    };
    thread::scope(|scope| {
        let produce = &produce;
        let producers: Vec<_> = (0..PRODUCERS).map(|producer| scope.spawn(move || produce(producer))).collect();
        producers.into_iter().flat_map(|producer| producer.join().unwrap()).collect()
    })
}

/// What holds where a device is left: all is answered, and the failed one had its share run again.
pub(super) fn check_all_answered(peers: &Peers, errors: &[Error], failed: usize) {
    assert!(errors.is_empty(), "{errors:?}");
    let stats = peers.stats();
    assert_eq!(stats.iter().filter(|device| device.fault.is_some()).count(), failed, "{stats:?}");
    let submitted: u64 = stats.iter().map(|device| device.batches).sum();
    let again: u64 = stats.iter().map(|device| device.run_again).sum();
    let answers = u64::from(PRODUCERS) * u64::from(BATCHES);
    // A submission that failed itself was never counted as the failed device's.
    assert!((answers..=answers + again).contains(&submitted), "{stats:?}");
    assert!(stats.iter().all(|device| device.fault.is_none() || device.run_again == 0 || failed > 1), "{stats:?}");
}

#[test]
fn a_device_that_fails_loses_nothing() {
    for waiting in WAYS {
        for panics_at in 0..10 {
            in_time("one failed of three", move || {
                let peers = peers(vec![cpu(panics_at), cpu(usize::MAX), cpu(usize::MAX)], waiting);
                let errors = use_peers(&peers);
                let failed = peers.stats().iter().filter(|device| device.fault.is_some()).count();
                check_all_answered(&peers, &errors, failed);
                assert!(failed == 1 || panics_at > 4, "it had too few batches to fail at {panics_at}");
            });
        }
        in_time("two failed of three", move || {
            let peers = peers(vec![cpu(2), cpu(usize::MAX), cpu(3)], waiting);
            let errors = use_peers(&peers);
            check_all_answered(&peers, &errors, 2);
        });
    }
}

#[test]
fn every_operation_may_be_the_one_that_fails() {
    for unit in [Unit::CopyIn, Unit::Compute, Unit::CopyOut] {
        for nth in 1..=4 {
            for effect in [Effect::RefuseCall, Effect::FailRun] {
                in_time("an injected fault", move || {
                    let peers =
                        peers(vec![sim(vec![Injection { unit, nth, effect }]), sim(Vec::new())], Waiting::Block);
                    let errors = use_peers(&peers);
                    check_all_answered(&peers, &errors, 1);
                });
            }
        }
    }
}

#[test]
fn the_last_devices_fault_answers_everybody() {
    for waiting in WAYS {
        in_time("all failed", move || {
            let peers = peers(vec![cpu(2), cpu(4)], waiting);
            let errors = use_peers(&peers);
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| matches!(error, Error::Fault { .. })), "{errors:?}");
            assert!(matches!(peers.acquire(LONG), Err(Error::Fault { .. })));
        });
    }
}

#[test]
fn batches_go_to_the_least_loaded() {
    let peers = peers(vec![cpu(usize::MAX), cpu(usize::MAX)], Waiting::Block);
    let held: Vec<_> = (0..6).map(|_| peers.acquire(LONG).unwrap()).collect();
    assert_eq!(peers.stats().iter().map(|device| device.load).collect::<Vec<_>>(), [3, 3]);
    let Err(Error::Timeout { credits, .. }) = peers.acquire(Duration::from_millis(20)) else {
        panic!("more batches than there are");
    };
    assert_eq!((credits.filling, credits.staging), (6, 6));
    let freed = thread::scope(|scope| {
        let blocked = scope.spawn(|| peers.acquire(LONG).map(drop));
        thread::sleep(Duration::from_millis(20));
        drop(held);
        blocked.join().unwrap()
    });
    freed.unwrap();
}
