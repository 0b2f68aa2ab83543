//! Tests of the ring's host side under a model checker: the real ring and batcher, made small, on the simulated device.
//! The checker controls every lock, wait and thread. No wait times out by itself, so that a lost wake-up is a deadlock,
//! which the checker reports with the schedule that led to it.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --lib model_check`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::{check_dfs, check_pct, check_random, future, thread};

use super::{BatcherBuilder, Buckets, Close, Core, Peers, RingSpec, Ticket, Waiting};
use crate::device::sim::{Effect, Injection, Link, SideBySide, Sim, SimOptions, SimProgram, Unit};
use crate::device::{Device, Kind, Priority, Signal};
use crate::error::Error;
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

const LONG: Duration = Duration::from_secs(1 << 20);

/// The numbers of schedules of each scenario: random ones, and ones with few, well-placed preemptions.
const RANDOM: usize = 10_000;
const PREEMPTING: usize = 3_000;
const PREEMPTIONS: usize = 4;

#[derive(Clone)]
struct Small {
    slots: usize,
    streams: usize,
    staging: usize,
    results: usize,
    waiting: Waiting,
    injections: Vec<Injection>,
}

const SMALL: Small =
    Small { slots: 1, streams: 1, staging: 1, results: 2, waiting: Waiting::Block, injections: Vec::new() };

fn ring(small: Small) -> Arc<Core> {
    ring_and_device(small).0
}

fn ring_and_device(small: Small) -> (Arc<Core>, Arc<Sim>) {
    member(small, None)
}

/// A fleet of two small rings.
fn peers(small: [Small; 2]) -> Arc<Peers> {
    let freed = Arc::<Signal>::default();
    let cores = small.into_iter().map(|small| member(small, Some(freed.clone())).0).collect();
    Peers::new(cores, freed, 0)
}

fn member(small: Small, freed: Option<Arc<Signal>>) -> (Arc<Core>, Arc<Sim>) {
    let rate = 1e9;
    let link = Link { in_alone: rate, in_duplex: rate, out_alone: rate, out_duplex: rate, overhead: 0 };
    let side_by_side = SideBySide { most: small.streams, gain: 0.5 };
    let (sim, info) = Sim::new(SimOptions { link, side_by_side, injections: small.injections, polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info);
    // A hazard checker keeps a thread's clock in a thread-local, and here all tasks run on one thread. With two
    // checkers, two tasks could use it at the same time.
    let device = if freed.is_some() { device } else { device.checked() };
    let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);
    let program = SimProgram::new(&device, &sim, &[(2, 1_000_000)], ROW_ALIGN, small.slots).unwrap();
    let program = program.on_streams(&device, small.streams).unwrap();
    let spec = RingSpec {
        staging: small.staging,
        results: small.results,
        priority: Priority::Normal,
        acquire_limit: LONG,
        waiting: small.waiting,
        output_kind: OutputKind::Features,
        buckets: Buckets::one(&[2], row.clone(), vec![row]),
        classes: vec![0],
        device_results: false,
        freed,
    };
    (Core::build(&device, Arc::new(program), spec).unwrap(), sim)
}

fn submit(core: &Arc<Core>, number: u8) -> Result<Ticket, Error> {
    let mut batch = core.acquire(LONG)?;
    batch.row_mut(0).fill(number);
    batch.submit(1)
}

fn answered(number: u8, answer: Result<super::Output, Error>) {
    assert!(answer.unwrap().row(0).iter().all(|&byte| byte == number), "another's answer");
}

/// Checks that every credit is free, and that the device had no hazard.
fn all_home(core: &Arc<Core>) {
    assert!(core.device.fault().is_none(), "{:?}", core.device.fault());
    let credits = core.credits().unwrap();
    assert_eq!((credits.filling, credits.in_flight, credits.unread, credits.quarantined), (0, 0, 0, 0), "{credits}");
}

fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    check_random(scenario.clone(), RANDOM);
    check_pct(scenario, PREEMPTING, PREEMPTIONS);
}

