//! Tests of several devices, some of which fail: while one is left, no batch is lost, answered twice or answered
//! wrongly.

use std::collections::VecDeque;

use super::*;
use crate::device::sim::{Effect, Injection, Link, Picos, SideBySide, Sim, SimOptions, SimProgram, Unit};
use crate::device::{Kind, Signal, Target};
use crate::ring::Peers;

/// Rings used as one, on checked devices.
pub(super) fn peers(devices: Vec<(Device, Arc<dyn Program>)>, waiting: Waiting) -> Arc<Peers> {
    let freed = Arc::default();
    let rings = devices.into_iter().map(|made| member(made, waiting, &freed)).collect();
    Peers::new(rings, freed, 0)
}

/// One ring of a fleet. It has as many results as there can be tickets, because it may have to hold all of them.
pub(super) fn member(
    (device, program): (Device, Arc<dyn Program>),
    waiting: Waiting,
    freed: &Arc<Signal>,
) -> Arc<Core> {
    let results = usize::from(PRODUCERS) * 4;
    let spec = RingSpec { results, freed: Some(freed.clone()), ..spec(program.batch_sizes(), waiting) };
    Core::build(&device, program, spec).unwrap()
}

/// A checked CPU with a program that panics in one run.
pub(super) fn cpu(panics_at: usize) -> (Device, Arc<dyn Program>) {
    let device = Device::open(Target::Cpu).unwrap().checked();
    let program = super::cpu::program(&device, panics_at);
    (device, program)
}

/// A checked simulated device with these injections, and its program.
pub(super) fn sim(injections: Vec<Injection>) -> (Device, Arc<dyn Program>) {
    let link = Link { in_alone: 1e9, in_duplex: 1e9, out_alone: 1e9, out_duplex: 1e9, overhead: 1000 };
    let (sim, info) =
        Sim::new(SimOptions { link, side_by_side: SideBySide::default(), injections, polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let program = SimProgram::new(&device, &sim, &[(ROWS, 1_000_000)], ROW_ALIGN, SLOTS).unwrap();
    (device, Arc::new(program))
}

const PRODUCERS: u8 = 3;
const BATCHES: u8 = 12;

/// Uses the rings by several producers. Each waits for its batches in order, and each waits in another way. Every
/// answer is compared with its rows. Returns the errors.
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

/// Checks the rings after a use in which a device was left: every batch is answered, and those of the failed devices
/// ran again.
pub(super) fn check_all_answered(peers: &Peers, errors: &[Error], failed: usize) {
    assert!(errors.is_empty(), "{errors:?}");
    let stats = peers.stats();
    assert_eq!(stats.iter().filter(|device| device.fault.is_some()).count(), failed, "{stats:?}");
    let submitted: u64 = stats.iter().map(|device| device.batches).sum();
    let again: u64 = stats.iter().map(|device| device.run_again).sum();
    let answers = u64::from(PRODUCERS) * u64::from(BATCHES);
    // A submission that failed itself was not counted for the failed device.
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

#[test]
fn a_ring_with_more_batches_than_another_gets_none() {
    let peers = peers(vec![cpu(usize::MAX), cpu(usize::MAX)], Waiting::Block);
    for ring in [0, 1, 0] {
        let _held = [0, 1].map(|_| peers.rings.now()[ring].acquire(LONG).unwrap());
        let _next = [0, 1].map(|_| peers.acquire(LONG).unwrap());
        assert_eq!(peers.stats().iter().map(|device| device.load).collect::<Vec<_>>(), [2, 2], "two held of {ring}");
    }
}

const MS: Picos = 1_000_000_000;

/// Rings on two devices whose models take these times. Only the calling thread moves their time on.
fn at_speeds(models: [Picos; 2]) -> (Arc<Peers>, [Arc<Sim>; 2]) {
    let link = Link { in_alone: 1e9, in_duplex: 1e9, out_alone: 1e9, out_duplex: 1e9, overhead: 0 };
    let devices = models.map(|model| {
        let (sim, info) = Sim::new(SimOptions {
            link,
            side_by_side: SideBySide::default(),
            injections: Vec::new(),
            polls_advance: false,
        });
        let sim = Arc::new(sim);
        let device = Device::new(Kind::Sim(sim.clone()), info).checked();
        let program = SimProgram::new(&device, &sim, &[(ROWS, model)], ROW_ALIGN, SLOTS).unwrap();
        ((device, Arc::new(program) as Arc<dyn Program>), sim)
    });
    let [(first, one), (second, other)] = devices;
    (peers(vec![first, second], Waiting::Callback), [one, other])
}

fn submit_stamped(peers: &Arc<Peers>, number: u8) -> Ticket {
    let mut batch = peers.acquire(Duration::ZERO).unwrap();
    batch.row_mut(0).fill(number);
    batch.submit(1).unwrap()
}

#[test]
fn a_device_four_times_as_fast_gets_four_times_as_many_batches() {
    let (peers, sims) = at_speeds([MS, 4 * MS]);
    let mut tickets: Vec<Ticket> = Vec::new();
    for step in 0..4000 {
        sims.iter().for_each(|sim| sim.advance_to(step * MS / 20));
        let ready: Vec<Ticket> = tickets.extract_if(.., |ticket| ticket.is_ready().unwrap()).collect();
        ready.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
        // Fewer batches than even the slow device alone has room for.
        while tickets.len() < 3 {
            tickets.push(submit_stamped(&peers, 0));
        }
    }
    let stats = peers.stats();
    let share = stats[0].batches as f64 / stats[1].batches as f64;
    assert!((3.5..=4.5).contains(&share), "{share}: {stats:?}");
    assert!(stats[0].batches > 180, "the fast one was idle: {stats:?}");
    sims.iter().for_each(|sim| sim.drain());
}

#[test]
fn a_later_ticket_may_be_ready_first_and_each_answer_is_its_own() {
    let (peers, sims) = at_speeds([20 * MS, MS]);
    let first = submit_stamped(&peers, 1);
    let slow = peers.stats().iter().position(|device| device.batches == 1).unwrap();
    let second = submit_stamped(&peers, 2);
    assert_eq!(peers.stats().iter().map(|device| device.batches).collect::<Vec<_>>(), [1, 1]);
    sims.iter().for_each(|sim| sim.advance_to(5 * MS));
    let (early, late) = if slow == 0 { (&second, &first) } else { (&first, &second) };
    assert!(early.is_ready().unwrap() && !late.is_ready().unwrap());
    sims.iter().for_each(|sim| sim.drain());
    // Tickets that are waited for in the order of submission are answered in this order.
    for (number, ticket) in [(1, first), (2, second)] {
        assert!(ticket.wait().unwrap().row(0).iter().all(|&byte| byte == number));
    }
}