/// Runs `body` to its end on two threads, with different numbers.
fn two(core: &Arc<Core>, body: impl Fn(&Arc<Core>, u8) + Clone + Send + 'static) {
    let threads: Vec<_> = [1, 101]
        .into_iter()
        .map(|first| {
            let (core, body) = (core.clone(), body.clone());
            thread::spawn(move || body(&core, first))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// More producers than batches, on two devices of which one may fail: every producer is woken, and answered correctly.
#[test]
fn producers_share_two_devices_and_one_may_fail() {
    let injection = |(unit, effect)| vec![Injection { unit, nth: 1, effect }];
    let faults = [(Unit::Compute, Effect::FailRun), (Unit::CopyOut, Effect::RefuseCall)].map(injection);
    for injections in [Vec::new()].into_iter().chain(faults) {
        explore(move || {
            // There are as many results as tickets, because one device may have to hold all of them.
            let small = Small { results: 6, ..SMALL };
            let peers = peers([Small { injections: injections.clone(), ..small.clone() }, small]);
            let produce = |first: u8| {
                let peers = peers.clone();
                thread::spawn(move || {
                    for number in first..first + 2 {
                        let mut batch = peers.acquire(LONG).unwrap();
                        batch.row_mut(0).fill(number);
                        let ticket = batch.submit(1).unwrap();
                        let answer = if number % 2 == 0 { ticket.wait() } else { future::block_on(ticket) };
                        answered(number, answer);
                    }
                })
            };
            let producers = [1, 101, 201].map(produce);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            assert_eq!(peers.stats()[1].load, 0);
        });
    }
}

/// A ring whose device fails, and the thread that builds its successor or fails to: every producer is woken, and
/// answered correctly while a ring is left, else with the fault.
#[test]
fn producers_outlive_a_ring_that_is_built_anew() {
    for (unit, effect) in [(Unit::Compute, Effect::FailRun), (Unit::CopyOut, Effect::RefuseCall)] {
        for is_built in [true, false] {
            explore(move || {
                let injections = vec![Injection { unit, nth: 1, effect }];
                let (freed, small) = (Arc::<Signal>::default(), Small { results: 4, ..SMALL });
                let ring = |small: Small| member(small, Some(freed.clone())).0;
                let first = ring(Small { injections, ..small.clone() });
                let peers = Peers::new(vec![first], freed.clone(), 1);
                let (rings, second) = (peers.rings().clone(), ring(small));
                let mend = thread::spawn(move || {
                    let mut second = Some(second);
                    while rings.next_due(0).is_some() {
                        match second.take().filter(|_| is_built) {
                            Some(second) => drop(rings.put(0, second)),
                            None => rings.failed(0, &Error::Closed),
                        }
                    }
                });
                let produce = |number: u8| {
                    let peers = peers.clone();
                    thread::spawn(move || {
                        let submit = || {
                            let mut batch = peers.acquire(LONG)?;
                            batch.row_mut(0).fill(number);
                            batch.submit(1)
                        };
                        let answer = submit().and_then(|ticket| match number {
                            1 => ticket.wait(),
                            _ => future::block_on(ticket),
                        });
                        match answer {
                            Err(Error::Fault { .. }) if !is_built => {}
                            answer => answered(number, answer),
                        }
                    })
                };
                [1, 2].map(produce).into_iter().for_each(|producer| producer.join().unwrap());
                assert_eq!(peers.stats()[0].rebuilt, u64::from(is_built));
                drop(peers);
                mend.join().unwrap();
            });
        }
    }
}

#[test]
fn two_producers_share_one_staging() {
    for waiting in [Waiting::Block, Waiting::Spin] {
        explore(move || {
            let core = ring(Small { waiting, ..SMALL });
            two(&core, |core, first| {
                for number in first..first + 2 {
                    answered(number, submit(core, number).unwrap().wait());
                }
            });
            all_home(&core);
        });
    }
}

#[test]
fn two_producers_share_two_compute_streams() {
    explore(|| {
        let core = ring(Small { slots: 2, streams: 2, staging: 2, ..SMALL });
        two(&core, |core, first| {
            for number in first..first + 2 {
                answered(number, submit(core, number).unwrap().wait());
            }
        });
        all_home(&core);
    });
}

/// No thread reads a result meanwhile, so that only the upload wakes a producer.
#[test]
fn an_upload_that_ends_wakes_a_blocked_producer() {
    for waiting in [Waiting::Block, Waiting::Spin] {
        explore(move || {
            let core = ring(Small { results: 4, waiting, ..SMALL });
            two(&core, |core, first| {
                let tickets = [first, first + 1].map(|number| (number, submit(core, number).unwrap()));
                tickets.into_iter().for_each(|(number, ticket)| answered(number, ticket.wait()));
            });
            all_home(&core);
        });
    }
}

#[test]
fn callbacks_wake_whoever_sleeps() {
    explore(|| {
        let (core, sim) = ring_and_device(Small { waiting: Waiting::Callback, ..SMALL });
        // No thread waits in the driver, so that a task has to move the device on.
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let device = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                sim.drain();
                thread::yield_now();
            }
        });
        two(&core, |core, number| answered(number, submit(core, number).unwrap().wait()));
        stop.store(true, Ordering::Relaxed);
        device.join().unwrap();
        all_home(&core);
    });
}

/// Runs the first schedules, depth first: those that differ only at their ends. Not all schedules are run.
#[test]
fn the_smallest_ring_on_the_first_schedules() {
    const FIRST: usize = 20_000;
    check_dfs(
        || {
            let core = ring(Small { results: 1, ..SMALL });
            let other = core.clone();
            let producer = thread::spawn(move || answered(1, submit(&other, 1).unwrap().wait()));
            answered(2, submit(&core, 2).unwrap().wait());
            producer.join().unwrap();
            all_home(&core);
        },
        Some(FIRST),
    );
}

#[test]
fn dropped_batches_tickets_and_outputs_give_their_credits_back() {
    explore(|| {
        let core = ring(Small { results: 2, staging: 2, ..SMALL });
        two(&core, |core, first| {
            for number in first..first + 3 {
                match thread_rng().gen_range(0..3) {
                    0 => drop(core.acquire(LONG).unwrap()),
                    1 => drop(submit(core, number).unwrap()),
                    _ => answered(number, submit(core, number).unwrap().wait()),
                }
            }
        });
        // The ring's own thread frees the result of a dropped ticket.
        let held: Vec<_> = (0..2).map(|_| core.acquire(LONG).unwrap()).collect();
        drop(held);
        all_home(&core);
    });
}

#[test]
fn awaited_tickets_are_woken() {
    explore(|| {
        let core = ring(Small { staging: 2, ..SMALL });
        two(&core, |core, number| answered(number, future::block_on(submit(core, number).unwrap())));
        all_home(&core);
    });
}

#[test]
fn a_ring_dropped_with_everything_in_flight_ends_its_threads() {
    explore(|| {
        let core = ring(Small { staging: 2, ..SMALL });
        let (kept, dropped) = (submit(&core, 1).unwrap(), submit(&core, 2).unwrap());
        let reader = thread::spawn(move || answered(1, kept.wait()));
        drop(core);
        drop(dropped);
        reader.join().unwrap();
    });
}

#[test]
fn closing_meets_acquires_and_submits() {
    for how in [Close::Drain, Close::Abort] {
        explore(move || {
            let core = ring(SMALL);
            let closer = core.clone();
            let closing = thread::spawn(move || closer.close(how, LONG).unwrap());
            two(&core, move |core, number| match submit(core, number) {
                Err(Error::Closed) => {}
                ticket => match ticket.unwrap().wait() {
                    Err(Error::Closed) => assert_eq!(how, Close::Abort),
                    answer => answered(number, answer),
                },
            });
            closing.join().unwrap();
            assert!(matches!(core.acquire(LONG), Err(Error::Closed)));
            all_home(&core);
        });
    }
}

#[test]
fn a_fault_is_heard_by_everybody() {
    let operations = [Unit::CopyIn, Unit::Compute, Unit::CopyOut];
    for (unit, effect) in operations.into_iter().flat_map(|unit| [(unit, Effect::FailRun), (unit, Effect::RefuseCall)])
    {
        explore(move || {
            let injections = vec![Injection { unit, nth: 2, effect }];
            let core = ring(Small { injections, ..SMALL });
            two(&core, |core, first| {
                for number in first..first + 2 {
                    let Ok(ticket) = submit(core, number) else { break };
                    let answer = if number % 2 == 0 { ticket.wait() } else { future::block_on(ticket) };
                    let Ok(output) = answer else { break };
                    answered(number, Ok(output));
                }
            });
            assert!(core.device.fault().is_some());
        });
    }
}

/// The batching thread measures the upload of the first row. The client that commits the second row sends it, while
/// another thread closes the batcher.
#[test]
fn a_batcher_that_is_closed_while_a_client_sends_answers_it() {
    for how in [Close::Drain, Close::Abort] {
        explore(move || {
            let core = ring(Small { staging: 2, ..SMALL });
            let batcher = Arc::new(BatcherBuilder::new(&core).rows(2).max_delay(Duration::ZERO).build().unwrap());
            drop(batcher.row().unwrap().submit().unwrap().wait().unwrap());
            let client = {
                let batcher = batcher.clone();
                thread::spawn(move || batcher.row().and_then(|row| row.submit()?.wait()).map(drop))
            };
            batcher.close(how, LONG).unwrap();
            let answer = client.join().unwrap();
            assert!(matches!(answer, Ok(()) | Err(Error::Closed)), "{answer:?}");
            drop(batcher);
            drop(core);
        });
    }
}

#[test]
fn a_batcher_answers_every_row() {
    explore(|| {
        let core = ring(Small { staging: 2, ..SMALL });
        let batcher = Arc::new(BatcherBuilder::new(&core).rows(2).max_delay(Duration::ZERO).build().unwrap());
        let clients: Vec<_> = [1_u8, 101]
            .into_iter()
            .map(|first| {
                let batcher = batcher.clone();
                thread::spawn(move || {
                    for number in first..first + 2 {
                        let mut row = batcher.row().unwrap();
                        row.bytes_mut().fill(number);
                        match thread_rng().gen_range(0..4) {
                            0 => drop(row),
                            1 => drop(row.submit().unwrap()),
                            2 => {
                                let output = future::block_on(row.submit().unwrap()).unwrap();
                                assert!(output.bytes().iter().all(|&byte| byte == number));
                            }
                            _ => {
                                let output = row.submit().unwrap().wait().unwrap();
                                assert!(output.bytes().iter().all(|&byte| byte == number));
                            }
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(batcher);
        drop(core); // the batcher's and the ring's threads end, or the checker finds them waiting
    });
}
